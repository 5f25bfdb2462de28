"""NTK_temp and NTK_space (15) as operators, from a few random directions of the parameters.

For a direction g with independent standard normal entries J g is a sheet H (places, units) of states with

    E[H H*] / units = NTK_temp,    E[H* H] / places = NTK_space,

so that a sweep forward gives a sample of either, while a product with one of them by the basis of what is traced out
takes as many products of NTK_S as that has dimensions. NTK_space joins no two samples: each has directions of its own
where the engine can draw them, which are as many independent sheets at the price of one.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from foretrain.empirical.global_ntk.dynamics import feature_axis
from foretrain.operators.estimators import Estimate
from foretrain.operators.estimators.estimate import Target, exact, plus_minus
from foretrain.operators.reductions import Members, SampledOperator, probing_vectors
from foretrain.operators.spaces import Space
from foretrain.operators.vectors import basis_rows
from foretrain.support.answers import Answer
from foretrain.support.errors import unknown_name
from foretrain.support.memory import available_bytes, require_memory
from foretrain.support.progress import Progress, track
from foretrain.support.seeds import Seed, spawn, torch_generator
from foretrain.support.user_warnings import warn_user

if TYPE_CHECKING:
    from foretrain.empirical.global_ntk.kernel import GlobalNTK

Kind = Literal["temporal", "spatial"]

_EXACT_SIZE = 1024  # states up to this number are written out
_EXACT_PARAMETERS = 2048  # parameters up to this number are taken one by one ...
_EXACT_FLOPS = 2e10  # ... if that takes about a second at most
_FIRST, _MOST = 16, 512  # directions
_SHARE = 0.25  # of the free memory, for the sheets
_TOGETHER = 64  # vectors in one product


def reduced_view(kernel: GlobalNTK, kind: Kind, *, accuracy: float = 0.02, seed: Seed = 0) -> ReducedView:
    """NTK_temp ("temporal") or NTK_space ("spatial"), with as many directions as its rank needs for the accuracy.

    Up to 1024 states the kernel is written out; up to 2048 parameters each of them is a direction if that takes a
    second at most. Then all is exact.
    """
    if kind not in ("temporal", "spatial"):
        raise unknown_name("reduced view", str(kind), ("temporal", "spatial"), "kind=")
    target = Target.of(accuracy, _MOST)
    cut = _Cut(kernel.domain.plain("a reduced view"), kind)
    if kernel.size <= _EXACT_SIZE:
        # Both indices as (kept, traced), and equal traced ones summed.
        rows = cut.sheets(kernel.dense().double())  # (size, kept, traced)
        both = cut.sheets(rows.flatten(1).t()).view(cut.kept, cut.traced, cut.kept, cut.traced)
        return ReducedView(kernel, cut, seed, torch.einsum("atbt->ab", both) / cut.traced)
    count = sum(value.numel() for value in kernel.dynamics.parameters.values())
    if count <= _EXACT_PARAMETERS and 2.0 * count * cut.kept**2 * cut.traced <= _EXACT_FLOPS:
        return ReducedView(kernel, cut, seed, _one_by_one(kernel, cut, count))
    return _sampled(ReducedView(kernel, cut, seed), target)


class _Cut:
    """States as sheets (places, units), of which the rows are kept and the columns traced out."""

    def __init__(self, space: Space, kind: Kind) -> None:
        units = feature_axis(space)
        self.kind, self._shape, self._axis = kind, space.shape, space.position(units)
        self.space = space.without([units]) if kind == "temporal" else space.only([units])
        self.kept, self.traced = self.space.size, space.size // self.space.size
        self.is_wide = self.kept <= self.traced

    def sheets(self, flat: Tensor) -> Tensor:
        """(k, size) as (k, kept, traced)."""
        found = flat.reshape(len(flat), *self._shape).movedim(1 + self._axis, -1).flatten(1, -2)
        return found if self.kind == "temporal" else found.transpose(1, 2)


class ReducedView(SampledOperator):
    """NTK_temp, on all axes but the units, or NTK_space, on the units, normalised as in (15).

    ``rank`` is its participation ratio, ``error`` the expected distance of its products and of its ``matrix`` from
    the true ones, relative in Frobenius norm; ``directions`` is the number of random ones, 0 if all is exact.
    """

    def __init__(self, kernel: GlobalNTK, cut: _Cut, seed: Seed, written: Tensor | None = None) -> None:
        """``written`` is the exact matrix; without it directions are yet to be drawn."""
        super().__init__(
            cut.space, dtype=kernel.dtype, device=kernel.device, positive=True, best_block=_TOGETHER
        )
        self.kernel, self._cut, self._written, self.seed = kernel, cut, written, seed
        self._blocks: list[Tensor] = []  # H H* of some directions, or the sheets H where these are smaller
        self._members: Members | None = None
        self._seen = 0  # blocks among the members
        self.flops = 4.0 * _FIRST * kernel.size
        self.remedy = f"give `accuracy=` to {cut.kind}(), which draws them"

    @property
    def directions(self) -> int:
        """How many random directions of the parameters it is made of."""
        return sum(len(block) for block in self._blocks)

    @property
    def rank(self) -> Estimate:
        """tr(A)^2 / tr(A^2)."""
        if (members := self.members) is not None:
            return members.participation()
        squares = float(self.matrix.square().sum())
        rank = float(self.matrix.diagonal().sum()) ** 2 / squares if squares else 0.0
        return exact(rank, self.kernel.size, self.seed)

    @property
    def error(self) -> float:
        """The expected distance from the true kernel, over its norm."""
        return 0.0 if (members := self.members) is None else members.relative_error()

    @property
    def members(self) -> Members | None:
        """The kernels by every direction alone; None where all is exact."""
        if self._written is not None:
            return None
        if self._members is None:
            if self._cut.is_wide:  # all that members do is known
                vectors, tests = torch.eye(self.size, dtype=self.dtype, device=self.device), 0
            else:
                vectors, tests = probing_vectors(self._mean, self, self.seed)
            self._members = Members(vectors, tests, self.seed, "random directions")
        for block in self._blocks[self._seen :]:
            is_wide, vectors = self._cut.is_wide, self._members.vectors
            self._members.add(block / self._cut.traced if is_wide else self._images(block, vectors))
        self._seen = len(self._blocks)
        return self._members

    @cached_property
    def matrix(self) -> Tensor:
        """It written out, in float64."""
        if self._written is not None:
            return self._written
        require_memory(
            self.size**2 * (8 + torch.finfo(self.dtype).bits // 8),
            f"the {self._cut.kind} kernel of {self.size} rows",
            "use its products, top_modes and effective_rank, or fewer samples or steps",
        )
        total = torch.zeros(self.size, self.size, dtype=self.dtype, device=self.device)
        for block in self._blocks:
            if self._cut.is_wide:
                total += block.sum(0)
            else:
                rows = _side_by_side(block)
                total.addmm_(rows, rows.t())
        return total.double() / (self.directions * self._cut.traced)

    def matrix_in_memory(self, what: str = "an exact answer") -> NDArray[np.float64] | None:
        """The matrix, where it takes no more room than the sheets."""
        return self.matrix.cpu().numpy() if self._written is not None or self._cut.is_wide else None

    def draw(self, count: int, generator: torch.Generator) -> None:
        """Add directions."""
        kernel, by_sample = self.kernel, self._cut.kind == "spatial"
        sheets = self._cut.sheets(
            kernel._kept(kernel.dynamics.random_states(count, generator, by_sample=by_sample))
        )
        self._blocks.append(sheets @ sheets.mT if self._cut.is_wide else sheets)

    def _images(self, block: Tensor, flat: Tensor) -> Tensor:
        """Products (directions, k, kept) of the kernels by every direction of a block alone."""
        products = flat @ block if self._cut.is_wide else (flat @ block) @ block.mT
        return products / self._cut.traced

    def _mean(self, flat: Tensor) -> Tensor:
        """Products with the mean of the directions so far."""
        return (
            sum((self._images(block, flat).sum(0) for block in self._blocks), flat.new_zeros(1))
            / self.directions
        )

    def _apply(self, flat: Tensor) -> Tensor:
        if self._written is not None or self._cut.is_wide:
            return (flat.double() @ self.matrix).to(flat.dtype)
        return self._mean(flat)

    def answer(self) -> Answer:
        """Its rank, and how exact it is."""
        rank, how = self.rank, "exact"
        if self.directions:
            how = f"{self.directions} random directions, relative error {self.error:.2g}"
        ranked = f"effective rank {rank.value:.4g}{plus_minus(rank.standard_error)}"
        found = super().answer()
        return Answer(f"{found.statement}; {ranked} ({how})", found.parts, found.data, found.record)


def _one_by_one(kernel: GlobalNTK, cut: _Cut, count: int) -> Tensor:
    """The sum over the basis of the parameters."""
    shapes = {name: value.shape for name, value in kernel.dynamics.parameters.items()}
    total = torch.zeros(cut.kept, cut.kept, dtype=torch.float64, device=kernel.device)
    for start in track(range(0, count, kernel.best_block), "parameters one by one"):
        stop = min(start + kernel.best_block, count)
        rows = basis_rows(start, stop, count, dtype=kernel.dtype, device=kernel.device)
        parts = torch.split(rows, [shape.numel() for shape in shapes.values()], 1)
        directions = {name: part.reshape(-1, *shapes[name]) for name, part in zip(shapes, parts, strict=True)}
        pushed = _side_by_side(cut.sheets(kernel._kept(kernel.dynamics.push(directions))))
        total += pushed @ pushed.t()
    return (total + total.t()) / (2 * cut.traced)  # products in float32 are not quite symmetric


def _side_by_side(sheets: Tensor) -> Tensor:
    """(k, kept, traced) as (kept, k traced): one product of its rows sums over all sheets."""
    return sheets.transpose(0, 1).flatten(1)


def _sampled(view: ReducedView, target: Target) -> ReducedView:
    """A view with as many directions as its rank needs, or as fit."""
    kernel = view.kernel
    each = kernel.size * torch.finfo(kernel.dtype).bits / 8
    require_memory(
        _FIRST * each, f"{_FIRST} directions of {kernel.size} states", "use fewer samples or steps"
    )
    most = min(_MOST, max(_FIRST, int(_SHARE * available_bytes() / each)))
    generator = torch_generator(spawn(view.seed, 3)[2])  # the first two are those of ``Members``
    wanted = min(_FIRST, most)
    with Progress("directions of the parameters") as bar:
        while True:
            bar.advance(wanted - view.directions)
            while view.directions < wanted:
                view.draw(min(wanted - view.directions, kernel.best_block), generator)
            rank = view.rank
            if target.reached(rank.value, rank.standard_error) or wanted >= most:
                break
            wanted = min(target.next_count(wanted, rank.value, rank.standard_error, kernel.best_block), most)
    if not target.reached(rank.value, rank.standard_error):
        warn_user(
            f"the rank in {'time' if view._cut.kind == 'temporal' else 'space'} has a relative standard error of "
            f"{rank.relative_error:.2g} after {wanted} random directions, but {target.accuracy:.2g} was asked for: "
            "choose a larger `accuracy`.",
        )
    return view
