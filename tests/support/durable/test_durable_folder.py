"""The lock of a folder of work, and what such a folder may be."""

from __future__ import annotations

import errno
import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest

from foretrain.support.durable import Lock, WorkFolder, folder
from foretrain.support.errors import FileError, ForetrainWarning

TAKE = """
import sys
from pathlib import Path
from foretrain.support.durable import Lock
from foretrain.support.errors import FileError
try:
    held = Lock(Path(sys.argv[1]), "sweep")
except FileError as error:
    sys.exit(str(error))
print("held", flush=True)
sys.stdin.read()
"""


def other(folder: Path) -> subprocess.Popen[str]:
    """Another process that takes the lock and keeps it until its input ends."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([sys.executable, "-c", TAKE, str(folder)], text=True, **pipes)  # type: ignore[call-overload]


def refused_elsewhere(folder: Path) -> bool:
    _, said = other(folder).communicate()
    return "another writer" in said


def test_two_processes_are_kept_apart(tmp_path: Path) -> None:
    with other(tmp_path) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "held\n"
        with pytest.raises(
            FileError, match=r"another writer is at work on the sweep .* choose another store"
        ):
            Lock(tmp_path, "sweep", "store")
        first.kill()
        first.wait()
        Lock(tmp_path, "sweep").release()  # a killed process holds nothing


def test_a_refused_second_opener_in_the_same_process_does_not_drop_the_lock(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else None
    with Lock(tmp_path, "sweep"):
        for _ in range(3):
            with pytest.raises(FileError, match="another writer"):
                Lock(tmp_path, "sweep")
        assert refused_elsewhere(tmp_path)
    assert not refused_elsewhere(tmp_path)
    if before is not None:
        assert len(os.listdir("/proc/self/fd")) == before


def test_a_lost_lock_is_given_back(tmp_path: Path) -> None:
    held = [Lock(tmp_path, "sweep")]
    held.append(held)  # type: ignore[arg-type]  # a cycle, as frames of exceptions make them
    del held
    gc.collect()
    Lock(tmp_path, "sweep").release()


def test_a_lock_is_neither_emptied_nor_followed(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("data")
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / ".lock").symlink_to(precious)
    with pytest.raises(FileError, match="its lock is a link"):
        Lock(folder, "sweep")
    assert precious.read_text() == "data"
    (folder / ".lock").unlink()
    (folder / ".lock").write_text("kept")
    Lock(folder, "sweep").release()
    assert (folder / ".lock").read_text() == "kept"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks there")
def test_a_forked_process_neither_holds_the_lock_nor_gives_it_back(tmp_path: Path) -> None:
    held = Lock(tmp_path, "sweep")
    ready, go = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        held.release()
        os.write(ready[1], b"x")
        os.read(go[0], 1)
        os._exit(0)
    os.read(ready[0], 1)
    assert refused_elsewhere(tmp_path)  # the child has given back nothing
    held.release()
    assert not refused_elsewhere(tmp_path)  # and holds nothing
    os.write(go[1], b"x")
    os.waitpid(child, 0)
    for descriptor in (*ready, *go):
        os.close(descriptor)


def test_the_lock_of_a_folder_that_was_replaced_is_worth_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the opening and the locking of the file another process may put a new folder in place."""
    folder = tmp_path / "work"
    folder.mkdir()
    real = os.open

    def replaced(path: object, *options: int) -> int:
        found = real(path, *options)  # type: ignore[arg-type]
        (folder / ".lock").rename(tmp_path / "old")
        os.close(real(folder / ".lock", os.O_CREAT))
        return found

    monkeypatch.setattr(os, "open", replaced)
    with pytest.raises(FileError, match="another writer"):
        Lock(folder, "sweep")


@pytest.mark.skipif(folder.fcntl is None, reason="no locks there")
def test_a_file_system_without_locks_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object) -> None:
        raise OSError(errno.ENOTSUP, "Operation not supported")

    monkeypatch.setattr(folder.fcntl, "flock", unknown)
    with pytest.warns(ForetrainWarning, match="knows no locks"):
        Lock(tmp_path, "sweep").release()


def test_what_a_folder_holds(tmp_path: Path) -> None:
    place = WorkFolder(tmp_path / "new", "points.log", "sweep", "store")
    assert not place.holds_work()
    assert not (tmp_path / "new").exists()
    with place.lock():
        assert not place.holds_work()
    (tmp_path / "new" / ".points.log.partial-here-1-0123abcd").touch()  # of a process that was killed
    assert not place.holds_work()
    (tmp_path / "new" / "thesis.tex").touch()
    with pytest.raises(FileError, match=r"other files and no sweep: choose another store"):
        place.holds_work()
    (tmp_path / "new" / "points.log").touch()
    assert place.holds_work()
    with pytest.raises(FileError, match="is a file"):
        WorkFolder(tmp_path / "new" / "thesis.tex", "points.log", "sweep").holds_work()
    with pytest.raises(FileError, match="cannot be written"):
        WorkFolder(tmp_path / "new" / "thesis.tex" / "below", "points.log", "sweep").lock()
