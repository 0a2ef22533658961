import re

import pytest

from tests.helpers.chats import assistant, user
from tests.helpers.models import CHATML, make_tokenizer
from tests.helpers.tokenizer_kinds import make
from trl_consistency.data.rendering import render_completion, render_prompt
from trl_consistency.data.thinking import empty_thought, has_thought, thought_span, thought_spans


@pytest.fixture(params=["tokens of their own", "plain text"])
def tokenizer(request):
    tokenizer = make_tokenizer()
    if request.param == "tokens of their own":
        tokenizer.add_tokens(["<think>", "</think>"])
    return tokenizer


@pytest.mark.parametrize(
    ("completion", "emptied"),
    [
        ("<think>\nIs it Lyon?\n</think>\n\nParis.<|im_end|>", "<think>\n\n</think>\n\nParis.<|im_end|>"),
        ("Is it Lyon?\n</think>\n\nParis.<|im_end|>", "\n</think>\n\nParis.<|im_end|>"),  # the prompt opened it
        ("<think>\n\n</think>\n\nParis.", "<think>\n\n</think>\n\nParis."),
        ("Paris.<|im_end|>", "Paris.<|im_end|>"),
        ("<think>\nIs it Lyon? Or is it", ""),
        ("<think>a</think>b <think>c</think> d", "<think>\n\n</think>b <think>\n\n</think> d"),
        ("a</think>b <think>c</think><think>d</think>e", "\n</think>b <think>\n\n</think><think>\n\n</think>e"),
        ("<think>a</think>b <think>c", ""),
        ("<think>a</think>b </think> c", "<think>\n\n</think>b </think> c"),
    ],
)
def test_empty_thought(tokenizer, completion, emptied):
    def encode(text):
        # The markers stand alone, as a model samples them.
        return [
            token
            for part in text.replace("<think>", "\0<think>\0").replace("</think>", "\0</think>\0").split("\0")
            if part
            for token in tokenizer(text=part, add_special_tokens=False)["input_ids"]
        ]

    assert tokenizer.decode(empty_thought([], encode(completion), tokenizer)) == emptied


@pytest.mark.parametrize("kind", ["bytes", "llama 2", "llama 2, stripping"])
def test_an_emptied_thought_has_the_tokens_of_an_empty_one(kind):
    """A SentencePiece tokenizer put a space before it."""
    tokenizer, prompt = make(kind, CHATML), user("What is the capital of France?")
    thought, empty = (
        render_completion(tokenizer, prompt, assistant(f"<think>\n{said}</think>\n\nParis."))
        for said in ("Is it Lyon?\n", "\n")
    )
    assert empty_thought(render_prompt(tokenizer, prompt), thought, tokenizer) == empty


def test_other_markers(tokenizer):
    ids = tokenizer(text="[A]x[B]y")["input_ids"]
    spaced = [token for part in ("[A]", "x", "[B]", "y") for token in tokenizer(text=part)["input_ids"]]
    assert tokenizer.decode(empty_thought([], spaced, tokenizer, ("[A]", "[B]"))) == "[A]\n\n[B]y"
    assert empty_thought([], ids[:1], tokenizer, ("[A]", "[B]")) == ids[:1]


def test_markers_within_other_tokens():
    """As in the vocabularies of Qwen and Llama, whose signs take the line breaks after them along."""
    tokenizer = make_tokenizer()
    tokenizer.add_tokens([">\n", "r>\n\n"])
    ids = tokenizer(text="Well: <er>\nIs it Lyon?\n</er>\n\nParis.<|im_end|>")["input_ids"]
    marker = tokenizer(text="</er>")["input_ids"]
    assert not any(ids[start : start + len(marker)] == marker for start in range(len(ids)))
    emptied = empty_thought([], ids, tokenizer, ("<er>", "</er>"))
    assert tokenizer.decode(emptied) == "Well: <er>\n\n</er>\n\nParis.<|im_end|>"
    start, end = thought_span([], ids, tokenizer, ("<er>", "</er>"))
    assert tokenizer.decode(ids[end:]) == "Paris.<|im_end|>"
    assert tokenizer.decode(ids[:start]).rstrip() == "Well:"
    assert thought_span(ids[:12], ids[12:], tokenizer, ("<er>", "</er>")) == (0, end - 12)


@pytest.mark.parametrize(
    "markers", [("\u25c1think\u25b7", "\u25c1/think\u25b7"), ("\u3010\u601d\u3011", "\u3010/\u601d\u3011")]
)
def test_markers_whose_characters_are_several_tokens(markers):
    """No token alone is such a character, and the thought was taken for a part of the answer."""
    tokenizer, (opening, closing) = make_tokenizer(), markers
    ids = tokenizer(text=f"{opening}Is it \u00c9vry?{closing}\n\nParis.<|im_end|>")["input_ids"]
    assert len(tokenizer(text=opening[0])["input_ids"]) > 1
    emptied = empty_thought([], ids, tokenizer, markers)
    assert tokenizer.decode(emptied) == f"{opening}\n\n{closing}\n\nParis.<|im_end|>"
    start, end = thought_span([], ids, tokenizer, markers)
    assert (start, tokenizer.decode(ids[end:])) == (0, "\n\nParis.<|im_end|>")
    before = tokenizer(text="Well: ")["input_ids"]
    assert thought_span([], before + ids, tokenizer, markers) == (len(before), len(before) + end)


@pytest.mark.parametrize(
    ("prompt", "completion", "thought"),
    [
        ("", "<think>x</think>y", "<think>x</think>"),
        ("", "y", ""),
        ("", "<think>x y", "<think>x y"),
        ("<think>", "x</think>y", "x</think>"),
        ("<think>", "x y", "x y"),
        ("<think></think>", "x y", ""),
        ("", "x</think>y", "x</think>"),
    ],
)
def test_thought_span(tokenizer, prompt, completion, thought):
    def encode(text):
        parts = re.split("(<think>|</think>)", text)
        return [token for part in parts for token in tokenizer(text=part, add_special_tokens=False)["input_ids"]]

    start, end = thought_span(encode(prompt), encode(completion), tokenizer)
    assert encode(completion)[start:end] == encode(thought)


@pytest.mark.parametrize(
    ("prompt", "completion", "left"),
    [
        ("", "<think>a</think>b<think>c</think>d", "bd"),
        ("<think>", "a</think>b<think>c</think>d<think>e</think>f", "bdf"),
        ("", "<think>a</think><think>b</think>c", "c"),
        ("", "<think>a</think>b<think>c", "b"),
        ("", "<think>a</think>b</think>c", "b</think>c"),
        ("", "b", "b"),
    ],
)
def test_thought_spans(tokenizer, prompt, completion, left):
    prompt_ids, ids = (tokenizer(text=text, add_special_tokens=False)["input_ids"] for text in (prompt, completion))
    kept = list(ids)
    for start, end in reversed(thought_spans(prompt_ids, ids, tokenizer)):
        del kept[start:end]
    assert tokenizer.decode(kept) == left


@pytest.mark.parametrize(
    ("completion", "has_one"),
    [("<think>\n</think>a <think>b</think>c", True), ("<think>\n</think>a <think>\n</think>c", False), ("a", False)],
)
def test_a_later_thought_is_one(tokenizer, completion, has_one):
    ids = tokenizer(text=completion, add_special_tokens=False)["input_ids"]
    assert has_thought([], ids, tokenizer) == has_one


@pytest.mark.parametrize(
    ("prompt", "is_open"),
    [
        ([{"role": "user", "content": "What does <think> mean?"}], False),
        ([{"role": "user", "content": "Hi?"}, {"role": "assistant", "content": "<think>\nWell"}], True),
    ],
)
def test_only_the_last_turn_opens_a_thought(tokenizer, prompt, is_open):
    prefilled = {"continue_final_message": True} if is_open else {"add_generation_prompt": True}
    text = tokenizer.apply_chat_template(prompt, tokenize=False, **prefilled)
    prompt_ids, completion = (tokenizer(text=of, add_special_tokens=False)["input_ids"] for of in (text, "x y"))
    assert thought_span(prompt_ids, completion, tokenizer) == ((0, len(completion)) if is_open else (0, 0))


@pytest.mark.parametrize(
    ("prompt", "is_open"),
    [
        ("Think in <think> tags, then answer.\n\nQ: 1 + 1?\nA:", False),
        ("Q: 1 + 1?\nA: <think>", True),
        ("Q: 1 + 1?\nA: <think>\n", True),
        ("<|im_start|>user\nHi?<|im_end|>\n<|im_start|>assistant\n<think>\nWell", True),  # a chat, written out
    ],
)
@pytest.mark.parametrize("begin", ["", "<s>"], ids=["no beginning", "beginning"])
def test_text_without_turns_opens_a_thought_at_its_end_alone(tokenizer, prompt, is_open, begin):
    """What mentions the marker, such as an instruction, opens none: its answers were emptied."""
    if begin:
        tokenizer.add_special_tokens({"bos_token": begin})
    prompt_ids, completion = (tokenizer(text=text)["input_ids"] for text in (begin + prompt, "x y"))
    assert thought_span(prompt_ids, completion, tokenizer) == ((0, len(completion)) if is_open else (0, 0))
    assert empty_thought(prompt_ids, completion, tokenizer) == ([] if is_open else completion)


def test_tokens_of_the_marker_itself_do_not_close_a_thought(tokenizer):
    markers = ("<|im_start|>analysis", "<|im_start|>final")
    prompt_ids = tokenizer(text="<|im_start|>assistant\n<|im_start|>analysis<|im_end|>Well")["input_ids"]
    assert thought_span(prompt_ids, [5, 6], tokenizer, markers) == (0, 2)
