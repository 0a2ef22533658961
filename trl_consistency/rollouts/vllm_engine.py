"""Samples rollouts with vLLM. The policy is sent to the engine as merged copies of its layers, one at a time."""

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType, is_peft_model
from peft.tuners.lora import Linear as LoraLinear
from peft.tuners.lora import LoraLayer
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils.other import AuxiliaryTrainingWrapper, ModulesToSaveWrapper
from torch import Tensor, nn
from transformers import AutoConfig

from ..config.on_policy_consistency_config import OnPolicyConsistencyConfig
from ..data.rendering import ProcessingClass
from ..errors import ConsistencyError
from ..upstream import load_vllm_generation, vllm_options
from .loss import importance_weights


ADAPTERS = (BaseTunerLayer, AuxiliaryTrainingWrapper)


class RolloutEngine:
    """
    Samples from the policy with vLLM, in this process or on a server.

    To send an adapted model, TRL merges the adapter into the base weights and unmerges it. This does not restore the
    same bits, and it corrupts quantized weights. Here the base weights are the reference, so [`policy_weights`] are
    sent instead. `end_ids` are the tokens that end a rollout.
    """

    def __init__(
        self,
        model: Any,
        accelerator: Accelerator,
        processing_class: ProcessingClass,
        args: OnPolicyConsistencyConfig,
        end_ids: list[int],
    ):
        check_policy(model, accelerator, args)
        self._generation = load_vllm_generation()(
            # TRL quantizes the engine if this model has quantized modules. The engine must hold plain weights, which
            # alone can be replaced at each step.
            SimpleNamespace(name_or_path=model.name_or_path, named_modules=lambda: ()),
            accelerator,
            processing_class,
            **vllm_options(args),
            structured_outputs_regex=args.vllm_structured_outputs_regex,
            server_base_url=args.vllm_server_base_url,
            server_host=args.vllm_server_host,
            server_port=args.vllm_server_port,
            server_timeout=args.vllm_server_timeout,
            group_port=args.vllm_group_port,
            tensor_parallel_size=args.vllm_tensor_parallel_size,
            max_num_seqs=args.per_device_train_batch_size
            * cast(int, args.steps_per_generation)
            * args.vllm_tensor_parallel_size,
            enable_sleep_mode=args.vllm_enable_sleep_mode,
            logprobs=0 if args.vllm_importance_sampling_correction else None,
            # The same tokens end a rollout as in transformers. vLLM keeps the end token.
            generation_kwargs={"stop_token_ids": end_ids, **cast(dict[str, Any], args.generation_kwargs or {})},
        )
        self._generation.model = model
        if has_adapter(model):
            self._generation._iter_named_params = partial(policy_weights, model)
        self._synced_step: int | None = None
        if args.vllm_mode == "server" and args.vllm_importance_sampling_correction and accelerator.is_main_process:
            _check_server(self._generation.vllm_client)

    def __call__(
        self, prompts: list[list[int]], step: int, max_tokens: int
    ) -> tuple[list[list[int]], list[list[float]] | None]:
        """
        Returns token ids of a rollout of at most `max_tokens` for each prompt (token ids, repeated for several
        rollouts) and, if requested, each token's log-probability under the engine (NaN where it returns none). A new
        `step`, the number of optimizer steps so far, sends the weights to the engine.
        """
        self._generation.max_completion_length = max_tokens
        if step != self._synced_step:
            self._generation.sync_weights()
            self._synced_step = step
        _, completions, log_probs, _ = self._generation.generate(prompts, None, num_generations=1)
        if log_probs is not None:
            # One candidate per token: the sampled one
            log_probs = [[float("nan") if value is None else value for (value,) in row] for row in log_probs]
        return [list(completion_ids) for completion_ids in completions], log_probs

    def forget(self) -> None:
        """Makes the next call send the weights at any step, as after a new start or after loading the best model."""
        self._synced_step = None


def has_adapter(model: nn.Module) -> bool:
    """Whether the model contains layers of PEFT."""
    return any(isinstance(module, ADAPTERS) for module in model.modules())


def policy_weights(model: Any) -> Iterator[tuple[str, Tensor]]:
    """
    Yields names, as in the model without the adapter, and weights with the adapter merged. Leaves the model unchanged.

    Each adapted layer is copied, and its adapter is merged into the copy. 4-bit weights are dequantized. Only one copy
    exists at a time.
    """
    base = model.get_base_model() if is_peft_model(model) else model
    names = {name for name, _ in base.named_parameters()}
    # Tied weights are sent once.
    tied = {name for name, _ in base.named_parameters(remove_duplicate=False)} - names
    yield from ((name, weight) for name, weight in _weights(base) if name not in tied)


def _weights(module: nn.Module, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    if isinstance(module, ModulesToSaveWrapper):
        active = module.active_adapters
        module = module.modules_to_save[active[0]] if active else module.original_module
    if isinstance(module, ADAPTERS):
        module = _merged_copy(module)
    if _is_4bit(module):
        module = _dequantized(module)
    for name, parameter in module.named_parameters(recurse=False):
        yield prefix + name, parameter.data
    for name, child in module.named_children():
        yield from _weights(child, f"{prefix}{name}.")


@torch.no_grad()
def _merged_copy(layer: Any) -> nn.Module:
    layer = copy.deepcopy(layer)
    if hasattr(layer, "unload_and_optionally_merge_module"):
        return layer.unload_and_optionally_merge_module(merge=True, safe_merge=False, adapter_names=None)
    if _is_4bit(layer.get_base_layer()):
        if not isinstance(layer, LoraLayer):
            raise ConsistencyError(
                f"`use_vllm` cannot send 4-bit weights under a `{type(layer).__name__}`. Use LoRA, or leave `use_vllm` out."
            )
        layer.base_layer = _dequantized(layer.base_layer)
        # PEFT's layer for 4-bit weights would quantize the merged weights again; its plain layer does not.
        LoraLinear.merge(layer)
    else:
        layer.merge()
    return layer.get_base_layer()


def _is_4bit(module: nn.Module) -> bool:
    return type(getattr(module, "weight", None)).__name__ == "Params4bit"


def _dequantized(linear: Any) -> nn.Linear:
    from bitsandbytes.functional import dequantize_4bit

    plain = nn.Linear(linear.in_features, linear.out_features, bias=False, device="meta")
    weight = dequantize_4bit(linear.weight.data, linear.weight.quant_state)
    plain.weight, plain.bias = nn.Parameter(weight, requires_grad=False), linear.bias
    return plain


def check_policy(model: Any, accelerator: Accelerator, args: OnPolicyConsistencyConfig) -> None:
    """Raises [`ConsistencyError`] if vLLM cannot serve the policy."""
    base = model.get_base_model() if is_peft_model(model) else model
    if args.vllm_mode == "colocate":
        if not model.name_or_path:
            raise ConsistencyError(
                "`use_vllm` loads the model from its name, and this one has none (`model.name_or_path` is empty). Save it "
                "and give the trainer the folder, or leave `use_vllm` out."
            )
        config = AutoConfig.from_pretrained(model.name_or_path, trust_remote_code=args.trust_remote_code)
        if getattr(config, "quantization_config", None) is not None:
            raise ConsistencyError(
                f"`use_vllm` cannot take new weights into the quantized checkpoint {model.name_or_path}. Give the "
                "trainer the checkpoint in full precision and a `quantization_config`: only the training then quantizes."
            )
    if getattr(base, "hf_quantizer", None) is not None and not getattr(base, "is_loaded_in_4bit", False):
        raise ConsistencyError(
            "`use_vllm` is not available for weights quantized in another way than bitsandbytes' 4 bits: they cannot be "
            "sent to the engine together with the adapter. Use `load_in_4bit`, or leave `use_vllm` out."
        )
    if not has_adapter(model):
        return
    plugin = getattr(accelerator.state, "deepspeed_plugin", None)
    if accelerator.distributed_type == DistributedType.FSDP or (plugin is not None and plugin.zero_stage == 3):
        raise ConsistencyError(
            "`use_vllm` is not available with an adapter under FSDP or DeepSpeed ZeRO-3: a sharded layer cannot be "
            "merged in a copy. Use DDP or ZeRO-2, or leave `use_vllm` out."
        )
    configs = (base.config, base.config.get_text_config())
    is_tied = any(getattr(config, "tie_word_embeddings", False) for config in configs)
    embeddings = (base.get_input_embeddings(), base.get_output_embeddings())
    if is_tied and any(isinstance(module, ADAPTERS) for module in embeddings):
        raise ConsistencyError(
            "`use_vllm` is not available where an adapter trains one of two tied embeddings (`tie_word_embeddings`): the "
            "engine has a single one for both. Leave the embeddings out of the adapter, or leave `use_vllm` out."
        )


def _check_server(client: Any) -> None:
    mode = client.get_server_info()["model_config"]["logprobs_mode"]
    if mode != "processed_logprobs":
        raise ConsistencyError(
            f"The vLLM server runs with `--logprobs-mode {mode}`, which returns other probabilities than it samples "
            "with. Restart it with `--logprobs-mode processed_logprobs`, or set "
            "`vllm_importance_sampling_correction: false`."
        )


@contextmanager
def without_vllm(args: OnPolicyConsistencyConfig) -> Iterator[None]:
    """Keeps TRL's trainer from starting its own engine, which would merge the adapter into the reference's weights."""
    use_vllm, args.use_vllm = args.use_vllm, False
    try:
        yield
    finally:
        args.use_vllm = use_vllm


class EngineMismatch:
    """Measures how far the policy is from the engine that sampled, since the last log, under GRPO's metric names."""

    def __init__(self, args: OnPolicyConsistencyConfig, accelerator: Accelerator):
        self.args, self.accelerator = args, accelerator
        self._seen: dict[str, list[Tensor]] = {"train": [], "eval": []}

    def add(self, mode: str, metrics: dict[str, list[float]], mask: Tensor, log_ratio: Tensor) -> None:
        """
        Adds a batch to the metrics of a mode, `"train"` or `"eval"`. `metrics` are those of the trainer's next log,
        cleared after it. `mask`, (B, T), marks the compared tokens, and `log_ratio` has log(policy / engine) of each,
        in nats.
        """
        seen = self._seen[mode]
        if "sampling/sampling_logp_difference/max" not in metrics:  # cleared by a log
            seen.clear()
        rows = log_ratio.new_full(mask.shape, math.nan).masked_scatter(mask.bool(), log_ratio)
        rows = self.accelerator.pad_across_processes(rows, dim=1, pad_index=math.nan)
        # In evaluation, `gather_for_metrics` drops the rows repeated to fill the last batch.
        log_ratio = (self.accelerator.gather if mode == "train" else self.accelerator.gather_for_metrics)(rows)
        seen.append(log_ratio[~log_ratio.isnan()])
        log_ratio = torch.cat(seen)
        if not len(log_ratio):
            return
        difference, weights = log_ratio.abs(), importance_weights(log_ratio, self.args)
        for name, value in (
            ("sampling_logp_difference/mean", difference.mean()),
            ("sampling_logp_difference/max", difference.max()),
            ("importance_sampling_ratio/min", weights.min()),
            ("importance_sampling_ratio/mean", weights.mean()),
            ("importance_sampling_ratio/max", weights.max()),
        ):
            metrics[f"sampling/{name}"] = [value.item()]
