"""Limits and diagnostics: the scaling limit at fixed r = L / n, where 1/n fails, and how many draws a check needs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from foretrain.gaussian.cumulants import cumulants_from_moments
from foretrain.support.answers import Result
from foretrain.support.errors import InputError
from foretrain.theory.linear.moments import log_flow, settled
from foretrain.theory.linear.network import DeepLinear, check_order, layer_index


def scaling_limit_moments(r: float, max_order: int = 4) -> NDArray[np.float64]:
    """G_2m / G_2^m = e^(m (m-1) r) for m = 1..max_order, as n and L grow at fixed r = L / n (3.55)."""
    m = np.arange(1, check_order(max_order) + 1)
    return np.asarray(np.exp(m * (m - 1) * _ratio(r)))


def scaling_limit_connected(r: float, max_order: int = 4) -> NDArray[np.float64]:
    """kappa_m / G_2^m for m = 1..max_order in the scaling limit (3.56), (3.57)."""
    order, ratio = check_order(max_order), _ratio(r)

    def by_decimals() -> list[NDArray[np.object_]]:
        powers = [(m * (m - 1) * Decimal(ratio)).exp() for m in range(1, order + 1)]
        return [cumulants_from_moments(np.array(powers, dtype=object))]

    return np.asarray(settled(by_decimals)[0])


def scaling_limit_leading(r: float, m: int) -> float:
    """kappa_m / G_2^m at small r: m^(m-2) (2 r)^(m-1)."""
    return float(check_order(m)) ** (m - 2) * (2 * _ratio(r)) ** (m - 1)


def scaling_limit_relative_error(r: float, m: int, n: int) -> float:
    """Exact minus limit over limit for G_2m at width n, at leading order in 1 / n; large once m^3 L / n^2 is 1."""
    pairs = check_order(m) * (m - 1)
    return -pairs / check_order(n) * (1 + _ratio(r) / 6 * (4 * m - 2))


class NormalLaw(NamedTuple):
    """Mean and variance of a normal variable."""

    mean: float
    variance: float


def scaling_limit_log_variance(r: float) -> NormalLaw:
    """log(R / G_2) tends to N(-r, 2 r): the typical mean square is e^-r G_2, its mean is carried by rare draws."""
    return NormalLaw(-_ratio(r), 2 * _ratio(r))


@dataclass(frozen=True, repr=False)
class PerturbationCheck(Result):
    """Whether the first order in 1 / n describes G_2m; true or false as a whole."""

    ratio: float
    """m^2 L / n, which must be small."""
    exact: float
    """G_2m / G_2^m, infinite where it overflows."""
    first_order: float
    """1 + m (m - 1) (L - 1) / n."""
    tolerance: float

    @property
    def relative_error(self) -> float:
        """Of the first order."""
        return abs(self.first_order / self.exact - 1)

    def __bool__(self) -> bool:
        return self.relative_error <= self.tolerance


def perturbation_valid(n: int, L: int, m: int, tolerance: float = 0.1) -> PerturbationCheck:
    """Is the 1 / n expansion of the 2m-point function any good at width n, in layer L?"""
    n, L, m = check_order(n), check_order(L), check_order(m)
    log_factor = float(np.log1p(2 * np.arange(m) / n).sum())
    with np.errstate(over="ignore"):
        exact = float(np.exp((L - 1) * log_factor))
    return PerturbationCheck(m**2 * L / n, exact, 1 + m * (m - 1) * (L - 1) / n, tolerance)


def draws_needed(r: float, m: int, relative_error: float) -> float:
    """Draws for a relative standard error of the mean of R^m: (e^(2 m^2 r) - 1) / error^2 in the scaling limit.

    Where that is hopeless, verify through log R or a fractional moment instead.
    """
    return _draws(2 * check_order(m) ** 2 * _ratio(r), relative_error)


def draws_needed_at(
    network: DeepLinear, m: int, relative_error: float, layer: int | None = None, G0: float = 1.0
) -> float:
    """As :func:`draws_needed`, exactly for one network and layer (the output unless told).

    The input's mean square G0 matters only with biases.
    """
    place = layer_index(network, network.depth if layer is None else layer)
    logs = log_flow(network, G0, 2 * check_order(m))[place]
    return _draws(float(logs[2 * m - 1] - 2 * logs[m - 1]), relative_error)


def _draws(log_second: float, relative_error: float) -> float:
    """(e^log_second - 1) / error^2 draws, where e^log_second = E[R^2m] / E[R^m]^2."""
    if not relative_error > 0:
        raise InputError(f"the relative error is {relative_error}, but it must be positive.")
    excess = math.expm1(log_second) if log_second < 700 else math.inf
    return max(1.0, excess / relative_error**2)


def _ratio(r: float) -> float:
    if not (math.isfinite(r) and r >= 0):
        raise InputError(f"r = L / n is {r}, but it must be a finite number from 0 on.")
    return float(r)
