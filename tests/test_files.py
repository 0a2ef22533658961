import os
import re
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from trl_consistency import files
from trl_consistency.errors import ConsistencyError
from trl_consistency.files import check_file, whole_file, whole_files, whole_folder, write_by, write_bytes, write_text


@pytest.fixture(autouse=True)
def new_process(monkeypatch):
    """Each test looks for leftovers, as a new process does."""
    monkeypatch.setattr(files, "_swept", set())


def names(folder):
    return sorted(os.listdir(folder))


def full_disk(*_):
    raise OSError(28, "No space left on device")


def test_writes_in_a_folder_that_is_not_there_yet(tmp_path):
    write_text(tmp_path / "a" / "b.txt", "é")
    assert (tmp_path / "a" / "b.txt").read_bytes() == "é".encode()
    assert names(tmp_path / "a") == ["b.txt"]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt(), ValueError("a fault")])
def test_an_earlier_file_stays_until_the_new_one_is_whole(tmp_path, error):
    path = tmp_path / "rows.jsonl"
    path.write_text("earlier")

    def write(unfinished):
        Path(unfinished).write_text("half a li")
        assert path.read_text() == "earlier"
        raise error

    with pytest.raises(ConsistencyError if isinstance(error, OSError) else type(error)) as raised:
        write_by(path, write, option="targets_file")
    assert path.read_text() == "earlier"
    assert names(tmp_path) == ["rows.jsonl"]
    if isinstance(error, OSError):
        assert str(raised.value) == (
            f"`targets_file` `{path}` cannot be written (No space left on device). What was there before is kept: "
            "make room, or choose another place, and start again."
        )


def test_space_is_asked_for_first(tmp_path, monkeypatch):
    path = tmp_path / "a.bin"
    monkeypatch.setattr(files.shutil, "disk_usage", lambda folder: SimpleNamespace(free=5))
    write_bytes(path, b"12345")
    with pytest.raises(ConsistencyError, match="No space left"):
        write_bytes(path, b"123456")
    assert path.read_bytes() == b"12345"


def test_what_is_written_reaches_the_disk_before_it_takes_its_place(tmp_path, monkeypatch):
    done = []
    monkeypatch.setattr(files.os, "fsync", lambda descriptor: done.append(stat.S_ISDIR(os.fstat(descriptor).st_mode)))
    replace = os.replace
    monkeypatch.setattr(files.os, "replace", lambda *paths: (done.append("replace"), replace(*paths)))
    write_text(tmp_path / "a.txt", "text")
    assert done == [False, "replace", True]


def test_a_library_writes_by_path(tmp_path):
    write_by(tmp_path / "a.png", lambda path: Path(path).write_bytes(path[-4:].encode()))
    assert (tmp_path / "a.png").read_bytes() == b".png"
    with pytest.raises(ConsistencyError, match="cannot be written"):
        write_by(tmp_path / "a.png", full_disk)
    assert names(tmp_path) == ["a.png"]


def test_several_files_at_once(tmp_path):
    (tmp_path / "other.txt").write_text("stays")
    (tmp_path / "a.txt").write_text("earlier")
    with pytest.raises(ConsistencyError, match="`output_dir`"), whole_files(tmp_path, "output_dir") as folder:
        (folder / "a.txt").write_text("new" * 10) and full_disk()
    assert (tmp_path / "a.txt").read_text() == "earlier"
    with whole_files(tmp_path, "output_dir") as folder:
        (folder / "a.txt").write_text("new")
        (folder / "data").mkdir()
        (folder / "data" / "b.txt").write_text("b")
    assert names(tmp_path) == ["a.txt", "data", "other.txt"]
    assert (tmp_path / "a.txt").read_text() == "new"
    assert (tmp_path / "data" / "b.txt").read_text() == "b"


def test_links_modes_and_devices(tmp_path):
    (tmp_path / "real.txt").write_text("earlier")
    (tmp_path / "real.txt").chmod(0o640)
    (tmp_path / "link.txt").symlink_to("real.txt")
    write_text(tmp_path / "link.txt", "new")
    assert (tmp_path / "link.txt").is_symlink()
    assert (tmp_path / "real.txt").read_text() == "new"
    assert stat.S_IMODE((tmp_path / "real.txt").stat().st_mode) == 0o640
    write_text("/dev/null", "text")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    with pytest.raises(ConsistencyError, match="Is a directory"):
        write_text(tmp_path, "text")
    write_text(tmp_path / ("x" * 250 + ".txt"), "a long name")


def test_check_file_leaves_nothing(tmp_path):
    check_file(tmp_path / "a.jsonl", "targets_file")
    check_file("/dev/null", "targets_file")
    with pytest.raises(ConsistencyError, match="No such file"):
        check_file(tmp_path / "no" / "folder" / "a.jsonl", "targets_file")
    assert names(tmp_path) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(ConsistencyError, match="`targets_file`"):
        check_file(tmp_path / "file" / "a.jsonl", "targets_file")


KILLED = """
import sys, time
from pathlib import Path
from trl_consistency.files import whole_file, whole_folder
with whole_file(Path(sys.argv[1]) / "a.txt") as file, whole_folder(Path(sys.argv[1]) / "model") as folder:
    (folder / "part").write_text("part")
    file.write("part"); file.flush()
    print("writing", flush=True)
    time.sleep(60)
"""


def test_what_a_killed_process_left_is_removed_and_what_another_writes_is_not(tmp_path, monkeypatch):
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE)
    try:
        assert process.stdout.readline() == b"writing\n"
        write_text(tmp_path / "b.txt", "b")
        assert len(names(tmp_path)) == 3  # the other process is still at it
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    (tmp_path / ".hidden.unfinished").write_text("a user's own")
    monkeypatch.setattr(files, "_swept", set())
    with whole_folder(tmp_path / "model") as folder:
        assert len(names(tmp_path)) == 3
        (folder / "weights").write_text("w")
    assert names(tmp_path) == [".hidden.unfinished", "b.txt", "model"]
    assert names(tmp_path / "model") == ["weights"]


def test_locks_are_no_reason_to_wait(tmp_path):
    start = time.monotonic()
    with whole_file(tmp_path / "a.txt") as first, whole_file(tmp_path / "a.txt") as second:
        first.write("first")
        second.write("second")
    assert (tmp_path / "a.txt").read_text() == "first"
    assert names(tmp_path) == ["a.txt"]
    assert time.monotonic() - start < 5


# These write into the folders that `whole_files` and `whole_folder` give them; what a lock says may be lost.
IN_GIVEN_FOLDERS = {
    "scripts/pairs.py",
    "scripts/convert.py",
    "organism/organism.py",
    "smollm2/checkpoint.py",
    "folder_lock.py",
}


def test_nothing_else_writes_files():
    """A log that grows is opened to be appended to."""
    package = Path(files.__file__).parent
    writes = re.compile(r"""\.write_(text|bytes)\(|open\([^)]*["'][wx]b?["']""")
    found = {
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        if path != Path(files.__file__) and writes.search(path.read_text())
    }
    assert found <= IN_GIVEN_FOLDERS, "write these with `trl_consistency.files`"


@pytest.mark.skipif(not os.path.exists("/dev/fd"), reason="needs /dev/fd")
def test_a_pipe_is_written_to():
    """As `/dev/stdout` is one before another command: its real path does not exist."""
    read_end, write_end = os.pipe()
    place = f"/dev/fd/{write_end}"
    check_file(place, "html")
    write_text(place, "text")
    os.close(write_end)
    with os.fdopen(read_end) as pipe:
        assert pipe.read() == "text"
