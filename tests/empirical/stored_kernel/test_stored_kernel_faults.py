from __future__ import annotations

import errno
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from stored_models import content, inputs, leftovers, lose, network, records, stored
from torch import Tensor, nn

from foretrain.empirical.stored_kernel import folder as folders
from foretrain.empirical.stored_kernel import tangents
from foretrain.empirical.stored_kernel.folder import Folder
from foretrain.support.errors import EngineError, FileError

SAMPLES, SIDE, TILES = 250, 10, 325

SCRIPT = f"""
import os, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from stored_models import inputs, network, stored
if len(sys.argv) > 4:  # import all that is needed, then be a user without rights
    stored(sys.argv[4], network(), inputs(5), workers=1)
    if os.geteuid() == 0:
        os.seteuid(65534)
options = dict(side={SIDE}, workers=int(sys.argv[2]), memory=sys.argv[3])
stored(sys.argv[1], network(), inputs({SAMPLES}), None, "trace", **options)
"""


def start(path: Path, workers: int = 1, *before: str) -> subprocess.Popen[str]:
    memory = "100kB" if workers == 1 else "350.1MB"
    command = [sys.executable, "-c", SCRIPT, str(path), str(workers), memory, *before]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def kill(process: subprocess.Popen[str]) -> None:
    """Its workers may hold the other ends of the pipes a little longer."""
    process.kill()
    process.wait()
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    process.stderr.close()


def wait_for_tiles(path: Path, more_than: int, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < deadline:
        if (path / ".tiles").is_dir() and len(os.listdir(path / ".tiles")) > more_than:
            return
        time.sleep(0.002)


def uninterrupted(path: Path) -> dict[str, bytes]:
    stored(path, network(), inputs(SAMPLES), None, "trace", side=SIDE, workers=1)
    return content(path)


def kill_and_resume(path: Path, moments: list[float], workers: int) -> int:
    """Kill a run so many seconds after its first new tile, start it anew each time; how many kills met it at work."""
    met = 0
    for moment in moments:
        before = len(os.listdir(path / ".tiles")) if path.exists() else 0
        process = start(path, workers)
        wait_for_tiles(path, before, process)
        time.sleep(moment)
        met += process.poll() is None
        kill(process)
    return met


def finish(path: Path, workers: int = 1) -> None:
    process = start(path, workers)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 0, said


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("kills", [1, 3])
def test_killed_at_any_moment_it_goes_on_where_it_was(kills: int, tmp_path: Path) -> None:
    expected = uninterrupted(tmp_path / "whole.zarr")
    rng = random.Random(0)
    moments = [rng.uniform(0, 0.12 / kills) for _ in range(kills)]  # all tiles take 0.3 s on a fast machine
    path = tmp_path / "k.zarr"
    assert kill_and_resume(path, moments, workers=1) == kills
    at_last_kill = {tile: record["seconds"] for tile, record in records(path).items()}
    assert 0 < len(at_last_kill) < TILES
    finish(path)
    assert content(path) == expected
    assert leftovers(path) == []
    found = records(path)
    assert all(found[tile]["seconds"] == seconds for tile, seconds in at_last_kill.items())


@pytest.mark.statistical
@pytest.mark.parametrize("workers", [1, 2])
def test_killed_at_twenty_random_moments(workers: int, tmp_path: Path) -> None:
    before = time.monotonic()
    finish(tmp_path / "whole.zarr", workers)
    duration = time.monotonic() - before
    rng = random.Random(workers)
    path, met = tmp_path / "k.zarr", 0
    for number in range(20):
        there = len(os.listdir(path / ".tiles")) if path.exists() else 0
        process = start(path, workers)
        if number % 4:  # while tiles are written, which is a small part of the time
            wait_for_tiles(path, there, process)
            time.sleep(rng.uniform(0, 0.2))
        else:
            time.sleep(rng.uniform(0, 1) * duration)
        met += process.poll() is None
        kill(process)
        if path.exists() and len(os.listdir(path / ".tiles")) == TILES:  # begin again, there are moments left
            assert content(path) == content(tmp_path / "whole.zarr")
            shutil.rmtree(path)
    assert met >= 10
    finish(path, workers)
    assert content(path) == content(tmp_path / "whole.zarr")
    assert leftovers(path) == []


@pytest.mark.slow
def test_workers_do_not_outlive_a_killed_run(tmp_path: Path) -> None:
    process = start(tmp_path / "k.zarr", workers=2)
    wait_for_tiles(tmp_path / "k.zarr", 3, process)
    children = psutil.Process(process.pid).children(recursive=True)
    assert len(children) >= 2
    kill(process)
    _, alive = psutil.wait_procs(children, timeout=10)
    assert not alive


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.statistical)])
def test_an_interrupted_run_stops_soon_and_can_be_resumed(workers: int, tmp_path: Path) -> None:
    path = tmp_path / "k.zarr"
    process = start(path, workers)
    wait_for_tiles(path, 3, process)
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=20)
    assert process.returncode != 0
    assert "KeyboardInterrupt" in said
    _, alive = psutil.wait_procs(children, timeout=10)
    assert not alive
    assert 0 < len(records(path)) < TILES
    assert not (path / ".run").exists()
    stored(path, network(), inputs(SAMPLES), None, "trace", workers=1)
    assert content(path) == uninterrupted(tmp_path / "whole.zarr")


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("workers", [1, 2])
def test_a_full_disk_loses_nothing(workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "k.zarr"
    written = [0]
    write = folders.write_all

    def fill(descriptor: int, content: Any) -> None:
        written[0] += 1
        if written[0] > 30:
            os.write(descriptor, memoryview(content)[:100])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(descriptor, content)

    monkeypatch.setattr(folders, "write_all", fill)
    engine = "threads" if workers == 2 else None
    with pytest.raises(FileError, match=r"disk is full"):
        stored(path, network(), inputs(40), None, "trace", side=5, workers=workers, engine=engine)
    monkeypatch.undo()
    assert len(records(path)) > 5
    assert leftovers(path) == []
    assert not Folder(path).damaged(sorted(Folder(path).recorded()))
    stored(path, network(), inputs(40), None, "trace", workers=1)
    stored(tmp_path / "whole.zarr", network(), inputs(40), None, "trace", side=5, workers=1)
    assert content(path) == content(tmp_path / "whole.zarr")


def test_a_kernel_larger_than_the_disk_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=5000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(FileError, match=r"12\.8 kB .*5 kB .*'trace'"):
        stored(tmp_path / "k.zarr", network(), inputs(40), None, "trace", side=5)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that other users may enter."""
    path = Path(tempfile.mkdtemp())
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.mark.statistical
@pytest.mark.skipif(os.name == "nt", reason="permissions of folders are others there")
def test_a_folder_that_must_not_be_written(open_folder: Path, tmp_path: Path) -> None:
    path = open_folder / "k.zarr"
    open_folder.chmod(0o555)
    assert "k.zarr could not be written (Permission denied)" in said_without_rights(path, tmp_path / "1")
    open_folder.chmod(0o755)
    assert list(open_folder.iterdir()) == []
    stored(path, network(), inputs(SAMPLES), None, "trace", side=SIDE, workers=1)
    protect(path)
    assert said_without_rights(path, tmp_path / "2") == ""  # a finished one need not be written
    lose(path, "0-0")
    assert "permissions" in said_without_rights(path, tmp_path / "3")
    stored(path, network(), inputs(SAMPLES), None, "trace", workers=1)


def said_without_rights(path: Path, before: Path) -> str:
    """The last line of what a user without rights is told."""
    _, said = start(path, 1, str(before)).communicate(timeout=60)
    return said.strip().rpartition("\n")[2]


def protect(path: Path) -> None:
    for part in [path, *path.rglob("*")]:
        part.chmod(0o555 if part.is_dir() else 0o444)


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("finished", [True, False])
@pytest.mark.parametrize("damage", ["flipped", "short", "lost", "mirror", "record"])
def test_a_damaged_tile_is_computed_again(finished: bool, damage: str, tmp_path: Path) -> None:
    path = tmp_path / "k.zarr"
    stored(path, network(), inputs(23), side=5, workers=1)
    whole = content(path)
    if not finished:
        lose(path, "0-0")
    time.sleep(0.01)  # what is changed later has a later time
    file = path / "kernel" / ("3.1.0.0" if damage == "mirror" else "1.3.0.0")
    if damage in ("flipped", "mirror"):
        changed = bytearray(file.read_bytes())
        changed[77] ^= 4
        file.write_bytes(bytes(changed))
    elif damage == "short":
        file.write_bytes(file.read_bytes()[:-8])
    elif damage == "lost":
        file.unlink()
    else:
        (path / ".tiles" / "1-3.json").write_text('{"crc": [1')
    with pytest.warns(UserWarning, match=r"checksums \(1-3\)"):
        stored(path, network(), inputs(23), workers=1)
    assert content(path) == whole


def test_a_folder_removed_in_the_middle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "k.zarr"
    factors = tangents.Chunks.of

    def remove(self: Any, axis: int, number: int) -> Any:
        if number == 3:
            shutil.rmtree(path)
        return factors(self, axis, number)

    monkeypatch.setattr(tangents.Chunks, "of", remove)
    with pytest.raises(FileError, match="folder was removed"):
        stored(path, network(), inputs(40), side=5, workers=1)


def test_two_runs_at_once_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "k.zarr"
    stored(path, network(), inputs(23), side=5, workers=1)
    lose(path, "0-0")
    with Folder(path).lock():
        with pytest.raises(FileError, match="another writer"):
            stored(path, network(), inputs(23))
        with pytest.raises(FileError, match="another writer"):
            stored(path, network(), inputs(23), overwrite=True)
    stored(path, network(), inputs(23), workers=1)


def test_a_run_that_is_over_cannot_write(tmp_path: Path) -> None:
    path = tmp_path / "k.zarr"
    stored(path, network(), inputs(23), side=5, workers=1)
    before = content(path)
    old = Folder(path).begin()
    Folder(path).begin().stop()
    with pytest.raises(folders.RunIsOverError):
        old.write((0, 0), [torch.zeros(5, 5, 3, 3).double().numpy()])
    with pytest.raises(folders.RunIsOverError):
        old.claim("0-0")
    assert content(path) == before


class Fatal(nn.Module):
    """Kills the first worker process that runs it, or all of them."""

    def __init__(self, mark: Path, always: bool) -> None:
        super().__init__()
        self.inner, self.mark, self.always, self.safe = network(), str(mark), always, os.getpid()

    def forward(self, x: Tensor) -> Tensor:
        if os.getpid() != self.safe and len(x) == 5 and (self.always or not os.path.exists(self.mark)):
            Path(self.mark).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return self.inner(x)


@pytest.mark.slow
def test_a_worker_that_dies_is_replaced(tmp_path: Path) -> None:
    stored(tmp_path / "k.zarr", Fatal(tmp_path / "mark", False), inputs(40), side=5, workers=2)
    stored(tmp_path / "whole.zarr", network(), inputs(40), side=5, workers=1)
    assert (tmp_path / "mark").exists()
    assert content(tmp_path / "k.zarr") == content(tmp_path / "whole.zarr")


@pytest.mark.slow
def test_workers_that_always_die_end_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="killed"):
        stored(tmp_path / "k.zarr", Fatal(tmp_path / "mark", True), inputs(40), side=5, workers=2)
    assert not (tmp_path / "k.zarr" / ".run").exists()
