"""The benchmark itself at a tiny size: each row runs, and the page is made of what it finds."""

import json
import time

import pytest

from tests.benchmarks import floor, growth, page, run
from tests.benchmarks.growth import DIMENSIONS, exponent, measure_growth
from tests.benchmarks.rows import ENGINES, ROWS
from tests.benchmarks.sizes import SIZES
from tests.benchmarks.turns import Turns, growth_of_memory, run_command


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

        def end(self):
            return {"peak": 0.0, "steps": self.steps}

    monkeypatch.setattr(run, "Worker", Made)
    few, many = run.measure_row(ROWS["lint"], TINY)["rivals"].values()
    assert (few["turns"], few["steps"], few["cpu"]["low"]) == (2, 3, 2.25)  # the first step warms up
    assert (many["turns"], many["steps"], many["cpu"]["low"]) == (1, 1, 1.0)


MIB = 2**20


def test_a_peak_is_not_hidden_by_what_was_held_before():
    _ = bytearray(400 * MIB)
    del _
    turns = TwoTurns()
    _ = bytearray(100 * MIB)
    turns.end()
    assert 95 < turns.said[0]["peak"] < 150


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


def test_a_row_without_its_package_is_left_out(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(run, "find_spec", lambda name: None)
    run.measure_all(tmp_path, TINY, ["engine_opct"], again=False)
    assert capsys.readouterr().out == "engine_opct: left out, since vllm is not installed\n"
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_growth():
    found = measure_growth(TINY)["growth"]
    assert set(found) == set(DIMENSIONS)
    assert found["layers"]["expected"] == pytest.approx(1, abs=0.3)


def test_processes_take_the_fastest_of_some_runs(monkeypatch):
    took = iter([(4.0, 4.0), (5.0, 3.0), (3.0, 5.0), (6.0, 2.0), (3.5, 6.0), (7.0, 4.0)])
    monkeypatch.setattr(growth, "measure_step", lambda count: dict(zip(("cpu", "wall"), next(took), strict=True)))
    found = growth.measure_processes(TINY)["processes"]
    assert found == {"counts": (1, 2), "cpu": [3.0, 5.0], "wall": [4.0, 2.0]}


def test_the_exponent_of_a_power_is_found():
    assert exponent((1, 2, 4), [3.0, 12.0, 48.0]) == pytest.approx(2)


def test_spread_and_ratio():
    assert run.spread([1, 2, 3, 4, 5]) == {"median": 3, "low": 2, "high": 4}
    ours, others = ([{"cpu": factor * cpu, "wall": 1.0} for cpu in (1.0, 2.0, 4.0)] for factor in (1, 2))
    found = run.ratio(ours, others, "cpu")
    assert found == {"median": 2, "low": 2, "high": 2}  # a busy machine slows down both
    assert run.ratio(ours, others, "wall")["median"] == 1


def test_a_killed_run_goes_on(tmp_path, monkeypatch):
    measured = []

    def measure(row, size):
        measured.append(row.name)
        if row.name == "kl_step" and len(measured) < 4:
            raise KeyboardInterrupt
        return {"rivals": {"ours": result(1.0)}, "ratios": {}}

    monkeypatch.setattr(run, "measure_row", measure)
    only = ["act_step", "kl_step"]
    with pytest.raises(KeyboardInterrupt):
        run.measure_all(tmp_path, TINY, only, again=False)
    with pytest.raises(KeyboardInterrupt):
        run.measure_all(tmp_path, TINY, only, again=False)
    run.measure_all(tmp_path, TINY, only, again=False)
    assert measured == ["act_step", "kl_step", "kl_step", "kl_step"]


@pytest.mark.parametrize(("now", "warns"), [(2.9, False), (2.2, True), (4.0, False)])
def test_the_guard_warns_of_what_slips_beyond_its_spread(tmp_path, monkeypatch, capsys, now, warns):
    file = tmp_path / "quick" / "act_step.json"
    file.parent.mkdir()
    file.write_text(json.dumps({"ratios": {"whole model": {"median": 3.0, "low": 2.8, "high": 3.2}}}))
    ratio = {"median": now, "low": now - 0.1, "high": now + 0.1}
    monkeypatch.setattr(run, "measure_row", lambda row, size: {"ratios": {"whole model": ratio}})
    with pytest.raises(SystemExit) as end:
        run.main(["--quick", "--only", "act_step", "--output_dir", str(tmp_path)])
    assert end.value.code == (run.SLIPPED if warns else 0)
    assert ("warning: act_step" in capsys.readouterr().out) == warns


def test_two_runs_agree_where_ranges_overlap(tmp_path, capsys):
    def write(folder, name, low, high):
        file = tmp_path / folder / "full" / f"{name}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({"ratios": {"TRL": {"median": (low + high) / 2, "low": low, "high": high}}}))

    write("first", "act_step", 2.0, 3.0)
    write("second", "act_step", 3.0, 4.0)
    words = ["--output_dir", str(tmp_path / "first"), "--agree", str(tmp_path / "second")]
    with pytest.raises(SystemExit) as end:
        run.main(words)
    assert end.value.code == 0
    write("first", "kl_step", 1.2, 1.4)
    write("second", "kl_step", 1.0, 1.1)
    with pytest.raises(SystemExit) as end:
        run.main(words)
    assert end.value.code == run.SLIPPED
    lines = capsys.readouterr().out.splitlines()[1:]
    assert lines == [
        "full, act_step, TRL: 2.5 (2 to 3) and 3.5 (3 to 4): agree",
        "full, kl_step, TRL: 1.3 (1.2 to 1.4) and 1.05 (1 to 1.1): apart",
    ]
    with pytest.raises(SystemExit, match="no ratio in common"):
        run.main(["--output_dir", str(tmp_path / "first"), "--agree", str(tmp_path / "third")])


def test_an_unknown_row_is_refused():
    with pytest.raises(SystemExit, match="Did you mean `act_step`"):
        run.main(["--only", "act_stp"])


def test_the_page(tmp_path):
    folder = tmp_path / "benchmarks"
    (folder / "full").mkdir(parents=True)
    machine = {
        "processor": "A",
        "cores": 2,
        "load": 0.5,
        "python": "3",
        "torch": "1",
        "trl": "2",
        "transformers": "3",
        "peft": "4",
    }
    rows = {
        "act_step": {
            "rivals": {
                "ours": {**result(2.0), "profile": {"aten::mm": 0.6, "aten::addmm": 0.2}},
                "whole model": result(6.0),
            },
            "ratios": {"whole model": {"median": 3.0, "low": 2.9, "high": 3.1}},
            "floor": {"operations": 8e9, "rate": {"median": 8e9}, "share": {"ours": 0.5, "whole model": 0.17}},
        },
        "growth": {"growth": {"layers": {"seconds": [1, 2, 6], "exponent": 1.3, "expected": 1.0}}},
        "processes": {"processes": {"counts": [1, 2], "cpu": [4.0, 4.0], "wall": [4.0, 2.0]}},
        "lint": {
            "rivals": {
                "10": {**result(5.0), "turns": 3},
                "110": {**result(6.0), "turns": 3},
                "1010": {**result(105.0, 7.0), "turns": 1},
            }
        },
    }
    for name, row in rows.items():
        (folder / "full" / f"{name}.json").write_text(json.dumps({"machine": machine, **row}))
    text = page.write_page(folder).read_text()
    assert "| whole model | 6 (6 to 6) | 6 (6 to 6) | 100 | 3 (2.9 to 3.1) | 0.17 |" in text
    assert "Our time goes into matrix products 80%." in text
    assert "`act_step` is farthest from its floor: 0.50." in text
    assert "With *layers* the step grows by an exponent of 1.30, and 1.00 would do." in text
    assert "| 1,010 rows | 105 (once) | 105 (once) | 7 |" in text
    assert "| `lint` | 2.00 | 1 |" in text
    assert "`lint` grows by an exponent of 2.00 with the rows" in text
    assert "| CPU seconds of all processes | 4 | 4 | 0.00 | 0 |" in text
    assert "| wall seconds | 4 | 2 | -1.00 | -1 on free cores |" in text
    assert "Nobody has had a device yet." in text
    assert "busy" not in text
    assert (folder / "ratios.png").stat().st_size > 1000


@pytest.mark.parametrize(("wall", "said"), [(1.01, "seconds include what others did"), (1.2, "seconds hardly")])
def test_the_page_says_that_other_processes_ran(tmp_path, wall, said):
    of = {**result(2.0), "wall": {"median": 2.0 * wall, "low": 2.0, "high": 3.0}}
    machine = dict.fromkeys(("processor", "cores", "python", "torch", "trl", "transformers", "peft"), "1")
    rows = {"act_step": {"machine": {**machine, "load": 4.0}, "rivals": {"ours": of}}}
    text = page._machine(rows)
    assert "load up to 4" in text
    assert said in text
