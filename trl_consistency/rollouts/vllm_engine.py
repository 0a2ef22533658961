"""
Samples rollouts with vLLM. If an adapter is trained, the engine gets it alone ([`AdapterSync`]). Otherwise all weights are
sent, those of adapted layers as merged copies, one at a time.
"""

import math
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, TypeAlias, cast

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import Tensor, nn

from ..config.device import own_randomness
from ..config.on_policy_consistency_config import OnPolicyConsistencyConfig
from ..data.rendering import ProcessingClass
from ..errors import ConsistencyError, one_line
from ..generation.server_requests import NO_PENALTIES, BoundedClient
from ..generation.vllm_engine import check_llm, check_room
from ..models.checkpoint_weights import with_published_names
from ..passes.blocks import base_model
from ..passes.reference import trained_checksum
from ..upstream import extra_engine_options, load_vllm_generation, vllm_options
from .adapter_server import Server
from .adapter_sync import (
    Adapter,
    AdapterSync,
    EngineHere,
    engine_options,
    engine_rank,
)
from .loss import importance_weights
from .origin import OriginCheck, can_check, samples_all
from .policy_weights import ADAPTERS, has_adapter, policy_weights, write_base
from .vllm_checks import check_policy


# Token ids of completions, and the log-probability of each token under the engine
Sampled: TypeAlias = tuple[list[list[int]], list[list[float]] | None]


class RolloutEngine:
    """
    Samples from the policy with vLLM, in this process or on a server.

    To send an adapted model, TRL merges the adapter into the base weights and unmerges it. This does not restore the
    same bits, and it corrupts quantized weights. Here the base weights are the reference, so either the adapter is sent
    alone, or [`policy_weights`] are. `end_ids` are the tokens that end a rollout.
    """

    def __init__(
        self,
        model: Any,
        accelerator: Accelerator,
        processing_class: ProcessingClass,
        args: OnPolicyConsistencyConfig,
        end_ids: list[int],
    ):
        sends_adapter = sends_adapter_alone(model, args)
        check_policy(model, accelerator, args, sends_adapter)
        dtype = compute_dtype(model, args)
        self._model, self._args, self._end_ids = model, args, end_ids
        self._accelerator = accelerator
        self._origin = OriginCheck(model, accelerator, args, dtype) if sends_adapter and can_check(args) else None
        # Filtered tokens have other probabilities than the policy's.
        self._tells_log_probs = args.vllm_importance_sampling_correction and samples_all(args)
        # An engine in this process sets its random numbers, whatever the `seed`.
        with (
            own_randomness(accelerator.device),
            explained(args, "start"),
            checkpoint_of(model, processing_class, sends_adapter) as name,
            extra_engine_options(
                BoundedClient if sends_adapter else None,
                **head_options(model, dtype),
                **(engine_options(model, dtype) if sends_adapter else {}),
            ),
        ):
            self._generation = load_vllm_generation()(
                # TRL quantizes the engine if this model has quantized modules. vLLM 0.31 has no such quantization, and
                # the weights of a quantized engine could not be replaced.
                SimpleNamespace(name_or_path=name, named_modules=lambda: ()),
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
                logprobs=0 if args.vllm_importance_sampling_correction or self._origin is not None else None,
                # The same tokens end a rollout as in transformers. vLLM keeps the end token.
                generation_kwargs={
                    **NO_PENALTIES,
                    "stop_token_ids": end_ids,
                    **cast(dict[str, Any], args.generation_kwargs or {}),
                },
            )
        self._generation.model = model
        # The step of the policy that the engine has, how its adapters act, and the checksum of its weights
        self._synced: tuple[int, list[Any], int] | None = None
        self.in_background: Future[Any] | None = None  # rollouts that are being sampled
        self.report: dict[str, float] = {}
        self._adapter_sync: AdapterSync | None = None
        if sends_adapter:
            self._adapter_sync = AdapterSync(self._adapters(accelerator), model)
            self._adapter_sync.send()  # what the engine does not take is said now
            return
        if has_adapter(model):
            self._generation._iter_named_params = partial(policy_weights, model)
        else:
            weights_of = self._generation._iter_named_params
            self._generation._iter_named_params = lambda: with_published_names(base_model(model), weights_of())
        if args.vllm_mode == "server" and args.vllm_importance_sampling_correction and accelerator.is_main_process:
            _check_server(self._generation.vllm_client)

    def _adapters(self, accelerator: Accelerator) -> EngineHere | Server | None:
        """Returns where this process loads adapters: each into its own engine, or the main one into the server."""
        if self._args.vllm_mode == "colocate":
            return EngineHere(self._generation.llm)
        if not accelerator.is_main_process:
            return None
        vocabulary = base_model(self._model).get_input_embeddings().num_embeddings
        return Server(self._generation.vllm_client, self._args, engine_rank(self._model), vocabulary)

    def __call__(self, prompts: list[list[int]], step: int, max_tokens: int) -> Sampled:
        """
        Returns token ids of a rollout of at most `max_tokens` for each prompt (token ids, repeated for several rollouts). If
        `vllm_importance_sampling_correction` is on and nothing filters the tokens, each token's log-probability under the engine
        comes with them (NaN where it returns none). A new `step`, the number of optimizer steps so far, sends the policy to the
        engine. `report` then has what is logged of this call.
        """
        self.report = {}
        self.bring_policy(step)
        return self.checked(step, prompts, self.sample(prompts, max_tokens))

    def sample(self, prompts: list[list[int]], max_tokens: int) -> Sampled:
        """Returns unchecked rollouts of the policy that the engine has. With a server, a thread may do this while the model trains."""
        self.check_room(prompts, max_tokens)
        self._generation.max_completion_length = max_tokens
        shared = shared_randomness(self._accelerator, self._args.vllm_tensor_parallel_size)
        with explained(self._args, "sample rollouts"), shared:
            _, completions, log_probs, _ = self._generation.generate(prompts, None, num_generations=1)
        completions = [list(completion_ids) for completion_ids in completions]
        if log_probs is not None:
            # One candidate per token: the sampled one
            log_probs = [[math.nan if value is None else value for (value,) in row] for row in log_probs]
        return completions, log_probs

    def check_room(self, prompts: list[list[int]], max_tokens: int, whose: str = "") -> None:
        """Raises [`ConsistencyError`] if the engine would cut answers to prompts (token ids), or give them wrong positions."""
        if self._args.vllm_mode == "server":  # which refuses what has no room
            check_room(self._args.vllm_max_model_length, prompts, max_tokens, whose)
        else:
            config = base_model(self._model).config
            check_llm(self._generation.llm, self._args, config, prompts, max_tokens, whose)

    def checked(
        self, step: int, prompts: list[list[int]], sampled: Sampled, origin: tuple[int, Adapter] | None = None
    ) -> Sampled:
        """
        Returns rollouts after checking, if it is time to, where they come from: from the policy, or from the earlier one that
        was sent as `origin`.
        """
        completions, log_probs = sampled
        if self._origin is not None and self._origin.is_due(step):
            assert log_probs is not None
            found = self._origin(step, prompts, completions, log_probs, origin)
            self.report |= {f"sampling/origin/{name}": value for name, value in found.items()}
        return completions, log_probs if self._tells_log_probs else None

    @property
    def sent(self) -> tuple[int, Adapter] | None:
        """The adapter that the engine has, and its step, if their origin is checked."""
        return None if self._origin is None else self._origin.present

    @property
    def other_seconds(self) -> float:
        """Seconds of the last call that went to sending the policy and to checking the rollouts' origin."""
        return sum(self.report.get(f"sampling/{name}", 0.0) for name in ("sync_seconds", "origin/seconds"))

    def greedy(self, prompts: list[list[int]], max_tokens: int) -> list[list[int]]:
        """Returns token ids of the greedy answers to prompts (token ids) by the policy that the engine has, for the guard."""
        self.check_room(prompts, max_tokens, " of the guard")
        options: dict[str, Any] = {
            "temperature": 0.0,
            "top_p": 1.0,
            "top_k": 0,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
        }
        options |= {"max_completion_length": max_tokens, "structured_outputs_regex": None}
        options |= {"generation_kwargs": {**NO_PENALTIES, "stop_token_ids": self._end_ids}}
        of_rollouts = {name: getattr(self._generation, name) for name in options}
        vars(self._generation).update(options)
        try:
            with explained(self._args, "answer the prompts of the guard"):
                _, completions, *_ = self._generation.generate(prompts, None, num_generations=1)
        finally:
            vars(self._generation).update(of_rollouts)
        return [list(completion_ids) for completion_ids in completions]

    def answers_each_process(self, processes: int) -> bool:
        """Whether each process may ask by itself. Otherwise all must ask at the same time, for equally many prompts."""
        is_own = self._args.vllm_mode == "colocate" and self._args.vllm_tensor_parallel_size == 1
        return is_own or processes == 1

    def bring_policy(self, step: int) -> None:
        """
        Sends the policy to the engine, unless it has that of this `step` already. Waits until the engine is free.

        Within a step the weights may change, too: averaging optimizers and callbacks put others in for an evaluation. So may the scale
        of an adapter.
        """
        self._wait()
        policy = step, _actions(self._model), trained_checksum(self._model)
        if policy != self._synced:
            self._send(step)
            self._synced = policy

    def _wait(self) -> None:
        """Waits for rollouts that are being sampled. Whoever asks for them gets their error."""
        begun, self.in_background = self.in_background, None
        if begun is not None:
            begun.exception()

    def _send(self, step: int) -> None:
        start = time.perf_counter()
        if self._adapter_sync is None:
            self._generation.sync_weights()
        else:
            adapter = self._adapter_sync.send()
            if self._origin is not None:
                self._origin.sent(step, adapter)
        self.report["sampling/sync_seconds"] = time.perf_counter() - start

    def forget(self) -> None:
        """Makes the next call send the policy at any step, as after a new start or after loading the best model."""
        self._synced = None
        self._wait()
        if self._origin is not None:
            self._origin.restart()


class PolicyAnswers:
    """
    The greedy answers of the policy after `step` optimizer steps, by the engine of its rollouts: an
    [`Engine`][trl_consistency.generation.targets.Engine] for the guard.
    """

    def __init__(self, engine: RolloutEngine, step: int, max_tokens: int):
        self._engine, self._step, self._max_tokens = engine, step, max_tokens
        self.options: dict[str, Any] = {"engine": "vllm"}

    def start(self) -> None:
        self._engine.bring_policy(self._step)

    def __call__(self, prompts: list[list[int]], seed: int) -> list[list[int]]:
        return self._engine.greedy(prompts, self._max_tokens)


@contextmanager
def shared_randomness(accelerator: Accelerator, size: int) -> Iterator[None]:
    """
    Gives the processes of each group of `size`, whose engines share one model, the same random numbers: each engine draws the tokens
    itself, and with other ones they would go on from different texts. All processes must call this.
    """
    if size == 1:
        yield
        return
    seeds = gather_object([int(torch.randint(2**31, ()))])
    seed = seeds[accelerator.process_index // size * size]
    with own_randomness(accelerator.device):
        torch.manual_seed(seed)
        np.random.seed(seed)
        yield


def _actions(model: nn.Module) -> list[Any]:
    """Returns, of each layer of PEFT, whether it is off, its active adapters, and their scales."""
    layers: list[Any] = [module for module in model.modules() if isinstance(module, ADAPTERS)]
    return [
        (layer.disable_adapters, list(layer.active_adapters), dict(getattr(layer, "scaling", {}))) for layer in layers
    ]


def sends_adapter_alone(model: nn.Module, args: OnPolicyConsistencyConfig) -> bool:
    """Whether the engine gets the adapter alone, as it does if there is one and `vllm_sync` does not say otherwise."""
    return has_adapter(model) if args.vllm_sync is None else args.vllm_sync == "adapter"


@contextmanager
def explained(args: OnPolicyConsistencyConfig, what: str) -> Iterator[None]:
    """Raises errors of vLLM, which have no common type, as [`ConsistencyError`] with what the user can do."""
    try:
        yield
    except ConsistencyError:
        raise
    except Exception as error:
        if args.vllm_mode == "server":
            where = args.vllm_server_base_url or f"{args.vllm_server_host}:{args.vllm_server_port}"
            raise ConsistencyError(
                f"The vLLM server at {where} could not {what}: {type(error).__name__}: {one_line(error)}. See its log."
            ) from error
        raise ConsistencyError(
            f"vLLM could not {what}: {type(error).__name__}: {one_line(error)}. Its own messages are above. If memory ran "
            "out, change `vllm_gpu_memory_utilization`, or lower `vllm_max_model_length` or `per_device_train_batch_size`."
        ) from error


@contextmanager
def checkpoint_of(model: Any, processing_class: ProcessingClass, sends_adapter: bool) -> Iterator[str]:
    """
    Yields the name or folder from which the engine loads its weights. If 4-bit weights stay in the engine, this is a
    temporary folder with the same weights, dequantized: vLLM 0.31 does not read bitsandbytes' format.
    """
    if sends_adapter and getattr(base_model(model), "is_loaded_in_4bit", False):
        with TemporaryDirectory(prefix="trl-consistency-base-") as folder:
            write_base(model, processing_class, Path(folder))
            yield folder
    else:
        yield model.name_or_path


def head_options(model: Any, dtype: torch.dtype) -> dict[str, Any]:
    """
    Returns the options of `vllm.LLM` with which it computes logits in float32, as the trainer does. In bfloat16, a logit
    of 20 would be off by up to 0.06. A quantized head stays as it is. `dtype` is that in which the trainer computes.
    """
    head = model.get_output_embeddings()
    is_plain = isinstance(getattr(head, "base_layer", head), nn.Linear)
    return {"hf_overrides": {"head_dtype": "float32"}} if is_plain and dtype != torch.float32 else {}


def compute_dtype(model: Any, args: OnPolicyConsistencyConfig) -> torch.dtype:
    """Returns the dtype in which the trainer computes the policy."""
    if args.bf16:
        return torch.bfloat16
    return torch.float16 if args.fp16 else model.dtype


def _check_server(client: Any) -> None:
    mode = client.get_server_info()["model_config"]["logprobs_mode"]
    if mode != "processed_logprobs":
        raise ConsistencyError(
            f"The vLLM server runs with `--logprobs-mode {mode}`, which returns other probabilities than it samples "
            "with. Restart it with `--logprobs-mode processed_logprobs`, or set "
            "`vllm_importance_sampling_correction: false`."
        )


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
