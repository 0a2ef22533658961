"""Hostile input: `convert`, the DPO script, and system prompts."""

from functools import partial
from typing import Any

from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_callback import TrainerState

from tests.hostile_input.room import CHAT, Case, Room
from trl_consistency.cli import main as cli
from trl_consistency.scripts import dpo


TEXT = {"clean_prompt": "Say A.", "perturbed_prompt": "Say A, or B."}
ANSWER = [{"role": "assistant", "content": "Lyon."}]
THOUGHT = [{"role": "assistant", "reasoning_content": "Is it?", "content": "Paris."}]
WITH_SYSTEM = {**CHAT, "perturbed_prompt": [{"role": "system", "content": "Be kind."}, *CHAT["perturbed_prompt"]]}


def convert(room: Room, rows: list[dict[str, Any]], *flags: str, model: str | None = "") -> None:
    """The command, which would run but for what the case changes. An empty `model` is the tiny one."""
    named = [] if model is None else ["--model_name_or_path", model or str(room.model_dir)]
    pairs, out = room.file("pairs.jsonl", rows), room.path / "out"
    cli(["convert", "--pairs", str(pairs), "--output_dir", str(out), *named, *flags])


def into_other_folder(room: Room) -> None:
    room.file("out/README.md", "made with `trl-consistency pairs`")
    convert(room, [CHAT])


def train_dpo(room: Room, rows: list[dict[str, Any]], *flags: str) -> None:
    data, out = room.file("preferences.jsonl", rows), room.path / "out"
    options = ["--dataset_name", str(data), "--output_dir", str(out), "--use_cpu", "--bf16", "False"]
    dpo.run(["--model_name_or_path", str(room.model_dir), *options, *flags])


def resume_dpo(room: Room) -> None:
    """Resumes a run whose reference is synchronised."""
    room.file("out/checkpoint-1/rng_state.pth", "")
    TrainerState(global_step=1).save_to_json(str(room.path / "out" / "checkpoint-1" / TRAINER_STATE_NAME))
    train_dpo(room, [CHAT], "--sync_ref_model", "true", "--resume_from_checkpoint", "true")


CASES: list[Case] = [
    Case(
        "conversion without a model",
        "`convert`: no model whose answers would be preferred",
        "No model: give `model_name_or_path`. Its answers to the clean prompts and perturbed prompts are needed.",
        partial(convert, rows=[CHAT], model=None),
    ),
    Case(
        "conversion with targets and no model",
        "`convert`: pairs with their targets, and no model that answers under the cue",
        "No model: give `model_name_or_path`. Its answers to the perturbed prompts are needed.",
        partial(convert, rows=[{**CHAT, "completion": "Paris"}], model=None),
    ),
    Case(
        "conversion of tokens without a tokenizer",
        "`convert --to sft`: targets as token ids, too, and no tokenizer that says what these hold beside the text",
        "`model_name_or_path` is needed: `…pairs.jsonl` has `completion_ids`, and only the tokenizer says which special tokens of a thought "
        "they hold beside the text. Or remove `completion_ids`: the text is then taken as it is.",
        lambda room: convert(
            room, [{**CHAT, "completion": "Paris", "completion_ids": [5]}], "--to", "sft", model=None
        ),
    ),
    Case(
        "conversion of another model's tokens",
        "`convert`: the token ids of another model's targets",
        "`pairs`: 1 of 1 row(s) cannot be used. Nothing was dropped; mend or remove it: row 0: `completion` and `completion_ids` differ: render "
        "`completion_ids` again, or remove it",
        lambda room: convert(room, [{**CHAT, "completion": "Paris", "completion_ids": [5]}], "--to", "sft"),
    ),
    Case(
        "conversion by a model that is not there",
        "`convert`: a model that is not there",
        "The tokenizer of nobody/nothing cannot be loaded: …",
        partial(convert, rows=[CHAT], model="nobody/nothing"),
    ),
    Case(
        "conversion by a pickled model",
        "`convert`: a model whose weights are a pickle",
        "…model holds its weights as a pickle (pytorch_model.bin), which is not loaded: it could run code. …",
        lambda room: convert(room, [CHAT], model=room.pickled_model()),
    ),
    Case(
        "conversion to an unknown format",
        "`convert`: an unknown format",
        "argument --to: invalid choice: 'dpo' (choose from …)",
        lambda room: convert(room, [CHAT], "--to", "dpo"),
    ),
    Case(
        "conversion of preferences",
        "`convert`: a column with a meaning in TRL's formats",
        "`…pairs.jsonl` has the column `chosen`, which has a meaning in TRL's format: rename it.",
        partial(convert, rows=[{**CHAT, "chosen": "Paris"}]),
    ),
    Case(
        "convert of prepared rows",
        "`convert`: token ids, which `SFTTrainer` would train on instead of prompt and answer",
        "`…pairs.jsonl` has the column `input_ids`, which has a meaning in TRL's format: rename it.",
        lambda room: convert(room, [{**CHAT, "completion": "Paris", "input_ids": [1]}], "--to", "sft", model=None),
    ),
    Case(
        "conversion of a text column",
        "`convert --to sft`: a column `text`, into which `SFTTrainer` would put the end of the answer",
        "`…pairs.jsonl` has the column `text`, which has a meaning in TRL's format: rename it.",
        lambda room: convert(room, [{**CHAT, "completion": "Paris", "text": "x"}], "--to", "sft", model=None),
    ),
    Case(
        "conversion of token ids",
        "`convert`: targets as token ids alone",
        "`…pairs.jsonl` has `completion_ids` without `completion`, and TRL's format holds text. `trl-consistency targets` "
        "writes both.",
        partial(convert, rows=[{**CHAT, "completion_ids": [5]}]),
    ),
    Case(
        "conversion of some targets",
        "`convert`: targets for some rows alone",
        "`…pairs.jsonl`: 1 of 2 row(s) cannot be used. Nothing was dropped; mend or remove it: row 1: `completion` is missing "
        "here though the column exists: …",
        partial(convert, rows=[{**CHAT, "completion": "Paris"}, CHAT]),
    ),
    Case(
        "conversion of long prompts",
        "`convert`: a prompt that leaves no room for an answer",
        "`train`: 1 of 1 row(s) cannot be used. Nothing was dropped; mend or remove it: row 0: a prompt has … tokens, which "
        "leaves no room in the model's context of 512",
        partial(convert, rows=[{**CHAT, "perturbed_prompt": [{"role": "user", "content": "A " * 600}]}]),
    ),
    Case(
        "conversion into another command's folder",
        "`convert`: a folder with the card of another command",
        "`output_dir` …out has a README.md that `trl-consistency convert` did not write, and would replace. Choose another "
        "folder.",
        into_other_folder,
    ),
    Case(
        "conversion over data of one's own",
        "`convert`: a folder with your own data under the names of the rows: they would be overwritten",
        "`output_dir` …out has a data/train-00000-of-00001.jsonl that `trl-consistency convert` did not write, and would replace. …",
        lambda room: (room.file("out/data/train-00000-of-00001.jsonl", "{}"), convert(room, [CHAT])),
    ),
    Case(
        "conversion beside other data",
        "`convert`: a folder with other data, which `load_dataset` would read with the rows",
        "`output_dir` …out has a train_old.jsonl, which would be read with the data that `trl-consistency convert` writes …",
        lambda room: (room.file("out/train_old.jsonl", [CHAT]), convert(room, [CHAT])),
    ),
    Case(
        "conversion on a full disk",
        "`convert`: a folder that cannot be written to",
        "`output_dir` `/dev/null/x` cannot be written (Not a directory). What was there before is kept: choose another place, "
        "and start again.",
        lambda room: convert(room, [CHAT], "--output_dir", "/dev/null/x"),
    ),
    Case(
        "DPO that evaluates nothing",
        "`dpo`: `do_eval` alone, with which nothing was evaluated",
        "`do_eval` alone evaluates nothing: set `eval_strategy`, or leave it out.",
        lambda room: train_dpo(room, [CHAT], "--do_eval", "true"),
    ),
    Case(
        "dpo that pushes",
        "`dpo`: `push_to_hub`, with which TRL sends the whole folder",
        "`push_to_hub` is not available in this command: TRL would send the whole folder, and in `training_args.bin` the token. "
        "Train without it, and then `trl-consistency push … user/name`.",
        lambda room: train_dpo(room, [CHAT], "--push_to_hub", "true"),
    ),
    Case(
        "dpo that goes on without its reference",
        "`dpo`: a checkpoint of a run with `sync_ref_model`, whose reference is not in it",
        "`resume_from_checkpoint`: …checkpoint-1 does not hold the reference that `sync_ref_model` had changed, so the run would go on "
        "against the initial model. Begin it anew, or leave out `sync_ref_model` in both.",
        resume_dpo,
    ),
    Case(
        "DPO on pairs",
        "The DPO script: pairs instead of preferences",
        "The data set has no column `prompt`, only `clean_prompt`, `perturbed_prompt`. `trl-consistency convert --to preference` "
        "makes preferences of pairs.",
        partial(train_dpo, rows=[CHAT]),
    ),
    Case(
        "DPO on thoughts that are lost",
        "The DPO script: answers with thoughts that the chat template leaves out",
        "`train_dataset`: 1 of 1 row(s) cannot be used. Nothing was dropped; mend or remove it: row 0: `chosen`: the chat template leaves "
        "out or changes what message 0 (assistant) says: 'Is it?' is not in the rendered text. Use another template, or take it out.",
        lambda room: train_dpo(room, [{"prompt": CHAT["clean_prompt"], "chosen": THOUGHT, "rejected": ANSWER}]),
    ),
    Case(
        "DPO by a pickled model",
        "The DPO script: a model whose weights are a pickle",
        "…model holds its weights as a pickle (pytorch_model.bin), which is not loaded: it could run code. …",
        lambda room: train_dpo(
            room, [{"prompt": "a", "chosen": "b", "rejected": "c"}], "--model_name_or_path", room.pickled_model()
        ),
    ),
    Case(
        "system prompt for text",
        "`evaluate`: a system prompt for prompts that are text",
        "`pairs`: 1 of 1 row(s) cannot be used. Nothing was dropped; mend or remove it: row 0: `system_prompt` cannot stand in "
        "front: a prompt is text, and only chat messages can have a system message",
        lambda room: room.evaluate([TEXT], "--system_prompt", "Be brief."),
    ),
    Case(
        "second system prompt",
        "`evaluate`: a system prompt for prompts that have one",
        "`pairs`: 1 of 1 row(s) cannot be used. Nothing was dropped; mend or remove it: row 0: `system_prompt` cannot stand in "
        "front: a prompt has a system message of its own",
        lambda room: room.evaluate([WITH_SYSTEM], "--system_prompt", "Be brief."),
    ),
    Case(
        "system prompt of the suites",
        "`evaluate`: a system prompt, and suites, which have their own",
        "`system_prompt` is not available with `suites`: the suites have prompts of their own. Leave one of them out.",
        lambda room: room.evaluate([CHAT], "--system_prompt", "Be brief.", "--suites", "mmlu"),
    ),
    Case(
        "thinking markers of the suites",
        "`evaluate`: other markers of thoughts, and suites, whose libraries do not know them",
        "`thinking_markers` is not available with `suites`, which cut thoughts between <think> and </think> alone. Leave one of them out.",
        lambda room: room.evaluate([CHAT], "--thinking_markers", "[T]", "[/T]", "--suites", "mmlu"),
    ),
    Case(
        "system prompt of capability",
        "`evaluate`: a system prompt, and capability, which is measured without one",
        "`system_prompt` is not available with `capability_data`: capability is measured without one. Leave one of them out.",
        lambda room: room.evaluate([CHAT], "--system_prompt", "Be brief.", "--capability_data", str(room.path)),
    ),
]
