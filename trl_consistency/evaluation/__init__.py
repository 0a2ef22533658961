"""Measuring a model before and after: answers, grades, rates with intervals, tables and plots."""

from typing import TYPE_CHECKING, Any


if TYPE_CHECKING:
    from .answering import Answer, AnswerOptions, answer_pairs, generate_answers
    from .dose import Dose, measure_dose
    from .estimates import Estimate, Sample, estimate
    from .graders import named_answers, refuses, stated_choice
    from .grading import Grade, grade, grade_answers, possible_answers
    from .judge import EndpointJudge, Judgement, JudgementStore, LocalJudge
    from .measures import METRICS, compare, make_samples, measure
    from .plots import plot_outcomes, plot_rates, plot_tradeoff, plot_training
    from .report import markdown_table, spread_table
    from .run import PairSet, Results, evaluate
    from .suite_runs import Suite
    from .suite_scores import SuiteScore, compare_suites, suites_table
    from .suites import SUITES, run_suites
    from .vulnerability import Verdict


# Where each public name lives: the light modules can be imported without torch.
_MODULES = {
    "Answer": ".answering",
    "AnswerOptions": ".answering",
    "Dose": ".dose",
    "EndpointJudge": ".judge",
    "Estimate": ".estimates",
    "Grade": ".grading",
    "Judgement": ".judge",
    "JudgementStore": ".judge",
    "LocalJudge": ".judge",
    "METRICS": ".measures",
    "PairSet": ".run",
    "Results": ".run",
    "SUITES": ".suites",
    "Sample": ".estimates",
    "Suite": ".suite_runs",
    "SuiteScore": ".suite_scores",
    "Verdict": ".vulnerability",
    "answer_pairs": ".answering",
    "compare": ".measures",
    "compare_suites": ".suite_scores",
    "estimate": ".estimates",
    "evaluate": ".run",
    "generate_answers": ".answering",
    "grade": ".grading",
    "grade_answers": ".grading",
    "make_samples": ".measures",
    "markdown_table": ".report",
    "measure": ".measures",
    "measure_dose": ".dose",
    "named_answers": ".graders",
    "plot_outcomes": ".plots",
    "plot_rates": ".plots",
    "plot_tradeoff": ".plots",
    "plot_training": ".plots",
    "possible_answers": ".grading",
    "refuses": ".graders",
    "run_suites": ".suites",
    "spread_table": ".report",
    "stated_choice": ".graders",
    "suites_table": ".suite_scores",
}

__all__ = [
    "METRICS",
    "SUITES",
    "Answer",
    "AnswerOptions",
    "Dose",
    "EndpointJudge",
    "Estimate",
    "Grade",
    "Judgement",
    "JudgementStore",
    "LocalJudge",
    "PairSet",
    "Results",
    "Sample",
    "Suite",
    "SuiteScore",
    "Verdict",
    "answer_pairs",
    "compare",
    "compare_suites",
    "estimate",
    "evaluate",
    "generate_answers",
    "grade",
    "grade_answers",
    "make_samples",
    "markdown_table",
    "measure",
    "measure_dose",
    "named_answers",
    "plot_outcomes",
    "plot_rates",
    "plot_tradeoff",
    "plot_training",
    "possible_answers",
    "refuses",
    "run_suites",
    "spread_table",
    "stated_choice",
    "suites_table",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_MODULES[name], __name__), name)
