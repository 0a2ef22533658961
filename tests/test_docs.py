"""Every command and snippet of the README, AGENTS.md and the docs is run."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from runpy import run_module

import pytest
from accelerate.commands.launch import launch_command_parser
from datasets import DatasetDict
from huggingface_hub import constants
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from tests.helpers.commands import launched
from tests.helpers.judge_server import completion, judge_server
from tests.helpers.models import make_pairs
from tests.helpers.publishing import save_adapter
from tests.recipes.shapes import SHAPES
from tests.recipes.table import OF_FOLDER
from tests.recipes.tiny import make_tiny
from trl_consistency.cli import COMMANDS as ALL_COMMANDS
from trl_consistency.cli import main as cli
from trl_consistency.data.lint import FINDINGS
from trl_consistency.evaluation.rates.measures import METRICS
from trl_consistency.perturbations import PERTURBATIONS
from trl_consistency.publishing import read_results


ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "AGENTS.md", *sorted((ROOT / "docs").glob("*.md"))]
# The commands of these pages are not run one by one but in their order, in one folder.
IN_SEQUENCE = [page for page in PAGES if "<!-- one after another" in page.read_text()]


def blocks(language):
    for page in PAGES:
        for number, block in enumerate(re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.DOTALL)):
            yield pytest.param(block, id=f"{page.stem}-{number}")


def commands_with_outputs(page):
    """Each command of a page, and what the page says that it prints (nothing but for the last one of a block)."""
    for block, output in re.findall(r"```bash\n(.*?)```(?:\n\n```text\n(.*?)```)?", page.read_text(), re.DOTALL):
        *lines, last = block.strip().splitlines()
        yield from ((line, "") for line in lines)
        yield last, output


COMMANDS = [
    pytest.param(line, id=line[:60])
    for block in blocks("bash")
    if not block.id.startswith(tuple(f"{page.stem}-" for page in IN_SEQUENCE))
    for line in block.values[0].splitlines()
    if line.strip()
]
PAIRS_COMMANDS = [command for command in COMMANDS if command.values[0].startswith("trl-consistency pairs ")]
PUSH_COMMANDS = [command for command in COMMANDS if command.values[0].startswith("trl-consistency push ")]
LINT_COMMANDS = [command for command in COMMANDS if command.values[0].startswith("trl-consistency lint ")]
CONVERT_COMMANDS = [command for command in COMMANDS if command.values[0].startswith("trl-consistency convert ")]
EVALUATE_COMMANDS = [command for command in COMMANDS if command.values[0].startswith("trl-consistency evaluate ")]
SUITES_COMMANDS = [command for command in COMMANDS if command.values[0].startswith("trl-consistency suites ")]
DOCTOR_COMMANDS = [command for command in COMMANDS if command.values[0].startswith("trl-consistency doctor")]
ESTIMATE_COMMANDS = [command for command in COMMANDS if command.values[0].startswith("trl-consistency estimate ")]
INSPECT_COMMANDS = [command for command in COMMANDS if command.values[0].startswith("inspect ")]
SUITES = SUITES_COMMANDS + INSPECT_COMMANDS
OF_THEIR_OWN = PAIRS_COMMANDS + PUSH_COMMANDS + LINT_COMMANDS + CONVERT_COMMANDS + EVALUATE_COMMANDS + SUITES
OF_THEIR_OWN += DOCTOR_COMMANDS + ESTIMATE_COMMANDS


@pytest.mark.parametrize("block", blocks("python"))
def test_python_snippets(block, tmp_path, monkeypatch, model_dir, own_registry):
    monkeypatch.chdir(tmp_path)
    make_pairs(2, completion=False).to_json("pairs.jsonl")
    # The tiny model in place of the real one, and few tokens: nothing else is changed.
    block = block.replace("Qwen/Qwen3-4B-Instruct-2507", str(model_dir))
    if "ConsistencyTrainer(" in block:
        options = 'max_completion_length=4, use_cpu=True, report_to="none"'
        block, found = re.subn(r"ConsistencyConfig\(", rf"\g<0>{options}, ", block)
        assert found
    exec(compile(block, "snippet", "exec"), {})


@pytest.mark.parametrize("block", blocks("json"))
def test_json_snippets_are_pairs(block, tmp_path):
    from datasets import load_dataset

    from trl_consistency.data.pairs import check_pairs

    (tmp_path / "pairs.jsonl").write_text(block)
    check_pairs(load_dataset("json", data_files=str(tmp_path / "pairs.jsonl"), split="train"))


@pytest.mark.parametrize("line", PAIRS_COMMANDS)
def test_pairs_commands(line, tmp_path, monkeypatch):
    """On the questions that docs/pairs.md shows, and a few requests."""
    from datasets import load_dataset

    from trl_consistency.data.pairs import check_pairs

    monkeypatch.chdir(tmp_path)
    questions = re.search(r"```json questions\n(.*?)```", (ROOT / "docs" / "pairs.md").read_text(), re.DOTALL)[1]
    Path("questions.jsonl").write_text(questions)
    Path("requests.csv").write_text("request,category\nHow do I pick a lock?,harmful\nHow do I sew?,benign\n")
    cli(shlex.split(line)[1:])
    check_pairs(load_dataset("pairs", split="train"))


@pytest.mark.parametrize("line", LINT_COMMANDS)
def test_lint_commands(line, tmp_path, monkeypatch, model_dir, organism_dir, capsys):
    for name in ("pairs.jsonl", "pairs/train.jsonl"):
        make_pairs(2, completion=False).to_json(tmp_path / name)
    words = shlex.split(line.replace("Qwen/Qwen3-4B-Instruct-2507", str(model_dir)))
    words = [str(ROOT / word) if word.startswith("recipes/") else word for word in words]
    monkeypatch.chdir(tmp_path)
    cli(words[1:])
    assert "anchors" in capsys.readouterr().out


@pytest.mark.parametrize("line", DOCTOR_COMMANDS)
def test_doctor_commands(line, capsys):
    with pytest.raises(SystemExit) as end:
        cli(shlex.split(line)[1:])
    assert end.value.code == 0
    assert "torch" in capsys.readouterr().out


@pytest.mark.long
@pytest.mark.parametrize("is_whole", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_estimate_commands(tmp_path, monkeypatch, capsys, is_whole):
    """
    The page shows what the last one prints. The others are run on two blocks of the model, which takes less time, and the last one looks for
    the largest batch only if `is_whole`.
    """
    monkeypatch.chdir(ROOT)
    name = "Qwen/Qwen3-4B-Instruct-2507"
    config = SHAPES[name][0]()
    config.save_pretrained(tmp_path / "whole")
    few = config.to_dict() | {"num_hidden_layers": 2, "layer_types": None}
    type(config)(**few).save_pretrained(tmp_path / "few")
    for line, shown in commands_with_outputs(ROOT / "docs" / "estimate.md"):
        folder = str(tmp_path / ("whole" if shown else "few"))
        words = shlex.split(line.replace(name, folder))
        looks = is_whole or not shown
        if not looks:
            del words[(place := words.index("--memory")) : place + 2]
            shown = re.sub(r"largest batch .*\n| For these, give .* as `--memory`\.", "", shown)
        cli([*words[1:], *([] if folder in words else ["--model_name_or_path", folder])])
        printed = capsys.readouterr().out
        assert ("largest batch" in printed) == looks
        assert shown in printed


def test_agents_page_has_every_command():
    table = (ROOT / "AGENTS.md").read_text().split("| Goal |")[1].split("\n\n")[0]
    named = [name for row in table.splitlines()[2:] for name in re.findall(r"`([\w-]+)`", row.split("|")[2])]
    assert sorted(named) == sorted(ALL_COMMANDS)


@pytest.mark.parametrize("page", ["AGENTS.md", "docs/commands.md"])
def test_tables_of_statuses_agree(page):
    table = (ROOT / page).read_text().split("## Exit statuses")[1].split("\n## ")[0]
    numbers = [
        int(number) for row in re.findall(r"^\|([^|]+)\|", table, re.MULTILINE) for number in re.findall(r"\d+", row)
    ]
    assert numbers == [0, 1, 2, 130, 143]


@pytest.mark.parametrize("line", PUSH_COMMANDS)
def test_push_commands(line, tmp_path, monkeypatch, hub):
    monkeypatch.chdir(tmp_path)
    folder = save_adapter(tmp_path / "outputs" / "bct")
    (folder / "LICENSE.txt").write_text("Mine.")
    (folder / "consistency_results.json").write_text(results_of_the_docs())
    cli(shlex.split(line)[1:])
    sent = {name for repo in hub.repos.values() for files in repo.branches.values() for name in files}
    assert sent >= {"README.md", "adapter_model.safetensors"} or ("--dry_run" in line and not hub.requests)


def results_of_the_docs():
    page = (ROOT / "docs" / "publishing.md").read_text()
    return re.search(r"```json results\n(.*?)```", page, re.DOTALL)[1]


def test_format_of_results(tmp_path):
    (tmp_path / "consistency_results.json").write_text(results_of_the_docs())
    page = read_results(tmp_path)
    assert page.description
    assert page.outcomes
    assert page.findings
    assert [result.metric for result in page.results] == ["sycophancy", "harmonic_mean"]


@pytest.mark.parametrize("line", CONVERT_COMMANDS)
def test_convert_commands(line, tmp_path, monkeypatch, model_dir, tokenizer):
    """With the tiny model, which would end no answer: here each of its answers is another."""
    from datasets import load_dataset

    from trl_consistency.evaluation.answers import generate

    def answer(model, processing_class, prompts, *args, **kwargs):
        return [[*ids[-3:], number, tokenizer.eos_token_id] for number, ids in enumerate(prompts, start=40)]

    monkeypatch.setattr(generate, "generate_ids", answer)
    monkeypatch.chdir(tmp_path)
    make_pairs(2, completion=False).to_json("pairs/train.jsonl")
    make_pairs(2).to_json("pairs_with_targets.jsonl")
    words = shlex.split(line.replace("Qwen/Qwen3-4B-Instruct-2507", str(model_dir)))
    cli(words[1:])
    rows = load_dataset(words[words.index("--output_dir") + 1], split="train")
    columns = {"preference": ["prompt", "chosen", "rejected"], "sft": ["prompt", "completion"]}
    expected = columns[words[words.index("--to") + 1]]
    assert rows.column_names[: len(expected)] == expected
    assert len(rows) == 2


def save_adapters(model_dir):
    adapter = get_peft_model(AutoModelForCausalLM.from_pretrained(model_dir), LoraConfig(target_modules="all-linear"))
    for name in ("bct", "act"):
        adapter.save_pretrained(f"outputs/{name}")


@pytest.mark.parametrize("line", EVALUATE_COMMANDS)
def test_evaluate_commands(line, tmp_path, monkeypatch, model_dir, organism_dir, capsys):
    """With the tiny model, adapters of it, pairs with requests and a question, and a judge on the loopback."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    columns = {
        "category": ["harmful", "benign", "harmful", "benign", ""],
        "answer": ["Sorry", "Sure", "Sorry", "Sure", "Paris"],
        "biased_answer": ["", "", "", "", "Rome"],
    }
    pairs = make_pairs(5, completion=False)
    for name, values in columns.items():
        pairs = pairs.add_column(name, values)
    pairs.to_json("pairs/train.jsonl")
    Path("capability").mkdir()
    Path("capability/texts.jsonl").write_text('{"text": "The capital of France is Paris."}\n' * 2)
    save_adapters(model_dir)
    words = shlex.split(line.replace("Qwen/Qwen3-4B-Instruct-2507", str(model_dir)))
    options = ["--max_completion_length", "4"]
    options += ["--judge_max_completion_length", "4"] if "--judge_model" in words else []
    with judge_server(lambda prompt, attempt: completion("VERDICT: REFUSED")) as (url, _):
        cli([word.replace("https://api.openai.com/v1", url) for word in words[1:]] + options)
    assert json.loads(Path("evaluation/results.json").read_text())["models"]["base"]["rates"]
    assert capsys.readouterr().out


def test_table_of_metrics():
    """docs/evaluate.md explains each."""
    table = (ROOT / "docs" / "evaluate.md").read_text().split("| key in `results.json`")[1].split("\n\n")[0]
    named = [name for row in table.splitlines()[2:] for name in re.findall(r"`(\w+)`", row.split("|")[1])]
    assert sorted(named) == sorted(METRICS)


@pytest.mark.parametrize("line", SUITES_COMMANDS)
def test_suites_commands(line, tmp_path, monkeypatch, model_dir, capsys):
    """As far as the suites: their data cannot be reached. tests/evaluation/suites/test_lm_eval_suites.py runs them on local data."""
    from trl_consistency.evaluation import SuiteScore
    from trl_consistency.evaluation.suites import registry as suites
    from trl_consistency.scripts import suites as script

    def scores(model, names, adapters, *args, **options):
        figure = SuiteScore("gsm8k", "gsm8k", "3.0", "acc", 0.5, (0.1, 0.9), 2, values={"0": 0.0, "1": 1.0})
        return {name: [figure] for name in ("base", *adapters)}

    monkeypatch.setattr(suites, "installed_version", lambda package: "1.0")
    monkeypatch.setattr(script, "run_suites", scores)
    monkeypatch.chdir(tmp_path)
    save_adapters(model_dir)
    cli(shlex.split(line.replace("Qwen/Qwen3-4B-Instruct-2507", str(model_dir)))[1:])
    assert "0.500 [0.100, 0.900] (n=2)" in capsys.readouterr().out


@pytest.mark.parametrize("line", INSPECT_COMMANDS)
def test_inspect_commands(line):
    """That what they name is there: tests/evaluation/suites/test_inspect_suites.py runs such a command, which takes half a minute."""
    pytest.importorskip("inspect_ai", reason="needs inspect_ai (`pip install .[suites]`)")
    from inspect import signature

    from trl_consistency.evaluation.suites import inspect_model, inspect_tasks

    words = shlex.split(line)
    assert words[1:3] == ["eval", "trl_consistency/pairs"]
    options = {flag: words[words.index(flag) + 1] for flag in ("-T", "-M", "--model")}
    assert options["--model"].startswith("trl_consistency/")
    assert options["-T"].split("=")[0] in signature(inspect_tasks.pairs).parameters
    assert options["-M"].split("=")[0] in signature(inspect_model.ConsistencyModelAPI.__init__).parameters


def test_table_of_suites():
    """docs/suites.md names each, with the version of its task."""
    from trl_consistency.evaluation import SUITES

    page = (ROOT / "docs" / "suites.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \|.*\| ([\w.-]+) \|$", page, re.MULTILINE)
    assert rows == [(suite.name, suite.version) for suite in SUITES.values()]


def test_table_of_findings():
    """docs/lint.md explains each finding."""
    page = (ROOT / "docs" / "lint.md").read_text().split("## The dose")[0]
    assert re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE) == list(FINDINGS)


@pytest.mark.parametrize("name", PERTURBATIONS)
def test_table_of_perturbations(name):
    """docs/perturbations.md says of each what the registry says."""
    entry = PERTURBATIONS[name]
    wordings = f"{len(entry.wordings['train'])} + {len(entry.wordings['held_out'])}"
    cells = [f"`{name}`", entry.description, ", ".join(entry.positions), ", ".join(entry.needs), wordings]
    page = (ROOT / "docs" / "perturbations.md").read_text()
    section = re.search(rf"^## {entry.family}\n(.*?)^## ", page, re.DOTALL | re.MULTILINE)[1]
    assert f"| {' | '.join(cells)} |\n" in section


def test_table_of_perturbations_has_no_other():
    page = (ROOT / "docs" / "perturbations.md").read_text()
    named = re.findall(r"^\| `(\w+)` \|.*\| \d+ \+ \d+ \|$", page, re.MULTILINE)
    assert sorted(named) == sorted(PERTURBATIONS)


TRAINING_COMMANDS = [command for command in COMMANDS if command not in OF_THEIR_OWN]
for number, command in enumerate(TRAINING_COMMANDS):
    if "smollm2" in command.values[0] and "quickstart" not in command.values[0]:
        TRAINING_COMMANDS[number] = pytest.param(*command.values, id=command.id, marks=pytest.mark.real)
IN_TWO_PROCESSES = [command for command in TRAINING_COMMANDS if "multi_cpu" in command.values[0]]
for repeated in IN_TWO_PROCESSES[1:]:  # one launch is enough for the default tests
    TRAINING_COMMANDS[TRAINING_COMMANDS.index(repeated)] = pytest.param(
        *repeated.values, id=repeated.id, marks=pytest.mark.slow
    )


# One in a process of its own is enough for the default tests, which read the others as that does.
BY_LAUNCH = [command.values[0] for command in TRAINING_COMMANDS if command.values[0].startswith("accelerate launch ")]


@pytest.fixture
def few_rows(monkeypatch):
    """Every fiftieth row of the embedded pairs: two steps train on no more."""
    from trl_consistency.scripts import loading

    def few(load):
        return lambda: DatasetDict({name: rows.select(range(0, len(rows), 50)) for name, rows in load().items()})

    for name, load in [*loading.EMBEDDED_PAIRS.items()]:
        monkeypatch.setitem(loading.EMBEDDED_PAIRS, name, few(load))


@pytest.mark.long
@pytest.mark.parametrize("line", TRAINING_COMMANDS)
def test_commands(line, tmp_path, monkeypatch, organism_dir, few_rows):
    words = shlex.split(line)
    if words[0] == "make":  # this very run is `make test`, and the quickstart has a test of its own
        plan = subprocess.run([*words, "--dry-run"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        runs = {
            "quickstart": "trl-consistency quickstart",
            "real": "trl-consistency quickstart --model_name_or_path embedded:smollm2",
            "reproduce": "-m tests.reproduce",
            "test": "-m pytest",
        }
        assert runs[words[1]] in plan
        return
    if words[:3] == ["python", "-m", "tests.reproduce"]:  # hours
        from tests.reproduce.__main__ import main as reproduce

        with pytest.raises(SystemExit) as end:
            reproduce([*words[3:], "--help"])
        assert end.value.code == 0
        return
    made = "adapter_model.safetensors"
    if "--targets_file" in words:
        made = words[words.index("--targets_file") + 1]
        words[words.index(made)] = str(tmp_path / made)
    if words[1] == "quickstart":  # with several seeds: minutes, and `make quickstart` has a test of its own
        from trl_consistency.scripts import quickstart

        with pytest.raises(SystemExit) as end:
            quickstart.run([*words[2:], "--help"])
        assert end.value.code == 0
        return
    words += ["--output_dir", str(tmp_path), "--max_steps", "2"]
    if "smollm2" in line:
        words += ["--gradient_accumulation_steps", "1"]
    if "pairs" in words:
        make_pairs(2).to_json(tmp_path / "pairs" / "train.jsonl")
        words[words.index("pairs")] = str(tmp_path / "pairs")
    if "qwen3-4b-instruct" in line:
        tiny = make_tiny(OF_FOLDER["qwen3-4b-instruct"], tmp_path / "tiny")
        words += ["--model_name_or_path", str(tiny), "--bf16", "false", "--use_cpu"]
    if "eval" not in line:  # of hundreds of rows
        words += ["--eval_strategy", "no", "--eval_on_start", "false"]
    if words[0] == "trl-consistency" and "--accelerate_config" not in words:
        monkeypatch.chdir(ROOT)
        cli(words[1:])  # here: a new process spends ten seconds on imports
    elif line in BY_LAUNCH[1:]:
        monkeypatch.chdir(ROOT)
        understood = launch_command_parser().parse_args(words[2:])
        assert understood.module
        monkeypatch.setattr(sys, "argv", [understood.training_script, *understood.training_script_args])
        monkeypatch.delitem(sys.modules, understood.training_script, raising=False)
        run_module(understood.training_script, run_name="__main__")
    else:
        program = {"accelerate": "accelerate.commands.accelerate_cli", "trl-consistency": "trl_consistency.cli"}[
            words[0]
        ]
        launched([sys.executable, "-m", program, *words[1:]])
    assert (tmp_path / made).is_file()


@pytest.mark.long
@pytest.mark.parametrize("page", IN_SEQUENCE, ids=lambda page: page.stem)
def test_commands_in_sequence(page, tmp_path, monkeypatch, organism_dir, capsys):
    """
    Each prints what the page shows. Rates and divergences are left to what they are: the organism is trained on the machine
    that runs this, and the model of the page for more than two steps.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    for line, shown in commands_with_outputs(page):
        words = [str(ROOT / word) if word.startswith("recipes/") else word for word in shlex.split(line)]
        steps = ["--max_steps", "2"] if words[1] in ("consistency", "on-policy-consistency") else []
        capsys.readouterr()
        cli([*words[1:], *steps])
        printed = capsys.readouterr().out
        measured = re.compile(
            r"(?<=: )[\d.]+(?:% \(\d+/\d+\))?(?:, \d+ unread(?: \([^)\n]+\))?(?:; [\d.]+% of \d+ read)?)?(?= nats|$)",
            re.MULTILINE,
        )
        assert measured.sub("#", shown) in measured.sub("#", printed)
    assert Path("trained/adapter_model.safetensors").is_file()


def test_links_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
            # `make reproduce` draws the pictures of docs/results.md, once there are cells.
            if target.startswith("results/") and not (page.parent / "results" / "cells").exists():
                continue
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_readme_is_a_screen_and_a_half():
    """A line has about 120 letters, and the picture, the table and the code have their own lines."""
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= 66
    assert max(map(len, lines)) <= 170


def test_paths_in_the_readme_exist():
    for path in re.findall(r"`((?:recipes|docs)/[^` ]+)`", (ROOT / "README.md").read_text()):
        assert (ROOT / path).exists(), path
