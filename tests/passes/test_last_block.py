"""The last block, left out where nothing reads it: the same states and gradients where something does."""

from functools import partial

import pytest
import torch
import transformers
from torch import nn
from transformers import AutoModelForCausalLM, Qwen3MoeConfig

from tests.helpers.architectures import CONFIGS, EXPERTS, HYBRIDS, SHAPE, add_lora, make
from trl_consistency.passes import last_block
from trl_consistency.passes.blocks import base_model, find_blocks
from trl_consistency.passes.last_block import _parts, last_block_only_at


EAGER_ONLY = ("gemma2", "gpt_oss")
KINDS = [(kind, "eager" if kind in EAGER_ONLY else "sdpa") for kind in {**CONFIGS, **HYBRIDS}]
# Rows of 9, 6 and 2 tokens, padded on the right. The answers' predictors are read.
LENGTHS = (9, 6, 2)
IS_READ = torch.tensor([[0, 0, 0, 0, 0, 1, 1, 1, 0], [0, 0, 1, 1, 1, 0, 0, 0, 0], [1, 0, 0, 0, 0, 0, 0, 0, 0]]).bool()
READ = IS_READ.flatten().nonzero()[:, 0]
MASK = (torch.arange(9) < torch.tensor(LENGTHS)[:, None]).long()
IDS = torch.randint(3, 120, (3, 9), generator=torch.Generator().manual_seed(0)) * MASK


def run(model, read):
    blocks = find_blocks(model)
    with last_block_only_at(blocks, read, IDS.shape):
        hidden = blocks.backbone(input_ids=IDS, attention_mask=MASK, use_cache=False).last_hidden_state
    assert hidden.isfinite().all()
    return hidden[IS_READ]


def states_and_grads(model, read):
    model.zero_grad()
    states = run(model, read)
    (states * torch.linspace(-1, 1, states.numel()).view_as(states)).sum().backward()
    return states.detach(), {name: of.grad.clone() for name, of in model.named_parameters() if of.grad is not None}


def assert_same(model):
    expected, expected_grads = states_and_grads(model, None)
    states, grads = states_and_grads(model, READ)
    torch.testing.assert_close(states, expected, rtol=1e-5, atol=1e-5)
    assert grads.keys() == expected_grads.keys()
    for name, grad in grads.items():
        scale = expected_grads[name].abs().max()
        torch.testing.assert_close(grad, expected_grads[name], rtol=1e-5, atol=1e-5 * float(scale) + 1e-6, msg=name)


def seen_by(parts):
    """Notes how many tokens each part gets."""
    counts = {}
    for part in parts:
        part.register_forward_pre_hook(lambda module, args: counts.__setitem__(module, args[0].shape[:-1].numel()))
    return counts


@pytest.mark.parametrize(("kind", "attention"), KINDS)
def test_states_and_gradients(kind, attention):
    assert_same(add_lora(make(kind, attention)))


@pytest.mark.parametrize(("kind", "attention"), KINDS)
def test_gradient_checkpointing(kind, attention):
    model = add_lora(make(kind, attention)).train()
    base_model(model).gradient_checkpointing_enable({"use_reentrant": False})
    model.enable_input_require_grads()
    assert_same(model)
    assert all(getattr(block, "gradient_checkpointing", True) for block in find_blocks(model).modules)


@pytest.mark.parametrize("kind", ["llama", "qwen3", "gemma3", "gpt_neox", "phi3", "olmo3"])
def test_what_is_left_out(kind):
    model = make(kind, "sdpa")
    blocks = find_blocks(model)
    parts = _parts(blocks.modules[-1])
    counts = seen_by(parts)
    assert len(parts) == (2 if kind in ("gpt_neox", "phi3") else 3)  # these project queries, keys and values at once
    run(model, None)
    assert [*counts.values()] == [IDS.numel()] * len(parts)
    # Hooks run in their order: those of `seen_by` come before.
    for part in parts:
        part._forward_pre_hooks.clear()
    with last_block_only_at(blocks, READ, IDS.shape):
        counts = seen_by(parts)
        blocks.backbone(input_ids=IDS, attention_mask=MASK, use_cache=False)
    assert [*counts.values()] == [len(READ)] * len(parts)


def test_earlier_blocks_are_whole():
    model = make("llama", "sdpa")
    states = []
    blocks = find_blocks(model)
    blocks.modules[-2].register_forward_hook(lambda module, args, output: states.append(output))
    run(model, None)
    run(model, READ)
    torch.testing.assert_close(states[0], states[1], rtol=0, atol=0)


def test_experts_and_convolutions_run_whole():
    config = Qwen3MoeConfig(**SHAPE, **EXPERTS, decoder_sparse_step=1)
    mixture = AutoModelForCausalLM.from_config(config)
    assert {type(part).__name__ for part in _parts(find_blocks(mixture).modules[-1])} == {"Linear"}

    class SomeMLP(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.down = nn.Conv1d(4, 4, 3, padding=1), nn.Linear(4, 4)

    block = nn.Module()
    block.mlp = SomeMLP()
    assert _parts(block) == []


@pytest.mark.parametrize(
    "config",
    [config for name in ("InklingTextConfig", "Inkling2TextConfig") if (config := getattr(transformers, name, None))],
)
def test_convolutions_over_what_attention_and_mlp_give(config):
    torch.manual_seed(0)
    experts = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
    widths = {"head_dim": 8, "swa_head_dim": 8, "swa_num_attention_heads": 4, "swa_num_key_value_heads": 2, "d_rel": 4}
    model = AutoModelForCausalLM.from_config(config(**SHAPE, **experts, **widths), attn_implementation="eager").eval()
    assert_same(model)


def test_convolutions_of_queries():
    """As in Kimi Linear, whose attention convolves them."""

    class SomeAttention(nn.Module):
        def __init__(self):
            super().__init__()
            self.q_proj, self.o_proj, self.conv1d = nn.Linear(4, 4), nn.Linear(4, 4), nn.Conv1d(4, 4, 3, groups=4)

    class SomeMLP(nn.Module):
        def __init__(self):
            super().__init__()
            self.down = nn.Linear(4, 4)

    block = nn.Module()
    block.attention, block.mlp = SomeAttention(), SomeMLP()
    assert _parts(block) == [block.mlp]


@pytest.mark.parametrize(
    "part", ["", "norm", "layers.3", "layers.3.mlp", "layers.3.mlp.down_proj", "layers.3.self_attn.o_proj"]
)
def test_hooks_of_others_see_the_whole_block(part):
    """Such as those that record activations, or that steer a model at some positions."""
    model, states = make("llama", "sdpa"), []
    module = find_blocks(model).backbone.get_submodule(part)

    def record(module, args, output):
        states.append(output if isinstance(output, torch.Tensor) else output.last_hidden_state)

    class Recorder:
        def __call__(self, *seen):
            record(*seen)

    for hook in (record, Recorder(), partial(record)):
        handle = module.register_forward_hook(hook)
        run(model, None)
        run(model, READ)
        handle.remove()
    for of_pass in states[1:]:
        torch.testing.assert_close(of_pass, states[0], rtol=0, atol=0)


def test_a_backbone_that_checkpoints_its_blocks_itself(monkeypatch):
    monkeypatch.setattr(last_block, "GradientCheckpointingLayer", type("Another", (nn.Module,), {}))
    model = make("llama", "sdpa")
    blocks = find_blocks(model)
    with last_block_only_at(blocks, READ, IDS.shape):
        assert blocks.modules[-1].mlp._forward_pre_hooks
    blocks.backbone.gradient_checkpointing = True
    with last_block_only_at(blocks, READ, IDS.shape):
        assert not blocks.modules[-1].mlp._forward_pre_hooks


def test_other_shapes_pass():
    # As with `torch.nn.DataParallel`, where a process of several GPUs runs a part of the rows on each.
    model = make("llama", "sdpa")
    blocks = find_blocks(model)
    expected = blocks.backbone(input_ids=IDS[:1], use_cache=False).last_hidden_state
    with last_block_only_at(blocks, READ, IDS.shape):
        states = blocks.backbone(input_ids=IDS[:1], use_cache=False).last_hidden_state
    torch.testing.assert_close(states, expected, rtol=0, atol=0)
