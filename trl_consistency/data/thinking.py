"""Empties a reasoning model's thought in a target, and finds it in a rollout."""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable
from itertools import accumulate, dropwhile
from typing import NamedTuple, TypeAlias

from transformers import PreTrainedTokenizerBase

from .highlights import token_texts
from .rendering import Prompt, encode_rest, is_prefilled, message_text


Markers: TypeAlias = tuple[str, str]  # what opens and what closes a thought

THINKING_MARKERS: Markers = ("<think>", "</think>")
# Markers that models are known to write
KNOWN_MARKERS: tuple[Markers, ...] = (
    THINKING_MARKERS,
    ("<thinking>", "</thinking>"),
    ("<thought>", "</thought>"),
    ("<reasoning>", "</reasoning>"),
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
    ("<|begin_of_thought|>", "<|end_of_thought|>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|channel|>analysis", "<|channel|>final<|message|>"),
    ("<|channel>thought", "<channel|>"),
    ("<|inner_prefix|>", "<|inner_suffix|>"),
    ("to=self<|message|>", "<|eom|><|start|>assistant to=user<|message|>"),
    ("<longcat_think>", "</longcat_think>"),
    ("\u25c1think\u25b7", "\u25c1/think\u25b7"),
)


def other_markers(text: str, markers: Markers) -> Markers | None:
    """Returns the markers of a thought that a text still has after its thoughts between `markers` are cut off, if any."""
    for opening, closing in KNOWN_MARKERS:
        if (opening, closing) != markers and (text.lstrip().startswith(opening) or closing in text):
            return opening, closing
    return None


def other_thought(text: str, markers: Markers) -> Markers | None:
    """Returns the markers of a thought in a completion that is not empty, if they are not `markers`."""
    found = other_markers(text, markers)
    return found if found is not None and text.partition(found[1])[0].rpartition(found[0])[2].strip() else None


def warnings_of_markers(found: Iterable[Markers | None], what: str, how: str) -> list[str]:
    """Returns warnings of texts, `what` in words, that have thoughts between other markers. `how` says what became of them."""
    listed = list(found)
    counts = Counter(markers for markers in listed if markers is not None)
    return [
        f"{count} of {len(listed)} {what} hold a thought between {opening} and {closing}, which {how}: set `thinking_markers` to these."
        for (opening, closing), count in counts.items()
    ]


def empty_thought(
    prompt_ids: list[int],
    completion_ids: list[int],
    tokenizer: PreTrainedTokenizerBase,
    markers: Markers = THINKING_MARKERS,
) -> list[int]:
    """
    Removes the thoughts of a completion. The markers stay, as chat templates write an empty thought. The last turn of the prompt may
    open the first one, or the end of a text without turns.

    A completion without a thought is returned unchanged. If a thought does not end, the result is empty, because there is no
    answer.
    """
    opening, closing = (_find(completion_ids, marker, tokenizer) for marker in markers)
    if closing is None:
        return [] if opening is not None or _is_opened(prompt_ids, tokenizer, markers) else completion_ids
    if opening is None or opening.start > closing.start:
        start, before, empty = 0, "", f"\n{markers[1]}"
    else:
        start, before, empty = opening.start, opening.before, f"{markers[0]}\n\n{markers[1]}"
    made = encode_rest(tokenizer, f"{before}{empty}{closing.after}")
    rest = completion_ids[closing.end :]
    if (later := _find(rest, markers[0], tokenizer)) is not None:
        emptied = empty_thought([], rest[later.start :], tokenizer, markers)
        if not emptied:
            return []
        rest = [*rest[: later.start], *emptied]
    return [*completion_ids[:start], *made, *rest]


def thought_span(
    prompt_ids: list[int],
    completion_ids: list[int],
    tokenizer: PreTrainedTokenizerBase,
    markers: Markers = THINKING_MARKERS,
) -> tuple[int, int]:
    """
    Returns start and end of the thought in a completion, including its markers. The last turn of the prompt may open it, or
    the end of a text without turns. An unclosed thought goes to the end of the completion. Without a thought the result is
    `(0, 0)`.
    """
    opening, closing = (_find(completion_ids, marker, tokenizer) for marker in markers)
    start = None if opening is None else opening.start
    # If the prompt opens the thought, the completion has only the closing marker.
    if _is_opened(prompt_ids, tokenizer, markers):
        start = 0
    if start is None and closing is None:
        return 0, 0
    if closing is None:
        return start or 0, len(completion_ids)
    return 0 if start is None or start > closing.start else start, closing.end


def thought_spans(
    prompt_ids: list[int],
    completion_ids: list[int],
    tokenizer: PreTrainedTokenizerBase,
    markers: Markers = THINKING_MARKERS,
) -> list[tuple[int, int]]:
    """Returns start and end of each thought in a completion: of [`thought_span`], and of those that are opened after it."""
    start, end = thought_span(prompt_ids, completion_ids, tokenizer, markers)
    spans: list[tuple[int, int]] = []
    while not spans or end > spans[-1][1]:
        spans.append((start, end))
        # The last token of a thought may hold the beginning of the next one.
        rest = max(end - 1, 0)
        if (opening := _find(completion_ids[rest:], markers[0], tokenizer)) is None:
            break
        rest += opening.start
        start, end = (rest + place for place in thought_span([], completion_ids[rest:], tokenizer, markers))
    return spans


def known_markers(prompt_ids: list[int], completion_ids: list[int], tokenizer: PreTrainedTokenizerBase) -> Markers:
    """Returns the known markers between which a completion has its last thought: those that close last, or open one that does not end."""
    asked, text = map(tokenizer.decode, (prompt_ids, completion_ids))
    found = [of for of in KNOWN_MARKERS if any(marker in text for marker in of) or of[0] in asked]

    def place(markers: Markers) -> tuple[int, int]:
        return text.rfind(markers[1]), thought_span(prompt_ids, completion_ids, tokenizer, markers)[1]

    return max(found, key=place, default=THINKING_MARKERS)


def without_end(completion_ids: list[int], tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Returns a completion without the special tokens at its end."""
    special = {token_id for token_id, token in tokenizer.added_tokens_decoder.items() if token.special}
    end = max((place for place, of in enumerate(completion_ids, start=1) if of not in special), default=0)
    return completion_ids[:end]


def has_special_markers(completion_ids: list[int], tokenizer: PreTrainedTokenizerBase, markers: Markers) -> bool:
    """Whether a completion has a marker of a thought, one of these or a known one, that is lost without special tokens."""
    whole, text = (tokenizer.decode(completion_ids, skip_special_tokens=skip) for skip in (False, True))
    return any(marker in whole and marker not in text for of in (markers, *KNOWN_MARKERS) for marker in of)


def has_thought(
    prompt_ids: list[int],
    completion_ids: list[int],
    tokenizer: PreTrainedTokenizerBase,
    markers: Markers = THINKING_MARKERS,
) -> bool:
    """Whether a completion has a thought that is not empty, which [`empty_thought`] would empty."""
    opening, closing = markers
    # The tokens at its ends may hold text beside it.
    return any(
        tokenizer.decode(completion_ids[start:end]).partition(closing)[0].rpartition(opening)[2].strip()
        for start, end in thought_spans(prompt_ids, completion_ids, tokenizer, markers)
    )


def leaves_thought_open(
    prompt: Prompt, prompt_ids: list[int], tokenizer: PreTrainedTokenizerBase, markers: Markers
) -> bool:
    """Whether the model writes its answer to a rendered prompt in a thought that the prompt, or its turn, has opened."""
    opening, closing = markers
    begun = message_text(prompt[-1]) if isinstance(prompt, list) and is_prefilled(prompt) else ""
    last = tokenizer.decode(
        prompt_ids[-len(opening.encode()) - 8 :]
    )  # a token is at least one byte; 8 for white space
    return begun.rfind(opening) > begun.rfind(closing) or last.rstrip().endswith(opening)


def _is_opened(prompt_ids: list[int], tokenizer: PreTrainedTokenizerBase, markers: tuple[str, str]) -> bool:
    """Whether the last turn of a prompt, or the end of a text without turns, opens a thought that it does not close."""
    opened, closed = (_find(prompt_ids, marker, tokenizer, last=True) for marker in markers)
    if opened is None or (closed is not None and opened.start <= closed.start):
        return False
    rest = prompt_ids[opened.end :]
    if not f"{opened.after}{tokenizer.decode(rest)}".strip():
        return True
    # Templates begin and end turns with special tokens. A marker is only mentioned before the end of a turn, or where no
    # turn begins. The special tokens right after it may be its own.
    special = {token_id for token_id, token in tokenizer.added_tokens_decoder.items() if token.special}
    begins = not special.isdisjoint({*prompt_ids[: opened.start]} - {tokenizer.bos_token_id})
    return begins and special.isdisjoint(dropwhile(special.__contains__, rest))


class _Place(NamedTuple):
    """The tokens from `start` to before `end`, which hold a marker, and their text `before` and `after` it."""

    start: int
    end: int
    before: str
    after: str


def _find(ids: list[int], marker: str, tokenizer: PreTrainedTokenizerBase, last: bool = False) -> _Place | None:
    """Finds a marker in a text. Its tokens there may differ from its tokens alone, and include neighbouring text."""
    if marker not in tokenizer.decode(ids):
        return None
    pieces = [tokenizer.decode([token]) for token in ids]
    if marker not in "".join(pieces):  # some of its characters are several tokens
        pieces = token_texts(ids, tokenizer)
    text = "".join(pieces)
    at = text.rfind(marker) if last else text.find(marker)
    if at < 0:
        return None
    ends = list(accumulate(map(len, pieces)))
    start, end = bisect_right(ends, at), bisect_left(ends, at + len(marker)) + 1
    begin = ends[start] - len(pieces[start])
    while start and not pieces[start - 1]:  # the first bytes of its first character
        start -= 1
    return _Place(start, end, text[begin:at], text[at + len(marker) : ends[end - 1]])
