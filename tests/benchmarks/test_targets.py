"""Generating the organism's targets in length-sorted batches against one prompt at a time: `pytest -m slow -s`."""

import time

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from trl_consistency.data.rendering import render_prompt
from trl_consistency.generation.targets import generate_targets
from trl_consistency.organism import load_organism_datasets


def seconds(work):
    start = time.perf_counter()
    result = work()
    return time.perf_counter() - start, result


@pytest.mark.slow
def test_batches_against_one_prompt_at_a_time(organism_dir):
    model, tokenizer = (loader.from_pretrained(organism_dir) for loader in (AutoModelForCausalLM, AutoTokenizer))
    model.eval()
    distinct = {str(prompt): prompt for prompt in load_organism_datasets()["train"]["clean_prompt"]}
    prompts = [render_prompt(tokenizer, prompt) for prompt in distinct.values()]
    config = GenerationConfig(
        max_new_tokens=16, do_sample=False, pad_token_id=tokenizer.pad_token_id, eos_token_id=tokenizer.eos_token_id
    )

    def run(batch_size):
        return generate_targets(model, prompts, config, batch_size, seed=0, progress=False)

    run(64)  # warm
    one_at_a_time, expected = seconds(lambda: run(1))
    in_batches, got = seconds(lambda: run(64))
    ratio = one_at_a_time / in_batches
    print(
        f"\n{len(prompts)} prompts: one at a time {one_at_a_time:.2f} s, in batches of 64 {in_batches:.2f} s: {ratio:.1f} times"
    )
    assert got == expected
    assert ratio >= 5
