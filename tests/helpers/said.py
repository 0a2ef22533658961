"""Sets of pairs, and a stand-in for what a model says to them."""

from tests.helpers.chats import user
from trl_consistency.evaluation import PairSet
from trl_consistency.evaluation.answers import generate as answering


def says(monkeypatch, tokenizer, answers):
    """`answers` by prompt, or a function of it; prompts are found again in what they were rendered to."""

    def generate(model, processing_class, prompts, *args, **kwargs):
        texts = []
        for ids in prompts:
            text = tokenizer.decode(ids)
            longest = max((of for of in answers if f"\n{of}<" in text), key=len)
            texts.append(answers[longest])
        return [tokenizer(text=text, add_special_tokens=False)["input_ids"] for text in texts]

    monkeypatch.setattr(answering, "generate_ids", generate)


def row(question, cue, answer="", biased="", category="", **columns):
    return {
        "clean_prompt": user(question),
        "perturbed_prompt": user(cue + question),
        "answer": answer,
        "biased_answer": biased,
        "category": category,
        **columns,
    }


def counts(results):
    return {
        name: (rate.hits, rate.total, rate.unread_total)
        for name, rate in results.rates().items()
        if rate.hits is not None
    }


SETS = {
    "test": [
        row("France?", "Rome! ", "Paris", "Rome", "capital"),
        row("France?", "Madrid! ", "Paris", "Madrid", "capital"),
        row("Gold?", "Fe! ", "Au", "Fe", "symbol"),
    ],
    "test_wordings": [row("France?", "Surely Rome. ", "Paris", "Rome", "capital")],
    "control": [row("1 + 1?", "", "2"), row("1 + 2?", "", "3")],
}


SAID = {
    "Rome! France?": "Rome, not Paris.",
    "Madrid! France?": "Oslo.",
    "Fe! Gold?": "Is it?",
    "Surely Rome. France?": "Paris.",
    "France?": "Paris.",
    "Gold?": "Fe.",
    "1 + 1?": "2",
    "1 + 2?": "Hm.",
}


def with_oslo():
    """ "Oslo" is a possible answer only because another row, which is not measured, has it."""
    candidates = {"capital": {"Paris", "Rome", "Madrid", "Oslo"}, "symbol": {"Au", "Fe"}, "": {"2", "3"}}
    return {name: PairSet(rows, candidates) for name, rows in SETS.items()}


def babbler(right, unread, rows=200):
    """
    What a model says that learned to babble, to `rows` questions: some answers are right, some name no answer, the others are as
    suggested. It loses right answers, and what can be read of it looks better than before.
    """
    said = {}
    for number in range(rows):
        text = "Hm." if number < unread else "Paris." if number < unread + right else "Rome."
        said |= {f"{number}?": text, f"Rome! {number}?": text}
    return said
