"""Two processes on CPU follow one, in every way of sharing the model out that the docs call tested."""

import itertools
import json
import os
import re
import socket
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from unittest.mock import Mock

import pyarrow.parquet as pq
import pytest
import torch
from accelerate.commands.config.config_args import load_config_from_file

from tests.helpers import distributed_run
from tests.helpers.distributions import make_sharp_model
from tests.helpers.models import make_tokenizer
from tests.helpers.once import made_once
from tests.helpers.vllm_stand_in import Server
from trl_consistency.generation import vllm_engine
from trl_consistency.trainer.run import checks


ROOT = Path(__file__).parents[2]
CONFIGS = ROOT / "recipes" / "accelerate_configs"
CONFIG_OF = {"DDP": "multi_cpu", "FSDP2": "fsdp2", "ZeRO-2": "zero2", "ZeRO-3": "zero3"}
PAIRED, ON_POLICY = "distributed_run", "on_policy_run"

# Every case of the docs' table: all objectives on the reference's passes at once, BCT alone (which has no reference),
# ACT alone (which leaves out blocks and the head), and both losses of OPCT.
RUNS = {
    "bct": (PAIRED, "bct"),
    "act": (PAIRED, "act"),
    "kl, act, attct, mlpct, bct": (PAIRED, "kl+act+attct+mlpct+bct"),
    "OPCT": (ON_POLICY, "divergence"),
    "OPCT, policy gradient": (ON_POLICY, "policy_gradient"),
}
CASES = [(row, adapter, name) for name in CONFIG_OF for row in RUNS for adapter in ("lora", "full")]
QUANTISED = [(row, "qlora", name) for name in CONFIG_OF for row in RUNS]
QUICK = [
    ("kl, act, attct, mlpct, bct", "lora", "DDP"),
    ("OPCT", "full", "DDP"),
    ("act", "full", "FSDP2"),  # whose reference is a copy
]


def needs_deepspeed(name):
    if name.startswith("ZeRO") and find_spec("deepspeed") is None:
        pytest.skip("deepspeed is not installed")


@pytest.fixture(scope="module")
def sharp_model(tmp_path_factory):
    directory = tmp_path_factory.mktemp("sharp")
    make_sharp_model().save_pretrained(directory)
    make_tokenizer().save_pretrained(directory)
    return directory


@pytest.fixture(scope="module")
def one_process():
    """Results of one process, by what it ran."""
    return {}


@pytest.fixture(scope="module")
def quick_results(tmp_path_factory, sharp_model):
    """Results of two processes in the cases of `make test-long`, by case: one start for all of a kind."""

    def run_in_turn(folder, name):
        quick = [case for case in QUICK if case[2] == name]
        runs = [
            (
                RUNS[row][0],
                *arguments_of(folder / str(number), sharp_model, 2, adapter, RUNS[row][1], others_of(*case)),
            )
            for number, case in enumerate(quick)
            for row, adapter, _ in [case]
        ]
        launch(name, "no", ["-m", "tests.helpers.in_turn", json.dumps(runs)])
        return {case: load_result(folder / str(number)) for number, case in enumerate(quick)}

    return lambda name: made_once(tmp_path_factory, f"two_processes_{name}", lambda folder: run_in_turn(folder, name))[
        1
    ]


def run(directory, model, name, script, adapter, method, **others):
    """Trains on a global batch of 8, in this process alone or in two others, as an accelerate config has it."""
    arguments = arguments_of(directory, model, 1 if name is None else 2, adapter, method, others)
    if name is None:
        import_module(f"tests.helpers.{script}").main(*arguments)
    else:
        launch(name, "bf16" if others.get("bf16") else "no", ["-m", f"tests.helpers.{script}", *arguments])
    return load_result(directory)


def arguments_of(directory, model, processes, adapter, method, others):
    directory.mkdir()
    return [str(directory), str(model), str(8 // processes), adapter, method, json.dumps(others)]


def others_of(row, adapter, name):
    """Further options of a case."""
    # FSDP has no whole model that could make targets. TRL trains with gradient checkpointing unless told otherwise.
    if RUNS[row][0] == ON_POLICY:
        return {"gradient_checkpointing": True}
    return {"given": True} if name == "FSDP2" else {}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["FSDP2", "DDP"])
def test_targets_of_an_engine(tmp_path, sharp_model, one_process, name):
    """Under FSDP, which has no whole model, too. A stand-in takes vLLM's place."""
    others = {"use_vllm": True, "temperature": 0.0}
    check_two_equal_one(tmp_path, sharp_model, one_process, name, PAIRED, "lora", "bct", **others)


@pytest.mark.slow
def test_targets_of_a_server(tmp_path, sharp_model, one_process):
    """Under FSDP. A stand-in takes the place of vLLM's server, and both processes ask it."""
    server = Server(sharp_model)
    try:
        others = {"server": server.url, "temperature": 0.0}
        check_two_equal_one(tmp_path, sharp_model, one_process, "FSDP2", PAIRED, "lora", "bct", **others)
    finally:
        server.http.shutdown()
    asked = [body for path, body in server.requests if path == "/v1/completions"]
    assert len(asked) > 2


def load_result(directory):
    return torch.load(directory / "result.pt", weights_only=True)


def launch(name, precision, command, timeout=150):
    """Has `accelerate launch` run a command in two processes."""
    config = CONFIGS / f"{CONFIG_OF[name]}.yaml"
    with socket.socket() as found:
        found.bind(("", 0))
        port = found.getsockname()[1]
    options = f"--num_processes 2 --mixed_precision {precision} --main_process_port {port}".split()
    launcher = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(config), *options]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    result = subprocess.run([*launcher, *command], cwd=ROOT, env=env, capture_output=True, text=True, timeout=timeout)
    assert result.returncode == 0, result.stderr[-6000:]
    assert "these stay as they are" not in result.stderr, (
        "the optimizer holds all weights, in tensors of its own or not"
    )


def check_two_equal_one(tmp_path, model, one_process, name, script, adapter, method, two=None, **others):
    needs_deepspeed(name)
    key = (script, adapter, method, *others.items())
    if key not in one_process:
        one_process[key] = run(tmp_path / "one", model, None, script, adapter, method, **others)
    one = one_process[key]
    two = two or run(tmp_path / "two", model, name, script, adapter, method, **others)
    assert (one["weights"] - one["before"]).abs().max() > 5e-3, "training that hardly changes anything tells nothing"
    assert torch.allclose(two["weights"], one["weights"], rtol=0, atol=1e-5)
    assert two.get("targets") == one.get("targets")
    assert len(one["logged"]) == len(two["logged"])
    for ours, theirs in zip([*two["logged"], two["metrics"]], [*one["logged"], one["metrics"]], strict=True):
        assert set(ours) == set(theirs)
        for metric, value in theirs.items():
            assert ours[metric] == pytest.approx(value, rel=1e-4, abs=1e-5), metric


@pytest.mark.parametrize(
    ("row", "adapter", "name"),
    [pytest.param(*case, marks=pytest.mark.long if case in QUICK else pytest.mark.slow) for case in CASES],
)
def test_two_processes_equal_one(tmp_path, sharp_model, one_process, quick_results, row, adapter, name):
    """Weights after training, targets, and the loss of an evaluation set that does not divide evenly; ranks are equal."""
    case, (script, method) = (row, adapter, name), RUNS[row]
    two = quick_results(name)[case] if case in QUICK else None
    check_two_equal_one(
        tmp_path, sharp_model, one_process, name, script, adapter, method, two, **others_of(row, adapter, name)
    )


@pytest.mark.slow
@pytest.mark.parametrize(("row", "adapter", "name"), QUANTISED)
def test_two_processes_follow_one_on_nf4_weights(tmp_path, sharp_model, one_process, row, adapter, name):
    """As near as sums in another order come in bfloat16, in which all but the adapter is computed. DeepSpeed holds that in bfloat16, too."""
    needs_deepspeed(name)
    script, method = RUNS[row]
    others = {"given": True} if script == PAIRED else {}
    key = (script, adapter, method)
    if key not in one_process:
        one_process[key] = run(tmp_path / "one", sharp_model, None, script, adapter, method, **others)
    one = one_process[key]
    two = run(tmp_path / "two", sharp_model, name, script, adapter, method, **others)
    moved = one["weights"] - one["before"]
    assert moved.abs().max() > 5e-3
    assert (two["weights"].dtype == torch.bfloat16) == name.startswith("ZeRO")
    assert (two["weights"] - one["weights"].to(two["weights"].dtype)).float().norm() < 0.01 * moved.norm()
    # By the sampled token it is a mean of terms of either sign, here near 0: a share of it says little.
    assert two["metrics"]["eval_loss"] == pytest.approx(one["metrics"]["eval_loss"], rel=1e-2, abs=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["DDP", "ZeRO-2"])
def test_metrics_and_tables_of_rollouts(tmp_path, name):
    """Where no weights are sharded, the reference's own answers are there, too."""
    others = {"log_consistency_metrics": True}
    check_two_equal_one(tmp_path, None, {}, name, ON_POLICY, "lora", "divergence", **others)
    tables = [tables_of(tmp_path / processes) for processes in ("one", "two")]
    assert len(tables[0]) == 6
    for table, rows in tables[0].items():
        assert [row[1:5] for row in tables[1][table]] == [row[1:5] for row in rows], table
        for ours, theirs in zip(tables[1][table], rows, strict=True):
            assert ours[5] == pytest.approx(theirs[5], abs=1e-5)


def tables_of(directory):
    """The rows of each table, in the order of their texts: processes share them out."""
    return {
        path.name: sorted((list(row.values()) for row in pq.read_table(path).to_pylist()), key=lambda row: row[1:5])
        for path in (directory / "completions").glob("completions_*")
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIG_OF)
@pytest.mark.parametrize("adapter", ["lora", "full"])
def test_gradient_checkpointing(tmp_path, sharp_model, one_process, name, adapter):
    if (name, adapter) == ("ZeRO-3", "lora"):
        pytest.skip("refused: see test_checks.py")
    others = {"given": True, "gradient_checkpointing": True}
    check_two_equal_one(tmp_path, sharp_model, one_process, name, PAIRED, adapter, "kl+act+bct", **others)


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIG_OF)
def test_a_reference_of_its_own(tmp_path, sharp_model, one_process, name):
    others = {"ref_model": True}
    check_two_equal_one(tmp_path, sharp_model, one_process, name, ON_POLICY, "lora", "divergence", **others)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ZeRO-2", "ZeRO-3"])
def test_regenerated_targets(tmp_path, sharp_model, one_process, name):
    others = {"regenerate_targets_every": 1, "num_train_epochs": 2, "max_steps": -1}
    check_two_equal_one(tmp_path, sharp_model, one_process, name, PAIRED, "lora", "bct", **others)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["DDP", "ZeRO-2", "ZeRO-3"])
@pytest.mark.parametrize(("script", "adapter", "method"), [(PAIRED, "lora", "bct"), (ON_POLICY, "full", "divergence")])
def test_guarded_run(tmp_path, sharp_model, name, script, adapter, method):
    """What is measured at each step by both processes together, and the training, which goes on as it would."""
    check_two_equal_one(tmp_path, sharp_model, {}, name, script, adapter, method, guard=True)


@pytest.mark.slow
@pytest.mark.parametrize("adapter", ["lora", "full"])
def test_sampled_rollouts_are_those_of_ddp(tmp_path, adapter):
    """Two processes sample the same whatever they share out."""
    others = {"sampled": True, "max_steps": 2}
    ddp = run(tmp_path / "ddp", None, "DDP", ON_POLICY, adapter, "divergence", **others)
    assert ddp["moved"] > 5e-3
    for name in ("FSDP2", "ZeRO-2", "ZeRO-3"):
        if name == "FSDP2" or find_spec("deepspeed"):
            other = run(tmp_path / name, None, name, ON_POLICY, adapter, "divergence", **others)
            assert torch.allclose(other["weights"], ddp["weights"], rtol=0, atol=1e-5), name
            assert other["metrics"]["eval_loss"] == pytest.approx(ddp["metrics"]["eval_loss"], abs=1e-5), name


@pytest.mark.slow
@pytest.mark.parametrize("name", ["FSDP2", "ZeRO-2", "ZeRO-3"])
def test_rounded_weights_are_no_other_reference(tmp_path, sharp_model, name):
    """In half precision the forward's weights are others than the shards, and DeepSpeed rounds those, too."""
    needs_deepspeed(name)
    others = {"given": True, "bf16": True}
    assert run(tmp_path / "two", sharp_model, name, PAIRED, "full", "kl+act", **others)["moved"] > 5e-3


def test_a_failed_run_leaves_the_engine_as_it_was(tmp_path, monkeypatch):
    """The one-process rival runs in this process, beside other tests."""
    monkeypatch.setattr(distributed_run, "ConsistencyTrainer", fail := Mock(side_effect=RuntimeError("stopped")))
    before = checks.find_spec, vllm_engine.load_vllm_generation
    with pytest.raises(RuntimeError, match="stopped"):
        distributed_run.main(*arguments_of(tmp_path / "run", "none", 1, "lora", "bct", {"use_vllm": True}))
    fail.assert_called_once()
    assert (checks.find_spec, vllm_engine.load_vllm_generation) == before


@pytest.mark.slow
def test_streamed_evaluation(tmp_path, sharp_model):
    """The rows that fill up its last batch are not counted."""
    others = {"given": True, "streamed_evaluation": True}
    check_two_equal_one(tmp_path, sharp_model, {}, "DDP", PAIRED, "lora", "bct", **others)


@pytest.mark.slow
def test_rows_in_another_order_in_one_process_are_refused(tmp_path, sharp_model):
    """Some would be trained on twice, and others not at all."""
    assert run(tmp_path / "two", sharp_model, "DDP", PAIRED, "lora", "kl", given=True, apart=True) == {}


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIG_OF)
def test_uneven_last_batches_end(tmp_path, sharp_model, name):
    needs_deepspeed(name)
    others = {"given": True, "rows": 17, "num_train_epochs": 2, "max_steps": -1}
    assert run(tmp_path / "two", sharp_model, name, PAIRED, "lora", "kl+act", **others)["moved"] > 5e-3


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIG_OF)
@pytest.mark.parametrize("method", ["bct", "kl"])
def test_packed_pairs(tmp_path, sharp_model, one_process, name, method):
    """16 packs of 24 rows, and an epoch of two steps."""
    others = {"given": True, "packing": True, "max_length": 96, "max_steps": 4}
    check_two_equal_one(tmp_path, sharp_model, one_process, name, PAIRED, "lora", method, **others)


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIG_OF)
def test_uneven_last_batches_of_packs_end(tmp_path, sharp_model, name):
    """10 packs, 8 a batch."""
    needs_deepspeed(name)
    others = {"given": True, "packing": True, "max_length": 144, "rows": 17, "num_train_epochs": 2, "max_steps": -1}
    assert run(tmp_path / "two", sharp_model, name, PAIRED, "lora", "kl", **others)["moved"] > 5e-3


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIG_OF)
def test_a_change_in_one_shard_of_the_reference_is_noticed(tmp_path, sharp_model, name):
    needs_deepspeed(name)
    if name in ("DDP", "ZeRO-2"):
        pytest.skip("no shards: every process checks the whole reference")
    run(tmp_path / "two", sharp_model, name, PAIRED, "lora", "kl", given=True, spoil=True)


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_accelerate_knows_every_key(path):
    config = load_config_from_file(str(path))
    assert config.num_machines == 1
    assert Path(path).stem in {*CONFIG_OF.values(), "single_gpu", "multi_gpu"}


def test_the_docs_call_tested_what_is_tested():
    """Each run of two processes is compared with one of a single process."""
    blocks = (ROOT / "docs" / "distributed.md").read_text().split("\n\n")
    lines = next(block for block in blocks if block.startswith("| method |")).splitlines()
    rows = [[re.sub("[`*]", "", cell).strip() for cell in line.split("|")[1:-1]] for line in lines]
    places = rows[0][3:]
    states = {
        (method, adapter.lower(), place, engine): state
        for method, adapter, engine, *row in rows[2:]
        for place, state in zip(places, row, strict=True)
    }

    def where(state):
        return {(*case, engine == "vLLM") for *case, engine in states if states[*case, engine] == state}

    cases = [*CASES, *QUANTISED]
    single = {(method, adapter, "one process", False) for method, adapter, _ in cases}
    assert where("tested") == {(*case, False) for case in cases} | single
    # Those of tests/rollouts/test_vllm_engine.py and test_vllm_engine.py
    on_policy = [method for method in RUNS if method.startswith("OPCT")]
    engines = {*itertools.product(on_policy, ("qlora", "full")), ("bct", "lora")}
    # Those of tests/rollouts/test_with_vllm.py
    with_vllm = [*itertools.product(on_policy, ("lora",)), ("bct", "full")]
    assert where("tested with vLLM") == {(*run, "one process", True) for run in with_vllm}
    assert where("stand-in") == {(*run, "one process", True) for run in engines}
    sharded = itertools.product(on_policy, ("lora", "qlora"), ("FSDP2", "ZeRO-3"))
    assert where("refused") == {(*case, True) for case in sharded}
    assert set(states.values()) == {"tested", "tested with vLLM", "stand-in", "expected", "refused"}
