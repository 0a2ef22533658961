"""The page of the benchmark: what it is made of, and that it is up to date."""

import json
import shutil

import pytest
from matplotlib.axes import Axes

from tests.benchmarks import page, page_gpu, quotes, run
from tests.benchmarks.spreads import inverse, spread
from tests.benchmarks.words import dates, memory, turns


OLD = {"median": 3.0, "low": 2.8, "high": 3.2}  # quartiles, as rows held them before they kept each turn
NEW = spread([2.0, 2.8, 3.0, 3.2, 5.0])  # with the same quartiles


def result(cpu, peak=100.0):
    return {
        "cpu": {"median": cpu, "low": cpu, "high": cpu},
        "wall": {"median": cpu, "low": cpu, "high": cpu},
        "peak": peak,
    }


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
    rows["lint"]["machine"] = {**machine, "processor": "B"}
    del rows["act_step"]["rivals"]["ours"]["peak"]
    for name, row in rows.items():
        (folder / "full" / f"{name}.json").write_text(json.dumps({"machine": machine, **row}))
    text = page.write_page(folder).read_text()
    assert "| whole model | 6 (6 to 6) | 6 (6 to 6) | 100 | 3 (2.9 to 3.1) | 0.17 |" in text
    assert "Of our time: 80% matrix products." in text
    assert "`act_step` is farthest from its floor: 0.50." in text
    assert "With *layers* the step grows by an exponent of 1.30, and 1.00 would do." in text
    assert "| 1,010 pairs | 105 (once) | 105 (once) | 7 |" in text
    assert "| `lint` | 2.00 | 1 |" in text
    assert "`lint` grows by an exponent of 2.00 with the pairs" in text
    assert "| CPU seconds of all processes | 4 | 4 | 0.00 | 0 |" in text
    assert "| wall seconds | 4 | 2 | -1.00 | -1 on free cores |" in text
    assert "Nobody has had a device yet." in text
    assert "Machine, where a table names no other: A (family and model not recorded), 2 cores" in text
    assert text.count("Measured on another machine: B (family and model not recorded).") == 1
    assert text.count("| not recorded |") == 1
    assert (folder / "ratios.png").stat().st_size > 1000


def _results(tmp_path, size, rows):
    folder = tmp_path / "benchmarks"
    (folder / size).mkdir(parents=True)
    machine = dict.fromkeys(("processor", "cores", "python", "torch", "trl", "transformers", "peft"), "1")
    for name, (own, ratio) in rows.items():
        other = {"cpu": ratio, "wall": ratio, "peak": 1.0}
        row = {"rivals": {"ours": {"cpu": own, "wall": own, "peak": 1.0}, "other": other}, "ratios": {"other": ratio}}
        (folder / size / f"{name}.json").write_text(json.dumps({"machine": {**machine, "load": None}, **row}))
    return folder


def test_each_table_says_which_spread_its_row_holds(tmp_path):
    folder = _results(tmp_path, "full", {"act_step": (OLD, OLD), "kl_step": (NEW, NEW), "start": (NEW, NEW)})
    text = page.write_page(folder).read_text()
    one, two, three = (of.partition("\n\n## ")[0] for of in text.split("\n### ")[1:])
    head = "CPU seconds: {0} | wall seconds: {0} | peak, MiB |"
    assert f"{head.format('median (quartiles)')} rival's time ÷ our time: median (quartiles) |" in one
    assert "| other | 3 (2.8 to 3.2) | 3 (2.8 to 3.2) | 1 | 3 (2.8 to 3.2) |" in one
    assert f"{head.format('median (min to max of 5 turns)')} rival's time ÷ our time: median (range) |" in two
    assert "| other | 3 (2 to 5) | 3 (2 to 5) | 1 | 3 (2 to 5) |" in two
    assert "quartiles" not in two
    assert f"|  | {head.format('median (min to max of 5 turns)')}" in three


def test_a_row_of_one_turn_has_no_spread(tmp_path):
    once = spread([1020.4])
    text = page.write_page(_results(tmp_path, "full", {"act_step": (once, once)})).read_text()
    assert "| other | 1,020 (once) | 1,020 (once) | 1 | 1,020 (once) |" in text


def test_the_page_says_on_which_days_rows_were_measured():
    first, last = ({"machine": {"date": date}} for date in ("2026-11-23", "2026-11-26"))
    assert dates({"a": first, "b": first}) == " Measured on 2026-11-23; the commit was not recorded."
    assert "from 2026-11-23 to 2026-11-26" in dates({"a": last, "b": first, "c": {"machine": {}}})
    assert dates({"c": {"machine": {}}}) == ""


def test_the_page_says_at_which_commit_rows_were_measured():
    known = {"machine": {"date": "2026-12-01", "commit": "1a2b"}}
    assert dates({"a": known, "b": known}) == " Measured on 2026-12-01, at commit `1a2b`."
    other = {"machine": {"date": "2026-12-01"}}
    assert dates({"a": known, "b": other}).endswith("at commit `1a2b`; that of other rows was not recorded.")


def test_the_page_compares_processors(tmp_path):
    folder = _results(tmp_path, "full", {"act_step": (NEW, NEW), "kl_step": (NEW, NEW)})
    there = folder / "elsewhere" / "slow"
    there.mkdir(parents=True)
    row = json.loads((folder / "full" / "act_step.json").read_text())
    row["machine"]["processor"] = "Slow"
    row["ratios"]["other"] = spread([6.0, 7.0, 8.0])
    row["floor"] = {"operations": 1.0, "rate": {"median": 3e9}, "share": {"ours": 0.25, "other": 0.1}}
    (there / "act_step.json").write_text(json.dumps(row))
    section = page.write_page(folder).read_text().partition("## On other processors")[2].partition("\n## ")[0]
    assert "### Slow (family and model not recorded)\n\nAn earlier run on 1 cores, with torch 1" in section
    assert "rival's time ÷ ours, Slow (family and model not recorded) |" in section
    assert "It multiplies matrices at 3 to 3 GFLOP/s." in section
    assert "| ACT's step | other | 3 (2 to 5) | 7 (6 to 8) |  | 0.25 |" in section
    assert "KL's step" not in section


@pytest.mark.parametrize("second", [NEW, OLD])
def test_the_table_of_the_guard_has_the_quartiles_that_it_compares(tmp_path, second):
    folder = _results(tmp_path, "quick", {"act_step": (NEW, NEW), "kl_step": (second, second)})
    text = page.write_page(folder).read_text()
    assert "rival's time ÷ our time: median (quartiles) |" in text
    for name, title in (("act_step", "ACT's step"), ("kl_step", "KL's step")):
        assert f"| [`{name}`](benchmarks/quick/{name}.json) | {title} | other | 3 (2.8 to 3.2) | 2.7 |" in text
    assert "on a smaller model: 2 blocks of width 256" in text
    assert "Single turns here lie up to 33% below their median" in text


@pytest.mark.parametrize("second", [NEW, OLD])
def test_the_picture_says_what_its_bars_are(tmp_path, monkeypatch, second):
    said, set_xlabel = [], Axes.set_xlabel
    monkeypatch.setattr(Axes, "set_xlabel", lambda axes, text: (said.append(text), set_xlabel(axes, text)))
    page.write_page(_results(tmp_path, "full", {"act_step": (NEW, NEW), "kl_step": (second, second)}))
    whole = "any turn of theirs ÷ any of ours" if second == NEW else "quartiles"
    assert said[0].endswith(f"bar: {whole} (none of one turn)")
    assert "log scale" in said[0]


@pytest.mark.parametrize(
    ("wall", "said"),
    [(1.01, "so the ratios are reliable; the seconds may be too high"), (1.2, "the ratios are rough")],
)
def test_the_page_says_that_other_processes_ran(wall, said):
    of = {**result(2.0), "wall": {"median": 2.0 * wall, "low": 2.0, "high": 3.0}}
    machine = dict.fromkeys(("processor", "cores", "python", "torch", "trl", "transformers", "peft"), "1")
    rows = {"act_step": {"machine": {**machine, "load": 4.0}, "rivals": {"ours": of}}}
    rows["engine_opct"] = {"machine": {**machine, "load": 9.0}, "rivals": {}}  # its own processes are a load, too
    text = page._machine(rows)
    assert "load up to 4" in text
    assert said in text


def test_other_pages_quote_what_was_measured():
    results = page._read(run.FOLDER / "full")
    for name in quotes.PAGES:
        file = run.FOLDER.parent / name
        assert quotes.made_page(file, results) == file.read_text(encoding="utf-8"), (
            "run `tests.benchmarks.page.write_page`"
        )


def test_a_table_of_another_page_says_what_was_not_measured():
    both = {"padding-free": result(2.0), "padded": result(5.0)}
    assert "| BCT         | 5.00         | 2.00 (2.5 times as fast) | not measured |" in quotes.padding_table(
        {"padding_bct": {"rivals": both}}
    )
    step = {"rivals": {"ours": result(2.0, peak=30.0), "TRL": result(8.0)}, "ratios": {"TRL": {"median": 4.04}}}
    rows = quotes.sharing_table({"opct_step": step}).splitlines()
    assert [cell.strip() for cell in rows[2].split("|")][1:-1] == [
        "512 and 128, 8 rollouts of 64",
        "8.00",
        "2.00",
        "4.0",
        "0.30",
    ]
    assert rows[3].count("not measured") == 4


def test_two_turns_are_both_shown():
    assert turns(spread([5.27, 5.42])) == "5.27 and 5.42"
    assert turns(spread([1.0, 2.0, 4.0])) == "2 (1 to 4)"
    assert turns(spread([1.0])) == "1 (once)"


def test_a_peak_that_is_hardly_there_is_not_zero():
    assert [memory(peak) for peak in (None, 0.0, 0.7, 1149.2)] == ["not recorded", "under 1", "under 1", "1,149"]


def test_a_ratio_is_turned_round():
    assert inverse(spread([0.25, 0.5])) == {"median": 3.0, "low": 2.0, "high": 4.0, "each": [4.0, 2.0]}
    assert inverse({"median": 0.4, "low": 0.25, "high": 0.5}) == {"median": 2.5, "low": 2.0, "high": 4.0}


def test_rows_of_vllm_have_our_time_as_their_base(tmp_path):
    """Stored rows compare transformers with vLLM."""
    folder = _results(tmp_path, "full", {"engine_opct": (NEW, NEW)})
    file = folder / "full" / "engine_opct.json"
    row = json.loads(file.read_text())
    row["rivals"] = {"vLLM": row["rivals"]["other"], "transformers": row["rivals"]["ours"]}
    row["ratios"] = {"transformers": spread([0.5, 0.8, 0.4])}
    file.write_text(json.dumps(row))
    text = page.write_page(folder).read_text()
    section = text.partition("## vLLM, measured under load")[2].partition("\n## ")[0]
    assert "rival's time ÷ that of transformers: median (range) |" in section
    assert section.index("| transformers |") < section.index("| vLLM |")
    assert "| 2 (1.25 to 2.5) |" in section


def test_restarted_processes_are_mentioned():
    restarted, others = {"ratios": {"TRL": NEW}, "sittings": 2}, {"ratios": {"TRL": NEW}}
    assert page._sittings({"act_step": restarted}).endswith("or after each.")
    assert page._sittings({"act_step": restarted, "bct_step": others}).endswith("Of `act_step` only.")
    assert page._sittings({"bct_step": others}) == ""


def test_pieces_of_gpus_are_listed_by_kind(tmp_path):
    flex = json.loads((run.FOLDER / "gpu" / "flex.json").read_text())
    section = page_gpu.section({"flex": flex}, tmp_path / "benchmarks" / "gpu")
    assert "| 0 of 18 |" in section
    assert "`.venv/bin/python -m tests.benchmarks.gpu --cpu`" in section
    assert "rank 16" in section
    assert "(benchmarks/gpu/flex.json)" in section
    assert "FlexAttention: share of the device's rate" in section
    assert "| 8,192 tokens | 205 | 2.07 | 1.81 | 11.3 | 1.43 | 1.42 | 11.1 | 1.28 | 0.115 | 0.147 | 1e-05 |" in section
    assert "ran" not in section.rpartition("|")[2].split()


def test_the_committed_page_is_made_of_the_committed_figures(tmp_path):
    """A copy of the figures gives the same page."""
    shutil.copytree(run.FOLDER, tmp_path / "benchmarks")
    page.write_page(tmp_path / "benchmarks")
    made, committed = ((folder / "benchmarks.md").read_text() for folder in (tmp_path, run.FOLDER.parent))
    assert made == committed, "run `tests.benchmarks.page.write_page`"


def test_what_improves_next_is_at_the_end():
    headings = [line for line in (run.FOLDER.parent / "benchmarks.md").read_text().splitlines() if line[:3] == "## "]
    assert headings[-1] == "## What to improve next"
