"""How `trl-consistency evaluate` answers and goes on."""

import datetime
import json
import shutil
import sys
import warnings
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from tests.helpers.commands import launched
from tests.helpers.evaluate_command import answers_in, pair, save_adapter, write
from tests.helpers.models import make_model
from tests.helpers.naive_answers import naive_answer
from trl_consistency.generation import targets
from trl_consistency.models.quantization import prevent_repacking
from trl_consistency.scripts.evaluate import run


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
        graders = results["models"][name]["graders"]["pairs"]["question"]
        assert graders == {side: Counter(line[f"{side}_grader"] for line in lines) for side in ("clean", "perturbed")}
    assert len(set(map(tuple, said.values()))) == 3
    assert "differences" not in results["models"]["base"]
    differences = results["models"]["act"]["differences"]["accuracy_gap/pairs"]
    assert set(differences) >= {"value", "low", "high", "total", "sources", "unread", "of_read"}


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
    settings = json.loads(capsys.readouterr().out)["settings"]
    assert (settings["load_in_4bit"], settings["quantization"], settings["dtype"]) == (False, None, "float32")
    assert [line["clean_text"] for line in answers_in(tmp_path / "out")] != [
        line["clean_text"] for line in in_four_bits
    ]


@pytest.mark.long
def test_a_model_whose_own_files_are_in_four_bits(options, model_dir, tokenizer, tmp_path, capsys):
    """`load_in_4bit` was false, and nothing else said that these are other weights."""
    pytest.importorskip("bitsandbytes")
    fp4 = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="fp4", bnb_4bit_compute_dtype=torch.float32)
    for part in (AutoModelForCausalLM.from_pretrained(model_dir, quantization_config=fp4), tokenizer):
        part.save_pretrained(tmp_path / "packed")
    options[options.index("--model_name_or_path") + 1] = str(tmp_path / "packed")
    options[options.index("--adapters") : options.index("--adapters") + 2] = []
    run([*options, "--json"])
    settings = json.loads(capsys.readouterr().out)["settings"]
    assert (settings["load_in_4bit"], settings["quantization"]) == (True, "bitsandbytes")
    assert (settings["bnb_4bit_quant_type"], settings["bnb_4bit_use_double_quant"]) == ("fp4", False)
    report = (tmp_path / "out" / "report.md").read_text()
    assert "load_in_4bit: true" in report
    assert "quantization: bitsandbytes" in report


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
