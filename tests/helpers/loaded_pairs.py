"""Files of pairs, and what the training commands load of them."""

import json

from trl import DatasetMixtureConfig
from trl.scripts.utils import DatasetConfig

from trl_consistency.scripts.loading import ConsistencyScriptArguments, load_pairs


def rows_of(name, count=2, **more):
    return [{"clean_prompt": f"{name} {index}", "perturbed_prompt": f"no {index}"} | more for index in range(count)]


def write_rows(path, name, **more):
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = rows_of(name, **more)
    if path.suffix == ".csv":
        path.write_text("\n".join(",".join(row) for row in [rows[0], *(row.values() for row in rows)]) + "\n")
    else:
        write_lines(path, rows)


def write_lines(path, rows):
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def load_one(path, streaming=False):
    """A data set, as `dataset_name` has it."""
    arguments = ConsistencyScriptArguments(dataset_name=str(path), dataset_streaming=streaming)
    return load_pairs(arguments, DatasetMixtureConfig())


def load_mixture(*entries, **options):
    """A mixture, as `datasets` has it: of paths, or of entries with more than a path."""
    entries = [of if isinstance(of, DatasetConfig) else DatasetConfig(path=str(of)) for of in entries]
    return load_pairs(ConsistencyScriptArguments(), DatasetMixtureConfig(datasets=entries, **options))
