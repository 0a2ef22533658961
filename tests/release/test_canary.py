"""The canary's report. `make canary` itself installs gigabytes."""

import pytest

from tests.release.canary import CORE, summary
from tests.release.environments import ROOT


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
