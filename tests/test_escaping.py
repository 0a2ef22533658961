import re

import pytest
import torch
from safetensors.torch import save_file

from trl_consistency import ConsistencyError
from trl_consistency.escaping import markdown_text, printable
from trl_consistency.publishing import publish


HOSTILE = "a\x1b]0;owned\x07b\x1b[2Jc\u202edlrow\u2066\u200e\x9b31m\u2028\rz\ud800\ufeff"


def test_what_a_terminal_would_obey_is_shown_as_its_code():
    shown = printable(HOSTILE)
    assert shown.isprintable()
    assert shown.encode()
    assert shown.startswith(r"a\x1b]0;owned\x07b\x1b[2Jc\u202edlrow\u2066\u200e\x9b31m\u2028\rz")
    assert printable(shown) == shown


@pytest.mark.parametrize(
    "text", ["plain", "two\nlines\tand a tab", "Größe, 日本語", "👩\u200d🚀", "\u0645\u06cc\u200c\u062e\u0648"]
)
def test_other_text_stays(text):
    assert printable(text) == text


def test_errors_are_printable():
    error = ConsistencyError(f"`{HOSTILE}` is no column.\n  row 1: {HOSTILE}")
    assert all(line.isprintable() for line in str(error).split("\n"))
    assert str(error).count("\n") == 1


def unescaped(pattern: str, text: str) -> bool:
    return re.search(rf"(?<!\\)(?:\\\\)*{pattern}", text) is not None


@pytest.mark.parametrize(
    "text",
    [
        "<script>alert(1)</script>",
        "<img src=https://example.com/x.png>",
        "![x](https://example.com/x.png)",
        "[x](javascript:alert(1))",
        r"\[x](javascript:alert(1))",
        "`code` **bold** ~~gone~~",
        "one | two",
        "# heading",
        "1. item",
        "x\n# heading\n- item\n===\n```",
    ],
)
def test_markdown_shows_the_text_itself(text):
    shown = markdown_text(text)
    assert "\n" not in shown
    for pattern in ("<(?!br>)", r"\[", r"\]", r"\|", "`", r"\*", "~"):
        assert not unescaped(pattern, shown), shown
    for line in shown.split("<br>"):
        assert not re.match(r"\s*(?:[#+=-]|\d+[.)])", line)


def test_markdown_of_plain_text_is_the_text():
    assert markdown_text("Is it 1.5, or 2 (or -3)? Say so: yes!") == "Is it 1.5, or 2 (or -3)? Say so: yes!"
    assert markdown_text("Lyon?\nWhat?") == "Lyon?<br>What?"
    assert markdown_text("a & b") == "a &amp; b"


def test_names_of_files_in_a_dry_run(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("trl_consistency.publishing.hub.prepare_page", lambda *args: {"README.md": b""})
    save_file({"a": torch.zeros(1)}, tmp_path / "model.safetensors")
    (tmp_path / "a\x1b[2Jb.png").write_bytes(b"x")
    (tmp_path / "a\u202eb.txt").write_bytes(b"x")
    publish(tmp_path, "me/bct", dry_run=True)
    said = capsys.readouterr().out
    assert r"a\x1b[2Jb.png" in said
    assert r"a\u202eb.txt" in said
    assert all(line.isprintable() for line in said.splitlines())
