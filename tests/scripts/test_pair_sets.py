import json

import yaml

from trl_consistency.scripts.pair_sets import load_sets


def test_classes_that_a_folders_card_declares(tmp_path):
    classes = {"class_label": {"names": {"0": "no", "1": "yes"}}}
    features = [{"name": name, "dtype": "string"} for name in ("clean_prompt", "perturbed_prompt", "biased_answer")]
    header = yaml.safe_dump({"dataset_info": {"features": [*features, {"name": "answer", "dtype": classes}]}})
    (tmp_path / "README.md").write_text(f"---\n{header}---\n")
    row = {"clean_prompt": "Is it?", "perturbed_prompt": "I say no. Is it?", "biased_answer": "no"}
    (tmp_path / "test.jsonl").write_text(json.dumps(row | {"answer": 1}))
    (tmp_path / "train.jsonl").write_text(json.dumps(row | {"answer": 0, "biased_answer": "yes"}))
    (of_set,) = load_sets([str(tmp_path)], None, None, 0).values()
    assert of_set.rows == [row | {"answer": "yes"}]
