"""The benchmark itself at a tiny size: each row runs, and the page is made of what it finds."""

import json
import re
import shutil
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from tests.benchmarks import floor, growth, run
from tests.benchmarks.growth import DIMENSIONS, exponent, measure_growth
from tests.benchmarks.rows import ENGINES, ROWS
from tests.benchmarks.sizes import SIZES
from tests.benchmarks.spreads import alike, quartiles, slipped, spread
from tests.benchmarks.turns import Turns, Worker, growth_of_memory, run_command


TINY = SIZES["tiny"]


def result(cpu, peak=100.0):
    return {
        "cpu": {"median": cpu, "low": cpu, "high": cpu},
        "wall": {"median": cpu, "low": cpu, "high": cpu},
        "peak": peak,
    }


class TwoTurns(Turns):
    """Takes two turns without a process at the other end, and keeps what is said."""

    def __init__(self):
        super().__init__()
        self.left, self.said = 2, []

    def say(self, found):
        self.said.append(found)

    def wait(self):
        self.left -= 1
        self.start = 0.0, 0.0
        return self.left >= 0


RIVALS = [
    pytest.param(name, rival, id=f"{name}-{rival}")
    for name, row in ROWS.items()
    if name not in ("start", "pairs", *ENGINES)
    for rival in row.rivals(TINY)
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "rival"), RIVALS)
def test_each_rival_takes_its_turns(name, rival):
    turns = TwoTurns()
    made = ROWS[name].make(rival, TINY, turns)
    if made.trains:
        made.run()
    else:
        for _ in turns:
            made.run()
    assert len(turns.said) == 2
    if name.endswith("_step"):
        assert made.facts["operations"] > 0
        assert floor.rate(made.facts["products"], 1) > 0


@pytest.mark.slow
def test_rivals_in_processes_of_their_own():
    found = run.measure_row(ROWS["act_step"], TINY)
    assert list(found["rivals"]) == ["ours", "whole model"]
    for of in found["rivals"].values():
        assert 0 < of["cpu"]["low"] <= of["cpu"]["median"] <= of["cpu"]["high"]
        assert of["peak"] > 0
        assert 1 <= len(of["profile"]) <= 5
    # Some thousand operations take no time beside the calls of the functions that do them.
    assert 0 < found["floor"]["share"]["ours"] < 1
    assert set(found["ratios"]) == {"whole model"}


def test_many_rows_are_worked_on_once(monkeypatch):
    class Made:
        def __init__(self, row, rival, size):
            self.facts, self.steps = {"once": rival == "40"}, 0

        def step(self):
            self.steps += 1
            return {"cpu": float(self.steps), "wall": 1.0}

        def end(self, profiles):
            return {"peak": 0.0, "steps": self.steps}

    monkeypatch.setattr(run, "Worker", Made)
    few, many = run.measure_row(ROWS["lint"], TINY)["rivals"].values()
    assert (few["turns"], few["steps"], few["cpu"]["each"]) == (2, 3, [2.0, 3.0])  # the first step warms up
    assert (many["turns"], many["steps"], many["cpu"]["low"]) == (1, 1, 1.0)


def test_half_of_the_turns_are_taken_by_new_processes(monkeypatch):
    """Within one process, times are closer to each other than to those of the next."""
    made = []

    class Made:
        def __init__(self, row, rival, size):
            made.append(self)
            self.facts, self.turns, self.seconds = {}, [], float(len(made))

        def step(self):
            self.turns.append(None)
            return {"cpu": self.seconds, "wall": self.seconds}

        def end(self, profiles):
            return {"peak": self.seconds, "profile": {"products": 1.0} if profiles else {}}

    monkeypatch.setattr(run, "Worker", Made)
    found = run.measure_row(ROWS["act_step"], replace(TINY, turns=3))
    assert [len(of.turns) for of in made] == [3, 3, 2, 2]  # the first of each warms up
    assert found["rivals"]["ours"]["cpu"]["each"] == [1.0, 1.0, 3.0]
    assert found["rivals"]["ours"]["peak"] == 3.0
    assert found["rivals"]["ours"]["profile"] == {"products": 1.0}
    assert found["ratios"]["whole model"]["each"] == [2.0, 2.0, 4 / 3]
    made.clear()
    found = run.measure_row(ROWS["opct_training"], replace(TINY, turns=3))
    assert [len(of.turns) for of in made] == [2] * 9
    assert found["sittings"] == 3


MIB = 2**20


def test_a_peak_is_not_hidden_by_what_was_held_before():
    def peak():
        _ = bytearray(400 * MIB)
        del _
        turns = TwoTurns()
        _ = bytearray(100 * MIB)
        turns.end()
        return turns.said[0]["peak"]

    # The system may take back pages of this process's libraries meanwhile: one of three is enough.
    assert any(95 < peak() < 150 for _ in range(3))


def test_growth_of_memory_is_that_of_what_runs():
    def run():
        held = bytearray(100 * MIB)
        time.sleep(0.2)
        del held

    assert 95 < growth_of_memory(run) < 150


def test_a_command_says_its_own_peak():
    held = bytearray(400 * MIB)  # of this process, and none of the command's
    assert 10 < run_command("suites", "--help") < 200
    del held


@pytest.mark.slow
@pytest.mark.vllm
@pytest.mark.parametrize("name", ENGINES)
def test_engines(name):
    """In processes of their own, since vLLM does not start twice in one."""
    found = run.measure_row(ROWS[name], TINY)
    (ratio,) = found["ratios"].values()
    assert ratio["median"] > 0


@pytest.mark.long
def test_a_process_that_fails_says_why():
    with pytest.raises(RuntimeError, match=r"status 1\. It wrote:\n(.|\n)*KeyError: 'no_row'"):
        Worker("no_row", "ours", "tiny")


def test_a_row_without_its_package_is_left_out(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(run, "find_spec", lambda name: None)
    run.measure_all(tmp_path, TINY, ["engine_opct"])
    assert capsys.readouterr().out == "engine_opct: left out, since vllm is not installed\n"
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_growth():
    found = measure_growth(TINY)["growth"]
    assert set(found) == set(DIMENSIONS)
    assert found["prompts"]["expected"] == pytest.approx(1)
    assert 1 < found["layers"]["expected"] < 2  # The last of few blocks, of which less is needed, weighs more.


def test_processes_take_the_fastest_of_some_runs(monkeypatch):
    took = iter([(4.0, 4.0), (5.0, 3.0), (3.0, 5.0), (6.0, 2.0), (3.5, 6.0), (7.0, 4.0)])
    monkeypatch.setattr(growth, "measure_step", lambda count: dict(zip(("cpu", "wall"), next(took), strict=True)))
    found = growth.measure_processes(TINY)["processes"]
    assert found == {"counts": (1, 2), "cpu": [3.0, 5.0], "wall": [4.0, 2.0]}


def test_the_exponent_of_a_power_is_found():
    assert exponent((1, 2, 4), [3.0, 12.0, 48.0]) == pytest.approx(2)


def test_a_spread_is_the_range_of_all_turns_and_keeps_each():
    assert spread([5, 1, 2, 4, 3]) == {"median": 3, "low": 1, "high": 5, "each": [5, 1, 2, 4, 3]}


def test_a_ratio_is_of_paired_turns():
    ours, others = ([{"cpu": factor * cpu, "wall": 1.0} for cpu in (1.0, 2.0, 4.0)] for factor in (1, 2))
    others[1]["cpu"] = 5.0
    found = run.ratio(ours, others, "cpu")
    # A busy machine slows down both, so the median is of paired turns. Another run may be busy in other turns.
    assert found == {"median": 2, "low": 0.5, "high": 8, "each": [2, 2.5, 2]}
    assert run.ratio(ours, others, "wall")["median"] == 1


def test_a_row_keeps_the_ratio_of_every_turn(tmp_path, monkeypatch, capsys):
    turns = {"ours": [[9, 1], [9, 2]], "whole model": [[9, 3], [9, 8]]}  # of two processes each, which warm up

    class Made:
        def __init__(self, row, rival, size):
            self.took, self.facts = iter(turns[rival].pop(0)), {}

        def step(self):
            return {"cpu": float(next(self.took)), "wall": 1.0}

        def end(self, profiles):
            return {"peak": 0.0}

    monkeypatch.setattr(run, "Worker", Made)
    run.measure_all(tmp_path, TINY, ["act_step"])
    row = json.loads((tmp_path / "tiny" / "act_step.json").read_text())
    assert row["ratios"] == {"whole model": {"median": 3.5, "low": 1.5, "high": 8.0, "each": [3.0, 4.0]}}
    assert row["took"] >= 0
    said = "tiny, 1 of 1: act_step ...\n    whole model: 3.50 times as long as ours\n"
    assert capsys.readouterr().out == said


def test_a_processor_is_told_from_others_of_its_brand(tmp_path):
    cpuinfo = tmp_path / "cpuinfo"
    first = "processor : 0\nvendor_id : AuthenticAMD\ncpu family\t: 26\nmodel\t\t: 2\nmodel name\t: AMD EPYC\n"
    cpuinfo.write_text(f"{first}\n{first.replace('EPYC', 'other')}")
    assert run.processor(cpuinfo) == "AMD EPYC (family 26, model 2)"
    assert run.processor(tmp_path / "none")


def test_spreads_are_compared_by_what_all_of_them_hold():
    old, new = {"median": 3, "low": 2, "high": 4}, spread([1, 2, 3, 4, 9])
    assert alike([new, new]) == ([new, new], "all turns")
    assert alike([old, new]) == ([old, {"median": 3, "low": 2, "high": 4}], "quartiles")
    assert alike([old]) == ([old], "quartiles")
    # Between turns, where no turn is a quartile
    assert alike([old, spread([2.0, 3.0])])[0][1] == {"median": 2.5, "low": 2.25, "high": 2.75}


def test_a_killed_run_goes_on_and_a_new_one_measures_what_is_there_already(tmp_path, monkeypatch, capsys):
    measured, kills = [], [True, False]

    def measure(row, size):
        measured.append(row.name)
        if row.name == "kl_step" and kills.pop(0):
            raise KeyboardInterrupt
        return {"rivals": {"ours": result(1.0)}, "ratios": {}}

    monkeypatch.setattr(run, "measure_row", measure)
    monkeypatch.setattr(run, "write_page", lambda folder: folder)
    monkeypatch.setattr(run, "ROWS", {name: ROWS[name] for name in ("act_step", "kl_step")})
    monkeypatch.setattr(run, "OTHERS", {})
    options = ["--sizes", "full", "--output_dir", str(tmp_path)]
    with pytest.raises(SystemExit):
        run.main(options)
    assert (tmp_path / ".unfinished").read_text() == "full/act_step\n"
    run.main(options)
    assert measured == ["act_step", "kl_step", "kl_step"]
    assert f"delete {tmp_path / '.unfinished'}" in capsys.readouterr().out
    kills.append(False)
    run.main(options)  # as in a checkout, where all rows are committed
    assert measured[3:] == ["act_step", "kl_step"]
    run.main([*options, "--only", "act_step"])
    assert measured[5:] == ["act_step"]
    assert sorted(file.name for file in tmp_path.iterdir()) == ["full"]


def test_rows_that_the_guard_does_not_compare_are_not_measured_in_the_quick_size(tmp_path, monkeypatch):
    measured = []

    def measure(row, size):
        measured.append((row.name, size.name))
        return {"rivals": {"ours": result(1.0)}, "ratios": {}}

    monkeypatch.setattr(run, "measure_row", measure)
    monkeypatch.setattr(run, "write_page", lambda folder: folder)
    run.main(["--output_dir", str(tmp_path), "--only", "act_step", "opct_short_step"])
    assert measured == [("act_step", "full"), ("opct_short_step", "full"), ("act_step", "quick")]


OLD = {"median": 3.0, "low": 2.8, "high": 3.2}  # quartiles, as rows held them before they kept each turn
NEW = spread([2.0, 2.8, 3.0, 3.2, 5.0])  # with the same quartiles


def write_quick(folder, ratio):
    file = folder / "quick" / "act_step.json"
    file.parent.mkdir()
    file.write_text(json.dumps({"ratios": {"whole model": ratio}}))
    return ["--quick", "--only", "act_step", "--output_dir", str(folder)]


@pytest.mark.parametrize("committed", [OLD, NEW])
@pytest.mark.parametrize(("now", "warns"), [(2.9, False), (2.2, True), (4.0, False)])
def test_the_guard_warns_of_what_slips_beyond_its_spread(tmp_path, monkeypatch, capsys, committed, now, warns):
    arguments = write_quick(tmp_path, committed)
    ratio = spread([now - 2, now - 0.1, now, now + 0.1, now + 2])
    monkeypatch.setattr(run, "measure_row", lambda row, size: {"ratios": {"whole model": ratio}})
    with pytest.raises(SystemExit) as end:
        run.main(arguments)
    assert end.value.code == (run.SLIPPED if warns else 0)
    said = capsys.readouterr().out
    line = "warning: act_step: whole model takes 2.2 (2.1 to 2.3) times as long as ours, and took 3 (2.8 to 3.2) times"
    assert (line in said) == warns
    last = "1 ratio fell by 10% or more. This may be noise: measure again on an idle machine. The exit status is 3, which `make` calls an error."
    assert said.splitlines()[-1] == (last if warns else "No ratio has slipped.")


@pytest.mark.parametrize(("factor", "fires"), [(0.98, False), (0.91, False), (0.85, True)])
def test_the_guard_fires_on_a_slip_and_not_on_noise(factor, fires):
    """Narrow quartiles of few turns, as the committed ones are: a drop of 2% lies beyond them."""
    committed, found = (spread([factor * ratio for ratio in (1.99, 2.0, 2.01)]) for factor in (1.0, factor))
    assert quartiles(found)["high"] < quartiles(committed)["low"]
    assert slipped(committed, found) == fires


@pytest.mark.parametrize("file", sorted((run.FOLDER / "quick").glob("*.json")), ids=lambda file: file.stem)
def test_the_guard_can_fire_on_each_committed_row(file):
    for committed in json.loads(file.read_text())["ratios"].values():
        turns = committed["each"]
        assert slipped(committed, spread([0.85 * ratio for ratio in turns]))
        assert not slipped(committed, spread([0.98 * ratio for ratio in turns]))


@pytest.mark.parametrize(("load", "is_busy"), [(4.4, True), (0.3, False)])
def test_the_guard_says_what_the_machine_does(tmp_path, monkeypatch, capsys, load, is_busy):
    arguments = write_quick(tmp_path, NEW)
    monkeypatch.setattr(run, "measure_row", lambda row, size: {"ratios": {"whole model": NEW}})
    monkeypatch.setattr(run.os, "getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setattr(run.os, "cpu_count", lambda: 2)
    with pytest.raises(SystemExit):
        run.main(arguments)
    first = capsys.readouterr().out.splitlines()[0]
    busy = " Other processes ran in the last minute. If they still run, the ratios are unreliable: run this again when the machine is idle."
    assert first == f"Load at the start: {load:.1f} on 2 cores.{busy if is_busy else ''}"


def write_ratio(folder, name, of):
    file = folder / "full" / f"{name}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"ratios": {"TRL": of}}))


def quartiles_of(low, high):
    return {"median": (low + high) / 2, "low": low, "high": high}


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        # Quartiles in both
        (quartiles_of(2, 3), quartiles_of(3, 4), "2.5 (2 to 3) and 3.5 (3 to 4), quartiles: agree"),
        (quartiles_of(1.2, 1.4), quartiles_of(1, 1.1), "1.3 (1.2 to 1.4) and 1.05 (1 to 1.1), quartiles: apart"),
        # Each turn in both
        (spread([2, 2, 2, 2, 6]), spread([5, 7, 7, 7, 7]), "2 (2 to 6) and 7 (5 to 7), all turns: agree"),
        (spread([1, 2, 3]), spread([4, 5, 6]), "2 (1 to 3) and 5 (4 to 6), all turns: apart"),
        # Each turn in one: its range would overlap with the quartiles, and its own quartiles do not.
        (quartiles_of(3, 4), spread([1, 1, 2, 2.5, 9]), "3.5 (3 to 4) and 2 (1 to 2.5), quartiles: apart"),
        (spread([1, 1, 2, 2.5, 9]), quartiles_of(3, 4), "2 (1 to 2.5) and 3.5 (3 to 4), quartiles: apart"),
        (spread([1, 1, 2, 3, 9]), quartiles_of(3, 4), "2 (1 to 3) and 3.5 (3 to 4), quartiles: agree"),
    ],
)
def test_two_runs_agree_where_their_spreads_overlap(tmp_path, capsys, first, second, said):
    write_ratio(tmp_path / "first", "act_step", first)
    write_ratio(tmp_path / "second", "act_step", second)
    with pytest.raises(SystemExit) as end:
        run.main(["--output_dir", str(tmp_path / "first"), "--agree", str(tmp_path / "second")])
    assert end.value.code == (run.SLIPPED if said.endswith("apart") else 0)
    assert capsys.readouterr().out == f"full, act_step, TRL: {said}\n"


def test_runs_without_a_ratio_in_common_are_refused(tmp_path):
    write_ratio(tmp_path / "first", "act_step", OLD)
    with pytest.raises(SystemExit, match="no ratio in common"):
        run.main(["--output_dir", str(tmp_path / "first"), "--agree", str(tmp_path / "third")])


def test_an_unknown_row_is_refused():
    with pytest.raises(
        SystemExit, match=r"there is no row act_stp\. Did you mean `act_step`.* The rows are opct_step, .*growth"
    ):
        run.main(["--only", "act_stp"])


def test_a_row_that_is_not_in_the_quick_set_is_refused(monkeypatch):
    monkeypatch.setattr(run, "measure_row", lambda row, size: pytest.fail("measured"))
    with pytest.raises(SystemExit, match=r"`--only`: growth is not in the quick set: opct_step, .*evaluate"):
        run.main(["--quick", "--only", "act_step", "growth"])


def git(folder, *words):
    who = ["-c", "user.name=A", "-c", "user.email=a@b.c"]
    subprocess.run(["git", "-C", str(folder), *who, *words], check=True, capture_output=True)


@pytest.mark.skipif(not shutil.which("git"), reason="git is not installed")
def test_the_commit_of_the_code_is_known_in_a_checkout(tmp_path, monkeypatch):
    (tmp_path / "tests").mkdir()
    (tmp_path / "docs").mkdir()
    code, results = tmp_path / "tests" / "code.py", tmp_path / "docs" / "row.json"
    for file in (code, results):
        file.write_text("1")
    assert run.commit(tmp_path) is None  # as in a source archive
    git(tmp_path, "init")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "One")
    results.write_text("2")  # what a run writes itself
    found = run.commit(tmp_path)
    assert re.fullmatch("[0-9a-f]{12}", found)
    code.write_text("2")
    assert run.commit(tmp_path) == f"{found}-dirty"
    assert run.commit(tmp_path / "docs") is None  # a folder within the checkout of something else
    monkeypatch.setenv("PATH", "")
    assert run.commit(tmp_path) is None


def test_a_machine_without_a_commit_leaves_it_out(monkeypatch):
    monkeypatch.setattr(run, "commit", lambda folder: None)
    assert "commit" not in run.machine()
    monkeypatch.setattr(run, "commit", lambda folder: "1a2b")
    assert run.machine()["commit"] == "1a2b"


@pytest.mark.long
@pytest.mark.parametrize("command", ["run --help", "gpu --list"])
def test_the_commands_do_not_tell_what_bitsandbytes_lacks(command):
    words = [sys.executable, "-W", "ignore", "-m", *f"tests.benchmarks.{command}".split()]
    assert subprocess.run(words, cwd=run.FOLDER.parents[1], capture_output=True, text=True).stderr == ""
