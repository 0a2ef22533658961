import json

import pytest
import yaml

from tests.helpers.evaluate_command import pair, write
from tests.helpers.models import make_model, make_tokenizer
from trl_consistency.evaluation import AnswerOptions, evaluate
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


@pytest.mark.parametrize("max_pairs", [None, 2])
def test_rows_of_the_training_split_are_pointed_out(tmp_path, max_pairs):
    """Rates on them were those of what was learned, and nothing said so."""
    train = [pair(number) for number in range(4)]
    again = [{**train[0]}, {**train[1], "perturbed_prompt": [{"role": "user", "content": "B, surely?"}]}]
    bare = pair(7) | {"perturbed_prompt": train[2]["perturbed_prompt"]}
    write(tmp_path / "train.jsonl", train)
    write(tmp_path / "test.jsonl", [*again, pair(5), bare][: max_pairs or 4])
    write(tmp_path / "other.jsonl", [pair(6)])
    sets = load_sets([str(tmp_path)], None, max_pairs, 0)
    assert {name: of_set.in_train for name, of_set in sets.items()} == {
        "test": (2 + (max_pairs is None), 1),
        "other": (0, 0),
    }
    found = evaluate(make_model(), make_tokenizer(), sets, AnswerOptions(2, progress=False)).warnings()
    (said,) = (text for text in found if "split `train`" in text)
    assert said.startswith(
        f"{'2 of 2' if max_pairs else '3 of 4'} row(s) of test have a clean or a perturbed prompt that is also in the split `train` of the "
        "same data, 1 of them"
    )
    assert load_sets([str(tmp_path)], ["train"], None, 0)["train"].in_train == (0, 0)


@pytest.mark.parametrize("column", ["chat_template_kwargs", "tools"])
def test_rows_of_the_training_split_are_pointed_out_whatever_variables_they_have(tmp_path, column):
    """`targets` writes the recipe's into each row that it makes."""
    given = {"chat_template_kwargs": {"no_think": True}, "tools": [{"type": "function", "function": {"name": "f"}}]}
    train = [pair(number) | {column: given[column]} for number in range(4)]
    write(tmp_path / "train.jsonl", train)
    asked_bare = pair(9) | {"perturbed_prompt": train[0]["clean_prompt"]}  # as a pair of awareness has it
    write(tmp_path / "test.jsonl", [pair(1), pair(2), asked_bare, pair(7)])
    assert load_sets([str(tmp_path)], None, None, 0)["test"].in_train == (3, 2)


@pytest.mark.parametrize("name", ["embedded:organism", "embedded:smollm2"])
def test_splits_of_the_embedded_models_are_held_out(name):
    assert all(of_set.in_train == (0, 0) for of_set in load_sets([name], None, None, 0).values())
