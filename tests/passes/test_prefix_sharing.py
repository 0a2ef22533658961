"""Shared prompts against one row at a time, on the architectures of `test_capture`."""

from contextlib import contextmanager

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    GenerationConfig,
    GPTNeoConfig,
    Zamba2Config,
)

from tests.helpers.architectures import CONFIGS, HYBRIDS, SHAPE, add_lora, make
from tests.helpers.every_architecture import make_config
from trl_consistency.passes.blocks import find_blocks
from trl_consistency.passes.capture import capture_states
from trl_consistency.passes.packing import Batch, Packing, first_fit
from trl_consistency.passes.prefix_sharing import PrefixSharing
from trl_consistency.passes.prompt_states import PromptStates


# Without SDPA in transformers
EAGER_ONLY = ("gemma2", "gpt_oss")
CASES = [
    (kind, attention)
    for kind in CONFIGS
    for attention in ("eager", "sdpa")
    if attention == "eager" or kind not in EAGER_ONLY
]
# What else a kind refuses: GPT-2's backbone gives its blocks no cache where they are checkpointed.
ALSO_REFUSED = {"gpt2": ("checkpointed cache",)}
OF_HYBRIDS = [(kind, "sdpa") for kind in HYBRIDS]
# (prompt, tokens of the completion): groups of 3, 1 and 2, mixed, prompts of 9, 6 and 2 tokens
ROWS = ((0, 7), (1, 5), (0, 3), (2, 6), (0, 1), (2, 4))
PROMPTS = (9, 6, 2)


def make_batch(rows=ROWS, prompts=PROMPTS, extra=2):
    """A batch, with `extra` columns of nothing but padding on both sides."""
    generator = torch.Generator().manual_seed(3)
    texts = [torch.randint(3, 120, (length,), generator=generator) for length in prompts]
    widths = max(prompts) + extra, max(length for _, length in rows) + extra
    prompt_ids, prompt_mask = torch.zeros(2, len(rows), widths[0], dtype=torch.long)
    completion_ids, completion_mask = torch.zeros(2, len(rows), widths[1], dtype=torch.long)
    for row, (prompt, length) in enumerate(rows):
        prompt_ids[row, widths[0] - prompts[prompt] :] = texts[prompt]
        prompt_mask[row, widths[0] - prompts[prompt] :] = 1
        completion_ids[row, :length] = torch.randint(3, 120, (length,), generator=generator)
        completion_mask[row, :length] = 1
    return prompt_ids, prompt_mask, completion_ids, completion_mask


def row_by_row(model, prompt_ids, prompt_mask, completion_ids, completion_mask):
    """States `[N, hidden]` of all completion tokens' predictors, each row alone and without padding."""
    backbone = find_blocks(model).backbone
    states = []
    for prompt, is_prompt, completion, is_completion in zip(
        prompt_ids, prompt_mask.bool(), completion_ids, completion_mask.bool(), strict=True
    ):
        text = torch.cat([prompt[is_prompt], completion[is_completion]])[None]
        hidden = backbone(input_ids=text, use_cache=False).last_hidden_state[0]
        states.append(hidden[is_prompt.sum() - 1 : -1])
    return torch.cat(states)


def loss_and_grads(states, model):
    target = torch.linspace(0, 50, states.numel(), device=states.device).view_as(states).sin()
    loss = (states - target).square().mean()
    model.zero_grad()
    loss.backward()  # `autograd.grad` does not pass through reentrant checkpoints
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return loss.detach(), torch.cat([p.grad.flatten() for p in trainable if p.grad is not None])


def assert_same(actual, expected, relative=1e-5):
    (loss, grads), (expected_loss, expected_grads) = actual, expected
    torch.testing.assert_close(loss, expected_loss, rtol=1e-5, atol=0)
    assert expected_grads.norm() > 0
    assert (grads - expected_grads).norm() <= relative * expected_grads.norm()


def sharing_by(strategy):
    return PrefixSharing(use_cache=strategy == "cache", max_mask_entries=0 if strategy == "plain" else 1 << 26)


@contextmanager
def counted_tokens(model):
    """How many tokens each run of the backbone embeds."""
    counts = []
    embedding = find_blocks(model).backbone.get_input_embeddings()
    handle = embedding.register_forward_hook(lambda _, inputs, __: counts.append(inputs[0].numel()))
    yield counts
    handle.remove()


@contextmanager
def counted_blocks(model):
    """How often each block computes its first norm, inside of what is checkpointed."""
    counts = [0] * len(find_blocks(model))

    def counting(number):
        def count(*args):
            counts[number] += 1

        return count

    handles = [
        next(
            part for name, part in block.named_modules() if "norm" in name or name.startswith("ln")
        ).register_forward_hook(counting(number))
        for number, block in enumerate(find_blocks(model).modules)
    ]
    yield counts
    for handle in handles:
        handle.remove()


@pytest.mark.parametrize(("kind", "attention"), CASES)
def test_roads_equal_rows(kind, attention):
    model, batch = make(kind, attention), make_batch()
    expected = loss_and_grads(row_by_row(model, *batch), model)
    for strategy in ("cache", "packed", "plain"):
        sharing = sharing_by(strategy)
        states = sharing(model, *batch)
        assert (states.strategy, *sharing.refused) == (strategy, *ALSO_REFUSED.get(kind, ()))
        assert states.hidden.shape == (*batch[2].shape, SHAPE["hidden_size"])
        assert states.hidden.isfinite().all()
        assert_same(loss_and_grads(states.hidden[batch[3].bool()], model), expected)


def test_windows_of_blocks_that_share_keys():
    """Blocks 2 and 3 take keys and values of blocks 0 and 1. The trial's rows are shorter than this window."""
    model = make("gemma4", "sdpa", sliding_window=50, num_kv_shared_layers=2)
    batch = make_batch(((0, 7), (0, 30), (1, 5), (0, 3), (1, 6)), (70, 55))
    expected = loss_and_grads(row_by_row(model, *batch), model)
    for strategy in ("cache", "packed", "plain"):
        states = sharing_by(strategy)(model, *batch)
        assert states.strategy == strategy
        assert_same(loss_and_grads(states.hidden[batch[3].bool()], model), expected)


def gpt_neo():
    kinds = {"num_layers": 4, "num_heads": 4, "attention_types": [[["global", "local"], 2]], "window_size": 100}
    return GPTNeoConfig(vocab_size=128, hidden_size=32, max_position_embeddings=256, **kinds)


def llama4():
    config = make_config("llama4_text")
    config.attention_chunk_size, config.max_position_embeddings = 80, 256
    return config


@pytest.mark.parametrize(
    ("make_config_of", "reason"),
    [(gpt_neo, "`GPTNeoModel` has a window of its own"), (llama4, "`Llama4TextModel` attends within chunks of a row")],
)
def test_a_window_that_counts_tokens_of_a_row(make_config_of, reason):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(make_config_of()).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    batch = make_batch(((0, 30), (0, 25), (1, 5), (0, 28), (1, 6)), (70, 55))
    expected = row_by_row(model, *batch)
    for strategy, taken in (("cache", "cache"), ("packed", "plain")):
        states = sharing_by(strategy)(model, *batch)
        torch.testing.assert_close(states.hidden[batch[3].bool()], expected, rtol=1e-4, atol=2e-5)
        assert states.strategy == taken
    assert reason in states.reason


@pytest.mark.parametrize("kind", HYBRIDS)
def test_states_of_recurrent_layers_are_handed_on(kind):
    """Through the state at a prompt's end, gradients reach the prompt from all of its completions."""
    model, batch = add_lora(make(kind, "sdpa")), make_batch()
    # The delta rule inverts a matrix for each chunk of tokens, in float32, and a cache begins new chunks: on an Intel Xeon,
    # gradients differ by 1.2e-5, and on an AMD EPYC by less than 1e-5. A state that is not handed on makes several percent.
    relative = 2e-5 if kind in ("qwen3_5", "qwen3_next") else 1e-5
    expected = loss_and_grads(row_by_row(model, *batch), model)
    for strategy in ("cache", "plain"):
        sharing = sharing_by(strategy)
        states = sharing(model, *batch)
        assert states.strategy == strategy
        assert list(sharing.refused) == ["packed"]
        assert "would carry one completion's state into the next" in sharing.refused["packed"]
        assert_same(loss_and_grads(states.hidden[batch[3].bool()], model), expected, relative)
    model.train()
    model.enable_input_require_grads()
    model.get_base_model().gradient_checkpointing_enable()
    states = PrefixSharing()(model, *batch)
    assert states.strategy == "cache"
    with counted_blocks(model) as counts:
        assert_same(loss_and_grads(states.hidden[batch[3].bool()], model), expected, relative)
    assert counts[:-1] == [
        2,
        2,
        2,
    ]  # again on the prompts, and on the completions; the last is not checkpointed on prompts
    with torch.no_grad():  # as of the reference
        assert PrefixSharing()(model, *batch).strategy == "cache"


def test_checkpointed_blocks_within_blocks():
    """Those of Zamba 2's hybrid blocks dropped the cache, and their layers began each completion from nothing."""
    config = Zamba2Config(
        **SHAPE, layers_block_type=["linear_attention", "hybrid"] * 2, num_mem_blocks=1, n_mamba_heads=4, mamba_headdim=16,
        mamba_d_state=8, mamba_ngroups=1, chunk_size=8,
    )  # fmt: skip
    torch.manual_seed(0)
    model, batch = AutoModelForCausalLM.from_config(config), make_batch()
    for name, parameter in model.named_parameters():
        if "norm" not in name and parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.1)
    model = add_lora(model.eval())
    expected = loss_and_grads(row_by_row(model, *batch), model)
    with model.disable_adapter(), torch.no_grad():
        expected_reference = row_by_row(model, *batch)
    model.train()
    model.enable_input_require_grads()
    model.get_base_model().gradient_checkpointing_enable({"use_reentrant": False})
    states = PrefixSharing()(model, *batch)
    assert states.strategy == "cache"
    assert_same(loss_and_grads(states.hidden[batch[3].bool()], model), expected)
    with model.disable_adapter(), torch.no_grad():
        reference = PrefixSharing()(model, *batch)
    torch.testing.assert_close(reference.hidden[batch[3].bool()], expected_reference, rtol=1e-4, atol=2e-5)
    assert all(getattr(part, "gradient_checkpointing", True) for part in find_blocks(model).backbone.modules())


@pytest.mark.parametrize("kind", HYBRIDS)
def test_completions_of_one_token(kind):
    """A recurrent layer takes one token for a step of `generate`, which has no backward pass."""
    model, batch = add_lora(make(kind, "sdpa")), make_batch(((0, 1), (1, 1), (0, 1), (0, 0), (2, 1)))
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.data.div_(2)  # as they are, the layers of Qwen3-Next magnify what is rounded
    expected = loss_and_grads(row_by_row(model, *batch), model)
    states = PrefixSharing()(model, *batch)
    assert states.strategy == "cache"
    assert_same(loss_and_grads(states.hidden[batch[3].bool()], model), expected)


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [ROWS, ((0, 1), (1, 1), (0, 1), (2, 1))], ids=["several tokens", "one token"])
@pytest.mark.parametrize("kind", HYBRIDS)
def test_hybrids_on_a_gpu(kind, rows):
    """States and gradients with the kernels that are installed, which round more coarsely; a lost state is off by far more."""
    model = add_lora(make(kind, "sdpa")).cuda()
    batch = tuple(part.cuda() for part in make_batch(rows))
    expected = row_by_row(model, *batch)
    sharing = PrefixSharing()
    result = sharing(model, *batch)
    assert result.strategy == "cache", sharing.refused
    states = result.hidden[batch[3].bool()]
    assert (states - expected).norm() < 1e-2 * expected.norm()
    (_, gradients), (_, expected_gradients) = loss_and_grads(states, model), loss_and_grads(expected, model)
    assert (gradients - expected_gradients).norm() < 3e-2 * expected_gradients.norm()


@pytest.mark.long
@pytest.mark.parametrize("use_reentrant", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("kind", "attention"), CASES)
def test_lora_under_gradient_checkpointing(kind, attention, use_reentrant):
    model, batch = add_lora(make(kind, attention)), make_batch()
    valid = batch[3].bool()
    expected = loss_and_grads(row_by_row(model, *batch), model)
    with model.disable_adapter(), torch.no_grad():
        expected_reference = row_by_row(model, *batch)
    assert (expected_reference - row_by_row(model, *batch)).abs().max() > 0.01

    sharing = PrefixSharing()
    assert_same(loss_and_grads(sharing(model, *batch).hidden[valid], model), expected)
    model.train()
    model.enable_input_require_grads()
    model.get_base_model().gradient_checkpointing_enable({"use_reentrant": use_reentrant})
    student = sharing(model, *batch)
    assert student.strategy == "packed"
    assert_same(loss_and_grads(student.hidden[valid], model), expected)
    sharing_by_cache = PrefixSharing()
    sharing_by_cache._packing = lambda *args: None
    student = sharing_by_cache(model, *batch)
    if use_reentrant or kind in ALSO_REFUSED:
        assert student.strategy == "plain"
        of_kind = "gives other states on the checkpointed cache strategy"
        assert (of_kind if kind in ALSO_REFUSED else "reentrant gradient checkpointing keeps no") in student.reason
    else:
        assert (student.strategy, student.reason) == ("cache", None)
        with counted_blocks(model) as counts:
            assert_same(loss_and_grads(student.hidden[valid], model), expected)
        assert set(counts[:-1]) == {2}

    with model.disable_adapter(), torch.no_grad():
        reference = sharing(model, *batch)
    assert reference.strategy == "cache"
    torch.testing.assert_close(reference.hidden[valid], expected_reference, rtol=1e-4, atol=2e-5)
    blocks = find_blocks(model)
    assert all(block.gradient_checkpointing and block.training for block in blocks.modules)


@pytest.mark.parametrize(
    ("rows", "prompts"),
    [
        (((0, 4), (0, 4)), (5,)),
        (((0, 3), (1, 1), (1, 6), (0, 2)), (1, 2)),
        (((0, 1), (1, 1), (0, 1)), (3, 8)),  # nothing is read after a prompt
        (((0, 2), (0, 0), (1, 3)), (3, 8)),  # an empty completion
        (((0, 0), (0, 0)), (3,)),
        (tuple((row % 4, 1 + row % 3) for row in range(16)), (12, 3, 1, 7)),
    ],
)
def test_groups(llama, monkeypatch, rows, prompts):
    """Groups of every kind, those that would not pay packed included."""
    batch = make_batch(rows, prompts, extra=0 if any(length for _, length in rows) else 1)
    expected = row_by_row(llama, *batch)
    for strategy in ("cache", "packed"):
        sharing = sharing_by(strategy)
        if strategy == "packed":
            monkeypatch.setattr(sharing, "_packing", lambda blocks, batch, reasons: Packing.of(batch))
        states = sharing(llama, *batch)
        assert states.strategy == strategy
        assert states.hidden.isfinite().all()
        torch.testing.assert_close(states.hidden[batch[3].bool()], expected, rtol=1e-4, atol=2e-5)


def test_half_precision():
    model, batch = make("gemma3", "sdpa").bfloat16(), make_batch()
    expected = row_by_row(model, *batch)
    for strategy in ("cache", "packed"):
        states = sharing_by(strategy)(model, *batch)
        assert states.strategy == strategy
        assert (states.hidden[batch[3].bool()] - expected).norm() < 0.05 * expected.norm()


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_autocast(attention):
    model, batch = make("gemma3", attention), make_batch()
    with torch.autocast("cpu", torch.bfloat16):
        expected = row_by_row(model, *batch)
        for strategy in ("cache", "packed"):
            states = sharing_by(strategy)(model, *batch)
            assert states.strategy == strategy
            assert (states.hidden[batch[3].bool()] - expected).norm() < 0.05 * expected.norm()


# States of the prompts themselves


def wanted_of(batch, layers):
    """The first and the last token of every row's prompt and one in between, not always in their order."""
    rows, positions = [], []
    for row, length in enumerate(batch[1].sum(1).tolist()):
        for position in sorted({0, (row * 2) % length, length - 1}, reverse=row % 2 == 1):
            rows.append(row)
            positions.append(position)
    return PromptStates(layers, torch.tensor(rows), torch.tensor(positions))


@pytest.mark.long
@pytest.mark.parametrize(("kind", "attention"), [*CASES, *OF_HYBRIDS])
@torch.no_grad()
def test_states_of_prompts_are_kept_on_each_road(kind, attention):
    """After the first block, a later one and the last, as of each prompt alone; what predicts completions is as without them."""
    model, batch = make(kind, attention), make_batch((*ROWS, (3, 5), (3, 0), (3, 2)), (*PROMPTS, 1))
    layers = [0, len(find_blocks(model)) - 2, len(find_blocks(model)) - 1]
    for strategy in ("cache", "plain") if kind in HYBRIDS else ("cache", "packed", "plain"):
        sharing, wanted = sharing_by(strategy), wanted_of(batch, layers)
        expected = sharing(model, *batch).hidden
        states = sharing(model, *batch, prompt_states=wanted)
        assert states.strategy == strategy
        torch.testing.assert_close(states.hidden[batch[3].bool()], expected[batch[3].bool()], rtol=1e-4, atol=2e-5)
        assert [state.shape for state in wanted.residual] == [(len(wanted.rows), SHAPE["hidden_size"])] * 3
        for place, (row, position) in enumerate(zip(wanted.rows.tolist(), wanted.positions.tolist(), strict=True)):
            ids = batch[0][row][batch[1][row].bool()][None]
            alone = capture_states(
                model, ids, torch.ones_like(ids), torch.tensor([0]), torch.tensor([position]), layers
            ).residual
            for layer, (state, of_alone) in enumerate(zip(wanted.residual, alone, strict=True)):
                torch.testing.assert_close(state[place], of_alone[0], rtol=1e-4, atol=2e-5, msg=f"{strategy}, {layer}")


@torch.no_grad()
def test_states_of_no_token_of_a_prompt(llama):
    for strategy in ("cache", "packed", "plain"):
        wanted = PromptStates([0, 1], *torch.zeros(2, 0, dtype=torch.long))
        states = sharing_by(strategy)(llama, *make_batch(), prompt_states=wanted)
        assert states.strategy == strategy
        assert [state.shape for state in wanted.residual] == [(0, SHAPE["hidden_size"])] * 2


def test_states_of_prompts_have_no_gradients(llama):
    with pytest.raises(ValueError, match="without gradients"):
        PrefixSharing()(llama, *make_batch(), prompt_states=PromptStates([0], *torch.zeros(2, 1, dtype=torch.long)))


# What is computed


@torch.no_grad()
def test_each_prompt_is_computed_once(llama):
    batch = make_batch()
    counts_by_road = {}
    for strategy in ("cache", "packed", "plain"):
        sharing = sharing_by(strategy)
        sharing(llama, *batch)  # the trial
        with counted_tokens(llama) as counts:
            sharing(llama, *batch)
        counts_by_road[strategy] = counts
    assert counts_by_road == {
        "cache": [3 * 8, 6 * (1 + 6)],
        # 9 + 6 + 2 + 0 tokens with the first prompt; 6 + 4 with the second, and 2 + 5 + 3 = 10 with the third
        "packed": [17 + 17 + 17],
        "plain": [6 * (9 + 6)],
    }


def test_first_fit():
    assert first_fit([4, 9, 5, 3]) == ([9 + 5, 0, 9, 18], (3, 9))
    assert first_fit([7]) == ([0], (1, 7))
    starts, (rows, width) = first_fit([2, 2, 2, 2])
    assert sorted(starts) == [0, 2, 4, 6]
    assert (rows, width) == (4, 2)


@pytest.mark.parametrize("window", [None, 3])
def test_mask_is_a_tree(window):
    packing = Packing.of(Batch.of(*make_batch()))
    mask = packing.mask(window)[:, 0]
    for row, seen in enumerate(mask):
        places = list(
            zip(
                packing.prompt[row].tolist(), packing.branch[row].tolist(), packing.position[row].tolist(), strict=True
            )
        )
        for query, (prompt, branch, position) in enumerate(places):
            expected = [
                key_prompt == prompt
                and key_branch in (0, branch)
                and key_position <= position
                and (window is None or position - key_position < window)
                and (prompt >= 0 or key == query)  # padding sees itself
                for key, (key_prompt, key_branch, key_position) in enumerate(places)
            ]
            assert seen[query].tolist() == expected
    assert mask.any(-1).all()


def greedy(model, prompt_ids, prompt_mask, **options):
    options = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0, "eos_token_id": 2, **options}
    config = GenerationConfig(**options)
    return model.generate(input_ids=prompt_ids, attention_mask=prompt_mask, generation_config=config)


@pytest.mark.long
@pytest.mark.parametrize(("kind", "attention"), CASES + OF_HYBRIDS)
def test_generation_continues_from_shared_prompts(kind, attention):
    model = add_lora(make(kind, attention)).eval()
    prompt_ids, prompt_mask, *_ = make_batch(extra=0)
    expected = greedy(model, prompt_ids, prompt_mask)
    sharing = PrefixSharing()
    with sharing.in_generation(model), counted_tokens(model) as counts:
        generated = greedy(model, prompt_ids, prompt_mask)
    assert torch.equal(generated, expected)
    assert "generate" not in vars(model)
    # After the trial of the strategies: three prompts but for their last tokens, then a token a row at a time
    assert counts[-7:] == [3 * (prompt_ids.shape[1] - 1), *[len(prompt_ids)] * 6]


def test_generation_from_shared_prompts_after_other_rows():
    """Such a model keeps something of each row of the last `generate`, and batches of another size ended in an error."""
    model = make("qwen2_5_vl", "sdpa").eval()
    batches = [make_batch(rows, extra=0)[:2] for rows in (ROWS, ROWS[:3])]
    expected = [greedy(model, *batch) for batch in batches]
    with PrefixSharing().in_generation(model):
        for batch, tokens in zip(batches, expected, strict=True):
            assert torch.equal(greedy(model, *batch), tokens)


@pytest.mark.parametrize(
    ("sharing", "rows", "options"),
    [
        (PrefixSharing(share=False), ROWS, {}),
        (PrefixSharing(use_cache=False), ROWS, {}),
        (PrefixSharing(), ((0, 1), (1, 1)), {}),
        (PrefixSharing(), ROWS, {"cache_implementation": "static"}),
        (PrefixSharing(), ROWS, {"use_cache": False}),
    ],
)
def test_generation_computes_every_row_where_it_must(llama, sharing, rows, options):
    prompt_ids, prompt_mask, *_ = make_batch(rows, extra=0)
    expected = greedy(llama, prompt_ids, prompt_mask)
    with sharing.in_generation(llama), counted_tokens(llama) as counts:
        assert torch.equal(greedy(llama, prompt_ids, prompt_mask, **options), expected)
    assert counts[0] == prompt_ids.numel()
