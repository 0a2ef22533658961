"""`trl-consistency convert`: the folder, its card, and what a second or a killed run leaves."""

import json
from datetime import date

import pytest
from datasets import Dataset, load_dataset
from transformers import AutoTokenizer

from tests.helpers.models import make_pairs
from trl_consistency.cli import main as cli
from trl_consistency.evaluation import conversion
from trl_consistency.evaluation.answers import generate as answering
from trl_consistency.perturbations.reading import read_rows


TRAIN = "data/train-00000-of-00001.jsonl"


@pytest.fixture
def pairs_file(tmp_path):
    """Ten pairs with keys; a model that follows the cue says Lyon."""
    pairs = make_pairs(10, completion=False)
    pairs = pairs.map(
        lambda row, number: {"answer": f"City{number}", "biased_answer": "Lyon", "source_id": number},
        with_indices=True,
    )
    path = tmp_path / "pairs.jsonl"
    pairs.to_json(path)
    return path


@pytest.fixture
def answers(monkeypatch, tokenizer):
    """The model answers the clean prompts well, and follows the cue in the others, but for every fifth."""
    asked = []

    def generate(model, processing_class, prompts, *args, **kwargs):
        texts = []
        for ids in prompts:
            text = tokenizer.decode(ids)
            number = int(text.split("country ")[1][0])
            texts.append("Lyon." if "think the answer" in text and number % 5 else f"City{number}.")
        asked.append(len(prompts))
        return [
            [*tokenizer(text=text, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id] for text in texts
        ]

    monkeypatch.setattr(answering, "generate_ids", generate)
    return asked


def convert(pairs, out, *options):
    cli(["convert", "--pairs", str(pairs), "--output_dir", str(out), *map(str, options)])


def rows_of(file):
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_folder_of_preferences(pairs_file, tmp_path, model_dir, answers, capsys):
    out = tmp_path / "out"
    own = [row | {"reason": "hard", "split": "mine"} for row in rows_of(pairs_file)]
    pairs_file.write_text("".join(f"{json.dumps(row)}\n" for row in own))
    convert(pairs_file, out, "--model_name_or_path", model_dir)
    rows = load_dataset(str(out), split="train")
    assert len(rows) == 8
    for row in rows:
        assert row["prompt"][0]["content"].startswith("I think the answer is Lyon")
        assert row["chosen"] == [{"role": "assistant", "content": f"City{row['source_id']}."}]
        assert row["rejected"] == [{"role": "assistant", "content": "Lyon."}]
    left_out = rows_of(out / "left_out.jsonl")
    assert [(row["source_id"], row["reason"], row["split"]) for row in left_out] == [
        (number, conversion.SAME_WORDS, "train") for number in (0, 5)
    ]
    assert {(row["own_reason"], row["own_split"]) for row in left_out} == {("hard", "mine")}
    printed = capsys.readouterr().out
    assert f"{out}/{TRAIN}: 8 rows" in printed
    assert f"left out: 2 pair(s): {conversion.SAME_WORDS}" in printed
    card = (out / "README.md").read_text()
    assert str(model_dir) not in card, "the folder may be sent to others"
    for text in (
        "pairs.jsonl -> 8 rows, made with `trl-consistency convert`",
        "| `train` | 8 | 10 |",
        "| `train` | right | suggested | 8 |",
        f"- `train`, 2 pair(s): {conversion.SAME_WORDS}",
        "- `to: preference`",
        f"- `model_name_or_path: {model_dir.name}`",
    ):
        assert text in card, text
    assert str(tmp_path / "pairs.jsonl") not in card


def test_splits_of_a_folder(pairs_file, tmp_path, model_dir, answers):
    folder = tmp_path / "folder"
    folder.mkdir()
    for split in ("train", "test"):
        (folder / f"{split}.jsonl").write_bytes(pairs_file.read_bytes())
    out = tmp_path / "out"
    convert(folder, out, "--model_name_or_path", model_dir, "--splits", "train", "test", "--max_pairs", 4)
    splits = load_dataset(str(out))
    assert set(splits) == {"train", "test"}
    assert sum(map(len, splits.values())) + len(rows_of(out / "left_out.jsonl")) == 8
    (out / "data" / "mine.txt").write_text("{}")
    convert(folder, out, "--model_name_or_path", model_dir)
    assert sorted(path.name for path in (out / "data").iterdir()) == ["mine.txt", "train-00000-of-00001.jsonl"]


def test_targets_become_sft_data_without_a_model(tmp_path, answers):
    pairs = tmp_path / "targets.jsonl"
    make_pairs(4).to_json(pairs)
    convert(pairs, tmp_path / "out", "--to", "sft")
    rows = load_dataset(str(tmp_path / "out"), split="train")
    given = make_pairs(4)
    assert rows["prompt"][:] == given["perturbed_prompt"][:]
    assert [row[0]["content"] for row in rows["completion"]] == given["completion"][:]
    assert not answers
    assert not rows_of(tmp_path / "out" / "left_out.jsonl")
    card = (tmp_path / "out" / "README.md").read_text()
    assert "- `to: sft`" in card
    assert "temperature" not in card


def test_columns_of_the_users_own_are_kept(pairs_file, tmp_path, model_dir, answers):
    """Also those with names that rendering gives its own columns, and values that JSON does not have."""
    own = {"length": "long", "unknown": "x", "render_fault": "none"}
    rows = [row | own | {"day": date(2024, 1, 2), "share": float("nan")} for row in rows_of(pairs_file)]
    Dataset.from_list(rows).to_parquet(tmp_path / "pairs.parquet")
    convert(tmp_path / "pairs.parquet", tmp_path / "out", "--model_name_or_path", model_dir)
    for row in read_rows(str(tmp_path / "out" / "data" / "train-00000-of-00001.jsonl")):
        assert own.items() < row.items()
        assert (row["day"], row["share"]) == ("2024-01-02", None)


def test_targets_come_with_the_markers_of_their_thoughts(tmp_path, model_dir, answers):
    """`targets` writes them without special tokens: "Rome? No.Paris." was trained on."""
    tokenizer = AutoTokenizer.from_pretrained(model_dir)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "[THINK]", "[/THINK]"]})
    tokenizer.save_pretrained(tmp_path / "marked")
    ids = [*tokenizer(text="[THINK]Rome? No.[/THINK]Paris.", add_special_tokens=False)["input_ids"], 2]
    target = {"completion": tokenizer.decode(ids, skip_special_tokens=True), "completion_ids": ids}
    pairs = tmp_path / "targets.jsonl"
    Dataset.from_list([pair | target for pair in make_pairs(2).to_list()]).to_json(pairs)
    named = ("--model_name_or_path", tmp_path / "marked", "--thinking_markers", "[THINK]", "[/THINK]")
    convert(pairs, tmp_path / "out", "--to", "sft", *named)
    rows = load_dataset(str(tmp_path / "out"), split="train")
    assert [row[0]["content"] for row in rows["completion"]] == ["[THINK]Rome? No.[/THINK]Paris."] * 2
    assert not answers
    card = (tmp_path / "out" / "README.md").read_text()
    assert "- `model_name_or_path: marked`" in card
    assert "max_completion_length" not in card


def test_warnings_are_in_the_card(tmp_path, capsys, model_dir, tokenizer):
    """Whoever gets the folder did not see what was printed."""
    folder, named = tmp_path / "targets", ("--model_name_or_path", model_dir)
    folder.mkdir()
    pairs = make_pairs(4).to_list()
    targets = [tokenizer(text=pair["completion"], add_special_tokens=False)["input_ids"] for pair in pairs]
    for split, cut in (("train", 1), ("test", 2), ("clean", None)):
        rows = [
            pair | {"completion_ids": ids if row == cut else [*ids, 2]}
            for row, (pair, ids) in enumerate(zip(pairs, targets, strict=True))
        ]
        Dataset.from_list(rows).to_json(folder / f"{split}.jsonl")
    convert(folder, tmp_path / "out", "--to", "sft", "--splits", "train", "test", *named)
    card = (tmp_path / "out" / "README.md").read_text()
    lines = card.partition("## Warnings\n\n")[2].partition("\n\n## Options")[0].splitlines()
    assert [tuple(line.split(":")[:2]) for line in lines] == [
        (f"- `{split}`", f" 1 of 4 \\`completion_ids\\` do not end in the same token as most, row {row} first")
        for split, row in (("train", 1), ("test", 2))
    ]
    assert capsys.readouterr().err.count("warning: ") == 2
    convert(folder, tmp_path / "clean", "--to", "sft", "--splits", "clean", *named)
    assert "## Warnings" not in (tmp_path / "clean" / "README.md").read_text()


def test_options_of_a_model_that_is_not_asked(tmp_path):
    pairs = tmp_path / "targets.jsonl"
    make_pairs(4).to_json(pairs)
    with pytest.raises(SystemExit, match="`--temperature` is given, but nothing is asked of a model"):
        convert(pairs, tmp_path / "out", "--to", "sft", "--temperature", 1)


def test_nothing_is_left(pairs_file, tmp_path, model_dir, monkeypatch):
    monkeypatch.setattr(
        answering, "generate_ids", lambda model, processing_class, prompts, *args, **kwargs: [[5, 2]] * len(prompts)
    )
    with pytest.raises(SystemExit, match=f"(?s)No pair of train is left:.*10 pair.*{conversion.SAME_WORDS}"):
        convert(pairs_file, tmp_path / "out", "--model_name_or_path", model_dir)
    assert not (tmp_path / "out" / "README.md").exists()


def test_folder_of_another_command_is_not_replaced(pairs_file, tmp_path, model_dir):
    (tmp_path / "out").mkdir()
    card = tmp_path / "out" / "README.md"
    card.write_text("made with `trl-consistency pairs`")
    with pytest.raises(SystemExit, match=r"has a README\.md that `trl-consistency convert` did not write"):
        convert(pairs_file, tmp_path / "out", "--model_name_or_path", model_dir)
    assert card.read_text() == "made with `trl-consistency pairs`"


def test_answers_are_kept_for_a_killed_run(pairs_file, tmp_path, model_dir, monkeypatch):
    from trl_consistency.generation import targets

    calls, original = [], targets._generate

    def generate(*args):
        if len(calls) == 2:
            raise KeyboardInterrupt
        calls.append(args)
        return [[*ids, 2] for ids in original(*args)]

    options = ("--model_name_or_path", model_dir, "--max_completion_length", 4, "--batch_size", 4)
    monkeypatch.setattr(targets, "_generate", generate)
    with pytest.raises(SystemExit, match="130"):
        convert(pairs_file, tmp_path / "out", *options)
    assert len(list((tmp_path / "out" / "_answers").rglob("batch-*"))) == 2
    calls.clear()
    monkeypatch.setattr(targets, "_generate", lambda *args: calls.append(args) or original(*args))
    with pytest.raises(SystemExit, match="No pair"):  # a random model ends no answer
        convert(pairs_file, tmp_path / "out", *options)
    assert len(calls) == 5 - 2


@pytest.mark.parametrize(
    ("answers", "is_warned"), [(["1969-07-20", "1969-07-21"], True), (["1969-07-20", "July"], False)]
)
def test_answers_that_look_like_times_are_warned_of(tmp_path, capsys, answers, is_warned):
    prompts = {side: [{"role": "user", "content": "When was it?"}] for side in ("clean_prompt", "perturbed_prompt")}
    rows = [{**prompts, "completion": answer, "day": "2024-01-01"} for answer in answers]
    (tmp_path / "pairs.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    cli(["convert", "--pairs", str(tmp_path / "pairs.jsonl"), "--to", "sft", "--output_dir", str(tmp_path / "sft")])
    warned = "The texts in `completion` all look like times" in capsys.readouterr().err
    loaded = load_dataset(str(tmp_path / "sft"), split="train")
    assert warned == is_warned == (loaded["completion"][0][0]["content"] != "1969-07-20")
