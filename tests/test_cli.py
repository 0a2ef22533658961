"""What the console adds to every command: options in messages as they are typed, and less noise of other libraries."""

import errno
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

import trl_consistency
from tests.helpers.models import make_pairs
from trl_consistency.cli import COMMANDS
from trl_consistency.cli import main as cli
from trl_consistency.errors import ConsistencyError, InvalidPairsError, ends_with_message, naming_flags


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ("--pairs pairs.jsonl", "No model: give `--model_name_or_path`."),
        ("--pairs pairs.jsonl --model_name_or_path x --samples -3", "`--samples` must be"),
        ("--config recipe.yaml", "`samples` must be"),
        ("--config recipe.yaml --samples=-4", "`--samples` must be"),
    ],
)
def test_options_are_named_as_they_are_typed(tmp_path, monkeypatch, args, said):
    monkeypatch.chdir(tmp_path)
    make_pairs(2).to_json("pairs.jsonl")
    (tmp_path / "recipe.yaml").write_text("pairs: pairs.jsonl\nmodel_name_or_path: x\nsamples: -3\n")
    with pytest.raises(SystemExit) as end:
        cli(["lint", *args.split()])
    assert said in end.value.code


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ConsistencyError("`tools` is given.\n  `tools`: was 1"), "`--tools` is given.\n  `tools`: was 1"),
        (ConsistencyError("pairs.jsonl, row 3: `tools` is no list."), "pairs.jsonl, row 3: `tools` is no list."),
        (InvalidPairsError("`tools` is no list."), "`tools` is no list."),
        (ConsistencyError("There are `tools`.", columns=["tools"]), "There are `tools`."),
        (ConsistencyError("`tool` and `tools: x y`"), "`tool` and `tools: x y`"),
        (ConsistencyError("set `tools: true`"), "set `--tools true`"),
    ],
)
def test_columns_and_keys_keep_their_names(error, said):
    with pytest.raises(SystemExit) as end, naming_flags({"tools"}), ends_with_message():
        raise error
    assert end.value.code == f"error: {said}"


@pytest.mark.parametrize(
    ("fault", "way_out"),
    [
        (PermissionError(errno.EACCES, "Permission denied", "/data/pairs.jsonl"), "You may not read or write there"),
        (OSError(errno.ENAMETOOLONG, "File name too long", "/data/pairs.jsonl"), "Give a shorter name."),
        (OSError(errno.ELOOP, "Too many levels of symbolic links", "/data/pairs.jsonl"), "name another place."),
    ],
)
def test_faults_of_a_name_say_what_to_do(fault, way_out):
    with pytest.raises(SystemExit) as end, ends_with_message():
        raise fault
    assert end.value.code.startswith(f"error: /data/pairs.jsonl: {fault.strerror}. ")
    assert way_out in end.value.code


def test_warnings_of_a_command_are_one_line():
    """Those of other libraries still say where they come from, and so do all in Python."""
    own = str(Path(trl_consistency.__file__).parent / "publishing" / "hub.py")
    in_python = warnings.formatwarning("No base model.", UserWarning, own, 159)
    elsewhere = warnings.formatwarning("Old.", FutureWarning, "elsewhere.py", 7)
    with ends_with_message():
        assert warnings.formatwarning("No base model.", UserWarning, own, 159) == "warning: No base model.\n"
        assert warnings.formatwarning("Old.", FutureWarning, "elsewhere.py", 7) == elsewhere
    assert warnings.formatwarning("No base model.", UserWarning, own, 159) == in_python


def test_a_warning_of_other_libraries_about_each_other_is_not_shown():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with pytest.raises(SystemExit):
            cli(["doctor", "--json"])
        for name in ("is_gradient_checkpointing", "something_else"):
            warnings.warn(f"`{name}` is deprecated and will be removed.", FutureWarning, stacklevel=1)
    assert [str(of.message).split("`")[1] for of in caught if of.category is FutureWarning] == ["something_else"]


@pytest.mark.parametrize(
    ("processes", "default", "flags"),
    [
        ("2", None, ["--multi_gpu"]),
        ("1", None, []),
        ("2", "distributed_type: MULTI_GPU", []),
        ("2", "distributed_type: NO", None),
        ("2", "distributed_type: MULTI_CPU", None),
    ],
)
def test_so_many_processes_start_as_are_asked_for(tmp_path, monkeypatch, processes, default, flags):
    """Without a config, or with one for a single process, accelerate started a single one on a CPU, without a word."""
    from accelerate.commands.config import config_args

    file = tmp_path / "default_config.yaml"
    if default is not None:
        file.write_text(default)
    monkeypatch.setattr(config_args, "default_config_file", str(file))
    started: list[list[str]] = []
    monkeypatch.setattr("os.execv", lambda _, launch: started.append(launch) or sys.exit())
    with pytest.raises(SystemExit) as end:
        cli(["evaluate", "--num_processes", processes])
    if flags is None:
        assert (end.value.code, started) == (2, [])
    else:
        assert started[0][3:-2] == ["--num_processes", processes, *flags]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_imports_nothing_slow(command):
    """The data sets' file system was imported for every command, which took a third of the time."""
    code = f"""
import sys
from trl_consistency.cli import main
try:
    main([{command!r}, "--help"])
except SystemExit:
    pass
print({{"torch", "transformers", "datasets", "fsspec", "numpy"}} & set(sys.modules), file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "--help" in done.stdout
    assert done.stderr.splitlines()[-1] == "set()"
