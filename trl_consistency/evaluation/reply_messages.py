"""Replies as chat messages from which TRL's trainers render what the model said."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedTokenizerBase

from ..data.pairs import parse_json_column
from ..data.prepare import variables_of
from ..data.rendering import Message, ProcessingClass, get_tokenizer, message_text, render_reply, render_text
from ..data.template_check import THOUGHTS, thoughts_of
from ..data.thinking import THINKING_MARKERS, Markers
from .answers.replies import split_thought


@dataclass
class ReplyWriter:
    """
    Finds the message of a reply from which the chat template writes it as the model gave it.

    Args:
        processing_class: Tokenizer or processor, whose chat template TRL's trainers use.
        chat_template_kwargs: Variables of the template.
        markers: What opens and closes a thought.
    """

    processing_class: ProcessingClass
    chat_template_kwargs: dict[str, Any]
    markers: Markers

    def message(self, row: Mapping[str, Any], reply: Message, raw: str | None) -> Message | None:
        """
        Returns the message of a `reply` to the perturbed prompt of a row, or None if the template leaves out or changes a part of every
        form. `raw` is what the model wrote, with special tokens, if it is known.
        """
        prompt, tools = row["perturbed_prompt"], parse_json_column(row.get("tools"))
        variables = variables_of(row, self.chat_template_kwargs)
        begun = _squeezed(render_text(self.processing_class, prompt, tools, variables))
        opened = begun.endswith(_squeezed(self.markers[0]))
        text = message_text(reply)
        if raw is None and self.markers[1] in text:
            raw = text.lstrip().removeprefix(self.markers[0]) if opened else text
        has_others = reply.keys() - {"role", "content"}  # such as a thought beside its content, or calls
        for message in (reply, *(() if has_others else self._forms(text, opened))):
            with suppress(Exception):  # some templates refuse a thought in the content
                whole = _squeezed(render_reply(self.processing_class, prompt, message, tools, variables))
                if self._is_kept(begun, whole, message, raw):
                    return message
        return None

    def _forms(self, text: str, opened: bool) -> Iterator[Message]:
        if opened:
            yield {"role": "assistant", "content": f"{self.markers[0]}\n{text.lstrip()}"}
        thought, answer = split_thought(text, self.markers)
        thought = _without_headers(get_tokenizer(self.processing_class), thought)
        if not thought:
            yield {"role": "assistant", "content": answer}
            return
        for key in THOUGHTS:
            yield {"role": "assistant", key: thought, "content": answer}

    def _is_kept(self, begun: str, whole: str, message: Message, raw: str | None) -> bool:
        """Whether a chat begins as its prompt and goes on with the reply. An empty thought between them may be there or not."""
        empty = [_squeezed("".join(of)) for of in (THINKING_MARKERS, self.markers)]
        for of in empty:
            begun = begun.removesuffix(of)
        if not whole.startswith(begun):
            return False
        rest = whole[len(begun) :]
        if raw is None:
            return all(_squeezed(piece) in rest for piece in (message_text(message), *thoughts_of(message)))
        return any(of.startswith(_squeezed(raw)) for of in (rest, *map(rest.removeprefix, empty)))


def _without_headers(tokenizer: PreTrainedTokenizerBase, thought: str) -> str:
    """Returns a thought without the headers around it, such as gpt-oss's, which are written with special tokens."""
    for token in tokenizer.all_special_tokens:
        thought = thought.replace(token, "\0")
    return next((part.strip() for part in thought.split("\0") if part.strip()), "")


def _squeezed(text: str) -> str:
    """Returns a text without white space, which templates write in their own way."""
    return "".join(text.split())
