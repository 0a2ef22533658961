"""Hostile input: other commands."""

from functools import partial

from datasets import Dataset
from safetensors.torch import load_file, save_file

from tests.helpers.models import make_tokenizer
from tests.hostile_input.damage import adapter, disk_fills, pickled_adapter
from tests.hostile_input.room import CHAT, Case, Room
from trl_consistency.cli import main as cli
from trl_consistency.evaluation import grade
from trl_consistency.perturbations import PERTURBATIONS


def halve(room: Room) -> None:
    """An adapter, beside its tokenizer, that lost half of its weights; weights must load to put it on its model."""
    folder = adapter(room, base_model_name_or_path=str(room.model_dir))
    make_tokenizer().save_pretrained(folder)
    weights = load_file(folder / "adapter_model.safetensors")
    save_file(dict(list(weights.items())[::2]), folder / "adapter_model.safetensors")
    room.monkeypatch.undo()


def offering(answer: str, biased: str, clean: str = "(A) dog\n(B) cow", perturbed: str | None = None) -> dict:
    """A question with choices."""
    prompts = {"clean_prompt": f"Largest?\n{clean}", "perturbed_prompt": f"It is (B). Largest?\n{perturbed or clean}"}
    turns = {column: [{"role": "user", "content": text}] for column, text in prompts.items()}
    return {**turns, "answer": answer, "biased_answer": biased}


def targets_of(room: Room, entry: str, file: str) -> None:
    """`targets` of a mixture of one entry, into a file of the room."""
    options = {"command": "targets", "dataset_name": ""}
    room.train(f"datasets:\n  - {entry}\n", "--targets_file", str(room.path / file), **options)


def undeclared(
    room: Room, declared: str = "", body: str = "draft.add(cue.position, cue.text)", named: str = "rumour"
) -> None:
    """A perturbation of one's own that does not say what it suggests, or says it otherwise than is known, or has another fault."""
    wordings = '{"train": ["They say it is {answer}."], "held_out": ["It is {answer}, they say."]}'
    code = f"from trl_consistency.perturbations import perturbation\n@perturbation({wordings}, positions=['end']{declared})\n"
    code += f"def rumour(draft, cue):\n    'A rumour.'\n    {body}\n"
    try:
        room.pairs(
            None,
            "--perturbations_file",
            str(room.file("mine.py", code)),
            "--perturbations",
            named,
            "--test_share",
            "0",
        )
    finally:
        PERTURBATIONS.pop("rumour", None)


THREE = "(A) dog\n(B) cow\n(C) cat"

CASES: list[Case] = [
    *(
        Case(
            f"evaluation with the alias {alias}",
            f"`evaluate`: another choice among the names of the right answer, by its {what}",
            f"…row 0: `aliases` are names of the right answer, and {alias!r} is another choice",
            lambda room, alias=alias: room.evaluate([offering("B", "A", THREE) | {"aliases": ["bull", alias]}]),
        )
        for alias, what in (("C", "letter"), ("dog", "text"))
    ),
    Case(
        "pairs without questions",
        "`pairs`: no column of questions",
        "No column of questions or prompts: name it in `prompt_column`. There are `text`.",
        lambda room: room.pairs([{"text": "x"}]),
    ),
    Case(
        "pairs without rows",
        "`pairs`: a file without rows",
        "…questions.jsonl has no rows.",
        lambda room: room.pairs([]),
    ),
    Case(
        "pairs of an unknown kind",
        "`pairs`: a misspelt perturbation",
        "Unknown perturbation `typo`. Did you mean `typos`?",
        lambda room: room.pairs(None, "--perturbations", "typo"),
    ),
    Case(
        "pairs edited when they are encoded",
        "`pairs`: typing errors in what is encoded by then",
        "`base64+typos`: `typos` would edit the encoded text. Put it before `base64`.",
        lambda room: room.pairs(None, "--perturbations", "base64+typos"),
    ),
    Case(
        "pairs with tools that are no JSON",
        "`pairs`: a column that the pairs keep, and that training would refuse",
        "…row 0: `tools` is not valid JSON (…)",
        lambda room: room.pairs([{"question": "Is it late?", "tools": "[{"}], "--perturbations", "typos"),
    ),
    Case(
        "pairs of text with tools",
        "`pairs`: tools beside prompts that are to be text",
        "…row 0: `tools` is given, but the prompts are text, which no chat template renders",
        lambda room: room.pairs(
            [{"question": "Is it late?", "tools": [{"name": "clock"}]}],
            *("--perturbations", "typos", "--prompt_format", "text"),
        ),
    ),
    Case(
        "pairs with a wrong answer",
        "`pairs`: an answer that is none of the choices",
        "…row 0: `answer` 'horse' is not one of the 2 choices: give a letter, the text of a choice, or …",
        lambda room: room.pairs([{"question": "Largest?", "choices": ["dog", "cow"], "answer": "horse"}]),
    ),
    Case(
        "pairs with an empty choice",
        "`pairs`: a choice that is missing before others, whose letters would shift",
        "…row 0: `b` is empty, though a choice after it is not",
        lambda room: room.pairs(
            [{"question": "Largest?", "a": "dog", "b": "", "c": "cow", "answer": "C"}], "--choices_column", *"abc"
        ),
    ),
    Case(
        "pairs with two answers",
        "`pairs`: two answers to one question",
        "…row 1: an earlier row asks the same and has another answer: one of them is wrong",
        lambda room: room.pairs(
            [{"question": "Largest?", "choices": ["dog", "cow"], "answer": answer} for answer in ("cow", "dog")]
        ),
    ),
    Case(
        "pairs of cut JSON",
        "`pairs`: a file that was cut short",
        "…questions.csv, line 1: cannot be read (unexpected end of data).",
        lambda room: cli(
            ["pairs", "--dataset_name", str(room.file("questions.csv", '"question\n')), "--output_dir", "out"]
        ),
    ),
    Case(
        "share out of range",
        "`pairs`: a share out of its range",
        "`test_share` must be …, got 2.0.",
        lambda room: room.pairs(None, "--test_share", "2"),
    ),
    Case(
        "own perturbations with a fault",
        "`pairs`: a file of perturbations that does not run",
        "`perturbations_file` …mine.py, line 1: NameError: name 'perturbation' is not defined",
        lambda room: room.pairs(None, "--perturbations_file", str(room.file("mine.py", "perturbation(1)\n"))),
    ),
    Case(
        "own perturbation that does not say that it suggests an answer",
        "`pairs`: a perturbation of one's own that names a wrong answer, and does not declare that it suggests one",
        "The wording 'They say it is {answer}.' has `{answer}`, and there is nothing to put there. Declare `suggests=\"wrong\"` with its perturbation.",
        undeclared,
    ),
    Case(
        "own perturbation that fails",
        "`pairs`: a perturbation of one's own that raises an error",
        "The perturbation `rumour` ended with NameError on source …: name 'wording' is not defined",
        lambda room: undeclared(room, ", suggests='wrong'", "wording"),
    ),
    Case(
        "own perturbation that edits the question",
        "`pairs`: a perturbation of one's own that edits the question, and does not say so",
        "`rumour/train-00` changes the text of the question of source …. Declare `keeps_question=False` with the perturbation that does.",
        lambda room: undeclared(room, ", suggests='wrong'", "draft.replace(cue.text)"),
    ),
    Case(
        "own perturbation that suggests something unknown",
        "`pairs`: a perturbation of one's own with an unknown `suggests`, by which its pairs would have no `biased_answer`",
        "`rumour`: 'Wrong' is not one of 'wrong', 'not right', None.",
        lambda room: undeclared(room, ", suggests='Wrong'"),
    ),
    Case(
        "own perturbations that are not named",
        "`pairs`: a file of your own perturbations, none of which is named",
        "`perturbations_file` …mine.py registers rumour, and `perturbations` names none of them: suggested_answer.",
        lambda room: undeclared(room, ", suggests='wrong'", named="suggested_answer"),
    ),
    Case(
        "lint of another split of a file",
        "`lint`: a recipe that names a split of a single file, which training refuses",
        "`dataset_train_split` is `big`, but …pairs.jsonl is a file, whose only split is `train`.",
        lambda room: cli(
            [
                *("lint", "--model_name_or_path", str(room.model_dir), "--dataset_train_split", "big"),
                *("--dataset_name", str(room.file("pairs.jsonl", [CHAT]))),
            ]
        ),
    ),
    Case(
        "pairs with a column that training makes",
        "`pairs`: a column to keep for which training would refuse the pairs",
        "`keep_columns`: training or evaluation would refuse the pairs for the column `clean_ids`, a name that preparation uses: rename it.",
        lambda room: room.pairs(
            [{"question": "Largest?", "choices": ["dog", "cow"], "answer": "cow", "clean_ids": [1]}],
            *("--keep_columns", "clean_ids"),
        ),
    ),
    Case(
        "model without a question",
        "`pairs`: a model of which nothing is asked",
        "`model_name_or_path` is given, but nothing is asked of the model: set `keep_vulnerable`.",
        lambda room: room.pairs(None, "--model_name_or_path", "x"),
    ),
    Case(
        "vulnerable model that is not there",
        "`pairs`: a model that is not there",
        "nobody/nothing cannot be loaded: We couldn't connect to …",
        lambda room: room.pairs(None, "--keep_vulnerable", "--model_name_or_path", "nobody/nothing"),
    ),
    Case(
        "lint without a model",
        "`lint`: no model is named",
        "No model: give `model_name_or_path`. Only its tokenizer is loaded.",
        lambda room: cli(["lint", "--pairs", str(room.file("pairs.jsonl", [CHAT]))]),
    ),
    Case(
        "lint of too few",
        "`lint`: fewer than no samples",
        "`samples` must be at least 0, got -3.",
        lambda room: (room.file("pairs.jsonl", [CHAT]), room.lint("--samples", "-3")),
    ),
    Case(
        "lint of cut JSON",
        "`lint`: a file that was cut short",
        "…pairs.jsonl, line 1: not valid JSON (…). Write one JSON object a line.",
        lambda room: (room.file("pairs.jsonl", "{"), room.lint()),
    ),
    Case(
        "lint of nothing",
        "`lint`: a page that cannot be written",
        "`html` `/dev/null/x` cannot be written (Not a directory). What was there before is kept: choose another place, "
        "and start again.",
        lambda room: (room.file("pairs.jsonl", [CHAT]), room.lint("--html", "/dev/null/x")),
    ),
    Case(
        "lint of a pickled model",
        "`lint`: the dose of a model whose weights are a pickle",
        "…model holds its weights as a pickle (pytorch_model.bin), which is not loaded: it could run code. If you trust it, convert it to safetensors: `AutoModelForCausalLM.from_pretrained(folder).save_pretrained(new_folder)`.",
        lambda room: (
            room.file("pairs.jsonl", [CHAT]),
            cli(
                [
                    "lint",
                    "--pairs",
                    str(room.path / "pairs.jsonl"),
                    "--dose",
                    "--model_name_or_path",
                    room.pickled_model(),
                ]
            ),
        ),
    ),
    Case(
        "evaluation of an answer that is no text",
        "`evaluate`: an answer that is no text",
        "`…pairs.jsonl`: 1 of 1 row(s) cannot be used. Nothing was dropped; mend or remove it: row 0: `answer` must be text, not 3",
        lambda room: room.evaluate([{**CHAT, "answer": 3}]),
    ),
    Case(
        "two answers to the same prompts",
        "`evaluate`: the same prompts with two different answers",
        "`…pairs.jsonl`: 1 of 2 row(s) cannot be used. Nothing was dropped; mend or remove it: row 1: the `answer` is 'Oslo', and 'Paris' in row 0, which has the same clean prompt: one of them is wrong",
        lambda room: room.evaluate([{**CHAT, "answer": answer} for answer in ("Paris", "Oslo")]),
    ),
    *(
        Case(
            name,
            wrong,
            f"`…pairs.jsonl`: 1 of 1 row(s) cannot be used. Nothing was dropped; mend or remove it: row 0: {message}",
            lambda room, row=row: room.evaluate([row]),
        )
        for name, wrong, message, row in (
            (
                "a letter that is not offered",
                "`evaluate`: the letter of a choice that the prompt does not offer",
                "`answer` is 'C', and the clean prompt offers A, B alone",
                offering("C", "B"),
            ),
            (
                "a suggested letter that is not offered",
                "`evaluate`: the same of the suggested answer",
                "`biased_answer` is 'D', and the clean prompt offers A, B alone",
                offering("A", "D"),
            ),
            (
                "two answers that are read as one",
                "`evaluate`: a suggested answer that a reply could not give without giving the right one",
                "`biased_answer` 'The Beatles' and `answer` 'Beatles' are read as one answer, so that the cue would suggest the right one. "
                "Spell them alike if it does, or suggest another answer",
                {**CHAT, "answer": "Beatles", "biased_answer": "The Beatles"},
            ),
            (
                "a suggested choice in words",
                "`evaluate`: an answer that is a letter, and a suggested one that is the text of its choice",
                "`biased_answer` is 'cow', and `answer` a letter: write the letter of that choice, 'B'",
                offering("A", "cow"),
            ),
            (
                "a suggested letter in brackets",
                "`evaluate`: a letter that is not written alone",
                "`biased_answer` is '(B)': write the letter of the choice alone, 'B'",
                offering("A", "(B)"),
            ),
            (
                "a suggested answer that is no choice",
                "`evaluate`: an answer that is a letter, and a suggested one that is none",
                "`biased_answer` is 'a pig', and replies are read for A, B alone: write the letter of a choice",
                offering("A", "a pig"),
            ),
            (
                "choices in another order",
                "`evaluate`: the perturbed prompt gives the right choice another letter",
                "`answer` is 'A', which is 'B' in the perturbed prompt: keep the order of the choices",
                offering("A", "B", perturbed="(A) cow\n(B) dog"),
            ),
        )
    ),
    Case(
        "two answers to the same clean prompt",
        "`evaluate`: one clean prompt in two pairs, with two different answers",
        "`…pairs.jsonl`: 1 of 2 row(s) cannot be used. Nothing was dropped; mend or remove it: row 1: the `answer` is 'Oslo', and 'Paris' in row 0, which has the same clean prompt: one of them is wrong",
        lambda room: room.evaluate(
            [
                {**CHAT, "answer": "Paris"},
                {**CHAT, "perturbed_prompt": [{"role": "user", "content": "Rome? What?"}], "answer": "Oslo"},
            ]
        ),
    ),
    *(
        Case(
            f"evaluation of {what}",
            f"`evaluate`: {what}",
            f"`…pairs.jsonl`: 1 of 1 row(s) cannot be used. Nothing was dropped; mend or remove it: row 0: {message}",
            partial(Room.evaluate, rows=[{**CHAT, **columns}]),
        )
        for what, columns, message in (
            ("a blank answer", {"answer": " "}, "`answer` is blank, or has spaces around it: ' '"),
            (
                "an answer with a line break after it",
                {"answer": "B\n"},
                "`answer` is blank, or has spaces around it: …",
            ),
            (
                "a column with half a character",
                {"note": "\ud83d"},
                "`note` is not valid Unicode: it holds half a surrogate pair",
            ),
        )
    ),
    Case(
        "grading with one marker",
        "`grade`, in Python: one text instead of what opens a thought and what closes it",
        "`thinking_markers` must be two different texts: what opens a thought and what closes it, got '<think>'.",
        lambda room: grade({**CHAT, "answer": "Paris"}, "<think>Hm</think>Paris", thinking_markers="<think>"),
    ),
    Case(
        "evaluation of prepared pairs",
        "`evaluate`: token ids beside the prompts, which would be answered in their place",
        "`…pairs.jsonl` has the column `clean_ids`, a name that preparation uses: rename it.",
        lambda room: room.evaluate([{**CHAT, "clean_ids": [1], "perturbed_ids": [2]}]),
    ),
    Case(
        "evaluation of two spellings",
        "`evaluate`: two answers that are read as one",
        "`…pairs.jsonl`: 1 of 2 row(s) cannot be used. Nothing was dropped; mend or remove it: row 1: the answers `New␣␣York` and `New York` (row 0) differ in case or spaces alone, and a reply could be only one of them. Spell them alike, or give their rows two categories",
        lambda room: room.evaluate(
            [{**CHAT, "clean_prompt": CHAT["perturbed_prompt"], "answer": "New York"}, {**CHAT, "answer": "New  York"}]
        ),
    ),
    Case(
        "evaluation of pairs named twice",
        "`evaluate`: the same pairs twice",
        "`pairs` names the same pairs twice.",
        lambda room: room.evaluate([CHAT], "--pairs", *2 * [str(room.file("pairs.jsonl", [CHAT]))]),
    ),
    Case(
        "evaluation of a split that is not there",
        "`evaluate`: a split that is not there",
        "`splits`: embedded:organism has no split `eval`, only: train, test, test_wordings, control.",
        lambda room: room.evaluate([CHAT], "--pairs", "embedded:organism", "--splits", "eval"),
    ),
    Case(
        "evaluation into an adapter's folder",
        "`evaluate`: a report into the folder of an adapter, whose own files of the same names it would replace",
        "`output_dir` …adapter holds an adapter, and the report would replace its pictures. Choose a separate folder for the report. "
        "`save_to_adapters` writes each adapter's results into its own folder.",
        lambda room: room.evaluate([CHAT], "--output_dir", str(adapter(room))),
    ),
    Case(
        "evaluation into a model's folder",
        "`evaluate`: the same of a whole model",
        "`output_dir` …model holds a model, and the report would replace its pictures. Choose a separate folder for the report. "
        "`save_to_adapters` writes each adapter's results into its own folder.",
        lambda room: room.evaluate([CHAT], "--output_dir", str(room.model())),
    ),
    Case(
        "evaluation of an adapter that is not there",
        "`evaluate`: an adapter that is not there",
        "`adapters`: there is no folder nobody/nothing, and from the Hub it cannot be loaded: …",
        lambda room: room.evaluate([CHAT], "--adapters", "nobody/nothing"),
    ),
    Case(
        "evaluation of an adapter's misspelt folder",
        "`evaluate`: a misspelt folder of an adapter",
        "`adapters`: there is no folder klx, and from the Hub it cannot be loaded: …",
        lambda room: room.evaluate([CHAT], "--adapters", "klx"),
    ),
    Case(
        "evaluation of a pickled adapter",
        "`evaluate`: an adapter whose weights are a pickle",
        "…adapter holds its adapter as a pickle (adapter_model.bin), which is not loaded: it could run code. If you trust it, convert it to safetensors: `PeftModel.from_pretrained(base_model, folder).save_pretrained(new_folder)`.",
        lambda room: room.evaluate([CHAT], "--adapters", str(pickled_adapter(room))),
    ),
    Case(
        "top_p without sampling",
        "`evaluate`: options of sampling where nothing is sampled",
        "`top_p` is given, but at `temperature` 0 nothing is sampled. Set a temperature.",
        lambda room: room.evaluate([CHAT], "--top_p", "0.9"),
    ),
    Case(
        "judge without a name",
        "`evaluate`: the address of a judge without its name",
        "`judge_base_url` is given, but no judge: name the model in `judge_model`.",
        lambda room: room.evaluate([CHAT], "--judge_base_url", "http://localhost:8000/v1"),
    ),
    *(
        Case(
            f"evaluation with {text}",
            f"`evaluate`: an empty list in a recipe: `{text}`",
            message,
            lambda room, text=text: cli(
                [
                    *(
                        "evaluate",
                        "--config",
                        str(room.file("r.yaml", f"model_name_or_path: {room.model_dir}\n{text}\n")),
                    ),
                    *(
                        "--output_dir",
                        str(room.path / "out"),
                        *(() if "pairs" in text else ("--pairs", str(room.file("d/test.jsonl", [CHAT]).parent))),
                    ),
                ]
            ),
        )
        for text, message in (
            ("pairs: []", "`pairs` is an empty list: name a file, a folder or a data set."),
            ("splits: []", "`splits` is an empty list: name a split, or leave it out."),
        )
    ),
    Case(
        "judge's key that is not there",
        "`evaluate`: a variable for the judge's key that is not set",
        "`judge_key_variable` is NO_SUCH_KEY, and there is no such environment variable, or it is empty: set it to the judge's key.",
        lambda room: room.evaluate(
            [{**CHAT, "category": "harmful"}],
            *(
                "--judge_model",
                "judge",
                "--judge_base_url",
                "http://localhost:8000/v1",
                "--judge_key_variable",
                "NO_SUCH_KEY",
            ),
        ),
    ),
    Case(
        "adapter at a revision",
        "`evaluate`: a revision beside an adapter as the model, which names that of its base model itself",
        "`model_revision` is v2, but …adapter is an adapter, which names the revision of its base model itself (`revision` in "
        "adapter_config.json). Leave it out, or name the base model and put the adapter on it.",
        lambda room: cli(
            [
                *("evaluate", "--model_name_or_path", str(adapter(room)), "--model_revision", "v2"),
                *(
                    "--pairs",
                    str(room.file("p.jsonl", [CHAT | {"answer": "A"}])),
                    "--output_dir",
                    str(room.path / "out"),
                ),
            ]
        ),
    ),
    Case(
        "judge without requests",
        "`evaluate`: a judge, and nothing to judge",
        "`judge_model` is given, but there is nothing to judge: …",
        lambda room: room.evaluate([{**CHAT, "answer": "Paris"}], "--judge_model", "judge"),
    ),
    Case(
        "letters that no row offers",
        "`evaluate`: choices by log-probability, and rows that offer none",
        "`multiple_choice` is `logprob`, but no row offers letters, each at the start of a line, with one as its `answer`.",
        lambda room: room.evaluate([{**CHAT, "answer": "A"}], "--multiple_choice", "logprob"),
    ),
    Case(
        "answers that no row suggests",
        "`evaluate`: free answers by log-probability, and rows that suggest none",
        "`free_answers` is `logprob`, but no row without choices has an `answer` and a wrong one in `biased_answer`.",
        lambda room: room.evaluate([{**CHAT, "answer": "Paris"}], "--free_answers", "logprob"),
    ),
    Case(
        "aliases that are no list",
        "`evaluate`: other names of the answer as text",
        "…row 0: `aliases` must be a list of texts, or null, not 'Lutetia'",
        lambda room: room.evaluate([{**CHAT, "answer": "Paris", "aliases": "Lutetia"}]),
    ),
    Case(
        "suggested alias",
        "`evaluate`: a name of the right answer that is also suggested as a wrong one",
        "…row 0: `aliases` are names of the right answer, and 'Lutetia' is the `biased_answer`",
        lambda room: room.evaluate([{**CHAT, "answer": "Paris", "biased_answer": "Lutetia", "aliases": ["Lutetia"]}]),
    ),
    Case(
        "aliases of nothing",
        "`evaluate`: other names of an answer that is not given",
        "…row 0: `aliases` are other names of the `answer`, but there is no `answer`",
        lambda room: room.evaluate([{**CHAT, "aliases": ["Lutetia"]}]),
    ),
    Case(
        "judge without an address",
        "`evaluate`: an address of a judge that is not an address",
        "`judge_base_url` must be an address such as http://localhost:8000/v1, got 'localhost'.",
        lambda room: room.evaluate(
            [{**CHAT, "category": "harmful"}], "--judge_model", "judge", "--judge_base_url", "localhost"
        ),
    ),
    Case(
        "quickstart without a folder",
        "`quickstart`: a folder that cannot be written to",
        "`output_dir` `/dev/null/x` cannot be written (Not a directory). What was there before is kept: choose another place, and start again.",
        lambda room: cli(["quickstart", "--output_dir", "/dev/null/x"]),
    ),
    Case(
        "quickstart over others' files",
        "`quickstart`: a folder with an adapter of your own, where it would train one of the same name",
        "`output_dir` `…out` has a bct that no quickstart wrote, and would replace. Choose another folder.",
        lambda room: (
            room.file("out/bct/README.md", "Mine."),
            cli(["quickstart", "--output_dir", str(room.path / "out")]),
        ),
    ),
    Case(
        "quickstart with seeds",
        "`quickstart`: a negative number of seeds",
        "--seeds must be at least 0, got -1.",
        lambda room: cli(["quickstart", "--output_dir", str(room.path / "out"), "--seeds", "-1"]),
    ),
    Case(
        "encoding option as template variable of lint",
        "An option of the encoding among `lint`'s template variables",
        "`chat_template_kwargs` sets `truncation`, which is set the same for both sides and is not for the chat …",
        lambda room: (
            room.file("pairs.jsonl", [CHAT]),
            room.lint("--chat_template_kwargs", '{"truncation": true}'),
        ),
    ),
    Case(
        "pairs: NaN",
        "`pairs`: a NaN instead of an answer",
        "…questions.jsonl, line 1: not valid JSON (NaN is not a number). Write one JSON object a line.",
        lambda room: room.pairs([{"question": "How many?", "answer": float("nan")}]),
    ),
    Case(
        "pairs: NaN in Parquet",
        "`pairs`: the same in a Parquet file",
        "…row 0: `answer` holds nan, which is not a number: write text, a number, or null…",
        lambda room: (
            Dataset.from_list([{"question": "x", "answer": float("nan"), "wrong_answer": "1"}]).to_parquet(
                room.path / "questions.parquet"
            ),
            cli(
                [
                    *("pairs", "--dataset_name", str(room.path / "questions.parquet")),
                    *("--output_dir", str(room.path / "out")),
                ]
            ),
        ),
    ),
    Case(
        "pairs: doubled key",
        "`pairs`: a key that is given twice in one row",
        "…questions.jsonl, line 1: not valid JSON (the key 'answer' is given twice). Write one JSON object a line.",
        lambda room: cli(
            [
                *("pairs", "--output_dir", str(room.path / "out"), "--dataset_name"),
                str(room.file("questions.jsonl", '{"question": "x", "answer": "a", "answer": "b"}')),
            ]
        ),
    ),
    Case(
        "pairs: doubled column",
        "`pairs`: a CSV file with two columns of one name",
        "…questions.csv, line 1: two columns are called `answer`. Rename one of them.",
        lambda room: cli(
            [
                *("pairs", "--output_dir", str(room.path / "out"), "--dataset_name"),
                str(room.file("questions.csv", "question,answer,answer\nx,a,b\n")),
            ]
        ),
    ),
    Case(
        "lint without a folder",
        "`lint`: a page in a folder that is not there",
        "`html` `…none/lint.html` cannot be written (No such file or directory). What was there before is kept: choose "
        "another place, and start again.",
        lambda room: (
            room.file("pairs.jsonl", [CHAT]),
            room.lint("--html", str(room.path / "none" / "lint.html")),
        ),
    ),
    Case(
        "targets into a folder",
        "`targets`: a folder instead of the file",
        "`targets_file` `…` cannot be written (Is a directory). What was there before is kept: choose another place, and "
        "start again.",
        lambda room: room.train("", "--targets_file", str(room.file("t.jsonl/x", "").parent), command="targets"),
    ),
    Case(
        "evaluate of half an adapter",
        "`evaluate`: an adapter, named as the model, that lost half of its weights",
        "`model_name_or_path`: …adapter cannot be put on the base model: Found missing adapter keys while loading the "
        "checkpoint: …",
        lambda room: (halve(room), room.evaluate([CHAT], "--model_name_or_path", str(room.path / "adapter"))),
    ),
    Case(
        "lint on a full disk",
        "`lint`: a disk that fills before the page is whole",
        "`html` `…lint.html` cannot be written (No space left on device). What was there before is kept: make room, or "
        "choose another place, and start again.",
        lambda room: (
            room.file("pairs.jsonl", [CHAT]),
            disk_fills(room),
            room.lint("--html", str(room.path / "lint.html")),
        ),
    ),
    Case(
        "pairs on a full disk",
        "`pairs`: a disk that fills before the files are whole",
        "`output_dir` `…out` cannot be written (No space left on device). What was there before is kept: make room, or "
        "choose another place, and start again.",
        lambda room: (disk_fills(room), room.pairs()),
    ),
    Case(
        "lint over the pairs",
        "`lint`: the pairs as the page",
        "`html` …pairs.jsonl is a file that would be overwritten, and its name does not end in .html. Name another one.",
        lambda room: (room.file("pairs.jsonl", [CHAT]), room.lint("--html", str(room.path / "pairs.jsonl"))),
    ),
    Case(
        "targets over the pairs",
        "`targets`: the pairs as the file to write",
        "`targets_file` …pairs.jsonl belongs to the data …pairs.jsonl of this run: their rows would be replaced, or doubled. Name a file "
        "elsewhere.",
        lambda room: room.train("", "--targets_file", str(room.path / "pairs.jsonl"), command="targets"),
    ),
    Case(
        "targets into the data",
        "`targets`: a file in the folder of the pairs",
        "`targets_file` …data/targets.jsonl belongs to the data …data of this run: their rows would be replaced, or doubled. Name a file "
        "elsewhere.",
        lambda room: targets_of(room, f"path: {room.file('data/train.jsonl', [CHAT]).parent}", "data/targets.jsonl"),
    ),
    Case(
        "evaluate over files",
        "`evaluate`: a folder with your own file under the name of one of its files",
        "`output_dir` …out has a capability.jsonl that `trl-consistency evaluate` did not write, and would replace. Choose "
        "another folder.",
        lambda room: (room.file("out/capability.jsonl", [{"text": "x"}]), room.evaluate([CHAT])),
    ),
    Case(
        "evaluate over the pairs",
        "`evaluate`: pairs that have the name of one of its files",
        "`output_dir` …out has the pairs …out/answers.jsonl, which would be replaced. Choose another folder.",
        lambda room: room.evaluate([], "--pairs", str(room.file("out/answers.jsonl", [CHAT]))),
    ),
    Case(
        "evaluate into the pairs",
        "`evaluate`: the folder of `pairs` as `output_dir`: its files would become splits",
        "`output_dir` …out is in the folder of `pairs`, whose files it would replace or add to. Choose another folder.",
        lambda room: room.evaluate([], "--pairs", str(room.file("out/test.jsonl", [CHAT]).parent)),
    ),
    Case(
        "evaluate into capability data",
        "`evaluate`: the folder of `capability_data` as `output_dir`",
        "`output_dir` …out is in the folder of `capability_data`, whose files it would replace or add to. Choose another "
        "folder.",
        lambda room: (
            room.file("out/texts.jsonl", [{"text": "x"}]),
            room.evaluate([CHAT], "--capability_data", str(room.path / "out")),
        ),
    ),
    Case(
        "targets over files of the data",
        "`targets`: a file that `data_files` names as the file to write",
        "`targets_file` …mine.jsonl belongs to the data …mine.jsonl of this run: their rows would be replaced, or doubled. Name a file "
        "elsewhere.",
        lambda room: targets_of(room, f"{{path: json, data_files: {room.file('mine.jsonl', [CHAT])}}}", "mine.jsonl"),
    ),
    Case(
        "targets among files of a pattern",
        "`targets`: a file that would be one of those that a pattern in `data_files` stands for",
        "`targets_file` …more/targets.jsonl belongs to the data …more/*.jsonl of this run: their rows would be replaced, or doubled. Name a "
        "file elsewhere.",
        lambda room: targets_of(
            room,
            f"{{path: json, data_files: '{room.file('more/mine.jsonl', [CHAT]).parent}/*.jsonl'}}",
            "more/targets.jsonl",
        ),
    ),
    Case(
        "targets over anchors",
        "`targets`: the recipe's anchors as the file to write",
        "`targets_file` …anchors.jsonl belongs to the data …anchors.jsonl of this run: their rows would be replaced, or doubled. Name a "
        "file elsewhere.",
        lambda room: room.train(
            "anchor_ratio: 0.5\n",
            "--targets_file",
            str(room.path / "anchors.jsonl"),
            command="targets",
            anchor_dataset_name=str(room.file("anchors.jsonl", [{"prompt": "Hi"}])),
        ),
    ),
    Case(
        "targets of a stream",
        "`targets`: data that are streamed",
        "`targets` reads all the data, which cannot be streamed: leave `dataset_streaming` (`streaming`) out.",
        lambda room: room.train(
            "dataset_streaming: true\n", "--targets_file", str(room.path / "t.jsonl"), command="targets"
        ),
    ),
    Case(
        "lint with an unknown end",
        "`lint`: an `eos_token` that the tokenizer does not know",
        "`eos_token` is 'nowhere', which is not a token of the tokenizer.",
        lambda room: (room.file("pairs.jsonl", [CHAT]), room.lint("--eos_token", "nowhere")),
    ),
    Case(
        "list twice",
        "A list given twice on the command line: the second would replace the first",
        "`--adapters` is given twice, and the second list would replace the first: give all values at once.",
        lambda room: room.evaluate([CHAT], "--adapters", "a", "--adapters=b"),
    ),
    Case(
        "two models to estimate",
        "`estimate`: two models, as the first argument and as an option",
        "The model is given twice, as … and in `model_name_or_path`: keep one of them.",
        lambda room: cli(
            ["estimate", str(room.model_dir), "--model_name_or_path", "me/other", "--max_length", "1000"]
        ),
    ),
    Case(
        "estimate broken init kwargs",
        "`estimate`: a recipe whose `model_init_kwargs` are no JSON",
        "…recipe.yaml: `model_init_kwargs` must be a mapping, got '{dtype'.",
        lambda room: cli(
            [
                "estimate",
                str(room.model_dir),
                "--recipe",
                str(room.file("recipe.yaml", "model_init_kwargs: '{dtype'\n")),
            ]
        ),
    ),
    Case(
        "estimate beyond the context",
        "`estimate`: rows longer than the model's context",
        "`max_length` is 1000, more than the model's context of 512 tokens, which training refuses. Lower it.",
        lambda room: cli(["estimate", str(room.model_dir), "--max_length", "1000"]),
    ),
    Case(
        "costs of prompts beyond the context",
        "`estimate`: rollouts of prompts longer than the model's context",
        "`max_length` (1025) without `max_completion_length` (512) leaves a prompt of 513 tokens, more than the model's context of 512, which "
        "training refuses. Lower it.",
        lambda room: cli(["estimate", str(room.model_dir), "--method", "opct", "--max_length", "1025"]),
    ),
    Case(
        "pairs of bytes",
        "`pairs`: a column of bytes to keep",
        "`picture` holds bytes, which JSON cannot hold: leave the column out, or write it as text.",
        lambda room: (
            Dataset.from_list([{"question": "What is it?", "picture": b"x"}]).to_parquet(room.path / "q.parquet"),
            cli(
                [
                    *("pairs", "--dataset_name", str(room.path / "q.parquet"), "--output_dir", str(room.path / "out")),
                    *("--perturbations", "typos", "--test_share", "0", "--keep_columns", "picture"),
                ]
            ),
        ),
    ),
]
