import json
import os
import shutil
import time

import pytest
import torch
from huggingface_hub import constants
from peft import LoraConfig, PeftModel, PromptTuningConfig, get_peft_model
from peft.helpers import rescale_adapter_scale
from safetensors.torch import load_file, save_file
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor
from transformers import AutoModelForCausalLM

from tests.helpers.models import make_model, make_tokenizer
from trl_consistency import ConsistencyError
from trl_consistency.data import digests
from trl_consistency.data.digests import file_digest
from trl_consistency.generation import model_identity
from trl_consistency.generation.answer_cache import LIBRARIES, TargetCache, fingerprint, sums_of_samples
from trl_consistency.generation.model_identity import answer_cache, identity_digest, model_tensors, quick_identity


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "HF_HOME", str(tmp_path / "home"))
    make_model().save_pretrained(tmp_path / "model")
    make_tokenizer().save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def identity(folder, name="model", **options):
    model = AutoModelForCausalLM.from_pretrained(folder, **options)
    return model_identity.model_identity(model, name, as_loaded=True)


def edit_json(name, **changes):
    def edit(folder):
        path = folder / name
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return edit


def edit_template(folder):
    path = folder / "chat_template.jinja"
    path.write_text(path.read_text() + " ")


def edit_weight(folder):
    """One value in the middle of a tensor, and the file keeps its size and its times of change."""
    path = folder / "model.safetensors"
    before = path.stat()
    tensors = load_file(path)
    name = max(tensors, key=lambda name: tensors[name].numel())
    tensors[name].view(-1)[tensors[name].numel() // 2 + 1] += 0.5
    save_file(tensors, path, metadata={"format": "pt"})
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size


EDITS = {
    "config": (edit_json("config.json", rope_parameters={"rope_type": "default", "rope_theta": 77.0}), "config"),
    "generation config": (edit_json("generation_config.json", repetition_penalty=1.3), "generation_config"),
    "template": (edit_template, "chat_template"),
    "tokenizer": (edit_json("tokenizer_config.json", add_bos_token=True), "tokenizer"),
    "weight": (edit_weight, "weights"),
    "code": (lambda folder: (folder / "modeling.py").write_text("x = 1"), "code"),
    "page": (lambda folder: (folder / "README.md").write_text("new"), None),
    "results": (lambda folder: (folder / "consistency_results.json").write_text("{}"), None),
}


@pytest.mark.parametrize(("edit", "key"), EDITS.values(), ids=EDITS)
@pytest.mark.parametrize("large", [2**20, 1], ids=["small files", "large files"])
def test_whatever_can_change_the_output_is_of_the_identity(folder, edit, key, large, monkeypatch):
    monkeypatch.setattr(digests, "LARGE", large)
    monkeypatch.setattr(digests, "RACE_NS", 0)
    time.sleep(0.01)
    before = identity(folder)
    assert identity(folder) == before
    edit(folder)
    after = identity(folder)
    assert [name for name in {*before, *after} if before.get(name) != after.get(name)] == ([key] if key else [])
    assert (identity_digest(after) == identity_digest(before)) == (key is None)


def test_precision_and_adapters_are_of_the_identity(folder, tmp_path):
    assert identity(folder, dtype=torch.bfloat16)["dtype"] == "bfloat16" != identity(folder)["dtype"]
    torch.manual_seed(0)
    model = get_peft_model(make_model(), LoraConfig(target_modules="all-linear", init_lora_weights=False))
    model.save_pretrained(tmp_path / "adapter")

    def adapted():
        base = AutoModelForCausalLM.from_pretrained(folder)
        return model_identity.model_identity(
            PeftModel.from_pretrained(base, tmp_path / "adapter"), "adapter", as_loaded=True
        )

    before = adapted()
    assert before == adapted()
    assert {key: value for key, value in before.items() if key not in ("adapter", "name")} == {
        key: value for key, value in identity(folder).items() if key != "name"
    }
    edit_json("adapter_config.json", lora_alpha=800)(tmp_path / "adapter")
    scaled = adapted()
    assert scaled["adapter"] != before["adapter"]
    path = tmp_path / "adapter" / "adapter_model.safetensors"
    tensors = load_file(path)
    next(iter(tensors.values())).view(-1)[-1] += 1
    save_file(tensors, path, metadata={"format": "pt"})
    assert adapted()["adapter"] != scaled["adapter"]


def test_a_model_in_memory_is_read_whole(folder):
    def in_memory(model):
        return model_identity.model_identity(model, "model", as_loaded=False)

    model = AutoModelForCausalLM.from_pretrained(folder)
    before = in_memory(model)
    assert in_memory(AutoModelForCausalLM.from_pretrained(folder)) == before
    weight = model.model.layers[0].mlp.down_proj.weight
    with torch.no_grad():
        weight.view(-1)[weight.numel() // 2 + 1] += 1e-3
    assert in_memory(model)["weights"] != before["weights"]
    model.config.rms_norm_eps = 0.1
    assert in_memory(model)["config"] != before["config"]


def test_the_commit_of_a_model_in_the_cache_of_the_hub(folder, tmp_path, monkeypatch):
    """Its files are named by their content; another commit with the same content is the same model."""
    repo = tmp_path / "cache" / "models--me--base"
    (repo / "blobs").mkdir(parents=True)
    (repo / "refs").mkdir()

    def commit(digit):
        revision = digit * 40
        (repo / "refs" / "main").write_text(revision)
        (repo / "snapshots" / revision).mkdir(parents=True)
        for number, file in enumerate(sorted(folder.iterdir())):
            blob = repo / "blobs" / f"{number:064x}"
            shutil.copy(file, blob)
            (repo / "snapshots" / revision / file.name).symlink_to(blob)
        return repo / "snapshots" / revision

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(digests, "_read", lambda path: pytest.fail(f"{path} was read"))
    commit("a")
    before = identity("me/base", cache_dir=tmp_path / "cache")
    snapshot = commit("b")
    assert identity("me/base", cache_dir=tmp_path / "cache") == before
    weights = snapshot / "model.safetensors"
    weights.unlink()
    shutil.copy(folder / "model.safetensors", repo / "blobs" / ("f" * 64))
    weights.symlink_to(repo / "blobs" / ("f" * 64))
    assert identity("me/base", cache_dir=tmp_path / "cache")["weights"] != before["weights"]


def test_a_large_file_is_read_once(folder, monkeypatch):
    monkeypatch.setattr(digests, "LARGE", 1)
    monkeypatch.setattr(digests, "RACE_NS", 0)
    path = folder / "model.safetensors"
    time.sleep(0.01)
    digest = file_digest(path)
    (folder / "link").symlink_to(path)
    read = []
    original = digests._read
    monkeypatch.setattr(digests, "_read", lambda path: read.append(path) or original(path))
    assert file_digest(path) == file_digest(folder / "link") == digest
    assert read == []
    memory = folder.parent / "home" / "trl_consistency" / digests.DIGESTS
    for damage in ("", "[1]", '{"a": 3}', memory.read_text()[:-20]):
        memory.write_text(damage)
        assert file_digest(path) == digest
    assert len(read) == 4
    copied = folder / "copy"
    shutil.copy2(path, copied)  # with the same size and time, in the place of the other
    copied.replace(path)
    assert file_digest(path) == digest
    assert len(read) == 5


def test_a_file_that_just_changed_is_not_remembered(folder, monkeypatch):
    """It may change again within a tick of the file system's clock."""
    monkeypatch.setattr(digests, "LARGE", 1)
    path = folder / "model.safetensors"
    before = file_digest(path)
    edit_weight(folder)
    assert file_digest(path) != before
    assert not (folder.parent / "home" / "trl_consistency" / digests.DIGESTS).exists()


def test_a_cache_folder_that_cannot_be_written_to(folder, monkeypatch):
    monkeypatch.setattr(digests, "LARGE", 1)
    monkeypatch.setattr(constants, "HF_HOME", "/dev/null/home")
    assert file_digest(folder / "model.safetensors") == file_digest(folder / "model.safetensors")


def test_answers_of_another_model_are_not_used(folder, tmp_path):
    model = AutoModelForCausalLM.from_pretrained(folder)
    first = answer_cache(tmp_path / "answers", "model", model)
    assert answer_cache(tmp_path / "answers", "model", model).directory == first.directory
    edit_json("generation_config.json", eos_token_id=9)(folder)
    assert answer_cache(tmp_path / "answers", "model", model).directory != first.directory
    now = identity(folder)
    with pytest.raises(ConsistencyError, match=r"another model's \(generation_config '\w+', now '\w+'\)"):
        TargetCache(first.directory, now)
    described = json.loads((first.directory / "model.json").read_text())
    assert described[LIBRARIES].keys() == {"torch", "transformers", "peft"}
    TargetCache(first.directory, described | {LIBRARIES: {"torch": "1.0"}})


def test_answers_of_adapters_that_earlier_versions_cached_are_not_used(folder, tmp_path):
    """Their base could have parts of another adapter. A model without one was always answered as it was loaded."""
    base = AutoModelForCausalLM.from_pretrained(folder)
    earlier = identity_digest(model_identity.model_identity(base, "model", as_loaded=True))
    assert answer_cache(tmp_path / "answers", "model", base).directory.name == earlier
    model = get_peft_model(base, LoraConfig(target_modules="all-linear"))
    earlier = identity_digest(model_identity.model_identity(model, "adapter", as_loaded=True))
    assert answer_cache(tmp_path / "answers", "adapter", model).directory.name != earlier


def test_earlier_answers_of_a_learned_prompt_are_not_used(folder, tmp_path):
    """They depended on the padding of their batch."""
    model = get_peft_model(make_model(), PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2))
    identity = model_identity.model_identity(model, "adapter", as_loaded=True) | {"base": "as loaded"}
    assert answer_cache(tmp_path / "answers", "adapter", model).directory.name != identity_digest(identity)


def test_another_scale_of_an_adapter_is_another_model():
    """Its answers were those that were kept of the unscaled one."""
    model = get_peft_model(make_model(), LoraConfig(target_modules=["q_proj"]))
    before = quick_identity(model)
    with rescale_adapter_scale(model, 0.5):
        assert quick_identity(model) != before
    assert quick_identity(model) == before


def test_quantized_weights_that_are_several_tensors():
    """As torchao's. They have no memory of their own, so that one of each shape was looked at, or none could be."""
    model = nn.ModuleList(nn.Linear(2, 2, bias=False) for _ in range(2))
    scales = [torch.ones(2, 2), torch.ones(2, 2)]
    for layer, scale in zip(model, scales, strict=True):
        layer.weight = nn.Parameter(TwoTensor(torch.ones(2, 2), scale))
    assert len(list(model_tensors(model))) == 2
    before = fingerprint(model_tensors(model)), sums_of_samples(model)
    scales[1][0, 0] = 2
    after = fingerprint(model_tensors(model)), sums_of_samples(model)
    assert before[0] != after[0]
    assert before[1] != after[1]
