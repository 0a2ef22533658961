"""Streamed pairs: every method and both trainers, from Python and from a recipe, resumed."""

from collections import Counter
from itertools import islice

import pytest
import torch
from datasets import Dataset

from tests.helpers import on_policy, paired
from tests.helpers.models import make_model, make_pairs
from tests.helpers.runs import losses, weights
from trl_consistency import ConsistencyError, InvalidPairsError
from trl_consistency.data.repeated_stream import RepeatedStream, SamePass
from trl_consistency.scripts import consistency, on_policy_consistency


pytestmark = pytest.mark.long


MAKE = {"paired": paired.make_trainer, "on-policy": on_policy.make_trainer}


def rows(stream, number):
    return [row["row"] for row in islice(iter(RepeatedStream(SamePass(stream))), number)]


def test_a_stream_begins_anew():
    stream = make_pairs(4).add_column("row", range(4)).to_iterable_dataset()
    assert rows(stream, 10) == [0, 1, 2, 3, 0, 1, 2, 3, 0, 1]
    shuffled = rows(stream.shuffle(seed=0), 40)
    passes = {tuple(shuffled[start : start + 4]) for start in range(0, 40, 4)}
    assert {tuple(sorted(order)) for order in passes} == {(0, 1, 2, 3)}
    assert len(passes) > 1
    assert rows(stream.filter(lambda row: False), 1) == []


def resumed_and_whole(tmp_path, make, **options):
    """Weights after six steps at once and after four and two, which are in the second pass."""
    options = {"max_steps": 6, "save_strategy": "steps", "save_steps": 4, "lora": True, **options}
    trained = []
    for checkpoint in (None, str(tmp_path / "checkpoint-4")):
        trainer = make(tmp_path, make_pairs(8).to_iterable_dataset(), **options)
        trainer.train(resume_from_checkpoint=checkpoint)
        assert trainer.state.global_step == 6
        trained.append(weights(trainer.model))
    return trained


@pytest.mark.parametrize(
    "options",
    [
        {"method": ["bct"], "gradient_accumulation_steps": 3},
        {"method": ["bct"], "shuffle_dataset": True},
        {"method": ["bct"], "dataloader_num_workers": 1},
        {"method": ["kl"], "anchor_ratio": 0.5},
        {"method": ["act"]},
        {"method": ["attct", "mlpct"]},
    ],
)
def test_a_resumed_stream_goes_on(tmp_path, options):
    def make(*args, **others):
        return paired.make_trainer(*args, model=make_model(attention="eager"), **others)

    whole, resumed = resumed_and_whole(tmp_path, make, per_device_train_batch_size=3, **options)
    assert torch.equal(whole, resumed)


@pytest.mark.parametrize("options", [{}, {"num_iterations": 2, "loss_type": "policy_gradient", "anchor_ratio": 0.5}])
def test_a_resumed_stream_goes_on_on_policy(tmp_path, options):
    whole, resumed = resumed_and_whole(
        tmp_path, on_policy.make_trainer, per_device_train_batch_size=6, gradient_accumulation_steps=2, **options
    )
    assert torch.equal(whole, resumed)


def test_a_streamed_batch_has_the_same_loss(tmp_path):
    pairs, options = make_pairs(8), {"max_steps": 1, "logging_steps": 1, "method": ["bct", "act"]}
    runs = [paired.make_trainer(tmp_path, rows, **options) for rows in (pairs, pairs.to_iterable_dataset())]
    for trainer in runs:
        trainer.train()
    assert losses(runs[0]) == pytest.approx(losses(runs[1]), rel=1e-6)


def test_streams_are_evaluated_by_row(tmp_path):
    pairs = make_pairs(7)
    for method in (["bct"], ["kl", "act"]):
        trainer = paired.make_trainer(tmp_path, method=method, per_device_eval_batch_size=3)
        on_policy.moved(trainer.model)
        whole, streamed = (trainer.evaluate(rows)["eval_loss"] for rows in (pairs, pairs.to_iterable_dataset()))
        assert streamed == pytest.approx(whole, rel=1e-6)


@pytest.mark.parametrize("kind", MAKE)
@pytest.mark.parametrize(("shuffled", "streamed"), [(False, False), (True, True)])
def test_each_pass_has_other_anchors(tmp_path, kind, shuffled, streamed):
    prompts = [[{"role": "user", "content": f"Anchor {row}?"}] for row in range(40)]
    anchors = Dataset.from_dict({"prompt": prompts, "completion": ["Yes."] * 40})
    trainer = MAKE[kind](
        tmp_path,
        make_pairs(8).to_iterable_dataset(),
        anchor_dataset=anchors.to_iterable_dataset() if streamed else anchors,
        max_steps=1,
        anchor_ratio=0.3,
        shuffle_dataset=shuffled,
    )
    rows = islice(trainer.get_train_dataloader().dataset, 100 if kind == "paired" else 400)
    seen = Counter(str(row["clean_ids"]) for row in rows if row["clean_ids"] == row["perturbed_ids"])
    assert len(seen) > 15
    again = islice(trainer.get_train_dataloader().dataset, 100 if kind == "paired" else 400)
    assert Counter(str(row["clean_ids"]) for row in again if row["clean_ids"] == row["perturbed_ids"]) == seen


@pytest.mark.parametrize("kind", MAKE)
def test_an_epoch_of_a_stream_is_refused(tmp_path, kind):
    with pytest.raises(ConsistencyError, match=r"is streamed, .* Set `max_steps`"):
        MAKE[kind](tmp_path, make_pairs().to_iterable_dataset(), num_train_epochs=2)


def test_a_stream_smaller_than_a_batch_of_rollouts_is_refused(tmp_path):
    with pytest.raises(InvalidPairsError, match=r"has 3 row\(s\), fewer than the 4 prompts of one batch"):
        on_policy.make_trainer(tmp_path, make_pairs(3).to_iterable_dataset(), max_steps=1)


@pytest.mark.parametrize(
    ("streamed", "said"), [(False, "leaves out 1 of 5 rows"), (True, "leaves out the rows at the end of the stream")]
)
@pytest.mark.parametrize("shuffled", [False, True])
def test_rows_that_make_no_batch_of_rollouts_are_said(tmp_path, caplog, streamed, said, shuffled):
    pairs = make_pairs(5, completion=False)
    pairs = pairs.to_iterable_dataset() if streamed else pairs
    on_policy.make_trainer(tmp_path, pairs, max_steps=1, shuffle_dataset=shuffled)
    assert (said in caplog.text) == (not shuffled or not streamed)
    assert ("never trained on" in caplog.text) == (not shuffled)


@pytest.mark.parametrize("script", [consistency, on_policy_consistency])
@pytest.mark.parametrize("lines", ["dataset_name: {data}\ndataset_streaming: true", "datasets: [{{path: {data}}}]\nstreaming: true"])  # fmt: skip
def test_a_recipe_streams(tmp_path, model_dir, script, lines):
    make_pairs(8).to_json(tmp_path / "pairs.jsonl")
    recipe = tmp_path / "recipe.yaml"
    options = (
        "max_steps: 2\nuse_cpu: true\nbf16: false\nreport_to: none\nsave_strategy: 'no'\nmax_completion_length: 8"
    )
    recipe.write_text(
        f"model_name_or_path: {model_dir}\n{lines.format(data=tmp_path / 'pairs.jsonl')}\n{options}\n"
        "use_peft: true\nlora_target_modules: [all-linear]\ndisable_tqdm: true\n"
    )
    trainer = script.run(["--config", str(recipe), "--output_dir", str(tmp_path / "out")])
    assert isinstance(next(iter(trainer.get_train_dataloader())), dict | list)
    assert trainer.data_facts == {"Pairs": "streamed"}
    assert (tmp_path / "out" / "adapter_model.safetensors").is_file()


def test_a_split_of_a_streamed_mixture_is_refused(tmp_path, model_dir):
    make_pairs(8).to_json(tmp_path / "pairs.jsonl")
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        f"model_name_or_path: {model_dir}\ndatasets: [{{path: {tmp_path}/pairs.jsonl}}]\nstreaming: true\n"
        "test_split_size: 0.5\nuse_cpu: true\nbf16: false\nmax_steps: 1\n"
    )
    with pytest.raises(SystemExit, match="`test_split_size` and `fraction` need to know"):
        consistency.run(["--config", str(recipe), "--output_dir", str(tmp_path / "out")])
