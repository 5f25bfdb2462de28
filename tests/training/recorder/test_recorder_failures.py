"""Whatever goes wrong in a recorder, the training goes on; whatever goes wrong in the training, records are kept."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from recorded_runs import network, recorder, sgd, train
from torch import nn

import foretrain as ft
from foretrain.training.recorder import read


def test_an_observable_that_fails_ends_alone(tmp_path: Path) -> None:
    model = network()
    optimizer = sgd(model)

    def fragile(model: nn.Module, batch: Any) -> float:
        if found.steps == 3:
            raise RuntimeError("out of luck\nand more")
        return 1.0

    found: Any = type("", (), {"steps": 0})
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        with recorder(tmp_path / "run", model, ["loss", fragile], optimizer=optimizer, every=1) as found:
            train(model, optimizer, 6)
    (warning,) = seen
    assert "'fragile' failed at step 3" in str(warning.message)
    records = read(tmp_path / "run")
    assert records.sizes["step"] == 7
    np.testing.assert_array_equal(records["recorded"].sel(observable="fragile"), [1, 1, 1, 0, 0, 0, 0])
    assert records.attrs["failures"] == {"fragile": "step 3: RuntimeError: out of luck"}
    assert "RuntimeError: out of luck" in repr(found)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([np.zeros(2), np.zeros(3)], r"shape is \(3,\) but was \(2,\)"),
        (
            [
                xr.DataArray([0.0], {"mode": ["a"]}, ["mode"]),
                xr.DataArray([0.0], {"mode": ["b"]}, ["mode"]),
            ],
            "labels changed",
        ),
        ([0.0, "text"], "is a str"),
        ([0.0, {}], "empty dict"),
        ([0.0, {1: 0.0}], "use text"),
        ([0.0, np.array(["a"])], "no numbers"),
    ],
)
def test_values_that_do_not_fit_end_their_observable(tmp_path: Path, values: list[Any], words: str) -> None:
    given = iter([values[0], *values])
    found = recorder(tmp_path / "run", network(), {"odd": lambda *_: next(given)}, every=1)
    with pytest.warns(UserWarning, match=words):
        found.step()
    found.close()
    assert read(tmp_path / "run", only="odd").sizes["step"] == 1


def test_a_number_that_is_none_is_left_out(tmp_path: Path) -> None:
    with recorder(tmp_path / "run", network(), every=1) as found:
        with pytest.warns(UserWarning, match="'mine' failed"):
            found.step(mine="text")
        found.step(mine="text")
    assert read(tmp_path / "run")["loss"].notnull().all()


def test_an_error_of_the_training_is_passed_on_and_the_records_are_kept(tmp_path: Path) -> None:
    model = network()
    optimizer = sgd(model)

    def interrupted() -> None:
        with recorder(tmp_path / "run", model, optimizer=optimizer, every=2):
            train(model, optimizer, 5)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    np.testing.assert_array_equal(ft.load(tmp_path / "run")["step"], [0, 2, 4])


def test_a_full_disk_does_not_end_the_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    from foretrain.support.durable import log

    class Full:
        """A system whose disk takes 50 bytes more."""

        def __getattr__(self, name: str) -> Any:
            return getattr(os, name)

        def write(self, descriptor: int, content: Any) -> int:
            if self.room == 0:
                raise OSError(28, "No space left on device")
            taken, self.room = os.write(descriptor, content[: self.room]), 0
            return taken

        room = 50

    model = network()
    optimizer = sgd(model)
    with recorder(tmp_path / "run", model, optimizer=optimizer, every=1) as found:
        train(model, optimizer, 2)
        with monkeypatch.context() as patch:
            patch.setattr(log, "os", Full())
            with pytest.warns(UserWarning, match="step 3.*No space left"):
                train(model, optimizer, 2)
    assert found.steps == 4
    np.testing.assert_array_equal(read(tmp_path / "run")["step"], [0, 1, 2])


def test_only_its_own_process_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from foretrain.training.recorder import recorder as module

    with recorder(tmp_path / "run", network(), every=1) as found:
        monkeypatch.setattr(module.os, "getpid", lambda: -1)
        found.step()
        monkeypatch.undo()
        assert found.records == 1


def test_a_schedule_that_raises_later_ends_the_recording_alone(tmp_path: Path) -> None:
    with recorder(tmp_path / "run", network(), schedule=lambda step: 1 / (2 - step) > 0) as found:
        found.step()
        with pytest.warns(UserWarning, match="step 2.*ZeroDivisionError"):
            found.step()
        found.step()
    np.testing.assert_array_equal(read(tmp_path / "run")["step"], [0, 1])


def test_a_batch_that_raises_lets_go_of_the_folder(tmp_path: Path) -> None:
    def broken() -> Any:
        raise KeyError("no data")

    with pytest.raises(KeyError):
        recorder(tmp_path / "run", network(), batch=broken)
    recorder(tmp_path / "run", network(), resume=True).close()


FORKED = """
import os, sys, torch
from foretrain.training import Recorder, read
mse = torch.nn.functional.mse_loss
torch.set_num_threads(1)
model, x = torch.nn.Linear(2, 1), torch.ones(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
recorder = Recorder(
    sys.argv[1], model, ["loss"], batch=(x, x[:, :1]), loss=mse, optimizer=optimizer, every=1, budget=None
)
def train(steps):
    for _ in range(steps):
        optimizer.zero_grad()
        mse(model(x), x[:, :1]).backward()
        optimizer.step()
train(2)
child = os.fork()
if not child:
    train(1)
    recorder.close()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
train(2)
recorder.close()
print(*read(sys.argv[1]).step.values)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_that_closes_its_copy_leaves_the_recording_alone(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FORKED, str(tmp_path / "run")]
    run = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert run.stdout.split() == ["0", "1", "2", "3", "4"]
