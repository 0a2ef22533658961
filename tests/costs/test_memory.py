"""The memory that is computed from a config, against models and against real runs."""

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM
from trl import ModelConfig, get_peft_config

from tests.costs.measured import measure, model_config
from tests.helpers.models import make_config, make_pairs, make_tokenizer
from trl_consistency import ConsistencyTrainer
from trl_consistency.costs.memory import measure_memory
from trl_consistency.costs.setup import Setup, make_outline
from trl_consistency.costs.tracing import MemoryTrace


SMALL = {"hidden_size": 64, "intermediate_size": 1024, "vocab_size": 64, "head_dim": 16}
LORA = {"use_peft": True, "lora_target_modules": ["all-linear"]}


def outline_of(config, lora=True, attention=None):
    return make_outline("model", config, get_peft_config(ModelConfig(**LORA)) if lora else None, attention)


def case(method, lora, max_length, rows, attention=None, shape=None, load_in_4bit=False, **options):
    options["per_device_train_batch_size"] = rows
    return {
        "load_in_4bit": load_in_4bit,
        "method": method,
        "lora": lora,
        "max_length": max_length,
        "attention": attention,
        "shape": shape or {},
        "options": options,
    }


# Each takes some hundred megabytes or more: below that, what libraries take at their first call matters.
CASES = {
    "bct": case(["bct"], True, 512, 4, max_completion_length=64, gradient_checkpointing=False),
    "bct, checkpointing": case(["bct"], True, 512, 8, max_completion_length=64, gradient_checkpointing=True),
    "bct, all weights": case(["bct"], False, 512, 4, max_completion_length=64, gradient_checkpointing=False),
    "bct, accumulation": case(
        ["bct"],
        False,
        256,
        4,
        shape={"hidden_size": 512, "intermediate_size": 2048},
        max_completion_length=64,
        gradient_checkpointing=False,
        gradient_accumulation_steps=2,
    ),
    "bct, targets": case(
        ["bct"], True, 512, 8, max_completion_length=64, gradient_checkpointing=True, target_batch_size=16
    ),
    "kl": case(
        ["kl"], True, 256, 4, shape={"vocab_size": 32768}, max_completion_length=64, gradient_checkpointing=False
    ),
    "act": case(["act"], True, 512, 4, gradient_checkpointing=False),
    "act, all weights": case(["act"], False, 512, 4, gradient_checkpointing=True),
    "attct": case(["attct"], True, 256, 4, "eager", gradient_checkpointing=False),
    "mlpct": case(["mlpct"], True, 512, 4, gradient_checkpointing=False),
    "bct and act": case(["bct", "act"], True, 512, 4, max_completion_length=64, gradient_checkpointing=False),
    "bct and act, metrics": case(
        ["bct", "act"],
        True,
        512,
        4,
        max_completion_length=64,
        gradient_checkpointing=False,
        log_consistency_metrics=True,
    ),
    "bct, act and mlpct, checkpointing": case(
        ["bct", "act", "mlpct"], True, 512, 8, max_completion_length=64, gradient_checkpointing=True
    ),
    "opct": case(["opct"], True, 512, 16, max_completion_length=128, gradient_checkpointing=False),
    "bct, bfloat16": case(["bct"], True, 512, 8, max_completion_length=64, gradient_checkpointing=False, bf16=True),
    "act, 4 bits": case(["act"], True, 512, 8, load_in_4bit=True, gradient_checkpointing=False, bf16=True),
    "opct, checkpointing": case(["opct"], True, 1024, 16, max_completion_length=128, gradient_checkpointing=True),
}


def computed(of):
    options = of["options"]
    setup = Setup(
        tuple(of["method"]),
        of["max_length"],
        options.get("max_completion_length", 0),
        options["per_device_train_batch_size"],
        gradient_accumulation_steps=options.get("gradient_accumulation_steps", 1),
        gradient_checkpointing=options["gradient_checkpointing"],
        use_cpu=True,
        target_batch_size=options.get("target_batch_size"),
        bf16=options.get("bf16", False),
        dtype="bfloat16" if options.get("bf16") else "float32",
        load_in_4bit=of["load_in_4bit"],
    )
    return measure_memory(outline_of(model_config(**of["shape"]), of["lora"], of["attention"]), setup)


@pytest.mark.long
def test_casts_of_trained_weights_are_kept_for_bct_alone():
    """The passes of the other methods keep none, so that the student does not get those that the reference made."""
    outline = outline_of(model_config(**SMALL, num_hidden_layers=8), lora=False)
    found = {
        method: measure_memory(
            outline, Setup((method,), 16, 8, 1, use_cpu=True, bf16=True, gradient_accumulation_steps=2)
        )
        for method in ("bct", "kl", "act")
    }
    casts = found["bct"].weights // 2
    # The kernel of `kl` has room for a large vocabulary.
    beside_head = {method: of.activations - of.logits for method, of in found.items()}
    assert max(beside_head["kl"], beside_head["act"]) < casts / 2 < beside_head["bct"]


@pytest.mark.parametrize(
    ("optim", "use_cpu"), [("adamw_torch", False), ("adamw_torch", True), ("adamw_torch_fused", False)]
)
def test_an_update_of_all_weights_at_once(optim, use_cpu):
    """On a GPU, AdamW without `fused` holds the roots of all second moments for a moment: more than short rows take."""
    config = model_config(**SMALL)
    found = measure_memory(outline_of(config, lora=False), Setup(("bct",), 16, 8, 1, optim=optim, use_cpu=use_cpu))
    assert found.optimizer == 2 * found.weights == 8 * found.trained
    of_foreach = optim == "adamw_torch" and not use_cpu
    assert (found.activations == 4 * found.trained) == of_foreach
    assert of_foreach or found.activations < 4 * found.trained


def test_what_an_update_of_all_weights_at_once_holds():
    """One more copy of them."""
    weights = [torch.nn.Parameter(torch.ones(1000)) for _ in range(9)]
    for weight in weights:
        weight.grad = torch.ones(1000)
    adamw = torch.optim.AdamW(weights, foreach=True)
    adamw.step()
    with MemoryTrace(torch.nn.ParameterList(weights)) as trace:
        adamw.step()
    assert trace.peak == 9 * 4000


def test_the_reference_is_a_copy_of_weights_that_get_no_gradient_too():
    """It is made before the trainer freezes what no compared block depends on."""
    outline = outline_of(model_config(**SMALL, num_hidden_layers=4), lora=False)
    setup = Setup(("act",), 16, 0, 1, layers=(0,), use_cpu=True)
    found = measure_memory(outline, setup)
    assert found.reference == found.weights > 2 * found.gradients


@pytest.mark.parametrize("tied", [True, False])
def test_an_optimizer_of_8_bits(tmp_path, tied):
    """It has 32 bits for embeddings, and for small weights."""
    shape = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    tokens = {"vocab_size": 1024, "pad_token_id": 0, "bos_token_id": None, "eos_token_id": 2}
    options = {"num_key_value_heads": 2, "head_dim": 16, "architectures": ["Qwen3ForCausalLM"]}
    config = Qwen3Config(**shape, **tokens, **options, tie_word_embeddings=tied)
    trainer = ConsistencyTrainer(
        Qwen3ForCausalLM(config),
        args=make_config(tmp_path, optim="adamw_8bit", max_steps=1),
        train_dataset=make_pairs(4),
        processing_class=make_tokenizer(),
    )
    trainer.train()
    states = getattr(trainer.optimizer, "optimizer", trainer.optimizer).state.values()
    held = [state[name] for state in states for name in ("state1", "state2")]
    setup = Setup(("bct",), 64, 16, 2, optim="adamw_8bit")
    computed = measure_memory(outline_of(config, lora=False), setup).optimizer
    assert computed == pytest.approx(sum(of.numel() * of.element_size() for of in held), rel=0.001)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_memory_is_what_a_run_takes(name):
    expected, found = computed(CASES[name]).total, measure(CASES[name])
    print(f"\n{name}: {expected / 2**20:.0f} MiB computed, {found / 2**20:.0f} MiB measured ({expected / found:.2f})")
    assert expected == pytest.approx(found, rel=0.15)
