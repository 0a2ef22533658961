import pytest
from trl import SFTConfig

from tests.conftest import make_config
from trl_consistency import ConsistencyConfig, ConsistencyError


def test_one_method_may_be_a_string(tmp_path):
    assert make_config(tmp_path, method="bct").method == ["bct"]
    assert make_config(tmp_path).weights == {"bct": 1.0}
    assert make_config(tmp_path, method_weights=[0.5]).weights == {"bct": 0.5}


FAULTY = {
    "anchor_ratio": ({"anchor_ratio": 1.0}, "`anchor_ratio` must be at least 0 and below 1"),
    "negative anchor_ratio": ({"anchor_ratio": -0.1}, "`anchor_ratio`"),
    "unknown method": ({"method": "btc"}, r"Unknown `method` `btc`.*Did you mean `bct`"),
    "no method": ({"method": []}, "`method` is empty"),
    "method twice": ({"method": ["bct", "bct"]}, "names an objective twice"),
    "too many weights": ({"method_weights": [1.0, 2.0]}, r"has 2 value\(s\) for 1 method\(s\)"),
    "negative weight": ({"method_weights": [-1.0]}, "non-negative"),
    "weights all 0": ({"method_weights": [0.0]}, "not all 0"),
    "weight not finite": ({"method_weights": [float("nan")]}, "finite"),
    "max_length": ({"max_length": 0}, "`max_length` must be at least 1"),
    "overlong": ({"overlong": "cut"}, "`overlong` must be 'error' or 'drop'"),
    "max_completion_length": ({"max_completion_length": 0}, "`max_completion_length`"),
    "temperature": ({"temperature": -0.1}, "`temperature` must be at least 0"),
    "temperature not a number": ({"temperature": float("nan")}, "`temperature`"),
    "top_p": ({"top_p": 0.0}, "`top_p`"),
    "top_p above 1": ({"top_p": 1.1}, "`top_p`"),
    "top_k": ({"top_k": -1}, "`top_k`"),
    "min_p": ({"min_p": 1.5}, "`min_p`"),
    "repetition_penalty": ({"repetition_penalty": 0.0}, "`repetition_penalty`"),
    "target_batch_size": ({"target_batch_size": 0}, "`target_batch_size`"),
    "one thinking marker": ({"thinking_markers": ["<think>"]}, "`thinking_markers` must be two texts"),
    "regeneration": ({"regenerate_targets_every": 0}, "`regenerate_targets_every` must be at least 1"),
    "persistent workers": (
        {"regenerate_targets_every": 1, "dataloader_persistent_workers": True, "dataloader_num_workers": 1},
        "`dataloader_persistent_workers` is not available",
    ),
    "text for a number": ({"temperature": "hot"}, "`temperature` must be a number, got 'hot'"),
    "text for an inherited number": ({"learning_rate": "1e-3"}, "`learning_rate` must be a number, got '1e-3'"),
    "number for a list": ({"method_weights": 0.5}, "`method_weights` must be a list"),
    "text for a mapping": ({"chat_template_kwargs": "x"}, "`chat_template_kwargs` must be a mapping, got 'x'"),
    "reserved template variable": (
        {"chat_template_kwargs": {"tokenize": False}},
        "`chat_template_kwargs` sets tokenize",
    ),
    "misspelt generation option": (
        {"generation_kwargs": {"repetition_penalti": 5}},
        "unknown key `repetition_penalti`. Did you mean `repetition_penalty`",
    ),
    "several answers": ({"generation_kwargs": {"num_return_sequences": 3}}, "a clean prompt has one target"),
    "learning_rate": ({"learning_rate": -1e-5}, "`learning_rate`"),
    "epochs": ({"num_train_epochs": 0}, "`num_train_epochs`"),
    "batch size": ({"per_device_train_batch_size": 0}, "`per_device_train_batch_size`"),
    "eval batch size": ({"per_device_eval_batch_size": 0}, "`per_device_eval_batch_size`"),
    "accumulation": ({"gradient_accumulation_steps": 0}, "`gradient_accumulation_steps`"),
    "packing": ({"packing": True}, "`packing` is not available"),
    "eval packing": ({"eval_packing": True}, "`eval_packing` is not available"),
    "padding free": ({"padding_free": True}, "`padding_free` is not available"),
    "assistant only": ({"assistant_only_loss": True}, "`assistant_only_loss` is not available"),
    "loss on the prompt": ({"completion_only_loss": False}, "the cue, which must not be learned"),
    "dataset_kwargs": ({"dataset_kwargs": {"skip_prepare_dataset": True}}, "`dataset_kwargs` is not available"),
    "text field": ({"dataset_text_field": "prompt"}, "`dataset_text_field` is not available"),
    "truncation": ({"truncation_mode": "keep_end"}, "rows are never cut"),
    "local token counts": ({"average_tokens_across_devices": False}, "mean over the tokens of the global batch"),
    "one process with a backend": ({"ddp_backend": "gloo"}, "this is a single process"),
}


@pytest.mark.parametrize(("options", "reason"), FAULTY.values(), ids=FAULTY)
def test_faulty_options(tmp_path, options, reason):
    with pytest.raises(ConsistencyError, match=reason):
        make_config(tmp_path, **options)


def test_every_option_is_documented():
    """A field that the docstring leaves out, or a default that differs from it, is a lie to the user."""
    own = set(ConsistencyConfig.__dataclass_fields__) - set(SFTConfig.__dataclass_fields__)
    for name in own:
        assert f"        {name} (" in ConsistencyConfig.__doc__, name
        assert ConsistencyConfig.__dataclass_fields__[name].metadata["help"], name
