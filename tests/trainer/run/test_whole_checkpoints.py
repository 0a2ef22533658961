"""A run goes on from whole checkpoints of its own, also after a full disk and with another number of processes."""

import errno
import functools
import json
import os
import re
import shutil
import subprocess
from types import SimpleNamespace

import pytest
import torch
from accelerate import PartialState
from safetensors import SafetensorError
from transformers import TrainerCallback
from transformers import trainer as transformers_trainer
from transformers.trainer_callback import TrainerState

from tests.helpers.interrupted_run import STEPS, last_step, make_trainer, step_of
from tests.helpers.runs import weights
from trl_consistency import ConsistencyError
from trl_consistency.trainer.run.interruption import _why_not_written, find_checkpoint, read_manifest, rows_per_step


pytestmark = pytest.mark.long


slow = functools.partial(pytest.param, marks=pytest.mark.slow)


class Killed(BaseException):
    pass


def killed(*args, **kwargs):
    raise Killed


def half_written(state, path):
    TrainerState.save_to_json(state, path)
    os.truncate(path, os.path.getsize(path) // 2)
    raise Killed


@pytest.mark.parametrize(
    "place",
    [
        slow("save_model"),
        slow("_save_optimizer_and_scheduler"),
        "_save_rng_state",
        "save_to_json",
        slow("rotate_checkpoints"),
    ],
)
def test_died_while_saving(whole, tmp_path, monkeypatch, caplog, place):
    """Before a file of the checkpoint of step 4, within its last one, and when older checkpoints are about to go."""

    class Die(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == 4:
                if place == "save_to_json":
                    monkeypatch.setattr(state, place, lambda path: half_written(state, path))
                else:
                    owner = transformers_trainer if place == "rotate_checkpoints" else trainer
                    monkeypatch.setattr(owner, place, killed)

    trainer = make_trainer("act", tmp_path, save_total_limit=1)
    trainer.add_callback(Die())
    with pytest.raises(Killed):
        trainer.train()
    monkeypatch.undo()
    is_whole, is_there = place == "rotate_checkpoints", (tmp_path / "checkpoint-4").exists()
    assert last_step(tmp_path) == (4 if is_whole else 3)
    resumed = make_trainer("act", tmp_path, save_total_limit=1)
    resumed.train(resume_from_checkpoint=True)
    assert ("checkpoint-4 is not a complete checkpoint" in caplog.text) == (is_there and not is_whole)
    assert torch.equal(weights(resumed.model), whole("act")[1])
    assert [path.name for path in tmp_path.glob("checkpoint-*")] == [f"checkpoint-{STEPS}"]


@pytest.fixture
def two_checkpoints(whole, tmp_path):
    for step in (3, 4):
        shutil.copytree(whole("bct")[0] / f"checkpoint-{step}", tmp_path / f"checkpoint-{step}")
    return tmp_path


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.pt", "rng_state.pth", "trainer_state.json"])
@pytest.mark.parametrize("is_there", [True, False])
def test_file_that_is_cut_short_or_missing(two_checkpoints, caplog, name, is_there):
    file = two_checkpoints / "checkpoint-4" / name
    if is_there:
        os.truncate(file, file.stat().st_size - 5)
    else:
        file.unlink()
    PartialState()  # for the log
    reason = f"checkpoint-4 is not a complete checkpoint: {name}.* is missing or cut short"
    assert find_checkpoint(True, str(two_checkpoints)) == str(two_checkpoints / "checkpoint-3")
    assert re.search(reason, caplog.text)
    with pytest.raises(ConsistencyError, match=reason):
        read_manifest(file.parent)
    shutil.rmtree(two_checkpoints / "checkpoint-3")
    with pytest.raises(ConsistencyError, match="there is no complete checkpoint in"):
        find_checkpoint(True, str(two_checkpoints))


def test_nothing_is_said_of_incomplete_checkpoints_before_the_one_that_is_taken(two_checkpoints, caplog):
    """Nor is an edited list of those that were there before more than an error of theirs."""
    (two_checkpoints / "checkpoint-3" / "optimizer.pt").unlink()
    PartialState()  # for the log
    edit_manifest(two_checkpoints / "checkpoint-4", left={"checkpoint-4": []})
    assert find_checkpoint(True, str(two_checkpoints)) == str(two_checkpoints / "checkpoint-4")
    assert not caplog.text


def test_file_that_is_damaged(two_checkpoints):
    file = two_checkpoints / "checkpoint-4" / "optimizer.pt"
    file.write_bytes(b"\x80" * file.stat().st_size)
    with pytest.raises(ConsistencyError, match=r"optimizer.pt in .*checkpoint-4 is damaged"):
        resume_shorter(two_checkpoints)


def resume_shorter(directory, *changed):
    trainer = make_trainer("bct", directory, max_steps=5)
    trainer.train(resume_from_checkpoint=True, resume_changed=["length", *changed])


def edit_manifest(checkpoint, **changes):
    path = checkpoint / "trainer_state.json"
    state = json.loads(path.read_text())
    state["stateful_callbacks"]["manifest"] |= changes
    path.write_text(json.dumps(state))


def test_checkpoint_of_another_trainer(two_checkpoints):
    """It has no list of its files, and is taken as it is."""
    path = two_checkpoints / "checkpoint-4" / "trainer_state.json"
    state = json.loads(path.read_text())
    del state["stateful_callbacks"]["manifest"]
    path.write_text(json.dumps(state))
    trainer = make_trainer("bct", two_checkpoints, max_steps=5)
    trainer.train(resume_from_checkpoint=True)
    assert last_step(two_checkpoints) == 5


def test_checkpoints_that_an_earlier_run_left_in_the_folder_are_not_resumed_from(tmp_path, caplog):
    """A run that was begun anew and killed ended at once, with the weights of the run before."""

    class Break(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == 4:
                raise Killed

    make_trainer("bct", tmp_path, save_steps=3, max_steps=6).train()
    again = make_trainer("bct", tmp_path, save_steps=3, max_steps=6)
    again.add_callback(Break())
    with pytest.raises(Killed):
        again.train()
    for steps in (3, 6):  # the second time it is the last one of the present run
        assert find_checkpoint(True, str(tmp_path)) == str(tmp_path / f"checkpoint-{steps}")
        assert ("checkpoint-6 is from an earlier run" in caplog.text) == (steps == 3)
        caplog.clear()
        make_trainer("bct", tmp_path, save_steps=3, max_steps=6).train(resume_from_checkpoint=True)
        caplog.clear()


def test_checkpoints_after_the_one_that_is_named_are_not_resumed_from(whole, tmp_path):
    """Who goes back to an earlier checkpoint means the run from there."""
    shutil.copytree(whole("bct")[0], tmp_path, dirs_exist_ok=True)
    last = tmp_path / f"checkpoint-{STEPS}"
    assert find_checkpoint(True, str(tmp_path)) == str(last)
    make_trainer("bct", tmp_path).train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{STEPS - 2}"))
    assert "left" in json.loads((last / "trainer_state.json").read_text())["stateful_callbacks"]["manifest"]
    shutil.copytree(whole("bct")[0] / last.name, last, dirs_exist_ok=True)
    assert find_checkpoint(True, str(tmp_path)) == str(tmp_path / f"checkpoint-{STEPS - 1}")


# Older ones that are deleted


def test_rotation_keeps_the_new_checkpoint_though_a_half_written_one_has_a_higher_number(tmp_path):
    (tmp_path / "checkpoint-9").mkdir()
    trainer = make_trainer("act", tmp_path, save_total_limit=1, max_steps=1)
    trainer.train()
    assert last_step(tmp_path) == 1


def test_rotation_that_was_cut_off_after_the_last_step_is_finished(whole, tmp_path):
    """A run that is resumed from its last step saves nothing that would rotate them."""
    shutil.copytree(whole("act")[0], tmp_path, dirs_exist_ok=True)
    (tmp_path / "checkpoint-1" / "adapter_model.safetensors").unlink()
    make_trainer("act", tmp_path).train(resume_from_checkpoint=True)
    assert sorted(step_of(path) for path in tmp_path.glob("checkpoint-*")) == [STEPS - 1, STEPS]


@pytest.mark.parametrize("name", ["optimizer.pt", "README.md"])
def test_rotation_keeps_a_checkpoint_from_which_a_file_was_taken(two_checkpoints, name):
    """As somebody does who needs its weights and not its optimizer."""
    checkpoint = two_checkpoints / "checkpoint-3"
    (checkpoint / name).unlink()
    make_trainer("bct", two_checkpoints, save_total_limit=100).train(resume_from_checkpoint=True)
    assert (checkpoint / "model.safetensors").is_file()


def test_without_rotation_nothing_is_deleted(tmp_path):
    (tmp_path / "checkpoint-9").mkdir()
    make_trainer("act", tmp_path, save_total_limit=None, max_steps=1).train()
    assert (tmp_path / "checkpoint-9").is_dir()


# A full disk


@pytest.fixture
def small_disk(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", disk], capture_output=True).returncode:
        pytest.skip("only root can mount a small disk")
    yield disk
    subprocess.run(["umount", "--lazy", disk], check=True)


@pytest.mark.parametrize("room", [slow(30), slow(120), 300, slow(420)])
def test_full_disk(whole, small_disk, room):
    """With room, in kB, for a part of a checkpoint."""

    class Fill(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == 3:
                usage = shutil.disk_usage(small_disk)
                (small_disk / "other").write_bytes(bytes(usage.free - room * 1024))

    trainer = make_trainer("bct", small_disk)
    trainer.add_callback(Fill())
    with pytest.raises(
        ConsistencyError, match=r"checkpoint-3 cannot be written \(.*\). The checkpoints before it"
    ) as end:
        trainer.train()
    assert "\n" not in str(end.value)
    assert last_step(small_disk) == 2
    (small_disk / "other").unlink()
    resumed = make_trainer("bct", small_disk)
    resumed.train(resume_from_checkpoint=True)
    assert torch.equal(weights(resumed.model), whole("bct")[1])


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "No space left on device"),
        (
            RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 64 vs 0\nframe"),
            "could not finish",
        ),
        (SafetensorError("I/O error: No space left on device (os error 28)"), "No space left on device"),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), None),
    ],
)
def test_errors_of_a_full_disk(error, reason):
    said = _why_not_written(error)
    assert reason in said if reason else said is None


# Another number of processes


def test_other_number_of_processes_with_another_batch(two_checkpoints, caplog):
    checkpoint = two_checkpoints / "checkpoint-4"
    run = read_manifest(checkpoint)["run"] | {"rows_per_step": 8}
    edit_manifest(checkpoint, processes=2, rows_per_step=8, run=run)
    with pytest.raises(ConsistencyError, match="`rows_per_step`: 8 there, 4 here"):
        resume_shorter(two_checkpoints)
    resume_shorter(two_checkpoints, "rows_per_step")
    assert "a step had 8 rows and has 4 now" in caplog.text


@pytest.mark.parametrize(("splits", "rows"), [(False, 24), (True, 12)])
def test_rows_of_a_step(splits, rows):
    """`split_batches` shares one batch out to the processes; DataParallel's batch of four is for all its devices."""
    args = SimpleNamespace(
        train_batch_size=4, gradient_accumulation_steps=3, accelerator_config=SimpleNamespace(split_batches=splits)
    )
    assert rows_per_step(SimpleNamespace(args=args, accelerator=SimpleNamespace(num_processes=2))) == rows


def test_rollouts_are_not_shared_out_anew(whole, tmp_path):
    shutil.copytree(whole("opct")[0] / "checkpoint-3", tmp_path / "checkpoint-3")
    edit_manifest(tmp_path / "checkpoint-3", processes=2)
    with pytest.raises(ConsistencyError, match="saved between two generations of rollouts"):
        make_trainer("opct", tmp_path).train(resume_from_checkpoint=True)
