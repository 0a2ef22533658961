"""
`make canary`: the core tests with the newest TRL, transformers and PEFT to be had, in an environment of their own. It names
what broke, and ends with status 1 if anything did. The bounds of pyproject.toml do not hold here: that is what it is for.
"""

import argparse
import re
import subprocess
import sys
from pathlib import Path

from tests.release.environments import CONSTRAINTS, ROOT, clean_variables, install, make_environment, run


FOLLOWED = ("trl", "transformers", "peft", "accelerate", "datasets", "huggingface_hub")
# Quick, and they touch what changes upstream: private names, arguments, chat templates, adapters, the two trainers.
CORE = (
    "tests/test_upstream.py",
    "tests/config",
    "tests/data",
    "tests/objectives",
    "tests/losses",
    "tests/models",
    "tests/passes",
    "tests/scripts/test_parser.py",
    "tests/scripts/test_quick_answers.py",
    "tests/trainer/test_consistency_trainer.py",
    "tests/trainer/test_equal_runs.py",
    "tests/trainer/test_early_errors.py",
    "tests/trainer/test_logs.py",
    "tests/trainer/test_targets.py",
    "tests/trainer/test_on_policy_consistency_trainer.py",
    "tests/trainer/test_on_policy_loss.py",
    "tests/trainer/test_on_policy_reference.py",
)
TOOLS = (
    "pytest",
    "hypothesis",
    "pytest-xdist",
    "textstat==0.7.8",
    "matplotlib",
    "scipy",
    "filelock",
    "jinja2",
    "rich",
    "xxhash",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=ROOT / ".venv-canary", help="the environment (%(default)s)")
    parser.add_argument("tests", nargs="*", default=CORE, help="files or folders of tests (the core tests)")
    options = parser.parse_args()
    if not options.folder.exists():
        print(f"Creating {options.folder} (some minutes and 2 GB, once) ...", flush=True)
        make_environment(sys.executable, options.folder.resolve())
    programs = options.folder.resolve() / "bin"
    install(programs, "--constraint", str(CONSTRAINTS), "torch")  # the one that is known to work: the others are tried
    install(programs, "--upgrade", *FOLLOWED, *TOOLS)
    install(programs, "--no-deps", "--editable", str(ROOT))  # whose bounds would hold the newest versions back
    versions = versions_in(programs)
    print(", ".join(f"{name} {version}" for name, version in versions.items()), flush=True)
    command = [
        programs / "python",
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "-q",
        "-rfE",
        "--tb=line",
        *options.tests,
    ]
    done = subprocess.run(list(map(str, command)), cwd=ROOT, env=clean_variables(), capture_output=True, text=True)
    print(summary(done.stdout, versions))
    sys.exit(done.returncode)


def versions_in(programs: Path) -> dict[str, str]:
    names = (*FOLLOWED, "torch")
    code = f"from importlib.metadata import version; print(*(version(name) for name in {names}))"
    return dict(zip(names, run([programs / "python", "-c", code], programs.parent).split(), strict=True))


def summary(output: str, versions: dict[str, str]) -> str:
    """Returns what broke, in the words of pytest, or that nothing did."""
    broken = re.findall(r"^(?:FAILED|ERROR) .+$", output, re.MULTILINE)
    last = output.strip().splitlines()[-1] if output.strip() else "pytest printed nothing"
    found = ", ".join(f"{name} {version}" for name, version in versions.items())
    if broken:
        return "\n".join([f"{len(broken)} test(s) broke with {found}:", *(f"  {line}" for line in broken), last])
    return f"{'Nothing broke' if ' passed' in last else 'No test ran'} with {found}.\n{last}"


if __name__ == "__main__":
    main()
