"""recipes/train.py, which says itself which packages it needs."""

import os
import re
import shutil
import subprocess
import sys
import tomllib

import pytest
from datasets import Dataset
from packaging.requirements import Requirement

from recipes import train
from tests.recipes.files import FOLDER, ROOT
from tests.recipes.table import OF_FOLDER
from tests.recipes.tiny import make_rows, make_tiny


SCRIPT = FOLDER / "train.py"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def metadata() -> dict:
    """Returns the inline metadata, read as PEP 723 says."""
    block = re.search(r"^# /// script\n((?:#(?: .*)?\n)+)# ///$", SCRIPT.read_text(), re.MULTILINE)[1]
    return tomllib.loads("".join(line[2:] if line.startswith("# ") else line[1:] for line in block.splitlines(True)))


def test_what_it_needs_is_there_to_be_had():
    needed = metadata()
    assert needed["requires-python"] == PROJECT["requires-python"]
    own, *others = map(Requirement, needed["dependencies"])
    assert own.name == PROJECT["name"]
    assert own.extras <= PROJECT["optional-dependencies"].keys()
    assert [other.name for other in others] == ["pillow", "torchvision"]


def test_recipes_are_found_by_name_and_by_path(tmp_path, monkeypatch):
    named = FOLDER / "qwen3-8b/bct/sycophancy_lora.yaml"
    names = (
        "qwen3-8b/bct/sycophancy_lora",
        "qwen3-8b/bct/sycophancy_lora.yaml",
        "recipes/qwen3-8b/bct/sycophancy_lora.yaml",
    )
    monkeypatch.chdir(tmp_path)
    assert [train.find(name) for name in names] == [named] * 3
    (tmp_path / "mine.yaml").touch()
    assert train.find("mine.yaml").resolve() == tmp_path / "mine.yaml"
    with pytest.raises(SystemExit, match=r"^error: qwen3-9b is neither a file nor a recipe of the package"):
        train.find("qwen3-9b")


def test_each_recipe_has_its_command():
    for path in FOLDER.rglob("*.yaml"):
        module = re.search(r"-m trl_consistency\.scripts\.(\w+)", path.read_text().split("\n\n")[0])
        if module is None or module[1] not in ("consistency", "on_policy_consistency"):
            with pytest.raises(SystemExit, match="names no `method`"):
                train.command(path)
        else:
            assert train.command(path) == module[1].replace("_", "-")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel of this checkout, built where its sources are not changed by it."""
    folder = tmp_path_factory.mktemp("wheel")
    built = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    if built.returncode:
        pytest.skip(f"the wheel cannot be built: {built.stderr.strip().splitlines()[-1]}")
    return next(folder.glob("*.whl"))


@pytest.mark.slow
def test_two_steps_with_the_wheel(wheel, tmp_path):
    """The script alone, elsewhere, with the package from its wheel: the recipes come with it."""
    site, work = tmp_path / "site", tmp_path / "work"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(site), str(wheel)]
    subprocess.run(install, check=True, timeout=300)
    work.mkdir()
    shutil.copy(SCRIPT, work / "job.py")
    Dataset.from_list(make_rows("sycophancy")).to_json(work / "pairs.jsonl")
    flags = {
        "model_name_or_path": make_tiny(OF_FOLDER["qwen3-8b"], tmp_path / "tiny"),
        "max_steps": 2,
        "gradient_accumulation_steps": 1,
        "max_completion_length": 8,
        "output_dir": "trained",
    }
    words = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
    run = subprocess.run(
        [sys.executable, "job.py", "qwen3-8b/bct/sycophancy_lora", "--use_cpu", *words],
        cwd=work,
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stderr[-4000:]
    assert (work / "trained" / "adapter_model.safetensors").is_file()
    where = [sys.executable, "-c", "import trl_consistency; print(trl_consistency.__file__)"]
    found = subprocess.run(
        where, cwd=work, env={**os.environ, "PYTHONPATH": str(site)}, capture_output=True, text=True
    )
    assert found.stdout.startswith(str(site)), "the wheel is what was run"


@pytest.mark.slow
def test_uv_finds_all_that_it_needs(wheel):
    uv = shutil.which("uv")
    if uv is None:
        pytest.skip("uv is not installed")
    resolve = [
        uv,
        "pip",
        "compile",
        "--quiet",
        "--prerelease",
        "allow",
        "--find-links",
        str(wheel.parent),
        str(SCRIPT),
    ]
    resolved = subprocess.run(resolve, capture_output=True, text=True, timeout=300)
    assert resolved.returncode == 0, resolved.stderr
    found = {re.split(r"[=@ ]", line)[0] for line in resolved.stdout.splitlines() if re.match(r"\w", line)}
    assert {"trl-consistency", "trl", "torch", "bitsandbytes", "pillow", "torchvision"} <= found
