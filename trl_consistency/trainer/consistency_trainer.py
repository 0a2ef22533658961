from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import torch
from datasets import Dataset, IterableDataset
from peft import PeftModel
from torch import nn
from torch.utils.data import SequentialSampler
from transformers import PreTrainedModel, TrainerCallback, TrainingArguments
from transformers.trainer_utils import EvalPrediction, has_length
from trl import SFTTrainer

from ..config.consistency_config import ConsistencyConfig, padding_free_option
from ..config.device import mixed_precision
from ..config.options import temporarily
from ..data.alignment import AlignmentReport, log_alignment
from ..data.collators import PairCollator
from ..data.eval_sets import EvalDataset, named
from ..data.length_order import LengthOrder
from ..data.packing import PackedPairs, PackedPasses
from ..data.pairs import AnyDataset
from ..data.prepare import align_pairs, is_prepared, prepare_pairs, with_row_numbers
from ..data.rendering import ProcessingClass, check_template_files, get_tokenizer
from ..data.repeated_stream import RepeatedStream
from ..data.target_table import TargetTable
from ..errors import ConsistencyError
from ..generation.vllm_engine import check_vllm
from ..losses.paired import Objectives, PairedLoss
from ..losses.row_losses import RowLosses, means_of
from ..losses.supervised import ObservedModel, flat_inputs, supervised_row_losses
from ..models.checks import has_routers
from ..models.dropout import without_attention_dropout
from ..models.sharding import gathered, is_sharded
from ..passes.blocks import base_model, find_blocks
from ..passes.capture import head_of
from ..passes.flat import FlatBatch, prepare_padding_free
from ..passes.reference import Reference, StartReference
from ..upstream import OwnState, complete_head, let_copies_run_themselves
from .base import PairTrainer
from .callbacks.regeneration import RegenerateTargets
from .card.facts import paired_facts
from .evaluated_sets import loading_by_one
from .run.base_model import check_engine_files
from .run.checks import (
    check_metrics,
    check_model_options,
    check_padding_free_parallelism,
    check_reference_options,
    refuse_arguments,
    resolve_config,
)
from .run.data_checks import (
    check_chat_template,
    check_drop_last,
    check_embeddings_of_template,
    check_full_batches,
    check_stream,
    check_tokenizer,
    is_model_of_template,
    read_template,
    refuse_end_of_template,
    warn_of_positions,
    warn_of_seams,
    with_checked_thoughts,
)
from .run.output_checks import check_output_dir
from .target_maker import PLAIN_LOADING, TargetMaker


if TYPE_CHECKING:
    from peft import PeftConfig
    from transformers import BitsAndBytesConfig


class ConsistencyTrainer(PairTrainer, SFTTrainer):
    """
    Trainer for consistency training on pairs of a clean and a perturbed prompt.

    The reference `π_0` is the frozen initial model, which reads the clean prompt `c`. It supervises the student `π_θ`,
    which reads the perturbed prompt `p`. `args.method` names the objectives:

    - `"bct"` (Bias-augmented Consistency Training, [Chua et al., 2024](https://huggingface.co/papers/2403.05518),
      section 3): the token-mean of `-log π_θ(y_t | p, y_<t)` on the reference's own answer `y ~ π_0(·|c)`, including
      the end-of-turn token.
    - `"kl"` (BCT with soft targets): the token-mean of `KL(π_0(·|c, y_<t) ‖ π_θ(·|p, y_<t))` on the same answer.
    - `"act"` (Activation Consistency Training, [Irpan et al., 2025](https://huggingface.co/papers/2510.27062)): the
      squared distance between the residual streams at the tokens that both prompts end with.
    - `"attct"` ([Gautam et al., 2026](https://huggingface.co/papers/2606.05817)): the Jensen-Shannon divergence between the
      attention maps within the shared content.
    - `"mlpct"` (the same paper): the cosine or another distance (`args.mlp_distance`) between the MLP states on the shared
      content.

    Each objective is a mean over its units in the global batch: answer tokens, pairs or shared tokens. `bct`, `kl` and
    `attct` are in nats, and `act` is in squared units of the residual stream.

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
            Model to be trained, as in [`~trl.SFTTrainer`]. The reference is this model before training, including any
            adapter that it already has.
        args ([`ConsistencyConfig`], *optional*):
            Configuration for this trainer. If `None`, a default configuration is used.
        data_collator ([`PairCollator`], *optional*):
            Must be `None`: pairs need the trainer's own [`PairCollator`].
        train_dataset ([`~datasets.Dataset`] or [`~datasets.IterableDataset`]):
            Pairs. `clean_prompt` and `perturbed_prompt` are strings or lists of chat messages. If the last message is an
            assistant turn, it is continued. Optional columns: `completion`, the target, is a string or a list of one
            assistant message; `completion_ids`, the target's token ids, takes precedence over `completion`; `tools` and
            `chat_template_kwargs` go to the chat template for both prompts. Without a target column, the reference
            policy answers every distinct clean prompt once, when [`train`] or [`evaluate`] is first called. A row with
            two equal prompts is an anchor: it keeps the student close to the reference.
        eval_dataset ([`~datasets.Dataset`], [`~datasets.IterableDataset`], [`~datasets.DatasetDict`], [`~datasets.IterableDatasetDict`] or `dict[str, Dataset | IterableDataset]`, *optional*):
            Pairs to evaluate on. The loss is a mean over the whole data set: the batch size does not change it.
        anchor_dataset ([`~datasets.Dataset`] or [`~datasets.IterableDataset`], *optional*):
            Prompts without a cue, which keep the student close to the reference: a `prompt` column, and optionally
            `completion`, `tools` and `chat_template_kwargs`. `args.anchor_ratio` sets their share of an epoch. If
            `None`, the pairs' own clean prompts are used.
        processing_class ([`~transformers.PreTrainedTokenizerBase`] or [`~transformers.ProcessorMixin`], *optional*):
            As in [`~trl.SFTTrainer`]. If `None`, loaded from the model's name. With `chat_template_path` or `eos_token`, a copy is
            changed, `trainer.processing_class`, and the given one keeps its own.
        compute_loss_func (`Callable`, *optional*):
            Must be `None`: the objective is `args.method`.
        compute_metrics (`Callable[[EvalPrediction], dict]`, *optional*):
            As in [`~trl.SFTTrainer`]. Only for `method: ["bct"]` without `log_consistency_metrics`.
        callbacks (list of [`~transformers.TrainerCallback`], *optional*):
            As in [`~trl.SFTTrainer`].
        optimizers (`tuple`, *optional*, defaults to `(None, None)`):
            As in [`~trl.SFTTrainer`].
        optimizer_cls_and_kwargs (`tuple[type, dict]`, *optional*):
            As in [`~trl.SFTTrainer`].
        preprocess_logits_for_metrics (`Callable`, *optional*):
            As in [`~trl.SFTTrainer`]. Only for `method: ["bct"]` without `log_consistency_metrics`.
        quantization_config ([`~transformers.BitsAndBytesConfig`], *optional*):
            As in [`~trl.SFTTrainer`].
        peft_config ([`~peft.PeftConfig`], *optional*):
            As in [`~trl.SFTTrainer`].
        formatting_func (`Callable`, *optional*):
            Must be `None`: it would turn pairs into plain text.

    Raises:
        [`ConsistencyError`]: If options contradict each other, need a package that is not installed, or are not
            available in consistency training.
        [`InvalidPairsError`]: If the data contain unusable pairs.

    What the options, the data and the model's files show is raised before any weights load. What only the loaded model
    shows is raised before any training.
    """

    _name = "Consistency training"

    args: ConsistencyConfig
    data_collator: PairCollator
    packed: PackedPairs | None = None  # the training pairs, once they are packed
    _rebalancing: Any = None  # the sampler of `train_sampling_strategy: batch_rebalance`
    _unused: Sequence[str] = ()  # trainable weights that nothing compared depends on
    _step_items: Any = None  # what the loss of the present step is divided by; None outside of one

    def __init__(
        self,
        model: "str | PreTrainedModel | PeftModel",
        args: ConsistencyConfig | TrainingArguments | None = None,
        data_collator: PairCollator | None = None,
        train_dataset: AnyDataset | None = None,
        eval_dataset: EvalDataset | None = None,
        processing_class: ProcessingClass | None = None,
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
        args = resolve_config(args, ConsistencyConfig, model, "Consistency")
        refuse_arguments(
            compute_loss_func=(compute_loss_func, "the objective is `ConsistencyConfig.method`"),
            formatting_func=(formatting_func, "it would turn pairs into plain text"),
            data_collator=(data_collator, "pairs need the trainer's own `PairCollator`"),
        )
        check_metrics(args, compute_metrics)
        self.alignment: dict[str, AlignmentReport] = {}
        self._alignments: dict[str, dict[str, AlignmentReport]] = {}  # of each kind of span that is compared
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
        if args.use_vllm:
            check_engine_files(model, args)
        # The collator of TRL's trainer would flatten rows that are not compared yet. It would write the option into the model's config.
        with temporarily(args, packing=False, padding_free=False, router_aux_loss_coef=None):
            super().__init__(
                model=model,
                args=args,
                train_dataset=data.train_dataset,
                eval_dataset=data.eval_dataset,
                processing_class=data.processing_class,
                compute_metrics=compute_metrics,
                callbacks=callbacks,
                optimizers=optimizers,
                optimizer_cls_and_kwargs=optimizer_cls_and_kwargs,
                preprocess_logits_for_metrics=preprocess_logits_for_metrics,
                quantization_config=quantization_config,
                peft_config=self._peft_config,
            )
        complete_head(self.model)
        let_copies_run_themselves(base_model(self.model))
        if args.router_aux_loss_coef is not None:
            self.router_aux_loss_coef: float = args.router_aux_loss_coef
        self.aux_loss_enabled: bool = has_routers(self.model.config) and self.router_aux_loss_coef != 0
        if hasattr(self.model.config.get_text_config(), "output_router_logits"):
            self.model.config.get_text_config().output_router_logits = self.aux_loss_enabled
        if args.use_vllm:  # Checked again: a model loaded by name may have an adapter.
            check_vllm(args, self.model if peft_config is None else self.model.get_base_model(), quantization_config)
        # Trainer counts the tokens of the global batch only if this is set; `compute_loss` divides by them.
        self.model_accepts_loss_kwargs = True
        self.target_maker = TargetMaker(self, loaded_by_name=isinstance(model, str) and self._loads_plainly)
        self._check_loaded(model, data.anchor_dataset)
        for name, dataset in {"train_dataset": self.train_dataset, **named(self.eval_dataset)}.items():
            warn_of_positions(dataset, self.model.config, args, name)
        if args.padding_free:
            check_padding_free_parallelism(self)
            with gathered(self.model, self.accelerator), mixed_precision(self.accelerator):
                prepare_padding_free(self.model, padding_free_option(args))
        self.paired_loss = self._make_paired_loss(model)
        self._set_up_targets()

    # The loss

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> Any:
        if num_items_in_batch is None:  # A subclass may not hand it on. Trainer would sum the batches of a step.
            num_items_in_batch = self._step_items
        if self.paired_loss is None:
            return self._supervised_loss(model, inputs, return_outputs, num_items_in_batch)
        losses, watched = self._call_wrapped(model, self.paired_loss, inputs)
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

    def _weighted_aux_loss(self, aux_loss: torch.Tensor, num_items_in_batch: Any) -> torch.Tensor:
        """Returns the weighted router loss, averaged over gradient accumulation as in [`~trl.SFTTrainer`]."""
        steps = self.current_gradient_accumulation_steps if num_items_in_batch is not None else 1
        return self.router_aux_loss_coef * aux_loss / steps

    def _supervised_loss(
        self, model: nn.Module, inputs: dict[str, Any], return_outputs: bool, num_items_in_batch: Any
    ) -> Any:
        """Returns the loss of [`~trl.SFTTrainer`]: BCT alone is supervised fine-tuning on the targets."""
        is_anchor = inputs.pop("is_anchor")
        flat = None
        if self.args.padding_free and not return_outputs:  # logits are returned by row
            flat = FlatBatch.of(inputs["input_ids"], inputs["attention_mask"])
            inputs = flat_inputs(inputs, flat)
        student = ObservedModel(
            model, self.model, not self.aux_loss_enabled, self.aux_loss_enabled or self._runs_last_block_whole, flat
        )
        # In an epoch's last step, the other function leaves out processes as if they held rows that fill up the batch.
        with temporarily(self.accelerator, gather_for_metrics=self.accelerator.gather):
            result = super().compute_loss(student, inputs, return_outputs, num_items_in_batch)
        if self.model.training:
            # Of rows, the cross-entropy alone is known: it is no `anchor_loss` where another loss is trained with.
            is_loss = self.args.loss_type != "dft" and not self.args.label_smoothing_factor
            self._meter.add({"bct" if is_loss else "cross_entropy": student.row_losses()}, is_anchor)
        weight = self.args.weights["bct"]
        loss = weight * (result[0] if return_outputs else result)
        if self.aux_loss_enabled and self.label_smoother is None:  # The router loss has its own coefficient.
            loss = loss + (1 - weight) * self._weighted_aux_loss(student.outputs.aux_loss, num_items_in_batch)
        return (loss, result[1]) if return_outputs else loss

    @property
    def _runs_last_block_whole(self) -> bool:
        """
        Whether the last block must also run where no label is predicted. With context or sequence parallelism, one process
        predicts the first token of the next. A compiled block would be recompiled for each number of positions.
        """
        return self.accelerator.parallelism_config is not None or self.args.torch_compile

    def training_step(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None) -> torch.Tensor:
        with temporarily(self, _step_items=num_items_in_batch):
            return super().training_step(model, inputs, num_items_in_batch)

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
        return gathered.sum()  # only tested for None: `compute_loss` divides by the counts above

    def _make_paired_loss(self, model: Any) -> PairedLoss | None:
        if not self.args.compares_with_reference:
            # Weights that several processes share cannot be read here.
            if not is_sharded(self.accelerator) and self.accelerator.parallelism_config is None:
                with mixed_precision(self.accelerator):
                    head_of(self.model)  # refuses other logits than those of the head, which TRL's loss takes
            return None
        check_reference_options(self)
        reference = self._freeze_reference(model)
        self.add_callback(StartReference(reference, self.accelerator))
        paired_loss = PairedLoss(Objectives.of(self.args), self.model, reference, self.aux_loss_enabled)
        trainable = {name for name, parameter in self.model.named_parameters() if parameter.requires_grad}
        with gathered(self.model, self.accelerator):
            paired_loss.freeze_unused(self.model)
        if not is_sharded(self.accelerator):
            # Frozen in training alone: the model may be given to another trainer, whose objectives need these weights.
            self._unused = [
                name for name, of in self.model.named_parameters() if name in trainable and not of.requires_grad
            ]
            _set_trainable(self.model, self._unused, True)
        return paired_loss

    @property
    def _reference(self) -> Reference | None:
        return None if self.paired_loss is None else self.paired_loss.reference

    @contextmanager
    def _training(self) -> Iterator[None]:
        frozen = [name for name, of in self.model.named_parameters() if name in self._unused and of.requires_grad]
        _set_trainable(self.model, frozen, False)
        attentions: dict[int, nn.Module] = {}
        if self.paired_loss is not None and "attct" in self.args.method:
            # Off for the whole training: under gradient checkpointing, the backward pass runs the blocks again.
            blocks = find_blocks(self.accelerator.unwrap_model(self.model))
            attentions = blocks.attentions(self.paired_loss.layers_of["attention"])
        try:
            with without_attention_dropout(attentions.values()):
                yield
        finally:
            _set_trainable(self.model, frozen, True)

    # Checks and preparation

    def _check_options(self, model: Any, args: Any, peft_config: Any, quantization_config: Any) -> None:
        check_model_options(model, args, peft_config)
        self._has_adapter = peft_config is not None or isinstance(model, PeftModel)
        if args.use_vllm:
            check_vllm(args, model, quantization_config)
        if args.should_save and args.target_cache_dir is not None:
            check_output_dir(args.target_cache_dir, "target_cache_dir")
        self._loads_plainly = set(args.model_init_kwargs or {}) <= PLAIN_LOADING

    def _check_dataset(self, dataset: AnyDataset, name: str, args: Any) -> None:
        if args.needs_completions:
            check_stream(dataset, name)

    def _check_template(self, processing_class: Any, args: Any, datasets: dict[str, AnyDataset]) -> bool:
        tokenizer = check_tokenizer(processing_class, args)
        template = args.chat_template_path
        if is_model_of_template(template):
            # TRL's trainer clones another model's template, which may add tokens to the tokenizer and the model.
            refuse_end_of_template(template, args.eos_token)
            check_template_files(template)
            if self._has_adapter:
                check_embeddings_of_template(template, processing_class, args, self._vocab_size)
            self._vocab_size, self._loads_plainly = None, False
            return False
        if template is not None:
            processing_class.chat_template = read_template(template)
        check_chat_template(processing_class, datasets, chat_template_kwargs=args.chat_template_kwargs)
        if args.eos_token is not None:
            tokenizer.eos_token = args.eos_token
        return True

    def _check_size(self, dataset: AnyDataset, args: Any) -> None:
        check_full_batches(dataset, args)

    def _prepare_dataset(
        self,
        dataset: AnyDataset,
        processing_class: Any,
        args: Any,
        packing: bool,
        formatting_func: Any,
        dataset_name: str,
    ) -> AnyDataset:
        """Replaces the preparation in TRL's trainer. `dataset_name` of an evaluation set is its key, which may be `train`."""
        name = "eval_dataset" if dataset_name == "eval" else f"eval_dataset[{dataset_name!r}]"
        if dataset is self._unrendered:
            name = "train_dataset"
        if not is_prepared(dataset):  # The template of another model was not there before.
            check_chat_template(processing_class, {name: dataset}, chat_template_kwargs=args.chat_template_kwargs)
        return self._prepare_rows(dataset, processing_class, args, name)

    def _render(self, dataset: AnyDataset, processing_class: Any, args: Any, name: str) -> AnyDataset:
        dataset = prepare_pairs(
            dataset,
            processing_class,
            name,
            chat_template_kwargs=args.chat_template_kwargs,
            max_length=args.max_length,
            max_completion_length=args.max_completion_length if args.needs_completions else 0,
            overlong=args.overlong,
            num_proc=args.dataset_num_proc,
            vocab_size=self._vocab_size,
            context=self._context,
            thinking_markers=tuple(args.thinking_markers),
        )
        dataset = with_checked_thoughts(dataset, name, get_tokenizer(processing_class), args)
        if args.needs_completions and name == "train_dataset":
            warn_of_seams(dataset, name, get_tokenizer(processing_class))
        if args.needs_shared_span:
            kinds = {"suffix": args.compares_suffix, "content_span": args.compares_content}
            dataset, reports = align_pairs(
                dataset,
                processing_class,
                name,
                chat_template_kwargs=args.chat_template_kwargs,
                kinds=tuple(kind for kind, is_compared in kinds.items() if is_compared),
                no_shared_span=args.no_shared_span,
                num_proc=args.dataset_num_proc,
            )
            log_alignment(reports, name, compares_answers=args.act_tokens == "all")
            if reports:
                self._alignments[name] = reports
                self.alignment[name] = next(iter(reports.values()))
        # Predictions are in the order of their pairs.
        shuffles = args.shuffle_dataset and name in ("train_dataset", "anchor_dataset")
        return with_row_numbers(dataset).shuffle(seed=args.seed) if shuffles else dataset

    # Batches

    def get_train_dataloader(self) -> Any:
        """
        Like [`~transformers.Trainer.get_train_dataloader`], but repeats a stream endlessly. With `packing`, batches consist
        of packed sequences.
        """
        is_stream, max_length = isinstance(self.train_dataset, IterableDataset), cast(int, self.args.max_length)
        if not is_stream and not self.args.packing:
            return super().get_train_dataloader()
        dataset: Any = self.train_dataset
        if is_stream:
            dataset = RepeatedStream(
                PackedPasses(self._passes, self._length_of, max_length) if self.args.packing else self._passes
            )
        else:
            rows = self._remove_unused_columns(dataset, description="training")
            self.packed = dataset = PackedPairs(rows, self._length_of, max_length)
            check_drop_last(len(dataset), self.args, "packed sequence")
        with loading_by_one(dataset, self.args):
            return self._get_dataloader(
                dataset=dataset,
                description="Training",
                batch_size=self._train_batch_size,
                sampler_fn=self._get_train_sampler,
                is_training=True,
            )

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        args, dataset = self.args, self.train_dataset if train_dataset is None else train_dataset
        strategy = args.train_sampling_strategy
        seed = args.seed if args.data_seed is None else args.data_seed
        if strategy == "group_by_length":
            rows = args.train_batch_size * args.gradient_accumulation_steps
            return LengthOrder(dataset["length"], rows, seed, epoch=lambda: self._epoch)
        sampler = super()._get_train_sampler(train_dataset)
        if strategy == "batch_rebalance":
            sampler.seed = seed  # Trainer leaves it at 42.
            self._rebalancing = sampler
        return sampler

    def _run_epoch(self, *args: Any, **kwargs: Any) -> None:
        if self._rebalancing is not None:
            # Where several processes resume a run in mid-epoch, Trainer does not tell the sampler the epoch.
            self._rebalancing.set_epoch(kwargs["epoch"])
        super()._run_epoch(*args, **kwargs)

    def _get_eval_sampler(self, eval_dataset: Any) -> Any:
        """Reads rows in their order: by `group_by_length`, Trainer would return predictions in another one."""
        is_alone = self.args.world_size <= 1 and has_length(eval_dataset)
        return SequentialSampler(eval_dataset) if is_alone else None

    def _length_of(self, row: Mapping[str, Any]) -> int:
        """Returns the tokens that a row takes of a pack, in every epoch."""
        # Targets that are still to come may be as long as allowed, which the column counts.
        return row["length"] if self.args.regenerate_targets_every else self.data_collator.length(row)

    # Targets

    def _set_up_targets(self) -> None:
        self.targets: TargetTable = self.target_maker.table
        self.data_collator = PairCollator(
            **vars(self.data_collator),
            targets=self.targets,
            with_completions=self.args.needs_completions,
            with_reference=self.args.compares_with_reference,
        )
        self.target_maker.note_sources()
        if self.args.regenerate_targets_every:
            self.add_callback(RegenerateTargets(self))

    @OwnState.kept
    def generate_targets(self) -> None:
        """
        Generates the reference policy's answers to the clean prompts of rows without a completion, and stores them in
        `self.targets`. Does nothing if `method` trains without answers.

        [`train`] and [`evaluate`] call this themselves.
        """
        self.target_maker.generate(self.target_maker.sources)

    def dataset_with_targets(self) -> Dataset:
        """
        Returns the training pairs with their targets. Call it after [`train`] or [`generate_targets`].

        The targets are the reference's, even if `regenerate_targets_every` has replaced them in training. Pairs with an empty
        target are left out. With `keep_thinking=False`, a target is empty if its thought did not end.

        Returns:
            [`~datasets.Dataset`]: The pairs, with the columns `completion` (text) and `completion_ids` (token ids). If the config has
            `chat_template_kwargs`, these are a column, too (as JSON): the answers are to prompts that were rendered with them.

        Raises:
            [`ConsistencyError`]: If the training data are streamed, or if `method` trains without answers and the pairs have none.
        """
        return self.target_maker.dataset_with_targets()

    def _before_training(self) -> None:
        self.generate_targets()

    def _before_evaluation(self, datasets: Sequence[AnyDataset]) -> None:
        self.target_maker.generate(datasets)

    # Evaluation and logs

    def _track_num_input_tokens(self, inputs: dict[str, Any]) -> None:
        """Counts the tokens of a batch for `include_num_input_tokens_seen`. Without padding, it has no others."""
        counted = self.args.include_num_input_tokens_seen
        if self.args.padding_free and counted == "all":
            counted = "non_padding"
        with temporarily(self.args, include_num_input_tokens_seen=counted):
            super()._track_num_input_tokens(inputs)

    def prediction_step(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
    ) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:
        logits, labels = None, None
        if not prediction_loss_only and self.paired_loss is None:
            with mixed_precision(self.accelerator):
                _, logits, labels = super().prediction_step(model, inputs, prediction_loss_only, ignore_keys)
            self._metrics["eval"].clear()  # `evaluation_loop` replaces these means of batches
        inputs = self._prepare_inputs(inputs)
        # accelerate's own autocast may not be in the model's forward: another trainer may have had the model since.
        with torch.no_grad(), self.compute_loss_context_manager(), mixed_precision(self.accelerator):
            if self.paired_loss is None:
                losses, watched = supervised_row_losses(
                    model,
                    self.model,
                    inputs,
                    self.args.loss_type,
                    self.args.padding_free,
                    self.args.label_smoothing_factor,
                    self._runs_last_block_whole,
                )
            else:
                losses, watched = self._call_wrapped(model, self.paired_loss, inputs)
        self._eval_rows.add(losses | watched)
        of_batch = [
            weight * losses[method].sums.sum() / losses[method].counts.sum().clamp(min=1)
            for method, weight in self.args.weights.items()
        ]
        return torch.stack(of_batch).sum(), logits, labels

    @contextmanager
    def _evaluating_set(self) -> Iterator[None]:
        # Evaluation uses the reference's answers even after targets were regenerated.
        current, self.data_collator.current_targets = self.data_collator.current_targets, None
        try:
            yield
        finally:
            self.data_collator.current_targets = current

    def _eval_metrics(self, rows: dict[str, RowLosses]) -> dict[str, float]:
        means = means_of(rows)
        total = self._total(means)
        if total is None:
            missing = ", ".join(method for method in self.args.method if method not in means)
            raise ConsistencyError(
                f"No row of the evaluation has anything to compare for {missing}, so that there is no loss: the targets are empty, or "
                "the two prompts share nothing. Raise `max_completion_length`, or evaluate on other rows."
            )
        metrics = {"loss": total}
        if self.paired_loss is None:
            means.pop("bct", None)
        return metrics | self._named_in_log(means)

    def _train_metrics(self, means: dict[str, float]) -> dict[str, float]:
        return {} if self.paired_loss is None else self._named_in_log(means)

    def _total(self, means: dict[str, float]) -> float | None:
        weights = self.args.weights
        return sum(weights[method] * means[method] for method in weights) if weights.keys() <= means.keys() else None

    def _named_in_log(self, means: dict[str, float]) -> dict[str, float]:
        return {f"{name}_loss" if name in self.args.method else name: value for name, value in means.items()}

    def _card_facts(self) -> dict[str, str]:
        return paired_facts(self)


def _set_trainable(model: nn.Module, names: Sequence[str], is_trainable: bool) -> None:
    for name in names:
        model.get_parameter(name).requires_grad_(is_trainable)
