"""A recorder that is refused changes nothing, and one that is lost holds nothing."""

from __future__ import annotations

import gc
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from recorded_runs import MSE, data, network, recorder, sgd, train

import foretrain as ft
from foretrain.support.errors import FileError, ForetrainError, ForetrainWarning, InputError
from foretrain.training.recorder import Recorder, read


def state(folder: Path) -> dict[str, bytes]:
    """All files with their bytes."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    """A closed recording of five steps."""
    model = network()
    optimizer = sgd(model)
    with recorder(tmp_path / "run", model, optimizer=optimizer, every=1):
        train(model, optimizer, 5)
    return tmp_path / "run"


def broken(*_: Any) -> Any:
    raise ValueError("never works")


@pytest.mark.parametrize("how", [{"resume": True}, {"resume_from": 3}, {"overwrite": True}])
@pytest.mark.parametrize(
    "wrong",
    [
        {"batch": torch.randn(3, 7)},
        {"batch": lambda: 1 / 0},
        {"loss": broken},
        {"metadata": {"model": network}},
    ],
    ids=["batch that does not fit", "batch that raises", "loss that raises", "metadata"],
)
def test_a_refused_call_changes_nothing(whole: Path, how: dict[str, Any], wrong: dict[str, Any]) -> None:
    before = state(whole)
    with pytest.raises((ForetrainError, ZeroDivisionError)):
        recorder(whole, network(), **(how | wrong))
    assert state(whole) == before
    assert ft.load(whole).sizes["step"] == 6


@pytest.mark.parametrize("how", [{"resume": True}, {"resume_from": 3}, {"overwrite": True}])
def test_a_batch_that_only_some_observables_take_changes_nothing(tmp_path: Path, how: dict[str, Any]) -> None:
    """The spectra of the weights need no batch; the loss of the earlier recording must not end here."""
    observables = ["loss", "weight_spectra"]
    options: dict[str, Any] = {"loss": MSE, "budget": None}
    with Recorder(tmp_path / "run", network(), observables, batch=data(), **options) as first:
        for _ in range(4):
            first.step()
    before = state(tmp_path / "run")
    with pytest.raises(InputError, match=r"'loss' does not work here .* stays: mend"):
        Recorder(
            tmp_path / "run", network(), observables, batch=(torch.randn(3, 7), data()[1]), **options, **how
        )
    assert state(tmp_path / "run") == before


def test_an_observable_that_failed_before_does_not_stop_the_next_run(tmp_path: Path) -> None:
    observables = {"one": lambda model, batch: 1.0, "two": broken}
    with (
        pytest.warns(UserWarning, match="left out from now on"),
        Recorder(tmp_path / "run", network(), observables),
    ):
        pass
    with (
        pytest.warns(UserWarning, match="left out from now on"),
        Recorder(tmp_path / "run", network(), observables, resume=True, budget=None) as again,
    ):
        again.step()
    assert read(tmp_path / "run", only="one").sizes["step"] == 2


def test_a_refused_call_makes_no_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no observable works"):
        recorder(tmp_path / "runs" / "new", network(), batch=torch.randn(3, 7))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("how", [{"resume": True}, {"resume_from": 3}])
def test_a_damaged_log_does_not_cost_the_data(whole: Path, how: dict[str, Any]) -> None:
    log = whole / "records.log"
    log.write_bytes(b"\x00" + log.read_bytes()[1:])
    before = state(whole)
    with pytest.raises(FileError, match="beginning is damaged"):
        recorder(whole, network(), **how)
    assert state(whole) == before
    assert ft.load(whole).sizes["step"] == 6


@pytest.mark.parametrize("how", [{"resume": True}, {"resume_from": 4}])
def test_records_lost_from_the_log_stay_in_the_data(whole: Path, how: dict[str, Any]) -> None:
    """Between its records a log is damaged: going on would remove the data, which hold them still."""
    log = whole / "records.log"
    data = bytearray(log.read_bytes())
    data[len(data) // 2] ^= 1
    log.write_bytes(data)
    before = state(whole)
    with (
        pytest.warns(ForetrainWarning, match="is damaged"),
        pytest.raises(FileError, match=r"move data\.zarr away"),
    ):
        recorder(whole, network(), **how)
    assert state(whole) == before
    (whole / "data.zarr").rename(whole.parent / "saved.zarr")
    with pytest.warns(ForetrainWarning, match="is damaged"), recorder(whole, network(), **how):
        pass
    assert ft.load(whole.parent / "saved.zarr").sizes["step"] == 6


def test_a_full_disk_when_it_goes_on_keeps_the_data(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = read(whole)

    def full(*_: Any) -> Any:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(FileError, match="No space left"):
            recorder(whole, network(), resume=True)
    assert read(whole).equals(before)
    assert ft.load(whole).sizes["step"] == 6
    with recorder(whole, network(), resume=True):
        assert not (whole / "data.zarr").exists()


@pytest.mark.parametrize("how", [{"resume_from": 3}, {"overwrite": True}])
def test_a_new_log_that_gets_no_name_keeps_the_data(
    whole: Path, how: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: Any) -> Any:
        raise OSError(5, "Input/output error")

    before = state(whole)
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", refused)
        with pytest.raises(FileError, match="Input/output error"):
            recorder(whole, network(), **how)
    assert state(whole) == before


def test_data_between_two_names_are_found(whole: Path) -> None:
    """A process that replaces the data may die after one renaming of two; the number is that of no process."""
    name = f".data.zarr.replaced-{socket.gethostname()}-{2**22 + 1}-0123abcd"
    (whole / "data.zarr").rename(whole / name)
    assert ft.load(whole).sizes["step"] == 6


@pytest.mark.parametrize("how", [{"resume_from": 3}, {"overwrite": True}])
def test_a_full_disk_at_the_start_keeps_what_is_replaced(
    whole: Path, how: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = read(whole)

    def full(*_: Any) -> Any:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        patch.setattr(os, "ftruncate", full)
        with pytest.raises(FileError, match="No space left"):
            recorder(whole, network(), **how)
    assert read(whole).equals(before)
    assert ft.load(whole).sizes["step"] == 6
    with recorder(whole, network(), **how):
        assert not (whole / "data.zarr").exists()
    assert read(whole).sizes["step"] == (4 if "resume_from" in how else 1)


TAKE = """
import sys, torch
from foretrain.training import Recorder
with Recorder(sys.argv[1], torch.nn.Linear(4, 2), {"one": lambda model, batch: 1.0}, resume=True):
    pass
"""


def test_a_second_recorder_does_not_drop_the_lock_of_the_first(tmp_path: Path) -> None:
    observables = {"one": lambda model, batch: 1.0}
    with Recorder(tmp_path / "run", network(), observables, budget=None) as first:
        with pytest.raises(FileError, match="writer"):
            Recorder(tmp_path / "run", network(), observables, resume=True)
        run = subprocess.run(
            [sys.executable, "-c", TAKE, str(tmp_path / "run")], capture_output=True, text=True, check=False
        )
        assert run.returncode != 0
        assert "writer" in run.stderr
        first.step()
    np.testing.assert_array_equal(read(tmp_path / "run")["step"], [0, 1])


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts descriptors there")
def test_a_lost_recorder_gives_its_folder_back_though_the_optimizer_lives_on(tmp_path: Path) -> None:
    model = network()
    optimizer = sgd(model)

    def interrupted(**options: Any) -> None:
        found = recorder(tmp_path / "run", model, optimizer=optimizer, every=1, **options)
        train(model, optimizer, 2)
        assert found.records == 3
        raise RuntimeError("the training fails")

    before = len(os.listdir("/proc/self/fd"))
    with (
        pytest.warns(UserWarning, match=r"is lost before it was closed: keep it"),
        pytest.raises(RuntimeError, match="the training fails"),
    ):
        interrupted()
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before
    train(model, optimizer, 1)  # is not recorded
    with recorder(tmp_path / "run", model, optimizer=optimizer, every=1, resume=True):
        train(model, optimizer, 1)
    np.testing.assert_array_equal(read(tmp_path / "run")["step"], [0, 1, 2, 3])


def test_a_lock_that_is_a_link_is_not_emptied(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("data")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".lock").symlink_to(tmp_path / "precious")
    with pytest.raises(FileError, match="link"):
        recorder(tmp_path / "run", network())
    assert (tmp_path / "precious").read_text() == "data"


def test_data_and_loss_are_those_of_before(whole: Path) -> None:
    """The batch that fits goes on where the refused one would have."""
    with recorder(whole, network(), batch=data(), loss=MSE, resume_from=3) as found:
        assert found.steps == 3
    np.testing.assert_array_equal(read(whole)["step"], [0, 1, 2, 3])
