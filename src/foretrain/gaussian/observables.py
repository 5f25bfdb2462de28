"""What users give as an observable of preactivations: factors, or a function of all inputs with its kinks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.polynomial import Polynomial
from numpy.typing import NDArray

from foretrain.activations import Activation
from foretrain.gaussian.factors import Factor, as_factor
from foretrain.support.errors import InputError

Array = NDArray[np.float64]
Function = Callable[[Array], Array]


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
