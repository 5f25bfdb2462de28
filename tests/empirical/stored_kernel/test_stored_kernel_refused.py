"""A call for a stored kernel that is refused changes nothing, and a finished store keeps no model and no data."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from stored_models import inputs, leftovers, lose, network, records, stored, values
from torch import Tensor, nn

import foretrain as ft
from foretrain.support.durable import Lock
from foretrain.support.errors import FileError, InputError, NotEnoughMemoryError, NotSupportedError


def state(folder: Path) -> dict[str, bytes]:
    """All files with their bytes."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def unpicklable() -> nn.Module:
    model = network()
    model.held = threading.Lock()
    return model


@pytest.mark.parametrize("damage", ["none", "a lost tile"])
@pytest.mark.parametrize(
    ("model", "options", "error"),
    [
        (unpicklable, {"workers": 2}, NotSupportedError),
        (network, {"workers": 2, "memory": "1kB"}, NotEnoughMemoryError),
        (network, {"workers": 1, "memory": "much"}, InputError),
        (network, {"engine": "dask://localhost:1"}, Exception),
    ],
    ids=["unpicklable", "memory", "no size", "no cluster"],
)
def test_a_refused_call_keeps_the_old_store(
    model: Any, options: dict[str, Any], error: type[Exception], damage: str, tmp_path: Path
) -> None:
    path = tmp_path / "k.zarr"
    stored(path, network(), inputs(23), side=5, workers=1)
    if damage != "none":
        lose(path, "0-0")
    before = state(path)
    with pytest.raises(error):
        ft.ntk(model(), inputs(40), store=path, overwrite=True, batch_size=5, **options)
    assert state(path) == before
    assert leftovers(path) == []


class FailsLater(nn.Module):
    """Fails in passes over as many samples as a tile has, which no look at a few of them shows."""

    def __init__(self, side: int) -> None:
        super().__init__()
        self.layer, self.side = nn.Linear(4, 2).double(), side

    def forward(self, x: Tensor) -> Tensor:
        if len(x) == self.side:
            raise RuntimeError("out of luck")
        return self.layer(x)


def test_an_error_on_the_way_keeps_the_old_store_and_what_is_finished(tmp_path: Path) -> None:
    path = tmp_path / "k.zarr"
    stored(path, network(), inputs(23), side=5, workers=1)
    before, x = state(path), inputs(17)
    with pytest.raises(RuntimeError, match="out of luck"):
        ft.ntk(
            FailsLater(6), torch.randn(17, 4).double(), store=path, overwrite=True, batch_size=6, workers=1
        )
    assert state(path) == before

    # Another kernel takes the place of what was begun.
    successor = tmp_path / ".k.zarr.successor"
    assert successor.exists()
    stored(path, network(), inputs(12), side=5, workers=1, overwrite=True)
    assert not successor.exists()

    # Stopped after some tiles, the same call goes on with them, and puts the new kernel in place.
    stored(successor, network(), x, side=6, workers=1)
    kept = {name: data for name, data in records(successor).items() if name != "0-1"}
    lose(successor, "0-1")
    stored(path, network(), x, side=6, workers=1, overwrite=True)
    assert {name: data for name, data in records(path).items() if name != "0-1"} == kept
    assert not successor.exists()
    assert [entry.name for entry in tmp_path.iterdir()] == ["k.zarr"]
    np.testing.assert_allclose(values(path), np.asarray(ft.ntk(network(), x)), rtol=1e-12)
    with Lock(path, "kernel"):  # which is free
        pass


def test_a_refused_call_makes_no_store(tmp_path: Path) -> None:
    with pytest.raises(NotSupportedError, match="cannot be sent to other processes"):
        ft.ntk(unpicklable(), inputs(40), store=tmp_path / "k.zarr", batch_size=5, workers=2)
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_run_left_goes_when_the_store_is_found_finished(tmp_path: Path) -> None:
    """Killed after its last tile, it could not remove the model and the data that its workers were sent."""
    path = tmp_path / "k.zarr"
    stored(path, network(), inputs(23), side=5, workers=1)
    (path / ".run" / "0123").mkdir(parents=True)
    (path / ".run" / "0123" / "job.pt").write_bytes(b"a pickled model")
    stored(path, network(), inputs(23), workers=1)
    assert leftovers(path) == []


def test_a_lock_that_is_a_link_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "k.zarr"
    stored(path, network(), inputs(23), side=5, workers=1)
    lose(path, "0-0")
    (tmp_path / "precious").write_text("data")
    (path / ".lock").unlink()
    (path / ".lock").symlink_to(tmp_path / "precious")
    with pytest.raises(FileError, match="its lock is a link"):
        stored(path, network(), inputs(23), workers=1)
    assert (tmp_path / "precious").read_text() == "data"
