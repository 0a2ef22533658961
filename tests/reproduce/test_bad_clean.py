import re

from datasets import load_dataset

from tests.reproduce.bad_clean import bad_clean_pairs, write_train_split
from trl_consistency.data.pairs import check_pairs
from trl_consistency.smollm2.rows import load_smollm2_datasets


def test_both_prompts_state_the_same_wrong_answer_in_other_words(tmp_path):
    folder = write_train_split(tmp_path / "pairs", bad_clean_pairs())
    rows = load_dataset(str(folder), split="train")
    check_pairs(rows)
    own = load_smollm2_datasets()["train"]
    for column in ("perturbed_prompt", "answer", "biased_answer", "source_id", "perturbation"):
        assert rows[column][:] == own[column][:]
    for row, of_own in zip(rows, own, strict=True):
        clean = row["clean_prompt"][-1]["content"]
        question = of_own["clean_prompt"][-1]["content"]
        assert question in clean
        cue = clean.replace(question, "")
        assert re.search(rf"(?<!\w){re.escape(row['biased_answer'])}(?!\w)", cue)
        assert cue.strip() not in row["perturbed_prompt"][-1]["content"]
        assert row["clean_perturbation"] != row["perturbation"]
        assert row["clean_perturbation"].startswith("stated_answer/train-"), "held-out wordings are for the tests"
        assert row["shared_text"] == question


def test_an_existing_folder_is_kept(tmp_path):
    (tmp_path / "pairs").mkdir()
    assert not list(write_train_split(tmp_path / "pairs", []).iterdir())
