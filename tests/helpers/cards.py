"""Small paired trainers, and their cards: text and metadata."""

from pathlib import Path

import yaml
from peft import LoraConfig

from tests.helpers.models import make_config, make_pairs, make_tokenizer
from trl_consistency import ConsistencyTrainer


def make_trainer(tmp_path, model, lora=True, pairs=None, anchors=None, eval_dataset=None, **options):
    return ConsistencyTrainer(
        model=model,
        args=make_config(tmp_path / "my-model", **{"max_steps": 2, **options}),
        train_dataset=make_pairs(completion=False) if pairs is None else pairs,
        eval_dataset=make_pairs(3) if eval_dataset is None else eval_dataset,
        anchor_dataset=anchors,
        processing_class=make_tokenizer(),
        peft_config=LoraConfig(r=4, lora_alpha=8, target_modules="all-linear") if lora is True else lora or None,
    )


def read(trainer):
    text = (Path(trainer.args.output_dir) / "README.md").read_text()
    return text, yaml.safe_load(text.split("---")[1])


def card(trainer):
    trainer.create_model_card()
    return read(trainer)
