"""Points and weights for averages over the K Gaussian inputs that the teacher sees."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from foretrain.activations import Activation
from foretrain.saddle.parameters import Array
from foretrain.support.errors import InputError
from foretrain.support.memory import require_memory
from foretrain.support.seeds import Seed, generator

_NODES = 40
_MOST_PRODUCT_MODES = 3
_QUASI_POINTS = 2**14
_NEGLIGIBLE = 1e-17  # of a product of weights; what is left out has a total of less than 1e-13


@dataclass(frozen=True, eq=False)
class GaussianGrid:
    """E[F(g)] = weights . F(points), points (K, count); odd activations make F even, and half of space is enough."""

    points: Array
    weights: Array
    meaning: str

    def __repr__(self) -> str:
        return f"GaussianGrid({self.meaning}: {len(self.weights)} points for {len(self.points)} modes)"


def gaussian_grid(act: Activation, modes: int) -> GaussianGrid:
    """The usual grid: the Gauss-Hermite product rule for up to three modes, scrambled Sobol points above."""
    if modes <= _MOST_PRODUCT_MODES:
        return hermite_grid(act, modes)
    return sobol_grid(act, modes)


def hermite_grid(act: Activation, modes: int, nodes: int = _NODES) -> GaussianGrid:
    """The Gauss-Hermite product rule without points of negligible weight."""
    if nodes < 2:
        raise InputError(f"nodes is {nodes}: give at least 2 for each direction.")
    require_memory(
        8.0 * (modes + 1) * float(nodes) ** modes,
        f"a product rule of {nodes} nodes in {modes} dimensions",
        "take fewer nodes or sobol_grid",
    )
    line, line_weights = np.polynomial.hermite_e.hermegauss(nodes)
    points = np.stack([axis.ravel() for axis in np.meshgrid(*[line] * modes, indexing="ij")])
    weights = math.prod(np.meshgrid(*[line_weights / line_weights.sum()] * modes, indexing="ij")).ravel()
    keep = weights > _NEGLIGIBLE
    if act.parity == "odd":
        keep &= _upper_half(points)
    kept = weights[keep]
    return GaussianGrid(points[:, keep], kept / kept.sum(), f"Gauss-Hermite, {nodes} nodes per mode")


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


def _upper_half(points: Array) -> Array:
    """One of every pair g, -g: the first coordinate that is not zero is positive; the origin counts for nothing."""
    sign = np.zeros(points.shape[1])
    for axis in points:
        sign = np.where(sign == 0, np.sign(np.where(np.abs(axis) > 1e-12, axis, 0.0)), sign)
    return np.asarray(sign > 0)
