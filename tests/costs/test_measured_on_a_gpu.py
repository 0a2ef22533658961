"""What docs/estimate.md says of the steps that the benchmark has measured on a GPU, computed again."""

import json
import re
from pathlib import Path

import pytest
from peft import LoraConfig

from tests.recipes.shapes import SHAPES
from trl_consistency.costs.memory import measure_memory
from trl_consistency.costs.operations import count_step
from trl_consistency.costs.setup import Setup, make_outline


pytestmark = pytest.mark.long

DOCS = Path(__file__).parents[2] / "docs"
FIGURES = json.loads((DOCS / "benchmarks" / "gpu" / "flex.json").read_text())["figures"]
PEAK = 989e12  # of an H100 SXM
LENGTHS = [512, 1024, 2048, 4096, 8192]


@pytest.fixture(scope="module")
def outline():
    return make_outline(
        "model", SHAPES["Qwen/Qwen3-4B-Instruct-2507"][0](), LoraConfig(r=16, target_modules="all-linear")
    )


def setup_of(length, prompt):
    """The step of the piece `flex`: half of a packed row is its prompt, and eight rollouts are the rest."""
    answer = length // 16
    options = {"num_generations": 8, "dtype": "bfloat16", "bf16": True}
    return Setup(("opct",), prompt + answer, answer, 8, **options)


def row_of(length):
    cells = re.search(rf"^\| {length:,} \|(.*)\|$", (DOCS / "estimate.md").read_text(), re.MULTILINE)[1].split("|")
    return dict(zip(("estimated", "measured", "needed", "seconds", "utilisation"), map(str.strip, cells), strict=True))


@pytest.mark.parametrize("length", LENGTHS)
def test_seconds_and_utilisation(outline, length):
    way = "FlexAttention" if length >= 8000 else "dense mask"
    seconds = FIGURES[f"{length} tokens, {way}, seconds"]
    needed = count_step(outline, setup_of(length, length // 2))
    # The reference reads a clean prompt of 64 tokens.
    operations = needed.step - needed.reference + count_step(outline, setup_of(length, 64)).reference
    row = row_of(length)
    assert row["needed"] == f"{operations / 1e12:.1f}"
    assert row["seconds"] == f"{seconds:.2f}"
    assert row["utilisation"] == f"{operations / seconds / PEAK:.3f}"
    assert row["measured"] == f"{FIGURES[f'{length} tokens, {way}, peak GiB']:.2f}"


@pytest.mark.parametrize("length", [pytest.param(512, marks=pytest.mark.slow), 8192])
def test_memory(outline, length):
    memory = measure_memory(outline, setup_of(length, length // 2))
    estimated = (memory.while_training - memory.optimizer) / 2**30
    assert row_of(length)["estimated"] == f"{estimated:.2f}"
    assert estimated == pytest.approx(FIGURES[f"{length} tokens, dense mask, peak GiB"], rel=0.012)
