"""
Sends the LoRA adapter in training, and nothing else, to a vLLM engine: one in this process, or a server.

The engine loads the base model once. After each optimizer step it gets the adapter under a new number, and drops the one
before. Nothing is merged, so the base weights, which are the reference, are only read. vLLM takes adapters from folders
alone: each is written to a private folder in memory, or to one that the server can read too.
"""

import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import Any

import torch
import torch.nn.functional as F
from peft import LoraConfig
from peft.tuners.lora import LoraLayer
from peft.tuners.lora.layer import ParamWrapper
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils.other import AuxiliaryTrainingWrapper
from safetensors.torch import save_file
from torch import Tensor, nn

from ..errors import ConsistencyError, one_line
from ..files import write_by, write_text
from ..passes.blocks import base_model


# The ranks that an engine can be started for (`max_lora_rank` of vLLM 0.31)
ENGINE_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)

# Initializations that leave the base weights as they are in the checkpoint, which is what the engine loads
KEEPS_BASE = ("True", "False", "gaussian", "eva", "orthogonal")

MEMORY = "/dev/shm"

# Each adapter that an engine of this process gets has a number of its own: vLLM does not load a number that it knows.
_numbers = count(1)

Adapter = dict[str, Tensor]  # parameters of an adapter by their names in the model, copied to the CPU


class AdapterSync:
    """
    Keeps the adapter in a vLLM engine equal to the one in training.

    Args:
        engine ([`EngineHere`] or [`~trl_consistency.rollouts.adapter_server.Server`], *optional*):
            Where the adapter is loaded; None on the processes whose prompts another one sends.
        model ([`~transformers.PreTrainedModel`] or [`~peft.PeftModel`]):
            The model in training. [`check_adapter`] must have accepted it.
    """

    def __init__(self, engine: Any, model: nn.Module):
        self.engine, self._model = engine, model
        self.seconds: list[float] = []  # that each sync took

    def send(self) -> Adapter:
        """Loads the present adapter into the engine and drops the one before. Returns a copy of it."""
        start = time.perf_counter()
        adapter = copy_of_adapter(self._model)
        if self.engine is not None:
            tensors = engine_tensors(self._model, adapter)
            parent = self.engine.folder or folder_in_memory(sum(tensor.nbytes for tensor in tensors.values()))
            option = "vllm_adapter_dir" if self.engine.folder else None
            folder = private_folder(parent, option)
            write_adapter(Path(folder.name), tensors, option)
            self.engine.load(next(_numbers), folder)
        self.seconds.append(time.perf_counter() - start)
        return adapter


class EngineHere:
    """A `vllm.LLM` in this process, made with [`engine_options`]. Its `generate` uses the adapter that came last."""

    def __init__(self, llm: Any):
        self._llm, self.generate_by_base = llm, llm.generate
        self.folder = None  # in memory

    def load(self, number: int, folder: TemporaryDirectory) -> None:
        """Loads an adapter, which is then deleted."""
        with folder:
            # vLLM keeps computed prompts by this name: a new one for each adapter, or old prompts would be used again.
            request = lora_request(f"policy-{number}", number, folder.name)
            try:
                self._llm.llm_engine.add_lora(request)
            except Exception as error:
                raise ConsistencyError(f"vLLM did not take the adapter in training: {one_line(error)}") from error
        held = set(self._llm.llm_engine.list_loras())
        if held != {number}:
            raise ConsistencyError(
                f"vLLM should hold only the adapter number {number}, but says that it holds {sorted(held)}: its rollouts "
                "could come from another adapter. Nothing else may load adapters into this engine."
            )
        self._llm.generate = partial(self.generate_by_base, lora_request=request)


def lora_request(name: str, number: int, folder: str) -> Any:
    """Returns vLLM's request for an adapter, imported only when needed."""
    from vllm.lora.request import LoRARequest

    return LoRARequest(name, number, folder)


def private_folder(parent: str | None, option: str | None = None) -> TemporaryDirectory:
    """Returns a new folder for an adapter. `option` names its parent in errors."""
    try:
        return TemporaryDirectory(prefix="trl-consistency-adapter-", dir=parent)
    except OSError as error:
        raise ConsistencyError(
            f"No folder for the adapter that vLLM gets can be made in {f'`{option}` ' if option else ''}"
            f"{parent or gettempdir()}: {error.strerror}. Mend that, and resume from the last checkpoint."
        ) from None


def folder_in_memory(size: int) -> str | None:
    """
    Returns a folder whose files are kept in memory, with room for two files of `size` bytes, or None (the folder of
    temporary files). Containers often have 64 MB there.
    """
    has_room = os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > 2 * size
    return MEMORY if has_room else None


def engine_options(model: nn.Module, dtype: torch.dtype) -> dict[str, Any]:
    """
    Returns the options of `vllm.LLM` for an engine that serves one adapter. `dtype` is that in which the trainer
    computes; by itself, vLLM would round a float32 checkpoint to 16 bits.
    """
    return {
        "enable_lora": True,
        "max_lora_rank": engine_rank(model),
        "max_loras": 1,
        "max_cpu_loras": 1,
        "dtype": str(dtype).removeprefix("torch."),
    }


def engine_rank(model: nn.Module) -> int:
    """Returns the smallest rank that an engine can be started for and that holds the adapter."""
    return next(rank for rank in ENGINE_RANKS if rank >= _rank(model))


# What is sent


def copy_of_adapter(model: nn.Module) -> Adapter:
    """
    Returns copies, on the CPU, of the two matrices of each layer that the adapter changes. Where the adapter is switched off, the
    second one is 0.
    """
    adapter = {name: matrix.detach().to("cpu", copy=True) for name, matrix in _matrices(model).items()}
    is_off = any(layer.disable_adapters for _, layer, _ in _adapted_layers(model))
    return adapter | no_adapter(adapter) if is_off else adapter


@contextmanager
def holding(model: nn.Module, adapter: Mapping[str, Tensor]) -> Iterator[None]:
    """Within it, the model has another adapter: one of [`copy_of_adapter`], or a part of one."""
    matrices = _matrices(model)
    present = {name: matrices[name].data for name in adapter}
    for name, values in adapter.items():
        matrices[name].data = values.to(matrices[name])
    try:
        yield
    finally:
        for name, values in present.items():
            matrices[name].data = values


def no_adapter(adapter: Mapping[str, Tensor]) -> Adapter:
    """Returns zeros for the B matrices of an adapter. With them, the model acts as its base model."""
    return {name: torch.zeros_like(matrix) for name, matrix in adapter.items() if name.endswith(".lora_B")}


def engine_tensors(model: nn.Module, adapter: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """
    Returns an adapter as vLLM reads it, under PEFT's names for files.

    vLLM knows one rank and one scale. So each layer's own scale (`lora_alpha`, rsLoRA, `alpha_pattern`) is multiplied
    into its second matrix, as vLLM does itself, and smaller ranks (`rank_pattern`) are filled up with zeros.
    """
    rank, tensors = _rank(model), {}
    for name, layer, active in _adapted_layers(model):
        first, second = adapter[f"{name}.lora_A"], adapter[f"{name}.lora_B"] * layer.scaling[active]
        missing = rank - first.shape[0]
        tensors[f"base_model.model.{name}.lora_A.weight"] = F.pad(first, (0, 0, 0, missing)).contiguous()
        tensors[f"base_model.model.{name}.lora_B.weight"] = F.pad(second, (0, missing)).contiguous()
    return tensors


def write_adapter(folder: Path, tensors: dict[str, Tensor], option: str | None = None) -> None:
    """
    Writes the tensors of [`engine_tensors`] and a configuration for them as PEFT would. `option` names the folder in errors.
    """
    names = [name for name in tensors if name.endswith(".lora_A.weight")]
    rank = tensors[names[0]].shape[0]
    modules = sorted({name.split(".")[-3] for name in names})
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": modules, "bias": "none"}
    write_text(folder / "adapter_config.json", json.dumps(config), option)
    write_by(folder / "adapter_model.safetensors", lambda path: save_file(tensors, path), option)


def _adapted_layers(model: Any) -> Iterator[tuple[str, Any, str]]:
    """Yields the name in the base model, the layer, and its active adapter, of each layer that an adapter changes."""
    for name, layer in base_model(model).named_modules():
        if isinstance(layer, LoraLayer):
            for adapter in layer.active_adapters:
                if adapter in layer.lora_A:
                    yield name, layer, adapter


def _matrices(model: nn.Module) -> dict[str, nn.Parameter]:
    return {
        f"{name}.{part}": getattr(layer, part)[adapter].weight
        for name, layer, adapter in _adapted_layers(model)
        for part in ("lora_A", "lora_B")
    }


def _rank(model: nn.Module) -> int:
    return max(layer.r[adapter] for _, layer, adapter in _adapted_layers(model))


# What cannot be sent


def check_adapter_config(config: Any) -> None:
    """Raises [`ConsistencyError`] if vLLM cannot serve adapters of this configuration of PEFT."""
    if not isinstance(config, LoraConfig):
        raise NotServedError(f"`peft_config` is of the type {type(config).__name__}", "vLLM serves LoRA adapters only")
    init = str(config.init_lora_weights)
    refused = {
        f"`use_dora={config.use_dora}`": (config.use_dora, "vLLM does not serve DoRA"),
        f"`bias='{config.bias}'`": (config.bias != "none", "the base model's biases stay as they are in the engine"),
        "`lora_bias`": (config.lora_bias, "vLLM has no bias in adapters"),
        "`modules_to_save`": (config.modules_to_save, "whole modules stay as they are in the engine"),
        "`target_parameters`": (config.target_parameters, "vLLM takes adapters of linear layers alone"),
        "`trainable_token_indices`": (config.trainable_token_indices, "embeddings stay as they are in the engine"),
        "`layer_replication`": (config.layer_replication, "the engine has each layer of the checkpoint once"),
        f"`init_lora_weights='{init}'`": (
            init not in KEEPS_BASE,
            "it changes the base weights, and the engine loads them from the checkpoint",
        ),
    }
    for option, (is_set, reason) in refused.items():
        if is_set:
            raise NotServedError(f"`peft_config` sets {option}", reason)


def check_adapter(model: Any) -> None:
    """Raises [`ConsistencyError`] if vLLM cannot serve the adapter of a loaded model."""
    layers = list(_adapted_layers(model))
    _check_linear_alone(model)
    if not layers:
        raise ConsistencyError(
            "`vllm_sync` is 'adapter', and the model has no LoRA adapter. Give the trainer a `peft_config`, or leave "
            "`vllm_sync` out."
        )
    names = sorted({adapter for _, _, adapter in layers})
    if len(names) > 1:
        raise NotServedError(f"The model has {len(names)} active adapters ({', '.join(names)})", "the engine uses one")
    config = getattr(model, "peft_config", {}).get(names[0])
    if config is not None:
        check_adapter_config(config)
    sent = set()
    for name, layer, adapter in layers:
        parts = layer.lora_A[adapter], layer.lora_B[adapter]
        variant = layer.lora_variant.get(adapter)
        is_linear = all(isinstance(part, nn.Linear) for part in parts) and not isinstance(layer, ParamWrapper)
        if variant is not None or not is_linear:
            kind = type(variant or layer).__name__
            raise NotServedError(
                f"The adapter of `{name}` is of the kind {kind}", "vLLM serves LoRA of linear layers alone"
            )
        if layer.r[adapter] > ENGINE_RANKS[-1]:
            raise NotServedError(
                f"The adapter of `{name}` has the rank {layer.r[adapter]}", f"vLLM takes at most {ENGINE_RANKS[-1]}"
            )
        sent |= {id(part.weight) for part in parts}
    _check_nothing_else(model, sent)


def _check_linear_alone(model: nn.Module) -> None:
    """
    Refuses what an active adapter has beside the two matrices that are sent, trained or not: an embedding's, a bias, a magnitude. An
    adapter that was loaded trains nothing.
    """
    for name, layer in base_model(model).named_modules():
        if not isinstance(layer, LoraLayer):
            continue
        for part in layer.adapter_layer_names:
            held = getattr(layer, part)
            for adapter in set(layer.active_adapters) & set(held):
                values = held[adapter]
                sent = values.weight if part in ("lora_A", "lora_B") else None
                of_part = [values] if isinstance(values, nn.Parameter) else values.parameters()
                if any(value is not sent for value in of_part):
                    raise NotServedError(
                        f"The adapter of `{name}` has more than two matrices (in `{part}`)",
                        "vLLM serves LoRA of linear layers alone",
                    )


def _check_nothing_else(model: nn.Module, sent: set[int]) -> None:
    for name, module in model.named_modules():
        is_other = isinstance(module, BaseTunerLayer) and not isinstance(module, LoraLayer)
        if is_other or isinstance(module, AuxiliaryTrainingWrapper):
            raise NotServedError(f"`{name}` is a `{type(module).__name__}`", "vLLM serves LoRA of linear layers alone")
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and id(parameter) not in sent:
            raise NotServedError(f"`{name}` is trained beside the adapter", "the engine would not get it")


class NotServedError(ConsistencyError):
    """Raised for an adapter that vLLM cannot serve. `what` it is about the adapter, and the `reason`."""

    def __init__(self, what: str, reason: str):
        self.what, self.reason = what, reason
        super().__init__(
            f"{what}, and with `use_vllm` the engine gets the adapter alone: {reason}. Leave it out, or set `vllm_sync: "
            "weights`, which sends merged weights (vLLM on CPUs cannot take them)."
        )
