"""What is in the wheel and the source archive."""

import tarfile
import zipfile
from fnmatch import fnmatch
from pathlib import Path


# In patterns, `*` also matches `/`.
IN_WHEEL = (
    "trl_consistency/*.py",
    "trl_consistency/py.typed",
    "trl_consistency/templates/*",
    "trl_consistency/smollm2/data/*.jsonl",
    "trl_consistency/perturbations/wordings/*.yaml",
    "trl_consistency/recipes/*.yaml",
    "trl_consistency/recipes/*.py",
    "trl_consistency/recipes/*.md",
    "trl_consistency-*.dist-info/*",
)
IN_SDIST = (
    "trl_consistency/*.py",
    "trl_consistency/py.typed",
    "trl_consistency/templates/*",
    "trl_consistency/smollm2/data/*.jsonl",
    "trl_consistency/perturbations/wordings/*.yaml",
    "recipes/*.yaml",
    "recipes/*.py",
    "recipes/*.md",
    "tests/*.py",
    "tests/evaluation/data/*.jsonl",
    "tests/recipes/estimates.json",
    "tests/public_api.txt",
    "docs/*",
    ".ci/*",
    *("Makefile", "mkdocs.yml", "pyproject.toml", "PKG-INFO", ".gitignore"),
    *("README.md", "AGENTS.md", "CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md", "SECURITY.md", "LICENSE"),
)
NEVER = (
    "*__pycache__*",
    "*.pyc",
    "*.safetensors",
    "*.bin",
    "*.pt",
    "*.log",
    "*/.venv/*",
    "*/outputs/*",
    "*.egg-info*",
)


def names_in(archive: Path) -> list[str]:
    """Returns the files of a wheel, or of a source archive without its folder."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            return wheel.namelist()
    with tarfile.open(archive) as source:
        return [member.name.partition("/")[2] for member in source if member.isfile()]


def unexpected(archive: Path) -> list[str]:
    """Returns the files that should not be in an archive."""
    allowed = IN_WHEEL if archive.suffix == ".whl" else IN_SDIST
    return [
        name
        for name in names_in(archive)
        if not any(fnmatch(name, pattern) for pattern in allowed) or any(fnmatch(name, pattern) for pattern in NEVER)
    ]
