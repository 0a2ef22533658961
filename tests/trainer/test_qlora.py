"""QLoRA: LoRA on NF4 weights, double quantisation, computed in bfloat16."""

import re

import pytest
import torch
from peft import IA3Config, LoraConfig, PeftModel, PromptTuningConfig, get_peft_model
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    BitsAndBytesConfig,
    Qwen3Config,
    Qwen3ForCausalLM,
    TorchAoConfig,
)

from tests.helpers import on_policy, paired
from tests.helpers.architectures import FOR_TEXTS, make
from tests.helpers.by_method import trainer_of
from tests.helpers.models import make_pairs, make_tokenizer
from tests.helpers.runs import LORA
from trl_consistency import ConsistencyError


pytestmark = pytest.mark.long


NF4 = {
    "load_in_4bit": True,
    "bnb_4bit_quant_type": "nf4",
    "bnb_4bit_use_double_quant": True,
    "bnb_4bit_compute_dtype": torch.bfloat16,
}
METHODS = ("bct", "kl", "act", "opct", "opct_policy_gradient")


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    """Wide enough that bitsandbytes has another layout for its weights."""
    directory = tmp_path_factory.mktemp("model")
    sizes = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "vocab_size": 384}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}
    torch.manual_seed(0)
    Qwen3ForCausalLM(Qwen3Config(**sizes, **heads, tie_word_embeddings=True)).save_pretrained(directory)
    make_tokenizer().save_pretrained(directory)
    return directory


@pytest.fixture(params=["cpu", pytest.param("gpu", marks=pytest.mark.gpu)])
def on_cpu(request):
    return request.param == "cpu"


def make_trainer(output_dir, model_dir, method, on_cpu, **options):
    sizes = {"per_device_train_batch_size": 4, "per_device_eval_batch_size": 4}
    options = {"use_cpu": on_cpu, "learning_rate": 5e-3, **sizes, **options}
    if method == "opct_policy_gradient":
        method, options["loss_type"] = "opct", "policy_gradient"
    return trainer_of(
        method,
        output_dir,
        str(model_dir),
        options,
        train_dataset=make_pairs(8),
        eval_dataset=make_pairs(4),
        quantization_config=BitsAndBytesConfig(**NF4),
        peft_config=LoraConfig(**LORA),
    )


def trained(trainer):
    trainer.train()
    return {name: p.detach().clone() for name, p in trainer.model.named_parameters() if p.requires_grad}


@pytest.mark.parametrize("method", METHODS)
def test_evaluation_in_the_middle_changes_nothing(tmp_path, model_dir, method, on_cpu):
    """On some CPUs bitsandbytes repacks 4-bit weights in evaluation, and training goes on with something else."""
    plain = trained(make_trainer(tmp_path / "plain", model_dir, method, on_cpu, max_steps=4))
    trainer = make_trainer(
        tmp_path / "evaluated",
        model_dir,
        method,
        on_cpu,
        max_steps=4,
        eval_strategy="steps",
        eval_steps=2,
        eval_on_start=True,
    )
    evaluated = trained(trainer)
    assert sum("eval_loss" in entry for entry in trainer.state.log_history) == 3
    initial = dict(make_trainer(tmp_path / "new", model_dir, method, on_cpu).model.named_parameters())
    assert any((weights != initial[name]).any() for name, weights in plain.items()), "nothing was trained"
    for name, weights in plain.items():
        torch.testing.assert_close(evaluated[name], weights, rtol=0, atol=0)


@pytest.mark.parametrize("method", ["bct", "opct"])
def test_the_adapter_is_in_float32(tmp_path, model_dir, method, on_cpu):
    """TRL rounds it to bfloat16, where steps of 1e-5 change hardly any weight of the first matrix."""
    trainer = make_trainer(tmp_path, model_dir, method, on_cpu, learning_rate=1e-5, max_steps=4)
    before = {name: p.detach().clone() for name, p in trainer.model.named_parameters() if p.requires_grad}
    after = trained(trainer)
    assert {weights.dtype for weights in after.values()} == {torch.float32}
    first = [(weights != before[name]).float().mean() for name, weights in after.items() if "lora_A" in name]
    assert min(first) > 0.9


@pytest.mark.parametrize("config", [IA3Config(), PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4)])
def test_other_adapters_are_in_float32(tmp_path, model_dir, config, on_cpu):
    """IA3's weights begin at 1: no step of 1e-3 changed one in bfloat16, and the run ended as if it had trained."""
    options = {"use_cpu": on_cpu, "learning_rate": 1e-3, "max_steps": 2}
    given = {"train_dataset": make_pairs(8), "quantization_config": BitsAndBytesConfig(**NF4), "peft_config": config}
    trainer = trainer_of("bct", tmp_path, str(model_dir), options, **given)
    before = [weights.detach().clone() for weights in trainer.model.parameters() if weights.requires_grad]
    after = trained(trainer).values()
    assert all(weights.dtype == torch.float32 for weights in after)
    assert all((weights != old).any() for weights, old in zip(after, before, strict=True))


@pytest.mark.parametrize("method", ["bct", "opct"])
@pytest.mark.parametrize("copied", [{"modules_to_save": ["lm_head"]}, {"trainable_token_indices": [70, 80]}])
def test_copies_of_weights_in_float32_begin_as_these(tmp_path, model_dir, method, copied, on_cpu):
    """TRL rounds them to bfloat16. The student was not the reference at the start, and steps of 1e-5 changed 1% of a head."""
    options = {"use_cpu": on_cpu, "learning_rate": 1e-5, "max_steps": 2}
    config = LoraConfig(**LORA, **copied)
    given = {"train_dataset": make_pairs(8), "quantization_config": BitsAndBytesConfig(**NF4), "peft_config": config}
    trainer = trainer_of(method, tmp_path, str(model_dir), options, **given)
    (copy,) = (of for name, of in trainer.model.named_parameters() if re.search("modules_to_save|tokens_delta", name))
    original = AutoModelForCausalLM.from_pretrained(model_dir).lm_head.weight.detach().to(copy.device)
    start = original if "modules_to_save" in copied else original[copied["trainable_token_indices"]]
    torch.testing.assert_close(copy.detach(), start, rtol=0, atol=0)
    trainer.train()
    assert (copy != start).float().mean() > 0.9


@pytest.mark.parametrize("method", ["bct", "opct"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_given_adapter_begins_as_it_was(tmp_path, model_dir, method, dtype, on_cpu):
    """TRL rounded the weights of an adapter that is trained on."""
    config = BitsAndBytesConfig(**NF4)
    base = AutoModelForCausalLM.from_pretrained(model_dir, quantization_config=config, dtype=torch.bfloat16)
    model = get_peft_model(base, LoraConfig(**LORA))
    adapter = [p for p in model.parameters() if p.requires_grad]
    for weights in adapter:
        weights.data = torch.randn_like(weights, dtype=dtype)
    before = [weights.detach().clone() for weights in adapter]
    tokenizer = AutoTokenizer.from_pretrained(model_dir)
    trainer_of(method, tmp_path, model, {"use_cpu": on_cpu}, train_dataset=make_pairs(8), processing_class=tokenizer)
    for weights, given in zip(adapter, before, strict=True):
        torch.testing.assert_close(weights.detach(), given, rtol=0, atol=0)


def test_a_resumed_run_goes_on_in_the_dtype_of_its_adapter(tmp_path, model_dir, on_cpu):
    options = {"max_steps": 4, "save_strategy": "steps", "save_steps": 2}
    whole = trained(make_trainer(tmp_path, model_dir, "kl", on_cpu, **options))
    resumed = make_trainer(tmp_path, model_dir, "kl", on_cpu, **options)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    weights = dict(resumed.model.named_parameters())
    for name, weight in whole.items():
        torch.testing.assert_close(weights[name].detach(), weight, rtol=0, atol=0)


@pytest.mark.parametrize("method", ["bct", "opct"])
def test_reference_is_the_quantised_model_without_the_adapter(tmp_path, model_dir, method, on_cpu):
    trainer = make_trainer(tmp_path, model_dir, method, on_cpu, max_steps=3, save_strategy="steps", save_steps=1)
    weights = [(module, module.weight.data.clone()) for module in linears(trainer.model)]
    assert weights
    trainer.train()  # checks the checksum at each save, too
    assert all(torch.equal(module.weight.data, before) for module, before in weights)


def test_card_says_so_and_its_snippet_loads_the_model(tmp_path, model_dir, on_cpu):
    trainer = make_trainer(tmp_path / "adapter", model_dir, "bct", on_cpu, max_steps=1)
    trainer.train()
    trainer.save_model()
    trainer.create_model_card()
    card = (tmp_path / "adapter" / "README.md").read_text()
    assert "LoRA, rank 4, alpha 8, on weights in 4 bits" in card
    (snippet,) = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    names = {}
    exec(snippet.replace("path/to/this/folder", str(tmp_path / "adapter")), names)
    assert len(linears(names["model"])) == len(linears(trainer.model))


@pytest.mark.parametrize("method", ["kl", "opct"])
def test_weights_that_torchao_quantized(tmp_path, model_dir, method, on_cpu):
    """Its tensors lack most operations: the check of the weights ended in a NotImplementedError."""
    quantization = pytest.importorskip("torchao.quantization")
    config = TorchAoConfig(quantization.Int8WeightOnlyConfig(version=2))
    model = AutoModelForCausalLM.from_pretrained(model_dir, quantization_config=config, dtype=torch.float32)
    ids = torch.tensor([[5, 6, 7, 8]])
    before = model(ids).logits.detach()
    options = {"use_cpu": on_cpu, "learning_rate": 5e-3, "max_steps": 2}
    data = {"train_dataset": make_pairs(8), "peft_config": LoraConfig(**LORA)}
    trainer = trainer_of(method, tmp_path, model, options, **data)
    trainer.train()
    trainer.save_model()
    trainer.model.eval()
    with torch.no_grad(), trainer.model.disable_adapter():
        assert torch.equal(trainer.model(ids).logits, before)
    assert not torch.equal(trainer.model(ids).logits, before)
    assert "on weights quantized with torchao" in (tmp_path / "README.md").read_text()


@pytest.mark.parametrize("method", ["bct", "kl", "opct"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_biases_in_another_dtype_than_the_layers_compute_in(tmp_path, method, dtype, on_cpu):
    """As Qwen2.5 has them. bitsandbytes rounds them in its first pass, and the training ended in an error: the reference had changed."""
    model = make("qwen2", **FOR_TEXTS)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("bias"):
                weight.normal_()
    model.save_pretrained(tmp_path / "base")
    make_tokenizer().save_pretrained(tmp_path / "base")
    options = {"model_init_kwargs": {"dtype": dtype}, "max_steps": 2}
    trainer = make_trainer(tmp_path / "out", tmp_path / "base", method, on_cpu, **options)
    trainer.train()
    assert trainer.state.global_step == 2
    biases = [of.dtype for name, of in trainer.model.named_parameters() if name.endswith("q_proj.base_layer.bias")]
    assert set(biases) == {torch.bfloat16}


def in_4_bits(folder):
    return AutoModelForCausalLM.from_pretrained(folder, quantization_config=BitsAndBytesConfig(**NF4))


def test_weights_that_bitsandbytes_has_repacked_are_refused(tmp_path, model_dir, on_cpu):
    """As it does on some processors, when a model runs in evaluation mode. The error came after the training, and named another cause."""
    trainer = paired.make_trainer(tmp_path, make_pairs(4), model=in_4_bits(model_dir), lora=True, method="bct")
    for layer in linears(trainer.model):
        layer.weight.quant_state.packing_format_for_cpu = True
    with pytest.raises(ConsistencyError, match="were repacked by bitsandbytes"):
        trainer.train()


def test_a_reference_in_4_bits_is_not_repacked(tmp_path, model_dir, on_cpu):
    """On some processors, the training ended in an error: the reference had changed."""
    reference = in_4_bits(model_dir)
    on_policy.make_trainer(tmp_path, make_pairs(8), ref_model=reference, per_device_train_batch_size=8)
    assert not any(layer.support_avx512bf16_for_cpu for layer in linears(reference))


def linears(model):
    return [module for module in model.modules() if type(module).__name__ == "Linear4bit"]


def test_merged_model_answers_as_the_unmerged_one(tmp_path, model_dir, on_cpu):
    """Merged into weights of full precision: those that the adapter was trained on, dequantised."""
    trainer = make_trainer(tmp_path, model_dir, "bct", on_cpu, max_steps=4)
    trainer.train()
    trainer.save_model()
    config = BitsAndBytesConfig(**NF4)
    quantised = AutoModelForCausalLM.from_pretrained(model_dir, quantization_config=config, dtype=torch.float32)
    base = quantised.dequantize()
    unmerged = trainer.model.eval()
    ids = torch.arange(3, 40, device=unmerged.device)[None]
    merged = PeftModel.from_pretrained(base, tmp_path).merge_and_unload().float().to(ids.device).eval()
    with torch.no_grad():
        expected, actual = unmerged(input_ids=ids).logits.float(), merged(input_ids=ids).logits
    assert (actual - expected).norm() / expected.norm() < 0.02  # computed in bfloat16
