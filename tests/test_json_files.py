from datetime import date

import pytest

from trl_consistency.errors import ConsistencyError
from trl_consistency.json_files import as_json, object_in, strict_json


def test_what_json_cannot_hold():
    row = {"day": date(2026, 1, 2), "values": [float("nan"), 1.5], "raw": b"ab"}
    written = as_json(row, bytes_as_text=True)
    assert written == {"day": "2026-01-02", "values": [None, 1.5], "raw": "b'ab'"}
    with pytest.raises(ConsistencyError, match="`raw` holds bytes"):
        as_json(row)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"a": {"b": 1, "b": 2}}', "the key 'b' is given twice"),
        ('[{"a": NaN}]', "NaN is not a number"),
        ("[-Infinity]", "-Infinity is not a number"),
        ("[1e999]", "1e999 is not a number"),
        ("{", "Expecting"),
    ],
)
def test_what_strict_json_refuses(text, reason):
    assert strict_json('{"a": [1, 2.5, "NaN"], "b": {"a": null}}') == {"a": [1, 2.5, "NaN"], "b": {"a": None}}
    with pytest.raises(ValueError, match=reason):
        strict_json(text)


@pytest.mark.parametrize("content", [None, "", "[1]", "null", '{"a": 1', "[" * 100_000, b"\xff"])
def test_files_without_an_object(tmp_path, content):
    file = tmp_path / "file.json"
    if content is not None:
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert object_in(file) is None
    file.write_text('{"a": null}')
    assert object_in(file) == {"a": None}
