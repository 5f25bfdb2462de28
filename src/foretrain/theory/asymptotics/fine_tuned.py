"""Critical flow to K* = 0 whose leading term is not K^2: K' = K + a K^(1+k) with a < 0.

k = 2, 3, ... where a_1 (and more) vanish, k = 1/2 where the second derivative of the activation jumps at 0. Then
K = (-k a l)^(-1/k), dK_[1] falls as l^(-(1+k)/k), and V / K^2 = 2 l / 3 for every k.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from foretrain.activations import Activation
from foretrain.support.errors import NotSupportedError
from foretrain.theory.asymptotics.constants import FIT_DEPTH, extrapolated
from foretrain.theory.asymptotics.laws import Law, LawSet, Uniform
from foretrain.theory.two_inputs.nearby import Nearby, propagate

Array = NDArray[np.float64]

_HIGHEST = 8


class LeadingTerm(NamedTuple):
    """C_W g = K + coefficient K^(1 + power) + ... at criticality."""

    power: float
    coefficient: float


def leading_term(act: Activation, coefficients: dict[str, float]) -> LeadingTerm | None:
    """The first term that moves the kernel at C_W = 1 / sigma_1^2, C_b = 0; None if none is found."""
    if "a_1/2" in coefficients:
        return LeadingTerm(0.5, coefficients["a_1/2"])
    tolerance = 1e-7 if act.strip_is_measured else 1e-12
    for k in range(1, _HIGHEST + 1):
        try:
            terms = _expansion_terms(act, k)
        except NotSupportedError:
            return None
        if abs(terms.sum()) > tolerance * np.abs(terms).sum():
            return LeadingTerm(k, float(terms.sum()))
    return None


def _expansion_terms(act: Activation, k: int) -> Array:
    """What adds up to a_k = (2k+1)!! [z^(2k+2)] sigma^2 / sigma_1^2."""
    series = act.taylor(2 * k + 1, series=True)
    products = series[1:] * series[:0:-1] / series[1] ** 2
    return np.asarray(math.prod(range(1, 2 * k + 2, 2)) * products)


def fine_tuned_laws(
    act: Activation, leading: LeadingTerm, common: Uniform, start: Nearby, layer: Array
) -> LawSet:
    """K, dK_[1] and, without skip connections, V at leading order."""
    k, a = leading.power, common.remaining * leading.coefficient
    K = (-k * a * layer) ** (-1 / k)
    rest = f"relative O(l^(-{min(1, 1 / k):.3g})) up to logarithms"
    constants = {"k": k, "a": a, "crossover_depth": -1 / (k * a * start.K00**k)}
    laws = {"K": Law(K, "(-k a l)^(-1/k)", "derived", rest)}
    if start.K1:
        constants["delta_parallel"] = _parallel_constant(act, leading, a, common, start)
        values = constants["delta_parallel"] * layer ** (-(1 + k) / k)
        laws["K1"] = Law(values, "delta_parallel l^(-(1+k)/k)", "derived", rest)
    if not common.gamma:
        laws["V"] = Law(2 * layer / 3 * K**2, "2 l K^2 / 3", "derived", rest)
        laws["fluctuation"] = Law(2 * layer / 3, "2 l / (3 n)", "derived", rest)
    statement = f"critical at K* = 0, leading term a K^{1 + k:g}: K falls as l^(-{1 / k:.3g})"
    return LawSet("K*=0, fine-tuned", statement, laws, constants)


def _parallel_constant(
    act: Activation, leading: LeadingTerm, a: float, common: Uniform, start: Nearby
) -> float:
    """The limit of dK_[1] / ((-k a)^(1/k) K)^(1+k), a power series in K or, with k = 1/2, in its root."""
    k = leading.power
    flow = propagate(common.network(act, FIT_DEPTH), start).isel(layer=slice(0, -1))
    K, K1 = flow["K00"].values, flow["K1"].values
    return extrapolated(K ** min(k, 1.0), K1 / ((-k * a) ** (1 / k) * K) ** (1 + k))
