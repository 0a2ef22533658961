"""Whether a model in memory is the one in its files, whose names may be others there."""

import pytest
import torch

from tests.helpers.architectures import CONFIGS, HYBRIDS, make
from trl_consistency.models.base_files import other_weight


# A part of each that has another name in the files
PARTS = {
    "gpt_neox": "lm_head.",
    "qwen3_moe": "experts.gate_up_proj",
    "nemotron_h": "mixer.A_log",
    "gemma3_with_vision": "q_proj",
    "llama": "q_proj",
}


def saved(kind, folder):
    make(kind).save_pretrained(folder)
    return type(make(kind)).from_pretrained(folder, dtype=torch.float32)


@pytest.mark.parametrize("kind", PARTS)
def test_a_changed_weight_is_found(tmp_path, kind):
    """Experts and heads that were changed were taken for those of the files: they were looked for under the names in memory."""
    model = saved(kind, tmp_path)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if PARTS[kind] in name:
                weight.mul_(1.5)
    assert other_weight(model, str(tmp_path))


@pytest.mark.parametrize("kind", [*CONFIGS, *HYBRIDS])
def test_the_model_of_the_files_is_known(tmp_path, kind):
    assert other_weight(saved(kind, tmp_path), str(tmp_path)) is None
    assert other_weight(saved(kind, tmp_path).bfloat16(), str(tmp_path)) is None
