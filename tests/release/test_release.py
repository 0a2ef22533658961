"""The archives, and the wheel in an environment of its own, which borrows nothing of this checkout but its dependencies."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import trl_consistency
from tests.release.archives import IN_WHEEL, names_in, unexpected
from tests.release.environments import ROOT, check_installed, clean_variables, make_environment, run


@pytest.fixture(scope="module")
def dist(tmp_path_factory):
    pytest.importorskip("hatchling", reason="needs hatchling and build (`make test` installs them)")
    pytest.importorskip("build", reason="needs hatchling and build (`make test` installs them)")
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True, env=clean_variables())
    return folder


def test_archives_hold_what_they_should(dist):
    """Every file of the repository that belongs there, and no other."""
    if not (ROOT / ".git").exists():
        pytest.skip("needs the repository, to know its files")
    (wheel,), (source,) = dist.glob("*.whl"), dist.glob("*.tar.gz")
    assert unexpected(wheel) == []
    assert unexpected(source) == []
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    package = {name for name in tracked if name.startswith("trl_consistency/")}
    recipes = {f"trl_consistency/{name}" for name in tracked if name.startswith("recipes/")}
    assert {name for name in names_in(wheel) if ".dist-info/" not in name} == package | recipes
    of_source = {name for name in tracked if not name.startswith(".github/")}
    assert set(names_in(source)) - {"PKG-INFO"} == of_source


@pytest.mark.parametrize("name", ["trl_consistency/__pycache__/cli.py", "trl_consistency/notes.md", "secrets.env"])
def test_what_does_not_belong_is_found(tmp_path, name):
    with zipfile.ZipFile(tmp_path / "a.whl", "w") as wheel:
        wheel.writestr(name, "")
        wheel.writestr("trl_consistency/cli.py", "")
    assert unexpected(tmp_path / "a.whl") == [name]
    assert IN_WHEEL


@pytest.mark.long
def test_wheel_works_outside_the_checkout(dist, tmp_path):
    """Its dependencies are those of this environment: `make release` installs them anew."""
    programs = make_environment(sys.executable, tmp_path / "environment")
    (wheel,) = dist.glob("*.whl")
    run([programs / "python", "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", wheel], tmp_path)
    code = "import sysconfig; print(sysconfig.get_paths()['purelib'])"
    packages = run([programs / "python", "-c", code], tmp_path).strip()
    # Paths, so that no `.pth` file there (of an editable install, say) has an effect
    borrowed = [path for path in sys.path if path.endswith("site-packages")]
    (Path(packages) / "dependencies.pth").write_text("\n".join(borrowed) + "\n")
    (tmp_path / "work").mkdir()
    check_installed(programs, tmp_path / "work", trl_consistency.__version__, trains=False)
