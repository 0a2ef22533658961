"""Training on packed pairs equals training on padded batches of the same pairs."""

import re
from collections import Counter
from types import SimpleNamespace

import pytest
from accelerate import ParallelismConfig
from peft import PromptTuningConfig
from torch.testing import assert_close
from transformers import AttentionInterface, TrainerCallback
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from tests.helpers.architectures import FOR_TEXTS, make
from tests.helpers.distributions import make_sharp_model
from tests.helpers.models import make_config, make_model, make_pairs, make_tokenizer
from tests.helpers.paired import make_trainer
from tests.helpers.runs import losses
from trl_consistency import ConsistencyError, ConsistencyTrainer, InvalidPairsError
from trl_consistency.passes import flat
from trl_consistency.trainer.run.checks import check_padding_free_parallelism


pytestmark = pytest.mark.long


def make_uneven_pairs():
    """Every other pair has the longer prompt on its clean side."""

    def swapped(row, index):
        sides = row["clean_prompt"], row["perturbed_prompt"]
        clean, perturbed = sides if index % 2 else reversed(sides)
        question = row["clean_prompt"][0]["content"]
        return {"clean_prompt": clean, "perturbed_prompt": perturbed, "shared_text": question}

    return make_pairs(10).map(swapped, with_indices=True)


PAIRS = make_uneven_pairs()
LONGEST = 120  # tokens; the rows have 38 to 67
PACKED = {"packing": True, "max_length": LONGEST, "per_device_train_batch_size": 1}


@pytest.fixture(autouse=True)
def sdpa():
    yield
    AttentionInterface.register("sdpa", sdpa_attention_forward)


class Gradients(TrainerCallback):
    """Notes the gradients of each optimizer step."""

    def __init__(self):
        self.steps = []

    def on_pre_optimizer_step(self, args, state, control, model, **kwargs):
        self.steps.append({name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})


def run(folder, **options):
    """Trains with one optimizer step an epoch, whatever the batches."""
    trainer = make_trainer(
        folder,
        PAIRS,
        make_sharp_model(),
        lora=True,
        eval_dataset=make_pairs(5),
        per_device_eval_batch_size=3,
        num_train_epochs=2,
        logging_steps=1,
        optim="sgd",
        max_grad_norm=0,
        **options,
    )
    gradients = Gradients()
    trainer.add_callback(gradients)
    trainer.train()
    evaluated = {k: v for k, v in trainer.evaluate().items() if "runtime" not in k and "per_second" not in k}
    # TRL's own metrics are means of batches, and the sizes of these differ.
    ours = ("loss", "grad_norm", "anchor_share", "anchor_loss", "reference_kl", "bct_loss", "kl_loss", "num_tokens")
    logged = [{k: v for k, v in log.items() if k in ours} for log in trainer.state.log_history if "loss" in log]
    return trainer, gradients.steps, logged, evaluated


OPTIONS = {
    "bct": {"method": ["bct"]},
    "bct, weighted by its own probability": {"method": ["bct"], "loss_type": "dft"},
    "bct, smoothed": {"method": ["bct"], "label_smoothing_factor": 0.1},
    "bct, watched": {"method": ["bct"], "log_consistency_metrics": True},
    "bct with anchors": {"method": ["bct"], "anchor_ratio": 0.4},
    "kl": {"method": ["kl"]},
    "kl with anchors": {"method": ["kl"], "anchor_ratio": 0.4},
    "kl, checkpointed": {"method": ["kl"], "gradient_checkpointing": True},
    "act": {"method": ["act"]},
    "mlpct": {"method": ["mlpct"]},
    "three": {"method": ["bct", "kl", "act"], "method_weights": [1.0, 0.5, 0.1]},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_equals_padded(tmp_path, options):
    """Losses, gradients, logs and evaluations; all packs in one batch, and a batch for each pack."""
    _, *padded = run(tmp_path / "padded", per_device_train_batch_size=100, **options)
    assert len(padded[0]) == 2
    for batch, accumulation in ((100, 1), (1, 100)):
        packing = {"per_device_train_batch_size": batch, "gradient_accumulation_steps": accumulation}
        trainer, *packed = run(tmp_path / str(batch), **PACKED | packing, **options)
        assert 1 < len(trainer.packed) < len(trainer.train_dataset)
        assert_close(packed[1:], padded[1:], rtol=1e-5, atol=1e-5)
        for ours, theirs in zip(packed[0], padded[0], strict=True):
            scale = max(gradient.norm() for gradient in theirs.values())
            assert scale > 1e-3, "gradients that are hardly there tell nothing"
            for name, gradient in theirs.items():
                assert (ours[name] - gradient).norm() <= 1e-5 * scale, name


def test_the_two_sides_of_each_pair_are_there(tmp_path):
    """Of pairs and of anchors: whole, once, and never more tokens in a pack than allowed, on either side."""
    trainer = make_trainer(tmp_path, PAIRS, method=["kl"], anchor_ratio=0.4, **PACKED)
    dataset = trainer.train_dataset
    batches = list(trainer.get_train_dataloader())
    assert len(batches) == len(trainer.packed) < len(dataset)
    seen = Counter()
    for batch in batches:
        assert int(batch["attention_mask"].sum()) <= LONGEST
        assert int(batch["clean_attention_mask"].sum()) <= LONGEST
        sides = [
            [tuple(ids[mask.bool()].tolist()) for ids, mask in zip(batch[f"{side}input_ids"], masks, strict=True)]
            for side, masks in (("clean_", batch["clean_attention_mask"]), ("", batch["attention_mask"]))
        ]
        seen.update(zip(*sides, strict=True))
        assert batch["is_anchor"].tolist() == [clean == perturbed for clean, perturbed in zip(*sides, strict=True)]
    expected = Counter(
        tuple(tuple(row[side] + row["completion_ids"]) for side in ("clean_ids", "perturbed_ids")) for row in dataset
    )
    assert seen == expected
    assert sum(clean == perturbed for clean, perturbed in seen.elements()) == 7


def test_packs_keep_the_order_of_rows(tmp_path):
    trainer = make_trainer(tmp_path, PAIRS, train_sampling_strategy="sequential", **PACKED)
    batches = [batch["input_ids"][0].tolist() for batch in trainer.get_train_dataloader()]
    first = [trainer.packed[index][0]["perturbed_ids"] for index in range(len(trainer.packed))]
    assert [ids[: len(prompt)] for ids, prompt in zip(batches, first, strict=True)] == first
    rows = [pack[0] for pack in trainer.packed.packs]
    assert rows == sorted(rows)


def test_generated_targets_count_with_their_own_length(tmp_path):
    """Unless later ones may be longer."""
    packs = []
    for options in ({}, {"regenerate_targets_every": 1}):
        trainer = make_trainer(
            tmp_path / str(len(packs)),
            make_pairs(10, completion=False),
            **PACKED | {"max_length": 200},
            max_completion_length=120,
            generation_kwargs={"exponential_decay_length_penalty": [4, 100.0]},
            num_train_epochs=2,
            **options,
        )
        trainer.train()
        packs.append(len(trainer.packed))
        assert max(len(trainer.targets[row["clean_ids"]]) for row in trainer.train_dataset) < 20
    assert packs[1] == 10
    assert packs[0] <= 4


def test_long_rows_are_what_they_are_with_padding(tmp_path, caplog):
    too_short = {"max_length": 60, "per_device_train_batch_size": 1}
    messages = []
    for packing in (False, True):
        with pytest.raises(InvalidPairsError) as refused:
            make_trainer(tmp_path, PAIRS, packing=packing, **too_short)
        messages.append(str(refused.value))
    assert messages[0] == messages[1]
    assert "row(s) are longer than `max_length=60`" in messages[0]
    trainer = make_trainer(tmp_path, PAIRS, packing=True, overlong="drop", **too_short)
    left = len(trainer.train_dataset)
    assert 0 < left < len(PAIRS)
    assert f"{len(PAIRS) - left} of {len(PAIRS)} row(s) are longer than `max_length=60`" in caplog.text
    batches = list(trainer.get_train_dataloader())
    assert sum(len(batch["input_ids"]) for batch in batches) == left


def test_packs_that_fill_no_batch(tmp_path, caplog):
    options = {**PACKED, "dataloader_drop_last": True, "max_steps": 1}
    trainer = make_trainer(tmp_path, PAIRS, **options | {"per_device_train_batch_size": 9})
    with pytest.raises(InvalidPairsError, match=r"has 5 packed sequence\(s\), fewer than the 9 of one batch"):
        trainer.train()
    make_trainer(tmp_path, PAIRS, **options | {"per_device_train_batch_size": 3}).train()
    assert "Each epoch leaves out 2 of 5 packed sequences (`dataloader_drop_last`)" in caplog.text


@pytest.mark.parametrize("streamed", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_resumed_run_goes_on_where_it_was(tmp_path, streamed):
    def train(folder, checkpoint=None, **options):
        pairs = PAIRS.to_iterable_dataset() if streamed else PAIRS
        trainer = make_trainer(
            tmp_path / folder,
            pairs,
            lora=True,
            logging_steps=1,
            save_strategy="steps",
            save_steps=1,
            lr_scheduler_type="constant",
            **{**PACKED, "max_steps": 8, **options},
        )
        trainer.train(checkpoint)
        return losses(trainer)

    whole = train("whole")
    assert len(set(whole)) == 8
    assert train("part", max_steps=3) == whole[:3]
    with pytest.raises(ConsistencyError, match="`max_length`: 120 there, 130 here"):
        train("part", True, max_length=130)
    with pytest.raises(ConsistencyError, match="`packing`: true there, false here"):
        train("part", True, packing=False, padding_free=True)
    assert_close(train("part", True), whole, rtol=1e-6, atol=0)


def test_a_stream_gives_all_its_rows(tmp_path):
    trainer = make_trainer(tmp_path, PAIRS.to_iterable_dataset(), max_steps=5, **PACKED)
    seen = Counter()
    for batch, _ in zip(trainer.get_train_dataloader(), range(400), strict=False):
        seen.update(tuple(row.tolist()) for row in batch["labels"][batch["labels"] >= 0][None])
        assert int(batch["attention_mask"].sum()) <= LONGEST
        rows = len(batch["input_ids"])
        seen["rows"] += rows
    assert seen["rows"] > 400


def test_each_pass_of_a_stream_has_each_row_once(tmp_path):
    trainer = make_trainer(tmp_path, PAIRS.to_iterable_dataset(), max_steps=5, **PACKED)
    answers, passes = Counter(), 3
    for batch in trainer.get_train_dataloader():
        for ids, labels in zip(batch["input_ids"], batch["labels"], strict=True):
            answers[tuple(ids[labels >= 0].tolist())] += 1
        if answers.total() >= passes * len(PAIRS):
            break
    assert set(answers.values()) == {passes}


def test_other_processes_and_workers_pack_alike(tmp_path):
    trainer = make_trainer(tmp_path, PAIRS, dataloader_num_workers=1, **PACKED, max_steps=2, logging_steps=1)
    trainer.train()
    alone = make_trainer(tmp_path / "alone", PAIRS, **PACKED, max_steps=2, logging_steps=1)
    alone.train()
    assert losses(trainer) == losses(alone)


def test_the_card_says_how_full_they_are(tmp_path):
    trainer = make_trainer(tmp_path, PAIRS, **PACKED, max_steps=2)
    before = trainer._card_facts()
    assert "Packing" not in before
    trainer.train()
    facts = trainer._card_facts()
    tokens = sum(trainer.data_collator.length(row) for row in trainer.train_dataset)
    assert facts["Packing"] == f"10 rows in 5 packed sequences, {tokens / (5 * LONGEST):.0%} full"
    assert facts["Optimisation"].startswith("2 steps of 1 packed sequences of at most 120 tokens, ")
    trainer.args.per_device_train_batch_size = 16
    assert trainer._card_facts()["Optimisation"].startswith("2 steps of 5 packed sequences"), "there are no more"


def test_the_card_does_not_say_how_full_packs_of_other_targets_are(tmp_path):
    """It said that of targets as long as allowed."""
    options = {"num_train_epochs": 2, "max_steps": -1, "regenerate_targets_every": 1}
    trainer = make_trainer(tmp_path, PAIRS.remove_columns("completion"), **PACKED, **options)
    trainer.train()
    assert re.search(r"packed sequences, at most \d+% full", trainer._card_facts()["Packing"])


def test_options_of_the_trainer_are_as_they_were(tmp_path):
    trainer = make_trainer(tmp_path, PAIRS, **PACKED)
    assert (trainer.args.packing, trainer.args.padding_free) == (True, True)
    assert not trainer.data_collator.padding_free


# What is refused


def test_hybrids(tmp_path):
    with pytest.raises(ConsistencyError, match=r"`packing` is not possible: `Lfm2Model` has recurrent layers"):
        make_trainer(tmp_path, model=make("lfm2", "sdpa", **FOR_TEXTS), **PACKED)


def test_eager_attention(tmp_path):
    with pytest.raises(ConsistencyError, match="`packing` is not possible: `eager` attention takes no lengths"):
        make_trainer(tmp_path, model=make_model(attention="eager"), **PACKED)


def test_learned_prompts(tmp_path):
    with pytest.raises(ConsistencyError, match="`packing` is not possible: a learned prompt stands before each row"):
        ConsistencyTrainer(
            model=make_model(),
            args=make_config(tmp_path, **PACKED),
            train_dataset=PAIRS,
            processing_class=make_tokenizer(),
            peft_config=PromptTuningConfig(num_virtual_tokens=2, task_type="CAUSAL_LM"),
        )


def test_models_whose_states_differ(tmp_path, monkeypatch):
    """Found by a trial, as for batches without padding."""
    monkeypatch.setattr(flat, "_trial", lambda backbone: (0.5, {}))
    with pytest.raises(ConsistencyError, match="`packing` is not possible: `Qwen3Model` gives other states"):
        make_trainer(tmp_path, **PACKED)


@pytest.mark.parametrize(
    ("n_gpu", "parallelism", "reason"),
    [
        (2, None, "`torch.nn.DataParallel`"),
        (1, ParallelismConfig(cp_size=2), "context or sequence parallelism"),
        (1, ParallelismConfig(sp_size=2), "context or sequence parallelism"),
    ],
)
@pytest.mark.parametrize("option", ["packing", "padding_free"])
def test_batches_that_are_shared_out(n_gpu, parallelism, reason, option):
    trainer = SimpleNamespace(
        args=SimpleNamespace(n_gpu=n_gpu, packing=option == "packing"),
        accelerator=SimpleNamespace(parallelism_config=parallelism),
    )
    with pytest.raises(ConsistencyError, match=f"`{option}` is not available with {reason}"):
        check_padding_free_parallelism(trainer)


@pytest.mark.parametrize("parallelism", [None, ParallelismConfig(dp_shard_size=2)])
def test_batches_that_stay_whole(parallelism):
    args = SimpleNamespace(n_gpu=1, packing=True)
    accelerator = SimpleNamespace(parallelism_config=parallelism)
    check_padding_free_parallelism(SimpleNamespace(args=args, accelerator=accelerator))
