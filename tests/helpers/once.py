"""What takes minutes to make is made once, though several processes of pytest share the tests out."""

import os
import pickle
import shutil

from filelock import FileLock


def made_once(tmp_path_factory, name, make):
    """
    Returns the folder `name`, and what `make(folder)` returned in the process that came first. The others wait for it.
    """
    base = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent  # of all workers
    folder, made = base / name, base / f"{name}.pickle"
    with FileLock(base / f"{name}.lock"):
        if not made.exists():
            shutil.rmtree(folder, ignore_errors=True)  # of a process that failed
            folder.mkdir()
            made.write_bytes(pickle.dumps(make(folder)))
        return folder, pickle.loads(made.read_bytes())
