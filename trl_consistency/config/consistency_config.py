from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trl import SFTConfig

from ..errors import ConsistencyError, did_you_mean
from .options import TEMPERATURE, at_least, option, with_help
from .shared import GENERATION, PairConfig
from .types import check_sampling, check_vllm_temperature


METHODS = ("bct", "kl", "act", "attct", "mlpct")


def check_methods(methods: Sequence[str], allowed: Sequence[str]) -> None:
    """Raises [`ConsistencyError`] unless `methods` names at least one of the allowed objectives, and none twice."""
    if not methods:
        raise ConsistencyError(f"`method` is empty: name at least one of {', '.join(allowed)}.")
    for method in methods:
        if method not in allowed:
            hint = did_you_mean(method, allowed)
            raise ConsistencyError(f"Unknown `method` `{method}`: it can be {', '.join(allowed)}.{hint}")
    if len(set(methods)) < len(methods):
        raise ConsistencyError(f"`method` names an objective twice: {list(methods)}. Use `method_weights`.")


@dataclass
@with_help
class ConsistencyConfig(PairConfig, SFTConfig):
    r"""
    Configuration class for the [`ConsistencyTrainer`].

    This class includes only the parameters that are specific to consistency training. For a full list of training
    arguments, please refer to the [`~trl.SFTConfig`] and [`~transformers.TrainingArguments`] documentation. Note that
    default values in this class may differ from those in [`~trl.SFTConfig`].

    Parameters:
        > Parameters that control the objective

        method (`list[str]`, *optional*, defaults to `["bct"]`):
            Objectives to train on: one or several of `bct`, `kl`, `act`, `attct` and `mlpct`. Python also takes a
            single string.

            - `"bct"`: token-mean cross-entropy of the reference's own answer to the clean prompt, given the perturbed
              prompt ([Chua et al., 2024](https://huggingface.co/papers/2403.05518)).
            - `"kl"`: BCT with soft targets. On the same answer, the token-mean KL divergence from the distribution that
              the reference has given the clean prompt.
            - `"act"`: squared distance from the reference's residual stream after each block in `layers`, at the tokens
              that both prompts end with ([Irpan et al., 2025](https://huggingface.co/papers/2510.27062)).
            - `"attct"`: Jensen-Shannon divergence between the attention maps within the shared content. Needs
              `attn_implementation: eager`.
            - `"mlpct"`: distance between the MLPs' hidden states on the shared content.
        method_weights (`list[float]`, *optional*):
            Non-negative weight of each objective in `method`. `None` gives every objective the weight 1.
        layers (`list[int]`, *optional*):
            Blocks that `act`, `attct` and `mlpct` compare, counted from 0, or from the end if negative. `None` compares
            all blocks. `attct` skips blocks without an attention map, and `mlpct` skips blocks without an MLP. The logged
            `activation_distance` of `log_consistency_metrics` is over the same blocks.
        act_tokens (`str`, *optional*, defaults to `"prompt"`):
            Tokens that `act` compares: `"prompt"` means the tokens that both prompts end with, as in the paper,
            `"completion"` the clean answer after both prompts, and `"all"` both.
        mlp_distance (`str`, *optional*, defaults to `"cosine"`):
            Distance for `mlpct`: `"cosine"` (one minus the cosine), `"mse"` or `"smooth_l1"`.
        no_shared_span (`str`, *optional*, defaults to `"error"`):
            What to do with pairs without shared tokens for `act`, `attct` or `mlpct`: `"error"` reports them and stops
            before training, `"drop"` leaves them out and logs how many.

        > Parameters that control the pairs, the anchors and the logging

        Those of [`PairConfig`].

        log_layer_distances (`bool`, *optional*, defaults to `False`):
            Whether to also log the activation distance of each layer. Needs `log_consistency_metrics`.

        > Parameters that control the generation of targets (only for data sets without a `completion` column)

        max_completion_length (`int`, *optional*, defaults to `512`):
            Maximum length of a target in tokens.
        temperature (`float`, *optional*, defaults to `1.0`):
            Sampling temperature, from 0.0001, or `0` (greedy).
        top_p (`float`, *optional*, defaults to `1.0`):
            Samples from the smallest set of tokens whose probabilities add up to `top_p`. `1.0` keeps all tokens.
        top_k (`int`, *optional*, defaults to `0`):
            Number of most likely tokens to sample from. `0` keeps all tokens.
        min_p (`float`, *optional*):
            Minimum probability of a sampled token, relative to the most likely one. Between 0 and 1.
        repetition_penalty (`float`, *optional*, defaults to `1.0`):
            Penalty on tokens that occurred before. `1.0` means no penalty.
        generation_kwargs (`dict[str, Any]`, *optional*):
            Further arguments of [`~transformers.GenerationConfig`], or of vLLM's `SamplingParams` with `use_vllm`. They
            must not repeat an option above.
        cache_implementation (`str`, *optional*):
            Implementation of the key/value cache in generation. Not used by vLLM.
        target_batch_size (`int`, *optional*, defaults to `32`):
            Number of clean prompts that each process answers at a time.
        keep_thinking (`bool`, *optional*, defaults to `True`):
            Whether to also train on the thought before the reference's answer. If `False`, the targets have an empty
            thought between `thinking_markers`.
        regenerate_targets_every (`int`, *optional*):
            Number of epochs after which the *current* policy answers the pairs' clean prompts again. The next epochs
            train on these answers. Anchors and evaluation keep the reference's answers. With `None`, the pairs keep
            them, too.
        target_cache_dir (`str`, *optional*):
            Folder that stores targets as they are generated, so that a killed run can resume. `None` uses `_targets` in
            `output_dir`.
        use_vllm (`bool`, *optional*, defaults to `False`):
            Whether vLLM generates the targets instead of the default model.generate(). It loads the checkpoint by the
            model's name. Requires `vllm` to be installed.
        vllm_mode (`str`, *optional*, defaults to `"colocate"`):
            Only `"colocate"`: vLLM runs in the same process and shares the training GPUs while targets are generated.
        vllm_model_impl (`str`, *optional*, defaults to `"vllm"`):
            Model implementation to use for vLLM: `"transformers"` or `"vllm"`.
        vllm_gpu_memory_utilization (`float`, *optional*, defaults to `0.3`):
            Share of the GPU memory that vLLM reserves.
        vllm_max_model_length (`int`, *optional*):
            Context window for vLLM. Set it to at least the maximum prompt length in the data set plus
            `max_completion_length`; if omitted, it is inferred from the model config.

    `packing` puts as many whole pairs into one sequence as fit into `max_length` tokens. `per_device_train_batch_size`
    then counts these sequences. Batches have no padding (`padding_free`). Evaluation has no padding either, but does not
    pack.

    > [!NOTE]
    > These parameters have default values different from [`~trl.SFTConfig`]:
    > - `max_length`: Defaults to `None` instead of `1024`: completions are never cut and rows never dropped silently.
    > - `bf16`: Defaults to `False` on a CPU. A run without an accelerator uses the CPU (`use_cpu`).
    """

    _VALID_DICT_FIELDS = [*SFTConfig._VALID_DICT_FIELDS, "chat_template_kwargs", "generation_kwargs"]
    _upstream = SFTConfig

    # Parameters that control the objective
    method: list[str] = option(["bct"])
    method_weights: list[float] | None = option(None)
    layers: list[int] | None = option(None)
    act_tokens: str = option("prompt", choices=("prompt", "completion", "all"))
    mlp_distance: str = option("cosine", choices=("cosine", "mse", "smooth_l1"))
    no_shared_span: str = option("error", choices=("error", "drop"))

    # Parameters that control the pairs, the anchors and the logging
    log_layer_distances: bool = option(False)

    # Parameters that control the generation of targets
    max_completion_length: int = option(512, at_least(1))
    temperature: float = option(1.0, TEMPERATURE)
    top_p: float = option(1.0, GENERATION["top_p"])
    top_k: int = option(0, GENERATION["top_k"])
    min_p: float | None = option(None, GENERATION["min_p"])
    repetition_penalty: float = option(1.0, GENERATION["repetition_penalty"])
    generation_kwargs: dict[str, Any] | str | None = option(None)
    cache_implementation: str | None = option(None)
    target_batch_size: int = option(32, at_least(1))
    keep_thinking: bool = option(True)
    regenerate_targets_every: int | None = option(None, at_least(1).or_none())
    target_cache_dir: str | None = option(None)
    use_vllm: bool = option(False)
    vllm_mode: str = option("colocate")
    vllm_model_impl: str = option("vllm", choices=("transformers", "vllm"))
    vllm_gpu_memory_utilization: float = option(0.3, GENERATION["vllm_gpu_memory_utilization"])
    vllm_max_model_length: int | None = option(None, GENERATION["vllm_max_model_length"])

    def __post_init__(self) -> None:
        self._given = self._values()
        if isinstance(self.method, str):
            self.method = [self.method]
        self._check_types()
        self._check_method()
        self._check_ranges({"dataset_num_proc": at_least(1).or_none()})
        self._refuse_inherited()
        self._check_used()
        self._check_vllm()
        self._settle()
        self.padding_free |= self.packing
        super().__post_init__()
        self._check_mappings()
        self._check_data_seed()
        if self.temperature == 0:
            check_sampling(vars(self))
        self._made = self._values()

    @property
    def weights(self) -> dict[str, float]:
        """Weight of each objective, by name."""
        return dict(zip(self.method, self.method_weights or [1.0] * len(self.method), strict=True))

    @property
    def compares_with_reference(self) -> bool:
        """Whether the reference runs during training. `bct` alone needs only its answers."""
        return self.method != ["bct"] or self.log_consistency_metrics

    @property
    def compares_states(self) -> bool:
        """Whether hidden states or attention maps are compared."""
        return bool({"act", "attct", "mlpct"} & set(self.method)) or self.log_consistency_metrics

    @property
    def needs_shared_span(self) -> bool:
        """Whether an objective needs tokens that both prompts share."""
        return self.compares_content or self.compares_suffix

    @property
    def compares_suffix(self) -> bool:
        """Whether an objective compares the tokens that both prompts end with."""
        return "act" in self.method and self.act_tokens != "completion"

    @property
    def compares_content(self) -> bool:
        """Whether an objective compares the shared content instead of the common end of the prompts."""
        return bool({"attct", "mlpct"} & set(self.method))

    @property
    def needs_completions(self) -> bool:
        """Whether the clean answers are needed."""
        objectives = {"bct", "kl"} & set(self.method)
        return (
            bool(objectives) or self.log_consistency_metrics or ("act" in self.method and self.act_tokens != "prompt")
        )

    def _check_types(self) -> None:
        super()._check_types()
        for key, of_what in (("method_weights", "one number a method"), ("layers", "blocks such as [-1]")):
            if not isinstance(getattr(self, key), list | None):
                raise ConsistencyError(f"`{key}` must be a list, {of_what}, got {getattr(self, key)!r}.")

    def _check_method(self) -> None:
        for method in self.method:
            if method not in METHODS and "opc" in str(method).lower():
                hint = "OPCT is `OnPolicyConsistencyTrainer` (`trl-consistency on-policy-consistency`)."
                raise ConsistencyError(f"Unknown `method` `{method}`: it can be {', '.join(METHODS)}. {hint}")
        check_methods(self.method, METHODS)
        if self.method_weights is None:
            return
        if len(self.method_weights) != len(self.method):
            raise ConsistencyError(
                f"`method_weights` has {len(self.method_weights)} value(s) for {len(self.method)} method(s) "
                f"({', '.join(self.method)}): give one weight for each."
            )
        if not all(0 <= weight < float("inf") for weight in self.method_weights) or not any(self.method_weights):
            raise ConsistencyError(
                f"`method_weights` must be finite, non-negative and not all 0, got {self.method_weights}."
            )

    def _check_vllm(self) -> None:
        if self.vllm_mode != "colocate":
            raise ConsistencyError(
                f"`vllm_mode` can only be 'colocate', got {self.vllm_mode!r}: no weights are sent to a server. One that "
                "has the model already makes the targets with `--engine ADDRESS`, or beforehand by `trl-consistency targets`."
            )
        if self.use_vllm and not self.needs_completions:
            raise ConsistencyError(
                f"`use_vllm` is for methods that need answers, and `method` is {self.method}. Leave it out."
            )
        if self.use_vllm:
            check_vllm_temperature(self.temperature, "`use_vllm`", "leave `use_vllm` out")
        if self.use_vllm and self.regenerate_targets_every:
            raise ConsistencyError(
                "`use_vllm` cannot be used with `regenerate_targets_every`: vLLM holds the initial checkpoint, and the "
                "current policy is to answer. Leave one of them out."
            )

    def _check_used(self) -> None:
        """Refuses options of unused objectives, because they would be ignored."""
        unused = {
            "layers": (
                self.layers is not None and not self.compares_states,
                "act, attct or mlpct, and for `log_consistency_metrics`",
            ),
            "act_tokens": (self.act_tokens != "prompt" and "act" not in self.method, "act"),
            "mlp_distance": (self.mlp_distance != "cosine" and "mlpct" not in self.method, "mlpct"),
            "no_shared_span": (
                self.no_shared_span != "error" and not self.needs_shared_span,
                "attct, mlpct, or act on the prompt's tokens",
            ),
            "loss_type": (self.loss_type == "dft" and "bct" not in self.method, "bct"),
        }
        if not self.needs_completions:
            of_answers = ("keep_thinking", "target_cache_dir", "generation_kwargs")
            changed = (name for name in of_answers if getattr(self, name) not in (None, True, {}))
            unused |= dict.fromkeys(changed, (True, "methods that need answers"))
        for name, (is_unused, methods) in unused.items():
            if is_unused:
                default = type(self).__dataclass_fields__[name].default
                raise ConsistencyError(
                    f"`{name}` is set, but `method` is {self.method}: it is for {methods}. Leave it out, or set it back "
                    f"to {default!r}."
                )
        self._check_padding_free()
        if self.log_layer_distances and not self.log_consistency_metrics:
            raise ConsistencyError(
                "`log_layer_distances` needs `log_consistency_metrics`. Set that, too, or leave `log_layer_distances` out."
            )

    def _check_data_seed(self) -> None:
        if self.data_seed is None:
            return
        if self.train_sampling_strategy == "sequential":
            raise ConsistencyError(
                "`data_seed` is set, but `train_sampling_strategy: sequential` draws no order. Leave it out."
            )
        if self.train_sampling_strategy == "random" and not self.accelerator_config.use_seedable_sampler:
            raise ConsistencyError(
                "`data_seed` is set, but with `use_seedable_sampler: false` in `accelerator_config`, the order is drawn with no seed of "
                "its own. Leave it out."
            )

    def _check_padding_free(self) -> None:
        if not (self.packing or self.padding_free):
            return
        option = padding_free_option(self)
        if "attct" in self.method:
            raise ConsistencyError(
                f"`{option}` cannot be used with `attct`: it compares attention maps, which have a row for each "
                "sequence of a batch. Leave one of them out."
            )
        if self.neftune_noise_alpha:
            raise ConsistencyError(
                f"`{option}` cannot be used with `neftune_noise_alpha`: the noise of a row depends on its length, and a batch "
                "without padding is one long row. Leave one of them out."
            )
        if self.pad_to_multiple_of not in (None, "auto"):
            raise ConsistencyError(
                f"`pad_to_multiple_of` is set, but with `{option}` batches have no padding. Leave one of them out."
            )
        if not self.packing:
            return
        if self.max_length is None:
            raise ConsistencyError(
                "`packing` needs `max_length`: a packed sequence holds as many pairs as fit into so many tokens. Set it to "
                "at least the length of the longest row."
            )
        strategy = self.train_sampling_strategy
        if strategy not in ("random", "sequential"):
            raise ConsistencyError(
                f"`packing` cannot be used with `train_sampling_strategy: {strategy}`, which goes by the lengths of rows: "
                "packed sequences are about equally long. Leave one of them out."
            )

    def _refuse_inherited(self) -> None:
        """Refuses options of `SFTConfig` that consistency training does not support."""
        refused = {
            "dataloader_persistent_workers": (
                self.dataloader_persistent_workers and self.regenerate_targets_every,
                "its workers would keep the targets that `regenerate_targets_every` replaces",
            ),
            f"packing_strategy={self.packing_strategy!r}": (self.packing_strategy != "bfd", "pairs are never cut"),
            "eval_packing": (
                self.eval_packing,
                "an evaluation batch is a fixed number of pairs. `packing` and `padding_free` leave out their padding",
            ),
            "assistant_only_loss": (self.assistant_only_loss, "the loss is on the completion by definition"),
            "completion_only_loss=False": (
                self.completion_only_loss is False,
                "the prompt holds the cue, which must not be learned",
            ),
            "length_column_name": (self.length_column_name != "length", "the trainer measures the rows itself"),
            "dataset_kwargs": (self.dataset_kwargs, "pairs are always rendered by the trainer"),
            "truncation_mode='keep_end'": (self.truncation_mode != "keep_start", "rows are never cut, see `overlong`"),
            "dataset_text_field": (self.dataset_text_field != "text", "pairs have `clean_prompt`, `perturbed_prompt`"),
        }
        if self.compares_with_reference:
            alone = "only `method: [bct]` without `log_consistency_metrics` has it"
            refused["label_smoothing_factor"] = (self.label_smoothing_factor, alone)
        elif self.loss_type == "dft":
            refused["label_smoothing_factor"] = (self.label_smoothing_factor, "`loss_type: dft` has none")
        self._refuse("in consistency training", refused)


def padding_free_option(args: Any) -> str:
    """Returns the option that asks for batches without padding, for messages."""
    return "packing" if args.packing else "padding_free"
