import random
import time
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import processors

from tests.helpers.chats import user
from tests.helpers.models import make_tokenizer
from tests.helpers.processors import TextProcessor
from tests.helpers.prompts import TEMPLATES, mutations
from trl_consistency.data.alignment import (
    Span,
    content_range,
    header_length,
    report_alignment,
    seam_tokens,
    shared_content_span,
    shared_suffix,
)
from trl_consistency.data.rendering import render_prompt, render_text
from trl_consistency.organism.tokenizer import build_tokenizer


NO_SYSTEM_TURN = {"gemma"}


# --- oracles ---


def brute_suffix(clean_ids, perturbed_ids):
    for length in range(min(len(clean_ids), len(perturbed_ids)), 0, -1):
        if clean_ids[-length:] == perturbed_ids[-length:]:
            return length
    return 0


def brute_span(clean_ids, perturbed_ids, content):
    """The last place of the whole content or of its core, and the most of the content that can be laid around that."""
    start, end = content
    core = (start + seam_tokens(end - start), end - seam_tokens(end - start))
    size = core[1] - core[0]
    places = [
        place
        for place in range(len(perturbed_ids) - size + 1)
        if perturbed_ids[place : place + size] == clean_ids[core[0] : core[1]]
    ]
    if not places or not size:
        return None
    whole = [
        place for place in range(len(perturbed_ids)) if perturbed_ids[place:][: end - start] == clean_ids[start:end]
    ]
    if whole and places[-1] < whole[-1] + end - start:
        places = [whole[-1] + core[0] - start]
    candidates = [
        (left, right)
        for left in range(start, core[0] + 1)
        for right in range(core[1], end + 1)
        if (shifted := places[-1] - (core[0] - left)) >= 0
        and perturbed_ids[shifted : shifted + right - left] == clean_ids[left:right]
    ]
    left, right = max(candidates, key=lambda bounds: bounds[1] - bounds[0])
    return Span(left, places[-1] - (core[0] - left), right - left)


def assert_equal_ids(span, clean_ids, perturbed_ids):
    clean_start, perturbed_start, length = span
    assert min(span) >= 0
    assert clean_start + length <= len(clean_ids)
    assert perturbed_start + length <= len(perturbed_ids)
    assert clean_ids[clean_start : clean_start + length] == perturbed_ids[perturbed_start : perturbed_start + length]


def byte_bounds(tokenizer, ids):
    """Where each token of a byte-level tokenizer starts and ends in the rendered text, in bytes."""
    special = set(tokenizer.get_added_vocab())
    tokens = tokenizer.convert_ids_to_tokens(ids)
    bounds = [0]
    for token in tokens:
        # A byte-level token has one character for each byte.
        bounds.append(bounds[-1] + (len(token.encode()) if token in special else len(token)))
    return list(pairwise(bounds))


# --- spans of token lists ---

FEW_TOKENS = st.lists(st.integers(0, 2), max_size=24)


@given(FEW_TOKENS, FEW_TOKENS)
@settings(max_examples=500, deadline=None)
def test_shared_suffix_is_the_longest(clean_ids, perturbed_ids):
    span = shared_suffix(clean_ids, perturbed_ids)
    assert span.length == brute_suffix(clean_ids, perturbed_ids)
    assert span.clean_start + span.length == len(clean_ids)
    assert span.perturbed_start + span.length == len(perturbed_ids)
    assert_equal_ids(span, clean_ids, perturbed_ids)


@given(FEW_TOKENS, FEW_TOKENS, st.tuples(st.integers(0, 24), st.integers(0, 24)))
@settings(max_examples=1000, deadline=None)
def test_shared_content_span_equals_brute_force(clean_ids, perturbed_ids, bounds):
    start, end = sorted(min(bound, len(clean_ids)) for bound in bounds)
    span = shared_content_span(clean_ids, perturbed_ids, (start, end))
    expected = brute_span(clean_ids, perturbed_ids, (start, end))
    assert span == expected if expected else span.length == 0
    assert_equal_ids(span, clean_ids, perturbed_ids)


@pytest.mark.parametrize(
    ("clean_ids", "perturbed_ids", "content", "span"),
    [
        ([1, 5, 6, 7, 8, 2], [1, 5, 6, 7, 8, 9, 5, 6, 7, 8, 2], (1, 5), (1, 6, 4)),  # twice: the last
        (
            [1, 5, 6, 7, 8, 2],
            [1, 5, 6, 7, 8, 9, 4, 6, 7, 3, 2],
            (1, 5),
            (2, 7, 2),
        ),  # the last, though merged at both ends
        ([1, 5, 6, 7, 8, 2], [1, 5, 6, 7, 8, 2], (1, 5), (1, 1, 4)),  # never beyond the content
        ([1, 5, 6, 7, 8, 2], [6, 7], (1, 5), (2, 0, 2)),  # at both ends of the prompt
        ([1, 5, 6, 2], [5, 3, 6], (1, 3), (1, 0, 0)),  # too short to leave out its ends
        ([1, 5, 6, 2], [3, 5, 6], (1, 3), (1, 1, 2)),
        ([1, 2], [1, 2], (1, 1), (1, 0, 0)),  # no content
        # Repetitions within the content, which was laid one token too late
        ([1, 5, 5, 5, 5, 5, 5, 2], [1, 7, 5, 5, 5, 5, 5, 5, 2], (1, 7), (1, 2, 6)),
        ([*(1, 2) * 4, 3], [7, *(1, 2) * 4, 3], (0, 8), (0, 1, 8)),
        # Twice, the second time with its first two tokens in one.
        ([*range(10, 20)], [*range(10, 20), 1, 2, *range(12, 20), 3], (0, 10), (2, 12, 8)),
    ],
)
def test_shared_content_span_by_hand(clean_ids, perturbed_ids, content, span):
    assert shared_content_span(clean_ids, perturbed_ids, content) == span


@pytest.mark.parametrize(
    ("clean_ids", "perturbed_ids", "content", "within", "span"),
    [
        # The last copy begins with another token, as after a space. The first one was compared.
        ([1, 5, 6, 2], [1, 5, 6, 9, 4, 6, 2], (1, 3), (5, 6), (2, 5, 1)),
        ([1, 5, 6, 7, 8, 2], [1, 5, 6, 7, 8, 9, 4, 7, 8, 2], (1, 5), (7, 9), (3, 7, 2)),
        ([1, 5, 6, 2], [1, 5, 6, 9, 4, 2], (1, 3), (4, 5), (1, 1, 2)),  # no token of it is the same
    ],
)
def test_content_whose_core_is_not_in_the_last_copy(clean_ids, perturbed_ids, content, within, span):
    assert shared_content_span(clean_ids, perturbed_ids, content, within) == span


def test_padding_is_never_compared_and_unequal_lengths_align():
    """Mistake 2: the rows are aligned by their own ends."""
    assert shared_suffix([9, 1, 2, 3], [8, 8, 8, 1, 2, 3]) == Span(1, 3, 3)
    assert shared_suffix([1, 2], [1, 2]) == Span(0, 0, 2)
    assert shared_suffix([], [1]) == Span(0, 1, 0)


def test_long_prompts_take_milliseconds():
    clean_ids = random.Random(0).choices(range(50), k=32_768)
    perturbed_ids = [*clean_ids[:-1000], 7, *clean_ids]
    start = time.perf_counter()
    assert shared_suffix(clean_ids, perturbed_ids).length == len(clean_ids)
    assert (
        shared_content_span(clean_ids, perturbed_ids, (10, 32_000)).perturbed_start == len(clean_ids) - 1000 + 1 + 10
    )
    assert time.perf_counter() - start < 0.5


# --- where the content is ---


def decoded(tokenizer, prompt, shared_text=None):
    ids = render_prompt(tokenizer, prompt)
    found = content_range(tokenizer, prompt, ids, shared_text)
    return None if found is None else tokenizer.decode(ids[slice(*found)])


def test_content_is_the_last_user_message(tokenizer):
    messages = [*user("What is it?"), {"role": "assistant", "content": "Paris."}, *user("Are you sure?")]
    assert decoded(tokenizer, messages) == "Are you sure?"
    assert decoded(tokenizer, [{"role": "system", "content": "Are you sure?"}, *user(" Are you sure? \n")]) == (
        "Are you sure?"
    )


def test_content_is_not_found_in_a_quotation_or_in_the_template(tokenizer):
    prompt = [*user("What?"), {"role": "assistant", "content": "You ask: What?"}]
    ids = render_prompt(tokenizer, prompt)
    end = content_range(tokenizer, prompt, ids)[1]
    assert tokenizer.decode(ids[:end]) == "<|im_start|>user\nWhat?"
    prompt = user("assistant")
    ids = render_prompt(tokenizer, prompt)
    start = content_range(tokenizer, prompt, ids)[0]
    assert tokenizer.decode(ids[:start]) == "<|im_start|>user\n"


def test_content_of_string_prompts_and_blocks(tokenizer):
    assert decoded(tokenizer, " What is it?\n") == " What is it?\n"
    blocks = [{"role": "user", "content": [{"type": "text", "text": "What "}, {"type": "text", "text": "is it?"}]}]
    assert decoded(tokenizer, blocks) == "What is it?"


def test_content_under_the_template_of_a_multimodal_model():
    template = "{% for m in messages %}[{% for block in m.content %}{{ block.text }}{% endfor %}]{% endfor %}"
    processor = TextProcessor(make_tokenizer(template))
    prompt = user("What is it?")
    ids = render_prompt(processor, prompt)
    assert content_range(processor, prompt, ids) == content_range(processor, prompt, ids, "What is it?")
    assert processor.tokenizer.decode(ids[slice(*content_range(processor, prompt, ids))]) == "What is it?"
    assert header_length(processor, prompt) == 1


def test_shared_text_counts_where_it_comes_last(tokenizer):
    prompt = user("Lyon? Paris.\nLyon? ")
    ids = render_prompt(tokenizer, prompt)
    start, end = content_range(tokenizer, prompt, ids, " Lyon?\n")
    assert tokenizer.decode(ids[start:end]) == "Lyon?"
    assert tokenizer.decode(ids[:start]).endswith("Paris.\n")


def test_content_that_is_not_there(tokenizer):
    assert decoded(tokenizer, user("What is it?"), "Which one?") is None
    assert decoded(tokenizer, user("What is it?"), "  ") is None
    assert decoded(tokenizer, [{"role": "system", "content": "Be brief."}]) is None


def test_content_that_the_template_strips():
    tokenizer = make_tokenizer("{% for m in messages %}[{{ m.content | trim }}]{% endfor %}")
    assert decoded(tokenizer, user("  What is it? \n")) == "What is it?"


def test_tokens_that_reach_over_the_content_are_left_out(tokenizer):
    """Mistake 4: ` capital` is one token, whose space the content does not hold."""
    text = "What is the capital of France?"
    assert decoded(tokenizer, text, "capital of France") == " of France"


@pytest.mark.parametrize("trim_offsets", [False, True])
def test_offsets_without_white_space(trim_offsets):
    tokenizer = make_tokenizer()
    tokenizer.backend_tokenizer.post_processor = processors.ByteLevel(trim_offsets=trim_offsets)
    assert decoded(tokenizer, "What is the capital of France?", "capital of France") == " of France"
    assert decoded(tokenizer, "What is the capital of France?", "the capital") == " capital"
    assert decoded(tokenizer, user("What is it?")) == "What is it?"


def test_beginning_of_sequence_token_is_not_content():
    tokenizer = make_tokenizer()
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<|im_start|> $A <|im_end|>",
        special_tokens=[(token, tokenizer.convert_tokens_to_ids(token)) for token in ("<|im_start|>", "<|im_end|>")],
    )
    ids = render_prompt(tokenizer, "What is it?")
    assert content_range(tokenizer, "What is it?", ids) == (1, len(ids))


def test_ids_that_the_text_does_not_give_are_searched(tokenizer):
    """Sampled or edited ids: the tokens of the content are looked for, its last copy first."""
    ids = [5, *tokenizer("Lyon is it?")["input_ids"], 6, *tokenizer("Lyon is it?")["input_ids"], 7]
    start, end = content_range(tokenizer, user("Lyon is it?"), ids)
    assert (tokenizer.decode(ids[start:end]), end) == ("Lyon is it?", len(ids) - 1)
    assert content_range(tokenizer, user("Lyon is it?"), [5, 6, 7]) is None


def test_word_level_tokenizer_with_unknown_words():
    tokenizer = build_tokenizer()
    prompt = user("What is the capital of nowhere?")
    ids = render_prompt(tokenizer, prompt)
    assert content_range(tokenizer, prompt, ids) == (1, len(ids) - 2)
    assert content_range(tokenizer, prompt, ids, "is the capital") == (2, 5)
    assert header_length(tokenizer, prompt) == 2


# --- the generation header ---


def test_header_of_each_kind_of_prompt(tokenizer):
    header = "<|im_end|>\n<|im_start|>assistant\n"
    length = len(tokenizer(header)["input_ids"])
    assert header_length(tokenizer, user("What?")) == length
    assert header_length(tokenizer, [*user("What?"), {"role": "tool", "content": "Paris"}]) == length
    assert header_length(tokenizer, user("What?"), None, {"no_think": True}) == len(
        tokenizer(header + "<think></think>")["input_ids"]
    )
    assert header_length(tokenizer, "What?") == 0
    assert header_length(tokenizer, [*user("What?"), {"role": "assistant", "content": "It is"}]) == 0


def test_header_without_offsets(tokenizer):
    class Slow:
        is_fast = False

        def __getattr__(self, name):
            return getattr(tokenizer, name)

        def __len__(self):
            return len(tokenizer)

        def __call__(self, **options):
            return tokenizer(**options)

    assert header_length(Slow(), user("What?")) == header_length(tokenizer, user("What?"))


# --- the report ---


def test_report_names_the_rows():
    spans = [Span(0, 0, 10), Span(6, 9, 4), Span(7, 9, 3), Span(10, 12, 0), Span(2, 3, 3)]
    report = report_alignment(spans, [10] * 5, [4] * 5)
    assert report.rows == 5
    assert report.shared_tokens == (0, 3, 10)
    assert report.shared_fraction == (0, 0.3, 1)
    assert report.header_only == [1, 2], "the last row's span is as short, but not in the header"
    assert report.no_shared_span == [3]
    assert str(report) == (
        "5 pair(s) share 0 to 10 tokens (median 3), 0% to 100% of the clean prompt (median 30%). 2 of them share at most "
        "one token before the generation header, and 1 nothing at all."
    )


def test_report_on_nothing():
    assert report_alignment([], [], []).shared_tokens == (0, 0, 0)
    with pytest.raises(ValueError, match="dimensions"):
        report_alignment([Span(0, 0, 1)], [1], [])


# --- real prompts under real chat templates ---


@pytest.mark.parametrize("name", TEMPLATES)
def test_header_is_what_any_two_conversations_share(real, name):
    for (template, split), tokenizer in real.tokenizers.items():
        if template == name:
            ids = [render_prompt(tokenizer, user(content)) for content in ("Tell me q", "Say to them z", "y")]
            shared = [shared_suffix(*two).length for two in pairwise(ids)]
            header = real.headers[template, split]
            assert shared == [header, header]
            assert header > 0


@pytest.mark.long
@pytest.mark.parametrize("name", TEMPLATES)
def test_last_user_message_under_real_templates(real, name):
    for split in ("gpt2", "llama3"):
        tokenizer = real.tokenizers[name, split]
        for row in real.rows[::100]:
            content = row["clean_prompt"][0]["content"]
            turns = [*user("What?"), {"role": "assistant", "content": "Well."}, *user(f" {content}\n")]
            for prompt in (row["clean_prompt"], turns, [*turns, {"role": "assistant", "content": f"{content} Well"}]):
                ids = render_prompt(tokenizer, prompt)
                start, end = content_range(tokenizer, prompt, ids)
                # A first or last token that merged with white space beside it is not content.
                inside = tokenizer.decode(ids[start:end])
                assert inside in content
                assert len(inside) > 0.9 * len(content)
                if prompt[-1]["role"] == "assistant":
                    after = tokenizer.decode(ids[end:])
                    assert content in after, "the quotation is not taken for the message"


def check_pair(real, data):
    row = real.rows[data.draw(st.integers(0, len(real.rows) - 1))]
    key = data.draw(st.sampled_from(sorted(real.tokenizers)))
    tokenizer = real.tokenizers[key]
    clean_prompt = row["clean_prompt"]
    perturbed_prompt, shared_text = data.draw(mutations(row))
    if key[0] in NO_SYSTEM_TURN and perturbed_prompt[0]["role"] == "system":
        return
    clean_ids, perturbed_ids = (render_prompt(tokenizer, prompt) for prompt in (clean_prompt, perturbed_prompt))

    suffix = shared_suffix(clean_ids, perturbed_ids)
    assert suffix.length == brute_suffix(clean_ids, perturbed_ids)
    assert_equal_ids(suffix, clean_ids, perturbed_ids)
    # Contents that end in punctuation may merge with what follows.
    assert suffix.length >= real.headers[key] - 1

    shared_text = shared_text.strip()
    content = content_range(tokenizer, clean_prompt, clean_ids, shared_text)
    start, end = content
    text = render_text(tokenizer, clean_prompt).encode()
    left = text.rindex(shared_text.encode())
    right = left + len(shared_text.encode())
    bounds = byte_bounds(tokenizer, clean_ids)
    assert bounds[-1][1] == len(text), "the oracle has lost its place"
    inside = [index for index, (low, high) in enumerate(bounds) if left <= low and high <= right]
    assert (start, end) == (inside[0], inside[-1] + 1)

    span = shared_content_span(clean_ids, perturbed_ids, content)
    assert_equal_ids(span, clean_ids, perturbed_ids)
    expected = brute_span(clean_ids, perturbed_ids, content)
    assert span == expected if expected else span.length == 0
    # No mutation touches the inside of the text, so that all but the words at its ends must be there, in the last copy.
    # (In a short text, the core may still hold a part of those words.)
    perturbed_text = render_text(tokenizer, perturbed_prompt).encode()
    if end - start >= 32 and shared_text.encode() in perturbed_text:
        assert span.length >= end - start - 2 * seam_tokens(end - start)
        assert byte_bounds(tokenizer, perturbed_ids)[span.perturbed_start][0] >= perturbed_text.rindex(
            shared_text.encode()
        )


QUICK = settings(max_examples=1000, deadline=None, suppress_health_check=list(HealthCheck), database=None)


@pytest.mark.long
@given(data=st.data())
@QUICK
def test_real_prompts_under_real_templates(real, data):
    check_pair(real, data)


@pytest.mark.slow
@given(data=st.data())
@settings(QUICK, max_examples=10_000)
def test_ten_thousand_real_prompts(real, data):
    check_pair(real, data)
