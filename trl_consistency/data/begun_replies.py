"""Tokenizes the beginning of a reply, such as an answer that is to be scored, as it would be tokenized behind its prompt."""

from collections.abc import Sequence

from .rendering import ProcessingClass, Prompt, encode_rest, get_tokenizer, is_prefilled
from .reply_header import written_before


# Tokens at the end of a prompt that decide what is written behind it, and how that is tokenized
_TAIL = 24


class BegunReplies:
    """
    Returns the token ids of the beginning of a reply to a prompt: behind the header that the chat template writes before a reply,
    and without the space that SentencePiece tokenizers put in front of a text that stands alone. If the end of the prompt would
    merge with it into one token, it is tokenized on its own, as in [`render_completion`].

    A prompt that is text and ends without white space keeps that space: the model writes one behind "Answer:".
    """

    def __init__(self, processing_class: ProcessingClass):
        self._processing_class, self._tokenizer = processing_class, get_tokenizer(processing_class)
        # BERT's word pieces lose line breaks.
        self._is_lossless = self._decode(self._encode("a\nb")).lstrip() == "a\nb"
        self._headers: dict[tuple[int, ...], str] = {}
        self._found: dict[tuple[tuple[int, ...], str, bool], list[int]] = {}

    def __call__(self, prompt: Prompt, prompt_ids: Sequence[int], beginning: str) -> list[int]:
        tail, header, is_alone = tuple(prompt_ids[-_TAIL:]), "", False
        if isinstance(prompt, str):
            is_alone = not (prompt[-1:].isspace() or beginning[:1].isspace())
        elif not is_prefilled(prompt):
            header = self._header(tail)
        if not beginning and not header.strip():  # the white space before a reply may be a part of its first token
            return []
        key = tail, f"{header}{beginning}", is_alone
        if key not in self._found:
            self._found[key] = self._encode(key[1]) if is_alone else self._behind(tail, key[1])
        return list(self._found[key])

    def _header(self, tail: tuple[int, ...]) -> str:
        if tail not in self._headers:
            self._headers[tail] = written_before(self._processing_class, self._decode(tail))
        return self._headers[tail]

    def _behind(self, tail: tuple[int, ...], text: str) -> list[int]:
        before = self._decode(tail)
        ids, whole = self._encode(before), self._encode(f"{before}{text}")
        is_same = self._is_lossless and tuple(ids[-2:]) == tail[-2:] and self._tokenizer.unk_token_id not in tail
        if is_same and whole[: len(ids)] == ids:
            return whole[len(ids) :]
        return encode_rest(self._tokenizer, text)

    def _decode(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def _encode(self, text: str) -> list[int]:
        return list(self._tokenizer(text=text, add_special_tokens=False)["input_ids"])
