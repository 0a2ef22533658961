"""Hostile input: commands that make and check pairs and targets, and others that neither train nor measure."""

from datasets import Dataset

from tests.hostile_input.damage import disk_fills
from tests.hostile_input.room import CHAT, Case, Room
from trl_consistency.cli import main as cli
from trl_consistency.perturbations import PERTURBATIONS


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


CASES: list[Case] = [
    Case(
        "pairs without questions",
        "`pairs`: no column of questions",
        "No column of questions or prompts: name it in `prompt_column`. There are `text`.",
        lambda room: room.pairs([{"text": "x"}]),
    ),
    Case(
        "pairs with a misspelt column",
        "`pairs`: a column with almost the usual name, which would not be read",
        "There is a column `anser`, and no `answer`. If that is meant, give `answer_column anser`. If not, give `keep_columns anser`, or rename it.",
        lambda room: room.pairs([{"question": "Largest?", "anser": "cow", "wrong_answer": "dog"}]),
    ),
    Case(
        "pairs with misspelt questions",
        "`pairs`: the same of the questions",
        "There is a column `questoin`, and no `question`. If that is meant, give `prompt_column questoin`. …",
        lambda room: room.pairs([{"questoin": "Largest?", "answer": "cow", "wrong_answer": "dog"}]),
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
        "`dataset_train_split` is `big`, but …pairs.jsonl is a file, whose only split is `train`. Leave it out.",
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
        "`eos_token` is 'nowhere', which is not a token of the tokenizer. Name one that it has, or leave it out.",
        lambda room: (room.file("pairs.jsonl", [CHAT]), room.lint("--eos_token", "nowhere")),
    ),
    Case(
        "list twice",
        "A list given twice on the command line: the second would replace the first",
        "`--adapters` is given twice, and the second list would replace the first: give all values at once.",
        lambda room: room.evaluate([CHAT], "--adapters", "a", "--adapters=b"),
    ),
    Case(
        "command alone",
        "A command without any option",
        "the following arguments are required: --model_name_or_path/--model-name-or-path, --pairs, --output_dir/--output-dir",
        lambda room: cli(["evaluate"]),
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
        "…recipe.yaml: `model_init_kwargs` must be a mapping, as JSON, got '{dtype'.",
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
        "estimate of DPO",
        "`estimate`: a recipe of DPO, which counted as OPCT",
        "…recipe.yaml: of OPCT's options it sets `beta` alone, which DPO has, too. If it is a recipe of OPCT, add `--method opct`. The costs "
        "of DPO are not computed.",
        lambda room: cli(
            ["estimate", str(room.model_dir), "--recipe", str(room.file("recipe.yaml", "beta: 0.1\nmax_length: 64\n"))]
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
        "estimate of a recipe without a length",
        "`estimate`: a recipe that does not say how long its rows are",
        "…recipe.yaml sets no `max_length`, which the costs depend on: give it beside the recipe.",
        lambda room: cli(
            ["estimate", str(room.model_dir), "--recipe", str(room.file("recipe.yaml", "method: [bct]\n"))]
        ),
    ),
    Case(
        "estimate of a recipe without a model",
        "`estimate`: a recipe that names no model",
        "…recipe.yaml sets no `model_name_or_path`, which the costs depend on: give it beside the recipe.",
        lambda room: cli(["estimate", "--recipe", str(room.file("recipe.yaml", "max_length: 64\n"))]),
    ),
    Case(
        "recipe as the model",
        "`estimate`: a recipe instead of the model",
        "…recipe.yaml is a recipe, and a model stands first: give it as `recipe`.",
        lambda room: cli(["estimate", str(room.file("recipe.yaml", "max_length: 64\n")), "--memory", "24"]),
    ),
    Case(
        "estimate of no folder",
        "`estimate`: a folder that is not there",
        "There is no folder …gone: give a model, its folder, or its config.json.",
        lambda room: cli(["estimate", str(room.path / "gone"), "--max_length", "64"]),
    ),
    Case(
        "estimate of a model that cannot be reached",
        "`estimate`: a model that cannot be downloaded",
        "nobody/nothing is no folder here, and cannot be loaded from the Hub (…). Where the Hub cannot be reached, download the model's "
        "config.json elsewhere, and give its path.",
        lambda room: cli(["estimate", "nobody/nothing", "--max_length", "64"]),
    ),
    Case(
        "config.json without a type",
        "`estimate`: a config.json that does not say of what kind the model is",
        '…config.json cannot be loaded: config.json has no `model_type`, which says what kind of model it is. Add it, for example `"qwen3"`.',
        lambda room: cli(["estimate", str(room.file("config.json", "{}")), "--max_length", "64"]),
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
