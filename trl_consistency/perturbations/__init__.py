"""Named perturbations of questions, and the making of pairs from questions."""

from . import awareness, jailbreak, surface, sycophancy  # noqa: F401  (they fill the registry)
from .build import build_pairs
from .build_report import BuildReport
from .columns import find_columns
from .provenance import Provenance, draw, perturb
from .registry import PERTURBATIONS, Cue, Perturbation, find_perturbations, perturbation
from .source import Source, read_source


__all__ = [
    "PERTURBATIONS",
    "BuildReport",
    "Cue",
    "Perturbation",
    "Provenance",
    "Source",
    "build_pairs",
    "draw",
    "find_columns",
    "find_perturbations",
    "perturb",
    "perturbation",
    "read_source",
]
