"""NTK_temp and NTK_space (15) written out, from the same few random directions of the parameters.

For a direction g with independent standard normal entries J g is a sheet H (places, units) of states with

    E[H H*] / units = NTK_temp,    E[H* H] / places = NTK_space,

so that a sweep forward gives a sample of both, while a product with either by the basis of what is traced out takes
as many products of NTK_S as that has dimensions. Different sheets are independent: sums over pairs of them are free
of bias for tr(A)^2 and tr(A^2), and the jackknife over sheets gives errors.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from foretrain.empirical.global_ntk.dynamics import Values
from foretrain.operators.estimators import Estimate
from foretrain.operators.estimators.estimate import Target, exact, jackknife
from foretrain.operators.probes import basis_rows
from foretrain.support.errors import AccuracyWarning
from foretrain.support.memory import available_bytes, require_memory
from foretrain.support.progress import Progress, track
from foretrain.support.seeds import Seed, torch_generator

if TYPE_CHECKING:
    from foretrain.empirical.global_ntk.kernel import GlobalNTK

_EXACT_SIZE = 1024  # states up to this number are written out
_EXACT_PARAMETERS = 2048  # parameters up to this number are taken one by one
_FIRST, _MOST = 16, 512  # directions
_SHARE = 0.25  # of the free memory, for the sheets


@dataclass(frozen=True, eq=False)
class ReducedViews:
    """Both reduced kernels, normalised as in (15), and their participation ratios.

    ``temporal_error`` and ``spatial_error`` are expected distances from the true kernels, relative in Frobenius norm;
    ``directions`` is the number of random ones, 0 if all is exact.
    """

    temporal: Tensor  # (places, places), float64
    spatial: Tensor  # (units, units), float64
    temporal_rank: Estimate
    spatial_rank: Estimate
    temporal_error: float
    spatial_error: float
    directions: int

    def __repr__(self) -> str:
        how = f"{self.directions} random directions" if self.directions else "exact"
        return (
            f"ReducedViews({how}: temporal {tuple(self.temporal.shape)} of rank {self.temporal_rank.value:.4g}, "
            f"spatial {tuple(self.spatial.shape)} of rank {self.spatial_rank.value:.4g})"
        )


def reduced_views(kernel: GlobalNTK, *, accuracy: float = 0.02, seed: Seed = 0) -> ReducedViews:
    """Both kernels, with as many directions as both participation ratios need for this relative standard error.

    Up to 1024 states the kernel is written out, up to 2048 parameters each of them is a direction: then all is exact.
    """
    space = kernel.domain.plain("reduced views")
    units = space.shape[-1]
    places = space.size // units
    item = torch.finfo(kernel.dtype).bits // 8
    require_memory(
        places**2 * (8 + item) + _FIRST * space.size * item,
        f"the temporal kernel of {places} places",
        "use fewer samples or steps",
    )
    if space.size <= _EXACT_SIZE:
        return _written_out(kernel, places, units, seed)
    if sum(value.numel() for value in kernel.dynamics.parameters.values()) <= _EXACT_PARAMETERS:
        return _one_by_one(kernel, (places, units), seed)
    most = min(_MOST, max(_FIRST, int(_SHARE * available_bytes() / (space.size * item))))
    return _sampled(kernel, (places, units), Target.of(accuracy, most), seed)


def _written_out(kernel: GlobalNTK, places: int, units: int, seed: Seed) -> ReducedViews:
    entries = kernel.dense().double().view(places, units, places, units)
    temporal = torch.einsum("aubu->ab", entries) / units
    return _exact(temporal, torch.einsum("auav->uv", entries) / places, kernel.size, seed)


def _one_by_one(kernel: GlobalNTK, shape: tuple[int, int], seed: Seed) -> ReducedViews:
    """The sum over the basis of the parameters."""
    shapes = {name: value.shape for name, value in kernel.dynamics.parameters.items()}
    sizes = [size.numel() for size in shapes.values()]
    temporal, spatial = (torch.zeros(size, size, dtype=torch.float64, device=kernel.device) for size in shape)
    for start in track(range(0, sum(sizes), kernel.best_block), "parameters one by one"):
        stop = min(start + kernel.best_block, sum(sizes))
        rows = basis_rows(start, stop, sum(sizes), dtype=kernel.dtype, device=kernel.device)
        parts = zip(shapes.items(), torch.split(rows, sizes, 1), strict=True)
        for sheet in _pushed(kernel, {name: part.reshape(-1, *size) for (name, size), part in parts}, shape):
            temporal += sheet @ sheet.t()
            spatial += sheet.t() @ sheet
    return _exact(temporal / shape[1], spatial / shape[0], sum(sizes), seed)


def _exact(temporal: Tensor, spatial: Tensor, products: int, seed: Seed) -> ReducedViews:
    temporal, spatial = (
        (temporal + temporal.t()) / 2,
        (spatial + spatial.t()) / 2,
    )  # float32 products are not symmetric
    ranks = [exact(_participation(view), products, seed) for view in (temporal, spatial)]
    return ReducedViews(temporal, spatial, ranks[0], ranks[1], 0.0, 0.0, 0)


def _participation(matrix: Tensor) -> float:
    squares = float(matrix.square().sum())
    return float(matrix.diagonal().sum()) ** 2 / squares if squares else 0.0


def _sampled(kernel: GlobalNTK, shape: tuple[int, int], target: Target, seed: Seed) -> ReducedViews:
    generator = torch_generator(seed)
    sheets = torch.zeros(0, *shape, dtype=kernel.dtype, device=kernel.device)
    wanted = min(_FIRST, target.products)
    with Progress("directions of the parameters") as bar:
        while True:
            bar.advance(wanted - len(sheets))
            sheets = torch.cat([sheets, _drawn(kernel, wanted - len(sheets), shape, generator)])
            temporal, spatial = _Pairs.of(sheets, places=True), _Pairs.of(sheets, places=False)
            ranks = [pairs.rank(seed) for pairs in (temporal, spatial)]
            reached = all(target.reached(rank.value, rank.standard_error) for rank in ranks)
            if reached or wanted >= target.products:
                break
            wanted = min(2 * wanted, target.products)
    if not reached:
        worst = max(rank.relative_error for rank in ranks)
        warnings.warn(
            f"the ranks in time and space have relative standard errors up to {worst:.2g} after {wanted} random "
            f"directions, but {target.accuracy:.2g} was asked for: choose a larger accuracy, or see temporal() and "
            "spatial() for exact products.",
            AccuracyWarning,
            stacklevel=3,
        )
    return ReducedViews(
        temporal.mean / shape[1],
        spatial.mean / shape[0],
        ranks[0],
        ranks[1],
        temporal.relative_error,
        spatial.relative_error,
        wanted,
    )


def _drawn(kernel: GlobalNTK, count: int, shape: tuple[int, int], generator: torch.Generator) -> Tensor:
    """Sheets J g, a block at a time."""
    found = []
    for start in range(0, count, kernel.best_block):
        block = min(kernel.best_block, count - start)
        directions = {
            name: torch.randn(block, *value.shape, generator=generator, dtype=kernel.dtype).to(kernel.device)
            for name, value in kernel.dynamics.parameters.items()
        }
        found.append(_pushed(kernel, directions, shape))
    return torch.cat(found)


def _pushed(kernel: GlobalNTK, directions: Values, shape: tuple[int, int]) -> Tensor:
    """The sheets of a block of directions."""
    return kernel._kept(kernel.dynamics.push(directions)).reshape(-1, *shape)


@dataclass(frozen=True, eq=False)
class _Pairs:
    """The sum of A_i = H_i H_i* (or H_i* H_i) over sheets, with tr A_i, tr A_i^2 and tr(A_i sum) of each."""

    total: Tensor
    traces: Tensor
    own: Tensor
    shared: Tensor

    @classmethod
    def of(cls, sheets: Tensor, places: bool) -> _Pairs:
        """Of the places, or of the units."""
        rows = sheets if places else sheets.transpose(1, 2)
        total = rows.new_zeros(rows.shape[1], rows.shape[1])
        for sheet in rows:
            total.addmm_(sheet, sheet.t())
        small = rows if rows.shape[1] <= rows.shape[2] else rows.transpose(1, 2)
        own = [(sheet @ sheet.t()).double().square().sum() for sheet in small]
        shared = [(sheet * (total @ sheet)).sum(dtype=torch.float64) for sheet in rows]
        traces = sheets.double().square().sum((1, 2))
        return cls(total.double(), traces, torch.stack(own), torch.stack(shared))

    @property
    def mean(self) -> Tensor:
        """Of A_i."""
        return self.total / len(self.own)

    @property
    def relative_error(self) -> float:
        """Of the mean, in Frobenius norm, without the share that noise has in the norm."""
        count = len(self.own)
        squared = float(self.shared.sum()) / count**2
        noise = (float(self.own.sum()) - count * squared) / (count * (count - 1))
        return (
            math.sqrt(noise / (squared - noise)) if squared > noise > 0 else 0.0 if noise <= 0 else math.inf
        )

    def rank(self, seed: Seed) -> Estimate:
        """tr(A)^2 / tr(A^2) from pairs of different sheets."""
        first = (self.traces * (self.traces.sum() - self.traces)).cpu().numpy()
        second = (self.shared - self.own).cpu().numpy()
        if not first.any():
            return exact(0.0, len(first), seed)
        one_out = (first.sum() - 2 * first) / (second.sum() - 2 * second)
        value, error = jackknife(np.asarray(one_out), float(first.sum() / second.sum()))
        return Estimate(value, error, len(first), seed, "random directions")
