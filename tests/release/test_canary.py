"""The canary's report. `make canary` itself installs gigabytes."""

import subprocess
import sys

import pytest

from tests.release import canary
from tests.release.canary import CORE, FOLLOWED, summary
from tests.release.environments import CONSTRAINTS, ROOT


VERSIONS = {"trl": "9.0", "peft": "8.1"}


def test_what_broke_is_named():
    output = "..F\n=== short test summary info ===\nFAILED tests/a.py::test_x - TypeError: no\nERROR tests/b.py\n1 failed, 2 passed in 1s\n"
    assert summary(output, VERSIONS).splitlines() == [
        "2 test(s) broke with trl 9.0, peft 8.1:",
        "  FAILED tests/a.py::test_x - TypeError: no",
        "  ERROR tests/b.py",
        "1 failed, 2 passed in 1s",
    ]


@pytest.mark.parametrize(
    ("output", "said"),
    [("..\n2 passed in 1s\n", "Nothing broke"), ("", "No test ran"), ("no tests ran in 1s", "No test ran")],
)
def test_nothing_is_said_to_pass_that_did_not_run(output, said):
    assert summary(output, VERSIONS).startswith(f"{said} with trl 9.0")


@pytest.mark.parametrize("path", CORE)
def test_core_tests_are_there(path):
    assert (ROOT / path).exists()


def test_torch_is_the_known_one_and_the_libraries_are_the_newest(monkeypatch, tmp_path, capsys):
    installed = []
    monkeypatch.setattr(canary, "install", lambda programs, *wanted: installed.append(wanted))
    monkeypatch.setattr(canary, "run", lambda command, folder: " ".join("1.0" for _ in (*FOLLOWED, "torch")))
    done = subprocess.CompletedProcess([], 0, "2 passed in 1s", "")
    monkeypatch.setattr(canary.subprocess, "run", lambda *_, **__: done)
    monkeypatch.setattr(sys, "argv", ["canary", "--folder", str(tmp_path)])
    with pytest.raises(SystemExit):
        canary.main()
    assert installed[0] == ("--constraint", str(CONSTRAINTS), "torch")
    assert installed[1][: 1 + len(FOLLOWED)] == ("--upgrade", *FOLLOWED)
    assert "huggingface_hub 1.0, torch 1.0" in capsys.readouterr().out
