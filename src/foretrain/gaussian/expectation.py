"""Expectations of products under a Gaussian: the entry point that chooses the rule.

``expectation([f_1, ..., f_n], K)`` is <f_1(z_1) ... f_n(z_n)>_K (1.68), each f_i any product of activations,
their derivatives and polynomials of z_i. Closed forms come first; smooth products go to lattices, kinked ones
to panels; delta functions of kinked activations are taken out exactly before any rule sees them. K may be
singular: null directions are dropped and nothing is ever inverted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from foretrain.gaussian.covariance import check_covariance
from foretrain.gaussian.factors import as_factor
from foretrain.gaussian.result import Expectation
from foretrain.gaussian.stack import Stack
from foretrain.support.errors import InputError

Array = NDArray[np.float64]

MOST_INPUTS = 4


def default_tolerance(inputs: int) -> float:
    """Accuracy relative to sqrt(prod <f_i^2>): 1e-10 for one and two inputs, 1e-8 for three and four."""
    return 1e-10 if inputs <= 2 else 1e-8


def expectation(
    factors: Sequence[Any],
    K: ArrayLike,
    *,
    mean: ArrayLike | None = None,
    tolerance: float | None = None,
) -> Expectation:
    """``<f_1(z_1) ... f_n(z_n)>`` for z normal with covariance K (1 to 4 inputs), with an error estimate.

    Parameters
    ----------
    factors
        One per input: a name, an activation, any callable, ``(activation, derivative order)``, a
        ``numpy.polynomial.Polynomial``, or products of these built with :func:`factor` and :data:`z`.
    K
        Covariance (n, n), or a stack of them (..., n, n). May be singular.
    mean
        Mean of z, zero by default; shape (n,) or (..., n).
    tolerance
        Wanted accuracy relative to sqrt(prod <f_i^2>). Loosen it for speed. A result that misses it comes
        with an :class:`AccuracyWarning`; ``error`` is always an estimate of what was reached.

    Examples
    --------
    >>> expectation(["tanh", "tanh"], [[1, 0.5], [0.5, 1]])
    Expectation(0.186324413203 ± ..., by lattice)
    """
    if isinstance(factors, str) or not isinstance(factors, Sequence):
        raise InputError("give a list of factors, one for each input, such as ['tanh', 'tanh'].")
    parts = [as_factor(f) for f in factors]
    if not 1 <= len(parts) <= MOST_INPUTS:
        raise InputError(
            f"a product of {len(parts)} inputs was asked for, but 1 to {MOST_INPUTS} are offered; "
            "for more, use expectation_of, which samples."
        )
    K = check_covariance(K, inputs=len(parts))
    tolerance = check_tolerance(tolerance, default_tolerance(len(parts)))
    shape = K.shape[:-2]
    centre = np.zeros(K.shape[:-1]) if mean is None else _check_mean(mean, K.shape[:-1])
    stack = Stack(K.reshape(-1, len(parts), len(parts)), centre.reshape(-1, len(parts)), tolerance)
    value, error = stack.total(parts)
    stack.warn_if_short(parts, value, error)
    rule = (
        "closed form" if stack.rules == {"closed form"} else " and ".join(sorted(stack.rules)) or "symmetry"
    )
    return Expectation(value.reshape(shape), error.reshape(shape), rule)


def check_tolerance(tolerance: float | None, default: float) -> float:
    """The tolerance asked for, or the default."""
    if tolerance is None:
        return default
    if not isinstance(tolerance, int | float) or not 1e-14 <= tolerance <= 0.1:
        raise InputError(f"the tolerance must lie between 1e-14 and 0.1, but is {tolerance!r}.")
    return float(tolerance)


def _check_mean(mean: ArrayLike, shape: tuple[int, ...]) -> Array:
    try:
        centre = np.broadcast_to(np.asarray(mean, dtype=float), shape)
    except ValueError:
        raise InputError(f"the mean has shape {np.shape(mean)}, but the covariance needs {shape}.") from None
    if not np.isfinite(centre).all():
        raise InputError("the mean has entries that are not finite.")
    return centre.copy()
