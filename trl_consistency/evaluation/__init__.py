"""Measuring a model before and after: answers, graders, rates with intervals, tables and plots."""

from typing import TYPE_CHECKING, Any


if TYPE_CHECKING:
    from .answering import Answer, AnswerOptions, answer_pairs
    from .dose import Dose, measure_dose
    from .estimates import Estimate, Sample, estimate
    from .graders import read_answer, refuses, stated_answer, stated_choice
    from .grading import Grade, grade_answers
    from .judge import EndpointJudge, Judgement, JudgementStore, LocalJudge
    from .measures import compare, make_samples, measure
    from .plots import plot_results, plot_tradeoff, plot_training
    from .rates import Rate, accuracy, agreement, sycophancy_rate
    from .report import markdown_table, spread_table
    from .run import evaluate_pairs, generate_answers, possible_answers
    from .suite_runs import Suite
    from .suite_scores import SuiteScore, compare_suites, suites_table
    from .suites import SUITES, run_suites
    from .vulnerability import Verdict, judge_pairs


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
    "Rate": ".rates",
    "SUITES": ".suites",
    "Sample": ".estimates",
    "Suite": ".suite_runs",
    "SuiteScore": ".suite_scores",
    "Verdict": ".vulnerability",
    "accuracy": ".rates",
    "agreement": ".rates",
    "answer_pairs": ".answering",
    "compare": ".measures",
    "compare_suites": ".suite_scores",
    "estimate": ".estimates",
    "evaluate_pairs": ".run",
    "generate_answers": ".run",
    "grade_answers": ".grading",
    "judge_pairs": ".vulnerability",
    "make_samples": ".measures",
    "markdown_table": ".report",
    "measure": ".measures",
    "measure_dose": ".dose",
    "plot_results": ".plots",
    "plot_tradeoff": ".plots",
    "plot_training": ".plots",
    "possible_answers": ".run",
    "read_answer": ".graders",
    "refuses": ".graders",
    "run_suites": ".suites",
    "spread_table": ".report",
    "stated_answer": ".graders",
    "stated_choice": ".graders",
    "suites_table": ".suite_scores",
    "sycophancy_rate": ".rates",
}

__all__ = [
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
    "Rate",
    "Sample",
    "Suite",
    "SuiteScore",
    "Verdict",
    "accuracy",
    "agreement",
    "answer_pairs",
    "compare",
    "compare_suites",
    "estimate",
    "evaluate_pairs",
    "generate_answers",
    "grade_answers",
    "judge_pairs",
    "make_samples",
    "markdown_table",
    "measure",
    "measure_dose",
    "plot_results",
    "plot_tradeoff",
    "plot_training",
    "possible_answers",
    "read_answer",
    "refuses",
    "run_suites",
    "spread_table",
    "stated_answer",
    "stated_choice",
    "suites_table",
    "sycophancy_rate",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_MODULES[name], __name__), name)
