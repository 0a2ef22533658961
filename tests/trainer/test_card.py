import re
from pathlib import Path

import pytest
import yaml
from datasets import Dataset
from peft import LoraConfig

from tests.conftest import make_config, make_model, make_pairs, make_tokenizer
from trl_consistency import ConsistencyTrainer
from trl_consistency.trainer.card import add_results, describe_data


TOKEN = "hf_" + "x" * 34


def make_trainer(tmp_path, model, lora=True, pairs=None, **options):
    return ConsistencyTrainer(
        model=model,
        args=make_config(tmp_path / "my-model", max_steps=2, **options),
        train_dataset=make_pairs(completion=False) if pairs is None else pairs,
        eval_dataset=make_pairs(3),
        processing_class=make_tokenizer(),
        peft_config=LoraConfig(r=4, lora_alpha=8, target_modules="all-linear") if lora else None,
    )


def read(trainer):
    text = (Path(trainer.args.output_dir) / "README.md").read_text()
    return text, yaml.safe_load(text.split("---")[1])


def test_card_says_what_was_trained(tmp_path):
    model = make_model()
    model.config._name_or_path = "Qwen/Qwen3-4B-Instruct-2507"
    model.config._commit_hash = "abc123"
    pairs = make_pairs(6, completion=False).add_column(
        "perturbation", ["suggested_answer/train-00", "suggested_answer/train-01", "typos/train-00"] * 2
    )
    trainer = make_trainer(
        tmp_path, model, pairs=pairs, anchor_ratio=0.25, temperature=0.7, hub_token=TOKEN, hub_model_id="me/my-model"
    )
    trainer.train()
    trainer.evaluate()
    trainer.save_model()
    text, metadata = read(trainer)
    assert metadata["base_model"] == "Qwen/Qwen3-4B-Instruct-2507"
    assert metadata["library_name"] == "peft"
    assert {"trl", "trl-consistency", "consistency-training", "bct"} <= set(metadata["tags"])
    for fact in (
        "# my-model",
        "[Qwen/Qwen3-4B-Instruct-2507](https://huggingface.co/Qwen/Qwen3-4B-Instruct-2507) (revision `abc123`)",
        "| Objective | bct (weight 1) |",
        "| Reference | the base model, without the adapter |",
        "| Pairs | 6 (6 distinct clean prompts) |",
        "| Perturbations | suggested_answer 4, typos 2 (3 wordings) |",
        "| Anchors | 25% of an epoch, from the pairs' own clean prompts |",
        "(temperature 0.7, top_p 1, top_k 0, at most 8 tokens)",
        "2 steps of 8 rows",
        "| Adapter | LORA, rank 4, alpha 8 |",
        "- `eval_loss` ",
        "@article{chua2024bias,",
        "Entrench Misalignment",
    ):
        assert fact in text, fact


@pytest.mark.parametrize("lora", [True, False])
def test_no_local_path_and_no_token(tmp_path, lora, model_dir):
    trainer = make_trainer(tmp_path, str(model_dir), lora, hub_token=TOKEN)
    trainer.create_model_card(dataset_name=str(tmp_path / "pairs.jsonl"))
    text, metadata = read(trainer)
    assert "base_model" not in metadata
    assert "datasets" not in metadata
    assert TOKEN not in text
    assert not re.search(rf"{tmp_path}|{model_dir}|{Path.home()}|/tmp/", text)
    assert "a local model" in text


@pytest.mark.parametrize("lora", [True, False])
def test_the_snippet_runs(tmp_path, lora, model_dir, capsys):
    trainer = make_trainer(tmp_path, str(model_dir), lora)
    trainer.train()
    trainer.save_model()
    snippet = re.search(r"```python\n(.*?)```", read(trainer)[0], re.DOTALL).group(1)
    exec(snippet.replace("path/to/this/folder", trainer.args.output_dir), {})
    assert capsys.readouterr().out


def test_given_targets_and_full_fine_tuning(tmp_path):
    trainer = make_trainer(tmp_path, make_model(), lora=False, pairs=make_pairs())
    trainer.create_model_card(tags="mine")
    text, metadata = read(trainer)
    assert "| Targets | given with the pairs (`completion` column) |" in text
    assert "| Reference | the model as it was before training |" in text
    assert metadata["library_name"] == "transformers"
    assert "mine" in metadata["tags"]


def test_results_are_put_in_and_replaced(tmp_path):
    trainer = make_trainer(tmp_path, make_model(), pairs=make_pairs())
    trainer.create_model_card()
    before, _ = read(trainer)
    for table in ("| one |", "| two |"):
        add_results(trainer.args.output_dir, table)
    text, _ = read(trainer)
    assert "## Results\n\n| two |\n\n## Training\n" in text
    assert "| one |" not in text
    assert text.replace("## Results\n\n| two |\n\n", "") == before


def test_perturbation_names_cannot_break_the_table():
    facts = describe_data(Dataset.from_dict({"clean_prompt": ["a"], "perturbation": ["x | y\n/1"]}))
    assert facts["Perturbations"] == "x  y 1 (1 wordings)"
