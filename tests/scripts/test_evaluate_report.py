"""What `trl-consistency evaluate` writes: results, tables, the report, cards and the demo page."""

import json
import re
import shutil
from html import unescape
from importlib.metadata import version
from pathlib import Path

import pytest
import xxhash
from peft import PeftModel

from tests.helpers.chats import user
from tests.helpers.evaluate_command import answers_in, pair, save_adapter, write
from trl_consistency import __version__
from trl_consistency.escaping import printable
from trl_consistency.evaluation.answers import generate as answering
from trl_consistency.publishing import read_results
from trl_consistency.publishing.page import RESULTS_END, RESULTS_START
from trl_consistency.scripts import adapter_results
from trl_consistency.scripts.evaluate import run
from trl_consistency.scripts.evaluation_files import EXAMPLES_OF_A_KIND, read_history


pytestmark = pytest.mark.long


def test_results_for_the_page(options, model_dir, tmp_path, capsys):
    folder = tmp_path / "mine"
    save_adapter(model_dir, folder, 0)
    options[options.index("--adapters") + 1] = str(folder)
    run([*options, "--save_to_adapters", "--json"])
    models = json.loads(capsys.readouterr().out)["models"]
    page = read_results(folder)
    found = page.results
    assert [f"{result.metric}/{result.split}" for result in found] == list(models["mine"]["rates"])
    assert [of.after for of in page.outcomes] == list(models["mine"]["outcomes"]["pairs"]["question"].values())
    assert [of.before for of in page.outcomes] == list(models["base"]["outcomes"]["pairs"]["question"].values())
    assert page.findings[: len(models["mine"]["findings"])] == models["mine"]["findings"]
    for result, rate, before in zip(
        found, models["mine"]["rates"].values(), models["base"]["rates"].values(), strict=True
    ):
        assert (result.value, result.unread) == (rate["value"], sum(rate["unread"].values()))
        assert (result.before.value, result.before.unread) == (before["value"], sum(before["unread"].values()))


def test_what_makes_the_figures_before_doubtful_is_on_the_page(options, model_dir, tmp_path, monkeypatch):
    """The base model's answers were cut, and the page told it of the adapter's alone."""
    folder = tmp_path / "mine"
    save_adapter(model_dir, folder, 0)

    def generate(model, tokenizer, prompts, *args, **kwargs):
        answer = [5, tokenizer.eos_token_id] if isinstance(model, PeftModel) else [5] * 6
        return [answer] * len(prompts)

    monkeypatch.setattr(answering, "generate_ids", generate)
    options[options.index("--adapters") + 1] = str(folder)
    run([*options, "--save_to_adapters"])
    told = json.loads((tmp_path / "out" / "results.json").read_text())["findings"]
    (cut,) = (text.removeprefix("base: ") for text in told if "without an end-of-turn token" in text)
    findings = read_results(folder).findings
    assert f"Before training: {cut}" in findings
    assert not any(text.startswith("Before training: No answer could be read") for text in findings), "told once"


def test_results_replace_those_of_the_card(options, model_dir, tmp_path, capsys):
    """Which says what was measured, on what, and nothing of this machine."""
    folder = tmp_path / "mine"
    save_adapter(model_dir, folder, 0)
    (folder / "README.md").write_text(
        f"---\nlibrary_name: peft\n---\n\n# Mine\n\n## Results\n\n{RESULTS_START}\n\nOld ones.\n\n{RESULTS_END}\n\n## Training\n\nBCT.\n"
    )
    options[options.index("--adapters") + 1] = str(folder)
    run([*options, "--save_to_adapters"])
    assert "results written" in capsys.readouterr().err
    card = (folder / "README.md").read_text()
    for text in (
        "Sycophancy, pairs",
        "pairs (8 rows)",
        "greedy decoding",
        "At most 6 tokens",
        "(rates.png)",
        "(outcomes.png)",
        "Questions, perturbed prompts, pairs",
        "BCT.",
    ):
        assert text in card
    assert "Old ones." not in card
    assert str(tmp_path) not in card
    assert str(model_dir) not in card
    run([*options, "--save_to_adapters"])
    assert "results replaced" in capsys.readouterr().err


def test_an_adapter_called_before_is_drawn_beside_its_base_model(options, model_dir, tmp_path, monkeypatch):
    save_adapter(model_dir, tmp_path / "before", 0)
    options[options.index("--adapters") + 1] = str(tmp_path / "before")
    drawn = []

    def draw(of, path):
        drawn.append((path.name, list(of)))
        path.touch()
        return path

    monkeypatch.setattr(adapter_results, "plot_rates", draw)
    monkeypatch.setattr(adapter_results, "plot_outcomes", draw)
    run([*options, "--save_to_adapters"])
    assert drawn[-2:] == [("rates.png", ["before", "./before"]), ("outcomes.png", ["before", "./before"])]


@pytest.mark.parametrize("fails", ["plot_outcomes", "add_results", "write_results"])
def test_a_disk_that_fills_leaves_the_adapters_folder_as_it_was(options, model_dir, tmp_path, monkeypatch, fails):
    folder = tmp_path / "mine"
    save_adapter(model_dir, folder, 0)
    (folder / "README.md").write_text("# Mine\n\n## Training\n\nBCT.\n")
    options[options.index("--adapters") + 1] = str(folder)
    run([*options, "--save_to_adapters"])
    before = {path.name: path.read_bytes() for path in folder.iterdir()}

    def refuse(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(adapter_results, fails, refuse)
    with pytest.raises(SystemExit, match="No space left on device"):
        run([*options, "--save_to_adapters", "--max_pairs", "4"])
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_pictures_of_an_earlier_run_go(options, tmp_path):
    run(options)
    assert (tmp_path / "out" / "rates.png").is_file()
    anchors = [{"clean_prompt": user("Hm?"), "perturbed_prompt": user("Hm?")}]
    options[options.index("--pairs") + 1] = write(tmp_path / "anchors.jsonl", anchors)
    run(options)
    assert not list((tmp_path / "out").glob("*.png"))


def test_an_adapter_called_as_the_base_model_is(options, model_dir, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    save_adapter(model_dir, Path("base"), 0)
    options[options.index("--adapters") + 1] = "base"
    run([*options, "--json"])
    models = json.loads(capsys.readouterr().out)["models"]
    assert {name: model["path"] for name, model in models.items()} == {"base": model_dir.name, "./base": "base"}


def test_tables(options, capsys):
    run(options)
    out, _ = capsys.readouterr()
    assert "Sycophancy, pairs" in out
    assert "Differences from the base model" in out


def test_report(options, model_dir, tmp_path, capsys):
    """What each model said, the figures, and what its run logged, in both files."""
    folder = tmp_path / "mine"
    save_adapter(model_dir, folder, 0)
    for number, losses in (("2", [3.0]), ("10", [3.0, 1.0])):
        (folder / f"checkpoint-{number}").mkdir()
        log = [{"step": step, "loss": loss} for step, loss in enumerate(losses, start=1)]
        (folder / f"checkpoint-{number}" / "trainer_state.json").write_text(json.dumps({"log_history": log}))
        shutil.copy(folder / "adapter_model.safetensors", folder / f"checkpoint-{number}")
    assert len(read_history(str(folder))) == 2, "the last checkpoint's"
    options[options.index("--adapters") + 1] = str(folder)
    run(options)
    assert "report.html" in capsys.readouterr().out
    out = tmp_path / "out"
    results = json.loads((out / "results.json").read_text())
    page, text = (unescape((out / name).read_text()) for name in ("report.html", "report.md"))
    for report in (page, text):
        assert "Sycophancy, pairs" in report
        assert "Differences from the base model" in report
        for model in ("base", "mine"):
            assert f"{model}: {results['models'][model]['path']}" in report
        notes = report[report.index("How it was measured") :]
        assert "pairs: pairs.jsonl" in notes
        assert "thinking_markers: <think>, </think>" in notes
        assert "multiple_choice: text" in notes
        for written in ("None", "[", "{"):
            assert written not in notes
        assert "Standard suites" not in report
    shown = [line for line in answers_in(out) if line["perturbed_prompt"][-1]["content"] in page]
    assert len(shown) == 2 * EXAMPLES_OF_A_KIND
    assert all(printable(line["perturbed_text"]) in page for line in shown)
    assert page.count("data:image/png;base64,") == 4
    assert page.index("<img") < page.index("<table"), "what became of all answers comes first"
    for picture in ("outcomes", "rates", "tradeoff", "training"):
        assert f"]({picture}.png)" in text


def test_what_is_sent_to_others_names_no_path_of_this_machine(options, model_dir, tmp_path, capsys):
    """Two adapters and two files of one name, and a judge, all of them local."""
    for number, place in enumerate("ab"):
        save_adapter(model_dir, tmp_path / place / "lora", number)
        write(tmp_path / place / "pairs.jsonl", [pair(number, category="harmful") for number in range(3)])
    adapters, pairs = ([str(tmp_path / place / name) for place in "ab"] for name in ("lora", "pairs.jsonl"))
    out = tmp_path / "out"
    common = [*options[:6], "--output_dir", str(out), "--judge_model", str(model_dir), "--save_to_adapters", "true"]
    run([*common, "--adapters", *adapters, "--pairs", *pairs, "--judge_max_completion_length", "2", "--json"])
    results = json.loads(capsys.readouterr().out)
    assert list(results["models"]) == ["base", "a/lora", "b/lora"]
    assert list(results["pairs"]) == ["a/pairs.jsonl", "b/pairs.jsonl"]
    assert results["settings"]["judge"] == model_dir.name
    written = [out / name for name in ("results.json", "report.md", "report.html")]
    written += [Path(folder) / name for folder in adapters for name in ("README.md", "consistency_results.json")]
    for path in written:
        text = path.read_text().split("## Results")[-1]  # above it stands what PEFT wrote
        assert str(tmp_path) not in text, path
        assert str(model_dir) not in text, path


def test_results_say_how_they_were_measured(options, tmp_path):
    given = {"max_pairs": 3, "thinking_markers": ["[T]", "[/T]"], "chat_template_kwargs": {"no_think": True}}
    run(
        [
            *options,
            "--max_pairs",
            "3",
            "--thinking_markers",
            "[T]",
            "[/T]",
            "--chat_template_kwargs",
            '{"no_think": true}',
        ]
    )
    settings = json.loads((tmp_path / "out" / "results.json").read_text())["settings"]
    assert {name: settings[name] for name in given} == given
    assert settings["splits"] is None
    assert settings["model_revision"] is None
    assert settings["pairs"]
    assert not any("/" in name for name in settings["pairs"])
    report = (tmp_path / "out" / "report.md").read_text()
    assert all(f"{name}: " in report for name in given)
    assert settings["dtype"] == "float32"
    libraries = ("torch", "transformers", "peft", "trl")
    assert settings["packages"] == {of: version(of) for of in libraries} | {"trl_consistency": __version__}
    assert "dtype: float32" in report
    assert f"packages: torch {version('torch')}, transformers {version('transformers')}, peft " in report


@pytest.mark.parametrize("of_all", [True, False])
def test_variables_that_the_rows_replace_are_not_said_to_be_used(options, tmp_path, of_all):
    """Results, report and cards named the option's value, with which no row was rendered."""
    own = {"chat_template_kwargs": {"no_think": False}}
    rows = [pair(number, **(own if of_all or not number else {})) for number in range(2)]
    options[options.index("--pairs") + 1] = write(tmp_path / "some.jsonl", rows)
    run([*options, "--chat_template_kwargs", '{"no_think": true}'])
    used = {"no_think": False} if of_all else {}
    assert json.loads((tmp_path / "out" / "results.json").read_text())["settings"]["chat_template_kwargs"] == used
    report = (tmp_path / "out" / "report.md").read_text()
    assert ("of its own, which is used" in report) == of_all
    assert 'chat_template_kwargs: {"no_think": true}' not in report


def test_a_report_says_what_of_capability_was_drawn_and_which_values_are_empty(options, tmp_path):
    """Neither stood there: figures of a few items looked like those of whole files, and an empty prefix like the usual one."""
    data = tmp_path / "data"
    data.mkdir()
    write(data / "texts.jsonl", [{"text": f"The capital of country {n} is Paris."} for n in range(5)])
    write(data / "mine.jsonl", [{"clean_prompt": "a", "perturbed_prompt": "b"}])
    rows = [pair(number, answer="Paris", biased_answer="Lima") for number in range(3)]
    options[options.index("--pairs") + 1] = write(tmp_path / "facts.jsonl", rows)
    words = ["--free_answers", "logprob", "--answer_prefix", ""]
    run([*options, *words, "--capability_data", str(data), "--capability_limit", "4"])
    for page in (unescape((tmp_path / "out" / f"report.{kind}").read_text()) for kind in ("md", "html")):
        assert 'answer_prefix: ""' in page
        assert (
            "capability: texts (4); of each file at most 4, drawn with the seed; left out, as files of pairs: mine"
            in page
        )
        assert "system_prompt" not in page
    run([*options, "--system_prompt", ""])
    assert 'system_prompt: ""' in (tmp_path / "out" / "report.md").read_text()


def test_a_card_says_how_its_figures_were_measured():
    settings = {"max_completion_length": 8, "temperature": 0.0, "judge": None}
    more = {"judge": "j", "judge_questions": True, "multiple_choice": "logprob", "load_in_4bit": True}
    models = {"base": {"path": "Qwen/Qwen3-4B"}}
    plain, full = (
        adapter_results._description({"settings": of, "pairs": {"test": {"rows": 5}}, "models": models})
        for of in (settings, settings | more)
    )
    for said in ("requests and free answers judged by j", "likeliest of the offered letters", "4 bits"):
        assert said in full
        assert said not in plain


def test_a_card_says_what_was_drawn_and_how_it_was_sampled_and_read():
    default = {"max_pairs": None, "thinking_markers": ["<think>", "</think>"], "chat_template_kwargs": {}}
    default |= {"max_completion_length": 8, "temperature": 0.0, "top_p": 1.0, "seed": 7, "judge": None, "splits": None}
    changed = {"max_pairs": 3, "temperature": 0.5, "top_p": 0.9, "thinking_markers": ["[T]", "[/T]"]}
    changed |= {"chat_template_kwargs": {"a": 1}, "splits": ["test"], "model_revision": "v1", "judge": "j"}
    changed |= {"judge_max_completion_length": 9, "multiple_choice": "logprob", "choice_prefix": "It is ("}
    models = {"base": {"path": "Qwen/Qwen3-4B"}}
    plain, full = (
        adapter_results._description({"settings": of, "pairs": {"test": {"rows": 5}}, "models": models})
        for of in (default, default | changed)
    )
    for said in (
        "(5 rows), of each at most 3 drawn with seed 7",
        "at temperature 0.5, top_p 0.9, seed 7",
        '`thinking_markers ["[T]", "[/T]"]`',
        '`chat_template_kwargs {"a": 1}`',
        '`splits ["test"]`',
        '`model_revision "v1"`',
        "`judge_max_completion_length 9`",
        '`choice_prefix "It is ("`',
    ):
        assert said in full, said
        assert said not in plain, said


def test_history_is_not_that_of_an_earlier_run_in_the_folder(model_dir, tmp_path):
    """The folder holds the run of 3 steps; checkpoint-6 is left of a longer one before."""
    save_adapter(model_dir, tmp_path, 0)
    for steps, seed in ((3, 0), (6, 1)):
        save_adapter(model_dir, tmp_path / f"checkpoint-{steps}", seed)
        log = [{"step": step, "loss": 1.0} for step in range(1, steps + 1)]
        (tmp_path / f"checkpoint-{steps}" / "trainer_state.json").write_text(json.dumps({"log_history": log}))
    assert len(read_history(str(tmp_path))) == 3
    shutil.rmtree(tmp_path / "checkpoint-3")
    assert read_history(str(tmp_path)) == [], "no checkpoint has the weights: nothing is known"


def test_history_is_not_that_of_a_state_left_in_the_folder(model_dir, tmp_path):
    """`Trainer.save_state` of an earlier run wrote it beside what are now the weights of another."""
    save_adapter(model_dir, tmp_path, 0)
    weights = (tmp_path / "adapter_model.safetensors").read_bytes()
    checksum = xxhash.xxh3_64(weights).hexdigest()
    state = {"log_history": [{"step": 1, "loss": 1.0}]}
    sums = {"adapter_model.safetensors": checksum, "optimizer.pt": "0"}
    state["stateful_callbacks"] = {"manifest": {"checksums": sums}}
    (tmp_path / "trainer_state.json").write_text(json.dumps(state))
    assert len(read_history(str(tmp_path))) == 1, "the weights that it was written with"
    save_adapter(model_dir, tmp_path, 1)
    assert read_history(str(tmp_path)) == [], "other weights"
    (tmp_path / "trainer_state.json").write_text(json.dumps({"log_history": state["log_history"]}))
    assert read_history(str(tmp_path)) == [], "nothing says of which weights"
    checkpoint = tmp_path / "checkpoint-1"
    save_adapter(model_dir, checkpoint, 1)
    (checkpoint / "trainer_state.json").write_text(json.dumps({"log_history": [{"step": 1, "loss": 2.0}] * 2}))
    assert len(read_history(str(tmp_path))) == len(read_history(str(checkpoint))) == 2


@pytest.mark.parametrize("changes", [False, True])
def test_what_did_not_get_worse_is_said(options, tokenizer, model_dir, tmp_path, monkeypatch, capsys, changes):
    folder = tmp_path / "mine"
    save_adapter(model_dir, folder, 0)
    rows = [pair(number, answer="Paris", biased_answer="Rome", source_id=str(number)) for number in range(8)]
    options[options.index("--pairs") + 1] = write(tmp_path / "facts.jsonl", rows)
    options[options.index("--adapters") + 1] = str(folder)

    def generate(model, processing_class, prompts, *args, **kwargs):
        text = "Paris." if isinstance(model, PeftModel) and changes else "Rome."
        return [tokenizer(text=text, add_special_tokens=False)["input_ids"] for _ in prompts]

    monkeypatch.setattr(answering, "generate_ids", generate)
    run(options)
    said = {
        True: "mine: on these pairs, nothing got worse beyond its 95% interval.",
        False: "mine: all answers are the base model's.",
    }
    for page in (capsys.readouterr().out, (tmp_path / "out" / "report.md").read_text()):
        assert said[changes] in page
        assert said[not changes] not in page


def test_a_metric_that_no_finding_names_got_worse(options, tokenizer, model_dir, tmp_path, monkeypatch, capsys):
    """Rows without an answer have only the agreement of their sides."""
    folder = tmp_path / "mine"
    save_adapter(model_dir, folder, 0)
    rows = [
        {
            "clean_prompt": user(f"Name {number}."),
            "perturbed_prompt": user(f"Lyon! Name {number}."),
            "source_id": str(number),
        }
        for number in range(20)
    ]
    options[options.index("--pairs") + 1] = write(tmp_path / "some.jsonl", rows)
    options[options.index("--adapters") + 1] = str(folder)

    def generate(model, processing_class, prompts, *args, **kwargs):
        texts = [
            "Lyon." if isinstance(model, PeftModel) and "Lyon" in tokenizer.decode(ids) else "Paris."
            for ids in prompts
        ]
        return [tokenizer(text=text, add_special_tokens=False)["input_ids"] for text in texts]

    monkeypatch.setattr(answering, "generate_ids", generate)
    run([*options, "--json"])
    models = json.loads(capsys.readouterr().out)["models"]
    assert models["mine"]["findings"] == []
    assert models["mine"]["differences"]["same_words/some"]["high"] < 0
    assert "nothing got worse" not in (tmp_path / "out" / "report.md").read_text()


def test_a_model_that_learned_to_babble_is_a_loss_everywhere(
    options, tokenizer, model_dir, tmp_path, monkeypatch, capsys
):
    """150 of 200 right before, 60 right and 140 unread after: on every page, table and card, and in the exit lines."""
    folder = tmp_path / "mine"
    save_adapter(model_dir, folder, 0)
    (folder / "README.md").write_text("---\nlibrary_name: peft\n---\n\n# Mine\n")
    rows = [pair(0, answer="Paris", biased_answer="Rome", source_id=str(number)) for number in range(200)]
    for number, row in enumerate(rows):
        row["clean_prompt"], row["perturbed_prompt"] = user(f"{number}?"), user(f"Rome! {number}?")
    options[options.index("--pairs") + 1] = write(tmp_path / "facts.jsonl", rows)
    options[options.index("--adapters") + 1] = str(folder)
    models = []

    def generate(model, processing_class, prompts, *args, **kwargs):
        models.append(model)
        right, unread = (60, 140) if isinstance(model, PeftModel) else (150, 0)
        texts = []
        for ids in prompts:
            number = int(re.search(r"(\d+)\?", tokenizer.decode(ids))[1])
            texts.append("Hm." if number < unread else "Paris." if number < unread + right else "Rome.")
        return [tokenizer(text=text, add_special_tokens=False)["input_ids"] for text in texts]

    monkeypatch.setattr(answering, "generate_ids", generate)
    run([*options, "--save_to_adapters"])
    assert len(models) == 2
    out, err = capsys.readouterr()
    lost = "Right answers to clean prompts (facts) fell from 150 to 60 of 200: -45.0 points"
    babbled = "Unread answers to clean prompts (facts) rose from 0 to 140 of 200: +70.0 points"
    assert f"warning: mine: {lost}" in err
    assert f"warning: mine: {babbled}" in err
    folder_of_results = tmp_path / "out"
    results = json.loads((folder_of_results / "results.json").read_text())
    assert results["format"] == 3
    for finding in (lost, babbled):
        assert any(finding in text for text in results["findings"])
        for page in (folder_of_results / "report.md", folder_of_results / "report.html", folder / "README.md"):
            assert finding in page.read_text()
    for page in (out, (folder_of_results / "report.md").read_text()):
        assert re.search(
            r"Accuracy, clean prompts, facts +\| 75.0% \[.*\] \(150/200\) +\| 30.0% \[.*\] \(60/200\), 140 unread",
            page,
        )
        assert re.search(r"Accuracy, clean prompts, facts +\| -45.0pp", page)
        assert re.search(r"prompts, facts +\| 150 right, 50 suggested, 0 unread +\| 60 right, 140 unread", page)
    assert "| 75.0% [" in (folder / "README.md").read_text()
    differences = results["models"]["mine"]["differences"]
    for metric in ("clean_accuracy", "perturbed_accuracy", "sycophancy_score", "consistency"):
        assert differences[f"{metric}/facts"]["high"] < 0, metric
    for figures in (*results["models"]["mine"]["rates"].values(), *differences.values()):
        assert sum(figures["unread"].values()) <= figures["total"] <= 200


def test_demo_page_has_all_rows_and_models(options, tmp_path, capsys):
    run([*options, "--html_demo", "true"])
    assert str(tmp_path / "out" / "demo.html") in capsys.readouterr().out
    html = (tmp_path / "out" / "demo.html").read_text()
    assert html.count("<article ") == 8
    assert html.count("<section ") == 16
    assert all(html.count(f'<option value="{number}"') == 2 for number in (0, 1))
    run(options)
    assert not (tmp_path / "out" / "demo.html").exists(), "a page of an earlier run beside a new report"
