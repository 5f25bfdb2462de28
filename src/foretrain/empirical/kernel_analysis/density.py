"""How many eigenvalues of a kernel lie where: exactly, or by stochastic Lanczos quadrature.

Random-sign probes z all start one block Krylov space; z . f(K) z is the block Gauss quadrature in it (Golub &
Meurant 1994; Ubaru, Chen & Saad 2017). Modes that have converged are counted exactly, and left out of the
probes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from foretrain.empirical.kernel_analysis.arguments import checked_probes, plus_minus
from foretrain.empirical.kernel_analysis.block_lanczos import BlockKrylov
from foretrain.empirical.kernel_analysis.matrices import (
    Array,
    ByProducts,
    Kernel,
    MatrixLayout,
    layout_of,
    products_of,
    square,
)
from foretrain.empirical.kernel_operator.operator import KernelEstimate, standard_error, stated_seed
from foretrain.support.answers import (
    BLUE,
    INK,
    Answer,
    Axis,
    Column,
    Figure,
    Result,
    Table,
    labelled,
    log,
    picked,
)
from foretrain.support.arguments import whole_number
from foretrain.support.progress import track
from foretrain.support.seeds import Seed, generator

_CONVERGED = 1e-8  # residual of a mode that is counted exactly, in units of the largest eigenvalue
_BINS = 40
_MANY = 50  # eigenvalues in one interval, from which on a picture is logarithmic
_TOGETHER = 5  # intervals that are one in a table
_BLUR = 8.0
_DECADES = 12.0  # below the largest eigenvalue that a picture shows at most


@dataclass(frozen=True, repr=False, eq=False)
class SpectralDensity(Result):
    """Eigenvalues that are ``known`` one by one, and for the others ``weights`` (probes, nodes) at ``nodes``.

    The weights of one probe are an unbiased count of the eigenvalues around each node; they sum to about the
    number of eigenvalues that are not known. ``rounding``: below it, eigenvalues cannot be told from zero;
    ``resolution``: below it, quadrature does not tell where they lie.
    """

    known: Array
    nodes: Array
    weights: Array
    size: int
    rounding: float
    products: int
    seed: int

    @property
    def probes(self) -> int:
        """How many random vectors there were; 0 if all eigenvalues are known."""
        return len(self.weights)

    @property
    def resolution(self) -> float:
        """Just above the node over the lowest block of nodes, which stand for all that is below."""
        if not self.probes:
            return self.rounding
        return max(self.rounding, float(self.nodes[-min(self.probes + 1, len(self.nodes))]) * (1 + 1e-12))

    def sum_of(self, function: Callable[[Array], Array]) -> KernelEstimate:
        """The trace of function(K), with its standard error."""
        return self._estimate(self._draws(function))

    def counts(self, edges: ArrayLike) -> KernelEstimate:
        """How many eigenvalues lie between the edges, one number for each interval.

        Half of a node's weight counts as below it. Quadrature does not say where between nodes eigenvalues
        lie: errors include an eighth of the weight of a block of nodes on either side of an edge (a half is
        the bound, an eighth what is met), and half of all weight below the resolution if there is an edge.
        """
        bounds = np.asarray(edges, dtype=np.float64)
        exact = np.histogram(self.known, bounds)[0].astype(np.float64)
        if not self.probes:
            return self._estimate(exact[None])
        found = self._estimate(exact + np.diff([self._below(row, bounds) for row in self.weights], axis=1))
        blur = self._blur(bounds)
        error = np.sqrt(found.standard_error**2 + blur[1:] ** 2 + blur[:-1] ** 2)
        return KernelEstimate(found.value, error, self.probes, self.seed)

    def entropy_rank(self, trace: float | None = None) -> KernelEstimate:
        """Exponential of the entropy of eigenvalue / trace; pass the trace where it is known exactly."""
        logarithms, traces = self._draws(_times_logarithm), self._draws(lambda k: np.maximum(k, 0.0))
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

    def _below(self, weights: Array, edges: Array) -> Array:
        """Weight below each edge, between nodes in proportion to the logarithm."""
        places, middles = _logarithm(self.nodes[::-1]), np.cumsum(weights[::-1]) - weights[::-1] / 2
        return np.interp(_logarithm(edges), places, middles, left=0.0, right=float(np.sum(weights)))

    def _blur(self, edges: Array) -> Array:
        """What cannot be said to lie on one side of each edge; nothing is below zero or above all nodes."""
        beyond = np.zeros(self.probes + 1)
        sums = np.cumsum(np.concatenate([beyond, self.weights.mean(axis=0)[::-1], beyond]))
        place = np.searchsorted(_logarithm(self.nodes[::-1]), _logarithm(edges)) + self.probes
        near = (sums[place + self.probes] - sums[place - self.probes]) / _BLUR
        unresolved = (sums[2 * self.probes] - sums[0]) / 2
        blur = np.where(edges < self.resolution, unresolved, near)
        return np.where((edges <= 0) | (edges > self.nodes[0]), 0.0, blur)

    def _draws(self, function: Callable[[Array], Array]) -> Array:
        """The trace of function(K) from every probe; without probes, the exact one."""
        exact = float(np.sum(function(self.known)))
        return exact + self.weights @ function(self.nodes) if self.probes else np.array([exact])

    def _estimate(self, draws: Array) -> KernelEstimate:
        error = standard_error(draws) if self.probes else np.zeros(draws.shape[1:])
        return KernelEstimate(np.mean(draws, axis=0), error, self.probes, self.seed)


def spectral_density(kernel: Kernel, probes: int = 16, steps: int = 16, seed: Seed = 0) -> SpectralDensity:
    """Where the eigenvalues of a kernel of samples with themselves lie.

    Of a kernel that is there all eigenvalues are found. Of an operator or a stored kernel, ``probes``
    random-sign vectors go through ``steps`` products together: a stored kernel is read ``steps`` times. More
    probes make standard errors smaller, more steps resolve the density better.

    Examples
    --------
    >>> import numpy as np
    >>> spectral_density(np.diag([4.0, 1.0, 1.0])).counts([0.5, 2.0, 8.0]).value.tolist()
    [2.0, 1.0]
    """
    layout = layout_of(kernel)
    if not isinstance(kernel, ByProducts):
        values = np.linalg.eigvalsh(square(kernel, "a spectral density").matrix)[::-1]
        return _all_known(np.asarray(values, np.float64), layout, 0, 0)
    kernel.require_symmetric("spectral density")
    probes, steps = checked_probes(probes), whole_number("steps", steps)
    number = stated_seed(seed)
    krylov = probed(products_of(kernel), layout.size, probes, steps, number)
    for _ in track(range(steps), "spectral density"):
        if not krylov.exhausted:
            krylov.extend()
    return density_of(krylov, layout, number)


def probed(product: Callable[[Array], Array], size: int, probes: int, steps: int, seed: int) -> BlockKrylov:
    """The Krylov space of random-sign probes, with room for so many steps."""
    signs = generator(seed).integers(0, 2, size=(size, probes)) * 2.0 - 1.0
    return BlockKrylov(product, np.asarray(signs, np.float64), probes * steps)


def density_of(krylov: BlockKrylov, layout: MatrixLayout, seed: int) -> SpectralDensity:
    """What a Krylov space of probes knows of the eigenvalues."""
    values, vectors, residuals = krylov.eigenpairs()
    start = krylov.first
    weights = (vectors[: len(start)].T @ start) ** 2
    largest = float(values[0])
    # Those that have converged, and are fewer than a block where they cannot be told from each other: a block of
    # probes sees at most as many copies of an eigenvalue as it has columns.
    tolerance = _CONVERGED * largest
    groups = np.cumsum(np.diff(values, prepend=values[0]) < -tolerance)
    alone = (residuals <= tolerance) & (np.bincount(groups)[groups] < len(start))
    if krylov.count == layout.size:
        return _all_known(values, layout, krylov.products, seed)
    rounding = layout.resolves(largest)
    return SpectralDensity(
        values[alone], values[~alone], weights[~alone].T, layout.size, rounding, krylov.products, seed
    )


def _all_known(values: Array, layout: MatrixLayout, products: int, seed: int) -> SpectralDensity:
    rounding = layout.resolves(float(values[0]))
    return SpectralDensity(values, np.zeros(0), np.zeros((0, 0)), layout.size, rounding, products, seed)


def _times_logarithm(values: Array) -> Array:
    positive = values > 0
    return np.where(positive, values * np.log(np.where(positive, values, 1.0)), 0.0)


def _logarithm(values: Array) -> Array:
    return np.log(np.maximum(values, np.finfo(np.float64).tiny))
