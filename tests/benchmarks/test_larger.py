"""The operations of steps and of their rivals', counted in two shapes."""

import json

import pytest

from tests.benchmarks import larger, steps
from tests.benchmarks.run import FOLDER
from tests.benchmarks.sizes import SIZES


FULL = SIZES["full"]


@pytest.mark.parametrize(("row", "method"), larger.METHODS.items())
def test_what_a_step_needs_is_what_its_floor_was_computed_from(row, method):
    stored = json.loads((FOLDER / "full" / f"{row}.json").read_text())["floor"]["operations"]
    assert larger.needed(larger.outline(FULL.config()), method, FULL) == stored


def test_a_rival_computes_each_row_whole():
    """BCT by hand: products of the blocks and their attention, forward and back, and those of the head with every token."""
    rows, prompt, answer = FULL.pairs
    tokens, width, mlp, of_keys, rank = prompt + answer, 1024, 3072, 512, 8
    layers = [(width, width), (width, of_keys), (width, of_keys), (width, width), *[(width, mlp)] * 2, (mlp, width)]
    forward = sum(n * m + rank * (n + m) for n, m in layers)
    back = sum(n * m + rank * (n + m) + rank * (n + m) for n, m in layers)
    # Of the first block's input no gradient is needed, but for what its MLP and the last product of its attention read.
    no_gradient = sum(n * (m + rank) for n, m in layers[:3])
    attention = 2 * width * tokens * (tokens + 1) // 2
    products = 4 * (forward + back) - no_gradient
    expected = 2 * rows * (tokens * products + 4 * 3 * attention) + 2 * 2 * rows * tokens * width * FULL.vocabulary
    assert larger.of_rival(larger.outline(FULL.config()), "bct", FULL) == expected


def test_in_a_larger_model_less_is_saved_but_for_rollouts():
    found = larger.ratios()
    for row in ("bct_step", "act_step", "kl_step"):
        here, in_larger = found[row]
        assert 1 < in_larger < here
    here, in_larger = found["opct_step"]
    assert in_larger > here > 4
    assert found["bct_step"][1] == pytest.approx(1.11, abs=0.01)


def test_the_cue_is_what_the_two_sides_do_not_share():
    batch = steps.pair_batch(FULL, with_answers=False)
    assert FULL.pairs[1] - int(batch["suffix"][0, 2]) == steps.cue_of(FULL)
