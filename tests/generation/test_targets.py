from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from peft import LoraConfig, PromptTuningConfig, get_peft_model
from transformers import (
    GenerationConfig,
    GPT2Config,
    GPT2LMHeadModel,
    RwkvConfig,
    RwkvForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

from tests.helpers.distributions import make_sharp_model
from tests.helpers.models import make_model
from trl_consistency.data.target_table import TargetTable
from trl_consistency.errors import ConsistencyError
from trl_consistency.generation.options import reads_padding
from trl_consistency.generation.targets import cut_after_end, generate_targets


PROMPTS = [[5, 6, 7], [8], [9, 10, 11, 12, 13], [14, 15], [16, 17, 18, 19], [20]]


def config(**options):
    return GenerationConfig(max_new_tokens=6, pad_token_id=0, eos_token_id=[2], **options)


@pytest.fixture(scope="module")
def model():
    return make_model().eval()


def test_greedy_targets_equal_one_prompt_at_a_time(model):
    expected = [
        cut_after_end(
            model.generate(torch.tensor([ids]), generation_config=config(do_sample=False))[0, len(ids) :].tolist(), 2
        )
        for ids in PROMPTS
    ]
    for batch_size in (1, 4, 10):
        assert (
            generate_targets(model, PROMPTS, config(do_sample=False), batch_size, seed=0, progress=False) == expected
        )


def test_batches_have_like_lengths(model, monkeypatch):
    """Longest first: short prompts are not padded to the length of long ones."""
    lengths = [3, 17, 2, 9, 18, 4, 11, 1, 10]
    prompts, batches, generate = [[*range(5, 5 + length)] for length in lengths], [], model.generate
    monkeypatch.setattr(
        model,
        "generate",
        lambda **inputs: batches.append(inputs["attention_mask"].sum(1).tolist()) or generate(**inputs),
    )
    generate_targets(model, prompts, config(do_sample=False), 3, seed=0, progress=False)
    assert batches == [[18, 17, 11], [10, 9, 4], [3, 2, 1]]


@pytest.mark.parametrize("is_on", [True, False])
def test_a_learned_prompt_answers_each_prompt_as_alone(is_on):
    """PEFT drops the position ids of these, so that padding would count."""
    model = get_peft_model(make_sharp_model(), PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4))
    torch.nn.init.normal_(model.prompt_encoder["default"].embedding.weight)
    model.eval()
    prompts = [[*range(5, 5 + length)] for length in (40, 3, 3, 17)]
    with nullcontext() if is_on else model.disable_adapter():
        alone, together = (
            generate_targets(model, prompts, config(do_sample=False), size, seed=0, progress=False) for size in (1, 4)
        )
        assert together == alone
        calls, generate = [], model.generate
        model.generate = lambda **inputs: calls.append(len(inputs["input_ids"])) or generate(**inputs)
        generate_targets(model, prompts, config(do_sample=False), 4, seed=0, progress=False)
        assert sorted(calls) == ([1, 1, 2] if is_on else [4])


@pytest.fixture(scope="module")
def rwkv():
    """It takes no attention mask, and reads padding as it reads text."""
    torch.manual_seed(0)
    model = RwkvForCausalLM(RwkvConfig(vocab_size=128, hidden_size=32, attention_hidden_size=32, num_hidden_layers=2))
    for parameter in model.parameters():
        if parameter.dim() == 2:
            torch.nn.init.normal_(parameter, std=0.3)
    return model.eval()


def test_a_model_that_reads_padding_answers_each_prompt_as_alone(rwkv):
    alone, together = (
        generate_targets(rwkv, PROMPTS, config(do_sample=False), size, seed=0, progress=False) for size in (1, 6)
    )
    assert together == alone


def test_padding_is_tried_once_for_each_model(rwkv, model, monkeypatch):
    assert [reads_padding(of) for of in (rwkv, model, model.to(torch.bfloat16))] == [True, False, False]
    model.to(torch.float32)
    monkeypatch.setattr(type(rwkv), "forward", lambda *args, **kwargs: pytest.fail("tried again"))
    assert reads_padding(rwkv)


def test_rounding_is_not_taken_for_read_padding():
    """A head in float32 on a model in half precision, as PEFT leaves it for QLoRA, hid that the model rounds."""
    model = make_model().to(torch.bfloat16)
    model.lm_head.float()
    rounding = {8: 1.0, 13: 1.01}  # by length
    model.model.norm.register_forward_hook(lambda module, args, states: states.float() * rounding[states.shape[1]])
    assert not reads_padding(model)


def test_rounding_of_autocast_is_not_taken_for_read_padding():
    model, rounding = make_model(), {8: 1.0, 13: 1.02}
    model.model.norm.register_forward_hook(lambda module, args, states: states * rounding[states.shape[1]])
    with torch.autocast("cpu", torch.bfloat16):
        assert not reads_padding(model)


@pytest.mark.parametrize("has_adapter", [False, True])
def test_rounding_of_a_prepared_model_is_not_taken_for_read_padding(has_adapter):
    """accelerate puts autocast into the forward. With deep models in float32, all rollouts were sampled one at a time."""
    model, rounding = make_model(), {8: 1.0, 13: 1.02}
    model = get_peft_model(model, LoraConfig(target_modules=["q_proj"])) if has_adapter else model
    plain = model.forward

    def rounded(*args, **inputs):
        output = plain(*args, **inputs)
        output.logits *= rounding[inputs["input_ids"].shape[1]]
        return output

    model.forward = rounded
    assert not reads_padding(model)


def test_an_encoder_decoder_is_refused():
    """As many tokens as the prompt has were cut from the beginning of its answers."""
    shape = {"vocab_size": 128, "d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2}
    model = T5ForConditionalGeneration(T5Config(**shape, decoder_start_token_id=0)).eval()
    with pytest.raises(ConsistencyError, match="`T5ForConditionalGeneration` is an encoder-decoder"):
        generate_targets(model, PROMPTS, config(do_sample=False), 2, seed=0, progress=False)


class WithoutPositions(GPT2LMHeadModel):
    """Leaves the positions out when it generates, as some models with code of their own do, so that they count from the left."""

    def prepare_inputs_for_generation(self, input_ids, attention_mask=None, **kwargs):
        return {"input_ids": input_ids, "attention_mask": attention_mask}


class FewArguments(WithoutPositions):
    def forward(self, input_ids, attention_mask=None, return_dict=None):
        return super().forward(input_ids=input_ids, attention_mask=attention_mask, position_ids=None, use_cache=False)


class WithPositions(GPT2LMHeadModel):
    pass


@pytest.mark.parametrize("brought", [{}, {"prompt_lookup_num_tokens": 3}, {"stop_strings": ["a"]}])
@pytest.mark.parametrize("kind", [WithoutPositions, FewArguments, WithPositions])
def test_padding_of_models_with_code_of_their_own(kind, brought):
    """What leaves the positions out was taken for a model that does not read padding, so that its answers depended on the batch."""
    torch.manual_seed(0)
    shape = {"vocab_size": 128, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128, "initializer_range": 0.3}
    model = kind(GPT2Config(**shape, eos_token_id=2, pad_token_id=0, bos_token_id=None)).eval()
    model.generation_config.update(**brought)
    assert reads_padding(model) == (kind is not WithPositions)
    alone, together = (
        generate_targets(model, PROMPTS, config(do_sample=False), size, seed=0, progress=False) for size in (1, 6)
    )
    assert together == alone


def test_padding_of_a_model_that_cannot_be_tried():
    """A config without `vocab_size`, such as one of remote code, raised before the model was asked."""
    model = torch.nn.Linear(1, 1)
    model.device, model.config = "cpu", SimpleNamespace(get_text_config=lambda: object())
    assert not reads_padding(model)


def test_sampling_depends_on_the_seed_alone(model):
    def sample(seed):
        return generate_targets(model, PROMPTS, config(do_sample=True), 2, seed, progress=False)

    first = sample(seed=0)
    torch.rand(7)
    assert sample(seed=0) == first
    assert sample(seed=1) != first


def test_batches_of_one_seed_differ(model):
    """Two batches with the same prompt lengths must not get the same random numbers."""
    rows = generate_targets(
        model, [[5, 6], [5, 7]] * 1 + [[5, 8], [5, 9]], config(do_sample=True), 2, 0, progress=False
    )
    assert rows[0] != rows[2]


def test_the_callers_random_state_is_kept(model):
    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)
    generate_targets(model, PROMPTS, config(do_sample=True), 2, seed=0, progress=False)
    assert torch.equal(torch.rand(3), expected)


def test_cut_after_end():
    assert cut_after_end([5, 2, 7, 2], 2) == [5, 2]
    assert cut_after_end([5, 3, 7], [2, 3]) == [5, 3]
    assert cut_after_end([5, 6], [2, 3]) == [5, 6]


def test_table_has_one_target_for_each_distinct_prompt():
    table = TargetTable()
    assert table.missing([[1, 2], [3], [1, 2]]) == [[1, 2], [3]]
    table[[1, 2]] = [7, 8]
    assert table[[1, 2]] == [7, 8]
    assert [1, 2] in table
    assert [1] not in table
    assert table.missing([[1, 2], [3], [1, 2]]) == [[3]]
    assert len(table) == 1
