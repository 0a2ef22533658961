"""Runs that are killed or told to end go on from their last whole checkpoint, as if nothing had happened."""

import functools
import hashlib
import multiprocessing
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from threading import Timer

import pytest
import torch
from accelerate import Accelerator
from transformers import TrainerCallback

from tests.helpers.interrupted_run import METHODS, STEPS, Send, last_step, make_trainer, stop_one_of_two, train
from tests.helpers.models import make_config, make_model, make_pairs, make_tokenizer
from tests.helpers.runs import weights
from trl_consistency import ConsistencyError, ConsistencyTrainer
from trl_consistency.folder_lock import LOCK
from trl_consistency.trainer.run import run_lock
from trl_consistency.trainer.run.interruption import read_manifest


pytestmark = pytest.mark.long


ROOT = Path(__file__).parents[3]

slow = functools.partial(pytest.param, marks=pytest.mark.slow)


# SIGKILL


@pytest.fixture(scope="module")
def processes():
    """Processes that start with everything imported."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.helpers.interrupted_run"])
    first = context.Process()
    first.start()
    first.join()
    return context


def started(processes, method, directory):
    directory.mkdir(exist_ok=True)
    process = processes.Process(target=train, args=(method, str(directory)))
    process.start()
    return process


def check_finished(process, directory, expected):
    process.join(120)
    assert process.exitcode == 0
    assert torch.equal(torch.load(directory / "weights.pt"), expected)


@pytest.mark.parametrize("method", [slow("bct"), slow("act"), pytest.param("opct", marks=pytest.mark.long)])
def test_killed_and_resumed(processes, whole, tmp_path, method):
    """Around the time that a checkpoint is written."""
    generator, directory, expected = random.Random(method), tmp_path / "run", whole(method)[1]
    step = generator.randrange(3, STEPS)
    process = started(processes, method, directory)
    while not (directory / f"checkpoint-{step}").exists() and process.is_alive():
        time.sleep(0.001)
    time.sleep(generator.uniform(0, 0.05))
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert last_step(directory) >= step - 1
    check_finished(started(processes, method, directory), directory, expected)


@pytest.mark.slow
def test_twenty_kills(processes, whole, tmp_path):
    """Twenty or more: each method is to be killed between its first step and its last, which a busy machine may delay."""
    generator, reached = random.Random(0), {method: [] for method in METHODS}
    runs = 0

    def were_killed_on_their_way():
        return all(any(0 < step < STEPS for step in steps) for steps in reached.values())

    for number in range(60):
        if number >= 20 and were_killed_on_their_way():
            break
        method = METHODS[number % len(METHODS)]
        _, expected, duration = whole(method)
        directory = tmp_path / method
        while True:
            process = started(processes, method, directory)
            process.join(generator.uniform(0, 1) * duration)
            if process.is_alive():
                break
            check_finished(process, directory, expected)
            shutil.rmtree(directory)
            reached[method].append(0)
            runs += 1
        process.kill()
        process.join()
        reached[method].append(last_step(directory))
        assert reached[method][-1] >= max(reached[method][-2:]), "a checkpoint that was whole is gone"
    for method in METHODS:
        check_finished(started(processes, method, tmp_path / method), tmp_path / method, whole(method)[1])
    print(f"Kills in {runs + len(METHODS)} runs, each after the checkpoint of the step (0: a new run): {reached}")
    assert were_killed_on_their_way()


# SIGTERM, Ctrl-C


@pytest.mark.parametrize(
    ("method", "number"),
    [slow("bct", signal.SIGTERM), ("act", signal.SIGINT), ("opct", signal.SIGTERM)],
)
def test_signal_ends_the_run_with_a_checkpoint(whole, tmp_path, caplog, capfd, method, number):
    handler = signal.getsignal(number)
    trainer = make_trainer(method, tmp_path, save_strategy="no")
    trainer.add_callback(Send(number, step=5))
    with pytest.raises(SystemExit) as end:
        trainer.train()
    assert end.value.code == 128 + number
    assert signal.getsignal(number) is handler
    assert [path.name for path in tmp_path.glob("checkpoint-*")] == ["checkpoint-5"]
    assert f"{number.name}: this step is finished" in capfd.readouterr().err
    assert "Stopped after step 5 of 12" in caplog.text
    assert "--resume_from_checkpoint true" in caplog.text
    resumed = make_trainer(method, tmp_path, save_strategy="no")
    resumed.train(resume_from_checkpoint=True)
    assert torch.equal(weights(resumed.model), whole(method)[1])


def test_signal_to_one_of_two_processes_ends_both(processes, tmp_path, caplog):
    with socket.socket() as found:
        found.bind(("", 0))
        port = found.getsockname()[1]
    both = [processes.Process(target=stop_one_of_two, args=(rank, port, str(tmp_path))) for rank in range(2)]
    for process in both:
        process.start()
    for process in both:
        process.join(120)
    assert [process.exitcode for process in both] == [128 + signal.SIGTERM] * 2
    assert last_step(tmp_path) == 5
    manifest = read_manifest(tmp_path / "checkpoint-5")
    assert manifest["processes"] == 2
    assert {"rng_state_0.pth", "rng_state_1.pth"} < set(manifest["files"])
    make_trainer("act", tmp_path, max_steps=6).train(resume_from_checkpoint=True, resume_changed=["length"])
    assert caplog.text.count("was saved by 2 process(es) and is resumed by 1: the data go on where they were") == 1
    assert "random states (dropout, sampling) cannot go on" in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize("config", ["fsdp2", "zero2", "zero3"])
def test_signal_where_the_model_is_shared_out(tmp_path, model_dir, config):
    if config.startswith("zero") and find_spec("deepspeed") is None:
        pytest.skip("deepspeed is not installed")
    config = f"recipes/accelerate_configs/{config}.yaml"

    def launch(name, stops, resumes):
        options = f"--config_file {config} --num_processes 2 --mixed_precision no --main_process_port 0".split()
        script = ["-m", "tests.helpers.interrupted_run", str(tmp_path / name), str(model_dir), stops, resumes]
        return subprocess.run(
            [sys.executable, "-m", "accelerate.commands.launch", *options, *script],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=150,
        )

    whole = launch("whole", stops="no", resumes="no")
    assert whole.returncode == 0, whole.stderr[-4000:]
    assert "Stopped after step 3 of 6" in launch("run", stops="yes", resumes="no").stderr
    assert last_step(tmp_path / "run") == 3
    resumed = launch("run", stops="no", resumes="yes")
    assert resumed.returncode == 0, resumed.stderr[-4000:]
    whole, resumed = (torch.load(tmp_path / name / "weights.pt") for name in ("whole", "run"))
    assert torch.equal(whole, resumed)


def test_signal_saves_the_states_beside_save_only_model(whole, tmp_path):
    """The checkpoint that one is told to resume held only the model, and was refused."""
    trainer = make_trainer("act", tmp_path, save_only_model=True)
    trainer.add_callback(Send(signal.SIGTERM, step=5))
    with pytest.raises(SystemExit):
        trainer.train()
    assert trainer.args.save_only_model
    resumed = make_trainer("act", tmp_path, save_only_model=True)
    resumed.train(resume_from_checkpoint=True)
    assert torch.equal(weights(resumed.model), whole("act")[1])
    assert not list(tmp_path.glob(f"checkpoint-{STEPS}/optimizer.pt"))


def test_second_ctrl_c_ends_at_once(tmp_path):
    trainer = make_trainer("act", tmp_path)
    trainer.add_callback(Send(signal.SIGINT, step=1, times=2))
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    assert not list(tmp_path.glob("checkpoint-*"))


def test_signal_after_the_last_step_is_not_lost(tmp_path):
    class AtEnd(TrainerCallback):
        def on_train_end(self, args, state, control, **kwargs):
            os.kill(os.getpid(), signal.SIGINT)

    trainer = make_trainer("act", tmp_path, max_steps=1)
    trainer.add_callback(AtEnd())
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    assert last_step(tmp_path) == 1


def test_said_at_once_though_a_computation_goes_on(tmp_path, capfd):
    """Python's handler waits until the main thread's call returns."""

    class Compute(TrainerCallback):
        def on_pre_optimizer_step(self, args, state, control, **kwargs):
            if state.global_step == 0:
                Timer(0.1, os.kill, (os.getpid(), signal.SIGTERM)).start()
                Timer(0.3, lambda: said.append(capfd.readouterr().err)).start()
                start = time.monotonic()
                hashlib.pbkdf2_hmac("sha256", b"", b"", 8_000_000)  # one call, without the interpreter's lock
                took.append(time.monotonic() - start)

    said, took = [], []
    trainer = make_trainer("act", tmp_path)
    trainer.add_callback(Compute())
    with pytest.raises(SystemExit):
        trainer.train()
    assert took[0] > 0.35, "the computation was too short to tell"
    assert said[0].count("SIGTERM: this step is finished and saved first") == 1


def test_signal_that_is_ignored_stays_so(tmp_path):
    """Ctrl-C is not meant for what a shell runs in the background."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        trainer = make_trainer("act", tmp_path, max_steps=2)
        trainer.add_callback(Send(signal.SIGINT, step=1))
        trainer.train()
        assert trainer.state.global_step == 2
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(("step", "chooses", "is_told"), [(2, True, True), (2, False, False), (1, True, False)])
def test_evaluation_that_is_due_is_left_out(tmp_path, monkeypatch, caplog, step, chooses, is_told):
    """The resumed run does not make up for it. So it is said where the best step is chosen."""
    evaluating = {"eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 2}
    args = make_config(tmp_path, method="act", max_steps=4, load_best_model_at_end=chooses, **evaluating)
    pairs = {"train_dataset": make_pairs(24), "eval_dataset": make_pairs(2)}
    trainer = ConsistencyTrainer(make_model(), args, **pairs, processing_class=make_tokenizer())
    monkeypatch.setattr(trainer, "evaluate", lambda **_: pytest.fail("evaluated before it was saved"))
    trainer.add_callback(Send(signal.SIGTERM, step=step))
    with pytest.raises(SystemExit):
        trainer.train()
    assert ("`load_best_model_at_end` cannot choose this step" in caplog.text) == is_told


def test_training_in_a_thread(tmp_path):
    """Where signals cannot be listened to."""
    trainer = make_trainer("act", tmp_path, max_steps=1)
    with ThreadPoolExecutor() as pool:
        pool.submit(trainer.train).result()
    assert trainer.state.global_step == 1


# Two in one folder


def test_second_training_in_a_folder(processes, tmp_path):
    """It is refused, names the first, and leaves it alone; what a killed one leaves behind is in nobody's way."""
    directory = tmp_path / "run"
    first = started(processes, "act", directory)
    while not last_step(directory):
        time.sleep(0.001)
    os.kill(first.pid, signal.SIGSTOP)
    try:
        with pytest.raises(ConsistencyError, match=rf"is in use: process {first.pid} on .* trains there"):
            make_trainer("act", directory).train()
    finally:
        first.kill()
    first.join()
    assert (directory / LOCK).exists()
    make_trainer("act", directory).train(resume_from_checkpoint=True)
    assert last_step(directory) == STEPS


SAVES = """
import sys
import torch
from safetensors.torch import save_file

weights = {"weight": torch.zeros(20_000_000)}
while True:
    save_file(weights, sys.argv[1] + "/model.safetensors")
"""


def test_what_a_killed_save_left_is_removed(tmp_path):
    """`safetensors` writes to a temporary file of its own beside the weights, which `push_to_hub` would send."""
    directory = tmp_path / "run"
    directory.mkdir()
    process = subprocess.Popen([sys.executable, "-c", SAVES, str(directory)])
    left, end = [], time.monotonic() + 60
    try:
        while not left and time.monotonic() < end:
            if any(path.name != "model.safetensors" for path in directory.iterdir()):
                process.send_signal(signal.SIGSTOP)
                time.sleep(0.01)
                left = [path for path in directory.iterdir() if path.name != "model.safetensors"]
                process.send_signal(signal.SIGCONT if not left else signal.SIGKILL)
    finally:
        process.kill()
        process.wait()
    if not left:
        pytest.skip("this version of safetensors writes to the file itself")
    (directory / "model.safetensors").unlink(missing_ok=True)
    for name in (".tmp", ".tmp_notes"):
        (directory / name).write_text("a user's own")
    make_trainer("act", directory, max_steps=1).train()
    assert {path.name for path in directory.iterdir() if path.is_file()} == {".tmp", ".tmp_notes", "README.md"}


def test_weights_that_another_process_may_be_writing_are_left(tmp_path, monkeypatch):
    """Where the file system has no locks."""
    monkeypatch.setattr(run_lock, "acquire", lambda folder, activity: None)
    (tmp_path / ".tmpAbC123").write_text("weights")
    with run_lock.command_lock(tmp_path, Accelerator(cpu=True)):
        assert (tmp_path / ".tmpAbC123").exists()
