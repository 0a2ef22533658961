import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from datasets import Dataset, IterableDataset
from peft import PeftModel, PromptLearningConfig
from torch import Tensor, nn
from transformers import PreTrainedModel, TrainerCallback, TrainingArguments
from transformers.trainer_utils import EvalLoopOutput
from trl import DistillationTrainer

from ..config.device import mixed_precision
from ..config.on_policy_consistency_config import OnPolicyConsistencyConfig
from ..config.options import temporarily
from ..data.eval_sets import EvalDataset, named
from ..data.pairs import AnyDataset
from ..data.prepare import prepare_pairs
from ..data.rendering import ProcessingClass, check_same_tokens
from ..errors import ConsistencyError
from ..finite import explained_sampling
from ..generation.options import evaluating, own_options, reads_padding
from ..generation.vllm_engine import check_room
from ..losses.row_losses import RowLosses, means_of
from ..models.checks import check_reference_files
from ..models.dropout import warn_of_dropout, without_dropout
from ..models.sharding import is_sharded
from ..passes.load_balancing import router_coefficient
from ..passes.reference import GivenReference, Reference, StartReference, check_separate, load_reference_model
from ..rollouts.data import (
    RolloutSampler,
    check_batches,
    loss_mask,
    padded,
    repeated,
    repeated_stream,
    warn_of_thoughts,
)
from ..rollouts.horizon import Horizon
from ..rollouts.loss import RolloutLoss
from ..rollouts.metrics import CleanAnswers, completion_lengths, correct_lengths, length_metrics
from ..rollouts.overlap import RolloutsAhead
from ..rollouts.pair_metrics import PairMetrics
from ..rollouts.seconds import StepSeconds
from ..rollouts.table import RolloutTable
from ..rollouts.types import Rollouts
from ..rollouts.vllm_checks import check_options as check_vllm_options
from ..rollouts.vllm_engine import EngineMismatch, PolicyAnswers, RolloutEngine
from ..upstream import RepeatSampler, pad, split_tensor_dict
from ..weight_files import is_here
from .base import PairTrainer
from .card.facts import rollout_facts
from .run.base_model import check_engine_files
from .run.checks import check_reference_options, check_sharding, id_of, refuse_arguments, resolve_config
from .run.data_checks import warn_of_positions
from .run.rollout_checkpoints import load_rollouts, save_rollouts


if TYPE_CHECKING:
    from peft import PeftConfig
    from transformers import BitsAndBytesConfig


NOTHING_COMPARED = (
    "`mask_truncated_completions` leaves out the rollouts that reach `max_completion_length`, and `train_on_thinking: "
    "false` the thoughts. Raise `max_completion_length`."
)


class OnPolicyConsistencyTrainer(PairTrainer, DistillationTrainer):
    """
    Trainer for On-Policy Consistency Training (OPCT, [Han et al.,
    2026](https://huggingface.co/papers/2605.21834)) on pairs of a clean and a perturbed prompt.

    The student `π_θ` samples `num_generations` rollouts `y` for each perturbed prompt `p`. The reference `π_0`, the
    frozen initial model, reads the same tokens after the clean prompt `c`. The loss compares the two at every token: it
    is the mean of `D(π_θ(·|p, y_<t), π_0(·|c, y_<t))` over the tokens of the global batch, in nats. By default, `D` is
    the reverse KL, exact over the whole vocabulary. With `loss_type="policy_gradient"` it is estimated from the sampled
    token, as in the paper.

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
            Model to be trained, as in [`~trl.DistillationTrainer`]. The reference is this model before training,
            including any adapter that it already has.
        teacher_model (*optional*):
            Must be `None`: see `ref_model`.
        args ([`OnPolicyConsistencyConfig`], *optional*):
            Configuration for this trainer. If `None`, a default configuration is used.
        train_dataset ([`~datasets.Dataset`] or [`~datasets.IterableDataset`]):
            Pairs. `clean_prompt` and `perturbed_prompt` are strings or lists of chat messages. If the last message is an
            assistant turn, it is continued. The optional columns `tools` (schemas) and `chat_template_kwargs` go to the
            chat template for both prompts. A `completion` is not trained on: the log only compares rollouts with it. A
            row with two equal prompts is an anchor: it keeps the student close to the reference.
        eval_dataset ([`~datasets.Dataset`], [`~datasets.IterableDataset`], [`~datasets.DatasetDict`], [`~datasets.IterableDatasetDict`] or `dict[str, Dataset | IterableDataset]`, *optional*):
            Pairs to evaluate on, with `num_generations_eval` rollouts each. The loss is the token-mean over the whole
            data set. Each evaluation uses the same seed.
        processing_class ([`~transformers.PreTrainedTokenizerBase`] or [`~transformers.ProcessorMixin`], *optional*):
            As in [`~trl.DistillationTrainer`]. If `None`, loaded from the model's name. With `chat_template_path` or `eos_token`, a copy is
            changed, `trainer.processing_class`, and the given one keeps its own.
        callbacks (list of [`~transformers.TrainerCallback`], *optional*):
            As in [`~trl.DistillationTrainer`].
        optimizers (`tuple`, *optional*, defaults to `(None, None)`):
            As in [`~trl.DistillationTrainer`].
        quantization_config ([`~transformers.BitsAndBytesConfig`], *optional*):
            As in [`~trl.DistillationTrainer`].
        peft_config ([`~peft.PeftConfig`], *optional*):
            As in [`~trl.DistillationTrainer`].
        tools (list of `Callable`, *optional*):
            Must be `None`: rollouts do not call tools.
        ref_model (`str` or [`~transformers.PreTrainedModel`], *optional*):
            Another model to use as the reference. It must have the same vocabulary. If `None`, the reference is the
            initial policy. With a new adapter, that is the model with its adapter off, and nothing is copied. Otherwise, or
            if the adapter changes the base weights (PiSSA, OLoRA, `bias`), a copy of the trainable weights is kept. In full
            fine-tuning under FSDP2 and DeepSpeed ZeRO-3, that copy is a second whole model. Adapters that need a copy are
            refused there.
        anchor_dataset ([`~datasets.Dataset`] or [`~datasets.IterableDataset`], *optional*):
            Prompts without a cue, which keep the student close to the reference: a `prompt` column, and optionally
            `tools` and `chat_template_kwargs`. `args.anchor_ratio` sets their share of an epoch. If `None`, the pairs'
            own clean prompts are used.

    Raises:
        [`ConsistencyError`]: If options contradict each other, need a package that is not installed, or are not
            available in on-policy consistency training.
        [`InvalidPairsError`]: If the data contain unusable pairs.

    Both are raised before any training.
    """

    _name = "On-policy consistency training"
    _tokenizer_options: ClassVar[dict[str, str]] = {"truncation_side": "left", "padding_side": "left"}

    _buffered_inputs: list[Rollouts] | None  # set by the constructor of TRL's trainer
    _batch_prompts: list[list[int]] | None = None  # of these rollouts; None if a checkpoint had them
    _has_other_thoughts = False  # whether rollouts have thoughts between other markers than `thinking_markers`
    _has_compared: bool | None = None  # whether any rollout of a run had a compared token; None without rollouts
    _engine_log_probs: list[list[float]] | None = None  # of the last rollouts, where the engine returns them
    # With `vllm_overlap`: what was read of the data for the next step, and its prompts
    _read_ahead: tuple[list[Any], Any] | None = None
    _next_prompts: list[list[int]] | None = None

    def __init__(
        self,
        model: "str | PreTrainedModel | PeftModel",
        teacher_model: None = None,
        args: OnPolicyConsistencyConfig | TrainingArguments | None = None,
        train_dataset: AnyDataset | None = None,
        eval_dataset: EvalDataset | None = None,
        processing_class: ProcessingClass | None = None,
        callbacks: list[TrainerCallback] | None = None,
        optimizers: tuple[torch.optim.Optimizer | None, torch.optim.lr_scheduler.LambdaLR | None] = (None, None),
        quantization_config: "BitsAndBytesConfig | None" = None,
        peft_config: "PeftConfig | None" = None,
        tools: list[Callable] | None = None,
        ref_model: str | PreTrainedModel | None = None,
        anchor_dataset: AnyDataset | None = None,
    ):
        args = resolve_config(args, OnPolicyConsistencyConfig, model, "OPCT")
        refuse_arguments(
            teacher_model=(teacher_model, "the reference is the initial policy, or `ref_model`"),
            tools=(tools, "what the reference would see of the tools' answers is not settled; schemas go in a column"),
        )
        self.ref_model: Any = ref_model
        data = self._check_and_prepare(
            model,
            args,
            train_dataset,
            eval_dataset,
            anchor_dataset,
            processing_class,
            peft_config,
            quantization_config,
        )
        if args.use_vllm and args.vllm_mode == "colocate":
            has_adapter = peft_config is not None or isinstance(model, PeftModel)
            check_engine_files(model, args, sends_weights=args.vllm_sync == "weights" or not has_adapter)
        # TRL's trainer would start an engine of its own, which merges the adapter into the reference's weights, and turn dropout off
        # for good.
        with temporarily(args, use_vllm=False, disable_dropout=False):
            super().__init__(
                model=model,
                args=args,
                train_dataset=data.train_dataset,
                eval_dataset=data.eval_dataset,
                processing_class=data.processing_class,
                callbacks=callbacks,
                optimizers=optimizers,
                quantization_config=quantization_config,
                peft_config=self._peft_config,
            )
        if args.disable_dropout:
            warn_of_dropout(self.model)
        self._check_loaded(model, data.anchor_dataset)
        for name, dataset in {"train_dataset": self.train_dataset, **named(self.eval_dataset)}.items():
            warn_of_positions(dataset, self.model.config, args, name)
        self.rollout_loss = self._make_rollout_loss(model)
        self.horizon = Horizon(args, self.accelerator)
        if self.horizon.grows_by_itself:
            self.add_callback(self.horizon)
        self.rollout_engine = self._make_engine() if args.use_vllm else None
        if self.rollout_engine is not None:
            for dataset in (self.train_dataset, *named(self.eval_dataset).values()):
                if isinstance(dataset, Dataset):  # the rows of streams are checked as they come
                    self.rollout_engine.check_room(dataset["perturbed_ids"], args.max_completion_length)
        self._ahead = RolloutsAhead(self.rollout_engine) if args.vllm_overlap and self.rollout_engine else None
        self._longest = args.max_completion_length
        self._make_metrics()

    # The loss

    def compute_loss(
        self,
        model: nn.Module,
        inputs: Rollouts,
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        losses = self._compare(model, inputs)
        self.horizon.add(self.rollout_loss.divergence, inputs)
        self._meter.add(losses | self._watch(inputs), inputs["is_anchor"])
        # DDP averages the gradients over the processes.
        scale = self.accelerator.num_processes / inputs["num_items_in_batch"].clamp(min=1)
        loss = losses["loss"].sums.sum() * scale
        if "aux_loss" in losses:
            # Mean over gradient accumulation, as in GRPO
            aux_loss = losses["aux_loss"].sums[0] / self.current_gradient_accumulation_steps
            loss = loss + self.router_aux_loss_coef * aux_loss
        return (loss, None) if return_outputs else loss

    def _compare(self, model: nn.Module, inputs: Rollouts) -> dict[str, RowLosses]:
        mode = "train" if self.model.training else "eval"
        losses = self._call_wrapped(model, self.rollout_loss, inputs)
        if "engine_log_probs" in inputs:
            self._mismatch.add(mode, self._metrics[mode], inputs["loss_mask"], self.rollout_loss.log_ratio)
        self._tables[mode].add(inputs, self.rollout_loss.divergence)
        return losses

    def _watch(self, inputs: Rollouts) -> dict[str, RowLosses]:
        """Returns logged quantities of rollouts."""
        equals = inputs["equals_answer"]
        return {
            "completions/compared_ratio": RowLosses(inputs["loss_mask"].sum(1), inputs["completion_mask"].sum(1)),
            "completions/equal_to_clean_ratio": RowLosses((equals == 1).long(), (equals >= 0).long()),
        }

    # The student's rollouts on the perturbed prompts

    def _prepare_inputs(self, generation_batch: Any) -> Rollouts:
        if not self.model.training:
            return self._generate_and_score_completions(generation_batch)
        steps = self.args.steps_per_generation
        rollouts = None if self._step % (steps * self.args.num_iterations) == 0 else self._buffered_inputs
        self._check_prompts([row["perturbed_ids"] for row in generation_batch], is_new=rollouts is None)
        if rollouts is None:
            rollouts = self._buffered_inputs = self._split(self._generate_and_score_completions(generation_batch))
        return rollouts[self._step % steps]

    def _check_prompts(self, prompts: list[list[int]], is_new: bool) -> None:
        """Raises [`ConsistencyError`] if a batch has other prompts than the trainer's own order gives: rows would be left out."""
        group = self.args.num_generations
        is_grouped = all(
            prompts[first : first + group].count(prompts[first]) == group for first in range(0, len(prompts), group)
        )
        repeats = is_new or self._batch_prompts is None or prompts == self._batch_prompts
        if not is_grouped or not repeats:
            raise ConsistencyError(
                f"The batches have other prompts than rollouts need: each prompt {group} times in a row (`num_generations`), and each batch "
                "once for every micro-batch that trains on it. Leave `get_train_dataloader` and `_get_train_sampler` as they are, and put "
                "the rows into the order that you want (`shuffle_dataset: false` keeps it)."
            )
        self._batch_prompts = prompts if is_new else self._batch_prompts

    def _split(self, rollouts: Rollouts) -> list[Rollouts]:
        """Returns micro-batches, each with its optimizer step's number of compared tokens on all processes."""
        accumulation = self.args.gradient_accumulation_steps
        batches = split_tensor_dict(rollouts, self.args.steps_per_generation)
        counts = torch.stack([batch["loss_mask"].sum() for batch in batches]).view(-1, accumulation).sum(1)
        global_counts = self.accelerator.gather(counts[None]).sum(0)
        self._has_compared = bool(self._has_compared) or bool(global_counts.any())
        for index, batch in enumerate(batches):
            batch["num_items_in_batch"] = global_counts[index // accumulation]
            is_loaded = "sampling_log_probs" in batch  # from a checkpoint
            if self.args.loss_type == "policy_gradient" and self.args.is_off_policy and not is_loaded:
                with torch.no_grad():
                    batch["sampling_log_probs"] = self._call_wrapped(
                        self.model_wrapped, self.rollout_loss.log_probs, batch
                    )
        return batches

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> Rollouts:
        self._longest = self._next_length()
        rollouts = super()._generate_and_score_completions([{"prompt": row["perturbed_ids"]} for row in inputs])
        del rollouts["num_items_in_batch"]  # counted before the loss mask
        mode = "train" if self.model.training else "eval"
        correct_lengths(self._metrics[mode], rollouts, self._ends, self.accelerator)
        if self._engine_log_probs is not None:
            log_probs = [torch.tensor(row) for row in self._engine_log_probs]
            rollouts["engine_log_probs"] = pad(
                log_probs, padding_value=0.0, pad_to_multiple_of=self.pad_to_multiple_of
            ).to(self.accelerator.device)
        is_anchor = [row["clean_ids"] == row["perturbed_ids"] for row in inputs]
        rollouts["is_anchor"] = torch.tensor(is_anchor, device=self.accelerator.device)
        rollouts |= self._padded("clean", [row["clean_ids"] for row in inputs], "left")
        rollouts["loss_mask"] = loss_mask(rollouts, self.args, self._tokenizer, self._ends, self._longest)
        if not self.args.train_on_thinking and not self._has_other_thoughts:
            self._has_other_thoughts = warn_of_thoughts(rollouts, self.args, self._tokenizer)
        with mixed_precision(self.accelerator):
            answers = self.clean_answers(self.accelerator.unwrap_model(self.model), inputs)
        rollouts["equals_answer"] = self.clean_answers.compare(answers, rollouts)
        if self.args.log_consistency_metrics:
            rollouts |= self._padded("answer", answers, "right")
        return rollouts

    def _padded(self, name: str, rows: list[list[int]], side: str) -> Rollouts:
        batch = padded(name, rows, side, self._tokenizer.pad_token_id, self.pad_to_multiple_of)
        return {part: tensor.to(self.accelerator.device) for part, tensor in batch.items()}

    def _next_length(self) -> int:
        """Returns the longest rollout of the next batch."""
        if not self.model.training or self.args.completion_length_schedule is None:
            return self.args.max_completion_length
        length = self.horizon(self.state.global_step)
        self._metrics["train"]["completions/horizon"].append(length)
        return length

    def _tokenize_prompts(self, prompts: list[list[int]]) -> tuple[list[list[int]], None, dict[str, Any]]:
        return prompts, None, {}  # already token ids

    def _generate_single_turn(self, prompt_ids: list[list[int]], *args: Any, **kwargs: Any) -> list[list[int]]:
        engine = self.rollout_engine
        with self._seconds.sampling(self.model.training):
            step = self.state.global_step
            if self._ahead is not None and self.model.training:
                completion_ids, self._engine_log_probs = self._ahead(
                    prompt_ids, step, self._longest, self._next_prompts
                )
            elif engine is not None:
                completion_ids, self._engine_log_probs = engine(prompt_ids, step, self._longest)
            else:
                completion_ids = self._generate_here(prompt_ids, *args, **kwargs)
        self._seconds.count(completion_ids, engine.other_seconds if engine is not None else 0.0)
        for name, value in (self._seconds.report | (engine.report if engine is not None else {})).items():
            self._metrics["train" if self.model.training else "eval"][name].append(value)
        return completion_ids

    def _generate_here(self, prompt_ids: list[list[int]], *args: Any, **kwargs: Any) -> list[list[int]]:
        """Samples rollouts with `model.generate`, as many at a time as `rollout_batch_size` says."""
        size = self.args.rollout_batch_size or max(len(prompt_ids), 1)
        if not is_sharded(self.accelerator) and reads_padding(self.model):
            size = 1
        completions: list[list[int]] = []
        self.generation_config.max_new_tokens = self._longest
        with (
            evaluating(self.model),  # the policy is sampled without dropout
            mixed_precision(self.accelerator),
            self.rollout_loss.sharing.in_generation(self.model),
            own_options(self.model, self.generation_config),
            explained_sampling("the student"),
        ):
            for start in range(0, len(prompt_ids), size):
                completions += super()._generate_single_turn(prompt_ids[start : start + size], *args, **kwargs)
        return completions

    # Prompts, each repeated for its rollouts

    def get_train_dataloader(self) -> Any:
        """Yields each batch of prompts once per micro-batch of its rollouts. [`_prepare_inputs`] splits the rollouts."""
        dataset = self.train_dataset
        if isinstance(dataset, IterableDataset):
            dataset = repeated_stream(self._passes, self.args)
        return self._get_dataloader(
            dataset=dataset,
            description="Training",
            batch_size=self._train_batch_size * self.args.steps_per_generation,
            sampler_fn=self._get_train_sampler,
            is_training=True,
        )

    def _get_dataloader(self, dataset: AnyDataset, *args: Any, is_training: bool = False, **kwargs: Any) -> Any:
        dataset = dataset if is_training else repeated(dataset, self.args)
        return super()._get_dataloader(dataset, *args, is_training=is_training, **kwargs)

    def _get_train_sampler(self, dataset: Dataset | None = None) -> RolloutSampler:
        dataset = self.train_dataset if dataset is None else dataset
        return RolloutSampler(dataset, self.args, epoch=lambda: self._epoch)

    def _get_eval_sampler(self, eval_dataset: Dataset) -> RepeatSampler:
        return RepeatSampler(eval_dataset, mini_repeat_count=1, shuffle=False)  # the rows are already repeated

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[Any], Any]:
        """Reads the batches of an optimizer step and, with `vllm_overlap`, those of the next one."""
        if self._ahead is None:
            return super().get_batch_samples(epoch_iterator, num_batches, device)
        batches = self._read_ahead or super().get_batch_samples(epoch_iterator, num_batches, device)
        self._read_ahead = super().get_batch_samples(epoch_iterator, num_batches, device)
        is_last = self.state.global_step + 1 >= self.state.max_steps or not self._read_ahead[0]
        self._next_prompts = None if is_last else [row["perturbed_ids"] for row in self._read_ahead[0][0]]
        if not self._read_ahead[0]:  # the end of an epoch
            self._read_ahead = None
        return batches

    def _run_epoch(self, *args: Any, **kwargs: Any) -> None:
        self._read_ahead = None
        self._step = 0  # A callback may have ended the epoch before within a batch of rollouts.
        super()._run_epoch(*args, **kwargs)

    # What the constructor makes

    def _make_rollout_loss(self, model: Any) -> RolloutLoss:
        args = self.args
        check_reference_options(self)
        reference = self._make_reference(model)
        self.add_callback(StartReference(reference, self.accelerator))
        self.router_aux_loss_coef = router_coefficient(self.model)
        has_metrics = args.log_consistency_metrics
        return RolloutLoss(
            args,
            reference,
            # The cache runs the backbone twice for some batches only, but sharded processes must run it equally often.
            not is_sharded(self.accelerator),
            balances_routers=self.router_aux_loss_coef != 0,
            pair_metrics=PairMetrics(self.model, reference, self._tokenizer.pad_token_id) if has_metrics else None,
        )

    def _make_reference(self, model: Any) -> Reference:
        if self.ref_model is None:
            return self._freeze_reference(model)
        check_sharding(self, adapter_off=True)  # a `ref_model` does not share the student's weights
        self.ref_model = load_reference_model(self.ref_model, self)
        return GivenReference(self.ref_model, self.accelerator, given=self.ref_model)

    @property
    def _reference(self) -> Reference:
        return self.rollout_loss.reference

    def _make_engine(self) -> RolloutEngine:
        return RolloutEngine(self.model, self.accelerator, self.processing_class, self.args, list(self.eos_token_ids))

    def _make_metrics(self) -> None:
        args = self.args
        self.clean_answers = CleanAnswers(args, self._reference, self.accelerator, self._tokenizer, self.eos_token_ids)
        self._mismatch = EngineMismatch(args, self.accelerator)
        self._seconds = StepSeconds()
        self._ends = list(self.eos_token_ids)
        self.log_completions = False  # disables the parent's table, which lacks divergences
        self._tables = {mode: RolloutTable(args, self._tokenizer) for mode in ("train", "eval")}

    # Checks and preparation

    def _check_options(self, model: Any, args: Any, peft_config: Any, quantization_config: Any) -> None:
        if isinstance(peft_config, PromptLearningConfig):
            raise ConsistencyError(
                f"`peft_config` is a learned prompt ({peft_config.peft_type}), which the comparison of the two prompts does "
                "not see. Use an adapter of the weights, such as LoRA."
            )
        check_vllm_options(model, args, peft_config)
        if isinstance(self.ref_model, str):
            check_reference_files(self.ref_model, args.trust_remote_code)
        elif self.ref_model is not None:
            check_separate(self.ref_model, model)

    def _check_template(self, processing_class: Any, args: Any, datasets: dict[str, AnyDataset]) -> bool:
        can_render = super()._check_template(processing_class, args, datasets)
        name = "" if self.ref_model is None else id_of(self.ref_model)
        if isinstance(self.ref_model, str) or is_here(name):
            check_same_tokens(processing_class, "ref_model", name, trust_remote_code=args.trust_remote_code)
        return can_render

    def _check_size(self, dataset: AnyDataset, args: Any) -> None:
        check_batches(dataset, args)

    def _render(self, dataset: AnyDataset, processing_class: Any, args: Any, name: str) -> AnyDataset:
        dataset = prepare_pairs(
            dataset,
            processing_class,
            name,
            chat_template_kwargs=args.chat_template_kwargs,
            max_length=args.max_length,
            max_completion_length=args.max_completion_length,
            overlong=args.overlong,
            always_generates=True,
            vocab_size=self._vocab_size,
            context=self._context,
            thinking_markers=tuple(args.thinking_markers),
        )
        if args.use_vllm and args.vllm_max_model_length is not None and isinstance(dataset, Dataset):
            check_room(args.vllm_max_model_length, dataset["perturbed_ids"], args.max_completion_length)
        return dataset

    # Training, evaluation and logs

    def _training(self) -> AbstractContextManager:
        return without_dropout(self.model) if self.args.disable_dropout else nullcontext()

    def _before_training(self) -> None:
        self._step, self._buffered_inputs, self._batch_prompts = 0, None, None
        self._has_compared = None
        self._seconds = StepSeconds()
        self._tables["train"].clear()  # of a training that was broken off
        self._after_training()

    def _after_training(self) -> None:
        if self.rollout_engine is not None:
            self.rollout_engine.forget()
        if self._ahead is not None:
            self._ahead.forget()
        if self._has_compared is False:
            raise ConsistencyError(
                f"No token of any rollout was compared, so that nothing was learned. {NOTHING_COMPARED}"
            )

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        metrics = self._metrics["train"]
        ended = len(metrics.get("step_time", []))
        loss = super().training_step(*args, **kwargs)
        for seconds in metrics.get("step_time", [])[ended:]:  # of an optimizer step that this one ended
            metrics["training_seconds"].append(self._seconds.training(seconds))
        return loss

    def _track_num_input_tokens(self, inputs: Any) -> None:
        """Does nothing: TRL's trainer counts the tokens of rollouts, which are not sampled yet."""

    def _save_rng_state(self, output_dir: str) -> None:
        """Also saves the rollouts that still have optimizer steps to come."""
        if self.args.is_off_policy:
            save_rollouts(self._buffered_inputs, output_dir, self.accelerator)
        super()._save_rng_state(output_dir)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        """Also loads these rollouts."""
        super()._load_rng_state(checkpoint)
        if checkpoint is not None:
            self._step = self.state.global_step * self.args.gradient_accumulation_steps
            steps = self.args.steps_per_generation
            if self._step % (steps * self.args.num_iterations):
                rows = self.args.per_device_train_batch_size * steps
                self._buffered_inputs = self._split(load_rollouts(checkpoint, self.accelerator, rows))

    def prediction_step(
        self, model: nn.Module, inputs: Any, prediction_loss_only: bool, ignore_keys: list[str] | None = None
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        inputs = self._prepare_inputs(inputs)
        with torch.no_grad(), self.compute_loss_context_manager():
            losses = self._compare(model, inputs)
        self._eval_rows.add(losses | self._watch(inputs) | completion_lengths(inputs, self._ends))
        of_rows = losses["loss"]
        return of_rows.sums.sum() / of_rows.counts.sum().clamp(min=1), None, None

    def _eval_metrics(self, rows: dict[str, RowLosses]) -> dict[str, float]:
        lengths = length_metrics(rows)
        means = means_of(rows)
        if "loss" not in means:
            raise ConsistencyError(
                f"No token of any rollout was compared in the evaluation, so that there is no loss. {NOTHING_COMPARED}"
            )
        return means | lengths

    def evaluation_loop(self, *args: Any, metric_key_prefix: str = "eval", **kwargs: Any) -> EvalLoopOutput:
        if self.rollout_engine is not None and not self.is_in_train:
            self.rollout_engine.forget()  # The weights may have changed without a step.
        # Of `predict`, which logs nothing, or of an evaluation that was broken off
        self._metrics["eval"].clear()
        self._tables["eval"].clear()
        output = super().evaluation_loop(*args, metric_key_prefix=metric_key_prefix, **kwargs)
        # TRL's trainer would log its own under "eval_", whatever the prefix. Of lengths, the metrics have those of the whole data set.
        for name, values in self._metrics["eval"].items():
            known = [value for value in values if not math.isnan(value)]
            if known and not name.startswith("completions/"):
                output.metrics[f"{metric_key_prefix}_{name}"] = sum(known) / len(known)
        self._metrics["eval"].clear()
        self._tables["eval"].log(f"{metric_key_prefix}_completions", self.state.global_step)
        return output

    @contextmanager
    def _evaluating_set(self) -> Iterator[None]:
        """Gives evaluations a fixed seed."""
        torch.manual_seed(self.args.seed + self.accelerator.process_index)
        yield

    def _train_metrics(self, means: dict[str, float]) -> dict[str, float]:
        return {name: value for name, value in means.items() if name != "loss"}

    def _total(self, means: dict[str, float]) -> float | None:
        return means.get("loss")

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        is_training = self._logs_training(logs)
        super().log(logs, start_time)
        if is_training:
            self._tables["train"].log("completions", self.state.global_step)

    def _answering_engine(self, max_tokens: int) -> PolicyAnswers | None:
        engine = self.rollout_engine
        if engine is None or not engine.answers_each_process(self.accelerator.num_processes):
            return None
        return PolicyAnswers(engine, self.state.global_step, max_tokens)

    def _card_facts(self) -> dict[str, str]:
        return rollout_facts(self)
