"""What `trl-consistency evaluate` says of models that are not what they were trained as."""

import json
import shutil
import warnings
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from peft import LoraConfig
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from tests.helpers.evaluate_command import pair, save_adapter, write
from tests.helpers.models import make_config, make_model, make_pairs
from trl_consistency import ConsistencyTrainer
from trl_consistency.models.folder_warnings import (
    quantization_in_4_bits,
    warn_of_folders,
    warn_of_templates,
    warn_of_variables,
)
from trl_consistency.models.loading import check_adapters
from trl_consistency.scripts import evaluate
from trl_consistency.scripts.evaluate import run
from trl_consistency.trainer.run.interruption import MANIFEST
from trl_consistency.trainer.run.manifest import describe_model


def test_an_adapter_of_another_base_model_is_warned_about(options, model_dir, adapters, tmp_path):
    """One of the same shape would work, and be compared with the wrong model."""
    folder = tmp_path / "mine"
    save_adapter(model_dir, folder, 0)
    config = json.loads((folder / "adapter_config.json").read_text())
    for base, warned in (("nobody/other", True), (f"{model_dir}/", False)):
        (folder / "adapter_config.json").write_text(json.dumps(config | {"base_model_name_or_path": base}))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            check_adapters([str(folder)], str(model_dir))
        assert any("was trained on nobody/other" in str(warning.message) for warning in caught) == warned


@pytest.mark.long
@pytest.mark.parametrize("way", ["beside its base", "alone"])
@pytest.mark.parametrize("is_changed", [True, False])
def test_a_base_model_that_was_changed_since_the_training_is_warned_about(
    options, model_dir, tmp_path, is_changed, way
):
    """Another training had written to its folder, and nothing said that the adapter was measured on another model than its own."""
    base, mine = tmp_path / "models" / "sft", tmp_path / "mine"
    shutil.copytree(model_dir, base)
    adapter = LoraConfig(r=2, target_modules=["q_proj"])
    trainer = ConsistencyTrainer(str(base), args=make_config(mine), train_dataset=make_pairs(4), peft_config=adapter)
    trainer.save_model()
    if is_changed:
        make_model(seed=5).save_pretrained(base)
    options[options.index("--model_name_or_path") + 1] = str(base if way == "beside its base" else mine)
    at = options.index("--adapters")
    options[at : at + 2] = ["--adapters", str(mine)] if way == "beside its base" else []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run(options)
    warned = [str(of.message) for of in caught if "has other weights now" in str(of.message)]
    assert len(warned) == is_changed


@pytest.mark.parametrize("changed", ["weights", "rms_norm_eps", None])
def test_an_adapter_of_a_base_model_that_was_changed_in_memory_is_warned_about(
    model_dir, tokenizer, tmp_path, changed
):
    """Its card said so, and it was measured on the model's files without a word."""
    base, mine = str(model_dir), tmp_path / "mine"
    model = AutoModelForCausalLM.from_pretrained(base, **{changed: 0.5} if changed == "rms_norm_eps" else {})
    if changed == "weights":
        model.get_input_embeddings().weight.data[-1] += 1
    adapter = LoraConfig(r=2, target_modules=["q_proj"])
    options = {"train_dataset": make_pairs(4), "processing_class": tokenizer, "peft_config": adapter}
    ConsistencyTrainer(model, make_config(mine), **options).save_model()
    copy = str(shutil.copytree(model_dir, tmp_path / "copy"))
    for measured, adapters, is_told in ((base, [str(mine)], True), (str(mine), [], True), (copy, [str(mine)], False)):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            warn_of_folders(measured, adapters, tokenizer, [{}])
        said = f"{mine} was trained on a base model that had been changed after it was loaded ({changed}), and is measured on {base}"
        assert [said in str(of.message) for of in caught] == [True] * (is_told and changed is not None)


@pytest.mark.parametrize(
    "kind",
    [
        "the same",
        "none",
        "other",
        "other in tokenizer_config.json",
        "other in a list in the config",
        "other, of a whole model",
    ],
)
def test_an_adapter_with_another_chat_template_is_warned_about(model_dir, tokenizer, tmp_path, kind):
    """It was trained with `chat_template_path`, and reads the prompts as the base model's template writes them."""
    folder = tmp_path / "mine"
    if "whole" in kind:
        shutil.copytree(model_dir, folder)
    else:
        save_adapter(model_dir, folder, 0)
    if kind != "none":
        own = deepcopy(tokenizer)
        own.chat_template += " " if "other" in kind else ""
        own.save_pretrained(folder, save_jinja_files="config" not in kind)
        assert (folder / "chat_template.jinja").exists() == ("config" not in kind)
    if "list" in kind:
        file = folder / "tokenizer_config.json"
        config = json.loads(file.read_text())
        file.write_text(
            json.dumps(config | {"chat_template": [{"name": "default", "template": config["chat_template"]}]})
        )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_of_templates([str(folder), "me/on-the-hub"], tokenizer)
    assert any(f"{folder} has a chat template of its own" in str(of.message) for of in caught) == ("other" in kind)
    assert len(caught) <= 1


@pytest.mark.parametrize("kind", ["more tokens", "other numbers", "damaged"])
def test_an_adapter_with_another_tokenizer_is_warned_about(model_dir, tokenizer, tmp_path, kind):
    """Its page has that tokenizer beside figures that were measured with the base model's."""
    folder = tmp_path / "mine"
    save_adapter(model_dir, folder, 0)
    own = deepcopy(tokenizer)
    own.add_tokens(["<more>"])
    own.save_pretrained(folder)
    file = folder / "tokenizer.json"
    said = json.loads(file.read_text())
    if kind == "other numbers":
        vocabulary = said["model"]["vocab"]
        vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
        file.write_text(json.dumps(said))
    if kind == "damaged":
        file.write_text("{")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_of_templates([str(folder)], tokenizer)
    messages = [str(of.message) for of in caught]
    assert any("has a tokenizer of its own" in of for of in messages) == (kind == "other numbers"), messages


def test_the_warning_about_templates_comes_with_the_command(options, model_dir, tmp_path):
    folder = tmp_path / "mine"
    save_adapter(model_dir, folder, 0)
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    options[options.index("--adapters") + 1] = str(folder)
    with pytest.warns(UserWarning, match="has a chat template of its own"):
        run(options)


TRAINED = {"enable_thinking": False}


@pytest.mark.parametrize(
    ("answering", "is_warned"),
    [([TRAINED], False), ([{**TRAINED, "place": "here"}], False), ([TRAINED, {}], True), ([], False)],
)
def test_a_model_that_was_trained_with_other_variables_is_warned_about(tmp_path, answering, is_warned):
    """Its figures are of other prompts than those of its training."""
    (tmp_path / "README.md").write_text(f"---\nchat_template_kwargs: {json.dumps(TRAINED)}\n---\n# mine\n")
    (tmp_path / "none").mkdir()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_of_variables([str(tmp_path), str(tmp_path / "none"), "me/on-the-hub"], answering)
    said = f"""{tmp_path} was trained with `chat_template_kwargs` {json.dumps(TRAINED)}, and answers with {{}}"""
    assert [said in str(of.message) for of in caught] == [True] * is_warned


@pytest.mark.long
@pytest.mark.parametrize("given", ["nothing", "by the option", "by the rows"])
def test_the_warning_about_variables_comes_with_the_command(options, model_dir, tmp_path, given):
    folder, variables = tmp_path / "mine", {"no_think": True}
    save_adapter(model_dir, folder, 0)
    (folder / "README.md").write_text(f"---\nchat_template_kwargs: {json.dumps(variables)}\n---\n# mine\n")
    options[options.index("--adapters") + 1] = str(folder)
    own = {"chat_template_kwargs": variables} if given == "by the rows" else {}
    options[options.index("--pairs") + 1] = write(tmp_path / "some.jsonl", [pair(n, **own) for n in range(2)])
    options += ["--chat_template_kwargs", json.dumps(variables)] if given == "by the option" else []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run(options)
    warned = [of for of in caught if "was trained with `chat_template_kwargs`" in str(of.message)]
    assert len(warned) == (given == "nothing")


@pytest.mark.long
@pytest.mark.parametrize("kind", ["an adapter", "a whole model at a branch"])
def test_what_pages_on_the_hub_say_is_warned_about(options, model_dir, tokenizer, tmp_path, monkeypatch, kind):
    """Only what a local folder says was: from the Hub, the same adapter was measured without a word."""
    for module in ("huggingface_hub.constants", "transformers.utils.hub.constants"):
        monkeypatch.setattr(f"{module}.HF_HUB_CACHE", str(tmp_path / "cache"))
    repo, commit = tmp_path / "cache" / "models--me--mine", "a" * 40
    folder = repo / "snapshots" / commit
    (repo / "refs").mkdir(parents=True)
    (repo / "refs" / ("main" if kind == "an adapter" else "v2")).write_text(commit)
    expected = {"was trained with `chat_template_kwargs`"}
    if kind == "an adapter":
        save_adapter(model_dir, folder, 0)
        own = deepcopy(tokenizer)
        own.chat_template += " "
        own.save_pretrained(folder)
        options[options.index("--adapters") + 1] = "me/mine"
        expected |= {"was trained on weights in 4 bits", "has a chat template of its own"}
    else:
        (repo / "refs" / "main").write_text("b" * 40)  # which has no card
        for of_branch in (folder, folder.parent / ("b" * 40)):
            shutil.copytree(model_dir, of_branch)
        options[options.index("--model_name_or_path") + 1] = "me/mine"
        at = options.index("--adapters")
        options[at : at + 2] = ["--model_revision", "v2"]
    (folder / "README.md").write_text("---\nload_in_4bit: true\nchat_template_kwargs: {no_think: true}\n---\n# mine\n")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run(options)
    said = [str(of.message) for of in caught if "me/mine" in str(of.message)]
    assert {text for text in expected if any(text in of for of in said)} == expected, said


FP4 = {"bnb_4bit_quant_type": "fp4", "bnb_4bit_use_double_quant": False, "bnb_4bit_compute_dtype": "float32"}


NF4 = {"bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True, "bnb_4bit_compute_dtype": "bfloat16"}


@pytest.mark.long
@pytest.mark.parametrize("told_by", ["card", "checkpoint"])
def test_weights_in_the_four_bits_of_the_training(options, model_dir, tmp_path, monkeypatch, capsys, told_by):
    """An adapter of FP4 was measured on NF4 without a word."""
    pytest.importorskip("bitsandbytes")
    trainer = ConsistencyTrainer(
        str(model_dir),
        args=make_config(tmp_path / "trained", max_steps=1, save_strategy="steps", save_steps=1),
        train_dataset=make_pairs(4),
        peft_config=LoraConfig(r=2, target_modules=["q_proj"]),
        quantization_config=BitsAndBytesConfig(load_in_4bit=True, **FP4),
    )
    trainer.train()
    trainer.save_model()
    folder = tmp_path / "trained" / ("" if told_by == "card" else "checkpoint-1")
    if told_by == "checkpoint":
        (folder / "README.md").unlink(missing_ok=True)
    options[options.index("--adapters") + 1] = str(folder)
    loaded = []
    load = evaluate.load_model
    monkeypatch.setattr(evaluate, "load_model", lambda *given: loaded.append(load(*given)) or loaded[-1])
    capsys.readouterr()  # what the training printed
    run([*options, "--load_in_4bit", "--json"])
    found = json.loads(capsys.readouterr().out)["settings"]
    assert {name: found[name] for name in FP4} == FP4
    (model, _) = loaded[0]
    states = [of.quant_state for of in model.parameters() if getattr(of, "quant_state", None) is not None]
    assert {(of.quant_type, of.nested, of.dtype) for of in states} == {("fp4", False, torch.float32)}


def test_adapters_of_different_four_bits(options, model_dir, tmp_path, monkeypatch):
    monkeypatch.setattr(evaluate, "load_model", None)
    folders = [str(tmp_path / name) for name in ("one", "two", "three")]
    for folder, quantization in zip(folders, (FP4, NF4, {"bnb_4bit_quant_type": "../x"}), strict=True):
        save_adapter(model_dir, Path(folder), 0)
        (Path(folder) / "README.md").write_text(
            f"---\n{json.dumps({'load_in_4bit': True, **quantization})}\n---\n# mine\n"
        )
    options[options.index("--adapters") + 1 : options.index("--adapters") + 2] = folders
    with pytest.raises(SystemExit, match=r"one was trained on .*fp4.*, and .*two on .*nf4.*one by one"):
        run([*options, "--load_in_4bit"])
    assert quantization_in_4_bits(folders[2:]).bnb_4bit_quant_type == "nf4"


@pytest.mark.long
@pytest.mark.parametrize("kind", ["the same", "other", "other, which ends the base model's answers, too", "damaged"])
def test_an_adapter_with_another_end_is_warned_about(options, model_dir, tokenizer, tmp_path, kind):
    """It was trained with `eos_token`; as the base model's answers do not end with that, its go on behind it."""
    folder, other = tmp_path / "mine", "a"
    save_adapter(model_dir, folder, 0)
    own = deepcopy(tokenizer)
    own.eos_token = other if "other" in kind else tokenizer.eos_token
    own.save_pretrained(folder)
    if kind == "damaged":
        (folder / "tokenizer_config.json").write_text("[")
    if "too" in kind:
        ends = [tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids(other)]
        base = shutil.copytree(model_dir, tmp_path / "base")
        (base / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
        options[options.index("--model_name_or_path") + 1] = str(base)
    options[options.index("--adapters") + 1] = str(folder)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run(options)
    warned = [of for of in caught if f"{folder} ends its answers with {other}" in str(of.message)]
    assert len(warned) == (kind == "other")


@pytest.mark.long
@pytest.mark.parametrize("place", ["card", "checkpoint"])
@pytest.mark.parametrize("given", ["nothing", "--load_in_4bit"])
def test_an_adapter_of_weights_in_four_bits_is_warned_about(options, model_dir, tmp_path, place, given):
    """It is another model on others, and nothing said so."""
    pytest.importorskip("bitsandbytes")
    folder = save_adapter(model_dir, tmp_path / "mine", 0)
    if place == "card":
        Path(folder, "README.md").write_text("---\nload_in_4bit: true\n---\n# mine\n")
    else:
        model = make_model()
        model.config.quantization_config = BitsAndBytesConfig(load_in_4bit=True)
        manifest = {"run": describe_model(model, generates=False)}
        Path(folder, "trainer_state.json").write_text(json.dumps({"stateful_callbacks": {MANIFEST: manifest}}))
    options[options.index("--adapters") + 1] = folder
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run([*options, *([given] if given != "nothing" else [])])
    warned = [of for of in caught if f"{folder} was trained on weights in 4 bits" in str(of.message)]
    assert len(warned) == (given == "nothing")


@pytest.mark.long
@pytest.mark.parametrize("told_by", ["card", "checkpoint", "another card", "nothing"])
def test_an_adapter_of_whole_weights_is_warned_about_on_few_bits(options, model_dir, tmp_path, told_by):
    """An adapter beside it may be of weights in four bits; it was measured on them without a word."""
    pytest.importorskip("bitsandbytes")
    folder = save_adapter(model_dir, tmp_path / "mine", 0)
    if "card" in told_by:
        tags = ["trl-consistency"] if told_by == "card" else ["trl"]
        Path(folder, "README.md").write_text(f"---\ntags: {json.dumps(tags)}\n---\n# mine\n")
    elif told_by == "checkpoint":
        manifest = {"run": describe_model(make_model(), generates=False)}
        Path(folder, "trainer_state.json").write_text(json.dumps({"stateful_callbacks": {MANIFEST: manifest}}))
    options[options.index("--adapters") + 1] = folder
    for given in ([], ["--load_in_4bit"]):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            run([*options, *given])
        warned = [of for of in caught if f"{folder} was trained on weights that are not quantized" in str(of.message)]
        assert len(warned) == (bool(given) and told_by in ("card", "checkpoint"))
