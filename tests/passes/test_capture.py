"""Captured states against `output_hidden_states`, on tiny random models of thirteen architectures."""

import pytest
import torch
from peft import LoraConfig, PromptTuningConfig, get_peft_model
from torch.testing import assert_close
from transformers import (
    AutoModelForCausalLM,
    CohereConfig,
    GPTJConfig,
    GraniteConfig,
    InklingTextConfig,
    Lfm2Config,
    LlamaForCausalLM,
    RecurrentGemmaConfig,
    T5Config,
    T5ForConditionalGeneration,
)
from trl.models.utils import _ForwardRedirection

from tests.helpers.architectures import CONFIGS, HYBRIDS, SHAPE, WINDOW, WITHOUT_MLP, add_lora, make
from trl_consistency.errors import ConsistencyError
from trl_consistency.passes.blocks import DOWN_PROJECTIONS, find_blocks, resolve_layers
from trl_consistency.passes.capture import capture_states, head_of


@pytest.fixture(scope="module", params=CONFIGS)
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def model(kind):
    return make(kind)


def batch(lengths=(9, 5, 7), side="right"):
    """Ragged rows, and their tokens as `(rows, positions)`."""
    generator = torch.Generator().manual_seed(1)
    width = max(lengths)
    input_ids = torch.zeros(len(lengths), width, dtype=torch.long)
    attention_mask = torch.zeros_like(input_ids)
    for row, length in enumerate(lengths):
        columns = slice(0, length) if side == "right" else slice(width - length, width)
        input_ids[row, columns] = torch.randint(3, 60, (length,), generator=generator)
        attention_mask[row, columns] = 1
    return input_ids, attention_mask, *attention_mask.nonzero(as_tuple=True)


def brute_force(model, input_ids, attention_mask, rows, positions):
    """The model's own hidden states: what left each block, but after the final norm for the last one."""
    outputs = model(input_ids=input_ids, attention_mask=attention_mask, output_hidden_states=True)
    return [state[rows, positions] for state in outputs.hidden_states[1:]]


def count_hooks(model):
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())


def final_norm(model):
    backbone = find_blocks(model).backbone
    return next(getattr(backbone, name) for name in ("norm", "final_layer_norm", "ln_f") if hasattr(backbone, name))


@torch.no_grad()
def test_residual_stream_is_what_leaves_the_block(model):
    inputs = batch()
    *expected, normed = brute_force(model, *inputs)
    *states, last = capture_states(model, *inputs).residual
    assert_close(states, expected)
    assert_close(final_norm(model)(last), normed)
    assert (last - normed).abs().max() > 0.1  # the trap: this is not `hidden_states[-1]`


@pytest.mark.parametrize("layers", [[0], [1, 2], [-3, 0], [3]])
@torch.no_grad()
def test_runs_no_further_than_the_last_block_asked_for(model, layers):
    inputs = batch()
    blocks = find_blocks(model)
    whole, hooks = blocks.modules, count_hooks(model)
    calls = []
    handles = [block.register_forward_hook(lambda *_, n=n: calls.append(n)) for n, block in enumerate(whole)]
    states = capture_states(model, *inputs, layers=layers).residual
    for handle in handles:
        handle.remove()
    resolved = resolve_layers(layers, 4)
    everything = capture_states(model, *inputs).residual
    assert calls == list(range(resolved[-1] + 1))
    assert_close(states, [everything[layer] for layer in resolved])
    assert blocks.modules is whole
    assert count_hooks(model) == hooks


@torch.no_grad()
def check_padding(model, side, mlp):
    input_ids, attention_mask, rows, positions = batch(side=side)
    kinds = {"mlp": mlp, "attention": True, "need_last_hidden": True}
    together = capture_states(model, input_ids, attention_mask, rows, positions, **kinds)
    for row in range(len(input_ids)):
        columns = attention_mask[row].bool()
        ids = input_ids[row, columns][None]
        at = torch.arange(ids.shape[1])
        alone = capture_states(model, ids, torch.ones_like(ids), torch.zeros_like(at), at, **kinds)
        close = {"rtol": 1e-4, "atol": 2e-5}
        assert_close([state[rows == row] for state in together.residual], alone.residual, **close)
        assert_close([state[rows == row] for state in together.mlp], alone.mlp, **close)
        assert_close([state[rows == row][..., columns] for state in together.attention], alone.attention, **close)
        assert_close(together.last_hidden[row, columns], alone.last_hidden[0], **close)
        assert all((state[rows == row][..., ~columns] == 0).all() for state in together.attention)


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_changes_nothing(kind, model, side):
    check_padding(model, side, mlp=kind not in WITHOUT_MLP)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("kind", HYBRIDS)
def test_padding_changes_nothing_on_hybrids(kind, side):
    check_padding(make(kind), side, mlp=True)


@torch.no_grad()
def test_mlp_state_is_the_input_of_the_down_projection(kind, model):
    inputs = batch()
    if kind in WITHOUT_MLP:
        with pytest.raises(
            ConsistencyError,
            match=r"`mlpct` needs blocks with an MLP that all tokens pass, and `.*DecoderLayer` has none \(its router",
        ):
            capture_states(model, *inputs, mlp=True)
        return
    states = capture_states(model, *inputs, layers=[1, 3], residual=False, mlp=True)
    outputs = {}
    blocks = find_blocks(model).modules
    handles = [
        blocks[layer].mlp.register_forward_hook(lambda _, __, output, layer=layer: outputs.update({layer: output}))
        for layer in (1, 3)
    ]
    capture_states(model, *inputs)
    for handle, layer, state in zip(handles, (1, 3), states.mlp, strict=True):
        handle.remove()
        mlp = blocks[layer].mlp
        down = next(getattr(mlp, name) for name in DOWN_PROJECTIONS if hasattr(mlp, name))
        assert state.shape[1] == SHAPE["intermediate_size"]
        assert_close(down(state), outputs[layer][inputs[2], inputs[3]])
    assert states.residual == []


@torch.no_grad()
def test_attention_rows(kind, model):
    input_ids, attention_mask, rows, positions = inputs = batch()
    states = capture_states(model, *inputs, layers=[0, 1], attention=True)
    outputs = model(input_ids=input_ids, attention_mask=attention_mask, output_attentions=True)
    assert_close(states.attention, [maps[rows, :, positions] for maps in outputs.attentions[:2]])
    mass = torch.stack(states.attention).sum(-1)
    if kind == "gpt_oss":
        assert (mass < 1).all()  # the rest went to the sink
    else:
        assert_close(mass, torch.ones_like(mass))


@torch.no_grad()
def test_adapter_on_and_off(kind, model):
    # the experts' weights are no linear layers, and LoRA leaves them alone
    inputs = batch()
    options = {"mlp": kind not in WITHOUT_MLP, "layers": [0, 2], "need_last_hidden": True}
    base = capture_states(model, *inputs, **options)
    peft_model = add_lora(make(kind))
    on = capture_states(peft_model, *inputs, **options)
    with peft_model.disable_adapter():
        off = capture_states(peft_model, *inputs, **options)
    assert_close(vars(off), vars(base), rtol=0, atol=0)
    expected = brute_force(peft_model, *inputs)
    assert_close(on.residual, [expected[0], expected[2]])
    assert (on.residual[0] - off.residual[0]).abs().max() > 1e-2


def gradients(model, inputs, **options):
    model.zero_grad()
    states = capture_states(model, *inputs, **options)
    loss = sum(state.square().mean() for state in (*states.residual, *states.mlp, *states.attention))
    if states.last_hidden is not None:
        loss = loss + states.last_hidden.square().mean()
    loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.long
@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
@pytest.mark.parametrize("need_last_hidden", [False, True])
def test_gradients_with_checkpointing(kind, lora, need_last_hidden):
    model = make(kind)
    inputs = batch()
    options = {"mlp": kind not in WITHOUT_MLP, "attention": True, "layers": [0, 2]}
    if lora:
        model = add_lora(model)
    model.train()
    expected = gradients(model, inputs, **options, need_last_hidden=need_last_hidden)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    got = gradients(model, inputs, **options, need_last_hidden=need_last_hidden)
    assert got.keys() == expected.keys()
    assert any(f".{2 + need_last_hidden}." in name for name in got)
    assert all(gradient.abs().max() > 0 for name, gradient in got.items() if ".mlp." in name and ".0." in name)
    assert_close(got, expected)


@pytest.mark.parametrize("kind", HYBRIDS)
def test_gradients_of_hybrids_with_checkpointing(kind):
    model, inputs = add_lora(make(kind)).train(), batch()
    options = {"mlp": True, "attention": True, "need_last_hidden": True}
    expected = gradients(model, inputs, **options)
    model.enable_input_require_grads()
    model.get_base_model().gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    got = gradients(model, inputs, **options)
    assert any("lora" in name and gradient.abs().max() > 0 for name, gradient in got.items())
    assert_close(got, expected)


@pytest.mark.parametrize("kwargs", [{"use_reentrant": True}, {"preserve_rng_state": True}])
def test_reentrant_checkpointing_is_refused(kwargs):
    model = make("llama").train()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=kwargs)
    with pytest.raises(ConsistencyError, match=r'gradient_checkpointing_kwargs={"use_reentrant": false}'):
        capture_states(model, *batch())
    with torch.no_grad():
        assert len(capture_states(model, *batch()).residual) == 4


def test_gradient_equals_the_brute_force_one(model):
    inputs = batch()
    got = gradients(model, inputs, layers=[0, 1, 2])
    model.zero_grad()
    sum(state.square().mean() for state in brute_force(model, *inputs)[:3]).backward()
    assert_close(got, {name: model.get_parameter(name).grad for name in got})


@torch.no_grad()
def test_head(kind, model):
    check_head(model, kind)


@pytest.mark.parametrize(
    "config", [CohereConfig(**SHAPE, logit_scale=0.25), GraniteConfig(**SHAPE, logits_scaling=4.0)], ids=type
)
@torch.no_grad()
def test_head_with_a_scale(config):
    model = AutoModelForCausalLM.from_config(config).eval()
    assert head_of(model).scale == 0.25
    check_head(model)


def test_logits_that_are_not_read_from_the_head_are_refused():
    """The model scales its logits by a factor that `head_of` does not know."""
    model = AutoModelForCausalLM.from_config(InklingTextConfig(**SHAPE, head_dim=8, initializer_range=0.3)).eval()
    for _ in range(2):
        with pytest.raises(ConsistencyError, match="computes its logits in another way"):
            head_of(model)


@torch.no_grad()
def test_a_soft_cap_that_is_not_read_is_refused():
    shape = {**SHAPE, "num_key_value_heads": 1, "num_hidden_layers": 3}
    config = RecurrentGemmaConfig(**shape, lru_width=32, attention_window_size=WINDOW, w_init_variance_scale=1.0)
    model = AutoModelForCausalLM.from_config(config).eval()
    model.model.embed_tokens.weight.mul_(8)  # logits of tens, which the cap of 30 changes
    with pytest.raises(ConsistencyError, match="computes its logits in another way"):
        head_of(model)


class Masked(LlamaForCausalLM):
    def forward(self, *args, **options):
        output = super().forward(*args, **options)
        output.logits[..., 100:] = -torch.inf
        return output


class Scaled(Masked):
    def forward(self, *args, **options):
        output = super().forward(*args, **options)
        output.logits *= 4
        return output


@pytest.mark.parametrize("kind", [Masked, Scaled])
def test_logits_that_are_forbidden_are_refused(kind):
    """A logit of -inf made the tolerance infinite."""
    model = kind(make("llama").config).eval()
    with pytest.raises(ConsistencyError, match=f"`{kind.__name__}` computes its logits in another way"):
        head_of(model)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_head_that_is_not_finite_is_not_taken_for_another(value):
    """The tolerance was NaN then. What is not finite is reported for itself."""
    model = make("llama").eval()
    with torch.no_grad():
        model.lm_head.weight[5] = value
    head_of(model)


class Prompted(LlamaForCausalLM):
    """Puts an embedding of its own in front."""

    def forward(self, input_ids=None, attention_mask=None, **options):
        embeddings = self.model.embed_tokens(input_ids)
        return super().forward(inputs_embeds=torch.cat([embeddings[:, :1], embeddings], 1))


class Twice(LlamaForCausalLM):
    """Reads its own states in a second pass."""

    def forward(self, input_ids=None, attention_mask=None, **options):
        states = self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        return super().forward(inputs_embeds=states, attention_mask=attention_mask)


class Asking(LlamaForCausalLM):
    def forward(self, input_ids=None, *, task, **options):
        return super().forward(input_ids, **options)


@torch.no_grad()
def test_a_forward_that_needs_more_than_tokens_is_not_tried():
    states = capture_states(Asking(make("llama").config).eval(), *batch(), layers=[0])
    assert len(states.residual) == 1


class Steered(LlamaForCausalLM):
    """Adds a vector to the embeddings."""

    def forward(self, input_ids=None, **options):
        return super().forward(inputs_embeds=self.model.embed_tokens(input_ids) + 0.1, **options)


class Plain(LlamaForCausalLM):
    """Takes few arguments, and gives its backbone the embeddings themselves."""

    def forward(self, input_ids, attention_mask=None):
        return super().forward(inputs_embeds=self.model.embed_tokens(input_ids), attention_mask=attention_mask)


def test_a_forward_that_changes_what_the_backbone_reads_is_refused():
    """Losses were those of the model without the vector."""
    for kind in (Steered, Prompted, Twice):
        model = kind(make("llama").config).train()
        for read in (head_of, lambda model: capture_states(model, *batch(), layers=[0])):
            with pytest.raises(
                ConsistencyError, match=f"of `{kind.__name__}` has its text backbone read something else"
            ):
                read(model)
    model = Plain(make("llama").config).train()
    model.config.attention_dropout = 0.9
    check_head(model.eval())
    head_of(model)


def check_head(model, kind=None):
    inputs = batch()
    hidden = capture_states(model, *inputs, layers=[0], need_last_hidden=True).last_hidden
    head = head_of(model)
    logits = torch.nn.functional.linear(hidden, head.weight, head.bias) * head.scale
    assert (head.softcap is not None) == (kind == "gemma2")
    if head.softcap is not None:
        logits = torch.tanh(logits / head.softcap) * head.softcap
    expected = model(input_ids=inputs[0], attention_mask=inputs[1]).logits
    assert_close(logits[inputs[2:]], expected[inputs[2:]])


def test_trained_copy_of_the_head_is_read_as_it_is_switched():
    model = make("llama")
    original = model.lm_head.weight.clone()
    peft_model = get_peft_model(model, LoraConfig(target_modules=["q_proj"], modules_to_save=["lm_head"]))
    with torch.no_grad():
        model.lm_head.modules_to_save["default"].weight.add_(1)
    assert_close(head_of(peft_model).weight, original + 1)
    with peft_model.disable_adapter():
        assert_close(head_of(peft_model).weight, original)


@torch.no_grad()
def test_attention_needs_eager():
    with pytest.raises(ConsistencyError, match=r"`sdpa` attention never forms. Set `attn_implementation: eager`"):
        capture_states(make("qwen3", "sdpa"), *batch(), attention=True)


@torch.no_grad()
def test_sdpa_and_half_precision(kind):
    attention = "eager" if kind in ("gemma2", "gpt_oss") else "sdpa"
    inputs = batch(side="left")
    states = capture_states(make(kind, attention), *inputs).residual
    assert_close(states, capture_states(make(kind), *inputs).residual, rtol=1e-4, atol=2e-5)
    assert capture_states(make(kind, attention).bfloat16(), *inputs).residual[-1].dtype == torch.bfloat16


@torch.no_grad()
def test_blocks_are_put_back_after_an_error():
    model = make("gpt_neox")
    whole = model.gpt_neox.layers
    input_ids, attention_mask, rows, positions = batch()
    with pytest.raises(IndexError):
        capture_states(model, input_ids, attention_mask, rows, positions + 99, layers=[0])
    assert model.gpt_neox.layers is whole
    assert count_hooks(model) == 0


def test_inside_a_wrapper_forward():
    model = make("qwen3")
    wrapper = torch.nn.ModuleDict({"module": model})
    wrapper.forward = lambda *args, **kwargs: wrapper["module"](*args, **kwargs)
    inputs = batch()
    got = _ForwardRedirection()(wrapper, model, capture_states, model, *inputs)
    assert_close(got.residual, capture_states(model, *inputs).residual)


def test_models_without_one_list_of_blocks_are_refused():
    encoder_decoder = T5ForConditionalGeneration(
        T5Config(vocab_size=128, d_model=32, d_kv=8, d_ff=32, num_layers=2, num_heads=4)
    )
    with pytest.raises(ConsistencyError, match="transformer blocks of `T5ForConditionalGeneration`"):
        find_blocks(encoder_decoder)
    prompt_tuned = get_peft_model(make("llama"), PromptTuningConfig(num_virtual_tokens=2, task_type="CAUSAL_LM"))
    with pytest.raises(ConsistencyError, match=r"learned prompt \(PROMPT_TUNING\)"):
        find_blocks(prompt_tuned)
    with pytest.raises(ConsistencyError, match="`LlamaModel` has no language modelling head"):
        head_of(make("llama").model)


def test_resolve_layers():
    assert resolve_layers(None, 3) == [0, 1, 2]
    assert resolve_layers([-1, 0], 3) == [0, 2]
    with pytest.raises(ConsistencyError, match="names block 3, and the model has 3: 0 to 2, or from the end -1 to -3"):
        resolve_layers([0, 3], 3)
    with pytest.raises(ConsistencyError, match="names block -4"):
        resolve_layers([-4], 3)
    with pytest.raises(ConsistencyError, match=r"names block 2 more than once: \[-1, 2\]"):
        resolve_layers([-1, 2], 3)
    with pytest.raises(ConsistencyError, match="empty"):
        resolve_layers([], 3)


@pytest.mark.parametrize("kind", ["lfm2", "gptj"])
def test_mlps_under_other_names(kind):
    """LFM2's blocks are convolutions and attention, each with a dense MLP; GPT-J calls its layers in its own way."""
    torch.manual_seed(0)
    if kind == "lfm2":
        config = Lfm2Config(**SHAPE, layer_types=["conv", "full_attention"] * 2, block_multiple_of=8)
    else:
        config = GPTJConfig(vocab_size=128, n_positions=64, n_embd=32, n_layer=2, n_head=4, rotary_dim=8)
    model = AutoModelForCausalLM.from_config(config).eval()
    seen = []
    for block in find_blocks(model).modules:
        down = block.feed_forward.w2 if kind == "lfm2" else block.mlp.fc_out
        down.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    input_ids, attention_mask, rows, positions = batch()

    states = capture_states(model, input_ids, attention_mask, rows, positions, residual=False, mlp=True)

    assert len(states.mlp) == len(seen) == len(find_blocks(model))
    for state, whole in zip(states.mlp, seen, strict=True):
        assert_close(state, whole[rows, positions])


def test_an_mlp_under_a_name_that_is_not_known_is_no_mixture_of_experts():
    model = make("llama")
    for block in model.model.layers:
        block.mlp.last = block.mlp.down_proj
        del block.mlp.down_proj
    with pytest.raises(ConsistencyError, match="`LlamaDecoderLayer` has no single layer called down_proj, ") as end:
        capture_states(model, *batch(), mlp=True)
    assert "expert" not in str(end.value)
