"""Expectations of any function of several inputs at once, not a product."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri

from foretrain.gaussian.covariance import check_covariance, staircase
from foretrain.gaussian.expectation import check_tolerance, default_tolerance
from foretrain.gaussian.observables import checked_function, kink_locations
from foretrain.gaussian.result import Expectation
from foretrain.gaussian.rules.lattice import first_steps, lattice_expectation
from foretrain.gaussian.rules.panels import nested_expectation
from foretrain.support.errors import InputError
from foretrain.support.seeds import generator, spawn
from foretrain.support.user_warnings import warn_user

Array = NDArray[np.float64]
Function = Callable[[Array], Any]

_MOST_QUADRATURE = 3
_REPLICATES = 16


def expectation_of(
    function: Function,
    K: ArrayLike,
    *,
    kinks: Sequence[float] | Sequence[Sequence[float]] = (),
    tolerance: float | None = None,
    points: int = 2**16,
    seed: int = 0,
) -> Expectation:
    """``<F(z)>_K`` for any function F of all inputs, called with an array (points, n) and giving (points,).

    Up to three independent directions are integrated by quadrature to the tolerance; more by scrambled Sobol
    points, whose error is a standard error over independent scramblings.

    Parameters
    ----------
    kinks
        Values of z at which F is not smooth, for all inputs alike or one sequence for each.
    points, seed
        Number of points of the sampled route, and its seed.

    Examples
    --------
    >>> expectation_of(lambda z: np.exp(z[:, 0] * z[:, 1] / 4), [[1, 0], [0, 1]]).value.round(6)
    np.float64(1.032796)
    """
    K = check_covariance(K)
    if K.ndim != 2:
        raise InputError(f"expectation_of takes one covariance (n, n), but the shape is {K.shape}.")
    call = checked_function(function, len(K))
    steps = staircase(K[None])
    rank, order = int(steps.rank[0]), steps.order[0]
    lower = steps.factor[0][np.argsort(order)][:, :rank]
    tolerance = check_tolerance(tolerance, default_tolerance(min(rank, 4)))
    if rank > _MOST_QUADRATURE:
        if points < 2 * _REPLICATES:
            raise InputError(f"`points` is {points}, but sampling needs at least {2 * _REPLICATES}.")
        return _sampled(call, lower, points, seed)
    if rank == 0:
        return Expectation(np.asarray(call(np.zeros((1, len(K))))[0]), np.zeros(()), "a single point")
    locations = kink_locations(kinks, len(K))
    size = float(np.sqrt(np.mean(call(_probe(lower)) ** 2))) or 1.0
    if any(locations):
        return _panelled(call, lower, [locations[i] for i in order], order, size, tolerance)
    return _on_lattice(call, lower, size, tolerance)


def _probe(lower: Array) -> Array:
    return np.asarray(generator(0).standard_normal((256, lower.shape[1])) @ lower.T)


def _on_lattice(call: Function, lower: Array, size: float, tolerance: float) -> Expectation:
    def integrand(x: Array, items: NDArray[np.intp]) -> Array:
        return np.asarray(call(x @ lower.T))[None]

    steps = first_steps(1 / np.maximum(np.abs(lower).max(axis=0, keepdims=True), 1e-300), tolerance)
    value, error = lattice_expectation(integrand, steps, np.array([size]), tolerance, verify=True)
    if error[0] > 2 * tolerance * size:
        warn_user(
            f"the expectation reached only an error of {error[0]:.1e}; declare `kinks=` if the function has any."
        )
    return Expectation(np.asarray(value[0]), np.asarray(error[0]), "lattice")


@dataclass(frozen=True)
class _Planes:
    """Tells the panels where one input has kinks; contributes no value of its own."""

    kinks: tuple[float, ...]
    strip: float = 1.0
    blur: float = 0.0
    reach: float = np.inf

    def __call__(self, z: Array) -> Array:
        return np.ones_like(z)


def _panelled(
    call: Function,
    lower: Array,
    locations: list[tuple[float, ...]],
    order: NDArray[np.intp],
    size: float,
    tolerance: float,
) -> Expectation:
    planes = [_Planes(where) for where in locations]
    back = np.argsort(order)

    def whole(z: Array) -> Array:
        return np.asarray(call(z.reshape(-1, z.shape[-1])[:, back])).reshape(z.shape[:-1])

    value, error = nested_expectation(
        planes, lower[order][None], np.zeros((1, len(lower))), np.array([size]), tolerance, whole=whole
    )
    return Expectation(np.asarray(value[0]), np.asarray(error[0]), "panels")


def _sampled(call: Function, lower: Array, points: int, seed: int) -> Expectation:
    from scipy.stats import qmc  # takes a second to import, and few calls come here

    each = max(2, 1 << max(1, (points // _REPLICATES).bit_length() - 1))
    means = []
    for child in spawn(seed, _REPLICATES):
        uniform = qmc.Sobol(lower.shape[1], rng=np.random.default_rng(child)).random(each)
        means.append(float(np.mean(call(ndtri(np.clip(uniform, 1e-300, 1 - 1e-16)) @ lower.T))))
    error = float(np.std(means, ddof=1) / np.sqrt(_REPLICATES))
    return Expectation(
        np.asarray(np.mean(means)), np.asarray(error), f"{_REPLICATES * each} scrambled Sobol points"
    )
