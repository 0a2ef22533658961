"""The pairs of `embedded:smollm2`: held-out questions, wordings and categories are held out."""

from collections import Counter

import pytest
from trl import DatasetMixtureConfig

from trl_consistency.scripts.loading import ConsistencyScriptArguments, load_pairs
from trl_consistency.scripts.pair_sets import load_sets
from trl_consistency.smollm2.rows import load_smollm2_datasets


@pytest.fixture(scope="module")
def splits():
    return load_smollm2_datasets()


def test_splits_share_no_question_and_test_shares_no_wording(splits):
    sources = Counter(source for split in splits.values() for source in set(split["source_id"]))
    assert set(sources.values()) == {1}
    wordings = {name: {name.rpartition("-")[0] for name in split["perturbation"]} for name, split in splits.items()}
    assert wordings["train"] == wordings["validation"] == {"stated_answer/train"}
    assert wordings["test"] == wordings["test_categories"] == {"stated_answer/held-out"}
    assert not set(splits["test_categories"]["category"]) & {
        category for name in ("train", "validation", "test") for category in splits[name]["category"]
    }


def test_each_training_question_comes_in_two_wordings(splits):
    rows = splits["train"]
    assert len(rows) == 2 * len(set(rows["source_id"]))
    assert len(set(zip(rows["source_id"], rows["perturbation"], strict=True))) == len(rows)


def test_cues_suggest_wrong_answers(splits):
    for row in splits["test"]:
        assert row["biased_answer"] not in (row["answer"], *row["aliases"])
        assert row["biased_answer"] in row["perturbed_prompt"][-1]["content"]
        assert row["clean_prompt"][-1]["content"] in row["perturbed_prompt"][-1]["content"]


def test_is_the_data_set_of_a_recipe_and_of_evaluate(splits):
    loaded = load_pairs(ConsistencyScriptArguments(dataset_name="embedded:smollm2"), DatasetMixtureConfig())
    assert loaded["train"][0] == splits["train"][0]
    sets = load_sets(["embedded:smollm2"], ["test", "test_categories"], 20, seed=0)
    assert [len(of_set.rows) for of_set in sets.values()] == [20, 20]
