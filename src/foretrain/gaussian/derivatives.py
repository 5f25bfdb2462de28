"""How an expectation changes with the covariance (Price's theorem), and with the mean."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from foretrain.gaussian.covariance import check_covariance
from foretrain.gaussian.expectation import check_tolerance, default_tolerance
from foretrain.gaussian.factors import Factor, as_factor
from foretrain.gaussian.result import Expectation
from foretrain.gaussian.stack import Stack


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
            found, doubt = _sum(stack, _differentiate(parts, i, j))
            share = 0.5 if i == j else 1.0
            value[:, i, j] = value[:, j, i] = share * found
            error[:, i, j] = error[:, j, i] = share * doubt
    return Expectation(
        value.reshape(K.shape), error.reshape(K.shape), " and ".join(sorted(stack.rules)) or "symmetry"
    )


def _differentiate(factors: list[Factor], i: int, j: int) -> list[list[Factor]]:
    """The products whose sum is d_i d_j of the product."""
    changed: dict[int, list[Factor]] = {k: [f] for k, f in enumerate(factors)}
    for k in (i, j):
        changed[k] = [slope for f in changed[k] for slope in f.derivative()]
    return [list(choice) for choice in product(*changed.values())]


def _sum(stack: Stack, products: list[list[Factor]]) -> tuple[Any, Any]:
    value, error = np.zeros(len(stack.K)), np.zeros(len(stack.K))
    for factors in products:
        found, doubt = stack.total(factors)
        stack.warn_if_short(factors, found, doubt)
        value, error = value + found, error + doubt
    return value, error
