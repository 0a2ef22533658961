"""Shared code of the training scripts: options to trainer arguments, training, saving and pushing."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from trl import DatasetMixtureConfig, ModelConfig

from ..errors import ConsistencyError, ends_with_message
from ..files import writing
from ..folder_lock import check_unused
from ..generation.answer_engine import is_url
from ..models.embedded_models import resolve_model
from ..trainer.callbacks.evaluation import ConsistencyEvalCallback
from ..trainer.run.best_checkpoint import best_step
from ..trainer.run.interruption import find_checkpoint
from ..trainer.run.output_checks import check_output_dir
from ..upstream import end_run
from .json_output import finite, one_object
from .loading import (
    ConsistencyScriptArguments,
    OnPolicyConsistencyScriptArguments,
    get_split,
    load_anchors,
    load_guard,
    load_pairs,
)
from .model_options import adapter_of, check_init_kwargs, check_intervals, check_model_options, quantization_of
from .parser import StrictParser
from .training_engine import check_server_of_targets, flags_of_engine, naming_engine


NO_PREDICTION = "`do_predict` predicts nothing in this command: leave it out, and measure the model with `trl-consistency evaluate`."


class TrainingCommand(NamedTuple):
    """A training command."""

    name: str
    trainer: type
    config: Any
    script_arguments: type

    def make_parser(self, prog: str | None = None) -> StrictParser:
        """Returns the parser of the command's options."""
        return StrictParser(
            (self.script_arguments, self.config, ModelConfig, DatasetMixtureConfig),
            self.name,
            self.flags_of_engine,
            naming_engine,
            prog=prog,
        )

    def flags_of_engine(self, args: list[str], config: dict[str, Any]) -> list[str]:
        """Returns the flags that `engine` stands for, given the command line and the recipe."""
        return flags_of_engine(args, config, self.config.rolls_out)

    def make_trainer(self, script_args: Any, training_args: Any, *others: Any) -> Any:
        """Returns the trainer for the parsed options."""
        server = script_args.engine if is_url(script_args.engine or "") and not training_args.rolls_out else None
        arguments = trainer_arguments(script_args, training_args, *others)
        if server is not None:
            check_server_of_targets(server, training_args, arguments["model"], arguments["quantization_config"])
        trainer = self.trainer(**arguments)
        if server is not None:
            trainer.target_maker.server = server
        return trainer

    def run(self, args: Sequence[str] | None = None, prog: str | None = None) -> Any:
        """Trains and returns the trainer; faulty data or options end the program with one message."""
        parser = self.make_parser(prog)
        with ends_with_message():
            script_args, training_args, model_args, dataset_args = parser.parse_args_and_config(args)
            check_model_options(parser.given, script_args, training_args, model_args)
            check_intervals(parser.given, parser.typed, training_args)
            check_init_kwargs(model_args, training_args.model_init_kwargs or {}, parser.given)
            with parser.naming_given(), one_object(script_args.json) as printed:
                guard = load_guard(script_args, training_args)
                trainer = self.make_trainer(script_args, training_args, model_args, dataset_args)
                outcome = train_and_save(trainer, script_args, guard)
                if trainer.is_world_process_zero():
                    printed |= outcome
        return trainer


def trainer_arguments(
    script_args: ConsistencyScriptArguments,
    training_args: Any,
    model_args: ModelConfig,
    dataset_args: DatasetMixtureConfig,
) -> dict[str, Any]:
    """Returns a trainer's arguments for the options. Models and data sets are loaded by name."""
    if training_args.should_save:
        check_output_dir(training_args.output_dir)
        check_unused(training_args.output_dir)
    if training_args.do_predict:
        raise ConsistencyError(NO_PREDICTION)
    find_checkpoint(training_args.resume_from_checkpoint, training_args.output_dir)
    training_args.model_init_kwargs = {
        "revision": model_args.model_revision,
        "trust_remote_code": training_args.trust_remote_code,
        "attn_implementation": model_args.attn_implementation,
        "dtype": model_args.dtype,
        **(training_args.model_init_kwargs or {}),
    }
    quantization_config = quantization_of(model_args, training_args.model_init_kwargs)
    dataset = load_pairs(script_args, dataset_args)
    eval_dataset = None
    if training_args.eval_strategy != "no" or training_args.eval_on_start:
        eval_dataset = get_split(dataset, script_args.dataset_test_split, "dataset_test_split")
    own = {}
    if isinstance(script_args, OnPolicyConsistencyScriptArguments):
        own["ref_model"] = script_args.ref_model_name_or_path
    return {
        "model": resolve_model(model_args.model_name_or_path),
        "args": training_args,
        "train_dataset": get_split(dataset, script_args.dataset_train_split, "dataset_train_split"),
        "eval_dataset": eval_dataset,
        "quantization_config": quantization_config,
        "peft_config": adapter_of(model_args),
        "anchor_dataset": load_anchors(script_args),
        **own,
    }


def train_and_save(
    trainer: Any, script_args: ConsistencyScriptArguments, guard_options: dict[str, Any] | None = None
) -> dict[str, Any]:
    """
    Trains (or resumes), saves the model, pushes it with `push_to_hub`, and ends the run. Returns the object that `--json`
    prints.
    """
    args, url = trainer.args, None
    guard = None
    if guard_options is not None:
        guard = ConsistencyEvalCallback(trainer, **guard_options)
        trainer.add_callback(guard)
    try:
        result = trainer.train(resume_changed=script_args.resume_changed or ())
    except SystemExit:  # interrupted, in all processes, and saved
        end_run(trainer)
        raise
    stopped = guard is not None and guard.stopped
    if args.push_to_hub and not stopped:
        url = trainer.push_to_hub(dataset_name=script_args.dataset_name)  # which saves first
        trainer.accelerator.print(f"Model saved to {args.output_dir} and published: {url}")
    else:
        with writing(args.output_dir, "output_dir"):
            trainer.save_model(args.output_dir, _internal_call=True)  # otherwise, `push_to_hub` would push it
            trainer.create_model_card(dataset_name=script_args.dataset_name)
        trainer.accelerator.print(f"Model saved to {args.output_dir}.")
    if stopped:
        pushed = " It is not pushed." if args.push_to_hub else ""
        trainer.accelerator.print(f"Training was stopped. {stopped}{pushed}")
    end_run(trainer)
    state = trainer.state
    evaluation = next((finite(of) for of in reversed(state.log_history) if "eval_runtime" in of), None)
    return {
        "output_dir": args.output_dir,
        "url": url and str(url),
        "steps": state.global_step,
        "max_steps": state.max_steps,
        "kept_step": best_step(trainer) or state.global_step,
        "stopped": stopped or None,
        "train": {**finite(result.metrics), "step": state.global_step},
        "evaluation": evaluation,
    }
