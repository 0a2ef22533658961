"""What `datasets` keeps of a local file is not used for another content."""

import json
import os

import pytest
from trl import DatasetMixtureConfig
from trl.scripts.utils import DatasetConfig

from trl_consistency.scripts.lint import read_pairs
from trl_consistency.scripts.loading import ConsistencyScriptArguments, load_pairs


def write(path, answer, like=None):
    """One row; like another file in its size and its time of change."""
    row = json.dumps({"clean_prompt": answer, "perturbed_prompt": "b"})
    path.write_text(row if path.suffix != ".csv" else f"clean_prompt,perturbed_prompt\n{answer},b\n")
    if like is not None:
        os.utime(path, ns=(like.st_atime_ns, like.st_mtime_ns))
        assert path.stat().st_size == like.st_size


@pytest.mark.parametrize(
    "kind", ["file", "csv", "folder", "mixture", "mixture of a folder", "pattern", "brackets", "lint"]
)
def test_a_file_replaced_under_the_same_name_size_and_time_is_read_anew(tmp_path, kind):
    path = tmp_path / "pairs" / ("train.csv" if kind == "csv" else "train.json")
    path.parent.mkdir()
    path = path.with_name("train[1].json") if kind == "brackets" else path

    def load():
        arguments, mixture = ConsistencyScriptArguments(dataset_name=str(path)), DatasetMixtureConfig()
        if kind == "folder":
            arguments.dataset_name = str(path.parent)
        if kind in ("mixture", "mixture of a folder", "pattern"):
            arguments.dataset_name = None
            entry = {
                "mixture": DatasetConfig(path=str(path)),
                "mixture of a folder": DatasetConfig(path=str(path.parent)),
                "pattern": DatasetConfig(path="json", data_files=str(path.parent / "*.json")),
            }[kind]
            mixture = DatasetMixtureConfig(datasets=[entry])
        if kind == "lint":
            return [row["clean_prompt"] for row in read_pairs(None, arguments, mixture)]
        return load_pairs(arguments, mixture)["train"]["clean_prompt"][:]

    write(path, "old")
    before = path.stat()
    assert load() == ["old"]
    assert load() == ["old"]
    write(path, "new", before)
    assert load() == ["new"]
