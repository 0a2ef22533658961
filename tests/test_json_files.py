from datetime import date

import pytest

from trl_consistency.errors import ConsistencyError
from trl_consistency.json_files import as_json


def test_what_json_cannot_hold():
    row = {"day": date(2026, 1, 2), "values": [float("nan"), 1.5], "raw": b"ab"}
    written = as_json(row, bytes_as_text=True)
    assert written == {"day": "2026-01-02", "values": [None, 1.5], "raw": "b'ab'"}
    with pytest.raises(ConsistencyError, match="`raw` holds bytes"):
        as_json(row)
