"""Which of TRL's inner seams moved: everything that the trainers lean on beyond the documented API."""

import inspect

from transformers import Trainer
from trl import SFTTrainer
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

from trl_consistency import ConsistencyTrainer
from trl_consistency.trainer import upstream


def parameters(function):
    return list(inspect.signature(function).parameters)


def test_names_are_there():
    for name in upstream.__all__:
        assert callable(getattr(upstream, name))


def test_overridden_methods_kept_their_signatures():
    for name in (
        "_prepare_dataset",
        "_set_signature_columns_if_needed",
        "evaluate",
        "compute_loss",
        "prediction_step",
    ):
        assert parameters(getattr(ConsistencyTrainer, name)) == parameters(getattr(SFTTrainer, name)), name
    assert parameters(ConsistencyTrainer.__init__) == [*parameters(SFTTrainer.__init__), "anchor_dataset"]


def test_trainer_keeps_what_the_reduction_leans_on():
    assert "model_accepts_loss_kwargs" in inspect.getsource(Trainer._get_num_items_in_batch)
    assert "metric_key_prefix" in parameters(Trainer.evaluation_loop)


def test_collator_fields_that_the_constructor_copies():
    assert set(DataCollatorForLanguageModeling.__dataclass_fields__) == {
        "pad_token_id",
        "padding_free",
        "return_position_ids",
        "pad_to_multiple_of",
        "return_tensors",
    }
