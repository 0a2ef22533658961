"""The memory in the recipes' headers is what `trl-consistency estimate` computes."""

import dataclasses

import pytest

from tests.recipes import estimates
from tests.recipes.estimates import Bytes, bytes_of, estimate, estimate_all, read_estimates, setup_of
from tests.recipes.files import make_text
from tests.recipes.shapes import SHAPES
from tests.recipes.table import MODELS, OF_FOLDER, RECIPES, Recipe
from trl_consistency.models.architecture import check_architecture


ONE = Recipe(OF_FOLDER["qwen3-4b-instruct"], "act", "sycophancy", "qlora")


@pytest.mark.parametrize("name", SHAPES)
def test_shapes_make_the_published_number_of_parameters(name):
    make, published = SHAPES[name]
    model = check_architecture(name, make())
    assert sum(parameter.numel() for parameter in model.parameters()) == published


def test_shapes_are_those_of_the_table():
    assert SHAPES.keys() == {model.hub_id for model in MODELS}


def test_headers_say_what_was_computed():
    known = [(recipe, bytes_of(recipe, read_estimates())) for recipe in RECIPES]
    known = [(recipe, memory) for recipe, memory in known if memory is not None]
    assert known
    for recipe, memory in known:
        assert f" {memory.most / 2**30:.1f} GiB on one GPU" in make_text(recipe, memory=memory)
        assert "GiB" not in make_text(recipe)


def test_headers_of_rollouts_say_what_sampling_and_training_take():
    recipe = dataclasses.replace(ONE, method="opct")
    text = " ".join(make_text(recipe, memory=Bytes(2**33, 2**32)).replace("\n#", "").split())
    sampled = "16 of the step's 512 rollouts are sampled at once, and 4.0 GiB while it trains on 8 of them"
    assert f"8.0 GiB on one GPU while {sampled}" in text
    text = " ".join(make_text(recipe, memory=Bytes(2**33, 2**33)).replace("\n#", "").split())
    assert "8.0 GiB on one GPU if all rows" in text, "sampling takes less"


def test_headers_of_targets_say_what_making_them_takes():
    recipe = dataclasses.replace(ONE, method="bct")
    text = " ".join(make_text(recipe, memory=Bytes(2**33, 2**32)).replace("\n#", "").split())
    assert (
        "8.0 GiB on one GPU while 32 targets are made at a time (`target_batch_size`), and 4.0 GiB while it trains"
        in text
    )
    text = " ".join(make_text(recipe, memory=Bytes(2**33, 2**33)).replace("\n#", "").split())
    assert "8.0 GiB on one GPU if all rows" in text, "making them takes less"


def test_estimates_of_another_setup_do_not_count():
    kept = [{"setup": setup_of(ONE), "bytes": 5}]
    assert bytes_of(ONE, kept) == Bytes(5)
    assert bytes_of(dataclasses.replace(ONE, threat="jailbreak"), kept) == Bytes(5), "ACT's settings are the same"
    for changed in ({"weights": "lora"}, {"method": "bct"}, {"model": OF_FOLDER["qwen3-8b"]}):
        assert bytes_of(dataclasses.replace(ONE, **changed), kept) is None


def test_what_cannot_be_computed_is_named_and_left_out(tmp_path, monkeypatch, capsys):
    computed = []

    def fail_for_act(recipe):
        computed.append(str(recipe.path))
        if recipe.method == "act":
            raise RuntimeError("data-dependent")
        return Bytes(2**31, 2**30 if recipe.method == "opct" else None)

    monkeypatch.setattr(estimates, "ESTIMATES", tmp_path / "estimates.json")
    monkeypatch.setattr(estimates, "estimate", fail_for_act)
    three = [dataclasses.replace(ONE, method=method) for method in ("act", "opct", "bct")]
    again = [dataclasses.replace(recipe, threat="jailbreak") for recipe in (three[0], three[2])]
    estimate_all([*three, *again])
    assert computed == [str(recipe.path) for recipe in three], "the same setup is computed once"
    assert capsys.readouterr().out.splitlines() == [
        f"{three[0].path} cannot be estimated: RuntimeError",
        f"{three[1].path}: 2.0 GiB",
        f"{three[2].path}: 2.0 GiB",
    ]
    assert [bytes_of(recipe, read_estimates()) for recipe in three] == [
        None,
        Bytes(2**31, 2**30),
        Bytes(2**31),
    ]


def test_objectives_that_are_combined_are_estimated_together(monkeypatch):
    asked = []

    def main(args):
        asked.append(args.method)
        return {"memory": dict.fromkeys((*estimates.HELD_IN_TRAINING, "while_sampling", "total"), 1)}

    monkeypatch.setattr("trl_consistency.scripts.estimate.main", main)
    for method in ("bct_act", "opct"):
        estimate(dataclasses.replace(ONE, method=method))
    assert asked == [["bct", "act"], ["opct"]]


@pytest.mark.slow
def test_estimate_is_the_one_on_record():
    assert estimate(ONE) == bytes_of(ONE, read_estimates())
