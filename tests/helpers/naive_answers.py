import pytest
import torch

from tests.helpers.models import make_model
from trl_consistency.data.rendering import render_prompt


@pytest.fixture(scope="module")
def model():
    return make_model()


def naive_answer(model, tokenizer, prompt, max_new_tokens):
    """One prompt, no cache, no padding."""
    ids = render_prompt(tokenizer, prompt)
    start = len(ids)
    for _ in range(max_new_tokens):
        with torch.no_grad():
            ids.append(model(torch.tensor([ids])).logits[0, -1].argmax().item())
        if ids[-1] == model.generation_config.eos_token_id:
            break
    return tokenizer.decode(ids[start:], skip_special_tokens=True).strip()
