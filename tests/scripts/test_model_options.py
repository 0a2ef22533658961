from types import SimpleNamespace

import pytest
from trl import ModelConfig, ScriptArguments

from trl_consistency import ConsistencyError
from trl_consistency.scripts.consistency import COMMAND
from trl_consistency.scripts.model_options import (
    adapter_of,
    check_init_kwargs,
    check_intervals,
    check_model_options,
    quantization_of,
)


@pytest.mark.parametrize(
    ("options", "is_refused"),
    [
        ({"lora_r": 16}, True),  # as by default, and not switched on all the same
        ({"use_dora": True}, True),
        ({"use_dora": False, "lora_target_modules": None}, False),
        ({"lora_r": 16, "use_peft": True}, False),
        ({"lora_r": 16, "use_peft": False}, False),
        ({"bnb_4bit_quant_type": "fp4"}, True),
        ({"vllm_mode": "server"}, True),
        ({"eval_steps": 10}, True),
        ({"eval_steps": 10, "eval_strategy": "no"}, False),
        ({"hub_model_id": "me/model"}, True),
        ({"vllm_gpu_memory_utilization": 0.5, "use_vllm": False}, False),
        ({"vllm_max_model_length": None}, False),
        ({}, False),
    ],
)
def test_options_that_another_one_switches_on(options, is_refused):
    of_model = {name: value for name, value in options.items() if name in ModelConfig.__dataclass_fields__}
    training = SimpleNamespace(**{name: value for name, value in options.items() if name not in of_model})
    arguments = set(options), ScriptArguments(dataset_name="x"), training, ModelConfig(**of_model)
    if is_refused:
        with pytest.raises(ConsistencyError, match=f"`{next(iter(options))}` is set without"):
            check_model_options(*arguments)
    else:
        check_model_options(*arguments)


@pytest.mark.parametrize(
    ("recipe", "typed", "is_refused"),
    [
        ({"save_strategy": "epoch"}, {"save_steps": 100}, True),
        ({"save_strategy": "no"}, {"save_steps": 100}, True),
        ({"eval_strategy": "epoch", "eval_steps": 50}, {}, True),
        ({}, {"logging_strategy": "epoch", "logging_steps": 5}, True),
        ({"save_strategy": "best"}, {"save_steps": 100}, True),
        ({"save_strategy": "steps"}, {"save_steps": 100}, False),
        ({}, {"save_steps": 100}, False),  # by default, checkpoints come by steps
        ({"save_steps": 100}, {"save_strategy": "epoch"}, False),  # in place of what the recipe has
        ({"save_steps": 100, "save_strategy": "no"}, {}, False),
        ({"eval_strategy": "epoch", "eval_steps": None}, {}, False),
    ],
)
def test_an_interval_in_steps_where_something_else_counts(recipe, typed, is_refused):
    by_default = {
        "max_steps": -1,
        "save_strategy": "steps",
        "save_steps": 500,
        "logging_strategy": "steps",
        "logging_steps": 10,
    }
    args = SimpleNamespace(**{"eval_strategy": "no", "eval_steps": None, **by_default, **recipe, **typed})
    if is_refused:
        with pytest.raises(ConsistencyError, match=r"`\w+_steps` is \d+, and `\w+_strategy` is \w+"):
            check_intervals({*recipe, *typed}, set(typed), args)
    else:
        check_intervals({*recipe, *typed}, set(typed), args)


@pytest.mark.parametrize(
    ("recipe", "typed", "is_refused"),
    [
        ({"max_steps": 200}, {"num_train_epochs": 3}, True),
        ({"max_steps": 200, "num_train_epochs": 3}, {}, True),
        ({}, {"max_steps": 200, "num_train_epochs": 3}, True),
        ({"num_train_epochs": 3}, {"max_steps": 2}, False),  # a trial
        ({"max_steps": 200}, {"num_train_epochs": 3, "max_steps": -1}, False),
        ({"max_steps": 200}, {}, False),
        ({}, {"num_train_epochs": 3}, False),
    ],
)
def test_epochs_that_a_number_of_steps_overrides(recipe, typed, is_refused):
    """They were ignored without a word."""
    by_default = dict.fromkeys(("save_strategy", "eval_strategy", "logging_strategy"), "steps")
    by_default |= {
        "save_steps": 500,
        "eval_steps": None,
        "logging_steps": 10,
        "max_steps": -1,
        "num_train_epochs": 3.0,
    }
    arguments = {*recipe, *typed}, set(typed), SimpleNamespace(**{**by_default, **recipe, **typed})
    if is_refused:
        with pytest.raises(
            ConsistencyError, match="`num_train_epochs` is 3, and `max_steps` is 200, which alone would"
        ):
            check_intervals(*arguments)
    else:
        check_intervals(*arguments)


def test_the_parser_knows_what_was_given(tmp_path):
    (tmp_path / "recipe.yaml").write_text("lora_r: 4\nuse_cpu: true\nbf16: false\n")
    parser = COMMAND.make_parser()
    parser.parse_args_and_config(
        ["--config", str(tmp_path / "recipe.yaml"), "--output_dir", str(tmp_path), "--lora-alpha=8"]
    )
    assert parser.given >= {"lora_r", "lora_alpha", "output_dir"}
    assert "use_peft" not in parser.given


MXFP4 = {"quant_method": "mxfp4", "dequantize": True}


def test_how_to_load_quantized_weights():
    options = {"quantization_config": MXFP4, "revision": "main"}
    made = quantization_of(ModelConfig(), options)
    assert type(made).__name__ == "Mxfp4Config"
    assert made.dequantize is True
    assert options == {"revision": "main"}, "it is the trainer's argument, and given twice it would be refused"
    assert quantization_of(ModelConfig(), {}) is None
    assert quantization_of(ModelConfig(load_in_4bit=True), {}).load_in_4bit


@pytest.mark.parametrize(
    ("given", "options", "message"),
    [
        ({"load_in_4bit": True}, MXFP4, "and `load_in_4bit` or `load_in_8bit` are both given"),
        ({}, "mxfp4", "must be a mapping with a `quant_method`, got 'mxfp4'"),
        ({}, {"dequantize": True}, "cannot be used: .*`quant_method`"),
        ({}, {"quant_method": "mxfp5"}, "cannot be used: Unknown quantization type, got mxfp5"),
    ],
)
def test_faulty_ways_to_load_quantized_weights(given, options, message):
    with pytest.raises(ConsistencyError, match=message):
        quantization_of(ModelConfig(**given), {"quantization_config": options})


@pytest.mark.parametrize(
    ("given", "modules"),
    [
        (["q_proj"], {"q_proj"}),
        (["q_proj", "v_proj"], {"q_proj", "v_proj"}),
        (["all-linear"], "all-linear"),
        ([".*q_proj"], ".*q_proj"),
    ],
)
def test_one_name_of_a_layer_is_no_pattern(given, modules):
    assert adapter_of(ModelConfig(use_peft=True, lora_target_modules=given)).target_modules == modules


def test_no_adapter():
    assert adapter_of(ModelConfig()) is None


@pytest.mark.parametrize("option", ["dtype", "attn_implementation", "model_revision"])
def test_init_kwargs_do_not_override_an_option(option):
    key, arguments = option.removeprefix("model_"), ModelConfig(**{option: "mine"})
    with pytest.raises(
        ConsistencyError, match=f"`{option}` is mine, and `model_init_kwargs` sets `{key}` to other: keep one"
    ):
        check_init_kwargs(arguments, {key: "other"})
    check_init_kwargs(arguments, {key: "mine"})
    check_init_kwargs(ModelConfig(), {key: "other"})
    with pytest.raises(ConsistencyError, match="keep one"):  # as by default, and given all the same
        check_init_kwargs(ModelConfig(), {key: "other"}, {option})
