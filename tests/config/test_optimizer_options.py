import inspect
import re
from contextlib import nullcontext

import pytest
import yaml
from transformers import trainer_optimizer
from transformers.training_args import OptimizerNames

from tests.helpers.models import make_config
from trl_consistency import ConsistencyError
from trl_consistency.config.optimizer_options import ADAM, OPTIM_ARGS, READ_OF_ADAM, _of


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"optim_args": "epss=1.0"}, "`optim_args` sets `epss`, which `optim` adamw_torch_fused does not read"),
        (
            {"optim": "sgd", "optim_args": "momentun=0.9"},
            "reads momentum, dampening, nesterov. Did you mean `momentum`",
        ),
        ({"optim": "sgd", "optim_args": "weight_decay=0.1"}, "would be ignored. Set the option of that name"),
        (
            {"optim": "sgd", "optim_args": "nesterov=on,momentum=0.9"},
            "`nesterov`, which must be true or false, got 'on'",
        ),
        ({"optim": "sgd", "optim_args": "momentum"}, "`optim_args` must be like `momentum=0.9,nesterov=true`"),
        ({"optim": "sgd", "optim_target_modules": ["q_proj"]}, "`optim_target_modules` is set, but `optim` is sgd"),
        ({"optim": "sgd", "adam_beta1": 0.5}, "`adam_beta1` is set, but `optim` is sgd"),
        ({"optim": "paged_lion_8bit", "adam_epsilon": 0.5}, "`adam_epsilon` is set, but `optim` is paged_lion_8bit"),
        ({"optim": "adalomo"}, "`optim` adalomo changes weights within the backward pass"),
        (
            {"lr_scheduler_type": "constant", "warmup_steps": 3},
            "which has no warmup: set `lr_scheduler_type: constant_w",
        ),
        ({"lr_scheduler_type": "reduce_lr_on_plateau", "warmup_steps": 0.1}, "which has no warmup: leave it out"),
        ({"lr_scheduler_type": "constant", "lr_scheduler_kwargs": {"a": 1}}, "`lr_scheduler_kwargs` is set, but"),
    ],
)
def test_options_that_would_be_ignored(tmp_path, options, reason):
    with pytest.raises(ConsistencyError, match=reason):
        make_config(tmp_path, **options)


@pytest.mark.parametrize(
    "options",
    [
        {"optim": "sgd", "optim_args": "momentum=0.9, nesterov=true"},
        {"optim": "rmsprop", "optim_args": "alpha=0.9,centered=no"},
        {"optim": "adamw_torch", "adam_beta1": 0.5, "adam_epsilon": 1e-6},
        {"lr_scheduler_type": "constant_with_warmup", "warmup_steps": 3},
        {"lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": {"min_lr": 0.1}, "warmup_steps": 0.1},
    ],
)
def test_options_that_are_read(tmp_path, options):
    make_config(tmp_path, **options)


@pytest.mark.parametrize("number", ["1e-6", "2E6", "1.5e6", "-1.e2", "0.1", "3"])
def test_text_in_place_of_a_number_of_the_schedule(tmp_path, number):
    """As YAML 1.1 reads it without a dot, or without the exponent's sign. What the message says to write is the number."""
    with pytest.raises(ConsistencyError, match="`lr_scheduler_kwargs` sets `min_lr` to the text") as error:
        make_config(tmp_path, lr_scheduler_type="cosine_with_min_lr", lr_scheduler_kwargs={"min_lr": number})
    said = re.search(r"write (\S+) without quotes", str(error.value))[1]
    written = yaml.safe_load(said)
    assert written == float(number)
    assert not isinstance(written, str)


def test_schedule_in_json_as_on_the_command_line(tmp_path):
    """It ended with a traceback."""
    kwargs = {"lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": '{"min_lr": 1e-6}'}
    assert make_config(tmp_path, **kwargs).lr_scheduler_kwargs == {"min_lr": 1e-6}


OF_A_METRIC = {"eval_strategy": "steps", "eval_steps": 1}


@pytest.mark.parametrize("schedule", ["reduce_lr_on_plateau", "greedy"])
@pytest.mark.parametrize(
    ("metric", "kwargs", "way_out"),
    [
        ("consistency/score", None, "max"),
        ("mean_token_accuracy", {"patience": 1}, "max"),
        ("consistency/score", '{"mode": "max"}', None),
        ("loss", {"mode": "max"}, "min"),
        ("consistency/sycophancy", {"mode": "max"}, "min"),
        (None, None, None),
    ],
)
def test_schedule_that_takes_better_for_worse(tmp_path, schedule, metric, kwargs, way_out):
    """The learning rate fell where the metric rose, of which more is better."""
    options = {"lr_scheduler_type": schedule, "metric_for_best_model": metric, "lr_scheduler_kwargs": kwargs}
    said = f"would fall where the model improves. Set `lr_scheduler_kwargs: {{mode: {way_out}}}`"
    with pytest.raises(ConsistencyError, match=re.escape(said)) if way_out else nullcontext():
        make_config(tmp_path, **options, **OF_A_METRIC)


def test_words_of_the_schedule(tmp_path):
    kwargs = {"num_decay_steps": 2, "decay_type": "linear", "warmup_type": "cosine"}
    make_config(tmp_path, lr_scheduler_type="warmup_stable_decay", lr_scheduler_kwargs=kwargs)


@pytest.mark.parametrize("optimizer", [name.value for name in OptimizerNames if "rmsprop_bnb" not in name.value])
def test_the_tables_are_those_of_transformers(optimizer):
    """If this fails, transformers reads other keys of `optim_args`, or other options of Adam, than the tables say."""
    handler = trainer_optimizer._OPTIMIZER_HANDLERS[optimizer]
    source = inspect.getsource(handler)
    found = set(re.findall(r"optim_args(?:\.get|\.pop)\(\s*\"(\w+)\"", source)) | set(
        re.findall(r'"(\w+)" in ctx\.optim_args', source)
    )
    for keys in re.findall(r"for key in \(([^)]*)\)", source):
        found |= set(re.findall(r'"(\w+)"', keys))
    known = set(_of(optimizer, OPTIM_ARGS, ()))
    if "bitsandbytes" in handler.__name__ and not known:
        assert optimizer.removeprefix("paged_").startswith(("adamw", "lion"))
    else:
        assert known == found - {"weight_decay"}  # read, and then overridden by each group of weights
    reads_adam = "adam_kwargs" in source or "adam_beta1" in source
    assert bool(_of(optimizer, READ_OF_ADAM, ADAM)) == reads_adam or optimizer == "schedule_free_sgd"
