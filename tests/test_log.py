"""Log messages name the process only where there are several."""

from pathlib import Path

import pytest
from accelerate import PartialState

import trl_consistency
from trl_consistency.log import get_logger


@pytest.mark.parametrize(("processes", "said"), [(1, "Half of 4 rows."), (2, "[RANK 0] Half of 4 rows.")])
def test_the_process_is_named_where_there_are_several(caplog, monkeypatch, processes, said):
    monkeypatch.setitem(PartialState()._shared_state, "num_processes", processes)
    get_logger("trl_consistency.here").warning("Half of %d rows.", 4)
    assert [(record.getMessage(), record.filename) for record in caplog.records] == [(said, Path(__file__).name)]


@pytest.mark.parametrize(("rank", "said"), [(None, True), ("0", True), ("1", False)])
def test_a_message_before_a_trainer_begins_no_process_group(caplog, monkeypatch, rank, said):
    """It began one without the `ddp_backend` and the `ddp_timeout` of the trainer to come, which were ignored then."""
    monkeypatch.setattr(PartialState, "_shared_state", {})
    monkeypatch.delenv("RANK", raising=False)
    if rank is not None:
        monkeypatch.setenv("RANK", rank)
    get_logger("trl_consistency.here").warning("Half of %d rows.", 4)
    records = [(record.getMessage(), record.filename) for record in caplog.records]
    assert records == [("Half of 4 rows.", Path(__file__).name)] * said
    assert not PartialState._shared_state


def test_all_modules_log_so():
    modules = Path(trl_consistency.__file__).parent.rglob("*.py")
    assert [path.name for path in modules if "from accelerate.logging import get_logger" in path.read_text()] == [
        "log.py"
    ]
