"""Whole runs on newer architectures: those with layers that carry a state, Gemma 4, and OLMo 3."""

import json
from pathlib import Path

import pytest
import torch
import trl
from peft import LoraConfig
from torch.testing import assert_close
from transformers import BitsAndBytesConfig
from trl import get_peft_config

from tests.helpers import on_policy, paired
from tests.helpers.architectures import FOR_TEXTS, lora_targets, make, qwen3_5_with_vision
from tests.helpers.by_method import trainer_of
from tests.helpers.models import make_pairs, make_tokenizer
from tests.helpers.once import made_once
from tests.helpers.runs import LORA, weights
from tests.trainer.test_distributed import ON_POLICY, PAIRED, arguments_of, check_two_equal_one, launch, load_result
from tests.trainer.test_qlora import NF4, linears
from trl_consistency import ConsistencyTrainer, OnPolicyConsistencyTrainer
from trl_consistency.scripts import consistency, on_policy_consistency


KINDS = ("qwen3_5", "qwen3_next", "lfm2", "granitemoehybrid", "nemotron_h", "gemma4", "olmo3")
# A layer of each that is to be in 4 bits: of those with a state, one that is not in attention
LAYERS = {
    "qwen3_5": "linear_attn.in_proj_qkv",
    "qwen3_next": "linear_attn.in_proj_qkvz",
    "lfm2": "conv.in_proj",
    "granitemoehybrid": "mamba.in_proj",
    "nemotron_h": "mixer.in_proj",
    "gemma4": "per_layer_input_gate",
    "olmo3": "self_attn.q_proj",
}


def make_for_texts(kind, **changes):
    of_kind = {"vocab_size_per_layer_input": FOR_TEXTS["vocab_size"]} if kind == "gemma4" else {}
    return make(kind, "sdpa", **FOR_TEXTS, **of_kind, **changes)


def make_trainer(kind, trainer, folder, **options):
    adapter = {"lora": True, "target_modules": lora_targets(kind)}
    options = {"per_device_train_batch_size": 4, **adapter, "model": make_for_texts(kind), **options}
    if trainer == "opct":
        return on_policy.make_trainer(folder, make_pairs(8, completion=False), **options)
    return paired.make_trainer(folder, make_pairs(8, completion=False), method=["bct", "act"], **options)


@pytest.mark.long
@pytest.mark.parametrize("trainer", ["paired", "opct"])
@pytest.mark.parametrize("kind", KINDS)
def test_resumed_run_equals_an_uninterrupted_one(tmp_path, kind, trainer):
    rows = 8 if trainer == "opct" else 4  # 4 pairs a step, each with 2 rollouts
    options = {"num_train_epochs": 2, "save_strategy": "steps", "save_steps": 1, "per_device_train_batch_size": rows}
    whole = make_trainer(kind, trainer, tmp_path, **options)
    before = weights(whole.model)
    whole.train()
    steps = whole.state.global_step
    assert (weights(whole.model) - before).abs().max() > 1e-3
    for kill in {1, steps - 1}:
        resumed = make_trainer(kind, trainer, tmp_path, **options)
        resumed.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{kill}"))
        assert resumed.state.global_step == steps
        assert torch.equal(weights(whole.model), weights(resumed.model)), kill


@pytest.mark.long
@pytest.mark.parametrize("trainer", ["paired", "opct"])
@pytest.mark.parametrize("kind", KINDS)
def test_gradient_checkpointing_changes_nothing(tmp_path, kind, trainer):
    """OPCT computes prompts once without it, and row by row with it: the layers' states are not kept."""
    trained = []
    for checkpointing in (False, True):
        options = {"gradient_checkpointing": checkpointing, "max_steps": 2, "optim": "sgd", "learning_rate": 0.1}
        run = make_trainer(kind, trainer, tmp_path / str(checkpointing), **options)
        if trainer == "opct":
            on_policy.replay(run)
        before = weights(run.model)
        run.train()
        trained.append(weights(run.model))
        assert (trained[-1] - before).abs().max() > 1e-3
    assert_close(*trained, rtol=1e-5, atol=1e-6)


# Two processes

RUNS = {
    "kl, act, mlpct, bct": (PAIRED, "kl+act+mlpct+bct", {"given": True, "learning_rate": 0.05}),
    "OPCT": (ON_POLICY, "divergence", {"by_path": True, "learning_rate": 0.15}),
}
CASES = [(kind, row) for kind in KINDS for row in RUNS]


def others_of(kind, row):
    """Further options of a case."""
    return {**RUNS[row][2], "target_modules": lora_targets(kind)}


@pytest.fixture(scope="module")
def model_dirs(tmp_path_factory):
    folders = {}
    for kind in KINDS:
        folders[kind] = tmp_path_factory.mktemp(kind)
        make_for_texts(kind).save_pretrained(folders[kind])
        make_tokenizer().save_pretrained(folders[kind])
    return folders


@pytest.fixture(scope="module")
def of_two_processes(tmp_path_factory, model_dirs):
    """Results of two processes by case: one start for all."""

    def run_in_turn(folder):
        runs = []
        for number, (kind, row) in enumerate(CASES):
            script, method, _ = RUNS[row]
            others = others_of(kind, row)
            runs.append((script, *arguments_of(folder / str(number), model_dirs[kind], 2, "lora", method, others)))
        launch("DDP", "no", ["-m", "tests.helpers.in_turn", json.dumps(runs)], timeout=600)
        return {case: load_result(folder / str(number)) for number, case in enumerate(CASES)}

    return made_once(tmp_path_factory, "two_processes_on_hybrids", run_in_turn)[1]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "row"), CASES)
def test_two_processes_equal_one(tmp_path, kind, row, model_dirs, of_two_processes):
    script, method, _ = RUNS[row]
    two, others = of_two_processes[kind, row], others_of(kind, row)
    check_two_equal_one(tmp_path, model_dirs[kind], {}, "DDP", script, "lora", method, two, **others)


# Weights in 4 bits


@pytest.fixture(scope="module")
def wide_dirs(tmp_path_factory):
    """Wide enough that bitsandbytes has another layout for its weights."""
    folders = {}
    for kind in KINDS:
        folders[kind] = tmp_path_factory.mktemp(kind)
        of_kind = {"mamba_d_head": 64} if kind == "granitemoehybrid" else {}
        make_for_texts(kind, hidden_size=128, intermediate_size=256, **of_kind).save_pretrained(folders[kind])
        make_tokenizer().save_pretrained(folders[kind])
    return folders


def quantised(folder, model_dir, kind, method, **options):
    options = {"learning_rate": 5e-3, "max_steps": 4, "per_device_train_batch_size": 4, **options}
    return trainer_of(
        method,
        folder,
        str(model_dir),
        options,
        train_dataset=make_pairs(8),
        eval_dataset=make_pairs(4),
        quantization_config=BitsAndBytesConfig(**NF4),
        peft_config=LoraConfig(**{**LORA, "target_modules": lora_targets(kind)}),
    )


# What a method adds is seen on one kind, and what a kind adds with one method. All of them are in the slow set.
IN_4_BITS = [
    pytest.param(kind, method, marks=pytest.mark.slow if kind != KINDS[0] and method != "opct" else ())
    for kind in KINDS
    for method in ("bct", "act", "opct")
]


@pytest.mark.long
@pytest.mark.parametrize(("kind", "method"), IN_4_BITS)
def test_weights_in_4_bits(tmp_path, wide_dirs, kind, method):
    """The frozen weights stay as they are, and an evaluation on the way changes nothing."""
    plain = quantised(tmp_path / "plain", wide_dirs[kind], kind, method)
    names = [name for name, module in plain.model.named_modules() if module in set(linears(plain.model))]
    assert any(LAYERS[kind] in name for name in names)
    packed = [(module, module.weight.data.clone()) for module in linears(plain.model)]
    before = weights(plain.model)
    plain.train()  # checks the reference at its end, too
    assert all(torch.equal(module.weight.data, weight) for module, weight in packed)
    assert (weights(plain.model) - before).abs().max() > 1e-4
    evaluated = quantised(
        tmp_path / "evaluated", wide_dirs[kind], kind, method, eval_strategy="steps", eval_steps=2, eval_on_start=True
    )
    evaluated.train()
    assert torch.equal(weights(evaluated.model), weights(plain.model))


# The recipes of Qwen3.5, whose checkpoints hold a vision tower too

TEMPLATE = Path(trl.__file__).parent / "chat_templates" / "qwen3_5_think.jinja"
RECIPES = Path(__file__).parents[2] / "recipes" / "qwen3.5-4b"
OF_RECIPES = {"bct": (consistency, ConsistencyTrainer), "opct": (on_policy_consistency, OnPolicyConsistencyTrainer)}


@pytest.mark.long
@pytest.mark.parametrize("name", OF_RECIPES)
def test_recipes_of_qwen3_5(tmp_path, name):
    """Of a tiny model, every linear layer of the text blocks gets an adapter that is trained, and nothing else does."""
    script, trainer_class = OF_RECIPES[name]
    short = [
        "--use_cpu",
        "--bf16",
        "false",
        "--max_steps",
        "2",
        "--max_completion_length",
        "8",
        "--gradient_accumulation_steps",
        "1",
    ]
    few = ["--save_strategy", "no", "--output_dir", str(tmp_path), "--learning_rate", "1e-2", "--logging_steps", "1"]
    _, args, model_args, _ = script.make_parser().parse_args_and_config(
        ["--config", str(RECIPES / name / "sycophancy_lora.yaml"), *short, *few]
    )
    model = qwen3_5_with_vision()
    text_blocks = model.model.language_model.layers
    expected = {
        f"model.language_model.layers.{block}"
        for block, module in text_blocks.named_modules()
        if isinstance(module, torch.nn.Linear)
    }
    trainer = trainer_class(
        model=model,
        args=args,
        train_dataset=make_pairs(8, completion=False),
        processing_class=make_tokenizer(TEMPLATE.read_text()),
        peft_config=get_peft_config(model_args),
    )
    base = trainer.model.get_base_model()
    adapted = {name for name, module in base.named_modules() if hasattr(module, "lora_A")}
    assert adapted == expected
    before = {name: p.detach().clone() for name, p in trainer.model.named_parameters() if p.requires_grad}
    trainer.train()
    unmoved = [
        name for name, p in trainer.model.named_parameters() if p.requires_grad and torch.equal(p, before[name])
    ]
    assert not unmoved
    if name == "opct":
        assert trainer.rollout_loss.sharing.refused.keys() == {"packed"}
