"""The tokens of a pair, each with what it is: shared, part of the cue, the generation header, over the limit."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

from .alignment import shared_suffix
from .rendering import ProcessingClass, get_tokenizer


# "same": both prompts begin so. "shared": both end so, up to the header. "cue": whatever stands on one side only.
Mark = Literal["same", "shared", "cue", "header"]


class Token(NamedTuple):
    """A token as it is shown."""

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
    Marks the tokens of both prompts of a pair.

    Args:
        clean_ids (`Sequence[int]`):
            Token ids of the clean prompt.
        perturbed_ids (`Sequence[int]`):
            Token ids of the perturbed prompt.
        header_length (`int`):
            Tokens of the generation header, from [`~trl_consistency.data.alignment.header_length`].
        processing_class ([`~transformers.PreTrainedTokenizerBase`] or [`~transformers.ProcessorMixin`]):
            What rendered them.
        limit (`int`, *optional*):
            Tokens from this place on are over the limit.

    Returns:
        `tuple[list[Token], list[Token]]`: The tokens of the clean and of the perturbed prompt.
    """
    suffix = shared_suffix(clean_ids, perturbed_ids).length
    # Both prompts of an anchor are one shared suffix; none of it is a prefix, too.
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
    The text that each token adds to what stands before it: what a tokenizer makes of a token alone may lack its space. A
    piece of a character adds nothing, and the last piece the character.
    """
    tokenizer = get_tokenizer(processing_class)
    texts: list[str] = []
    start = read = 0  # what was read last is decoded again, as context
    for end in range(1, len(ids) + 1):
        before, both = (
            tokenizer.decode(list(ids[start:stop]), clean_up_tokenization_spaces=False) for stop in (read, end)
        )
        is_piece = both.endswith("\N{REPLACEMENT CHARACTER}") and end - read < 4  # UTF-8 has four bytes at most
        texts.append("" if is_piece else both[len(before) :])
        if not is_piece:
            start, read = read, end
    return texts
