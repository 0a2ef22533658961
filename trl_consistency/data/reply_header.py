"""
The words that a model writes before its reply, such as gpt-oss's `<|channel|>final<|message|>`: the chat template writes them between
the end of a prompt and an answer. Without its special tokens, a reply would begin with "final".
"""

from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, NamedTuple

from .rendering import SENTINEL, ProcessingClass, chat_template_of, get_tokenizer, render_reply, render_text
from .thinking import THINKING_MARKERS


class _Header(NamedTuple):
    """What stands between a question and its answer: the end of one turn and the beginning of another, then the `header`."""

    turn: str
    header: str


def header_length(processing_class: ProcessingClass, ids: Sequence[int]) -> int:
    """
    Returns how many tokens the header of a reply has at the beginning of `ids`. Behind a thought, a turn may end and another begin
    before it. An empty thought that some templates write there is no header.
    """
    turn, header = _header_of(processing_class, repr(chat_template_of(processing_class)))
    header = header.rpartition(THINKING_MARKERS[1])[2]
    if not header.strip():
        return 0
    tokenizer = get_tokenizer(processing_class)
    forms = {f"{turn[place:]}{header}".lstrip() for place in range(len(turn) + 1)}
    longest = max(len(form.encode()) for form in forms)
    said = tokenizer.decode(ids[:longest]).lstrip()  # a token is at least one byte
    form = max((form for form in forms if said.startswith(form)), key=len, default="")
    for length in range(1, len(ids) + 1 if form else 0):
        text = tokenizer.decode(ids[:length]).lstrip()
        if text.startswith(form):
            return length if not text[len(form) :].strip() else 0
    return 0


def written_before(processing_class: ProcessingClass, prompt: str) -> str:
    """
    Returns the header that is written between a chat, of which the end may be enough, and a reply to it: a space, for example. A prompt may
    hold its beginning. An empty thought, which some templates write there, is none.
    """
    turn, header = _header_of(processing_class, repr(chat_template_of(processing_class)))
    begun = next(
        (length for length in range(len(header), 0, -1) if prompt.endswith(f"{turn[-8:]}{header[:length]}")), 0
    )
    return "" if THINKING_MARKERS[1] in header[begun:] else header[begun:]


@lru_cache(maxsize=8)
def _header_of(processing_class: ProcessingClass, template: str) -> _Header:
    question: list[dict[str, Any]] = [{"role": "user", "content": SENTINEL}]
    with suppress(Exception):  # no template, or one for other chats
        begun = render_text(processing_class, question)
        whole = render_reply(processing_class, question, {"role": "assistant", "content": SENTINEL})
        before, found, _ = whole.removeprefix(begun).partition(SENTINEL)
        if whole.startswith(begun) and found:
            return _Header(begun.rpartition(SENTINEL)[2], before)
    return _Header("", "")
