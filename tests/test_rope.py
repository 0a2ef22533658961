"""Positions that the longest row decides; `evaluation/answers/test_generate.py` has what is said of them."""

import pytest

from tests.helpers.models import make_model, with_rope
from trl_consistency import ConsistencyError
from trl_consistency.rope import check_engine_positions


@pytest.mark.parametrize(
    ("kind", "context", "lengths", "said"),
    [
        ("longrope", 100, (5, 60), None),  # no room for a long text
        ("longrope", None, (5, 101), None),  # a server that does not tell
        ("longrope", 101, (5, 6), "2 of 2 prompts of a batch, such as one with 5 tokens"),
        ("longrope", 512, (300, 100, 200), "1 of 3 prompts of a batch, such as one with 100 tokens"),
        ("longrope", 512, (300, 101), None),
        ("dynamic", 512, (5, 92), None),
        ("dynamic", 512, (5, 93), "1 of 2 prompts of a batch, such as one with 93 tokens"),
        ("default", 512, (5, 300), None),
    ],
)
def test_positions_that_an_engine_gets_wrong(kind, context, lengths, said):
    config = make_model("llama").config if kind == "default" else with_rope(kind, 100).config
    prompts = [[7] * length for length in lengths]
    if said is None:
        check_engine_positions(config, context, prompts, 8)
        return
    with pytest.raises(ConsistencyError, match=rf"\({kind}\) has others beyond 100 tokens.*{said}"):
        check_engine_positions(config, context, prompts, 8)
