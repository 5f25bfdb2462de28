"""Kernels in memory written as tiles on disk, in the format that foretrain reads, without the code that writes it."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from foretrain.empirical import TangentKernel, ntk
from foretrain.empirical.stored_kernel.reading import StoredKernel

Array = NDArray[np.float64]
OUTPUTS = 3


def network(width: int = 16, outputs: int = OUTPUTS) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, outputs)).double()


def inputs(count: int, seed: int = 1) -> Tensor:
    return torch.randn(count, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def dense(kernel: TangentKernel | NDArray[Any]) -> Array:
    """The matrix over (sample, output), in double precision."""
    values = np.asarray(kernel.total() if isinstance(kernel, TangentKernel) else kernel, dtype=np.float64)
    if values.ndim == 2:
        return values
    n, m, c, _ = values.shape
    return np.transpose(values, (0, 2, 1, 3)).reshape(n * c, m * c)


def write(kernel: TangentKernel, path: Path, side: int, layers: TangentKernel | None = None) -> StoredKernel:
    """Tiles of ``side`` samples; ``layers`` is the same kernel by layer, for the records."""
    values = np.asarray(kernel)
    labels = kernel.labels
    first = int(labels is not None)
    samples = values.shape[first], values.shape[first + 1]
    bounds = [[*range(0, count, side), count] for count in samples]
    chunks = (*values.shape[:first], side, side, *values.shape[first + 2 :])
    encoding = {"chunks": chunks, "compressors": None, "_FillValue": np.nan}
    dataset = kernel.to_xarray().to_dataset(name="kernel")
    tiles = {
        "format": 2,
        "symmetric": kernel.symmetric,
        "samples": samples,
        "bounds_1": bounds[0],
        "bounds_2": bounds[1],
        "outputs": kernel.outputs,
        "trace": kernel.traced,
        "labels": labels,
        "by": kernel.by,
        "dtype": str(values.dtype),
        "threads": 1,
        "fingerprint": {},
        "model": "Sequential",
        "routes": {name: str(route) for name, route in kernel.routes.items()},
        "witness": {"outputs": [], "gradients": [], "sizes": [], "tolerance": 0.0},
    }
    dataset.attrs = {
        "foretrain_version": "0",
        "foretrain_kind": "DataArray",
        "foretrain_name": "ntk",
        "foretrain_coordinates": [],
        "foretrain_metadata": "{}",
        "foretrain_tiles": tiles,
    }
    dataset.to_zarr(path, mode="w", zarr_format=2, consolidated=True, encoding={"kernel": encoding})
    _records(kernel, path, bounds, layers)
    return StoredKernel(path)


def _records(
    kernel: TangentKernel, path: Path, bounds: list[list[int]], layers: TangentKernel | None
) -> None:
    (path / ".tiles").mkdir()
    total = np.asarray(kernel.total(), dtype=np.float64)
    for i, (top, bottom) in enumerate(pairwise(bounds[0])):
        for j, (left, right) in enumerate(pairwise(bounds[1])):
            if kernel.symmetric and j < i:
                continue
            tile = dense(total[top:bottom, left:right])
            mirrored = kernel.symmetric and i != j
            files = [_file(kernel, path, place) for place in ((i, j), (j, i))[: 1 + mirrored]]
            record: dict[str, Any] = {"squares": float(np.sum(tile**2)), "seconds": 0.5}
            record["crc"] = [zlib.crc32(file.read_bytes()) for file in files]
            if kernel.symmetric and i == j:
                record["diagonal"] = float(np.trace(tile))
                record["layers"] = _layer_traces(layers, slice(top, bottom))
            (path / ".tiles" / f"{i}-{j}.json").write_text(json.dumps(record))


def _file(kernel: TangentKernel, path: Path, place: tuple[int, int]) -> Path:
    numbers = (*(() if kernel.labels is None else (0,)), *place, *(() if kernel.traced else (0, 0)))
    return path / "kernel" / ".".join(map(str, numbers))


def _layer_traces(layers: TangentKernel | None, where: slice) -> Mapping[str, float]:
    if layers is None:
        return {}
    return {
        label: float(np.trace(dense(np.asarray(layers[label])[where, where])))
        for label in layers.labels or ()
    }


def stored(
    path: Path, samples: int = 23, side: int = 5, *, dtype: torch.dtype = torch.float64, **options: Any
) -> tuple[StoredKernel, TangentKernel]:
    """A small kernel, on disk and in memory."""
    model, x = network().to(dtype), inputs(samples).to(dtype)
    kernel = ntk(model, x, **options)
    layers = None if "x2" in options else ntk(model, x, **{**options, "by": "layer"})
    return write(kernel, path, side, layers), kernel
