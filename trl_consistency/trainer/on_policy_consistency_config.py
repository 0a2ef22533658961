import os
from dataclasses import dataclass, field, fields
from typing import Any, cast

from trl import DistillationConfig

from ..data.pairs import template_kwargs_faults
from ..errors import ConsistencyError
from ..option_types import check_installed, check_ranges, check_types, ranges_of_training
from .device import settle_device
from .generation_kwargs import check_generation_kwargs


LOSS_TYPES = ("divergence", "policy_gradient")

# What `generation_kwargs` must leave to the options of that name, or to the trainer.
RESERVED_GENERATION_KWARGS = {
    "bos_token_id",
    "do_sample",
    "eos_token_id",
    "max_length",
    "max_new_tokens",
    "num_beams",
    "num_return_sequences",
    "pad_token_id",
    "temperature",
}
# The same of vLLM's. One `seed` would make all rollouts of a prompt the same.
RESERVED_SAMPLING_PARAMS = {
    "logprobs",
    "max_tokens",
    "min_p",
    "n",
    "repetition_penalty",
    "seed",
    "stop_token_ids",
    "temperature",
    "top_k",
    "top_p",
}

# Options of one way to run vLLM, which the other would ignore.
VLLM_OPTIONS = {
    "server": (
        "vllm_server_base_url",
        "vllm_server_host",
        "vllm_server_port",
        "vllm_server_timeout",
        "vllm_group_port",
    ),
    "colocate": (
        "vllm_enable_sleep_mode",
        "vllm_gpu_memory_utilization",
        "vllm_max_model_length",
        "vllm_model_impl",
        "vllm_tensor_parallel_size",
    ),
}


@dataclass
class OnPolicyConsistencyConfig(DistillationConfig):
    r"""
    Configuration class for the [`OnPolicyConsistencyTrainer`].

    This class includes only the parameters that are specific to on-policy consistency training. For a full list of
    training arguments, please refer to the [`~trl.DistillationConfig`] and [`~transformers.TrainingArguments`]
    documentation. Note that default values in this class may differ from those in [`~trl.DistillationConfig`].

    `per_device_train_batch_size` and `per_device_eval_batch_size` count completions, not prompts, as in
    [`~trl.GRPOConfig`].

    Parameters:
        > Parameters that control the objective

        loss_type (`str`, *optional*, defaults to `"divergence"`):
            How the student's distribution is compared with the reference's at each token of a rollout.

            - `"divergence"`: exactly, over the whole vocabulary; `beta` says by which divergence.
            - `"policy_gradient"`: by the sampled token alone, a one-sample estimate of the reverse KL, as in the paper
              ([Han et al., 2026](https://huggingface.co/papers/2605.21834)).
        beta (`float`, *optional*, defaults to `1.0`):
            Divergence: `1.0` is the reverse KL (student from reference), `0.0` the forward KL, and anything between them
            the generalized Jensen-Shannon divergence.
        loss_temperature (`float`, *optional*, defaults to `1.0`):
            Temperature of the two softmaxes that are compared.
        clip_range (`float`, *optional*):
            PPO's clip of the importance ratio to `[1 - clip_range, 1 + clip_range]`, for `policy_gradient` with several
            optimizer steps a batch of rollouts. `None` does not clip.
        mask_truncated_completions (`bool`, *optional*, defaults to `False`):
            Whether rollouts that reached `max_completion_length` without an end of turn train nothing.
        train_on_thinking (`bool`, *optional*, defaults to `True`):
            Whether the tokens of a thought, between `thinking_markers`, are compared.
        thinking_markers (`list[str]`, *optional*, defaults to `["<think>", "</think>"]`):
            What opens and closes a thought.
        anchor_ratio (`float`, *optional*, defaults to `0.0`):
            Share of anchors in an epoch, at least 0 and below 1: `round(r / (1 - r) * N)` rows with two equal prompts
            are added to the N pairs, from the trainer's `anchor_dataset` or, without one, from the pairs' own clean
            prompts. They ask the student to stay where the reference is.

        > Parameters that control the rollouts

        num_generations (`int`, *optional*, defaults to `4`):
            Rollouts a prompt. `per_device_train_batch_size * steps_per_generation` must be divisible by it.
        num_generations_eval (`int`, *optional*):
            Rollouts a prompt in evaluation. `None` takes `num_generations`.
        temperature (`float`, *optional*, defaults to `1.0`):
            Sampling temperature, above 0.
        steps_per_generation (`int`, *optional*):
            Micro-batches a batch of rollouts is split into: a multiple of `gradient_accumulation_steps`, which is the
            default and makes one optimizer step a batch of rollouts.
        num_iterations (`int`, *optional*, defaults to `1`):
            How often a batch of rollouts is trained on.
        share_prefix (`bool`, *optional*, defaults to `True`):
            Whether a prompt is computed once for all its rollouts in a micro-batch: in generation, in the student's pass
            and in the reference's. It changes nothing but the time and the memory. Where a model cannot, the rows run one
            by one and the log says why.
        generation_kwargs (`dict[str, Any]`, *optional*):
            Further arguments of [`~transformers.GenerationConfig`], or of vLLM's `SamplingParams` with `use_vllm`.
        vllm_importance_sampling_correction (`bool`, *optional*, defaults to `True`):
            Whether vLLM is asked how likely it took each token to be, and the difference from the policy in training is
            logged. Under `policy_gradient` a token's loss is also weighed by the ratio of the two probabilities. The
            exact divergence is left as it is: the engine only chose the tokens after which it is taken.
        vllm_importance_sampling_clip_max (`float`, *optional*, defaults to `3.0`):
            Largest such weight. `None` sets no limit.

        > Parameters that control the data preprocessing

        max_length (`int`, *optional*):
            Longest row in tokens: the longer of the two prompts plus `max_completion_length`. `None` sets no limit. Rows
            are never cut; `overlong` says what happens to those over the limit.
        overlong (`str`, *optional*, defaults to `"error"`):
            What to do with rows over `max_length`: `"error"` reports them and refuses the run before any training,
            `"drop"` leaves them out and logs how many.
        chat_template_kwargs (`dict[str, Any]`, *optional*):
            Variables of the chat template for all rows, such as `{"enable_thinking": False}`. A row's own
            `chat_template_kwargs` column comes on top.

        > Parameters that control the logging

        log_consistency_metrics (`bool`, *optional*, defaults to `False`):
            Whether to log, on the pairs of every batch, what [`ConsistencyTrainer`] logs under this option: the
            cross-entropy of the clean answer on the perturbed prompt, the distance of the activations on the tokens that
            both prompts end with, and the divergence from the reference on the clean answer. Costs a pass of each
            model over the distinct pairs and, where the pairs come without a `completion`, the reference's greedy answer
            to every distinct clean prompt, once.
        dose_check (`bool`, *optional*, defaults to `False`):
            Whether to measure, before the first step and on 64 pairs, how differently the model answers the two sides:
            flips of greedy answers, KL divergence, and where there is a key sycophancy and clean accuracy. They are
            logged under `dose/`, with a warning if there is nothing to train or the clean side is bad.

    > [!NOTE]
    > These parameters have default values different from [`~trl.DistillationConfig`]:
    > - `disable_dropout`: Defaults to `True` instead of `False`: the reference has none either.
    > - `bf16`: Defaults to `False` on a CPU, which is also where a run without an accelerator goes (`use_cpu`).
    """

    # Parameters that control the objective
    loss_type: str = field(
        default="divergence",
        metadata={
            "help": "How the student is compared with the reference at each token of a rollout: `divergence` (exact) or "
            "`policy_gradient` (by the sampled token alone, as in the paper).",
            "choices": list(LOSS_TYPES),
        },
    )
    loss_temperature: float = field(
        default=1.0, metadata={"help": "Temperature of the two softmaxes that are compared."}
    )
    clip_range: float | None = field(
        default=None,
        metadata={
            "help": "Clip of the importance ratio, for `policy_gradient` with several optimizer steps a batch of rollouts."
        },
    )
    mask_truncated_completions: bool = field(
        default=False,
        metadata={"help": "Whether rollouts that reached `max_completion_length` without an end train nothing."},
    )
    train_on_thinking: bool = field(
        default=True, metadata={"help": "Whether the tokens between `thinking_markers` are compared."}
    )
    thinking_markers: list[str] = field(
        default_factory=lambda: ["<think>", "</think>"], metadata={"help": "What opens and closes a thought."}
    )
    anchor_ratio: float = field(
        default=0.0,
        metadata={
            "help": "Share of anchors (rows with two equal prompts) in an epoch, at least 0 and below 1, added to the "
            "pairs from the anchor data set or from the pairs' own clean prompts."
        },
    )
    disable_dropout: bool = field(
        default=True, metadata={"help": "Whether to disable dropout in the student: the reference has none either."}
    )

    # Parameters that control the rollouts
    num_generations: int = field(default=4, metadata={"help": "Rollouts a prompt."})
    num_generations_eval: int | None = field(
        default=None, metadata={"help": "Rollouts a prompt in evaluation. `num_generations` if None."}
    )
    temperature: float = field(default=1.0, metadata={"help": "Sampling temperature of the rollouts, above 0."})
    steps_per_generation: int | None = field(
        default=None,
        metadata={
            "help": "Micro-batches a batch of rollouts is split into: a multiple of `gradient_accumulation_steps`, which "
            "is the default."
        },
    )
    num_iterations: int = field(default=1, metadata={"help": "How often a batch of rollouts is trained on."})
    share_prefix: bool = field(
        default=True,
        metadata={"help": "Whether a prompt is computed once for all its rollouts in a micro-batch."},
    )
    vllm_importance_sampling_correction: bool = field(
        default=True,
        metadata={
            "help": "Whether vLLM is asked how likely it took each token to be: the difference from the policy in training "
            "is logged, and corrected under `policy_gradient`."
        },
    )
    vllm_importance_sampling_clip_max: float | None = field(
        default=3.0, metadata={"help": "Largest weight of that correction. No limit if None."}
    )

    # Parameters that control the data preprocessing
    max_length: int | None = field(
        default=None,
        metadata={
            "help": "Longest row in tokens: the longer of the two prompts plus `max_completion_length`. `None` sets no "
            "limit."
        },
    )
    overlong: str = field(
        default="error",
        metadata={
            "help": "What to do with rows over `max_length`: `error` reports them and refuses the run, `drop` leaves "
            "them out and logs how many.",
            "choices": ["error", "drop"],
        },
    )
    chat_template_kwargs: dict[str, Any] | str | None = field(
        default=None,
        metadata={
            "help": "Variables of the chat template for all rows. A row's own `chat_template_kwargs` come on top."
        },
    )

    # Parameters that control the logging
    log_consistency_metrics: bool = field(
        default=False,
        metadata={
            "help": "Whether to log, on the pairs of every batch, response cross-entropy, activation distance and KL to the "
            "reference, at the cost of further passes and of the reference's greedy answers where the pairs have none."
        },
    )
    dose_check: bool = field(
        default=False,
        metadata={
            "help": "Whether to measure before the first step how differently the model answers the two sides of 64 pairs, "
            "and warn if there is nothing to train or the clean side is bad."
        },
    )

    def __post_init__(self) -> None:
        self._check_types()
        if self.steps_per_generation is None:
            self.steps_per_generation = int(self.gradient_accumulation_steps)
        self._check_ranges()
        self._check_batches()
        self._refuse_inherited()
        self._check_vllm()
        if self.loss_type == "policy_gradient":
            self._check_policy_gradient()
        elif self.clip_range is not None:
            raise ConsistencyError(
                "`clip_range` is set, but `loss_type` is 'divergence', which has no importance ratio: it is for "
                "'policy_gradient'."
            )
        if self.ddp_backend and "WORLD_SIZE" not in os.environ:
            raise ConsistencyError(
                f"`ddp_backend` is {self.ddp_backend}, but this is a single process. Launch several with `accelerate "
                "launch` or `torchrun`, or leave it out."
            )
        check_installed("deepspeed", self.deepspeed, "deepspeed")
        settle_device(self)
        super().__post_init__()
        self._check_generation_kwargs()
        self._refuse_sharded_batches()

    @property
    def is_off_policy(self) -> bool:
        """Whether a batch of rollouts is trained on in several optimizer steps, the later ones of another policy."""
        return self.num_iterations > 1 or cast(int, self.steps_per_generation) > self.gradient_accumulation_steps

    def _check_types(self) -> None:
        own = [field.name for field in fields(self) if field.name not in DistillationConfig.__dataclass_fields__]
        inherited = ("beta", "temperature", "learning_rate", "num_train_epochs", "max_steps", "disable_dropout")
        check_types(self, [*own, *inherited, "max_completion_length", "per_device_train_batch_size"])

    def _check_ranges(self) -> None:
        generations_eval, steps = self.num_generations_eval, cast(int, self.steps_per_generation)
        clip_max = self.vllm_importance_sampling_clip_max
        ranges = {
            "loss_type": (self.loss_type in LOSS_TYPES, "'divergence' or 'policy_gradient'"),
            "beta": (0 <= self.beta <= 1, "between 0 (forward KL) and 1 (reverse KL)"),
            "anchor_ratio": (0 <= self.anchor_ratio < 1, "at least 0 and below 1"),
            "num_generations": (self.num_generations >= 1, "at least 1"),
            "num_generations_eval": (generations_eval is None or generations_eval >= 1, "at least 1, or None"),
            "num_iterations": (self.num_iterations >= 1, "at least 1"),
            "temperature": (
                0 < self.temperature < float("inf"),
                "above 0 (greedy rollouts of a prompt would all be the same)",
            ),
            "loss_temperature": (0 < self.loss_temperature < float("inf"), "above 0"),
            "clip_range": (self.clip_range is None or self.clip_range > 0, "above 0, or None"),
            "max_length": (self.max_length is None or self.max_length >= 1, "at least 1, or None"),
            "overlong": (self.overlong in ("error", "drop"), "'error' or 'drop'"),
            "max_completion_length": (
                self.max_completion_length is not None and self.max_completion_length >= 1,
                "at least 1",
            ),
            "top_p": (0 < self.top_p <= 1, "above 0 and at most 1"),
            "top_k": (self.top_k >= 0, "at least 0 (0 keeps all)"),
            "min_p": (self.min_p is None or 0 <= self.min_p <= 1, "between 0 and 1, or None"),
            "repetition_penalty": (self.repetition_penalty > 0, "above 0"),
            "thinking_markers": (
                len(self.thinking_markers) == 2 and all(self.thinking_markers),
                "two texts: what opens a thought and what closes it",
            ),
            **ranges_of_training(self),
            "per_device_train_batch_size": (self.per_device_train_batch_size >= 1, "at least 1"),
            "per_device_eval_batch_size": (self.per_device_eval_batch_size >= 1, "at least 1"),
            "gradient_accumulation_steps": (int(self.gradient_accumulation_steps) >= 1, "at least 1"),
            "steps_per_generation": (steps >= 1, "at least 1, or None"),
            "vllm_mode": (self.vllm_mode in VLLM_OPTIONS, "'server' or 'colocate'"),
            "vllm_model_impl": (self.vllm_model_impl in ("transformers", "vllm"), "'transformers' or 'vllm'"),
            "vllm_gpu_memory_utilization": (0 < self.vllm_gpu_memory_utilization <= 1, "above 0 and at most 1"),
            "vllm_max_model_length": (
                self.vllm_max_model_length is None or self.vllm_max_model_length >= 1,
                "at least 1, or None",
            ),
            "vllm_tensor_parallel_size": (self.vllm_tensor_parallel_size >= 1, "at least 1"),
            "vllm_importance_sampling_clip_max": (clip_max is None or clip_max > 0, "above 0, or None"),
        }
        check_ranges(self, ranges)

    def _check_batches(self) -> None:
        steps, accumulation = cast(int, self.steps_per_generation), int(self.gradient_accumulation_steps)
        if steps % accumulation:
            raise ConsistencyError(
                f"`steps_per_generation` is {steps}, which is no multiple of `gradient_accumulation_steps` "
                f"({accumulation}): an optimizer step would mix two batches of rollouts."
            )
        rollouts = self.per_device_train_batch_size * steps
        if rollouts % self.num_generations:
            raise ConsistencyError(
                f"`per_device_train_batch_size` ({self.per_device_train_batch_size}) times `steps_per_generation` "
                f"({steps}) makes {rollouts} rollouts on each process, which do not divide into groups of "
                f"`num_generations` ({self.num_generations}). Batches count completions: choose a multiple."
            )

    def _check_policy_gradient(self) -> None:
        """The estimate holds for tokens that were drawn from the very distribution that is compared."""
        truncates = "it leaves tokens out that the estimate of the divergence needs"
        refused = {
            f"top_p={self.top_p}": (self.top_p != 1, truncates),
            f"top_k={self.top_k}": (self.top_k != 0, truncates),
            f"min_p={self.min_p}": (self.min_p, truncates),
            f"repetition_penalty={self.repetition_penalty}": (
                self.repetition_penalty != 1,
                "the tokens would come from another distribution than the one that is compared",
            ),
            "generation_kwargs": (
                self.generation_kwargs,
                "the tokens could come from another distribution than the one that is compared",
            ),
            "vllm_structured_outputs_regex": (self.vllm_structured_outputs_regex, truncates),
            f"loss_temperature={self.loss_temperature} and temperature={self.temperature}": (
                self.loss_temperature != self.temperature,
                "the tokens must be drawn at the temperature at which the distributions are compared",
            ),
            f"beta={self.beta}": (self.beta != 1, "it estimates the reverse KL, `beta=1`"),
            f"clip_range={self.clip_range}": (
                self.clip_range is not None and not self.is_off_policy,
                "with one optimizer step a batch of rollouts the importance ratio is 1. Raise `num_iterations` or "
                "`steps_per_generation`, or leave it out",
            ),
        }
        for option, (is_set, reason) in refused.items():
            if is_set:
                raise ConsistencyError(f"`{option}` is not available with `loss_type='policy_gradient'`: {reason}.")

    def _check_vllm(self) -> None:
        defaults = {name: field.default for name, field in type(self).__dataclass_fields__.items()}
        corrects = self.use_vllm and self.vllm_importance_sampling_correction and self.loss_type == "policy_gradient"
        clip_max = "vllm_importance_sampling_clip_max"
        if not corrects and getattr(self, clip_max) != defaults[clip_max]:
            raise ConsistencyError(
                f"`{clip_max}` is set, but nothing is weighed: it is for `use_vllm` with `loss_type: policy_gradient` and "
                "`vllm_importance_sampling_correction`. Leave it out."
            )
        if not self.use_vllm:
            return
        if self.cache_implementation is not None:
            raise ConsistencyError(
                "`cache_implementation` is of no use with `use_vllm`, which has a cache of its own."
            )
        (other,) = VLLM_OPTIONS.keys() - {self.vllm_mode}
        for option in VLLM_OPTIONS[other]:
            if getattr(self, option) != defaults[option]:
                raise ConsistencyError(
                    f"`{option}` is set, but `vllm_mode` is '{self.vllm_mode}': it is for '{other}'. Leave it out, or "
                    f"change `vllm_mode`."
                )

    def _check_generation_kwargs(self) -> None:
        for key in ("chat_template_kwargs", "generation_kwargs"):
            if not isinstance(getattr(self, key), dict | None):
                raise ConsistencyError(f"`{key}` must be a mapping, got {getattr(self, key)!r}.")
        for fault in template_kwargs_faults(cast(dict[str, Any], self.chat_template_kwargs or {})):
            raise ConsistencyError(f"`chat_template_kwargs` {fault}.")
        if self.use_vllm:  # they are arguments of vLLM's, which checks them itself
            taken = RESERVED_SAMPLING_PARAMS & set(self.generation_kwargs or {})
            if taken:
                raise ConsistencyError(
                    f"`generation_kwargs` sets {', '.join(sorted(taken))}, which the trainer sets itself with `use_vllm`."
                )
            return
        kwargs = cast(dict[str, Any], self.generation_kwargs or {})
        for key in kwargs:
            if key in RESERVED_GENERATION_KWARGS:
                raise ConsistencyError(
                    f"`generation_kwargs` sets `{key}`, which the trainer sets itself: rollouts are sampled, "
                    "`num_generations` of them a prompt, at `temperature`, up to `max_completion_length` tokens."
                )
        check_generation_kwargs(kwargs)

    def _refuse_inherited(self) -> None:
        """Refuses what `DistillationConfig` offers and on-policy consistency training cannot do, rather than ignore it."""
        own_teacher = "the reference is the initial policy, or the trainer's `ref_model`"
        refused = {
            "teacher_model_name_or_path": (self.teacher_model_name_or_path, own_teacher),
            "teacher_model_revision": (self.teacher_model_revision, own_teacher),
            "teacher_model_init_kwargs": (self.teacher_model_init_kwargs, own_teacher),
            "max_tool_calling_iterations": (
                self.max_tool_calling_iterations is not None,
                "rollouts call no tools: what the reference would see of them is not settled",
            ),
            "enable_jit_checkpoint": (self.enable_jit_checkpoint, "SIGTERM saves a checkpoint without it"),
            "label_smoothing_factor": (self.label_smoothing_factor, "there are no labels"),
            "auto_find_batch_size": (self.auto_find_batch_size, "it would break up the groups of rollouts"),
            "train_sampling_strategy": (
                str(getattr(self.train_sampling_strategy, "value", self.train_sampling_strategy)) != "random",
                "prompts are drawn by the trainer, each with its rollouts (`shuffle_dataset: false` keeps their order)",
            ),
            "torch_compile": (self.torch_compile, "the reference runs in the same modules as the student"),
            "average_tokens_across_devices=False": (
                not self.average_tokens_across_devices,
                "the loss is a mean over the tokens of the global batch",
            ),
        }
        for option, (is_set, reason) in refused.items():
            if is_set:
                raise ConsistencyError(
                    f"`{option}` is not available in on-policy consistency training: {reason}. Leave it out."
                )

    def _refuse_sharded_batches(self) -> None:
        for option in ("split_batches", "dispatch_batches"):
            if getattr(self.accelerator_config, option, None):
                raise ConsistencyError(
                    f"`accelerator_config` sets `{option}`, which would break up the groups of rollouts. Leave it out."
                )
