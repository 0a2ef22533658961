"""A processor without pictures."""

from transformers import ProcessorMixin


class TextProcessor(ProcessorMixin):
    """The processor of a multimodal model, as far as text goes."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        self.chat_template = tokenizer.chat_template
