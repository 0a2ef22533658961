"""`engine` of the training commands: the options that it stands for, messages about them, and a server that makes targets."""

import re
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from transformers.hf_argparser import string_to_bool

from ..config.types import check_vllm_temperature
from ..errors import ConsistencyError
from ..generation.answer_engine import TRANSFORMERS, VLLM, check_url, is_url
from ..generation.vllm_engine import check_vllm
from ..trainer.run.base_model import check_engine_files


def settings_of_engine(engine: str, samples_rollouts: bool) -> dict[str, Any]:
    """
    Returns the training options that `engine` stands for. A server that answers for the reference alone, and not for the
    policy in training (`samples_rollouts`), has none: it is asked instead of vLLM in the process.
    """
    check_url(engine)
    if engine == TRANSFORMERS or (is_url(engine) and not samples_rollouts):
        return {"use_vllm": False}
    if engine == VLLM:
        return {"use_vllm": True, **({"vllm_mode": "colocate"} if samples_rollouts else {})}
    return {"use_vllm": True, "vllm_mode": "server", "vllm_server_base_url": engine}


def flags_of_engine(args: Sequence[str], config: Mapping[str, Any], samples_rollouts: bool) -> list[str]:
    """
    Returns the flags that `engine` stands for, in the arguments of a training command and its recipe. Raises
    [`ConsistencyError`] for an unknown engine, and if the recipe or another flag says something else.
    """
    given = _given(args, config)
    engine = given.get("engine")
    if engine is None:
        return []
    settings = settings_of_engine(engine, samples_rollouts)
    others = {"vllm_server_host": None, "vllm_server_port": None} if is_url(engine) else {}
    for name, value in {**settings, **others}.items():
        if given.get(name) is not None and not _agree(given[name], value):
            raise ConsistencyError(
                f"`engine` is {engine}, and `{name}` is {str(given[name]).lower()}: they disagree. Leave one of them out."
            )
    return [text for name, value in settings.items() for text in (f"--{name}", str(value))]


def naming_engine(args: Sequence[str], config: Mapping[str, Any]) -> Callable[[str], str]:
    """
    Returns what rewrites a message for the user of `engine`: it then names that option instead of those that `engine` stands
    for, unless they are given, too.
    """
    given = _given(args, config)
    engine = given.get("engine")
    if engine is None:
        return str
    words = {
        "`use_vllm: true`, `vllm_mode: server`": "`engine: ADDRESS`",
        "`use_vllm: true`": "`engine: vllm`",
        "`vllm_mode: server`": "`engine: ADDRESS`",
        "`vllm_mode: colocate`": "`engine: vllm`",
        "`vllm_mode`": "`engine`",
        # A difference from a checkpoint, which `resume_changed` names so
        "\n  `use_vllm`:": "\n  `use_vllm` (`engine`):",
        "eave `use_vllm` out": "eave `engine` out",
        "`use_vllm`": f"`engine` {VLLM if engine == TRANSFORMERS else engine}",
    }
    kept = [name for name in ("use_vllm", "vllm_mode") if given.get(name) is not None]
    words = {of: said for of, said in words.items() if not any(name in of for name in kept)}
    if not words:
        return str
    pattern = re.compile("|".join(map(re.escape, words)))
    return lambda message: pattern.sub(lambda found: words[found[0]], message)


def _given(args: Sequence[str], config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options of a recipe, and of the command line those about the engine."""
    names = ("engine", "use_vllm", "vllm_mode", "vllm_server_base_url", "vllm_server_host", "vllm_server_port")
    flags = ArgumentParser(add_help=False, allow_abbrev=False)
    for name in names:
        flags.add_argument(f"--{name}", f"--{name.replace('_', '-')}", nargs="?", const="true")
    typed = vars(flags.parse_known_args(list(args))[0])
    return {**config, **{name: text for name, text in typed.items() if text is not None}}


def _agree(given: Any, value: Any) -> bool:
    if isinstance(value, bool):
        with suppress(ArgumentTypeError):  # which the parser says
            return bool(string_to_bool(str(given))) == value
    return str(given).rstrip("/") == str(value).rstrip("/")


def check_server_of_targets(address: str, args: Any, model: str, quantization_config: Any) -> None:
    """
    Raises [`ConsistencyError`] if a training needs no targets from a server, or if the server cannot have the reference policy. A
    server has only checkpoints by name.
    """
    if not args.needs_completions:
        raise ConsistencyError(
            f"`engine` is {address}, but `method` {', '.join(args.method)} trains without answers. Leave it out."
        )
    if args.generation_kwargs:
        raise ConsistencyError(
            "`generation_kwargs` are not available with a server as `engine`. Leave one of them out."
        )
    check_vllm_temperature(args.temperature, "`engine`", "leave `engine` out")
    if quantization_config is not None:
        raise ConsistencyError(
            f"`engine` is {address}, and the model is loaded in 4 or 8 bits: the server may have other weights than these rounded "
            "ones. Make the targets beforehand (`trl-consistency targets --engine ...`) and train on them, or leave `engine` out."
        )
    check_vllm(args, model, quantization_config)
    check_engine_files(model, args)
