"""Critical flow to K* = 0 with a_1 < 0 (tanh, sin, erf): series in 1/l and log l (section 5.3.3).

A skip connection at criticality multiplies a_1, a_2 and b_1 by 1 - gamma^2 and changes nothing else for the kernel
(B.32).

Where a_1 (and more) vanish the leading term is K' = K + a K^(1+k) with k = 2, 3, ..., and k = 1/2 where the second
derivative of the activation jumps at 0. Then K = (-k a l)^(-1/k), dK_[1] falls as l^(-(1+k)/k), and V / K^2 = 2 l /
3 for every k.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from foretrain.activations import Activation
from foretrain.support.arguments import Array
from foretrain.support.errors import NotSupportedError
from foretrain.theory.asymptotics.laws import (
    FIT_DEPTH,
    Law,
    LawSet,
    Uniform,
    extrapolated,
    is_deep_enough,
    log_depth_constant,
    reference_start,
)
from foretrain.theory.two_inputs.nearby import Nearby, propagate

_DEEPEST_FIT = 2**17


class Series(NamedTuple):
    """C_W g = K + a_1 K^2 + a_2 K^3, chi_perp = 1 + b_1 K (5.83)-(5.88), skip connections included."""

    a_1: float
    a_2: float
    b_1: float

    @property
    def c(self) -> float:
        """a_2 - a_1^2, the weight of logarithms."""
        return self.a_2 - self.a_1**2


def zero_fixed_point_laws(
    act: Activation, coefficients: dict[str, float], common: Uniform, start: Nearby, layer: Array
) -> LawSet:
    """K (5.94), dK_[1] (5.97), ddK_[2] (5.99), V (5.127), G1 bare (5.134) and tuned (corrected (5.143))."""
    a = Series(*(common.remaining * coefficients[name] for name in ("a_1", "a_2", "b_1")))
    # log l_0 of (5.94), from the exact recursion.
    begin = start.K00 if is_deep_enough(start.K00, -a.a_1) else reference_start(-a.a_1)
    deep = propagate(common.network(act, FIT_DEPTH), Nearby(begin))["K00"].values[:-1]
    log_scale = log_depth_constant(deep, start.K00, -a.a_1, a.c / a.a_1**2)
    with np.errstate(over="ignore"):
        constants = {**a._asdict(), "l_0": float(np.exp(log_scale)), "log_l_0": log_scale}
    # The laws hold far beyond this depth: there the start is forgotten.
    constants["crossover_depth"] = -1 / (a.a_1 * start.K00)
    log = np.log(layer) - log_scale
    # K to the order 1/l^2 with the logarithms of 1/l^3.
    first = -1 / (a.a_1 * layer) - a.c * log / (a.a_1**3 * layer**2)
    K = first - a.c**2 * (log**2 - log) / (a.a_1**5 * layer**3)
    laws = {"K": Law(K, _KERNEL, "(5.94), (B.32)", "O(1/l^3)")}
    if start.K1 or start.K2:
        constants |= _pair_constants(act, a, common, start)
        power = a.b_1 / a.a_1
        parallel = constants["delta_parallel"] / layer**2 * (1 + 2 * a.c / a.a_1**2 * log / layer)
        distance = constants["delta_squared"] / layer**power * (1 + power * a.c / a.a_1**2 * log / layer)
        rest = "relative O(1/l)"
        laws["K1"] = Law(parallel, "delta_parallel / l^2 [1 + 2 c L / (a_1^2 l)]", "(5.97)", rest)
        laws["K2"] = Law(distance, "delta^2 / l^(b_1/a_1) [1 + b_1 c L / (a_1^3 l)]", "(5.99)", rest)
    if not common.gamma:
        laws |= _finite_width(a, log, layer)
        constants["c_W_1"] = 2 / 3 * common.C_W
    growth = common.remaining * (1 + common.gamma**2) * 2 / 3
    statement = f"critical at K* = 0: K falls as 1 / (-a_1 l), V / K^2 grows as {growth:.4g} l"
    return LawSet("K*=0", statement, laws, constants)


_KERNEL = "-1/(a_1 l) - c L/(a_1^3 l^2) - c^2 (L^2 - L)/(a_1^5 l^3), c = a_2 - a_1^2, L = log(l/l_0)"


def _pair_constants(act: Activation, a: Series, common: Uniform, start: Nearby) -> dict[str, float]:
    """delta_parallel and delta^2: limits of K1 / (a_1 K)^2 and K2 / (-a_1 K)^(b_1/a_1), power series in K."""
    depth = max(FIT_DEPTH, int(64 / (-a.a_1 * start.K00)))
    if depth > _DEEPEST_FIT:
        return {"delta_parallel": np.nan, "delta_squared": np.nan}
    flow = propagate(common.network(act, depth), start).isel(layer=slice(0, -1))
    K, K1, K2 = (flow[name].values for name in ("K00", "K1", "K2"))
    return {
        "delta_parallel": extrapolated(K, K1 / (a.a_1 * K) ** 2),
        "delta_squared": extrapolated(K, K2 / (-a.a_1 * K) ** (a.b_1 / a.a_1)),
    }


def _finite_width(a: Series, log: Array, layer: Array) -> dict[str, Law]:
    a_1, a_2, b_1 = a
    subleading = (5 * a_2 + a_1 * (82 * a_1 - 90 * b_1)) / (3 * a_1**4)
    V = 2 / (3 * a_1**2 * layer) + (2 * a.c * log / (3 * a_1**4) + subleading) / layer**2
    tuned = (a_2 + 90 * a_1 * b_1 - 84 * a_1**2) / (3 * (-a_1) ** 3)
    return {
        "V": Law(
            V,
            "2/(3 a_1^2 l) + [2 c L + 5 a_2 + a_1 (82 a_1 - 90 b_1)]/(3 a_1^4 l^2)",
            "(5.127)",
            "O(log^2 l / l^3)",
        ),
        "G1": Law(np.full_like(layer, 1 / (3 * a_1)), "-1/(3 (-a_1))", "(5.134)", "O(log l / l)"),
        "G1_tuned": Law(
            tuned / layer,
            "(a_2 + 90 a_1 b_1 - 84 a_1^2)/(3 (-a_1)^3 l) with c_W_1 = 2/(3 sigma_1^2)",
            "(5.143) corrected",
            "O(log l / l^2)",
        ),
        "fluctuation": Law(2 * layer / 3, "2 l / (3 n)", "from (5.94), (5.127)", "O(log l) / n"),
    }


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
            series = act.taylor(2 * k + 1, series=True)
        except NotSupportedError:
            return None
        # They add up to a_k = (2k+1)!! [z^(2k+2)] sigma^2 / sigma_1^2.
        terms = math.prod(range(1, 2 * k + 2, 2)) * (series[1:] * series[:0:-1] / series[1] ** 2)
        if abs(terms.sum()) > tolerance * np.abs(terms).sum():
            return LeadingTerm(k, float(terms.sum()))
    return None


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
        # The limit of dK_[1] / ((-k a)^(1/k) K)^(1+k), a power series in K or, with k = 1/2, in its root.
        flow = propagate(common.network(act, FIT_DEPTH), start).isel(layer=slice(0, -1))
        deep, K1 = flow["K00"].values, flow["K1"].values
        part = K1 / ((-k * a) ** (1 / k) * deep) ** (1 + k)
        constants["delta_parallel"] = extrapolated(deep ** min(k, 1.0), part)
        values = constants["delta_parallel"] * layer ** (-(1 + k) / k)
        laws["K1"] = Law(values, "delta_parallel l^(-(1+k)/k)", "derived", rest)
    if not common.gamma:
        laws["V"] = Law(2 * layer / 3 * K**2, "2 l K^2 / 3", "derived", rest)
        laws["fluctuation"] = Law(2 * layer / 3, "2 l / (3 n)", "derived", rest)
    statement = f"critical at K* = 0, leading term a K^{1 + k:g}: K falls as l^(-{1 / k:.3g})"
    return LawSet("K*=0, fine-tuned", statement, laws, constants)
