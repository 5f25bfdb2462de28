"""Observables of preactivations as users give them, factors or any function of all inputs, and their expectations."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.polynomial import Polynomial
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri

from foretrain.activations import Activation
from foretrain.gaussian.covariance import check_covariance, staircase
from foretrain.gaussian.expectation import Expectation, check_tolerance, default_tolerance
from foretrain.gaussian.factors import Factor, as_factor
from foretrain.gaussian.grids import ladder
from foretrain.gaussian.panels import nested_expectation
from foretrain.support.errors import InputError
from foretrain.support.seeds import generator, spawn
from foretrain.support.user_warnings import warn_user

Array = NDArray[np.float64]
Function = Callable[[Array], Array]

_MOST_QUADRATURE = 3
_REPLICATES = 16
_MOST_POINTS, _AT_ONCE = 6_000_000, 100_000


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
    probe = generator(0).standard_normal((256, rank)) @ lower.T
    size = float(np.sqrt(np.mean(call(probe) ** 2))) or 1.0
    if any(locations):
        return _panelled(call, lower, [locations[i] for i in order], order, size, tolerance)
    return _on_grid(call, lower, size, tolerance)


def _on_grid(call: Function, lower: Array, size: float, tolerance: float) -> Expectation:
    """On finer and finer grids, the same along each independent variable, until the mean no longer changes."""
    rank, value, error = lower.shape[1], math.nan, math.inf
    for axis in ladder(tolerance):
        if len(axis.points) ** rank > _MOST_POINTS:
            break
        x, weights = (
            np.stack(np.meshgrid(*[each] * rank, indexing="ij"), axis=-1).reshape(-1, rank)
            for each in (axis.points, axis.weights)
        )
        parts = np.array_split(np.arange(len(x)), -(-len(x) // _AT_ONCE))
        last, value = (
            value,
            float(sum(weights[part].prod(axis=1) @ call(x[part] @ lower.T) for part in parts)),
        )
        error = 3 * abs(value - last) + 1e-15 * size
        if error <= tolerance * size:
            break
    if not error <= 2 * tolerance * size:
        warn_user(
            f"the expectation reached only an error of {error:.1e}; declare `kinks=` if the function has any."
        )
    return Expectation(np.asarray(value), np.asarray(error), "grids")


@dataclass(frozen=True)
class _Planes:
    """Tells the panels where one input has kinks; contributes no value of its own."""

    kinks: tuple[float, ...]
    strip: float = 1.0
    blur: float = 0.0
    reach: float = np.inf

    def __call__(self, z: Array) -> Array:
        return np.ones_like(z)[None]


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

    which, mean = np.zeros((1, len(lower)), np.intp), np.zeros((1, len(lower)))
    value, error = nested_expectation(
        planes, which, lower[order][None], mean, np.array([[size]]), tolerance, whole=whole
    )
    return Expectation(np.asarray(value[0, 0]), np.asarray(error[0, 0]), "panels")


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


def factors_of(observable: Any, inputs: int) -> list[Factor] | None:
    """One factor per input, or None for a function of all of them."""
    if isinstance(observable, str | Factor | Activation | Polynomial):
        observable = [observable]
    if not isinstance(observable, Sequence):
        if not callable(observable):
            raise InputError(f"{observable!r} is no observable: give factors, one per input, or a function.")
        return None
    if len(observable) != inputs:
        raise InputError(
            f"{len(observable)} factors were given for {inputs} inputs: give one each, 1.0 for none."
        )
    return [as_factor(spec) for spec in observable]


def checked_function(function: Any, inputs: int, copies: int = 1) -> Function:
    """A function that is called with (points, inputs), or (points, copies, inputs), and gives (points,).

    What is handed back takes all numbers of a point in one row (points, copies * inputs), and refuses other answers.
    """
    shape = (inputs,) if copies == 1 else (copies, inputs)
    taken = f"an array (points, {', '.join(map(str, shape))})"
    if not callable(function):
        raise InputError(f"the function must be callable with {taken}, not {function!r}.")

    def call(z: Array) -> Array:
        values = np.asarray(function(z.reshape(-1, *shape)))
        if values.shape != (len(z),) or values.dtype.kind not in "fiub":
            raise InputError(
                f"the function takes {taken} and must return one real number for each point, but returned "
                f"{values.dtype} of shape {values.shape} for {len(z)} points."
            )
        if not np.isfinite(values).all():
            raise InputError(
                "the function returned values that are not finite: keep it finite for all real inputs."
            )
        return values.astype(np.float64)

    return call


def kink_locations(kinks: Any, inputs: int) -> list[tuple[float, ...]]:
    """Values of z at which a function is not smooth, for each input, from one list for all or one for each."""
    try:
        given: list[Any] = [kinks] if _is_single(kinks) else list(kinks)
        if all(map(_is_single, given)):
            rows = [tuple(float(place) for place in given)] * inputs
        else:
            rows = [tuple(float(place) for place in row) for row in given]
    except (TypeError, ValueError):
        rows = []
    if len(rows) != inputs or not all(math.isfinite(place) for row in rows for place in row):
        raise InputError(
            f"`kinks` are {kinks!r}: give finite numbers, or one list of them for each of {inputs} inputs."
        )
    return rows


def _is_single(value: Any) -> bool:
    """A number, also one wrapped in an array."""
    return bool(np.isscalar(value)) or getattr(value, "ndim", 1) == 0


_INDEPENDENT = 1e-9  # of the correlations' largest eigenvalue: below it a direction of the inputs is rounding


class Directions(NamedTuple):
    """K = forth forth^T on its support: z = forth u, u = back z with independent standard normals u."""

    forth: Array  # (inputs, directions)
    back: Array  # (directions, inputs)


def directions(K: Array) -> Directions:
    """Of the correlations, scaled back, so that inputs may differ much in size; zero inputs drop out."""
    size = np.sqrt(np.maximum(np.diagonal(K), 0.0))
    scale = np.divide(1.0, size, out=np.zeros_like(size), where=size > 0)
    variances, vectors = np.linalg.eigh(scale[:, None] * K * scale)
    kept = variances > _INDEPENDENT * max(variances.max(initial=0.0), np.finfo(float).tiny)
    roots = np.sqrt(variances[kept])
    return Directions(size[:, None] * vectors[:, kept] * roots, (vectors[:, kept] / roots).T * scale)
