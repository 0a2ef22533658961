"""How `trl-consistency evaluate` answers and goes on, and what it refuses."""

import datetime
import json
import shutil
import sys
import warnings
from copy import deepcopy
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from peft import LoraConfig, PeftModel
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from tests.helpers.commands import launched
from tests.helpers.evaluate_command import answers_in, pair, save_adapter, user, write
from tests.helpers.models import make_config, make_model, make_pairs
from tests.helpers.naive_answers import naive_answer
from trl_consistency import ConsistencyTrainer
from trl_consistency.generation import targets
from trl_consistency.models.folder_warnings import quantization_in_4_bits, warn_of_templates, warn_of_variables
from trl_consistency.models.loading import check_adapters
from trl_consistency.models.quantization import prevent_repacking
from trl_consistency.scripts import evaluate
from trl_consistency.scripts.evaluate import run
from trl_consistency.trainer.run.interruption import MANIFEST
from trl_consistency.trainer.run.manifest import describe_model


@pytest.mark.long
def test_each_model_answers_for_itself(options, model_dir, adapters, tokenizer, tmp_path, capsys):
    """As one prompt at a time, without padding, on a model that saw no other adapter."""
    options.insert(options.index("--pairs"), adapters[1])
    run([*options, "--json"])
    out, _ = capsys.readouterr()
    results = json.loads(out)  # and nothing else is printed
    assert out.count("\n") == 1
    assert json.loads((tmp_path / "out" / "results.json").read_text()) == results
    assert list(results["models"]) == ["base", "bct", "act"]
    cut, *others = [of["cut_answers"] for of in results["models"].values()]
    assert cut > 0, "the tiny model seldom ends"
    who = "each model" if {cut} == set(others) else "base"
    assert f"{who}: {cut} of 16 answer(s) reached `max_completion_length`" in " ".join(results["findings"])
    said = {}
    for name, path in zip(results["models"], [None, *adapters], strict=True):
        model = AutoModelForCausalLM.from_pretrained(model_dir)
        model = PeftModel.from_pretrained(model, path) if path else model
        lines = [line for line in answers_in(tmp_path / "out") if line["model"] == name]
        assert [line["row"] for line in lines] == list(range(8))
        for line in lines[:2]:
            for side in ("clean", "perturbed"):
                expected = naive_answer(model.eval(), tokenizer, line[f"{side}_prompt"], 6)
                assert line[f"{side}_text"] == expected
        said[name] = [line["perturbed_text"] for line in lines]
        rate = results["models"][name]["rates"]["sycophancy/pairs"]
        assert rate["total"] == 8 >= sum(rate["unread"].values())
        counts = results["models"][name]["outcomes"]["pairs"]["question"]
        graded = {side: [line[f"{side}_outcome"] for line in lines] for side in ("clean", "perturbed")}
        assert counts == {
            side: {outcome: of_side.count(outcome) for outcome in ("right", "suggested", "other", "unread")}
            for side, of_side in graded.items()
        }
    assert len(set(map(tuple, said.values()))) == 3
    assert "differences" not in results["models"]["base"]
    differences = results["models"]["act"]["differences"]["accuracy_gap/pairs"]
    assert set(differences) >= {"value", "low", "high", "total", "sources", "unread", "of_read"}


def test_a_refused_command_leaves_no_folder(options, tmp_path):
    options[options.index("--adapters") + 1] = str(tmp_path / "gone")
    options[options.index("--pairs") + 1] = write(tmp_path / "requests.jsonl", [pair(0, category="harmful")])
    options[-1] = str(tmp_path / "new" / "out")
    with pytest.raises(SystemExit):
        run([*options, "--judge_model", "judge", "--judge_base_url", "http://127.0.0.1:9/v1"])
    assert not (tmp_path / "new").exists()


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


@pytest.mark.parametrize(
    "kind", ["the same", "none", "other", "other in tokenizer_config.json", "other, of a whole model"]
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


@pytest.mark.long
@pytest.mark.parametrize("measured", ["texts", "prompts"])
def test_variables_of_the_rows_are_not_those_of_the_prompts_of_capability(options, model_dir, tmp_path, measured):
    """The pairs gave them to themselves alone, and what was measured beside them was asked without, and without a warning."""
    folder, variables = tmp_path / "mine", {"no_think": True}
    save_adapter(model_dir, folder, 0)
    (folder / "README.md").write_text(f"---\nchat_template_kwargs: {json.dumps(variables)}\n---\n# mine\n")
    options[options.index("--adapters") + 1] = str(folder)
    rows = [pair(number, chat_template_kwargs=variables) for number in range(2)]
    options[options.index("--pairs") + 1] = write(tmp_path / "some.jsonl", rows)
    (tmp_path / "data").mkdir()
    of_prompts, of_texts = {"prompt": "Say hello.", "label": "safe"}, {"text": "The quick brown fox."}
    write(tmp_path / "data" / "some.jsonl", [of_prompts if measured == "prompts" else of_texts])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run([*options, "--capability_data", str(tmp_path / "data")])
    warned = [of for of in caught if "was trained with `chat_template_kwargs`" in str(of.message)]
    assert len(warned) == (measured == "prompts")


def test_answers_that_name_no_possible_answer_are_pointed_out(options, tmp_path, capsys):
    rows = [pair(number, answer="Paris", biased_answer="Lima") for number in range(3)]
    options[options.index("--pairs") + 1] = write(tmp_path / "facts.jsonl", rows)
    run(options)
    warned = capsys.readouterr().err
    assert (
        "warning: each model: 3 of 3 answer(s) to questions name none of the possible answers (facts, perturbed prompts: "
        in warned
    )
    assert warned.count("name none of the possible answers (facts, perturbed prompts: ") == 1


def test_answers_spelt_in_two_ways(options, tmp_path, monkeypatch):
    """A reply could be only one of them, so that the other would never be given."""
    monkeypatch.setattr(evaluate, "load_model", None)
    rows = [pair(0, answer="Paris"), pair(1, answer="Lima", biased_answer="PARIS")]
    options[options.index("--pairs") + 1] = write(tmp_path / "facts.jsonl", rows)
    with pytest.raises(
        SystemExit, match=r"row 1: the answers `PARIS` and `Paris` \(row 0\) differ in case or spaces alone"
    ):
        run(options)


def test_answers_spelt_in_two_ways_in_two_splits(options, tmp_path, monkeypatch):
    monkeypatch.setattr(evaluate, "load_model", None)
    (tmp_path / "facts").mkdir()
    for split, answer in (("train", "PARIS"), ("test", "Paris")):
        write(tmp_path / "facts" / f"{split}.jsonl", [pair(0, answer="Lima"), pair(1, answer=answer)])
    options[options.index("--pairs") + 1] = str(tmp_path / "facts")
    with pytest.raises(
        SystemExit, match=r"facts, split train`.* row 1: the answers `PARIS` and `Paris` \(row 1 of test\)"
    ):
        run(options)


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
def test_weights_in_four_bits(options, model_dir, adapters, tokenizer, tmp_path, capsys):
    """Those that a QLoRA adapter was trained on; its answers are those of the adapter on them."""
    pytest.importorskip("bitsandbytes")
    run([*options, "--load_in_4bit", "--json"])
    assert json.loads(capsys.readouterr().out)["settings"]["load_in_4bit"] is True
    nf4 = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16,
    )
    model = AutoModelForCausalLM.from_pretrained(model_dir, quantization_config=nf4)
    prevent_repacking(model)
    model = PeftModel.from_pretrained(model, adapters[0])
    for line in [line for line in answers_in(tmp_path / "out") if line["model"] == "bct"][:2]:
        assert line["perturbed_text"] == naive_answer(model.eval(), tokenizer, line["perturbed_prompt"], 6)
    in_four_bits = answers_in(tmp_path / "out")
    run([*options, "--json"])
    assert [line["clean_text"] for line in answers_in(tmp_path / "out")] != [
        line["clean_text"] for line in in_four_bits
    ]


@pytest.mark.long
def test_a_killed_run_goes_on(options, tmp_path, monkeypatch, capsys):
    run([*options, "--json"])
    whole, answers = capsys.readouterr().out, answers_in(tmp_path / "out")
    again = [*options[:-1], str(tmp_path / "again"), "--json"]
    generated, generate = [], targets._generate

    def killed(model, prompts, config):
        if len(generated) == 8:  # in the middle of the first adapter
            raise KeyboardInterrupt
        generated.append(prompts)
        return generate(model, prompts, config)

    monkeypatch.setattr(targets, "_generate", killed)
    with pytest.raises(SystemExit, match="130"):
        run(again)
    generated += [None]  # past the point where it is killed
    run(again)
    assert len(generated) - 1 == 2 * 6  # 16 prompts in batches of three
    assert capsys.readouterr().out == whole
    assert answers_in(tmp_path / "again") == answers


@pytest.mark.long
def test_another_adapter_under_the_same_name_is_answered_anew(options, model_dir, tmp_path):
    folder = tmp_path / "mine"
    options = [*options, "--json"]
    options[options.index("--adapters") + 1 : options.index("--pairs")] = [str(folder)]
    said = []
    for scaling in (64, 8):  # which is not in the weights
        save_adapter(model_dir, folder, 0)
        config = folder / "adapter_config.json"
        config.write_text(json.dumps(json.loads(config.read_text()) | {"lora_alpha": scaling}))
        run(options)
        said.append([line["clean_text"] for line in answers_in(tmp_path / "out") if line["model"] == "mine"])
    assert said[0] != said[1]


@pytest.mark.long
def test_an_adapter_of_another_commit_of_its_base_model_is_answered_anew(options, model_dir, tmp_path, monkeypatch):
    """Named alone, it says itself which commit that is; the answers of the first were taken for those of the second."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("transformers.utils.hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    repo = tmp_path / "cache" / "models--nobody--base"
    (repo / "refs").mkdir(parents=True)
    commits = ["a" * 40, "b" * 40]
    (repo / "refs" / "main").write_text(commits[0])
    shutil.copytree(model_dir, repo / "snapshots" / commits[0])
    shutil.copytree(model_dir, repo / "snapshots" / commits[1])
    file = repo / "snapshots" / commits[1] / "model.safetensors"
    weights = load_file(file)
    save_file({name: weight.flip(0) for name, weight in weights.items()}, file, {"format": "pt"})
    folder = Path(save_adapter(model_dir, tmp_path / "mine", 0))
    shutil.copy(model_dir / "tokenizer.json", folder)
    shutil.copy(model_dir / "tokenizer_config.json", folder)
    shutil.copy(model_dir / "chat_template.jinja", folder)
    config = folder / "adapter_config.json"
    options = [*options[: options.index("--adapters")], *options[options.index("--pairs") :], "--json"]
    options[options.index("--model_name_or_path") + 1] = str(folder)
    said = []
    for commit in commits:
        named = {"base_model_name_or_path": "nobody/base", "revision": commit}
        config.write_text(json.dumps(json.loads(config.read_text()) | named))
        run(options)
        said.append([line["clean_text"] for line in answers_in(tmp_path / "out")])
    assert said[0] != said[1]


def test_an_adapter_in_part(options, model_dir, tmp_path):
    """What it lacks would stay as it was initialised, and the answers be those of the base model."""
    folder = tmp_path / "mine"
    save_adapter(model_dir, folder, 0)
    weights = load_file(folder / "adapter_model.safetensors")
    save_file(dict(list(weights.items())[:-1]), folder / "adapter_model.safetensors")
    options[options.index("--adapters") + 1 : options.index("--pairs")] = [str(folder)]
    with pytest.raises(SystemExit, match=r"mine cannot be put on .* missing adapter keys"):
        run(options)


def test_an_adapter_as_the_base_of_others(options, adapters):
    options[options.index("--model_name_or_path") + 1] = adapters[1]
    with pytest.raises(SystemExit, match=r"`model_name_or_path` .* is an adapter"):
        run(options)


def test_whole_models(options, tokenizer, tmp_path, capsys):
    """After full fine-tuning there is no adapter."""
    make_model(seed=7).save_pretrained(tmp_path / "tuned")
    tokenizer.save_pretrained(tmp_path / "tuned")
    options[options.index("--adapters") + 1 : options.index("--pairs")] = [str(tmp_path / "tuned")]
    run([*options, "--json"])
    assert list(json.loads(capsys.readouterr().out)["models"]) == ["base", "tuned"]
    texts = {name: [] for name in ("base", "tuned")}
    for line in answers_in(tmp_path / "out"):
        texts[line["model"]].append(line["clean_text"])
    assert texts["tuned"][0] == naive_answer(make_model(seed=7), tokenizer, pair(0)["clean_prompt"], 6)
    assert texts["base"] != texts["tuned"]


@pytest.mark.long
def test_files_of_a_users_own_beside_those_of_an_earlier_run_stay(model_dir, tmp_path):
    out, pairs = tmp_path / "out", write(tmp_path / "pairs.jsonl", [pair(0), pair(1)])
    options = ["--model_name_or_path", str(model_dir), "--pairs", pairs, "--max_completion_length", "2"]
    run([*options, "--output_dir", str(out), "--html_demo", "true"])
    assert (out / "demo.html").exists()
    run([*options, "--output_dir", str(out)])
    assert not (out / "demo.html").exists(), "it is the earlier run's"
    for name in ("capability.jsonl", "demo.html", "training.png"):
        (out / name).write_text("mine")
        with pytest.raises(SystemExit, match=f"has a {name} that `trl-consistency evaluate` did not write"):
            run([*options, "--output_dir", str(out)])
        assert (out / name).read_text() == "mine"
        (out / name).unlink()
    # An earlier version did not note what it wrote.
    (out / "_answers" / "files.json").unlink()
    (out / "demo.html").write_text("of that version")
    run([*options, "--output_dir", str(out)])
    assert not (out / "demo.html").exists()


@pytest.mark.long
def test_sets(options, model_dir, tmp_path, capsys):
    """Files, and the splits of a folder but `train`; two of one name get longer ones."""
    folder = tmp_path / "folder" / "data"
    folder.mkdir(parents=True)
    card = "---\nconfigs:\n- config_name: default\n  data_files:\n"
    for split in ("train", "test", "test_wordings"):
        write(folder / f"{split}.jsonl", [pair(number, model="mine") for number in range(5)])
        card += f"  - split: {split}\n    path: data/{split}.jsonl\n"
    (tmp_path / "folder" / "README.md").write_text(f"{card}---\n")
    other = write(tmp_path / "test.jsonl", [pair(9)])
    common = ["--model_name_or_path", str(model_dir), "--max_completion_length", "2", "--json"]
    pairs = ["--pairs", str(tmp_path / "folder"), other, "--output_dir", str(tmp_path / "out")]
    run([*common, *pairs, "--max_pairs", "3", "--file_type", "parquet"])
    results = json.loads(capsys.readouterr().out)
    assert {name: of_set["rows"] for name, of_set in results["pairs"].items()} == {
        "folder/test": 3,
        "test_wordings": 3,
        "test.jsonl": 1,
    }
    from datasets import load_dataset

    answers = load_dataset("parquet", data_files=str(tmp_path / "out" / "answers.parquet"), split="train")
    assert answers["model"] == ["base"] * 7  # whatever the pairs call theirs
    run([*common, *pairs[:2], *pairs[3:], "--splits", "train"])
    assert list(json.loads(capsys.readouterr().out)["pairs"]) == ["train"]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (["--pairs", "gone.jsonl"], "There is no file gone.jsonl"),
        (["--splits", "test"], "`splits` is given, but"),
        (
            ["--save_to_adapters", "true"],
            "`save_to_adapters` needs folders of adapters, but me/remote is not a folder",
        ),
        (["--suite_limit", "5"], "`suite_limit` is given, but no `suites`"),
        (["--capability_limit", "5"], "`capability_limit` is given, but no `capability_data`"),
        (["--capability_data", "gone"], "`capability_data`: gone is not a folder"),
        (["--suites", "gsm9k"], "Unknown suite `gsm9k`. Did you mean `gsm8k`"),
        (["--adapters", "gone"], "`adapters`: there is no folder gone"),
        (["--batch_size", "0"], "`batch_size` must be at least 1"),
        (["--temperature", "-1"], "`temperature` must be at least 0"),
        (["--top_p", "0.5"], "at `temperature` 0 nothing is sampled"),
        (["--thinking_markers", "<think>"], "`thinking_markers` must be two different texts"),
        (["--chat_template_kwargs", "yes"], "`chat_template_kwargs` must be a mapping"),
        (["--judge_base_url", "http://localhost/v1"], "name the model in `judge_model`"),
        (["--judge_model", "judge", "--judge_base_url", "localhost"], "`judge_base_url` must be an address"),
        (["--output_dir", "/proc/nothing"], "cannot be written"),
    ],
)
def test_faulty_options(options, changed, message, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(evaluate, "load_model", None)  # before any weights load
    if changed[0] == "--pairs":
        options[options.index("--pairs") + 1] = changed[1]
    elif changed[0] == "--adapters":
        options[options.index("--adapters") + 1] = changed[1]
    elif changed[0] == "--save_to_adapters":
        options[options.index("--adapters") + 1] = "me/remote"
        options = [*options, *changed]
    else:
        options = [*options, *changed]
    with pytest.raises(SystemExit) as end:
        run(options)
    assert message in str(end.value)
    assert "\n" not in str(end.value)


@pytest.mark.parametrize("spelling", ["{}/", "{}/../{name}", "link"])
def test_a_model_that_is_named_twice(options, adapters, model_dir, tmp_path, monkeypatch, spelling):
    monkeypatch.setattr(evaluate, "load_model", None)
    (tmp_path / "link").symlink_to(adapters[0])
    again = str(tmp_path / "link") if spelling == "link" else spelling.format(adapters[0], name=Path(adapters[0]).name)
    with pytest.raises(SystemExit, match=r"`adapters` names .* twice"):
        run([*options[: options.index("--pairs")], again, *options[options.index("--pairs") :]])
    with pytest.raises(SystemExit, match="`adapters` names the base model itself"):
        run([f"{model_dir}/" if option == adapters[0] else option for option in options])


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (pair(1, answer=3), "row 1: `answer` must be text, not 3"),
        (pair(1, answer=3, biased_answer=4), "row 1: `answer` must be text, not 3"),
        (pair(1, answer=" "), "row 1: `answer` is blank, or has spaces around it: ' '"),
        (pair(1, biased_answer="B\n"), "row 1: `biased_answer` is blank, or has spaces around it: 'B\\n'"),
        (pair(1, note="\ud83d"), "row 1: `note` is not valid Unicode: it holds half a surrogate pair"),
        (pair(1, answer="\ud83d"), "row 1: `answer` is not valid Unicode: it holds half a surrogate pair"),
        (pair(1, source_id=[3]), "row 1: `source_id` must be text or a number, not [3]"),
        (pair(1, category="Harmful "), "row 1: `category` must be `harmful`, not 'Harmful '"),
        ({**pair(1), "clean_prompt": ""}, "row 1: `clean_prompt`"),
        ({"clean_prompt": user("A?")}, "row 1: `perturbed_prompt` is missing"),
        (
            {**pair(1), "clean_prompt": user("A?<|im_end|>")},
            "row 1: message 0 (user) holds `<|im_end|>`",
        ),
    ],
)
def test_faulty_rows(options, row, message, tmp_path, monkeypatch):
    monkeypatch.setattr(evaluate, "load_model", None)
    options[options.index("--pairs") + 1] = write(tmp_path / "faulty.jsonl", [pair(0), row])
    with pytest.raises(SystemExit, match="cannot be used") as end:
        run(options)
    assert message in str(end.value)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"clean_ids": [1, 2], "perturbed_ids": [1, 3]}, "has the column `clean_ids`, a name that preparation uses"),
        ({"images": []}, "has the column `images`: pairs are text-only for now"),
        ({"tool": []}, "has the column `tool`, which would be ignored"),
    ],
)
def test_columns_that_would_be_misread(options, columns, message, tmp_path, monkeypatch):
    monkeypatch.setattr(evaluate, "load_model", None)
    options[options.index("--pairs") + 1] = write(tmp_path / "faulty.jsonl", [pair(0, **columns)])
    with pytest.raises(SystemExit, match=message):
        run(options)


def test_rows_that_were_drawn_keep_their_numbers(options, tmp_path):
    run([*options, "--max_pairs", "3"])
    rows = [json.loads(line) for line in (tmp_path / "pairs.jsonl").read_text().splitlines()]
    for line in answers_in(tmp_path / "out"):
        assert rows[line["row"]]["perturbed_prompt"] == line["perturbed_prompt"]
    assert {line["row"] for line in answers_in(tmp_path / "out")} != {0, 1, 2}


def test_dates_ride_along(options, tmp_path):
    path = tmp_path / "dated.parquet"
    pq.write_table(pa.Table.from_pylist([pair(0, made=datetime.date(2026, 1, 2))]), path)
    options[options.index("--pairs") + 1] = str(path)
    run(options)
    assert answers_in(tmp_path / "out")[0]["made"] == "2026-01-02"


def test_columns_of_the_users_own_by_the_names_of_ours_ride_along(options, tmp_path):
    options[options.index("--pairs") + 1] = write(tmp_path / "own.jsonl", [pair(0, model="mine", row=7, own_row=8)])
    run(options)
    for line in answers_in(tmp_path / "out"):
        assert line["model"] in ("base", "bct", "act")
        assert {name: line[name] for name in ("row", "own_model", "own_own_row", "own_row")} == {
            "row": 0, "own_model": "mine", "own_own_row": 7, "own_row": 8,
        }  # fmt: skip


@pytest.mark.slow
def test_two_processes_give_what_one_gives(options, tmp_path, capsys):
    run([*options, "--json"])
    alone = capsys.readouterr().out
    command = [sys.executable, "-m", "trl_consistency.cli", "evaluate", "--num_processes", "2"]
    config = ["--accelerate_config", "multi_cpu"]
    two = launched([*command, *config, *options[:-1], str(tmp_path / "two"), "--json"])
    assert two.stdout == alone
    assert answers_in(tmp_path / "two") == answers_in(tmp_path / "out")


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
