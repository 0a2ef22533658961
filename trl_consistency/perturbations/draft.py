"""One side of a pair while perturbations work on it."""

from .source import Message, Source


# Where a cue can stand in the user's turn. Those beside the choices need choices.
POSITIONS = ("start", "before_choices", "after_choices", "end")
OUTER_POSITIONS = ("start", "end")

_SLOTS = ("start", "question", "before_choices", "choices", "after_choices", "instruction", "end")


class Draft:
    """
    A prompt in parts. The question's own text is never edited as text that holds other things, so that no letter of it
    can be taken for a cue.

    Args:
        source ([`Source`]):
            Where the prompt comes from. The draft starts as its clean prompt.
    """

    def __init__(self, source: Source):
        self.chat = source.chat
        self.history = list(source.history)
        self.turns = list(source.turns)
        self.parts = dict.fromkeys(_SLOTS, "")
        self.parts["question"] = source.question
        self.parts["choices"] = "\n".join(source.choice_lines())
        self.parts["instruction"] = source.instruction
        self.head = self.tail = ""

    def add(self, position: str, text: str) -> None:
        """Puts a paragraph at one of the `POSITIONS`, after what is there already."""
        self.parts[position] = "\n\n".join(filter(None, (self.parts[position], text)))

    def wrap(self, head: str, tail: str) -> None:
        """Puts text directly before and after all of the user's turn."""
        self.head, self.tail = head + self.head, self.tail + tail

    def replace(self, text: str) -> None:
        """Puts `text` in place of all of the user's turn."""
        self.parts = {**dict.fromkeys(_SLOTS, ""), "question": text}
        self.head = self.tail = ""

    def say(self, role: str, text: str) -> None:
        """Adds a turn after the user's."""
        self.turns.append({"role": role, "content": text})

    def text(self) -> str:
        """The user's turn."""
        return self.head + "\n\n".join(filter(None, self.parts.values())) + self.tail

    def prompt(self) -> str | list[Message]:
        """The prompt as a pair holds it."""
        if not self.chat:
            return self.text()
        return [*self.history, {"role": "user", "content": self.text()}, *self.turns]
