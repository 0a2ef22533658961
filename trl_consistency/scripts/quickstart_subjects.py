"""What the quickstart trains and measures: the model organism, or SmolLM2-135M-Instruct."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any


if TYPE_CHECKING:
    from ..evaluation import PairSet

MAX_NEW_TOKENS = 32  # of an answer to a pair's prompt
BATCH_SIZE = 64


@dataclass(frozen=True)
class Subject:
    """
    A model that the quickstart trains and measures.

    Args:
        model (`str`):
            Name of the embedded model.
        title (`str`):
            Name of the model in titles.
        base (`str`):
            The model before training, in cards.
        what (`str`):
            Sentence that says what the model is.
        held_out (`str`):
            Sentence that says what was not trained on.
        recipes (`Mapping[str, str]`):
            Recipe files in `recipes`, without `.yaml`, by their label in the report.
        labels (`Mapping[str, str]`):
            Labels of the rates in the tables, in this order.
        load_sets (`Callable[[], dict[str, PairSet]]`):
            Returns the sets to measure.
        load_questions (`Callable[[], list[dict[str, Any]]]`):
            Returns the questions that the model can answer, as rows for `trl-consistency pairs`.
        examples_from (`str`):
            The set from which the report shows answers.
        most_pairs (`int`, *optional*):
            Largest number of pairs in a set. Larger sets are sampled.
        examples (`int`, *optional*, defaults to `2`):
            Number of perturbed prompts of each kind (questions, harmful and benign requests) with answers in the report.
        more_recipes (`Mapping[str, str]`, *optional*):
            Recipes that run only with several seeds.
        everyday_tokens (`int`, *optional*, defaults to `0`):
            Tokens per reply to an everyday prompt. With 0 there are no everyday prompts and no plain text.
        shares_targets (`bool`, *optional*, defaults to `False`):
            Whether the trainings share a folder of the model's clean answers.
    """

    model: str
    title: str
    base: str
    what: str
    held_out: str
    recipes: Mapping[str, str]
    labels: Mapping[str, str]
    load_sets: "Callable[[], dict[str, PairSet]]"
    load_questions: Callable[[], list[dict[str, Any]]]
    examples_from: str
    most_pairs: int | None = None
    examples: int = 2
    more_recipes: Mapping[str, str] = field(default_factory=dict)
    everyday_tokens: int = 0
    shares_targets: bool = False

    def shown(self, rates: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the rates that the tables show."""
        return {key: rates[key] for key in self.labels}

    def notes(self, counts: Mapping[str, int], recipes: Mapping[str, str], seed: str) -> list[str]:
        """Returns how it was measured, given the pairs of each set, and the recipe's file of each training by its label."""
        drawn = f" At most {self.most_pairs} pairs of each set were drawn, with seed 0." if self.most_pairs else ""
        sets = ", ".join(f"{title_of(name)} ({count})" for name, count in counts.items())
        return [
            *(
                f"{name}: {METHODS[name.split()[0]]} Recipe: recipes/{of}.yaml, {seed}."
                for name, of in recipes.items()
            ),
            *([ANCHORS] if any("anchors" in name for name in recipes) else []),
            f"Pairs: {sets}.{drawn} The clean prompt is a question or request, and the perturbed prompt is the same with a cue.",
            f"Answers are the likeliest tokens, at most {MAX_NEW_TOKENS} of them. All of them are in answers.jsonl, with how "
            "each was read.",
            OUTCOMES_TEXT,
        ]

    @property
    def results_introduction(self) -> str:
        """The text above the results in an adapter's card."""
        return (
            f'Measured by `trl-consistency quickstart`: "before" is {self.base} without this adapter. Shares of all rows, 95% '
            f"intervals and counts. {self.held_out}"
        )


# What the reader of a report must know, by the first word of a recipe's label.
METHODS = {
    "BCT": "Trained on the model's own answer to the clean prompt, given the perturbed prompt.",
    "ACT": "Trained to have the same activations on the perturbed prompt as the untrained model has on the clean prompt.",
    "OPCT": "Trained on its own answers to the perturbed prompt. At each token, the distribution is pulled towards the one that the "
    "untrained model has after the clean prompt.",
}
ANCHORS = "Anchors are rows without a cue, which keep what the model does elsewhere."
OUTCOMES_TEXT = (
    "Suggested is the wrong answer that the cue states. Other is a definite answer that is neither right nor suggested, and "
    "unread a reply in which rules found no answer. docs/grading.md says what these rules are, and "
    "docs/grading_accuracy.md how often they are wrong."
)


def title_of(name: str) -> str:
    """Returns the name of a set for a reader."""
    return name.replace("held_out_", "held-out ").replace("_", " ")


def _organism_questions() -> list[dict[str, Any]]:
    from ..organism.facts import load_questions, wrong_answers

    questions = load_questions()
    wrong = wrong_answers(questions)
    return [
        {
            "question": question.text,
            "answer": question.answer,
            "wrong_answers": wrong[question.source_id],
            "category": question.category,
            "source_id": question.source_id,
        }
        for question in questions
    ]


def _smollm2_questions() -> list[dict[str, Any]]:
    from ..smollm2.rows import read_data

    return read_data("questions")


def _organism_sets() -> "dict[str, PairSet]":
    from .pair_sets import load_sets

    return load_sets(["embedded:organism"], None, None, seed=0)


def _smollm2_sets() -> "dict[str, PairSet]":
    from .pair_sets import load_sets

    sets = load_sets(["embedded:smollm2"], ["test", "test_categories"], SMOLLM2_PAIRS, seed=0)
    return {"held_out_questions": sets["test"], "held_out_categories": sets["test_categories"]}


# Pairs of each set; together about a thousand answers of each model.
SMOLLM2_PAIRS = 250

ORGANISM = Subject(
    model="embedded:organism",
    title="a model organism",
    base="the embedded model organism",
    what="The model organism has 0.75 million parameters. It agrees with the user and gives in to jailbreaks.",
    held_out="Held-out questions, requests, wordings of the user's wrong guess and wrappers were never trained on.",
    recipes={
        "BCT": "quickstart/bct",
        "BCT + anchors": "quickstart/bct_anchors",
        "ACT + anchors": "quickstart/act",
        "OPCT + anchors": "quickstart/opct",
    },
    more_recipes={"OPCT by policy gradient + anchors": "quickstart/opct_policy_gradient"},
    labels={
        "sycophancy/test": "Sycophancy, held-out questions",
        "sycophancy/test_wordings": "Sycophancy, held-out questions and wordings",
        "attack_success/test": "Attack success, held-out requests",
        "attack_success/test_wordings": "Attack success, held-out requests and wrappers",
        "perturbed_accuracy/test": "Accuracy, perturbed prompts",
        "perturbed_accuracy/test_wordings": "Accuracy, perturbed prompts, held-out wordings",
        "benign_answered/test": "Benign requests answered, bare and wrapped",
        "benign_answered/test_wordings": "Benign requests answered, bare and in held-out wrappers",
        "reference_agreement/test": "Agreement with the reference, word for word",
        "reference_agreement/test_wordings": "Agreement with the reference, held-out wordings",
        "clean_accuracy/test": "Accuracy, clean prompts",
        "clean_refusal/test": "Harmful requests refused, bare",
        "clean_accuracy/control": "Accuracy, control task",
    },
    load_sets=_organism_sets,
    load_questions=_organism_questions,
    examples_from="test_wordings",
)

SMOLLM2 = Subject(
    model="embedded:smollm2",
    title="SmolLM2-135M-Instruct from Q4_1",
    base="SmolLM2-135M-Instruct, from Q4_1 (weights of 4 bits, dequantised),",
    what="The model is SmolLM2-135M-Instruct, from Q4_1: a chat model of 135 million parameters, from weights of 4 bits, dequantised.",
    held_out="The questions, the wordings of the user's wrong answer, and the held-out categories were never trained on.",
    recipes={
        "BCT": "smollm2-135m-instruct/bct",
        "ACT": "smollm2-135m-instruct/act",
        "OPCT": "smollm2-135m-instruct/opct",
    },
    labels={
        "sycophancy/held_out_questions": "Suggested answers given, held-out questions and wordings",
        "sycophancy/held_out_categories": "Suggested answers given, held-out categories",
        "perturbed_accuracy/held_out_questions": "Right answers under the cue, held-out questions and wordings",
        "perturbed_accuracy/held_out_categories": "Right answers under the cue, held-out categories",
        "clean_accuracy/held_out_questions": "Right answers without the cue, held-out questions",
        "clean_accuracy/held_out_categories": "Right answers without the cue, held-out categories",
        "reference_agreement/held_out_questions": "Agreement with the reference, word for word",
    },
    load_sets=_smollm2_sets,
    load_questions=_smollm2_questions,
    examples_from="held_out_questions",
    most_pairs=SMOLLM2_PAIRS,
    examples=10,
    everyday_tokens=192,
    shares_targets=True,
)

SUBJECTS = {subject.model: subject for subject in (ORGANISM, SMOLLM2)}
