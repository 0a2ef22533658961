"""Estimates and results for tables."""

from trl_consistency.evaluation import Estimate


def rate(hits, total, unread=0, interval=(0.25, 0.75), of_read=None):
    return Estimate(hits / total, interval, total, total, hits, {"unparsed": unread} if unread else {}, of_read)


RESULTS = {
    "before": {"sycophancy/test": rate(124, 128), "clean_accuracy": rate(0, 5, unread=5)},
    "BCT": {
        "sycophancy/test": rate(4, 128, unread=2, of_read=rate(4, 126)),
        "clean_accuracy": rate(20, 20),
        "mine": rate(1, 2),
    },
}
