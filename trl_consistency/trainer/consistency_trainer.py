import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import torch
from accelerate.logging import get_logger
from datasets import DatasetDict, IterableDataset, IterableDatasetDict
from torch import nn
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerBase,
    ProcessorMixin,
    TrainerCallback,
    TrainingArguments,
)
from transformers.trainer_utils import EvalPrediction, PredictionOutput
from trl import SFTTrainer

from ..data.alignment import AlignmentReport
from ..data.anchors import PREPARED_COLUMNS, anchor_rows, choose_anchors, mix_anchor_stream, mix_anchors, own_anchors
from ..data.collators import PairCollator
from ..data.lint import warn_of_findings
from ..data.pairs import AnyDataset, check_pairs
from ..data.prepare import align_pairs, is_prepared, needs_targets, prepare_pairs, unformatted
from ..data.rendering import load_processing_class
from ..data.targets import TargetTable
from ..errors import ConsistencyError
from ..files import write_text
from .capture import needed_mask
from .card import build_card, describe_data
from .checks import (
    as_config,
    check_anchor_arguments,
    check_chat_template,
    check_evaluation,
    check_extras,
    check_full_batches,
    check_model_options,
    check_output_dir,
    check_reference_options,
    check_sharding,
    check_steps,
    check_stream,
    check_tokenizer,
    check_training_options,
    read_template,
    refuse_arguments,
)
from .consistency_config import ConsistencyConfig
from .device import announce_cpu, mixed_precision
from .dose import DoseCheck
from .evaluation_by_row import PairEvaluationMixin
from .finiteness import FinitenessMixin, check_base
from .folder_lock import all_alone_in
from .interruption import InterruptionMixin
from .loss_meter import LossMeter
from .model_checks import check_model, context_length
from .paired_loss import PairedLoss, RowLosses
from .pushing import PushMixin
from .quantization import keep_layout
from .reference import StartReference, checksum_base, freeze_initial_policy
from .regeneration import RegenerateTargets
from .resumption import ResumptionMixin
from .sharding import gathered
from .stream import RepeatedStream
from .target_making import PLAIN_LOADING, TargetsMixin, adapter_changes_base
from .upstream import ForwardRedirection, get_config_model_id, global_then_local_main_first
from .vllm_engine import check_vllm


if TYPE_CHECKING:
    from peft import PeftConfig, PeftModel
    from transformers import BitsAndBytesConfig


logger = get_logger(__name__)

EvalDataset: TypeAlias = AnyDataset | DatasetDict | IterableDatasetDict | dict[str, AnyDataset]


class ConsistencyTrainer(
    TargetsMixin, PairEvaluationMixin, FinitenessMixin, ResumptionMixin, InterruptionMixin, PushMixin, SFTTrainer
):
    """
    Trainer for consistency training on pairs of a clean and a perturbed prompt.

    The model as it is when training begins, frozen and reading the clean prompt `c` (`π_0`), supervises the model in
    training on the perturbed prompt `p` (`π_θ`). `args.method` names the objectives:

    - `"bct"` (Bias-augmented Consistency Training, [Chua et al., 2024](https://huggingface.co/papers/2403.05518),
      section 3): the student learns the reference's own clean answer `y ~ π_0(·|c)`, by the token-mean of
      `-log π_θ(y_t | p, y_<t)`, end-of-turn token included.
    - `"kl"` (BCT with soft targets): on the same answer, it learns the reference's whole distributions, by the
      token-mean of `KL(π_0(·|c, y_<t) ‖ π_θ(·|p, y_<t))`.
    - `"act"` (Activation Consistency Training, [Irpan et al., 2025](https://huggingface.co/papers/2510.27062)): its
      residual stream stays near the reference's on the tokens that both prompts end with, by the squared distance.
    - `"attct"` (research code): within the shared content, it divides its attention as the reference does, by the
      Jensen-Shannon divergence.
    - `"mlpct"` (research code): on the shared content, its MLPs' states stay near the reference's, by the cosine or another
      distance (`args.mlp_distance`).

    Each objective is a mean over what it counts in the global batch: answer tokens, pairs or shared tokens.

    Example:

    ```python
    >>> from datasets import load_dataset
    >>> from peft import LoraConfig
    >>> from trl_consistency import ConsistencyConfig, ConsistencyTrainer

    >>> pairs = load_dataset("json", data_files="pairs.jsonl", split="train")  # clean_prompt, perturbed_prompt
    >>> trainer = ConsistencyTrainer(
    ...     model="Qwen/Qwen3-4B-Instruct-2507",
    ...     args=ConsistencyConfig(output_dir="bct", method="bct"),
    ...     train_dataset=pairs,
    ...     peft_config=LoraConfig(target_modules="all-linear"),
    ... )
    >>> trainer.train()
    ```

    Args:
        model (`str` or [`~transformers.PreTrainedModel`] or [`~peft.PeftModel`]):
            Model to be trained, as in [`~trl.SFTTrainer`]. The reference is this model as it is given, an adapter that
            it came with included.
        args ([`ConsistencyConfig`], *optional*):
            Configuration for this trainer. If `None`, a default configuration is used.
        data_collator ([`PairCollator`], *optional*):
            Refused unless `None`: pairs need the trainer's own [`PairCollator`].
        train_dataset ([`~datasets.Dataset`] or [`~datasets.IterableDataset`]):
            Pairs. `clean_prompt` and `perturbed_prompt` are strings or lists of chat messages (a last assistant turn is
            continued); `completion`, optional, is the target, a string or a list of one assistant message; `tools` and
            `chat_template_kwargs`, optional, go to the chat template of both sides. `completion_ids`, optional, are the
            target's token ids, taken as they are in place of `completion`. Without either column the
            reference policy answers every distinct clean prompt once, when [`train`] or [`evaluate`] is first called.
            A row with two equal prompts is an anchor: it asks the student to stay where the reference is.
        eval_dataset ([`~datasets.Dataset`], [`~datasets.IterableDataset`], [`~datasets.DatasetDict`], [`~datasets.IterableDatasetDict`] or `dict[str, Dataset | IterableDataset]`, *optional*):
            Pairs to evaluate the loss on: the token-mean over the whole set, whatever the batches.
        anchor_dataset ([`~datasets.Dataset`] or [`~datasets.IterableDataset`], *optional*):
            Prompts without a cue, on which the student is to stay where the reference is: a `prompt` column, and
            optionally `completion`, `tools` and `chat_template_kwargs`. `args.anchor_ratio` says how many are mixed into
            an epoch. If `None`, the pairs' own clean prompts serve.
        processing_class ([`~transformers.PreTrainedTokenizerBase`] or [`~transformers.ProcessorMixin`], *optional*):
            As in [`~trl.SFTTrainer`]. If `None`, loaded from the model's name.
        compute_loss_func (`Callable`, *optional*):
            Refused unless `None`: the objective is `args.method`.
        compute_metrics (`Callable[[EvalPrediction], dict]`, *optional*):
            As in [`~trl.SFTTrainer`].
        callbacks (list of [`~transformers.TrainerCallback`], *optional*):
            As in [`~trl.SFTTrainer`].
        optimizers (`tuple`, *optional*, defaults to `(None, None)`):
            As in [`~trl.SFTTrainer`].
        optimizer_cls_and_kwargs (`tuple[type, dict]`, *optional*):
            As in [`~trl.SFTTrainer`].
        preprocess_logits_for_metrics (`Callable`, *optional*):
            As in [`~trl.SFTTrainer`].
        quantization_config ([`~transformers.BitsAndBytesConfig`], *optional*):
            As in [`~trl.SFTTrainer`].
        peft_config ([`~peft.PeftConfig`], *optional*):
            As in [`~trl.SFTTrainer`].
        formatting_func (`Callable`, *optional*):
            Refused unless `None`: it would turn pairs into plain text.

    Raises:
        [`ConsistencyError`]: For options that contradict each other, need a package that is not installed, or are not
            available in consistency training.
        [`InvalidPairsError`]: For data that do not hold usable pairs. Both are raised before any weights load.
    """

    _tag_names = ["trl", "trl-consistency", "consistency-training"]
    _name = "Consistency training"

    # Set by the parent's constructor
    data_collator: PairCollator
    train_dataset: AnyDataset
    _signature_columns: list[str] | None

    def __init__(
        self,
        model: "str | PreTrainedModel | PeftModel",
        args: ConsistencyConfig | TrainingArguments | None = None,
        data_collator: PairCollator | None = None,
        train_dataset: AnyDataset | None = None,
        eval_dataset: EvalDataset | None = None,
        processing_class: PreTrainedTokenizerBase | ProcessorMixin | None = None,
        compute_loss_func: Callable | None = None,
        compute_metrics: Callable[[EvalPrediction], dict] | None = None,
        callbacks: list[TrainerCallback] | None = None,
        optimizers: tuple[torch.optim.Optimizer | None, torch.optim.lr_scheduler.LambdaLR | None] = (None, None),
        optimizer_cls_and_kwargs: tuple[type[torch.optim.Optimizer], dict[str, Any]] | None = None,
        preprocess_logits_for_metrics: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None,
        quantization_config: "BitsAndBytesConfig | None" = None,
        peft_config: "PeftConfig | None" = None,
        formatting_func: Callable[[dict], str] | None = None,
        anchor_dataset: AnyDataset | None = None,
    ):
        model_id = model if isinstance(model, str) else get_config_model_id(model.config)
        if args is None:
            args = ConsistencyConfig(f"{model_id.split('/')[-1]}-Consistency")
        else:
            args = as_config(args, ConsistencyConfig)
        refuse_arguments(
            compute_loss_func=(compute_loss_func, "the objective is `ConsistencyConfig.method`"),
            formatting_func=(formatting_func, "it would turn pairs into plain text"),
            data_collator=(data_collator, "pairs need the trainer's own `PairCollator`"),
        )
        check_extras(args, quantization_config)
        check_model_options(model, model_id, args)
        check_vllm(args, model, quantization_config)
        self._vocab_size = check_model(model, args, peft_config, quantization_config)
        self._context = context_length(model, args)
        if args.should_save:
            check_output_dir(args.output_dir)
            if args.target_cache_dir is not None:
                check_output_dir(args.target_cache_dir, "target_cache_dir")
        check_evaluation(args, eval_dataset)
        train_dataset, anchor_dataset = unformatted(train_dataset), unformatted(anchor_dataset)
        datasets = {"train_dataset": train_dataset, **_named(eval_dataset)}
        datasets = {name: unformatted(dataset) for name, dataset in datasets.items()}
        for name, dataset in datasets.items():
            check_pairs(dataset, name)
            if args.needs_completions:
                check_stream(dataset, name)
        check_steps(cast(AnyDataset, train_dataset), args.max_steps)
        if args.accelerator_config.dispatch_batches is None:
            # For streams, one process would else join the batches of all, which have different widths.
            args.accelerator_config.dispatch_batches = False
        if anchor_dataset is not None:
            check_anchor_arguments(anchor_dataset, train_dataset, args.anchor_ratio)
            datasets["anchor_dataset"] = anchor_dataset = anchor_rows(anchor_dataset)
        if processing_class is None:
            revision = (args.model_init_kwargs or {}).get("revision")
            processing_class = load_processing_class(model_id, revision, args.trust_remote_code)
        tokenizer = check_tokenizer(processing_class, args)
        template = args.chat_template_path
        clones_template = template is not None and not template.endswith((".jinja", ".j2"))
        if not clones_template:
            if template is not None:
                processing_class.chat_template = read_template(template)
            check_chat_template(processing_class, datasets)

        self.targets = TargetTable()
        self.alignment: dict[str, AlignmentReport] = {}
        self._peft_config = peft_config
        is_plain = set(args.model_init_kwargs or {}) <= PLAIN_LOADING and not clones_template
        self._loaded_by_name = isinstance(model, str) and is_plain
        data_facts = describe_data(train_dataset)
        is_chat = isinstance(next(iter(cast(AnyDataset, train_dataset)))["clean_prompt"], list)
        if clones_template:  # may add tokens to the tokenizer and the model: the parent prepares the data after that
            self._vocab_size = None
        else:
            if args.eos_token is not None:
                tokenizer.eos_token = args.eos_token
            prepared = {
                name: self._prepare_dataset(dataset, processing_class, args, False, None, name)
                for name, dataset in datasets.items()
                if name != "anchor_dataset"
            }
            train_dataset, eval_dataset = prepared["train_dataset"], _like(eval_dataset, prepared)
            check_full_batches(train_dataset, args)
        super().__init__(
            model=model,
            args=args,
            train_dataset=train_dataset,
            eval_dataset=eval_dataset,
            processing_class=processing_class,
            compute_metrics=compute_metrics,
            callbacks=callbacks,
            optimizers=optimizers,
            optimizer_cls_and_kwargs=optimizer_cls_and_kwargs,
            preprocess_logits_for_metrics=preprocess_logits_for_metrics,
            quantization_config=quantization_config,
            peft_config=peft_config,
        )
        keep_layout(self.model)
        announce_cpu(args.device, torch.bfloat16 if args.bf16 else self.model.dtype, model_id or "The model")
        check_base(self.model, model_id, self.accelerator)
        self.base_checksum = checksum_base(self.model, has_new_adapter=peft_config is not None)
        # Once more: what was only a name may have brought an adapter along.
        check_vllm(args, self.model if peft_config is None else self.model.get_base_model(), quantization_config)
        if not any(parameter.requires_grad for parameter in self.model.parameters()):
            raise ConsistencyError(
                "The model has no trainable parameter. Load an adapter for training with `PeftModel.from_pretrained(..., "
                "is_trainable=True)`, or give a `peft_config`."
            )
        self.data_collator = PairCollator(
            **vars(self.data_collator),
            targets=self.targets,
            with_completions=args.needs_completions,
            with_reference=args.compares_with_reference,
        )
        # The loss is divided by the tokens of the global batch. Trainer counts them only for models whose forward takes
        # loss arguments, which ours does not need: it is `compute_loss` that divides.
        self.model_accepts_loss_kwargs = True
        self.data_facts = data_facts
        self.is_chat = is_chat
        self.anchor_description = (
            "the pairs' own clean prompts" if anchor_dataset is None else "a data set of their own"
        )
        self._meter = LossMeter()
        self.paired_loss = self._make_paired_loss(model)
        # What `train` makes targets for: the mixture with anchors has them too, but no longer says which rows lack one.
        self._target_sources = [self.train_dataset, *_named(self.eval_dataset).values()]
        self.noted_data = {"train_dataset": self.train_dataset}
        if args.dose_check:
            self.add_callback(DoseCheck(self, self.train_dataset))
        if args.anchor_ratio > 0:
            self.train_dataset = self._with_anchors(anchor_dataset)
        if args.regenerate_targets_every:
            if not args.needs_completions or not needs_targets(self._target_sources[0]):
                why = "come with their completions" if args.needs_completions else f"need none for {args.method}"
                raise ConsistencyError(f"`regenerate_targets_every` is set, but the pairs {why}.")
            self.add_callback(RegenerateTargets(self))
        if args.needs_completions and any(map(needs_targets, self._target_sources)):
            self._check_whole()

    def _make_paired_loss(self, model: Any) -> PairedLoss | None:
        if not self.args.compares_with_reference:
            return None
        check_reference_options(self)
        adapter_off = self._peft_config is not None and not adapter_changes_base(self._peft_config)
        check_sharding(self, adapter_off)
        reference = freeze_initial_policy(self, model, adapter_off)
        self.add_callback(StartReference(reference, self.accelerator))
        paired_loss = PairedLoss(self.args, self.model, reference, self.aux_loss_enabled)
        with gathered(self.model, self.accelerator):
            frozen = paired_loss.freeze_unreached(self.model)
        if frozen:
            listed = ", ".join(frozen[:3]) + (", ..." if len(frozen) > 3 else "")
            logger.warning(
                f"Frozen, since no compared block depends on it: {len(frozen)} trainable tensor(s) ({listed})."
            )
        self._forward_redirection = ForwardRedirection()
        return paired_loss

    # Data

    def _prepare_dataset(
        self,
        dataset: AnyDataset,
        processing_class: PreTrainedTokenizerBase | ProcessorMixin,
        args: ConsistencyConfig,
        packing: bool,
        formatting_func: Callable[[dict], str] | None,
        dataset_name: str,
    ) -> AnyDataset:
        if is_prepared(dataset):
            return dataset
        dataset_name = {"train": "train_dataset", "eval": "eval_dataset"}.get(dataset_name, dataset_name)
        with global_then_local_main_first():
            dataset = prepare_pairs(
                dataset,
                processing_class,
                dataset_name,
                chat_template_kwargs=cast(dict[str, Any] | None, args.chat_template_kwargs),
                max_length=args.max_length,
                max_completion_length=args.max_completion_length if args.needs_completions else 0,
                overlong=args.overlong,
                num_proc=args.dataset_num_proc,
                vocab_size=self._vocab_size,
                context=self._context,
            )
            if args.needs_shared_span:
                dataset = self._align(dataset, processing_class, args, dataset_name)
        if dataset_name == "train_dataset":
            warn_of_findings(
                dataset,
                processing_class,
                dataset_name,
                cast(dict[str, Any] | None, args.chat_template_kwargs),
                args.thinking_markers,
            )
        return dataset.shuffle(seed=args.seed) if args.shuffle_dataset else dataset

    def _align(
        self,
        dataset: AnyDataset,
        processing_class: PreTrainedTokenizerBase | ProcessorMixin,
        args: ConsistencyConfig,
        dataset_name: str,
    ) -> AnyDataset:
        kinds = {"suffix": args.compares_suffix, "window": args.compares_content}
        dataset, reports = align_pairs(
            dataset,
            processing_class,
            dataset_name,
            chat_template_kwargs=cast(dict[str, Any] | None, args.chat_template_kwargs),
            kinds=tuple(kind for kind, is_compared in kinds.items() if is_compared),
            no_shared_span=args.no_shared_span,
            num_proc=args.dataset_num_proc,
        )
        for report in reports.values():
            # With the answer compared as well, there is enough.
            is_thin = report.header_only and not (args.act_tokens == "all" and report is reports.get("suffix"))
            rows = ", ".join(map(str, report.header_only[:5])) + (", ..." if len(report.header_only) > 5 else "")
            advice = f" (Rows {rows}. docs/act.md says what to do about them.)" if is_thin else ""
            logger.log(logging.WARNING if is_thin else logging.INFO, f"`{dataset_name}`: {report}{advice}")
        if reports:
            self.alignment[dataset_name] = next(iter(reports.values()))
        return dataset

    def _set_signature_columns_if_needed(self) -> None:
        if self._signature_columns is None:
            self._signature_columns = list(PREPARED_COLUMNS)

    def get_train_dataloader(self) -> Any:
        """As [`~transformers.Trainer.get_train_dataloader`]; a stream has no end."""
        if not isinstance(self.train_dataset, IterableDataset):
            return super().get_train_dataloader()
        return self._get_dataloader(
            dataset=RepeatedStream(self.train_dataset),
            description="Training",
            batch_size=self._train_batch_size,
            is_training=True,
        )

    def _with_anchors(self, anchor_dataset: AnyDataset | None) -> AnyDataset:
        pairs, args = self.train_dataset, self.args
        if anchor_dataset is None:
            anchors = own_anchors(pairs)
        else:
            anchors = self._prepare_dataset(anchor_dataset, self.processing_class, args, False, None, "anchor_dataset")
        if isinstance(pairs, IterableDataset):
            self.noted_data["anchor_dataset"] = anchors
            return mix_anchor_stream(pairs, anchors, args.anchor_ratio, args.seed, args.needs_completions)
        anchors = choose_anchors(anchors, len(pairs), args.anchor_ratio, args.seed)
        self.noted_data["anchor_dataset"] = anchors
        self._target_sources.append(anchors)
        return mix_anchors(pairs, anchors)

    # Model card

    def create_model_card(
        self, model_name: str | None = None, dataset_name: str | None = None, tags: str | list[str] | None = None
    ) -> None:
        """Writes the model card to `args.output_dir`. Arguments as in [`~trl.SFTTrainer`]."""
        if self.is_world_process_zero():
            write_text(Path(self.args.output_dir) / "README.md", str(build_card(self, model_name, dataset_name, tags)))

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        if self.paired_loss is not None:
            self.paired_loss.reference.check()
        super()._save_checkpoint(model, trial)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """As [`~transformers.Trainer.save_model`]; the model card goes with it."""
        super().save_model(output_dir, _internal_call)
        if self.args.should_save:
            write_text(Path(output_dir or self.args.output_dir) / "README.md", str(build_card(self, None, None, None)))

    # Training and evaluation

    def train(
        self,
        resume_from_checkpoint: str | bool | None = None,
        *args: Any,
        resume_changed: Sequence[str] = (),
        **kwargs: Any,
    ) -> Any:
        """
        As [`~transformers.Trainer.train`]; generates the targets that the data sets lack first. SIGTERM or Ctrl-C ends the
        process after a step, with a checkpoint.

        Args:
            resume_from_checkpoint (`str` or `bool`, *optional*):
                A checkpoint, or `True` for the last one that is whole.
            resume_changed (`Sequence[str]`, *optional*, defaults to `()`):
                What may be other than in the checkpoint's run, by the names that the error lists. The model card says so.

        Raises:
            [`ConsistencyError`]: If the checkpoint is of another run, or numbers are no longer finite.
        """
        checkpoint = check_training_options(self, resume_from_checkpoint, resume_changed)
        with all_alone_in(self.args.output_dir, self.accelerator):
            self.generate_targets()
            result = super().train(checkpoint, *args, **kwargs)
        if self.paired_loss is not None:
            self.paired_loss.reference.check()
        return result

    def evaluate(
        self,
        eval_dataset: EvalDataset | str | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> dict[str, float]:
        """
        As [`~transformers.Trainer.evaluate`]. Pairs that are passed here are checked and prepared as in the
        constructor, and the targets that they lack come from the reference policy.
        """
        if eval_dataset is None or isinstance(eval_dataset, str):
            datasets = _named(self.eval_dataset)
        else:
            datasets = _named(eval_dataset)
            for name, dataset in datasets.items():
                if not is_prepared(dataset):
                    check_pairs(dataset, name)
                    datasets[name] = self._prepare_dataset(
                        dataset, self.processing_class, self.args, False, None, name
                    )
            is_dict = isinstance(eval_dataset, dict)
            eval_dataset = (
                dict(zip(eval_dataset, datasets.values(), strict=True)) if is_dict else datasets["eval_dataset"]
            )
        self._generate_missing_targets(datasets.values())
        return super().evaluate(eval_dataset, ignore_keys=ignore_keys, metric_key_prefix=metric_key_prefix)

    def predict(
        self, test_dataset: AnyDataset, ignore_keys: list[str] | None = None, metric_key_prefix: str = "test"
    ) -> PredictionOutput:
        """As [`~transformers.Trainer.predict`], with pairs that are prepared as in [`evaluate`]."""
        if not is_prepared(test_dataset):
            check_pairs(test_dataset, "test_dataset")
            test_dataset = self._prepare_dataset(
                test_dataset, self.processing_class, self.args, False, None, "test_dataset"
            )
        self._generate_missing_targets([test_dataset])
        return super().predict(test_dataset, ignore_keys, metric_key_prefix)

    def _get_num_items_in_batch(self, batch_samples: list[dict[str, Any]], device: torch.device) -> Any:
        if self.paired_loss is None:
            return super()._get_num_items_in_batch(batch_samples, device)
        # Each objective is divided by its own count over all the batches of a step, on all processes.
        counts = [self.paired_loss.counts(batch) for batch in batch_samples]
        local = torch.tensor(
            [[sum(int(of_batch[method].sum()) for of_batch in counts) for method in self.args.method]]
        )
        gathered = self.accelerator.gather(local.to(device)).sum(0)
        self._global_counts = dict(zip(self.args.method, gathered.tolist(), strict=True))
        return gathered.sum()  # not None: it is `compute_loss` that divides

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> Any:
        if self.paired_loss is None:
            return self._bct_loss(model, inputs, return_outputs, num_items_in_batch)
        losses, watched = self._compare(model, inputs)
        if self.model.training:
            self._meter.add(losses | watched, inputs["is_anchor"])
        if num_items_in_batch is None:
            counts = {method: int(of_rows.counts.sum()) for method, of_rows in losses.items()}
        else:
            counts = self._global_counts
        loss = sum(
            weight * losses[method].sums.sum() / max(counts[method], 1) for method, weight in self.args.weights.items()
        )
        if num_items_in_batch is not None:
            loss = loss * self.accelerator.num_processes  # DDP averages the gradients over the processes
        if "aux_loss" in watched:
            loss = loss + self._weighted_aux_loss(watched["aux_loss"].sums[0], num_items_in_batch)
        return (loss, None) if return_outputs else loss

    def _compare(self, model: nn.Module, inputs: dict[str, Any]) -> tuple[dict[str, RowLosses], dict[str, RowLosses]]:
        unwrapped = self.accelerator.unwrap_model(model)
        # Through the wrapper's forward: without it, DDP's processes would silently drift apart.
        with mixed_precision(self.accelerator):
            return self._forward_redirection(model, unwrapped, self.paired_loss, unwrapped, inputs)

    def _weighted_aux_loss(
        self, aux_loss: torch.Tensor, num_items_in_batch: torch.Tensor | int | None
    ) -> torch.Tensor:
        """The routers' part in the loss of a batch, as [`~trl.SFTTrainer`] weighs it: a mean over the batches of a step."""
        steps = self.current_gradient_accumulation_steps if num_items_in_batch is not None else 1
        return self.router_aux_loss_coef * aux_loss / steps

    def _bct_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool,
        num_items_in_batch: torch.Tensor | int | None,
    ) -> Any:
        """BCT alone is supervised fine-tuning: the loss of [`~trl.SFTTrainer`], and its answers know no reference."""
        is_anchor = inputs.pop("is_anchor")
        seen = []

        def observed_model(**model_inputs: Any) -> Any:
            if not self.aux_loss_enabled:  # the routers' loss must know the padding
                model_inputs["attention_mask"] = needed_mask(self.model, model_inputs["attention_mask"])
            seen.append(model(**model_inputs))
            return seen[-1]

        result = super().compute_loss(observed_model, inputs, return_outputs, num_items_in_batch)
        outputs = next(outputs for outputs in seen if "log_probs" in outputs)
        if self.model.training:
            rows = RowLosses(-outputs.log_probs.detach().sum(1), outputs.label_mask.sum(1))
            self._meter.add({"bct": rows}, is_anchor)
        weight = self.args.weights["bct"]
        loss = weight * (result[0] if return_outputs else result)
        if self.aux_loss_enabled and self.label_smoother is None:  # It has a coefficient of its own.
            loss = loss + (1 - weight) * self._weighted_aux_loss(outputs.aux_loss, num_items_in_batch)
        return (loss, result[1]) if return_outputs else loss

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if self.model.training:
            anchor_share, means, of_anchors = self._meter.means(self.accelerator)
            if self.paired_loss is not None:
                logs |= self._named_in_log(means)
            if of_anchors:
                logs["anchor_share"] = anchor_share
                logs["anchor_loss"] = self._weighted(of_anchors)
        super().log(logs, start_time)


def _named(eval_dataset: EvalDataset | None) -> dict[str, AnyDataset]:
    """The evaluation sets by the names that messages call them."""
    if isinstance(eval_dataset, dict):
        return {f"eval_dataset[{key!r}]": dataset for key, dataset in eval_dataset.items()}
    return {} if eval_dataset is None else {"eval_dataset": eval_dataset}


def _like(eval_dataset: EvalDataset | None, prepared: dict[str, AnyDataset]) -> Any:
    """The prepared evaluation sets in the form that they were given in."""
    if isinstance(eval_dataset, dict):
        names = _named(eval_dataset)
        return {key: prepared[name] for key, name in zip(eval_dataset, names, strict=True)}
    return None if eval_dataset is None else prepared["eval_dataset"]
