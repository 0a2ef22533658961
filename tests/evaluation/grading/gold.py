"""Replies of a real model that were read, invented ones, and what the grader and a far simpler reader make of them."""

import json
import re
from collections import Counter
from pathlib import Path

from trl_consistency.evaluation import grade, grade_answers, possible_answers
from trl_consistency.smollm2.rows import load_smollm2_datasets, read_data


DATA = Path(__file__).parents[1] / "data"
LABELS = ("right", "suggested", "other", "none")
NEW_PARTS = (10, 11, 12)  # what no earlier part has
OTHER_SEED = 15  # the part that was drawn from a run with another seed


def read_gold():
    return [json.loads(line) for line in (DATA / "gold_replies.jsonl").read_text(encoding="utf-8").splitlines()]


def read_new_pairs():
    """The pairs that part 9 answers: none of their questions is one of the package."""
    lines = (DATA / "gold_part9_pairs.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def read_aliases():
    """The other names of the right answer of each question."""
    of_package = {row["question"]: row["aliases"] for row in read_data("questions")}
    return of_package | {row["clean_prompt"][0]["content"]: row["aliases"] for row in read_new_pairs()}


def read_invented():
    """Replies in the style of a small model, by kind, that were labelled before any reader saw them."""
    questions = {of["source_id"]: of for of in read_data("questions")}
    lines = (DATA / "stress_replies.jsonl").read_text(encoding="utf-8").splitlines()
    return [{**questions[of["source_id"]], **of, "part": "invented"} for of in map(json.loads, lines)]


def read_labels(replies):
    """What the rules read in each reply, as a label. The possible answers are those of all splits, as in `evaluate`."""
    aliases = read_aliases()
    rows = [
        {
            "clean_prompt": of["question"],
            "perturbed_prompt": "",
            "answer": of["answer"],
            "aliases": aliases[of["question"]],
            "biased_answer": of["suggested"],
            "category": of["category"],
        }
        for of in replies
    ]
    of_package = [row for split in load_smollm2_datasets().values() for row in split]
    candidates = possible_answers([*of_package, *read_new_pairs(), *rows])
    grades = grade_answers(rows, [of["reply"] for of in replies], candidates)
    return ["none" if grade.outcome == "unread" else grade.outcome for grade in grades]


def precision_and_recall(replies, read):
    """For each label (replies that are read so and are so, that are read so, that are so)."""
    both = Counter(of["label"] for of, label in zip(replies, read, strict=True) if of["label"] == label)
    as_read, labelled = Counter(read), Counter(of["label"] for of in replies)
    return {label: (both[label], as_read[label], labelled[label]) for label in LABELS}


_DENIED = re.compile(r"\b(?:not|never|nor|neither|(?:is|was|does|do|did)n't)\b[^.,;!?]*$", re.IGNORECASE)


def read_simply(replies):
    """The labels that the first name of the right or the suggested answer gives, unless a "not" stands before it."""
    aliases = read_aliases()
    labels = []
    for of in replies:
        text, found = of["reply"], [(len(of["reply"]), "none")]
        names = [(name, "right") for name in (of["answer"], *aliases[of["question"]])] + [
            (of["suggested"], "suggested")
        ]
        for name, label in names:
            words, flags = name.removeprefix("the "), re.IGNORECASE if len(name) > 3 else 0
            mentions = re.finditer(rf"(?<![\w-])(?<!\d[.,]){re.escape(words)}(?![\w-]|[.,]\d)", text, flags)
            found += [(at.start(), label) for at in mentions if not _DENIED.search(text[: at.start()])]
        labels.append(min(found)[1])
    return labels


def table(rows):
    """Precision and recall of `(name, replies, labels)`, as docs/grading_accuracy.md shows them."""
    lines = ["| replies | right: precision | recall | suggested: precision | recall |", "|---|---|---|---|---|"]
    for name, replies, read in rows:
        figures = precision_and_recall(replies, read)
        counts = [(both, of) for both, *totals in (figures["right"], figures["suggested"]) for of in totals]
        lines.append(f"| {name} | {' | '.join(f'{both / of:.3f} ({both}/{of})' for both, of in counts)} |")
    return "\n".join(lines)


def agreement(rows, name="one whole report"):
    """How many verdicts of four (right, suggested, other, none: unread) are the readers', as docs/grading_accuracy.md says it."""
    replies, read = next(of for row, *of in rows if row == name)
    same = sum(of["label"] == label for of, label in zip(replies, read, strict=True))
    return f"{same:,} of {len(replies):,} ({same / len(replies):.1%})"


def as_in_report(replies):
    """
    The replies behind the report of one `make real` (seed 42), each as often as it came there: 4,000 by four models, half of
    them to questions and half to categories that are held out.
    """
    return [of for of in replies for _ in range(sum(of.get("in_report", {}).values()))]


def new_in(part, gold):
    """The replies of a part that no earlier part has, word for word, to the same question with the same suggestion."""
    earlier = {_key(of) for of in gold if of["part"] < part}
    return [of for of in gold if of["part"] == part and _key(of) not in earlier]


def _key(of):
    return of["question"], of["suggested"], of["reply"]


def read_chat():
    """Replies in the styles of chat models to either side, which a language model wrote and labelled before it saw any reader."""
    lines = (DATA / "chat_replies.jsonl").read_text(encoding="utf-8").splitlines()
    return [{**json.loads(line), "part": "chat"} for line in lines]


def chat_row():
    """Returns the name, the replies and the readings of the row of replies in the styles of chat models. Each row knows its own answers alone."""
    replies, read = read_chat(), []
    for of in replies:
        row = {"clean_prompt": of["question"], "perturbed_prompt": of["perturbed_prompt"], "answer": of["answer"]}
        outcome = grade({**row, "biased_answer": of["suggested"]}, of["reply"], is_clean=of["side"] == "clean").outcome
        read.append("none" if outcome == "unread" else outcome)
    return "styles of chat models", replies, read


def chat_shares(replies, read):
    """What docs/grading_accuracy.md says of these replies beside the table: of other answers, and of those that are unread under the cue."""
    both, as_read, _ = precision_and_recall(replies, read)["other"]
    unread = sum(label == "none" != of["label"] for of, label in zip(replies, read, strict=True))
    sides = []
    for label in ("right", "suggested"):
        of_label = [
            got for of, got in zip(replies, read, strict=True) if (of["side"], of["label"]) == ("perturbed", label)
        ]
        sides.append(f"{of_label.count('none')} of {len(of_label)}")
    return (
        f"{both} of the {as_read} that they called other",
        f"{unread} of {len(replies):,} replies are unread though they give an answer",
        f"under the cue, {sides[0]} that give the right answer, and {sides[1]} that give the suggested one",
    )


def invented_row():
    """Returns the name, the replies and the readings of the row of invented replies."""
    invented = read_invented()
    return "invented", invented, read_labels(invented)


def all_rows():
    gold = read_gold()
    read = {id(of): label for of, label in zip(gold, read_labels(gold), strict=True)}
    report = as_in_report(gold)
    replies = {f"part {part}": [of for of in gold if of["part"] == part] for part in range(1, gold[-1]["part"] + 1)}
    replies |= {"one whole report": report, "new in it": [of for of in report if of["part"] in NEW_PARTS]}
    replies[f"new in part {OTHER_SEED}"] = new_in(OTHER_SEED, gold)
    rows = [(name, of_name, [read[id(of)] for of in of_name]) for name, of_name in replies.items()]
    rows.append(("one whole report, the first name", report, read_simply(report)))
    return [*rows, invented_row(), chat_row()]


if __name__ == "__main__":
    found = all_rows()
    print(table(found))
    print(f"One whole report: the verdict is the readers' for {agreement(found)}")
