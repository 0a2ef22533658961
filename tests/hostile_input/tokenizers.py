"""Hostile input: damaged tokenizers, templates and generation configs."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.helpers.models import make_tokenizer
from tests.hostile_input.room import CHAT, Case, Room, train_files


def train_tokenizer(change: Callable[[dict], Any]) -> Callable[[Room], None]:
    """Training a model whose tokenizer.json was changed."""

    def meet(room: Room) -> None:
        content = json.loads((room.model_dir / "tokenizer.json").read_text())
        room.train(model_name_or_path=str(room.model(tokenizer__json=json.dumps(change(content)))))

    return meet


def with_vocabulary(change: Callable[[dict], Any]) -> Callable[[Room], None]:
    """Training a model with another vocabulary."""
    return train_tokenizer(lambda of: of | {"model": of["model"] | {"vocab": change(of["model"]["vocab"])}})


def train_template(template: str | bytes) -> Callable[[Room], None]:
    """Training with another chat template."""
    return lambda room: room.train(chat_template_path=str(room.file("template.jinja", template)))


def train_completion(template: str, completion: str = "Paris.") -> Callable[[Room], None]:
    """Training on a given answer under a system message, with another chat template."""

    def meet(room: Room) -> None:
        system = {"role": "system", "content": "Be brief."}
        prompts = {side: [system, *CHAT[side]] for side in CHAT}
        room.file("pairs.jsonl", [prompts | {"completion": completion}] * 2)
        train_template(template)(room)

    return meet


def train_tools(room: Room) -> None:
    """Training with a tool that a prompt names, and a chat template that writes no tools."""
    tool = {"type": "function", "function": {"name": "calculator", "parameters": {}}}
    asked = [{"role": "user", "content": "What does the calculator say?"}]
    room.file("pairs.jsonl", [{"clean_prompt": asked, "perturbed_prompt": [*asked, *asked], "tools": [tool]}] * 2)
    train_template(ALL_TEXT)(room)


def train_call(room: Room) -> None:
    """Training on a call of a tool, with a chat template that writes the list of tools and no calls."""
    tool = {"type": "function", "function": {"name": "calculator", "parameters": {}}}
    call = {"type": "function", "function": {"name": "calculator", "arguments": {}}}
    completion = [{"role": "assistant", "content": "", "tool_calls": [call]}]
    room.file("pairs.jsonl", [CHAT | {"completion": completion, "tools": [tool]}] * 2)
    train_template("{{ tools | tojson }}" + ALL_TEXT)(room)


def replaced_by_folder(name: str) -> Callable[[Room], None]:
    """Training a model where a folder has the place of a file."""

    def meet(room: Room) -> None:
        file: Path = room.model() / name
        file.unlink(missing_ok=True)
        file.mkdir()
        room.train(model_name_or_path=str(file.parent))

    return meet


def swapped_tokens(room: Room) -> str:
    """A model whose tokenizer has the numbers of two tokens the other way round."""
    content = json.loads((room.model_dir / "tokenizer.json").read_text())
    vocab = content["model"]["vocab"]
    vocab["A"], vocab["B"] = vocab["B"], vocab["A"]
    return str(room.model(tokenizer__json=json.dumps(content)))


TOKENIZER = "The tokenizer of …model cannot be loaded:"
REFUSED = "…row 0: the chat template refused it"
VARIES = "`train_dataset`: the chat template renders the same messages differently each time, so that …"
LEFT_OUT = "…row 0: the chat template leaves out or changes what message 0 (user) says: 'What?' is not in the …"
ALL_TEXT = "{% for m in messages %}{{ m.content }}{% endfor %}"

CASES: list[Case] = [
    *(
        Case(f"tokenizer.json {name}", f"A tokenizer.json {what}", f"{TOKENIZER} {said}", meet)
        for name, what, said, meet in (
            ("list", "that is a list", "tokenizer.json must hold a JSON object.", train_files(tokenizer__json="[1]")),
            ("null", "that is `null`", "tokenizer.json must hold a JSON object.", train_files(tokenizer__json="null")),
            (
                "folder",
                "that is a folder",
                "tokenizer.json is a folder, a pipe or a device, and not a file.",
                replaced_by_folder("tokenizer.json"),
            ),
            ("no model", "without a model", "…", train_tokenizer(lambda of: {**of, "model": None})),
            (
                "unknown model",
                "of a kind that is unknown",
                "…",
                train_tokenizer(lambda of: of | {"model": of["model"] | {"type": "Magic"}}),
            ),
            ("empty", "without a vocabulary", "…", with_vocabulary(lambda vocabulary: {})),
            ("negative", "with negative numbers", "…", with_vocabulary(lambda of: {key: -of[key] for key in of})),
            ("texts", "with texts for numbers", "…", with_vocabulary(lambda of: {key: str(of[key]) for key in of})),
            (
                "same numbers",
                "that gives all tokens one number",
                "several of its tokens have the same number. Download or copy it again.",
                with_vocabulary(lambda of: dict.fromkeys(of, 5)),
            ),
        )
    ),
    *(
        Case(
            f"tokenizer_config.json {name}",
            f"A tokenizer_config.json {what}",
            f"{TOKENIZER} …",
            train_files(tokenizer_config__json=of),
        )
        for name, what, of in (
            ("list", "that is a list", "[]"),
            ("null", "that is `null`", "null"),
            ("empty", "that is empty", ""),
            ("latin", "that is not UTF-8", b'{"a": "\xe9"}'),
            ("eos_token", "whose end-of-sequence token is a number", {"eos_token": 3}),
            ("class", "whose class is a number", {"tokenizer_class": 3}),
            ("padding", "that pads upwards", {"padding_side": "up"}),
            ("truncation", "that cuts upwards", {"truncation_side": "up"}),
            ("unknown end", "whose end-of-sequence token is not in the vocabulary", {"eos_token": "</s>"}),
            ("extra tokens", "whose extra tokens are a number", {"extra_special_tokens": 3}),
            ("added tokens", "whose added tokens have no numbers", {"added_tokens_decoder": {"x": {"content": "q"}}}),
        )
    ),
    Case(
        "tokenizer_config.json length",
        "A tokenizer_config.json whose length is a text",
        f"{REFUSED} (TypeError: …)…",
        train_files(tokenizer_config__json={"model_max_length": "long"}),
    ),
    *(
        Case(
            f"generation_config.json {name}",
            f"A generation_config.json {what}",
            message,
            train_files(generation_config__json=of),
        )
        for name, what, of, message in (
            ("list", "that is a list", "[]", "…generation_config.json cannot be read: … Repair it, or delete it."),
            (
                "cut",
                "that was cut short: the tokens that end an answer would be lost",
                "{",
                "…generation_config.json cannot be read: … Repair it, or delete it.",
            ),
            (
                "length",
                "with a negative length",
                '{"max_new_tokens": -4}',
                "…generation_config.json cannot be read: … Repair it, or delete it.",
            ),
            (
                "end",
                "whose end-of-sequence token is a text",
                '{"eos_token_id": "</s>"}',
                "…generation_config.json: `eos_token_id` must be the number of a token, or a list of them, got '</s>'.",
            ),
        )
    ),
    *(
        Case(f"template {name}", f"A chat template {what}", message, train_template(of))
        for name, what, of, message in (
            ("constant", "that writes the same for all messages", "hello", LEFT_OUT),
            ("roles", "that leaves out what users say", "{% for m in messages %}{{ m.role }}{% endfor %}", LEFT_OUT),
            ("end", "that leaves out all but the end of a message", "{{ messages[-1].content[-2:] }}", LEFT_OUT),
            ("upper", "that changes letters", ALL_TEXT.replace("content", "content | upper"), LEFT_OUT),
            (
                "huge text",
                "that makes a huge text",
                ALL_TEXT + "{{ 'a' * 10**16 }}",
                "…takes more memory than there is…",
            ),
            ("chance", "that holds a random number", ALL_TEXT + "{{ range(99999)|random }}", VARIES),
            ("time", "that holds the microsecond", ALL_TEXT + "{{ strftime_now('%f') }}", VARIES),
            ("undefined", "with a variable that there is not", "{{ nope.nope }}", f"{REFUSED} (UndefinedError: …)…"),
            (
                "recursion",
                "that calls itself",
                "{% macro a() %}{{ a() }}{% endmacro %}{{ a() }}",
                f"{REFUSED} (Recursion…",
            ),
            ("zero", "that divides by zero", "{{ 1 / 0 }}", f"{REFUSED} (ZeroDivisionError: division by zero)…"),
            ("include", "that includes a file", "{% include '/etc/passwd' %}", f"{REFUSED} (TypeError: no loader …"),
            ("import", "that imports a module", "{% import 'os' as os %}", f"{REFUSED} (TypeError: no loader …"),
            ("types", "that adds a number to messages", "{{ messages + 3 }}", f"{REFUSED} (TypeError: …"),
            (
                "mutation",
                "that deletes the messages",
                "{% set _ = messages.clear() %}x",
                f"{REFUSED} (SecurityError: …",
            ),
            (
                "UTF-16",
                "in UTF-16",
                "{{ 1 }}".encode("utf-16"),
                "`chat_template_path` …template.jinja cannot be read: …",
            ),
        )
    ),
    Case(
        "template folder",
        "A folder instead of a chat template",
        "The tokenizer of …model cannot be loaded: chat_template.jinja is a folder, a pipe or a device, and not a file.",
        replaced_by_folder("chat_template.jinja"),
    ),
    Case(
        "template moves the system message",
        "Given completions, under a chat template that moves the system message once an answer follows (Mistral's)",
        "…row 0: the chat template writes the prompt itself in another way once an answer follows …",
        train_completion(
            "{% set s = messages[0].content %}{% for m in messages[1:] %}{{ s if loop.last and m.role == 'user' }}"
            "{{ m.content }}{% endfor %}"
        ),
    ),
    Case(
        "template without tools",
        "A chat template without tools, where the prompt has the tool's name",
        "…row 0: the chat template leaves out or changes what `tools` says: 'calculator' is not in the rendered text as often "
        "as it is said. …",
        train_tools,
    ),
    Case(
        "template without calls",
        "Given completions that call a tool, under a chat template that writes the list of tools and no calls",
        "…row 0: the chat template leaves out or changes what message 1 (assistant) says: 'calculator' is not in the rendered text. …",
        train_call,
    ),
    Case(
        "template opens a thought",
        "Given completions without a thought, under a chat template whose prompt opens one",
        "…row 0: the prompt ends inside a thought, and `completion` as the chat template writes it has no '</think>': …",
        train_completion(ALL_TEXT + "{% if add_generation_prompt %}<think>{% endif %}"),
    ),
    Case(
        "template closes a thought",
        "Given completions with a thought, under a chat template whose prompt ends with an empty one",
        "…row 0: the prompt ends with a closed thought, and `completion` has another, which would go on after that without '<think>'. …",
        train_completion(
            ALL_TEXT + "{% if add_generation_prompt %}<think></think>{% endif %}", "<think>I recall it.</think>Paris"
        ),
    ),
    Case(
        "template writes a thought in two ways",
        "Given completions, under a chat template whose empty thought has other spaces before an answer than at a prompt's end",
        "…row 0: the prompt ends with a closed thought, and the chat template writes a second '</think>' before `completion`: …",
        train_completion(
            "{% for m in messages %}{{ '<think> </think>' if m.role == 'assistant' }}{{ m.content }}{% endfor %}"
            "{% if add_generation_prompt %}<think></think>{% endif %}"
        ),
    ),
    Case(
        "template writes an empty thought",
        "Given completions with a thought in their text, under a chat template that writes a thought of its own before it",
        "…row 0: the chat template writes an empty thought before `completion`, and '<think>' in its text begins another: …",
        train_completion(
            "{% for m in messages %}{{ '<think></think>' if m.role == 'assistant' }}{{ m.content }}{% endfor %}"
            "{% if add_generation_prompt %}<think>{% endif %}",
            "<think>I recall it.</think>Paris",
        ),
    ),
    Case(
        "tokenizer of another model",
        "The tokenizer of another model, whose tokens have other numbers",
        "`processing_class`: the data are read with a tokenizer in which '…' is token …, and for …model it is token …. It would read other texts. Use a model and a tokenizer with the same vocabulary.",
        lambda room: room.trainer(processing_class=make_tokenizer(), model=swapped_tokens(room)),
    ),
    Case(
        "template empty",
        "A chat template that is an empty file",
        "…row 0: the chat template leaves out or changes what message 0 (user) says: …",
        train_files(**{"chat_template.jinja": ""}),
    ),
]
