"""The reference: the policy as it was when training began, frozen, in the memory of the student where that is possible."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from typing import Any

import torch
from accelerate import Accelerator, PartialState
from accelerate.logging import get_logger
from accelerate.utils import DistributedType
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from transformers import Trainer, TrainerCallback

from ..errors import ConsistencyError
from ..models.finite_weights import check_base
from ..models.quantization import scales_of
from ..models.sharding import is_sharded, prepare_frozen, shape_of, shard_of
from ..upstream import ForwardRedirection, create_model_from_path, get_config_model_id, use_adapter


logger = get_logger(__name__)


class Reference:
    """
    The initial policy, frozen.

    It shares the student's weights. With an adapter made for this run it is the model with that adapter off. Otherwise
    (full fine-tuning; an adapter that the model came with) it keeps a copy of what trains, and puts it in the place of
    the trained weights for the time of its pass.

    Args:
        model ([`~transformers.PreTrainedModel`] or [`~peft.PeftModel`]):
            The student before its first step, not wrapped for distributed training.
        adapter_off (`bool`):
            Whether the reference is the model with its adapter off.
    """

    def __init__(self, model: nn.Module, adapter_off: bool):
        self.model, self.adapter_off = model, adapter_off
        # By name: sharding, and whoever writes to 4-bit weights, puts other parameters there.
        self._frozen = [name for name, parameter in _weights(model).items() if not parameter.requires_grad]
        trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._trained = [] if adapter_off else trainable
        self._initial = [parameter.detach().clone() for parameter in self._trained]
        self.checksum = self.compute_checksum()

    def start(self) -> None:
        """Takes the checksum again, now that DeepSpeed or FSDP has the weights, which it rounds to its own precision."""
        self._swap()
        self._swap()
        self.checksum = self.compute_checksum()

    @contextmanager
    def active(self, model: Any) -> Iterator[Any]:
        """The model as the reference: no gradient, no dropout, the initial weights. Afterwards it is the student again."""
        was_training = model.training
        requires_grad = [(parameter, parameter.requires_grad) for parameter in model.parameters()]

        def restore() -> None:
            for parameter, required in requires_grad:
                parameter.requires_grad_(required)

        model.eval()
        self._swap()
        try:
            with torch.no_grad(), use_adapter(model, None) if self.adapter_off else nullcontext():
                # PEFT freezes an adapter that it switches off. FSDP would take that for what the adapter is.
                restore()
                yield model
        finally:
            self._swap()
            model.train(was_training)
            restore()  # PEFT makes every adapter weight trainable when it switches an adapter on again.

    def run(self, function: Callable[..., Any], frozen: Any, *args: Any) -> Any:
        """`function(frozen, *args)`, where `frozen` is what [`active`] gave."""
        return function(frozen, *args)

    def _swap(self) -> None:
        for index, parameter in enumerate(self._trained):
            parameter.data, self._initial[index] = self._initial[index].to(parameter), parameter.data

    def compute_checksum(self) -> int:
        """Of every bit of the reference's weights, except that equal bits in another order go unnoticed."""
        weights = _weights(self.model)
        return _checksum([*(weights[name] for name in self._frozen), *self._initial])

    def check(self) -> None:
        """
        Raises:
            [`ConsistencyError`]: If the reference is no longer what it was when training began.
        """
        if self.compute_checksum() != self.checksum:
            raise ConsistencyError(
                "The weights of the reference have changed during training, so that the student was not compared with "
                "the initial policy. Something outside this trainer wrote to them: merging an adapter into its base, for "
                "one, or a callback."
            )


class GivenReference(Reference):
    """
    A frozen model of its own in the place of the initial policy.

    Args:
        ref_model ([`~transformers.PreTrainedModel`]):
            The model. It shares no weight with the student.
        accelerator ([`~accelerate.Accelerator`]):
            What puts it on the student's device, and shards it as the student will be.
    """

    def __init__(self, ref_model: nn.Module, accelerator: Accelerator):
        self.wrapped = prepare_frozen(ref_model.eval().requires_grad_(False), accelerator)
        self.model = accelerator.unwrap_model(self.wrapped)
        self._redirect = ForwardRedirection()
        self.checksum = self.compute_checksum()

    def start(self) -> None:
        pass  # wrapped from the start

    @contextmanager
    def active(self, model: Any) -> Iterator[Any]:
        """The reference, without gradients; `model`, the student, stays as it is."""
        self.wrapped.eval()
        with torch.no_grad():
            yield self.model

    def run(self, function: Callable[..., Any], frozen: Any, *args: Any) -> Any:
        """As [`Reference.run`], inside the forward of the wrapper, which gathers the weights."""
        return self._redirect(self.wrapped, self.model, function, frozen, *args)

    def compute_checksum(self) -> int:
        """As [`Reference.compute_checksum`]."""
        return _checksum([*_weights(self.model).values()])


class StartReference(TrainerCallback):
    """
    Starts a reference when its student is wrapped by something that rounds weights, and has its checksum kept in the
    state of the run: a run goes on with the reference that it began with.
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
            "The reference is not the one that the run of the checkpoint had: its weights are others. Give the trainer the "
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
    Returns whether the initial policy is more than the model with its adapter off: PiSSA and OLoRA move a part of the base
    weights into the adapter, and `bias` trains the base model's biases.
    """
    init = str(getattr(peft_config, "init_lora_weights", True)).lower()
    trains_biases = str(getattr(peft_config, "bias", "none")) not in ("none", "False")
    return trains_biases or init.startswith(("pissa", "olora"))


def freeze_initial_policy(trainer: Trainer, model: Any, adapter_off: bool) -> Reference:
    """
    The model of a trainer as it is now, frozen.

    Args:
        trainer ([`~transformers.Trainer`]):
            The trainer, before its model is wrapped.
        model (`str` or [`~transformers.PreTrainedModel`]):
            The model as it was given to the trainer.
        adapter_off (`bool`):
            Whether it is the model with its adapter off.
    """
    if adapter_off or not is_sharded(trainer.accelerator):
        return Reference(trainer.model, adapter_off)
    # Shards cannot be exchanged for others: the copy that full fine-tuning needs anyway becomes a model of its own.
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


def checksum_base(model: nn.Module, has_new_adapter: bool) -> int:
    """
    Of every bit of a model's weights, as they are loaded.

    Args:
        model ([`~transformers.PreTrainedModel`] or [`~peft.PeftModel`]):
            The model before its first step.
        has_new_adapter (`bool`):
            Whether it has an adapter made for this run, which does not count.
    """
    return _checksum([weight for weight in _weights(model).values() if not (has_new_adapter and weight.requires_grad)])


def _weights(model: nn.Module) -> dict[str, Tensor]:
    """By name, and in the order of the names: PEFT's `target_parameters` moves parameters to other places."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()  # What FSDP has gathered may be rounded for the forward.
    # FSDP's activation checkpointing puts a module of its own around each block.
    named = {name.replace("_checkpoint_wrapped_module.", ""): weight for name, weight in model.named_parameters()}
    return dict(sorted(named.items()))


def _checksum(weights: list[Tensor]) -> int:
    weights = [tensor for weight in weights for tensor in (weight, *scales_of(weight))]
    sums = torch.tensor([_sum_of_bits(shard_of(weight)) for weight in weights], dtype=torch.int64)
    is_sharded = torch.tensor([shard_of(weight) is not weight for weight in weights], dtype=torch.bool)
    if is_sharded.any():
        # The sum over the shards is that of the whole.
        in_shards = sums[is_sharded].to(PartialState().device)
        torch.distributed.all_reduce(in_shards)
        sums[is_sharded] = in_shards.cpu()
    return sum(number * bits for number, bits in enumerate(sums.tolist(), start=1)) % 2**61


def _sum_of_bits(weight: Tensor) -> int:
    integer = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[weight.element_size()]
    return int(weight.detach().contiguous().view(integer).sum(dtype=torch.int64))


def load_reference_model(ref_model: Any, trainer: Any) -> Any:
    """
    Another model as the reference, loaded if it is only named.

    Raises:
        [`ConsistencyError`]: If its weights are not finite, or its vocabulary is not the student's.
    """
    args, accelerator = trainer.args, trainer.accelerator
    if isinstance(ref_model, str):
        options = {key: value for key, value in (args.model_init_kwargs or {}).items() if key != "revision"}
        options.setdefault("trust_remote_code", args.trust_remote_code)
        options.setdefault("use_safetensors", True)
        if accelerator.num_processes > 1:
            options["device_map"] = None  # "auto" would spread it over the other processes' devices.
        ref_model = create_model_from_path(ref_model, **options)
    check_base(ref_model, get_config_model_id(ref_model.config), accelerator)
    ours, theirs = (shape_of(model.get_output_embeddings().weight)[0] for model in (trainer.model, ref_model))
    if ours != theirs:
        raise ConsistencyError(
            f"`ref_model` has a vocabulary of {theirs} tokens and the model one of {ours}: their distributions cannot be "
            "compared. Use a reference with the same vocabulary."
        )
    return ref_model


def check_separate(ref_model: Any, model: Any) -> None:
    """Raises [`ConsistencyError`] if the reference would train along with the student."""
    if isinstance(model, str):
        return
    ours = {id(parameter) for parameter in model.parameters()}
    if any(id(parameter) in ours for parameter in ref_model.parameters()):
        raise ConsistencyError(
            "`ref_model` shares weights with the model in training, so that both would always agree. Leave it out: "
            "without it the reference is the initial policy, frozen, in the same memory."
        )
