"""Measures models before and after training: answers, grades, rates with intervals, tables and plots."""

from typing import TYPE_CHECKING

from ..exports import lazy_names


if TYPE_CHECKING:
    from .answers.generate import Answer, AnswerOptions, answer_pairs, generate_answers
    from .capability import CapabilityResult, measure_capability
    from .conversion import Conversion, convert_pairs
    from .distance import PairDistance, measure_distances
    from .dose import Dose, measure_dose
    from .grading.grade import Grade, grade, grade_answers
    from .grading.judge import EndpointJudge, Judgement, JudgementStore, LocalJudge
    from .grading.letters import stated_choice
    from .grading.names import possible_answers
    from .grading.refusals import refuses
    from .grading.stated_answers import named_answers
    from .pair_set import PairSet
    from .rates.intervals import Estimate, Sample, estimate
    from .rates.measures import METRICS, compare, make_samples, measure
    from .rates.vulnerability import Verdict
    from .report.plots import plot_outcomes, plot_rates, plot_tradeoff, plot_training
    from .report.tables import markdown_table, spread_table
    from .results import Results
    from .run import evaluate
    from .suites.registry import SUITES, run_suites
    from .suites.runs import Suite
    from .suites.scores import SuiteScore, compare_suites, suites_table


__all__ = [
    "METRICS",
    "SUITES",
    "Answer",
    "AnswerOptions",
    "CapabilityResult",
    "Conversion",
    "Dose",
    "EndpointJudge",
    "Estimate",
    "Grade",
    "Judgement",
    "JudgementStore",
    "LocalJudge",
    "PairDistance",
    "PairSet",
    "Results",
    "Sample",
    "Suite",
    "SuiteScore",
    "Verdict",
    "answer_pairs",
    "compare",
    "compare_suites",
    "convert_pairs",
    "estimate",
    "evaluate",
    "generate_answers",
    "grade",
    "grade_answers",
    "make_samples",
    "markdown_table",
    "measure",
    "measure_capability",
    "measure_distances",
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
