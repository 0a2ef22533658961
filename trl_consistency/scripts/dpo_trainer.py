"""TRL's `DPOTrainer`, whose checkpoints record their run: only the same run goes on from them."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset
from huggingface_hub import ModelCard
from transformers import TrainingArguments
from trl import DPOConfig, DPOTrainer

from ..config.shared import without_token
from ..data.folders import TRAINED_PAIRS
from ..data.trained_pairs import digests_of, write_digests
from ..errors import ConsistencyError
from ..log import get_logger
from ..models.adapter_state import loading_in_own_dtype, restore_dtype
from ..models.checkpoint_weights import loading_every_weight
from ..models.folder_checks import check_checkpoint
from ..models.quantization import prevent_repacking, settle_biases
from ..models.sharding import keeps_adapter_dtype
from ..passes.reference import base_weights, checksum_of
from ..trainer.card.facts import quantization_data
from ..trainer.run.best_checkpoint import check_best_checkpoint
from ..trainer.run.checks import check_order, check_saves_whole
from ..trainer.run.interruption import Checkpoints, check_has_states, check_unchanged, read_manifest, rows_per_step
from ..trainer.run.manifest import (
    as_json,
    describe_model,
    describe_options,
    describe_order,
    describe_rows,
    describe_template,
    find_differences,
    list_differences,
)
from ..trainer.run.run_lock import command_lock


logger = get_logger(__name__)

COLUMNS = ("prompt_ids", "chosen_ids", "rejected_ids")

# DPO's options but those of speed and memory; what they say of the model is described by its config and weights.
OPTIONS = (
    {option.name for option in fields(DPOConfig)}
    - {option.name for option in fields(TrainingArguments)}
    - {"model_init_kwargs", "trust_remote_code", "dataset_num_proc", "padding_free", "pad_to_multiple_of", "pad_token"}
    - {"precompute_ref_log_probs", "precompute_ref_batch_size", "activation_offloading"}
)


class RecordingDPOTrainer(DPOTrainer):
    """Like [`~trl.DPOTrainer`]. Its checkpoints record options, data and model, and `check_resumed` compares them."""

    trained_pairs: np.ndarray = np.array([], dtype=np.uint64)  # digests, which are saved with the model

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        prevent_repacking(self.model)
        settle_biases(self.model)
        check_saves_whole(self)
        # The arguments are saved with the model, and tokens are secrets. The model is loaded, and nothing is pushed.
        self.args.hub_token, self.args.model_init_kwargs = None, without_token(self.args.model_init_kwargs)
        if not keeps_adapter_dtype(self.accelerator):
            restore_dtype(self.model, [])
        self.run_record = _Record(self)
        self.checkpoints = Checkpoints(self)

    def _precompute_ref_logps(self, *args: Any, **kwargs: Any) -> Any:
        prevent_repacking(self.model)  # TRL's constructor comes here
        return super()._precompute_ref_logps(*args, **kwargs)

    def train(self, resume_from_checkpoint: str | None = None, *args: Any, **kwargs: Any) -> Any:
        with command_lock(self.args.output_dir, self.accelerator):
            self.checkpoints.begin(resume_from_checkpoint)
            return super().train(resume_from_checkpoint, *args, **kwargs)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Like [`~transformers.Trainer.save_model`], with the digests of the trained pairs."""
        super().save_model(output_dir, _internal_call)
        if not self.args.should_save:
            return
        folder = Path(output_dir or self.args.output_dir)
        (folder / TRAINED_PAIRS).unlink(missing_ok=True)  # of an earlier training
        if len(self.trained_pairs):
            write_digests(folder, self.trained_pairs)

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """
        Writes TRL's card, with the bits of quantized weights. Not in training: the weights that it is about are not there yet, and an
        earlier run's may be.
        """
        if self.is_in_train:
            return
        super().create_model_card(*args, **kwargs)
        if self.is_world_process_zero():
            file = Path(self.args.output_dir) / "README.md"
            card = ModelCard.load(file)
            for name, value in quantization_data(self.model).items():
                card.data[name] = value
            card.save(file)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        with self.checkpoints.writing(trial):
            super()._save_checkpoint(model, trial)

    def _save_rng_state(self, output_dir: str) -> None:
        super()._save_rng_state(output_dir)
        self.checkpoints.note_files(output_dir)

    def _load_best_model(self) -> None:
        if self.args.should_save:
            check_best_checkpoint(self)
        best = str(self.state.best_model_checkpoint)
        with loading_in_own_dtype(self.model), loading_every_weight(self, best):
            super()._load_best_model()

    def _init_training_state(self, max_steps: int, *args: Any) -> tuple[int, int]:
        counts = super()._init_training_state(max_steps, *args)
        self.checkpoints.settle_state(max_steps)
        return counts

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        with loading_in_own_dtype(self.model), loading_every_weight(self, resume_from_checkpoint):
            super()._load_from_checkpoint(resume_from_checkpoint, model)

    def check_resumed(self, checkpoint: str) -> None:
        """Raises [`ConsistencyError`] for a checkpoint that was changed, is incomplete, or belongs to another run."""
        check_checkpoint(checkpoint, self.model)
        check_unchanged(checkpoint)
        check_has_states(checkpoint)
        check_order(checkpoint, self.args)
        self.run_record.compare(checkpoint)


def digests_of_preferences(dataset: Any) -> np.ndarray:
    """
    Returns the digests of the pairs that preferences were made of, none of a stream. Warns of rows without the prompt that tells which
    pair it was.
    """
    if not isinstance(dataset, Dataset):
        return np.array([], dtype=np.uint64)
    columns = [
        column for column in ("clean_prompt", "prompt", "chat_template_kwargs") if column in dataset.column_names
    ]
    rows = dataset.select_columns(columns).with_format(None)
    pairs = [
        {**row, "perturbed_prompt": row["prompt"]}
        for row in rows
        if type(row.get("clean_prompt")) is type(row["prompt"])
    ]
    if lacking := len(dataset) - len(pairs):
        logger.warning(
            f"`train_dataset`: {lacking} of {len(dataset)} row(s) have no `clean_prompt`, so `evaluate` will not know the pairs that they "
            "were made of, and will not say that they were trained on. Make the preferences anew with `trl-consistency convert`, which writes "
            "it, or add the column."
        )
    return digests_of(pairs)


class _Record:
    """The description of a run in its checkpoints."""

    def __init__(self, trainer: Any):
        args = trainer.args
        weights = base_weights(trainer.model, has_new_adapter=True)
        self.run = {
            **describe_options(args, generates=False),
            **{name: as_json(getattr(args, name)) for name in sorted(OPTIONS)},
            "method": ["dpo"],
            "train_dataset": describe_rows(trainer.train_dataset, COLUMNS),
            "chat_template": describe_template(trainer.processing_class),
            "model": f"{checksum_of(trainer.model, weights):x}",
            "mixed_precision": trainer.accelerator.mixed_precision,
            **describe_model(trainer.model, generates=False),
            "rows_per_step": rows_per_step(trainer),
            **describe_order(trainer),
        }
        if args.load_best_model_at_end and isinstance(trainer.eval_dataset, Dataset):
            self.run["eval_dataset"] = describe_rows(trainer.eval_dataset, COLUMNS)  # by which the best step is chosen

    def to_dict(self) -> dict[str, Any]:
        return {"run": self.run}

    def compare(self, checkpoint: str) -> None:
        saved = read_manifest(checkpoint).get("run")
        if saved is None:
            logger.warning(
                f"{checkpoint} does not record its run: another trainer saved it, or an earlier version. Its data, model and "
                "options cannot be compared with these."
            )
            return
        if differences := find_differences(saved, self.run):
            raise ConsistencyError(
                f"`resume_from_checkpoint`: {checkpoint} belongs to another run. Resume with what that run had, or begin a new one "
                f"in another `output_dir`.{list_differences(differences)}"
            )
