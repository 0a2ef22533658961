import json
import re
import warnings
from contextlib import nullcontext
from dataclasses import MISSING, replace

import pytest
from trl import DistillationConfig, SFTConfig

from tests.helpers.models import make_config, make_model, make_pairs, make_tokenizer
from tests.helpers.on_policy import make_on_policy_config
from trl_consistency import (
    ConsistencyConfig,
    ConsistencyError,
    ConsistencyTrainer,
    OnPolicyConsistencyConfig,
    OnPolicyConsistencyTrainer,
)
from trl_consistency.config.options import described_options
from trl_consistency.evaluation.held_out import CONTROL_ACCURACY, MEASURED
from trl_consistency.evaluation.rates.measures import METRICS


def test_one_method_may_be_a_string(tmp_path):
    assert make_config(tmp_path, method="bct").method == ["bct"]
    assert make_config(tmp_path).weights == {"bct": 1.0}
    assert make_config(tmp_path, method_weights=[0.5]).weights == {"bct": 0.5}


@pytest.mark.parametrize("kind", [ConsistencyConfig, OnPolicyConsistencyConfig])
def test_texts_in_json_stay_texts(tmp_path, kind):
    """transformers made the numbers 1.1 and 7 of them, and templates wrote these."""
    variables = {"version": "1.10", "agent": "007", "nested": {"on": "true"}}
    config = kind(output_dir=tmp_path, use_cpu=True, bf16=False, chat_template_kwargs=json.dumps(variables))
    assert config.chat_template_kwargs == variables


@pytest.mark.parametrize("kind", [ConsistencyConfig, OnPolicyConsistencyConfig])
@pytest.mark.parametrize(
    ("options", "is_on"),
    [
        ({}, True),
        ({"gradient_checkpointing": False}, False),
        ({"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": True}}, True),
        ({"activation_checkpointing": False}, False),
    ],
)
def test_options_of_checkpointing_have_their_new_names_without_a_warning(tmp_path, kind, options, is_on):
    """transformers warned of every config, since TRL's default has the old name."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", FutureWarning)
        args = kind(str(tmp_path), use_cpu=True, bf16=False, report_to="none", **options)
    assert args.gradient_checkpointing == args.activation_checkpointing == is_on
    given = options.get("gradient_checkpointing_kwargs")
    assert args.gradient_checkpointing_kwargs == args.activation_checkpointing_kwargs == given


@pytest.mark.parametrize(
    "options",
    [
        {"method": ["bct", "act"], "method_weights": [1.0, 1e-4], "loss_type": "dft"},
        {"method": "act", "layers": [0, -1], "act_tokens": "all", "no_shared_span": "drop"},
        {"method": ["attct", "mlpct"], "mlp_distance": "smooth_l1", "layers": [1]},
        {"method": "bct", "layers": [0], "log_consistency_metrics": True, "log_layer_distances": True},
    ],
)
def test_options_of_several_objectives(tmp_path, options):
    args = make_config(tmp_path, **options)
    assert list(args.weights) == args.method


@pytest.mark.parametrize(
    ("options", "needs"),
    [
        ({"method": "bct"}, {"completions"}),
        ({"method": "kl"}, {"completions", "reference"}),
        ({"method": "act"}, {"span", "reference", "states"}),
        ({"method": "act", "act_tokens": "completion"}, {"completions", "reference", "states"}),
        ({"method": "act", "act_tokens": "all"}, {"completions", "span", "reference", "states"}),
        ({"method": "attct"}, {"span", "reference", "states", "content"}),
        ({"method": ["bct", "mlpct"]}, {"completions", "span", "reference", "states", "content"}),
        ({"method": "bct", "log_consistency_metrics": True}, {"completions", "reference", "states"}),
    ],
)
def test_what_a_method_needs(tmp_path, options, needs):
    args = make_config(tmp_path, **options)
    assert needs == {
        name
        for name, needed in {
            "completions": args.needs_completions,
            "span": args.needs_shared_span,
            "reference": args.compares_with_reference,
            "states": args.compares_states,
            "content": args.compares_content,
        }.items()
        if needed
    }


FAULTY = {
    "anchor_ratio": ({"anchor_ratio": 1.0}, "`anchor_ratio` must be at least 0 and below 1"),
    "negative anchor_ratio": ({"anchor_ratio": -0.1}, "`anchor_ratio`"),
    "method with a trainer of its own": ({"method": "opct"}, r"OPCT is `OnPolicyConsistencyTrainer`"),
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
    "one thinking marker": ({"thinking_markers": ["<think>"]}, "`thinking_markers` must be two different texts"),
    "regeneration": ({"regenerate_targets_every": 0}, "`regenerate_targets_every` must be at least 1"),
    "persistent workers": (
        {"regenerate_targets_every": 1, "dataloader_persistent_workers": True, "dataloader_num_workers": 1},
        "`dataloader_persistent_workers` is not available",
    ),
    "method is no list": ({"method": 3}, r"`method` must be a list \(each text\), got 3"),
    "method is a list of numbers": ({"method": [1]}, r"`method` must be a list \(each text\)"),
    "unknown method in a list": ({"method": ["bct", "mlp"]}, r"Unknown `method` `mlp`.*Did you mean `mlpct`"),
    "too few weights": (
        {"method": ["bct", "act"], "method_weights": [1.0]},
        r"has 1 value\(s\) for 2 method\(s\) \(bct, act\)",
    ),
    "act_tokens": ({"method": "act", "act_tokens": "answer"}, "`act_tokens` must be 'prompt', 'completion' or 'all'"),
    "act_tokens without act": (
        {"method": "mlpct", "act_tokens": "all"},
        r"`act_tokens` is set, but `method` is \['mlpct'\]: it is for act",
    ),
    "keep_thinking without answers": (
        {"method": "act", "keep_thinking": False},
        "`keep_thinking` is set, but .* it is for methods that need answers",
    ),
    "generation_kwargs without answers": (
        {"method": "act", "generation_kwargs": {"num_beams": 2}},
        "`generation_kwargs` is set, but .* it is for methods that need answers",
    ),
    "layers without act": ({"layers": [0]}, "`layers` is set, but .* it is for act, attct or mlpct"),
    "layers as text": ({"method": "act", "layers": "0"}, "`layers` must be a list"),
    "mlp_distance": (
        {"method": "mlpct", "mlp_distance": "l1"},
        "`mlp_distance` must be 'cosine', 'mse' or 'smooth_l1'",
    ),
    "mlp_distance without mlpct": (
        {"method": ["act", "attct"], "mlp_distance": "mse"},
        "`mlp_distance` is set, but .* it is for mlpct",
    ),
    "no_shared_span": ({"method": "act", "no_shared_span": "keep"}, "`no_shared_span` must be 'error' or 'drop'"),
    "no_shared_span without a span": (
        {"method": ["bct", "kl"], "no_shared_span": "drop"},
        "`no_shared_span` is set, but",
    ),
    "no_shared_span on answers alone": (
        {"method": "act", "act_tokens": "completion", "no_shared_span": "drop"},
        "`no_shared_span` is set, but",
    ),
    "layer distances without metrics": (
        {"method": "act", "log_layer_distances": True},
        "`log_layer_distances` needs `log_consistency_metrics`",
    ),
    "unknown loss": ({"loss_type": "dtf"}, "`loss_type` must be 'nll', 'dft' or 'chunked_nll', got 'dtf'"),
    "dft without bct": ({"method": "kl", "loss_type": "dft"}, "`loss_type` is set, but .* it is for bct"),
    "label smoothing": (
        {"method": "act", "label_smoothing_factor": 0.1},
        r"`label_smoothing_factor` is not available in consistency training: only `method: \[bct\]`",
    ),
    "top_p at temperature 0": ({"temperature": 0, "top_p": 0.9}, "`top_p` is given, but at `temperature` 0 nothing"),
    "top_k at temperature 0": ({"temperature": 0, "top_k": 5}, "`top_k` is given, but at `temperature` 0 nothing"),
    "min_p at temperature 0": ({"temperature": 0, "min_p": 0.1}, "`min_p` is given, but at `temperature` 0 nothing"),
    "another top_k": ({"generation_kwargs": {"top_k": 5}}, "sets `top_k`. Set the option `top_k`"),
    "no sampling": ({"generation_kwargs": {"do_sample": False}}, "sets `do_sample`. Set the option `temperature`"),
    "another length": ({"generation_kwargs": {"max_new_tokens": 9}}, "Set the option `max_completion_length`"),
    "another temperature": ({"generation_kwargs": {"temperature": 0}}, "sets `temperature`. Set the option"),
    "almost no temperature": ({"temperature": 1e-5}, "`temperature` must be at least 0.0001, or 0"),
    "one marker": ({"thinking_markers": ["<t>", "<t>"]}, "`thinking_markers` must be two different texts"),
    "misspelt checkpointing": (
        {"gradient_checkpointing_kwargs": {"use_reentrants": False}},
        "unknown key `use_reentrants`. Did you mean `use_reentrant`",
    ),
    "some blocks checkpointed": (
        {"gradient_checkpointing_kwargs": {"every_n_layers": 2}},
        "`every_n_layers` is not available in `gradient_checkpointing_kwargs`: all blocks are checkpointed",
    ),
    "offloaded checkpoints": (
        {"gradient_checkpointing_kwargs": {"offload": True}},
        "`offload` is not available in `gradient_checkpointing_kwargs`: .* Set `activation_offloading`",
    ),
    "text for a number": ({"temperature": "hot"}, "`temperature` must be a number, got 'hot'"),
    "text for an inherited number": ({"learning_rate": "1e-3"}, "`learning_rate` must be a number, got '1e-3'"),
    "number for a list": ({"method_weights": 0.5}, "`method_weights` must be a list"),
    "text for a mapping": (
        {"chat_template_kwargs": "x"},
        "`chat_template_kwargs` must be a mapping, as JSON, got 'x'",
    ),
    "reserved template variable": (
        {"chat_template_kwargs": {"tokenize": False}},
        "`chat_template_kwargs` sets `tokenize`",
    ),
    "misspelt generation option": (
        {"generation_kwargs": {"repetition_penalti": 5}},
        "unknown key `repetition_penalti`. Did you mean `repetition_penalty`",
    ),
    "stop strings": ({"generation_kwargs": {"stop_strings": ["x"]}}, "`stop_strings`, for which generation has no"),
    "several answers": ({"generation_kwargs": {"num_return_sequences": 3}}, "The trainer sets it itself"),
    "learning_rate": ({"learning_rate": -1e-5}, "`learning_rate`"),
    "epochs": ({"num_train_epochs": 0}, "`num_train_epochs`"),
    "batch size": ({"per_device_train_batch_size": 0}, "`per_device_train_batch_size`"),
    "eval batch size": ({"per_device_eval_batch_size": 0}, "`per_device_eval_batch_size`"),
    "accumulation": ({"gradient_accumulation_steps": 0}, "`gradient_accumulation_steps`"),
    "jit checkpoint": ({"enable_jit_checkpoint": True}, "SIGTERM saves a checkpoint without it"),
    "packing": ({"packing": True}, "`packing` needs `max_length`"),
    "packing that cuts": (
        {"packing": True, "max_length": 64, "packing_strategy": "wrapped"},
        "`packing_strategy='wrapped'` is not available in consistency training: pairs are never cut",
    ),
    "packing that splits": ({"packing_strategy": "bfd_split"}, "`packing_strategy='bfd_split'` is not available"),
    "packing by length": (
        {"packing": True, "max_length": 64, "train_sampling_strategy": "group_by_length"},
        "`packing` cannot be used with `train_sampling_strategy: group_by_length`",
    ),
    "packing and noise": (
        {"packing": True, "max_length": 64, "neftune_noise_alpha": 5.0},
        "`packing` cannot be used with `neftune_noise_alpha`",
    ),
    "packed attention maps": (
        {"packing": True, "max_length": 64, "method": ["kl", "attct"]},
        "`packing` cannot be used with `attct`",
    ),
    "eval packing": ({"eval_packing": True}, "`eval_packing` is not available"),
    "noise without padding": (
        {"padding_free": True, "neftune_noise_alpha": 5.0},
        "`padding_free` cannot be used with `neft",
    ),
    "padding free": ({"padding_free": True, "method": ["attct"]}, "`padding_free` cannot be used with `attct`"),
    "assistant only": ({"assistant_only_loss": True}, "`assistant_only_loss` is not available"),
    "loss on the prompt": ({"completion_only_loss": False}, "the cue, which must not be learned"),
    "dataset_kwargs": ({"dataset_kwargs": {"skip_prepare_dataset": True}}, "`dataset_kwargs` is not available"),
    "text field": ({"dataset_text_field": "prompt"}, "`dataset_text_field` is not available"),
    "truncation": ({"truncation_mode": "keep_end"}, "rows are never cut"),
    "local token counts": ({"average_tokens_across_devices": False}, "mean over the tokens of the global batch"),
    "weights cast by an evaluation": (
        {"bf16_full_eval": True},
        "casts the weights, and training and saving would continue",
    ),
    "weights cast to half": ({"fp16_full_eval": True}, "`fp16_full_eval` is not available"),
    "batches out of order": ({"dataloader_in_order": False}, "trained on twice or never"),
    "batch search": ({"auto_find_batch_size": True}, "start again with weights that are already trained"),
    "one process with a backend": ({"ddp_backend": "gloo"}, "this is a single process"),
}


@pytest.mark.parametrize(("options", "reason"), FAULTY.values(), ids=FAULTY)
def test_faulty_options(tmp_path, options, reason):
    with pytest.raises(ConsistencyError, match=reason):
        make_config(tmp_path, **options)


def test_every_option_is_documented():
    """A field that the docstring leaves out, or a default that differs from it, is a lie to the user."""
    for config, upstream in ((ConsistencyConfig, SFTConfig), (OnPolicyConsistencyConfig, DistillationConfig)):
        texts = described_options(config.__doc__)
        for name in set(config.__dataclass_fields__) - set(upstream.__dataclass_fields__):
            field = config.__dataclass_fields__[name]
            assert field.metadata["help"] == texts[name]
            default = field.default if field.default is not MISSING else field.default_factory()
            if default is not None:
                stated = re.search(rf"        {name} \(.*defaults to `(.*)`\):", config.__doc__)[1]
                assert json.loads(stated.replace("True", "true").replace("False", "false")) == default, name


def test_label_smoothing_is_refused_wherever_the_reference_runs(tmp_path):
    for others in ({"method": "act"}, {"method": ["bct", "kl"]}, {"log_consistency_metrics": True}):
        with pytest.raises(ConsistencyError, match="`label_smoothing_factor`"):
            ConsistencyConfig(output_dir=str(tmp_path), use_cpu=True, bf16=False, label_smoothing_factor=0.1, **others)


def test_sampling_options_that_say_nothing_are_fine_where_they_leave_nothing_out(tmp_path):
    for options in (
        {"temperature": 0, "top_p": 1.0, "top_k": 0, "min_p": 0.0},
        {"temperature": 0.5, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "generation_kwargs": {"num_beams": 2}},
        {"gradient_checkpointing_kwargs": {"use_reentrant": False, "preserve_rng_state": False}},
    ):
        ConsistencyConfig(output_dir=str(tmp_path), use_cpu=True, **options)
    assert ConsistencyConfig(output_dir=str(tmp_path), use_cpu=True).temperature == 1.0


def test_label_smoothing_is_refused_beside_dft(tmp_path):
    with pytest.raises(ConsistencyError, match=r"`label_smoothing_factor` .*`loss_type: dft` has none"):
        ConsistencyConfig(
            output_dir=str(tmp_path), use_cpu=True, bf16=False, label_smoothing_factor=0.1, loss_type="dft"
        )


def test_targets_of_an_optimizer_that_has_none_are_refused(tmp_path):
    options = {"use_cpu": True, "bf16": False, "optim_target_modules": ["q_proj"]}
    with pytest.raises(ConsistencyError, match="`optim_target_modules` is set, but `optim` is sgd"):
        ConsistencyConfig(output_dir=str(tmp_path), optim="sgd", **options)
    ConsistencyConfig(output_dir=str(tmp_path), optim="galore_adamw", **options)


def test_layers_must_be_a_list(tmp_path):
    with pytest.raises(ConsistencyError, match="`layers` must be a list"):
        ConsistencyConfig(output_dir=str(tmp_path), use_cpu=True, bf16=False, method="act", layers=1)


@pytest.mark.parametrize(
    ("metric", "given", "is_better"),
    [
        ("reference_kl", None, False),
        ("eval_hard_activation_distance", None, False),
        ("consistency/sycophancy", None, False),
        ("consistency/sycophancy_score", None, True),
        ("kl_loss", None, False),
        ("eval_activation_distance/layer_1", None, False),
        ("eval_hard_attct_skipped_rows", None, False),
        ("eval_completions/clipped_ratio", None, False),
        ("reference_kl", True, True),
        ("eval_mean_token_accuracy", False, False),
    ],
)
def test_best_model_by_a_metric_of_which_less_is_better(tmp_path, metric, given, is_better):
    options = {"metric_for_best_model": metric, "load_best_model_at_end": True, "greater_is_better": given}
    strategies = {"eval_strategy": "epoch", "save_strategy": "epoch"}
    with nullcontext() if given is None else pytest.warns(match="worst step"):
        config = ConsistencyConfig(output_dir=str(tmp_path), use_cpu=True, bf16=False, **options, **strategies)
    assert config.greater_is_better is is_better


@pytest.mark.parametrize("name", [*MEASURED, CONTROL_ACCURACY, "score"])
def test_the_worst_step_by_any_metric_of_the_guard_is_warned_about(tmp_path, name):
    """Four of its scores and shares, and the control questions, got no warning."""
    options = {"metric_for_best_model": f"eval_consistency/{name}", "load_best_model_at_end": True}
    options |= {"eval_strategy": "epoch", "save_strategy": "epoch", "use_cpu": True, "bf16": False}
    is_better = name == "score" or not METRICS[name.partition("/")[0]].is_failure
    assert ConsistencyConfig(output_dir=str(tmp_path), **options).greater_is_better is is_better
    with pytest.warns(match="worst step would be kept"):
        ConsistencyConfig(output_dir=str(tmp_path), greater_is_better=not is_better, **options)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"train_sampling_strategy": "sequential"}, "`train_sampling_strategy: sequential` draws no order"),
        ({"accelerator_config": {"use_seedable_sampler": False}}, "the order is drawn with no seed of its own"),
        ({"train_sampling_strategy": "group_by_length"}, None),
        ({}, None),
    ],
)
def test_seed_of_an_order_that_it_does_not_draw(tmp_path, options, reason):
    """It was ignored, and stood on the card."""
    with pytest.raises(ConsistencyError, match=f"`data_seed` is set, but .*{reason}") if reason else nullcontext():
        make_config(tmp_path, data_seed=3, **options)


@pytest.mark.parametrize("options", [{"padding_free": True}, {"packing": True, "max_length": 100}])
def test_multiple_of_no_padding(tmp_path, options):
    """It was ignored."""
    said = f"`pad_to_multiple_of` is set, but with `{next(iter(options))}` batches have no padding"
    with pytest.raises(ConsistencyError, match=said):
        make_config(tmp_path, pad_to_multiple_of=8, **options)


class TestAssigned:
    """Options that were assigned to a config before its trainer was made: they went unchecked, and some were ignored."""

    @staticmethod
    def assign(config, **options):
        for name, value in options.items():
            setattr(config, name, value)
        return config

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"assistant_only_loss": True}, "`assistant_only_loss` is not available"),
            ({"completion_only_loss": False}, "`completion_only_loss=False` is not available"),
            ({"method": ["kl"], "label_smoothing_factor": 0.1}, "`label_smoothing_factor` is not available"),
            ({"method": ["kl"], "loss_type": "dft"}, "`loss_type` is set, but `method` is"),
            ({"method_weights": [1.0, 2.0]}, "2 value(s) for 1 method(s)"),
            ({"packing": True}, "`packing` needs `max_length`"),
            ({"temperature": -1.0}, "`temperature` must be at least"),
            (
                {"load_best_model_at_end": True, "save_strategy": "epoch"},
                "requires the save and eval strategy to match",
            ),
        ],
    )
    def test_faulty(self, tmp_path, options, message):
        config = self.assign(make_config(tmp_path), **options)
        with pytest.raises(ConsistencyError, match=re.escape(message)):
            ConsistencyTrainer(make_model(), config, train_dataset=make_pairs(4), processing_class=make_tokenizer())

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"num_generations": 3}, "do not divide into groups of `num_generations` (3)"),
            ({"clip_range": 0.2}, "`clip_range` is set, but `loss_type` is 'divergence'"),
            ({"loss_type": "policy_gradient", "top_p": 0.5}, "`top_p=0.5` is not available"),
        ],
    )
    def test_faulty_on_policy(self, tmp_path, options, message):
        config, data = self.assign(make_on_policy_config(tmp_path), **options), {"train_dataset": make_pairs(8)}
        with pytest.raises(ConsistencyError, match=re.escape(message)):
            OnPolicyConsistencyTrainer(make_model(), args=config, processing_class=make_tokenizer(), **data)

    def test_what_depends_on_them(self, tmp_path):
        config = self.assign(make_config(tmp_path, hub_token="hf_x"), method="kl", packing=True, max_length=200)
        config._take_assigned()
        assert (config.method, config.weights, config.padding_free) == (["kl"], {"kl": 1.0}, True)
        assert config.hub_token == "hf_x"
        config.method.append("bct")
        config._take_assigned()
        assert config.weights == {"kl": 1.0, "bct": 1.0}

    def test_the_best_step_is_the_highest_or_the_lowest(self, tmp_path):
        """The worst step was kept: the first metric was one of which less is better."""
        strategies = {"eval_strategy": "epoch", "save_strategy": "epoch"}
        config = make_config(tmp_path, load_best_model_at_end=True, **strategies)
        assert config.greater_is_better is False
        self.assign(config, metric_for_best_model="eval_mean_token_accuracy")._take_assigned()
        assert config.greater_is_better is True

    def test_a_copy_keeps_the_direction_of_the_first_metric(self, tmp_path):
        """`dataclasses.replace` gives all settled options to the new config, which cannot tell them from given ones."""
        strategies = {"eval_strategy": "epoch", "save_strategy": "epoch"}
        config = make_config(tmp_path, load_best_model_at_end=True, **strategies)
        with pytest.warns(
            match="of `metric_for_best_model` \\(consistency/score\\) a higher value is better: the worst step"
        ):
            replace(config, metric_for_best_model="consistency/score")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            replace(config, output_dir=str(tmp_path / "other"))

    @pytest.mark.parametrize("name", ["gradient_checkpointing", "activation_checkpointing"])
    def test_checkpointing_by_either_name(self, tmp_path, name):
        config = self.assign(make_config(tmp_path, gradient_checkpointing=True), **{name: False})
        config._take_assigned()
        assert (config.gradient_checkpointing, config.activation_checkpointing) == (False, False)

    @pytest.mark.parametrize(("name", "is_refused"), [("anchor_ration", True), ("my_own_note", False)])
    def test_names_that_are_no_options(self, tmp_path, name, is_refused):
        config = self.assign(make_config(tmp_path), **{name: 0.5})
        said = f"`{name}` was assigned to the config, and is no option. Did you mean `anchor_ratio`"
        with pytest.raises(ConsistencyError, match=said) if is_refused else nullcontext():
            config._take_assigned()

    def test_batches_of_rollouts(self, tmp_path):
        config = self.assign(make_on_policy_config(tmp_path), gradient_accumulation_steps=2)
        config._take_assigned()
        assert config.steps_per_generation == 2

    @pytest.mark.parametrize("make", [make_config, make_on_policy_config])
    def test_none(self, tmp_path, make):
        config = make(tmp_path)
        before = dict(vars(config))
        config._take_assigned()
        assert vars(config) == before
