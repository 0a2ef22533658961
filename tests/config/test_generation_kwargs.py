import pytest

from tests.helpers.models import make_config, make_model, make_pairs, make_tokenizer
from tests.helpers.on_policy import make_on_policy_config
from trl_consistency import ConsistencyError, ConsistencyTrainer
from trl_consistency.config.generation_kwargs import REFUSED


@pytest.mark.parametrize("make", [make_config, make_on_policy_config])
@pytest.mark.parametrize("key", REFUSED)
def test_refused_by_name(tmp_path, make, key):
    with pytest.raises(ConsistencyError, match=f"`generation_kwargs` sets `{key}`, .*\\.$"):
        make(tmp_path, generation_kwargs={key: 1})


@pytest.mark.parametrize("make", [make_config, make_on_policy_config])
def test_value_that_transformers_refuses(tmp_path, make):
    with pytest.raises(ConsistencyError, match=r"`generation_kwargs` .*watermarking_config.* cannot be used: "):
        make(tmp_path, generation_kwargs={"watermarking_config": {"colour": "green"}})


def test_one_end_of_turn(tmp_path):
    """A token may stand alone, as in transformers."""
    config = make_config(tmp_path, method="bct", generation_kwargs={"eos_token_id": 2, "min_new_tokens": 1})
    pairs = make_pairs(2, completion=False)
    trainer = ConsistencyTrainer(make_model(), config, train_dataset=pairs, processing_class=make_tokenizer())
    trainer.generate_targets()
    assert len(trainer.dataset_with_targets()["completion_ids"]) == 2
