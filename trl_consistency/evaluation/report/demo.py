"""A page to browse stored answers: two models side by side, filtered by threat and outcome. It needs nothing else."""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ...data.rendering import message_text
from ...pages import render
from ...perturbations import PERTURBATIONS
from ..grading.asked import is_anchor
from ..row_kinds import kind_of
from ..run import Results


# More would make a page that browsers are slow to filter.
MOST_ROWS = 300


class DemoAnswer(NamedTuple):
    """A model's answers to both prompts of a row, with their outcomes."""

    model: str
    clean: str
    clean_outcome: str
    perturbed: str
    perturbed_outcome: str


@dataclass(frozen=True)
class DemoRow:
    """A row of the page: both prompts, and the answers of all models, in their order."""

    threat: str
    kind: str
    place: str
    key: str
    cue: str
    clean: str
    perturbed: str
    answers: list[DemoAnswer]

    @property
    def outcomes(self) -> list[str]:
        return [answer.perturbed_outcome for answer in self.answers]


@dataclass(frozen=True)
class Demo:
    """The page. `models` are in the order of the columns to choose from."""

    title: str
    introduction: str
    models: list[str]
    rows: list[DemoRow]

    @property
    def numbered_models(self) -> list[tuple[int, str]]:
        return list(enumerate(self.models))

    @property
    def threats(self) -> list[tuple[str, str]]:
        return _choices({row.threat for row in self.rows})

    @property
    def outcomes(self) -> list[tuple[str, str]]:
        return _choices({outcome for row in self.rows for outcome in row.outcomes})

    def to_html(self) -> str:
        """Returns the page. Every text of prompts, answers and names is escaped."""
        return render("demo.html", demo=self)


def _choices(values: set[str]) -> list[tuple[str, str]]:
    return [("", "all"), *((value, value) for value in sorted(values))]


def make_demo(found: Mapping[str, Results], seed: int) -> Demo:
    """Returns the page of the models' answers to the same rows. Of many rows, it has a sample by `seed`."""
    sets = next(iter(found.values())).sets
    places = [(name, index) for name, of_set in sets.items() for index in range(len(of_set.pairs.rows))]
    drawn = sorted(random.Random(seed).sample(range(len(places)), min(MOST_ROWS, len(places))))
    sampled = (
        f"{len(drawn):,} of {len(places):,} measured rows, drawn with seed {seed}"
        if len(drawn) < len(places)
        else "All measured rows"
    )
    return Demo(
        "Answers before and after consistency training" if len(found) > 1 else "One model's answers",
        f"{sampled}. Each prompt is shown with its irrelevant cue, and the answers to it; anchors have no cue. The answers are stored: no "
        "model runs here. Outcomes are read by rules or a judge, and can be wrong.",
        list(found),
        [_row(found, *places[number]) for number in drawn],
    )


def _row(found: Mapping[str, Results], name: str, index: int) -> DemoRow:
    of_set = next(iter(found.values())).sets[name]
    row, number = of_set.pairs.rows[index], of_set.pairs.places[index]
    return DemoRow(
        threat_of(row),
        kind_of(row),
        f"row {number}{f' of {name}' if name else ''}{', an anchor' if is_anchor(row) else ''}",
        str(row.get("answer") or ""),
        str(row.get("biased_answer") or ""),
        prompt_text(row["clean_prompt"]),
        prompt_text(row["perturbed_prompt"]),
        [_answer(model, results, name, index) for model, results in found.items()],
    )


def _answer(model: str, results: Results, name: str, index: int) -> DemoAnswer:
    of_set = results.sets[name]
    texts = {side: answers[index].text for side, answers in of_set.answers.items()}
    outcomes = {side: grades[index].outcome for side, grades in of_set.grades.items()}
    return DemoAnswer(model, texts["clean"], outcomes["clean"], texts["perturbed"], outcomes["perturbed"])


def threat_of(row: Mapping[str, object]) -> str:
    """Returns the family of a row's perturbation (the first of several), its name if it is unknown, else the row's kind."""
    name = str(row.get("perturbation") or "").split("+")[0].split("/")[0]
    if not name:
        return kind_of(row)
    return PERTURBATIONS[name].family if name in PERTURBATIONS else name


def prompt_text(prompt: object) -> str:
    """Returns a prompt as text: messages with their roles, if there are several."""
    if not isinstance(prompt, list):
        return str(prompt)
    texts = [message_text(message) for message in prompt]
    if len(texts) == 1:
        return texts[0]
    return "\n\n".join(f"{message['role']}: {text}" for message, text in zip(prompt, texts, strict=True))
