"""What the user gives: scales in layer order, width, teacher strength, threshold, unit of time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from foretrain.support.arguments import positive, real_array, whole_number
from foretrain.support.errors import InputError, unknown_name

Array = NDArray[np.float64]
TimeUnit = Literal["matrix", "reduced"]
Word = TypeVar("Word", bound=str)

TIME_UNITS = {
    "matrix": "s, the time of the matrix flow (learning rate of the first layer times steps)",
    "reduced": "t = s / width, the time of the scalar flow (4)",
}
TIME_LABELS = {"s": "time s (learning rate × steps)", "t": "time t (= s / width)"}
"""What axes call a unit of time, by its letter."""
SMALLEST_RATIO = 1e-100
"""A positive scale this much below the threshold is as good as zero, and products of such ones underflow."""


def check_scales(scales: ArrayLike) -> Array:
    """X_1(0)..X_L(0) as a vector: at least two, finite, none negative."""
    found = check_state(scales)
    if (found < 0).any():
        raise InputError(
            f"in `scales`, that of layer {int(np.argmax(found < 0)) + 1} is negative: `escape times are for scales "
            "that are zero or positive; reduced_flow follows any signs|give none below 0`."
        )
    return found


def check_state(scales: ArrayLike) -> Array:
    """One finite number for each of at least two layers, of any sign."""
    found = real_array("scales", scales)
    if found.ndim != 1 or len(found) < 2:
        raise InputError(
            f"`scales` must be a list with one number for each of at least two layers, but has shape {found.shape}."
        )
    return found


def check_beta(beta: Any) -> float:
    """The strength of the teacher, of any sign."""
    try:
        strength = float(beta)
    except (TypeError, ValueError):
        strength = np.nan
    if not np.isfinite(strength):
        raise InputError(f"`beta` is {beta!r}: give the strength of the teacher, one finite number.")
    return strength


def check_threshold(threshold: float, scales: Array) -> float:
    """The threshold on X_1, refused where a positive scale is too far below it for floating point."""
    level = positive("threshold", threshold)
    nonzero = scales[scales > 0]
    if nonzero.size and nonzero.min() < SMALLEST_RATIO * level:
        raise InputError(
            f"the scale {nonzero.min():g} is more than a factor 1e100 below the threshold {level:g}: give 0 instead."
        )
    return level


def check_choice(name: str, kind: str, known: Sequence[Word]) -> Word:
    """One of the known words; ``kind`` marks the parameter, as in :func:`unknown_name`."""
    for word in known:
        if name == word:
            return word
    raise unknown_name(kind, str(name), known)


def matrix_times(width: int, time: str) -> float:
    """By what to divide a matrix time s to express it in the unit asked for: s = width t."""
    check_choice(time, "`time` unit", list(TIME_UNITS))
    return float(width) if time == "reduced" else 1.0


def bottleneck_scales(epsilon: float, bottleneck: int, depth: int, others: ArrayLike = 1.0) -> Array:
    """Scales with the first ``bottleneck`` layers at epsilon and the rest at ``others`` (one number, or one each).

    >>> bottleneck_scales(0.1, 2, 4)
    array([0.1, 0.1, 1. , 1. ])
    """
    layers, narrow = whole_number("depth", depth, 2), whole_number("bottleneck", bottleneck)
    if narrow > layers:
        raise InputError(f"bottleneck is {narrow}, but there are {layers} layers: give at most depth.")
    rest = np.asarray(others, dtype=float)
    if rest.ndim and rest.shape != (layers - narrow,):
        raise InputError(
            f"others has shape {rest.shape}: give one number, or one for each of the {layers - narrow} other layers."
        )
    scales = np.full(layers, positive("epsilon", epsilon))
    scales[narrow:] = rest
    return check_scales(scales)
