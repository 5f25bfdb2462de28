"""``spectral_density``: how eigenvalues are spread, exactly or by stochastic Lanczos quadrature, with error bars.

Probes z either each follow a chain of their own, for which nothing is kept, or start one block Krylov space together,
in which z . f(A) z is the block Gauss quadrature (Golub & Meurant 1994; Lin, Saad & Yang 2016; Ubaru, Chen & Saad
2017). In the latter, modes that have converged are counted exactly, and left out of the probes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr
from torch import Tensor

from foretrain.operators.estimators.estimate import KernelEstimate, plus_minus, standard_error, stated_seed
from foretrain.operators.estimators.krylov import BlockKrylov, lanczos
from foretrain.operators.estimators.probes import Counted, Source, in_double, squared
from foretrain.support.answers import (
    BLUE,
    INK,
    Answer,
    Axis,
    Column,
    Figure,
    Result,
    Table,
    dataset_table,
    labelled,
    log,
    picked,
)
from foretrain.support.arguments import whole_number
from foretrain.support.errors import InputError
from foretrain.support.progress import track
from foretrain.support.seeds import Seed, generator

if TYPE_CHECKING:
    from foretrain.operators.operator import Operator

Array: TypeAlias = NDArray[np.float64]

_DEPTH = 40  # Lanczos steps a probe: the resolution is about the spectrum's range over this number
_LEAST_PROBES = 4
_LEAST_SPAN = 1e-3  # of the largest node: a spectrum narrower than this is drawn as wide
_BEYOND = 3.0  # widths of the smoothing that the grid reaches beyond the outermost node
_SEEN = 1e-14  # of all eigenvalues: the weight of a node that counts
_CONVERGED = 1e-8  # residual of a mode that is counted exactly, in units of the largest eigenvalue
_BINS = 40
_MANY = 50  # eigenvalues in one interval, from which on a picture is logarithmic
_TOGETHER = 5  # intervals that are one in a table
_BLUR = 8.0
_DECADES = 12.0  # below the largest eigenvalue that a picture shows at most


@dataclass(frozen=True, repr=False, eq=False)
class SpectralDensity(Result):
    """Eigenvalues that are ``known`` one by one, and for the others ``weights`` (probes, nodes) at ``nodes``.

    The weights of one probe are an unbiased count of the eigenvalues around each node; they sum to about the number
    of eigenvalues that are not known. All probes share ``nodes`` (nodes,), or each has its own, (probes, nodes).
    ``rounding``: below it, eigenvalues cannot be told from zero; ``resolution``: below it, quadrature does not tell
    where they lie. ``density`` is their share per unit at ``points``, smoothed by a Gaussian of standard deviation
    ``width``, and ``count_above`` how many lie above, smoothed alike. Values are singular values where the operator
    is not symmetric. Standard errors are over probes.
    """

    known: Array
    nodes: Array
    weights: Array
    size: int
    rounding: float
    products: int
    seed: Seed
    points: Array
    width: float

    @property
    def probes(self) -> int:
        """How many random vectors there were; 0 if all eigenvalues are known."""
        return len(self.weights)

    @property
    def resolution(self) -> float:
        """Just above the node over the lowest block of nodes, which stand for all that is below."""
        if not self.probes:
            return self.rounding
        lowest = -min(self._block + 1, self.nodes.shape[-1])
        return max(self.rounding, float(self.nodes[..., lowest].max()) * (1 + 1e-12))

    @property
    def density(self) -> Array:
        """The share of eigenvalues per unit at every point."""
        return self._curves[0]

    @property
    def standard_error(self) -> Array:
        """Of the density."""
        return self._curves[1]

    @property
    def count_above(self) -> Array:
        """How many eigenvalues lie above every point."""
        return self._curves[2]

    @property
    def count_error(self) -> Array:
        """Of their number above."""
        return self._curves[3]

    def sum_of(self, function: Callable[[Array], Array]) -> KernelEstimate:
        """The trace of function(A), with its standard error."""
        return self._estimate(self._draws(function))

    def counts(self, edges: ArrayLike) -> KernelEstimate:
        """How many eigenvalues lie between the edges, one number for each interval.

        Half of a node's weight counts as below it. Quadrature does not say where between nodes eigenvalues lie:
        errors include an eighth of the weight of a block of nodes on either side of an edge (a half is the bound, an
        eighth what is met), and half of all weight below the resolution if there is an edge.
        """
        bounds = np.asarray(edges, dtype=np.float64)
        exact = np.histogram(self.known, bounds)[0].astype(np.float64)
        if not self.probes:
            return self._estimate(exact[None])
        end, below = self._place(bounds), []
        for nodes, weights in zip(np.broadcast_to(self.nodes, self.weights.shape), self.weights):
            # The weight below each edge, between nodes in proportion to the logarithm.
            places, middles = self._place(nodes[::-1]), np.cumsum(weights[::-1]) - weights[::-1] / 2
            below.append(np.interp(end, places, middles, left=0.0, right=float(np.sum(weights))))
        found = self._estimate(exact + np.diff(below, axis=1))
        blur = self._blur(bounds)
        error = np.sqrt(found.standard_error**2 + blur[1:] ** 2 + blur[:-1] ** 2)
        return KernelEstimate(found.value, error, self.probes, self.seed)

    def entropy_rank(self, trace: float | None = None) -> KernelEstimate:
        """Exponential of the entropy of eigenvalue / trace; pass the trace where it is known exactly."""

        def times_logarithm(values: Array) -> Array:
            positive = values > 0
            return np.where(positive, values * np.log(np.where(positive, values, 1.0)), 0.0)

        logarithms, traces = self._draws(times_logarithm), self._draws(lambda k: np.maximum(k, 0.0))
        if trace is not None:
            traces = np.full_like(traces, trace)
        whole, part = float(traces.mean()), float(logarithms.mean())
        value = float(np.exp(np.log(whole) - part / whole))
        # Up to a constant, to first order.
        entropies = traces * (1 / whole + part / whole**2) - logarithms / whole
        return KernelEstimate(value, value * self._estimate(entropies).standard_error, self.probes, self.seed)

    def edges(self) -> Array:
        """Intervals for a picture: equal in the logarithm, from the resolution on."""
        largest = float(max(self.known.max(initial=0.0), self.nodes.max(initial=0.0)))
        lowest = min(max(self.resolution, largest * 10**-_DECADES), largest / 2)
        return np.geomspace(lowest, largest * (1 + 1e-9), _BINS + 1)

    def answer(self) -> Answer:
        """Counts over logarithmic intervals; of probes with nodes of their own both curves over the values."""
        if self.nodes.ndim == 1:
            return self._in_intervals()
        statement = (
            f"{self.size} values seen by {self.probes} probes with {self.products} products, seed {self.seed}: "
            f"their density and how many lie above, smoothed over {self.width:.2g}."
        )
        curves = {
            name: ("value", curve)
            for name, curve in picked(self, "density standard_error count_above count_error").items()
        }
        notes = picked(self, "width size probes products") | {"seed": str(self.seed)}
        data = labelled(curves, notes, value=self.points)
        return Answer(statement, [dataset_table(data, "value").thinned(9), self._draw_curves], data)

    def _draw_curves(self) -> Figure:
        figure = Figure("Spectral density", columns=2)
        figure.panel("share per unit", "value").curve(self.points, self.density, band=self.standard_error)
        panel = figure.panel("how many lie above", "value")
        panel.curve(self.points, self.count_above, band=self.count_error)
        return figure

    def _in_intervals(self) -> Answer:
        """Counts with standard errors over logarithmic intervals, and how many lie below all of them."""
        above, rank, edges = self.counts([self.resolution, np.inf]), self.entropy_rank(), self.edges()
        how = "all known"
        if self.probes:
            how = (
                f"{len(self.known)} known, the others from {self.probes} probes and {self.products} products"
            )
        limit = "resolved" if self.resolution > self.rounding else "told from zero"
        statement = (
            f"{self.size} eigenvalues ({how}): {above.value[0]:.4g}{plus_minus(above.standard_error[0])} are above "
            f"{self.resolution:.2g}, below which they are not {limit}; entropy rank {rank.value:.4g}"
            f"{plus_minus(rank.standard_error)}. Ask .counts(edges), and .sum_of(function) for tr f(K)."
        )
        found = self.counts(edges)
        few = self.counts(edges[::_TOGETHER])
        coarse = {
            "from": edges[:-1:_TOGETHER],
            "to": edges[_TOGETHER::_TOGETHER],
            Column("eigenvalues", error="standard error"): few.value,
            "standard error": few.standard_error,
        }
        notes = picked(self, "size rounding resolution probes products seed")
        data = labelled(
            {"count": ("interval", found.value), "count_error": ("interval", found.standard_error)},
            notes | {"below": self.size - float(np.sum(found.value))},
            lower=("interval", edges[:-1]),
            upper=("interval", edges[1:]),
        )
        return Answer(statement, [Table.of(coarse), self.draw], data)

    def draw(self, figure: Figure | None = None) -> Figure:
        """Draw those found one by one and how many lie above each value, then how many lie where, with errors."""
        figure = figure or Figure("Eigenvalues", columns=2)
        known, edges = self.known[self.known > self.rounding], self.edges()
        above, found = self.counts([*edges, np.inf]), self.counts(edges)
        ranks = np.cumsum(above.value[::-1])[::-1][:-1]
        errors = np.sqrt(np.cumsum(above.standard_error[::-1] ** 2))[::-1][:-1]
        rest = ranks > len(known)
        panel = figure.panel("Eigenvalues", log("rank"), log("eigenvalue"))
        if rest.any():
            lengths = np.stack([np.minimum(errors, ranks - 1), errors])[:, rest]
            panel.curve(
                ranks[rest], edges[:-1][rest], ".-", "from random probes", BLUE, x_error=lengths, size=2
            )
        panel.curve(np.arange(1, len(known) + 1), known, ".", "found one by one", INK)
        below = max(self.size - float(np.sum(found.value)), 0.0)
        panel = figure.panel(
            "How many lie where",
            log(f"eigenvalue ({below:.0f} are smaller)"),
            Axis("number", "symlog" if np.max(found.value) > _MANY else "linear", low=0.0),
        )
        panel.curve(edges, np.append(found.value, 0.0), color=BLUE, steps=True)
        sure = np.asarray(found.standard_error) > 0
        middles = np.sqrt(edges[:-1] * edges[1:])
        errors = found.standard_error[sure]
        panel.curve(middles[sure], found.value[sure], ".", color=INK, error=errors, size=2)
        return figure

    @property
    def _block(self) -> int:
        """How many nodes are found together: one of a chain, as many as there are probes in one space."""
        return 1 if self.nodes.ndim > 1 else self.probes

    def _place(self, values: Array) -> Array:
        """Logarithms, unless some values are negative beyond rounding."""
        if self.nodes.min() < -self.rounding:
            return values
        return np.log(np.maximum(values, np.finfo(np.float64).tiny))

    def _blur(self, edges: Array) -> Array:
        """What cannot be said to lie on one side of each edge; nothing is below zero or above all nodes."""
        rows = zip(
            np.atleast_2d(self.nodes), self.weights if self._block == 1 else [self.weights.mean(axis=0)]
        )
        found, block = np.zeros((0, len(edges))), self._block
        for nodes, weights in rows:
            beyond = np.zeros(block + 1)
            sums = np.cumsum(np.concatenate([beyond, weights[::-1], beyond]))
            place = np.searchsorted(self._place(nodes[::-1]), self._place(edges)) + block
            near = (sums[place + block] - sums[place - block]) / _BLUR
            blur = np.where(edges < self.resolution, (sums[2 * block] - sums[0]) / 2, near)
            found = np.vstack([found, np.where((edges <= 0) | (edges > nodes[0]), 0.0, blur)])
        return np.asarray(found.mean(axis=0))

    def _draws(self, function: Callable[[Array], Array]) -> Array:
        """The trace of function(A) from every probe; without probes, the exact one."""
        exact = float(np.sum(function(self.known)))
        if not self.probes:
            return np.array([exact])
        if self.nodes.ndim == 1:
            return np.asarray(exact + self.weights @ function(self.nodes))
        return np.asarray(exact + (self.weights * function(self.nodes)).sum(axis=1))

    def _estimate(self, draws: Array) -> KernelEstimate:
        error = standard_error(draws) if self.probes else np.zeros(draws.shape[1:])
        return KernelEstimate(np.mean(draws, axis=0), error, self.probes, self.seed)

    @cached_property
    def _curves(self) -> tuple[Array, Array, Array, Array]:
        """Density and number above, each with its error, at all points."""

        def summed(function: Callable[[Array], Array]) -> KernelEstimate:
            exact = function((self.known - self.points[:, None]) / self.width).sum(1)
            if not self.probes:
                return self._estimate(exact[None])
            distances = (np.atleast_2d(self.nodes)[:, None, :] - self.points[:, None]) / self.width
            return self._estimate(exact + (self.weights[:, None, :] * function(distances)).sum(2))

        share = summed(lambda distances: np.exp(-np.square(distances) / 2) / np.sqrt(2 * np.pi))
        above, unit = summed(ndtr), self.size * self.width
        return share.value / unit, share.standard_error / unit, above.value, above.standard_error


def spectral_density(
    op: Operator,
    probes: int = 16,
    steps: int | None = None,
    *,
    points: int | ArrayLike = 200,
    products: int | None = None,
    width: float | None = None,
    depth: int = _DEPTH,
    seed: Seed = 0,
) -> SpectralDensity:
    """The density of eigenvalues (of singular values if the operator is not symmetric).

    All eigenvalues are found of an operator whose matrix is in memory. With ``steps``, ``probes`` random-sign vectors
    go through so many products together, in one Krylov space that is kept: modes that converge in it are counted
    exactly, and a kernel on disk is read ``steps`` times. Without, each of ``probes`` on the sphere (of products /
    depth of them, if ``products`` is given) goes ``depth`` steps by itself, and nothing is kept. More probes make
    standard errors smaller, more steps resolve the density better.

    ``points`` is a number of places over the spectrum's range, or the places themselves; ``width`` is the smoothing,
    by default the range over the depth: less would show the nodes of the quadrature rather than the spectrum.
    """
    matrix = op.matrix_in_memory()
    if matrix is not None:
        values = np.asarray(np.linalg.eigvalsh(matrix)[::-1], np.float64)
        return _all_known(values, op.resolves(float(values[0])), 0, 0, points, width)
    if steps is None:
        return _by_chains(op, probes, points, products, width, depth, seed)
    probes, steps = whole_number("probes", probes, least=2), whole_number("steps", steps)
    number = stated_seed(seed)
    krylov = probed(in_double(op), op.size, probes, steps, number)
    for _ in track(range(steps), "spectral density"):
        if not krylov.exhausted:
            krylov.extend()
    return density_of(krylov, op.resolves, number, points, width)


def _by_chains(
    op: Operator,
    probes: int,
    points: int | ArrayLike,
    products: int | None,
    width: float | None,
    depth: int,
    seed: Seed,
) -> SpectralDensity:
    counted = Counted(op)
    base, price = (counted, 1) if op.symmetric else (squared(counted), 2)
    if isinstance(depth, bool) or depth != int(depth) or depth < 1:
        raise InputError(f"`depth` is {depth!r}, but it is a number of Lanczos steps from 1 on.")
    depth = min(int(depth), counted.size)
    probes = probes if products is None else int(products) // (depth * price)
    if probes < _LEAST_PROBES:
        raise InputError(
            f"`products` is {products}, but {_LEAST_PROBES} probes of {depth} steps take "
            f"{_LEAST_PROBES * depth * price}: raise `products=` or lower `depth=`."
        )
    base.require_vectors(5 * base.block, "Lanczos steps")
    source = Source(op, seed)
    found = [
        lanczos(base.apply, source.sphere(min(base.block, probes - start)), depth).quadrature(depth)
        for start in track(range(0, probes, base.block), "Lanczos probes")
    ]
    nodes, weights = (np.concatenate([pair[part] for pair in found])[:, ::-1] for part in range(2))
    if not op.symmetric:
        nodes = np.sqrt(np.maximum(nodes, 0.0))
    nodes = nodes * counted.unit
    seen, rounding = nodes[weights > _SEEN], op.resolves(float(np.abs(nodes).max()))
    places = _places(points, seen, width, depth)
    return SpectralDensity(
        np.zeros(0), nodes, counted.size * weights, counted.size, rounding, counted.products, seed, *places
    )


def probed(product: Callable[[Tensor], Tensor], size: int, probes: int, steps: int, seed: int) -> BlockKrylov:
    """The Krylov space of random-sign probes, with room for so many steps."""
    signs = generator(seed).integers(0, 2, size=(size, probes)) * 2.0 - 1.0
    return BlockKrylov(product, torch.from_numpy(np.ascontiguousarray(signs.T)), probes * steps)


def density_of(
    krylov: BlockKrylov,
    resolves: Callable[[float], float],
    seed: int,
    points: int | ArrayLike = 200,
    width: float | None = None,
) -> SpectralDensity:
    """What a Krylov space of probes knows of the eigenvalues; ``resolves(largest)`` is their rounding."""
    values, vectors, residuals = (part.numpy() for part in krylov.ritz())
    start = krylov.first.numpy()
    weights = (vectors[: len(start)].T @ start) ** 2
    largest = float(values[0])
    # Those that have converged, and are fewer than a block where they cannot be told from each other: a block of
    # probes sees at most as many copies of an eigenvalue as it has columns.
    tolerance = _CONVERGED * largest
    groups = np.cumsum(np.diff(values, prepend=values[0]) < -tolerance)
    alone = (residuals <= tolerance) & (np.bincount(groups)[groups] < len(start))
    if krylov.complete:
        return _all_known(values, resolves(largest), krylov.products, seed, points, width)
    places = _places(points, values, width, krylov.products)
    return SpectralDensity(
        values[alone],
        values[~alone],
        weights[~alone].T,
        krylov.size,
        resolves(largest),
        krylov.products,
        seed,
        *places,
    )


def _all_known(
    values: Array, rounding: float, products: int, seed: int, points: int | ArrayLike, width: float | None
) -> SpectralDensity:
    places = _places(points, values, width, _DEPTH)
    nothing = np.zeros(0), np.zeros((0, 0))
    return SpectralDensity(values, *nothing, len(values), rounding, products, seed, *places)


def _places(points: int | ArrayLike, seen: Array, width: float | None, depth: int) -> tuple[Array, float]:
    """The places of the curves, and the smoothing."""
    span = max(float(seen.max() - seen.min()), _LEAST_SPAN * float(np.abs(seen).max())) or 1.0
    width = span / depth if width is None else float(width)
    if isinstance(points, int | np.integer):
        if points < 2:
            raise InputError(f"`points` is {points}, but a curve has at least 2.")
        return np.linspace(seen.min() - _BEYOND * width, seen.max() + _BEYOND * width, points), width
    places = np.asarray(points, dtype=np.float64)
    if places.ndim != 1 or not len(places) or not np.isfinite(places).all():
        raise InputError("`points` must be a number of points, or finite places in one list.")
    return places, width
