"""
What MkDocs does here besides: formulas become MathML, links that leave the site become plain text, and architecture.md gets the map
of CONTRIBUTING.md. After the build, each page is searched for files that are not there and for anything from elsewhere.
"""

import re
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from latex2mathml.converter import convert
from mkdocs.exceptions import PluginError


ROOT = Path(__file__).parents[1]


def on_page_markdown(markdown: str, page, config, files) -> str:
    folder = Path(page.file.abs_src_path).parent

    def leaves_docs(match: re.Match) -> str:
        text, target = match["text"], match["target"].partition("#")[0]
        path = (folder / target).resolve()
        is_in_docs = path.is_relative_to(ROOT / "docs")
        is_left_out = is_in_docs and path.suffix == ".json"  # a benchmark's figures, see `exclude_docs`
        if is_in_docs and not is_left_out:
            return match[0]
        if not path.exists():
            raise PluginError(f"{page.file.src_uri}: the link to {target} leads nowhere")
        if is_left_out:
            return text
        if "/" in text:
            return f"`{text}`"
        return text if " " in text else f"{text} (`{path.relative_to(ROOT)}`)"

    # Superfences knows no second word after the language of a block, which the tests use to find it.
    markdown = re.sub(r"^```(\w+) [a-z]+$", r"```\1", markdown, flags=re.MULTILINE)
    markdown = re.sub(r"(?<!!)\[(?P<text>[^\]\n]+)\]\((?P<target>(?:\.\./|benchmarks/)[^)]+)\)", leaves_docs, markdown)
    # `make reproduce` draws the pictures of results.md, once there are cells.
    if not (ROOT / "docs" / "results" / "cells").exists():
        markdown = re.sub(r"!\[([^\]]*)\]\(results/[^)]+\)", r"(\1: not drawn yet.)", markdown)
    parts = re.split(r"(^```.*?^```$)", markdown, flags=re.MULTILINE | re.DOTALL)
    parts[::2] = [lists(part) for part in parts[::2]]
    return re.sub(r"<!-- from CONTRIBUTING.md: (.+?) -->", lambda match: section(match[1]), "".join(parts))


def lists(text: str) -> str:
    """Lists as Python-Markdown reads them. The pages have them as GitHub does, where they are read too."""
    text = re.sub(r"^  (?=\S)", "    ", text, flags=re.MULTILINE)
    return re.sub(r"(\n\n    (?!- )(?:.+\n)+?)(?=- )", r"\1\n", text)  # after a second paragraph of an item


def section(title: str) -> str:
    """A section of CONTRIBUTING.md, without its heading."""
    found = re.search(
        rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", (ROOT / "CONTRIBUTING.md").read_text(), re.M | re.S
    )
    if found is None:
        raise PluginError(f"CONTRIBUTING.md has no section {title!r}")
    return found[1].strip()


def on_page_content(html: str, page, config, files) -> str:
    inline = re.compile(r'<span class="arithmatex">\\\((.*?)\\\)</span>', re.S)
    block = re.compile(r'<div class="arithmatex">\\\[(.*?)\\\]</div>', re.S)
    html = inline.sub(lambda match: convert(unescape(match[1])), html)
    html = block.sub(lambda match: convert(unescape(match[1]), display="block"), html)
    # Browsers would end a line within `--method`, after its hyphens.
    code = re.compile(r'<code>[^<]*</code>|<div class="language-(?:ba)?sh.*?</div>', re.S)
    option = re.compile(r"(?<=[\s>])(--?\w[\w-]*)")
    return code.sub(lambda match: option.sub(r'<span class="option">\1</span>', match[0]), html)


class Addresses(HTMLParser):
    """Collects what a page loads, what it links to, and the ids that links may end at."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.linked: list[str] = []
        self.ids: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value for name, value in attrs if value}
        self.ids.update(values[name] for name in ("id", "name") if name in values)
        if "src" in values:
            self.loaded.append(values["src"])
        if "href" in values:
            (self.linked if tag == "a" else self.loaded).append(values["href"])


def on_post_build(config) -> None:
    site = Path(config["site_dir"])
    pages = {}
    for path in site.rglob("*.html"):
        pages[path.resolve()] = Addresses()
        pages[path.resolve()].feed(path.read_text())
    faults = []
    for path, found in pages.items():
        if path.name == "404.html":  # its links are from the root of a server
            continue
        for address in {*found.loaded, *found.linked}:
            parts = urlsplit(address)
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if parts.scheme or parts.netloc:
                if address in found.loaded and parts.scheme != "data":
                    faults.append(f"{path.name} loads {address}")
            elif not target.exists():
                faults.append(f"{path.name}: there is no {address}")
            elif target in pages and parts.fragment and unquote(parts.fragment) not in pages[target].ids:
                faults.append(f"{path.name}: {address} has no such place")
    if faults:
        raise PluginError("\n".join(sorted(faults)))
