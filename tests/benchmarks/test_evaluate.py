"""`trl-consistency evaluate` on 1,000 pairs of the organism, and batches against one prompt at a time: `pytest -m slow -s`."""

import json
import sys
import time

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.helpers.commands import launched
from trl_consistency.evaluation import generate_answers
from trl_consistency.organism import load_organism_datasets


def seconds(work):
    start = time.perf_counter()
    result = work()
    return time.perf_counter() - start, result


@pytest.mark.slow
def test_a_thousand_pairs(organism_dir, tmp_path):
    splits = load_organism_datasets()
    rows = [*splits["test"], *splits["test_wordings"]][:1000]
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = [
        "--model_name_or_path",
        "embedded:organism",
        "--pairs",
        str(pairs),
        "--output_dir",
        str(tmp_path / "out"),
    ]
    took, process = seconds(
        lambda: launched([sys.executable, "-m", "trl_consistency.cli", "evaluate", *options, "--json"])
    )
    results = json.loads(process.stdout)
    print(f"\n{results['pairs']['pairs']['rows']} pairs in {took:.1f} s, start included")
    assert results["pairs"]["pairs"]["rows"] == 1000
    assert took < 30


@pytest.mark.slow
def test_batches_against_one_prompt_at_a_time(organism_dir):
    model, tokenizer = (loader.from_pretrained(organism_dir) for loader in (AutoModelForCausalLM, AutoTokenizer))
    prompts = load_organism_datasets()["test"]["perturbed_prompt"][:512]

    def run(batch_size):
        return generate_answers(model.eval(), tokenizer, prompts, batch_size=batch_size, progress=False)

    run(64)  # warm
    one_at_a_time, expected = seconds(lambda: run(1))
    in_batches, got = seconds(lambda: run(64))
    ratio = one_at_a_time / in_batches
    print(
        f"\n{len(prompts)} prompts: one at a time {one_at_a_time:.2f} s, in batches of 64 {in_batches:.2f} s: {ratio:.1f} times"
    )
    assert got == expected
    assert ratio >= 5
