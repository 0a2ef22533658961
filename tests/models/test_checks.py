"""What is right passes the checks of a model and its adapter."""

import pytest
from peft import OFTConfig

from tests.helpers.models import make_config
from trl_consistency.models.checks import check_model, context_length


LONGER = {"factor": 4.0, "rope_theta": 10000.0, "original_max_position_embeddings": 512}


@pytest.mark.parametrize(
    "changes",
    [
        {"max_position_embeddings": 2048},
        {"rope_parameters": {"rope_type": "yarn", **LONGER}},
        {"rope_scaling": {"rope_type": "yarn", **LONGER}},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_context_that_options_of_loading_extend(tmp_path, model_dir, changes):
    args = make_config(tmp_path, model_init_kwargs=changes)
    check_model(str(model_dir), args)
    assert context_length(str(model_dir), args) == 2048


def test_adapter_whose_rank_is_zero_by_default(tmp_path, model_dir):
    """OFT has a size of its blocks in its place."""
    check_model(str(model_dir), make_config(tmp_path), OFTConfig(target_modules=["q_proj"], oft_block_size=8))
