"""Publishes a trained model on the Hub: results, card, scan, upload."""

from .figures import Benchmark, Figure, Outcomes, Result
from .hub import check_repo_id, explain, publish
from .page import add_results, hub_base
from .results import RESULTS_FILE, read_results, write_results


__all__ = [
    "RESULTS_FILE",
    "Benchmark",
    "Figure",
    "Outcomes",
    "Result",
    "add_results",
    "check_repo_id",
    "explain",
    "hub_base",
    "publish",
    "read_results",
    "write_results",
]
