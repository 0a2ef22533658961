"""`load_best_model_at_end`: says what it cannot choose, and checks the checkpoint that it loads."""

from pathlib import Path
from typing import Any

from transformers.trainer_utils import SaveStrategy

from ...errors import ConsistencyError
from ...log import get_logger
from .interruption import changed_file


logger = get_logger(__name__)


def warn_of_choice(args: Any, state: Any) -> None:
    """Logs one line before the first step if there will be one checkpoint to choose from, or not one per evaluation."""
    if not args.load_best_model_at_end or state.global_step > 0:
        return
    in_steps = args.eval_strategy == "steps"
    saves_the_best = args.save_strategy == SaveStrategy.BEST
    option = "eval_steps" if saves_the_best else "save_steps"
    interval, end = (getattr(state, option), state.max_steps) if in_steps else (1, state.num_train_epochs)
    if interval >= end:
        length = f"`{option}` is {interval}, and training ends after {end} steps" if in_steps else "there is one epoch"
        logger.warning(
            f"`load_best_model_at_end` has nothing to choose from: {length}, so that the last checkpoint is the only one. Save "
            "and evaluate more often, or leave it out."
        )
    elif in_steps and not saves_the_best and state.save_steps > state.eval_steps:
        logger.warning(
            f"`load_best_model_at_end` can load no step that is not saved: evaluations are {state.eval_steps} steps apart "
            f"(`eval_steps`), and checkpoints {state.save_steps} (`save_steps`). Set both alike."
        )


def why_stopped(trainer: Any) -> str | None:
    """Returns why a callback of this package stopped the training, or None."""
    for callback in trainer.callback_handler.callbacks:
        # A caller's callback may have an attribute of that name, too.
        is_own = any(kind.__module__.startswith("trl_consistency.") for kind in type(callback).__mro__)
        if is_own and (stopped := getattr(callback, "stopped", None)):
            return str(stopped)
    return None


def best_step(trainer: Any) -> int | None:
    """Returns the step of the best checkpoint if its weights were loaded at the end of training."""
    checkpoint = trainer.state.best_model_checkpoint
    if not trainer.has_ended or not trainer.args.load_best_model_at_end or checkpoint is None:
        return None
    return int(checkpoint.rsplit("-", 1)[1])


def missed_best(trainer: Any) -> str:
    """
    Describes the best step if training ended without loading its weights, because it was not saved, or says that none is
    known; else empty.
    """
    state = trainer.state
    if not trainer.has_ended or not trainer.args.load_best_model_at_end or state.global_step == 0:
        return ""
    best, kept = state.best_global_step, best_step(trainer)
    if not best:
        return "the weights are those after the last step: no evaluation says which step is the best"
    if best == kept:
        return ""
    instead = "those after the last step" if kept is None else f"those of step {kept:,}"
    return f"the weights are {instead}: step {best:,}, the best by `{trainer.args.metric_for_best_model}`, has no checkpoint"


def check_best_checkpoint(trainer: Any) -> None:
    """
    Raises [`ConsistencyError`] if the best checkpoint was deleted or its weights were changed since it was saved. It also does so
    if the checkpoint is another run's, whose folder Trainer takes for this run's.
    """
    checkpoint = Path(trainer.state.best_model_checkpoint)
    if not trainer.checkpoints.is_of_this_run(checkpoint):
        raise ConsistencyError(
            f"`load_best_model_at_end`: {checkpoint} is another run's, and this one did not save its best step. Delete or rename "
            "that folder, and start again with `--resume_from_checkpoint true`, which ends with the weights of the last step."
        )
    if not checkpoint.is_dir():
        fault = f"{checkpoint}, the best checkpoint, is not there any more"
    elif (name := changed_file(checkpoint, (".safetensors",))) is not None:
        fault = f"{name} in {checkpoint}, the best checkpoint, is not as it was saved"
    else:
        return
    raise ConsistencyError(
        f"`load_best_model_at_end`: {fault}. Put it back and start again with `--resume_from_checkpoint true`, which loads "
        "it. Without that folder, it ends with the weights of the last step."
    )
