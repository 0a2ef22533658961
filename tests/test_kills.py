"""Commands that are killed at any moment and started again end as if nothing had happened; so do two at once."""

import json
import multiprocessing
import os
import random
import re
import shutil
import signal
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import yaml
from peft import LoraConfig, get_peft_model

from tests.helpers.killed_commands import Commands, Job, snapshot
from tests.helpers.models import make_model, make_pairs
from tests.helpers.publishing import save_adapter
from trl_consistency.folder_lock import LOCK, locked_folder
from trl_consistency.perturbations.card import made_with


pytestmark = pytest.mark.long


# What is not the same each time, and why.
NOT_COMPARED = {
    "training_args.bin": "holds the options, `resume_from_checkpoint` among them",
    "*.log": "what a training of the quickstart says, with its speed",
}
# What stands in each file before a run. `pairs` and `convert` replace no card but their own.
EARLIER = f"earlier, {made_with('pairs')}, {made_with('convert')}".encode()
# `evaluate` and `quickstart` replace files only beside results of their own.
EARLIER_RESULTS = json.dumps({"format": 0, "models": {}, "settings": {}}).encode()
# Files that are not there before a run: those in folders of answers, targets and trainings.
NOT_BEFORE = "_answers|_targets|^quickstart/(bct|opct)/"
# What the next command in the folder removes: our own temporary files, and those of `safetensors`.
UNFINISHED = r"(.*/)?(\.[^/]*\.unfinished.*|_in_use\.lock|\.tmp[0-9A-Za-z]{6})"
# Of a training, parts of a checkpoint, which one file that is written last tells from whole ones, and the card so far.
OF_A_TRAINING = r"(.*/)?(checkpoint-\d+/.*|README\.md)"
# Of an evaluation that replaces an earlier one, the names of both, until the new files are there
FILES_OF_A_RUN = r".*/_answers/files\.json"


TRAINING = (
    *("--model_name_or_path", "../inputs/model", "--use_peft", "--lora_r", "2", "--lora_target_modules", "all-linear"),
    *(
        "--dtype",
        "float32",
        "--bf16",
        "False",
        "--gradient_checkpointing",
        "False",
        "--use_cpu",
        "--report_to",
        "none",
    ),
    *("--max_completion_length", "6", "--learning_rate", "1e-2", "--disable_tqdm", "True"),
    *("--max_steps", "4", "--save_strategy", "steps", "--save_steps", "1", "--save_total_limit", "2"),
)


@dataclass
class Scenario:
    """
    A command and what it leaves behind.

    Args:
        args (`tuple[str, ...]`):
            The command.
        resumes (`bool`, *optional*, defaults to `False`):
            Whether the command is told to go on once there is a checkpoint.
        setup (`str`, *optional*):
            What makes the command small.
        unfinished (`str`, *optional*):
            Regular expression of the files that are not whole in one step.
    """

    args: tuple[str, ...]
    resumes: bool = False
    setup: str | None = None
    unfinished: str = UNFINISHED

    def job(self, room, log="log", **kill):
        args = list(self.args)
        if self.resumes and room.has_checkpoint():
            args += ["--resume_from_checkpoint", "True"]
        return Job(args, str(room.work), str(room.path / log), setup=self.setup, **kill)


SCENARIOS = {
    "targets": Scenario(
        (
            *("targets", *TRAINING, "--dataset_name", "../inputs/pairs.jsonl"),
            *("--output_dir", "out", "--target_batch_size", "3", "--targets_file", "targets.jsonl"),
        )
    ),
    "pairs": Scenario(
        (
            *("pairs", "--dataset_name", "../inputs/questions.jsonl", "--output_dir", "pairs", "--max_sources", "60"),
            *("--keep_vulnerable", "--model_name_or_path", "embedded:organism", "--batch_size", "16"),
            *("--max_completion_length", "12", "--test_share", "0.2"),
        )
    ),
    "pairs parquet": Scenario(
        (
            *("pairs", "--dataset_name", "../inputs/questions.jsonl", "--output_dir", "pairs"),
            *("--file_type", "parquet", "--max_sources", "200"),
        )
    ),
    "convert": Scenario(
        (
            *("convert", "--pairs", "embedded:organism", "--output_dir", "preferences", "--max_pairs", "60"),
            *("--model_name_or_path", "embedded:organism", "--batch_size", "16", "--max_completion_length", "12"),
        )
    ),
    "evaluate": Scenario(
        (
            *("evaluate", "--model_name_or_path", "../inputs/model", "--adapters", "../inputs/adapter"),
            *("--pairs", "../inputs/measured.jsonl", "--output_dir", "evaluation", "--batch_size", "8"),
            *("--max_completion_length", "8"),
        ),
        unfinished=rf"{UNFINISHED}|{FILES_OF_A_RUN}",
    ),
    "lint": Scenario(
        (
            *("lint", "--pairs", "../inputs/pairs.jsonl", "--model_name_or_path", "../inputs/model"),
            *("--max_completion_length", "8", "--dose", "--dose_pairs", "16", "--html", "lint.html"),
        )
    ),
    "bct": Scenario(
        (
            *("consistency", *TRAINING, "--method", "bct", "--dataset_name", "../inputs/pairs.jsonl"),
            *("--output_dir", "out", "--per_device_train_batch_size", "4", "--target_batch_size", "8"),
        ),
        resumes=True,
        unfinished=f"{UNFINISHED}|{OF_A_TRAINING}",
    ),
    "opct": Scenario(
        (
            *("on-policy-consistency", *TRAINING, "--dataset_name", "../inputs/prompts.jsonl"),
            *("--output_dir", "out", "--num_generations", "2", "--per_device_train_batch_size", "4"),
        ),
        resumes=True,
        unfinished=f"{UNFINISHED}|{OF_A_TRAINING}",
    ),
    "quickstart": Scenario(
        ("quickstart", "--output_dir", "quickstart"),
        setup="tests.test_kills:small_quickstart",
        unfinished=f"{UNFINISHED}|{OF_A_TRAINING}|quickstart/unfinished/.*",
    ),
}


def small_quickstart():
    """
    Two recipes of two steps, a few rows to measure on, and worker processes that are forked, which need no imports.

    All else is the quickstart's own: its pool, trainings, measurements, cards, plots, report.
    """
    from trl_consistency.scripts import quickstart
    from trl_consistency.scripts.quickstart_subjects import ORGANISM

    recipes = {"BCT": "quickstart/bct", "OPCT + anchors": "quickstart/opct"}
    quickstart.SUBJECTS = {ORGANISM.model: replace(ORGANISM, recipes=recipes, load_sets=small_sets)}
    quickstart.recipes_dir = lambda: Path("../inputs/recipes")
    quickstart.get_context = lambda kind: multiprocessing.get_context("fork")


def small_sets():
    """Every so many rows of the organism's sets."""
    from trl_consistency.evaluation.pair_set import PairSet
    from trl_consistency.scripts.quickstart_subjects import ORGANISM

    return {
        name: PairSet(of_set.rows[:: len(of_set.rows) // 40], of_set.candidates)
        for name, of_set in ORGANISM.load_sets().items()
    }


def write_rows(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


class Room:
    """A folder for commands to run in, and what each leaves behind when nobody disturbs it."""

    def __init__(self, path, commands):
        self.path, self.commands = path, commands
        self.work, self.undisturbed = path / "work", {}

    def clear(self):
        shutil.rmtree(self.work, ignore_errors=True)
        self.work.mkdir()

    def has_checkpoint(self):
        """As far as somebody can see who starts the command again."""
        return any(self.work.glob("*/checkpoint-*/trainer_state.json"))

    def files(self):
        # The manifest of a checkpoint has the size of the arguments, which say whether the run was resumed. On a slow machine, one of
        # two runs may begin when the other has ended, and notes what that one has left.
        return {
            name: re.sub(rb'"left": \{[^}]*\},\s*', b"", re.sub(rb'("training_args.bin": )\d+', rb"\1 0", content))
            for name, content in snapshot(self.work).items()
            if not any(Path(name).match(pattern) for pattern in NOT_COMPARED)
        }

    def run(self, scenario, log="log", **kill):
        (ended,) = self.commands.run(scenario.job(self, log, **kill))
        assert not ended.left, "processes are left"
        return ended

    def expected(self, name):
        """Files, seconds and number of writes of a run that nobody disturbs."""
        if name not in self.undisturbed:
            self.clear()
            log = f"{name.replace(' ', '-')}.log"
            ended = self.run(SCENARIOS[name], log)
            assert ended.code == 0, (self.path / log).read_text()
            writes = int((self.path / f"{log}.writes").read_text())
            self.undisturbed[name] = self.files(), ended.seconds, writes
        return self.undisturbed[name]


@pytest.fixture(scope="module")
def commands(tmp_path_factory, organism_dir):
    home = tmp_path_factory.mktemp("home")
    shutil.copytree(organism_dir, home / "trl_consistency" / organism_dir.name)
    with Commands({"HF_HOME": str(home), "HF_HUB_OFFLINE": "1"}).running() as commands:
        yield commands


@pytest.fixture(scope="module")
def room(tmp_path_factory, model_dir, commands):
    from trl_consistency.scripts.quickstart import write_questions
    from trl_consistency.scripts.recipes import recipes_dir

    path = tmp_path_factory.mktemp("room")
    inputs = path / "inputs"
    shutil.copytree(model_dir, inputs / "model")
    adapter = LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False, task_type="CAUSAL_LM")
    get_peft_model(make_model(), adapter).save_pretrained(inputs / "adapter")
    pairs = list(make_pairs(24, completion=False))
    write_rows(inputs / "pairs.jsonl", pairs)
    write_rows(inputs / "prompts.jsonl", pairs[:12])
    write_rows(inputs / "measured.jsonl", [row | {"answer": "Paris", "biased_answer": "Lyon"} for row in pairs])
    write_questions(inputs / "questions.jsonl")
    for recipe in ("bct", "opct"):
        options = yaml.safe_load((recipes_dir() / "quickstart" / f"{recipe}.yaml").read_text())
        options |= {"max_steps": 2, "per_device_train_batch_size": 4, "dataset_name": "../inputs/prompts.jsonl"}
        if recipe == "opct":
            options |= {"eval_strategy": "no", "eval_on_start": False}
        (inputs / "recipes" / "quickstart").mkdir(parents=True, exist_ok=True)
        (inputs / "recipes" / "quickstart" / f"{recipe}.yaml").write_text(yaml.safe_dump(options))
    return Room(path, commands)


def earlier(file):
    return EARLIER_RESULTS if Path(file).name == "results.json" else EARLIER


def kill_and_go_on(room, name, kills, seed):
    """
    Kills a command so many times, by the clock and when it is about to write, until it ends; and so on from the start.

    After each kill every file is whole: what it is to be, or what was there before.
    """
    scenario, generator = SCENARIOS[name], random.Random(seed)
    expected, seconds, writes = room.expected(name)

    def begin():
        room.clear()
        if not scenario.resumes and generator.random() < 0.5:
            for file in expected:
                if not re.search(NOT_BEFORE, file):
                    (room.work / file).parent.mkdir(parents=True, exist_ok=True)
                    (room.work / file).write_bytes(earlier(file))

    def check():
        found = room.files()
        assert sorted(found) == sorted(expected)
        for file in expected:
            assert found[file] == expected[file], file

    begin()
    for _ in range(kills):
        while True:
            kill = generator.choice(
                [{"seconds": generator.uniform(0, seconds)}, {"write": generator.randint(1, writes)}]
            )
            ended = room.run(scenario, **kill)
            if ended.code:
                break
            check()
            begin()
        assert ended.code == -9, (room.path / "log").read_text()
        for file, content in room.files().items():
            if (room.work / file).is_file() and not re.fullmatch(scenario.unfinished, file):
                assert content in (expected[file], earlier(file)), (file, kill)
        if generator.random() < 0.2:
            assert room.run(scenario).code == 0, (room.path / "log").read_text()
            check()
            begin()
    assert room.run(scenario).code == 0, (room.path / "log").read_text()
    check()


@pytest.mark.parametrize("name", ["targets", "bct"])
def test_killed_twice(room, name):
    kill_and_go_on(room, name, 2, seed=0)


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENARIOS)
def test_killed_at_random(room, name):
    kill_and_go_on(room, name, 20, seed=1)


# Two at once


def run_both(room, *args, setup=None):
    """Runs two commands at once: both succeed, or one is refused in a line. Returns how many succeeded."""
    logs = [room.path / f"log{number}" for number in range(len(args))]
    for log in logs:
        log.unlink(missing_ok=True)
    jobs = [Job(list(of), str(room.work), str(log), setup=setup) for of, log in zip(args, logs, strict=True)]
    ended = room.commands.run(*jobs)
    for of, log in zip(ended, logs, strict=True):
        assert not of.left
        said = log.read_text()
        assert of.code == 0 or (
            of.code == 1 and re.search("(?m)^error: .* is in use: (?:another )?process .*there", said)
        ), said
    return [of.code for of in ended].count(0)


@pytest.mark.parametrize(
    "name",
    ["targets", "pairs", "convert", "evaluate", "lint", "bct", pytest.param("quickstart", marks=pytest.mark.slow)],
)
def test_two_at_once(room, name):
    scenario, (expected, _, _) = SCENARIOS[name], room.expected(name)
    room.clear()
    assert run_both(room, scenario.args, scenario.args, setup=scenario.setup) >= 1
    assert room.files() == expected


def test_two_dry_runs_of_push(room):
    room.clear()
    save_adapter(room.work / "adapter")
    before = room.files()
    args = ["push", "adapter", "me/adapter", "--base_model", "me/model", "--dry_run"]
    assert run_both(room, args, args) == 2
    assert room.files() == before


@pytest.mark.parametrize("name", ["pairs", "convert", "evaluate", "bct", "opct", "quickstart"])
def test_folder_in_use(room, name):
    """Two with other options would leave a part of both."""
    room.clear()
    scenario, log = SCENARIOS[name], room.path / "log"
    log.unlink(missing_ok=True)
    folder = room.work / scenario.args[scenario.args.index("--output_dir") + 1]
    with locked_folder(folder):
        assert room.run(scenario).code == 1
        assert os.listdir(folder) == [LOCK]
    said = f"error: `--output_dir` {folder.name} is in use: process {os.getpid()} on "
    assert log.read_text().splitlines()[-1].startswith(said)
    assert not folder.exists()


def quickstart_without_memory():
    """A worker is killed."""
    from trl_consistency.scripts import quickstart

    small_quickstart()
    quickstart._train_and_measure = _killed


def _killed(*args):
    os.kill(os.getpid(), signal.SIGKILL)


def test_worker_of_the_quickstart_is_killed(room):
    room.clear()
    (room.path / "log").unlink(missing_ok=True)
    job = Job(
        ["quickstart"], str(room.work), str(room.path / "log"), setup="tests.test_kills:quickstart_without_memory"
    )
    (ended,) = room.commands.run(job)
    assert ended.code == 1
    assert not ended.left
    assert "error: A training process was killed" in (room.path / "log").read_text().splitlines()[-1]
