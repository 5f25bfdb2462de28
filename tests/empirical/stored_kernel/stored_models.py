"""Small models and runs that tests of stored kernels share; workers import the models from here."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xarray as xr
from numpy.typing import NDArray
from torch import Tensor, nn

from foretrain.empirical.stored_kernel import run
from foretrain.empirical.stored_kernel.reading import StoredKernel
from foretrain.empirical.tangent_kernel.entry import prepare


def network(width: int = 16, outputs: int = 3, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, outputs)).double()


def inputs(count: int, seed: int = 1) -> Tensor:
    return torch.randn(count, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def stored(
    path: Path, model: Any, x: Any, x2: Any = None, outputs: Any = "full", by: Any = None, **options: Any
) -> StoredKernel:
    """As ``ft.ntk(..., store=path)`` does it; options of the run have their own names."""
    own = {key: options.pop(key) for key in tuple(options) if key in _RUN}
    return run(prepare(model, x, x2, outputs, by=by, **options), path, by=by, **own)


_RUN = ("engine", "workers", "side", "threads", "memory", "overwrite")


def values(path: Path) -> NDArray[Any]:
    """Read without the library."""
    with xr.open_zarr(path, chunks=None) as dataset:
        return np.array(dataset["kernel"].values)


def content(path: Path) -> dict[str, bytes]:
    """The bytes of all tiles."""
    return {file.name: file.read_bytes() for file in sorted((path / "kernel").iterdir())}


def records(path: Path) -> dict[str, Any]:
    return {file.stem: json.loads(file.read_text()) for file in (path / ".tiles").iterdir()}


def leftovers(path: Path) -> list[str]:
    """Whatever is in the folder beyond the store itself."""
    known = {".zgroup", ".zattrs", ".zmetadata", ".tiles", ".lock", "kernel", "output_1", "output_2"}
    beside = [file.name for file in path.parent.iterdir() if file.name.startswith(f".{path.name}")]
    return beside + [file.name for file in path.iterdir() if file.name not in known]


def lose(path: Path, *tiles: str) -> None:
    """As if the run had been killed before these tiles."""
    for tile in tiles:
        (path / ".tiles" / f"{tile}.json").unlink()


def copied(path: Path, name: str) -> Path:
    return Path(shutil.copytree(path, path.with_name(name)))


class Slow(nn.Module):
    """Takes its time with every chunk."""

    def __init__(self, seconds: float = 0.03) -> None:
        super().__init__()
        self.inner, self.seconds = network(), seconds

    def forward(self, x: Tensor) -> Tensor:
        time.sleep(self.seconds)
        return self.inner(x)
