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

from foretrain.empirical.stored_kernel import Stored, Tangents, compute
from foretrain.empirical.stored_kernel.reading import StoredKernel
from foretrain.empirical.tangent_kernel.kernel import KernelOptions, prepare


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
    kernel = Tangents(*prepare(model, x, x2, KernelOptions(outputs, by=by, **options)), by)
    return compute(kernel, Stored(path, **own))


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


class Last(nn.Module):
    """The last output of a recurrent layer."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.read = nn.LSTM(3, 8, batch_first=True), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.read(self.cell(x)[0][:, -1])
        return found


def kinds() -> dict[str, tuple[nn.Module, Tensor]]:
    """Models whose parameters take different ways, with inputs."""
    torch.manual_seed(0)
    convolutions = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(576, 4),
    )
    normed = nn.Sequential(nn.Linear(12, 40), nn.LayerNorm(40), nn.GELU(), nn.Linear(40, 5))
    words = nn.Sequential(nn.Embedding(20, 6), nn.Linear(6, 7), nn.Tanh(), nn.Flatten(), nn.Linear(35, 2))
    return {
        "convolutions": (convolutions, torch.randn(37, 3, 8, 8)),
        "normed": (normed, torch.randn(70, 12)),
        "words": (words, torch.randint(0, 20, (41, 5))),
        "recurrent": (Last(), torch.randn(33, 6, 3)),
    }
