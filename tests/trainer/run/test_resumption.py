"""A run is resumed with what it was begun with, or the difference is named, allowed and told on the card."""

import json
import shutil
from types import SimpleNamespace

import pytest
import torch
from peft import LoraConfig
from safetensors.torch import load_file
from transformers import TrainerCallback

from tests.helpers.by_method import trainer_of
from tests.helpers.models import CHATML, make_config, make_model, make_pairs, make_tokenizer
from tests.helpers.runs import weights
from trl_consistency import ConsistencyError, ConsistencyTrainer
from trl_consistency.trainer.run.interruption import changed_file, read_manifest
from trl_consistency.trainer.run.manifest import find_differences
from trl_consistency.trainer.run.own_optimizer import describe_own_optimizer
from trl_consistency.trainer.run.resumption import STREAM_WARNING


def make_trainer(
    directory,
    pairs=None,
    model=None,
    lora_alpha=8,
    template=CHATML,
    anchors=None,
    eval_dataset=None,
    end=None,
    method="bct",
    **options,
):
    tokenizer = make_tokenizer(template)
    tokenizer.eos_token = end or tokenizer.eos_token
    options = {
        "save_strategy": "steps",
        "save_steps": 1,
        "logging_steps": 1,
        "max_steps": 4,
        "per_device_train_batch_size": 4,
        **options,
    }
    return trainer_of(
        method,
        directory,
        model or make_model(),
        options,
        train_dataset=make_pairs(12) if pairs is None else pairs,
        anchor_dataset=anchors,
        eval_dataset=eval_dataset,
        processing_class=tokenizer,
        peft_config=LoraConfig(r=4, lora_alpha=lora_alpha, target_modules="all-linear"),
    )


BEGUN = {
    "bct": {},
    "generated": {"pairs": make_pairs(12, completion=False)},
    "anchors": {"anchor_ratio": 0.25},
    "act": {"method": "act"},
    "opct": {"method": "opct"},
}


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """Folders with a checkpoint of step 2, by the kind of run."""
    made = {}

    def run(kind):
        if kind not in made:
            made[kind] = tmp_path_factory.mktemp(kind)
            trainer = make_trainer(made[kind], save_steps=2, **BEGUN[kind])
            trainer.train()
            shutil.rmtree(made[kind] / "checkpoint-4")
        return made[kind]

    return run


@pytest.fixture
def copy(begun, tmp_path):
    return lambda kind: shutil.copytree(begun(kind), tmp_path / "run")


@pytest.mark.long
@pytest.mark.parametrize(
    "change",
    [
        *({"global_step": step} for step in (0, 4, -1, 2.5, "2", None)),
        *({"log_history": 3}, {"stateful_callbacks": None}, {"another": 1}),
        *({"stateful_callbacks": {"manifest": manifest}} for manifest in ([], {"files": 3}, {"run": 3})),
    ],
    ids=str,
)
def test_a_state_that_was_changed_by_hand_is_refused(copy, change):
    directory = copy("bct")
    file = directory / "checkpoint-2" / "trainer_state.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(ConsistencyError, match=r"checkpoint-2 is not a complete checkpoint: trainer_state\.json"):
        make_trainer(directory).train(resume_from_checkpoint=str(file.parent))


@pytest.mark.parametrize("name", ["optimizer.pt", "scheduler.pt", "rng_state.pth", "adapter_model.safetensors"])
def test_weights_and_states_that_are_not_those_that_were_saved_are_refused(copy, name):
    directory = copy("bct")
    file = directory / "checkpoint-2" / name
    content = bytearray(file.read_bytes())
    content[int(len(content) * 0.8)] ^= 0x55
    file.write_bytes(bytes(content))
    with pytest.raises(ConsistencyError, match=rf"{name} in .*checkpoint-2 is damaged, or was changed"):
        make_trainer(directory).train(resume_from_checkpoint=True)


def test_damage_in_a_large_file_is_seen(tmp_path):
    """Files of more than 256 MiB had no checksum."""
    trainer, folder = make_trainer(tmp_path), tmp_path / "checkpoint-1"
    folder.mkdir()
    with (folder / "model.safetensors").open("wb") as file:
        file.truncate(300 << 20)
    trainer.checkpoints.note_files(str(folder))
    trainer.state.save_to_json(str(folder / "trainer_state.json"))
    assert changed_file(folder) is None
    with (folder / "model.safetensors").open("r+b") as file:
        file.seek(150 << 20)
        file.write(b"1")
    assert changed_file(folder) == "model.safetensors"


def test_checkpoint_of_the_model_alone_is_refused(tmp_path):
    """Its optimizer and schedule would begin anew without a word."""
    make_trainer(tmp_path, save_only_model=True, max_steps=2).train()
    with pytest.raises(ConsistencyError, match=r"checkpoint-2 holds only the model \(`save_only_model`\)"):
        make_trainer(tmp_path).train(resume_from_checkpoint=True)


def test_a_resumed_run_may_save_the_model_alone(copy):
    """Such a checkpoint was said to be incomplete, as it had the manifest of the one resumed from, and deleted as damaged."""
    directory = copy("bct")
    options = {
        "save_only_model": True,
        "save_total_limit": 1,
        "load_best_model_at_end": True,
        "eval_strategy": "steps",
    }
    trainer = make_trainer(directory, eval_steps=1, eval_dataset=make_pairs(4), **options)
    trainer.train(
        resume_from_checkpoint=True,
        resume_changed=["load_best_model_at_end", "metric_for_best_model", "greater_is_better"],
    )
    assert trainer.state.best_model_checkpoint.endswith("checkpoint-4")
    assert read_manifest(directory / "checkpoint-4") == {}
    assert not (directory / "checkpoint-2").exists()


CHANGES = [
    ("bct", {"pairs": make_pairs(13)}, ["train_dataset"]),
    ("bct", {"pairs": make_pairs(12).select(range(11, -1, -1))}, ["train_dataset"]),
    ("bct", {"method": "act"}, ["method"]),
    ("bct", {"method": ["bct", "act"], "method_weights": [1.0, 0.5]}, ["method", "method_weights"]),
    ("bct", {"model": make_model(seed=1)}, ["model"]),
    ("bct", {"lora_alpha": 800}, ["adapter.lora_alpha"]),
    ("bct", {"seed": 7}, ["seed"]),
    ("bct", {"template": CHATML.replace("no_think", "thinkless")}, ["chat_template"]),
    ("bct", {"learning_rate": 1e-3, "weight_decay": 0.1}, ["learning_rate", "weight_decay"]),
    ("bct", {"lr_scheduler_type": "cosine"}, ["lr_scheduler_type"]),
    ("bct", {"optim": "sgd"}, ["optim"]),
    ("bct", {"bf16": True}, ["mixed_precision"]),
    ("bct", {"model": make_model(attention="eager")}, ["attn_implementation"]),
    ("bct", {"ignore_data_skip": True}, ["ignore_data_skip"]),
    ("bct", {"accelerator_config": {"use_seedable_sampler": False}}, ["use_seedable_sampler"]),
    ("bct", {"max_steps": 8}, ["length"]),
    ("bct", {"per_device_train_batch_size": 2}, ["rows_per_step"]),
    ("bct", {"anchor_ratio": 0.25}, ["anchor_ratio"]),
    ("generated", {"temperature": 0.5}, ["temperature"]),
    (
        "anchors",
        {"anchors": make_pairs(9).rename_column("clean_prompt", "prompt").select_columns(["prompt", "completion"])},
        ["anchor_dataset"],
    ),
    ("opct", {"beta": 0.0}, ["beta"]),
    ("opct", {"pairs": make_pairs(11)}, ["train_dataset"]),
]


@pytest.mark.long
@pytest.mark.parametrize(("kind", "options", "names"), CHANGES, ids=[" ".join(names) for _, _, names in CHANGES])
def test_what_differs_is_listed_and_refused(copy, kind, options, names):
    directory = copy(kind)
    trainer = make_trainer(directory, **{**BEGUN[kind], **options})
    with pytest.raises(ConsistencyError, match="checkpoint-2 belongs to another run") as end:
        trainer.train(resume_from_checkpoint=True)
    first, *rows = str(end.value).splitlines()
    assert [row.split("`")[1] for row in rows if " there, " in row] == names
    assert f"`--resume_changed {' '.join(names)}`" in first
    assert trainer.state.global_step == 0


@pytest.mark.parametrize("kind", BEGUN)
def test_the_same_run_goes_on(copy, kind):
    directory = copy(kind)
    trainer = make_trainer(directory, **BEGUN[kind])
    trainer.train(resume_from_checkpoint=True)
    assert trainer.state.global_step == 4
    assert "History" not in (directory / "checkpoint-4" / "README.md").read_text()


def test_batches_of_another_shape_that_keep_the_step(copy):
    trainer = make_trainer(copy("bct"), per_device_train_batch_size=2, gradient_accumulation_steps=2)
    trainer.train(resume_from_checkpoint=True)
    assert trainer.state.global_step == 4


@pytest.mark.parametrize("packs", [{}, {"packing": True, "max_length": 64}])
def test_batches_of_another_shape_that_leave_out_other_rows(tmp_path, packs):
    """Of 10 rows, batches of 2 leave out none, and batches of 4 two. The later run took other steps for those of an epoch."""
    options = {"dataloader_drop_last": True, "lr_scheduler_type": "constant", **packs}
    few = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2}
    make_trainer(tmp_path, make_pairs(10), max_steps=3, **few, **options).train()
    with pytest.raises(ConsistencyError, match="`rows_per_batch`: 2 there, 4 here"):
        make_trainer(tmp_path, make_pairs(10), max_steps=6, **options).train(resume_from_checkpoint=True)
    make_trainer(tmp_path, make_pairs(10), max_steps=4, **few, **options).train(resume_from_checkpoint=True)


def test_card_tells_the_whole_history(copy):
    directory = copy("bct")
    trainer = make_trainer(directory, method="act", lora_alpha=16)
    trainer.train(resume_from_checkpoint=True, resume_changed=["method", "adapter.lora_alpha"])
    again = make_trainer(directory, method="act", lora_alpha=16, max_steps=6)
    again.train(resume_from_checkpoint=True, resume_changed=["length", "method"])
    card = (directory / "checkpoint-6" / "README.md").read_text()
    assert (
        "| History | 2 steps of bct, then 2 of act, then 2 of act: after step 2 `adapter.lora_alpha` 8 → 16, "
        "`method` bct → act; after step 4 `length` 4 steps → 6 steps |"
    ) in card
    assert "- act\n- bct\n" in card
    assert "chua2024bias" in card


def test_card_tells_of_another_attention(copy):
    directory = copy("bct")
    trainer = make_trainer(directory, model=make_model(attention="eager"))
    trainer.train(resume_from_checkpoint=True, resume_changed=["attn_implementation"])
    card = (directory / "checkpoint-4" / "README.md").read_text()
    assert "| History | 2 steps of bct, then 2 of bct: after step 2 `attn_implementation` sdpa → eager |" in card


def test_checkpoint_that_notes_nothing(copy, caplog):
    directory = copy("bct")
    path = directory / "checkpoint-2" / "trainer_state.json"
    state = json.loads(path.read_text())
    del state["stateful_callbacks"]["manifest"]["run"]
    path.write_text(json.dumps(state))
    make_trainer(directory, method="act").train(resume_from_checkpoint=True)
    assert "checkpoint-2 does not record its run" in caplog.text
    card = (directory / "checkpoint-4" / "README.md").read_text()
    assert (
        "| History | 2 steps of a run that was not noted, then 2 of act: after step 2 nothing could be compared |"
        in card
    )


def test_optimizer_that_cannot_be_compared(copy):
    """Its state is of another kind."""
    directory = copy("bct")
    path = directory / "checkpoint-2" / "trainer_state.json"
    state = json.loads(path.read_text())
    del state["stateful_callbacks"]["manifest"]["run"]
    path.write_text(json.dumps(state))
    with pytest.raises(ConsistencyError, match=r"The optimizer's state in .*checkpoint-2 cannot be loaded"):
        make_trainer(directory, optim="sgd", optim_args="momentum=0.9").train(resume_from_checkpoint=True)


class KeepsStateInGroups(torch.optim.SGD):
    """As GrokAdamW."""

    def step(self, closure=None):
        for group in self.param_groups:
            group["state"] = {group["params"][0]: {"step": 1}}
        return super().step(closure)


def test_optimizer_whose_state_is_not_restored(tmp_path):
    """The resumed run went on without it."""
    own_optimizer = {"optimizer_cls_and_kwargs": (KeepsStateInGroups, {"lr": 0.1})}
    with_own(tmp_path, own_optimizer).train()
    with pytest.raises(
        ConsistencyError, match=r"checkpoint-2 cannot be loaded \(it belongs to weights of the run before"
    ):
        with_own(tmp_path, own_optimizer).train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))


def test_longer_runs_of_a_constant_learning_rate(tmp_path):
    make_trainer(tmp_path, lr_scheduler_type="constant", max_steps=2).train()
    longer = make_trainer(tmp_path, lr_scheduler_type="constant", max_steps=4)
    longer.train(resume_from_checkpoint=True)
    whole = make_trainer(tmp_path / "whole", lr_scheduler_type="constant", max_steps=4)
    whole.train()
    for name, weight in load_file(tmp_path / "checkpoint-4" / "adapter_model.safetensors").items():
        assert torch.equal(weight, load_file(tmp_path / "whole/checkpoint-4/adapter_model.safetensors")[name])
    assert longer.run_record.history == []


def test_shorter_run_than_was_trained_is_refused(tmp_path):
    """It ended without an error, with more steps than it should have had."""
    make_trainer(tmp_path, lr_scheduler_type="constant", max_steps=3).train()
    for length in ({"max_steps": 2}, {"max_steps": -1, "num_train_epochs": 0.5}):
        shorter = make_trainer(tmp_path, lr_scheduler_type="constant", **length)
        with pytest.raises(ConsistencyError, match="the checkpoint is of step 3, and this run ends after step 2"):
            shorter.train(resume_from_checkpoint=True)


def test_other_intervals_take_effect(copy):
    """Those of the checkpoint were used to the end."""
    directory = copy("bct")
    often = {"eval_strategy": "steps", "eval_steps": 1, "save_steps": 0.25, "logging_steps": 2}
    trainer = make_trainer(directory, eval_dataset=make_pairs(4), **often)
    trainer.train(resume_from_checkpoint=True)
    resumed = [entry for entry in trainer.state.log_history if entry["step"] > 2]
    assert [entry["step"] for entry in resumed if "eval_loss" in entry] == [3, 4]
    assert [entry["step"] for entry in resumed if "loss" in entry] == [4]
    assert {of.name for of in directory.glob("checkpoint-*")} == {f"checkpoint-{step}" for step in (2, 3, 4)}


@pytest.mark.long
@pytest.mark.parametrize("method", ["bct", "opct"])
def test_finished_run_takes_no_further_step(tmp_path, method):
    """It ended within an epoch, and what was to come after training was lost."""
    make_trainer(tmp_path, method=method, max_steps=2).train()
    before = load_file(tmp_path / "checkpoint-2" / "adapter_model.safetensors")
    trainer = make_trainer(tmp_path, method=method, max_steps=2)
    trainer.train(resume_from_checkpoint=True)
    assert trainer.state.global_step == 2
    assert not (tmp_path / "checkpoint-3").exists()
    trainer.save_model(tmp_path / "after")
    for name, weight in load_file(tmp_path / "after" / "adapter_model.safetensors").items():
        assert torch.equal(weight, before[name])


def test_changed_learning_rate_takes_effect(copy):
    """The states of the optimizer and the schedule hold the old one."""
    directory = copy("bct")
    trainer = make_trainer(directory, learning_rate=1e-4, weight_decay=0.5)
    trainer.train(resume_from_checkpoint=True, resume_changed=["learning_rate", "weight_decay"])
    rates = {entry["step"]: entry["learning_rate"] for entry in trainer.state.log_history if "learning_rate" in entry}
    assert rates[2] == pytest.approx(1e-2 * 3 / 4)
    assert rates[3] == pytest.approx(1e-4 * 2 / 4)
    assert rates[4] == pytest.approx(1e-4 * 1 / 4)
    assert {group["weight_decay"] for group in trainer.optimizer.param_groups} == {0.0, 0.5}  # none for norms


@pytest.mark.long
@pytest.mark.parametrize("breaks_off", [False, True])
def test_options_of_a_later_training_of_one_trainer_take_effect(tmp_path, breaks_off):
    """After a resumption, and after a training that was broken off in its first step, the optimizer was that of the earlier options."""

    class Breaks(TrainerCallback):
        def on_pre_optimizer_step(self, args, state, control, **kwargs):
            raise RuntimeError

    trainer = make_trainer(tmp_path, lr_scheduler_type="constant", max_steps=2)
    if breaks_off:
        trainer.add_callback(breaking := Breaks())
        with pytest.raises(RuntimeError):
            trainer.train()
        trainer.remove_callback(breaking)
    else:
        trainer.train()
    trainer.args.learning_rate, trainer.args.weight_decay = 1e-4, 0.5
    changed = {
        "resume_from_checkpoint": str(tmp_path / "checkpoint-1"),
        "resume_changed": ["learning_rate", "weight_decay"],
    }
    trainer.train(**({} if breaks_off else changed))
    assert trainer.state.global_step == 2
    assert {group["lr"] for group in trainer.optimizer.param_groups} == {1e-4}
    assert {group["weight_decay"] for group in trainer.optimizer.param_groups} == {0.0, 0.5}


@pytest.mark.long
@pytest.mark.parametrize(
    ("options", "name"), [({"max_steps": 8}, "length"), ({"per_device_train_batch_size": 2}, "rows_per_step")]
)
def test_learning_rate_of_another_length_takes_effect_at_once(tmp_path, options, name):
    """The first step after resuming had the rate of the old schedule, from the optimizer's state."""
    epochs = {"max_steps": -1, "num_train_epochs": 4} if name == "rows_per_step" else {}
    make_trainer(tmp_path, save_steps=2, **epochs).train()
    trainer = make_trainer(tmp_path, **{**epochs, **options})
    rates = []

    class Watch(TrainerCallback):
        def on_step_begin(self, args, state, control, optimizer, **kwargs):
            rates.append(optimizer.param_groups[0]["lr"])

    trainer.add_callback(Watch())
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"), resume_changed=[name])
    steps = trainer.state.max_steps
    assert rates == pytest.approx([1e-2 * (steps - step) / steps for step in range(2, steps)])


def test_changed_optimizer_begins_anew(copy, caplog):
    trainer = make_trainer(copy("bct"), optim="sgd")
    trainer.train(resume_from_checkpoint=True, resume_changed=["optim"])
    assert "its state (momentum and the like) starts again" in caplog.text
    rates = [entry["learning_rate"] for entry in trainer.state.log_history if "learning_rate" in entry]
    assert rates[2:] == pytest.approx([1e-2 * 2 / 4, 1e-2 * 1 / 4])


def own(name, lr=0.1, momentum=0.0, gamma=None, kind=torch.optim.SGD):
    """An optimizer of the caller's, by its class or made already, with or without a schedule, for a model without adapter."""
    if name == "class":
        return {"optimizer_cls_and_kwargs": (kind, {"lr": lr, **({"momentum": momentum} if momentum else {})})}
    model = make_model()
    optimizer = kind(model.parameters(), lr=lr, **({"momentum": momentum} if momentum else {}))
    schedule = gamma and torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma)
    return {"model": model, "optimizers": (optimizer, schedule)}


def with_own(directory, arguments, **options):
    options = {"save_strategy": "steps", "save_steps": 2, "max_steps": 4, **options}
    return ConsistencyTrainer(
        **{"model": make_model(), **arguments},
        args=make_config(directory, **options),
        train_dataset=make_pairs(12),
        processing_class=make_tokenizer(),
    )


@pytest.mark.long
@pytest.mark.parametrize(
    ("before", "after", "names"),
    [
        (("class", 0.1), ("class", 0.5, 0.9), ["optimizer.lr", "optimizer.momentum"]),
        (("class", 0.1, 0.5), ("class", 0.1, 0.9), ["optimizer.momentum"]),
        (("made", 0.1), ("made", 0.1, 0.9), ["optimizer.momentum"]),
        (("made", 0.1), ("made", 0.1, 0.0, None, torch.optim.Adagrad), ["optimizer"]),
        (("made", 0.1), None, ["optimizer"]),
        (None, ("class", 0.1), ["optimizer"]),
        (("made", 0.1, 0.0, 0.9), ("made", 0.1, 0.0, 0.5), ["schedule.gamma"]),
        (("made", 0.1), ("made", 0.1, 0.0, 0.5), ["schedule"]),
    ],
)
def test_another_optimizer_of_the_callers(tmp_path, before, after, names):
    with_own(tmp_path, own(*before) if before else {}, max_steps=2, lr_scheduler_type="constant").train()
    trainer = with_own(tmp_path, own(*after) if after else {}, lr_scheduler_type="constant")
    with pytest.raises(ConsistencyError, match="belongs to another run") as end:
        trainer.train(resume_from_checkpoint=True)
    assert [row.split("`")[1] for row in str(end.value).splitlines()[1:]] == names


@pytest.mark.long
@pytest.mark.parametrize("arguments", [("class", 0.1, 0.9), ("made", 0.1, 0.9), ("made", 0.1, 0.9, 0.9)])
def test_the_same_optimizer_of_the_callers(tmp_path, arguments):
    with_own(tmp_path, own(*arguments)).train()
    resumed = with_own(tmp_path / "resumed", own(*arguments))
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    for name, weight in load_file(tmp_path / "checkpoint-4" / "model.safetensors").items():
        assert torch.equal(weight, load_file(tmp_path / "resumed/checkpoint-4/model.safetensors")[name])


def test_changed_optimizer_of_the_callers_takes_effect(tmp_path):
    with_own(tmp_path, own("class", 0.1, 0.5)).train()
    trainer = with_own(tmp_path / "changed", own("class", 0.2, 0.9))
    changed = ["optimizer.lr", "optimizer.momentum"]
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"), resume_changed=changed)
    assert {group["momentum"] for group in trainer.optimizer.param_groups} == {0.9}
    assert {group["initial_lr"] for group in trainer.optimizer.param_groups} == {0.2}


def test_schedule_of_functions():
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.1)
    described = [
        describe_own_optimizer(
            SimpleNamespace(
                has_own_optimizer=True,
                optimizer_cls_and_kwargs=None,
                optimizer=optimizer,
                lr_scheduler=torch.optim.lr_scheduler.LambdaLR(optimizer, share),
            )
        )
        for share in (lambda step: 0.9**step, lambda step: 0.5**step, lambda step: 0.9**step)
    ]
    assert described[0] == described[2]
    assert set(find_differences(described[0], described[1])) == {"schedule.shares_0"}


def test_changed_base_of_a_reference(copy):
    directory = copy("act")
    trainer = make_trainer(directory, method="act", model=make_model(seed=1))
    trainer.train(resume_from_checkpoint=True, resume_changed=["model"])
    assert trainer.state.global_step == 4


def test_another_end_of_a_rollout(copy):
    """The rollouts of the resumed run ended elsewhere, and the card said nothing."""
    trainer = make_trainer(copy("opct"), end="<|endoftext|>", **BEGUN["opct"])
    with pytest.raises(ConsistencyError, match=r"`eos_token`: <\|im_end\|> there, <\|endoftext\|> here"):
        trainer.train(resume_from_checkpoint=True)


def test_targets_of_the_same_options(copy):
    """As when the cache was edited."""
    directory = copy("generated")
    trainer = make_trainer(directory, **BEGUN["generated"])
    trainer.generate_targets()
    for key in trainer.targets._completions:
        trainer.targets._completions[key][0] += 1
    with pytest.raises(ConsistencyError, match="`targets`: "):
        trainer.train(resume_from_checkpoint=True)


def test_names_that_mean_nothing(copy, tmp_path):
    with pytest.raises(ConsistencyError, match="`resume_changed` names `lora_alpah`"):
        make_trainer(copy("bct")).train(resume_from_checkpoint=True, resume_changed=["lora_alpah"])
    with pytest.raises(ConsistencyError, match="`resume_changed` needs `resume_from_checkpoint`"):
        make_trainer(tmp_path).train(resume_changed=["method"])


@pytest.mark.long
def test_stream(tmp_path, caplog):
    make_trainer(tmp_path, make_pairs(12).to_iterable_dataset(), max_steps=1, lr_scheduler_type="constant").train()
    with pytest.raises(ConsistencyError, match="`train_dataset`: streamed, the first 12 rows"):
        make_trainer(tmp_path, make_pairs(13).to_iterable_dataset(), lr_scheduler_type="constant").train(True)
    make_trainer(tmp_path, make_pairs(12).to_iterable_dataset(), lr_scheduler_type="constant").train(True)
    assert caplog.text.count(STREAM_WARNING) == 1


def sharded(rows=24):
    return make_pairs(rows).to_iterable_dataset(num_shards=4)


@pytest.mark.long
@pytest.mark.parametrize("workers", [1, 2, 9])
def test_workers_read_a_stream_in_the_same_order(tmp_path, workers):
    """Of several workers, rows would be trained on twice or never."""
    options = {"per_device_train_batch_size": 2, "lr_scheduler_type": "constant"}
    make_trainer(tmp_path, sharded(), **options, max_steps=2).train()
    resumed = make_trainer(tmp_path, sharded(), **options, dataloader_num_workers=workers)
    resumed.train(True)
    whole = make_trainer(tmp_path / "whole", sharded(), **options)
    whole.train()
    assert torch.equal(weights(resumed.model), weights(whole.model))


@pytest.mark.long
def test_a_worker_that_draws_another_order_of_a_shuffled_stream(tmp_path):
    options = {"per_device_train_batch_size": 2, "lr_scheduler_type": "constant"}
    shuffled = make_pairs(8).to_iterable_dataset().shuffle(seed=3, buffer_size=4)
    make_trainer(tmp_path, shuffled, **options, max_steps=2).train()
    with pytest.raises(ConsistencyError, match="`dataloader_num_workers`: 0 there, 1 here"):
        make_trainer(tmp_path, shuffled, **options, dataloader_num_workers=1).train(True)
    make_trainer(tmp_path, shuffled, **options, max_steps=3).train(True)


@pytest.mark.long
@pytest.mark.parametrize(("step", "goes_on"), [(2, True), (3, True), (4, False)])
def test_rows_whose_order_was_not_drawn_by_the_seed(tmp_path, step, goes_on):
    """In the middle of a later epoch, a resumed run trained on some rows twice, and on others not at all."""
    options = {"max_steps": 6, "accelerator_config": {"use_seedable_sampler": False}}
    whole = make_trainer(tmp_path, **options)
    whole.train()
    resumed = make_trainer(tmp_path, **options)
    if goes_on:
        resumed.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{step}"))
        assert torch.equal(weights(resumed.model), weights(whole.model))
        return
    with pytest.raises(ConsistencyError, match="`use_seedable_sampler` to false, and the order of this epoch's rows"):
        resumed.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{step}"))


@pytest.mark.parametrize(("seedable", "step", "goes_on"), [(False, 2, False), (False, 3, True), (True, 2, True)])
def test_rows_whose_order_several_processes_drew_without_a_seed(tmp_path, seedable, step, goes_on):
    """One process draws it by another generator: within the epoch, it trained on some rows twice, and on others not at all."""
    options = {"max_steps": 4, "accelerator_config": {"use_seedable_sampler": seedable}}
    make_trainer(tmp_path, **options).train()
    checkpoint = tmp_path / f"checkpoint-{step}"
    file = checkpoint / "trainer_state.json"
    state = json.loads(file.read_text())
    state["stateful_callbacks"]["manifest"]["processes"] = 2
    file.write_text(json.dumps(state))
    resumed = make_trainer(tmp_path, **options)
    if goes_on:
        resumed.train(resume_from_checkpoint=str(checkpoint))
        assert resumed.state.global_step == 4
        return
    with pytest.raises(ConsistencyError, match=r"end of an epoch, or with 2 process\(es\)"):
        resumed.train(resume_from_checkpoint=str(checkpoint))


def test_rows_grouped_by_length_go_on_in_a_later_epoch(tmp_path):
    options = {"per_device_train_batch_size": 2, "max_steps": 10, "save_steps": 4, "lr_scheduler_type": "constant"}
    lora = {"train_sampling_strategy": "group_by_length", "neftune_noise_alpha": 5.0}  # random numbers in each step
    trained = []
    for checkpoint in (None, str(tmp_path / "checkpoint-8")):
        trainer = make_trainer(tmp_path, **options, **lora)
        trainer.train(resume_from_checkpoint=checkpoint)
        trained.append(weights(trainer.model))
    assert torch.equal(*trained)


@pytest.mark.parametrize("data_seed", [None, 5])
def test_rows_grouped_by_length_have_another_order_in_each_epoch(tmp_path, data_seed):
    trainer = make_trainer(tmp_path, train_sampling_strategy="group_by_length", data_seed=data_seed)
    sampler, orders = trainer._get_train_sampler(), []
    for epoch in (0, 1, 0):
        trainer._epoch = epoch
        torch.rand(3)
        orders.append(list(sampler))
    assert orders[0] == orders[2] != orders[1]
    assert all(sorted(order) == list(range(12)) for order in orders)
    other = make_trainer(tmp_path, train_sampling_strategy="group_by_length", data_seed=data_seed, seed=7)
    assert (list(other._get_train_sampler()) == orders[0]) == (data_seed is not None)


class EndsEpochs(TrainerCallback):
    """Ends each epoch after two steps."""

    def on_step_end(self, args, state, control, **kwargs):
        control.should_epoch_stop = state.global_step % 2 == 0


@pytest.mark.parametrize("step", [1, 2, 3])
def test_epochs_that_a_callback_ends_early_are_warned_about(tmp_path, caplog, step):
    trainer = make_trainer(tmp_path, num_train_epochs=2, max_steps=-1)
    trainer.add_callback(EndsEpochs())
    trainer.train()
    assert "ended an epoch early" not in caplog.text
    for again in (1, 2):  # it is known after a resumed run, too
        checkpoint = sorted(tmp_path.glob("checkpoint-*"))[step - 1 if again == 1 else -1]
        caplog.clear()
        make_trainer(tmp_path, num_train_epochs=2, max_steps=-1).train(resume_from_checkpoint=str(checkpoint))
        assert ("ended an epoch early" in caplog.text) == (step > 1)


def test_manifest_is_in_every_checkpoint(begun):
    run = read_manifest(begun("bct") / "checkpoint-2")["run"]
    assert run["method"] == ["bct"]
    assert run["adapter.lora_alpha"] == 8
    assert run["rows_per_step"] == 4


def test_the_checkpoint_that_the_config_names_is_resumed_from(tmp_path, monkeypatch):
    make_trainer(tmp_path, max_steps=2).train()
    trainer = make_trainer(tmp_path, max_steps=2, resume_from_checkpoint=str(tmp_path / "checkpoint-1"))
    taken = []
    step = trainer.training_step
    monkeypatch.setattr(trainer, "training_step", lambda *args, **kwargs: taken.append(0) or step(*args, **kwargs))
    trainer.train()
    assert (len(taken), trainer.state.global_step) == (1, 2)
