"""A tokenizer that knows a few words."""

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast


def small_tokenizer(unk_token: str | None = "<unk>") -> PreTrainedTokenizerFast:
    """Knows a few words; without `unk_token`, it leaves out what it does not know."""
    words = ["<unk>", "</s>", "What", "is", "it", "Paris"]
    backend = Tokenizer(
        models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>")
        if unk_token
        else models.BPE({letter: number for number, letter in enumerate(["</s>", *"Whatisperd "])}, [])
    )
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>", unk_token=unk_token)
