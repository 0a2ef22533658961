"""`make reproduce` on a tiny stand-in, and parts of it on the real plan."""

import json
import multiprocessing
import os
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.reproduce import __main__ as command
from tests.reproduce import measure
from tests.reproduce.cells import (
    CELLS_DIR,
    FORMAT,
    letters_of,
    read_cell,
    read_replies,
    replies_file,
    samples_of,
    write_cell,
    write_replies,
)
from tests.reproduce.measure import read_words
from tests.reproduce.plan import CELLS, SETS, Cell, Plan
from tests.reproduce.run import Places, read_again, run
from tests.reproduce.sets import BAD, GOOD, load, number_sources
from tests.reproduce.stand_in import make_stand_in
from tests.reproduce.train import run_command, train, training_of
from trl_consistency import ConsistencyError
from trl_consistency.evaluation import make_samples
from trl_consistency.evaluation import measure as measure_rates
from trl_consistency.evaluation.grading.grade import Grade
from trl_consistency.perturbations.registry import PERTURBATIONS
from trl_consistency.smollm2.rows import load_smollm2_datasets


TIMES = ("seconds", "cpu_seconds")
NO_PATHS = {"commands": None}  # they name the work folder


def without_times(cell):
    """A cell without what is not the same each time."""
    if isinstance(cell, dict):
        return {key: without_times(value) for key, value in cell.items() if key not in (*TIMES, "resumed")}
    return cell


def cells_of(places):
    return {file.name: without_times(json.loads(file.read_text())) for file in places.cells.glob("*.json")}


# The plan


def test_plan_has_the_cells_and_their_recipes(tmp_path):
    jobs = Plan().jobs()
    assert len({job.name for job in jobs}) == len(jobs) == 35
    for job in jobs:
        if job.cell.recipe:
            training = training_of(Plan(), job, tmp_path)
            assert training.recipe.is_file()
            assert training.words[-2:] == ["--output_dir", str(tmp_path / "models" / job.name)]
    (bad,) = Plan().jobs(["opct_bad_clean"])
    assert (
        training_of(Plan(), bad, Path("work")).commands[0] == "python -m tests.reproduce.bad_clean work/data/bad_clean"
    )


def test_cells_are_chosen_by_name():
    assert [job.title for job in Plan().jobs(["bct/2", "base", "act"])] == ["base", "bct/2", "act/1", "act/2", "act/3"]
    with pytest.raises(ConsistencyError, match="There is no cell `bct/4`, only: base, bct/1"):
        Plan().jobs(["bct/4"])


@pytest.mark.long
@pytest.mark.parametrize(
    "name", sorted({job.name for job in Plan().jobs() if job.cell.command.startswith("trl-consistency")})
)
def test_commands_are_understood(name, tmp_path):
    """Each option is one of the command's, and the data set is there or made."""
    from trl_consistency.scripts import consistency, on_policy_consistency

    (job,) = [job for job in Plan().jobs() if job.name == name]
    if not job.cell.recipe:
        return
    training = training_of(Plan(), job, tmp_path)
    module = {"consistency": consistency, "on-policy-consistency": on_policy_consistency}[training.words[1]]
    script, options, *_ = module.make_parser().parse_args_and_config([*training.words[2:], *training.saving])
    assert options.seed == job.seed
    assert script.dataset_name == (
        str(tmp_path / Plan().data[job.cell.data].path) if job.cell.data else "embedded:smollm2"
    )
    assert options.anchor_ratio == (0 if "no_anchors" in name else 0.25)
    if "greedy" in name:
        assert options.temperature == 0


# The sets


@pytest.fixture(scope="module")
def loaded():
    """The real sets, without the data that are not part of the package."""
    return load(Plan(), Path("no such folder"))


@pytest.mark.long
def test_sets_are_what_the_plan_says(loaded):
    sets, left_out = loaded
    assert [line.partition(":")[0] for line in left_out] == ["suggested_answer_truthfulqa", "are_you_sure_logiqa"]
    by_name = {of_set.plan.name: of_set for of_set in sets}
    assert {name: len(of_set.pairs.rows) for name, of_set in by_name.items()} == {
        of_set.name: of_set.rows for of_set in SETS if not of_set.source.startswith("pairs/")
    }
    few = [of_set for of_set in SETS if of_set.name in ("test", "distractor", "feedback")]
    again, _ = load(replace(Plan(), sets=few), Path("no such folder"))
    for of_set in again:
        assert of_set.digest == by_name[of_set.plan.name].digest


@pytest.mark.long
def test_transfer_sets_have_new_questions_and_perturbations(loaded):
    sets, _ = loaded
    trained = load_smollm2_datasets()["train"]
    questions, kinds = set(trained["source_id"]), {name.partition("/")[0] for name in trained["perturbation"]}
    assert kinds == {"stated_answer"}
    test = {row["source_id"]: row for row in next(of for of in sets if of.plan.name == "test").pairs.rows}
    for of_set in sets:
        if not of_set.plan.perturbations or of_set.plan.source == "feedback":
            continue
        found = {row["source_id"] for row in of_set.pairs.rows}
        assert len(found) == 100
        assert not found & questions
        for row in of_set.pairs.rows:
            assert row["clean_prompt"] == test[row["source_id"]]["clean_prompt"], "answered once for all sets"
            assert row["perturbation"].partition("/")[0] in of_set.plan.perturbations
            assert row["perturbation"].partition("/")[0] not in kinds
            if not row["biased_answer"].startswith("NOT "):
                assert row["biased_answer"] in of_set.pairs.candidates[row["category"]], "read if it is given"


def test_a_source_has_the_same_number_in_all_sets(loaded):
    sets, _ = loaded
    numbers = number_sources(sets)
    names = {}
    for of_set in sets:
        for row, number in zip(of_set.pairs.rows, numbers[of_set.plan.name], strict=True):
            assert names.setdefault(number, row["source_id"]) == row["source_id"]
    assert len(set(names.values())) == len(names) == 250 + 250 + 30


def test_verdicts_are_contrasted_with_the_users(loaded):
    """The liking wordings come first, as the contrasts take for granted."""
    sets, _ = loaded
    wordings = PERTURBATIONS["feedback"].wordings["train"]
    of_set = next(of for of in sets if of.plan.name == "feedback")
    assert len(of_set.contrasts) == 90
    for row, (others, users) in zip(of_set.pairs.rows, of_set.contrasts, strict=True):
        wording = wordings[int(row["perturbation"].rpartition("-")[2])]
        likes = any(word in wording for word in ("love", "proud", "like this one", "great", "best"))
        assert (others, users) == (([BAD], GOOD) if likes else ([GOOD], BAD)), wording


# The files


def test_letters_keep_what_rates_are_made_of():
    """Rates from letters are those of the grades themselves."""
    kinds = [("right", None), ("suggested", None), ("other", None), ("unread", "unparsed"), ("unread", "names both")]
    grades = [
        [
            Grade(
                *(
                    kinds[(3 * row + side * (row // 2)) % 5][0],
                    "x",
                    kinds[(3 * row + side * (row // 2)) % 5][1],
                    "choice",
                )
            )
            for row in range(40)
        ]
        for side in (0, 1)
    ]
    rows = [
        {
            "clean_prompt": f"{row // 2}",
            "perturbed_prompt": f"p {row}",
            "answer": "A",
            "biased_answer": "B",
            "source_id": f"{row // 2}",
        }
        for row in range(40)
    ]
    clean, perturbed = map(letters_of, grades)
    of_set = {"sources": [row // 2 for row in range(40)], "clean": clean, "perturbed": perturbed}
    found, expected = measure_rates(samples_of(of_set)), measure_rates(make_samples(rows, *grades))
    assert len(found) >= 6
    for name, rate in found.items():
        assert rate.value == expected[name].value, name
        assert rate.unread == expected[name].unread, name
        assert rate.interval == pytest.approx(expected[name].interval), name


def test_cell_that_is_none(tmp_path):
    (tmp_path / "a.json").write_text("{")
    with pytest.raises(ConsistencyError, match="is not a cell: delete it"):
        read_cell(tmp_path / "a.json")
    write_cell(tmp_path / "b.json", {"format": FORMAT + 1})
    with pytest.raises(ConsistencyError, match=f"has format {FORMAT + 1}, not {FORMAT}: delete it"):
        read_cell(tmp_path / "b.json")


def test_numbers_are_written_in_one_line(tmp_path):
    cell = {
        "format": FORMAT,
        "sets": {"a": {"sources": [1, 2], "margins": [-0.5, None, 1e-7]}},
        "left_out": ["[1, 2]"],
    }
    write_cell(tmp_path / "a.json", cell)
    assert read_cell(tmp_path / "a.json") == cell | {"left_out": ["[1,2]"]}
    assert '"margins": [-0.5,null,1e-07]' in (tmp_path / "a.json").read_text()


# The whole


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The folder, plan and places of a stand-in, of which the base and one cell were made."""
    plan, places = make_stand_in(tmp_path_factory.mktemp("stand_in"))
    assert run(plan, places, ["base", "bct/1"], processes=0) == []
    return plan, places


@pytest.mark.long
def test_cells_have_every_row_and_its_reply(made):
    plan, places = made
    for name in ("base", "bct-1"):
        replies = read_replies(replies_file(places.cells / f"{name}.json"))
        assert {set_name: [len(of["clean"]), len(of["perturbed"])] for set_name, of in replies.items()} == {
            of_set.name: [of_set.rows] * 2 for of_set in plan.sets if of_set.reading == "words"
        }
    cells = {name: read_cell(places.cells / f"{name}.json") for name in ("base", "bct-1")}
    assert "training" not in cells["base"]
    assert cells["bct-1"]["training"]["seconds"] > 0
    assert cells["bct-1"]["commands"][0].startswith("trl-consistency consistency --config ")
    assert cells["base"]["left_out"] == [
        "are_you_sure_logiqa: there is no file pairs/are_you_sure_logiqa.jsonl in the data folder",
        "capability, missing: there is no such file in the data folder",
    ]
    for cell in cells.values():
        assert {name: len(of_set["sources"]) for name, of_set in cell["sets"].items()} == {
            of_set.name: of_set.rows for of_set in plan.sets if of_set.name != "are_you_sure_logiqa"
        }
        for of_set in cell["sets"].values():
            for side in ("clean", "perturbed"):
                rows = of_set[f"{side}_margins"] if of_set["reading"] == "preference" else of_set[side]
                assert len(rows) == len(of_set["sources"])
        assert [of["metric"] for of in cell["capability"].values()] == ["nats_per_token", "refused"]
        assert len(cell["capability"]["texts"]["values"]) == 3
        assert len(cell["distance"]["activation"]) == len(cell["distance"]["answer_nats"]) == plan.hundred
    one, other = cells.values()
    assert {name: of["digest"] for name, of in one["sets"].items()} == {
        name: of["digest"] for name, of in other["sets"].items()
    }
    assert one["sets"]["preference"] != other["sets"]["preference"], "the adapter does something"
    assert one["side_effects"]["reply_nats"] != other["side_effects"]["reply_nats"]
    assert one["distance"]["activation"] != other["distance"]["activation"]


@pytest.mark.long
def test_a_finished_cell_is_not_made_again(made, monkeypatch):
    plan, places = made
    monkeypatch.setattr("tests.reproduce.run.make_cell", None)
    assert run(plan, places, ["base", "bct/1"], processes=0) == []


@pytest.mark.long
def test_a_deleted_cell_comes_out_the_same(made, tmp_path):
    """Trained and measured again from nothing, and then from what was kept."""
    plan, places = made
    other = Places(tmp_path / "work", places.data_dir, tmp_path / "cells")
    (job,) = plan.jobs(["bct/1"])
    assert run(plan, other, ["bct/1"], processes=0) == []
    assert (
        without_times(read_cell(other.cell(job))) | NO_PATHS == without_times(read_cell(places.cell(job))) | NO_PATHS
    )
    files = other.cell(job), replies_file(other.cell(job))
    content = [file.read_bytes() for file in files]
    assert content[1] == replies_file(places.cell(job)).read_bytes()
    other.cell(job).unlink()
    assert run(plan, other, ["bct/1"], processes=0) == []
    assert [file.read_bytes() for file in files] == content


@pytest.mark.long
def test_replies_are_read_again_without_the_model(made, tmp_path, monkeypatch):
    plan, places = made
    other = Places(tmp_path / "work", places.data_dir, tmp_path / "cells")
    shutil.copytree(places.cells, other.cells)
    cells = cells_of(places)
    monkeypatch.setattr(measure, "_load_models", None)
    for job in plan.jobs(["base", "bct/1"]):  # as if by other rules and keys
        cell = read_cell(other.cell(job))
        cell["sets"]["test"]["perturbed"] = "u" * len(cell["sets"]["test"]["perturbed"])
        cell["sets"]["test"]["digest"] = "other"
        write_cell(other.cell(job), cell)
    assert cells_of(other) != cells
    read_again(plan, other)
    assert cells_of(other) == cells


@pytest.mark.long
def test_preferences_of_other_keys_are_measured_again(made, tmp_path, monkeypatch):
    plan, places = made
    other = Places(places.work, places.data_dir, tmp_path / "cells")
    shutil.copytree(places.cells, other.cells)
    cells = cells_of(places)
    monkeypatch.setattr("transformers.GenerationMixin.generate", None)
    monkeypatch.setattr(measure, "_letters", None)  # these rows have not changed
    for job in plan.jobs(["base", "bct/1"]):
        cell = read_cell(other.cell(job))
        cell["sets"]["preference"] |= {"digest": "other", "clean_margins": []}
        write_cell(other.cell(job), cell)
    assert cells_of(other) != cells
    read_again(plan, other)
    assert cells_of(other) == cells


@pytest.mark.long
def test_only_replies_to_the_same_prompts_are_read_again(made, tmp_path, capsys):
    plan, places = made
    other = Places(tmp_path / "work", places.data_dir, tmp_path / "cells")
    shutil.copytree(places.cells, other.cells)
    (job,) = plan.jobs(["base"])
    file = replies_file(other.cell(job))
    replies = read_replies(file)
    write_replies(file, replies | {"test": replies["test"] | {"prompts": "other"}})
    with pytest.raises(ConsistencyError, match=r"base: the prompts of test have changed\. Delete the cell"):
        read_again(plan, other)
    file.unlink()
    read_again(plan, other, ["base"])
    assert "base: not read again, because it has no replies" in capsys.readouterr().out
    assert cells_of(other) == cells_of(places)


@pytest.mark.long
def test_parts_are_kept_until_the_rows_change(made, tmp_path, monkeypatch):
    """A killed measurement goes on after its last part, but not with the figures of other rows."""
    plan, places = made
    asked = []
    for name in ("_words", "_letters", "_preference", "_distance", "_side_effects", "_capability"):
        real = getattr(measure, name)
        monkeypatch.setattr(measure, name, lambda *args, name=name, real=real: (asked.append(name), real(*args))[1])
    other = Places(tmp_path / "work", places.data_dir, tmp_path / "cells")
    shutil.copytree(places.work / "measured", other.work / "measured")
    (other.work / "measured" / "base" / "feedback.json").write_text('{"key": ')
    run(plan, other, ["base"], processes=0)
    assert asked == ["_preference"], "the part that is cut short, and no other"
    assert cells_of(other)["base.json"] == cells_of(places)["base.json"]
    other.cell(plan.jobs(["base"])[0]).unlink()
    fewer = [replace(of_set, rows=2) if of_set.name == "feedback" else of_set for of_set in plan.sets]
    run(replace(plan, sets=fewer), other, ["base"], processes=0)
    assert asked == ["_preference"] * 2
    assert len(read_cell(other.cells / "base.json")["sets"]["feedback"]["sources"]) == 2


@pytest.mark.long
def test_an_adapter_from_elsewhere_is_measured_without_training(made, tmp_path, monkeypatch):
    plan, places = made
    other = Places(tmp_path / "work", places.data_dir, tmp_path / "cells")
    folder = other.work / "models" / "bct-1"
    folder.mkdir(parents=True)
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        shutil.copy(places.work / "models" / "bct-1" / name, folder)
    (folder / "trained.json").write_text("{}")
    monkeypatch.setattr("tests.reproduce.train.run_command", None)
    assert run(plan, other, ["bct/1"], processes=0) == []
    found, expected = cells_of(other)["bct-1.json"], cells_of(places)["bct-1.json"]
    assert found["training"] == {}
    assert found["sets"] == expected["sets"]
    assert found["distance"] == expected["distance"]


@pytest.mark.long
def test_a_training_with_another_recipe_starts_anew(made, tmp_path):
    plan, places = made
    shutil.copytree(places.work / "models", tmp_path / "models")
    (job,) = plan.jobs(["bct/1"])
    training = training_of(plan, job, tmp_path)
    assert train(training) == json.loads((training.folder / "trained.json").read_text()), "it is done"
    other = replace(job, cell=replace(job.cell, flags=("--max_steps", "1")))
    train(training_of(plan, other, tmp_path), in_process=True)
    assert [path.name for path in training.folder.glob("checkpoint-*")] == ["checkpoint-1"]


def test_commands_that_are_not_known():
    with pytest.raises(ConsistencyError, match="rm is not a command that is known here"):
        run_command(["rm", "-r", "x"])


def test_command_lists_the_cells(capsys, tmp_path):
    command.main(["--list", "--only", "act"])
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["act/1", "act/2", "act/3"]
    write_cell(tmp_path / "act-2.json", {})
    command.main(["--list", "--only", "act", "--cells_dir", str(tmp_path)])
    assert [line.split()[1] for line in capsys.readouterr().out.splitlines()] == ["missing", "done", "missing"]
    with pytest.raises(SystemExit, match="There is no cell `nothing`"):
        command.main(["--only", "nothing"])


# In processes of its own, and killed


def run_in_processes(plan, places, only):
    """In a process that can be killed."""
    torch.set_num_threads(1)
    if failed := run(plan, places, only, processes=2):
        raise SystemExit(f"failed: {failed}")


def start(*args):
    child = multiprocessing.get_context("spawn").Process(target=run_in_processes, args=args)
    child.start()
    return child


def descendants(pid):
    """The processes that a process has started, and those have."""
    parents = {}
    for entry in filter(str.isdecimal, os.listdir("/proc")):
        try:
            parents[int(entry)] = int(Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    found, fresh = set(), {pid}
    while fresh:
        fresh = {child for child, parent in parents.items() if parent in fresh} - found
        found |= fresh
    return found


@pytest.mark.slow
def test_a_killed_command_goes_on_and_ends_as_if_nothing_had_happened(tmp_path):
    """Two cells at once in processes of their own; killed in a training and in a measurement."""
    only = ["base", "bct/1", "opct/1"]
    plan, places = make_stand_in(tmp_path, steps=4)
    assert run(plan, places, only, processes=0) == []
    other = Places(tmp_path / "killed" / "work", places.data_dir, tmp_path / "killed" / "cells")
    deadline = time.monotonic() + 3600
    for moment in ("models/bct-1/checkpoint-*", "measured/bct-1/*.json"):
        child = start(plan, other, only)
        while not list(other.work.glob(moment)):
            assert child.is_alive()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        started = descendants(child.pid)
        assert started
        os.kill(child.pid, signal.SIGKILL)
        child.join()
        while any(map(is_alive, started)):
            assert time.monotonic() < deadline, "processes are left"
            time.sleep(0.1)
    assert not other.cell(plan.jobs(["bct/1"])[0]).exists(), "killed before the end"
    child = start(plan, other, only)
    child.join()
    assert child.exitcode == 0
    found, expected = ({name: cell | NO_PATHS for name, cell in cells_of(of).items()} for of in (other, places))
    assert found == expected
    assert len(found) == 3


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.slow
def test_a_cell_that_fails_stops_no_other(tmp_path, capfd):
    plan, places = make_stand_in(tmp_path)
    broken = Cell("broken", "broken", "bct", ("--no_such_option", "1"), seeds=(1,))
    plan = replace(plan, cells=(broken, CELLS[0]))
    assert [job.title for job in run(plan, places, processes=2)] == ["broken/1"]
    assert "broken/1: failed (exit status 1); what it said is in" in capfd.readouterr().out
    assert "no_such_option" in (places.work / "logs" / "broken-1.log").read_text()
    assert (places.cells / "base.json").is_file()


@pytest.mark.long
@pytest.mark.parametrize("part", [0, *(pytest.param(other, marks=pytest.mark.slow) for other in (1, 2))])
def test_committed_replies_have_the_committed_outcomes(part):
    """By the rules and keys as they are now, without the model: whoever changes them reads the finished cells again."""
    loaded = {of_set.plan.name: of_set for of_set in load(Plan(), Path("no_data"))[0]}
    files = sorted(file for file in CELLS_DIR.glob("*.json") if replies_file(file).is_file())[part::3]
    assert len(files) > 1
    for file in files:
        sets, replies = read_cell(file)["sets"], read_replies(replies_file(file))
        assert set(replies) == {name for name, of_set in sets.items() if of_set["reading"] == "words"}
        for name, of_sides in replies.items():
            assert of_sides["prompts"] == loaded[name].digest_of_prompts, (file.stem, name)
            again = read_words(loaded[name], of_sides)
            assert again == {side: sets[name][side] for side in again}, (
                f"{file}: run `python -m tests.reproduce --read_again`"
            )
