"""`--json`: one object on stdout and nothing else, from every command; and the exit statuses."""

import io
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.models import make_pairs
from tests.helpers.publishing import save_adapter
from trl_consistency.cli import COMMANDS
from trl_consistency.cli import main as cli
from trl_consistency.errors import ConsistencyError
from trl_consistency.scripts.json_output import one_object


ROOT = Path(__file__).parents[2]


def printed_object(capfd, *args, status=0):
    """Runs a command, and returns the object on stdout (of the process, not of Python alone), which holds nothing else."""
    capfd.readouterr()
    ended = 0
    try:
        cli([*map(str, args), "--json"])
    except SystemExit as end:
        ended = end.code or 0
    out, said = capfd.readouterr()
    assert ended == status, said[-4000:]
    (line,) = out.splitlines()
    return json.loads(line), said


def write_rows(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_it(command, capsys):
    with pytest.raises(SystemExit):
        cli([command, "--help"])
    assert re.search(r"^  --json\b", capsys.readouterr().out, re.MULTILINE)


def test_what_is_printed_goes_to_stderr(capfd):
    """By Python, by other processes, and by libraries that know only the descriptor."""
    with one_object(True) as found:
        print("of Python")
        os.write(1, b"of a library\n")
        subprocess.run([sys.executable, "-c", "print('of a process')"], check=True)
        found["rate"] = 0.5
    print("later")
    out, said = capfd.readouterr()
    assert out == '{"rate": 0.5}\nlater\n'
    assert {"of Python", "of a library", "of a process"} <= set(said.splitlines())


def test_any_text_is_on_one_line_of_any_stdout(monkeypatch):
    """A stdout that is not UTF-8 ended the command with a traceback, after all its work."""
    text, written = "café\u2028Ωmega", io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="latin-1"))
    with one_object(True) as found:
        found["text"] = text
    (line,) = written.getvalue().decode("latin-1").splitlines()
    assert json.loads(line) == {"text": text}


def test_without_it_nothing_changes(capfd):
    with one_object(False) as found:
        print("text")
        found["rate"] = 0.5
    assert capfd.readouterr() == ("text\n", "")


def test_a_failure_prints_no_object(capfd):
    with pytest.raises(TypeError), one_object(True) as found:
        found["rate"] = 1 + "1"
    print("after")
    assert capfd.readouterr().out == "after\n"


@pytest.mark.long
@pytest.mark.parametrize("command", ["consistency", "on-policy-consistency"])
def test_training(command, recipe, tmp_path, capfd):
    found, said = printed_object(
        capfd, command, "--config", recipe, "--output_dir", tmp_path / "out", "--temperature", 1
    )
    assert found["output_dir"] == str(tmp_path / "out")
    assert (found["steps"], found["max_steps"], found["kept_step"]) == (2, 2, 2)
    assert (found["stopped"], found["url"]) == (None, None)
    assert found["train"]["train_loss"] > 0
    assert found["train"]["step"] == 2
    assert f"Model saved to {tmp_path}/out" in said


def test_the_step_that_is_kept(recipe, tmp_path, capfd):
    """The object had the steps and the evaluation of the last one alone, beside a folder with the weights of the best one."""
    for split in ("train", "test"):
        make_pairs(8).to_json(tmp_path / "data" / f"{split}.jsonl")
    options = {"dataset_name": tmp_path / "data", "output_dir": tmp_path / "out", "load_best_model_at_end": True}
    options |= {"eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1}
    options |= {"metric_for_best_model": "loss", "greater_is_better": True}  # as after the first step
    flags = [part for name, value in options.items() for part in (f"--{name}", value)]
    found, _ = printed_object(capfd, "consistency", "--config", recipe, *flags)
    assert (found["steps"], found["evaluation"]["step"], found["kept_step"]) == (2, 2, 1)


def test_a_run_that_had_ended_has_no_loss(recipe, tmp_path, capfd):
    """It was 0, as of a perfect model."""
    options = ["--config", recipe, "--output_dir", tmp_path / "out", "--save_strategy", "steps", "--save_steps", 2]
    printed_object(capfd, "consistency", *options)
    found, _ = printed_object(
        capfd, "consistency", *options, "--resume_from_checkpoint", tmp_path / "out/checkpoint-2"
    )
    assert found["steps"] == 2
    assert "train_loss" not in found["train"]


def test_targets(recipe, tmp_path, capfd):
    file = tmp_path / "targets.jsonl"
    found, _ = printed_object(
        capfd, "targets", "--config", recipe, "--output_dir", tmp_path / "out", "--targets_file", file
    )
    assert found == {"targets_file": str(file), "pairs": 16, "left_out": 0}


def test_pairs(tmp_path, capfd):
    questions = [{"question": f"What is {number}?", "answer": str(number), "wrong": "0"} for number in range(1, 12)]
    source = write_rows(tmp_path / "questions.jsonl", [*questions, {"question": "", "answer": "1", "wrong": "2"}])
    out = tmp_path / "pairs"
    options = ["--output_dir", out, "--wrong_answer_column", "wrong", "--faulty_rows", "drop", "--test_share", "0.3"]
    found, _ = printed_object(capfd, "pairs", "--dataset_name", source, *options)
    for of_split in found["files"].values():
        assert len(Path(of_split["file"]).read_text().splitlines()) == of_split["pairs"]
    assert set(found["files"]) == {"train", "test", "test_wordings"}
    assert found["left_out"][0] == "1 faulty row(s)"
    assert "json" not in (out / "README.md").read_text().replace("jsonl", ""), "no option of the pairs"


def test_convert(tmp_path, capfd):
    rows = [
        {"clean_prompt": f"{n}?", "perturbed_prompt": f"I say 0. {n}?", "completion": text}
        for n, text in enumerate("ab")
    ]
    source = write_rows(tmp_path / "pairs.jsonl", rows)
    found, _ = printed_object(
        capfd, "convert", "--pairs", source, "--to", "sft", "--output_dir", tmp_path / "converted"
    )
    (of_split,) = found["splits"].values()
    assert len(Path(of_split["file"]).read_text().splitlines()) == of_split["rows"] == 2
    assert of_split["left_out"] == {}


def test_lint(tmp_path, capfd, model_dir):
    rows = [
        {"clean_prompt": "same", "perturbed_prompt": "same"},
        {"clean_prompt": "one", "perturbed_prompt": "I say two. one"},
    ]
    source = write_rows(tmp_path / "pairs.jsonl", rows)
    options = ("lint", "--pairs", source, "--model_name_or_path", model_dir)
    found, _ = printed_object(capfd, *options)
    assert found["rows"] == 2
    assert printed_object(capfd, *options, "--strict", status=1)[0] == found


def test_evaluate(tmp_path, capfd, model_dir):
    pairs = make_pairs(4, completion=False).map(lambda row: {"answer": "Paris", "biased_answer": "Rome"})
    pairs.to_json(tmp_path / "pairs.jsonl")
    options = ["--pairs", tmp_path / "pairs.jsonl", "--output_dir", tmp_path / "out", "--max_completion_length", 4]
    found, said = printed_object(capfd, "evaluate", "--model_name_or_path", model_dir, *options)
    assert found == json.loads((tmp_path / "out" / "results.json").read_text())
    assert f"{tmp_path}/out/results.json" in said


def test_push(tmp_path, capfd, hub):
    folder = save_adapter(tmp_path / "adapter")
    plan, _ = printed_object(capfd, "push", folder, "user/name", "--base_model", "user/base", "--dry_run")
    assert plan["url"] is None
    assert plan["sent"]["adapter_model.safetensors"] == (folder / "adapter_model.safetensors").stat().st_size
    found, _ = printed_object(capfd, "push", folder, "user/name", "--base_model", "user/base")
    assert found["url"].endswith("/user/name")
    assert set(found["sent"]) == set(plan["sent"])


def test_questions_of_the_quickstart(tmp_path, capfd, monkeypatch):
    from trl_consistency.scripts import quickstart

    monkeypatch.setattr(quickstart, "write_questions", lambda path, subject: 7)
    found, _ = printed_object(capfd, "quickstart", "--questions_file", tmp_path / "questions.jsonl")
    assert found == {"questions_file": str(tmp_path / "questions.jsonl"), "questions": 7}


def test_quickstart(tmp_path, capfd, monkeypatch):
    """Its own test runs it; here, what it leaves is printed."""
    from trl_consistency.scripts import quickstart

    def write(output_dir, seeds, subject):
        print("tables")
        (output_dir / "results.json").write_text('{"format": 3, "models": {}}\n')

    monkeypatch.setattr(quickstart, "quickstart", write)
    found, said = printed_object(capfd, "quickstart", "--output_dir", tmp_path / "out")
    assert found == {"output_dir": str(tmp_path / "out"), "format": 3, "models": {}}
    assert "tables" in said


def test_doctor(capfd):
    found, _ = printed_object(capfd, "doctor")
    assert set(found["libraries"]) >= {"torch", "trl"}


# Arguments, and the status that docs/commands.md gives them.
STATUSES = {
    "a command that does not exist": (["trane"], 2),
    "an unknown option": (["evaluate", "--pear", "x"], 2),
    "an unknown option of push": (["push", "a", "b", "--pear"], 2),
    "a value of the wrong type": (["pairs", "--seed", "x"], 2),
    "a perturbation that does not exist": (
        ["pairs", "--dataset_name", "embedded:organism", "--output_dir", "out", "--perturbations", "typo"],
        1,
    ),
    "faulty data": (["evaluate", "--pairs", "gone.jsonl", "--json"], 1),
    "no folder": (["push", "gone", "user/name", "--json"], 1),
}


@pytest.mark.parametrize("case", STATUSES)
def test_statuses(case, tmp_path, monkeypatch, capfd):
    arguments, status = STATUSES[case]
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as end:
        cli(arguments)
    out, said = capfd.readouterr()
    # A text as the code of `SystemExit` is printed, and the status is 1.
    assert (1 if isinstance(end.value.code, str) else end.value.code) == status
    assert out == ""
    assert "error:" in said + str(end.value.code)


def test_a_missing_package_is_an_error_like_others(tmp_path, monkeypatch):
    from trl_consistency.scripts import quickstart

    monkeypatch.setattr(quickstart, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match="error: `quickstart` needs the packages `matplotlib` and `scipy`"):
        cli(["quickstart", "--output_dir", str(tmp_path / "out")])


def test_ctrl_c_ends_with_its_status(monkeypatch, capsys):
    from trl_consistency.scripts import doctor

    def interrupted(*args, **kwargs):
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(doctor, "examine", interrupted)
    with pytest.raises(SystemExit) as end:
        cli(["doctor"])
    assert end.value.code == 130
    assert "Interrupted" in capsys.readouterr().err


def _no_reader():
    reading, writing = os.pipe()
    os.close(reading)
    return writing


@pytest.mark.long
@pytest.mark.parametrize("flags", [[], ["--json"]])
@pytest.mark.parametrize(
    ("place", "reason"),
    [
        (_no_reader, "Broken pipe"),
        pytest.param(
            lambda: os.open("/dev/full", os.O_WRONLY),
            "No space left on device",
            marks=pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a full device is simulated by one"),
        ),
    ],
)
def test_output_that_cannot_be_printed(tmp_path, place, reason, flags):
    """What reads it may have ended (`| head`)."""
    questions = write_rows(tmp_path / "q.jsonl", [{"question": "Who?", "answer": "Ada", "wrong_answer": "Alan"}])
    command = [sys.executable, "-m", "trl_consistency.cli", "pairs", "--dataset_name", questions, *flags]
    stdout = place()
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    ended = subprocess.run(
        [*command, "--output_dir", tmp_path / "out"],
        cwd=ROOT,
        stdout=stdout,
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
    )
    os.close(stdout)
    assert ended.returncode == 1
    *_, last = ended.stderr.splitlines()
    assert last.startswith(f"error: stdout cannot be written to ({reason})")
    assert "Traceback" not in ended.stderr


def test_json_without_a_stdout(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    with pytest.raises(ConsistencyError, match="`json`: stdout is closed"), one_object(True):
        pass
