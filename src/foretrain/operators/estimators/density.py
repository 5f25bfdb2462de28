"""``spectral_density``: how eigenvalues are spread, with error bars."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr

from foretrain.operators.estimators.probes import Counted, OperatorLike, Source, squared
from foretrain.operators.estimators.quadrature import lanczos
from foretrain.support.answers import Answer, Figure, Result, dataset_table, labelled, picked
from foretrain.support.errors import InputError
from foretrain.support.progress import track
from foretrain.support.seeds import Seed

Array: TypeAlias = NDArray[np.float64]

_DEPTH = 40  # Lanczos steps a probe: the resolution is about the spectrum's range over this number
_LEAST_PROBES = 4
_LEAST_SPAN = 1e-3  # of the largest node: a spectrum narrower than this is drawn as wide
_BEYOND = 3.0  # widths of the smoothing that the grid reaches beyond the outermost node


@dataclass(frozen=True, repr=False, eq=False)
class SpectralDensity(Result):
    """The share of eigenvalues per unit, smoothed by a Gaussian of standard deviation ``width``, on ``points``.

    ``count_above`` is how many eigenvalues lie above each point, smoothed alike. They are singular values where the
    operator is not symmetric. Standard errors are over probes.
    """

    points: Array
    density: Array
    standard_error: Array
    count_above: Array
    count_error: Array
    width: float
    size: int
    probes: int
    products: int
    seed: Seed

    def answer(self) -> Answer:
        """Both curves with their errors over the values."""
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
        return Answer(statement, [dataset_table(data, "value").thinned(9), self._figure], data)

    def _figure(self) -> Figure:
        figure = Figure("Spectral density", columns=2)
        figure.panel("share per unit", "value").curve(self.points, self.density, band=self.standard_error)
        figure.panel("how many lie above", "value").curve(
            self.points, self.count_above, band=self.count_error
        )
        return figure


def spectral_density(
    op: OperatorLike,
    *,
    points: int | ArrayLike = 200,
    products: int | None = None,
    width: float | None = None,
    depth: int = _DEPTH,
    seed: Seed = 0,
) -> SpectralDensity:
    """The density of eigenvalues (of singular values if the operator is not symmetric).

    Stochastic Lanczos quadrature (Golub & Meurant 1994; Lin, Saad & Yang 2016; Ubaru, Chen & Saad 2017) with
    ``depth`` steps for each of products / depth probes on the sphere (16 probes if ``products`` is not given).
    ``points`` is a number of places over the spectrum's range, or the places themselves; ``width`` is the smoothing,
    by default the range over the depth: less would show the nodes of the quadrature rather than the spectrum.
    """
    counted = Counted(op)
    base, price = (counted, 1) if op.symmetric else (squared(counted), 2)
    if isinstance(depth, bool) or depth != int(depth) or depth < 1:
        raise InputError(f"`depth` is {depth!r}, but it is a number of Lanczos steps from 1 on.")
    depth = min(int(depth), counted.size)
    probes = 16 if products is None else int(products) // (depth * price)
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
    nodes, weights = (np.concatenate([pair[part] for pair in found]) for part in range(2))
    if not op.symmetric:
        nodes = np.sqrt(np.maximum(nodes, 0.0))
    nodes = nodes * counted.unit
    seen = nodes[weights > 1e-14]
    span = max(float(seen.max() - seen.min()), _LEAST_SPAN * float(np.abs(seen).max())) or 1.0
    width = span / depth if width is None else float(width)
    places = _places(points, seen, width)
    distances = (nodes[:, None, :] - places[:, None]) / width
    bumps = np.exp(-np.square(distances) / 2) / np.sqrt(2 * np.pi)
    density, error = (curve / width for curve in _mean_and_errors((weights[:, None, :] * bumps).sum(2)))
    above, above_error = _mean_and_errors(counted.size * (weights[:, None, :] * ndtr(distances)).sum(2))
    return SpectralDensity(
        places, density, error, above, above_error, width, counted.size, probes, counted.products, seed
    )


def _places(points: int | ArrayLike, seen: Array, width: float) -> Array:
    if isinstance(points, int | np.integer):
        if points < 2:
            raise InputError(f"`points` is {points}, but a curve has at least 2.")
        return np.linspace(seen.min() - _BEYOND * width, seen.max() + _BEYOND * width, points)
    places = np.asarray(points, dtype=np.float64)
    if places.ndim != 1 or not len(places) or not np.isfinite(places).all():
        raise InputError("`points` must be a number of points, or finite places in one list.")
    return places


def _mean_and_errors(values: Array) -> tuple[Array, Array]:
    """Over the first axis."""
    return values.mean(0), values.std(0, ddof=1) / np.sqrt(len(values))
