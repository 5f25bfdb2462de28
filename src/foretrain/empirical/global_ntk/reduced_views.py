"""NTK_temp and NTK_space (15) written out, from a few random directions of the parameters.

For a direction g with independent standard normal entries J g is a sheet H (places, units) of states with

    E[H H*] / units = NTK_temp,    E[H* H] / places = NTK_space,

so that a sweep forward gives a sample of either, while a product with one of them by the basis of what is traced out
takes as many products of NTK_S as that has dimensions. Different sheets are independent: sums over pairs of them are
free of bias for tr(A)^2 and tr(A^2), and the jackknife over sheets gives errors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from torch import Tensor

from foretrain.empirical.global_ntk.dynamics import Values, feature_axis
from foretrain.operators.estimators import Estimate
from foretrain.operators.estimators.estimate import Target, exact, jackknife
from foretrain.operators.flat_blocks import basis_rows
from foretrain.support.answers import Answer, Result, fields_answer
from foretrain.support.errors import unknown_name
from foretrain.support.memory import available_bytes, require_memory
from foretrain.support.progress import Progress, track
from foretrain.support.seeds import Seed, torch_generator
from foretrain.support.user_warnings import warn_user

if TYPE_CHECKING:
    from foretrain.empirical.global_ntk.kernel import GlobalNTK

Kind = Literal["temporal", "spatial"]

_EXACT_SIZE = 1024  # states up to this number are written out
_EXACT_PARAMETERS = 2048  # parameters up to this number are taken one by one ...
_EXACT_FLOPS = 2e10  # ... if that takes about a second at most
_FIRST, _MOST = 32, 512  # directions
_GROWTH = 4.0  # of their number between two looks at the error, at most: a look costs as much as they do
_SHARE = 0.25  # of the free memory, for the sheets


@dataclass(frozen=True, repr=False, eq=False)
class ReducedView(Result):
    """A reduced kernel, normalised as in (15), and its participation ratio.

    ``error`` is the expected distance of the matrix from the true kernel, relative in Frobenius norm; ``directions``
    is the number of random ones, 0 if all is exact.
    """

    matrix: Tensor  # float64
    rank: Estimate
    error: float
    directions: int

    def answer(self) -> Answer:
        """Its rank, and how exact it is."""
        how = f"{self.directions} random directions" if self.directions else "exact"
        return fields_answer(self, f"A reduced kernel of effective rank {self.rank.value:.4g} ({how}).")


def reduced_view(kernel: GlobalNTK, kind: Kind, *, accuracy: float = 0.02, seed: Seed = 0) -> ReducedView:
    """NTK_temp ("temporal") or NTK_space ("spatial"), with as many directions as its rank needs for the accuracy.

    Up to 1024 states the kernel is written out; up to 2048 parameters each of them is a direction if that takes a
    second at most. Then all is exact.
    """
    if kind not in ("temporal", "spatial"):
        raise unknown_name("reduced view", str(kind), ("temporal", "spatial"), "kind=")
    space = kernel.domain.plain("a reduced view")
    cut = _Cut(space.shape, space.position(feature_axis(space)), kind == "temporal")
    item = torch.finfo(kernel.dtype).bits // 8
    require_memory(
        cut.kept**2 * (8 + item) + _FIRST * kernel.size * item,
        f"the {kind} kernel of {cut.kept} rows",
        "use fewer samples or steps",
    )
    target = Target.of(accuracy, min(_MOST, int(_SHARE * available_bytes() / (kernel.size * item)) or 1))
    if kernel.size <= _EXACT_SIZE:
        # Both indices as (kept, traced), and equal traced ones summed.
        rows = cut.sheets(kernel.dense().double())  # (size, kept, traced)
        both = cut.sheets(rows.flatten(1).t()).view(cut.kept, cut.traced, cut.kept, cut.traced)
        return _exact(torch.einsum("atbt->ab", both) / cut.traced, kernel.size, seed)
    count = sum(value.numel() for value in kernel.dynamics.parameters.values())
    if count <= _EXACT_PARAMETERS and 2.0 * count * cut.kept**2 * cut.traced <= _EXACT_FLOPS:
        return _exact(_one_by_one(kernel, cut, count), count, seed)
    return _sampled(kernel, cut, target, seed)


class _Cut:
    """States as sheets (places, units), of which the rows are kept and the columns traced out."""

    def __init__(self, shape: tuple[int, ...], axis_of_units: int, is_temporal: bool) -> None:
        self._shape, self._axis, self.is_temporal = shape, axis_of_units, is_temporal
        self._places, self._units = math.prod(shape) // shape[axis_of_units], shape[axis_of_units]
        both = self._places, self._units
        self.kept, self.traced = both if is_temporal else both[::-1]

    def sheets(self, flat: Tensor) -> Tensor:
        """(k, size) as (k, kept, traced)."""
        found = flat.reshape(len(flat), *self._shape).movedim(1 + self._axis, -1)
        found = found.reshape(len(flat), self._places, self._units)
        return found if self.is_temporal else found.transpose(1, 2)


def _one_by_one(kernel: GlobalNTK, cut: _Cut, count: int) -> Tensor:
    """The sum over the basis of the parameters."""
    shapes = {name: value.shape for name, value in kernel.dynamics.parameters.items()}
    total = torch.zeros(cut.kept, cut.kept, dtype=torch.float64, device=kernel.device)
    for start in track(range(0, count, kernel.best_block), "parameters one by one"):
        stop = min(start + kernel.best_block, count)
        rows = basis_rows(start, stop, count, dtype=kernel.dtype, device=kernel.device)
        parts = torch.split(rows, [shape.numel() for shape in shapes.values()], 1)
        directions = {name: part.reshape(-1, *shapes[name]) for name, part in zip(shapes, parts, strict=True)}
        pushed = _side_by_side(_pushed(kernel, cut, directions))
        total += pushed @ pushed.t()
    return total / cut.traced


def _exact(matrix: Tensor, products: int, seed: Seed) -> ReducedView:
    matrix = (matrix + matrix.t()) / 2  # products in float32 are not quite symmetric
    squares = float(matrix.square().sum())
    rank = float(matrix.diagonal().sum()) ** 2 / squares if squares else 0.0
    return ReducedView(matrix, exact(rank, products, seed), 0.0, 0)


def _sampled(kernel: GlobalNTK, cut: _Cut, target: Target, seed: Seed) -> ReducedView:
    generator = torch_generator(seed)
    pairs = _Pairs(cut, kernel)
    wanted = min(_FIRST, target.products)
    with Progress("directions of the parameters") as bar:
        while True:
            bar.advance(wanted - len(pairs))
            while (missing := wanted - len(pairs)) > 0:
                count = min(missing, kernel.best_block)
                directions = {
                    name: torch.randn(count, *value.shape, generator=generator, dtype=kernel.dtype)
                    for name, value in kernel.dynamics.parameters.items()
                }
                on_device = {name: value.to(kernel.device) for name, value in directions.items()}
                pairs.add(_pushed(kernel, cut, on_device))
            rank = pairs.rank(seed)
            if target.reached(rank.value, rank.standard_error) or wanted >= target.products:
                break
            more = target.next_count(wanted, rank.value, rank.standard_error, kernel.best_block, _GROWTH)
            wanted = min(more, target.products)
    if not target.reached(rank.value, rank.standard_error):
        warn_user(
            f"the rank in {'time' if cut.is_temporal else 'space'} has a relative standard error of "
            f"{rank.relative_error:.2g} after {wanted} random directions, but {target.accuracy:.2g} was asked for: "
            "choose a larger `accuracy`.",
        )
    return ReducedView(pairs.mean, rank, pairs.relative_error, wanted)


def _pushed(kernel: GlobalNTK, cut: _Cut, directions: Values) -> Tensor:
    """The sheets of a block of directions."""
    return cut.sheets(kernel._kept(kernel.dynamics.push(directions)))


def _side_by_side(sheets: Tensor) -> Tensor:
    """(k, kept, traced) as (kept, k traced): one product of its rows sums over all sheets."""
    return sheets.transpose(0, 1).flatten(1)


class _Pairs:
    """A growing number of sheets H_i, the sum of A_i = H_i H_i*, and what tr(A_i A_j) over pairs needs.

    Kept are the A_i where they are smaller than the sheets, else the sheets, side by side.
    """

    def __init__(self, cut: _Cut, kernel: GlobalNTK) -> None:
        self._cut = cut
        self._are_wide = cut.kept <= cut.traced
        self._total = torch.zeros(cut.kept, cut.kept, dtype=kernel.dtype, device=kernel.device)
        self._traces: list[float] = []
        self._squares: list[float] = []  # tr(A_i^2)
        self._kept: list[Tensor] = []  # in blocks: (k, kept, kept), or (kept, k traced)

    def __len__(self) -> int:
        return len(self._traces)

    def add(self, sheets: Tensor) -> None:
        """More of them."""
        small = sheets @ sheets.mT if self._are_wide else sheets.mT @ sheets
        self._traces += small.diagonal(dim1=1, dim2=2).sum(1, dtype=torch.float64).tolist()
        self._squares += small.double().square().sum((1, 2)).tolist()
        if self._are_wide:
            self._total += small.sum(0)
            self._kept.append(small)
            return
        rows = _side_by_side(sheets)
        self._total.addmm_(rows, rows.t())
        self._kept.append(rows)

    @property
    def mean(self) -> Tensor:
        """The reduced kernel."""
        return self._total.double() / (len(self) * self._cut.traced)

    @property
    def relative_error(self) -> float:
        """Of the mean, in Frobenius norm, without the share that noise has in the norm."""
        count = len(self)
        squared = float(self._total.double().square().sum()) / count**2
        noise = (sum(self._squares) / count - squared) / (count - 1) if count > 1 else math.inf
        if noise <= 0:
            return 0.0
        return math.sqrt(noise / (squared - noise)) if squared > noise else math.inf

    def rank(self, seed: Seed) -> Estimate:
        """tr(A)^2 / tr(A^2) from pairs of different sheets."""
        traces = np.array(self._traces)
        first = traces * (traces.sum() - traces)
        with_all = []  # tr(A_i A) for the sum A of all A_j
        for block in self._kept:
            if self._are_wide:
                products = (block.double() * self._total).flatten(1)
            else:
                columns = (block.double() * (self._total @ block)).sum(0)
                products = columns.view(-1, self._cut.traced)
            with_all.append(products.sum(1).cpu().numpy())
        second = np.concatenate(with_all) - np.array(self._squares)
        if len(first) < 3 or not first.any():
            value = float(first.sum() / second.sum()) if second.any() else 0.0
            return Estimate(value, math.inf if first.any() else 0.0, len(first), seed, "random directions")
        one_out = (first.sum() - 2 * first) / (second.sum() - 2 * second)
        value, error = jackknife(one_out, float(first.sum() / second.sum()))
        return Estimate(value, error, len(first), seed, "random directions")
