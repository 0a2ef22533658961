"""Hostile input: data that capability is measured on."""

from collections.abc import Callable

from tests.hostile_input.room import CHAT, Case, Room
from trl_consistency.evaluation import capability


def measured(*rows: object, name: str = "mine.jsonl", installed: str | None = "1") -> Callable[[Room], None]:
    """The command with these rows as the one file of its folder."""

    def meet(room: Room) -> None:
        room.monkeypatch.setattr(capability, "installed_version", lambda package: installed)
        room.file(f"capability/{name}", list(rows))
        room.evaluate([CHAT | {"answer": "Paris"}], "--capability_data", str(room.path / "capability"))

    return meet


QUESTION = {"question": "Largest?", "choices": ["dog", "cow"], "answer": 1}

CASES: list[Case] = [
    Case(
        "capability of other columns",
        "`evaluate --capability_data`: a file of no known kind",
        "`capability_data`: …mine.jsonl has the columns `query`, `reply`. Questions need `question`, `choices` and `answer`, "
        "texts `text`, or `question` and `answer`, and prompts `prompt` and `label`.",
        measured({"query": "Largest?", "reply": "cow"}),
    ),
    Case(
        "capability without data",
        "`capability_data`: a folder without such files",
        "`capability_data`: …capability has no questions, texts or prompts (.jsonl, .json, .csv, .parquet).",
        measured({"text": "x"}, name="notes.txt"),
    ),
    Case(
        "capability of prompts of an unknown type",
        "`capability_data`: prompts whose `type` says nothing of safety as XSTest's does",
        "`capability_data`: …mine.jsonl, row 1: `type` 'harmful' is none of XSTest's: say in `label` whether it is `safe` or `unsafe`.",
        measured({"prompt": "How do I kill a process?", "type": "homonyms"}, {"prompt": "Rob?", "type": "harmful"}),
    ),
    Case(
        "capability of another type",
        "`capability_data`: a file of a type that is not read",
        "`capability_data`: …more.tsv is not read, since its files end in .jsonl, .json, .csv, .parquet. Convert it, or put …",
        lambda room: (room.file("capability/more.tsv", "text\nx"), measured({"text": "x"})(room)),
    ),
    Case(
        "capability of pairs",
        "`capability_data`: a folder of pairs",
        "`capability_data`: …capability has no questions, texts or prompts (…), only pairs, which `pairs` takes.",
        measured({"clean_prompt": "x", "perturbed_prompt": "y"}),
    ),
    Case(
        "capability of a wrong answer",
        "`capability_data`: an answer that is not one of the choices",
        "`capability_data`: …mine.jsonl, row 1: `answer` must be the index of one of the 2 choices, from 0, got 2.",
        measured(QUESTION, QUESTION | {"answer": 2}),
    ),
    Case(
        "capability of questions and texts",
        "`capability_data`: choices in only some rows: the other rows would be read as texts",
        "`capability_data`: …mine.jsonl, row 0: `choices` must be a list of two texts or more.",
        measured({"question": "Largest?", "answer": "A cow."}, QUESTION),
    ),
    Case(
        "capability of a passage",
        "`capability_data`: questions about a passage in a column of its own, which is not read: no model could answer them",
        "`capability_data`: …mine.jsonl, row 1: `passage` is not read, so that the model would not see it. Write it into `question`, or remove "
        "that column.",
        measured(QUESTION | {"passage": ""}, QUESTION | {"passage": "Of two animals, the dog is larger."}),
    ),
    Case(
        "capability of pairs and texts",
        "`capability_data`: a pair among texts: all of them would be left out",
        "`capability_data`: …mine.jsonl, row 0: `text` must be a text, got None.",
        measured({"clean_prompt": "x", "perturbed_prompt": "y"}, {"text": "A cow is large."}),
    ),
    Case(
        "capability behind a link to nothing",
        "`capability_data`: a link to a file that is gone, which would be missing",
        "…capability: gone.jsonl is a link to nothing: copy the file itself there.",
        lambda room: (
            room.file("capability/notes.txt", "x"),
            (room.path / "capability" / "gone.jsonl").symlink_to("nowhere"),
            measured({"text": "A cow is large."})(room),
        ),
    ),
    Case(
        "capability of one choice",
        "`capability_data`: a question without a choice",
        "`capability_data`: …mine.jsonl, row 0: `choices` must be a list of two texts or more.",
        measured(QUESTION | {"choices": ["cow"]}),
    ),
    Case(
        "capability of nothing",
        "`capability_data`: a text that is not there",
        "`capability_data`: …mine.jsonl, row 1: `text` must be a text, got None.",
        measured({"text": "A cow is large."}, {"text": None}),
    ),
    Case(
        "capability of a long text",
        "`capability_data`: a text that is longer than the model's context",
        "`capability_data`: …mine.jsonl, row 0: it has … tokens, more than the model's context of 512. Leave it out.",
        measured({"text": "A cow is large. " * 500}),
    ),
    Case(
        "capability of an unknown label",
        "`capability_data`: a prompt that is neither safe nor unsafe",
        "`capability_data`: …mine.jsonl, row 0: `label` must be `safe` or `unsafe`, got 'fine'.",
        measured({"prompt": "How do I kill a process?", "label": "fine"}),
    ),
    Case(
        "capability without the harness",
        "`capability_data`: questions, without the package that scores them",
        "`capability_data`: the questions of …mine.jsonl need the package `lm_eval`: `pip install -e '.[capability]'`.",
        measured(QUESTION, installed=None),
    ),
]
