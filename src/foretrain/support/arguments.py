"""Numbers and arrays that users give: as the package takes them, or one sentence that says what is wrong."""

from __future__ import annotations

import math
import operator
from typing import cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from foretrain.support.errors import InputError

Array = NDArray[np.float64]


def real_array(name: str, values: ArrayLike | None) -> Array:
    """Values as float64, or an error if they are no real numbers, not finite, or masked."""
    if np.ma.is_masked(values):
        raise InputError(f"`{name}` is a masked array: fill its masked entries, or leave them out.")
    try:
        given = np.asarray(values)
        if values is None:
            raise TypeError
        found = np.asarray(given.real if np.iscomplexobj(given) else given, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(f"`{name}` is not a real array: give numbers, as many in every row.") from None
    except RuntimeError as error:  # a tensor that carries a gradient, or lies on a device
        raise InputError(f"`{name}` cannot be read ({error}): give an array.") from None
    if np.iscomplexobj(given):
        raise InputError(f"`{name}` is complex: give real numbers.")
    if not np.isfinite(found).all():
        raise InputError(f"`{name}` contains values that are not finite: remove or replace them.")
    return found


def positive(name: str, value: float) -> float:
    """A positive number, or an error."""
    number = not_negative(name, value)
    if number == 0:
        raise InputError(f"`{name}` is {value!r}: give a positive number.")
    return number


def not_negative(name: str, value: float) -> float:
    """A number from zero on, or an error."""
    try:
        number = math.nan if isinstance(value, bool | str) or np.ndim(value) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not (math.isfinite(number) and number >= 0):
        raise InputError(f"`{name}` is {value!r}: give one number that is finite and not negative.")
    return number


def whole_number(name: str, value: object, least: int = 1) -> int:
    """A whole number that is not below ``least``, or an error."""
    try:
        number = operator.index(cast("int", value))
    except TypeError:
        number = least - 1
    if isinstance(value, bool | np.bool_) or number < least:
        wanted = "a positive whole number" if least == 1 else f"a whole number, at least {least}"
        raise InputError(f"`{name}` is {value!r}: give {wanted}.")
    return number
