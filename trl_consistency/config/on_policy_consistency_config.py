from dataclasses import dataclass
from typing import Any, cast

from trl import DistillationConfig

from ..errors import ConsistencyError
from .options import LOWEST_TEMPERATURE, Allowed, above, at_least, one_of, option, refuse, with_help
from .shared import GENERATION, PairConfig
from .types import check_vllm_temperature


# Options of each `vllm_mode`, which the other mode would ignore.
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

# Values that inherited options may have
INHERITED = {
    **GENERATION,
    "beta": Allowed("between 0 (forward KL) and 1 (reverse KL)", lambda beta: 0 <= beta <= 1),
    "max_completion_length": Allowed("at least 1", lambda length: length is not None and length >= 1),
    "vllm_mode": one_of("server", "colocate"),
    "vllm_model_impl": one_of("transformers", "vllm"),
    "vllm_tensor_parallel_size": at_least(1),
}


class _Settled(int):
    """An option that was left out. A config that is made of another's fields, as by `dataclasses.replace`, settles it anew."""


@dataclass
@with_help
class OnPolicyConsistencyConfig(PairConfig, DistillationConfig):
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
            How to compare the distributions of the student and the reference at each token of a rollout.

            - `"divergence"`: exactly, over the whole vocabulary. `beta` chooses the divergence.
            - `"policy_gradient"`: only at the sampled token. This is a one-sample estimate of the reverse KL, as in the
              paper ([Han et al., 2026](https://huggingface.co/papers/2605.21834)).
        beta (`float`, *optional*, defaults to `1.0`):
            Divergence: `1.0` is the reverse KL (of the student from the reference), `0.0` is the forward KL, and values
            between them are the generalized Jensen-Shannon divergence.
        loss_temperature (`float`, *optional*, defaults to `1.0`):
            Temperature of the two softmaxes that are compared, at least 0.0001.
        clip_range (`float`, *optional*):
            Clips the importance ratio to `[1 - clip_range, 1 + clip_range]`, as in PPO. For `policy_gradient` with several
            optimizer steps per batch of rollouts. `None` does not clip.
        mask_truncated_completions (`bool`, *optional*, defaults to `False`):
            Whether to leave a rollout out of the loss if it reached `max_completion_length` without an end of turn.
        train_on_thinking (`bool`, *optional*, defaults to `True`):
            Whether to train on thoughts, the tokens between `thinking_markers`.
        disable_dropout (`bool`, *optional*, defaults to `True`):
            Whether to disable dropout in the student. The reference has no dropout. (The student of [`ConsistencyTrainer`]
            keeps its dropout, as in supervised fine-tuning.)

        > Parameters that control the rollouts

        num_generations (`int`, *optional*, defaults to `4`):
            Rollouts per prompt. `per_device_train_batch_size * steps_per_generation` must be divisible by it.
        num_generations_eval (`int`, *optional*):
            Rollouts per prompt in evaluation. `None` uses `num_generations`.
        temperature (`float`, *optional*, defaults to `1.0`):
            Sampling temperature, at least 0.0001.
        completion_length_schedule (`list[int]`, *optional*):
            `[start, end, steps]` or `[start, end]`: the maximum length of a rollout, in tokens, grows during training.
            Short rollouts cost less, and the first tokens often teach most.

            - `[start, end, steps]`: the maximum grows linearly from `start` to `end` over the first `steps` optimizer
              steps.
            - `[start, end]`: the maximum doubles when the model has learned enough at the present length. The measure is
              the divergence at the last quarter of the tokens: it must fall to half of what the first quarter had in the
              first batch.

            `end` is at most `max_completion_length`, which is the maximum in evaluations. A rollout that stops at a
            shorter maximum does not count as truncated for `mask_truncated_completions`.
        steps_per_generation (`int`, *optional*):
            Number of micro-batches in a batch of rollouts, a multiple of `gradient_accumulation_steps`. The default,
            `gradient_accumulation_steps`, makes one optimizer step per batch of rollouts.
        rollout_batch_size (`int`, *optional*):
            Number of rollouts that a process samples at a time. `None` samples the whole batch of rollouts at once, and
            holds all their keys and values in memory. With a multiple of `num_generations`, each prompt is computed only
            once. Not allowed with `use_vllm`, because vLLM makes its own batches.
        num_iterations (`int`, *optional*, defaults to `1`):
            Number of times that each batch of rollouts is trained on.
        share_prefix (`bool`, *optional*, defaults to `True`):
            Whether to compute a prompt only once for all its rollouts in a micro-batch: in generation, in the student's
            pass and in the reference's pass. This changes only time and memory. If the model does not support it, every
            row is computed in full and the log says why.
        generation_kwargs (`dict[str, Any]`, *optional*):
            Further arguments of [`~transformers.GenerationConfig`], or of vLLM's `SamplingParams` with `use_vllm`. They
            must not repeat an option of this class.
        vllm_sync (`str`, *optional*):
            What a vLLM engine gets after each optimizer step: `"adapter"` (only the LoRA adapter) or `"weights"` (all
            weights, with the adapter merged into copies). The default is `"adapter"` if an adapter is trained, and
            `"weights"` otherwise. Engines on CPUs cannot take weights.
        vllm_adapter_dir (`str`, *optional*):
            Folder in which the trainer puts adapters for a vLLM server on another machine. The server must be able to
            read it under the same path.
        vllm_check_every (`int`, *optional*, defaults to `10`):
            Number of optimizer steps between two checks that an engine with the adapter samples from the current policy.
            In a check, the trainer scores a few rollouts itself. 0 turns the checks off.
        vllm_overlap (`bool`, *optional*, defaults to `False`):
            Whether a vLLM server samples the next batch of rollouts while the trainer trains on the current one. Rollouts
            then come from the policy before the current step, so they are one step off policy. `policy_gradient` corrects
            this with `vllm_importance_sampling_correction`.
        vllm_importance_sampling_correction (`bool`, *optional*, defaults to `True`):
            Whether to log how far vLLM's token probabilities are from the trained policy's, unless other options, such as
            `top_p`, change them. With `policy_gradient`, each token's loss is also weighted by the ratio of the two
            probabilities. The exact divergence needs no correction, because vLLM only chooses the tokens at which it is
            computed.
        vllm_importance_sampling_clip_max (`float`, *optional*, defaults to `3.0`):
            Maximum of the weights of `vllm_importance_sampling_correction`. `None` sets no limit.

        > Parameters that control the pairs, the anchors and the logging

        Those of [`PairConfig`].

    > [!NOTE]
    > These parameters have default values different from [`~trl.DistillationConfig`]:
    > - `disable_dropout`: Defaults to `True` instead of `False`, because the reference has no dropout.
    > - `bf16`: Defaults to `False` on a CPU. A run without an accelerator uses the CPU (`use_cpu`).
    """

    _upstream = DistillationConfig
    _set_by_trainer = ("eos_token_id", "num_beams")
    rolls_out = True

    # Parameters that control the objective
    loss_type: str = option("divergence", choices=("divergence", "policy_gradient"))
    loss_temperature: float = option(1.0, at_least(LOWEST_TEMPERATURE))
    clip_range: float | None = option(None, above(0).or_none())
    mask_truncated_completions: bool = option(False)
    train_on_thinking: bool = option(True)
    disable_dropout: bool = option(True)

    # Parameters that control the rollouts
    num_generations: int = option(4, at_least(1))
    num_generations_eval: int | None = option(None, at_least(1).or_none())
    temperature: float = option(
        1.0, at_least(LOWEST_TEMPERATURE, " (greedy rollouts of a prompt would all be the same)")
    )
    completion_length_schedule: list[int] | None = option(None)
    steps_per_generation: int | None = option(None, at_least(1).or_none())
    rollout_batch_size: int | None = option(None, at_least(1).or_none())
    num_iterations: int = option(1, at_least(1))
    share_prefix: bool = option(True)
    generation_kwargs: dict[str, Any] | str | None = option(None)
    vllm_sync: str | None = option(None, one_of("adapter", "weights").or_none())
    vllm_adapter_dir: str | None = option(None)
    vllm_check_every: int = option(10, at_least(0))
    vllm_overlap: bool = option(False)
    vllm_importance_sampling_correction: bool = option(True)
    vllm_importance_sampling_clip_max: float | None = option(3.0, above(0).or_none())

    def __post_init__(self) -> None:
        if isinstance(self.steps_per_generation, _Settled):
            self.steps_per_generation = None
        self._given = self._values()
        self._check_types()
        self._check_ranges(INHERITED)
        if self.steps_per_generation is None:
            self.steps_per_generation = _Settled(self.gradient_accumulation_steps)
        self._check_batches()
        self._check_schedule()
        self._refuse_inherited()
        self._check_vllm()
        if self.loss_type == "policy_gradient":
            self._check_policy_gradient()
        elif self.clip_range is not None:
            raise ConsistencyError(
                "`clip_range` is set, but `loss_type` is 'divergence', which has no importance ratio: it is for "
                "'policy_gradient'. Leave it out."
            )
        self._settle()
        super().__post_init__()
        self._check_mappings()
        if self.mask_truncated_completions and "stop" in (self.generation_kwargs or {}):
            raise ConsistencyError(
                "`mask_truncated_completions` leaves out rollouts without an end-of-turn token, and `generation_kwargs` sets `stop`, which ends "
                "them without one: those that stopped would be left out. Leave one of them out."
            )
        self._refuse_sharded_batches()
        if self.vllm_overlap and self.world_size > 1:
            raise ConsistencyError(
                "`vllm_overlap` is not available with several processes: the thread that samples cannot wait for the others. "
                "Leave it out."
            )
        self._made = self._values()

    @property
    def is_off_policy(self) -> bool:
        """Whether a batch of rollouts takes several optimizer steps, so that the later ones are off-policy."""
        return self.num_iterations > 1 or cast(int, self.steps_per_generation) > self.gradient_accumulation_steps

    def _check_batches(self) -> None:
        steps, accumulation = cast(int, self.steps_per_generation), int(self.gradient_accumulation_steps)
        if steps % accumulation:
            raise ConsistencyError(
                f"`steps_per_generation` is {steps}, which is not a multiple of `gradient_accumulation_steps` "
                f"({accumulation}): an optimizer step would mix two batches of rollouts. Choose a multiple."
            )
        rollouts = self.per_device_train_batch_size * steps
        if rollouts % self.num_generations:
            raise ConsistencyError(
                f"`per_device_train_batch_size` ({self.per_device_train_batch_size}) times `steps_per_generation` "
                f"({steps}) makes {rollouts} rollouts on each process, which do not divide into groups of "
                f"`num_generations` ({self.num_generations}). Batches count completions: choose a multiple."
            )

    def _check_schedule(self) -> None:
        given, longest = self.completion_length_schedule, cast(int, self.max_completion_length)
        if given is None:
            return
        is_list = isinstance(given, list) and len(given) in (2, 3)
        if not is_list or not 1 <= given[0] <= given[1] <= longest or any(steps < 1 for steps in given[2:]):
            raise ConsistencyError(
                "`completion_length_schedule` must be [start, end] or [start, end, steps], with 1 <= start <= end <= "
                f"`max_completion_length` ({longest}) and at least one step, got {given!r}."
            )

    def _check_policy_gradient(self) -> None:
        """Refuses options that sample tokens from another distribution than the one that is compared."""
        other_loss = "Leave it out, or set `loss_type: divergence`"
        truncates = f"it leaves tokens out that the estimate of the divergence needs. {other_loss}"
        changes = f"from another distribution than the one that is compared. {other_loss}"
        weighs = self.is_off_policy or (self.use_vllm and self.vllm_importance_sampling_correction)
        in_ratio = "and the importance ratio would contain it: with several optimizer steps on a batch, or with vLLM"
        refused = {
            f"top_p={self.top_p}": (self.top_p != 1, truncates),
            f"top_k={self.top_k}": (self.top_k != 0, truncates),
            f"min_p={self.min_p}": (self.min_p, truncates),
            f"repetition_penalty={self.repetition_penalty}": (
                self.repetition_penalty != 1,
                f"the tokens would come {changes}",
            ),
            "generation_kwargs": (
                self.generation_kwargs,
                f"the tokens could come {changes}",
            ),
            "vllm_structured_outputs_regex": (self.vllm_structured_outputs_regex, truncates),
            f"loss_temperature={self.loss_temperature} and temperature={self.temperature}": (
                self.loss_temperature != self.temperature,
                "the tokens must be drawn at the temperature at which the distributions are compared. Give both the same value",
            ),
            f"beta={self.beta}": (
                self.beta != 1,
                f"this loss estimates the reverse KL, which is `beta=1`. {other_loss}",
            ),
            f"neftune_noise_alpha={self.neftune_noise_alpha}": (
                self.neftune_noise_alpha and weighs,
                f"each forward pass draws its own noise, {in_ratio}. Leave it out",
            ),
            "disable_dropout=False": (
                not self.disable_dropout and weighs,
                f"each forward pass draws its own dropout, {in_ratio}. Leave it out",
            ),
            f"clip_range={self.clip_range}": (
                self.clip_range is not None and not self.is_off_policy,
                "with one optimizer step a batch of rollouts the importance ratio is 1. Raise `num_iterations` or "
                "`steps_per_generation`, or leave it out",
            ),
        }
        refuse("with `loss_type='policy_gradient'`", refused)

    def _check_vllm(self) -> None:
        defaults = {name: field.default for name, field in type(self).__dataclass_fields__.items()}
        corrects = self.use_vllm and self.vllm_importance_sampling_correction and self.loss_type == "policy_gradient"
        clip_max = "vllm_importance_sampling_clip_max"
        if not corrects and getattr(self, clip_max) != defaults[clip_max]:
            raise ConsistencyError(
                f"`{clip_max}` is set, but no weights are used: it is for `use_vllm` with "
                "`loss_type: policy_gradient` and `vllm_importance_sampling_correction`. Leave it out."
            )
        if self.vllm_overlap:
            self._check_overlap()
        if not self.use_vllm and self.vllm_structured_outputs_regex:
            raise ConsistencyError(
                "`vllm_structured_outputs_regex` is set, but it is for `use_vllm: true`: transformers samples without it. Leave "
                "it out."
            )
        if not self.use_vllm:
            return
        check_vllm_temperature(self.temperature, "`use_vllm`", "leave `use_vllm` out")
        if self.vllm_adapter_dir is not None and (self.vllm_mode != "server" or self.vllm_sync == "weights"):
            raise ConsistencyError(
                "`vllm_adapter_dir` is set, but no server gets the adapter: it is for `vllm_mode: server` without "
                "`vllm_sync: weights`. Leave it out."
            )
        if self.rollout_batch_size is not None:
            raise ConsistencyError(
                "`rollout_batch_size` is not used with `use_vllm`: vLLM makes its own batches. Leave it out."
            )
        if self.cache_implementation is not None:
            raise ConsistencyError(
                "`cache_implementation` is not used with `use_vllm`: vLLM has its own cache. Leave it out."
            )
        (other,) = VLLM_OPTIONS.keys() - {self.vllm_mode}
        for name in VLLM_OPTIONS[other]:
            if getattr(self, name) != defaults[name]:
                raise ConsistencyError(
                    f"`{name}` is set, but it is for `vllm_mode: {other}`. Leave it out, or change `vllm_mode`."
                )

    def _check_overlap(self) -> None:
        if not self.use_vllm or self.vllm_mode != "server":
            raise ConsistencyError(
                "`vllm_overlap` needs a vLLM server (`use_vllm: true`, `vllm_mode: server`): transformers, or an engine in the "
                "training process, cannot sample while that process trains. Leave it out."
            )
        refused = {
            "num_iterations or steps_per_generation": (
                self.is_off_policy,
                "with several optimizer steps for a batch, the rollouts would be more than one step old. Leave them out, or "
                "`vllm_overlap`",
            ),
            "completion_length_schedule": (
                self.completion_length_schedule,
                "the length of the next batch is known only after the step. Leave one of the two out",
            ),
            "vllm_importance_sampling_correction: false": (
                self.loss_type == "policy_gradient" and not self.vllm_importance_sampling_correction,
                "the rollouts are one step off policy, which only the correction makes up for. Leave it out: the correction is on by "
                "default",
            ),
        }
        refuse("with `vllm_overlap`", refused)

    def _refuse_inherited(self) -> None:
        """Refuses options of `DistillationConfig` that on-policy consistency training does not support."""
        own_teacher = "the reference is the initial policy, or the trainer's `ref_model`"
        refused = {
            f"neftune_noise_alpha={self.neftune_noise_alpha} and share_prefix": (
                self.neftune_noise_alpha and self.share_prefix,
                "the noise of a row depends on its length, and prompts and rollouts are rows of their own then; "
                "`share_prefix: false` can have it",
            ),
            "teacher_model_name_or_path": (self.teacher_model_name_or_path, own_teacher),
            "teacher_model_revision": (self.teacher_model_revision, own_teacher),
            "teacher_model_init_kwargs": (self.teacher_model_init_kwargs, own_teacher),
            "max_tool_calling_iterations": (
                self.max_tool_calling_iterations is not None,
                "rollouts call no tools: what the reference would see of them is not settled",
            ),
            "label_smoothing_factor": (self.label_smoothing_factor, "there are no labels"),
            "include_for_metrics": (self.include_for_metrics, "there are no `compute_metrics`"),
            "batch_eval_metrics": (self.batch_eval_metrics, "there are no `compute_metrics`"),
            "auto_find_batch_size": (self.auto_find_batch_size, "it would break up the groups of rollouts"),
            "train_sampling_strategy": (
                self.train_sampling_strategy != "random",
                "prompts are drawn by the trainer, each with its rollouts (`shuffle_dataset: false` keeps their order)",
            ),
            "torch_compile": (self.torch_compile, "the reference runs in the same modules as the student"),
        }
        self._refuse("in on-policy consistency training", refused)

    def _refuse_sharded_batches(self) -> None:
        for name in ("split_batches", "dispatch_batches"):
            if getattr(self.accelerator_config, name, None):
                raise ConsistencyError(
                    f"`accelerator_config` sets `{name}`, which would break up the groups of rollouts. Leave it out."
                )
        if "num_steps" in (getattr(self.accelerator_config, "gradient_accumulation_kwargs", None) or {}):
            raise ConsistencyError(
                "`accelerator_config` sets `num_steps` in `gradient_accumulation_kwargs`, which would break up the groups of rollouts. "
                "Set `gradient_accumulation_steps`."
            )
