"""A set of pairs that are measured together."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from datasets import Dataset

from ..data.class_names import named_rows
from ..data.pairs import report_faults
from ..data.prepare import render_row, unformatted
from ..data.rendering import ProcessingClass, chat_template_of, get_tokenizer
from ..data.system_prompt import pairs_with_system_prompt
from ..errors import ConsistencyError
from .answers.choices import check_choices
from .grading.answer_keys import check_keys, check_rows, check_spelling
from .grading.names import Candidates, possible_answers
from .rendered_rows import PREPARED, RENDERED, TOKEN_IDS, UNKNOWN, check_unchanged, digest_of


Rows: TypeAlias = Dataset | Sequence[Mapping[str, Any]]
SIDES = ("clean", "perturbed")


@dataclass
class PairSet:
    """
    Pairs that are measured together.

    Args:
        rows (`list[dict[str, Any]]`):
            The pairs.
        candidates (`Mapping[str, Collection[str]]`):
            Possible answers to the questions, by `category`.
        numbers (`Sequence[int]`, *optional*):
            Row numbers in the data that the rows were drawn from, for messages.
        rendering (`tuple`, *optional*):
            The tokenizer or processor that rendered the rows, the variables of its chat template, and the template, which may be replaced
            later. Set by [`rendered`].
        in_train (`tuple[int, int]`, *optional*, defaults to `(0, 0)`):
            How many of the rows have a clean or a perturbed prompt, and how many both, of the split `train` of the same data.
    """

    rows: list[dict[str, Any]]
    candidates: Candidates
    numbers: Sequence[int] | None = None
    rendering: tuple[ProcessingClass, dict[str, Any], Any] | None = field(default=None, repr=False, compare=False)
    in_train: tuple[int, int] = (0, 0)

    @classmethod
    def of(cls, pairs: "PairSet | Rows") -> "PairSet":
        """
        Returns the set of these rows. The possible answers are those that occur in them.

        Args:
            pairs ([`~datasets.Dataset`], `list[dict]` or [`PairSet`]):
                The pairs. A [`PairSet`] is returned as it is.

        Raises:
            [`ConsistencyError`]: If there are no rows, or a name is given instead of rows.
            [`InvalidPairsError`]: If rows are faulty.
        """
        if isinstance(pairs, PairSet):
            return pairs
        if isinstance(pairs, str | os.PathLike):
            raise ConsistencyError(
                f'`pairs` must be rows, got the name {os.fspath(pairs)!r}. Load them: `load_dataset("json", data_files=…)`.'
            )
        rows = list(named_rows(unformatted(pairs)))
        check_keys(rows, "pairs")
        check_rows(rows, "pairs")
        check_choices(rows, "pairs")
        check_spelling(rows, "pairs")
        return cls(rows, possible_answers(rows))

    def with_system_prompt(self, text: str, name: str = "pairs") -> "PairSet":
        """
        Returns the set with a system message before both prompts of each row. It is not rendered, even if this one was.

        Args:
            text (`str`):
                The system message.
            name (`str`, *optional*, defaults to `"pairs"`):
                What errors call the rows.

        Raises:
            [`InvalidPairsError`]: If prompts are text, or already have a system message.
        """
        rows = [{column: value for column, value in row.items() if column not in PREPARED} for row in self.rows]
        return replace(self, rows=pairs_with_system_prompt(rows, text, self.places, name), rendering=None)

    def rendered(
        self,
        processing_class: ProcessingClass,
        name: str = "pairs",
        chat_template_kwargs: dict[str, Any] | None = None,
    ) -> "PairSet":
        """
        Returns the set with both prompts' token ids, in the columns `clean_ids` and `perturbed_ids`.

        Args:
            processing_class ([`~transformers.PreTrainedTokenizerBase`] or [`~transformers.ProcessorMixin`]):
                The tokenizer or processor.
            name (`str`, *optional*, defaults to `"pairs"`):
                What errors call the rows.
            chat_template_kwargs (`dict[str, Any]`, *optional*):
                Variables of the chat template. A row's own variables override them.

        Raises:
            [`InvalidPairsError`]: If rows cannot be rendered, or were changed after they were rendered.
            [`ConsistencyError`]: If they were already rendered in another way.
        """
        kwargs = chat_template_kwargs or {}
        check_unchanged(self.rows, name, self.numbers)
        is_rendered = all(column in row for row in self.rows for column in TOKEN_IDS)
        if (
            is_rendered
            and not kwargs
            and (self.rendering is None or _renders_alike(self.rendering[0], self.rendering[2], processing_class))
        ):
            return self
        made = [render_row(row, processing_class, False, kwargs, 0, False) for row in self.rows]
        # No others of the columns: a user's own may have their names.
        ours = ({**{column: of[column] for column in TOKEN_IDS}, UNKNOWN: of["unknown"]} for of in made)
        rows = [row | of for row, of in zip(self.rows, ours, strict=True)]
        if is_rendered and any(
            row[column] != of[column] for row, of in zip(rows, self.rows, strict=True) for column in TOKEN_IDS
        ):
            raise ConsistencyError(
                f"`{name}` is rendered already, with another tokenizer or chat template, or other `chat_template_kwargs`. Give the rows as they were "
                f"before that, without {' and '.join(f'`{column}`' for column in TOKEN_IDS)}."
            )
        faults = [(number, of["render_fault"]) for number, of in zip(self.places, made, strict=True)]
        report_faults([(number, fault) for number, fault in faults if fault], name, len(rows))
        rows = [row | {RENDERED: digest_of(row)} for row in rows]
        return replace(self, rows=rows, rendering=(processing_class, kwargs, chat_template_of(processing_class)))

    @property
    def places(self) -> Sequence[int]:
        """Row numbers in the data."""
        return range(len(self.rows)) if self.numbers is None else self.numbers

    def check_lengths(self, name: str, context: int | None) -> None:
        """Raises [`InvalidPairsError`] for rendered rows that leave no room for an answer in a model's context."""
        if context is None:
            return
        lengths = [max(len(row["clean_ids"]), len(row["perturbed_ids"])) for row in self.rows]
        faults = [
            (number, f"a prompt has {length} tokens, which leaves no room in the model's context of {context}")
            for number, length in zip(self.places, lengths, strict=True)
            if length >= context
        ]
        report_faults(faults, name, len(lengths))


def _renders_alike(one: ProcessingClass, template: Any, other: ProcessingClass) -> bool:
    """Whether a tokenizer or processor with this chat template has the same tokens and chat template as another one."""
    if chat_template_of(other) != template:
        return False
    return one is other or get_tokenizer(one).get_vocab() == get_tokenizer(other).get_vocab()
