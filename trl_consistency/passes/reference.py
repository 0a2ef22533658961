"""The reference: the initial policy, frozen, which shares the student's weights in memory where possible."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from typing import Any

import torch
from accelerate import Accelerator, PartialState
from accelerate.utils import DistributedType
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from transformers import Trainer, TrainerCallback

from ..errors import ConsistencyError
from ..generation.options import evaluating
from ..log import get_logger
from ..models.adapter_checks import check_adapter_of_reference
from ..models.adapter_state import switched_off
from ..models.checks import LOADING
from ..models.finite_weights import check_base
from ..models.quantization import prevent_repacking, scales_of, settle_biases
from ..models.sharding import is_sharded, prepare_frozen, shape_of, shard_of
from ..upstream import ForwardRedirection, create_model_from_path, get_config_model_id, plain_tensors


logger = get_logger(__name__)


class Reference:
    """
    The initial policy, frozen. It is made from the student before its first step, not wrapped for distributed
    training.

    It shares the student's weights. With a new adapter, it is the model with the adapter off (`adapter_off`).
    Otherwise (full fine-tuning, or an adapter that the model already has) it keeps a copy of the trainable weights,
    and swaps it in for its forward pass.
    """

    given: Any = None  # the separate model, if it is one
    is_earlier = False  # whether the student was changed after this was made, and before its first step

    def __init__(self, model: nn.Module, adapter_off: bool):
        self.model, self.adapter_off = model, adapter_off
        # By name: sharding and writes to 4-bit weights replace the parameters.
        self._frozen = [name for name, parameter in _weights(model).items() if not parameter.requires_grad]
        trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._trained = [] if adapter_off else trainable
        self._initial = [parameter.detach().clone() for parameter in self._trained]
        self.checksum = self.compute_checksum()

    def start(self) -> None:
        """Recomputes the checksum after DeepSpeed or FSDP has rounded the weights to its own dtype."""
        self._swap()
        self._swap()
        self.checksum = self.compute_checksum()

    @contextmanager
    def active(self, model: Any) -> Iterator[Any]:
        """Yields the model with the initial weights, without gradients and dropout. Then restores the student."""
        if not self.adapter_off:
            check_adapter_of_reference(model)
        with evaluating(model):
            self._swap()
            try:
                with torch.no_grad(), switched_off(model) if self.adapter_off else nullcontext():
                    yield model
            finally:
                self._swap()

    def run(self, function: Callable[..., Any], frozen: Any, *args: Any) -> Any:
        """Returns `function(frozen, *args)`, where `frozen` is the model from [`active`]."""
        return function(frozen, *args)

    def _swap(self) -> None:
        torch.clear_autocast_cache()  # Within autocast of a script, it has cast weights by parameter.
        for index, parameter in enumerate(self._trained):
            parameter.data, self._initial[index] = self._initial[index].to(parameter), parameter.data

    def compute_checksum(self) -> int:
        """Returns the checksum of the reference's weights. It does not detect a reordering within one weight."""
        weights = _weights(self.model)
        return _checksum([*(weights[name] for name in self._frozen), *self._initial])

    def check_parameters(self) -> None:
        """
        Raises [`ConsistencyError`] if the model has other trained parameters than those that were copied, or trains ones that were
        frozen: the reference would run with the student's weights.
        """
        present = {id(parameter) for parameter in self.model.parameters()}
        if any(id(parameter) not in present for parameter in self._trained):
            raise ConsistencyError(
                "Parameters of the model were replaced after the trainer was made (`resize_token_embeddings`, for one), so that the "
                "reference would share them with the student. Change the model first, and make a new trainer with it."
            )
        frozen = set(self._frozen)
        unfrozen = [name for name, of in _named(self.model) if of.requires_grad and name in frozen]
        if unfrozen:
            raise ConsistencyError(
                f"{len(unfrozen)} weight(s) that were frozen when the trainer was made are trainable now (such as {unfrozen[0]}), and the "
                "reference shares them with the student. Unfreeze them first, and make a new trainer."
            )

    def check(self) -> None:
        """Raises [`ConsistencyError`] if the weights have changed since training began."""
        self.check_parameters()
        if self.compute_checksum() != self.checksum:
            raise ConsistencyError(
                "The weights of the reference have changed during training, so that the student was not compared with "
                "the initial policy. Something outside this trainer wrote to them: merging an adapter into its base, for "
                "one, or a callback. Take that out, and train again."
            )


class GivenReference(Reference):
    """
    A separate frozen model as the reference: one that was `given`, or a copy of the initial policy. It must not share weights with the
    student.
    """

    def __init__(self, ref_model: nn.Module, accelerator: Accelerator, given: nn.Module | None = None):
        self.given = given
        self.wrapped = prepare_frozen(ref_model.eval().requires_grad_(False), accelerator)
        self.model = accelerator.unwrap_model(self.wrapped)
        self._redirect = ForwardRedirection()
        self.checksum = self.compute_checksum()

    def start(self) -> None:
        pass  # already wrapped

    def check_parameters(self) -> None:
        pass  # shares none with the student

    @contextmanager
    def active(self, model: Any) -> Iterator[Any]:
        """Yields the reference, without gradients. `model`, the student, is not changed."""
        self.wrapped.eval()
        with torch.no_grad():
            yield self.model

    def run(self, function: Callable[..., Any], frozen: Any, *args: Any) -> Any:
        """Like [`Reference.run`], inside the wrapper's forward, which gathers the weights."""
        return self._redirect(self.wrapped, self.model, function, frozen, *args)

    def compute_checksum(self) -> int:
        """See [`Reference.compute_checksum`]."""
        return _checksum([*_weights(self.model).values()])


class StartReference(TrainerCallback):
    """
    Starts the reference under DeepSpeed or FSDP, which round weights, and keeps its checksum in the trainer state, so
    that a resumed run must have the same reference.
    """

    def __init__(self, reference: Reference, accelerator: Accelerator):
        self.reference, self.accelerator = reference, accelerator
        self.may_differ = False

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.accelerator.distributed_type in (DistributedType.DEEPSPEED, DistributedType.FSDP):
            self.reference.start()
        checksum = self.reference.checksum
        before = state.stateful_callbacks.setdefault("reference", {"checksum": checksum})
        if before["checksum"] == checksum:
            return
        message = (
            "The reference differs from that of the checkpoint's run: it has other weights. Give the trainer the "
            "model (and `ref_model`) that the run began with, not the checkpoint's; `resume_from_checkpoint` loads what "
            "was trained since."
        )
        is_quantized = getattr(self.reference.model, "hf_quantizer", None) is not None
        if self.may_differ:
            before["checksum"] = checksum
        elif is_quantized or self.accelerator.distributed_type == DistributedType.DEEPSPEED:
            logger.warning(f"{message} (Or they were rounded on other hardware, or in another precision.)")
        else:
            raise ConsistencyError(message)


def adapter_changes_base(peft_config: Any) -> bool:
    """
    Whether the initial policy differs from the model with its adapter off: PiSSA and OLoRA move a part of the base
    weights into the adapter, and `bias` trains the base model's biases.
    """
    init = str(getattr(peft_config, "init_lora_weights", True)).lower()
    trains_biases = str(getattr(peft_config, "bias", "none")) not in ("none", "False")
    return trains_biases or init.startswith(("pissa", "olora"))


def freeze_initial_policy(trainer: Trainer, model: Any, adapter_off: bool) -> Reference:
    """
    Returns the current model of a trainer, which is not wrapped yet, as a frozen reference. `model` is the trainer's
    argument.
    """
    if adapter_off or not is_sharded(trainer.accelerator):
        return Reference(trainer.model, adapter_off)
    # Shards cannot be swapped, so the copy of the weights becomes a separate model.
    if not any(hasattr(parameter, "ds_id") for parameter in trainer.model.parameters()):
        return GivenReference(deepcopy(trainer.model), trainer.accelerator)
    if not isinstance(model, str):
        raise ConsistencyError(
            "Under DeepSpeed ZeRO-3 the model came in shards, which cannot be copied for the reference. Give the trainer "
            "its name or path instead, so that the reference can be loaded from there, or set `zero3_init_flag: false`."
        )
    options = {**(trainer.args.model_init_kwargs or {}), "device_map": None}
    options.setdefault("trust_remote_code", trainer.args.trust_remote_code)
    return GivenReference(create_model_from_path(model, **options), trainer.accelerator)


def base_weights(model: nn.Module, has_new_adapter: bool) -> list[str]:
    """Returns the names of a model's weights as they were loaded, before the first step and without a new adapter."""
    return [name for name, weight in _weights(model).items() if not (has_new_adapter and weight.requires_grad)]


def checksum_of(model: nn.Module, names: list[str]) -> int:
    """Returns the checksum of the weights with these names."""
    weights = _weights(model)
    return _checksum([weights[name] for name in names])


def trained_checksum(model: nn.Module) -> int:
    """Returns the checksum of the weights that are trained."""
    return _checksum([weight for weight in _weights(model).values() if weight.requires_grad])


def _weights(model: nn.Module) -> dict[str, Tensor]:
    """Returns the weights by name, sorted, because PEFT's `target_parameters` changes their order."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()  # FSDP's gathered weights may be rounded for the forward.
    return dict(sorted(_named(model)))


def _named(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    for name, weight in model.named_parameters():
        # FSDP's activation checkpointing wraps each block in a module.
        yield name.replace("_checkpoint_wrapped_module.", ""), weight


def _checksum(weights: list[Tensor]) -> int:
    weights = [tensor for weight in weights for tensor in (weight, *scales_of(weight))]
    sums = torch.tensor([_sum_of_bits(shard_of(weight)) for weight in weights], dtype=torch.int64)
    is_sharded = torch.tensor([shard_of(weight) is not weight for weight in weights], dtype=torch.bool)
    if is_sharded.any():
        # Sums over shards add up to the sum over the whole weight.
        in_shards = sums[is_sharded].to(PartialState().device)
        torch.distributed.all_reduce(in_shards)
        sums[is_sharded] = in_shards.cpu()
    return sum(number * bits for number, bits in enumerate(sums.tolist(), start=1)) % 2**61


def _sum_of_bits(weight: Tensor) -> int:
    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    parts = [part.detach().contiguous() for part in plain_tensors(weight)]
    return sum(int(part.view(integers[part.element_size()]).sum(dtype=torch.int64)) for part in parts)


def load_reference_model(ref_model: Any, trainer: Any) -> Any:
    """
    Returns another model as the reference, and loads it if it is given by name. Raises [`ConsistencyError`] if its
    weights are not finite, or its vocabulary size is not the student's.
    """
    args, accelerator = trainer.args, trainer.accelerator
    if isinstance(ref_model, str):
        # Changes of the config are of the student.
        given = (args.model_init_kwargs or {}).items()
        options = {key: value for key, value in given if key in LOADING and key != "revision"}
        options.setdefault("trust_remote_code", args.trust_remote_code)
        options.setdefault("use_safetensors", True)
        if accelerator.num_processes > 1:
            options["device_map"] = None  # "auto" would also use the other processes' devices.
        ref_model = create_model_from_path(ref_model, **options)
    prevent_repacking(ref_model)
    settle_biases(ref_model)
    check_base(ref_model, get_config_model_id(ref_model.config), accelerator)
    ours, theirs = (shape_of(model.get_output_embeddings().weight)[0] for model in (trainer.model, ref_model))
    if ours != theirs:
        raise ConsistencyError(
            f"`ref_model` has a vocabulary of {theirs} tokens and the model one of {ours}: their distributions cannot be "
            "compared. Use a reference with the same vocabulary."
        )
    return ref_model


def check_separate(ref_model: Any, model: Any) -> None:
    """Raises [`ConsistencyError`] if the reference shares weights with the student."""
    if isinstance(model, str):
        return
    ours = {id(parameter) for parameter in model.parameters()}
    if any(id(parameter) in ours for parameter in ref_model.parameters()):
        raise ConsistencyError(
            "`ref_model` shares weights with the model in training, so that both would always agree. Leave it out: "
            "without it the reference is the initial policy, frozen, in the same memory."
        )
