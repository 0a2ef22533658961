"""Looks for faults in a completion's tokens."""

from typing import Any

from .messages import without_none
from .rendering import ProcessingClass, get_tokenizer, message_text, render_completion
from .template_check import thoughts_of
from .text import all_text
from .thinking import leaves_thought_open, without_end
from .unknown_words import count_unknown


def completion_fault(
    row: dict[str, Any],
    processing_class: ProcessingClass,
    rendered: dict[str, Any],
    tools: list[dict] | None,
    kwargs: dict[str, Any],
    thinking_markers: tuple[str, str],
) -> str:
    """Returns the fault in a completion's tokens, empty if there is none."""
    tokenizer, ids = get_tokenizer(processing_class), rendered["completion_ids"]
    if row.get("completion_ids"):
        is_same = not row.get("completion") or _says(row, processing_class, ids, tools, kwargs)
        return (
            "" if is_same else "`completion` and `completion_ids` differ: render `completion_ids` again, or remove it"
        )
    if unknown := count_unknown(tokenizer, ids):
        return (
            f"`completion` holds {unknown} word(s) or sign(s) that the tokenizer does not know: the model would learn to write "
            f"{tokenizer.unk_token!r}"
        )
    opening, closing = thinking_markers
    # `lint` and training warn of thoughts that are open on one side only.
    leaves_open = leaves_thought_open(row["clean_prompt"], rendered["clean_ids"], tokenizer, thinking_markers)
    if leaves_open and closing not in tokenizer.decode(ids):
        return (
            f"the prompt ends inside a thought, and `completion` as the chat template writes it has no {closing!r}: the model "
            "would learn the answer as a thought that does not end. Let the targets be generated, give the thought and the "
            "answer as `completion_ids`, or turn thinking off by `chat_template_kwargs` (such as `enable_thinking: false`)"
        )
    enough = len(closing.encode()) + 8  # a token is at least one byte
    is_closed = tokenizer.decode(rendered["clean_ids"][-enough:]).rstrip().endswith(closing)
    if is_closed and tokenizer.decode(ids[:enough]).lstrip().startswith(closing):
        return (
            f"the prompt ends with a closed thought, and the chat template writes a second {closing!r} before `completion`: it has other "
            "spaces in the empty thought of an answer. Give the answer as `completion_ids`, or use another template"
        )
    if not _has_thought(row["completion"], opening):
        return ""
    thought, found, answer = tokenizer.decode(ids).partition(closing)
    if found and not thought.replace(opening, "").strip() and answer.lstrip().startswith(opening):
        return (
            f"the chat template writes an empty thought before `completion`, and {opening!r} in its text begins another: the model would learn "
            "to end its thought at once. Give the thought as `reasoning_content` of the completion's message, beside its `content`"
        )
    if is_closed and found and opening not in thought:
        return (
            f"the prompt ends with a closed thought, and `completion` has another, which would go on after that without {opening!r}. Take "
            "the thought out of `completion`, or turn thinking on by `chat_template_kwargs` (such as `enable_thinking: true`)"
        )
    return ""


def _has_thought(completion: Any, opening: str) -> bool:
    return opening in all_text(completion) or (isinstance(completion, list) and any(thoughts_of(completion[0])))


def _says(
    row: dict[str, Any],
    processing_class: ProcessingClass,
    ids: list[int],
    tools: list[dict] | None,
    kwargs: dict[str, Any],
) -> bool:
    """Whether a row's `completion_ids` are those of its `completion`, except for white space and how the turn ends."""

    def texts(ids: list[int]) -> set[str]:
        tokenizer = get_tokenizer(processing_class)
        found = {tokenizer.decode(ids, skip_special_tokens=skip) for skip in (True, False)}
        return {"".join(of.split()) for of in (*found, tokenizer.decode(without_end(ids, tokenizer)))}

    completion = row["completion"]
    message = completion[0] if isinstance(completion, list) else {"content": completion}
    text, said = "".join(message_text(message).split()), texts(ids)
    if text in said:
        return True
    if without_none(message).keys() - {"role", "content"}:  # tool calls, which models write with their own spaces
        return any(text in of_ids for of_ids in said)
    alone = render_completion(processing_class, row["clean_prompt"], completion, tools, kwargs)
    return bool(said & texts(alone))
