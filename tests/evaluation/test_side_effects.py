"""Plain text under a learned prompt, against the whole logits."""

import pytest
import torch
from peft import PromptTuningConfig, get_peft_model

from tests.helpers.models import make_model
from trl_consistency.evaluation.side_effects import nats_of


def test_nats_under_a_learned_prompt():
    model = get_peft_model(make_model(), PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3))
    context, text = [5, 6], [7, 8, 9, 10]
    with torch.no_grad():
        logits = model(torch.tensor([context + text])).logits[0, 3:]  # of the text's places alone
    expected = -sum(logits[place - 1].log_softmax(-1)[token].item() for place, token in enumerate(text, 2))
    assert nats_of(model, [(context, text)]) == pytest.approx([expected])


@torch.no_grad()
def test_nats_of_a_model_in_bfloat16():
    """Its rounded logits were read."""
    model, context, text = make_model().bfloat16().eval(), [5, 6], [7, 8, 9, 10]
    states = model.model(torch.tensor([context + text])).last_hidden_state[0, 1:-1].float()
    log_probs = (states @ model.lm_head.weight.float().T).log_softmax(-1)
    expected = -sum(log_probs[place, token].item() for place, token in enumerate(text))
    assert nats_of(model, [(context, text)]) == pytest.approx([expected], abs=1e-5)
