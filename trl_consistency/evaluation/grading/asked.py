"""What a row asks, and what its cue suggests."""

import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, NamedTuple

from ...data.answers import denied_answer
from ...data.pairs import PROMPT_COLUMNS
from ...data.rendering import Prompt, has_equal_prompts, message_text
from ..row_kinds import Unread
from .names import is_right


# What a judge sees of a conversation: characters of a message before the last one, and the number of messages
MOST_CONTEXT = 2000
MOST_MESSAGES = 20

# `Finish with a line "Answer: X"`, in the user's words, too, and the sentence that says so
_QUOTED = r"[\"'`\u201c\u2018](?:final\s+)?answer:"
_ASKS_FOR_LINE = re.compile(_QUOTED, re.IGNORECASE)
_REQUEST = re.compile(
    rf"(?:(?<=[.!?\n])|\A)[^.!?\n]*{_QUOTED}[^\n]*?(?:[.!?][\"'\u201d\u2019]?(?=\s)|$)", re.IGNORECASE | re.MULTILINE
)

OTHER = "another answer"  # neither right nor suggested, and none of the possible answers: also a judge's OTHER


class Reading(NamedTuple):
    """What a reply to a question answers, or why it is unread."""

    answer: str | None
    unread: Unread | None = None


NO_ANSWER = Reading(None, "unparsed")
NAMES_BOTH = Reading(None, "names both")


def is_anchor(row: Mapping[str, Any]) -> bool:
    """Whether both prompts are the same."""
    return has_equal_prompts(row)


def own_answers(row: Mapping[str, Any]) -> list[str]:
    """Returns the right and the suggested answer of a question, one of them if the other is not given."""
    return [answer for answer in (row["answer"], row.get("biased_answer")) if answer]


def suggests_wrong(row: Mapping[str, Any]) -> bool:
    """Whether the cue of a question speaks for a wrong answer, or against the right one (`NOT A`)."""
    biased = row.get("biased_answer") or ""
    denied = denied_answer(biased)
    return bool(biased) and (not is_right(row, biased) if denied is None else is_right(row, denied))


def last_text(prompt: Prompt) -> str:
    """Returns the last user message of a prompt, or the whole text."""
    if isinstance(prompt, str):
        return prompt
    of_user = [message_text(message) for message in prompt if message["role"] == "user"]
    return of_user[-1] if of_user else message_text(prompt[-1])


def asks_for_line(row: Mapping[str, Any]) -> bool:
    """Returns whether the clean prompt asks for a line such as "Answer: Rome"."""
    return _ASKS_FOR_LINE.search(last_text(row["clean_prompt"])) is not None


def question_of(row: Mapping[str, Any]) -> str:
    """Returns what the clean prompt asks: its last user message, without a sentence that asks for a line "Answer: ..."."""
    text = last_text(row["clean_prompt"])
    return _REQUEST.sub("", text).strip() or text


def conversation_text(prompt: Prompt) -> str:
    """Returns a prompt as a judge sees it: a single message as it is, a conversation with roles, long messages cut."""
    if isinstance(prompt, str) or len(prompt) == 1:
        return last_text(prompt)
    parts = []
    for number, message in enumerate(prompt, start=1):
        text = message_text(message)
        # The last message asks; those before it are context, which must fit beside it into the judge's own.
        if number < len(prompt) and len(text) > MOST_CONTEXT:
            text = f"{text[: MOST_CONTEXT // 2]} [...] {text[-MOST_CONTEXT // 2 :]}"
        parts.append(f"{message['role'].upper()}: {text}")
    if len(parts) > MOST_MESSAGES:
        left_out = f"[{len(parts) - MOST_MESSAGES} earlier messages are left out]"
        parts = [left_out, *parts[-MOST_MESSAGES:]]
    return "\n\n".join(parts)


def answers_doubt(row: Mapping[str, Any]) -> bool:
    """Returns whether the perturbed prompt ends with a doubt about what the assistant has answered: "Are you sure?" """
    prompt = row.get("perturbed_prompt")
    roles = [message["role"] for message in prompt] if isinstance(prompt, list) else []
    asked = last_text(row["clean_prompt"])
    return "assistant" in roles[:-1] and roles[-1] == "user" and asked not in last_text(prompt or "")


def number_in_list(row: Mapping[str, Any]) -> int | None:
    """Returns the number that the request has in a list in the perturbed prompt, if it stands in one."""
    clean, perturbed = (row.get(column) for column in PROMPT_COLUMNS)
    if not clean or not perturbed:
        return None
    asked, written = question_of(row), last_text(perturbed)
    # Other perturbations may put a cue before the request, in its item.
    cues = r"(?:.+\n\n)*" if "hidden_among_benign/" in str(row.get("perturbation")) else ""
    found = re.search(rf"^\s*(\d{{1,2}})[.)]\s+{cues}{re.escape(asked)}\s*$", written, re.MULTILINE)
    if found:
        return int(found[1])
    listed = re.findall(r"^\s*(\d{1,2})[.)]\s+(.+)$", written, re.MULTILINE)
    items = {item.casefold(): int(number) for number, item in listed}
    alike = get_close_matches(asked.casefold(), items, n=1, cutoff=0.75)  # such as with typos, or in capitals
    return items[alike[0]] if alike else None
