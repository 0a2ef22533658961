"""Counts what a tokenizer does not know, and says so in the same words wherever pairs are read."""

from transformers import PreTrainedTokenizerBase


UNKNOWN_WORDS = "word(s) or sign(s) in their prompts that the tokenizer does not know: the model reads the same token in place of each"


def count_unknown(tokenizer: PreTrainedTokenizerBase, ids: list[int]) -> int:
    """Counts the tokens that stand for something the tokenizer does not know."""
    unknown = tokenizer.unk_token_id
    # Some byte-level tokenizers, which know every text, give their end-of-sequence token as the unknown one.
    return 0 if unknown in (None, tokenizer.eos_token_id, tokenizer.bos_token_id) else ids.count(unknown)


def say_unknown(rows: str, words: int) -> str:
    """Returns a warning that some rows, which `rows` counts, hold so many unknown words."""
    return f"{rows} hold {words} {UNKNOWN_WORDS}."
