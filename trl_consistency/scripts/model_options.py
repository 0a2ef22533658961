"""Checks the options of TRL's `ModelConfig` and `ScriptArguments` that a command would ignore."""

from collections.abc import Collection
from typing import Any

from ..errors import ConsistencyError
from ..trainer.run.checks import check_bitsandbytes


# Options that mean nothing without another one
OF_LORA = (
    *("lora_r", "lora_alpha", "lora_dropout", "lora_target_modules", "lora_target_parameters", "lora_modules_to_save"),
    *("lora_task_type", "use_rslora", "use_dora"),
)
OF_4_BITS = ("bnb_4bit_quant_type", "use_bnb_nested_quant", "bnb_4bit_quant_storage")


def check_model_options(given: Collection[str], script_args: Any, model_args: Any) -> None:
    """
    Raises [`ConsistencyError`] for an option among those that a user has `given` that would be ignored. With `use_peft:
    false`, for one, the options of an adapter in the same recipe are ignored knowingly.
    """
    for names, needed, otherwise in (
        (OF_LORA, "use_peft", "all weights would be trained"),
        (OF_4_BITS, "load_in_4bit", "nothing would be quantized"),
    ):
        unused = [name for name in names if name in given and getattr(model_args, name) not in (None, False)]
        if unused and needed not in given:
            raise ConsistencyError(
                f"`{unused[0]}` is set without `{needed}`, so that {otherwise}. Set `{needed}: true`, or `{needed}: false` if that "
                "is meant."
            )
    if script_args.ignore_bias_buffers:
        raise ConsistencyError("`ignore_bias_buffers` does nothing in this command. Leave it out.")
    if model_args.load_in_4bit or model_args.load_in_8bit:
        option = "`load_in_4bit`" if model_args.load_in_4bit else "`load_in_8bit`"
        check_bitsandbytes(option)
        if not model_args.use_peft:
            raise ConsistencyError(f"{option} needs `use_peft: true`: quantized weights cannot be trained themselves.")
