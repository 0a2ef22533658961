"""Clean environments, and what is run in them."""

import json
import os
import shutil
import subprocess
from pathlib import Path


ROOT = Path(__file__).parents[2]
CONSTRAINTS = ROOT / ".ci" / "constraints.txt"
PYTHONS = ("3.11", "3.12", "3.13")

# Variables that would let an environment see this checkout
OF_THIS_CHECKOUT = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")


def clean_variables(**more: str) -> dict[str, str]:
    """Returns the environment variables of a user: none of them leads back to this checkout."""
    kept = {name: value for name, value in os.environ.items() if name not in OF_THIS_CHECKOUT}
    return {**kept, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", **more}


def run(command: list[str], folder: Path, statuses: tuple[int, ...] = (0,), timeout: int | None = None) -> str:
    """Runs a command, and returns what it prints on stdout. Raises an error with the end of stderr if it fails."""
    words = list(map(str, command))
    done = subprocess.run(words, cwd=folder, env=clean_variables(), capture_output=True, text=True, timeout=timeout)
    if done.returncode not in statuses:
        raise RuntimeError(f"{' '.join(words)} ended with status {done.returncode}: {done.stderr[-3000:]}")
    return done.stdout


def find_python(version: str) -> str | None:
    """Returns an interpreter of a version that starts, or None."""
    for found in (shutil.which(f"python{version}"), *_of_pyenv(version)):
        if found and _answers(found, version):
            return found
    return None


def _of_pyenv(version: str) -> list[str]:
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    return sorted(map(str, root.glob(f"versions/{version}.*/bin/python")))


def _answers(python: str, version: str) -> bool:
    asked = "import sys; print('%d.%d' % sys.version_info[:2])"
    done = subprocess.run([python, "-c", asked], capture_output=True, text=True)
    return done.returncode == 0 and done.stdout.strip() == version


def make_environment(python: str, folder: Path) -> Path:
    """Makes an empty environment, and returns its folder of programs."""
    run([python, "-m", "venv", folder], folder.parent)
    return folder / "bin"


def install(programs: Path, *wanted: str) -> None:
    """Installs packages, torch first: a later resolution then takes the build that is there."""
    pip = [programs / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    run([*pip, *wanted], programs.parent)


def check_installed(programs: Path, folder: Path, version: str, trains: bool = True) -> None:
    """
    Runs commands in an empty folder: version, help, `doctor`, `pairs`; and if it `trains`, `lint` by a recipe of the
    package, which makes the model organism's tokenizer, and two steps of training.
    """
    program = programs / "trl-consistency"
    where = run([programs / "python", "-c", "import trl_consistency; print(trl_consistency.__file__)"], folder)
    assert Path(where.strip()).is_relative_to(programs.parent), f"{where} is not the installed package"
    assert run([program, "--version"], folder).strip() == version
    assert "--json" in run([program, "consistency", "--help"], folder)
    found = json.loads(run([program, "doctor", "--json"], folder, statuses=(0, 1)))
    assert found["package"] == version
    rows = [
        {"question": f"What is {number} + 1?", "answer": str(number + 1), "wrong_answer": "0"} for number in range(20)
    ]
    (folder / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = ["--dataset_name", "questions.jsonl", "--output_dir", "pairs", "--test_share", "0.2", "--json"]
    made = json.loads(run([program, "pairs", *options], folder))
    assert made["files"]["train"]["pairs"] > 0
    if not trains:
        return
    recipes = Path(where.strip()).parent / "recipes"
    recipe = recipes / "quickstart" / "bct.yaml"
    linted = json.loads(run([program, "lint", "--config", recipe, "--dataset_name", "pairs", "--json"], folder))
    assert linted["rows"] == made["files"]["train"]["pairs"]
    options = ["--config", recipe, "--output_dir", "trained", "--max_steps", "2", "--eval_strategy", "no", "--json"]
    trained = json.loads(run([program, "consistency", *options, "--eval_on_start", "false"], folder))
    assert trained["steps"] == 2
    assert (folder / "trained" / "adapter_model.safetensors").is_file()
