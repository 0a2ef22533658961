import json

from tests.reproduce.validation_categories import CATEGORIES, WORDINGS, write_validation_categories
from trl_consistency.evaluation import PairSet
from trl_consistency.smollm2.rows import load_smollm2_datasets


def test_nothing_of_the_validation_is_trained_on_or_tested(tmp_path):
    folder = write_validation_categories(tmp_path / "data")
    splits = {
        file.name.split("-")[0]: [json.loads(line) for line in file.read_text().splitlines()]
        for file in (folder / "data").iterdir()
    }
    shipped = load_smollm2_datasets()
    validation = splits["validation_categories"]
    assert sum(map(len, splits.values())) == len(shipped["train"])
    assert {row["category"] for row in validation} == set(CATEGORIES)
    assert {row["category"] for row in splits["train"]}.isdisjoint(CATEGORIES)
    for others in (splits["train"], shipped["test_categories"]):
        assert {row["source_id"] for row in validation}.isdisjoint(row["source_id"] for row in others)

    PairSet.of(validation)
    used = {row["perturbation"] for row in validation}
    assert len(used) == len(WORDINGS)
    said = {row["perturbed_prompt"][0]["content"] for pairs in shipped.values() for row in pairs}
    for wording in WORDINGS:
        before, after = wording.replace("{question}", "").strip().split("{answer}")
        assert not [text for text in said if before in text and text.strip().endswith(after)], wording
