"""Compares a resumed run with the run of its checkpoint, and reports differences."""

import os
from collections.abc import Callable, Sequence
from pickle import UnpicklingError
from typing import Any

import torch
from accelerate.utils import DistributedType, broadcast_object_list
from datasets import IterableDataset
from torch.optim.lr_scheduler import LambdaLR
from transformers import EarlyStoppingCallback, TrainerState
from transformers.trainer import SCHEDULER_NAME, TRAINER_STATE_NAME

from ...config.options import temporarily
from ...data.pairs import AnyDataset
from ...data.prepare import needs_targets
from ...data.rendering import get_tokenizer
from ...errors import ConsistencyError, one_line
from ...log import get_logger
from ...passes.reference import GivenReference, StartReference
from .best_checkpoint import best_step
from .interruption import read_manifest, rows_per_step
from .manifest import (
    OPTIMISATION,
    describe_model,
    describe_options,
    describe_order,
    describe_rows,
    describe_targets,
    describe_template,
    find_differences,
    list_differences,
    show,
)
from .own_optimizer import OF_PROGRESS, OPTIMIZER, describe_own_optimizer, is_of_own_optimizer
from .processes import check_same


logger = get_logger(__name__)

STREAM_WARNING = "Streamed data were compared with those of the checkpoint by their first rows alone."
MAX_SHOWN = 20  # differences on the model card


class RunRecord:
    """
    Records in checkpoints what determines a run, and refuses to resume from another run's checkpoint unless the
    differences are allowed. The trainer has `recorded_data` (the prepared data sets by name) and `base_checksum`.
    """

    def __init__(self, trainer: Any):
        self.trainer = trainer
        self.run: dict[str, Any] | None = None
        self.history: list[dict[str, Any]] = []  # earlier parts of the run: last step and description
        self.changes: dict[str, tuple[Any, Any]] = {}  # allowed differences: old and new value
        # Trainings from whose weights this one goes on without resuming them: steps and methods
        self.earlier: list[dict[str, Any]] = []
        self._noted_state: Any = None  # Trainer's state of the last training, or of none
        self._saved: dict[str, Any] | None = None
        self._may_change: tuple[str, ...] = ()
        self._of_trainer: dict[str, Any] | None = None

    def _describe_run(self) -> dict[str, Any]:
        """Describes this run, by name. The model is described only once, because Trainer changes its config later."""
        trainer = self.trainer
        args = trainer.args
        generates = args.rolls_out or bool(self._data_with_targets())
        if self._of_trainer is None:
            self._of_trainer = {
                **{name: describe_rows(dataset) for name, dataset in trainer.recorded_data.items()},
                "chat_template": describe_template(trainer.processing_class),
                "model": f"{trainer.base_checksum:x}",
                "mixed_precision": trainer.accelerator.mixed_precision,  # from an option or the environment
                **describe_model(trainer.model, generates),
                **describe_own_optimizer(trainer),
            }
            if generates:
                self._of_trainer["eos_token"] = get_tokenizer(trainer.processing_class).eos_token
            if args.rolls_out and isinstance(trainer._reference, GivenReference):
                self._of_trainer["reference"] = f"{trainer._reference.checksum:x}"
        run = describe_options(args, generates) | self._of_trainer | {"rows_per_step": rows_per_step(trainer)}
        if args.rolls_out:
            per_process = args.per_device_train_batch_size * args.steps_per_generation
            run["rows_per_generation"] = per_process * trainer.accelerator.num_processes
        return run | describe_order(trainer) | self._describe_choice()

    def _describe_choice(self) -> dict[str, Any]:
        """
        Returns the rows by whose metric the best step is chosen, and how the guard's are answered: other figures cannot be compared
        with theirs.
        """
        trainer, metric = self.trainer, self.trainer.args.metric_for_best_model
        if metric is None:
            return {}
        of_callbacks = (getattr(callback, "_chooses_by", None) for callback in trainer.callback_handler.callbacks)
        if (of_guard := next(filter(None, of_callbacks), None)) is not None:
            return dict(of_guard)
        own, metric = trainer.eval_dataset, metric.removeprefix("eval_")
        sets = own.items() if isinstance(own, dict) else [] if own is None else [("", own)]
        chosen = [describe_rows(dataset) for name, dataset in sets if not name or metric.startswith(f"{name}_")]
        return {"eval_dataset": "; ".join(chosen)} if chosen else {}

    def _data_with_targets(self) -> dict[str, AnyDataset]:
        """Returns the data sets whose targets the reference generates."""
        if not self.trainer.args.needs_completions:
            return {}
        return {name: dataset for name, dataset in self.trainer.recorded_data.items() if needs_targets(dataset)}

    def compare(self, checkpoint: str | None, resume_changed: Sequence[str] = ()) -> None:
        """
        Describes this run, and compares it with the checkpoint that it resumes from. Raises [`ConsistencyError`] if
        something differs that `resume_changed` does not name, or a name is unknown.
        """
        self.run, self.history, self.changes = self._describe_run(), [], {}
        self.trainer._has_cut_epochs = False
        check_same(self.trainer, self.run)
        if checkpoint is None:
            if resume_changed:
                raise ConsistencyError("`resume_changed` needs `resume_from_checkpoint`: no run is resumed.")
            return
        manifest = read_manifest(checkpoint)
        if manifest.get("has_cut_epochs"):
            self.trainer._has_cut_epochs = True
            logger.warning(
                f"{checkpoint} is of a run in which a callback ended an epoch early (`control.should_epoch_stop`). Resuming "
                "takes all epochs for whole ones: it goes on in another epoch than that run, and may end at another step. For the "
                "same training, begin anew."
            )
        saved = manifest.get("run")
        known = {*self.run, *(saved or {}), "targets"}
        unknown = [name for name in resume_changed if name not in known]
        if unknown:
            raise ConsistencyError(
                f"`resume_changed` names `{unknown[0]}`, which no checkpoint records. Resume without it to list the "
                "differences."
            )
        self.history = list(manifest.get("history", []))
        self._saved, self._may_change = saved, tuple(resume_changed)
        if saved is None:
            logger.warning(
                f"{checkpoint} does not record its run: another trainer saved it, or an earlier version. Its data, "
                "model and options cannot be compared with these, and the model card says so."
            )
            return
        self._check_differences(checkpoint, find_differences(saved, self.run))
        if any(isinstance(dataset, IterableDataset) for dataset in self.trainer.recorded_data.values()):
            logger.warning(STREAM_WARNING)

    def _check_differences(self, checkpoint: str, differences: dict[str, tuple[Any, Any]]) -> None:
        differences = broadcast_object_list([differences])[
            0
        ]  # Under FSDP, only the main process may have the weights yet.
        if "model" in differences and self._rounds_weights():
            logger.warning(
                "The base model's weights are not those that the checkpoint was trained with, or were rounded on other "
                "hardware."
            )
            del differences["model"]
        refused = {name: both for name, both in differences.items() if name not in self._may_change}
        if refused:
            rows = list_differences(refused)
            if "model" in refused:
                rows += (
                    "\n  Give the model that the run began with, not the checkpoint's: "
                    "`resume_from_checkpoint` loads what was trained since."
                )
            names = " ".join(refused)
            raise ConsistencyError(
                f"`resume_from_checkpoint`: {checkpoint} belongs to another run. Resume with what that run had, or, "
                f"if the change is meant, with `--resume_changed {names}` (in Python "
                f"`trainer.train(..., resume_changed={list(refused)})`), which the model card will state.{rows}"
            )
        self.changes |= differences

    def _rounds_weights(self) -> bool:
        is_quantized = getattr(self.trainer.model, "hf_quantizer", None) is not None
        return is_quantized or self.trainer.accelerator.distributed_type == DistributedType.DEEPSPEED

    def begin(self, checkpoint: str | None) -> None:
        """
        Records and compares the targets once they exist, and notes earlier trainings of the trainer. `checkpoint` is the
        same as for [`compare`].
        """
        run = self.run or {}
        self._note_earlier(checkpoint, run)
        if sources := self._data_with_targets():
            run["targets"] = [describe_targets(dataset, self.trainer.targets) for dataset in sources.values()]
        if checkpoint is None:
            return
        if self._saved is not None:
            self._check_differences(checkpoint, find_differences(self._saved, run, ["targets"]))
        if self._saved is None or self.changes:
            state = TrainerState.load_from_json(os.path.join(checkpoint, TRAINER_STATE_NAME))
            self.history = [*self.history, {"until": state.global_step, "run": self._saved}]
        for callback in self.trainer.callback_handler.callbacks:
            if isinstance(callback, StartReference):
                callback.may_differ = bool({"model", "reference"} & set(self._may_change))
        self._compare_processes(checkpoint)

    def _note_earlier(self, checkpoint: str | None, run: dict[str, Any]) -> None:
        state = self.trainer.state
        _forget_made_optimizer(self.trainer)
        if checkpoint is not None:
            self.earlier = read_manifest(checkpoint).get("earlier", [])
        elif state.global_step > 0 and state is not self._noted_state:
            steps, keeps = best_step(self.trainer) or state.global_step, _keeps_optimizer(self.trainer)
            self.earlier = [*self.earlier, {"steps": steps, "method": run["method"], "keeps_optimizer": keeps}]
        self._noted_state = state

    def _compare_processes(self, checkpoint: str) -> None:
        manifest, now = read_manifest(checkpoint), self.trainer.accelerator.num_processes
        if manifest.get("processes", now) == now:
            return
        then, rows = manifest["rows_per_step"], rows_per_step(self.trainer)
        place = "where they were"
        if then != rows:
            place = f"elsewhere, since a step had {then} rows and has {rows} now (the batch size would mend that)"
        logger.warning(
            f"{checkpoint} was saved by {manifest['processes']} process(es) and is resumed by {now}: the data go on {place} "
            "and cached targets are used again, but random states (dropout, sampling) cannot go on."
        )

    def to_dict(self) -> dict[str, Any]:
        """Returns the description of this run for a checkpoint."""
        trainer, described = self.trainer, {"run": self.run, "history": self.history, "earlier": self.earlier}
        has_cut = trainer._has_cut_epochs or trainer.control.should_epoch_stop
        return described | ({"has_cut_epochs": True} if has_cut else {})

    def load_optimizer(self, checkpoint: str | None, load: Callable[[str | None], None]) -> None:
        """Loads optimizer and schedule with Trainer's `load`, and keeps the settings that were allowed to change."""
        trainer = self.trainer
        changed = sorted(name for name in self.changes if name in OPTIMISATION or is_of_own_optimizer(name))
        scheduler = getattr(trainer.lr_scheduler, "scheduler", trainer.lr_scheduler)
        is_deepspeed = trainer.accelerator.distributed_type == DistributedType.DEEPSPEED
        keeps_rates = is_deepspeed or not isinstance(scheduler, LambdaLR)
        # What changes the number of steps changes the learning rate, too, which the optimizer's state holds.
        if checkpoint is None or not self.changes or (keeps_rates and not changed):
            _load(checkpoint, load, trainer)
            return
        if keeps_rates:
            raise ConsistencyError(
                f"`resume_changed`: {', '.join(changed)} cannot change in a run that is resumed under DeepSpeed, or with a "
                "schedule that keeps its own learning rates. Set what the run began with, or start a new run."
            )
        settings = [
            {key: value for key, value in group.items() if key not in ("params", *OF_PROGRESS)}
            for group in trainer.optimizer.param_groups
        ]
        base_lrs = list(scheduler.base_lrs)
        if {"optim", OPTIMIZER} & set(self.changes):
            logger.warning(
                "The optimizer is another one than in the checkpoint: its state (momentum and the like) starts again."
            )
            scheduler.load_state_dict(torch.load(os.path.join(checkpoint, SCHEDULER_NAME), weights_only=True))
        else:
            _load(checkpoint, load, trainer)
        scheduler.base_lrs = base_lrs
        shares = [of_step(scheduler.last_epoch) for of_step in scheduler.lr_lambdas]
        rates = [base_lr * share for base_lr, share in zip(base_lrs, shares, strict=True)]
        scheduler._last_lr = rates  # for the log
        for group, setting, rate in zip(trainer.optimizer.param_groups, settings, rates, strict=True):
            group.update({**setting, "lr": rate})

    def load_callbacks(self, load: Callable[[], None]) -> None:
        """
        Restores callbacks with Trainer's `load`, but those of this package, which restore themselves: Trainer would make
        others, without a trainer.
        """
        state, callbacks = self.trainer.state, self.trainer.callback_handler.callbacks
        own = {type(of).__name__ for of in callbacks if type(of).__module__.startswith("trl_consistency.")}
        others = {name: of for name, of in state.stateful_callbacks.items() if name not in own}
        with temporarily(state, stateful_callbacks=others):
            load()
        # Counting anew, early stopping would train for longer than a run that was not interrupted.
        saved = others.get(EarlyStoppingCallback.__name__, [])
        stopping = [of for of in self.trainer.callback_handler.callbacks if type(of) is EarlyStoppingCallback]
        for callback, of_callback in zip(stopping, saved if isinstance(saved, list) else [saved], strict=False):
            callback.early_stopping_patience_counter = of_callback["attributes"]["early_stopping_patience_counter"]


def _forget_made_optimizer(trainer: Any) -> None:
    """Removes the optimizer that Trainer made for a training before: it would go on with it, and not with the present options."""
    is_made = not trainer.has_own_optimizer or trainer.optimizer_cls_and_kwargs is not None
    if trainer.has_trained and is_made:
        trainer.optimizer = trainer.lr_scheduler = None


def _keeps_optimizer(trainer: Any) -> bool:
    """Returns whether a further training goes on with the optimizer of the one before, which a caller made."""
    if trainer.optimizer is None or trainer.optimizer is not trainer._used_optimizer:
        return False
    done = 0 if trainer._created_lr_scheduler else getattr(trainer.lr_scheduler, "last_epoch", 0)
    if done > 0:
        logger.warning(
            f"`optimizers`: the schedule goes on after the {done:,} steps that it has done, with a learning rate of "
            f"{trainer._get_learning_rate():g}. Assign a new optimizer and schedule (`trainer.optimizer`, "
            "`trainer.lr_scheduler`) to begin anew."
        )
    return True


def _load(checkpoint: str | None, load: Callable[[str | None], None], trainer: Any) -> None:
    needed = {name for group in trainer.optimizer.param_groups for name in group}
    try:
        load(checkpoint)
        if lacking := needed - {name for group in trainer.optimizer.param_groups for name in group}:
            raise ValueError(f"it has no {', '.join(sorted(lacking))}, and is another optimizer's")
        if any("state" in group for group in trainer.optimizer.param_groups):
            raise ValueError("it belongs to weights of the run before, as GrokAdamW keeps it")
    except (AssertionError, EOFError, KeyError, RuntimeError, TypeError, ValueError, UnpicklingError) as error:
        raise ConsistencyError(
            f"The optimizer's state in {checkpoint} cannot be loaded ({one_line(error)}). Delete that checkpoint and start "
            "again with `--resume_from_checkpoint true`, or resume with the options of the run that saved it."
        ) from error


def describe_history(trainer: Any) -> str | None:
    """Describes the parts of a run that was resumed with changes; None without changes."""
    history, run = trainer.run_record.history, trainer.run_record.run
    if not history:
        return None
    starts = [0, *(part["until"] for part in history)]
    ends = [*starts[1:], trainer.state.global_step]
    runs = [*(part["run"] for part in history), run]
    parts = [
        f"{end - start:,} {'steps ' if not number else ''}of {_name(part)}"
        for number, (start, end, part) in enumerate(zip(starts, ends, runs, strict=True))
    ]
    changes = [
        f"after step {part['until']:,} {_changes(part['run'], after)}"
        for part, after in zip(history, runs[1:], strict=True)
    ]
    return f"{', then '.join(parts)}: {'; '.join(changes)}".replace("|", "/")


def describe_earlier(trainer: Any) -> str | None:
    """
    Describes the earlier trainings of a trainer; None without one. The present one began from their weights, unless the script has set
    them back.
    """
    earlier = trainer.run_record.earlier
    parts = [f"{part['steps']:,} steps of {_name(part)}" for part in earlier]
    if not parts:
        return None
    optimizer = "the optimizer that was used for them" if earlier[-1].get("keeps_optimizer") else "a new optimizer"
    return (
        f"{', then '.join(parts)}, by earlier calls of `train` in the same script; these steps began with {optimizer}"
    )


def past_methods(trainer: Any) -> list[str]:
    """Returns the methods of the earlier parts of a run."""
    return [method for part in trainer.run_record.history for method in (part["run"] or {}).get("method", [])]


def _name(run: dict[str, Any] | None) -> str:
    return "a run that was not noted" if run is None else " and ".join(run["method"])


def _changes(before: dict[str, Any] | None, after: dict[str, Any] | None) -> str:
    if before is None or after is None:
        return "nothing could be compared"
    differences = find_differences(before, after)
    shown = [f"`{name}` {show(old)} → {show(new)}" for name, (old, new) in list(differences.items())[:MAX_SHOWN]]
    more = f" and {len(differences) - MAX_SHOWN} more" if len(differences) > MAX_SHOWN else ""
    return f"{', '.join(shown)}{more}"
