"""The registry of perturbations: a dict that a decorator fills."""

import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from itertools import dropwhile
from string import Formatter
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import yaml

from ..errors import ConsistencyError, did_you_mean
from .draft import POSITIONS, Draft
from .source import Source


Suggests = Literal["wrong", "not right"]
Side = Literal["perturbed", "clean"]

WORDING_SPLITS = {"train": "train", "held_out": "held-out"}  # the key of the wordings, and the name in provenance

PERTURBATIONS: dict[str, "Perturbation"] = {}
"""All perturbations by name, those of your own included."""

# What a perturbation declares so that there is something in place of each placeholder of its wordings.
DECLARED = {"answer": '`suggests="wrong"`', "right": '`needs=("a right answer",)`'}

# What edits the text of a question, and what encodes it: its letters or its choices are not to be edited after that.
EDITING, ENCODING = ("typos", "spacing", "case", "answer_position"), ("base64", "rot13")

# "All of the above", and the same in German, French, Spanish, Portuguese, Italian, Russian, Chinese, Japanese and Korean
_BY_PLACE = re.compile(
    r"\b(?:the|of|choices|answers|options|statements) (?:above|below)\b|\b(?:all|none|both|either|neither) (?:above|below)(?=\W*$)|"
    r"\b(?:oben|obigen|ci-dessus|anteriores|acima|precedenti)\b|"
    r"\b\u0432\u044b\u0448\u0435|\u4ee5\u4e0a|\u4e0a\u8ff0|\u4e0a\u8a18|\uc704\uc758",
    re.IGNORECASE,
)


def _is_of_ascii(text: str) -> bool:
    """Whether most letters of a text are from a to z."""
    letters = [letter for letter in text if letter.isalpha()]
    return 2 * sum(map(str.isascii, letters)) > len(letters)


# Requirements that a perturbation can have for a source.
NEEDS: dict[str, Callable[[Source], bool]] = {
    "choices": lambda source: bool(source.choices),
    "a free-form question": lambda source: not source.choices,
    "choices that say the same in any order": lambda source: not any(map(_BY_PLACE.search, source.choices)),
    "at most ten choices": lambda source: len(source.choices) <= 10,
    "letters from a to z": lambda source: _is_of_ascii(source.question),
    "a right answer": lambda source: bool(source.answer),
    "a wrong answer": lambda source: bool(source.wrong_answers or source.given_wrong_answer),
    "a safety fact": lambda source: bool(source.safety_fact),
    "chat messages": lambda source: source.chat,
    "the user's turn last": lambda source: not source.turns,
}


@dataclass
class Cue:
    """
    The values drawn for one use of a perturbation.

    Args:
        source ([`Source`]):
            The question.
        wording (`str`):
            The wording as in the list, with its placeholders.
        position (`str`):
            Position of the cue, empty for a perturbation without positions.
        answer (`str`):
            The suggested wrong answer as written in a sentence, empty if nothing is suggested.
        letter (`str`):
            The suggested wrong answer as in the data: its letter or its text.
        right (`str`):
            The right answer as written in a sentence.
        split (`str`):
            List of the wording: `"train"` or `"held_out"`.
        rng (`random.Random`):
            Random number generator for further choices, seeded by the provenance.
    """

    source: Source
    wording: str
    position: str
    answer: str
    letter: str
    right: str
    split: str
    rng: random.Random

    @property
    def text(self) -> str:
        """Returns the wording with its answers filled in."""
        answers = {"answer": self.answer, "right": self.right}
        try:
            text = self.wording.format(**answers)
        except (KeyError, IndexError, ValueError) as error:
            raise ConsistencyError(
                f"The wording {self.wording!r} has a placeholder that is not filled: {error}."
            ) from None
        for _, placeholder, *_ in Formatter().parse(self.wording):
            if placeholder in answers and not answers[placeholder]:
                raise ConsistencyError(
                    f"The wording {self.wording!r} has `{{{placeholder}}}`, and there is nothing to put there. Declare {DECLARED[placeholder]} "
                    "with its perturbation."
                )
        return text


Apply: TypeAlias = Callable[[Draft, Cue], None]


class Perturbation(NamedTuple):
    """
    An entry of the registry, made by [`perturbation`].

    Args:
        name (`str`):
            Its name: that of the function.
        family (`str`):
            Name of its group.
        description (`str`):
            What it does, in one line.
        apply (`Callable[[Draft, Cue], None]`):
            The function that changes a draft.
        wordings (`Mapping[str, tuple[str, ...]]`):
            The lists `train` and `held_out`.
        positions (`tuple[str, ...]`):
            Positions to draw from; empty without positions.
        needs (`tuple[str, ...]`):
            What a source must have. A suggested or denied answer adds `"a wrong answer"` or `"a right answer"`.
        suggests (`str`, *optional*):
            `"wrong"`, `"not right"` or None.
        side (`str`):
            The prompt that is changed: `"perturbed"` or `"clean"`.
        keeps_question (`bool`):
            Whether the question's own text stays unchanged.
    """

    name: str
    family: str
    description: str
    apply: Apply
    wordings: Mapping[str, tuple[str, ...]]
    positions: tuple[str, ...]
    needs: tuple[str, ...]
    suggests: Suggests | None
    side: Side
    keeps_question: bool

    def lacks(self, source: Source) -> str | None:
        """Returns the first requirement that the source does not meet, or None."""
        return next((need for need in self.needs if not NEEDS[need](source)), None)

    def open_positions(self, source: Source, positions: Sequence[str] = POSITIONS) -> list[str]:
        """Returns the positions of the perturbation that are in `positions` and that the source has."""
        here = [position for position in self.positions if position in positions]
        if not source.choices:
            return [position for position in here if not position.endswith("_choices")]
        if not source.instruction and "end" in here:  # "end" is then the same position
            return [position for position in here if position != "after_choices"]
        return here


def open_positions(
    steps: Sequence[Perturbation], source: Source, positions: Sequence[str] = POSITIONS
) -> list[list[str]]:
    """Returns the open positions of each step of a composition. What is encoded has no choices any more."""
    encoded = [step.name in ENCODING for step in steps]
    of_steps = [step.open_positions(source, positions) for step in steps]
    return [
        [of for of in here if not (any(encoded[:place]) and of.endswith("_choices"))]
        for place, here in enumerate(of_steps)
    ]


def perturbation(
    wordings: Mapping[str, Sequence[str]],
    family: str = "own",
    positions: Sequence[str] = (),
    needs: Sequence[str] = (),
    suggests: Suggests | None = None,
    side: Side = "perturbed",
    keeps_question: bool = True,
) -> Callable[..., Apply]:
    """
    Registers a function as a perturbation under its own name. The first line of its docstring is the description.

    The function changes a [`Draft`] by a [`Cue`]. It must not depend on anything else.

    Args:
        wordings (`Mapping[str, Sequence[str]]`):
            The lists `train` and `held_out`, which must not share a wording. `cue.text` replaces `{answer}` with the
            suggested answer and `{right}` with the right answer.
        family (`str`, *optional*, defaults to `"own"`):
            Name of a group of perturbations. On the command line, it selects the whole group.
        positions (`Sequence[str]`, *optional*):
            Positions to draw from: any of `"start"`, `"before_choices"`, `"after_choices"` and `"end"`.
        needs (`Sequence[str]`, *optional*):
            Keys of `NEEDS`. Sources that lack one are left out and counted.
        suggests (`str`, *optional*):
            `"wrong"` if the wording suggests a wrong answer, `"not right"` if it denies the right one.
        side (`str`, *optional*, defaults to `"perturbed"`):
            The prompt that the function changes: `"perturbed"` or `"clean"`.
        keeps_question (`bool`, *optional*, defaults to `True`):
            Whether the question's own text stays unchanged.

    Returns:
        `Callable`: The decorator. It returns the function unchanged.

    Raises:
        [`ConsistencyError`]: By the decorator, if the name is taken, a list of wordings is empty or shares a wording with the
            other, the function has no docstring, or an argument is unknown.

    Example:

    ```python
    from trl_consistency.perturbations import perturbation


    @perturbation(
        wordings={"train": ["They say it is {answer}."], "held_out": ["Word has it that it is {answer}."]},
        positions=("start", "end"),
        suggests="wrong",
    )
    def rumour(draft, cue):
        \"\"\"A rumour names a wrong answer.\"\"\"
        draft.add(cue.position, cue.text)
    ```
    """

    def register(function: Apply, name: str | None = None, described: str | None = None) -> Apply:
        name = name or function.__name__  # several perturbations may share a function
        described = described or (function.__doc__ or "").strip().split("\n")[0]
        lists = {split: tuple(wordings.get(split, ())) for split in WORDING_SPLITS}
        _check_entry(name, family, lists, positions, needs, described)
        for given, known in ((suggests, (*get_args(Suggests), None)), (side, get_args(Side))):
            if given not in known:
                raise ConsistencyError(f"`{name}`: {given!r} is not one of {', '.join(map(repr, known))}.")
        implied = {"wrong": ("a wrong answer",), "not right": ("a right answer",)}.get(suggests or "", ())
        PERTURBATIONS[name] = Perturbation(
            name, family, described, function, lists, tuple(positions), (*needs, *implied), suggests, side, keeps_question
        )  # fmt: skip
        return function

    return register


def add_wording(draft: Draft, cue: Cue) -> None:
    """Adds the wording at the drawn position."""
    draft.add(cue.position, cue.text)


def _check_entry(
    name: str,
    family: str,
    lists: Mapping[str, tuple[str, ...]],
    positions: Sequence[str],
    needs: Sequence[str],
    described: str,
) -> None:
    if name in PERTURBATIONS:
        raise ConsistencyError(f"There is a perturbation `{name}` already: rename the function.")
    if name != family and any(entry.family == name for entry in PERTURBATIONS.values()):
        raise ConsistencyError(f"`{name}` is the name of a family: rename the function.")
    if family in PERTURBATIONS and PERTURBATIONS[family].family != family:
        raise ConsistencyError(
            f"`{name}`: its family `{family}` has the name of a perturbation of another family. Rename the family."
        )
    if not described:
        raise ConsistencyError(f"`{name}` needs a docstring: its first line is shown to users.")
    for split, wordings in lists.items():
        if not wordings:
            raise ConsistencyError(f"`{name}` has no `{split}` wordings. Give at least one.")
    normal = {split: {" ".join(wording.lower().split()) for wording in wordings} for split, wordings in lists.items()}
    shared = normal["train"] & normal["held_out"]
    if shared:
        raise ConsistencyError(f"`{name}` has a wording in both lists: {min(shared)!r}.")
    if sum(map(len, normal.values())) < sum(map(len, lists.values())):
        raise ConsistencyError(f"`{name}` has a wording twice in one list.")
    for given, known in ((positions, POSITIONS), (needs, tuple(NEEDS))):
        for value in given:
            if value not in known:
                raise ConsistencyError(f"`{name}`: {value!r} is not one of {', '.join(map(repr, known))}.")


@cache
def read_wordings(name: str) -> dict[str, Any]:
    """Reads the wordings of a family from `wordings/NAME.yaml`."""
    text = (resources.files(__package__) / "wordings" / f"{name}.yaml").read_text(encoding="utf-8")
    return yaml.safe_load(text)


def find_perturbations(names: Sequence[str]) -> list[tuple[Perturbation, ...]]:
    """
    Looks up perturbations.

    Args:
        names (`Sequence[str]`):
            Names, families, and compositions such as `"authority+typos"`, applied from left to right.

    Returns:
        `list[tuple[Perturbation, ...]]`: The steps of each perturbation.

    Raises:
        [`ConsistencyError`]: If there is no name, one is unknown or given twice, or the steps of a composition do not go
            together: two turns after the user's, or an edit of text that is encoded already.
    """
    families = {entry.family for entry in PERTURBATIONS.values()}
    known = [*PERTURBATIONS, *sorted(families)]
    chosen: dict[str, tuple[Perturbation, ...]] = {}
    for name in names:
        if name in families:
            added: dict[str, tuple[Perturbation, ...]] = {
                entry.name: (entry,) for entry in PERTURBATIONS.values() if entry.family == name
            }
        else:
            steps = name.split("+")
            for step in steps:
                if step not in PERTURBATIONS:
                    if step.count(","):
                        raise ConsistencyError(f"Put spaces between perturbations, not commas: `{step}`.")
                    hint = did_you_mean(step, known) or f" There are {', '.join(known)}."
                    raise ConsistencyError(f"Unknown perturbation `{step}`.{hint}")
            added = {name: tuple(PERTURBATIONS[step] for step in steps)}
            adding = [step for step in steps if "the user's turn last" in PERTURBATIONS[step].needs]
            if len(adding) > 1:
                raise ConsistencyError(f"`{name}`: {' and '.join(adding)} both go on after the user's turn. Take one.")
            encoded = list(dropwhile(lambda step: step not in ENCODING, steps))
            if late := next((step for step in encoded if step in EDITING), None):
                raise ConsistencyError(
                    f"`{name}`: `{late}` would edit the encoded text. Put it before `{encoded[0]}`."
                )
        twice = chosen.keys() & added.keys()
        if twice:
            raise ConsistencyError(f"The perturbation `{min(twice)}` is named twice.")
        chosen.update(added)
    if not chosen:
        raise ConsistencyError(f"No perturbations are named: name at least one of {', '.join(known)}.")
    return list(chosen.values())
