"""Several processes train the same: what one was given otherwise is an error in all of them."""

from types import SimpleNamespace

import pytest

from tests.helpers.models import make_pairs
from tests.helpers.paired import make_trainer
from trl_consistency import ConsistencyError
from trl_consistency.trainer.run import processes


@pytest.fixture
def trainer(tmp_path):
    trainer = make_trainer(tmp_path, make_pairs(), eval_dataset=make_pairs(3), method="kl")
    trainer.run_record.run = trainer.run_record._describe_run()
    return trainer


def check(trainer, monkeypatch, **other):
    """As one of two processes, of which the second has `other` things."""
    described = SimpleNamespace(
        accelerator=SimpleNamespace(num_processes=2),
        model=trainer.model,
        recorded_data=trainer.recorded_data,
        eval_dataset=trainer.eval_dataset,
    )
    monkeypatch.setattr(processes, "is_sharded", lambda accelerator: False)
    monkeypatch.setattr(processes, "gather_object", lambda runs: [*runs, runs[0] | other])
    processes.check_same(described, trainer.run_record.run)


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("train_dataset", "Give all the same rows in the same order"),
        ("eval_dataset", "Give all the same rows in the same order"),
        ("model", "Give all the same weights"),
        ("seed", "Set it alike in all"),
        ("rows_per_step", "Set it alike in all"),
    ],
)
def test_what_one_process_has_otherwise_is_named(trainer, monkeypatch, name, advice):
    with pytest.raises(
        ConsistencyError, match=rf"Process 1 has another `{name}` than process 0 \(x, and not .*\)\. {advice}"
    ):
        check(trainer, monkeypatch, **{name: "x"})


def test_equal_processes_pass(trainer, monkeypatch):
    check(trainer, monkeypatch)


def test_shards_are_not_compared(trainer, monkeypatch):
    """Of a sharded model, one process alone may have the weights."""
    compared = []
    check(trainer, monkeypatch)
    monkeypatch.setattr(processes, "is_sharded", lambda accelerator: True)
    monkeypatch.setattr(processes, "gather_object", lambda runs: compared.extend(runs) or [*runs, *runs])
    trainer.accelerator = SimpleNamespace(num_processes=2)
    processes.check_same(trainer, trainer.run_record.run)
    assert "train_dataset" in compared[0]
    assert "model" not in compared[0]
