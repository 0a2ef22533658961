"""Tokenizers with chat templates of real models, which come with TRL, and with their special tokens."""

from pathlib import Path

import trl

from tests.helpers.models import make_tokenizer


# The end of a turn, and other special tokens
SPECIAL = {
    "gptoss": ("<|return|>", "<|start|>", "<|end|>", "<|message|>", "<|channel|>"),
    "muse_glimmer": ("<|eot|>", "<|start|>", "<|message|>", "<|eom|>"),
    "gemma4": ("<turn|>", "<|turn>", "<|channel>", "<channel|>"),
    "gemma4_v5": ("<turn|>", "<|turn>", "<|channel>", "<channel|>"),
}


def trl_tokenizer(name: str):
    tokenizer = make_tokenizer((Path(trl.__file__).parent / "chat_templates" / f"{name}.jinja").read_text())
    end, *others = SPECIAL.get(name, ("<|im_end|>",))
    tokenizer.add_special_tokens({"additional_special_tokens": [*others, "<|im_start|>"], "eos_token": end})
    return tokenizer
