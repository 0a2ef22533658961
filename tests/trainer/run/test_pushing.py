import json
import logging
from pathlib import Path

import pytest
import torch
import yaml
from peft import LoraConfig
from transformers import AutoModelForCausalLM

from tests.helpers.commits import COMMITS
from tests.helpers.loopback_hub import TOKEN
from tests.helpers.models import make_config, make_model, make_pairs, make_tokenizer
from tests.helpers.on_policy import make_on_policy_config
from trl_consistency import ConsistencyError, ConsistencyTrainer, OnPolicyConsistencyTrainer
from trl_consistency.data.folders import TRAINED_PAIRS


BASE = "Qwen/Qwen3-4B-Instruct-2507"


def make_trainer(tmp_path, base=BASE, kind=ConsistencyTrainer, make=make_config, lora=True, model=None, **options):
    if model is None:
        model = make_model()
        model.name_or_path = model.config._name_or_path = base
    return kind(
        model=model,
        args=make(tmp_path / "my-model", max_steps=2, **options),
        train_dataset=make_pairs(completion=kind is ConsistencyTrainer),
        processing_class=make_tokenizer(),
        peft_config=LoraConfig(r=4, target_modules="all-linear") if lora else None,
    )


@pytest.fixture
def loaded_base(cached_base):
    return AutoModelForCausalLM.from_pretrained("me/base")


def files_of(folder):
    return {path.name: path.read_bytes() for path in Path(folder).iterdir() if path.is_file()}


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "make"),
    [(ConsistencyTrainer, make_config), (OnPolicyConsistencyTrainer, make_on_policy_config)],
    ids=["paired", "on-policy"],
)
def test_push_to_hub(loaded_base, hub, tmp_path, kind, make):
    trainer = make_trainer(tmp_path, model=loaded_base, kind=kind, make=make, hub_token=TOKEN)
    trainer.train()
    (tmp_path / "my-model" / "completions").mkdir()
    (tmp_path / "my-model" / "completions" / "rows.parquet").write_text("mine")
    assert trainer.push_to_hub(tags="mine", private=True) == f"{hub.url}/me/my-model"
    saved = files_of(tmp_path / "my-model")
    assert TOKEN.encode() not in saved.pop("training_args.bin")
    saved.pop(TRAINED_PAIRS)  # stays here
    assert trainer.args.hub_token == TOKEN
    assert hub.files("me/my-model") == saved
    assert hub.repos["models/me/my-model"].private
    assert hub.repos["models/me/my-model"].commits == ["End of training"]
    text = saved["README.md"].decode()
    metadata = yaml.safe_load(text.split("---")[1])
    assert metadata["base_model"] == "me/base"
    assert "mine" in metadata["tags"]
    config = json.loads(saved["adapter_config.json"])
    assert (config["base_model_name_or_path"], config["revision"]) == ("me/base", COMMITS["main"])
    for fact in (f"(revision `{COMMITS['main']}`)", 'from_pretrained("me/my-model")', "Entrench Misalignment"):
        assert fact in text, fact


@pytest.mark.parametrize(
    ("kind", "make"),
    [(ConsistencyTrainer, make_config), (OnPolicyConsistencyTrainer, make_on_policy_config)],
    ids=["paired", "on-policy"],
)
def test_tokens_are_in_no_file(model_dir, tmp_path, kind, make):
    options = {"hub_token": TOKEN, "model_init_kwargs": {"token": TOKEN, "attn_implementation": "eager"}}
    trainer = make_trainer(tmp_path, model=str(model_dir), kind=kind, make=make, **options)
    trainer.save_model()
    saved = tmp_path / "my-model" / "training_args.bin"
    assert TOKEN.encode() not in saved.read_bytes()
    kept = torch.load(saved, weights_only=False)
    assert kept.model_init_kwargs["attn_implementation"] == "eager"
    assert TOKEN not in trainer.args.to_json_string()  # which trackers get
    assert (trainer.args.hub_token, trainer.args.model_init_kwargs["token"]) == (TOKEN, TOKEN)


def test_push_while_training(hub, tmp_path):
    """`push_to_hub=True`: each checkpoint, and the end; never the folder as it lies there."""
    trainer = make_trainer(
        tmp_path, push_to_hub=True, hub_model_id="me/other", save_strategy="steps", save_steps=1, hub_revision="v2"
    )
    trainer.train()
    repo = hub.repos["models/me/other"]
    assert repo.commits == ["Training in progress, step 1", "Training in progress, step 2"]
    trainer.save_model()
    assert repo.commits[2:] in ([], ["Model save"])  # the last checkpoint may be the same
    assert {"adapter_model.safetensors", "README.md"} <= set(repo.branches["v2"])
    assert not any(name.endswith((".bin", ".pt", ".pth")) for name in repo.branches["v2"])
    assert not repo.branches["main"]


def test_strategy_end_pushes_no_checkpoint(hub, tmp_path):
    make_trainer(tmp_path, push_to_hub=True, hub_strategy="end", save_strategy="steps", save_steps=1).train()
    assert not hub.repos["models/me/my-model"].commits


def test_failed_push_of_a_checkpoint_does_not_end_training(hub, tmp_path, caplog):
    trainer = make_trainer(tmp_path, push_to_hub=True, save_strategy="steps", save_steps=1)
    hub.fail("commit/main", None, times=1)
    with caplog.at_level(logging.WARNING):
        trainer.train()
    assert trainer.state.global_step == 2
    assert "checkpoint-1 was not published: the connection to the Hub failed" in caplog.text
    assert hub.repos["models/me/my-model"].commits == ["Training in progress, step 2"]


def test_failed_push_at_the_end_has_saved_the_model(hub, tmp_path):
    trainer = make_trainer(tmp_path)
    hub.fail("POST", 500)
    with pytest.raises(ConsistencyError, match=r"my-model cannot be made: the Hub failed \(500\)"):
        trainer.push_to_hub()
    assert {"adapter_model.safetensors", "README.md", "tokenizer.json"} <= set(files_of(tmp_path / "my-model"))
    hub.faults.clear()
    trainer.push_to_hub()
    assert hub.files("me/my-model")


def test_push_in_the_background(hub, tmp_path):
    assert make_trainer(tmp_path).push_to_hub(blocking=False).result(timeout=60) == f"{hub.url}/me/my-model"
    assert hub.files("me/my-model")


def test_local_base_model_is_refused_before_training(hub, tmp_path, model_dir):
    with pytest.raises(ConsistencyError) as error:
        make_trainer(tmp_path, base=str(model_dir), push_to_hub=True, hub_model_id="me/other")
    assert str(error.value) == (
        f"`push_to_hub`: the base model is {model_dir}, which nobody else can load by that name. Train without it, and then "
        f"push the folder: `trl-consistency push {tmp_path / 'my-model'} me/other --base_model user/name`."
    )
    assert not hub.repos


def test_local_base_model_can_be_named(hub, tmp_path, model_dir):
    make_trainer(tmp_path, base=str(model_dir)).push_to_hub(base_model="me/base")
    assert b"[me/base](https://huggingface.co/me/base)" in hub.files("me/my-model")["README.md"]


def test_whole_model_is_pushed_from_a_local_one(hub, tmp_path, model_dir):
    make_trainer(tmp_path, base=str(model_dir), lora=False, push_to_hub=True).push_to_hub()
    assert {"model.safetensors", "config.json"} <= set(hub.files("me/my-model"))


@pytest.mark.parametrize("strategy", ["checkpoint", "all_checkpoints"])
def test_strategies_that_send_pickles(hub, tmp_path, strategy):
    with pytest.raises(
        ConsistencyError, match=f"`hub_strategy={strategy}` would send the optimizer's state, a pickle"
    ):
        make_trainer(tmp_path, push_to_hub=True, hub_strategy=strategy)
    assert not hub.requests


def test_bad_token_is_known_before_training(hub, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "another")
    with pytest.raises(ConsistencyError, match=r"`push_to_hub`: my-model cannot be made: .* token \(401\)"):
        make_trainer(tmp_path, push_to_hub=True)
