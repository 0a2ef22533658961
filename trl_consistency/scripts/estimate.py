"""
Computes what a training step costs, from a model's config alone: its memory, the largest batch, and seconds.

```bash
trl-consistency estimate Qwen/Qwen3-4B-Instruct-2507 --method bct --max_length 1024 --use_peft --memory 80
trl-consistency estimate --recipe recipes/qwen3-4b-instruct/opct/sycophancy_lora.yaml --memory 80
```
"""

import os
import sys
import warnings
from argparse import ArgumentParser
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from typing import Any, Literal

from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id
from transformers import PreTrainedConfig
from trl import ModelConfig

from ..config.consistency_config import METHODS, check_methods
from ..config.options import SHARE, CommandArguments, above, at_least, check_ranges, option, refuse_unused, with_help
from ..costs.memory import LARGEST_BATCH, OPTIMIZERS, largest_batch, measure_memory
from ..costs.operations import count_step, uncounted
from ..costs.setup import DTYPES, Setup, make_outline
from ..errors import ConsistencyError, ends_with_message, one_line
from ..json_files import as_mapping
from ..models.checks import context_of, load_config, refuse_old_names
from ..models.embedded_models import resolve_model
from ..trainer.run.data_checks import is_model_of_template
from ..upstream import old_names_allowed
from .estimate_view import GIB, counted_blocks, describe
from .json_output import one_object
from .model_options import adapter_of, check_switched_on
from .option_check import ON_POLICY, PAIRED, from_home
from .parser import StrictParser, named_in
from .quick_answers import source_check
from .sources import read_options


# Options of a training that change what a step takes, and that are not options here
NOT_COUNTED = (
    *("load_in_8bit", "use_dora", "lora_modules_to_save", "lora_target_parameters", "fp16", "deepspeed", "fsdp"),
    *("packing", "padding_free", "log_consistency_metrics", "torch_compile", "use_liger_kernel", "use_vllm"),
    *("activation_offloading", "act_tokens", "loss_type", "steps_per_generation", "engine", "model_init_kwargs"),
    *("num_iterations", "completion_length_schedule", "cache_implementation", "parallelism_config"),
    *("ref_model_name_or_path", "disable_dropout", "label_smoothing_factor", "optim_args", "pad_to_multiple_of"),
    *("dose_check", "guard_split"),  # for which the model answers 32 prompts at a time
    "regenerate_targets_every",  # later targets are made beside the optimizer's states
    "generation_kwargs",  # with beams, each of which has a cache
    "chat_template_path",  # of a model, whose tokens are added
)
# Their values that are counted; of the others, those that switch them off
COUNTED = {
    "act_tokens": ("prompt",),
    "loss_type": ("nll", "divergence"),
    "engine": ("transformers",),
    "disable_dropout": (True,),
    "num_iterations": (1,),
}
OFF: tuple[Any, ...] = (False, "", [], {})


@dataclass
@with_help
class EstimateArguments(CommandArguments):
    """Arguments of the `estimate` command, explained by its `--help`. Training options have the trainers' defaults."""

    # Parameters that control the model
    model_name_or_path: str = option(help="The model, its folder, or its config.json. No weights are loaded.")
    max_length: int = option(help="Tokens of the longest row: a prompt with its answer.", allowed=at_least(1))
    recipe: str | None = option(
        None,
        help="Training recipe (YAML), from which the options listed here are taken; flags override it.",
    )
    model_revision: str | None = option(None, help="Revision of the model.")
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = option("float32", help="Dtype of the weights.")
    attn_implementation: str | None = option(
        None, help="Attention implementation. `attct` needs `eager`; FlashAttention is counted as `sdpa`."
    )
    load_in_4bit: bool = option(False, help="Whether the weights are quantized to NF4.")
    use_bnb_nested_quant: bool = option(False, help="Whether the scales of quantized weights are quantized too.")
    use_peft: bool = option(False, help="Whether a LoRA adapter is trained, instead of all weights.")
    lora_r: int = option(16, at_least(1), help="Rank of the adapter.")
    lora_dropout: float = option(0.05, help="Dropout of the adapter.")
    lora_target_modules: list[str] | None = option(
        None,
        help="Layers that get an adapter, such as `all-linear`. By default those that PEFT chooses for the architecture.",
    )
    # Parameters that control the step
    method: list[str] = option(
        ["bct"], help=f"Objectives: any of {', '.join(METHODS)}; or only `opct`, on-policy consistency training."
    )
    max_completion_length: int = option(
        512, at_least(1), help="Tokens of the answer, a part of `max_length` (bct, kl, opct)."
    )
    per_device_train_batch_size: int = option(8, at_least(1), help="Rows per micro-batch; for `opct`, rollouts.")
    gradient_accumulation_steps: int = option(1, at_least(1), help="Micro-batches per optimizer step.")
    num_generations: int = option(4, at_least(1), help="Rollouts per prompt (opct).")
    share_prefix: bool = option(True, help="Whether a prompt is computed only once for all its rollouts (opct).")
    rollout_batch_size: int | None = option(
        None, at_least(1).or_none(), help="Rollouts sampled at a time (opct). By default all rollouts of a step."
    )
    target_batch_size: int = option(32, at_least(1), help="Targets made at a time (bct, kl), if the pairs have none.")
    layers: list[int] | None = option(None, help="Blocks that act, attct and mlpct compare. By default all.")
    gradient_checkpointing: bool = option(
        True, help="Whether to recompute activations in the backward pass instead of keeping them."
    )
    bf16: bool | None = option(None, help="Whether to compute in bfloat16 (by default unless `use_cpu` is set).")
    use_cpu: bool = option(False, help="Whether the step runs on a CPU.")
    optim: str = option("adamw_torch_fused", choices=OPTIMIZERS, help="Optimizer.")
    # Parameters that control the answer
    memory: float | None = option(
        None, above(0), help="Memory of the device in GiB, to find the largest batch that fits."
    )
    tflops: float | None = option(
        None, above(0), help="Speed of the device's matrix products in TFLOP/s, to compute the seconds per step."
    )
    utilisation: float = option(
        0.4,
        SHARE,
        help="Share of `tflops` that a step reaches. The default is what large models reach in training on one node. To be "
        "exact, measure a few of your own steps.",
    )
    json: bool = option(False, help="Print one JSON object instead of text.")


def main(args: EstimateArguments) -> dict[str, Any]:
    """Returns one JSON object with the setup, the memory in bytes, the largest batch and the seconds."""
    check_ranges(args)
    check_methods(args.method, (*METHODS, "opct"))
    config = _read_config(args)
    setup = _setup(args, config)
    _check(args, setup)
    context = context_of(config)
    # OPCT refuses a prompt that does not fit, and only warns of rollouts that go beyond.
    if context is not None and args.max_length > context and not setup.is_opct:
        raise ConsistencyError(
            f"`max_length` is {args.max_length}, more than the model's context of {context} tokens, which training refuses. Lower it."
        )
    if context is not None and setup.prompt > context:
        raise ConsistencyError(
            f"`max_length` ({args.max_length}) without `max_completion_length` ({args.max_completion_length}) leaves a prompt of "
            f"{setup.prompt} tokens, more than the model's context of {context}, which training refuses. Lower it."
        )
    peft_config = adapter_of(_model_config(args))
    name = resolve_model(args.model_name_or_path)
    folder = os.path.dirname(os.path.abspath(name)) if name.endswith(".json") else name
    outline = make_outline(folder, config, peft_config, _attention(args))
    with counted_blocks(outline), _traced(args.model_name_or_path):
        memory = measure_memory(outline, setup)
        found: dict[str, Any] = {
            "setup": {**vars(setup), **_subject(args, config, outline)},
            "memory": {
                **vars(memory),
                "while_sampling": memory.while_sampling or None,
                "while_training": memory.while_training,
                "total": memory.total,
            },
        }
        if args.memory is not None:
            found["largest_batch"] = largest_batch(outline, setup, int(args.memory * GIB), memory)
            unit = setup.rollouts_per_prompt
            if memory.while_sampling and not setup.is_opct:
                found["targets_fit"] = memory.while_sampling <= args.memory * GIB
            found["larger_may_fit"] = found["largest_batch"] == LARGEST_BATCH // unit * unit  # none was tried
    reason = uncounted(outline)
    needed = None if reason else count_step(outline, setup)
    # Of a whole step, with all its micro-batches, whose rollouts are sampled together
    parts = needed and {**vars(needed), "step": needed.step}
    found["operations"] = parts and {
        name: of if name == "sampling" else of * setup.gradient_accumulation_steps for name, of in parts.items()
    }
    found["not_counted"] = reason
    if args.tflops is not None and found["operations"] is not None:
        rate = args.tflops * 1e12 * args.utilisation
        found["seconds"] = found["operations"]["step"] / rate
    return found


def _read_config(args: EstimateArguments) -> PreTrainedConfig:
    name = resolve_model(args.model_name_or_path)
    is_file = name.endswith(".json")
    if (is_file and not os.path.isfile(name)) or not (os.path.exists(name) or _may_be_on_hub(name)):
        what = "file" if is_file else "folder"
        raise ConsistencyError(f"There is no {what} {name}: give a model, its folder, or its config.json.")
    if args.model_revision and os.path.exists(name):
        raise ConsistencyError(
            f"`model_revision` is {args.model_revision}, but {args.model_name_or_path} is not on the Hub, and has no revisions. "
            "Leave it out."
        )
    try:
        config = load_config(name, args.model_revision)
    except ConsistencyError as error:
        if os.path.exists(name) or not isinstance(error.__context__, OSError):
            raise
        reason = one_line(error.__context__).rstrip(".")
        raise ConsistencyError(
            f"{name} is no folder here, and cannot be loaded from the Hub ({reason}). Where the Hub cannot be reached, download the "
            "model's config.json elsewhere, and give its path."
        ) from None
    if getattr(config, "quantization_config", None):
        raise ConsistencyError(
            f"{name} is quantized, and the memory of its weights is not known here. Name the model before quantization, with "
            "`load_in_4bit: true` for 4 bits."
        )
    return config


def _may_be_on_hub(name: str) -> bool:
    with suppress(HFValidationError):
        validate_repo_id(name)
        return True
    return False


def _attention(args: EstimateArguments) -> str | None:
    """Returns the attention that is counted. FlashAttention needs a package, and a GPU to run on."""
    if "attct" in args.method:
        return "eager"
    if args.attn_implementation is None or "flash" not in args.attn_implementation:
        return args.attn_implementation
    warnings.warn(f"`attn_implementation` is {args.attn_implementation}, which is counted as `sdpa`.")
    return "sdpa"


def _model_config(args: EstimateArguments) -> ModelConfig:
    names = ("use_peft", "lora_r", "lora_dropout", "lora_target_modules")
    return ModelConfig(**{name: getattr(args, name) for name in names})


def _setup(args: EstimateArguments, config: PreTrainedConfig) -> Setup:
    dtype: str = args.dtype
    if dtype == "auto":
        dtype = str(getattr(config, "dtype", None) or "float32").removeprefix("torch.")
    if dtype not in DTYPES:
        raise ConsistencyError(f"The model's dtype is {dtype}. Set `dtype` to {', '.join(DTYPES)}.")
    same = (
        *("max_length", "max_completion_length", "per_device_train_batch_size", "num_generations"),
        *("gradient_accumulation_steps", "gradient_checkpointing", "share_prefix", "use_cpu", "load_in_4bit"),
        *("use_bnb_nested_quant", "optim", "rollout_batch_size", "target_batch_size"),
    )
    bf16 = not args.use_cpu if args.bf16 is None else args.bf16
    layers = tuple(args.layers) if args.layers else None
    same_values = {name: getattr(args, name) for name in same}
    return Setup(tuple(args.method), **same_values, dtype=dtype, bf16=bf16, layers=layers)


def _subject(args: EstimateArguments, config: PreTrainedConfig, outline: Any) -> dict[str, Any]:
    """What is trained: the model, and its adapter with the layers that get one."""
    names = {name.rpartition(".")[2] for name in getattr(outline, "targeted_module_names", ())}
    return {
        "model_name_or_path": args.model_name_or_path,
        "model_type": config.model_type,
        "use_peft": args.use_peft,
        "lora_r": args.lora_r if args.use_peft else None,
        "lora_target_modules": sorted(names) if args.use_peft else None,
    }


@contextmanager
def _traced(name: str) -> Iterator[None]:
    """Raises [`ConsistencyError`] for operations that cannot run on tensors without memory."""
    try:
        yield
    except RuntimeError as error:
        raise ConsistencyError(
            f"{name}: a step cannot be traced without weights, with these options: {one_line(error).rstrip('.')}. Mixtures of experts need "
            "`dtype: bfloat16`."
        ) from error


def _check(args: EstimateArguments, setup: Setup) -> None:
    """Raises [`ConsistencyError`] for options that contradict each other."""
    if setup.prompt < 1:
        raise ConsistencyError(
            f"`max_length` ({args.max_length}) leaves no prompt beside the answer of `max_completion_length` "
            f"({args.max_completion_length}) tokens: raise the one, or lower the other."
        )
    if args.load_in_4bit and not args.use_peft:
        raise ConsistencyError(
            "`load_in_4bit` needs `use_peft: true`: quantized weights cannot be trained themselves."
        )
    method = ", ".join(args.method)
    if "opct" in args.method and not setup.is_opct:
        raise ConsistencyError(
            f"`method` is {method}: `opct` is a trainer of its own. Name it alone, or leave it out."
        )
    rollouts = args.per_device_train_batch_size * args.gradient_accumulation_steps
    if setup.is_opct and rollouts % args.num_generations:
        raise ConsistencyError(
            f"`per_device_train_batch_size` times `gradient_accumulation_steps` makes {rollouts} rollouts, which do not "
            f"divide into groups of `num_generations` ({args.num_generations}). Batches count completions: choose a multiple."
        )
    if not setup.is_opct:
        only = ["num_generations", "share_prefix", "rollout_batch_size"]
        refuse_unused(args, only, f"it is for opct, and `method` is {method}. Leave it out")
    if not setup.answer:
        refuse_unused(
            args, ["max_completion_length", "target_batch_size"], f"{method} compares prompts alone. Leave it out"
        )
    if setup.is_opct:
        refuse_unused(args, ["target_batch_size"], "opct has no targets. Leave it out")
    if args.tflops is None:
        refuse_unused(args, ["utilisation"], "no seconds are asked for: give `tflops`")
    if args.layers and not {"act", "attct", "mlpct"} & {*args.method}:
        raise ConsistencyError(f"`layers` is for act, attct and mlpct, and `method` is {method}. Leave it out.")
    if "attct" in args.method and args.attn_implementation not in (None, "eager"):
        raise ConsistencyError("`attct` needs `attn_implementation: eager`, which forms attention maps.")


def flags_of_recipe(args: Sequence[str], config: Mapping[str, Any], prog: str) -> list[str]:
    """
    Returns as flags the options that a training's recipe (`recipe`) gives, and neither `args` nor the file `config` of this
    command do.
    """
    flags = ArgumentParser(add_help=False, allow_abbrev=False)
    flags.add_argument("--recipe", default=from_home(config.get("recipe")))
    flags.add_argument("--method", nargs="+", default=config.get("method"))
    known = flags.parse_known_args(list(args))[0]
    path = known.recipe
    if path is None:
        return []
    if not os.path.isfile(path):
        raise ConsistencyError(f"`recipe`: there is no file {path}.")
    _, options = source_check("lint", prog).check(["--config", path])  # which reads any recipe
    if (checkpointing := options.get("activation_checkpointing")) is not None:  # transformers' name for it
        options["gradient_checkpointing"] = checkpointing
    init = as_mapping("model_init_kwargs", options.get("model_init_kwargs"), f"{path}: ")
    refuse_old_names(init)
    for name, key in (("dtype", "dtype"), ("attn_implementation",) * 2, ("model_revision", "revision")):
        if key in init:
            options[name] = init.pop(key)
    options["model_init_kwargs"] = init
    template, generation = options.get("chat_template_path"), options.get("generation_kwargs")
    has_beams = as_mapping("generation_kwargs", generation, f"{path}: ").get("num_beams", 1) != 1
    counted = {
        **COUNTED,
        "steps_per_generation": (options.get("gradient_accumulation_steps", 1),),
        "chat_template_path": () if is_model_of_template(template) else (template,),
        "generation_kwargs": () if has_beams else (generation,),
    }
    if others := [
        name for name in NOT_COUNTED if options.get(name) is not None and options[name] not in counted.get(name, OFF)
    ]:
        warnings.warn(f"{path}: what {', '.join(f'`{name}`' for name in others)} changes is not counted.")
    typed = {*config, *named_in(args)}
    typed |= {name.removeprefix("no_") for name in typed}
    on_policy = {"ref_model_name_or_path", *read_options(ON_POLICY)} - {*read_options(PAIRED)}
    if "method" not in {*typed, *options} and on_policy & options.keys() == {"beta"}:
        raise ConsistencyError(
            f"{path}: of OPCT's options it sets `beta` alone, which DPO has, too. If it is a recipe of OPCT, add `--method opct`. "
            "The costs of DPO are not computed."
        )
    options.setdefault("method", "bct" if on_policy.isdisjoint(options) else "opct")
    for name in ("model_name_or_path", "max_length"):
        if name not in typed and options.get(name) is None:
            raise ConsistencyError(f"{path} sets no `{name}`, which the costs depend on: give it beside the recipe.")
    found = []
    methods = known.method or options["method"]
    # Others may have options of answers for their metrics, which are not counted.
    needs_answers = {"bct", "kl", "opct"} & {*([methods] if isinstance(methods, str) else methods)}
    unused = () if needs_answers else ("max_completion_length", "target_batch_size")
    for name in (declared.name for declared in fields(EstimateArguments)):
        if options.get(name) is not None and name not in (*typed, *unused):
            value = options[name]
            found += [f"--{name}", *map(str, value if isinstance(value, list) else [value])]
    return found


def with_model_named(args: Sequence[str]) -> list[str]:
    """Returns the arguments with the name of the option for a model that stands first."""
    if not args or args[0].startswith("-"):
        return list(args)
    if args[0].endswith((".yaml", ".yml")):
        raise ConsistencyError(f"{args[0]} is a recipe, and a model stands first: give it as `recipe`.")
    if "model_name_or_path" in named_in(args):
        raise ConsistencyError(
            f"The model is given twice, as {args[0]} and in `model_name_or_path`: keep one of them."
        )
    return ["--model_name_or_path", *args]


@ends_with_message()
def run(args: Sequence[str] | None = None, prog: str | None = None) -> None:
    """Estimates and prints; faulty options end the program with one message."""
    args = with_model_named(sys.argv[1:] if args is None else args)
    parser = StrictParser(
        (EstimateArguments,), "estimate", lambda given, config: flags_of_recipe(given, config, parser.prog), prog=prog
    )
    (estimate_args,) = parser.parse_args_and_config(args)
    check_switched_on(parser.given, estimate_args)
    with suppress(BrokenPipeError), old_names_allowed(), one_object(estimate_args.json) as printed:
        printed |= main(estimate_args)
        print(describe(estimate_args, printed))


if __name__ == "__main__":
    run()
