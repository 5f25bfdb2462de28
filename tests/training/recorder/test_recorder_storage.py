"""The log of a recorder: torn at any byte, damaged, gone on with, shared."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recorded_runs import MSE, data, network, sgd, train
from torch import nn

from foretrain.support.durable import frame, scan
from foretrain.support.errors import FileError, InputError
from foretrain.training.recorder import Recorder, read
from foretrain.training.recorder.records import LOG


def record(folder: Path, steps: int, model: nn.Module | None = None, **options: Any) -> Recorder:
    """So many steps, each of them recorded."""
    own = network() if model is None else model
    optimizer = sgd(own)
    given = {"batch": data(), "loss": MSE, "optimizer": optimizer, "every": 1, "budget": None} | options
    with Recorder(folder, own, given.pop("observables", "loss"), **given) as found:
        train(own, optimizer, steps)
    return found


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("recording") / "run"
    record(folder, 4)
    return (folder / LOG).read_bytes()


def test_whatever_byte_a_kill_leaves_all_finished_records_are_read(log: bytes, tmp_path: Path) -> None:
    frames = list(scan(log))
    ends = [item.stop for item in frames if item.entry["kind"] == "record"]
    assert len(ends) == 5
    for cut in range(frames[0].stop, len(log) + 1):
        finished = sum(end <= cut for end in ends)
        kept = [item for item in scan(log[:cut]) if item.entry["kind"] == "record"]
        assert len(kept) == finished
        if cut % 97 == 0:  # the whole way to a dataset is slower
            (tmp_path / LOG).write_bytes(log[:cut])
            assert read(tmp_path).sizes["step"] == finished


@pytest.mark.parametrize("lost", [1, 10, 100])
def test_a_torn_end_is_cut_off_when_the_recording_goes_on(log: bytes, tmp_path: Path, lost: int) -> None:
    frames = list(scan(log))
    last = next(item for item in reversed(frames) if item.entry["kind"] == "record")
    (tmp_path / LOG).write_bytes(log[: last.stop - lost])
    record(tmp_path, 3, resume=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_array_equal(read(tmp_path)["step"], [0, 1, 2, 3, 4, 5, 6])


def test_damage_between_records_is_said_and_costs_one_record(log: bytes, tmp_path: Path) -> None:
    frames = list(scan(log))
    hurt = [item for item in frames if item.entry["kind"] == "record"][2]
    (tmp_path / LOG).write_bytes(log[: hurt.stop - 3] + b"\x00" + log[hurt.stop - 2 :])
    with pytest.warns(UserWarning, match=f"{hurt.stop - hurt.start} bytes between its records") as warned:
        np.testing.assert_array_equal(read(tmp_path)["step"], [0, 1, 3, 4])
    assert warned[0].filename == __file__


def test_a_mark_inside_the_data_is_no_frame() -> None:
    inner = frame({"kind": "record", "step": 1})
    (whole,) = scan(frame({"kind": "header"}, inner))
    assert whole.body == inner
    torn = frame({"kind": "header"}, inner[:-1])[:-1]
    assert list(scan(torn)) == []


def test_strange_files_are_refused(tmp_path: Path, log: bytes) -> None:
    (tmp_path / LOG).write_bytes(b"something else")
    with pytest.raises(FileError, match="Recorder"):
        read(tmp_path)
    first = next(scan(log))
    (tmp_path / LOG).write_bytes(frame(first.entry | {"format": 99}))
    with pytest.raises(FileError, match="newer foretrain"):
        read(tmp_path)


def test_an_existing_recording_is_refused_or_replaced(tmp_path: Path) -> None:
    record(tmp_path / "run", 2)
    with pytest.raises(FileError, match="resume=True"):
        record(tmp_path / "run", 3)
    assert read(tmp_path / "run").sizes["step"] == 3
    record(tmp_path / "run", 1, overwrite=True)
    np.testing.assert_array_equal(read(tmp_path / "run")["step"], [0, 1])


def test_going_on_counts_from_the_last_record(tmp_path: Path) -> None:
    model = network()
    record(tmp_path / "run", 3, model, resume=True)  # there is nothing to go on with yet
    before = read(tmp_path / "run")
    assert record(tmp_path / "run", 2, model, resume=True).steps == 5
    after = read(tmp_path / "run")
    np.testing.assert_array_equal(after["step"], range(6))
    assert (np.diff(after["seconds"]) > 0).all()
    np.testing.assert_array_equal(after["loss"][:4], before["loss"])
    whole = network()
    losses = train(whole, sgd(whole), 5)
    np.testing.assert_allclose(after["loss"][1:], losses, rtol=1e-6)
    with pytest.raises(InputError, match=r"loss.*weight_spectra"):
        record(tmp_path / "run", 2, observables="weight_spectra", resume=True)


def test_going_on_from_a_checkpoint_forgets_what_came_after(tmp_path: Path) -> None:
    record(tmp_path / "run", 5)
    before = read(tmp_path / "run")["loss"]
    model = network()
    train(model, sgd(model), 2)
    record(tmp_path / "run", 1, model, resume_from=2)
    after = read(tmp_path / "run")
    np.testing.assert_array_equal(after["step"], [0, 1, 2, 3])
    np.testing.assert_allclose(after["loss"], before[:4], rtol=1e-6)
    record(tmp_path / "run", 1, resume_from=7)  # a checkpoint after the last record
    np.testing.assert_array_equal(read(tmp_path / "run")["step"], [0, 1, 2, 3, 7, 8])


def test_the_dataset_at_the_end_is_never_older_than_the_log(tmp_path: Path) -> None:
    record(tmp_path / "run", 2)
    assert (tmp_path / "run" / "data.zarr").is_dir()
    own = network()
    with Recorder(tmp_path / "run", own, "loss", batch=data(), loss=MSE, resume=True, budget=None):
        assert not (tmp_path / "run" / "data.zarr").exists()


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    code = (
        "import fcntl, sys\n"
        "held = open(sys.argv[1] + '/.lock', 'wb')\n"
        "fcntl.flock(held, fcntl.LOCK_EX)\n"
        "print('held', flush=True)\n"
        "sys.stdin.read()\n"
    )
    folder = tmp_path / "run"
    record(folder, 1)
    with subprocess.Popen(
        [sys.executable, "-c", code, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(FileError, match="another writer"):
            record(folder, 1, resume=True)
        other.kill()
    record(folder, 1, resume=True)  # a killed process holds nothing
    own = network()
    with Recorder(folder, own, "loss", batch=data(), loss=MSE, resume=True, budget=None):
        with pytest.raises(FileError, match="another writer"):
            record(folder, 1, resume=True)
        assert read(folder).sizes["step"] == 3  # reading is free


def test_a_record_is_on_disk_when_the_step_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = []
    real = os.fsync
    monkeypatch.setattr(
        os, "fsync", lambda descriptor: (synced.append(os.fstat(descriptor).st_size), real(descriptor))
    )
    own = network()
    with Recorder(tmp_path / "run", own, "loss", batch=data(), loss=MSE, every=1, budget=None) as found:
        for _ in range(3):
            found.step()
            assert synced[-1] == (tmp_path / "run" / LOG).stat().st_size


def test_frames_describe_themselves(log: bytes) -> None:
    """What a reader in another language needs: a line of JSON, then little-endian numbers in the order listed."""
    position, kinds = 0, []
    while position < len(log):
        assert log[position : position + 4] == b"\x93FTR"
        length = int.from_bytes(log[position + 4 : position + 12], "little")
        line, _, body = log[position + 16 : position + 16 + length].partition(b"\n")
        entry = json.loads(line)
        kinds.append(entry["kind"])
        if entry["kind"] == "record":
            assert len(body) == sum(
                np.dtype(item["dtype"]).itemsize * int(np.prod(item["shape"])) for item in entry["values"]
            )
        position += 16 + length
    assert kinds == ["header", "layout", *["record"] * 5, "close"]
