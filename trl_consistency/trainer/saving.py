"""The checkpoints and the saved models of a trainer, each with what is recorded beside the weights."""

import os
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from accelerate.utils import is_peft_model
from datasets import Dataset
from torch import nn
from transformers.utils import CHAT_TEMPLATE_FILE

from ..data.folders import TRAINED_PAIRS
from ..data.pairs import AnyDataset
from ..data.rendering import ProcessingClass, chat_template_of
from ..data.trained_pairs import digests_of, write_digests
from ..files import write_bytes, write_text
from ..log import get_logger
from ..models.adapter_state import loading_in_own_dtype
from ..models.checkpoint_weights import loading_every_weight
from ..passes.blocks import base_model
from ..upstream import OwnState
from .callbacks.finiteness import FinitenessGuard
from .card.facts import base_revision, build_card
from .run.best_checkpoint import check_best_checkpoint, why_stopped
from .run.interruption import Checkpoints
from .run.output_checks import check_adapter_folder, other_page
from .run.own_optimizer import take_evaluated_weights
from .run.resumption import RunRecord
from .run.snapshot import Snapshot


if TYPE_CHECKING:
    from transformers import Trainer as _Trainer
else:
    _Trainer = object  # TRL's trainer comes after this class in each trainer's bases


logger = get_logger(__name__)


class SavingMixin(_Trainer):
    """Writes and reads checkpoints that a run resumes from, and saves models with their card and the digests of their pairs."""

    # Attributes of the trainer that uses this mixin
    args: Any
    finiteness: FinitenessGuard
    checkpoints: Checkpoints
    run_record: RunRecord
    snapshot: Snapshot
    has_trained: bool
    processing_class: Any
    recorded_data: dict[str, AnyDataset]
    _earlier_digests: list[np.ndarray]
    _check_reference: Callable[[], None]

    _saved_in: frozenset[str] = frozenset()  # folders that got the weights since the last training began

    # Implemented by each trainer

    def _card_facts(self) -> dict[str, str]:
        """Returns what the model card states about the training."""
        raise NotImplementedError

    # What Trainer does, and what is recorded

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        self._check_reference()
        with self.checkpoints.writing(trial):
            super()._save_checkpoint(model, trial)
        self.finiteness.last_checkpoint = Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}"

    def _save_rng_state(self, output_dir: str) -> None:
        super()._save_rng_state(output_dir)
        self.checkpoints.note_files(output_dir)

    def _determine_best_metric(self, *args: Any, **kwargs: Any) -> bool:
        # The step at which the guard stops has lost too much, whatever its metric is.
        return not why_stopped(self) and super()._determine_best_metric(*args, **kwargs)

    def _load_best_model(self) -> None:
        if self.args.should_save:
            check_best_checkpoint(self)
        take_evaluated_weights(self.optimizer)  # which would be put into the loaded ones later
        best = str(self.state.best_model_checkpoint)
        with loading_in_own_dtype(self.model), loading_every_weight(self, best):
            super()._load_best_model()

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        with loading_in_own_dtype(self.model), loading_every_weight(self, resume_from_checkpoint):
            super()._load_from_checkpoint(resume_from_checkpoint, model)

    def _init_training_state(self, max_steps: int, *args: Any) -> tuple[int, int]:
        counts = super()._init_training_state(max_steps, *args)
        self.checkpoints.settle_state(max_steps)
        return counts

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        self.run_record.load_optimizer(checkpoint, super()._load_optimizer_and_scheduler)

    def _load_callback_state(self) -> None:
        self.run_record.load_callbacks(super()._load_callback_state)

    @OwnState.kept
    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """
        Like [`~transformers.Trainer.save_model`], with the model card. In another folder than `args.output_dir`, a README.md that is
        no model's card is kept, with a warning, and no card is written.
        """
        folder = output_dir or self.args.output_dir
        take_evaluated_weights(self.optimizer)
        self.finiteness.check_before_saving()
        self.snapshot.check_adapter()
        if self.args.should_save:
            check_adapter_folder(folder, is_peft_model(self.model))
        if is_peft_model(self.model):
            for config in self.model.peft_config.values():  # PEFT loads the base model at this revision
                config.revision = base_revision(self) or config.revision
        page = other_page(folder)  # PEFT would write into it
        super().save_model(output_dir, _internal_call)
        if not self.args.should_save:
            return
        self._saved_in |= {os.path.realpath(folder)}
        _warn_of_templates(Path(folder), self.processing_class)
        if len(digests := self._all_digests()):
            write_digests(folder, digests)
        else:  # That of an earlier training, whose weights are replaced, is not this model's.
            (Path(folder) / TRAINED_PAIRS).unlink(missing_ok=True)
        if page is None:
            self._write_card(folder)
        else:
            write_bytes(Path(folder) / "README.md", page)
            logger.warning(
                f"{folder} has a README.md that is no model's card. It was kept, and no card was written there. Rename it, and call "
                "`save_model` again."
            )

    def _all_digests(self) -> np.ndarray:
        """Returns the digests of all pairs that the model was trained on, as far as they are known."""
        own = [self._trained_digests] if self.has_trained or self.is_in_train else self._digests_of_others()
        return np.unique(np.concatenate([np.array([], dtype=np.uint64), *own, *self._earlier_digests]))

    def _digests_of_others(self) -> list[np.ndarray]:
        """Returns the digests of what another trainer trained this model on, which was given as an object."""
        models = {self.model, base_model(self.model)}
        return [digests for model in models for digests in vars(model).get("trained_digests", [])]

    @cached_property
    def _trained_digests(self) -> np.ndarray:
        """The digests of all pairs and anchors that are trained on, but for streams, which are never read as a whole."""
        found = [
            digests_of(rows, are_anchors=name == "anchor_dataset")
            for name, rows in self.recorded_data.items()
            if isinstance(rows, Dataset)
        ]
        return np.concatenate(found) if found else np.array([], dtype=np.uint64)

    @OwnState.kept
    def create_model_card(
        self, model_name: str | None = None, dataset_name: str | None = None, tags: str | list[str] | None = None
    ) -> None:
        """
        Writes the model card to `args.output_dir`. Arguments as in [`~trl.SFTTrainer`]. A folder that holds the weights of an earlier
        training keeps their card, with a warning, until `save_model` has replaced them.
        """
        folder = self.args.output_dir
        if not self.is_world_process_zero():
            return
        if os.path.realpath(folder) not in self._saved_in and any(Path(folder).glob("*.safetensors")):
            logger.warning_once(
                f"{folder} holds the weights of an earlier training. Its card stays until `save_model` replaces them."
            )
            return
        self._write_card(folder, model_name, dataset_name, tags)

    def _write_card(self, folder: str, model_name: Any = None, dataset_name: Any = None, tags: Any = None) -> None:
        card = build_card(self, self._card_facts(), model_name, dataset_name, tags)
        write_text(Path(folder) / "README.md", str(card))


def _warn_of_templates(folder: Path, processing_class: ProcessingClass) -> None:
    """Logs a warning of chat templates that an earlier training left in a folder, and that a tokenizer without them did not replace."""
    template = chat_template_of(processing_class)
    own = template if isinstance(template, dict) else {"default"} if template else {}
    names = {folder / CHAT_TEMPLATE_FILE: "default"}
    names |= {file: file.stem for file in folder.glob("additional_chat_templates/*.jinja")}
    if left := [str(file.relative_to(folder)) for file, name in names.items() if name not in own and file.is_file()]:
        logger.warning(
            f"{folder} has {' and '.join(left)}, which this training's tokenizer does not have: it would be loaded with that template of "
            "another. Remove it if an earlier training left it there."
        )
