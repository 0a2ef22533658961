"""Measuring a model before and after: answers, graders, rates with intervals, tables and plots."""

from typing import TYPE_CHECKING, Any


if TYPE_CHECKING:
    from .dose import Dose, measure_dose
    from .graders import read_answer, refuses, stated_answer, stated_choice
    from .rates import Rate, accuracy, agreement, sycophancy_rate
    from .report import markdown_table, plot_results, plot_training, spread_table
    from .run import evaluate_pairs, generate_answers
    from .vulnerability import Verdict, judge_pairs


# Where each public name lives: the light modules can be imported without torch.
_MODULES = {
    "Dose": ".dose",
    "Rate": ".rates",
    "Verdict": ".vulnerability",
    "accuracy": ".rates",
    "agreement": ".rates",
    "evaluate_pairs": ".run",
    "generate_answers": ".run",
    "judge_pairs": ".vulnerability",
    "markdown_table": ".report",
    "measure_dose": ".dose",
    "plot_results": ".report",
    "plot_training": ".report",
    "read_answer": ".graders",
    "refuses": ".graders",
    "spread_table": ".report",
    "stated_answer": ".graders",
    "stated_choice": ".graders",
    "sycophancy_rate": ".rates",
}

__all__ = [
    "Dose",
    "Rate",
    "Verdict",
    "accuracy",
    "agreement",
    "evaluate_pairs",
    "generate_answers",
    "judge_pairs",
    "markdown_table",
    "measure_dose",
    "plot_results",
    "plot_training",
    "read_answer",
    "refuses",
    "spread_table",
    "stated_answer",
    "stated_choice",
    "sycophancy_rate",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_MODULES[name], __name__), name)
