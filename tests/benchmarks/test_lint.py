"""1,000 pairs of some 300 tokens, linted: `pytest -m slow -s`."""

import time

import pytest

from tests.helpers.models import make_tokenizer
from trl_consistency.data.lint import lint_pairs


def user(text):
    return [{"role": "user", "content": text}]


@pytest.mark.slow
def test_a_thousand_pairs():
    tokenizer = make_tokenizer()
    questions = [f"The quick brown fox {index} jumps over the lazy dog. " * 16 for index in range(1000)]
    pairs = [
        {"clean_prompt": user(question), "perturbed_prompt": user(f"I think the answer is Lyon. {question}")}
        for question in questions
    ]
    start = time.perf_counter()
    report = lint_pairs(pairs, tokenizer)
    seconds = time.perf_counter() - start
    print(f"\n1000 pairs that share {report.alignment.shared_tokens.median:g} tokens (median) in {seconds:.1f} s")
    assert report.alignment.shared_tokens.median > 250
    assert not report.has_findings()
    assert seconds < 10
