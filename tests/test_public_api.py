"""What users rely on changes only when it is meant to."""

import re
from pathlib import Path

import pytest
import yaml

import trl_consistency
from tests.public_api import LIST, describe, public_api


ROOT = Path(__file__).parents[1]


def test_public_api():
    """Meant to change? Say so in CHANGELOG.md, and run `python -m tests.public_api`."""
    listed, found = LIST.read_text().splitlines(), public_api()
    gone = [line for line in listed if line not in found]
    new = [line for line in found if line not in listed]
    assert (gone, new) == ([], [])
    assert len(set(found)) == len(found) > 100


def test_names_of_the_package_are_those_that_are_documented():
    assert trl_consistency.__all__ == [
        "ConsistencyConfig",
        "ConsistencyError",
        "ConsistencyEvalCallback",
        "ConsistencyTrainer",
        "InvalidPairsError",
        "OnPolicyConsistencyConfig",
        "OnPolicyConsistencyTrainer",
    ]


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        (lambda first, second=1: 0, "f(first, second=)"),
        (lambda first, second: 0, "f(first, second)"),
        (lambda first, *, other=None, **more: 0, "f(first, other=, **more)"),
    ],
)
def test_a_changed_parameter_is_seen(changed, line):
    assert describe("f", changed) == [line]


def test_a_changed_method_is_seen():
    class Mine:
        def rate(self, of, by=1): ...

        def _private(self): ...

        @property
        def name(self): ...

    Mine.__module__ = "trl_consistency.x"
    assert describe("Mine", Mine) == ["Mine()", "Mine.name", "Mine.rate(of, by=)"]


def test_one_version_everywhere():
    version = trl_consistency.__version__
    assert re.fullmatch(r"\d+\.\d+\.\d+(\.dev0)?", version)
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == version
    headings = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    dated = [heading for heading in headings if heading != "Unreleased"]
    assert re.fullmatch(rf"{re.escape(version)} \(\d{{4}}-\d\d-\d\d\)", dated[0])
    assert re.search(r"\((.+)\)", dated[0])[1] == str(
        yaml.safe_load((ROOT / "CITATION.cff").read_text())["date-released"]
    )
    assert "version" not in re.findall(
        r"^(\w+) = ", (ROOT / "pyproject.toml").read_text().split("[project]")[1].split("\n[")[0], re.MULTILINE
    )
