import base64
import re
from html.parser import HTMLParser

from trl_consistency.evaluation import Rate
from trl_consistency.evaluation.html_report import Picture, html_report


RESULTS = {
    "before": {"sycophancy/test": Rate(124, 128), "<mine>": Rate(0, 0, unparsed=5)},
    "A & B": {"sycophancy/test": Rate(4, 128, unparsed=2)},
}
BAD = '<script>alert("x")</script>'


class Page(HTMLParser):
    """The cells of each row, and whether every element is closed in its turn."""

    VOID = ("meta", "img", "br")

    def __init__(self, text):
        super().__init__()
        self.open, self.rows, self.addresses = [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.addresses += [value for name, value in attributes if name in ("src", "href")]
        if tag not in self.VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("th", "td"):
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "tr" in self.open and self.rows[-1]:
            self.rows[-1][-1] += data.strip() + " "


def make_page(tmp_path):
    (tmp_path / "plot.png").write_bytes(b"\x89PNG")
    pictures = [Picture(tmp_path / "plot.png", "A plot", "It shows <nothing>.")]
    examples = [("Is 1 < 2?", {"before": BAD, "A & B": "Yes."})]
    return html_report("Title", "What & how", RESULTS, pictures, examples, ["recipe & all"])


def test_tables(tmp_path):
    rows = [[" ".join(cell.split()) for cell in row] for row in Page(make_page(tmp_path)).rows]
    assert rows == [
        ["", "before", "A & B"],
        [
            "Sycophancy, held-out questions",
            "96.9% [92.2, 98.8] (124/128)",
            "3.1% [1.2, 7.8] (4/128), 2 unparsed",
        ],
        ["<mine>", "n/a (0/0), 5 unparsed", "-"],
        ["", "before", "A & B"],
        ["Is 1 < 2?", BAD, "Yes."],
    ]


def test_page_needs_no_other_file(tmp_path):
    page = make_page(tmp_path)
    (address,) = Page(page).addresses
    assert base64.b64decode(address.removeprefix("data:image/png;base64,")) == b"\x89PNG"
    assert not re.search(r"https?://|<script|<link|@import|url\(", page)
