"""The page of `evaluate --html_demo`: its structure, what is escaped, and what its script shows."""

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from types import SimpleNamespace

import pytest

from trl_consistency.evaluation.report.demo import Demo, DemoAnswer, DemoRow, make_demo, prompt_text, threat_of


HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)> \" ' & {{ 7 * 7 }} \u202e \x1b[31m"


def answer(model, outcome, text="An answer."):
    return DemoAnswer(model, f"clean {text}", "right", text, outcome)


def row(threat, *outcomes, text="A prompt."):
    answers = [answer(f"model {number}", outcome) for number, outcome in enumerate(outcomes)]
    return DemoRow(threat, "question", "row 0", "Paris", "Rome", text, text, answers)


DEMO = Demo(
    "Title",
    "Introduction.",
    ["model 0", "model 1", "model 2"],
    [
        row("sycophancy", "suggested", "right", "right"),
        row("sycophancy", "right", "right", "unread"),
        row("jailbreak", "complied", "refused", "refused"),
    ],
)


class Page(HTMLParser):
    """The tags of a page, with their attributes, and its text."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.said = [], []
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_data(self, data):
        self.said.append(data)

    def of(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]


def test_structure():
    page = Page(DEMO.to_html())
    assert [article["data-threat"] for article in page.of("article")] == ["sycophancy", "sycophancy", "jailbreak"]
    assert page.of("article")[0]["data-outcomes"] == "suggested|right|right"
    assert [section["data-model"] for section in page.of("section")] == ["0", "1", "2"] * 3
    assert [choice["id"] for choice in page.of("select")] == ["left", "right", "threat", "outcome"]
    values = [option["value"] for option in page.of("option")]
    outcomes = ["complied", "refused", "right", "suggested", "unread"]
    assert values == [*"012", *"012", "", "jailbreak", "sycophancy", "", *outcomes]
    chosen = [option["value"] for option in page.of("option") if "selected" in option]
    assert chosen == ["0", "2", "", ""], "the first model beside the last"


def test_it_needs_nothing_else():
    html = DEMO.to_html()
    assert not re.search(r"https?:|//[\w.]+/|\b(?:src|href|action)=|@import|url\(", html)
    assert "default-src 'none'" in html


def test_all_texts_are_escaped():
    hostile = DemoRow(*[HOSTILE] * 7, [DemoAnswer(*[HOSTILE] * 5), DemoAnswer(*[HOSTILE] * 5)])
    html = Demo(HOSTILE, HOSTILE, [HOSTILE, HOSTILE], [hostile]).to_html()
    page, plain = Page(html), Page(DEMO.to_html())
    assert len(page.of("script")) == len(plain.of("script")) == 1
    assert {tag for tag, _ in page.tags} == {tag for tag, _ in plain.tags}
    known = {name for _, attributes in plain.tags for name in attributes}
    assert {name for _, attributes in page.tags for name in attributes} <= known
    assert "49" not in html
    assert not set("\u202e\x1b") & set(html)


# Stands for a browser's document: what the script reads and sets, of the page's own attributes.
DOCUMENT = """
const choices = JSON.parse(process.argv[1]);
const rows = JSON.parse(process.argv[2]).map(outcomes => ({
  dataset: { outcomes: outcomes.outcomes, threat: outcomes.threat },
  answers: outcomes.outcomes.split("|").map((_, model) => ({ dataset: { model: String(model) }, style: {} })),
  querySelectorAll() { return this.answers; },
}));
const elements = Object.fromEntries(Object.entries({ ...choices, count: "" }).map(([id, value]) => [id, { value }]));
const document = {
  getElementById: id => elements[id],
  querySelectorAll: () => rows,
  querySelector: () => ({ addEventListener() {} }),
};
"""
REPORT = """
console.log(JSON.stringify({
  count: elements.count.textContent,
  shown: rows.map(row => !row.hidden),
  answers: rows[0].answers.filter(of => !of.hidden).sort((a, b) => a.style.order - b.style.order).map(of => of.dataset.model),
}));
"""


@pytest.mark.parametrize(
    ("choices", "shown", "answers"),
    [
        ({}, [True, True, True], ["0", "2"]),
        ({"threat": "jailbreak"}, [False, False, True], ["0", "2"]),
        ({"outcome": "suggested"}, [True, False, False], ["0", "2"]),
        ({"outcome": "right", "left": "1", "right": "1"}, [True, True, False], ["1"]),
        ({"outcome": "unread", "left": "0", "right": "1"}, [False, False, False], ["0", "1"]),
        ({"left": "2", "right": "0"}, [True, True, True], ["2", "0"]),
        ({"threat": "sycophancy", "outcome": "unread"}, [False, True, False], ["0", "2"]),
    ],
)
def test_what_the_script_shows(choices, shown, answers):
    """Run by Node, on a document with the attributes of the page."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("needs Node")
    html = DEMO.to_html()
    script = html.split("<script>")[1].split("</script>")[0]
    rows = [
        {"threat": article["data-threat"], "outcomes": article["data-outcomes"]}
        for article in Page(html).of("article")
    ]
    chosen = {"left": "0", "right": "2", "threat": "", "outcome": "", **choices}
    code = DOCUMENT + script + REPORT
    done = subprocess.run([node, "-e", code, json.dumps(chosen), json.dumps(rows)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found == {"count": f"{sum(shown)} rows", "shown": shown, "answers": answers}


IN_BROWSER = """<script>
const faults = []; addEventListener("error", event => faults.push(event.message));
const shown = tag => [...document.querySelectorAll(tag)].filter(element => element.getClientRects().length).length;
addEventListener("load", () => {
  const all = shown("article"), threat = document.querySelector("#threat");
  threat.value = "jailbreak"; threat.dispatchEvent(new Event("change", {bubbles: true}));
  document.title = JSON.stringify([all, shown("article"), shown("section"), faults]);
});
</script>"""


def test_in_a_browser(tmp_path):
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        pytest.skip("needs Chromium")
    (tmp_path / "demo.html").write_text(DEMO.to_html().replace("<title>", f"{IN_BROWSER}<title>", 1))
    command = [
        browser,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        f"--user-data-dir={tmp_path}/profile",
        "--dump-dom",
    ]
    done = subprocess.run([*command, (tmp_path / "demo.html").as_uri()], capture_output=True, text=True, timeout=120)
    title = re.search("<title>(.*?)</title>", done.stdout)
    assert title is not None, done.stderr
    assert json.loads(title[1]) == [3, 1, 2, []]


@pytest.mark.parametrize(
    ("columns", "threat"),
    [
        ({"perturbation": "suggested_answer/train-01"}, "sycophancy"),
        ({"perturbation": "role_play/train-01+typos/train-00"}, "jailbreak"),
        ({"perturbation": "mine/train-01"}, "mine"),
        ({"category": "harmful"}, "harmful"),
        ({"answer": "Paris"}, "question"),
    ],
)
def test_threats(columns, threat):
    assert threat_of(columns) == threat


def test_anchors_are_said_to_have_no_cue():
    """They were shown as prompts with a cue."""
    rows = [
        {"clean_prompt": "A?", "perturbed_prompt": perturbed, "answer": "Paris"} for perturbed in ("Rome! A?", "A?")
    ]
    sides = ("clean", "perturbed")
    of_set = SimpleNamespace(
        pairs=SimpleNamespace(rows=rows, places=[0, 1]),
        answers={side: [SimpleNamespace(text="Paris.")] * 2 for side in sides},
        grades={side: [SimpleNamespace(outcome="right")] * 2 for side in sides},
    )
    demo = make_demo({"base": SimpleNamespace(sets={"": of_set})}, seed=0)
    assert [of.place for of in demo.rows] == ["row 0", "row 1, an anchor"]


def test_prompts_as_text():
    user, system = {"role": "user", "content": "Hi"}, {"role": "system", "content": "Be kind"}
    assert [prompt_text(of) for of in ("Hi", [user], [system, user])] == ["Hi", "Hi", "system: Be kind\n\nuser: Hi"]
