"""Numbers and arrays that users give: as floats, or one sentence that says what is wrong with them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, SupportsFloat, TypeGuard, cast

import numpy as np
from numpy.typing import ArrayLike

from foretrain.support.arguments import Array, not_negative, real_array
from foretrain.support.errors import InputError

PerLayer = float | Sequence[float] | Array

MOST_DRAWS = 10**8
"""Of networks or samples: more would take days, and their seeds alone more memory than there is."""


def check_learning_rate(eta: Any) -> float:
    """eta as a number, or an error."""
    try:
        number = float(eta)
    except (TypeError, ValueError):
        number = math.nan
    if isinstance(eta, bool) or not (math.isfinite(number) and number >= 0):
        raise InputError(f"`eta` is {eta!r}: give a finite learning rate that is not negative.")
    return number


def one_input(x: ArrayLike) -> Array:
    """One input as a vector (n_in,); a single number is an input with one component."""
    vector = np.atleast_1d(real_array("x", x))
    if vector.ndim != 1:
        raise InputError(f"`x` has shape {vector.shape}: give one input, a list of n_in numbers.")
    return vector


def two_inputs(x_1: ArrayLike, x_2: ArrayLike) -> Array:
    """Two inputs as rows (2, n_in)."""
    rows = [np.atleast_1d(real_array("an input", x)) for x in (x_1, x_2)]
    if rows[0].ndim != 1 or rows[0].shape != rows[1].shape:
        shapes = " and ".join(str(row.shape) for row in rows)
        raise InputError(f"the two inputs have shapes {shapes}: give two lists of n_in numbers.")
    return np.stack(rows)


def check_targets(Y: ArrayLike, inputs: int, outputs: int, name: str = "targets") -> Array:
    """Targets, or what else has a number for each input and output, as (inputs, outputs), or an error."""
    targets = real_array(name, Y)
    if targets.shape == (inputs,) and outputs == 1:
        targets = targets[:, None]
    if targets.shape != (inputs, outputs):
        raise InputError(
            f"`{name}` has shape {targets.shape}: give numbers of shape ({inputs}, {outputs}), one row "
            "for each input and one column for each output."
        )
    return targets


def whole_numbers(name: str, values: Sequence[int], count: int, below: int | None = None) -> tuple[int, ...]:
    """So many whole numbers, from zero on and below a bound where there is one, or an error."""
    found = np.asarray(values)
    if found.shape != (count,) or found.dtype.kind not in "iu":
        raise InputError(f"`{name}` is {values!r}: give {count} whole numbers.")
    if below is not None and (found.min() < 0 or found.max() >= below):
        raise InputError(f"`{name}` names {found.min()}..{found.max()}: give numbers from 0 to {below - 1}.")
    return tuple(int(value) for value in found)


def steps_in_words(steps: int) -> str:
    """As a sentence says it."""
    return "1 step" if steps == 1 else f"{steps} steps"


def whole(step: float) -> int:
    """A number of steps, or an error."""
    number = not_negative("time", step)
    if not math.isclose(number, round(number), rel_tol=0, abs_tol=1e-12):
        raise InputError(
            f"`time` is {step!r}: steps are whole numbers; for continuous time use `algorithm='flow'`."
        )
    return round(number)


def is_list(value: object) -> TypeGuard[Sequence[Any]]:
    """Whether something was given layer by layer; numbers wrapped in 0-d arrays are single."""
    return hasattr(value, "__len__") and not isinstance(value, str) and getattr(value, "ndim", 1) > 0


def per_layer(name: str, value: PerLayer, depth: int) -> tuple[float, ...]:
    """One finite number per layer, from one number or a list of them."""
    if not is_list(value):
        return (_finite_number(name, value),) * depth
    if len(value) != depth:
        raise InputError(
            f"`{name}` lists {len(value)} values but depth is {depth}: give one per layer or one number."
        )
    return tuple(_finite_number(name, entry) for entry in value)


def _finite_number(name: str, value: object) -> float:
    real = (
        isinstance(value, SupportsFloat)
        and not isinstance(value, bool | complex)
        and not np.ndim(cast("Any", value))
    )
    if not real or not np.isfinite(float(cast("float", value))):
        raise InputError(f"`{name}` contains {value!r}: give finite real numbers.")
    return float(cast("float", value))
