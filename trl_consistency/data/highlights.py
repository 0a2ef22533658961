"""Marks each token of a pair: shared, part of the cue, in the generation header, over the limit."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

from .alignment import shared_suffix
from .rendering import ProcessingClass, get_tokenizer


# "same": in the common prefix. "shared": in the common suffix before the header. "cue": on one side only.
Mark = Literal["same", "shared", "cue", "header"]


class Token(NamedTuple):
    """A token for display."""

    text: str
    mark: Mark
    is_over_limit: bool


def mark_pair(
    clean_ids: Sequence[int],
    perturbed_ids: Sequence[int],
    header_length: int,
    processing_class: ProcessingClass,
    limit: int | None = None,
) -> tuple[list[Token], list[Token]]:
    """
    Marks the tokens of the clean and of the perturbed prompt of a pair. Tokens from position `limit` on are over the
    limit.
    """
    suffix = shared_suffix(clean_ids, perturbed_ids).length
    # An anchor's prompts are one shared suffix, which must not count as prefix too.
    longest = min(len(clean_ids), len(perturbed_ids)) - suffix
    prefix = next((i for i in range(longest) if clean_ids[i] != perturbed_ids[i]), longest)

    def mark(place: int, length: int) -> Mark:
        if place >= length - suffix:
            return "header" if place >= length - header_length else "shared"
        return "same" if place < prefix else "cue"

    clean, perturbed = (
        [
            Token(text, mark(place, len(ids)), limit is not None and place >= limit)
            for place, text in enumerate(token_texts(ids, processing_class))
        ]
        for ids in (clean_ids, perturbed_ids)
    )
    return clean, perturbed


def token_texts(ids: Sequence[int], processing_class: ProcessingClass) -> list[str]:
    """
    Returns the text that each token adds to the tokens before it. A token decoded alone may lack its leading space. If
    a character spans several tokens, the last one gets it.
    """
    tokenizer = get_tokenizer(processing_class)
    texts: list[str] = []
    start = read = 0  # the last tokens read are decoded again as context
    for end in range(1, len(ids) + 1):
        before, both = (
            tokenizer.decode(list(ids[start:stop]), clean_up_tokenization_spaces=False) for stop in (read, end)
        )
        is_piece = both.endswith("\N{REPLACEMENT CHARACTER}") and end - read < 4  # UTF-8 has four bytes at most
        texts.append("" if is_piece else both[len(before) :])
        if not is_piece:
            start, read = read, end
    return texts
