"""Every kind of adapter that PEFT has: switched off, it leaves the base model as it was, or it is known not to."""

from dataclasses import fields

import peft
import pytest
import torch
from peft import LoraConfig, get_peft_model
from peft.mapping import PEFT_TYPE_TO_CONFIG_MAPPING

from tests.helpers.models import make_model
from trl_consistency import ConsistencyError
from trl_consistency.models.adapter_checks import check_new_adapter
from trl_consistency.passes.reference import adapter_changes_base


GIVEN = {"target_modules": ["q_proj", "v_proj"], "num_virtual_tokens": 2, "task_type": "CAUSAL_LM"}

# What else kinds need, some of them to fit the tiny model
NEEDED = {
    "ADALORA": {"total_step": 10},
    "C3A": {"block_size": 8},
    "CPT": {"cpt_token_ids": [3, 4], "cpt_mask": [1, 1], "cpt_tokens_type_mask": [1, 1]},
    "FOURIERFT": {"n_frequency": 8},
    "IA3": {"feedforward_modules": []},
    "MISS": {"r": 4},
    "PSOFT": {"r": 4},
    "ROAD": {"group_size": 8},
    "SHIRA": {"r": 4},
    "TRAINABLE_TOKENS": {"token_indices": [3, 4], "target_modules": ["embed_tokens"]},
    "VBLORA": {"vector_length": 8, "num_vectors": 16},
    "WAVEFT": {"n_frequency": 8},
}
# What PEFT asks for when the adapter is made
PACKAGES = {"ADAMSS": "sklearn"}
FORMS_OF_LORA = [
    *({name: True} for name in ("use_dora", "use_rslora", "use_qalora", "lora_bias")),
    *({f"{name.lower()}_config": f"{name}Config"} for name in ("Arrow", "Kasa", "Monteclora", "Velora")),
    *({"bias": name} for name in ("all", "lora_only")),
    *({"init_lora_weights": name} for name in (False, "gaussian", "orthogonal", "mica", "olora", "pissa")),
    *({"init_lora_weights": name} for name in ("pissa_niter_4", "corda", "eva", "lora_ga")),
    {"layer_replication": [[0, 2], [0, 2]]},
    {"trainable_token_indices": [3, 4]},
    {"modules_to_save": ["lm_head"]},
]


def check_off(config):
    """Asserts what the package says of this kind of adapter. Returns whether it is refused."""
    try:
        check_new_adapter(config)
    except ConsistencyError:
        return True
    base, ids = make_model().eval(), torch.tensor([[5, 6, 7, 8]])
    mask = torch.ones_like(ids)
    with torch.no_grad():
        expected = base(input_ids=ids, attention_mask=mask).logits
        model = get_peft_model(base, config).eval()
        with model.disable_adapter():
            found = model(input_ids=ids, attention_mask=mask).logits
    assert torch.equal(found, expected) or adapter_changes_base(config)
    return False


@pytest.mark.parametrize("kind", [str(getattr(kind, "value", kind)) for kind in PEFT_TYPE_TO_CONFIG_MAPPING])
def test_each_kind(kind):
    if kind in PACKAGES:
        pytest.importorskip(PACKAGES[kind])
    make_config = PEFT_TYPE_TO_CONFIG_MAPPING[kind]
    known = {of.name for of in fields(make_config)}
    options = {name: value for name, value in {**GIVEN, **NEEDED.get(kind, {})}.items() if name in known}
    needs_more = (
        "ADALORA",
        "ADAPTION_PROMPT",
        "CARTRIDGE",
        "CPT",
        "MULTITASK_PROMPT_TUNING",
        "POLY",
        "SHADOW",
        "XLORA",
    )
    assert check_off(make_config(**options)) == (kind in needs_more)


@pytest.mark.parametrize("options", FORMS_OF_LORA, ids=lambda of: "_".join(map(str, *of.items())))
def test_each_form_of_lora(options):
    """KaSA takes singular values off the base model for good: the reference was another model than the one before training."""
    made = {name: getattr(peft, of)() if name.endswith("_config") else of for name, of in options.items()}
    refused = ("arrow_config", "kasa_config", "monteclora_config", "layer_replication")
    refused_inits = ("pissa_niter_4", "corda", "eva", "lora_ga")
    config = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM", **made)
    [(name, value)] = options.items()
    assert check_off(config) == (name in refused or value in refused_inits)
