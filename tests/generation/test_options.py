"""What is sampled is decided by the options alone, whatever a model's `generation_config` says."""

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import GenerationConfig, RepetitionPenaltyLogitsProcessor

from tests.helpers.models import make_model
from trl_consistency.generation.options import SPECIAL_TOKENS, evaluating, left_padded, own_options, penalized
from trl_consistency.generation.targets import generate_targets
from trl_consistency.passes.prefix_sharing import PrefixSharing


PROMPTS = [[5, 6, 7], [8], [9, 10, 11, 12, 13], [14, 15]]

# What changes answers or ends in a traceback when it comes with the model
HARMFUL = {
    "repetition_penalty": 1.8,
    "no_repeat_ngram_size": 1,
    "encoder_no_repeat_ngram_size": 1,
    "encoder_repetition_penalty": 3.0,
    "suppress_tokens": list(range(10, 380)),
    "begin_suppress_tokens": list(range(10, 380)),
    "bad_words_ids": [[token] for token in range(10, 380)],
    "sequence_bias": [[[20], 1000.0]],
    "forced_bos_token_id": 7,
    "forced_eos_token_id": 2,
    "min_new_tokens": 5,
    "min_length": 9,
    "max_time": 1e-9,
    "exponential_decay_length_penalty": [1, 50.0],
    "watermarking_config": {"bias": 50.0},
    "guidance_scale": 3.0,
    "stop_strings": ["a"],
    "num_beams": 3,
    "num_return_sequences": 2,
    "prompt_lookup_num_tokens": 2,
    "assistant_early_exit": 1,
    "return_dict_in_generate": True,
    "penalty_alpha": 0.6,
    "token_healing": True,
    "do_sample": True,
    "temperature": 5.0,
    "top_k": 2,
    "top_p": 0.1,
    "min_p": 0.9,
    "typical_p": 0.1,
    "epsilon_cutoff": 0.1,
    "eta_cutoff": 0.1,
    "top_h": 0.1,
    "dola_layers": "low",
    "diversity_penalty": 1.0,
    "num_beam_groups": 2,
    "force_words_ids": [[7]],
    "max_new_tokens": 1,
    "max_length": 1,
}


def answers(model, **options):
    config = GenerationConfig(max_new_tokens=6, pad_token_id=0, eos_token_id=[2], **options)
    return generate_targets(model, PROMPTS, config, 2, 0, progress=False)


@pytest.fixture(scope="module")
def model():
    return make_model().eval()


@pytest.fixture(params=["greedy", "sampled"])
def options(request):
    return {"do_sample": False} if request.param == "greedy" else {"do_sample": True, "temperature": 1.0}


@pytest.fixture(scope="module")
def expected(model):
    return {sampled: answers(model, do_sample=sampled) for sampled in (False, True)}


@pytest.mark.long
def test_no_field_of_the_models_file_changes_an_answer(model, expected, options):
    """Every field that this version of transformers has, with a value that does harm or else with one of no sense."""
    fields = [name for name in vars(GenerationConfig()) if name not in SPECIAL_TOKENS and not name.startswith("_")]
    assert len(fields) > 60
    before = model.generation_config
    try:
        for name in fields:
            model.generation_config = GenerationConfig(eos_token_id=2)
            setattr(model.generation_config, name, HARMFUL.get(name, "of no sense"))
            assert answers(model, **options) == expected[options["do_sample"]], name
    finally:
        model.generation_config = before


@pytest.mark.parametrize("name", ["repetition_penalty", "suppress_tokens", "no_repeat_ngram_size", "bad_words_ids"])
def test_the_values_would_change_answers(model, expected, name):
    """Without which the test above could not fail; and as options of the run, they count."""
    assert answers(model, do_sample=False, **{name: HARMFUL[name]}) != expected[False]


@pytest.mark.parametrize("pad", [0, 2])
def test_a_penalty_on_repeated_tokens_does_not_see_padding(pad):
    """Where the padding ends answers, their end was penalized in all rows but the longest."""
    input_ids, mask = left_padded(PROMPTS, pad, torch.device("cpu"))
    rows = penalized(input_ids, mask, GenerationConfig(repetition_penalty=1.5))
    assert [row[-len(prompt) :] for row, prompt in zip(rows.tolist(), PROMPTS, strict=True)] == PROMPTS
    penalty, scores = RepetitionPenaltyLogitsProcessor(1.5), torch.randn(len(PROMPTS), 384)
    alone = [penalty(torch.tensor([ids]), of[None])[0] for ids, of in zip(PROMPTS, scores, strict=True)]
    assert torch.equal(penalty(rows, scores), torch.stack(alone))
    assert not torch.equal(penalty(input_ids, scores), torch.stack(alone))
    assert penalized(input_ids, mask, GenerationConfig(repetition_penalty=1.0)) is input_ids
    assert torch.equal(penalized(input_ids, mask, GenerationConfig(no_repeat_ngram_size=1)), rows)
    assert penalized(input_ids, mask, GenerationConfig(no_repeat_ngram_size=2)) is input_ids


@pytest.mark.parametrize("kind", ["targets", "rollouts"])
def test_all_that_is_generated_with_a_penalty_is_so(monkeypatch, kind):
    model, seen = make_model().eval(), []
    generate = model.generate
    monkeypatch.setattr(model, "generate", lambda input_ids, **of: seen.append(input_ids) or generate(input_ids, **of))
    if kind == "targets":
        answers(model, do_sample=False, repetition_penalty=1.5)
    else:
        input_ids, mask = left_padded(PROMPTS, 0, model.device)
        config = GenerationConfig(max_new_tokens=2, pad_token_id=0, eos_token_id=2, repetition_penalty=1.5)
        with PrefixSharing().in_generation(model):
            model.generate(input_ids=input_ids, attention_mask=mask, generation_config=config)
    assert seen
    assert all((of != 0).all() for of in seen)


def test_sampling_is_from_all_tokens(model, monkeypatch):
    seen, prepare = [], model._prepare_generation_config

    def prepared(*args, **kwargs):
        config, rest = prepare(*args, **kwargs)
        seen.append(config.top_k)
        return config, rest

    monkeypatch.setattr(model, "_prepare_generation_config", prepared)
    answers(model, do_sample=True)
    answers(model, do_sample=True, top_k=7)
    assert seen == [0, 0, 7, 7]


def test_what_is_left_out_is_said(model, caplog, monkeypatch):
    monkeypatch.setattr(
        model,
        "generation_config",
        GenerationConfig(
            eos_token_id=2,
            repetition_penalty=1.3,
            suppress_tokens=[5],
            temperature=0.6,
            top_k=20,
            num_beams=1,
            output_scores=False,
        ),
    )
    answers(model, do_sample=False)
    answers(model, do_sample=False, repetition_penalty=1.0)
    answers(model, do_sample=True, repetition_penalty=1.0, suppress_tokens=[])
    assert [
        record.getMessage().partition(": ")[2].partition(". ")[0]
        for record in caplog.records
        if record.name == "trl_consistency.generation.options"
    ] == [
        "`repetition_penalty: 1.3`, `suppress_tokens: [5]`",
        "`suppress_tokens: [5]`",
        "`temperature: 0.6`, `top_k: 20`",
    ]


@pytest.mark.parametrize("mode", [True, False])
def test_each_part_of_the_model_gets_its_mode_back(mode):
    """A part in the other mode, such as a frozen block without dropout, was put into the model's."""
    model = make_model().train(mode)
    model.model.layers[0].train(not mode)
    before = [part.training for part in model.modules()]
    with evaluating(model):
        assert not any(part.training for part in model.modules())
    assert [part.training for part in model.modules()] == before


def test_the_models_config_comes_back(expected):
    model = make_model().eval()
    model.generation_config = brought = GenerationConfig(eos_token_id=[2, 9], repetition_penalty=1.8)
    adapted = get_peft_model(model, LoraConfig(target_modules="all-linear")).eval()  # changes nothing as it is
    assert answers(adapted, do_sample=False) == expected[False]
    with own_options(adapted):
        adapted.generation_config = GenerationConfig()  # as TRL does while it generates
        assert model.generation_config.eos_token_id == [2, 9]
    assert model.generation_config is brought
    assert adapted.generation_config is brought
    assert torch.is_tensor(adapted.generate(torch.tensor([[5, 6]]), max_new_tokens=1))
