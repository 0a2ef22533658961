"""Hostile and broken input, and the one line that answers each kind: before weights load, and without running anything."""

import re

import pytest

from tests.hostile_input.page import PAGE, SECTIONS, page
from tests.hostile_input.room import Room
from trl_consistency import ConsistencyError


pytestmark = pytest.mark.long


@pytest.fixture
def room(tmp_path, model_dir, monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("weights were loaded before the error")

    monkeypatch.setattr("transformers.PreTrainedModel.from_pretrained", refuse)
    return Room(tmp_path, model_dir, monkeypatch)


ALL = [case for cases in SECTIONS.values() for case in cases]


def without_dashes(message: str) -> str:
    """Returns a message of Python and that of the command line alike. tests/test_cli.py tests how they differ."""
    return re.sub(r"`(\w+): ([\w.-]+)`", r"`\1 \2`", message.replace("`--", "`"))


def expected(message: str) -> str:
    return ".*".join(map(re.escape, without_dashes(message).split("…")))


@pytest.mark.parametrize("case", ALL, ids=[case.id for case in ALL])
def test_hostile_input(case, room, capsys):
    with pytest.raises((ConsistencyError, SystemExit, TypeError)) as end:
        case.meet(room)
    message = str(end.value)
    if isinstance(end.value, SystemExit):
        code = end.value.code
        assert code not in (0, None)
        said = code if isinstance(code, str) else capsys.readouterr().err
        errors = [line for line in said.splitlines() if "error: " in line]
        assert len(errors) == 1, said
        assert "Traceback" not in said
        message = said[said.index("error: ") :].removeprefix("error: ").strip()
    first, *rows = message.splitlines()
    assert all(row.startswith("  ") for row in rows), "one line, and below it rows"
    message = " ".join([first, *map(str.strip, rows)])
    if not re.fullmatch(expected(case.message), without_dashes(message)):
        pytest.fail(f"another message: {message}", pytrace=False)
    assert not room.trap.exists(), "hostile code was run"


def test_ids_are_unique():
    assert len({case.id for case in ALL}) == len(ALL) >= 60


def test_the_page_is_made_of_the_table():
    assert PAGE.read_text(encoding="utf-8") == page(), "run `python -m tests.hostile_input.page`"
