"""What the options alone can tell: checked before any weights load."""

import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from transformers.integrations import get_available_reporting_integrations

from ..errors import ConsistencyError
from .consistency_config import ConsistencyConfig


def check_output_dir(output_dir: str) -> None:
    """Raises [`ConsistencyError`] if nothing can be written to `output_dir`."""
    try:
        Path(output_dir).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=output_dir):
            pass
    except OSError as error:
        raise ConsistencyError(
            f"`output_dir` `{output_dir}` is not writable ({error.strerror or error}). Choose another one."
        ) from None


def check_file(path: str, option: str) -> None:
    """Raises [`ConsistencyError`] if the file `path`, which `option` names, cannot be written."""
    try:
        with open(path, "a"):
            pass
    except OSError as error:
        raise ConsistencyError(f"`{option}` `{path}` cannot be written ({error.strerror}).") from None


def check_extras(args: ConsistencyConfig, quantization_config: Any = None) -> None:
    """Raises [`ConsistencyError`] if the options need a package that is not installed, naming what to install."""
    if "BitsAndBytes" in type(quantization_config).__name__:
        check_bitsandbytes("`quantization_config`")
    optim = str(getattr(args.optim, "value", args.optim))
    if "8bit" in optim or "paged" in optim:
        check_bitsandbytes(f"`optim` {optim}")
    wanted = {
        "`use_liger_kernel`": (args.use_liger_kernel, "liger_kernel", "liger-kernel"),
        "`deepspeed`": (args.deepspeed, "deepspeed", "deepspeed"),
        "`attn_implementation` flash_attention_2": (
            (args.model_init_kwargs or {}).get("attn_implementation") == "flash_attention_2",
            "flash_attn",
            "flash-attn",
        ),
    }
    for option, (is_wanted, module, package) in wanted.items():
        if is_wanted and find_spec(module) is None:
            raise ConsistencyError(f"{option} needs the package `{module}`: `pip install {package}`.")
    available = get_available_reporting_integrations()
    for tracker in args.report_to or []:
        if tracker not in available:
            raise ConsistencyError(
                f"`report_to` names `{tracker}`, which is not installed (or not a tracker that transformers knows). "
                f"Install it, or set `report_to: none`. Available here: {', '.join(available) or 'none'}."
            )


def check_bitsandbytes(option: str) -> None:
    """Raises [`ConsistencyError`] if bitsandbytes, which `option` needs, is not installed."""
    if find_spec("bitsandbytes") is None:
        raise ConsistencyError(
            f"{option} needs the package `bitsandbytes`: `pip install trl-consistency[quantization]`."
        )
