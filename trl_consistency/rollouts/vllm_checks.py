"""What vLLM cannot serve, said before training."""

import os
from typing import Any

from accelerate import Accelerator
from accelerate.utils import DistributedType
from transformers import AutoConfig

from ..config.on_policy_consistency_config import OnPolicyConsistencyConfig
from ..errors import ConsistencyError
from ..generation.vllm_engine import check_revision, check_sampling_options
from ..passes.blocks import base_model
from .adapter_server import check_server_options
from .adapter_sync import check_adapter, check_adapter_config
from .policy_weights import ADAPTERS, has_adapter


def check_options(model: Any, args: OnPolicyConsistencyConfig, peft_config: Any) -> None:
    """Raises [`ConsistencyError`] for what the trainer's arguments alone show that vLLM cannot serve."""
    if not args.use_vllm:
        return
    if peft_config is not None and args.vllm_sync != "weights":
        check_adapter_config(peft_config)
        if args.vllm_mode == "server":
            check_server_options(args)
    check_sampling_options(args.generation_kwargs)
    is_whole = isinstance(model, str) and not os.path.isfile(os.path.join(model, "adapter_config.json"))
    if peft_config is None and is_whole:
        _check_takes_weights(args)
    elif isinstance(model, str) and args.vllm_mode == "colocate" and args.vllm_sync != "weights":
        check_revision(args)


def check_policy(
    model: Any, accelerator: Accelerator, args: OnPolicyConsistencyConfig, sends_adapter: bool = False
) -> None:
    """Raises [`ConsistencyError`] if vLLM cannot serve the policy. `sends_adapter`: whether it gets the adapter alone."""
    if sends_adapter:
        check_adapter(model)
        if args.vllm_mode == "server":
            check_server_options(args)
        if args.vllm_enable_sleep_mode:
            raise ConsistencyError(
                "`vllm_enable_sleep_mode` makes the engine forget its base model after each generation, and it gets the "
                "adapter alone. Leave it out, or set `vllm_sync: weights`."
            )
    else:
        _check_takes_weights(args)
    if args.vllm_mode == "colocate" and not model.name_or_path:
        raise ConsistencyError(
            "`use_vllm` loads the model from its name, and this one has none (`model.name_or_path` is empty). Save it "
            "and give the trainer the folder, or leave `use_vllm` out."
        )
    _check_quantization(model, args, sends_adapter)
    if not has_adapter(model):
        return
    plugin = getattr(accelerator.state, "deepspeed_plugin", None)
    if accelerator.distributed_type == DistributedType.FSDP or (plugin is not None and plugin.zero_stage == 3):
        raise ConsistencyError(
            "`use_vllm` is not available with an adapter under FSDP or DeepSpeed ZeRO-3: a sharded layer cannot be "
            "merged in a copy. Use DDP or ZeRO-2, or leave `use_vllm` out."
        )
    base = base_model(model)
    configs = (base.config, base.config.get_text_config())
    is_tied = any(getattr(config, "tie_word_embeddings", False) for config in configs)
    embeddings = (base.get_input_embeddings(), base.get_output_embeddings())
    if is_tied and any(isinstance(module, ADAPTERS) for module in embeddings):
        raise ConsistencyError(
            "`use_vllm` is not available where an adapter trains one of two tied embeddings (`tie_word_embeddings`): the "
            "engine has a single one for both. Leave the embeddings out of the adapter, or leave `use_vllm` out."
        )


def _check_quantization(model: Any, args: OnPolicyConsistencyConfig, sends_adapter: bool) -> None:
    base = base_model(model)
    is_quantized, is_4bit = getattr(base, "hf_quantizer", None) is not None, getattr(base, "is_loaded_in_4bit", False)
    from_quantized = False
    if args.vllm_mode == "colocate":
        config = AutoConfig.from_pretrained(model.name_or_path, trust_remote_code=args.trust_remote_code)
        from_quantized = getattr(config, "quantization_config", None) is not None
    if sends_adapter:
        if is_quantized and args.vllm_mode == "server":
            raise ConsistencyError(
                "A vLLM server cannot get only the adapter of a quantized model, because its base weights would differ. Set "
                "`vllm_mode: colocate`, whose engine loads the same weights, or `vllm_sync: weights`."
            )
        if is_quantized and not is_4bit and not from_quantized:
            raise ConsistencyError(
                "`use_vllm` is not available for weights quantized in another way than bitsandbytes' 4 bits when they "
                "are loaded: the engine would load the checkpoint in full precision, another model. Use `load_in_4bit` or "
                "a quantized checkpoint, or leave `use_vllm` out."
            )
        return
    if from_quantized:
        raise ConsistencyError(
            f"`use_vllm` cannot take new weights into the quantized checkpoint {model.name_or_path}. Give the "
            "trainer the checkpoint in full precision and a `quantization_config`: only the training then quantizes."
        )
    if is_quantized and not is_4bit:
        raise ConsistencyError(
            "`use_vllm` is not available for weights quantized in another way than bitsandbytes' 4 bits: they cannot be "
            "sent to the engine together with the adapter. Use `load_in_4bit`, or leave `use_vllm` out."
        )


def _check_takes_weights(args: OnPolicyConsistencyConfig) -> None:
    if args.vllm_mode == "colocate" and engine_is_on_cpu():
        raise ConsistencyError(
            "`use_vllm` cannot send whole weights to an engine on a CPU, which packs them when it loads them and takes no "
            "others. Train a LoRA adapter (`use_peft: true`), which is sent alone, or leave `use_vllm` out."
        )


def engine_is_on_cpu() -> bool:
    """Whether vLLM is built for CPUs."""
    from vllm.platforms import current_platform

    return current_platform.is_cpu()
