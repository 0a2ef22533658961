"""Flat batches against padded ones, and the models that are refused."""

import pytest
import torch
from peft import PromptTuningConfig, get_peft_model
from torch.testing import assert_close
from transformers import AttentionInterface, AutoModelForCausalLM, Gemma3TextConfig, RecurrentGemmaConfig
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from tests.helpers.architectures import CONFIGS, HYBRIDS, LOCAL_AND_GLOBAL, MULTIMODAL, SHAPE, WINDOW, add_lora, make
from tests.helpers.every_architecture import make_tiny
from trl_consistency.errors import ConsistencyError
from trl_consistency.models import kernels
from trl_consistency.passes import flat as module
from trl_consistency.passes.blocks import find_blocks
from trl_consistency.passes.flat import FlatBatch, attend_by_sequence, prepare_padding_free


EAGER_ONLY = ("gemma2", "gpt_oss")
FLAT = [kind for kind in CONFIGS if kind not in (*EAGER_ONLY, *MULTIMODAL)]
LENGTHS = (9, 1, 12, 4)


@pytest.fixture(autouse=True)
def sdpa():
    """SDPA is put back: other tests must not lean on this one."""
    yield
    AttentionInterface.register("sdpa", sdpa_attention_forward)


def batch(lengths=LENGTHS, left=False):
    generator = torch.Generator().manual_seed(1)
    width = max(lengths) + 2
    ids = torch.zeros(len(lengths), width, dtype=torch.long)
    for row, length in enumerate(lengths):
        columns = slice(width - length, width) if left else slice(0, length)
        ids[row, columns] = torch.randint(3, 120, (length,), generator=generator)
    return ids, (ids > 0).long()


def test_tokens_and_what_goes_with_them():
    ids, mask = torch.tensor([[5, 6, 7], [8, 0, 0], [0, 9, 9]]), torch.tensor([[1, 1, 1], [1, 0, 0], [0, 1, 1]])
    flat = FlatBatch.of(ids, mask)
    assert flat.ids.tolist() == [[5, 6, 7, 8, 9, 9]]
    assert flat.rows.tolist() == [0, 0, 0, 1, 2, 2]
    assert flat.inputs["position_ids"].tolist() == [[0, 1, 2, 0, 0, 1]]
    assert flat.inputs["cu_seq_lens_q"].tolist() == [0, 3, 4, 6]
    assert flat.inputs["max_length_q"] == 3
    assert flat.inputs["seq_idx"].tolist() == [[0, 0, 0, 1, 2, 2]]
    assert flat.ids[0, flat.places[mask.bool()]].tolist() == ids[mask.bool()].tolist()


@pytest.mark.parametrize("left", [False, True], ids=["right", "left"])
@pytest.mark.parametrize("kind", FLAT)
def test_equals_each_sequence_alone(kind, left):
    model = add_lora(make(kind, "sdpa"))
    prepare_padding_free(model)
    backbone, (ids, mask) = find_blocks(model).backbone, batch(left=left)
    flat = FlatBatch.of(ids, mask)

    def run(checkpointed):
        model.zero_grad()
        model.train(checkpointed)
        states = backbone(input_ids=flat.ids, use_cache=False, **flat.model_inputs(backbone)).last_hidden_state[0]
        states.sin().sum().backward()
        return states.detach(), {n: p.grad for n, p in model.named_parameters() if p.grad is not None}

    states, gradients = run(checkpointed=False)
    model.zero_grad()
    alone = [
        backbone(input_ids=row[is_token.bool()][None], use_cache=False).last_hidden_state[0]
        for row, is_token in zip(ids, mask, strict=True)
    ]
    torch.cat(alone).sin().sum().backward()
    assert_close(states, torch.cat(alone).detach(), rtol=1e-4, atol=2e-5)
    expected = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    assert gradients.keys() == expected.keys()
    scale = max(gradient.norm() for gradient in expected.values())
    assert scale > 0
    for name, gradient in expected.items():
        assert (gradients[name] - gradient).norm() <= 1e-5 * scale, name

    model.enable_input_require_grads()
    model.get_base_model().gradient_checkpointing_enable({"use_reentrant": False})
    _, recomputed = run(checkpointed=True)
    assert_close(recomputed, gradients, rtol=1e-4, atol=1e-6 * float(scale))


def test_attention_makes_no_mask_of_the_whole_batch(monkeypatch):
    """Neither transformers nor we: such masks are what makes SDPA slow."""
    model = make("gemma3", "sdpa")
    prepare_padding_free(model)
    shapes = set()

    def watching(attention, query, key, value, mask, **kwargs):
        shapes.add((query.shape[2], None if mask is None else tuple(mask.shape)))
        return sdpa_attention_forward(attention, query, key, value, mask, **kwargs)

    monkeypatch.setattr(module, "sdpa_attention_forward", watching)
    flat, backbone = FlatBatch.of(*batch()), find_blocks(model).backbone
    backbone(input_ids=flat.ids, use_cache=False, **flat.model_inputs(backbone))
    in_window = {(n, (1, 1, n, n)) for n in LENGTHS if n > WINDOW}
    assert shapes == in_window | {(n, None) for n in LENGTHS}


def test_other_batches_are_attended_to_as_before():
    model, (ids, mask) = make("mistral", "sdpa"), batch()
    expected = model(input_ids=ids, attention_mask=mask).logits
    prepare_padding_free(model)
    assert AttentionInterface()["sdpa"] is attend_by_sequence
    assert torch.equal(model(input_ids=ids, attention_mask=mask).logits, expected)
    model.generate(ids[:1, :4], max_new_tokens=4, do_sample=False)


# What is refused


def refusal(model):
    with pytest.raises(ConsistencyError) as end:
        prepare_padding_free(model)
    return str(end.value).removeprefix("`padding_free` is not possible: ").removesuffix(". Leave it out.")


@pytest.mark.parametrize("kind", [kind for kind in HYBRIDS if kind not in MULTIMODAL])
def test_layers_with_a_state(kind, monkeypatch):
    model = make(kind, "sdpa")
    reason = refusal(model)
    name = type(model.model).__name__
    assert reason.startswith(f"`{name}` has recurrent layers, which without causal-conv1d")
    assert reason.endswith(" would carry the state of one text into the next")
    # Nor is a package that is there taken for what it does.
    monkeypatch.setattr(kernels, "find_spec", lambda module: module)
    assert "can't keep packed sequences apart without" in refusal(model)


def test_a_state_that_passes_unseen():
    """RecurrentGemma has no list of kernels; the trial finds that its states differ."""
    shape = {**SHAPE, "num_key_value_heads": 1, "num_hidden_layers": 3}
    config = RecurrentGemmaConfig(**shape, lru_width=32, attention_window_size=8, w_init_variance_scale=1.0)
    reason = refusal(AutoModelForCausalLM.from_config(config).eval())
    assert reason.startswith("`RecurrentGemmaModel` gives other states on a flat batch (off by ")
    assert reason.endswith("): something passes between sequences")


@pytest.mark.parametrize("kind", EAGER_ONLY)
def test_eager_attention(kind):
    assert refusal(make(kind)).startswith("`eager` attention takes no lengths of sequences. Set `attn_implementation`")


@pytest.mark.parametrize("kind", MULTIMODAL)
def test_multimodal_models(kind):
    assert "is multimodal" in refusal(make(kind, "sdpa"))


def test_learned_prompts():
    prompt = PromptTuningConfig(num_virtual_tokens=2, task_type="CAUSAL_LM")
    assert refusal(get_peft_model(make("llama", "sdpa"), prompt)).startswith("a learned prompt stands before each row")


def test_sparse_attention():
    """Full attention took its place in texts longer than `index_topk`, longer than the sequences of the trial."""
    expected = "makes a mask of its own, as sparse attention does, which a batch without padding leaves out"
    assert refusal(make_tiny("deepseek_v32")) == f"`DeepseekV32Attention` {expected}"


def test_a_window_that_attention_is_not_told():
    """As where it is in the model's own mask alone, and longer than the sequences of the trial."""
    torch.manual_seed(0)
    config = Gemma3TextConfig(**SHAPE, **LOCAL_AND_GLOBAL | {"sliding_window": 32})
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").eval()
    prepare_padding_free(model)
    model.model.layers[2].self_attn.sliding_window = None
    assert refusal(model) == "`Gemma3TextModel` does not tell its attention how far each layer may look back"
