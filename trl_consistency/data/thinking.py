"""Empties a reasoning model's thought in a target, and finds it in a rollout."""

from transformers import PreTrainedTokenizerBase


def empty_thought(
    completion_ids: list[int], tokenizer: PreTrainedTokenizerBase, markers: tuple[str, str] = ("<think>", "</think>")
) -> list[int]:
    """
    Removes the thought from a completion. The markers stay, as chat templates write an empty thought.

    Args:
        completion_ids (`list[int]`):
            Token ids of a completion that begins with a thought. The opening marker may be at the end of the prompt.
        tokenizer ([`~transformers.PreTrainedTokenizerBase`]):
            Tokenizer of the model.
        markers (`tuple[str, str]`, *optional*, defaults to `("<think>", "</think>")`):
            Text that opens and text that closes a thought.

    Returns:
        `list[int]`: Token ids with an empty thought. A completion without a marker is returned unchanged. If the
        thought does not end, the result is empty, because there is no answer.
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


def thought_span(
    prompt_ids: list[int],
    completion_ids: list[int],
    tokenizer: PreTrainedTokenizerBase,
    markers: tuple[str, str] = ("<think>", "</think>"),
) -> tuple[int, int]:
    """
    Finds the thought before the answer.

    Args:
        prompt_ids (`list[int]`):
            Token ids of the prompt, which may open the thought.
        completion_ids (`list[int]`):
            Token ids of the completion.
        tokenizer ([`~transformers.PreTrainedTokenizerBase`]):
            Tokenizer of the model.
        markers (`tuple[str, str]`, *optional*, defaults to `("<think>", "</think>")`):
            Text that opens and text that closes a thought.

    Returns:
        `tuple[int, int]`: Start and end of the thought in the completion, including its markers. An unclosed thought
        goes to the end of the completion. Without a thought the result is `(0, 0)`.
    """
    opening, closing = (tokenizer(text=marker, add_special_tokens=False)["input_ids"] for marker in markers)
    start, end = _find(completion_ids, opening), _find(completion_ids, closing)
    # If the prompt opens the thought, the completion has only the closing marker.
    opened, closed = (_find(prompt_ids[::-1], marker[::-1]) for marker in (opening, closing))
    if opened is not None and (closed is None or opened < closed):
        start = 0
    if start is None and end is None:
        return 0, 0
    if end is None:
        return start or 0, len(completion_ids)
    return 0 if start is None or start > end else start, end + len(closing)


def _find(ids: list[int], part: list[int]) -> int | None:
    return next((start for start in range(len(ids) - len(part) + 1) if ids[start : start + len(part)] == part), None)
