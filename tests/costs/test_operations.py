"""The operations that are counted from shapes, against torch's own counter on passes that waste nothing."""

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch.utils.flop_counter import FlopCounterMode
from transformers import (
    Gemma4ForCausalLM,
    Gemma4TextConfig,
    MiniCPM3Config,
    MiniCPM3ForCausalLM,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from tests.costs.measured import model_config
from trl_consistency import ConsistencyConfig
from trl_consistency.config.on_policy_consistency_config import OnPolicyConsistencyConfig
from trl_consistency.costs.operations import Segment, Shapes, count_step, uncounted
from trl_consistency.costs.setup import Setup
from trl_consistency.data.collators import PairCollator
from trl_consistency.losses.paired import Objectives, PairedLoss
from trl_consistency.passes.reference import Reference
from trl_consistency.rollouts.loss import RolloutLoss


SHAPE = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "head_dim": 8}
PROMPT, ANSWER, ROWS = 11, 5, 4


def make_model(lora=True, **shape):
    torch.manual_seed(0)
    model = Qwen3ForCausalLM._from_config(model_config(**SHAPE, **shape), attn_implementation="eager")
    model = get_peft_model(model, LoraConfig(r=4, target_modules="all-linear")) if lora else model
    return model.train()


def counted(step):
    with FlopCounterMode(display=False) as counter:
        step()
    return counter.get_total_flops()


def pair_step(model, method, lora, layers=None):
    """
    A step of the trainer's own loss on pairs whose prompts differ in their first token. Without an answer, the states of this
    one are compared, too, as the count has it.
    """
    args = ConsistencyConfig(output_dir="unused", method=method, layers=layers, use_cpu=True, bf16=False)
    loss = PairedLoss(Objectives.of(args), model, Reference(model, adapter_off=lora))
    generator = torch.Generator().manual_seed(0)
    clean = torch.randint(60, (ROWS, PROMPT), generator=generator)
    perturbed = clean.clone()
    perturbed[:, 0] = 62
    rows = [{"clean_ids": a, "perturbed_ids": b} for a, b in zip(clean.tolist(), perturbed.tolist(), strict=True)]
    needs_answer = method in ("bct", "kl")
    if needs_answer:
        answers = torch.randint(60, (ROWS, ANSWER), generator=generator).tolist()
        rows = [row | {"completion_ids": answer} for row, answer in zip(rows, answers, strict=True)]
    batch = PairCollator(pad_token_id=63, with_completions=needs_answer, with_reference=True)(rows)
    if not needs_answer:
        batch["suffix"] = torch.tensor([[0, 0, PROMPT]] * ROWS)

    def step():
        losses, _ = loss(model, batch)
        losses[method].sums.sum().backward()

    step()  # the first checks the head
    model.zero_grad()
    return step


def unread_by_whole_passes(model):
    """
    What whole passes of the student on pairs compute that nothing reads: the last token, and in the last block the
    prompts' queries, outputs and MLPs.
    """
    shapes = Shapes.of(model)
    whole = [Segment(ROWS, 0, PROMPT + ANSWER)]
    needed = [Segment(ROWS, 0, PROMPT - 1, only_cached=True), Segment(ROWS, PROMPT - 1, ANSWER)]

    def operations(segments):
        return shapes.forward(segments, 3, True, True) + shapes.backward(segments, 3, True)

    return operations(whole) - operations(needed)


def unread_by_ours(model):
    """
    What our two passes on pairs still compute that nothing reads: the last token, of which the last block makes keys and
    values alone, and the last block's attention maps of prompts.
    """
    shapes, length = Shapes.of(model), PROMPT + ANSWER

    def operations(segments, depth):
        forward = sum(shapes.forward(segments, depth, with_adapter, True) for with_adapter in (False, True))
        return forward + shapes.backward(segments, depth, True)

    needed = [Segment(ROWS, 0, PROMPT - 1), Segment(ROWS, PROMPT - 1, ANSWER)]
    last_token = operations([Segment(ROWS, 0, length)], 2) - operations(needed, 2)
    one = Segment(ROWS, 0, 1, only_cached=True)
    keys_and_values = operations([one], 3) - operations([Segment(ROWS, 0, 1)], 2)
    maps = 2 * shapes.attention[0] * ROWS * (length**2 - ANSWER * (length - 1))
    return last_token + keys_and_values + 4 * maps  # two passes, and twice as much in the backward pass


@pytest.mark.parametrize("lora", [True, False])
@pytest.mark.parametrize(("method", "layers"), [("act", None), ("act", [0, 1])])
def test_act_is_counted_as_torch_counts_it(method, layers, lora):
    model = make_model(lora)
    setup = Setup((method,), PROMPT, 0, ROWS, layers=tuple(layers) if layers else None)
    assert counted(pair_step(model, method, lora, layers)) == count_step(model, setup, dense=True).step


@pytest.mark.parametrize("lora", [True, False])
def test_the_passes_of_bct_are_counted_as_torch_counts_them(lora):
    model = make_model(lora)
    backbone = model.get_base_model().model if lora else model.model
    head = model.get_output_embeddings().weight
    ids = torch.zeros(ROWS, PROMPT + ANSWER, dtype=torch.long)

    def step():
        hidden = backbone(input_ids=ids, use_cache=False).last_hidden_state[:, PROMPT - 1 : -1]
        (hidden @ head.t()).log_softmax(-1)[..., 0].sum().backward()

    setup = Setup(("bct",), PROMPT + ANSWER, ANSWER, ROWS)
    assert counted(step) == count_step(model, setup, dense=True).step + unread_by_whole_passes(model)


def test_kl_is_counted_as_torch_counts_it():
    model = make_model()
    needed = count_step(model, Setup(("kl",), PROMPT + ANSWER, ANSWER, ROWS), dense=True).step
    assert counted(pair_step(model, "kl", True)) == needed + unread_by_ours(model)


def test_prompts_are_needed_whole_where_their_states_are_compared():
    model = make_model()
    of_pairs, with_states = (
        count_step(model, Setup(method, PROMPT + ANSWER, ANSWER, ROWS)) for method in (("kl",), ("kl", "act"))
    )
    of_rollouts = count_step(model, Setup(("opct",), PROMPT + ANSWER, ANSWER, ROWS, num_generations=1))
    assert vars(of_pairs) == {**vars(of_rollouts), "sampling": 0}
    assert with_states.step - of_pairs.step > 0


def rollout_step(model, share):
    """A step of the trainer's own loss on rollouts of one prompt."""
    args = OnPolicyConsistencyConfig(
        output_dir="unused", use_cpu=True, bf16=False, num_generations=ROWS, share_prefix=share
    )
    loss = RolloutLoss(args, Reference(model, adapter_off=True))
    prompts = torch.arange(PROMPT).expand(ROWS, -1)
    completions = torch.arange(ROWS * ANSWER).view(ROWS, ANSWER)
    masks = {name: torch.ones_like(prompts) for name in ("prompt_mask", "clean_mask")}
    masks |= {name: torch.ones_like(completions) for name in ("completion_mask", "loss_mask")}
    rollouts = {"prompt_ids": prompts, "clean_ids": prompts + 1, "completion_ids": completions, **masks}

    def step():
        loss(model, rollouts)["loss"].sums.sum().backward()

    step()  # the first tries the ways of sharing
    model.zero_grad()
    return step


def test_opct_is_counted_as_torch_counts_it():
    model = make_model()
    setup = Setup(("opct",), PROMPT + ANSWER, ANSWER, ROWS, num_generations=ROWS)
    # In the last block of the prompts, whose output nobody reads, attention runs as a whole, and one token.
    shapes, one = Shapes.of(model), Segment(1, 0, 1)
    of_one = sum(
        shapes.forward([one], 3, with_adapter, True)
        - shapes.forward([Segment(1, 0, 1, only_cached=True)], 3, with_adapter, True)
        for with_adapter in (False, True)
    )
    unread = of_one + 2 * 2 * shapes.attention[0] * ((PROMPT - 1) ** 2 - 1)
    assert counted(rollout_step(model, True)) == count_step(model, setup, dense=True).step + unread


def test_sampling_is_counted_alike_however_a_step_is_cut_into_micro_batches():
    """A prompt counted once for each micro-batch, though all rollouts of a step are sampled together."""

    def sampling(rows, steps, at_once=None):
        cut = {"gradient_accumulation_steps": steps, "rollout_batch_size": at_once}
        return count_step(model, Setup(("opct",), PROMPT + ANSWER, ANSWER, rows, num_generations=8, **cut)).sampling

    model = make_model()
    whole = sampling(16, 1)
    assert [sampling(rows, 16 // rows) for rows in (8, 4, 2)] == [whole] * 3
    prompt = Shapes.of(model).forward([Segment(1, 0, PROMPT - 1, only_cached=True)], 3, True)
    # Batches of 6 rollouts: 0 to 5, 6 to 11 (of both prompts), and 12 to 15
    assert sampling(4, 4, at_once=6) == whole + 2 * prompt


def test_opct_that_shares_nothing_is_counted_as_torch_counts_it():
    """Each rollout has its prompt computed for itself, by the student and by the reference. It counted as if shared."""
    model = make_model()
    setup = Setup(("opct",), PROMPT + ANSWER, ANSWER, ROWS, num_generations=ROWS, share_prefix=False)
    needed = count_step(model, setup, dense=True)
    # Attention maps that are computed, and not needed: prompts do not see their rollouts, and in the last block nobody reads them.
    shapes, length = Shapes.of(model), PROMPT + ANSWER - 1
    entries = 2 * (PROMPT - 1) * ANSWER + length**2 - ANSWER * length
    unread = 4 * 2 * shapes.attention[0] * ROWS * entries  # by two passes, and twice as much in the backward pass
    assert counted(rollout_step(model, False)) == needed.step + unread
    alone = Setup(("opct",), PROMPT + ANSWER, ANSWER, ROWS, num_generations=1)
    assert needed == count_step(model, alone, dense=True)


@pytest.mark.parametrize(
    ("segment", "window", "expected"),
    [
        (Segment(1, 0, 4), None, 1 + 2 + 3 + 4),
        (Segment(2, 0, 4), None, 20),
        (Segment(1, 3, 2), None, 4 + 5),
        (Segment(1, 0, 5), 2, 1 + 2 + 2 + 2 + 2),
        (Segment(1, 3, 3), 2, 6),
        (Segment(1, 1, 3), 3, 2 + 3 + 3),
    ],
)
def test_entries_of_causal_maps(segment, window, expected):
    assert segment.entries(window, dense=False) == expected
    by_hand = sum(min(at + 1, window or at + 1) for at in range(segment.start, segment.start + segment.tokens))
    assert expected == segment.rows * by_hand


def test_experts_are_not_counted():
    config = Qwen3MoeConfig(**SHAPE, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16)
    with torch.device("meta"):
        assert "experts" in uncounted(Qwen3MoeForCausalLM(config))
    assert not uncounted(make_model())


@pytest.mark.parametrize(("rows", "steps"), [(6, 2), (10, 2), (3, 4), (2, 2), (8, 1), (5, 4)])
def test_prompts_of_a_micro_batch_that_divides_a_group_are_counted(rows, steps):
    """Rollouts of a prompt stand together, and micro-batches are cut from them in order."""
    rollouts = [rollout // 4 for rollout in range(rows * steps)]
    most = max(len({*rollouts[start : start + rows]}) for start in range(0, len(rollouts), rows))
    assert Setup(("opct",), 16, 4, rows, num_generations=4, gradient_accumulation_steps=steps).num_prompts == most


def make_gemma4(of_layers):
    kinds = ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]
    shape = SHAPE | {
        "num_hidden_layers": len(kinds),
        "layer_types": kinds,
        "sliding_window": PROMPT,
        "global_head_dim": 16,
    }
    per_layer = {"hidden_size_per_layer_input": of_layers, "vocab_size_per_layer_input": SHAPE["vocab_size"]}
    config = Gemma4TextConfig(**shape, **per_layer, num_attention_heads=4, num_key_value_heads=2)
    return Gemma4ForCausalLM._from_config(config, attn_implementation="eager").eval()


def check_forward(model):
    with torch.no_grad():
        by_torch = counted(lambda: model(input_ids=torch.zeros(1, PROMPT, dtype=torch.long)))
    shapes = Shapes.of(model)
    forward = shapes.forward([Segment(1, 0, PROMPT)], len(shapes.blocks), with_adapter=False, dense=True)
    assert not uncounted(model)
    assert forward + 2 * PROMPT * shapes.head == by_torch


def test_heads_of_several_widths():
    """Gemma 4's blocks with full attention have wider heads, and its config gives no width for all. It ended with a traceback."""
    check_forward(make_gemma4(of_layers=0))


def test_linear_layers_outside_the_blocks_are_not_counted():
    assert "`per_layer_model_projection` is a linear layer outside the blocks" in uncounted(make_gemma4(of_layers=8))


def test_latent_attention():
    """Queries and keys have another width than values, and than `head_dim`."""
    shape = {key: of for key, of in SHAPE.items() if key != "head_dim"}
    widths = {"q_lora_rank": 12, "kv_lora_rank": 10, "qk_rope_head_dim": 4, "qk_nope_head_dim": 6, "v_head_dim": 8}
    config = MiniCPM3Config(**shape, **widths, num_attention_heads=4, num_key_value_heads=4)
    check_forward(MiniCPM3ForCausalLM._from_config(config, attn_implementation="eager").eval())
