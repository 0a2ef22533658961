"""The base class of both trainers: checks, data, anchors and training."""

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, cast

import torch
from accelerate.utils import DistributedType, is_peft_model
from datasets import Dataset, IterableDataset
from torch import nn

from ..config.device import announce_cpu, mixed_precision
from ..config.options import temporarily
from ..data.anchors import (
    PREPARED_COLUMNS,
    AnchorMixture,
    choose_anchors,
    count_anchors,
    mix_anchors,
    own_anchors,
)
from ..data.eval_sets import EvalDataset, like, named
from ..data.lint import warn_of_findings
from ..data.pairs import AnyDataset
from ..data.prepare import is_prepared, shared_variables, variables_of
from ..data.rendering import ProcessingClass, check_same_tokens, load_processing_class
from ..data.repeated_stream import Passes, SamePass
from ..data.trained_pairs import read_digests
from ..errors import ConsistencyError
from ..generation.adapter_scale import ScaledLayer, scaled_layers
from ..generation.model_identity import weights_digest
from ..generation.options import warning_of_end
from ..generation.targets import Engine
from ..log import get_logger
from ..losses.meter import LossMeter
from ..models.adapter_checks import check_adapter_is_on, check_own_adapters, check_scales
from ..models.adapter_state import adapter_weights, restore_dtype
from ..models.checks import check_model, config_of, context_of
from ..models.finite_weights import check_base
from ..models.fused_lora import fuse_adapters
from ..models.kernels import check_adapted_kernels, warn_of_missing_kernels
from ..models.quantization import prevent_repacking, settle_biases
from ..models.sharding import is_sharded, keeps_adapter_dtype, shard_of
from ..passes.reference import Reference, adapter_changes_base, base_weights, checksum_of, freeze_initial_policy
from ..upstream import (
    ForwardRedirection,
    OwnState,
    forget_other_precision,
    global_then_local_main_first,
    take_out_autocast,
)
from ..weight_files import is_here
from .callbacks.dose import DoseCheck
from .callbacks.evaluation import warn_of_unused_guard
from .callbacks.finiteness import FinitenessGuard
from .callbacks.rates import RateWatch
from .card.facts import describe_data, describe_left_out
from .card.weights import describe_weights, trainable_in
from .evaluated_sets import EvaluatedSets
from .evaluation import EvaluationMixin
from .run.base_model import find_changed_config, is_another_base
from .run.best_checkpoint import missed_best, warn_of_choice
from .run.checks import (
    check_delay,
    check_evaluation,
    check_extras,
    check_sharding,
    check_shared_batches,
    check_trainable,
    check_training_options,
    check_weights_unchanged,
    held_by,
    id_of,
    warn_of_earlier_reference,
    warn_of_rounding,
    warn_of_warmup,
)
from .run.data_checks import (
    check_chat_template,
    check_tokenizer,
    checked_datasets,
    warn_of_other_form,
    warn_of_other_variables,
    warn_of_replaced_variables,
)
from .run.interruption import Checkpoints, stopping_on_signals
from .run.output_checks import (
    check_adapter_folder,
    check_not_data_folder,
    check_not_model_folder,
    check_output_dir,
)
from .run.overrides import warn_of_overrides
from .run.own_optimizer import decided_settings, take_evaluated_weights
from .run.pushing import PushMixin
from .run.resumption import RunRecord
from .run.run_lock import command_lock
from .run.snapshot import Snapshot
from .run.trained_rows import warn_of_trained_rows
from .saving import SavingMixin


if TYPE_CHECKING:
    from transformers import Trainer as _Trainer
else:
    _Trainer = object  # TRL's trainer comes after this class in each trainer's bases


logger = get_logger(__name__)

# What the last log of a training adds about the whole of it
OF_WHOLE_TRAINING = {"epoch", "num_tokens", "num_input_tokens_seen"}


@dataclass
class PreparedData:
    """Checked data sets and what renders them. Data sets that cannot be rendered yet are unchanged."""

    processing_class: ProcessingClass
    train_dataset: AnyDataset
    eval_dataset: Any
    anchor_dataset: AnyDataset | None


class PairTrainer(EvaluationMixin, SavingMixin, PushMixin, _Trainer):
    """
    Base class of [`ConsistencyTrainer`] and [`OnPolicyConsistencyTrainer`].

    A trainer calls [`_check_and_prepare`], then the constructor of TRL's trainer, then [`_check_loaded`]. It must
    implement the methods that raise `NotImplementedError` here, and may override those that do nothing.
    """

    _tag_names: ClassVar = ["trl", "trl-consistency", "consistency-training"]
    _tokenizer_options: ClassVar[dict[str, str]] = {}

    # Set by the constructor of TRL's trainer
    args: Any
    accelerator: Any
    train_dataset: Any
    eval_dataset: Any
    processing_class: Any
    _signature_columns: list[str] | None
    _total_train_tokens: int = 0  # logged as `num_tokens` by TRL's trainer for supervised fine-tuning
    _metrics: dict[str, Any]

    has_guard = False  # whether a `ConsistencyEvalCallback` was made for this trainer
    has_trained = False  # whether `train` was called before
    has_ended = False  # whether the last training was not broken off
    _epoch = 0  # the number of the epoch in training, from 0; a callback may end an epoch early
    _has_cut_epochs = False  # whether a callback ended one of this run early
    _mixture: AnchorMixture | None = None  # of streamed pairs with anchors
    # Of the last training: ids of the parameters that were trainable when it began, of those in a step of it so far, and of trainable ones
    # that its optimizer does not hold; the parameters that were in no step yet; the layers with an adapter
    _trainable: set[int]
    _trained: set[int]
    _left_out: set[int]
    _waiting: list[nn.Parameter]
    _scaled: list[ScaledLayer]

    # Implemented by each trainer

    def _check_options(self, model: Any, args: Any, peft_config: Any, quantization_config: Any) -> None:
        """Raises [`ConsistencyError`] for faults in the options and the files."""

    def _check_dataset(self, dataset: AnyDataset, name: str, args: Any) -> None:
        """Raises [`InvalidPairsError`] for well-formed pairs that this trainer cannot use."""

    def _check_template(self, processing_class: Any, args: Any, datasets: dict[str, AnyDataset]) -> bool:
        """Checks the tokenizer and the chat template. Returns whether rows can be rendered before weights load."""
        check_tokenizer(processing_class, args)
        check_chat_template(processing_class, datasets, "Use", args.chat_template_kwargs)
        return True

    def _render(self, dataset: AnyDataset, processing_class: Any, args: Any, name: str) -> AnyDataset:
        """Returns the rows as token ids."""
        raise NotImplementedError

    def _check_size(self, dataset: AnyDataset, args: Any) -> None:
        """Raises [`InvalidPairsError`] if the rows do not fill a batch."""

    @property
    def _reference(self) -> Reference | None:
        """The policy that the student is compared with; None where its answers are enough."""
        raise NotImplementedError

    @property
    def _adapter_off(self) -> bool:
        """Whether the initial policy is the model with its adapter off."""
        return self._peft_config is not None and not adapter_changes_base(self._peft_config)

    def _training(self) -> AbstractContextManager:
        """Returns the context of a training."""
        return nullcontext()

    def _before_training(self) -> None:
        """Prepares for the first step."""

    def _after_training(self) -> None:
        """Cleans up after the last step."""

    def _train_metrics(self, means: dict[str, float]) -> dict[str, float]:
        """Returns the means since the last log by their names in the log."""
        raise NotImplementedError

    def _total(self, means: dict[str, float]) -> float | None:
        """Returns the total loss from the means by objective, or None if one of them is missing."""
        raise NotImplementedError

    def _answering_engine(self, max_tokens: int) -> Engine | None:
        """Returns what answers for the policy greedily, with at most `max_tokens`, instead of `model.generate`, if anything does."""
        return None

    # Checks and preparation

    def _check_and_prepare(
        self,
        model: Any,
        args: Any,
        train_dataset: AnyDataset | None,
        eval_dataset: EvalDataset | None,
        anchor_dataset: AnyDataset | None,
        processing_class: ProcessingClass | None,
        peft_config: Any,
        quantization_config: Any,
    ) -> PreparedData:
        """Checks everything that can be checked before weights load, and tokenizes all rows."""
        model_id = id_of(model)
        self._check_model(model, args, peft_config, quantization_config)
        check_evaluation(args, eval_dataset)
        datasets = checked_datasets(args, train_dataset, eval_dataset, anchor_dataset, self._check_dataset)
        pairs = datasets["train_dataset"]
        revision, is_given = (args.model_init_kwargs or {}).get("revision"), processing_class is not None
        if processing_class is None:
            if not model_id:
                raise ConsistencyError(
                    "`model` has no name by which its tokenizer could be loaded. Give the tokenizer, as `processing_class`."
                )
            processing_class = load_processing_class(
                model_id, revision, args.trust_remote_code, **self._tokenizer_options
            )
        elif any(getattr(args, name, None) is not None for name in ("chat_template_path", "eos_token")):
            processing_class = deepcopy(processing_class)  # The caller's keeps its own template and end token.
            logger.warning(
                "`chat_template_path` and `eos_token` change a copy of the tokenizer that is given. Use `trainer.processing_class` from here "
                "on: the given one has its own template and end token, and would put these over the trained ones if it is saved."
            )
        self.data_facts = describe_data(pairs)
        self.shared_variables = shared_variables(pairs, args.chat_template_kwargs or {})
        warn_of_replaced_variables(args.chat_template_kwargs or {}, self.shared_variables)
        first = next(iter(pairs))
        self.is_chat = isinstance(first["clean_prompt"], list)
        self._first_prompt = first["clean_prompt"], variables_of(first, args.chat_template_kwargs or {})
        for name, dataset in datasets.items():
            warn_of_other_form(f"`{name}`", dataset, self.is_chat)
            warn_of_other_variables(f"`{name}`", dataset, args.chat_template_kwargs or {}, self.shared_variables)
        self.has_anchor_dataset = anchor_dataset is not None
        can_render = self._check_template(processing_class, args, datasets)
        if is_given and is_here(model_id, revision):
            check_same_tokens(processing_class, "processing_class", model_id, revision, args.trust_remote_code)
        self._unrendered = None if can_render else pairs
        if can_render:
            datasets = {
                name: self._prepare_rows(dataset, processing_class, args, name) for name, dataset in datasets.items()
            }
            self.data_facts |= describe_left_out(pairs, datasets["train_dataset"])
            if isinstance(datasets["train_dataset"], Dataset):
                count_anchors(len(datasets["train_dataset"]), args.anchor_ratio)
            self._check_size(datasets["train_dataset"], args)
        return PreparedData(
            processing_class, datasets["train_dataset"], like(eval_dataset, datasets), datasets.get("anchor_dataset")
        )

    def _check_model(self, model: Any, args: Any, peft_config: Any, quantization_config: Any) -> None:
        """Checks the options, the model's files and the folder that a training writes to."""
        forget_other_precision(args)
        if not isinstance(model, str) and all(shard_of(of) is of for of in model.parameters()):
            take_out_autocast(model)  # before TRL's trainer puts a forward of its own around it
        check_extras(args, quantization_config)
        check_shared_batches(args)
        if args.accelerator_config.dispatch_batches is None:
            # Otherwise one process concatenates the batches of a stream for all, which have different widths.
            args.accelerator_config.dispatch_batches = False
        # PEFT writes the names of this model's layers into it.
        self._peft_config = peft_config = deepcopy(peft_config)
        self._check_options(model, args, peft_config, quantization_config)
        self._vocab_size = check_model(model, args, peft_config, quantization_config)
        self._context = context_of(config_of(model, args), peft_config or getattr(model, "active_peft_config", None))
        self._given_adapter = adapter_weights(model)
        self.changed_config = find_changed_config(model, peft_config)
        self.is_loaded_by_name = isinstance(model, str)
        self._used_models = (id_of(model), getattr(self, "ref_model", None))
        self._check_folder(args)

    def _check_folder(self, args: Any) -> None:
        """Checks the folder that a training writes to."""
        self._checked_dir = args.output_dir
        if args.should_save:
            check_output_dir(args.output_dir)
            check_not_data_folder(args.output_dir)
            check_not_model_folder(args.output_dir, *self._used_models)

    def _prepare_rows(self, dataset: AnyDataset, processing_class: Any, args: Any, name: str) -> AnyDataset:
        if is_prepared(dataset):
            return dataset
        with global_then_local_main_first():
            dataset = self._render(dataset, processing_class, args, name)
        if name == "train_dataset":
            warn_of_findings(dataset, processing_class, name, args.chat_template_kwargs, args.thinking_markers)
        return dataset

    def _check_loaded(self, model: Any, anchor_dataset: AnyDataset | None) -> None:
        """Checks the loaded model, and sets up guards, records and metrics."""
        args, model_id = self.args, id_of(model)
        self._own_state = OwnState()
        if args.data_seed is None:
            # accelerate would draw the order with the seed that torch got last, from another trainer or a script.
            self.accelerator.dataloader_config.data_seed = args.seed
        if self._unrendered is not None:  # TRL's trainer has had them rendered.
            self.data_facts |= describe_left_out(self._unrendered, self.train_dataset)
            self._check_size(self.train_dataset, args)
            self._unrendered = None
        prevent_repacking(self.model)
        settle_biases(self.model)
        if not keeps_adapter_dtype(self.accelerator):
            restore_dtype(self.model, self._given_adapter)
        if not is_sharded(self.accelerator):  # Sharded weights are gathered by hooks of each module.
            fuse_adapters(self.model)
        del self._given_adapter
        ends = {"eos_token_id", "stop", "stop_token_ids"} & {*(args.generation_kwargs or {})}
        if not ends and (warning := warning_of_end(self.model, self.processing_class, *self._first_prompt)):
            logger.warning(warning)
        announce_cpu(args.device, torch.bfloat16 if args.bf16 else self.model.dtype, model_id or "The model")
        warn_of_missing_kernels(self.model, args.device.type)
        check_adapted_kernels(self.model)
        if args.should_save:
            check_adapter_folder(args.output_dir, is_peft_model(self.model))
        check_base(self.model, model_id, self.accelerator)
        self.base_weights = base_weights(self.model, has_new_adapter=self._peft_config is not None)
        self.base_checksum = checksum_of(self.model, self.base_weights)
        has_base = self.is_loaded_by_name and args.should_save and is_peft_model(self.model)
        self.base_digest = weights_digest(model_id) if has_base else None
        check_trainable(self.model, self.accelerator)
        self.base_is_another = is_another_base(model, self.model)
        trainable = trainable_in(self.model)
        self.trained_weights = describe_weights(self, trainable, trainable)
        self.has_own_optimizer = self.optimizer is not None or self.optimizer_cls_and_kwargs is not None
        self._used_optimizer = self.optimizer  # by the last training
        self.checked_rate: tuple[str, float] | None = None
        warn_of_rounding(self)
        self.warned_methods: set[str] = set()
        warn_of_overrides(self)
        self.finiteness = FinitenessGuard(self)
        self.add_callback(self.finiteness)
        self.rates = RateWatch(self)
        self.add_callback(self.rates)
        self.run_record = RunRecord(self)
        self.checkpoints = Checkpoints(self)
        self._meter = LossMeter()
        self._evaluated = EvaluatedSets(self)
        self._forward_redirection = ForwardRedirection()
        # Prepared data sets by argument name; checkpoints record them
        self.recorded_data = {"train_dataset": self.train_dataset}
        # Of what the model had been trained on before
        self._earlier_digests = [read_digests(folder)] if (folder := id_of(self.model)) else []
        for name, dataset in named(self.eval_dataset).items():
            if isinstance(dataset, Dataset) and is_prepared(dataset):
                warn_of_trained_rows(f"`{name}`", dataset, self.train_dataset)
        if args.dose_check:
            self.add_callback(DoseCheck(self, self.train_dataset))
        if args.anchor_ratio > 0:
            self._add_anchors(anchor_dataset)
        self.snapshot = Snapshot(self)

    def _add_anchors(self, anchors: AnyDataset | None) -> None:
        pairs, args = self.train_dataset, self.args
        anchors = own_anchors(pairs) if anchors is None else anchors
        if not is_prepared(anchors):
            anchors = self._prepare_rows(anchors, self.processing_class, args, "anchor_dataset")
        if isinstance(pairs, IterableDataset):
            self._mixture = AnchorMixture(pairs, anchors, args.anchor_ratio, args.seed, args.needs_completions)
            self.train_dataset = self._mixture(0)
        else:
            anchors = choose_anchors(cast(Dataset, anchors), len(pairs), args.anchor_ratio, args.seed)
            self.train_dataset = mix_anchors(pairs, anchors)
        self.recorded_data["anchor_dataset"] = anchors

    @property
    def _passes(self) -> Passes:
        """The passes through streamed training pairs."""
        return self._mixture or SamePass(self.train_dataset)

    def _freeze_reference(self, model: Any) -> Reference:
        check_sharding(self, self._adapter_off)
        return freeze_initial_policy(self, model, self._adapter_off)

    def _set_signature_columns_if_needed(self) -> None:
        if self._signature_columns is None:
            self._signature_columns = list(PREPARED_COLUMNS)

    # Training

    @OwnState.kept
    def train(
        self,
        resume_from_checkpoint: str | bool | None = None,
        *args: Any,
        resume_changed: str | Sequence[str] = (),
        **kwargs: Any,
    ) -> Any:
        """
        Like [`~transformers.Trainer.train`], but generates missing targets first. SIGTERM or Ctrl-C ends the process
        after the current step, with a checkpoint. Called again, it trains on from the present weights with a new
        optimizer (but with that of `optimizers`, if it was given), and the model card states both trainings. The
        reference remains the model before the first.

        Args:
            resume_from_checkpoint (`str` or `bool`, *optional*):
                A checkpoint, or `True` for the last complete one. If `None`, the option of that name in `args`.
            resume_changed (`str` or `Sequence[str]`, *optional*, defaults to `()`):
                Names of the differences from the checkpoint's run to allow, as the error lists them. The model card
                states them.

        Returns:
            [`~transformers.trainer_utils.TrainOutput`]: Steps, mean loss and metrics.

        Raises:
            [`ConsistencyError`]: If the checkpoint belongs to another run, the optimizer or the schedule cannot be made, the
                model was changed since the trainer was made, or a loss, gradient or weight is not finite.
        """
        checkpoint = self._check_training(resume_from_checkpoint, resume_changed)
        self._take_out_other_precision()
        # With those that the objectives leave out, which are frozen in `_training`
        self._trainable, self._trained, self._left_out = trainable_in(self.model), set(), set()
        with command_lock(self.args.output_dir, self.accelerator), self._training():
            self._waiting = list(self.model.parameters())
            self._scaled = scaled_layers(self.model)
            self.trained_weights = describe_weights(self, self._trainable, trainable_in(self.model))
            self._meter = LossMeter()
            self._metrics["train"].clear()  # of a training that was broken off
            self._saved_in = frozenset()
            self._before_training()
            self.snapshot.begin()
            with self.finiteness.watching(checkpoint):
                self.run_record.begin(checkpoint)
                self.checkpoints.begin(checkpoint)
                self._earlier_digests += self._digests_of_others()
                if checkpoint:
                    self._earlier_digests.append(read_digests(checkpoint))
                self.has_ended = False
                try:
                    with stopping_on_signals(self):
                        result = super().train(checkpoint, *args, **kwargs)
                except KeyError as error:
                    if "`metric_for_best_model`" not in str(error):
                        raise
                    raise ConsistencyError(error.args[0]) from None
                finally:
                    self.is_in_train = False  # Trainer leaves it at true if the training is broken off.
                    self._used_optimizer, self.has_trained = self.optimizer, True
                    vars(self.model)["trained_digests"] = [self._all_digests()]
                    self._take_out_noise()
                self.has_ended = True
                take_evaluated_weights(self.optimizer)
                self.checkpoints.delete_surplus(checkpoint)
        if missed := missed_best(self):
            logger.warning(f"`load_best_model_at_end`: {missed}.")
        self._after_training()
        self._check_reference()
        return result._replace(training_loss=result.metrics["train_loss"])  # as it was logged

    def _check_training(
        self, resume_from_checkpoint: str | bool | None, resume_changed: str | Sequence[str]
    ) -> str | None:
        """Checks what may have changed since the trainer was made. Returns the checkpoint to resume from, if any."""
        if resume_from_checkpoint is None:
            resume_from_checkpoint = self.args.resume_from_checkpoint
        self.snapshot.check()
        if self.args.output_dir != self._checked_dir:
            self._check_folder(self.args)
        if is_peft_model(self.model):
            check_weights_unchanged(self)
            if not is_sharded(self.accelerator):
                check_own_adapters(self.model)
        else:  # A whole model is saved as it is.
            warn_of_earlier_reference(self)
        check_adapter_is_on(self.model, in_training=False)
        check_trainable(self.model, self.accelerator)
        # It was assigned, or taken away, since the trainer was made or has trained.
        if self.optimizer is not self._used_optimizer:
            self.has_own_optimizer = self.optimizer is not None or self.optimizer_cls_and_kwargs is not None
        if self.optimizer is None or self.optimizer is not self._used_optimizer:
            warn_of_rounding(self)  # of a rate that was assigned since
        names = [resume_changed] if isinstance(resume_changed, str) else resume_changed
        checkpoint = check_training_options(self, resume_from_checkpoint, names)
        warn_of_unused_guard(self)
        return checkpoint

    def _take_out_other_precision(self) -> None:
        """Takes another precision out of the model: a trainer of that precision may have trained it since."""
        if self.model_wrapped is self.model and not is_sharded(self.accelerator):
            take_out_autocast(self.model)

    def _take_out_noise(self) -> None:
        """Takes the noise of `neftune_noise_alpha` out of the model. Trainer does not if the training is broken off."""
        if (handle := getattr(self, "neftune_hook_handle", None)) is not None:
            handle.remove()

    def create_optimizer(self, *args: Any, **kwargs: Any) -> Any:
        is_made = self.optimizer is None
        optimizer = super().create_optimizer(*args, **kwargs)
        if is_made:
            self._used_optimizer = self.optimizer  # by the options, if a script calls this before `train`
            self.rates.made = None if self.has_own_optimizer else decided_settings(self.optimizer)
        return optimizer

    def _check_reference(self) -> None:
        if self._reference is not None:
            self._reference.check()

    def _call_wrapped(self, model: nn.Module, function: Any, *args: Any) -> Any:
        """Returns `function(unwrapped model, *args)`, run inside the wrapped model's forward."""
        unwrapped = self.accelerator.unwrap_model(model)
        # Without the wrapper's forward, DDP does not synchronise gradients.
        with mixed_precision(self.accelerator):
            return self._forward_redirection(model, unwrapped, function, unwrapped, *args)

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        # A callback may have left the model, or the options, otherwise.
        check_adapter_is_on(self.model)
        check_scales(self._scaled)
        check_trainable(self.model, self.accelerator)
        self.snapshot.check_in_training()
        loss = super().training_step(*args, **kwargs)
        self.finiteness.record_loss(loss)
        return loss

    def _note_trained(self) -> None:
        """
        Notes which weights have been in a step of this training, with a gradient: a callback may freeze some, or thaw others, and text
        gives a vision tower none. Warns of trainable ones that the optimizer does not hold.
        """
        if is_sharded(self.accelerator) or self.accelerator.distributed_type == DistributedType.DEEPSPEED:
            return  # The model, or the optimizer, has other tensors than when the training began.
        waiting = {id(of) for of in self._waiting if of.requires_grad}
        if not waiting:
            return
        held = waiting & held_by(self.optimizer)
        if not waiting <= self._trained | held | self._left_out:
            self._left_out = waiting - held
            logger.warning(
                f"The optimizer does not hold {len(self._left_out)} of the {len(trainable_in(self.model))} trainable tensors: these stay as they are. "
                "Give the optimizer all of them, or freeze the others."
            )
        if new := {id(of) for of in self._waiting if id(of) in held and of.grad is not None}:
            self._trained |= new
            self._waiting = [of for of in self._waiting if id(of) not in new]
            self.trained_weights = describe_weights(self, self._trainable, self._trained)

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> Any:
        """Runs between a step's backward pass and its update. The norm is over all processes."""
        self._note_trained()
        grad_norm = super()._get_grad_norm(model, grad_norm)
        self.finiteness.check_gradient(grad_norm)
        return grad_norm

    def _run_epoch(self, *args: Any, **kwargs: Any) -> None:
        """Skips the epoch of a run resumed from its last step, or where it was stopped. Trainer checks for the end only after a step."""
        if self.state.global_step >= self.state.max_steps or self.control.should_training_stop:
            self.control.should_training_stop = True
            return
        self._epoch = kwargs["epoch"]
        check_delay(self.args, self.state.max_steps, self.state.num_train_epochs)
        warn_of_choice(self.args, self.state)
        warn_of_warmup(self)
        super()._run_epoch(*args, **kwargs)
        self._has_cut_epochs |= self.control.should_epoch_stop

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        is_training, given = self._logs_training(logs), set(logs)
        if is_training:
            anchor_share, means, of_anchors = self._meter.means(self.accelerator)
            logs |= self._train_metrics(means)
            if of_anchors:
                logs["anchor_share"] = anchor_share
                if (total := self._total(of_anchors)) is not None:
                    logs["anchor_loss"] = total
            if "train_loss" in logs and self.accelerator.num_processes > 1:
                # Of the steps since the last log, Trainer takes the loss of each process alone.
                of_process = torch.tensor([logs["train_loss"]], device=self.accelerator.device)
                logs["train_loss"] = float(self.accelerator.gather(of_process).mean())
        self.finiteness.correct(logs)
        if "total_flos" in given and not self.finiteness.updates:
            logs["train_loss"] = math.nan  # the run that was resumed had ended; Trainer says 0
        should_log = self.control.should_log
        # TRL reads in the model's mode whether a log is of training. A callback that generates may have left it in the other one.
        with temporarily(self.model, training=is_training):
            super().log(logs, start_time)
        if "total_flos" in given:
            # `train` returns these: beside the loss of the whole training, means since the last log would be taken for such, too.
            for name in logs.keys() - given - OF_WHOLE_TRAINING:
                del logs[name]
        if not is_training:
            self.control.should_log = should_log  # Trainer would take it for the step's log.

    def _logs_training(self, logs: dict[str, float]) -> bool:
        """
        Whether a log is of training: that of a step, or of the whole. What a callback logs takes no means, which the step's log
        would lack.
        """
        return "loss" in logs or "total_flos" in logs  # `evaluate` may log a `train_loss`, too
