"""A call for a stored kernel that is refused changes nothing, and a finished store keeps no model and no data."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from stored_models import inputs, leftovers, lose, network, stored
from torch import nn

import foretrain as ft
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
