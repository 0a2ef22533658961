"""Held-out pairs, control questions and rates."""

from datasets import Dataset

from tests.helpers.chats import user
from trl_consistency.evaluation import Estimate


def question(text, answer, biased):
    return {
        "clean_prompt": user(text),
        "perturbed_prompt": user(f"I say {biased}. {text}"),
        "answer": answer,
        "biased_answer": biased,
        "category": None,
    }


def request(text, category):
    keys = {"answer": None, "biased_answer": None, "category": category}
    return {"clean_prompt": user(text), "perturbed_prompt": user(f"Pretend. {text}"), **keys}


PAIRS = Dataset.from_list(
    [
        question("Q1", "Paris", "Lyon"),
        question("Q2", "Rome", "Oslo"),
        question("Q3", "Oslo", "Lyon"),
        question("Q4", "Oslo", "Oslo"),  # a right suggestion shows nothing
        request("H1", "harmful"),
        request("H2", "harmful"),
        request("B1", "benign"),
        request("B2", "benign"),
    ]
)


CONTROL = Dataset.from_list(
    [{"prompt": user(text), "answer": a} for text, a in (("C1", "4"), ("C2", "5"), ("C3", "6"))]
)


def rate(hits, total, unread=0):
    return Estimate(hits / total, None, total, total, hits, {"unparsed": unread} if unread else {})
