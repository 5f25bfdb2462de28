"""A user's callable, checked: real numbers in, as many finite real numbers out, element by element."""

from __future__ import annotations

import math
import numbers
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretrain.activations._activation import Array
from foretrain.support.errors import InputError

_ABOVE = (0.0, 1e-3, 0.1, 0.37, 0.71, 1.0, 1.3, 2.2, 3.1, 4.7, 7.3, 11.9, 20.0)
_BELOW = (-2e-3, -0.13, -0.41, -0.83, -1.0, -1.7, -2.6, -3.9, -6.1, -9.7, -20.0)
PROBES = np.array(_ABOVE + _BELOW)
"""Where callables are tried out."""
_NEAR_ZERO = np.concatenate([PROBES[np.abs(PROBES) <= 3.2], np.linspace(-3.2, 3.2, 258)])


@dataclass(frozen=True)
class Pointwise:
    """A callable of float64 arrays; ``takes_arrays`` is False when it must be called number by number.

    ``precision`` is the relative accuracy of its values.
    """

    function: Callable[..., Any]
    name: str
    takes_arrays: bool
    precision: float = float(np.finfo(np.float64).eps)

    def __call__(self, z: Array) -> Array:
        """The values at z, with anything unusable refused in one sentence."""
        values = self.unchecked(z)
        if not np.isfinite(values).all():
            where = np.asarray(z)[~np.isfinite(values)].flat[0]
            raise InputError(
                f"the callable {self.name!r} returned a value that is not finite at z = {where:g}: "
                "an activation must be finite on the whole real line."
            )
        return values

    def unchecked(self, z: Array) -> Array:
        """The values at z, which may be infinite or nan; for points that the user did not ask for."""
        argument = np.array(z, dtype=np.float64)
        if argument.size == 0:
            return argument
        # Always one axis, so that a function need not know more.
        flat = argument.ravel()
        values = _real_values(self._called(flat), self.name)
        if values.shape != flat.shape:
            raise InputError(
                f"the callable {self.name!r} returned shape {values.shape} for input of shape "
                f"{flat.shape}: an activation must return one value per entry."
            )
        return values.reshape(argument.shape)

    def _called(self, z: Array) -> object:
        try:
            with np.errstate(all="ignore"):
                return self.function(z) if self.takes_arrays else self._one_by_one(z)
        except InputError:
            raise
        except Exception as error:  # anything may come out of a user's function
            raise InputError(
                f"the callable {self.name!r} fails on {z.size} numbers between {z.min():g} and {z.max():g} "
                f"({_brief(error)}): an activation must take any real number."
            ) from error

    @cached_property
    def size(self) -> float:
        """The largest |value| where activations do their work, near 0."""
        return float(np.max(np.abs(self(_NEAR_ZERO))))

    def complex_values(self, z: NDArray[np.complex128]) -> NDArray[np.complex128] | None:
        """The values on the complex plane, None if the callable does not take complex arrays."""
        if not self.takes_arrays:
            return None
        try:
            with np.errstate(all="ignore"), warnings.catch_warnings():
                warnings.simplefilter("error")
                raw = np.asarray(self.function(z.flatten()))
        except Exception:  # whatever a user's function raises here only means that this route is closed
            return None
        usable = raw.shape == (z.size,) and raw.dtype.kind in "fc"
        return raw.astype(np.complex128).reshape(z.shape) if usable else None

    def _one_by_one(self, z: Array) -> NDArray[Any]:
        results = []
        for x in z.tolist():
            try:
                result = self.function(x)
            except (ArithmeticError, ValueError):  # where Python's math gives up
                result = math.nan
            opens = isinstance(result, (np.ndarray, np.generic)) and result.size == 1
            results.append(result.item() if opens else result)
        values = np.empty(z.shape, dtype=object)
        values[:] = results
        return values


def probes_away_from(places: tuple[float, ...]) -> Array:
    """The probes that keep a distance from the given places."""
    distance = np.min(np.abs(PROBES[:, None] - np.array([np.inf, *places])), axis=1)
    return np.asarray(PROBES[distance > 0.05])


def pointwise(function: Callable[..., Any], name: str) -> Pointwise:
    """The callable, after it has shown on a few points that it can be an activation."""
    checked = Pointwise(function, name, _takes_arrays(function, name))
    values = checked(PROBES)
    if not np.array_equal(checked(PROBES), values):
        raise InputError(
            f"the callable {name!r} returned different values for the same input: "
            "an activation must not be random (put dropout elsewhere)."
        )
    backwards = checked.unchecked(PROBES[::-1])[::-1]
    alone = np.array([checked.unchecked(PROBES[i : i + 1])[0] for i in range(0, PROBES.size, 5)])
    close = np.allclose(backwards, values, rtol=1e-9, atol=1e-12)
    if not close or not np.allclose(alone, values[::5], rtol=1e-9):
        raise InputError(
            f"the callable {name!r} does not act element by element (an entry of its result depends on "
            "other entries of the input): an activation must."
        )
    return checked


def _takes_arrays(function: Callable[..., Any], name: str) -> bool:
    try:
        with np.errstate(all="ignore"):
            function(PROBES.copy())
    except InputError:
        raise
    except Exception as array_error:  # anything may come out of a user's function
        try:
            with np.errstate(all="ignore"):
                function(0.5)
        except Exception as number_error:
            raise InputError(
                f"the callable {name!r} fails on an array ({_brief(array_error)}) and on a number "
                f"({_brief(number_error)}): it must take an array of numbers and return one of the same shape."
            ) from number_error
        return False
    return True


def _brief(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:80]}" if text else type(error).__name__


def _real_values(raw: object, name: str) -> Array:
    values = np.asarray(raw)
    kind = type(raw).__name__
    if values.dtype == object:
        odd = {type(entry): entry for entry in values.flat}
        odd = {kind: entry for kind, entry in odd.items() if not issubclass(kind, numbers.Real)}
        kind = next(iter(odd)).__name__ if odd else kind
        values = np.asarray(next(iter(odd.values()))) if odd else values.astype(np.float64)
    if values.dtype.kind == "c":
        raise InputError(f"the callable {name!r} returned complex values: an activation must be real.")
    if values.dtype.kind not in "fiub":
        raise InputError(
            f"the callable {name!r} returned {kind} values: an activation must return real numbers (floats)."
        )
    return values.astype(np.float64)
