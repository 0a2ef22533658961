import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tests.helpers.chats import user
from trl_consistency.data.alignment import header_length
from trl_consistency.data.highlights import mark_pair, token_texts
from trl_consistency.data.rendering import render_prompt, render_text
from trl_consistency.organism.tokenizer import build_tokenizer


def marked(tokenizer, clean, perturbed, limit=None):
    """The text of each mark on both sides, in order."""
    ids = [render_prompt(tokenizer, prompt) for prompt in (clean, perturbed)]
    sides = mark_pair(*ids, header_length(tokenizer, clean), tokenizer, limit)
    for tokens, prompt, of_side in zip(sides, (clean, perturbed), ids, strict=True):
        assert len(tokens) == len(of_side)
        assert "".join(token.text for token in tokens) == render_text(tokenizer, prompt)
        assert [token.is_over_limit for token in tokens] == [
            limit is not None and place >= limit for place in range(len(of_side))
        ]
    runs = []
    for tokens in sides:
        run: dict[str, str] = {}
        for token in tokens:
            run[token.mark] = run.get(token.mark, "") + token.text
        runs.append(run)
    return runs


HEADER = "<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize("limit", [None, 6])
def test_cue_before_and_behind(tokenizer, limit):
    clean, perturbed = marked(tokenizer, user("A B"), user("C A B"), limit)
    assert clean == {"same": "<|im_start|>user\n", "shared": "A B", "header": HEADER}
    assert perturbed == {"same": "<|im_start|>user\n", "cue": "C ", "shared": "A B", "header": HEADER}
    clean, perturbed = marked(tokenizer, user("A B"), user("A B C"), limit)
    assert clean == {"same": "<|im_start|>user\nA B", "header": HEADER}
    assert perturbed == {"same": "<|im_start|>user\nA B", "cue": " C", "header": HEADER}


def test_anchor_is_all_shared(tokenizer):
    shared = {"shared": "<|im_start|>user\nWhy?", "header": HEADER}
    assert marked(tokenizer, user("Why?"), user("Why?")) == [shared, shared]


def test_characters_of_several_tokens(tokenizer):
    """Arabic and a family of emoji, of which the tokenizer has the bytes alone."""
    clean, perturbed = marked(tokenizer, user("ما هي؟"), user("👩‍👧 ليون. ما هي؟"))
    assert clean["shared"] == "ما هي؟"
    assert perturbed["cue"] == "👩‍👧 ليون. "


def test_text_prompts_have_no_header(tokenizer):
    assert marked(tokenizer, "A B", "C A B") == [
        {"shared": "A B"},
        {"cue": "C ", "shared": "A B"},
    ]


def test_spaces_of_a_sentencepiece_tokenizer():
    vocabulary = {piece: index for index, piece in enumerate(["<unk>", "▁Who", "▁is", "it", "?"])}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>")
    assert token_texts([1, 2, 3, 4], tokenizer) == ["Who", " is", "it", "?"]


def test_spaces_of_a_tokenizer_of_words():
    tokenizer = build_tokenizer()
    text = "What is the capital of"
    assert "".join(token_texts(tokenizer(text)["input_ids"], tokenizer)) == text


@pytest.mark.parametrize(
    "text", ["The capital of France is Paris.", "Größe: 日本, naïve 🦊!", "  two  spaces\nand a line"]
)
def test_texts_of_tokens_join_to_the_text(text, tokenizer):
    ids = tokenizer(text=text)["input_ids"]
    texts = token_texts(ids, tokenizer)
    assert len(texts) == len(ids)
    assert "".join(texts) == text


def test_tokens_that_are_no_text_do_not_hold_up_the_others(tokenizer):
    piece = tokenizer(text="日")["input_ids"][0]
    ids = [*[piece] * 9, *tokenizer(text=" Paris")["input_ids"]]
    texts = token_texts(ids, tokenizer)
    assert len(texts) == len(ids)
    assert "".join(texts).endswith(" Paris")
