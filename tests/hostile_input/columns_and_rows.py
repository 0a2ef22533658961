"""Hostile input: columns and rows."""

from typing import Any

from datasets import DatasetDict

from tests.helpers.models import make_config, make_pairs, make_tokenizer
from tests.hostile_input.room import CHAT, PAIR, USER, Case, Room
from trl_consistency import ConsistencyTrainer
from trl_consistency.scripts.pair_sets import load_sets, render_sets


def row(room: Room, **columns: Any) -> None:
    """Training on a good row, and one with other columns."""
    good = CHAT if isinstance(columns.get("clean_prompt", []), list) else PAIR
    room.trainer([good | {name: None for name in columns if name not in good}, good | columns])


CASES: list[Case] = [
    Case(
        "no data set",
        "A trainer without data",
        "`train_dataset` is required: pairs with `clean_prompt` and `perturbed_prompt`.",
        lambda room: ConsistencyTrainer(str(room.model_dir), make_config(room.path)),
    ),
    Case(
        "list of rows",
        "A list instead of a data set",
        "`train_dataset` must be a `datasets.Dataset` or `datasets.IterableDataset`, got `tuple`.",
        lambda room: room.trainer((PAIR, PAIR)),
    ),
    Case(
        "all splits",
        "All splits instead of one",
        "`train_dataset` must be a `datasets.Dataset` or `datasets.IterableDataset`, got `DatasetDict`. Choose one of its splits: 'train'.",
        lambda room: room.rollouts(DatasetDict({"train": make_pairs(2)})),
    ),
    Case(
        "no rows",
        "A data set without rows",
        "`train_dataset` is empty: it has no rows.",
        lambda room: room.trainer(make_pairs(2).select([])),
    ),
    Case(
        "no evaluation rows",
        "One of several evaluation sets without rows",
        "`eval_dataset['hard']` is empty: it has no rows.",
        lambda room: room.trainer(eval_dataset={"easy": make_pairs(2), "hard": make_pairs(2).select([])}),
    ),
    Case(
        "no column",
        "A misspelt column of prompts",
        "`train_dataset` has no column `perturbed_prompt`; its columns are `clean_prompt`, `pertubed_promt`. If `pertubed_promt` is meant, rename it: in the file, or with `dataset.rename_column`.",
        lambda room: room.trainer([{"clean_prompt": "a", "pertubed_promt": "b"}]),
    ),
    Case(
        "near column",
        "A misspelt column that would be ignored",
        "`train_dataset` has the column `completions`, which would be ignored. Rename it to `completion` if that is what it holds, or to something else if not.",
        lambda room: room.trainer([PAIR | {"completions": "x"}]),
    ),
    Case(
        "reserved column",
        "A column with a name that preparation uses",
        "`train_dataset` has the column `clean_ids`, a name that preparation uses: rename it.",
        lambda room: room.rollouts([PAIR | {"clean_ids": [1]}]),
    ),
    Case(
        "images",
        "A column of images",
        "`train_dataset` has the column `images`: pairs are text-only for now. Remove the column with `dataset.remove_columns` if the prompts do not need it.",
        lambda room: room.trainer([PAIR | {"images": "x.png"}]),
    ),
    Case(
        "transform",
        "Data behind `with_transform`, which could read differently each time",
        "`train_dataset` uses `with_transform()`, whose result could differ at every read. Apply the transform with `Dataset.map()` first.",
        lambda room: room.trainer(make_pairs(2).with_transform(lambda batch: batch)),
    ),
    Case(
        "blank prompt",
        "A prompt without text",
        "`train_dataset`: 1 of 2 row(s) cannot be used. Nothing was dropped; mend or remove it: row 1: `perturbed_prompt` is empty or blank",
        lambda room: row(room, clean_prompt="a", perturbed_prompt=" \n"),
    ),
    Case(
        "null prompt",
        "A prompt that is null",
        "…row 1: `clean_prompt` is missing",
        lambda room: row(room, clean_prompt=None, perturbed_prompt="a"),
    ),
    Case(
        "numbers as prompts",
        "Numbers instead of prompts",
        "…row 0: `clean_prompt` must be a string or a list of chat messages, not `int`",
        lambda room: room.trainer([{"clean_prompt": 1, "perturbed_prompt": "a"}]),
    ),
    Case(
        "no messages",
        "An empty list of messages",
        "…row 1: `clean_prompt` is an empty list of messages",
        lambda room: row(room, clean_prompt=[]),
    ),
    Case(
        "misspelt role",
        "A misspelt role",
        "…row 1: `clean_prompt` message 0 has the role `usr`: did you mean `user`?",
        lambda room: row(room, clean_prompt=[{"role": "usr", "content": "x"}]),
    ),
    Case(
        "no content",
        "A message without content",
        "…row 1: `perturbed_prompt` message 0 has `content` of type `NoneType`, not text",
        lambda room: row(room, perturbed_prompt=[{"role": "user", "content": None}]),
    ),
    Case(
        "no message",
        "Something else than messages",
        "…row 0: `clean_prompt` message 0 is not a dict with `role` and `content`…",
        lambda room: room.trainer([{"clean_prompt": ["x"], "perturbed_prompt": ["y"]}]),
    ),
    Case(
        "a turn of the model",
        "A prompt that ends with a turn of the role `model`, and not `assistant`",
        "…row 0: `perturbed_prompt` ends with a turn of the role `model`, which would not be continued: write `assistant`…",
        lambda room: room.trainer(
            [CHAT | {"perturbed_prompt": [{"role": "user", "content": "?"}, {"role": "model", "content": "It is"}]}]
        ),
    ),
    Case(
        "an earlier turn of the model",
        "An earlier turn of the role `model` (or one of `developer`, `function`, `ipython` or `tool`), where the chat template does not name such turns",
        "…row 0: message 1 has the role `model`, and the chat template has no turns of that name: write `assistant`…",
        lambda room: room.trainer(
            [CHAT | {"perturbed_prompt": [{"role": of, "content": "It is?"} for of in ("user", "model", "user")]}]
        ),
    ),
    Case(
        "open tool call",
        "A prompt that ends with a tool call",
        "…row 0: `clean_prompt` ends with an assistant tool call, which cannot be continued: add the tool's answer…",
        lambda room: room.trainer(
            [
                CHAT
                | {
                    "clean_prompt": [
                        *USER,
                        {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f"}}]},
                    ]
                }
            ]
        ),
    ),
    Case(
        "text and messages",
        "Text on one side and messages on the other",
        "…row 0: `clean_prompt` is a string and `perturbed_prompt` a list of messages: both need the same type",
        lambda room: room.trainer([{"clean_prompt": "a", "perturbed_prompt": USER}]),
    ),
    Case(
        "prefilled on one side",
        "An answer to continue on the clean side only",
        "…row 1: `clean_prompt` ends with an assistant turn to continue and `perturbed_prompt` does not: the rest of an answer would be taught as a whole one",
        lambda room: row(room, clean_prompt=[*USER, {"role": "assistant", "content": "It"}]),
    ),
    Case(
        "completion in some rows",
        "Completions in some rows only",
        "…row 0: `completion` is missing here though the column exists: give it for every row, or remove the column to have the reference policy answer all clean prompts",
        lambda room: row(room, completion="x"),
    ),
    Case(
        "completion is no answer",
        "A completion that is not an assistant message",
        "…row 0: `completion` must be exactly one assistant message",
        lambda room: room.trainer([CHAT | {"completion": USER}]),
    ),
    Case(
        "no completion ids",
        "Token ids of a completion that are not token ids",
        "…row 0: `completion_ids` is empty",
        lambda room: room.trainer([PAIR | {"completion_ids": ids} for ids in ([], [5])]),
    ),
    Case(
        "foreign completion ids",
        "Token ids that the vocabulary does not have: another tokenizer's",
        "…row 0: token 999999 is beyond the model's vocabulary of 384: the tokenizer, or what made `completion_ids`, is another model's",
        lambda room: room.trainer([PAIR | {"completion_ids": [5, 999_999]}]),
    ),
    Case(
        "negative completion ids",
        "Token ids below 0, such as the -100 of masked labels",
        "…row 0: `completion_ids` holds -100, which is not a token id",
        lambda room: room.trainer([PAIR | {"completion_ids": [-100, 5]}]),
    ),
    Case(
        "tools not JSON",
        "Tools that are not valid JSON",
        "…row 0: `tools` is not valid JSON (…)",
        lambda room: room.trainer([CHAT | {"tools": "[{"}]),
    ),
    Case(
        "tools no list",
        "Tools that are not a list of schemas",
        "…row 0: `tools` must be a list of JSON schemas (or that list as a JSON string)",
        lambda room: room.trainer([CHAT | {"tools": "3"}]),
    ),
    Case(
        "tools with text",
        "Tools beside a text prompt, which goes through no template",
        "…row 0: `tools` is given, but the prompts are text, which no chat template renders",
        lambda room: room.trainer([PAIR | {"tools": '[{"name": "f"}]'}]),
    ),
    Case(
        "reserved template variable in a row",
        "A template variable that the trainer sets",
        "…row 0: `chat_template_kwargs` sets `tokenize`, which is set the same for both sides and is not for the chat …",
        lambda room: room.trainer([CHAT | {"chat_template_kwargs": '{"tokenize": false}'}]),
    ),
    Case(
        "shared text is no text",
        "`shared_text` that is blank",
        "…row 0: `shared_text` must be text that both prompts hold, not ' '",
        lambda room: room.trainer([PAIR | {"shared_text": " "}], {"method": "attct"}),
    ),
    Case(
        "encoding option in a row",
        "An option of the encoding among a row's template variables, which would cut the prompt",
        "…row 0: `chat_template_kwargs` sets `max_length`, `truncation`, which is set the same for both sides and is not …",
        lambda room: room.trainer([CHAT | {"chat_template_kwargs": '{"truncation": true, "max_length": 3}'}]),
    ),
    Case(
        "control token in a message",
        "A control token in what a user says, which would end the turn",
        "…row 1: message 0 (user) holds `<|im_end|>`, a control token of the tokenizer, in its text: …",
        lambda room: row(room, perturbed_prompt=[{"role": "user", "content": "Lyon.<|im_end|> What?"}]),
    ),
    Case(
        "control token in a completion",
        "A control token at the end of a chat completion, where the template writes its own",
        "…row 1: message 1 (assistant) holds `<|im_end|>`, a control token of the tokenizer, in its text: …",
        lambda room: room.trainer([CHAT | {"completion": "Paris."}, CHAT | {"completion": "Paris.<|im_end|>"}]),
    ),
    Case(
        "control token in text",
        "A control token within a text prompt that was not rendered beforehand",
        "…row 1: `perturbed_prompt` holds `<|im_start|>`, a control token of the tokenizer, in its text. …",
        lambda room: row(room, **PAIR | {"perturbed_prompt": "Lyon?<|im_start|>What?"}),
    ),
    Case(
        "control token measured on",
        "A control token in a prompt to measure on",
        "…row 0: message 0 (user) holds `<|im_start|>`, a control token of the tokenizer, in its text: …",
        lambda room: render_sets(
            load_sets(
                [str(room.file("pairs.jsonl", [CHAT | {"clean_prompt": [USER[0] | {"content": "<|im_start|>"}]}]))],
                None,
                None,
                0,
            ),
            make_tokenizer(),
            {},
        ),
    ),
    Case(
        "escape in a column name",
        "A terminal escape in the name of a column",
        r"`train_dataset` has no column `clean_prompt`; its columns are `\x1b[2Jprompt`.…",
        lambda room: room.trainer([{"\x1b[2Jprompt": "What?"}]),
    ),
    Case(
        "escape in a template's error",
        "A terminal escape in the error that a chat template raises",
        r"…row 0: the chat template refused it (TemplateError: \x1b]0;mine\x07)…",
        lambda room: room.train(
            chat_template_path=str(room.file("a.jinja", "{{ raise_exception('\\x1b]0;mine\\x07') }}"))
        ),
    ),
]
