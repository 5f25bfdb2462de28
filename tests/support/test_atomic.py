from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from foretrain.support import atomic
from foretrain.support.errors import FileError


def dead_process() -> int:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return child.pid


def leftover(destination: Path, state: str, process: int, host: str | None = None) -> Path:
    path = destination.with_name(
        f".{destination.name}.{state}-{host or socket.gethostname()}-{process}-0123abcd"
    )
    path.mkdir()
    (path / "content").write_text("old")
    return path


def fill(destination: Path, text: str, *, overwrite: bool = False) -> None:
    with atomic.new_folder(destination, overwrite=overwrite) as folder:
        (folder / "content").write_text(text)


def test_a_folder_appears_only_when_it_is_complete(tmp_path: Path) -> None:
    destination = tmp_path / "deep" / "result"
    with atomic.new_folder(destination) as folder:
        (folder / "content").write_text("new")
        assert not destination.exists()
        assert folder.name.startswith(".")
        assert folder.suffix != destination.suffix
    assert (destination / "content").read_text() == "new"
    assert os.listdir(destination.parent) == ["result"]


def test_a_file_appears_only_when_it_is_complete(tmp_path: Path) -> None:
    destination = tmp_path / "answer.json"
    with atomic.new_file(destination) as path:
        path.write_text("new")
        assert not destination.exists()
    assert destination.read_text() == "new"
    assert os.listdir(tmp_path) == ["answer.json"]


@pytest.mark.parametrize("error", [RuntimeError("x"), KeyboardInterrupt()])
def test_failure_leaves_nothing_behind_and_the_old_content_in_place(
    tmp_path: Path, error: BaseException
) -> None:
    destination = tmp_path / "result"
    fill(destination, "old")

    def fail() -> None:
        with atomic.new_folder(destination, overwrite=True) as folder:
            (folder / "content").write_text("half")
            raise error

    with pytest.raises(type(error)):
        fail()
    assert (destination / "content").read_text() == "old"
    assert os.listdir(tmp_path) == ["result"]


def test_existing_content_is_replaced_only_on_request(tmp_path: Path) -> None:
    destination = tmp_path / "result"
    fill(destination, "old")
    with pytest.raises(FileError, match="already exists"):
        fill(destination, "new")
    assert (destination / "content").read_text() == "old"
    fill(destination, "new", overwrite=True)
    assert (destination / "content").read_text() == "new"
    assert os.listdir(tmp_path) == ["result"]


def test_the_slower_of_two_writers_is_refused(tmp_path: Path) -> None:
    destination = tmp_path / "result"

    def slow() -> None:
        with atomic.new_folder(destination) as folder:
            (folder / "content").write_text("slow")
            fill(destination, "fast")

    with pytest.raises(FileError, match="already exists"):
        slow()
    assert (destination / "content").read_text() == "fast"
    assert os.listdir(tmp_path) == ["result"]


def test_a_file_cannot_replace_a_folder(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="is a folder"), atomic.new_file(tmp_path, overwrite=True):
        pass


def test_a_full_disk_is_reported_in_one_sentence(tmp_path: Path) -> None:
    def fail() -> None:
        with atomic.new_folder(tmp_path / "result"):
            raise OSError(28, "No space left on device")

    with pytest.raises(FileError, match=r"\(No space left on device\)"):
        fail()
    assert os.listdir(tmp_path) == []


def test_what_dead_processes_left_is_removed_and_the_living_are_left_alone(tmp_path: Path) -> None:
    destination = tmp_path / "result"
    dead = leftover(destination, "partial", dead_process())
    living = leftover(destination, "partial", os.getppid())
    elsewhere = leftover(destination, "partial", dead_process(), host="elsewhere")
    other = leftover(tmp_path / "other", "partial", dead_process())
    fill(destination, "new")
    assert not dead.exists()
    assert living.exists()
    assert elsewhere.exists()
    assert other.exists()


def test_a_replacement_cut_short_is_undone(tmp_path: Path) -> None:
    destination = tmp_path / "result"
    leftover(destination, "replaced", dead_process())
    atomic.restore(destination)
    assert (destination / "content").read_text() == "old"
    assert os.listdir(tmp_path) == ["result"]


def test_a_failed_rename_puts_the_old_folder_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    destination = tmp_path / "result"
    fill(destination, "old")
    rename = Path.rename

    def refuse_the_new(self: Path, target: Path) -> Path:
        if ".partial-" in self.name:
            raise PermissionError(13, "Permission denied")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", refuse_the_new)
    with pytest.raises(FileError, match="Permission denied"):
        fill(destination, "new", overwrite=True)
    assert (destination / "content").read_text() == "old"
    assert os.listdir(tmp_path) == ["result"]
