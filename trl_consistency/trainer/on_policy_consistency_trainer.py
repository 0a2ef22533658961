import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from accelerate.logging import get_logger
from datasets import Dataset, IterableDataset
from peft import PromptLearningConfig
from torch import Tensor, nn
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerBase,
    ProcessorMixin,
    TrainerCallback,
    TrainingArguments,
)
from transformers.trainer_utils import EvalLoopOutput, PredictionOutput
from trl import DistillationTrainer

from ..data.anchors import PREPARED_COLUMNS, anchor_rows, choose_anchors, mix_anchor_stream, mix_anchors, own_anchors
from ..data.generation import own_options
from ..data.lint import warn_of_findings
from ..data.pairs import AnyDataset, check_pairs
from ..data.prepare import is_prepared, prepare_pairs, unformatted
from ..data.rendering import load_processing_class
from ..data.thinking import thought_span
from ..errors import ConsistencyError, InvalidPairsError
from ..files import write_text
from ..finite import explained_sampling
from .architecture import check_architecture
from .card import build_on_policy_card, describe_data
from .checks import (
    as_config,
    check_anchor_arguments,
    check_chat_template,
    check_evaluation,
    check_extras,
    check_output_dir,
    check_reference_options,
    check_sharding,
    check_steps,
    check_tokenizer,
    check_training_options,
    refuse_arguments,
)
from .consistency_trainer import EvalDataset, _like, _named
from .device import announce_cpu, mixed_precision
from .dose import DoseCheck
from .evaluation_by_row import EvaluationMixin, means_of
from .finiteness import FinitenessMixin, check_base
from .folder_lock import all_alone_in
from .interruption import InterruptionMixin, read_manifest
from .load_balancing import router_coefficient
from .loss_meter import LossMeter
from .model_checks import check_model, check_model_folder, context_length, load_config
from .on_policy_consistency_config import OnPolicyConsistencyConfig
from .paired_loss import RowLosses
from .pushing import PushMixin
from .quantization import keep_layout
from .reference import GivenReference, Reference, StartReference, checksum_base, freeze_initial_policy
from .resumption import ResumptionMixin
from .rollout_engine import RolloutEngine
from .rollout_loss import RolloutLoss, Rollouts, importance_weights
from .rollout_metrics import (
    CleanAnswers,
    PairMetrics,
    completion_lengths,
    is_truncated,
    leave_out_lengths_of_nothing,
    length_metrics,
)
from .rollout_sampler import RolloutSampler
from .rollout_table import RolloutTable
from .sharding import is_sharded, shape_of
from .stream import RepeatedStream
from .target_making import adapter_changes_base
from .upstream import (
    RepeatSampler,
    create_model_from_path,
    get_config_model_id,
    global_then_local_main_first,
    pad,
    repeat_iterable_dataset,
    split_tensor_dict,
)


if TYPE_CHECKING:
    from peft import PeftConfig, PeftModel
    from transformers import BitsAndBytesConfig


logger = get_logger(__name__)


class OnPolicyConsistencyTrainer(
    EvaluationMixin, FinitenessMixin, ResumptionMixin, InterruptionMixin, PushMixin, DistillationTrainer
):
    """
    Trainer for On-Policy Consistency Training (OPCT, [Han et al.,
    2026](https://huggingface.co/papers/2605.21834)) on pairs of a clean and a perturbed prompt.

    The student `π_θ` answers the perturbed prompt `p` itself, `num_generations` times, and at every token of its own
    answers `y` is compared with the reference `π_0`, which reads the clean prompt `c` and the same tokens: the loss is the
    token-mean, over the global batch, of `D(π_θ(·|p, y_<t), π_0(·|c, y_<t))`. The reference is the model as it is when
    training begins, frozen. `D` is the reverse KL by default, exact over the whole vocabulary; with
    `loss_type="policy_gradient"` it is estimated by the sampled token alone, as in the paper.

    Example:

    ```python
    >>> from datasets import load_dataset
    >>> from peft import LoraConfig
    >>> from trl_consistency import OnPolicyConsistencyConfig, OnPolicyConsistencyTrainer

    >>> pairs = load_dataset("json", data_files="pairs.jsonl", split="train")  # clean_prompt, perturbed_prompt
    >>> trainer = OnPolicyConsistencyTrainer(
    ...     model="Qwen/Qwen3-4B-Instruct-2507",
    ...     args=OnPolicyConsistencyConfig(output_dir="opct", num_generations=4),
    ...     train_dataset=pairs,
    ...     peft_config=LoraConfig(target_modules="all-linear"),
    ... )
    >>> trainer.train()
    ```

    Args:
        model (`str` or [`~transformers.PreTrainedModel`] or [`~peft.PeftModel`]):
            Model to be trained, as in [`~trl.DistillationTrainer`]. The reference is this model as it is given, an
            adapter that it came with included.
        teacher_model (*optional*):
            Refused unless `None`: see `ref_model`.
        args ([`OnPolicyConsistencyConfig`], *optional*):
            Configuration for this trainer. If `None`, a default configuration is used.
        train_dataset ([`~datasets.Dataset`] or [`~datasets.IterableDataset`]):
            Pairs. `clean_prompt` and `perturbed_prompt` are strings or lists of chat messages (a last assistant turn is
            continued); `tools` (schemas) and `chat_template_kwargs`, optional, go to the chat template of both sides. A
            `completion` is not trained on, since the student answers itself: the log compares with it. A row with two
            equal prompts is an anchor: it asks the student to stay where the reference is.
        eval_dataset ([`~datasets.Dataset`], [`~datasets.IterableDataset`], [`~datasets.DatasetDict`], [`~datasets.IterableDatasetDict`] or `dict[str, Dataset | IterableDataset]`, *optional*):
            Pairs to evaluate the loss on, with `num_generations_eval` rollouts each: the token-mean over the whole set.
            The rollouts are drawn with the same seed each time.
        processing_class ([`~transformers.PreTrainedTokenizerBase`] or [`~transformers.ProcessorMixin`], *optional*):
            As in [`~trl.DistillationTrainer`]. If `None`, loaded from the model's name.
        callbacks (list of [`~transformers.TrainerCallback`], *optional*):
            As in [`~trl.DistillationTrainer`].
        optimizers (`tuple`, *optional*, defaults to `(None, None)`):
            As in [`~trl.DistillationTrainer`].
        quantization_config ([`~transformers.BitsAndBytesConfig`], *optional*):
            As in [`~trl.DistillationTrainer`].
        peft_config ([`~peft.PeftConfig`], *optional*):
            As in [`~trl.DistillationTrainer`].
        tools (list of `Callable`, *optional*):
            Refused unless `None`: rollouts call no tools.
        ref_model (`str` or [`~transformers.PreTrainedModel`], *optional*):
            Another model as the reference, of the same vocabulary. `None` is the initial policy, which needs no second
            model in memory.
        anchor_dataset ([`~datasets.Dataset`] or [`~datasets.IterableDataset`], *optional*):
            Prompts without a cue, on which the student is to stay where the reference is: a `prompt` column, and
            optionally `tools` and `chat_template_kwargs`. `args.anchor_ratio` says how many are mixed into an epoch. If
            `None`, the pairs' own clean prompts serve.

    Raises:
        [`ConsistencyError`]: For options that contradict each other, need a package that is not installed, or are not
            available in on-policy consistency training.
        [`InvalidPairsError`]: For data that do not hold usable pairs. Both are raised before any training.
    """

    _tag_names = ["trl", "trl-consistency", "consistency-training"]
    _name = "On-policy consistency training"

    # Set by the parent's constructor
    train_dataset: AnyDataset
    _buffered_inputs: list[Rollouts] | None
    _signature_columns: list[str] | None

    def __init__(
        self,
        model: "str | PreTrainedModel | PeftModel",
        teacher_model: None = None,
        args: OnPolicyConsistencyConfig | TrainingArguments | None = None,
        train_dataset: AnyDataset | None = None,
        eval_dataset: EvalDataset | None = None,
        processing_class: PreTrainedTokenizerBase | ProcessorMixin | None = None,
        callbacks: list[TrainerCallback] | None = None,
        optimizers: tuple[torch.optim.Optimizer | None, torch.optim.lr_scheduler.LambdaLR | None] = (None, None),
        quantization_config: "BitsAndBytesConfig | None" = None,
        peft_config: "PeftConfig | None" = None,
        tools: list[Callable] | None = None,
        ref_model: str | PreTrainedModel | None = None,
        anchor_dataset: AnyDataset | None = None,
    ):
        model_id = model if isinstance(model, str) else get_config_model_id(model.config)
        if args is None:
            args = OnPolicyConsistencyConfig(f"{model_id.split('/')[-1]}-OPCT")
        else:
            args = as_config(args, OnPolicyConsistencyConfig)
        refuse_arguments(
            teacher_model=(teacher_model, "the reference is the initial policy, or `ref_model`"),
            tools=(tools, "what the reference would see of the tools' answers is not settled; schemas go in a column"),
        )
        check_extras(args, quantization_config)
        if isinstance(peft_config, PromptLearningConfig):
            raise ConsistencyError(
                f"`peft_config` is a learned prompt ({peft_config.peft_type}), which the comparison of the two prompts does "
                "not see. Use an adapter of the weights, such as LoRA."
            )
        vocab_size = check_model(model, args, peft_config, quantization_config)
        if isinstance(ref_model, str):
            check_model_folder(ref_model)
            check_architecture(ref_model, load_config(ref_model, None, args.trust_remote_code))
        if args.should_save:
            check_output_dir(args.output_dir)
        check_evaluation(args, eval_dataset)
        train_dataset, anchor_dataset = unformatted(train_dataset), unformatted(anchor_dataset)
        datasets = {"train_dataset": train_dataset, **_named(eval_dataset)}
        datasets = {name: unformatted(dataset) for name, dataset in datasets.items()}
        for name, dataset in datasets.items():
            check_pairs(dataset, name)
        check_steps(cast(AnyDataset, train_dataset), args.max_steps)
        if anchor_dataset is not None:
            check_anchor_arguments(anchor_dataset, train_dataset, args.anchor_ratio)
            datasets["anchor_dataset"] = anchor_dataset = anchor_rows(anchor_dataset)
        if processing_class is None:
            processing_class = load_processing_class(
                model_id,
                (args.model_init_kwargs or {}).get("revision"),
                args.trust_remote_code,
                truncation_side="left",
                padding_side="left",
            )
        check_tokenizer(processing_class, args)
        check_chat_template(processing_class, datasets, ways_out="Use")
        if ref_model is not None and not isinstance(ref_model, str):
            _check_separate(ref_model, model)

        self.data_facts = describe_data(train_dataset)
        self.is_chat = isinstance(next(iter(cast(AnyDataset, train_dataset)))["clean_prompt"], list)
        self.anchor_description = (
            "the pairs' own clean prompts" if anchor_dataset is None else "a data set of their own"
        )
        self._peft_config = peft_config
        self._vocab_size, self._context = vocab_size, context_length(model, args)
        prepared = {
            name: _prepare(dataset, processing_class, args, name, vocab_size, self._context)
            for name, dataset in datasets.items()
        }
        warn_of_findings(
            prepared["train_dataset"],
            processing_class,
            "train_dataset",
            cast(dict[str, Any] | None, args.chat_template_kwargs),
            args.thinking_markers,
        )
        pairs = prepared["train_dataset"]
        self.noted_data = {"train_dataset": pairs}
        if args.anchor_ratio > 0:
            anchors = _anchors(pairs, prepared.get("anchor_dataset"), args)
            self.noted_data["anchor_dataset"] = anchors
            prepared["train_dataset"] = _with_anchors(pairs, anchors, args)
        _check_size(prepared["train_dataset"], args)
        for name in _named(eval_dataset):
            prepared[name] = _repeated(prepared[name], args)
        with _without_vllm(args):
            super().__init__(
                model=model,
                args=args,
                train_dataset=prepared["train_dataset"],
                eval_dataset=_like(eval_dataset, prepared),
                processing_class=processing_class,
                callbacks=callbacks,
                optimizers=optimizers,
                quantization_config=quantization_config,
                peft_config=peft_config,
            )
        keep_layout(self.model)
        announce_cpu(args.device, torch.bfloat16 if args.bf16 else self.model.dtype, model_id or "The model")
        check_base(self.model, model_id, self.accelerator)
        self.base_checksum = checksum_base(self.model, has_new_adapter=peft_config is not None)
        if not any(parameter.requires_grad for parameter in self.model.parameters()):
            raise ConsistencyError(
                "The model has no trainable parameter. Load an adapter for training with `PeftModel.from_pretrained(..., "
                "is_trainable=True)`, or give a `peft_config`."
            )
        check_reference_options(self)
        self.ref_model: Any = ref_model
        reference = self._make_reference(model)
        self.add_callback(StartReference(reference, self.accelerator))
        # The cache takes two passes of a model where it serves, and processes that share weights meet in each pass.
        self.router_aux_loss_coef = router_coefficient(self.model)
        self.rollout_loss = RolloutLoss(
            args, reference, not is_sharded(self.accelerator), balances_routers=self.router_aux_loss_coef != 0
        )
        batch, group = args.per_device_train_batch_size, args.num_generations
        if args.share_prefix and batch % group:
            logger.warning(
                f"`per_device_train_batch_size` ({batch}) is no multiple of `num_generations` ({group}): rollouts of one "
                "prompt fall into several batches, and each computes the prompt again. "
                f"{-(-batch // group) * group} would avoid that."
            )
        self.clean_answers = CleanAnswers(args, reference, self.accelerator, self._tokenizer, self.eos_token_ids)
        self.pair_metrics = (
            PairMetrics(self.model, reference, self._tokenizer.pad_token_id) if args.log_consistency_metrics else None
        )
        self._ends = [*self.eos_token_ids, self._tokenizer.pad_token_id]
        self._meter = LossMeter()
        self.log_completions = False  # the parent's table, which has prompts and completions alone
        self._tables = {mode: RolloutTable(args, self._tokenizer) for mode in ("train", "eval")}
        if args.dose_check:
            self.add_callback(DoseCheck(self, pairs))
        self.rollout_engine: RolloutEngine | None = None
        self._engine_log_probs: list[list[float]] | None = None
        self._log_ratios: dict[str, list[Tensor]] = {"train": [], "eval": []}
        if args.use_vllm:
            self.rollout_engine = RolloutEngine(
                self.model, self.accelerator, self.processing_class, args, list(self.eos_token_ids)
            )

    # The reference

    def _make_reference(self, model: Any) -> Reference:
        if self.ref_model is None:
            config = self._peft_config
            adapter_off = config is not None and not adapter_changes_base(config)
            check_sharding(self, adapter_off)
            return freeze_initial_policy(self, model, adapter_off)
        check_sharding(self, adapter_off=True)  # whatever the student is, it takes no part
        if isinstance(self.ref_model, str):
            options = {key: value for key, value in (self.args.model_init_kwargs or {}).items() if key != "revision"}
            options.setdefault("trust_remote_code", self.args.trust_remote_code)
            options.setdefault("use_safetensors", True)
            if self.accelerator.num_processes > 1:
                options["device_map"] = None  # "auto" would spread it over the other processes' devices.
            self.ref_model = create_model_from_path(self.ref_model, **options)
        check_base(self.ref_model, get_config_model_id(self.ref_model.config), self.accelerator)
        heads = [model.get_output_embeddings().weight for model in (self.model, self.ref_model)]
        ours, theirs = (shape_of(weight)[0] for weight in heads)
        if ours != theirs:
            raise ConsistencyError(
                f"`ref_model` has a vocabulary of {theirs} tokens and the model one of {ours}: their distributions cannot "
                "be compared. Use a reference with the same vocabulary."
            )
        return GivenReference(self.ref_model, self.accelerator)

    # Prompts: each with all its rollouts, one after the other

    def _set_signature_columns_if_needed(self) -> None:
        if self._signature_columns is None:
            self._signature_columns = list(PREPARED_COLUMNS)

    @property
    def _prompts_per_generation(self) -> int:
        return _prompts_per_generation(self.args)

    def get_train_dataloader(self) -> Any:
        """Loads batches of rollouts-to-be, each as often as it has micro-batches; [`_prepare_inputs`] splits them."""
        dataset, args = self.train_dataset, self.args
        if isinstance(dataset, IterableDataset):
            dataset = RepeatedStream(
                repeat_iterable_dataset(
                    dataset.shuffle(seed=args.seed) if args.shuffle_dataset else dataset,
                    mini_repeat_count=args.num_generations,
                    batch_size=self._prompts_per_generation,
                    repeat_count=args.steps_per_generation * args.num_iterations,
                )
            )
        return self._get_dataloader(
            dataset=dataset,
            description="Training",
            batch_size=self._train_batch_size * args.steps_per_generation,
            sampler_fn=self._get_train_sampler,
            is_training=True,
        )

    def _get_train_sampler(self, dataset: Dataset | None = None) -> RolloutSampler:
        args = self.args
        return RolloutSampler(
            self.train_dataset if dataset is None else dataset,
            num_generations=args.num_generations,
            num_prompts=self._prompts_per_generation,
            repeat_count=args.steps_per_generation * args.num_iterations,
            shuffle=bool(args.shuffle_dataset),
            seed=args.seed if args.data_seed is None else args.data_seed,
            epoch=lambda: int(self.state.epoch or 0),
        )

    def _get_eval_sampler(self, eval_dataset: Dataset) -> RepeatSampler:
        return RepeatSampler(eval_dataset, mini_repeat_count=1, shuffle=False)  # the rows repeat already

    # Rollouts of the student on the perturbed prompts

    def _prepare_inputs(self, generation_batch: Any) -> Rollouts:
        if not self.model.training:
            return self._generate_and_score_completions(generation_batch)
        steps = self.args.steps_per_generation
        if self._step % (steps * self.args.num_iterations) == 0 or self._buffered_inputs is None:
            self._buffered_inputs = self._split(self._generate_and_score_completions(generation_batch))
        return self._buffered_inputs[self._step % steps]

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> Rollouts:
        rollouts = super()._generate_and_score_completions([{"prompt": row["perturbed_ids"]} for row in inputs])
        del rollouts["num_items_in_batch"]  # counted before any mask
        leave_out_lengths_of_nothing(self._metrics["train" if self.model.training else "eval"])
        if self._engine_log_probs is not None:
            log_probs = [torch.tensor(row) for row in self._engine_log_probs]
            padded = pad(log_probs, padding_value=0.0, pad_to_multiple_of=self.pad_to_multiple_of)
            rollouts["engine_log_probs"] = padded.to(self.accelerator.device)
        is_anchor = [row["clean_ids"] == row["perturbed_ids"] for row in inputs]
        rollouts["is_anchor"] = torch.tensor(is_anchor, device=self.accelerator.device)
        rollouts |= self._padded("clean", [row["clean_ids"] for row in inputs], "left")
        rollouts["loss_mask"] = self._loss_mask(rollouts)
        with self.compute_loss_context_manager():
            answers = self.clean_answers(self.accelerator.unwrap_model(self.model), inputs)
        rollouts["equals_answer"] = self.clean_answers.compare(answers, rollouts)
        if self.args.log_consistency_metrics:
            rollouts |= self._padded("answer", answers, "right")
        return rollouts

    def _padded(self, name: str, rows: list[list[int]], side: str) -> Rollouts:
        ids = [torch.tensor(row, dtype=torch.long) for row in rows]
        parts = {"ids": (ids, self._tokenizer.pad_token_id), "mask": ([torch.ones_like(row) for row in ids], 0)}
        return {
            f"{name}_{part}": pad(
                tensors, padding_value=value, padding_side=side, pad_to_multiple_of=self.pad_to_multiple_of
            ).to(self.accelerator.device)
            for part, (tensors, value) in parts.items()
        }

    def _tokenize_prompts(self, prompts: list[list[int]]) -> tuple[list[list[int]], None, dict[str, Any]]:
        return prompts, None, {}  # rendered with the clean ones, by the same function

    def _generate_single_turn(self, prompt_ids: list[list[int]], *args: Any, **kwargs: Any) -> list[list[int]]:
        if self.rollout_engine is not None:
            completion_ids, self._engine_log_probs = self.rollout_engine(prompt_ids, self.state.global_step)
            return completion_ids
        was_training = self.model.training
        self.model.eval()  # what is sampled is the policy, without its dropout
        try:
            with (
                mixed_precision(self.accelerator),
                self.rollout_loss.sharing.in_generation(self.model),
                own_options(self.model, self.generation_config),
                explained_sampling("the student"),
            ):
                return super()._generate_single_turn(prompt_ids, *args, **kwargs)
        finally:
            self.model.train(was_training)

    def _loss_mask(self, rollouts: Rollouts) -> Tensor:
        """Which tokens are compared, (B, T)."""
        mask = rollouts["completion_mask"].clone()
        lengths = mask.sum(1)
        if self.args.mask_truncated_completions:
            mask[is_truncated(rollouts, self._ends)] = 0
        if not self.args.train_on_thinking:
            opening, closing = self.args.thinking_markers
            prompts = (rollouts["prompt_ids"], rollouts["prompt_mask"])
            for row, (prompt_ids, prompt_mask) in enumerate(zip(*prompts, strict=True)):
                completion_ids = rollouts["completion_ids"][row, : lengths[row]].tolist()
                prompt = prompt_ids[prompt_mask.bool()].tolist()
                start, end = thought_span(prompt, completion_ids, self._tokenizer, (opening, closing))
                mask[row, start:end] = 0
        return mask

    def _split(self, rollouts: Rollouts) -> list[Rollouts]:
        """Micro-batches, each with the number of tokens that its optimizer step compares on all processes."""
        accumulation = self.args.gradient_accumulation_steps
        batches = split_tensor_dict(rollouts, self.args.steps_per_generation)
        counts = torch.stack([batch["loss_mask"].sum() for batch in batches]).view(-1, accumulation).sum(1)
        global_counts = self.accelerator.gather(counts[None]).sum(0)
        for index, batch in enumerate(batches):
            batch["num_items_in_batch"] = global_counts[index // accumulation]
            if self.args.loss_type == "policy_gradient" and self.args.is_off_policy:
                unwrapped = self.accelerator.unwrap_model(self.model_wrapped)
                with torch.no_grad(), mixed_precision(self.accelerator):
                    batch["sampling_log_probs"] = self._forward_redirection(
                        self.model_wrapped, unwrapped, self.rollout_loss.log_probs, unwrapped, batch
                    )
        return batches

    # Compare, reduce

    def compute_loss(
        self,
        model: nn.Module,
        inputs: Rollouts,
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        watched = self._watch(inputs)
        losses = self._compare(model, inputs)
        self._meter.add(losses | watched, inputs["is_anchor"])
        # DDP averages the gradients over the processes.
        scale = self.accelerator.num_processes / inputs["num_items_in_batch"].clamp(min=1)
        loss = losses["loss"].sums.sum() * scale
        if "aux_loss" in losses:
            # A mean over the batches of an optimizer step, as in GRPO
            aux_loss = losses["aux_loss"].sums[0] / self.current_gradient_accumulation_steps
            loss = loss + self.router_aux_loss_coef * aux_loss
        return (loss, None) if return_outputs else loss

    def _compare(self, model: nn.Module, inputs: Rollouts) -> dict[str, RowLosses]:
        unwrapped = self.accelerator.unwrap_model(model)
        # Through the wrapper's forward: without it, DDP's processes would silently drift apart.
        with mixed_precision(self.accelerator):
            losses = self._forward_redirection(model, unwrapped, self.rollout_loss, unwrapped, inputs)
        if "engine_log_probs" in inputs:
            self._log_mismatch(inputs)
        self._tables["train" if self.model.training else "eval"].add(inputs, self.rollout_loss.divergence)
        return losses

    def _watch(self, inputs: Rollouts) -> dict[str, RowLosses]:
        """What is measured of rollouts beside the loss, without gradients, before the student's pass."""
        equals = inputs["equals_answer"]
        watched = {
            "completions/compared_ratio": RowLosses(inputs["loss_mask"].sum(1), inputs["completion_mask"].sum(1)),
            "completions/equal_to_clean_ratio": RowLosses((equals == 1).long(), (equals >= 0).long()),
        }
        if self.pair_metrics is not None:
            with mixed_precision(self.accelerator):
                watched |= self.pair_metrics(self.accelerator.unwrap_model(self.model), inputs)
        return watched

    def _log_mismatch(self, inputs: Rollouts) -> None:
        """How far the policy in training is from the engine that sampled, since the last log; under GRPO's names."""
        mode = "train" if self.model.training else "eval"
        metrics, seen = self._metrics[mode], self._log_ratios[mode]
        if "sampling/sampling_logp_difference/max" not in metrics:  # logged
            seen.clear()
        mask, log_ratio = inputs["loss_mask"].bool(), self.rollout_loss.log_ratio
        rows = log_ratio.new_full(mask.shape, math.nan).masked_scatter(mask, log_ratio)
        rows = self.accelerator.pad_across_processes(rows, dim=1, pad_index=math.nan)
        # In evaluation without the rows that repeat to fill the last batch
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

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if self.model.training:
            anchor_share, means, of_anchors = self._meter.means(self.accelerator)
            logs |= {name: value for name, value in means.items() if name != "loss"}
            if of_anchors:
                logs["anchor_share"] = anchor_share
                logs["anchor_loss"] = of_anchors["loss"]
        super().log(logs, start_time)
        if self.model.training:
            self._tables["train"].log("completions", self.state.global_step)

    # Training and evaluation

    def train(
        self,
        resume_from_checkpoint: str | bool | None = None,
        *args: Any,
        resume_changed: Sequence[str] = (),
        **kwargs: Any,
    ) -> Any:
        """
        As [`~transformers.Trainer.train`]. SIGTERM or Ctrl-C ends the process after a step, with a checkpoint.

        Args:
            resume_from_checkpoint (`str` or `bool`, *optional*):
                A checkpoint, or `True` for the last one that is whole.
            resume_changed (`Sequence[str]`, *optional*, defaults to `()`):
                What may be other than in the checkpoint's run, by the names that the error lists. The model card says so.

        Raises:
            [`ConsistencyError`]: If the checkpoint is of another run, or numbers are no longer finite.
        """
        checkpoint = check_training_options(self, resume_from_checkpoint, resume_changed)
        self._step, self._buffered_inputs = 0, None
        if self.rollout_engine is not None:
            self.rollout_engine.forget()
        with all_alone_in(self.args.output_dir, self.accelerator):
            result = super().train(checkpoint, *args, **kwargs)
        if self.rollout_engine is not None:
            self.rollout_engine.forget()
        self.rollout_loss.reference.check()
        return result

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        self.rollout_loss.reference.check()
        super()._save_checkpoint(model, trial)

    def _save_rng_state(self, output_dir: str) -> None:
        """With the random numbers, the rollouts that they drew."""
        if self.args.is_off_policy:
            os.makedirs(output_dir, exist_ok=True)  # The main process may not be that far.
            torch.save(self._buffered_inputs, self._rollouts_file(output_dir))
        super()._save_rng_state(output_dir)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        """With the random numbers, the rollouts that they drew."""
        super()._load_rng_state(checkpoint)
        if checkpoint is None:
            return
        self._step = self.state.global_step * self.args.gradient_accumulation_steps
        if self._step % (self.args.steps_per_generation * self.args.num_iterations):
            file, processes = self._rollouts_file(checkpoint), self.accelerator.num_processes
            if not file.is_file() or read_manifest(checkpoint).get("processes", processes) != processes:
                raise ConsistencyError(
                    f"`resume_from_checkpoint`: {checkpoint} was saved between two generations of rollouts and has none for "
                    "this process: the number of processes, or the options of the batches, were others."
                )
            self._buffered_inputs = torch.load(
                file,
                map_location=self.accelerator.device.type,  # torch cannot load to the "cpu:0" of several processes
                weights_only=True,
            )

    def _rollouts_file(self, checkpoint: str) -> Path:
        return Path(checkpoint) / f"rollouts_{self.accelerator.process_index}.pt"

    def evaluate(
        self,
        eval_dataset: EvalDataset | str | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> dict[str, float]:
        """As [`~transformers.Trainer.evaluate`]. Pairs that are passed here are prepared as in the constructor."""
        if eval_dataset is not None and not isinstance(eval_dataset, str):
            eval_dataset = _like(
                eval_dataset,
                {name: self._prepare_eval(dataset, name) for name, dataset in _named(eval_dataset).items()},
            )
        return super().evaluate(eval_dataset, ignore_keys=ignore_keys, metric_key_prefix=metric_key_prefix)

    def predict(
        self, test_dataset: AnyDataset, ignore_keys: list[str] | None = None, metric_key_prefix: str = "test"
    ) -> PredictionOutput:
        """As [`~transformers.Trainer.predict`], with pairs that are prepared as in [`evaluate`]."""
        return super().predict(self._prepare_eval(test_dataset, "test_dataset"), ignore_keys, metric_key_prefix)

    def _prepare_eval(self, dataset: AnyDataset, name: str) -> AnyDataset:
        if is_prepared(dataset):
            return dataset
        check_pairs(dataset, name)
        prepared = _prepare(dataset, self.processing_class, self.args, name, self._vocab_size, self._context)
        return _repeated(prepared, self.args)

    def prediction_step(
        self,
        model: nn.Module,
        inputs: Any,
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        inputs = self._prepare_inputs(inputs)
        with torch.no_grad(), self.compute_loss_context_manager():
            watched = self._watch(inputs)
            losses = self._compare(model, inputs)
        self._keep_rows(losses | watched | completion_lengths(inputs, self._ends))
        of_rows = losses["loss"]
        return of_rows.sums.sum() / of_rows.counts.sum().clamp(min=1), None, None

    def _eval_metrics(self, rows: dict[str, RowLosses]) -> dict[str, float]:
        lengths = length_metrics(rows)
        return {"loss": 0.0} | means_of(rows) | lengths  # an empty loss is 0, as in training

    def evaluation_loop(self, *args: Any, metric_key_prefix: str = "eval", **kwargs: Any) -> EvalLoopOutput:
        output = super().evaluation_loop(*args, metric_key_prefix=metric_key_prefix, **kwargs)
        # The parent's means of batches, in whose place are those of the set
        for name in [name for name in self._metrics["eval"] if name.startswith("completions/")]:
            del self._metrics["eval"][name]
        self._tables["eval"].log(f"{metric_key_prefix}_completions", self.state.global_step)
        return output

    @contextmanager
    def _evaluating_set(self) -> Iterator[None]:
        """Evaluations draw the same rollouts from the same policy, and leave those of the training alone."""
        with torch.random.fork_rng():
            torch.manual_seed(self.args.seed + self.accelerator.process_index)
            yield

    # Model card

    def create_model_card(
        self, model_name: str | None = None, dataset_name: str | None = None, tags: str | list[str] | None = None
    ) -> None:
        """Writes the model card to `args.output_dir`. Arguments as in [`~trl.DistillationTrainer`]."""
        if self.is_world_process_zero():
            write_text(
                Path(self.args.output_dir) / "README.md",
                str(build_on_policy_card(self, model_name, dataset_name, tags)),
            )

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """As [`~transformers.Trainer.save_model`]; the model card goes with it."""
        super().save_model(output_dir, _internal_call)
        if self.args.should_save:
            write_text(
                Path(output_dir or self.args.output_dir) / "README.md",
                str(build_on_policy_card(self, None, None, None)),
            )


@contextmanager
def _without_vllm(args: OnPolicyConsistencyConfig) -> Iterator[None]:
    """Has TRL's trainer start no engine: its engine would merge the adapter into the reference's weights."""
    use_vllm, args.use_vllm = args.use_vllm, False
    try:
        yield
    finally:
        args.use_vllm = use_vllm


def _prompts_per_generation(args: OnPolicyConsistencyConfig) -> int:
    rollouts = args.per_device_train_batch_size * cast(int, args.steps_per_generation)
    return rollouts * args.world_size // args.num_generations


def _check_size(dataset: AnyDataset, args: OnPolicyConsistencyConfig) -> None:
    """Raises [`InvalidPairsError`] for fewer prompts than a batch of rollouts takes."""
    needed, is_stream = _prompts_per_generation(args), isinstance(dataset, IterableDataset)
    rows = sum(1 for _ in islice(dataset, needed)) if is_stream else len(dataset)
    if rows < needed:
        raise InvalidPairsError(
            f"`train_dataset` has {rows} row(s), fewer than the {needed} prompts of one batch of rollouts "
            f"(`num_generations` {args.num_generations}). Use smaller batches, or more rollouts a prompt."
        )
    if rows % needed and not is_stream:
        logger.warning(
            f"Each epoch leaves out {rows % needed} of {rows} rows, others each time: {needed} prompts make a batch of "
            "rollouts, and an incomplete one is not used."
        )


def _prepare(
    dataset: AnyDataset,
    processing_class: PreTrainedTokenizerBase | ProcessorMixin,
    args: OnPolicyConsistencyConfig,
    name: str,
    vocab_size: int | None,
    context: int | None,
) -> AnyDataset:
    """Both prompts of every row as token ids, and the completion where one came with them."""
    with global_then_local_main_first():
        return prepare_pairs(
            dataset,
            processing_class,
            name,
            chat_template_kwargs=cast(dict[str, Any] | None, args.chat_template_kwargs),
            max_length=args.max_length,
            max_completion_length=args.max_completion_length,
            overlong=args.overlong,
            always_generates=True,
            vocab_size=vocab_size,
            context=context,
        )


def _anchors(pairs: AnyDataset, anchors: AnyDataset | None, args: OnPolicyConsistencyConfig) -> AnyDataset:
    """Those of an epoch; a stream draws from all of them."""
    anchors = own_anchors(pairs) if anchors is None else anchors
    if isinstance(pairs, IterableDataset):
        return anchors
    return choose_anchors(anchors, len(pairs), args.anchor_ratio, args.seed)


def _with_anchors(pairs: AnyDataset, anchors: AnyDataset, args: OnPolicyConsistencyConfig) -> AnyDataset:
    if isinstance(pairs, IterableDataset):
        return mix_anchor_stream(pairs, anchors, args.anchor_ratio, args.seed, with_completions=False)
    return mix_anchors(pairs, anchors)


def _repeated(dataset: AnyDataset, args: OnPolicyConsistencyConfig) -> AnyDataset:
    """Each row as often as it gets rollouts: distributed evaluation counts the rows of the data set."""
    rollouts = args.num_generations_eval or args.num_generations
    if isinstance(dataset, IterableDataset):
        return repeat_iterable_dataset(dataset, mini_repeat_count=rollouts)
    return dataset.select(np.arange(len(dataset)).repeat(rollouts))


def _check_separate(ref_model: Any, model: Any) -> None:
    """Raises [`ConsistencyError`] if the reference would train along with the student."""
    if isinstance(model, str):
        return
    ours = {id(parameter) for parameter in model.parameters()}
    if any(id(parameter) in ours for parameter in ref_model.parameters()):
        raise ConsistencyError(
            "`ref_model` shares weights with the model in training, so that both would always agree. Leave it out: "
            "without it the reference is the initial policy, frozen, in the same memory."
        )
