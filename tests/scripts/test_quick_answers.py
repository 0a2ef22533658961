"""What is answered before torch is imported is what the parser of the imported classes would answer."""

import re
import subprocess
import sys
from importlib import import_module
from typing import Any

import pytest

from trl_consistency.cli import COMMANDS as MODULES
from trl_consistency.errors import ConsistencyError
from trl_consistency.evaluation import SUITES
from trl_consistency.perturbations import PERTURBATIONS
from trl_consistency.scripts import quick_answers as early
from trl_consistency.scripts.parser import StrictParser
from trl_consistency.scripts.quick_answers import COMMANDS, answer, command_options, help_text, source_check


class Caught(Exception):
    pass


@pytest.fixture
def real_parser(monkeypatch):
    """The parser that a command makes of the imported classes."""

    def catch(parser, args):
        raise Caught(parser)

    def make(command):
        with pytest.raises(Caught) as caught:
            import_module(MODULES[command][0]).run([])
        return caught.value.args[0]

    monkeypatch.setattr(StrictParser, "parse_args_and_config", catch)
    return make


@pytest.mark.parametrize("command", COMMANDS)
def test_sources_say_what_the_real_parser_says(command, real_parser):
    parser, check = real_parser(command), source_check(command, "prog")
    assert set(check.hints) == set(parser._hints)
    assert set(check.flags) == set(parser._option_string_actions)
    known = {name: hint for name, hint in check.hints.items() if hint is not Any}
    assert len(check.hints) - len(known) <= 16, (
        "enumerations and classes of transformers, and what two recipes differ in"
    )
    assert known == {name: parser._hints[name] for name in known}
    real_choices = {action.dest: action.choices for action in reversed(parser._actions)}
    for name, choices in check.choices.items():
        assert choices is None or choices == list(real_choices[name])
    for name, option in command_options(command).items():
        action = next(action for action in parser._actions if action.dest == name)
        if option.is_own and action.default is not None and (command, name) != ("lint", "max_completion_length"):
            assert option.default in (action.default, None), name
            assert option.default is not None or action.default == [], name


@pytest.mark.parametrize(("command", "first"), [("pairs", "Data"), ("evaluate", "Models and pairs")])
def test_help_begins_with_the_options_of_the_command_itself(command, first):
    """Those that it shares with others, here of the engine, come later."""
    titles = re.findall(r"^([A-Z][\w ]*):$", help_text(command, "prog", everything=False), re.MULTILINE)
    assert titles[0] == first
    assert "Engine" in titles


@pytest.mark.parametrize("command", COMMANDS)
def test_help_explains_own_options_on_two_screens(command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    short, whole = (help_text(command, "prog", everything) for everything in (False, True))
    assert len(short.splitlines()) <= 112
    if short != whole:
        assert "`--help_all`" in short
    explained = re.findall(r"^  --(\w+)", short, re.MULTILINE)
    own, inherited = short.partition("\nInherited options:")[::2]
    for name, option in command_options(command).items():
        assert option.help, f"{name} has no help"
        assert f"  --{name} " in whole or f"  --{name}\n" in whole
        if option.is_own:
            assert re.search(rf"\b{name}\b", own)
        else:
            assert f"  --{name}" not in short
    titles = re.findall(r"^(\S.*):$", whole, re.MULTILINE)
    assert titles
    assert not [title for title in titles if "`" in title]
    if "vllm_server_timeout" in explained:
        assert "\n  --engine " in short.partition("Engine:")[2]
    assert bool(inherited) == any(not option.is_own for option in command_options(command).values())
    if inherited:
        assert whole.index("Inherited from") > max(whole.index(f"  --{name}") for name in explained)


def test_help_names_what_registries_hold():
    listed = help_text("pairs", "prog", everything=False)
    assert all(re.search(rf"\b{entry.family}\b", listed) for entry in PERTURBATIONS.values())
    assert all(re.search(rf"\b{name}\b", listed) for name in PERTURBATIONS)
    assert all(re.search(rf"\b{name}\b", help_text("suites", "prog", everything=False)) for name in SUITES)


def test_modules_show_the_same_help(capsys):
    from trl_consistency.scripts.consistency import make_parser

    with pytest.raises(SystemExit) as end:
        make_parser(prog="prog").parse_args_and_config(["--help"])
    assert not end.value.code
    assert capsys.readouterr().out == help_text("consistency", "prog", everything=False)


# Arguments, the exit status and what is said.
QUICK = {
    "no command": (["--help"], 0, "COMMAND"),
    "version": (["--version"], 0, r"\d+\.\d+"),
    **{f"{command} --help": ([command, "--help"], 0, "usage: ") for command in MODULES},
    "help_all": (["lint", "--help_all"], 0, "--per_device_train_batch_size"),
    "unknown key": (["consistency", "--config", "bad.yaml"], 2, "unknown key in bad.yaml: `learning_rat`"),
    "unknown flag": (["evaluate", "--pair", "x"], 2, "unknown flag: `--pair`. Did you mean `--pairs`?"),
    "beginning of a flag": (["evaluate", "--model", "x"], 2, "`--model`. Did you mean `--model_name_or_path`?"),
    "several processes": (["targets", "--num_processes", "2", "--targets", "x"], 2, "unknown flag: `--targets`"),
    "other command's key": (
        ["on-policy-consistency", "--method", "bct"],
        2,
        "unknown flag: `--method`. It is an option of `trl-consistency consistency`.",
    ),
    "type": (["lint", "--config", "type.yaml"], 2, "type.yaml: `seed` must be a whole number, got 'x'."),
    "type of a flag": (["consistency", "--max_length", "abc"], 2, "`--max_length` must be a whole number"),
    "type after an equals sign": (["consistency", "--learning-rate=fast"], 2, "`--learning-rate` must be a number"),
    "type of the last flag": (
        ["evaluate", "--pairs", "x", "--seed", "1.5"],
        2,
        "`--seed` must be a whole number, got",
    ),
    "malformed": (["pairs", "--config", "broken.yaml"], 2, "broken.yaml is not valid YAML"),
    "no recipe": (["suites", "--config", "gone.yaml"], 2, "cannot read `--config` gone.yaml"),
    "no data": (["consistency", "--dataset_name", "gone.jsonl"], "error: There is no file gone.jsonl.", ""),
}
HEAVY = {"torch", "transformers", "trl", "datasets", "accelerate", "huggingface_hub"}


@pytest.mark.parametrize("case", QUICK)
def test_answers_import_nothing_heavy(case, tmp_path):
    args, status, said = QUICK[case]
    (tmp_path / "bad.yaml").write_text("learning_rat: 1e-3\n")
    (tmp_path / "type.yaml").write_text("seed: x\n")
    (tmp_path / "broken.yaml").write_text("seed: [1\n")
    code = (
        "import sys, time\nfrom trl_consistency.cli import main\n"
        f"try:\n    main({args!r})\nexcept SystemExit as end:\n    assert (end.code or 0) == {status!r}, end.code\n"
        f"else:\n    raise AssertionError('went on')\nassert not {HEAVY!r} & set(sys.modules)\n"
        "assert time.process_time() < 1.5\n"
    )
    end = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert end.returncode == 0, end.stderr
    assert re.search(said if case == "version" else re.escape(said), end.stdout + end.stderr)


@pytest.mark.parametrize(
    ("args", "missing"),
    [
        (["consistency", "--dataset_name", "gone.jsonl"], "gone.jsonl"),
        (["consistency", "--dataset-name=gone.jsonl"], "gone.jsonl"),
        (["consistency", "--anchor_dataset_name", "gone.csv", "--dataset_name", "here.jsonl"], "gone.csv"),
        (["consistency", "--config", "recipe.yaml"], "recipe.jsonl"),
        (["consistency", "--config", "recipe.yaml", "--dataset_name", "here.jsonl"], None),
        (["consistency", "--config", "mixture.yaml"], "part.jsonl"),
        (["consistency", "--config", "mixture.yaml", "--dataset_name", "gone.jsonl"], None),
        (["consistency", "--dataset_name", "someone/pairs"], None),
        (["targets", "--config", "recipe.yaml"], "recipe.jsonl"),
        (["lint", "--config", "recipe.yaml"], "recipe.jsonl"),
        (["lint", "--config", "recipe.yaml", "--pairs", "here.jsonl"], None),
        (["lint", "--config", "mixture.yaml", "--pairs", "gone.parquet"], "gone.parquet"),
        (["evaluate", "--pairs", "here.jsonl", "gone.json", "--output_dir", "out"], "gone.json"),
        (["evaluate", "--pairs"], None),
        (["pairs", "--dataset_name", "here.jsonl", "--perturbations_file", "mine.py"], "mine.py"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_missing_files(args, missing, tmp_path, monkeypatch):
    """Only what is certain is answered: whether files are there that the command would read."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here.jsonl").write_text("{}")
    (tmp_path / "recipe.yaml").write_text("dataset_name: recipe.jsonl\n")
    (tmp_path / "mixture.yaml").write_text(
        "datasets: [{path: here.jsonl}, {path: 'http://x/y.csv'}, {path: part.jsonl}]"
    )
    if missing is None:
        answer(args[0], args[1:], "prog")
        return
    with pytest.raises(ConsistencyError, match=f"here is no file {missing}"):
        answer(args[0], args[1:], "prog")


@pytest.mark.parametrize(
    "args",
    [
        ["--learning_rate", "1e-3", "--max_length=12", "--seed", "-3"],
        ["--max_length", "--seed", "1"],  # without a value, which argparse says
        ["--chat_template_kwargs", "abc", "--layers", "x"],  # of other types
    ],
)
def test_values_that_could_be_meant_are_left_to_the_real_parser(args):
    source_check("consistency", "prog").check(args)


def test_sources_that_cannot_be_read_leave_the_answer_to_the_real_parser(monkeypatch):
    def fail(class_name):
        raise LookupError(class_name)

    monkeypatch.setattr(early, "read_options", fail)
    answer("consistency", ["--help"], "prog")
    answer("consistency", ["--learning_rat", "1"], "prog")
