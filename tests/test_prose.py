"""The pages of docs/ read well, by what tests/prose.py measures."""

import pytest

from tests.prose import DOCS, LEAST_EASE, paragraphs, readability, sentences, words


PAGES = sorted(DOCS.glob("*.md"))


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_page_reads_easily(path):
    ease = readability(path.read_text()).ease
    assert ease is None or ease >= LEAST_EASE


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_sentences_are_short_and_plain(path):
    assert readability(path.read_text()).faults == []


def test_prose_is_what_is_left():
    page = (
        "# A heading\n\nOne **word**\nand [two](x.md#y). Then `a b c`!\n\n```bash\nrun this\n```\n\n| a | b |\n|---|---|\n\n"
        "- an item\n- another\n\n$$\nx\n$$\n\n<!-- a\nnote -->\n![alt](p.png)\n"
    )
    assert paragraphs(page) == ["One word and two. Then code!", "an item", "another"]


def test_sentences_and_words():
    assert sentences("It is 1.5 points, e.g. here. Is it? (Yes.) So: no.") == [
        "It is 1.5 points, e.g. here.",
        "Is it?",
        "(Yes.",
        "So: no.",
    ]
    assert words("It's a well-known 1,000% — of `x`, 2.5!") == 7


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("word " * 36 + ".", "36 words"),
        ("A share of those that came to none.", "'that came to none'"),
        ("The former is better than the latter.", "'the latter'"),
    ],
)
def test_faults_are_found(text, fault):
    assert any(fault in found for found in readability(text).faults)
    assert readability("word " * 35 + ".").faults == []


def test_hard_prose_is_below_the_limit():
    hard = "Institutional interdependencies necessitate multidimensional organisational reconfiguration. " * 5
    easy = "The model reads the prompt. It gives an answer. Then we look at it. The cue is gone. So is the fault. "
    assert readability(hard).ease < LEAST_EASE < readability(easy).ease
