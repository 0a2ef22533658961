"""Hostile input: options of the commands that do not train."""

import gzip
import json
from collections.abc import Callable

from tests.hostile_input.room import CHAT, Case, Room
from trl_consistency.cli import main as cli


ROW = CHAT | {"answer": "Paris", "biased_answer": "Lyon"}


def evaluate(*flags: str) -> Callable[[Room], None]:
    return lambda room: room.evaluate([ROW], *flags)


def pairs(*flags: str) -> Callable[[Room], None]:
    return lambda room: room.pairs(None, *flags)


def suites(*flags: str) -> Callable[[Room], None]:
    return lambda room: cli(
        [
            *("suites", "--model_name_or_path", str(room.model_dir)),
            *(() if "--suites" in flags else ("--suites", "ifeval")),
            *("--output_dir", str(room.path / "out"), *flags),
        ]
    )


def quickstart(*flags: str) -> Callable[[Room], None]:
    return lambda room: cli(["quickstart", "--output_dir", str(room.path / "out"), *flags])


def lint(*flags: str) -> Callable[[Room], None]:
    return lambda room: (room.file("pairs.jsonl", [ROW]), room.lint(*flags))


def estimate(*flags: str) -> Callable[[Room], None]:
    return lambda room: cli(["estimate", str(room.model_dir), *([] if "--max_length" in flags else LENGTH), *flags])


LENGTH = ("--max_length", "1024")
COMMANDS = {
    "estimate": estimate,
    "evaluate": evaluate,
    "pairs": pairs,
    "lint": lint,
    "suites": suites,
    "quickstart": quickstart,
}

OPTIONS: dict[str, dict[tuple[str, str], str]] = {
    "estimate": {
        ("recipe", "gone.yaml"): "`recipe`: there is no file gone.yaml.",
        ("max_length", "0"): "`max_length` must be at least 1, got 0.",
        (
            "max_length",
            "100",
        ): "`max_length` (100) leaves no prompt beside the answer of `max_completion_length` (512) tokens: raise the one, or lower the other.",
        ("memory", "-1"): "`memory` must be above 0, got -1.0.",
        ("utilisation", "0"): "`utilisation` must be above 0 and at most 1, got 0.0.",
        (
            "lora_r",
            "64",
        ): "`lora_r` is set without `use_peft`, so that all weights would be trained. Set `use_peft: true`, or `use_peft: false` if that is meant.",
        (
            "use_bnb_nested_quant",
            "true",
        ): "`use_bnb_nested_quant` is set without `load_in_4bit`, so that nothing would be quantized. Set `load_in_4bit: true`, or …",
        ("utilisation", "0.9"): "`utilisation` is given, but no seconds are asked for: give `tflops`.",
        ("num_generations", "8"): "`num_generations` is given, but it is for opct, and `method` is bct. Leave it out.",
        (
            "model_revision",
            "v1",
        ): "`model_revision` is v1, but … is not on the Hub, and has no revisions. Leave it out.",
        (
            "learning_rate",
            "1e-4",
        ): "unknown flag: `--learning_rate`. It is an option of trainings that is not counted here: leave it out.",
        ("layers", "1"): "`layers` is for act, attct and mlpct, and `method` is bct. Leave it out.",
    },
    "evaluate": {
        ("batch_size", "0"): "`batch_size` must be at least 1, got 0.",
        ("batch_size", "1e3"): "`--batch_size` must be a whole number, got '1e3'.",
        ("max_pairs", "-2"): "`max_pairs` must be at least 1, got -2.",
        ("max_completion_length", "0"): "`max_completion_length` must be at least 1, got 0.",
        (
            "max_completion_length",
            "99999999999",
        ): "`max_completion_length` is 99999999999, more than the model's context of 512 tokens (`max_position_embeddings`). Lower it.",
        ("temperature", "-1"): "`temperature` must be at least 0.0001, or 0 (greedy), got -1.0.",
        ("temperature", "nan"): "`temperature` must be at least 0.0001, or 0 (greedy), got nan.",
        ("temperature", "inf"): "`temperature` must be at least 0.0001, or 0 (greedy), got inf.",
        ("temperature", "1e-300"): "`temperature` must be at least 0.0001, or 0 (greedy), got 1e-300.",
        ("seed", "1.5"): "`--seed` must be a whole number, got '1.5'.",
        ("multiple_choice", "words"): "argument --multiple_choice/--multiple-choice: invalid choice: 'words' …",
        (
            "choice_prefix",
            "Letter (",
        ): "`choice_prefix` is given, but choices are read in the text: set `multiple_choice: logprob`.",
        ("free_answers", "words"): "argument --free_answers/--free-answers: invalid choice: 'words' …",
        (
            "answer_prefix",
            "It is",
        ): "`answer_prefix` is given, but no answers are scored: set `free_answers: logprob`.",
        (
            "thinking_markers",
            "<a>",
        ): "`thinking_markers` must be two different texts: what opens a thought and what closes it, got ['<a>'].",
        ("chat_template_kwargs", '{"a": 1, "a": 2}'): "`chat_template_kwargs`: the key 'a' is given twice.",
        ("chat_template_kwargs", '{"a": NaN}'): "`chat_template_kwargs`: NaN is not a number.",
        ("pairs", "a\udcff.jsonl"): "`a\\udcff.jsonl` is not valid UTF-8: rename it.",
        ("chat_template_kwargs", "[1]"): "`chat_template_kwargs` must be a mapping, as JSON, got '[1]'.",
        (
            "chat_template_kwargs",
            '{"messages": []}',
        ): "`chat_template_kwargs` sets `messages`, which is set the same for both …",
        (
            "engine",
            "vlm",
        ): "`engine` must be 'transformers', 'vllm', or the address of a vLLM server like http://127.0.0.1:8000, got 'vlm'.",
        (
            "vllm_adapter_dir",
            "shared",
        ): "`vllm_adapter_dir` is given, but `engine` is transformers. Leave it out.",
        (
            "vllm_server_timeout",
            "9",
        ): "`vllm_server_timeout` is given, but `engine` is transformers. Leave it out.",
        (
            "vllm_gpu_memory_utilization",
            "0.5",
        ): "`vllm_gpu_memory_utilization` is given, but `engine` is transformers. Leave it out.",
        (
            "judge_model",
            "",
        ): "`--judge_model` is empty. Leave it out, or give a value; where that is a variable of the shell, set it.",
        (
            "model_revision",
            "",
        ): "`--model_revision` is empty. Leave it out, or give a value; where that is a variable of the shell, set it.",
        ("judge_workers", "0"): "`judge_workers` must be at least 1, got 0.",
        (
            "judge_key_variable",
            "MY_KEY",
        ): "`judge_key_variable` is given, but it is for an endpoint: set `judge_base_url`.",
        ("judge_workers", "2"): "`judge_workers` is given, but it is for an endpoint: set `judge_base_url`.",
        (
            "judge_max_completion_length",
            "9",
        ): "`judge_max_completion_length` is given, but no judge: name the model in `judge_model`.",
        ("judge_questions", "true"): "`judge_questions` is given, but no judge: name the model in `judge_model`.",
        (
            "judge_questions",
            "maybe",
        ): "argument --judge_questions/--judge-questions: Truthy value expected: got maybe …",
        ("file_type", "csv"): "argument --file_type/--file-type: invalid choice: 'csv' (choose from …",
        ("splits", "test"): "`splits` is given, but …pairs.jsonl is a file, which has none. Leave it out.",
        ("model_revision", "v2"): "`model_revision` is v2, but … is a folder, which has no revisions. Leave it out.",
        ("suites", "nope"): "Unknown suite `nope`. There are …",
        ("suite_limit", "0"): "`suite_limit` must be at least 1, got 0.",
        ("suite_limit", "3"): "`suite_limit` is given, but no `suites`. Name some, or leave it out.",
        ("suite_judge", "me/judge"): "`suite_judge` is given, but no `suites`. Name some, or leave it out.",
        ("capability_limit", "0"): "`capability_limit` must be at least 1, got 0.",
        (
            "capability_limit",
            "3",
        ): "`capability_limit` is given, but no `capability_data`. Name its folder, or leave `capability_limit` out.",
        ("capability_data", "gone"): "`capability_data`: gone is not a folder.",
        (
            "save_to_adapters",
            "true",
        ): "`save_to_adapters` needs folders of adapters, but `adapters` is empty. Name local folders in `adapters`, or leave it out.",
        (
            "adapters",
            "/dev/null",
        ): "`adapters`: there is no folder /dev/null, and from the Hub it cannot be loaded: Can't find 'adapter_config.json' at '/dev/null'",
        ("model_name_or_path", ""): "No model: give `model_name_or_path`.",
        (
            "model_name_or_path",
            "embedded:nope",
        ): "There is no embedded:nope, only: embedded:organism, embedded:smollm2.",
        (
            "model_name_or_path",
            "embeded:organism",
        ): "There is no embeded:organism, only: embedded:organism, embedded:smollm2.",
        (
            "pairs",
            "embedded:smolm2",
        ): "There is no embedded:smolm2, only: embedded:organism, embedded:smollm2.",
        ("pairs", "/dev/null"): "/dev/null cannot be loaded: Couldn't find any data file at /dev/null.",
        ("output_dir", ""): "`output_dir` is empty: name a folder.",
    },
    "lint": {
        ("dose_pairs", "0"): "`dose_pairs` must be at least 1, got 0.",
        ("dose_pairs", "9"): "`dose_pairs` is given, but no dose is measured: set `dose`.",
        (
            "html",
            "",
        ): "`--html` is empty. Leave it out, or give a value; where that is a variable of the shell, set it.",
        ("html", "."): "`html` `.` cannot be written (Is a directory). …",
        ("max_length", "0"): "`max_length` must be at least 1, got 0.",
        ("max_completion_length", "-4"): "`max_completion_length` must be at least 1, got -4.",
        (
            "thinking_markers",
            "<a>",
        ): "`thinking_markers` must be two different texts: what opens a thought and what closes it, got ['<a>'].",
        ("method", "btc"): "Unknown `method` `btc`: it can be bct, kl, act, attct, mlpct.",
        ("model_revision", "v2"): "`model_revision` is v2, but … is a folder, which has no revisions. Leave it out.",
        ("chat_template_path", "/dev/null"): "The tokenizer of /dev/null cannot be loaded: …",
        ("chat_template_kwargs", "3"): "`chat_template_kwargs` must be a mapping, as JSON, got '3'.",
        ("pairs", "gone.jsonl"): "There is no file gone.jsonl.",
    },
    "pairs": {
        (
            "max_completion_length",
            "9",
        ): "`max_completion_length` is given, but nothing is asked of a model: set `keep_vulnerable`.",
        (
            "hub_private",
            "true",
        ): "`hub_private` is given, but nothing is pushed: name the data set in `push_to_hub`.",
        ("test_share", "nan"): "`test_share` must be at least 0 and less than 1, got nan.",
        ("batch_size", "0"): "`batch_size` must be at least 1, got 0.",
        ("max_sources", "0"): "`max_sources` must be at least 1, got 0.",
        (
            "thinking_markers",
            "<a>",
        ): "`thinking_markers` must be two different texts: what opens a thought and what closes it, got ['<a>'].",
        (
            "prompt_column",
            "nope",
        ): "`prompt_column`: there is no column `nope`. There are `question`, `choices`, `answer`.",
        (
            "dataset_split",
            "test",
        ): "`dataset_split` test is given, but …questions.jsonl is a file, which has neither splits nor …",
        (
            "dataset_config",
            "main",
        ): "`dataset_config` main is given, but …questions.jsonl is a file, which has neither splits …",
        ("perturbations_file", "gone.py"): "`perturbations_file`: there is no file gone.py.",
        ("perturbations", ""): "Unknown perturbation ``. There are …",
        ("output_dir", ""): "`output_dir` is empty: name a folder.",
        ("output_dir", "/dev/null"): "`output_dir` `/dev/null` cannot be written (File exists). …",
    },
    "suites": {
        ("limit", "0"): "`limit` must be at least 1, got 0.",
        ("batch_size", "0"): "`batch_size` must be at least 1, got 0.",
        ("max_completion_length", "-1"): "`max_completion_length` must be at least 1, got -1.",
        ("max_completion_length", "9"): "`max_completion_length` is given, but it is only for suites under Inspect, …",
        (
            "judge",
            "me/judge",
        ): "`judge` (of `evaluate`, `suite_judge`) is given, but none of the suites takes one: ifeval. Leave it out.",
        ("suites", "nope"): "Unknown suite `nope`. There are …",
        (
            "adapters",
            "gone",
        ): "`adapters`: there is no folder gone, and from the Hub it cannot be loaded: Can't find 'adapter_config.json' at 'gone'",
    },
    "quickstart": {
        ("seeds", "x"): "argument --seeds: invalid int value: 'x'",
        ("seeds", "1.5"): "argument --seeds: invalid int value: '1.5'",
        ("seeds", "9" * 26): "--seeds must be at most 1000, got …",
    },
}

CASES: list[Case] = [
    *(
        Case(
            f"{command} {option} {value}",
            f"`{command}`: `--{option} {json.dumps(value)}`",
            message,
            COMMANDS[command](f"--{option}", value),
        )
        for command, options in OPTIONS.items()
        for (option, value), message in options.items()
    ),
    *(
        Case(
            f"evaluate {option} of 300 letters",
            f"`evaluate`: `--{option}` of more letters than a name can have",
            "aaa…: File name too long. Give a shorter name.",
            evaluate(f"--{option}", "a" * 300),
        )
        for option in ("output_dir", "model_name_or_path", "adapters", "pairs", "capability_data")
    ),
    *(
        Case(
            f"judge at {address}",
            f"`evaluate`: a judge at `{address}`",
            message,
            evaluate("--judge_model", "judge", "--judge_base_url", address),
        )
        for address, message in (
            ("http://", "`judge_base_url` must be an address such as http://localhost:8000/v1, got 'http://'."),
            ("ftp://localhost/v1", "`judge_base_url` must be an address such as http://localhost:8000/v1, got 'ftp:…"),
            (
                "http://localhost:99999/v1",
                "`judge_base_url` must be an address such as http://localhost:8000/v1, got …",
            ),
            ("http://localhost:abc/v1", "`judge_base_url` must be an address such as http://localhost:8000/v1, got …"),
            ("http://local host/v1", "`judge_base_url` must be an address such as http://localhost:8000/v1, got …"),
            (
                "http://me:secret@localhost/v1",
                "`judge_base_url` holds a password: give it in an environment variable instead.",
            ),
        )
    ),
    *(
        Case(
            f"top_p {value}",
            f"`evaluate`: sampling with `--top_p {value}`",
            f"`top_p` must be above 0 and at most 1, got {float(value)}.",
            evaluate("--temperature", "1", "--top_p", value),
        )
        for value in ("0", "2", "nan")
    ),
    Case(
        "evaluation beyond the context",
        "`evaluate`: a prompt that leaves no room in the model's context",
        "`pairs`: 1 of 1 row(s) cannot be used. …: row 0: a prompt has … tokens, which leaves no room in the model's context of 512",
        lambda room: room.evaluate([ROW | {"perturbed_prompt": [{"role": "user", "content": "Lyon? What? " * 150}]}]),
    ),
    Case(
        "evaluation of a control token",
        "`evaluate`: a control token in a prompt, which is reported before weights load",
        "`pairs`: 1 of 1 row(s) cannot be used. …: row 0: message 0 (user) holds `<|im_end|>`, a control token …",
        lambda room: room.evaluate([ROW | {"perturbed_prompt": [{"role": "user", "content": "Lyon.<|im_end|>"}]}]),
    ),
    Case(
        "pairs over another README",
        "`pairs`: a folder with a README.md of its own, which would be replaced",
        "`output_dir` …out has a README.md that `trl-consistency pairs` did not write, and would replace. Choose another folder.",
        lambda room: (room.file("out/README.md", "# My project\n"), room.pairs()),
    ),
    *(
        Case(
            f"pairs over data of one's own, {kind}",
            f"`pairs`: a folder with your own data under the names of the pairs, which would be {fate}",
            f"`output_dir` …out has a data/train-00000-of-00001.{kind} that `trl-consistency pairs` did not write, and would replace. …",
            lambda room, kind=kind: (room.file(f"out/data/train-00000-of-00001.{kind}", "{}"), room.pairs()),
        )
        for kind, fate in (("jsonl", "overwritten"), ("parquet", "removed"))
    ),
    Case(
        "pairs beside other data",
        "`pairs`: a folder with other data, which would be read as a split of the pairs",
        "`output_dir` …out has a test.csv, which would be read with the data that `trl-consistency pairs` writes there. Choose "
        "another folder.",
        lambda room: (room.file("out/test.csv", "a,b\n1,2\n"), room.pairs()),
    ),
    Case(
        "own file called as the suites' scores",
        "`suites`: a folder with your own file under the name of its scores",
        "`output_dir` …out has a suites.json that `trl-consistency suites` did not write, and would replace. Choose another folder.",
        lambda room: (room.file("out/suites.json", '["gsm8k", "ifeval"]'), suites("--limit", "1")(room)),
    ),
    Case(
        "pairs over verdicts of one's own",
        "`pairs`: a folder with your own verdicts.jsonl, which would be removed",
        "`output_dir` …out has a verdicts.jsonl that `trl-consistency pairs` did not write, and would replace. Choose another …",
        lambda room: (room.file("out/verdicts.jsonl", [{"case": 1}]), room.pairs()),
    ),
    Case(
        "pairs over a folder named README",
        "`pairs`: a folder instead of the card",
        "`output_dir` …out has a README.md that `trl-consistency pairs` did not write, and would replace. Choose another folder.",
        lambda room: ((room.path / "out" / "README.md").mkdir(parents=True), room.pairs()),
    ),
    Case(
        "lint of a compressed file",
        "`lint`: a compressed file under the name of a plain one",
        "…pairs.jsonl, line 1: not valid JSON (…). Write one JSON object a line.",
        lambda room: (room.file("pairs.jsonl", gzip.compress(json.dumps(ROW).encode())), room.lint()),
    ),
]
