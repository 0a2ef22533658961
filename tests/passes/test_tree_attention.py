"""FlexAttention for packed rows, against dense masks and against rows that run one by one."""

from functools import cache, partial

import pytest
import torch
import torch.nn.functional as F
from torch._dynamo.utils import counters
from transformers import (
    AttentionInterface,
    Gemma4TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from tests.helpers.architectures import add_lora, make
from tests.passes.test_prefix_sharing import CASES, assert_same, loss_and_grads, make_batch, row_by_row
from trl_consistency.passes import prefix_sharing, prefix_strategies, tree_attention
from trl_consistency.passes.flat import attend_by_sequence
from trl_consistency.passes.packing import BLOCK, Batch, Packing
from trl_consistency.passes.prefix_sharing import PrefixSharing


OF_SDPA = [kind for kind, attention in CASES if attention == "sdpa"]
# (prompt, tokens of the completion), and tokens of the prompts: lengths on, above and below multiples of a block
GROUPS = {
    "ragged": (((0, 100), (1, 50), (0, 37), (0, 200), (1, 80)), (300, 151)),
    "one prompt": (((0, 65), (0, 129), (0, 0)), (2 * BLOCK,)),
    "long prompts": (((0, 64), (0, 65), (1, 5), (2, 180), (2, 1)), (3 * BLOCK, 10, 222)),
    "whole blocks": (((0, BLOCK + 1), (0, BLOCK + 1)), (2 * BLOCK,)),
}


@pytest.fixture(autouse=True)
def _sdpa_of_transformers():
    yield
    AttentionInterface.register("sdpa", sdpa_attention_forward)


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """Block masks are taken, but where there is no GPU, SDPA gets the entries that they stand for."""
    for module in (prefix_sharing, prefix_strategies):
        monkeypatch.setattr(module, "takes_blocks", lambda backbone: True)
    monkeypatch.setattr(prefix_sharing, "refused_kernels", lambda *args: None)
    masks = []
    create = tree_attention.create_mask
    monkeypatch.setattr(tree_attention, "create_mask", lambda *args, **kw: masks.append(args) or create(*args, **kw))
    return masks


def packed(group):
    return Packing.of(Batch.of(*make_batch(*GROUPS[group]))).in_one_row()


@pytest.mark.parametrize("window", [None, 70, 150])
@pytest.mark.parametrize("group", GROUPS)
def test_blocks_are_those_of_the_mask(group, window):
    packing = packed(group)
    mask, blocks = packing.mask(window)[0, 0], packing.block_mask(window)
    assert blocks.shape == (1, 1, *mask.shape)
    count = -(-len(mask) // BLOCK)
    for query in range(count):
        kinds = {}
        for kind, (numbers, indices) in {
            "partial": (blocks.kv_num_blocks, blocks.kv_indices),
            "full": (blocks.full_kv_num_blocks, blocks.full_kv_indices),
        }.items():
            kinds |= dict.fromkeys(indices[0, 0, query, : numbers[0, 0, query]].tolist(), kind)
        for key in range(count):
            entries = mask[query * BLOCK :, key * BLOCK :][:BLOCK, :BLOCK]
            whole = entries.shape == (BLOCK, BLOCK) and bool(entries.all())
            if window is None:
                assert kinds.get(key) == ("full" if whole else "partial" if entries.any() else None)
            else:  # a window may be smaller than the blocks tell
                assert kinds.get(key) in (
                    ("full", "partial") if whole else ("partial",) if entries.any() else (None, "partial")
                )


def test_rows_in_one_row_do_not_see_each_other():
    rows = Packing.of(Batch.of(*make_batch(*GROUPS["long prompts"])))
    assert len(rows.end) > 1
    expected = torch.block_diag(*rows.mask(None)[:, 0].int()).bool()
    assert torch.equal(rows.in_one_row().mask(None)[0, 0], expected)


@pytest.mark.long
def test_flex_attention_equals_sdpa_and_is_compiled_once(monkeypatch):
    """With the compiler's front alone: its kernels for CPUs know no dynamic lengths, and have no backward pass."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    monkeypatch.setattr(tree_attention, "_compiled", cache(tree_attention._compiled.__wrapped__))
    # As many heads as the first group has blocks, which must not be taken for the same number
    heads = -(-packed("ragged").end.shape[1] // BLOCK)
    torch._dynamo.reset()
    counters.clear()
    for group in GROUPS:
        for window in (None, 70):
            packing = packed(group)
            length = packing.end.shape[1]
            query, key, value = (
                torch.randn(1, length, number * heads * 32).unflatten(2, (-1, 32)).transpose(1, 2)
                for number in (2, 1, 1)
            )
            with torch.no_grad():
                output = tree_attention.compiled_flex(query, key, value, packing.block_mask(window), 0.2)
            mask = packing.mask(window)
            expected = F.scaled_dot_product_attention(query, key, value, mask, scale=0.2, enable_gqa=True)
            torch.testing.assert_close(output, expected, rtol=1e-5, atol=1e-5)
    assert counters["stats"]["unique_graphs"] == 2  # with windows, and without


@pytest.mark.parametrize("kind", OF_SDPA)
def test_models_hand_block_masks_to_their_attention(kind, as_on_a_gpu):
    model, batch = make(kind, "sdpa"), make_batch()
    expected = loss_and_grads(row_by_row(model, *batch), model)
    sharing = PrefixSharing(use_cache=False, flex_tokens=1)
    states = sharing(model, *batch)
    assert states.strategy == "packed"
    # GPT-2 reads the dimensions of its mask, and leaves the cache out where blocks are checkpointed.
    assert {*sharing.refused} == ({"flex", "checkpointed cache"} if kind == "gpt2" else set())
    assert as_on_a_gpu or kind == "gpt2"
    assert_same(loss_and_grads(states.hidden[batch[3].bool()], model), expected)


@pytest.mark.parametrize("use_reentrant", [False, True])
@pytest.mark.parametrize("stands_there", [sdpa_attention_forward, attend_by_sequence])
def test_block_masks_under_gradient_checkpointing(as_on_a_gpu, use_reentrant, stands_there):
    AttentionInterface.register("sdpa", stands_there)  # `padding_free` leaves the second
    model, batch = add_lora(make("gemma3", "sdpa")), make_batch()
    expected = loss_and_grads(row_by_row(model, *batch), model)
    model.train()
    model.enable_input_require_grads()
    model.get_base_model().gradient_checkpointing_enable({"use_reentrant": use_reentrant})
    states = PrefixSharing(flex_tokens=1)(model, *batch)
    assert states.strategy == "packed"
    as_on_a_gpu.clear()
    assert_same(loss_and_grads(states.hidden[batch[3].bool()], model), expected)
    assert as_on_a_gpu  # the blocks ran again


def test_when_block_masks_are_taken(as_on_a_gpu, monkeypatch):
    llama, batch = make("llama", "sdpa"), make_batch()  # packed rows of 17 tokens
    for tokens, takes in ((17, True), (18, False), (None, False)):
        sharing = PrefixSharing(use_cache=False, flex_tokens=tokens)
        sharing(llama, *batch)
        as_on_a_gpu.clear()
        assert sharing(llama, *batch).strategy == "packed"
        assert bool(as_on_a_gpu) == takes
    # Long rows need no dense mask then.
    assert PrefixSharing(use_cache=False, flex_tokens=17, max_mask_entries=1)(llama, *batch).strategy == "packed"
    monkeypatch.setattr(prefix_sharing, "refused_kernels", lambda *args: "a reason")
    states = PrefixSharing(use_cache=False, flex_tokens=17, max_mask_entries=1)(llama, *batch)
    assert states.strategy == "plain"
    assert PrefixSharing(use_cache=False, flex_tokens=17)(llama, *batch).strategy == "packed"


def test_a_model_that_alters_its_mask_keeps_dense_ones(as_on_a_gpu, monkeypatch):
    monkeypatch.setattr(prefix_strategies, "register", lambda: None)
    llama, batch = make("llama", "sdpa"), make_batch()
    sharing = PrefixSharing(use_cache=False, flex_tokens=1)
    assert sharing(llama, *batch).strategy == "packed"
    assert list(sharing.refused) == ["flex"]
    assert "does not run on the flex strategy" in sharing.refused["flex"]


def test_cpus_have_dense_masks(monkeypatch):
    monkeypatch.setattr(Packing, "block_mask", None)
    sharing = PrefixSharing(use_cache=False, flex_tokens=1)
    assert sharing(make("llama", "sdpa"), *make_batch()).strategy == "packed"


def test_kernels_that_do_not_run_are_named(caplog):
    config = LlamaConfig(hidden_size=64, num_attention_heads=4, num_key_value_heads=2)
    for _ in range(2):
        reason = tree_attention.refused_kernels(config, torch.float32, torch.device("cpu"))
    assert "backward" in reason
    assert caplog.text.count("FlexAttention is not used for packed rollouts") == 1
    with torch._dynamo.config.patch(disable=True):  # pytest's monkeypatch would take the option away afterwards
        reason = tree_attention.refused_kernels(config, torch.bfloat16, torch.device("cpu"))
    assert reason == "torch.compile is switched off"


def test_kernels_are_tried_for_each_width_of_heads(monkeypatch):
    """Gemma 4's config gives no width of heads for all blocks. On a GPU, its training ended with a traceback."""
    tried = []
    monkeypatch.setattr(tree_attention, "_refused_kernels", lambda heads, kv_heads, width, *_: tried.append(width))
    config = Gemma4TextConfig(num_hidden_layers=6, head_dim=16, global_head_dim=32)
    assert tree_attention.refused_kernels(config, torch.float32, torch.device("cpu")) is None
    assert tried == [16, 32]


# On a GPU


DEVICE = "cuda"


@pytest.fixture
def fresh_compiler():
    """The compiler gives up after some versions of one function."""
    torch._dynamo.reset()
    tree_attention._refused_kernels.cache_clear()
    counters.clear()


SIZES = {
    "vocab_size": 128,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 32,
}
WINDOWS = {
    "use_sliding_window": True,
    "sliding_window": 200,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
}
MODELS = {
    "qwen3": lambda: Qwen3ForCausalLM._from_config(Qwen3Config(**SIZES), attn_implementation="sdpa"),
    "llama": lambda: LlamaForCausalLM._from_config(LlamaConfig(**SIZES), attn_implementation="sdpa"),
    "windows": lambda: Qwen3ForCausalLM._from_config(Qwen3Config(**SIZES, **WINDOWS), attn_implementation="sdpa"),
}
ROADS = {
    "FlexAttention": lambda: PrefixSharing(use_cache=False, flex_tokens=1000),
    "dense mask": lambda: PrefixSharing(use_cache=False, flex_tokens=None),
    "plain": lambda: PrefixSharing(share=False),
}
# A packed row of 700 + 1,167 tokens, and shorter ones
LONG = (((0, 400), (0, 371), (1, 90), (0, 1), (1, 129), (0, 399), (2, 64), (2, 64)), (700, 311, 128))


def on_gpu(kind, checkpointing=False):
    torch.manual_seed(0)
    model = MODELS[kind]()
    for name, parameter in model.named_parameters():
        if "norm" not in name:
            torch.nn.init.normal_(parameter, std=0.1)
    model = model.to(DEVICE).train()
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    return model


def batch_on_gpu(rows, prompts):
    return [part.to(DEVICE) for part in make_batch(rows, prompts)]


def measured(road, model, batch, autocast):
    """Loss, and gradients of all parameters in one, and whether FlexAttention ran."""
    calls = []
    compiled_flex = tree_attention.compiled_flex
    sharing = ROADS[road]()
    with pytest.MonkeyPatch.context() as patch:
        with torch.autocast(DEVICE, torch.bfloat16, enabled=autocast):
            sharing.refused = prefix_sharing.refused_strategies(prefix_sharing.find_blocks(model))
            patch.setattr(tree_attention, "compiled_flex", lambda *args: calls.append(1) or compiled_flex(*args))
            states = sharing(model, *batch)
            hidden = states.hidden[batch[3].bool()].float()
            target = torch.linspace(0, 50, hidden.numel(), device=DEVICE).view_as(hidden).sin()
            loss = (hidden - target).square().mean()
        model.zero_grad()
        loss.backward()
    grads = [parameter.grad.float().flatten() for parameter in model.parameters() if parameter.grad is not None]
    says = f"{road}: strategy {states.strategy}, {states.reason}; refused {sharing.refused}; {len(calls)} calls"
    ran = len(calls) >= SIZES["num_hidden_layers"]  # more than the trial of the kernels
    return float(loss.detach()), torch.cat(grads), ran, says


def refused_kernels_of(model, precision):
    dtype = torch.float32 if precision == "float32" else torch.bfloat16
    return tree_attention.refused_kernels(model.config, dtype, model.device)


def off(actual, expected):
    """Relative differences of two results: of the loss, and of the gradients."""
    return abs(actual[0] - expected[0]) / abs(expected[0]), float(
        (actual[1] - expected[1]).norm() / expected[1].norm()
    )


@pytest.mark.gpu
@pytest.mark.parametrize("checkpointing", [False, True], ids=["no checkpointing", "checkpointing"])
@pytest.mark.parametrize("precision", ["float32", "bfloat16", "autocast"])
@pytest.mark.parametrize("kind", MODELS)
def test_flex_attention_on_a_gpu(kind, precision, checkpointing):
    batch = batch_on_gpu(*LONG)
    exact = measured("plain", on_gpu(kind), batch, False)
    results = {}
    for road in ROADS:
        model = on_gpu(kind, checkpointing)
        if precision == "bfloat16":
            model = model.bfloat16()
        results[road] = measured(road, model, batch, precision == "autocast")
    differences = {road: off(result, exact) for road, result in results.items()}
    says = "\n".join(
        [
            f"{torch.cuda.get_device_name()}; kernels refused: {refused_kernels_of(model, precision)}",
            *(f"{result[3]}; loss {result[0]:.6f}" for result in results.values()),
            *(
                f"{road}: loss off by {loss:.2e}, gradients by {grads:.2e}"
                for road, (loss, grads) in differences.items()
            ),
        ]
    )
    print(says)
    assert results["FlexAttention"][2], f"FlexAttention did not run.\n{says}"
    assert not results["dense mask"][2], f"FlexAttention ran where a dense mask was asked for.\n{says}"
    assert results["plain"][3].startswith("plain: strategy plain"), says
    assert results["dense mask"][3].startswith("dense mask: strategy packed"), says
    loss, grads = differences["FlexAttention"]
    if precision == "float32":
        assert max(loss / 1e-5, grads / 1e-4) < 1, says
    else:  # as exact as the dense mask is in this precision
        loss_of_dense, grads_of_dense = (max(differences[road][i] for road in ("dense mask", "plain")) for i in (0, 1))
        assert loss < 2 * loss_of_dense + 1e-3, says
        assert grads < 1.5 * grads_of_dense + 1e-3, says


@pytest.mark.gpu
def test_one_compilation_serves_all_lengths_on_a_gpu(fresh_compiler):
    model, graphs, peaks = on_gpu("qwen3", checkpointing=True), {}, {}
    for prompt, completion in ((700, 301), (896, 257), (1024, 513), (1500, 64), (2048, 1025), (613, 200)):
        batch = batch_on_gpu(((0, completion), (0, completion), (1, 9), (1, 30)), (prompt, 150))
        ran, says = measured("FlexAttention", model, batch, True)[2:]
        assert ran, f"FlexAttention did not run with a prompt of {prompt} tokens. {says}"
        with torch.no_grad():
            ROADS["FlexAttention"]()(model, *batch)
        graphs[prompt], peaks[prompt] = counters["stats"]["unique_graphs"], torch.cuda.max_memory_allocated() >> 20
    print(f"graphs after each prompt's length: {graphs}; MiB: {peaks}; frames: {dict(counters['frames'])}")
    assert len(set(graphs.values())) == 1, (
        f"It was compiled again for other lengths: {graphs} graphs after each prompt's"
    )


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("heads", "kv_heads", "width", "dtype"),
    [
        (4, 4, 16, torch.float32),
        (9, 3, 64, torch.bfloat16),
        (32, 8, 128, torch.bfloat16),
        (32, 8, 128, torch.float32),
        (8, 4, 256, torch.bfloat16),
        (32, 32, 96, torch.bfloat16),
    ],
)
def test_kernels_on_a_gpu(fresh_compiler, heads, kv_heads, width, dtype):
    """Shapes of SmolLM2, Llama 3.1 and Qwen3, Gemma 3, Phi-3."""
    reason = tree_attention._refused_kernels(heads, kv_heads, width, dtype, torch.device("cuda", 0))
    assert reason is None, f"{heads} heads, {kv_heads} for keys, of {width} in {dtype}: {reason}"


@pytest.mark.gpu
def test_heads_that_no_kernel_has_keep_the_dense_mask_on_a_gpu(fresh_compiler):
    reason = tree_attention._refused_kernels(4, 2, 8, torch.float32, torch.device("cuda", 0))
    assert reason is not None, "heads of 8 have kernels now: take this test out"
