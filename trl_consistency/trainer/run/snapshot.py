"""What a trainer was made with: its data are rendered and its policy frozen by it, so that nothing of it may be replaced."""

from collections.abc import Iterable
from copy import deepcopy
from typing import Any

from accelerate.utils import is_peft_model

from ...data.collators import PairCollator
from ...data.eval_sets import named
from ...data.rendering import get_tokenizer
from ...errors import ConsistencyError
from ...models.adapter_checks import check_adapter_is_there
from ...models.sharding import is_sharded
from .checks import check_metrics, check_reference_options
from .manifest import GENERATION, OPTIMISATION, OPTIONS, describe_template
from .overrides import warn_of_overrides


# Options by which the trainer's constructor built data, batches, objectives, generation and precision, or that it checked
# with others or refuses; those of the optimizer are read when training begins.
BUILT_IN = sorted(
    {*OPTIONS, *GENERATION} - {*OPTIMISATION}
    | {"per_device_train_batch_size", "gradient_accumulation_steps", "steps_per_generation", "bf16", "fp16"}
    | {"max_length", "chat_template_kwargs", "chat_template_path", "eos_token", "pad_to_multiple_of", "padding_free"}
    | {"log_consistency_metrics", "log_layer_distances", "dose_check", "share_prefix", "torch_compile"}
    | {"auto_find_batch_size", "average_tokens_across_devices", "bf16_full_eval", "fp16_full_eval", "use_liger_kernel"}
    | {
        "assistant_only_loss",
        "completion_only_loss",
        "eval_packing",
        "packing_strategy",
        "truncation_mode",
        "pad_token",
    }
    | {"dataset_text_field", "dataset_kwargs", "length_column_name", "model_init_kwargs"}
    | {"accelerator_config", "full_determinism"}
)

# Those that may change between two trainings, but not within one
SETTLED_AT_BEGINNING = (*OPTIMISATION, "num_train_epochs", "max_steps")


class Snapshot:
    """What a trainer had when its constructor had prepared it, to compare with what it has when it trains or evaluates."""

    def __init__(self, trainer: Any):
        self.trainer = trainer
        self._options = _values(trainer.args, BUILT_IN)
        self._at_beginning: dict[str, Any] = {}
        self._data = _data_of(trainer)
        self._tokenizer = _tokenizer_of(trainer)
        self._model = trainer.accelerator.unwrap_model(trainer.model)
        self._loss = trainer.compute_loss_func  # with some versions of transformers, TRL sets one
        self._sampling = _sampling_of(trainer)
        self._adapter = [] if is_sharded(trainer.accelerator) else _adapter_of(self._model)

    def check(self) -> None:
        """
        Raises [`ConsistencyError`] for what was assigned after the trainer's constructor had checked and prepared it. Warns of methods
        that were.
        """
        trainer = self.trainer
        warn_of_overrides(trainer)
        self._check_data()
        if _tokenizer_of(trainer) != self._tokenizer:
            raise ConsistencyError(
                "`processing_class`, its chat template or its `eos_token` was changed after the trainer was made, which rendered its data "
                "with another. Change it first, and make a new trainer with it."
            )
        if trainer.accelerator.unwrap_model(trainer.model) is not self._model:
            raise ConsistencyError(
                "`model` was assigned after the trainer was made, which prepared another one. Make a new trainer with it."
            )
        self.check_adapter()
        if getattr(trainer, "ref_model", None) is not getattr(trainer._reference, "given", None):
            raise ConsistencyError(
                "`ref_model` was assigned after the trainer was made, which prepared another reference. Make a new trainer with it."
            )
        if trainer.compute_loss_func is not self._loss:
            raise ConsistencyError(
                "`compute_loss_func` was assigned after the trainer was made: the objective is that of its config. Leave it out."
            )
        if trainer.model_init is not None:
            raise ConsistencyError(
                "`model_init` was assigned after the trainer was made: each training would make another model than the one that the trainer "
                "prepared, and compare it with that one. Make a new trainer for each trial (`hyperparameter_search` is not available)."
            )
        if not trainer.args.rolls_out and type(trainer.data_collator) is not PairCollator:
            raise ConsistencyError(
                "`data_collator` was assigned after the trainer was made: pairs need the trainer's own `PairCollator`. Leave it out."
            )
        check_metrics(trainer.args, trainer.compute_metrics)
        if trainer._reference is not None:
            check_reference_options(trainer)
            trainer._reference.check_parameters()
        self._check_options()

    def begin(self) -> None:
        """Notes the options that are settled when a training begins."""
        self._at_beginning = _values(self.trainer.args, SETTLED_AT_BEGINNING)

    def check_in_training(self) -> None:
        """
        Raises [`ConsistencyError`] for options and data that a callback has changed since the training began. Some would be ignored.
        Others would hold for the later steps alone, and the model card would name them for all steps.
        """
        self._check_data()
        self._check_options()
        for name, was in self._at_beginning.items():
            if (now := getattr(self.trainer.args, name)) != was:
                raise ConsistencyError(
                    f"`args.{name}` was {was!r} when the training began, and is {now!r}: it is settled from then on. A callback may not "
                    "change it. For a learning rate that changes, set `lr_scheduler_type`, or give a schedule in `optimizers`."
                )

    def _check_data(self) -> None:
        for name, dataset in _data_of(self.trainer).items():
            if dataset is not self._data.get(name):
                raise ConsistencyError(
                    f"`{name}` was assigned after the trainer was made. Make a new trainer with it."
                )

    def _check_options(self) -> None:
        for name, was in self._options.items():
            if (now := getattr(self.trainer.args, name)) != was:
                raise ConsistencyError(
                    f"`args.{name}` was {was!r} when the trainer was made, and is {now!r}: it is settled from then on. Make a new trainer."
                )
        for name, now in _sampling_of(self.trainer).items():
            if now != (was := self._sampling.get(name)):
                raise ConsistencyError(
                    f"`generation_config.{name}` was {was!r} when the trainer was made, and is {now!r}: rollouts are sampled as the options "
                    "of the config say. Set it there, and make a new trainer."
                )

    def check_adapter(self) -> None:
        """Raises [`ConsistencyError`] if the adapter that the trainer was made with is no longer in the model."""
        model = self.trainer.model
        check_adapter_is_there(model)
        present = {id(parameter) for parameter in model.parameters()}
        if is_peft_model(model) and any(id(parameter) not in present for parameter in self._adapter):
            raise ConsistencyError(
                "The adapter's weights were replaced after the trainer was made: PEFT changes the base model itself, and a second adapter "
                "of the same name on it (`get_peft_model`) takes the first one's place. Load the base model again for each adapter."
            )


def _values(args: Any, names: Iterable[str]) -> dict[str, Any]:
    return {name: deepcopy(getattr(args, name)) for name in names if hasattr(args, name)}


def _adapter_of(model: Any) -> list[Any]:
    """Returns the trained weights of a model with an adapter; none of another model."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad] if is_peft_model(model) else []


def _tokenizer_of(trainer: Any) -> tuple[Any, ...]:
    """Returns what rows and answers are rendered by."""
    used = trainer.processing_class
    return used, describe_template(used), get_tokenizer(used).eos_token


def _sampling_of(trainer: Any) -> dict[str, Any]:
    """Returns what decides how rollouts are sampled. Their longest length is set before each."""
    config = getattr(trainer, "generation_config", None)
    return {} if config is None else {name: v for name, v in config.to_dict().items() if name != "max_new_tokens"}


def _data_of(trainer: Any) -> dict[str, Any]:
    """Returns a trainer's data sets by the names of its arguments."""
    return {"train_dataset": trainer.train_dataset, **named(trainer.eval_dataset)}
