"""Interruption-safe runs: only complete checkpoints are resumed from, and a signal saves one before the run ends."""

import hashlib
import json
import os
import re
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import xxhash
from accelerate import Accelerator
from safetensors import SafetensorError
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, IntervalStrategy, rotate_checkpoints

from ...config.options import temporarily
from ...errors import ConsistencyError
from ...log import get_logger


logger = get_logger(__name__)

# Key of the checkpoint's manifest among the callback states in `trainer_state.json`, which is written last.
MANIFEST = "manifest"
LOADED = (".distcp", ".pt", ".pth", ".safetensors")  # files that resuming loads
CHECKSUMS = "checksums"  # key of those of these files in the manifest


def rows_per_batch(trainer: Any) -> int:
    """Returns the rows that are read at once, over all processes."""
    args = trainer.args
    # `split_batches` shares a batch out to the processes, and DataParallel takes one batch for all devices.
    processes = 1 if args.accelerator_config.split_batches else trainer.accelerator.num_processes
    return args.train_batch_size * processes


def rows_per_step(trainer: Any) -> int:
    """Returns the rows of an optimizer step, over all processes."""
    return rows_per_batch(trainer) * trainer.args.gradient_accumulation_steps


def read_manifest(checkpoint: str | Path) -> dict[str, Any]:
    """
    Returns the manifest of a checkpoint, empty if another kind of trainer saved it. Raises [`ConsistencyError`] if the
    checkpoint is incomplete.
    """
    checkpoint = Path(checkpoint)
    try:
        content = json.loads((checkpoint / TRAINER_STATE_NAME).read_text())
        state = TrainerState(**content)
        manifest = state.stateful_callbacks.get(MANIFEST, {})
        files = list(manifest.get("files", {}).items())
        is_valid = isinstance(content.get("stateful_callbacks", {}), dict) and isinstance(state.log_history, list)
        is_valid &= isinstance(manifest.get("earlier", []), list)
        is_valid &= isinstance(manifest.get("run"), dict | None)
        is_valid &= all(isinstance(manifest.get(key, {}), dict) for key in (CHECKSUMS, "left"))
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        is_valid = False
    if not is_valid:
        raise ConsistencyError(
            f"{checkpoint} is not a complete checkpoint: {TRAINER_STATE_NAME}, its last file, is missing or cut "
            "short, or was changed."
        )
    number = checkpoint.name.removeprefix(f"{PREFIX_CHECKPOINT_DIR}-")
    steps = [manifest.get("step", state.global_step), *([int(number)] if number.isdigit() else [])]
    if not isinstance(state.global_step, int) or any(step != state.global_step for step in steps):
        raise ConsistencyError(
            f"{checkpoint} is not a complete checkpoint: {TRAINER_STATE_NAME} says step {state.global_step!r}, which "
            "is another."
        )
    for name, size in files:
        file = checkpoint / name
        if not file.is_file() or file.stat().st_size < size:
            raise ConsistencyError(f"{checkpoint} is not a complete checkpoint: {name} is missing or cut short.")
    return manifest


def check_unchanged(checkpoint: str | Path) -> None:
    """Raises [`ConsistencyError`] if weights or states in a checkpoint have changed since they were saved."""
    manifest = read_manifest(checkpoint)
    changed = changed_file(checkpoint)
    if changed is None and "state" in manifest:
        state = json.loads((Path(checkpoint) / TRAINER_STATE_NAME).read_text())
        changed = TRAINER_STATE_NAME if _digest_of_state(state) != manifest["state"] else None
    if changed is not None:
        raise ConsistencyError(
            f"`resume_from_checkpoint`: {changed} in {checkpoint} is damaged, or was changed after it was saved. Delete that "
            "checkpoint, and resume from an earlier one."
        )


def check_has_states(checkpoint: str | Path) -> None:
    """Raises [`ConsistencyError`] for a checkpoint without the states that a run goes on with."""
    if not any(Path(checkpoint).glob("rng_state*.pth")):
        raise ConsistencyError(
            f"`resume_from_checkpoint`: {checkpoint} holds only the model (`save_only_model`). To resume, a run needs the states of the "
            "optimizer, the schedule and the random numbers. Name another checkpoint, or begin a new run with this model."
        )


def changed_file(checkpoint: str | Path, suffixes: tuple[str, ...] = LOADED) -> str | None:
    """Returns a file with one of these suffixes that was changed or deleted since the checkpoint was saved, if any."""
    try:
        content = json.loads((Path(checkpoint) / TRAINER_STATE_NAME).read_text())
        checksums = content["stateful_callbacks"][MANIFEST][CHECKSUMS]
    except (OSError, ValueError, KeyError, TypeError):
        return None  # nothing to compare with
    for name, checksum in checksums.items():
        file = Path(checkpoint) / name
        if name.endswith(suffixes) and not (file.is_file() and _checksum(file) == checksum):
            return str(name)
    return None


def _digest_of_state(state: dict[str, Any]) -> str:
    """Returns a digest of what Trainer's state says: steps, epochs, metrics, logs, and the best checkpoint's name."""
    said = {name: value for name, value in state.items() if name != "stateful_callbacks"}
    if said.get("best_model_checkpoint"):  # the folder of the run may have been moved
        said["best_model_checkpoint"] = Path(said["best_model_checkpoint"]).name
    return hashlib.blake2b(json.dumps(said, sort_keys=True).encode(), digest_size=8).hexdigest()


def _checksum(file: Path) -> str:
    # A fully trained model and its optimizer are large: this is as fast as they are read.
    checksum = xxhash.xxh3_64()
    with file.open("rb") as content:
        while block := content.read(1 << 24):
            checksum.update(block)
    return checksum.hexdigest()


def find_checkpoint(resume_from_checkpoint: str | bool | None, output_dir: str) -> str | None:
    """
    Returns the checkpoint to resume from, if any: the one named, or for `True` the last complete one in the folder, but none
    that an earlier run left there. Raises [`ConsistencyError`] if it does not exist.
    """
    if not resume_from_checkpoint:
        return None
    if str(resume_from_checkpoint).lower() != "true":
        resume_from_checkpoint = str(resume_from_checkpoint)
        if not os.path.isdir(resume_from_checkpoint):
            raise ConsistencyError(f"`resume_from_checkpoint`: there is no folder {resume_from_checkpoint}.")
        return resume_from_checkpoint
    checkpoints = _checkpoints(output_dir)
    left = [of for path in checkpoints if _is_complete(path) for of in read_manifest(path).get("left", {}).items()]
    for checkpoint in reversed(checkpoints):
        try:
            read_manifest(checkpoint)
        except ConsistencyError as error:
            logger.warning_once(f"{error} It is skipped.")
            continue
        if _state_of(checkpoint) not in left:
            return str(checkpoint)
        logger.warning_once(
            f"{checkpoint} is from an earlier run. A later run began anew in this folder and has saved fewer steps so far. That one is "
            f"resumed. To go on from the earlier one, name {checkpoint} as `resume_from_checkpoint`."
        )
    kind = "complete checkpoint" if checkpoints else "checkpoint"
    raise ConsistencyError(
        f"`resume_from_checkpoint` is true, but there is no {kind} in {output_dir}. To begin a new run, leave it out."
    )


def _checkpoints(directory: str | Path) -> list[Path]:
    """Returns the checkpoints, ordered by step."""
    numbers = {path: path.name.removeprefix(f"{PREFIX_CHECKPOINT_DIR}-") for path in Path(directory).glob("*")}
    found = [path for path, number in numbers.items() if number.isdigit() and path.name != number and path.is_dir()]
    return sorted(found, key=lambda path: int(numbers[path]))


def _state_of(checkpoint: Path) -> tuple[str, str]:
    """Returns the name of a complete checkpoint, and the checksum of the file that is written last."""
    return checkpoint.name, _checksum(checkpoint / TRAINER_STATE_NAME)


def _step_of(checkpoint: Path) -> int:
    return int(checkpoint.name.rsplit("-", 1)[1])


def _is_complete(checkpoint: Path) -> bool:
    try:
        read_manifest(checkpoint)
    except ConsistencyError:
        return False
    return True


class StopOnSignal(TrainerCallback):
    """
    On SIGTERM or Ctrl-C in any process, stops all processes after the same step, with a checkpoint. It raises
    `SystemExit`, so the script does not continue with a partly trained model.
    """

    def __init__(self, accelerator: Accelerator):
        self.accelerator = accelerator
        self.received: int | None = None  # by this process
        self.is_stopping = self.has_announced = False
        self.cannot_choose = False  # the step at which it stops, as the best

    @contextmanager
    def listening(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield  # Python allows signal handlers only in the main thread.
            return
        # Shells start background processes with Ctrl-C ignored, which must stay so.
        handled = [number for number in (signal.SIGTERM, signal.SIGINT) if signal.getsignal(number) != signal.SIG_IGN]
        before = {number: signal.signal(number, self._receive) for number in handled}
        try:
            with _calling_at_once(self._announce):
                yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        if self.received is not None:  # after the last step
            signal.raise_signal(self.received)

    def _receive(self, number: int, frame: Any) -> None:
        if number == self.received == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = number

    def _announce(self, number: int) -> None:
        if number in (signal.SIGTERM, signal.SIGINT) and not self.has_announced and self.accelerator.is_main_process:
            self.has_announced = True
            # Not `print`, which the signal may have interrupted
            os.write(2, f"\n{signal.Signals(number).name}: this step is finished and saved first.\n".encode())

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self.received is not None:
            self.accelerator.set_trigger()
        if self.accelerator.check_trigger():
            self.is_stopping = True
            args.save_only_model = False  # That checkpoint is to be resumed.
            control.should_save = control.should_training_stop = True
            is_at_end = args.eval_strategy == IntervalStrategy.EPOCH and float(state.epoch or 0).is_integer()
            self.cannot_choose = args.load_best_model_at_end and (control.should_evaluate or is_at_end)
            control.should_evaluate = False  # There may be no time for it.

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if not self.is_stopping:
            return
        self.accelerator.wait_for_everyone()
        logger.warning(
            f"Stopped after step {state.global_step} of {state.max_steps}, which is saved in {args.output_dir}. To go on, "
            "start again with `--resume_from_checkpoint true` (`trainer.train(resume_from_checkpoint=True)`)."
        )
        if self.cannot_choose:
            logger.warning(
                "The evaluation of this step was left out, so that `load_best_model_at_end` cannot choose this step in the end."
            )
        raise SystemExit(128 + (self.received or signal.SIGTERM))


@contextmanager
def _calling_at_once(callback: Callable[[int], None]) -> Iterator[None]:
    """
    Calls `callback` from a thread with the number of each signal when it arrives. Python's own handlers wait until the
    main thread returns from native code, and a backward pass can take minutes on CPUs.
    """
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    before = signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)

    def listen() -> None:
        while number := os.read(read_end, 1)[0]:
            callback(number)

    thread = threading.Thread(target=listen, daemon=True)
    thread.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        os.write(
            write_end, bytes(1)
        )  # 0 ends the thread; closing would not, since forked processes keep the pipe open.
        thread.join()
        os.close(read_end)
        os.close(write_end)


@contextmanager
def stopping_on_signals(trainer: Any) -> Iterator[None]:
    """Makes a signal stop the training after the current step, with a checkpoint."""
    stop, args = StopOnSignal(trainer.accelerator), trainer.args
    trainer.add_callback(stop)
    try:
        with temporarily(args, save_only_model=args.save_only_model), stop.listening():
            yield
    finally:
        trainer.remove_callback(stop)


class Checkpoints:
    """Writes the checkpoints of a training run, each completely or not at all."""

    def __init__(self, trainer: Any):
        self.trainer = trainer
        self._resumed_from = 0  # step
        self._saved: set[int] = set()  # steps
        self._folders: set[str] = set()
        self._left: dict[str, str] = {}  # checkpoints in the folder that are not of this run, by name

    def begin(self, checkpoint: str | None) -> None:
        """Notes the checkpoint that the run resumes from, if any."""
        self._resumed_from, self._saved, self._folders = 0, set(), {os.path.realpath(self.trainer.args.output_dir)}
        # TRL counts on from what this object has trained on before.
        manifest = read_manifest(checkpoint) if checkpoint else {}
        self.trainer._total_train_tokens = manifest.get("num_tokens", 0)
        if checkpoint is not None and (state := Path(checkpoint) / TRAINER_STATE_NAME).is_file():
            self._resumed_from = TrainerState.load_from_json(str(state)).global_step
            self._folders.add(os.path.dirname(os.path.realpath(checkpoint)))
        there = [path for path in _checkpoints(self.trainer.args.output_dir) if _step_of(path) > self._resumed_from]
        self._left = {**manifest.get("left", {}), **dict(_state_of(path) for path in there if _is_complete(path))}

    def settle_state(self, max_steps: int) -> None:
        """
        Gives the state of the run, which may be a checkpoint's, the intervals of this run. Raises [`ConsistencyError`] if more steps
        were trained than this run has.
        """
        state = self.trainer.state
        if state.global_step > max_steps:
            raise ConsistencyError(
                f"`resume_from_checkpoint`: the checkpoint is of step {state.global_step}, and this run ends after step {max_steps} "
                "(`max_steps`, or else `num_train_epochs`). Resume from an earlier checkpoint, or train for longer."
            )
        state.compute_steps(self.trainer.args, max_steps)

    def is_of_this_run(self, checkpoint: Path) -> bool:
        """Whether this run, or the one that it resumes, saved a checkpoint: no other run, in its folder or elsewhere."""
        step = _step_of(checkpoint)
        is_known = step <= self._resumed_from or step in self._saved
        return is_known and os.path.realpath(checkpoint.parent) in self._folders

    @contextmanager
    def writing(self, trial: Any) -> Iterator[None]:
        """Raises [`ConsistencyError`] if the checkpoint cannot be written, after deleting what was written of it."""
        trainer = self.trainer
        run_dir = Path(trainer._get_output_dir(trial=trial))
        directory = run_dir / f"{PREFIX_CHECKPOINT_DIR}-{trainer.state.global_step}"
        if trainer.args.should_save:
            shutil.rmtree(directory, ignore_errors=True)  # of an interrupted run
            if trainer.args.save_total_limit:
                _delete_damaged(run_dir, trainer.args.save_total_limit - 1)  # and one is written
        trainer.accelerator.wait_for_everyone()
        self._saved.add(trainer.state.global_step)
        # The manifest of an earlier checkpoint: with `save_only_model`, nothing replaces it.
        trainer.state.stateful_callbacks.pop(MANIFEST, None)
        try:
            yield
        except (OSError, RuntimeError, SafetensorError, ConsistencyError) as error:
            reason = _why_not_written(error)
            if reason is None:
                raise
            free = shutil.disk_usage(run_dir).free / 1e6
            shutil.rmtree(directory, ignore_errors=True)
            raise ConsistencyError(
                f"{directory} cannot be written ({reason}; {free:.1f} MB are free). The checkpoints before it are kept: make "
                "room, and start again with `--resume_from_checkpoint true`."
            ) from error

    def note_files(self, directory: str) -> None:
        """Records the manifest of a checkpoint after all processes have written their files."""
        trainer = self.trainer
        trainer.accelerator.wait_for_everyone()
        files = [path for path in Path(directory).rglob("*") if path.is_file()]
        trainer.state.stateful_callbacks[MANIFEST] = {
            "processes": trainer.accelerator.num_processes,
            "rows_per_step": rows_per_step(trainer),
            **trainer.run_record.to_dict(),
            "num_tokens": trainer._total_train_tokens,
            "step": trainer.state.global_step,
            **({"left": self._left} if self._left else {}),
            "state": _digest_of_state(asdict(trainer.state)),
            "files": {str(path.relative_to(directory)): path.stat().st_size for path in sorted(files)},
            CHECKSUMS: {
                str(path.relative_to(directory)): _checksum(path)
                for path in files
                if trainer.args.should_save and path.suffix in LOADED
            },
        }

    def delete_surplus(self, resumed_from: str | None) -> None:
        """Rotates checkpoints after resuming: a run killed after its last step has not done so."""
        args, state = self.trainer.args, self.trainer.state
        if resumed_from is not None and args.should_save and args.save_total_limit:
            _delete_damaged(Path(args.output_dir), args.save_total_limit)
            rotate_checkpoints(args.output_dir, args.save_total_limit, state.best_model_checkpoint, use_mtime=True)


def _delete_damaged(run_dir: Path, limit: int) -> None:
    """Deletes incomplete checkpoints until no more than `limit` are left: the rotation would delete complete ones instead."""
    checkpoints = _checkpoints(run_dir)
    damaged = [checkpoint for checkpoint in checkpoints if not _is_complete(checkpoint)]
    for checkpoint in damaged[: max(len(checkpoints) - limit, 0)]:
        shutil.rmtree(checkpoint, ignore_errors=True)


def _why_not_written(error: Exception) -> str | None:
    """Why the write failed, or None if the failure is unrelated to the disk."""
    if isinstance(error, ConsistencyError) and isinstance(error.__cause__, OSError):  # from `files.py`
        error = error.__cause__
    if isinstance(error, OSError):
        return error.strerror
    if re.search("inline_container|iostream error", str(error)):
        return "torch could not finish a file"
    return str(error) if isinstance(error, SafetensorError) else None
