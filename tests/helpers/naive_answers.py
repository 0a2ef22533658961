"""Answers a prompt token by token, with nothing of the package."""

import torch

from trl_consistency.data.rendering import render_prompt


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
