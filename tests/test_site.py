"""The site of `make docs`, as far as it can be seen without building it."""

import ast
import re
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest


ROOT = Path(__file__).parents[1]
PACKAGES = {
    "training": "trl_consistency",
    "perturbations": "trl_consistency.perturbations",
    "evaluation": "trl_consistency.evaluation",
    "publishing": "trl_consistency.publishing",
    "organism": "trl_consistency.organism",
}


def public_names(package):
    source = ast.parse((ROOT / package.replace(".", "/") / "__init__.py").read_text())
    values = [node.value for node in source.body if isinstance(node, ast.Assign) and node.targets[0].id == "__all__"]
    return [name for value in values for name in ast.literal_eval(value)]


def test_every_package_with_public_names_has_a_page():
    files = ROOT.glob("trl_consistency/**/__init__.py")
    packages = [str(file.parent.relative_to(ROOT)).replace("/", ".") for file in files]
    assert {package for package in packages if public_names(package)} == {*PACKAGES.values()}


@pytest.mark.parametrize("page", PACKAGES)
def test_every_public_name_is_on_its_page(page):
    package = PACKAGES[page]
    listed = re.findall(r"^::: (\S+)$", (ROOT / "docs" / "api" / f"{page}.md").read_text(), re.MULTILINE)
    assert listed == [f"{package}.{name}" for name in public_names(package)]


def test_every_page_is_in_the_navigation():
    """`make docs` says so too, but is not a part of the tests."""
    nav = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    named = re.findall(r"([\w/]+\.md)$", nav, re.MULTILINE)
    pages = [str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")]
    assert sorted(named) == sorted(pages)


DOCSTRING = """
Compares.

Args:
    pairs (`Dataset`, `list[dict[str, int]]` or [`PairSet`], *optional*):
        Pairs.
    history, turns (`tuple[str, ...]`, *optional*, defaults to `()`):
        Messages.

Returns:
    `dict[str, X]`: Differences. If all are
    known, only those: `a` and `b`.

Yields:
    `tuple[str, dict]`: Split and pair.

Raises:
    [`ConsistencyError`]: If options contradict
        each other.
    [`InvalidPairsError`]: If pairs do.

Example:
"""


def test_docstrings_as_mkdocstrings_reads_them(monkeypatch):
    """An item for each value and error, however many lines it has, and no marks of code around a type."""
    monkeypatch.setitem(sys.modules, "griffe", SimpleNamespace(Extension=object, Attribute=None, Object=None))
    tidy = runpy.run_path(str(ROOT / "docs" / "site_docstrings.py"))["tidy"]
    assert tidy(DOCSTRING).splitlines()[3:] == [
        "Args:",
        "    pairs (Dataset or list[dict[str, int]] or PairSet):",
        "        Pairs.",
        "    history, turns (tuple[str, ...]):",
        "        Messages.",
        "",
        "Returns:",
        "    dict[str, X]: Differences. If all are",
        "        known, only those: `a` and `b`.",
        "",
        "Yields:",
        "    tuple[str, dict]: Split and pair.",
        "",
        "Raises:",
        "    ConsistencyError: If options contradict",
        "        each other.",
        "    InvalidPairsError: If pairs do.",
        "",
        "Example:",
    ]


def test_a_line_does_not_end_within_an_option():
    """The hyphens of `--memory` would let a browser do that, wherever it stands in a command."""
    pytest.importorskip("latex2mathml", reason="the hooks need the packages of `make docs`")
    hooks = runpy.run_path(str(ROOT / "docs" / "site_hooks.py"))
    html = "<p><code>trl-consistency estimate M --dtype x-y --memory 80</code>, <code>--seed</code>, --no</p>"
    shown = "<p><code>trl-consistency estimate M {} x-y {} 80</code>, <code>{}</code>, --no</p>"
    options = [f'<span class="option">{name}</span>' for name in ("--dtype", "--memory", "--seed")]
    assert hooks["on_page_content"](html, None, None, None) == shown.format(*options)


def test_links_to_figures_that_the_site_leaves_out_are_text():
    pytest.importorskip("latex2mathml", reason="the hooks need the packages of `make docs`")
    hooks = runpy.run_path(str(ROOT / "docs" / "site_hooks.py"))
    page = SimpleNamespace(file=SimpleNamespace(abs_src_path=ROOT / "docs" / "benchmarks.md", src_uri="benchmarks.md"))
    shown = hooks["on_page_markdown"]("Figures: [`act_step.json`](benchmarks/full/act_step.json).", page, None, None)
    assert shown == "Figures: `act_step.json`."
    with pytest.raises(Exception, match="leads nowhere"):
        hooks["on_page_markdown"]("[`none.json`](benchmarks/full/none.json)", page, None, None)


def test_dollars_are_formulas_or_escaped():
    """Two dollars on a page, of prices say, would make a formula of the text between them."""
    for page in (ROOT / "docs").rglob("*.md"):
        text = re.sub(r"^```.*?^```|`[^`\n]+`", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        for formula in re.findall(r"(?<![\\$])\$(?!\$)([^$\n]*)(?<!\\)\$", text):
            assert '"' not in formula, f"{page.name}: ${formula}$"


def test_links_are_named_as_pages_and_not_as_files():
    for page in (ROOT / "docs").rglob("*.md"):
        assert not re.findall(r"\[\w+\.md\]\(\S+\)", page.read_text()), page.name


def test_pictures_of_the_methods_are_drawn_anew():
    drawing = runpy.run_path(str(ROOT / "docs" / "pictures" / "draw.py"))
    for name, texts in drawing["METHODS"].items():
        assert (ROOT / "docs" / "pictures" / f"{name}.svg").read_text() == drawing["picture"](*texts)
