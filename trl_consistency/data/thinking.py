"""The thinking of a reasoning model in its target: kept, or emptied."""

from transformers import PreTrainedTokenizerBase


def empty_thought(
    completion_ids: list[int], tokenizer: PreTrainedTokenizerBase, markers: tuple[str, str] = ("<think>", "</think>")
) -> list[int]:
    """
    Takes what a model thought out of its completion, and leaves the markers, as chat templates write an empty thought.

    Args:
        completion_ids (`list[int]`):
            Token ids of a completion that begins with a thought. The opening marker is among them, or ended the prompt.
        tokenizer ([`~transformers.PreTrainedTokenizerBase`]):
            Its tokenizer.
        markers (`tuple[str, str]`, *optional*, defaults to `("<think>", "</think>")`):
            What opens and closes a thought.

    Returns:
        `list[int]`: Token ids with an empty thought; the completion itself if it has no marker at all; nothing if the
        thought does not end, so that there is no answer.
    """
    opening, closing = (tokenizer(text=marker, add_special_tokens=False)["input_ids"] for marker in markers)
    start, end = _find(completion_ids, opening), _find(completion_ids, closing)
    if end is None:
        return [] if start is not None else completion_ids
    if start is None or start > end:
        start, opening, gap = 0, [], "\n"
    else:
        gap = "\n\n"
    empty = [*opening, *tokenizer(text=gap, add_special_tokens=False)["input_ids"], *closing]
    return [*completion_ids[:start], *empty, *completion_ids[end + len(closing) :]]


def _find(ids: list[int], part: list[int]) -> int | None:
    return next((start for start in range(len(ids) - len(part) + 1) if ids[start : start + len(part)] == part), None)
