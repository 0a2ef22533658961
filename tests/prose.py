"""
How readable the pages of docs/ are: `python -m tests.prose [FILE ...]` lists the reading ease of each page, its sentences that
are too long, and words that riddle. Code, tables, formulas and headings are left out.
"""

import argparse
import re
from dataclasses import dataclass
from pathlib import Path

import textstat


DOCS = Path(__file__).parents[1] / "docs"
LEAST_EASE = 45.0
MOST_WORDS = 35
LEAST_SENTENCES = 5  # the ease of fewer says nothing

# What a reader has to solve, and what to write instead
RIDDLES = {
    r"\bthe former\b": "name it again",
    r"\bthe latter\b": "name it again",
    r"\brespectively\b": "say what belongs to what",
    r"\bhence\b": "so",
    r"\bthus\b": "so",
    r"\bwherein\b": "where",
    r"\bthereof\b": "of it",
    r"\btherein\b": "in it",
    r"\bsave for\b": "except",
    r"\bbut for\b": "except",
    r"\bnotwithstanding\b": "despite",
    r"\bin the place of\b": "instead of",
    r"\bthat came to (?:none|nothing)\b": "say what did not happen",
    r"\bcame to an end\b": "ended",
    r"\bas it were\b": "leave it out",
    r"\bis to have\b": "should have",
    r"\bare to have\b": "should have",
    r"\bis at rest\b": "say what is zero or stops",
    r"\bby a hair\b": "give the difference",
    r"\bto speak of\b": "leave it out",
    r"\bdoes not find back\b|\bdid not find back\b": "did not recover",
    r"\blies near\b": "is close to",
    r"\bon the way of\b": "say what happens when",
    r"\bin nobody's way\b": "say what it does",
    r"\bon the road\b|\bthis road\b": "this way of doing it",
    r"\butili[sz]e\b": "use",
    r"\bleverage[sd]?\b": "use",
    r"\bsimply\b": "leave it out",
    r"\bobviously\b": "leave it out",
    r"\bof course\b": "leave it out",
}


@dataclass
class Readability:
    """Of one page: reading ease by Flesch (none for very short pages), and its faults, each with what to do."""

    ease: float | None
    faults: list[str]


def paragraphs(markdown: str) -> list[str]:
    """The prose of a page: paragraphs and list items as plain text."""
    text = re.sub(r"<!--.*?-->", "", markdown, flags=re.DOTALL)
    text = re.sub(r"^```.*?^```$", "\n", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"\$\$.*?\$\$", "\n", text, flags=re.DOTALL)
    lines = []
    for line in text.splitlines():
        if re.match(r"\s*(\||#|!\[|:::|    \S)", line):  # tables, headings, pictures, API, code by indentation
            line = ""
        elif re.match(r"\s*(?:[-*]|\d+\.)\s", line):
            line = "\n" + re.sub(r"^\s*(?:[-*]|\d+\.)\s+", "", line)
        lines.append(line)
    return [plain(block) for block in re.split(r"\n\s*\n", "\n".join(lines)) if block.strip()]


def cells(markdown: str) -> list[str]:
    """The rows of tables: too short to be measured, and no place for riddles either."""
    return [plain(line) for line in markdown.splitlines() if line.startswith("|")]


def plain(paragraph: str) -> str:
    """Without marks. What stands in code counts as one word, and an address as none."""
    text = " ".join(paragraph.split()).replace("\u2019", "'")
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"``.+?``|`[^`]*`|\$[^$]+\$", "code", text)
    text = re.sub(r"\*\*|(?<!\w)[*_](?=\w)|(?<=\w)[*_](?!\w)", "", text)
    return re.sub(r"\b(e\.g|i\.e|et al)\.", r"\1", text)


def sentences(paragraph: str) -> list[str]:
    return [
        part
        for part in re.split(r"(?<=[.!?])[)\"”]*\s+(?=[\"“(]?(?:[A-Z0-9]|code\b))", paragraph)
        if re.search(r"\w", part)
    ]


def words(sentence: str) -> int:
    return len(re.findall(r"[^\W\d_][\w'-]*|\d[\d.,%]*", sentence))


def readability(markdown: str) -> Readability:
    found = paragraphs(markdown)
    parts = [sentence for paragraph in found for sentence in sentences(paragraph)]
    faults = [
        f"{words(part)} words, at most {MOST_WORDS}: {part[:90]} …" for part in parts if words(part) > MOST_WORDS
    ]
    for paragraph in [*found, *cells(markdown)]:
        for riddle, instead in RIDDLES.items():
            for match in re.finditer(riddle, paragraph, re.IGNORECASE):
                faults.append(
                    f"{match[0]!r} ({instead}): … {paragraph[max(0, match.start() - 40) : match.end() + 30]} …"
                )
    # A full stop after each sentence, so that items of a list are not read as one
    text = " ".join(part.rstrip(" .:!?,;") + "." for part in parts)
    return Readability(textstat.flesch_reading_ease(text) if len(parts) >= LEAST_SENTENCES else None, faults)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", type=Path, default=sorted(DOCS.glob("*.md")))
    parser.add_argument("--quiet", action="store_true", help="only the reading ease and the number of faults")
    options = parser.parse_args()
    for path in options.files:
        found = readability(path.read_text())
        ease = "short" if found.ease is None else f"{found.ease:.0f}"
        print(f"{path.name:24} {ease:>5} {len(found.faults):4} fault(s)")
        if not options.quiet:
            print("".join(f"    {fault}\n" for fault in found.faults), end="")


if __name__ == "__main__":
    main()
