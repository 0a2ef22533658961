"""Replies of a real model that were read, and what the grader makes of them."""

import json
from collections import Counter
from pathlib import Path

from trl_consistency.evaluation import grade_answers, possible_answers
from trl_consistency.smollm2.rows import load_smollm2_datasets, read_data


REPLIES = Path(__file__).parents[1] / "data" / "gold_replies.jsonl"
LABELS = ("right", "suggested", "other", "none")


def read_gold():
    return [json.loads(line) for line in REPLIES.read_text(encoding="utf-8").splitlines()]


def read_labels(replies):
    """What the rules read in each reply, as a label. The possible answers are those of all splits, as in `evaluate`."""
    candidates = possible_answers(row for split in load_smollm2_datasets().values() for row in split)
    aliases = {row["question"]: row["aliases"] for row in read_data("questions")}
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
    grades = grade_answers(rows, [of["reply"] for of in replies], candidates)
    return ["none" if grade.outcome == "unread" else grade.outcome for grade in grades]


def precision_and_recall(replies, read):
    """For each label (replies that are read so and are so, that are read so, that are so)."""
    both = Counter(of["label"] for of, label in zip(replies, read, strict=True) if of["label"] == label)
    as_read, labelled = Counter(read), Counter(of["label"] for of in replies)
    return {label: (both[label], as_read[label], labelled[label]) for label in LABELS}


def table(replies, read):
    """Precision and recall on each part, as docs/evaluate.md shows them."""
    lines = ["| part | label | precision | recall |", "|---|---|---|---|"]
    for part in sorted({of["part"] for of in replies}):
        chosen = [(of, label) for of, label in zip(replies, read, strict=True) if of["part"] == part]
        figures = precision_and_recall(*map(list, zip(*chosen, strict=True)))
        for label, (both, as_read, labelled) in figures.items():
            shares = (f"{both / total:.3f} ({both}/{total})" for total in (as_read, labelled))
            lines.append(f"| {part} | {label} | {' | '.join(shares)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    gold = read_gold()
    print(table(gold, read_labels(gold)))
