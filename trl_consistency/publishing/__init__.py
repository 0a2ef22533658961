"""From a folder with a trained model to its page on the Hub: results, card, scan, upload."""

from .hub import check_repo_id, explain, publish
from .results import RESULTS_FILE, Result, read_results, write_results


__all__ = ["RESULTS_FILE", "Result", "check_repo_id", "explain", "publish", "read_results", "write_results"]
