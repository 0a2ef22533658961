"""An adapter that several files of this folder measure."""

import pytest
import torch
from peft import LoraConfig, get_peft_model

from tests.helpers.models import make_model


@pytest.fixture(scope="module")
def adapter_dir(tmp_path_factory):
    torch.manual_seed(1)
    config = LoraConfig(target_modules="all-linear", init_lora_weights=False, r=8, lora_alpha=32)
    directory = tmp_path_factory.mktemp("adapter")
    get_peft_model(make_model(), config).save_pretrained(directory)
    return str(directory)
