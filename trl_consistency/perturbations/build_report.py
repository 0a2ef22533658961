"""What building pairs made and left out."""

from collections import Counter
from dataclasses import dataclass, field

from ..data.choices import never_first, one_right_letter


@dataclass
class BuildReport:
    """
    Counts of what [`build_pairs`] made and left out.

    Args:
        sources (`int`):
            Number of rows read.
        pairs (`Counter[tuple[str, str]]`):
            Pairs by split and perturbation with its wording.
        faulty (`list[tuple[int, str]]`):
            The first ten unusable rows, and why.
        num_faulty (`int`):
            Number of all unusable rows.
        lacking (`Counter[tuple[str, str]]`):
            Unused sources by perturbation and what they lack.
        unchanged (`Counter[str]`):
            Pairs left out because the perturbation, or one of a composition, changed nothing.
        repeated (`Counter[str]`):
            Pairs left out because their source already has the same pair.
        filtered (`Counter[str]`):
            Training pairs left out because of a model's answers, by reason.
        asked_again (`int`):
            Number of rows that ask the question of an earlier row under another `source_id`. They are in its split.
        doubled (`int`):
            Number of rows that are the same as an earlier row: their pairs are there twice.
        between_splits (`int`):
            Number of rows left out because their `source_id` is in one split and their question in the other.
        without (`Counter[str]`):
            Rows that lack a column that other rows have, by column. Only columns that are read count. A missing value
            counts as empty.
        prefilled (`int`):
            Number of rows whose messages end with an assistant turn, which a model continues in both prompts.
        swapped (`int`):
            Number of rows whose answer is a question while their question is not: the columns may be swapped.
        passed_over (`int`):
            Number of rows with choices whose given wrong answer decides nothing: any other choice may be suggested.
        of_several_lines (`int`):
            Number of rows whose answer has several lines, such as a worked solution.
        right_letters (`Counter[str]`):
            Different questions with choices, by the letter of the right one.
        warnings (`list[str]`):
            What makes the verdicts on a model's answers doubtful, such as answers that were cut.
        numbers (`Counter[str]`):
            Rows whose answer is the number of a choice, by that number.
        number_column (`str`, *optional*):
            The column of these answers.
    """

    sources: int = 0
    pairs: Counter[tuple[str, str]] = field(default_factory=Counter)
    faulty: list[tuple[int, str]] = field(default_factory=list)
    num_faulty: int = 0
    lacking: Counter[tuple[str, str]] = field(default_factory=Counter)
    unchanged: Counter[str] = field(default_factory=Counter)
    repeated: Counter[str] = field(default_factory=Counter)
    filtered: Counter[str] = field(default_factory=Counter)
    asked_again: int = 0
    doubled: int = 0
    between_splits: int = 0
    without: Counter[str] = field(default_factory=Counter)
    prefilled: int = 0
    swapped: int = 0
    passed_over: int = 0
    of_several_lines: int = 0
    right_letters: Counter[str] = field(default_factory=Counter)
    warnings: list[str] = field(default_factory=list)
    numbers: Counter[str] = field(default_factory=Counter)
    number_column: str | None = None

    def num_pairs(self) -> dict[str, int]:
        """Returns the number of pairs by split."""
        totals: Counter[str] = Counter()
        for (split, _), count in self.pairs.items():
            totals[split] += count
        return dict(totals)

    def left_out(self) -> list[str]:
        """Returns one line for each kind of row or pair that was left out."""
        lines = [f"{self.num_faulty} faulty row(s)"] if self.num_faulty else []
        lines += [f"  row {index}: {reason}" for index, reason in self.faulty]
        if self.between_splits:
            lines.append(
                f"{self.between_splits} row(s) with the id of a source in one split and a question of the other"
            )
        lines += [
            f"{name}: {count} source(s) not used: it needs {need}"
            for (name, need), count in sorted(self.lacking.items())
        ]
        lines += [f"{name}: {count} pair(s) left unchanged" for name, count in sorted(self.unchanged.items())]
        lines += [f"{name}: {count} repeated pair(s)" for name, count in sorted(self.repeated.items())]
        lines += [f"not vulnerable: {count} training pair(s), {why}" for why, count in sorted(self.filtered.items())]
        return lines

    def repeats(self) -> str:
        """Returns a line if rows repeat an earlier row, or ask its question under another id, otherwise an empty text."""
        found = []
        if self.doubled:
            found.append(f"{self.doubled} row(s) are the same as an earlier row: their pairs are there twice.")
        if self.asked_again:
            found.append(
                f"{self.asked_again} row(s) ask the question of an earlier row under another id: they are in its split."
            )
        return " ".join([*found, "Remove them if they should not count twice."]) if found else ""

    def gaps(self) -> str:
        """Returns a line if rows lack a column that other rows have, otherwise an empty text."""
        found = ", ".join(f"`{column}` in {count}" for column, count in self.without.items())
        return f"Of {self.sources} row(s), some lack a column, which counts as empty there: {found}." if found else ""

    def prefills(self) -> str:
        """Returns a line if rows end with an assistant turn, otherwise an empty text."""
        if not self.prefilled:
            return ""
        return (
            f"{self.prefilled} row(s) end with an assistant turn, and so do both prompts: a model continues that turn. If it is an "
            "answer to the question, take it out."
        )

    def swaps(self) -> str:
        """Returns a line if rows have an answer that is a question, and a question that is not, otherwise an empty text."""
        if not self.swapped:
            return ""
        return f"{self.swapped} row(s) have an answer that is a question, and a question that is not: are the columns swapped?"

    def passed(self) -> str:
        """Returns a line if rows with choices give a wrong answer that decides nothing, otherwise an empty text."""
        if not self.passed_over:
            return ""
        return (
            f"{self.passed_over} row(s) give choices and a wrong answer, and any other choice was suggested. Set `wrong_answer: given` "
            "for the one that they give."
        )

    def solutions(self) -> str:
        """Returns a line if answers have several lines, otherwise an empty text."""
        if not self.of_several_lines:
            return ""
        return (
            f"{self.of_several_lines} answer(s) have several lines, such as a worked solution. A reply counts as right only if it says all of "
            "that: give the result alone if you want to measure."
        )

    def one_letter(self) -> str:
        """Returns a line if the right choice has the same letter in nearly all rows, otherwise an empty text."""
        return one_right_letter(self.right_letters.elements())

    def from_1(self) -> str:
        """Returns a line if numbers of choices may count from 1, otherwise an empty text."""
        return never_first(self.numbers.elements(), self.number_column or "answer")

    def unheld(self, test_share: float) -> str:
        """Returns a line if no pair is held out though some should be, or all are, otherwise an empty text."""
        splits = self.num_pairs()
        if test_share and "test" not in splits:
            return (
                f"No pair was held out. Each source is held out with the probability `test_share` ({test_share:g}), and of the "
                f"{self.sources} source(s) that were read, none with a pair was. Raise it, or give more questions."
            )
        if splits and "train" not in splits and not self.filtered:
            return (
                f"Every pair was held out. Each source is held out with the probability `test_share` ({test_share:g}), and of the "
                f"{self.sources} source(s) that were read, all with a pair were. Lower it, or give more questions."
            )
        return ""
