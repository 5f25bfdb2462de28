"""Numbers and arrays that users give: as floats, or one sentence that says what is wrong with them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from foretrain.support.errors import InputError

Array = NDArray[np.float64]


def check_learning_rate(eta: Any) -> float:
    """eta as a number, or an error."""
    try:
        number = float(eta)
    except (TypeError, ValueError):
        number = math.nan
    if isinstance(eta, bool) or not (math.isfinite(number) and number >= 0):
        raise InputError(f"eta is {eta!r}: give a finite learning rate that is not negative.")
    return number


def real_array(name: str, values: ArrayLike) -> Array:
    """Values as float64, or an error if they are no real numbers, or not finite."""
    try:
        given = np.asarray(values)
        if np.iscomplexobj(given):
            raise TypeError
        found = np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(f"{name} is not a real array: give numbers.") from None
    except RuntimeError as error:  # a tensor that carries a gradient, or lies on a device
        raise InputError(f"{name} cannot be read ({error}): give an array.") from None
    if not np.isfinite(found).all():
        raise InputError(f"{name} contains values that are not finite: remove or replace them.")
    return found


def check_targets(Y: ArrayLike, inputs: int, outputs: int, name: str = "targets") -> Array:
    """Targets, or what else has a number for each input and output, as (inputs, outputs), or an error."""
    targets = real_array(name, Y)
    if targets.shape == (inputs,) and outputs == 1:
        targets = targets[:, None]
    if targets.shape != (inputs, outputs):
        raise InputError(
            f"{name} have shape {targets.shape}: give numbers of shape ({inputs}, {outputs}), one row for each input "
            "and one column for each output."
        )
    return targets


def positive(name: str, value: float) -> float:
    """A positive number, or an error."""
    number = not_negative(name, value)
    if number == 0:
        raise InputError(f"{name} is {value!r}: give a positive number.")
    return number


def not_negative(name: str, value: float) -> float:
    """A number from zero on, or an error."""
    try:
        number = math.nan if isinstance(value, bool | str) or np.ndim(value) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not (math.isfinite(number) and number >= 0):
        raise InputError(f"{name} is {value!r}: give one number that is finite and not negative.")
    return number


def steps_in_words(steps: int) -> str:
    """As a sentence says it."""
    return "1 step" if steps == 1 else f"{steps} steps"


def whole(step: float) -> int:
    """A number of steps, or an error."""
    number = not_negative("time", step)
    if not math.isclose(number, round(number), rel_tol=0, abs_tol=1e-12):
        raise InputError(
            f"time is {step!r}: steps are whole numbers; for continuous time use algorithm='flow'."
        )
    return round(number)
