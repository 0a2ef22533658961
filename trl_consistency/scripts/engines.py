"""The engine that writes a command's answers: transformers, vLLM in this process, or a vLLM server."""

import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch
from accelerate import PartialState
from peft.utils import load_peft_weights
from torch import Tensor

from ..config.options import refuse_unused
from ..config.types import check_vllm_temperature
from ..errors import ConsistencyError
from ..evaluation.answers.generate import AnswerOptions
from ..generation.answer_engine import (
    TRANSFORMERS,
    VLLM,
    AnswerEngine,
    Backend,
    EngineInProcess,
    EngineOnServer,
    check_url,
)
from ..generation.options import end_tokens
from ..generation.vllm_engine import vllm_label
from ..models.architecture import check_architecture
from ..models.base_state import restored
from ..models.checks import context_of
from ..models.embedded_models import resolve_model
from ..models.folder_checks import check_engine_weights
from ..models.loading import BASE, check_loadable, is_adapter_folder, put_adapter
from ..rollouts.adapter_server import make_readable
from ..rollouts.adapter_sync import (
    Adapter,
    NotServedError,
    check_adapter,
    check_adapter_config,
    engine_rank,
    engine_tensors,
    folder_in_memory,
    private_folder,
    write_adapter,
)
from .engine_arguments import EngineArguments


class Checkpoint(NamedTuple):
    """What the engine and transformers load."""

    name: str
    revision: str | None = None
    trust_remote_code: bool = False


def check_engine(
    args: EngineArguments,
    name: str,
    load_in_4bit: bool = False,
    adapters: Sequence[str] = (),
    adapter_dir: str | None = None,
) -> None:
    """Raises [`ConsistencyError`] for an unknown engine, and for options and models that it does not take."""
    engine = args.engine
    check_url(engine)
    if engine == TRANSFORMERS:
        if adapter_dir is not None:
            raise ConsistencyError("`vllm_adapter_dir` is given, but `engine` is transformers. Leave it out.")
        of_vllm = ("vllm_gpu_memory_utilization", "vllm_server_timeout")
        refuse_unused(args, of_vllm, "`engine` is transformers. Leave it out")
        return
    check_vllm_temperature(getattr(args, "temperature", 0.0), "`engine`", "use `--engine transformers`")
    if engine != VLLM:
        refuse_unused(
            args,
            ["vllm_gpu_memory_utilization"],
            f"`engine` is the server {engine}, whose memory it cannot change. Leave it out",
        )
    elif find_spec("vllm") is None:
        raise ConsistencyError("`engine` vllm needs the package `vllm`: `pip install 'trl[vllm]'`.")
    if PartialState().num_processes > 1:
        raise ConsistencyError("`engine` vllm runs in one process: start without several processes.")
    if engine == VLLM and not is_adapter_folder(name):
        check_engine_weights(resolve_model(name))
    if load_in_4bit:
        raise ConsistencyError(
            "`load_in_4bit` is not available with `engine` vllm, which would answer with other weights. Leave one out."
        )
    if adapter_dir is not None and engine == VLLM:
        raise ConsistencyError(
            "`vllm_adapter_dir` is given, but it is for a server that reads adapters there. Leave it out."
        )
    whole = next((path for path in adapters if Path(path).is_dir() and not is_adapter_folder(path)), None)
    if whole is not None or is_adapter_folder(name):
        raise ConsistencyError(
            f"`engine` {engine} answers for a base model and adapters of it, and "
            + (f"`adapters` names the whole model {whole}" if whole else f"{name} is an adapter")
            + ". Use `--engine transformers`."
        )


@contextmanager
def open_engine(
    args: EngineArguments,
    base: Checkpoint,
    model: Any,
    tokenizer: Any,
    options: AnswerOptions,
    longest_prompt: int,
    adapters: Mapping[str, str] | None = None,
    adapter_dir: str | None = None,
) -> Iterator[AnswerEngine | None]:
    """
    Yields an engine for a model and its adapters by name, or None if transformers answers. `longest_prompt` is in tokens.
    """
    if args.engine == TRANSFORMERS:
        yield None
        return
    path, revision, config = check_loadable(*base)
    sampling = {
        "max_tokens": options.max_new_tokens,
        "temperature": options.temperature,
        "top_p": options.top_p,
        "stop_token_ids": end_tokens(model, tokenizer),
    }
    with ExitStack() as stack:
        folders, rank = served_adapters(path, config, adapters or {}, adapter_dir, stack)
        backend: Backend
        if args.engine == VLLM:
            needed, context = longest_prompt + options.max_new_tokens, context_of(config)
            engine_options = {
                "model": path,
                "revision": revision,
                "trust_remote_code": base.trust_remote_code,
                "dtype": str(model.dtype).removeprefix("torch."),
                "max_model_len": needed if context is None else min(needed, context),
                "gpu_memory_utilization": args.vllm_gpu_memory_utilization,
                "max_num_seqs": options.batch_size * len(folders),
                "seed": options.seed,
            }
            backend = EngineInProcess(engine_options, folders, rank)
        else:
            name = f"trl-consistency-{secrets.token_hex(4)}"
            backend = EngineOnServer(args.engine, path, folders, rank, args.vllm_server_timeout, name)
        label = vllm_label() if args.engine == VLLM else args.engine
        engine = AnswerEngine(backend, list(folders), sampling, label, config)
        stack.callback(engine.close)
        yield engine


def served_adapters(
    path: str, config: Any, adapters: Mapping[str, str], parent: str | None, stack: ExitStack
) -> tuple[dict[str, str | None], int]:
    """
    Writes adapters as vLLM reads them, into folders that exist as long as `stack`. Returns these by name, the base model's
    first, and the largest rank. Raises [`ConsistencyError`] for an adapter that vLLM cannot serve.

    Beside adapters, the base model has one that changes nothing: on CPUs, vLLM 0.31 gives requests without an adapter one
    that others of the same batch have (vllm-project/vllm#48421).
    """
    folders: dict[str, str | None] = {BASE: None}
    rank = 1
    if not adapters:
        return folders, rank
    model = check_architecture(path, config)
    if model is None:
        raise ConsistencyError(
            f"vLLM cannot be given adapters of {path}, which has code of its own. Use `--engine transformers`."
        )
    for name, adapter in adapters.items():
        with restored(model, adapter):
            with_adapter: Any = put_adapter(model, adapter, on_meta=True)
            try:
                check_adapter_config(with_adapter.peft_config[with_adapter.active_adapters[0]])
                check_adapter(with_adapter)
            except NotServedError as error:
                raise ConsistencyError(
                    f"`adapters`: vLLM cannot serve {adapter}. {error.what}: {error.reason}. Use `--engine transformers`."
                ) from None
            rank = max(rank, engine_rank(with_adapter))
            tensors = engine_tensors(with_adapter, stored_adapter(adapter))
        if folders[BASE] is None:
            zeros = {key: torch.zeros_like(tensor) for key, tensor in tensors.items()}
            folders[BASE] = _written(zeros, parent, stack)
        folders[name] = _written(tensors, parent, stack)
    return folders, rank


def _written(tensors: dict[str, Tensor], parent: str | None, stack: ExitStack) -> str:
    """Returns a new folder with an adapter."""
    option = "vllm_adapter_dir" if parent else None
    size = sum(tensor.nbytes for tensor in tensors.values())
    folder = stack.enter_context(private_folder(parent or folder_in_memory(size), option))
    write_adapter(Path(folder), tensors, option)
    if parent:
        make_readable(Path(folder))
    return folder


def stored_adapter(adapter: str) -> Adapter:
    """Returns the matrices of an adapter's files by their names in the base model."""
    stored = load_peft_weights(adapter, device="cpu")
    return {
        name.removeprefix("base_model.model.").removesuffix(".weight"): matrix.float()
        for name, matrix in stored.items()
    }
