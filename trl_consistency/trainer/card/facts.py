"""The model card: base model, data, training and usage. It must not contain local paths or tokens."""

import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from importlib import resources
from importlib.metadata import version
from pathlib import Path
from typing import Any

from accelerate.utils import is_peft_model
from datasets import Dataset
from huggingface_hub import ModelCard, ModelCardData, try_to_load_from_cache
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

from ...data.alignment import AlignmentReport
from ...data.class_names import named_rows
from ...data.pairs import PROMPT_COLUMNS
from ...data.prepare import needs_targets
from ...data.rendering import get_tokenizer, has_equal_prompts
from ...data.repeats import first_rows
from ...errors import ConsistencyError
from ...generation.model_identity import BASE_CHANGES, BASE_WEIGHTS
from ...history import own_entries
from ...models.quantization import OF_4_BITS, quantization_of
from ...passes.blocks import base_model, find_blocks
from ...rollouts.adapter_sync import check_adapter, engine_rank
from ...smollm2.checkpoint import HUB_NAME, origin_of
from ...upstream import get_config_model_id
from ..run.best_checkpoint import best_step, missed_best, why_stopped
from ..run.interruption import rows_per_step
from ..run.overrides import overridden
from ..run.own_optimizer import has_own_schedule
from ..run.resumption import describe_earlier, describe_history, past_methods
from .other_options import describe_other_options, describe_precision
from .papers import cite, name_methods
from .weights import has_other_sizes, trained_weights
from .words import in_words, safe


LIBRARIES = ("trl-consistency", "trl", "transformers", "peft", "torch", "datasets")
MAX_PERTURBATIONS, MAX_WORDINGS = 10, 40
# Methods by which a script decides what is trained, beside those that make the optimizer and the schedule
DECIDING_METHODS = (
    *("compute_loss", "training_step", "get_train_dataloader", "get_batch_samples", "_get_train_sampler"),
    *("_get_dataloader", "_inner_training_loop", "_prepare_inputs"),
    *("get_decay_parameter_names", "get_optimizer_cls_and_kwargs"),
)
# Suffixes of the evaluation metrics on the card
EVALUATED = ("_loss", "_divergence", "_response_cross_entropy", "_activation_distance", "_reference_kl")


def describe_data(dataset: Any) -> dict[str, str]:
    """Returns the card's facts about pairs: rows, distinct clean prompts and perturbations."""
    if not isinstance(dataset, Dataset):
        return {"Pairs": "streamed"}
    facts = {"Pairs": f"{len(dataset):,} ({len(first_rows(dataset['clean_prompt'])):,} distinct clean prompts)"}
    if "perturbed_prompt" in dataset.column_names:
        anchors = sum(map(has_equal_prompts, dataset.select_columns(list(PROMPT_COLUMNS))))
        facts["Pairs"] += f", of which {anchors:,} are anchors (two equal prompts)" if anchors else ""
    if "perturbation" in dataset.column_names:
        perturbations = [row["perturbation"] for row in named_rows(dataset.select_columns("perturbation"))]
        # "suggested_answer/train-03" is wording 3 of a perturbation, "authority/train-03+typos/train-00" is a chain
        kinds = Counter(
            "+".join(step.split("/")[0] for step in str(perturbation or "without a name").split("+"))
            for perturbation in perturbations
        )
        steps = {step for named in set(perturbations) for step in str(named).split("+") if "/" in step}
        shown = ", ".join(f"{safe(kind)} {count:,}" for kind, count in kinds.most_common(MAX_PERTURBATIONS))
        more = f", {len(kinds) - MAX_PERTURBATIONS} more kinds" if len(kinds) > MAX_PERTURBATIONS else ""
        # Names of a user's own tell no wordings.
        facts["Perturbations"] = f"{shown}{more}{f' ({len(steps)} wordings)' if steps else ''}"
        if named := _name_wordings(perturbations):
            facts["Wordings"] = named
    return facts


def describe_left_out(dataset: Any, prepared: Any) -> dict[str, str]:
    """Returns the card's fact about pairs that preparation left out, such as overlong ones."""
    if not isinstance(dataset, Dataset) or not isinstance(prepared, Dataset) or len(prepared) == len(dataset):
        return {}
    return {"Left out": f"{len(dataset) - len(prepared):,} of these pairs (too long, or with nothing to compare)"}


def _name_wordings(perturbations: Iterable[Any]) -> str:
    """Lists the wordings of each perturbation by their numbers on the data card."""
    numbers: dict[str, set[str]] = {}
    for step in {step for perturbation in perturbations for step in str(perturbation).split("+")}:
        kind, _, number = step.partition("/")
        if number:
            numbers.setdefault(safe(kind), set()).add(safe(number))
    named = [
        f"{kind} {', '.join(sorted(found)[:MAX_WORDINGS])}{' and more' if len(found) > MAX_WORDINGS else ''}"
        for kind, found in sorted(numbers.items())
    ]
    more = f"; {len(named) - MAX_PERTURBATIONS} more kinds" if len(named) > MAX_PERTURBATIONS else ""
    return "; ".join(named[:MAX_PERTURBATIONS]) + more


def build_card(
    trainer: Any, facts: dict[str, str], model_name: str | None, dataset_name: str | None, tags: Any
) -> ModelCard:
    """
    Builds the card of a trainer's model, with `facts` from [`paired_facts`] or [`rollout_facts`]. Without a
    `model_name`, the title is the hub id or the last part of the output folder. A `dataset_name` that is not a Hub
    name is left out.
    """
    methods = ["opct"] if trainer.args.rolls_out else trainer.args.method
    args, model = trainer.args, trainer.model
    methods = list(dict.fromkeys([*past_methods(trainer), *methods]))
    is_adapter = is_peft_model(model)
    base_path = _base_path(trainer)
    origin = origin_of(base_path)
    base_model = HUB_NAME if origin else _hub_name(base_path)
    model_name = model_name or (args.hub_model_id or os.path.abspath(args.output_dir)).rstrip("/").split("/")[-1]
    tags = [tags] if isinstance(tags, str) else list(tags or [])
    revision = base_revision(trainer)
    card_data = ModelCardData(
        base_model=base_model,
        base_model_revision=revision,
        chat_template_kwargs=trainer.shared_variables or None,  # `evaluate` reads them, and the next
        **quantization_data(model),
        **({BASE_WEIGHTS: trainer.base_digest, BASE_CHANGES: _base_changes(trainer)} if is_adapter else {}),
        datasets=_hub_name(dataset_name),
        library_name="peft" if is_adapter else "transformers",
        model_name=model_name,
        pipeline_tag="text-generation",
        tags=sorted({"generated_from_trainer", *trainer._tag_names, *methods, *tags}),
    )
    return ModelCard.from_template(
        card_data,
        template_path=str(resources.files("trl_consistency") / "templates" / "model_card.md"),
        model_name=model_name,
        base_model_link=f"[{origin or base_model}](https://huggingface.co/{base_model})"
        if base_model
        else "a local model",
        revision=revision,
        method=name_methods(methods),
        is_adapter=is_adapter,
        own_class=_own_class(model.get_base_model() if is_adapter else model),
        quantization=_quantization(model),
        bits=8 if getattr(model, "is_loaded_in_8bit", False) else 4,
        base_model=base_model,
        serving_rank=_serving_rank(model),
        served_name=re.sub(r"[^\w.-]+", "-", model_name),  # in a shell command
        is_chat=trainer.is_chat,
        variables=_as_arguments(trainer.shared_variables),
        chat_template_kwargs=trainer.shared_variables,
        own_end=_own_end(trainer) if is_adapter else None,
        has_own_template=getattr(trainer.args, "chat_template_path", None) is not None,
        repo=trainer.hub_model_id or "path/to/this/folder",
        example="I think the answer is Lyon. What is the capital of France?",
        results=_eval_results(trainer),
        facts=facts,
        citation=cite(methods),
        versions=", ".join(f"{library} {version(library)}" for library in LIBRARIES),
    )


def _own_end(trainer: Any) -> int | None:
    """Returns the token that ends an answer, if the options named it: the base model may not stop there."""
    token = getattr(trainer.args, "eos_token", None)
    return None if token is None else get_tokenizer(trainer.processing_class).convert_tokens_to_ids(token)


def _base_changes(trainer: Any) -> list[str] | None:
    """Returns what was changed of an adapter's base model after it was loaded: `weights`, or keys of its config."""
    return ["weights"] * trainer.base_is_another + trainer.changed_config or None


def _as_arguments(variables: Mapping[str, Any]) -> str:
    """Returns variables of the chat template as further arguments of a call in Python."""
    return "".join(f", {name}={value!r}" for name, value in variables.items() if name.isidentifier())


def base_revision(trainer: Any) -> str | None:
    """Returns the commit, or else the branch or tag, of the Hub at which a trainer's base model was loaded, if it is known."""
    path = _base_path(trainer)
    name = None if origin_of(path) else _hub_name(path)
    return _revision(name, _init_kwargs(trainer)) if name else None


def _base_path(trainer: Any) -> str:
    """Returns the name or path of a trainer's model, without its adapter."""
    return get_config_model_id(base_model(trainer.model).config)


def _init_kwargs(trainer: Any) -> dict[str, Any] | None:
    """Returns the options by which a trainer loaded its model; None for a model that was loaded already, on which they do nothing."""
    return trainer.args.model_init_kwargs if trainer.is_loaded_by_name else None


def _revision(base_model: str, init_kwargs: dict[str, Any] | None) -> str | None:
    """Returns the commit of a Hub model according to the cache, or else the requested branch or tag."""
    options = init_kwargs or {}
    revision = options.get("revision")
    config = try_to_load_from_cache(base_model, "config.json", options.get("cache_dir"), revision)
    if not isinstance(config, str):
        return revision
    snapshot = Path(config).parent
    if init_kwargs is None and len(list(snapshot.parent.iterdir())) > 1:
        return None  # The model was loaded outside the trainer, at an unknown commit.
    return snapshot.name


def _own_class(model: Any) -> str | None:
    """
    Returns the class of transformers that loads a model, if `AutoModelForCausalLM` would load another one, or none: it takes
    the text model alone of some models with a vision tower, whose adapter has other names.
    """
    plain = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(model.config), None)
    if plain is not None and isinstance(model, plain):
        return None
    # FSDP makes a subclass.
    names = [kind.__name__ for kind in type(model).__mro__ if kind.__module__.startswith("transformers.models.")]
    return names[0] if names else None


def quantization_data(model: Any) -> dict[str, Any]:
    """Returns what the metadata of a card say of how a model's weights are quantized, which `evaluate` reads."""
    if getattr(model, "is_loaded_in_8bit", False):
        return {"load_in_8bit": True}
    if not getattr(model, "is_loaded_in_4bit", False):
        method = quantization_of(model).get("quant_method")
        return {} if method is None else {"quant_method": str(getattr(method, "value", method))}
    options = model.config.quantization_config.to_dict()
    return {"load_in_4bit": True, **{name: options[name] for name in OF_4_BITS}}


def _quantization(model: Any) -> str | None:
    """Returns the arguments of `BitsAndBytesConfig` for a model in 4 or 8 bits."""
    if getattr(model, "is_loaded_in_8bit", False):
        return "load_in_8bit=True"
    if not getattr(model, "is_loaded_in_4bit", False):
        return None
    config = model.config.quantization_config
    dtype = str(config.bnb_4bit_compute_dtype).removeprefix("torch.")
    return (
        f'load_in_4bit=True, bnb_4bit_quant_type="{config.bnb_4bit_quant_type}", '
        f'bnb_4bit_use_double_quant={config.bnb_4bit_use_double_quant}, bnb_4bit_compute_dtype="{dtype}"'
    )


def _serving_rank(model: Any) -> int | None:
    """Returns the rank that vLLM is started with for the adapter, or None if it cannot serve it on the base's checkpoint."""
    if not is_peft_model(model) or _quantization(model):
        return None
    try:
        check_adapter(model)
    except ConsistencyError:
        return None
    if has_other_sizes(model, model.peft_config[model.active_adapters[0]]):
        return None  # vLLM reads one rank and one scale from an adapter's folder
    return engine_rank(model)


def paired_facts(trainer: Any) -> dict[str, str]:
    """Returns the card's facts about a [`ConsistencyTrainer`]."""
    args = trainer.args
    weights = ", ".join(f"{method} (weight {weight:g})" for method, weight in args.weights.items())
    facts = {
        "Objective": weights,
        **_comparison_facts(trainer),
        **_reference_facts(trainer),
        **trainer.data_facts,
    }
    if reports := trainer._alignments.get("train_dataset"):
        spans = {"suffix": "end of the two prompts", "content_span": "content"}
        shared = [f"{spans[kind]}: {_describe_alignment(report)}" for kind, report in reports.items()]
        facts["Shared tokens"] = "; and ".join(shared)
    if args.anchor_ratio:
        facts["Anchors"] = _anchor_description(trainer)
    if args.needs_completions:
        facts["Targets"] = _target_description(trainer)
    if not args.packing:
        return facts | _optimisation_facts(trainer, "rows")
    if (packed := trainer.packed) is not None:
        rows = sum(map(len, packed.packs))
        # Targets that are replaced are packed as if they were as long as allowed.
        full = f"{'at most ' if args.regenerate_targets_every else ''}{packed.filled:.0%} full"
        facts["Packing"] = f"{rows:,} rows in {len(packed):,} packed sequences, {full}"
    return facts | _optimisation_facts(trainer, f"packed sequences of at most {args.max_length:,} tokens")


def rollout_facts(trainer: Any) -> dict[str, str]:
    """Returns the card's facts about an [`OnPolicyConsistencyTrainer`]."""
    args = trainer.args
    names = {0.0: "forward KL", 1.0: "reverse KL"}
    if args.loss_type == "divergence":
        name = names.get(args.beta, f"generalized Jensen-Shannon divergence (beta {args.beta:g})")
        objective = f"{name} from the reference, exact over the vocabulary"
        if args.loss_temperature != 1:
            objective += f", at temperature {args.loss_temperature:g}"
    else:
        clip = f", clipped to 1 ± {args.clip_range:g}" if args.clip_range is not None else ""
        objective = f"policy gradient, with the sampled tokens' log-ratio to the reference as the penalty{clip}"
    facts = {
        "Objective": objective,
        **_reference_facts(trainer),
        **trainer.data_facts,
    }
    if args.anchor_ratio:
        facts["Anchors"] = _anchor_description(trainer)
    sampling = {
        name: getattr(args, name)
        for name, off in (("top_p", 1), ("top_k", 0), ("min_p", None))
        if getattr(args, name) != off
    }
    options_named = [f"{name} {value:g}" for name, value in sampling.items()]
    options_named += _named({"repetition_penalty": args.repetition_penalty, **(args.generation_kwargs or {})})
    options = "".join(f", {option}" for option in options_named)
    facts["Rollouts"] = (
        f"{args.num_generations} a prompt (temperature {args.temperature:g}{options}, at most "
        f"{args.max_completion_length} tokens{', by vLLM' if args.use_vllm else ''})"
    )
    if args.completion_length_schedule is not None:
        facts["Growing length of rollouts"] = " ".join(map(str, args.completion_length_schedule))
    masked = {
        "truncated rollouts": args.mask_truncated_completions,
        "thoughts": not args.train_on_thinking,
    }
    if any(masked.values()):
        facts["Not compared"] = in_words([what for what, is_masked in masked.items() if is_masked])
    return facts | _optimisation_facts(trainer, "rollouts")


def _optimisation_facts(trainer: Any, what: str) -> dict[str, str]:
    """Returns the facts about steps, batches (of `what`) and trained weights."""
    args, state, facts = trainer.args, trainer.state, {}
    is_whole = state.global_step == state.max_steps  # both are 0 before training
    steps = f"{state.global_step:,} {'steps' if is_whole else f'of {state.max_steps:,} planned steps'}"
    epochs = f" ({state.epoch:.4g} epochs)" if args.max_steps <= 0 and state.epoch else ""
    optim = getattr(args.optim, "value", args.optim)
    schedule = getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type)
    if maker := overridden(trainer, "create_scheduler"):
        schedule = f"by a schedule that `{safe(maker)}` made in place of the options'"
    elif has_own_schedule(trainer):
        schedule = "by a schedule that was given to the trainer in place of the options'"
    how = f"{optim}, learning rate {args.learning_rate:g} ({schedule})"
    if trainer.rates.are_changed:
        how += ", of which a script or a callback changed the learning rates or other settings"
    if trainer.has_own_optimizer:
        how = "an optimizer that was given to the trainer in place of the options'"
    elif maker := overridden(trainer, "create_optimizer"):
        how = f"an optimizer that `{safe(maker)}` made in place of the options'"
    rows = rows_per_step(trainer)
    if what == "rows" and isinstance(trainer.train_dataset, Dataset):
        rows = min(rows, len(trainer.train_dataset))
    elif (packed := getattr(trainer, "packed", None)) is not None:
        rows = min(rows, len(packed))
    facts["Optimisation"] = f"{steps} of {rows} {what}{epochs}, {how}, seed {args.seed}"
    if earlier := describe_earlier(trainer):
        facts["Trained before"] = earlier
    if history := describe_history(trainer):
        facts["History"] = history
    if stopped := why_stopped(trainer):
        facts["Stopped"] = stopped
    if missed := missed_best(trainer):
        facts["Kept"] = missed
    elif kept := best_step(trainer):
        facts["Kept"] = f"the weights of step {kept:,}, the best by `{args.metric_for_best_model}`"
    if is_peft_model(trainer.model) and trainer.changed_config:
        keys = ", ".join(map(safe, trainer.changed_config))
        facts["Base model's config"] = (
            f"changed in {keys}: on the model as its files are, the adapter does something else"
        )
    if own := [f"`{safe(of)}`" for name in DECIDING_METHODS if (of := overridden(trainer, name))]:
        facts["Own methods"] = (
            f"{in_words(own)}, in place of the trainer's own: it may have trained otherwise than this table says"
        )
    others = describe_other_options(args, _init_kwargs(trainer), trainer.shared_variables)
    return facts | trained_weights(trainer) | describe_precision(trainer) | others


def _comparison_facts(trainer: Any) -> dict[str, str]:
    """Returns the facts about objectives on hidden states: blocks, tokens and distance."""
    args, facts = trainer.args, {}
    if trainer.paired_loss is not None and {"act", "attct", "mlpct"} & set(args.method):
        num_blocks, layers = len(find_blocks(trainer.model)), trainer.paired_loss.layers
        some = f"{in_words(list(map(str, layers)))} (of {num_blocks}, counted from 0)"
        facts["Compared blocks"] = f"all {num_blocks}" if len(layers) == num_blocks else some
    if "act" in args.method:
        facts["ACT compares"] = {
            "prompt": "the tokens that both prompts end with",
            "completion": "the tokens of the clean answer (where the paper has those of the prompt)",
            "all": "the tokens that both prompts end with, and those of the clean answer (which the paper does not)",
        }[args.act_tokens]
    for method, state in (("attct", "attention"), ("mlpct", "mlp")):
        if method in args.method and trainer.paired_loss.layers_of[state] != trainer.paired_loss.layers:
            of_method = list(map(str, trainer.paired_loss.layers_of[state]))
            facts[f"{method.upper()} compares"] = f"blocks {in_words(of_method)}: of the others, none has such a state"
    if "mlpct" in args.method:
        facts["MLPCT distance"] = args.mlp_distance
    return facts


def _describe_alignment(report: AlignmentReport) -> str:
    tokens, fraction = report.shared_tokens, report.shared_fraction
    rows = {
        "at most one token before the generation header": len(report.header_only),
        "nothing (left out)": len(report.no_shared_span),
    }
    weak = "".join(f"; {count:,} of {report.rows:,} share {what}" for what, count in rows.items() if count)
    return (
        f"{tokens.min:g} to {tokens.max:g} (median {tokens.median:g}), {fraction.min:.0%} to {fraction.max:.0%} of the "
        f"clean prompt (median {fraction.median:.0%}){weak}"
    )


def _reference_facts(trainer: Any) -> dict[str, str]:
    facts = {"Reference": _reference_description(trainer)}
    if trainer._reference is not None:  # plain BCT uses the reference only for targets
        facts["Reference checksum"] = f"{trainer._reference.checksum:x}"
    return facts


def _reference_description(trainer: Any) -> str:
    """Describes the reference policy."""
    if getattr(trainer, "ref_model", None) is not None:
        name = _hub_name(get_config_model_id(trainer.ref_model.config))
        return f"another model ({name})" if name else "another model"
    if trainer._adapter_off:
        return "the base model, without the adapter"
    adapter = ""
    if "Adapter" in trainer.trained_weights:
        adapter = ", with its adapter" if trainer._peft_config is None else ", with the adapter as it was initialised"
    copy = " (a frozen copy)" if trainer._reference is not None else ""
    is_earlier = trainer._reference is not None and trainer._reference.is_earlier
    when = "when the trainer was made; its weights were changed before training" if is_earlier else "before training"
    return f"the model as it was {when}{adapter}{copy}"


def _anchor_description(trainer: Any) -> str:
    source = "a data set of their own" if trainer.has_anchor_dataset else "the pairs' own clean prompts"
    return f"{100 * trainer.args.anchor_ratio:.3g}% of an epoch, from {source}"


def _target_description(trainer: Any) -> str:
    """Describes the source of the targets."""
    trained = {"bct", "kl"} & set(trainer.args.method) or trainer.args.act_tokens != "prompt"
    use = "" if trained else "; for the logged metrics alone"
    pairs, anchors = (trainer.recorded_data.get(name) for name in ("train_dataset", "anchor_dataset"))
    generated = needs_targets(pairs), needs_targets(pairs if anchors is None else anchors)
    if generated[0]:
        given = "" if generated[1] else "; given with the anchors (`completion` column)"
        return f"{_generated_targets(trainer, 'the clean prompts')}{_empty_targets(trainer, pairs)}{given}{use}"
    of_anchors = f"; of the anchors, {_generated_targets(trainer, 'their prompts')}" if generated[1] else ""
    return f"given with the pairs (`completion` column){of_anchors}{use}"


def _generated_targets(trainer: Any, prompts: str) -> str:
    """Describes targets that the reference generated for these `prompts`."""
    config = trainer.target_maker.generation_config()
    names = ("temperature", "top_p", "top_k", "min_p") if config.do_sample else ()
    options = [f"{name} {getattr(config, name):g}" for name in names if getattr(config, name) is not None]
    options = options or ["greedy" if config.num_beams in (None, 1) else f"beam search, num_beams {config.num_beams}"]
    others = {"repetition_penalty": trainer.args.repetition_penalty, **(trainer.args.generation_kwargs or {})}
    options += _named({name: value for name, value in others.items() if name != "num_beams"})
    engine = ", by vLLM" if trainer.args.use_vllm or trainer.target_maker.server is not None else ""
    how = f"{', '.join(options)}, at most {config.max_new_tokens} tokens{engine}"
    every = trainer.args.regenerate_targets_every
    renewed = f", replaced every {every} epoch(s) by the trained model's" if every else ""
    return f"the reference's own answers to {prompts} ({how}){renewed}"


def _empty_targets(trainer: Any, pairs: Dataset) -> str:
    """Counts the pairs whose target is empty, since its thought did not end: nothing of them was trained on."""
    if trainer.args.keep_thinking:
        return ""
    table = trainer.targets
    empty = sum(prompt_ids in table and not table[prompt_ids] for prompt_ids in pairs["clean_ids"])
    return f"; empty for {empty:,} of {len(pairs):,} pairs, whose thought did not end" if empty else ""


def _named(options: dict[str, Any]) -> list[str]:
    """Names further options of generation that are not off."""
    named = {name: value for name, value in options.items() if value is not None}
    if named.get("repetition_penalty") == 1.0:
        del named["repetition_penalty"]
    return [f"{safe(name)} {safe(str(value))}" for name, value in named.items()]


def _eval_results(trainer: Any) -> str:
    last_step = best_step(trainer) or trainer.state.global_step
    last = {
        key: (value, entry["step"])
        for entry in own_entries(trainer.state.log_history)
        if entry["step"] <= last_step
        for key, value in entry.items()
        if key.startswith("eval_") and key.endswith(EVALUATED)
    }
    return "\n".join(f"- `{key}` {value:.4g} at step {step}" for key, (value, step) in last.items())


def _hub_name(name: str | None) -> str | None:
    """Returns a name that is valid on the Hub, or None for a local path."""
    if not name or os.path.exists(name) or not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name):
        return None
    return name
