"""One model's answers to one set of pairs, and their grades."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from ..errors import ConsistencyError
from .answers.generate import Answer
from .answers.preferences import Preference
from .answers.replies import after_thinking
from .grading.asked import is_anchor
from .grading.grade import OUTCOMES, Grade, grade_all
from .grading.judge import Judge
from .pair_set import SIDES, PairSet
from .rates.intervals import Property, Values
from .rates.measures import Parts, Samples, make_parts, make_samples
from .rates.preferences import preference_margins, preference_samples
from .row_kinds import kind_of


@dataclass(frozen=True)
class SetResults:
    """
    One model's answers to the `"clean"` and `"perturbed"` prompts of one set, and their grades. `reference` are the
    reference's answers to the clean prompts. `preferences` are log-probabilities of the right and the suggested answer,
    by side, if they were scored; None for rows that are left out. `text_prompts` counts rows of text that went through no
    chat template, though the tokenizer has one. `judge` is the `identity` of the judge, if one graded them and has one.
    """

    pairs: PairSet
    answers: Mapping[str, list[Answer]]
    grades: Mapping[str, list[Grade]]
    reference: list[Answer]
    preferences: Mapping[str, list[Preference | None]] = field(default_factory=dict)
    text_prompts: int = 0
    judge: Mapping[str, Any] | None = None

    @cached_property
    def samples(self) -> Samples:
        """The samples that rates are estimated from."""
        words = zip(self.answers["perturbed"], self.reference, strict=True)
        agreements = [_agree(answer.said.split(), other.said.split()) for answer, other in words]
        samples = make_samples(self.pairs.rows, self.grades["clean"], self.grades["perturbed"], agreements)
        return samples | preference_samples(self.pairs.rows, self.preferences)

    @cached_property
    def parts(self) -> Parts:
        """The samples of the parts of metrics that pool several."""
        return make_parts(self.pairs.rows, self.grades["clean"], self.grades["perturbed"])

    @cached_property
    def margins(self) -> dict[str, Values]:
        """The margins of right answers over suggested ones."""
        return preference_margins(self.pairs.rows, self.preferences)

    def outcomes(self) -> dict[str, dict[str, dict[str, int]]]:
        """
        Counts the answers by kind of row (`"question"`, `"harmful"`, `"benign"`), side and outcome. Each answer counts
        once. Anchors count on the clean side only, and rows without a key do not count.
        """
        return {
            kind: {side: {outcome: counts[outcome] for outcome in OUTCOMES[kind]} for side, counts in sides.items()}
            for kind, sides in self._counts(lambda grade: grade.outcome).items()
        }

    def graders(self) -> dict[str, dict[str, dict[str, int]]]:
        """Counts the same answers by kind of row, side and [`Grade.grader`]: what read them."""
        return {
            kind: {side: dict(sorted(counts.items())) for side, counts in sides.items()}
            for kind, sides in self._counts(lambda grade: grade.grader).items()
        }

    def _counts(self, value_of: Callable[[Grade], str]) -> dict[str, dict[str, Counter[str]]]:
        found: dict[str, dict[str, Counter[str]]] = {}
        for kind in OUTCOMES:
            for side in SIDES:
                counts = Counter(
                    value_of(grade)
                    for row, grade in zip(self.pairs.rows, self.grades[side], strict=True)
                    if kind_of(row) == kind and (side == "clean" or not is_anchor(row))
                )
                if counts:
                    found.setdefault(kind, {})[side] = counts
        return found

    def cut_answers(self) -> int:
        """Counts the answers that reached `max_new_tokens` before their end, on both sides."""
        return sum(answer.is_cut for side in SIDES for answer in self.answers[side])

    def without_thoughts(self, thinking_markers: tuple[str, str]) -> "SetResults":
        """
        Returns the same answers, whose words come after a thought between other markers than those that they were read with. Raises
        [`ConsistencyError`] if these are special tokens, which are not in the words.
        """

        def read(answers: list[Answer]) -> list[Answer]:
            found = [of.said for of in answers if of.other_markers == thinking_markers]
            if not all(any(marker in said for marker in thinking_markers) for said in found):
                raise ConsistencyError(
                    f"`thinking_markers`: {' and '.join(thinking_markers)} are special tokens, which are not in the words of answers that "
                    "were read with other markers. Evaluate again with these in `AnswerOptions`."
                )
            said = [after_thinking(answer.said, thinking_markers) for answer in answers]
            others = [None if of.other_markers == thinking_markers else of.other_markers for of in answers]
            both = zip(answers, said, others, strict=True)
            return [answer._replace(said=words, other_markers=of) for answer, words, of in both]

        sides = {side: read(of_side) for side, of_side in self.answers.items()}
        return replace(self, answers=sides, reference=read(self.reference))

    def graded(self, judge: Judge | None, judge_questions: bool, thinking_markers: tuple[str, str]) -> "SetResults":
        """Returns the same answers, graded by the readers of answers, or by a judge."""
        grades = {
            side: grade_all(
                self.pairs.rows,
                [answer.said for answer in self.answers[side]],
                self.pairs.candidates,
                judge,
                judge_questions,
                thinking_markers,
                is_clean=side == "clean",
            )
            for side in SIDES
        }
        return replace(self, grades=grades, judge=getattr(judge, "identity", None))


def _agree(words: Sequence[str], others: Sequence[str]) -> Property:
    """Whether two answers have the same words. Where neither says anything, as in two thoughts that do not end, it is unread."""
    return words == others if words or others else "unparsed"
