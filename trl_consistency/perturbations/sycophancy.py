"""Sycophancy: opinions of the user, which should not change an answer."""

import random
from collections.abc import Callable, Sequence

from .draft import OUTER_POSITIONS, POSITIONS, Draft
from .registry import Cue, Suggests, add_wording, perturbation, read_wordings
from .source import choice_lines


FAMILY = "sycophancy"
WORDINGS = read_wordings(FAMILY) | read_wordings("stated_answer")
EXAMPLES = read_wordings("examples")
ANSWERED_BEFORE = ("chat messages", "the user's turn last")


_STATED: tuple[tuple[str, str, Suggests], ...] = (
    ("suggested_answer", "The user suggests a wrong answer.", "wrong"),
    ("stated_answer", "The user states a wrong answer, in words that a small model heeds.", "wrong"),
    ("denied_answer", "The user speaks against the right answer.", "not right"),
    ("authority", "An expert, or a user who claims to be one, suggests a wrong answer.", "wrong"),
    ("distractor_fact", "An irrelevant fact draws attention to a wrong answer.", "wrong"),
    ("distractor_argument", "A bad argument speaks for a wrong answer.", "wrong"),
)
for name, described, suggests in _STATED:
    perturbation(WORDINGS[name], FAMILY, POSITIONS, suggests=suggests)(add_wording, name, described)


@perturbation(WORDINGS["feedback"], FAMILY, positions=OUTER_POSITIONS, needs=("a free-form question",))
def feedback(draft: Draft, cue: Cue) -> None:
    """The user likes or dislikes the text that is to be judged, or wrote it."""
    add_wording(draft, cue)


@perturbation(WORDINGS["are_you_sure"], FAMILY, needs=ANSWERED_BEFORE, suggests="not right")
def are_you_sure(draft: Draft, cue: Cue) -> None:
    """The assistant has given the right answer, and the user doubts it (three turns)."""
    draft.say("assistant", cue.source.said(cue.right))
    draft.say("user", cue.text)


@perturbation(WORDINGS["post_hoc"], FAMILY, needs=ANSWERED_BEFORE, suggests="wrong")
def post_hoc(draft: Draft, cue: Cue) -> None:
    """The assistant has given a wrong answer, and is asked for its reasons (three turns)."""
    draft.say("assistant", cue.source.said(cue.answer))
    draft.say("user", cue.text)


@perturbation(WORDINGS["wrong_few_shot"], FAMILY, suggests="wrong")
def wrong_few_shot(draft: Draft, cue: Cue) -> None:
    """Solved examples come first, and the last of them is the question itself with a wrong answer."""
    count = min(len(cue.source.choices), 10)
    shots = [
        _shot(cue.wording, example, count, cue.rng.randrange(max(count, 1)), cue.rng) for example in _examples(cue, 2)
    ]
    question = "\n\n".join(filter(None, (cue.source.question, "\n".join(cue.source.choice_lines()))))
    draft.add("start", "\n\n".join([*shots, cue.wording.format(question=question, answer=cue.answer)]))


@perturbation(
    WORDINGS["spurious_few_shot"], FAMILY, needs=("choices", "at most ten choices"), suggests="wrong"
)  # fmt: skip
def spurious_few_shot(draft: Draft, cue: Cue) -> None:
    """Solved examples come first, and the right answer of each has the letter of a wrong answer to the question."""
    count, place = len(cue.source.choices), ord(cue.letter) - ord("A")
    draft.add(
        "start", "\n\n".join(_shot(cue.wording, example, count, place, cue.rng) for example in _examples(cue, 4))
    )


def _examples(cue: Cue, count: int) -> list[dict]:
    """Returns examples, none of which is the question itself: it would be solved there."""
    asked = cue.source.question.casefold().split()
    return cue.rng.sample([of for of in EXAMPLES[cue.split] if of["question"].casefold().split() != asked], count)


def _shot(wording: str, example: dict, count: int, place: int, rng: random.Random) -> str:
    """Returns a solved example with `count` choices (0 for none), the right one at `place`."""
    if not count:
        return wording.format(question=example["question"], answer=example["right"])
    choices = rng.sample(example["wrong"], count - 1)
    choices.insert(place, example["right"])
    question = "\n\n".join((example["question"], "\n".join(choice_lines(choices))))
    return wording.format(question=question, answer=f"({'ABCDEFGHIJ'[place]})")


@perturbation(WORDINGS["answer_position"], FAMILY, needs=("choices", "choices that say the same in any order"))
def answer_position(draft: Draft, cue: Cue) -> None:
    """The choices come in another order, each with the letter that it had."""
    lines = cue.source.choice_lines()
    order = _ORDERS[cue.wording](list(range(len(lines))), cue.source.choices, cue.rng)
    draft.parts["choices"] = "\n".join(lines[index] for index in order)


# Each function takes the choices' places, their texts and a random number generator, and returns the places reordered.
_ORDERS: dict[str, Callable[[list[int], Sequence[str], random.Random], list[int]]] = {
    "reversed": lambda places, texts, rng: places[::-1],
    "rotated by 1": lambda places, texts, rng: places[-1:] + places[:-1],
    "rotated by 2": lambda places, texts, rng: places[-2:] + places[:-2],
    "rotated by 3": lambda places, texts, rng: places[-3:] + places[:-3],
    "first moved to the end": lambda places, texts, rng: places[1:] + places[:1],
    "second moved to the end": lambda places, texts, rng: places[:1] + places[2:] + places[1:2],
    "ends swapped": lambda places, texts, rng: places[-1:] + places[1:-1] + places[:1],
    "halves swapped": lambda places, texts, rng: places[len(places) // 2 :] + places[: len(places) // 2],
    "neighbours swapped": lambda places, texts, rng: sorted(places, key=lambda place: (place // 2, -place)),
    "every second one first": lambda places, texts, rng: places[1::2] + places[::2],
    "shuffled": lambda places, texts, rng: rng.sample(places, len(places)),
    "shortest first": lambda places, texts, rng: sorted(places, key=lambda place: len(texts[place])),
    "longest first": lambda places, texts, rng: sorted(places, key=lambda place: -len(texts[place])),
    "alphabetical": lambda places, texts, rng: sorted(places, key=lambda place: texts[place].lower()),
    "alphabetical from the end": lambda places, texts, rng: sorted(
        places, key=lambda place: texts[place].lower(), reverse=True
    ),
}
