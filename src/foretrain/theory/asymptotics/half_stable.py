"""Critical flow near a half-stable fixed point K* > 0 (SWISH, GELU) (5.102), (5.103).

With x = -a_1 (K - K*) at layer 1, t = l - 1 and s = 1 + x t, the flow K' = K + a_1 (K - K*)^2 and all that hangs
on it is solved at leading order in x for any x t: V = S* t at x t << 1 as from K* itself, V = S* t / 5 at x t >> 1.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from foretrain.activations import Activation
from foretrain.theory.asymptotics.laws import Law, LawSet, Uniform
from foretrain.theory.criticality import CriticalPoint
from foretrain.theory.kernel_functions import shared_functions
from foretrain.theory.two_inputs.nearby import Nearby

Array = NDArray[np.float64]


def half_stable_laws(
    act: Activation, point: CriticalPoint, common: Uniform, start: Nearby, layer: Array
) -> LawSet:
    """K, V, G1 and the pair components; nan past the depth at which a start on the repelling side is lost."""
    assert point.K_star is not None
    K_star, part = point.K_star, common.remaining
    a_1, h = part * point.coefficients["a_1"], part * point.coefficients["h"]
    x, t = -a_1 * (start.K00 - K_star), layer - 1
    s = 1 + x * t
    s = np.where(s > 0, s, np.nan)
    off = "relative O(x, (K - K*) / reach)"
    laws = {
        "K": Law(K_star + (start.K00 - K_star) / s, "K* + (K1 - K*) / s", "(5.103), derived", off),
        "K1": Law(start.K1 / s**2, "K1 / s^2", "derived", off),
        "K2": Law(_distance(start, 2 * h / a_1, h, x, s, t), "K2 s^(-2h/a_1) + ...", "derived", off),
    }
    if not common.gamma:
        source = point.coefficients["source"]
        laws |= _finite_width(a_1, source, K_star, x * t, s, t, off)
    side = "attracting" if x > 0 else "repelling" if x < 0 else "fixed"
    constants = {"K_star": K_star, "a_1": a_1, "x": x, "reach": _reach(act, K_star)}
    statement = f"half-stable at K* = {K_star:.8g}, {point.stability}; the input starts on the {side} side"
    return LawSet("half-stable", statement, laws, constants)


def _finite_width(
    a_1: float, source: float, K_star: float, e: Array, s: Array, t: Array, off: str
) -> dict[str, Law]:
    V = source * t * (1 + 2 * e + 2 * e**2 + e**3 + e**4 / 5) / s**4
    # t (t - 1) where the continuous flow has t^2: exact at K*.
    G1 = a_1 * source * t * (t - 1) * (10 + 10 * e + 5 * e**2 + e**3) / (20 * s**3)
    return {
        "V": Law(V, "S* (s^5 - 1) / (5 x s^4): S* t near K*, S* t / 5 far on", "derived", off),
        "G1": Law(G1, "a_1 S* (s^5 - 5 s + 4) / (20 x^2 s^3): a_1 S* t (t-1) / 2 near K*", "derived", off),
        "fluctuation": Law(V / K_star**2, "V / (n K*^2)", "derived", off),
    }


def _distance(start: Nearby, power: float, h: float, x: float, s: Array, t: Array) -> Array:
    """K2' = (1 + 2 h (K - K*)) K2 + h K1^2 along the flow."""
    log = np.log(s)
    exponent = (power - 3) * log
    # (s^(p-3) - 1) / ((p-3) x) -> t as x -> 0.
    small = np.abs(exponent) < 1e-8
    denominator = np.where(small, 1.0, (power - 3) * x)
    fed = np.where(small, t, np.expm1(exponent) / denominator)
    return np.asarray(np.exp(-power * log) * (start.K2 + h * start.K1**2 * fed))


def _reach(act: Activation, K_star: float) -> float:
    """|K - K*| up to which the quadratic term of the flow outweighs the cubic one: 3 |g'' / g'''|."""
    step = 1e-3 * K_star
    low, middle, high = shared_functions(act).at(K_star + np.array([-step, 0.0, step])).square_bend
    return float(abs(3 * middle * 2 * step / (high - low)))
