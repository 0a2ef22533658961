"""Whatever an adapter changes, its base model is as before for those that are measured after it."""

import peft
import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

from tests.helpers.models import make_tokenizer
from trl_consistency import ConsistencyError
from trl_consistency.models.base_state import digest
from trl_consistency.models.loading import adapted, check_loadable, load_model


IDS = torch.tensor([[5, 6, 7, 8]])
LAYERS = ["q_proj", "v_proj"]
ADAPTERS = {
    "lora": lambda: LoraConfig(r=2, target_modules=LAYERS),
    "bias of all": lambda: LoraConfig(r=2, target_modules=LAYERS, bias="all"),
    "bias of its layers": lambda: LoraConfig(r=2, target_modules=LAYERS, bias="lora_only"),
    "whole modules": lambda: LoraConfig(r=2, target_modules=LAYERS, modules_to_save=["lm_head", "embed_tokens"]),
    "whole norm": lambda: LoraConfig(r=2, target_modules=LAYERS, modules_to_save=["norm"]),
    "tokens": lambda: LoraConfig(r=2, target_modules=LAYERS, trainable_token_indices=[5, 6]),
    "pissa": lambda: LoraConfig(r=2, target_modules=LAYERS, init_lora_weights="pissa"),
    "olora": lambda: LoraConfig(r=2, target_modules=LAYERS, init_lora_weights="olora"),
    "norms": lambda: peft.LNTuningConfig(target_modules=["input_layernorm"]),
    "oft, bias of all": lambda: peft.OFTConfig(r=0, oft_block_size=4, target_modules=LAYERS, bias="all"),
    "attention": lambda: peft.AdaptionPromptConfig(task_type="CAUSAL_LM", adapter_len=2, adapter_layers=1),
    "prompt": lambda: peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2),
    "parameters": lambda: LoraConfig(r=2, target_modules=[], target_parameters=["q_proj.weight"]),
}


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A model with biases, whose head is not its embedding."""
    folder = tmp_path_factory.mktemp("base")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=384,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=2,
        attention_bias=True,
        tie_word_embeddings=False,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return folder


def save_adapter(base, folder, config):
    """Saves an adapter with an effect."""
    model = get_peft_model(LlamaForCausalLM.from_pretrained(base), config)
    torch.manual_seed(1)
    for weight in model.parameters():
        if weight.requires_grad:
            weight.data += 0.5 * torch.randn_like(weight)
    model.save_pretrained(folder)
    return str(folder)


@torch.no_grad()
def logits(model):
    return model(IDS).logits[:, -IDS.shape[1] :].clone()


def described(model):
    """All that an adapter might leave: modules, weights and their values, attributes."""
    weights = {name: (id(weight), weight.requires_grad, digest(weight)) for name, weight in model.named_parameters()}
    return [(name, id(module), type(module), sorted(vars(module))) for name, module in model.named_modules()], weights


@pytest.mark.parametrize("kind", ADAPTERS)
def test_the_base_is_as_before(base, tmp_path, kind):
    path = save_adapter(base, tmp_path / "adapter", ADAPTERS[kind]())
    model, tokenizer = load_model(str(base))
    before, answered = described(model), logits(model)
    for _ in range(2):
        with adapted(model, tokenizer, path) as with_adapter:
            assert not torch.equal(logits(with_adapter), answered), "the adapter has an effect"
        assert described(model) == before
        assert torch.equal(logits(model), answered)


def test_the_base_is_as_before_after_an_error(base, tmp_path):
    path = save_adapter(base, tmp_path / "adapter", ADAPTERS["bias of all"]())
    model, tokenizer = load_model(str(base))
    before = described(model)
    with pytest.raises(ZeroDivisionError):
        with adapted(model, tokenizer, path):
            raise ZeroDivisionError
    assert described(model) == before


def test_a_base_that_cannot_be_put_back_is_refused(base, tmp_path):
    path = save_adapter(base, tmp_path / "adapter", ADAPTERS["lora"]())
    model, tokenizer = load_model(str(base))
    with pytest.raises(ConsistencyError, match=r"changed weights of its base model, model.norm.weight, and"):
        with adapted(model, tokenizer, path):
            model.model.norm.weight.data[3] += 1e-6


def test_adapters_are_checked_one_by_one(base, tmp_path):
    """On the meta device, where some adapters have no way to be taken off."""
    kinds = ("attention", "whole modules", "bias of all", "lora")
    check_loadable(str(base), adapters=[save_adapter(base, tmp_path / kind, ADAPTERS[kind]()) for kind in kinds])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8, torch.bool, torch.float64])
def test_digests(dtype):
    tensor = torch.arange(37).reshape(37, 1).to(dtype)
    same = tensor.expand(37, 2)[:, 0]
    assert digest(tensor) == digest(same) == digest(tensor.clone())
    for place in (0, 20, 36):
        other = tensor.clone()
        other[place] = 1 - other[place].int() + (5 if dtype != torch.bool else 0)
        assert digest(other) != digest(tensor)
    swapped = tensor.clone()
    swapped[[0, 1]] = tensor[[1, 0]]
    assert digest(swapped) != digest(tensor)
    assert digest(tensor[:0]) != digest(tensor[:1])
