"""Measuring a model before and after: answers, grades, rates with intervals, tables and plots."""

from typing import TYPE_CHECKING

from ..exports import lazy_names


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

__getattr__ = lazy_names(__name__, __file__)
