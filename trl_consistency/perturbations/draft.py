"""One side of a pair while perturbations change it."""

from copy import deepcopy

from .source import Message, Source


# Positions of a cue in the user's turn. `before_choices` and `after_choices` need choices.
POSITIONS = ("start", "before_choices", "after_choices", "end")
OUTER_POSITIONS = ("start", "end")

_SLOTS = ("start", "question", "before_choices", "choices", "after_choices", "instruction", "end")


class Draft:
    """
    A prompt in parts, at first the clean prompt of its source. The question is kept apart from all other text, so that
    none of it can be taken for a cue.
    """

    def __init__(self, source: Source):
        self.chat = source.chat
        # Copies: a perturbation of the user's may edit a message in place.
        self.of_turn = deepcopy(dict(source.of_turn))
        self.history = deepcopy(list(source.history))
        self.turns = deepcopy(list(source.turns))
        self.parts = dict.fromkeys(_SLOTS, "")
        self.parts["question"] = source.question
        self.parts["choices"] = "\n".join(source.choice_lines())
        self.parts["instruction"] = source.instruction
        self.head = self.tail = ""

    def add(self, position: str, text: str) -> None:
        """Adds a paragraph at one of the `POSITIONS`, after any text already there."""
        if position not in POSITIONS:
            raise ValueError(
                f"{position!r} is not one of {', '.join(POSITIONS)}. `cue.position` is empty unless the perturbation declares `positions`."
            )
        self.parts[position] = "\n\n".join(filter(None, (self.parts[position], text)))

    def wrap(self, head: str, tail: str) -> None:
        """Adds text directly before and after the whole user turn."""
        self.head, self.tail = head + self.head, self.tail + tail

    def replace(self, text: str) -> None:
        """Replaces the whole user turn by `text`."""
        self.parts = {**dict.fromkeys(_SLOTS, ""), "question": text}
        self.head = self.tail = ""

    def say(self, role: str, text: str) -> None:
        """Adds a turn after the user's."""
        self.turns.append({"role": role, "content": text})

    def text(self) -> str:
        """Returns the text of the user's turn."""
        return self.head + "\n\n".join(filter(None, self.parts.values())) + self.tail

    def prompt(self) -> str | list[Message]:
        """Returns the prompt, as text or chat messages."""
        if not self.chat:
            return self.text()
        return [*self.history, {"role": "user", "content": self.text(), **self.of_turn}, *self.turns]
