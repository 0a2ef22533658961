"""Measures rates on held-out pairs during training, for logs, model selection and early stopping."""

import re
from contextlib import nullcontext
from typing import Any

from datasets import Dataset
from transformers import EarlyStoppingCallback, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import ExportableState

from ...config.device import mixed_precision
from ...config.options import temporarily
from ...data.answers import REQUESTS
from ...data.prepare import unformatted
from ...errors import ConsistencyError
from ...evaluation.held_out import (
    CONTROL_ACCURACY,
    draw_sample,
    fallen,
    fallen_parts,
    measure_sample,
    prepare_sample,
    selection_score,
    unguarded,
)
from ...evaluation.rates.intervals import Estimate
from ...evaluation.result_warnings import warnings_of_rows
from ...evaluation.row_kinds import kind_of
from ...generation.model_identity import identity_digest
from ...generation.options import end_tokens, evaluating
from ...log import get_logger
from ...models.checks import context_of
from ...upstream import DistributedBackend, unwrap_model_for_generation
from ..run.data_checks import warn_of_other_form, warn_of_other_variables
from ..run.own_optimizer import take_evaluated_weights
from ..run.trained_rows import warn_of_trained_rows


logger = get_logger(__name__)

PREFIX = "consistency/"
WHAT_FELL = {
    "clean_accuracy": "accuracy on clean prompts",
    "clean_refusal": "refusals of harmful clean prompts",
    "benign_answered": "answers to benign requests",
    CONTROL_ACCURACY: "accuracy on control questions",
}


class ConsistencyEvalCallback(TrainerCallback, ExportableState):
    """
    Generates the model's greedy answers to a small, fixed sample of held-out pairs and control questions, and logs
    rates as `eval_consistency/...`.

    It measures before the first step. Then it measures at each evaluation of the trainer or, with `eval_every`, every so
    many steps and after the last step.

    Depending on the data, it logs `sycophancy`, `perturbed_accuracy`, `clean_accuracy`, `attack_success`,
    `perturbed_refusal`, `clean_refusal`, `benign_answered`, `clean_unread`, `perturbed_unread` and
    `clean_accuracy/control` (on the control questions), and parts such as `benign_answered/clean`. Each rate is over all rows and comes with the number of
    answers (`.../count`) and of unreadable answers (`.../unread`).

    The papers select checkpoints by these scores: `sycophancy_score` is the harmonic mean of clean accuracy and of the
    share of answers that resist the suggestion; `jailbreak_score` is the harmonic mean of the shares of benign requests
    answered and of harmful requests refused; `score` is the harmonic mean of both. An unreadable answer lowers all of
    them. With `metric_for_best_model="consistency/score"` and `load_best_model_at_end=True`, the trainer keeps the best
    checkpoint: the callback then also measures at each evaluation, and adds what it measures to the evaluation's metrics.

    With `use_vllm`, the rollout engine of an [`OnPolicyConsistencyTrainer`] generates the answers. The callback does not
    change the training itself.

    Example:

    ```python
    >>> from trl_consistency import ConsistencyEvalCallback

    >>> guard = ConsistencyEvalCallback(trainer, held_out_pairs, control_questions, eval_every=50, max_drop=0.05)
    >>> trainer.add_callback(guard)
    >>> trainer.train()
    ```

    Args:
        trainer ([`ConsistencyTrainer`] or [`OnPolicyConsistencyTrainer`]):
            The trainer that the callback is added to.
        eval_dataset ([`~datasets.Dataset`]):
            Pairs to measure on, ideally with held-out wordings. Columns: `clean_prompt`, `perturbed_prompt`; for
            questions, `answer` and `biased_answer`; for requests, the `category` `"harmful"` or `"benign"`.
        control_dataset ([`~datasets.Dataset`], *optional*):
            Questions of a task outside the pairs, with the columns `prompt` and `answer`. They must not be anchors of
            the training.
        eval_every (`int`, *optional*):
            Steps between measurements. The last step is always measured. If `None`, the callback measures at the trainer's
            evaluations, which `eval_strategy` must ask for, and adds what it measures to their metrics.
        max_drop (`float`, *optional*):
            Stops the training when one of these shares has fallen by more than this since before the first step (0.05 is
            five points): clean prompts answered correctly, harmful clean prompts refused, benign requests answered,
            control questions answered correctly. What one part of a share gains (anchors or pairs, clean or perturbed benign
            requests) does not make up for what another loses. An unreadable answer counts as wrong. If `None`, training does
            not stop.
        num_rows (`int`, *optional*, defaults to `64`):
            Maximum rows of each kind: questions, harmful requests, benign requests, control questions.
        max_new_tokens (`int`, *optional*):
            Maximum tokens of an answer. If `None`, the trainer's `max_completion_length`.
        batch_size (`int`, *optional*, defaults to `32`):
            Prompts per batch.
        seed (`int`, *optional*, defaults to `42`):
            Seed that selects the rows.

    Attributes:
        stopped (`str`, *optional*):
            Why the training was stopped, or None.

    Raises:
        [`ConsistencyError`]: If options contradict each other or the data, and under FSDP, where no process has the
            whole model.
    """

    def __init__(
        self,
        trainer: Any,
        eval_dataset: Dataset,
        control_dataset: Dataset | None = None,
        eval_every: int | None = None,
        max_drop: float | None = None,
        num_rows: int = 64,
        max_new_tokens: int | None = None,
        batch_size: int = 32,
        seed: int = 42,
    ):
        args: Any = trainer.args
        check_options(args, eval_every, max_drop, num_rows)
        if DistributedBackend(trainer.accelerator).is_fsdp:
            raise ConsistencyError(
                "`ConsistencyEvalCallback` is not available where FSDP shards the model, which then cannot answer. Use DDP "
                "or DeepSpeed, or measure the checkpoints afterwards."
            )
        sample = draw_sample(eval_dataset, control_dataset, num_rows, seed)
        if keyless := sum(kind_of(row) == "no key" for row in unformatted(eval_dataset)):
            logger.warning(
                f"{keyless} of {len(eval_dataset)} row(s) of the guard's `eval_dataset` are not measured: they have neither an "
                "`answer` nor the `category` `harmful` or `benign`."
            )
        kinds = {kind_of(row) for row in sample.pairs}
        if "question" in kinds and len(requests := kinds & {*REQUESTS}) == 1:
            logger.warning(
                f"The `score` of the guard leaves out its {requests.pop()} requests: `jailbreak_score` needs harmful and benign ones."
            )
        self.trainer: Any = trainer
        self.max_new_tokens = args.max_completion_length if max_new_tokens is None else max_new_tokens
        self.sample = prepare_sample(
            sample,
            trainer.processing_class,
            args.chat_template_kwargs,
            context_of(trainer.model),
        )
        of_run = args.chat_template_kwargs or {}
        sets = {"eval_dataset": self.sample.pairs, "control_dataset": self.sample.control}
        for (name, rows), numbers in zip(sets.items(), self.sample.numbers, strict=True):
            if rows:
                warn_of_other_form(f"`{name}` of the guard", rows, trainer.is_chat)
                warn_of_other_variables(f"`{name}` of the guard", rows, of_run, trainer.shared_variables, numbers)
                for warning in warnings_of_rows(rows, numbers, f" of the guard's `{name}`"):
                    logger.warning(warning)
        recorded = trainer.recorded_data
        # Pairs with two equal prompts are anchors, too.
        trained = recorded["train_dataset"], recorded.get("anchor_dataset")
        kind = "training pairs" + " and anchors" * ("anchor_dataset" in recorded)
        warn_of_trained_rows("`eval_dataset` of the guard", self.sample.pairs, *trained, kind=kind)
        warn_of_trained_rows("`control_dataset` of the guard", self.sample.control or (), *trained, kind="anchors")
        self.eval_every = eval_every
        self.max_drop = max_drop
        self.batch_size = batch_size
        self.stopped: str | None = None
        self._start: dict[str, Estimate] | None = None
        self._measured: tuple[int, dict[str, float]] | None = None  # step and metrics
        self._warned: dict[str, int] = {}  # warnings without their numbers, and their last count
        self._told: int | None = None  # the step whose evaluation last got the metrics
        trainer.has_guard = True

    def state(self) -> dict[str, Any]:
        start = {name: rate.to_dict() for name, rate in (self._start or {}).items()}
        compared = {"start": start, "sample": self._sample_digest(), "answers": self._answering()}
        return {"args": {}, "attributes": compared | {"max_drop": self.max_drop, "stopped": self.stopped}}

    def _sample_digest(self) -> str:
        """Tells what is measured: rates of other rows, or of shorter answers, are not compared."""
        sample = self.sample._asdict() | {"max_new_tokens": self.max_new_tokens}
        sample["candidates"] = [[key, sorted(of_key)] for key, of_key in sample["candidates"].items()]
        return identity_digest(sample)

    def _answering(self) -> dict[str, Any]:
        """Tells how answers are made and read, as JSON: rates of others are not compared."""
        trainer = self.trainer
        engine = trainer._answering_engine(self.max_new_tokens)
        return {
            "thinking_markers": list(trainer.args.thinking_markers),
            "engine": engine.options["engine"] if engine else "transformers",
            "end_tokens": sorted(end_tokens(trainer.model, trainer.processing_class)),
            "mixed_precision": trainer.accelerator.mixed_precision,
        }

    @property
    def _chooses_by(self) -> dict[str, Any]:
        """What is measured and how, by name, if the best step is chosen by it."""
        if not chooses_best(self.trainer.args):
            return {}
        return {"guard": self._sample_digest()} | {f"guard.{name}": of for name, of in self._answering().items()}

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        guards = sum(isinstance(other, type(self)) for other in self.trainer.callback_handler.callbacks)
        if args is not self.trainer.args or guards > 1:
            raise ConsistencyError(
                "A trainer takes one `ConsistencyEvalCallback`, which is made for it: another trainer's measures that one's model, "
                "and two would log under the same names. Give one guard all the rows."
            )
        self._measured = self._start = self.stopped = self._told = None
        self._warned.clear()
        if chooses_best(args):
            self._check_order()
        if state.global_step > 0:
            saved: Any = state.stateful_callbacks.get(type(self).__name__, {})
            saved = saved.get("attributes", {}) if isinstance(saved, dict) else {}
            self._end_if_stopped(saved, state, control)
            # An earlier version did not note how answers were made and read.
            answers, now = saved.get("answers", {}), self._answering()
            changed = [
                f"`{name}` was {of!r} and is {now[name]!r}" for name, of in answers.items() if of != now.get(name, of)
            ]
            if saved.get("sample") == self._sample_digest() and not changed:
                self._begin_with({name: Estimate.from_dict(figures) for name, figures in saved["start"].items()})
                return
            what = f"for these answers ({', '.join(changed)})" if changed else "for these rows"
            logger.warning(f"What the model did before the first step is not known {what}: drops count from here on.")
        self._measure(state, control)

    def _end_if_stopped(self, saved: dict[str, Any], state: TrainerState, control: TrainerControl) -> None:
        """Ends a resumed run that the guard had stopped, unless its `max_drop` is another one now."""
        if not (stopped := saved.get("stopped")):
            return
        if saved.get("max_drop") != self.max_drop:
            logger.warning(
                f"The guard stopped this run, which goes on with another `max_drop`, {self.max_drop}. {stopped}"
            )
            return
        self.stopped, control.should_training_stop = stopped, True
        logger.warning(
            f"The guard stopped this run, which ends where it did. {stopped} {self._say_kept(state)} To train on, change `max_drop` "
            "(`guard_max_drop`), or leave the guard out."
        )

    def _check_order(self) -> None:
        """Raises [`ConsistencyError`] if early stopping looks for the metrics before they are measured."""
        callbacks = self.trainer.callback_handler.callbacks
        stopping = next((place for place, of in enumerate(callbacks) if isinstance(of, EarlyStoppingCallback)), None)
        if stopping is not None and stopping < callbacks.index(self):
            raise ConsistencyError(
                "`EarlyStoppingCallback` was added before `ConsistencyEvalCallback`, so that it would never see the metric. Add "
                "`ConsistencyEvalCallback` first."
            )

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        # After the last step, too, whose weights are kept: as Trainer evaluates
        if self.eval_every and (state.global_step % self.eval_every == 0 or state.global_step == state.max_steps):
            self._measure(state, control)

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        # The last step of a training that another callback stops, which it may do after `on_step_end`, or that ends before `max_steps`
        # because it ended an epoch
        ends = control.should_training_stop or self.trainer._epoch + 1 == state.num_train_epochs
        if ends and (self.eval_every or not control.should_evaluate):
            self._measure(state, control)

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: dict[str, float],
        **kwargs: Any,
    ) -> None:
        if self.eval_every and not chooses_best(args):
            return
        figures = self._measure(state, control)
        if self.trainer.is_in_train:
            # Of a callback's own evaluations none, and of several evaluation sets only the first one's: early stopping would count
            # the same figure once for each.
            if not self.trainer._evaluation_is_due or self._told == state.global_step:
                return
            self._told = state.global_step
        # In place: Trainer reads the metric for the best model from this dict.
        metrics.update(figures)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._measured = None  # The best model may have been loaded since.

    def _measure(self, state: TrainerState, control: TrainerControl) -> dict[str, float]:
        """Measures the current model, once per step even with several evaluation data sets."""
        if self._measured and self._measured[0] == state.global_step:
            return self._measured[1]
        trainer, args = self.trainer, self.trainer.args
        engine = trainer._answering_engine(self.max_new_tokens)
        # In training mode, `log` would add the step's training means. It resets `should_log`.
        with evaluating(trainer.model), temporarily(control, should_log=control.should_log):
            take_evaluated_weights(trainer.optimizer)
            with (
                unwrap_model_for_generation(
                    trainer.model_wrapped,
                    trainer.accelerator,
                    gradient_checkpointing_kwargs=args.gradient_checkpointing_kwargs,
                ) as model,
                mixed_precision(trainer.accelerator) if engine is None else nullcontext(),
            ):
                rates = measure_sample(
                    model,
                    trainer.processing_class,
                    self.sample,
                    self.max_new_tokens,
                    self.batch_size,
                    progress=trainer.accelerator.is_main_process and not args.disable_tqdm,
                    thinking_markers=tuple(args.thinking_markers),
                    engine=engine,
                    tell=self._warn,
                )
            metrics = {f"eval_{PREFIX}{name}": value for name, value in _figures(rates).items()}
            trainer.log(dict(metrics))
        if trainer.is_in_train:
            self._measured = state.global_step, metrics
            self._compare(rates, state, control)
        return metrics

    def _warn(self, warning: str) -> None:
        """Logs a warning of the answers. It comes again only when its first number, the count, has doubled."""
        kind, count = re.sub(r"\d+", "", warning), int((re.findall(r"\d+", warning) or [0])[0])
        if count >= 2 * self._warned.get(kind, 0):
            self._warned[kind] = count
            logger.warning(f"The guard: {warning}")

    def _begin_with(self, rates: dict[str, Estimate]) -> None:
        """Takes rates as those before the first step. Warns of shares that no loss can lower by more than `max_drop`."""
        self._start = rates
        if self.max_drop is not None and (found := unguarded(rates, self.max_drop)):
            shares = "; ".join(f"{WHAT_FELL[name]} ({rates[name]})" for name in found)
            logger.warning(
                f"`max_drop={self.max_drop}` can never stop the training for {shares}: a share cannot fall by more than it is before the "
                "first step. Look at the answers, and at how the keys are written. Give rows that the model answers well."
            )

    def _compare(self, rates: dict[str, Estimate], state: TrainerState, control: TrainerControl) -> None:
        if self._start is None:
            self._begin_with(rates)
        assert self._start is not None
        if self.max_drop is None or self.stopped:
            return
        found = fallen(self._start, rates, self.max_drop)
        if found:
            drops = "; ".join(_say_drop(name, self._start, rates) for name in found)
            self.stopped = f"Step {state.global_step}: more than `max_drop={self.max_drop}` was lost of {drops}."
            control.should_training_stop = True
            logger.warning(
                f"Training is stopped. {self.stopped} {self._say_kept(state)} Anchors (`anchor_ratio`) or a lower learning rate keep "
                "what the pairs do not mention."
            )

    def _say_kept(self, state: TrainerState) -> str:
        """Says which weights are kept after a stop: those of the best step before, or the last ones."""
        args, checkpoint = self.trainer.args, state.best_model_checkpoint
        step = int(checkpoint.rsplit("-", 1)[1]) if args.load_best_model_at_end and checkpoint else state.global_step
        # It is the best already if its evaluation came before the guard's, as where another callback ends the training.
        if step == state.global_step:
            return "The model is as it is after this step."
        is_measured = any(
            entry["step"] == step and any(key.startswith(f"eval_{PREFIX}") for key in entry)
            for entry in state.log_history
        )
        return (
            f"The weights of step {step:,} are loaded, the best saved ones by `{args.metric_for_best_model}`."
            + (not is_measured) * " The guard did not measure that step."
        )


def warn_of_unused_guard(trainer: Any) -> None:
    """Logs a warning if a guard was made for a trainer that does not have it among its callbacks."""
    callbacks = trainer.callback_handler.callbacks
    if trainer.has_guard and not any(isinstance(callback, ConsistencyEvalCallback) for callback in callbacks):
        logger.warning(
            "A `ConsistencyEvalCallback` was made for this trainer and is not among its callbacks, so that nothing is measured. Add it: "
            "`trainer.add_callback(...)`."
        )


def check_options(args: Any, eval_every: int | None, max_drop: float | None, num_rows: int) -> None:
    """Raises [`ConsistencyError`] for options that contradict each other."""
    if eval_every is None and args.eval_strategy == "no":
        raise ConsistencyError("Nothing says when to measure: set `eval_every`, or `eval_strategy` of the trainer.")
    if eval_every is not None and eval_every < 1:
        raise ConsistencyError(f"`eval_every` must be at least 1, got {eval_every}.")
    if max_drop is not None and not 0 <= max_drop < 1:
        raise ConsistencyError(f"`max_drop` is a share, from 0 to below 1 (0.05 is five points), got {max_drop}.")
    if num_rows < 1:
        raise ConsistencyError(f"`num_rows` must be at least 1, got {num_rows}.")


def chooses_best(args: Any) -> bool:
    """Whether the best model is chosen by one of the callback's metrics."""
    return (args.metric_for_best_model or "").removeprefix("eval_").startswith(PREFIX)


def _say_drop(name: str, start: dict[str, Estimate], now: dict[str, Estimate]) -> str:
    """Says what was lost of a share, and of its parts: the share may have risen."""
    parts = [
        f", of {words} alone from {start[part]} to {now[part]}"
        for part, words in fallen_parts(name, start, now).items()
    ]
    return f"{WHAT_FELL[name]}, from {start[name]} to {now[name]}{''.join(parts)}"


def _figures(rates: dict[str, Estimate]) -> dict[str, float]:
    """Returns the logged values."""
    figures: dict[str, float] = {}
    for name, rate in rates.items():
        figures |= {name: rate.value, f"{name}/count": rate.total, f"{name}/unread": rate.unread_total}
    score = selection_score(rates)
    return figures if score is None else {**figures, "score": score}
