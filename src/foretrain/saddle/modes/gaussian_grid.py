"""Points and weights for averages over the K Gaussian inputs that the teacher sees."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foretrain.activations import Activation
from foretrain.gaussian.nodes import gauss_hermite
from foretrain.saddle.parameters import Array
from foretrain.support.answers import Result
from foretrain.support.errors import InputError
from foretrain.support.memory import require_memory
from foretrain.support.seeds import Seed, generator

_NODES = 40
_COARSEST_STEP, _DIGITS, _RADIUS = 0.4, 25.0, 7.0  # steps that make exp(-2 pi strip / step) = exp(-25)
_MOST_PRODUCT_MODES = 3
_QUASI_POINTS = 2**14
_NEGLIGIBLE = 1e-17  # of a product of weights; what is left out has a total of less than 1e-13


@dataclass(frozen=True, repr=False, eq=False)
class GaussianGrid(Result):
    """E[F(g)] = weights . F(points), points (K, count); odd activations make F even, and half of space is enough."""

    points: Array
    weights: Array
    meaning: str


def gaussian_grid(act: Activation, modes: int) -> GaussianGrid:
    """The usual grid: a product rule for up to three modes, scrambled Sobol points above.

    For smooth activations the product of midpoint rules is exact to about ten digits, as long as rows of A_1 are
    shorter than one, where Gauss-Hermite with as many points has seven; with kinks it is Gauss-Hermite.
    """
    if modes > _MOST_PRODUCT_MODES:
        return sobol_grid(act, modes)
    return hermite_grid(act, modes) if act.kinks else midpoint_grid(act, modes)


def midpoint_grid(act: Activation, modes: int, refinement: int = 0) -> GaussianGrid:
    """Midpoints of equal cells inside a ball; each refinement halves the cells and goes further out."""
    step = min(_COARSEST_STEP, 2 * math.pi * act.strip / _DIGITS) / 2**refinement
    radius = _RADIUS + refinement
    half = step * (np.arange(math.ceil(radius / step)) + 0.5)
    _require(2 * len(half), modes)
    points = _product(np.concatenate([-half[::-1], half]), modes)
    squares = (points**2).sum(axis=0)
    weights = np.exp(-0.5 * squares)
    return _reduced(act, points, weights, squares < radius**2, f"midpoints, step {step:.3g}")


def hermite_grid(act: Activation, modes: int, nodes: int = _NODES) -> GaussianGrid:
    """The Gauss-Hermite product rule without points of negligible weight."""
    if nodes < 2:
        raise InputError(f"nodes is {nodes}: give at least 2 for each direction.")
    _require(nodes, modes)
    line, line_weights = gauss_hermite(nodes)
    weights = _product(line_weights, modes).prod(axis=0)
    meaning = f"Gauss-Hermite, {nodes} nodes per mode"
    return _reduced(act, _product(line, modes), weights, weights > _NEGLIGIBLE, meaning)


def sobol_grid(act: Activation, modes: int, count: int = _QUASI_POINTS, seed: Seed = 0) -> GaussianGrid:
    """Scrambled Sobol points with unit covariance, and their mirror images unless the activation is odd."""
    from scipy.special import ndtri
    from scipy.stats import qmc

    if count < 4 * modes:
        raise InputError(f"count is {count}: {modes} modes need at least {4 * modes} points.")
    power = math.ceil(math.log2(count))
    uniform = qmc.Sobol(modes, rng=generator(seed)).random_base2(power)
    drawn = ndtri(np.clip(uniform, 2.0 ** -(power + 2), 1 - 2.0 ** -(power + 2)))
    values, vectors = np.linalg.eigh(drawn.T @ drawn / len(drawn))
    points = (drawn @ (vectors / np.sqrt(values)) @ vectors.T).T
    if act.parity != "odd":
        points = np.concatenate([points, -points], axis=1)
    size = points.shape[1]
    return GaussianGrid(points, np.full(size, 1 / size), "scrambled Sobol points")


def _product(line: Array, modes: int) -> Array:
    """All combinations of the numbers of a line, (modes, len(line)^modes)."""
    return np.stack([axis.ravel() for axis in np.meshgrid(*[line] * modes, indexing="ij")])


def _require(nodes: int, modes: int) -> None:
    require_memory(
        16.0 * (modes + 1) * float(nodes) ** modes,
        f"a product rule of {nodes} nodes in {modes} dimensions",
        "take fewer nodes or sobol_grid",
    )


def _reduced(
    act: Activation, points: Array, weights: Array, keep: NDArray[np.bool_], meaning: str
) -> GaussianGrid:
    """Some points only, for odd activations half of them, with weights of sum one."""
    if act.parity == "odd":
        # The sign of the first coordinate that is not zero tells g from -g; it is 0 at the origin.
        sign = np.zeros(points.shape[1])
        for axis in points:
            sign = np.where(sign == 0, np.sign(np.where(np.abs(axis) > 1e-12, axis, 0.0)), sign)
        side = np.asarray(sign)
        keep = keep & (side >= 0)
        weights = weights * (1 + np.abs(side))
    kept = weights[keep]
    return GaussianGrid(points[:, keep], kept / kept.sum(), meaning)
