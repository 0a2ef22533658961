from collections import Counter

import pytest
from datasets import Dataset

from tests.helpers.models import make_pairs
from trl_consistency import InvalidPairsError
from trl_consistency.data.anchors import AnchorMixture, anchor_rows, choose_anchors, mix_anchors, own_anchors
from trl_consistency.data.pairs import check_anchors
from trl_consistency.data.prepare import prepare_pairs


def prompts(rows, **columns):
    return Dataset.from_dict({"prompt": [f"Anchor {row}" for row in range(rows)], **columns})


@pytest.fixture
def pairs(tokenizer):
    return prepare_pairs(make_pairs(9), tokenizer, "train")


@pytest.fixture
def anchors(tokenizer):
    return prepare_pairs(anchor_rows(prompts(4)), tokenizer, "anchors")


def is_anchor(rows):
    return [row["clean_ids"] == row["perturbed_ids"] for row in rows]


@pytest.mark.parametrize(
    ("ratio", "num_pairs", "wanted"), [(0.25, 9, 3), (0.25, 100, 33), (0.5, 7, 7), (0.9, 2, 18), (0.0, 5, 0)]
)
def test_number_of_anchors(anchors, ratio, num_pairs, wanted):
    chosen = choose_anchors(anchors, num_pairs, ratio, seed=0)
    assert len(chosen) == wanted
    counts = Counter(map(tuple, chosen["clean_ids"]))
    assert max(counts.values(), default=0) - min(counts.values(), default=0) <= 1
    if wanted >= 4:
        assert len(counts) == 4, "each anchor serves before any serves twice"


def test_choice_depends_on_the_seed(anchors):
    choices = {tuple(map(tuple, choose_anchors(anchors, 6, 0.25, seed)["clean_ids"])) for seed in range(10)}
    assert len(choices) > 1
    assert choose_anchors(anchors, 6, 0.25, 0)["clean_ids"][:] == choose_anchors(anchors, 6, 0.25, 0)["clean_ids"][:]


def test_no_pair_is_displaced_and_anchors_are_spread(pairs, anchors):
    mixed = mix_anchors(pairs, choose_anchors(anchors, 9, 0.25, seed=0))
    kept = [row["perturbed_ids"] for row, anchor in zip(mixed, is_anchor(mixed), strict=True) if not anchor]
    assert kept == pairs["perturbed_ids"][:]
    assert is_anchor(mixed).count(True) == 3
    assert all(is_anchor(mixed.select(range(start, start + 4))).count(True) == 1 for start in (0, 4, 8))
    assert [row["completion_ids"] is None for row in mixed] == is_anchor(mixed), (
        "pairs have a completion, anchors not yet"
    )


def test_own_anchors_are_the_distinct_clean_prompts(pairs):
    doubled = pairs.select([*range(9), *range(9)])
    anchors = own_anchors(doubled)
    assert anchors["clean_ids"][:] == anchors["perturbed_ids"][:] == pairs["clean_ids"][:]
    assert anchors["completion_ids"][:] == pairs["completion_ids"][:]


def test_own_anchors_compare_what_their_pairs_do(pairs):
    spans = [[number, number + 3, 5] for number in range(len(pairs))]
    anchors = own_anchors(pairs.add_column("content_span", spans))
    assert anchors["content_span"][:] == [[number, number, 5] for number in range(len(pairs))]


def test_stream(tokenizer):
    stream = prepare_pairs(make_pairs(200).to_iterable_dataset(), tokenizer, "train")
    given = prepare_pairs(anchor_rows(prompts(3, completion=["a", "b", "c"])), tokenizer, "anchors")
    for anchors in (own_anchors(stream), given):
        rows = list(AnchorMixture(stream, anchors, ratio=0.25, seed=0, with_completions=True)(0))
        kept = [row["perturbed_ids"] for row, anchor in zip(rows, is_anchor(rows), strict=True) if not anchor]
        assert kept == [row["perturbed_ids"] for row in stream]
        assert 0.15 < is_anchor(rows).count(True) / len(rows) < 0.35


def test_stream_needs_completions(tokenizer, anchors):
    stream = prepare_pairs(make_pairs(3).to_iterable_dataset(), tokenizer, "train")
    with pytest.raises(InvalidPairsError, match="`anchor_dataset` needs a `completion` column"):
        AnchorMixture(stream, anchors, ratio=0.5, seed=0, with_completions=True)(0)


FAULTY = {
    "no prompt": (make_pairs(2), "`anchor_dataset` has no column `prompt`; its columns are `clean_prompt`"),
    "blank": (Dataset.from_dict({"prompt": ["a", " "]}), r"1 of 2 row\(s\)(.|\n)*row 1: `prompt` is empty or blank"),
    "empty": (prompts(0), "`anchor_dataset` is empty"),
    "completion on some rows": (prompts(2, completion=["a", None]), "row 1: `completion` is missing here"),
    "images": (prompts(2, image=[None, None]), "text-only"),
}


@pytest.mark.parametrize(("dataset", "reason"), FAULTY.values(), ids=FAULTY)
def test_faulty_anchors(dataset, reason):
    with pytest.raises(InvalidPairsError, match=reason):
        check_anchors(dataset)


def test_good_anchors():
    check_anchors(prompts(2))
    check_anchors(Dataset.from_dict({"prompt": [[{"role": "user", "content": "Hi"}]], "completion": ["Ho"]}))
