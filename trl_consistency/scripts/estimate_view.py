"""Output of `trl-consistency estimate` in the terminal."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import nn
from tqdm.auto import tqdm

from ..costs.memory import Memory
from ..passes.blocks import find_blocks


GIB = 1 << 30


def describe(args: Any, found: dict[str, Any]) -> str:
    """Returns the costs that `estimate` with these arguments has found, for a terminal."""
    memory = Memory(**{name: found["memory"][name] or 0 for name in Memory.__dataclass_fields__})
    is_opct = "opct" in args.method
    reference = "the same weights, the adapter off" if args.use_peft else "a copy of the weights"
    if args.method == ["bct"]:
        reference = "its answers are made before"
    dtype = "4 bits (NF4)" if args.load_in_4bit else found["setup"]["dtype"]
    kept = "computed again in the backward pass" if args.gradient_checkpointing else "kept for the backward pass"
    adapter = "none: all weights are trained"
    if args.use_peft:
        adapter = f"LoRA, r = {args.lora_r}, on {', '.join(found['setup']['lora_target_modules'])}"
    rows = f"{args.per_device_train_batch_size:,} {'rollouts' if is_opct else 'rows'} of {args.max_length:,} tokens"
    step = f"{', '.join(args.method)}, {rows}, one device"
    lines = [
        ("weights", memory.weights, f"{memory.parameters:,} parameters{' with the adapter' * args.use_peft}, {dtype}"),
        ("reference", memory.reference, reference),
        ("adapter", memory.adapter, adapter),
        ("optimizer", memory.optimizer, f"{args.optim}, of {memory.trained:,} trained parameters"),
        ("gradients", memory.gradients, "while training" if memory.sampling else ""),
        (
            "activations",
            memory.activations,
            f"at their peak{' while training' * bool(memory.sampling)}; blocks are {kept}",
        ),
        *([("  logits", memory.logits, "of these, where the head is at its peak")] if memory.logits else []),
    ]
    if memory.sampling:
        cache = f"while sampling; {memory.cache / GIB:.2f} GiB of it is the KV cache"
        first = "" if is_opct else f", of {args.target_batch_size:,} targets at a time, before training"
        phases = ("while sampling", memory.while_sampling), ("while training", memory.while_training)
        peak = max(phases, key=lambda phase: phase[1])
        lines.append(("rollouts" if is_opct else "targets", memory.sampling, cache + first))
        lines += [(*phase, f"the peak: {step}" if phase is peak else "") for phase in phases]
    else:
        lines.append(("in all", memory.total, step))
    shown = [f"{name:14} {size / GIB:9.2f} GiB   {words}".rstrip() for name, size, words in lines]
    if "largest_batch" in found:
        shown.append(_describe_batch(args, found))
        if not found.get("targets_fit", True):
            shown.append(
                f"Making targets takes more than {args.memory:g} GiB: lower `--target_batch_size`, or make them before (`targets`)."
            )
    shown += _describe_operations(args, found)
    missing = "Not in it: what the libraries and the device's driver take, fragmentation, and unequal rows"
    advice = "" if args.memory is None else ". For these, give 1 to 2 GiB less than the device has as `--memory`"
    shown.append(f"{missing}{advice}.")
    return "\n".join(shown)


def _describe_batch(args: Any, found: dict[str, Any]) -> str:
    """Returns the largest batch and its option. If there is none, the options that take less and are not used yet."""
    where = f"largest batch in {args.memory:g} GiB"
    if found["largest_batch"]:
        unit = "rollouts" if "opct" in args.method else "rows"
        more = " or more" * found["larger_may_fit"]
        return f"{where}: {found['largest_batch']:,} {unit}{more} (`--per_device_train_batch_size`)"
    tries = {
        "`--use_peft`": not args.use_peft,
        "`--dtype bfloat16`": found["setup"]["dtype"] == "float32",
        "`--load_in_4bit`": args.use_peft and not args.load_in_4bit,
        "`--gradient_checkpointing true`": not args.gradient_checkpointing,
        "a lower `--num_generations`": "opct" in args.method and args.num_generations > 1,
        "a lower `--max_length`": True,
    }
    return f"{where}: none fits. Try {', '.join(name for name, helps in tries.items() if helps)}."


def _describe_operations(args: Any, found: dict[str, Any]) -> list[str]:
    if found["operations"] is None:
        return [f"Operations are not counted: {found['not_counted']}."]
    is_opct = "opct" in args.method
    words = f"A step needs {_number(found['operations']['step'] / 1e12)} TFLOP"
    if is_opct:
        words += f", and sampling its rollouts {_number(found['operations']['sampling'] / 1e12)} more"
    shown = [f"{words}."]
    if "seconds" in found:
        rate = f"{args.utilisation:g} (`--utilisation`) of {args.tflops:g} TFLOP/s"
        sampling = " This is without sampling, which may take longer." * is_opct
        shown.append(f"It takes {_number(found['seconds'])} s at {rate}.{sampling}")
    return shown


def _number(value: float) -> str:
    """Returns three digits of a number, or all that are before its point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


@contextmanager
def counted_blocks(outline: nn.Module) -> Iterator[None]:
    """
    Shows on a terminal how many blocks have run: those of a hybrid take seconds each. How many there will be is not known. It is not
    in the command's module, which may be `__main__`: the last block is computed as a whole for hooks of others.
    """
    with (
        tqdm(desc="Tracing a training step (no weights are loaded)", unit=" blocks", disable=None) as bar,
        ExitStack() as hooks,
    ):

        def count(*_: Any) -> None:
            bar.update()

        for block in find_blocks(outline).modules:
            hooks.callback(block.register_forward_hook(count).remove)
        yield
