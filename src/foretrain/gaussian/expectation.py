"""Expectations of products under a Gaussian, their derivatives by the covariance, and the usual moments.

``expectation([f_1, ..., f_n], K)`` is <f_1(z_1) ... f_n(z_n)>_K (1.68), each f_i any product of activations,
their derivatives and polynomials of z_i. Closed forms come first; smooth products go to lattices, kinked ones
to panels; delta functions of kinked activations are taken out exactly before any rule sees them. K may be
singular: null directions are dropped and nothing is ever inverted.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from foretrain.gaussian.covariance import check_covariance
from foretrain.gaussian.factors import Factor, as_factor, factor, z
from foretrain.gaussian.result import Expectation
from foretrain.gaussian.stack import Stack
from foretrain.support.answers import labelled
from foretrain.support.errors import InputError

if TYPE_CHECKING:
    import xarray as xr

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
    rule = " and ".join(sorted(stack.rules)) or "symmetry"
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


def moments(activation: Any, K: ArrayLike, *, tolerance: float | None = None) -> xr.Dataset:
    """Moments of an activation at one or several variances K, each with its error estimate and rule.

    A dataset with dimensions ``moment`` and ``K``; with s the activation, the moments are ``mean`` <s>, ``square``
    <s^2>, ``fourth`` <s^4>, ``derivative_square`` <s'^2> and ``radial_derivative`` <z s s'>. C_W times the last but
    one, and C_W / K times the last, are the susceptibilities.

    Examples
    --------
    >>> float(moments("relu", 1.0).value.sel(moment="square"))
    0.5
    """
    variance = np.atleast_1d(np.asarray(K, dtype=float))
    if variance.ndim != 1:
        raise InputError(f"K must be one variance or a list of them, but has shape {variance.shape}.")
    s, slope = factor(activation), factor(activation, order=1)
    products = {
        "mean": s,
        "square": s**2,
        "fourth": s**4,
        "derivative_square": slope**2,
        "radial_derivative": z * s * slope,
    }
    found = [expectation([f], variance[:, None, None], tolerance=tolerance) for f in products.values()]
    table = labelled(
        {
            "value": ("moment K", np.array([e.value for e in found])),
            "error": ("moment K", np.array([e.error for e in found])),
            "rule": ("moment", [e.rule for e in found]),
        },
        {"activation": s.terms[0].activation.label},
        moment=list(products),
        K=variance,
    )
    return table.squeeze("K") if np.ndim(K) == 0 else table


def covariance_gradient(
    factors: Sequence[Any], K: ArrayLike, *, tolerance: float | None = None
) -> Expectation:
    """Derivatives of ``<f_1 ... f_n>_K`` with respect to K, each off-diagonal pair as one symmetric parameter.

    Entry (i, j), i != j, is <d_i d_j F> and entry (i, i) is <d_i^2 F> / 2 (Price). Kinks are exact: their second
    derivatives are delta functions, which the expectation takes out analytically. Shape (..., n, n).

    Examples
    --------
    >>> covariance_gradient(["relu", "relu"], [[1, 0.5], [0.5, 1]]).value[0, 1].round(6)
    np.float64(0.333333)
    """
    parts = [as_factor(f) for f in factors]
    n = len(parts)
    K = check_covariance(K, inputs=n)
    stack = Stack(
        K.reshape(-1, n, n),
        np.zeros((K[..., 0, 0].size, n)),
        check_tolerance(tolerance, default_tolerance(n)),
    )
    value, error = np.empty((len(stack.K), n, n)), np.empty((len(stack.K), n, n))
    for i in range(n):
        for j in range(i, n):
            # The products whose sum is d_i d_j of the product.
            changed: dict[int, list[Factor]] = {k: [f] for k, f in enumerate(parts)}
            for k in (i, j):
                changed[k] = [slope for f in changed[k] for slope in f.derivative()]
            found, doubt = _sum(stack, [list(choice) for choice in product(*changed.values())])
            share = 0.5 if i == j else 1.0
            value[:, i, j] = value[:, j, i] = share * found
            error[:, i, j] = error[:, j, i] = share * doubt
    return Expectation(
        value.reshape(K.shape), error.reshape(K.shape), " and ".join(sorted(stack.rules)) or "symmetry"
    )


def _sum(stack: Stack, products: list[list[Factor]]) -> tuple[Any, Any]:
    value, error = np.zeros(len(stack.K)), np.zeros(len(stack.K))
    for factors in products:
        found, doubt = stack.total(factors)
        stack.warn_if_short(factors, found, doubt)
        value, error = value + found, error + doubt
    return value, error
