"""The only imports of TRL names outside its documented API; `tests/test_upstream.py` checks each one."""

import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial, wraps
from inspect import Parameter, getclosurevars, signature
from types import FunctionType, MethodType, SimpleNamespace
from typing import Any, TypeVar, cast

import torch
from accelerate import PartialState
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedType, fsdp2_prepare_model
from accelerate.utils.operations import ConvertOutputsToFp32
from peft.utils.other import TrainableTokensWrapper
from torch import Tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from trl.distributed import DistributedBackend
from trl.models import prepare_deepspeed
from trl.models import unwrap_model_for_generation as _unwrap_model_for_generation
from trl.models.utils import _ForwardRedirection as ForwardRedirection
from trl.trainer import utils
from trl.trainer.utils import (
    RepeatSampler,
    create_model_from_path,
    get_config_model_id,
    global_then_local_main_first,
    maybe_gather_lm_head_ctx,
    pad,
    repeat_iterable_dataset,
    split_tensor_dict,
    use_adapter,
)


Method = TypeVar("Method", bound=Callable[..., Any])

__all__ = [
    "DistributedBackend",
    "ForwardRedirection",
    "OwnState",
    "RepeatSampler",
    "accepted",
    "complete_head",
    "create_model_from_path",
    "end_process_group",
    "end_run",
    "extra_engine_options",
    "forget_other_precision",
    "fsdp2_prepare_model",
    "get_config_model_id",
    "global_then_local_main_first",
    "has_own_code",
    "let_copies_run_themselves",
    "load_vllm_generation",
    "maybe_gather_lm_head_ctx",
    "pad",
    "prepare_deepspeed",
    "repeat_iterable_dataset",
    "runs_another",
    "scoring_labels_alone",
    "split_tensor_dict",
    "take_out_autocast",
    "unwrap_model_for_generation",
    "use_adapter",
    "vllm_options",
    "vllm_sampling_options",
]


@contextmanager
@wraps(_unwrap_model_for_generation)
def unwrap_model_for_generation(*args: Any, **kwargs: Any) -> Iterator[Any]:
    """As TRL's, without transformers' warnings of the names by which TRL turns checkpointing of activations off and on."""
    with ExitStack() as stack:
        with old_names_allowed():
            model = stack.enter_context(_unwrap_model_for_generation(*args, **kwargs))
        yield model
        with old_names_allowed():
            stack.close()


@contextmanager
def old_names_allowed() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r".*gradient_checkpointing.* is deprecated", FutureWarning)
        yield


class OwnState:
    """
    What accelerate knows of a trainer's process: the device, the precision, the plugins.

    accelerate keeps it once for a process. The next config empties it, and the next trainer fills it with its own
    precision. The first trainer would then compute in the second one's precision, or fail.
    """

    _holders = (PartialState, AcceleratorState)

    def __init__(self) -> None:
        """Takes what accelerate knows now."""
        AcceleratorState._shared_state["_owner"] = self
        self._states = self._now()

    @contextmanager
    def active(self) -> Iterator[None]:
        """Within it, accelerate knows what it knew of this trainer. Then it knows again what it knew before, if anything."""
        if AcceleratorState._shared_state.get("_owner") is self:
            yield
            return
        before = self._now()
        self._set(self._states)
        try:
            yield
        finally:
            if any(before):
                self._set(before)

    @staticmethod
    def kept(method: Method) -> Method:
        """Runs a trainer's method within [`active`] of its `_own_state`."""

        @wraps(method)
        def run(trainer: Any, *args: Any, **kwargs: Any) -> Any:
            with trainer._own_state.active():
                return method(trainer, *args, **kwargs)

        return cast(Method, run)

    def _now(self) -> list[dict[str, Any]]:
        return [dict(holder._shared_state) for holder in self._holders]

    def _set(self, states: list[dict[str, Any]]) -> None:
        for holder, state in zip(self._holders, states, strict=True):
            holder._shared_state.clear()
            holder._shared_state.update(state)


def forget_other_precision(args: Any) -> None:
    """
    Has accelerate forget the precision of an earlier trainer, which it would refuse to change. DeepSpeed and FSDP keep
    theirs.
    """
    state = AcceleratorState._shared_state
    is_kept = state.get("distributed_type") in (DistributedType.DEEPSPEED, DistributedType.FSDP)
    if "_owner" in state and not is_kept and state["_mixed_precision"] != args.mixed_precision:
        AcceleratorState._reset_state()


def take_out_autocast(model: Any) -> None:
    """
    Takes out of a model's forward the mixed precision that accelerate has put there for a trainer. accelerate would not
    replace it, so the next trainer would run in the first one's precision.
    """
    forward = vars(model).get("forward")
    is_bound = isinstance(forward, MethodType)
    while isinstance(converting := getattr(forward, "__wrapped__", None), ConvertOutputsToFp32):
        forward = converting.model_forward.__wrapped__  # which autocast was put around
        model.forward = MethodType(forward, model) if is_bound else forward
        model.__dict__.pop("_original_forward", None)
    model.__dict__.pop("_is_accelerate_prepared", None)


@contextmanager
def scoring_labels_alone(token_scores: Callable[..., Any]) -> Iterator[None]:
    """
    Within it, TRL's fused head scores only the positions that have a label on CPUs too, and not all of the prompt. It does
    so with `token_scores` instead of its kernel, whose arguments and results these are.

    TRL leaves prompts out on devices with Triton only, because some of the others compile anew for each number of positions.
    """
    plain = {name: getattr(utils, name) for name in ("_use_triton", "_ChunkedLogProbFunction")}
    utils._use_triton = lambda device: device.type == "cpu" or plain["_use_triton"](device)
    utils._ChunkedLogProbFunction = SimpleNamespace(apply=token_scores)
    try:
        yield
    finally:
        for name, value in plain.items():
            setattr(utils, name, value)


def complete_head(model: Any) -> None:
    """Gives a head with trained tokens (PEFT's `trainable_token_indices`) the `bias` that TRL's fused head reads."""
    head = model.get_output_embeddings()
    if isinstance(head, TrainableTokensWrapper):
        head.__dict__["bias"] = getattr(head.original_module, "bias", None)


def let_copies_run_themselves(model: Any) -> None:
    """
    Lets a copy of the model (`copy.deepcopy`) compute with its own weights. TRL puts its fused head into a model's forward. That head
    calls the forward that was there before, of this very model, so a copy would answer with this model's weights.
    """
    fused, before = _fused_head(model)
    if before is None or before.__self__ is not model:
        return
    plain = before.__func__

    @wraps(type(model).forward)
    def forward(self: Any, *args: Any, fused_lm_head: bool = False, **kwargs: Any) -> Any:
        if fused_lm_head:
            return fused(self, *args, fused_lm_head=True, **kwargs)
        return plain(self, *args, **kwargs)

    model.forward = MethodType(forward, model)


def runs_another(model: Any) -> bool:
    """Whether a model is a copy of one into whose forward TRL had put its fused head, and computes with that one's weights."""
    _, before = _fused_head(model)
    return before is not None and before.__self__ is not model


def _fused_head(model: Any) -> tuple[Any, Any]:
    """Returns the function that TRL put in place of a model's forward, and the forward that it calls; None without one."""
    patched = vars(model).get("forward")
    fused = patched.__func__ if isinstance(patched, MethodType) else None
    before = getclosurevars(fused).nonlocals.get("original_forward") if isinstance(fused, FunctionType) else None
    return fused, before if isinstance(before, MethodType) else None


def load_vllm_generation() -> Any:
    """Returns TRL's vLLM engine class, imported only when needed: vLLM is optional and slow to import."""
    from trl.generation.vllm_generation import VLLMGeneration

    return VLLMGeneration


def vllm_sampling_options() -> set[str]:
    """Returns the names of the options of vLLM's `SamplingParams`."""
    from trl.generation import vllm_generation

    return {name for name in signature(vllm_generation.SamplingParams).parameters if not name.startswith("_")}


@contextmanager
def extra_engine_options(client: type | None = None, **options: Any) -> Iterator[None]:
    """
    Within it, TRL's engine class makes `vllm.LLM` with options that it has no arguments for, and a client of a server
    with the methods of `client`, if given.
    """
    from trl.generation import vllm_generation

    plain = {name: getattr(vllm_generation, name, None) for name in ("LLM", "VLLMClient")}
    vllm_generation.LLM = partial(plain["LLM"], **options) if plain["LLM"] is not None else None
    if client is not None:
        vllm_generation.VLLMClient = type("Client", (client, vllm_generation.VLLMClient), {})
    try:
        yield
    finally:
        for name, value in plain.items():
            setattr(vllm_generation, name, value)


def vllm_options(args: Any) -> dict[str, Any]:
    """Returns the options of that engine that both trainers have."""
    own = ("mode", "gpu_memory_utilization", "max_model_length", "model_impl")
    same = ("trust_remote_code", "repetition_penalty", "temperature", "top_p", "top_k", "max_completion_length")
    options = {name: getattr(args, f"vllm_{name}") for name in own} | {name: getattr(args, name) for name in same}
    return options | {"min_p": args.min_p or 0.0}


def end_run(trainer: Any) -> None:
    """
    Ends the trackers and the processes of a script's last trainer, after all processes have arrived.

    With gloo, a process could otherwise deadlock (torch 2.13): its communication thread needs the interpreter's lock
    to release the last collective, while the destructor of the process group holds that lock and waits for the thread.
    The short sleep gives the thread the lock.
    """
    trainer.accelerator.wait_for_everyone()
    _wait_for_gloo()
    _end_engine()
    trainer.accelerator.end_training()  # as `Trainer.end`, which transformers 5.17 lacks


def end_process_group() -> None:
    """Ends the process group of a script without a trainer, if there is one; see [`end_run`]."""
    if torch.distributed.is_initialized():
        _wait_for_gloo()
        _end_engine()
        PartialState().destroy_process_group()


def _wait_for_gloo() -> None:
    if torch.distributed.is_initialized() and torch.distributed.get_backend() == "gloo":
        time.sleep(0.5)


def _end_engine() -> None:
    """
    Lets vLLM end its groups before the process group ends. Otherwise, an engine in this process does it at the exit, and
    fails with a traceback.
    """
    vllm = sys.modules.get("vllm.distributed.parallel_state")
    if vllm is not None and vllm._WORLD is not None:  # not only imported
        vllm.cleanup_dist_env_and_memory()


def plain_tensors(weight: Tensor) -> list[Tensor]:
    """Returns the tensors that hold the numbers of a weight: those within one that torchao or quanto quantized, or itself."""
    if not is_traceable_wrapper_subclass(weight):
        return [weight]
    names, _ = weight.__tensor_flatten__()
    return [part for name in names for part in plain_tensors(getattr(weight, name))]


def accepted(function: Callable[..., Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """Returns the arguments that a function takes. The `forward` of a user's own model may have few."""
    taken = signature(function).parameters
    if any(of.kind is Parameter.VAR_KEYWORD for of in taken.values()):
        return arguments
    return {name: value for name, value in arguments.items() if name in taken}


def has_own_code(model: Any) -> bool:
    """Whether a model's class, without what FSDP adds to it, computes or generates by other code than transformers'."""
    names = ("forward", "prepare_inputs_for_generation")
    owners = (next((of for of in type(model).__mro__ if name in vars(of)), type(model)) for name in names)
    return not all(of.__module__.startswith("transformers.") for of in owners)
