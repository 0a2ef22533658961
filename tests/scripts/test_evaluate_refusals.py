"""What `trl-consistency evaluate` refuses."""

from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from tests.helpers.chats import user
from tests.helpers.evaluate_command import pair, save_adapter, write
from trl_consistency.scripts import evaluate
from trl_consistency.scripts.evaluate import run


def test_a_refused_command_leaves_no_folder(options, tmp_path):
    options[options.index("--adapters") + 1] = str(tmp_path / "gone")
    options[options.index("--pairs") + 1] = write(tmp_path / "requests.jsonl", [pair(0, category="harmful")])
    options[-1] = str(tmp_path / "new" / "out")
    with pytest.raises(SystemExit):
        run([*options, "--judge_model", "judge", "--judge_base_url", "http://127.0.0.1:9/v1"])
    assert not (tmp_path / "new").exists()


def test_answers_spelt_in_two_ways(options, tmp_path, monkeypatch):
    """A reply could be only one of them, so that the other would never be given."""
    monkeypatch.setattr(evaluate, "load_model", None)
    rows = [pair(0, answer="Paris"), pair(1, answer="Lima", biased_answer="PARIS")]
    options[options.index("--pairs") + 1] = write(tmp_path / "facts.jsonl", rows)
    with pytest.raises(
        SystemExit,
        match=r"row 1: the answers `PARIS` and `Paris` \(row 0\) differ in case, spaces or a final full stop alone",
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
