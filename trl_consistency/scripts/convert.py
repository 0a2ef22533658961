"""
Turns pairs into a data set in one of TRL's formats, with a model's answers.

```bash
trl-consistency convert --pairs pairs --to preference --model_name_or_path Qwen/Qwen3-4B-Instruct-2507 --output_dir preferences
```
"""

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from ..config.options import (
    SHARE,
    TEMPERATURE,
    CommandArguments,
    at_least,
    check_ranges,
    option,
    refuse_unused,
    with_help,
)
from ..data.folders import ANSWERS
from ..data.local_data import read_as_times
from ..errors import ConsistencyError, ends_with_message
from ..escaping import printable
from ..evaluation.answers.generate import AnswerOptions
from ..evaluation.answers.replies import check_markers
from ..evaluation.conversion import TOKENS, Conversion, convert_pairs, has_tokens, sides_to_answer
from ..evaluation.pair_set import PairSet
from ..files import whole_files
from ..folder_lock import locked_folder
from ..generation.model_identity import answer_cache
from ..json_files import as_json, own_columns
from ..local_names import last_name, public_options
from ..models.checks import context_of
from ..models.folder_warnings import warn_of_folders, warn_of_loaded
from ..models.loading import check_loadable, load_model, load_tokenizer
from ..pages import render
from ..perturbations.card import check_folder, file_name
from ..trainer.run.output_checks import check_output_dir
from .json_output import one_object
from .pair_sets import check_lengths, load_sets, render_sets, variables_in
from .parser import StrictParser, as_template_kwargs


@dataclass
@with_help
class ConvertArguments(CommandArguments):
    """Arguments of the `convert` command, explained by its `--help`."""

    # Parameters that control the data
    pairs: str = option(
        help="Pairs: a JSON Lines, JSON, CSV or Parquet file, a folder or data set on the Hub, or the name of an embedded "
        "model."
    )
    output_dir: str = option(help="Folder for the rows and their card, which a TRL trainer takes as `dataset_name`.")
    to: Literal["preference", "sft"] = option(
        "preference",
        help="`preference` for `DPOTrainer` (the answer to the clean prompt is chosen, the answer under the cue rejected), or "
        "`sft` for `SFTTrainer` (the answer to the clean prompt is the completion).",
    )
    splits: list[str] | None = option(None, help="Splits of a folder or data set. By default `train`.")
    max_pairs: int | None = option(
        None, at_least(1), help="Maximum pairs of each split, sampled with `seed`. By default all."
    )
    # Parameters that control the model
    model_name_or_path: str | None = option(
        None,
        help="Model that answers. For `sft` of pairs with a `completion`, its tokenizer alone is loaded, and is needed if they have "
        "`completion_ids`.",
    )
    model_revision: str | None = option(None, help="Revision of the model.")
    trust_remote_code: bool = option(False, help="Whether to run code from the model's repository.")
    # Parameters that control the answers
    max_completion_length: int = option(256, at_least(1), help="Maximum tokens per answer.")
    batch_size: int = option(32, at_least(1), help="Prompts per batch.")
    temperature: float = option(0.0, TEMPERATURE, help="Sampling temperature; 0 is greedy decoding.")
    top_p: float = option(1.0, SHARE, help="Cumulative probability of the tokens to sample from.")
    seed: int = option(42, help="Seed.")
    thinking_markers: list[str] = option(
        ["<think>", "</think>"],
        help="The two texts that open and close a thought. Only what follows a thought is graded.",
    )
    chat_template_kwargs: dict[str, Any] | str | None = option(
        None, help="Variables of the chat template (JSON on the command line)."
    )
    # Parameters that control the output
    json: bool = option(False, help="Print one JSON object instead of text.")


LEFT_OUT = "left_out.jsonl"

TITLES = {
    "preference": "Preferences for the answer without a cue",
    "sft": "Perturbed prompts with the answers to clean ones",
}
ABOUT = {
    "preference": "`prompt` is the perturbed prompt, `chosen` the answer to the clean prompt, `rejected` the answer to "
    "`prompt`. `chosen_outcome` and `rejected_outcome` say how they are graded. `clean_prompt` is not trained on: by it, "
    "`trl-consistency evaluate` knows the pair again.",
    "sft": "`prompt` is the perturbed prompt, `completion` the answer to the clean prompt.",
}

# Options that are of no use in a card.
_NOT_IN_CARD = ("pairs", "output_dir", "batch_size", "trust_remote_code", "json")
_OF_ANSWERS = ("max_completion_length", "temperature", "top_p")


def main(args: ConvertArguments) -> dict[str, Conversion]:
    """Answers, converts and writes; returns the conversion of each split."""
    check_ranges(args)
    template_kwargs = as_template_kwargs(args.chat_template_kwargs)
    options = AnswerOptions(
        max_new_tokens=args.max_completion_length,
        batch_size=args.batch_size,
        temperature=args.temperature,
        top_p=args.top_p,
        seed=args.seed,
        thinking_markers=check_markers(args.thinking_markers),
    )
    is_file = os.path.isfile(args.pairs)
    by_default = None if is_file else ["train"]
    splits = by_default if args.splits is None else args.splits
    sets = load_sets([args.pairs], splits, args.max_pairs, args.seed)
    if is_file:
        (of_file,) = sets.values()
        sets = {"train": of_file}
    check_folder(args.output_dir, "convert", [LEFT_OUT, *(file_name(name, "jsonl") for name in sets)])
    sides = {side for of_set in sets.values() for side in sides_to_answer(of_set, args.to, args.pairs)}
    _check_model(args, sides, any(map(has_tokens, sets.values())))
    with locked_folder(args.output_dir):
        check_output_dir(args.output_dir)
        found = _convert(args, sets, options, template_kwargs, bool(sides))
        _write(args, sets, found, bool(sides))
    return found


def _check_model(args: ConvertArguments, sides: set[str], has_ids: bool) -> None:
    if sides and not args.model_name_or_path:
        asked = " and ".join(f"{side} prompts" for side in sorted(sides))
        raise ConsistencyError(f"No model: give `model_name_or_path`. Its answers to the {asked} are needed.")
    if has_ids and not args.model_name_or_path:
        raise ConsistencyError(f"`model_name_or_path` is needed: `{args.pairs}` has {TOKENS}.")
    if not sides:
        of_model = () if args.model_name_or_path else ("model_revision", "trust_remote_code")
        unused = (*of_model, "max_completion_length", "batch_size", "temperature", "top_p")
        refuse_unused(args, unused, "nothing is asked of a model: all pairs have a `completion`. Leave it out")


def _convert(
    args: ConvertArguments,
    sets: dict[str, PairSet],
    options: AnswerOptions,
    template_kwargs: dict[str, Any],
    is_asked: bool,
) -> dict[str, Conversion]:
    model = tokenizer = cache = None
    if args.model_name_or_path:
        source = args.model_name_or_path, args.model_revision, args.trust_remote_code
        tokenizer = load_tokenizer(*source)
        sets = render_sets(sets, tokenizer, template_kwargs)  # fails early on faulty rows
        if is_asked:
            check_lengths(sets, context_of(check_loadable(*source)[2]), args.max_completion_length)
            answering = variables_in(sets, template_kwargs)
            warn_of_folders(args.model_name_or_path, [], tokenizer, answering, args.model_revision)
            model, tokenizer = load_model(*source)
            warn_of_loaded(args.model_name_or_path, [], model, tokenizer)
            cache = answer_cache(Path(args.output_dir) / ANSWERS, args.model_name_or_path, model, args.model_revision)
    found = {
        name: convert_pairs(of_set, args.to, model, tokenizer, options, template_kwargs, cache)
        for name, of_set in sets.items()
    }
    return {name: of._replace(warnings=[*of.warnings, *_time_warnings(of.rows)]) for name, of in found.items()}


def _time_warnings(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Returns warnings of texts that `datasets` would read as times, from the first rows, as it does."""
    texts = ("prompt", "completion", "clean_prompt", "chosen", "rejected")
    columns = read_as_times({key: row[key] for key in texts if key in row} for row in rows[:10_000])
    return [
        f"The texts in `{column}` all look like times, so `datasets` reads them as times. Pass `features` to `load_dataset`, "
        "with text for this column."
        for column in columns
    ]


def _write(args: ConvertArguments, sets: dict[str, PairSet], found: dict[str, Conversion], is_asked: bool) -> None:
    output_dir, written = Path(args.output_dir), {file_name(name, "jsonl") for name in found}
    earlier = sorted(output_dir.glob(file_name("*", "jsonl"))) if (output_dir / "README.md").exists() else []
    with whole_files(output_dir, "output_dir") as unfinished:
        (unfinished / "data").mkdir()
        left_out = [
            {"split": name, **own_columns(row, ("split",))}
            for name, of_set in found.items()
            for row in of_set.left_out
        ]
        _write_rows(unfinished / LEFT_OUT, left_out)
        for name, of_set in found.items():
            if not of_set.rows:
                raise ConsistencyError("\n  ".join([f"No pair of {name} is left:", *_lines(of_set)]))
            _write_rows(unfinished / file_name(name, "jsonl"), of_set.rows)
        (unfinished / "README.md").write_text(_card(args, sets, found, is_asked), encoding="utf-8")
    for file in earlier:
        if str(file.relative_to(output_dir)) not in written:
            file.unlink()


def _write_rows(file: Path, rows: Sequence[dict[str, Any]]) -> None:
    with file.open("w", encoding="utf-8") as lines:
        lines.writelines(json.dumps(as_json(row), ensure_ascii=False) + "\n" for row in rows)


def _lines(of_set: Conversion) -> list[str]:
    """Returns a line for each reason why pairs were left out."""
    return [f"{count} pair(s): {reason}" for reason, count in of_set.reasons().most_common()]


def _card(args: ConvertArguments, sets: dict[str, PairSet], found: dict[str, Conversion], is_asked: bool) -> str:
    options = {
        option.name: getattr(args, option.name)
        for option in fields(args)
        if option.name not in _NOT_IN_CARD
        and (is_asked or option.name not in _OF_ANSWERS)
        and getattr(args, option.name) is not None
    }
    return render(
        "converted_card.md",
        title=TITLES[args.to],
        about=ABOUT[args.to],
        source=last_name(args.pairs),
        splits={name: (len(of_set.rows), len(sets[name].rows)) for name, of_set in found.items()},
        outcomes={name: of_set.outcomes().most_common() for name, of_set in found.items() if of_set.outcomes()},
        warnings={name: of_set.warnings for name, of_set in found.items() if of_set.warnings},
        left_out={name: _lines(of_set) for name, of_set in found.items() if of_set.left_out},
        options=public_options(options),
    )


@ends_with_message()
def run(args: Sequence[str] | None = None, prog: str | None = None) -> None:
    """Converts and reports; faulty data or options end the program with one message."""
    (convert_args,) = StrictParser((ConvertArguments,), "convert", prog=prog).parse_args_and_config(args)
    folder = convert_args.output_dir
    with one_object(convert_args.json) as printed:
        found = main(convert_args)
        for name, of_set in found.items():
            print(f"{folder}/{file_name(name, 'jsonl')}: {len(of_set.rows)} rows")
            for line in _lines(of_set):
                print(printable(f"  left out: {line}"))
            for warning in of_set.warnings:
                print(printable(f"warning: {name}: {warning}"), file=sys.stderr)
        if any(of_set.left_out for of_set in found.values()):
            print(f"What was left out is in {folder}/{LEFT_OUT}.")
        printed |= {
            "output_dir": folder,
            "splits": {
                name: {
                    "file": f"{folder}/{file_name(name, 'jsonl')}",
                    "rows": len(of_set.rows),
                    "left_out": dict(of_set.reasons()),
                    "warnings": list(of_set.warnings),
                }
                for name, of_set in found.items()
            },
        }


if __name__ == "__main__":
    run()
