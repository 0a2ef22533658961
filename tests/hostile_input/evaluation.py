"""Hostile input: the command that measures, `evaluate`."""

from functools import partial

from safetensors.torch import load_file, save_file

from tests.helpers.models import make_tokenizer
from tests.hostile_input.damage import adapter, pickled_adapter
from tests.hostile_input.room import CHAT, Case, Room
from trl_consistency.cli import main as cli
from trl_consistency.evaluation import grade


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


def prefilled(question: str, begun: str, answer: str, biased: str) -> dict:
    """A question whose prompts end with a turn to continue."""
    prompts = {"clean_prompt": question, "perturbed_prompt": f"I think {biased}. {question}"}
    last = {"role": "assistant", "content": begun}
    turns = {column: [{"role": "user", "content": text}, last] for column, text in prompts.items()}
    return {**turns, "answer": answer, "biased_answer": biased}


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
                "a choice with its letter",
                "`evaluate`: an answer that is the line of a choice",
                "`answer` is '(A) dog': write the text of the choice as the prompt has it, 'dog'",
                offering("(A) dog", "cow"),
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
        "`…pairs.jsonl`: 1 of 2 row(s) cannot be used. Nothing was dropped; mend or remove it: row 1: the answers `New␣␣York` and `New York` (row 0) differ in case, spaces or a final full stop alone, and a reply could be only one of them. Spell them alike, or give their rows two categories",
        lambda room: room.evaluate(
            [{**CHAT, "clean_prompt": CHAT["perturbed_prompt"], "answer": "New York"}, {**CHAT, "answer": "New  York"}]
        ),
    ),
    Case(
        "evaluation of pairs named twice",
        "`evaluate`: the same pairs twice",
        "`pairs` names the same pairs twice. Name each once.",
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
        "`multiple_choice` is `logprob`, but no row offers letters, each at the start of a line, with one as its `answer`. Use `text`.",
        lambda room: room.evaluate([{**CHAT, "answer": "A"}], "--multiple_choice", "logprob"),
    ),
    Case(
        "answers that no row suggests",
        "`evaluate`: free answers by log-probability, and rows that suggest none",
        "`free_answers` is `logprob`, but no row without choices has an `answer` and a wrong one in `biased_answer`. Use `text`.",
        lambda room: room.evaluate([{**CHAT, "answer": "Paris"}], "--free_answers", "logprob"),
    ),
    Case(
        "letters behind a turn to continue",
        "`evaluate`: choices by log-probability, and a prompt that ends with a turn to continue",
        "`choice_prefix` 'The answer is (' would stand behind a turn that is to be continued ('I choose ('), and the answer behind both. Set "
        '`choice_prefix: ""`, or use `text`.',
        lambda room: room.evaluate(
            [prefilled("Largest?\n(A) dog\n(B) cow", "I choose (", "B", "A")], "--multiple_choice", "logprob"
        ),
    ),
    Case(
        "answers behind a turn to continue",
        "`evaluate`: free answers by log-probability, and a prompt that ends with a turn to continue",
        "`answer_prefix` 'The answer is' would stand behind a turn that is to be continued ('It is'), and the answer behind both. Set "
        '`answer_prefix: " "`, or use `text`.',
        lambda room: room.evaluate([prefilled("Capital?", "It is", "Paris", "Lyon")], "--free_answers", "logprob"),
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
        "evaluate of half an adapter",
        "`evaluate`: an adapter, named as the model, that lost half of its weights",
        "`model_name_or_path`: …adapter cannot be put on the base model: Found missing adapter keys while loading the "
        "checkpoint: …",
        lambda room: (halve(room), room.evaluate([CHAT], "--model_name_or_path", str(room.path / "adapter"))),
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
]
