"""When rollouts share no prompt: each row is then computed alone, and the reason is said."""

import os
import subprocess
import sys

import pytest
import torch
from peft import PromptTuningConfig, get_peft_model
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    FalconMambaConfig,
    LlamaConfig,
    MptConfig,
)

from tests.helpers.architectures import SHAPE, add_lora, make
from tests.passes.test_prefix_sharing import (
    ALSO_REFUSED,
    PROMPTS,
    assert_same,
    counted_tokens,
    loss_and_grads,
    make_batch,
    row_by_row,
)
from trl_consistency.errors import ConsistencyError
from trl_consistency.passes import prefix_strategies as prefix_roads
from trl_consistency.passes.blocks import find_blocks
from trl_consistency.passes.prefix_sharing import PrefixSharing
from trl_consistency.passes.prefix_strategies import refused_strategies


def test_nothing_shared(llama):
    for rows, prompts in ((((0, 3),), (9,)), (((0, 3), (1, 4), (2, 2)), PROMPTS), (((0, 3), (0, 4)), (1,))):
        batch = make_batch(rows, prompts)
        states = PrefixSharing()(llama, *batch)
        assert (states.strategy, states.reason) == ("plain", "no prompt of several tokens repeats among these rows")
        torch.testing.assert_close(states.hidden[batch[3].bool()], row_by_row(llama, *batch), rtol=1e-4, atol=2e-5)


def test_equal_tokens_under_another_mask_are_another_prompt(llama):
    prompt_ids = torch.full((2, 4), 5)
    prompt_mask = torch.tensor([[1, 1, 1, 1], [0, 1, 1, 1]])
    states = PrefixSharing()(llama, prompt_ids, prompt_mask, torch.full((2, 2), 7), torch.ones(2, 2, dtype=torch.long))
    assert states.strategy == "plain"


def test_mask_above_the_limit(llama):
    states = PrefixSharing(use_cache=False, max_mask_entries=866)(llama, *make_batch())
    assert states.strategy == "plain"
    assert states.reason == (
        "the key/value cache is switched off; the mask of 3 packed rows of 17 tokens has 867 entries, more than 866"
    )
    assert PrefixSharing(use_cache=False, max_mask_entries=867)(llama, *make_batch()).strategy == "packed"


def test_short_prompts_are_not_packed(llama):
    batch = make_batch(tuple((0, 200) for _ in range(4)), (2,))
    states = PrefixSharing(use_cache=False)(llama, *batch)
    assert states.strategy == "plain"
    assert states.reason.endswith(
        "packed rows would cost more than they save: the prompts are short beside their completions"
    )


def test_attention_without_a_tree_mask(llama, monkeypatch):
    monkeypatch.setattr(prefix_roads, "TAKES_MASK", ("eager",))
    assert PrefixSharing()(llama, *make_batch()).strategy == "cache"
    states = PrefixSharing(use_cache=False)(llama, *make_batch())
    assert states.strategy == "plain"
    assert states.reason.endswith("`sdpa` attention does not accept a tree mask")


def test_recurrent_layers_that_do_not_go_on_from_a_state():
    config = FalconMambaConfig(vocab_size=128, hidden_size=16, num_hidden_layers=2, state_size=4)
    model, batch = AutoModelForCausalLM.from_config(config).eval(), make_batch()
    states = PrefixSharing()(model, *batch)
    assert states.strategy == "plain"
    assert states.reason.startswith("`FalconMambaModel` does not run on the cache strategy (RuntimeError")
    torch.testing.assert_close(states.hidden[batch[3].bool()], row_by_row(model, *batch), rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        # It makes its positions from the mask, by shape or by its columns.
        (
            BloomConfig(vocab_size=128, hidden_size=32, n_layer=2, n_head=4),
            "does not run on the packed strategy (ValueError",
        ),
        (
            MptConfig(vocab_size=128, d_model=32, n_layers=2, n_heads=4),
            "gives other states on the packed strategy (off by",
        ),
    ],
)
def test_the_trial_finds_other_states(config, reason):
    torch.manual_seed(0)
    model, batch = AutoModelForCausalLM.from_config(config), make_batch()
    for name, parameter in model.named_parameters():
        if "norm" not in name and "ln" not in name:
            torch.nn.init.normal_(parameter, std=0.2)
    assert PrefixSharing()(model.eval(), *batch).strategy == "cache"
    states = PrefixSharing(use_cache=False)(model, *batch)
    assert states.strategy == "plain"
    assert reason in states.reason
    expected = row_by_row(model, *batch)
    torch.testing.assert_close(states.hidden[batch[3].bool()], expected, rtol=1e-4, atol=2e-5)
    assert reason in PrefixSharing(use_cache=False)(model.bfloat16(), *batch).reason


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "dynamic", "factor": 4.0},
        {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [4.0] * 4},
    ],
)
def test_positions_that_depend_on_the_length_of_a_pass(rope):
    """Rows of 40 tokens have other positions than their prompts of 20; the rows of the trial are shorter than both limits."""
    config = LlamaConfig(
        **{**SHAPE, "max_position_embeddings": 128 if rope["rope_type"] == "longrope" else 38},
        rope_parameters={"rope_theta": 10_000.0, "original_max_position_embeddings": 38, **rope},
    )
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    prompt_ids, completion_ids = torch.randint(3, 120, (1, 20)).expand(3, -1), torch.randint(3, 120, (3, 25))
    rows = prompt_ids, torch.ones_like(prompt_ids), completion_ids, torch.ones_like(completion_ids)
    states = PrefixSharing()(model, *rows)
    expected = PrefixSharing(share=False)(model, *rows)
    torch.testing.assert_close(states.hidden, expected.hidden, rtol=1e-4, atol=2e-5)
    assert "depend on the length of a pass" in PrefixSharing(max_mask_entries=1)(model, *rows).reason


def test_long_rows_under_gradient_checkpointing():
    """Prompts of one length need no mask, however long they are, so that they are shared where packed rows are too long."""
    model = add_lora(make("llama", "sdpa")).train()
    model.enable_input_require_grads()
    model.get_base_model().gradient_checkpointing_enable({"use_reentrant": False})
    for prompts, strategy in (((5, 5), "cache"), ((5, 3), "plain")):
        batch = make_batch(((0, 4), (1, 2), (0, 3), (1, 4)), prompts, extra=0)
        expected = loss_and_grads(row_by_row(model, *batch), model)
        states = PrefixSharing(max_mask_entries=0)(model, *batch)
        assert states.strategy == strategy
        assert "packed rows" in states.reason
        assert_same(loss_and_grads(states.hidden[batch[3].bool()], model), expected)


def test_the_trial_leaves_the_model_as_it_was():
    model = make("gpt2")
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.5
    model.train()
    model.transformer.h[1].eval()
    training = [module.training for module in model.modules()]
    state = torch.get_rng_state()
    assert [*refused_strategies(find_blocks(model))] == [*ALSO_REFUSED["gpt2"]]  # dropout would make a difference
    assert torch.equal(torch.get_rng_state(), state)
    assert [module.training for module in model.modules()] == training


@pytest.mark.long
@pytest.mark.parametrize("hash_seed", ["0", "1", "2"])
def test_the_trial_runs_in_one_order_in_all_processes(hash_seed):
    """They went through a set, whose order each process draws. Where processes share out the weights, their passes no longer matched."""
    code = """if True:
        from tests.helpers.models import make_model
        from trl_consistency.passes.blocks import find_blocks
        from trl_consistency.passes import prefix_strategies as strategies

        tried = []
        for name in ("run_cache", "_run_twice", "run_packed"):
            setattr(strategies, name, lambda *args, name=name: tried.append(name))
        strategies.refused_strategies(find_blocks(make_model()))
        print(tried)
    """
    env = {**os.environ, "PYTHONHASHSEED": hash_seed}
    ran = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "['run_cache', '_run_twice', 'run_packed']"


def test_learned_prompt_is_refused():
    model = get_peft_model(make("llama"), PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3))
    with pytest.raises(ConsistencyError, match="cannot train a learned prompt"):
        PrefixSharing()(model, *make_batch())


def test_sharing_can_be_switched_off(llama):
    batch = make_batch()
    sharing = PrefixSharing(share=False)
    with counted_tokens(llama) as counts:
        states = sharing(llama, *batch)
    assert (states.strategy, states.reason) == ("plain", "sharing is switched off")
    assert len(counts) == 1  # no trial of the strategies either
    torch.testing.assert_close(states.hidden[batch[3].bool()], row_by_row(llama, *batch), rtol=1e-4, atol=2e-5)
