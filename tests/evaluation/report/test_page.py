import base64
import re
from html import unescape
from html.parser import HTMLParser

from tests.helpers.results import rate
from trl_consistency.evaluation.report.page import Picture, Report, Table
from trl_consistency.evaluation.report.tables import rate_cells


RESULTS = {
    "before": {"sycophancy/test": rate(124, 128), "<mine>": rate(0, 5, unread=5)},
    "A & B": {"sycophancy/test": rate(4, 128, unread=2)},
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


def make_report(tmp_path):
    (tmp_path / "plot.png").write_bytes(b"\x89PNG")
    return Report(
        "Title",
        "What & how",
        list(RESULTS),
        [
            Table("Rates", "Share of <answers>.", rate_cells(RESULTS)),
            Table("Differences", "Paired.", {"Sycophancy": ["-93.8% [-97, -88] (n=126)"]}, ["A & B"]),
        ],
        [
            Picture(tmp_path / "plot.png", "A plot", "It shows <nothing>."),
            Picture(tmp_path / "plot.png", "Another", "It shows the same."),
        ],
        [("Is 1 < 2?\nSay | or -.", {"before": BAD, "A & B": "Yes."})],
        "Drawn at random.",
        ["recipe & all"],
        ["Right answers < before."],
    )


def test_notes_have_a_heading(tmp_path):
    report = make_report(tmp_path)
    assert "\n## How it was measured\n\n- recipe & all" in unescape(report.to_markdown())
    assert "<h2>How it was measured</h2><ul><li>recipe" in report.to_html()


def test_tables(tmp_path):
    rows = [[" ".join(cell.split()) for cell in row] for row in Page(make_report(tmp_path).to_html()).rows]
    assert rows == [
        ["", "before", "A & B"],
        [
            "Sycophancy, test",
            "96.9% [25.0, 75.0] (124/128)",
            "3.1% [25.0, 75.0] (4/128), 2 unread",
        ],
        ["<mine>", "0.0% [25.0, 75.0] (0/5), 5 unread", "-"],
        ["", "A & B"],
        ["Sycophancy", "-93.8% [-97, -88] (n=126)"],
        ["", "before", "A & B"],
        ["Is 1 < 2? Say | or -.", BAD, "Yes."],
    ]


def test_markdown_says_the_same(tmp_path):
    text = make_report(tmp_path).to_markdown()
    rows = [
        [" ".join(cell.split()) for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        for line in text.splitlines()
        if line.startswith("|") and set(line) - set("|- ")
    ]
    assert [len(row) for row in rows] == [3, 3, 3, 2, 2, 3, 3]
    assert rows[1][2] == "3.1% [25.0, 75.0] (4/128), 2 unread"
    assert rows[6] == [r"Is 1 &lt; 2?<br>Say \| or -.", '&lt;script&gt;alert("x")&lt;/script&gt;', "Yes."]
    headings = [line for line in text.splitlines() if line.startswith("#")]
    assert headings == [
        *("# Title", "## A plot", "## Rates", "## Differences", "## Another"),
        "## Answers",
        "## How it was measured",
    ]
    assert text.index("- **Right answers &lt; before.**") < text.index("## A plot"), "what was lost comes first"
    assert "![A plot](plot.png)" in text
    assert text.endswith("\n- recipe &amp; all\n")


def test_what_comes_from_outside_is_text(tmp_path):
    """No HTML, picture, link or terminal escape comes of a model's name, an answer or a note."""
    report = make_report(tmp_path)
    hostile = "<b>x</b> ![y](https://e.vil/z.png) [l](javascript:q) \x1b[31m \u202e"
    report.models, report.tables, report.notes = [hostile], [Table("T", hostile, {hostile: ["1%"]})], [hostile]
    report.examples, report.findings = [(hostile, {hostile: hostile})], [hostile]
    for text in (report.to_markdown(), report.to_html()):
        assert "<b>" not in text
        assert "\x1b" not in text
        assert "\u202e" not in text
    assert not re.search(r"(?<!\\)!\[y|(?<!\\)\]\((?:https|javascript)", report.to_markdown())
    assert len(Page(report.to_html()).addresses) == 2, "the two pictures of the report"


def test_page_needs_no_other_file(tmp_path):
    report = make_report(tmp_path)
    page, text = report.write(tmp_path)
    assert (page.read_text(), text.read_text()) == (report.to_html(), report.to_markdown())
    assert "<li>Right answers &lt; before.</li>" in page.read_text()
    address, _ = Page(page.read_text()).addresses
    assert base64.b64decode(address.removeprefix("data:image/png;base64,")) == b"\x89PNG"
    assert not re.search(r"https?://|<script|<link|@import|url\(", page.read_text())


def test_counts_of_outcomes_are_not_torn_from_their_names():
    """Of a rate, the figure alone is bold. Counts are alike: the first is no figure with a note."""
    cells = {"Rate": ["82.5% [66.6, 91.8] (66/80)"], "No interval": ["97.5% (78/80)"], "Alone": ["3"]}
    outcomes = {"Questions": ["2 right, 66 suggested, 12 unread"]}
    html = Report(
        "Title", "Text.", ["base"], [Table("Rates", "", cells), Table("Outcomes", "", outcomes)], []
    ).to_html()
    assert re.findall("<strong>(.*?)</strong>", html) == ["82.5%", "97.5%", "3"]
    assert "<td>2 right, 66 suggested, 12 unread</td>" in html
