import json
import re
import shutil
import sys
from html.parser import HTMLParser
from types import SimpleNamespace

import pytest
import torch
from datasets import ClassLabel, Dataset
from peft import LoraConfig, get_peft_model
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import clone_chat_template

from tests.helpers.models import CHATML, make_pairs, make_tokenizer
from tests.helpers.processors import TextProcessor
from trl_consistency.cli import main as cli
from trl_consistency.scripts import lint


KEYS = {
    *("rows", "empty", "anchors", "duplicates", "truncated", "no_shared_span", "header_only"),
    *("shared_tokens", "shared_fraction"),
}


@pytest.fixture
def pairs(tmp_path):
    """Four pairs without a fault, and one row each: a repetition, an empty row, a row of another type."""
    path = tmp_path / "pairs.jsonl"
    rows = [*make_pairs(4, completion=False), {"clean_prompt": "", "perturbed_prompt": "Hm?"}]
    rows += [rows[0], {"clean_prompt": "Hm?", "perturbed_prompt": "Lyon? Hm?"}]
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


@pytest.fixture
def good_pairs(tmp_path):
    make_pairs(4, completion=False).to_json(tmp_path / "good.jsonl")
    return tmp_path / "good.jsonl"


def run(*args):
    """The exit status."""
    try:
        cli(["lint", *map(str, args)])
    except SystemExit as end:
        return end.code
    return 0


def test_json_is_all_of_standard_output(pairs, model_dir, tmp_path, capsys):
    options = ("--pairs", pairs, "--model_name_or_path", model_dir, "--json", "--html", tmp_path / "lint.html")
    assert run(*options) == 0
    found = json.loads(capsys.readouterr().out)
    assert found.keys() >= KEYS
    assert (found["rows"], found["empty"], found["duplicates"], found["faulty"]) == (7, 1, 1, 1)
    assert found["first_rows"] == {"empty": [4], "duplicates": [5], "faulty": [6]}
    assert found["max_length"] == 512  # what the model can read
    assert run(*options, "--strict") == 1
    assert json.loads(capsys.readouterr().out) == found


def test_anchors_of_a_recipe_are_told(good_pairs, model_dir, tmp_path, capsys):
    options = ("--pairs", good_pairs, "--model_name_or_path", model_dir, "--anchor_ratio", "0.2")
    assert run(*options, "--html", tmp_path / "lint.html") == 0
    told = "Training adds anchors: 20% of an epoch"
    assert told in capsys.readouterr().out
    assert told in (tmp_path / "lint.html").read_text()


def test_template_of_another_model_whose_processor_has_none(monkeypatch):
    """Its tokenizer has one; pairs were rendered with the model's own template."""
    other = TextProcessor(make_tokenizer(f"Hm.{CHATML}"))
    other.chat_template = None
    monkeypatch.setattr(lint, "load_processing_class", lambda of, *_, **__: other if of == "b" else make_tokenizer())
    of_model = SimpleNamespace(model_name_or_path="a", model_revision=None)
    recipe = SimpleNamespace(chat_template_path="b", trust_remote_code=False, eos_token=None)
    assert lint.recipe_processing_class(of_model, recipe).chat_template == f"Hm.{CHATML}"


def test_the_template_of_another_model_brings_its_tokens(tmp_path, model_dir, good_pairs, capsys):
    """As in training. They were text, which made prompts longer, and answers ended with the model's own end token."""
    other = make_tokenizer(CHATML.replace("<|im_start|>", "<turn>").replace("<|im_end|>", "<end>"))
    other.add_special_tokens({"eos_token": "<end>", "additional_special_tokens": ["<turn>"]})
    other.save_pretrained(tmp_path / "other")
    of_model = SimpleNamespace(model_name_or_path=str(model_dir), model_revision=None)
    recipe = SimpleNamespace(chat_template_path=str(tmp_path / "other"), trust_remote_code=False, eos_token=None)
    found = lint.recipe_processing_class(of_model, recipe)
    _, expected, _ = clone_chat_template(
        AutoModelForCausalLM.from_pretrained(model_dir),
        AutoTokenizer.from_pretrained(model_dir),
        str(tmp_path / "other"),
    )
    chat = [{"role": "user", "content": "What?"}]
    both = [of.apply_chat_template(chat, add_generation_prompt=True).input_ids for of in (found, expected)]
    assert both[0] == both[1]
    assert found.eos_token == expected.eos_token == "<end>"
    command = ("--pairs", good_pairs, "--model_name_or_path", model_dir, "--chat_template_path", tmp_path / "other")
    assert run(*command, "--strict") == 0
    assert "`--chat_template_path` adds 2 token(s)" in run(*command, "--dose")
    assert "`--eos_token` is '<end>', but TRL takes" in run(*command, "--eos_token", "<end>")


@pytest.mark.parametrize("as_json", [False, True])
def test_a_recipes_revision_counts(good_pairs, tmp_path, model_dir, monkeypatch, as_json):
    """The main revision's template was checked, and another one trained with."""
    loaded = []
    monkeypatch.setattr(
        lint, "load_processing_class", lambda of, revision, _: loaded.append(revision) or make_tokenizer()
    )
    options = {"revision": "v1"}
    recipe = write_recipe(tmp_path, model_dir, good_pairs, **({} if as_json else {"model_init_kwargs": options}))
    run("--config", recipe, *(["--model_init_kwargs", json.dumps(options)] if as_json else []))
    assert loaded == ["v1"]


def test_classes_are_read_by_their_names(tmp_path, model_dir, capsys):
    """A folder's requests were taken for questions, whose `answer` is said in their cue."""
    prompts = {"clean_prompt": "Make tea", "perturbed_prompt": "Sorry, no. Make tea"}
    rows = Dataset.from_list([{**prompts, "category": "benign", "answer": "Sorry"}])
    (tmp_path / "data").mkdir()
    rows.cast_column("category", ClassLabel(names=["benign", "harmful"])).to_parquet(tmp_path / "data/train.parquet")
    found = []
    for pairs in (tmp_path / "data", tmp_path / "data" / "train.parquet"):
        run("--pairs", pairs, "--model_name_or_path", model_dir, "--json")
        found.append(json.loads(capsys.readouterr().out))
    assert found[0] == found[1]
    assert found[0]["leaked_target"] == 0


def test_pairs_without_a_cue_are_told(tmp_path, model_dir, capsys):
    """Training says that lint shows them. It said that no faults were found, and nothing else."""
    (tmp_path / "pairs.jsonl").write_text(chat_pair("What?", "What?"))
    page = tmp_path / "lint.html"
    assert run("--pairs", tmp_path / "pairs.jsonl", "--model_name_or_path", model_dir, "--html", page, "--strict") == 0
    told = "All of them have two equal prompts, so that there is no cue to learn to ignore."
    assert told in capsys.readouterr().out
    assert told in page.read_text()


def test_a_recipes_end_of_turn_counts(model_dir, good_pairs, monkeypatch):
    """The answers of the dose ran on over it, and templates that write it wrote another one."""
    seen = []
    monkeypatch.setattr(lint, "measure_dose", lambda model, of, *args, **kwargs: seen.append(of) or sys.exit(0))
    options = ("--pairs", good_pairs, "--model_name_or_path", model_dir, "--eos_token", "<|im_start|>")
    assert run(*options, "--dose") == 0
    assert seen[0].eos_token == "<|im_start|>"


def test_strict_without_findings(good_pairs, model_dir, capsys):
    assert run("--pairs", good_pairs, "--model_name_or_path", model_dir, "--strict") == 0
    assert "No faults were found" in capsys.readouterr().out


def test_no_weights_are_loaded(good_pairs, tokenizer, tmp_path, capsys):
    tokenizer.save_pretrained(tmp_path / "alone")
    assert run("--pairs", good_pairs, "--model_name_or_path", tmp_path / "alone", "--json") == 0
    assert json.loads(capsys.readouterr().out)["max_length"] is None


def test_length_limit(good_pairs, model_dir, capsys):
    options = ("--pairs", good_pairs, "--model_name_or_path", model_dir, "--json")
    lengths = []
    for limit in (30, 40, 50):
        assert run(*options, "--max_length", limit) == 0
        lengths.append(json.loads(capsys.readouterr().out)["truncated"])
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] > 0 == lengths[-1]
    run(*options, "--max_length", 50, "--max_completion_length", 40)
    assert json.loads(capsys.readouterr().out)["truncated"] == 4


@pytest.mark.parametrize(
    ("options", "limit"),
    [
        (["--max_length", "9999"], 512),
        (["--max_length", "9999", "--model_init_kwargs", '{"max_position_embeddings": 600}'], 600),
        (["--max_length", "300"], 300),
        ([], 512),
    ],
)
def test_rows_beyond_the_context_are_found_whatever_the_limit(model_dir, tmp_path, options, limit, capsys):
    """Training refuses them as it refuses those over `max_length`."""
    pairs = tmp_path / "long.jsonl"
    pairs.write_text(chat_pair("What? " * 400, "Lyon? " + "What? " * 400))
    assert run("--pairs", pairs, "--model_name_or_path", model_dir, "--json", "--strict", *options) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["truncated"], found["max_length"]) == (1, limit)


def test_a_longer_context_by_the_models_config_counts(model_dir, tokenizer, tmp_path, good_pairs, capsys):
    """As in training; the tokenizer's own number is often that of the model before its context was made longer."""
    folder = tmp_path / "model"
    tokenizer.save_pretrained(folder)
    (folder / "tokenizer_config.json").write_text(
        json.dumps(json.loads((folder / "tokenizer_config.json").read_text()) | {"model_max_length": 64})
    )
    config = json.loads((model_dir / "config.json").read_text())
    scaling = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 512}
    (folder / "config.json").write_text(json.dumps(config | {"rope_parameters": scaling}))
    assert run("--pairs", good_pairs, "--model_name_or_path", folder, "--json") == 0
    assert json.loads(capsys.readouterr().out)["max_length"] == 2048


@pytest.mark.parametrize("colour", [False, True])
def test_marked_pairs_in_a_terminal(good_pairs, model_dir, capsys, monkeypatch, colour):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "90")
    monkeypatch.setenv("NO_COLOR", "" if colour else "1")
    assert run("--pairs", good_pairs, "--model_name_or_path", model_dir, "--samples", "9") == 0
    printed = capsys.readouterr().out
    assert ("\033[" in printed) == colour
    plain = re.sub(r"\033\[[\d;]*m", "", printed)
    assert plain.count(", clean ") == 4
    assert max(map(len, plain[plain.index("row 0, clean") :].splitlines())) <= 100
    if not colour:
        assert "«I think the answer is Lyon" in plain
        assert "⟨<|im_end|>↵" in plain


def chat_pair(clean, perturbed):
    sides = {"clean_prompt": clean, "perturbed_prompt": perturbed}
    return json.dumps({key: [{"role": "user", "content": text}] for key, text in sides.items()}) + "\n"


def test_of_long_rows_the_ends_are_shown(model_dir, tmp_path, capsys, monkeypatch):
    """In the terminal and on the page; what is marked stays in sight, and what is left out is counted."""
    monkeypatch.setenv("COLUMNS", "100")
    path, page = tmp_path / "long.jsonl", tmp_path / "long.html"
    path.write_text(chat_pair("fox " * 3000 + "End.", "Lyon? " + "dog " * 3000 + "End."))
    assert run("--pairs", path, "--model_name_or_path", model_dir, "--html", page) == 0
    printed = capsys.readouterr().out
    for shown, most in ((printed, 4_000), (page.read_text(), 150_000)):
        assert re.search(r"\[\.\.\. \d{4,} tokens \.\.\.\]", shown)
        assert len(shown) < most
    assert "«Lyon? dog" in printed
    assert "End." in printed


def test_columns_stay_straight(model_dir, tmp_path, capsys, monkeypatch):
    """Wide characters take two columns, marks above a letter none, and what cannot be seen is shown as a dot."""
    monkeypatch.setenv("COLUMNS", "60")
    path = tmp_path / "wide.jsonl"
    path.write_text(
        chat_pair(
            "首都はどこですか。" * 3 + "e\u0301\x1b[31m", "リヨン。" + "首都はどこですか。" * 3 + "e\u0301\x1b[31m"
        )
    )
    assert run("--pairs", path, "--model_name_or_path", model_dir) == 0
    lines = capsys.readouterr().out.partition("row 0, clean")[2].splitlines()[2:-2]
    lefts = [line.partition(" | ")[0] for line in lines if " | " in line]
    assert len(lefts) > 3
    wide = [sum(0 if c == "\u0301" else 2 if "\u3000" <= c <= "\u9fff" else 1 for c in left) for left in lefts]
    assert set(wide) == {28}
    assert "\x1b" not in "".join(lines)


def test_terminal_that_knows_few_characters(good_pairs, model_dir):
    import io
    import sys

    output = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", output)
        assert run("--pairs", good_pairs, "--model_name_or_path", model_dir) == 0
    output.flush()
    assert b"?I think the answer is Lyon" in output.buffer.getvalue()


def test_text_that_turns_round_the_text_beside_it(model_dir, tmp_path):
    path, page = tmp_path / "turned.jsonl", tmp_path / "turned.html"
    path.write_text(chat_pair("\u202eWhy?", "Lyon. \u202eWhy?"))
    assert run("--pairs", path, "--model_name_or_path", model_dir, "--html", page) == 0
    assert "\u202e" not in page.read_text()


class Marks(HTMLParser):
    """The text of each mark on a page, and any link to another file."""

    def __init__(self):
        super().__init__()
        self.texts, self.links, self.open = {}, [], []

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.links += [attributes[name] for name in ("src", "href") if name in attributes]
        self.open.append(attributes.get("class", ""))

    def handle_endtag(self, tag):
        self.open.pop()

    def handle_data(self, data):
        mark = self.open[-1].removeprefix("t ") if self.open else ""
        self.texts[mark] = self.texts.get(mark, "") + data


def test_page_stands_alone(pairs, model_dir, tmp_path):
    path = tmp_path / "lint.html"
    with pairs.open("a") as file:
        cue = "<script>alert(1)</script>"
        row = {"clean_prompt": "Fox?", "perturbed_prompt": f"{cue} Fox?"}
        file.write("\n" + json.dumps({key: [{"role": "user", "content": text}] for key, text in row.items()}))
    run("--pairs", pairs, "--model_name_or_path", model_dir, "--html", path, "--samples", 9, "--max_length", 40)
    page = path.read_text()
    assert cue not in page
    marks = Marks()
    marks.feed(page)
    assert not marks.links
    assert "url(" not in page
    assert "alert(1)" in marks.texts["cue"]
    assert "assistant" in marks.texts["header"]
    assert marks.texts["over"] != "over the limit"  # more than the legend
    assert "row 6: " in page


def test_page_has_the_first_row_of_a_finding_that_can_be_used(model_dir, tmp_path):
    """If the first one of all could not be used, none was shown."""
    path, page = tmp_path / "pairs.jsonl", tmp_path / "lint.html"
    answered = {**json.loads(chat_pair("Why?", "Lyon. Why?")), "completion": "So."}
    lacking = {**json.loads(chat_pair("Who?", "Lyon. Who?")), "completion": None}
    path.write_text("".join(json.dumps(row) + "\n" for row in [answered, lacking, lacking, answered]))
    run("--pairs", path, "--model_name_or_path", model_dir, "--html", page, "--samples", 0)
    assert 'duplicates</td><td class="n">2</td>' in page.read_text()
    assert "<h2>Row 3: duplicates</h2>" in page.read_text()


def write_recipe(tmp_path, model_dir, data, **options):
    """A recipe for a machine with a GPU."""
    path = tmp_path / "recipe.yaml"
    keys = {"model_name_or_path": str(model_dir), "dataset_name": str(data), "bf16": True, **options}
    path.write_text("\n".join(f"{key}: {json.dumps(value)}" for key, value in keys.items()))
    return path


@pytest.mark.parametrize(
    ("options", "status"),
    [
        ({"method": "act"}, 1),
        ({"method": ["act"], "act_tokens": "all"}, 0),
        ({"method": ["bct"]}, 0),
        ({"num_generations": 2}, 0),
        ({"method": ["bct", "attct"]}, 0),
        ({"ref_model_name_or_path": "me/other"}, 0),
    ],
)
def test_recipe_says_what_matters(tmp_path, model_dir, options, status):
    """Pairs whose cue comes last give ACT nothing to compare, and are as good as any for the other objectives."""
    data = tmp_path / "late.jsonl"
    data.write_text(chat_pair("Where?", "Where? Or Lyon"))
    recipe = write_recipe(tmp_path, model_dir, data, max_completion_length=8, **options)
    assert run("--config", recipe, "--strict") == status


@pytest.mark.parametrize(
    ("method", "found"), [(["attct"], 1), (["bct", "mlpct"], 1), (["act"], None), (["bct"], None)]
)
def test_a_question_in_pieces_matters_to_attct_and_mlpct(tmp_path, model_dir, method, found, capsys):
    """Training refused such pairs. `lint` said that no faults were found, and counted the ends of the prompts instead."""
    data = tmp_path / "pieces.jsonl"
    data.write_text(chat_pair("Where is the fox now?", "Where Lyon is Lyon the Lyon fox Lyon now?"))
    recipe = write_recipe(tmp_path, model_dir, data, max_completion_length=8, method=method)
    assert run("--config", recipe, "--strict", "--json") == int(found is not None)
    assert json.loads(capsys.readouterr().out).get("no_shared_content") == found


@pytest.mark.parametrize(
    ("options", "truncated"),
    [
        ({"method": "act"}, 0),  # needs no answers
        ({"method": "bct", "max_completion_length": 8}, 0),
        ({"method": "bct"}, 4),
        ({"num_generations": 2}, 4),
        ({"method": "act", "max_completion_length": 60}, 0),
    ],
)
def test_recipe_reserves_room_for_answers(tmp_path, model_dir, good_pairs, options, truncated, capsys):
    recipe = write_recipe(tmp_path, model_dir, good_pairs, max_length=80, **options)
    assert run("--config", recipe, "--json") == 0
    assert json.loads(capsys.readouterr().out)["truncated"] == truncated


@pytest.mark.parametrize(("options", "truncated"), [({"method": "bct"}, 4), ({"num_generations": 2}, 0)])
def test_rollouts_may_end_before_the_context_does(tmp_path, model_dir, good_pairs, options, truncated, capsys):
    """OPCT trains on rows that leave less room than `max_completion_length`, which were said to be refused."""
    recipe = write_recipe(tmp_path, model_dir, good_pairs, **options)
    assert run("--config", recipe, "--json") == 0
    assert json.loads(capsys.readouterr().out)["truncated"] == truncated


def test_targets_of_a_larger_vocabulary_are_found(tmp_path, model_dir, good_pairs, capsys):
    """Training refused them, and `lint` found no faults."""
    rows = [json.loads(line) | {"completion_ids": [5, 99_999]} for line in good_pairs.read_text().splitlines()]
    good_pairs.write_text("\n".join(map(json.dumps, rows)))
    assert run("--pairs", good_pairs, "--model_name_or_path", model_dir, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["faulty"] == 4
    assert "token 99999 is beyond the model's vocabulary" in found["reasons"][0]["reason"]


def test_template_of_the_recipe(tmp_path, model_dir, good_pairs, capsys):
    (tmp_path / "own.jinja").write_text("{% for m in messages %}{{ m.content }}{% endfor %} A B C D")
    recipe = write_recipe(tmp_path, model_dir, good_pairs)
    shared = []
    for options in (
        (),
        ("--chat_template_path", tmp_path / "own.jinja"),
        ("--chat_template_kwargs", '{"no_think": true}'),
    ):
        assert run("--config", recipe, "--json", *options) == 0
        shared.append(json.loads(capsys.readouterr().out)["shared_tokens"]["min"])
    assert shared[0] != shared[1]
    assert shared[2] > shared[0]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("{", "cannot be read"),
        ('{"peft_type": "NOPE"}', "cannot be read"),
        ('{"peft_type": "LORA"}', "of which model"),
        ('{"peft_type": "LORA", "base_model_name_or_path": "nowhere"}', "nowhere cannot be loaded"),
    ],
)
def test_adapter_without_its_model(good_pairs, tokenizer, tmp_path, config, message):
    folder = tmp_path / "adapter"
    tokenizer.save_pretrained(folder)
    save_file({"weight": torch.zeros(1)}, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(config)
    assert message in str(run("--pairs", good_pairs, "--model_name_or_path", folder, "--dose"))


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--pairs", "none.jsonl"], "There is no file none.jsonl"),
        (["--pairs", "{broken}"], "line 1"),
        (["--pairs", "{questions}"], "no column `clean_prompt`"),
        (["--pairs", "{pairs}", "--model_name_or_path", "nowhere"], "tokenizer of nowhere"),
        (["--pairs", "{pairs}", "--html", "no/such/folder.html"], "`--html`"),
        (["--pairs", "{pairs}", "--chat_template_kwargs", "x"], "`--chat_template_kwargs`"),
        (["--pairs", "{pairs}", "--model_init_kwargs", "[1]"], "`--model_init_kwargs` must be a mapping"),
        ([], "No data"),
    ],
)
def test_what_cannot_be_read(args, message, tmp_path, pairs, model_dir):
    (tmp_path / "broken.jsonl").write_text("{")
    (tmp_path / "questions.jsonl").write_text('{"question": "Hm?", "perturbed_prompt": "Hm?"}')
    files = {name: str(tmp_path / f"{name}.jsonl") for name in ("broken", "questions", "pairs")}
    args = [arg.format(**files) for arg in args]
    model = [] if "--model_name_or_path" in args else ["--model_name_or_path", model_dir]
    assert message in str(run(*args, *model))


def test_all_options_of_both_trainers_can_be_read():
    from dataclasses import fields

    from trl_consistency import ConsistencyConfig, OnPolicyConsistencyConfig

    names = {option.name for option in fields(lint._recipe_options())}
    for config in (ConsistencyConfig, OnPolicyConsistencyConfig):
        assert {option.name for option in fields(config) if option.init} <= names


def test_dose(good_pairs, model_dir, tmp_path, capsys):
    options = ("--pairs", good_pairs, "--model_name_or_path", model_dir, "--dose", "--max_completion_length", 4)
    assert run(*options, "--dose_pairs", 3, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found.keys() >= KEYS
    assert found["dose"]["dose/pairs"] == 3
    assert found["dose"]["dose/kl"] > 0
    assert isinstance(found["dose"]["warnings"], list)
    page = tmp_path / "dose.html"
    assert run(*options, "--strict", "--html", page) == 0  # the dose is no fault of the pairs
    for shown in (capsys.readouterr().out, page.read_text()):
        assert "Dose, on 4 pairs" in shown
        assert "same_words: " in shown


@pytest.mark.parametrize(
    ("recipe", "columns", "is_warned"),
    [
        ("", {}, True),
        ("", {"completion": "Paris."}, False),
        ("method: kl\n", {"completion": "Paris."}, False),
        ("method: act\n", {"completion": "Paris."}, True),
        ("num_generations: 2\n", {"completion": "Paris."}, True),
        ("num_generations: 2\nref_model_name_or_path: other\n", {}, False),
    ],
)
def test_dose_of_a_training_with_another_teacher(model_dir, tmp_path, capsys, recipe, columns, is_warned):
    """Given answers were trained on, or another model's, and nothing was said to be left to train."""
    shutil.copytree(model_dir, tmp_path / "model")
    model = AutoModelForCausalLM.from_pretrained(model_dir)
    torch.nn.init.zeros_(model.lm_head.weight)  # whatever it reads, it says the same
    model.save_pretrained(tmp_path / "model")
    pairs = [{"clean_prompt": f"{n}?", "perturbed_prompt": f"Lyon! {n}?", **columns} for n in range(4)]
    file = tmp_path / "given.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in pairs))
    (tmp_path / "recipe.yaml").write_text(recipe)
    given = ("--config", tmp_path / "recipe.yaml") if recipe else ()
    options = ("--max_completion_length", 4, "--json", "--dose", "--pairs", file)
    assert run("--model_name_or_path", tmp_path / "model", *given, *options) == 0
    warnings = json.loads(capsys.readouterr().out)["dose"]["warnings"]
    assert any("nothing to train" in warning for warning in warnings) == is_warned


def test_dose_of_a_config_that_the_recipe_changes(good_pairs, model_dir, tmp_path, capsys):
    """It was of the model in the files, and the training is of another."""
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("model_init_kwargs: {rms_norm_eps: 0.5, dtype: bfloat16}\n")
    model = AutoModelForCausalLM.from_pretrained(model_dir, rms_norm_eps=0.5, dtype=torch.bfloat16)
    model.save_pretrained(tmp_path / "changed")
    AutoTokenizer.from_pretrained(model_dir).save_pretrained(tmp_path / "changed")
    doses = []
    options = ("--pairs", good_pairs, "--dose", "--max_completion_length", 4, "--json")
    for of_model in (
        ("--model_name_or_path", model_dir, "--config", recipe),
        ("--model_name_or_path", tmp_path / "changed", "--dtype", "bfloat16"),
        ("--model_name_or_path", model_dir),
    ):
        assert run(*of_model, *options) == 0
        doses.append(json.loads(capsys.readouterr().out)["dose"]["dose/kl"])
    assert doses[0] == doses[1] != doses[2]
    message = "`model_init_kwargs` changes the model's config (rms_norm_eps), and vLLM loads the model from its files"
    assert message in run(
        "--model_name_or_path", model_dir, "--config", recipe, "--engine", "http://localhost:1", *options
    )
    recipe.write_text("model_init_kwargs: {subfolder: other}\n")
    assert "`model_init_kwargs` sets `subfolder`" in run(
        "--model_name_or_path", model_dir, "--config", recipe, *options
    )


def test_dose_of_an_adapter(good_pairs, model_dir, tokenizer, tmp_path, capsys):
    """The folder that training saves stands for its base model with the adapter: so the dose is measured after it, too."""
    model = get_peft_model(
        AutoModelForCausalLM.from_pretrained(model_dir),
        LoraConfig(target_modules="all-linear", init_lora_weights=False),
    )
    folder = tmp_path / "adapter"
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    model.merge_and_unload().save_pretrained(tmp_path / "merged")
    tokenizer.save_pretrained(tmp_path / "merged")
    doses = {}
    for name in (model_dir, folder, tmp_path / "merged"):
        options = ("--model_name_or_path", name, "--dose", "--max_completion_length", 4, "--json")
        assert run("--pairs", good_pairs, *options) == 0
        doses[name] = json.loads(capsys.readouterr().out)["dose"]["dose/kl"]
    assert doses[folder] == pytest.approx(doses[tmp_path / "merged"], rel=1e-3)
    assert doses[folder] != pytest.approx(doses[model_dir], rel=1e-3)


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({"answer": "B", "biased_answer": "b"}, "`biased_answer` is 'b': write the letter of the choice alone, 'B'"),
        ({"answer": "A", "biased_answer": "C"}, "`biased_answer` is 'C', and the clean prompt offers A, B alone"),
    ],
)
def test_dose_names_the_row_of_a_faulty_key(tmp_path, model_dir, keys, reason):
    """By its number in the file, which has a row before it that cannot be used, and before the weights load."""
    path, choices = tmp_path / "pairs.jsonl", "Which?\n(A) dog\n(B) cow"
    prompts = {"clean_prompt": choices, "perturbed_prompt": f"My guess: B. {choices}"}
    path.write_text("\n".join(map(json.dumps, [prompts | {"clean_prompt": ""}, prompts | keys])))
    said = str(run("--pairs", path, "--model_name_or_path", model_dir, "--dose"))
    assert f"`pairs`: 1 of 2 row(s) cannot be used. Nothing was dropped; mend or remove it: row 1: {reason}" in said


@pytest.mark.parametrize("prompt", [[1, 2], [{"role": "user", "content": 5}]])
def test_dose_leaves_out_rows_that_cannot_be_used(model_dir, good_pairs, prompt, capsys):
    """With an `answer`, they ended it with a traceback."""
    with good_pairs.open("a") as file:
        file.write(json.dumps({"clean_prompt": prompt, "perturbed_prompt": prompt, "answer": "A"}))
    options = ("--pairs", good_pairs, "--model_name_or_path", model_dir, "--max_completion_length", 4, "--json")
    assert run(*options, "--dose") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["rows"], found["empty"] + found["faulty"], found["dose"]["dose/pairs"]) == (5, 1, 4)


def test_dose_names_the_row_that_is_too_long(tmp_path, model_dir):
    """Its number was that among the rows that can be used."""
    path = tmp_path / "pairs.jsonl"
    path.write_text(chat_pair("", "What?") + chat_pair("What?", "Lyon? What?") + chat_pair("What? " * 400, "Lyon?"))
    said = str(run("--pairs", path, "--model_name_or_path", model_dir, "--dose"))
    assert re.search(r"row 2: a prompt has \d+ tokens, which leaves no room in the model's context of 512", said)


def test_dose_of_anchors(tmp_path, model_dir):
    path = tmp_path / "anchors.jsonl"
    path.write_text(json.dumps({"clean_prompt": "Hm?", "perturbed_prompt": "Hm?"}))
    assert "`--dose`" in str(run("--pairs", path, "--model_name_or_path", model_dir, "--dose"))
