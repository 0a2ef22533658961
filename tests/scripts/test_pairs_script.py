import json
import re
import shutil
import subprocess
import sys
import warnings
from collections import Counter
from datetime import date
from decimal import Decimal
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import load_dataset
from huggingface_hub import DatasetCard

from tests.helpers.loopback_hub import Repo
from tests.helpers.models import CHATML, make_config, make_model, make_tokenizer
from trl_consistency import ConsistencyTrainer
from trl_consistency.cli import main as cli
from trl_consistency.data.pairs import check_pairs
from trl_consistency.evaluation.answers import generate as answering
from trl_consistency.generation import targets
from trl_consistency.perturbations.reading import read_rows
from trl_consistency.scripts.consistency import run


TRAIN = "data/train-00000-of-00001.jsonl"


@pytest.fixture
def questions(tmp_path):
    """A file of questions."""
    path = tmp_path / "questions.jsonl"
    rows = [
        {
            "question": f"What is thing {index}?",
            "choices": ["a dog", "a cow", "a bee"],
            "answer": index % 3,
            "topic": "farm",
        }
        for index in range(40)
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def pairs(source, out, *options):
    cli(["pairs", "--dataset_name", str(source), "--output_dir", str(out), *options])


def test_torch_is_not_imported(questions, tmp_path):
    """Nor PEFT, nor bitsandbytes: they would take several times as long as a thousand pairs."""
    words = ["pairs", "--dataset_name", str(questions), "--output_dir", str(tmp_path / "out")]
    code = (
        f"import sys\nfrom trl_consistency.cli import main\nmain({words!r})\n"
        "assert not {'torch', 'peft', 'bitsandbytes'} & set(sys.modules)"
    )
    end = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert end.returncode == 0, end.stderr


def test_what_a_first_user_should_know_is_printed(questions, tmp_path, capsys):
    """Columns that nothing is read from, and a split without rows."""
    pairs(questions, tmp_path / "out", "--max_sources", "1")
    printed = capsys.readouterr().out
    assert "Not read: the column(s) `topic`." in printed
    assert (
        "No pair was held out. Each source is held out with the probability `test_share` (0.1), and of the 1 source(s)"
        in printed
    )


@pytest.mark.parametrize("sources", [None, 2])
def test_columns_that_the_first_row_lacks_are_read(tmp_path, capsys, sources):
    rows = [{"question": "What is thing 0?"}, {"question": "What is thing 1?", "topic": "farm"}]
    rows += [{"question": f"What is thing {index}?", "answer": "a cow", "id": f"q{index}"} for index in (2, 3)]
    (tmp_path / "questions.jsonl").write_text("\n".join(map(json.dumps, rows)))
    options = ("--perturbations", "typos", "--test_share", "0", "--json")
    pairs(tmp_path / "questions.jsonl", tmp_path / "out", *options, *(["--max_sources", "2"] if sources else []))
    printed = capsys.readouterr()
    assert "Not read: the column(s) `topic`." in printed.err
    made = [json.loads(line) for line in (tmp_path / "out" / TRAIN).read_text().splitlines()]
    notes = json.loads(printed.out)["notes"]
    if sources:
        assert [row["answer"] for row in made] == ["", ""]
        assert notes == []
        return
    assert [row["answer"] for row in made] == ["", "", "a cow", "a cow"]
    assert [row["source_id"] for row in made][2:] == ["q2", "q3"]
    assert notes == ["Of 4 row(s), some lack a column, which counts as empty there: `answer` in 2, `id` in 2."]


def test_folder_of_pairs(questions, tmp_path, capsys):
    out = tmp_path / "out"
    names = ["suggested_answer", "are_you_sure", "authority+typos", "wrong_few_shot"]
    pairs(questions, out, "--perturbations", *names, "--test_share", "0.3", "--keep_columns", "topic")
    splits = load_dataset(str(out))
    assert set(splits) == {"train", "test", "test_wordings"}
    printed = capsys.readouterr().out
    assert "Not read" not in printed
    for split, rows in splits.items():
        check_pairs(rows)
        assert set(rows["topic"]) == {"farm"}
        assert f"{out}/data/{split}-00000-of-00001.jsonl: {len(rows)} pairs" in printed
    assert len(splits["train"]) + len(splits["test"]) == 4 * 40
    card = (out / "README.md").read_text()
    for text in (
        "questions.jsonl ->",
        f"| `train` | {len(splits['train'])} | training sources and wordings |",
        f"| `authority+typos` | {len(splits['train']) // 4} | {len(splits['test']) // 4} |",
        "The user suggests a wrong answer.",
        f"- `{splits['train'][0]['perturbation']}` (",
        "{answer}",
        "- `test_share: 0.3`",
        "- `seed: 42`",
    ):
        assert text in card, text
    assert str(tmp_path) not in card


def test_same_options_same_files(questions, tmp_path):
    for name in ("one", "two"):
        pairs(questions, tmp_path / name, "--perturbations", "surface", "--pairs_per_source", "3")
    pairs(questions, tmp_path / "other", "--perturbations", "surface", "--pairs_per_source", "3", "--seed", "1")
    files = {name: (tmp_path / name / TRAIN).read_bytes() for name in ("one", "two", "other")}
    assert files["one"] == files["two"] != files["other"]


def test_parquet_holds_the_same(questions, tmp_path):
    pairs(questions, tmp_path / "lines")
    pairs(questions, tmp_path / "parquet", "--file_type", "parquet")
    lines, parquet = (load_dataset(str(tmp_path / name)) for name in ("lines", "parquet"))
    assert {split: rows.to_list() for split, rows in lines.items()} == {
        split: rows.to_list() for split, rows in parquet.items()
    }
    assert sorted(path.name for path in (tmp_path / "parquet").rglob("*.*")) == [
        "README.md", "test-00000-of-00001.parquet", "test_wordings-00000-of-00001.parquet",
        "train-00000-of-00001.parquet",
    ]  # fmt: skip


def test_texts_that_look_like_times_stay_texts_in_parquet(tmp_path):
    rows = [
        {"question": f"When was {number}?", "answer": "1969-07-20", "at": "2024-01-01 10:00:00"} for number in "ab"
    ]
    (tmp_path / "questions.jsonl").write_text("\n".join(map(json.dumps, rows)))
    options = ("--perturbations", "typos", "--test_share", "0", "--keep_columns", "at", "--file_type", "parquet")
    pairs(tmp_path / "questions.jsonl", tmp_path / "out", *options)
    for row in pq.read_table(tmp_path / "out" / TRAIN.replace("jsonl", "parquet")).to_pylist():
        assert (row["answer"], row["at"]) == ("1969-07-20", "2024-01-01 10:00:00")


def test_a_second_run_leaves_nothing_of_the_first(questions, tmp_path):
    out = tmp_path / "out"
    pairs(questions, out)
    pairs(questions, out, "--test_share", "0", "--file_type", "parquet", "--max_sources", "5")
    assert sorted(path.name for path in out.rglob("*.*")) == ["README.md", "train-00000-of-00001.parquet"]
    assert len(load_dataset(str(out))["train"]) == 5


def test_other_pairs_in_the_same_folder_are_not_taken_for_the_first_ones(questions, tmp_path):
    """`datasets` would, if the card listed the files."""
    for seed in ("1", "2"):
        pairs(questions, tmp_path / "out", "--seed", seed)
        rows = [json.loads(line) for line in (tmp_path / "out" / TRAIN).read_text().splitlines()]
        assert load_dataset(str(tmp_path / "out"), split="train").to_list() == rows


def test_a_failed_run_leaves_the_pairs_of_the_last_one(questions, tmp_path):
    out = tmp_path / "out"
    pairs(questions, out)
    before = {path.name: path.read_bytes() for path in out.rglob("*.*")}
    questions.write_text(questions.read_text() + '\n{"question": "x", "choices": ["a", "b"], "answer": 7}')
    with pytest.raises(SystemExit, match="row 40: `answer` 7 is not one of the 2 choices"):
        pairs(questions, out)
    assert {path.name: path.read_bytes() for path in out.rglob("*.*")} == before
    pairs(questions, out, "--faulty_rows", "drop")
    assert "- 1 faulty row(s)" in (out / "README.md").read_text()


def test_own_perturbations(questions, tmp_path, own_registry):
    file = tmp_path / "mine.py"
    file.write_text(
        "from trl_consistency.perturbations import perturbation\n"
        "@perturbation({'train': ['Shout!'], 'held_out': ['Whisper!']}, positions=('end',))\n"
        "def volume(draft, cue):\n    'Says how loud to be.'\n    draft.add(cue.position, cue.text)\n"
    )
    pairs(questions, tmp_path / "out", "--perturbations_file", str(file), "--perturbations", "volume")
    (row, *_) = (tmp_path / "out" / TRAIN).read_text().splitlines()
    assert json.loads(row)["perturbed_prompt"][0]["content"].endswith("Shout!")


def test_options_in_a_file(questions, tmp_path):
    """A single value does for a list."""
    file = tmp_path / "pairs.yaml"
    file.write_text(
        f"dataset_name: {questions}\nperturbations: authority\npositions: start\nkeep_columns: topic\ntest_share: 0\n"
    )
    cli(["pairs", "--config", str(file), "--output_dir", str(tmp_path / "out")])
    rows = [json.loads(line) for line in (tmp_path / "out" / TRAIN).read_text().splitlines()]
    assert {(row["position"], row["topic"]) for row in rows} == {("start", "farm")}


def test_a_column_for_each_choice(tmp_path):
    path = tmp_path / "questions.csv"
    path.write_text("text,one,two,three,key\nLargest?,dog,cow,,B\n")
    options = ["--prompt_column", "text", "--choices_column", "one", "two", "three", "--answer_column", "key"]
    pairs(path, tmp_path / "out", *options, "--test_share", "0")
    row = json.loads((tmp_path / "out" / TRAIN).read_text())
    assert row["clean_prompt"][0]["content"].startswith("Largest?\n\n(A) dog\n(B) cow\n\n")
    assert (row["answer"], row["biased_answer"]) == ("B", "A")


def test_training_takes_the_folder(questions, tmp_path, recipe):
    """With the held-out sources for evaluation."""
    pairs(questions, tmp_path / "made", "--test_share", "0.3")
    options = [
        "--dataset_name",
        str(tmp_path / "made"),
        "--output_dir",
        str(tmp_path / "out"),
        "--eval_strategy",
        "steps",
    ]
    trainer = run(["--config", str(recipe), *options, "--eval_steps", "2"])
    splits = load_dataset(str(tmp_path / "made"))
    assert (len(trainer.train_dataset), len(trainer.eval_dataset)) == (len(splits["train"]), len(splits["test"]))


FAULTS = {
    "no file": (["--dataset_name", "none.csv"], "There is no file none.csv"),
    "perturbation": (["--perturbations", "typo"], "Unknown perturbation `typo`. Did you mean `typos`"),
    "column": (["--answer_column", "anser"], "`--answer_column`: there is no column `anser`. Did you mean `answer`"),
    "own file": (["--perturbations_file", "none.py"], "`--perturbations_file`: there is no file none.py"),
    "folder": (["--output_dir", "/dev/null/x"], "`--output_dir` `/dev/null/x` cannot be written"),
    "number": (["--max_sources", "-1"], "`--max_sources` must be at least 1, got -1"),
    "no wrong answer": (
        ["--perturbations", "typos", "--wrong_answer", "longest"],
        "`--wrong_answer` is given, but no perturbation suggests a wrong answer",
    ),
    "no position": (
        ["--perturbations", "typos", "--positions", "end"],
        "`--positions` is given, but no perturbation has positions",
    ),
    "no safety fact": (
        ["--perturbations", "typos", "--safety_fact_column", "question"],
        "`--safety_fact_column` is given, but no perturbation states a safety fact",
    ),
}


@pytest.mark.parametrize(("options", "reason"), FAULTS.values(), ids=FAULTS)
def test_faulty_options(questions, tmp_path, options, reason):
    with pytest.raises(SystemExit, match=reason):
        pairs(questions, tmp_path / "out", *options)


def test_no_pairs_at_all(tmp_path):
    path = tmp_path / "questions.csv"
    path.write_text("question\n2+2\n")
    with pytest.raises(SystemExit, match=r"No pairs could be made\.\n.*case: 1 pair\(s\) left unchanged"):
        pairs(path, tmp_path / "out", "--perturbations", "case", "--test_share", "0")


def test_push(questions, tmp_path, hub):
    pairs(questions, tmp_path / "out", "--push_to_hub", "me/pairs", "--hub_private", "true")
    assert hub.repos["datasets/me/pairs"].private
    folder = tmp_path / "out"
    sent = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert {"README.md", TRAIN} <= set(sent)
    there = hub.files("me/pairs", "datasets")
    assert {**there, "README.md": b""} == {**sent, "README.md": b""}
    assert DatasetCard(there["README.md"].decode()).text == DatasetCard(sent["README.md"].decode()).text
    # Another push takes files away that are no longer made.
    pairs(questions, tmp_path / "out", "--push_to_hub", "me/pairs", "--file_type", "parquet")
    assert TRAIN not in hub.files("me/pairs", "datasets")
    assert TRAIN.replace("jsonl", "parquet") in hub.files("me/pairs", "datasets")


@pytest.mark.parametrize("name", ["README.md", TRAIN])
def test_a_data_set_of_somebody_else_is_not_replaced(questions, tmp_path, hub, name):
    files = {name: b"mine", "notes.txt": b"made with `trl-consistency pairs`"}
    hub.repos["datasets/me/pairs"] = Repo(False, {"main": dict(files)})
    with pytest.raises(
        SystemExit, match=rf"`--push_to_hub`: me/pairs has a {name} that `trl-consistency pairs` did not"
    ):
        pairs(questions, tmp_path / "out", "--push_to_hub", "me/pairs")
    assert hub.files("me/pairs", "datasets") == files
    assert not (tmp_path / "out").exists()


def test_a_public_data_set_is_not_taken_for_a_private_one(questions, tmp_path, hub):
    hub.repos["datasets/me/pairs"] = Repo(False)
    with pytest.raises(SystemExit, match="me/pairs is public already, and only a new repository is made private"):
        pairs(questions, tmp_path / "out", "--push_to_hub", "me/pairs", "--hub_private", "true")
    assert not hub.files("me/pairs", "datasets")


def test_values_that_json_does_not_have(tmp_path):
    """A column of a Parquet file: the command ended with a traceback, or wrote `NaN`, which nothing could read again."""
    columns = {"day": [date(2024, 1, 2)], "price": [Decimal("1.50")], "share": [float("nan")]}
    pq.write_table(pa.table({"question": ["What is it?"], **columns}), tmp_path / "questions.parquet")
    options = ("--perturbations", "typos", "--test_share", "0", "--keep_columns", *columns)
    pairs(tmp_path / "questions.parquet", tmp_path / "out", *options)
    (row,) = read_rows(str(tmp_path / "out" / TRAIN))
    assert [row[column] for column in columns] == ["2024-01-02", "1.50", None]


@pytest.mark.parametrize("file_type", ["jsonl", "parquet"])
def test_viewers_find_the_splits_and_plain_columns(questions, tmp_path, hub, file_type):
    """On the Hub: a configuration for the splits, and the same columns of the same types, prompts first, in all of them."""
    options = ["--perturbations", "suggested_answer", "are_you_sure", "typos", "--file_type", file_type]
    pairs(questions, tmp_path / "out", *options, "--test_share", "0.4", "--push_to_hub", "me/pairs")
    folder = tmp_path / "downloaded"
    for name, content in hub.files("me/pairs", "datasets").items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    (configuration,) = DatasetCard.load(folder / "README.md").data.configs
    assert configuration["config_name"] == "default"
    listed = {of["split"]: of["path"] for of in configuration["data_files"]}
    assert set(listed) == {"train", "test", "test_wordings"}
    assert all((folder / path).is_file() for path in listed.values())
    splits = load_dataset(str(folder), "default", cache_dir=str(tmp_path / "cache"))
    assert set(splits) == set(listed)
    assert len({str(splits[split].features) for split in splits}) == 1
    assert splits["train"].column_names[:2] == ["clean_prompt", "perturbed_prompt"]
    for column, kind in splits["train"].features.items():
        assert column.endswith("_prompt") or kind.dtype in ("string", "int64", "bool"), column


@pytest.mark.parametrize(
    ("status", "message"), [(None, "the connection to the Hub failed"), (429, r"too many requests \(429\)")]
)
def test_failed_push_says_where_the_pairs_are(questions, tmp_path, hub, status, message):
    hub.fail("/commit/", status)
    with pytest.raises(SystemExit, match=rf"The pairs are in .*out, but could not be pushed to me/pairs: {message}"):
        pairs(questions, tmp_path / "out", "--push_to_hub", "me/pairs")
    assert (tmp_path / "out" / TRAIN).is_file()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("not a name", "`not a name` is not a name on the Hub: write `user/name`"),
        ("me/pairs", "`--push_to_hub`: me/pairs cannot be created: HF_HUB_OFFLINE is set"),
    ],
)
def test_push_without_the_hub_fails_before_the_work(questions, tmp_path, name, message):
    with pytest.raises(SystemExit, match=message):
        pairs(questions, tmp_path / "out", "--push_to_hub", name)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("methods", "more"),
    [(["bct"], ["prefilled_turn", "rot13"]), (["bct", "act", "mlpct"], ["wrong_few_shot", "emotion"])],
)
def test_pairs_go_straight_into_the_trainer(questions, tmp_path, methods, more):
    options = [
        "--perturbations",
        "suggested_answer",
        "are_you_sure",
        *more,
        "--max_sources",
        "6",
        "--instruction",
        "Go.",
    ]
    pairs(questions, tmp_path / "out", *options, "--test_share", "0")
    rows = load_dataset(str(tmp_path / "out"), split="train")
    args = make_config(tmp_path / "run", method=methods, max_steps=2, per_device_train_batch_size=6)
    trainer = ConsistencyTrainer(make_model(), args, train_dataset=rows, processing_class=make_tokenizer())
    assert len(trainer.train_dataset) == 24
    assert trainer.train().training_loss > 0


@pytest.mark.parametrize("name", ["arc_easy_train", "openbookqa_train"])
def test_real_questions(name, tmp_path, request):
    path = Path(request.config.rootpath).parent / "shared" / "data" / "questions" / f"{name}.jsonl"
    if not path.is_file():
        pytest.skip("the real questions are not beside this checkout")
    pairs(path, tmp_path / "out", "--perturbations", "sycophancy", "--max_sources", "300", "--keep_columns", "source")
    check_pairs(load_dataset(str(tmp_path / "out"), split="train"))


# --- the vulnerability filter ---


def filtered(questions, out, model, *options):
    pairs(questions, out, "--keep_vulnerable", "true", "--model_name_or_path", str(model), *options)


@pytest.mark.parametrize("markers", [(), ("--thinking_markers", "[THINK]", "[/THINK]")])
def test_thoughts_between_other_markers_are_warned_about(markers, questions, tmp_path, model_dir, monkeypatch, capsys):
    def answer(model, tokenizer, prompts, *args, **kwargs):
        return [tokenizer(text="[THINK]B[/THINK] A", add_special_tokens=False)["input_ids"]] * len(prompts)

    monkeypatch.setattr(answering, "generate_ids", answer)
    with pytest.raises(SystemExit):  # no pair is vulnerable
        filtered(questions, tmp_path / "out", model_dir, "--perturbations", "are_you_sure", *markers)
    assert ("[/THINK], which was graded as a part of them" in capsys.readouterr().err) == (not markers)


def test_variables_of_the_template_reach_the_filter(questions, tmp_path, model_dir, monkeypatch):
    """A model that thinks in training and not here, or the other way round, may fall for other pairs."""
    read, no_thoughts = [], {"no_think": True}

    def answer(model, tokenizer, prompts, *args, **kwargs):
        read.extend(map(tokenizer.decode, prompts))
        return [tokenizer(text="A", add_special_tokens=False)["input_ids"]] * len(prompts)

    monkeypatch.setattr(answering, "generate_ids", answer)
    model = shutil.copytree(model_dir, tmp_path / "model")
    (model / "README.md").write_text(f"---\nchat_template_kwargs: {json.dumps(no_thoughts)}\n---\n# mine\n")
    options = questions, tmp_path / "out", model, "--perturbations", "are_you_sure"
    for given in ((), ("--chat_template_kwargs", json.dumps(no_thoughts))):
        read.clear()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with pytest.raises(SystemExit, match="vulnerable to no training pair"):
                filtered(*options, *given)
        assert any("was trained with `chat_template_kwargs`" in str(of.message) for of in caught) == (not given)
        assert read
        assert all(("<think>" in prompt) == bool(given) for prompt in read)


def test_a_fixed_date_is_not_told_of(questions, tmp_path, model_dir, monkeypatch, caplog):
    """The filter fixed it by `chat_template_kwargs`, and warned of the day's date all the same."""
    monkeypatch.setattr(answering, "generate_ids", lambda model, tokenizer, prompts, *_, **__: [[5]] * len(prompts))
    model = shutil.copytree(model_dir, tmp_path / "model")
    date = "{{ date_string if date_string is defined else strftime_now('%d %b %Y') }}"
    make_tokenizer(f"Today: {date}\n{CHATML}").save_pretrained(model)
    options = questions, tmp_path / "out", model, "--perturbations", "are_you_sure"
    for given in ((), ("--chat_template_kwargs", json.dumps({"date_string": "26 Jul 2024"}))):
        caplog.clear()
        with pytest.raises(SystemExit, match="vulnerable to no training pair"):
            filtered(*options, *given)
        assert ("writes the day's date into prompts" in caplog.text) == (not given)


def answer_by_number(model, tokenizer, prompts, *args, **kwargs):
    """Of four questions, one is answered well without the cue and badly with it."""
    answers = []
    for ids in prompts:
        prompt = tokenizer.decode(ids)
        number = int(re.search(r"thing (\d+)", prompt)[1])
        right, wrong = "ABC"[number % 3], "ABC"[(number + 1) % 3]
        has_cue = prompt.count("<|im_start|>user") > 1
        text = [wrong if has_cue else right, right, "Hm." if has_cue else right, wrong][number % 4]
        answers.append(tokenizer(text=text, add_special_tokens=False)["input_ids"])
    return answers


def test_what_makes_the_verdicts_doubtful_is_on_the_card(questions, tmp_path, model_dir, monkeypatch, capsys):
    """It was gone with the terminal."""
    monkeypatch.setattr(answering, "generate_ids", answer_by_number)
    options = "--perturbations", "are_you_sure", "--max_completion_length", "1"
    filtered(questions, tmp_path / "out", model_dir, *options)
    told = re.findall("^warning: (.*)$", capsys.readouterr().err, re.MULTILINE)
    assert any("reached `max_completion_length`" in warning for warning in told)
    shown = re.sub(r"\\(\W)", r"\1", (tmp_path / "out" / "README.md").read_text())
    for warning in told:
        assert f"Warning of the answers by which training pairs were chosen: {warning}" in shown


def test_vulnerable_pairs_are_kept(questions, tmp_path, model_dir, monkeypatch, capsys):
    monkeypatch.setattr(answering, "generate_ids", answer_by_number)
    out = tmp_path / "out"
    own = [json.loads(line) | {"kept": "mine"} for line in questions.read_text().splitlines()]
    questions.write_text("\n".join(map(json.dumps, own)))
    options = ("--perturbations", "are_you_sure", "--test_share", "0.3", "--keep_columns", "kept")
    pairs(questions, tmp_path / "all", *options)
    filtered(questions, out, model_dir, *options, "--file_type", "parquet")
    whole, kept = load_dataset(str(tmp_path / "all")), load_dataset(str(out))
    is_vulnerable = [
        int(re.search(r"thing (\d+)", row["clean_prompt"][0]["content"])[1]) % 4 == 0 for row in whole["train"]
    ]
    assert kept["train"]["source_id"] == [
        row["source_id"] for row, keep in zip(whole["train"], is_vulnerable, strict=True) if keep
    ]
    assert 0 < len(kept["train"]) < len(whole["train"])
    assert kept["test"]["source_id"] == whole["test"]["source_id"]
    verdicts = [json.loads(line) for line in (out / "verdicts.jsonl").read_text().splitlines()]
    assert [row["source_id"] for row in verdicts] == list(whole["train"]["source_id"])
    counts = Counter(row["outcome"] for row in verdicts)
    assert counts.keys() == {"vulnerable", "robust", "unread", "bad without the cue"}
    assert all(row["kept"] == (row["outcome"] == "vulnerable") for row in verdicts)
    assert {row["own_kept"] for row in verdicts} == {"mine"}
    assert verdicts[0]["clean_answer"] in "ABC"
    printed = capsys.readouterr().out
    for outcome, count in counts.items():
        assert f"{count} {outcome}" in printed
    card = (out / "README.md").read_text()
    assert f"| `train` | {len(kept['train'])} |" in card
    assert f"- not vulnerable: {counts['robust']} training pair(s), robust" in card
    assert "- `keep_vulnerable: True`" in card
    # A later run without the filter leaves no verdicts of this one.
    pairs(questions, out, *options)
    assert not (out / "verdicts.jsonl").exists()
    assert "keep_vulnerable" not in (out / "README.md").read_text().replace("`keep_vulnerable: False`", "")


def test_what_is_earlier_stays_until_the_new_files_are_whole(questions, tmp_path, monkeypatch):
    out = tmp_path / "out"
    pairs(questions, out, "--file_type", "parquet")
    earlier = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}

    def write_half(pairs, folder):
        (folder / "train.jsonl").write_text('{"clean_prompt": "a", "pert')
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("trl_consistency.scripts.pairs.write_pairs", write_half)
    with pytest.raises(SystemExit, match="No space left"):
        pairs(questions, out)
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == earlier
    monkeypatch.undo()
    pairs(questions, out)
    assert not list(out.rglob("*.parquet")), "files of the earlier run are among those of this one"


def test_killed_filter_goes_on(questions, tmp_path, model_dir, monkeypatch):
    """No batch is answered twice, and the verdicts are those of a run in one go."""
    calls = []

    def generate(*args, stop_at=None):
        if len(calls) == stop_at:
            raise KeyboardInterrupt
        calls.append(args)
        return original(*args)

    original = targets._generate
    options = ("--max_completion_length", "4", "--batch_size", "16")
    for name, stop_at in (("whole", None), ("killed", 2), ("killed", None)):
        calls.clear()
        monkeypatch.setattr(targets, "_generate", partial(generate, stop_at=stop_at))
        with pytest.raises(SystemExit) as end:  # random weights: nothing to keep
            filtered(questions, tmp_path / name, model_dir, *options)
        assert (end.value.code == 130) == bool(stop_at)
        if name == "whole":
            batches = len(calls)
    assert "vulnerable to no training pair" in str(end.value)
    assert len(calls) == batches - 2 > 0
    assert (tmp_path / "whole" / "verdicts.jsonl").read_text() == (tmp_path / "killed" / "verdicts.jsonl").read_text()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--keep_vulnerable", "true"], "`--model_name_or_path`"),
        (["--model_name_or_path", "x"], "`--keep_vulnerable`"),
        (["--keep_vulnerable", "true", "--model_name_or_path", "nowhere"], "nowhere cannot be loaded"),
        (["--keep_vulnerable", "true", "--model_name_or_path", "x", "--batch_size", "0"], "`--batch_size`"),
    ],
)
def test_options_of_the_filter(questions, tmp_path, options, message):
    with pytest.raises(SystemExit, match=message):
        pairs(questions, tmp_path / "out", *options)
