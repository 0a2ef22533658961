"""What lets two processes on CPU train as several GPUs would, for the scripts that `accelerate launch` starts."""

import os

import torch
from accelerate.state import AcceleratorState, DistributedType, PartialState
from accelerate.utils import gather_object
from peft import LoraConfig
from torch.distributed.tensor import DTensor
from transformers import BitsAndBytesConfig, training_args

from tests.helpers.held_out import CONTROL, PAIRS
from tests.helpers.models import make_model
from trl_consistency import ConsistencyEvalCallback
from trl_consistency.upstream import DistributedBackend


# QLoRA's own. The weights are kept in numbers that FSDP can share out.
NF4 = {
    "load_in_4bit": True,
    "bnb_4bit_quant_type": "nf4",
    "bnb_4bit_use_double_quant": True,
    "bnb_4bit_compute_dtype": torch.bfloat16,
    "bnb_4bit_quant_storage": torch.bfloat16,
}
WORLD_SIZE = int(os.environ.get("WORLD_SIZE", "1"))


def is_on(name):
    return os.environ.get(f"ACCELERATE_USE_{name}", "false").lower() == "true"


def options():
    """Options of a config for the distribution that the environment asks for."""
    if WORLD_SIZE == 1:
        return {}
    # With `use_cpu` accelerate would pass over DeepSpeed; without, transformers wants a GPU for bfloat16.
    training_args.is_torch_bf16_gpu_available = lambda: True
    return {"use_cpu": not is_on("DEEPSPEED"), "ddp_backend": "gloo"}


def adapter_options(adapter, target_modules="all-linear"):
    """Arguments of a trainer for what trains: everything (`full`), `lora`, or `qlora`."""
    arguments = {"peft_config": LoraConfig(r=4, target_modules=target_modules)} if adapter != "full" else {}
    if adapter == "qlora":
        arguments["quantization_config"] = BitsAndBytesConfig(**NF4)
    return arguments


def allow_fsdp_on_cpu():
    """On CPU accelerate turns FSDP into DDP without a word."""
    if not is_on("FSDP"):
        return
    init = AcceleratorState.__init__

    def patched(self, *args, fsdp_plugin=None, **kwargs):
        init(self, *args, fsdp_plugin=fsdp_plugin, **kwargs)
        if self.distributed_type == DistributedType.MULTI_CPU and fsdp_plugin is not None:
            self.distributed_type = PartialState._shared_state["distributed_type"] = DistributedType.FSDP
            if self._mixed_precision != "no":
                fsdp_plugin.set_mixed_precision(self._mixed_precision)
            self.fsdp_plugin = fsdp_plugin

    AcceleratorState.__init__ = patched


def check_wrapper(trainer):
    """Fails if a trainer has not trained as the environment asked."""
    assert trainer.accelerator.num_processes == WORLD_SIZE
    wrapper, plain = (
        type(trainer.model_wrapped).__name__,
        type(trainer.accelerator.unwrap_model(trainer.model)).__name__,
    )
    if WORLD_SIZE == 1:
        assert wrapper == plain, wrapper
    elif is_on("FSDP"):
        assert wrapper.startswith("FSDP"), wrapper
        # Of whole blocks, not of the whole model alone
        assert any(type(module).__name__ == "FSDPQwen3DecoderLayer" for module in trainer.model.modules())
        assert all(isinstance(parameter, DTensor) for parameter in trainer.model.parameters())
    elif is_on("DEEPSPEED"):
        assert wrapper == "DeepSpeedEngine", wrapper
        stage = int(os.environ["ACCELERATE_DEEPSPEED_ZERO_STAGE"])
        assert trainer.model_wrapped.zero_optimization_stage() == stage
        assert all(hasattr(parameter, "ds_id") == (stage == 3) for parameter in trainer.model.parameters())
    else:
        assert wrapper == "DistributedDataParallel", wrapper


def make_sharp_model():
    """One whose answers are not all about as likely, so that the objectives have something to compare."""
    model = make_model()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.mul_(5)
    return model


def add_guard(trainer):
    """Has the model measured at every step, by processes that share the answers out."""
    trainer.add_callback(
        ConsistencyEvalCallback(trainer, PAIRS, CONTROL, eval_every=1, max_new_tokens=8, batch_size=2)
    )


def guard_entries(trainer):
    """What it has logged; fails unless all processes have the same."""
    entries = [
        {name: value for name, value in entry.items() if name.startswith("eval_consistency/")}
        for entry in trainer.state.log_history
        if "eval_consistency/score" in entry
    ]
    assert all(others == entries for others in gather_object([entries])), "the ranks have measured something else"
    return entries


def shard(weight):
    """What this process holds of a weight."""
    return weight.to_local() if isinstance(weight, DTensor) else getattr(weight, "ds_tensor", weight)


def trained_weights(trainer):
    """The trained weights, one after the other, gathered; fails unless all processes have the same."""
    unused = getattr(trainer, "_unused", ())  # frozen in training, and after it where the model is sharded
    named = trainer.model.named_parameters()
    parameters = [parameter for name, parameter in named if parameter.requires_grad and name not in unused]
    with DistributedBackend(trainer.accelerator).gather_params(parameters):
        whole = [p.full_tensor() if isinstance(p, DTensor) else p for p in parameters]
        weights = torch.cat([weight.detach().flatten().clone() for weight in whole])
    others = trainer.accelerator.gather(weights[None])
    assert all(torch.equal(weights, other) for other in others), "the ranks have drifted apart"
    return weights
