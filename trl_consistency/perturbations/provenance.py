"""Makes a pair from a source in two steps: draw a provenance, and apply it."""

import random
from collections.abc import Collection, Mapping, Sequence
from string import ascii_uppercase
from typing import Any, Literal, NamedTuple, get_args

from ..data.pairs import row_checker
from ..errors import ConsistencyError, one_line
from .draft import POSITIONS, Draft
from .registry import PERTURBATIONS, WORDING_SPLITS, Cue, Perturbation, open_positions
from .source import Source


WrongAnswer = Literal["random", "longest", "given"]


class Provenance(NamedTuple):
    """
    Everything besides the source that is needed to reproduce a pair. Its fields are columns of the pairs.

    Args:
        perturbation (`str`):
            Name and wording of each step: `"authority/train-03+typos/train-00"`.
        position (`str`):
            Position of each step, joined in the same way.
        biased_answer (`str`):
            The suggested answer in the format of `answer`, or `"NOT A"` if the cue only denies the right answer A.
        perturbation_seed (`int`):
            Seed of all other choices.
    """

    perturbation: str
    position: str
    biased_answer: str
    perturbation_seed: int

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> "Provenance":
        """Returns the provenance of a pair. Raises [`ConsistencyError`] if its seed is no whole number."""
        found = cls(*(row[field] for field in cls._fields))
        seed = str(found.perturbation_seed).removesuffix(
            ".0"
        )  # A table that has rows without a seed makes it a float.
        if not seed.isdecimal():
            raise ConsistencyError(
                f"`perturbation_seed` must be a whole number, got {seed}. Take it from the pair as it was made."
            )
        return found._replace(perturbation_seed=int(seed))


def draw(
    source: Source,
    steps: Sequence[Perturbation],
    split: Literal["train", "held_out"] = "train",
    seed: int = 42,
    variant: int = 0,
    wrong_answer: WrongAnswer = "random",
    positions: Sequence[str] = POSITIONS,
) -> Provenance:
    """
    Draws wordings, positions and a suggested answer. The draw depends only on the arguments, not on earlier sources.

    Args:
        source ([`Source`]):
            A source that has everything that the steps need.
        steps (`Sequence[Perturbation]`):
            Perturbations, applied in this order.
        split (`str`, *optional*, defaults to `"train"`):
            Wordings to draw from: `"train"` or `"held_out"`.
        seed (`int`, *optional*, defaults to `42`):
            Seed.
        variant (`int`, *optional*, defaults to `0`):
            Number of this pair among the pairs of the same source and steps. Their wordings differ as long as there
            are unused ones.
        wrong_answer (`str`, *optional*, defaults to `"random"`):
            The suggested answer: a `"random"` or the `"longest"` wrong one, or the one `"given"` by the data.
        positions (`Sequence[str]`, *optional*):
            Positions to draw from, for steps that have positions. By default all of them.

    Returns:
        [`Provenance`]: What [`perturb`] needs.

    Raises:
        [`ConsistencyError`]: If `split` or `wrong_answer` is unknown.
    """
    check_choice("split", split, WORDING_SPLITS)
    check_choice("wrong_answer", wrong_answer, get_args(WrongAnswer))
    name = "+".join(step.name for step in steps)
    key = f"{seed}/{split}/{name}/{source.source_id}/{source.question}"
    rng = random.Random(f"{key}/{variant}")
    drawn, places = [], []
    for step, possible in zip(steps, open_positions(steps, source, positions), strict=True):
        order = list(range(len(step.wordings[split])))
        random.Random(f"{key}/{step.name}").shuffle(order)
        drawn.append(f"{step.name}/{WORDING_SPLITS[split]}-{order[variant % len(order)]:02d}")
        places.append(rng.choice(possible) if possible else "")
    biased = ""
    suggests = {step.suggests for step in steps}
    if "wrong" in suggests:
        suggestions = possible_suggestions(source, wrong_answer)
        biased = rng.choice(suggestions) if wrong_answer == "random" and source.wrong_answers else suggestions[0]
    elif "not right" in suggests:
        biased = f"NOT {source.answer}"
    return Provenance("+".join(drawn), "+".join(places), biased, rng.getrandbits(32))


def check_choice(name: str, value: Any, known: Collection[str]) -> None:
    """Raises [`ConsistencyError`] for an argument that is none of its `known` values."""
    if value not in known:
        raise ConsistencyError(f"`{name}` must be one of {', '.join(map(repr, known))}, got {value!r}.")


def possible_suggestions(source: Source, option: WrongAnswer) -> Sequence[str]:
    """Returns the wrong answers that may be suggested."""
    if option == "given" or not source.wrong_answers:
        return [source.given_wrong_answer]
    if option == "longest":
        texts = dict(zip(ascii_uppercase, source.choices, strict=False))
        return [max(source.wrong_answers, key=lambda answer: len(texts[answer] if texts else answer))]
    return source.wrong_answers


def perturb(source: Source, provenance: Provenance) -> dict[str, Any]:
    """
    Makes the pair of a provenance. The result is deterministic.

    Args:
        source ([`Source`]):
            The source.
        provenance ([`Provenance`]):
            From [`draw`], or from a pair's columns with `Provenance.of(row)`.

    Returns:
        `dict[str, Any]`: A row with `clean_prompt`, `perturbed_prompt`, `shared_text`, `answer`, the columns of the
        provenance, `question_intact`, `source_id` and the source's carried columns.

    Raises:
        [`ConsistencyError`]: If the provenance names an unknown perturbation or wording, or if a perturbation fails, makes
            a pair that training would refuse, or edits a question that it says to keep.
    """
    return make_pair(source, provenance)[0]


def make_pair(source: Source, provenance: Provenance) -> tuple[dict[str, Any], str]:
    """
    Returns what [`perturb`] does, and the first perturbation of a composition that changed nothing; an empty text if each
    changed something.
    """
    idle = ""
    drafts = {"clean": Draft(source), "perturbed": Draft(source)}
    steps = [_find_wording(step) for step in provenance.perturbation.split("+")]
    suggested = provenance.biased_answer if any(entry.suggests == "wrong" for entry, *_ in steps) else ""
    positions = provenance.position.split("+")
    intact = all(entry.keeps_question for entry, *_ in steps)
    for number, ((entry, split, wording), position) in enumerate(zip(steps, positions, strict=True)):
        cue = Cue(
            source=source,
            wording=wording,
            position=position,
            answer=source.show(suggested) if suggested else "",
            letter=suggested,
            right=source.show(source.answer) if source.answer else "",
            split=split,
            rng=random.Random(f"{provenance.perturbation_seed}/{number}"),
        )
        before = repr(drafts[entry.side].prompt()) if steps[1:] else ""
        _apply(entry, drafts[entry.side], cue)
        if steps[1:] and not idle and repr(drafts[entry.side].prompt()) == before:
            idle = entry.name
    clean, perturbed = drafts["clean"].text(), drafts["perturbed"].text()
    prompts = {f"{side}_prompt": draft.prompt() for side, draft in drafts.items()}
    if faults := row_checker(prompts, has_completion=False)(prompts):
        raise ConsistencyError(
            f"`{provenance.perturbation}` makes a pair of source {source.source_id!r} that training would refuse: {faults[0]}."
        )
    if intact and not (source.question in clean and source.question in perturbed):
        raise ConsistencyError(
            f"`{provenance.perturbation}` changes the text of the question of source {source.source_id!r}. Declare `keeps_question=False` with the "
            "perturbation that does."
        )
    row = {
        **prompts,
        # The text that both hold in one piece: the user's turn, or the question if a cue stands inside the turn. None if it is edited
        "shared_text": next((text for text in (clean, source.question) if intact and text in perturbed), None),
        "answer": source.answer,
        **provenance._asdict(),
        "question_intact": intact,
        "source_id": source.source_id,
        **source.carried,
    }
    return row, idle


def _apply(entry: Perturbation, draft: Draft, cue: Cue) -> None:
    try:
        entry.apply(draft, cue)
    except ConsistencyError:
        raise
    except Exception as error:  # a user's own function may raise anything
        raise ConsistencyError(
            f"The perturbation `{entry.name}` ended with {type(error).__name__} on source {cue.source.source_id!r}: {one_line(error)}"
        ) from error


def _find_wording(step: str) -> tuple[Perturbation, str, str]:
    name, _, wording_id = step.partition("/")
    split_name, _, number = wording_id.rpartition("-")
    entry = PERTURBATIONS.get(name)
    split = next((split for split, called in WORDING_SPLITS.items() if called == split_name), None)
    if entry is None or split is None or not number.isdecimal() or int(number) >= len(entry.wordings[split]):
        raise ConsistencyError(
            f"There is no perturbation and wording `{step}`. Import the module that registers it, with the same wordings."
        )
    return entry, split, entry.wordings[split][int(number)]
