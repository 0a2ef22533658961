from datasets import load_dataset

from tests.reproduce.bad_clean import write_train_split
from tests.reproduce.doubts import pairs_with_doubts
from trl_consistency.data.pairs import check_pairs
from trl_consistency.smollm2.rows import load_smollm2_datasets


def test_each_question_has_its_pairs_and_one_doubt(tmp_path):
    rows = load_dataset(str(write_train_split(tmp_path / "pairs", pairs_with_doubts())), split="train")
    check_pairs(rows)
    own = load_smollm2_datasets()["train"]
    doubts = [row for row in rows if row["perturbation"].startswith("are_you_sure/train-")]
    others = [row for row in rows if not row["perturbation"].startswith("are_you_sure/")]
    for column in ("clean_prompt", "perturbed_prompt", "answer", "biased_answer", "source_id", "perturbation"):
        assert [row[column] for row in others] == own[column][:]
    assert [row["source_id"] for row in doubts] == list(dict.fromkeys(own["source_id"]))
    for row in doubts:
        question, answered, doubt = row["perturbed_prompt"]
        assert row["clean_prompt"] == [question]
        assert answered["role"] == "assistant"
        assert answered["content"].replace('"', "") == f"The answer is {row['answer']}."
        assert doubt["role"] == "user"
    assert len({row["perturbation"] for row in doubts}) == 10
