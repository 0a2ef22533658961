import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch


ROOT = Path(__file__).parents[2]


def run(directory, processes, batch_size, adapter, *method, script="distributed_run"):
    directory.mkdir()
    command = [sys.executable, "-m", f"tests.trainer.{script}"]
    if processes > 1:
        command[2:2] = ["torch.distributed.run", "--standalone", f"--nproc_per_node={processes}", "-m"]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    result = subprocess.run(
        [*command, str(directory), str(batch_size), adapter, *method],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr[-4000:]
    return torch.load(directory / "result.pt", weights_only=True)


@pytest.mark.parametrize(
    ("adapter", "method"),
    [
        pytest.param("full", ["bct"], marks=pytest.mark.slow),
        ("lora", ["bct"]),
        ("full", ["act"]),
        pytest.param("lora", ["act"], marks=pytest.mark.slow),
        ("lora", ["kl", "act", "attct", "mlpct", "bct"]),
    ],
)
def test_two_processes_equal_one(tmp_path, adapter, method):
    """Targets, weights after three steps and the loss of an evaluation set that does not divide evenly."""
    one = run(tmp_path / "one", 1, 8, adapter, *method)
    two = run(tmp_path / "two", 2, 4, adapter, *method)
    assert two["targets"] == one["targets"]
    assert torch.allclose(two["weights"], one["weights"], atol=1e-5)
    assert two["eval_loss"] == pytest.approx(one["eval_loss"], abs=1e-5)


@pytest.mark.parametrize(("adapter", "loss_type"), [("full", "policy_gradient"), ("lora", "divergence")])
def test_two_processes_equal_one_on_policy(tmp_path, adapter, loss_type):
    """On made-up rollouts, since two processes cannot sample what one samples; two micro-batches a step."""
    one = run(tmp_path / "one", 1, 8, adapter, loss_type, script="on_policy_run")
    two = run(tmp_path / "two", 2, 4, adapter, loss_type, script="on_policy_run")
    assert torch.allclose(two["weights"], one["weights"], atol=1e-5)
    assert len(one["logged"]) == len(two["logged"]) == 6
    for ours, theirs in zip([*two["logged"], two["metrics"]], [*one["logged"], one["metrics"]], strict=True):
        assert set(ours) == set(theirs)
        for name, value in theirs.items():
            assert ours[name] == pytest.approx(value, rel=1e-4, abs=1e-5), name
    tables = [tables_of(tmp_path / processes) for processes in ("one", "two")]
    assert len(tables[0]) == 6
    for name, rows in tables[0].items():
        assert [row[1:5] for row in tables[1][name]] == [row[1:5] for row in rows], name
        for ours, theirs in zip(tables[1][name], rows, strict=True):
            assert ours[5] == pytest.approx(theirs[5], abs=1e-5)


def tables_of(directory):
    """The rows of each table, in the order of their texts: processes share them out."""
    return {
        path.name: sorted((list(row.values()) for row in pq.read_table(path).to_pylist()), key=lambda row: row[1:5])
        for path in (directory / "completions").glob("completions_*")
    }
