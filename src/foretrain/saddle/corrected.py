"""The first correction to the leading order, from the first-order flow (24) with exact Gaussian moments.

dX_l/ds = K prod_{m != l} X_m (1 + q_l kappa X_1^(q-1)), q_1 = q and q_l = 1 above. Only the first layer's
activation is seen at this order: those above it are at products of two and more scales. The saturation by f itself,
of relative order sqrt(N) prod X / beta, is left out as well; it is smaller while L > q - 1.

``printed_`` functions keep the paper's lambda in place of the exact coefficient: in class B it is kappa without the
factor of the first layer and without the drift of the gaps (the printed moment has the power q + 1, its derivation
q, which is used here); in class C it is gamma_C, with the factor of the first layer on every layer and E[g^2
sigma(g)] cut to 3 a_2.

At leading order X_i^2 - X_j^2 are conserved. The first-order flow moves those with the first layer, d(X_l^2 -
X_1^2) = -(q-1) kappa X_1^(q-1) d(X_1^2), so that differences of squares of U_1 = X_1 - ((q-1)/(q+1)) kappa X_1^q
and U_l = X_l are conserved to the next order (Theorem 16).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from foretrain.saddle.classes import SaddleClass, classify, escape_coupling
from foretrain.saddle.leading import LEADING, Correction, balanced_time, transit_time
from foretrain.saddle.parameters import Array, bottleneck_scales, check_threshold
from foretrain.support.answers import Result
from foretrain.support.arguments import positive, whole_number
from foretrain.support.errors import NotSupportedError
from foretrain.support.user_warnings import warn_user

Regime = Literal["L > q + 1", "L = q + 1", "L < q + 1", "linear"]


def correction_of(found: SaddleClass) -> Correction:
    """kappa and q of a class, refused outside the classes."""
    if found.centred_letter == "outside":
        raise NotSupportedError(
            f"the first correction is known for the classes A to D, but {found.activation.label} is outside them: "
            f"{found.reason}; use `method='leading'` or `method='reduced'`."
        )
    return LEADING if found.q is None else Correction(found.kappa, found.q)


def corrected_time(K: float, scales: Array, threshold: float, correction: Correction) -> float:
    """Time of the first-order flow (24), in the unit of 1/K; infinite, with a warning, where it stalls before.

    With kappa < 0 the factor of the first layer vanishes at X_1 = (-1 / (q kappa))^(1/(q-1)): beyond, the expansion
    in small scales says nothing.
    """
    time = transit_time(K, scales, threshold, correction)
    if scales[0] < threshold and threshold >= correction.stall:
        warn_user(
            f"the first-order flow stalls at X_1 = {correction.stall:.4g}, below the threshold {threshold:g}, and "
            "never arrives: choose a smaller `threshold`, or `method='reduced'`."
        )
    return time


@dataclass(frozen=True, repr=False)
class BalancedExpansion(Result):
    """K times the escape time from balanced layers, as epsilon -> 0: ``leading`` + ``correction`` + smaller terms.

    ``coefficient`` multiplies eps^-(L-1-q) / (L-1-q) for L > q + 1, and log(1/eps) at the resonance L = q + 1.
    """

    regime: Regime
    leading: float
    correction: float
    coefficient: float
    K: float

    @property
    def scaled_time(self) -> float:
        """K t."""
        return self.leading + self.correction

    @property
    def time(self) -> float:
        """The escape time in matrix time s."""
        return self.scaled_time / self.K


def balanced_coefficient(found: SaddleClass, depth: int) -> float:
    """-((L+q-1)/L) kappa for L > q + 1, which at the resonance L = q + 1 is -(2q/(q+1)) kappa; 0 in class A.

    Below the resonance no such coefficient exists, and the result is nan.
    """
    correction = correction_of(found)
    if found.q is None:
        return 0.0
    if depth < found.q + 1:
        return math.nan
    return -(depth + correction.q - 1) / depth * correction.kappa


def balanced_expansion(
    activation: Any, epsilon: float, depth: int, *, width: int = 64, beta: float = 1.0, threshold: float = 1.0
) -> BalancedExpansion:
    """The first two terms from balanced scales, corrected forms of (30), (31).

    For L > q + 1 both terms grow as epsilon -> 0 and the threshold drops out; at L = q + 1 the second is a
    logarithm; for L < q + 1 it tends to a constant that depends on the threshold, and is all that the integral over
    the first-order flow has beside the leading term. That is log(X*/eps) for L = 2, otherwise eps^-(L-2) / (L-2).
    """
    layers, found = whole_number("depth", depth, 2), classify(activation)
    scales = bottleneck_scales(epsilon, layers, layers)
    level = check_threshold(threshold, scales)
    K = escape_coupling(found, layers, whole_number("width", width), beta)
    eps, coefficient = float(scales[0]), balanced_coefficient(found, layers)
    leading = balanced_time(1.0, eps, 2, level) if layers == 2 else eps ** (2 - layers) / (layers - 2)
    if found.q is None:
        return BalancedExpansion("linear", leading, 0.0, 0.0, K)
    if layers > found.q + 1:
        power = layers - 1 - found.q
        return BalancedExpansion("L > q + 1", leading, coefficient * eps**-power / power, coefficient, K)
    if layers == found.q + 1:
        return BalancedExpansion("L = q + 1", leading, -coefficient * math.log(eps), coefficient, K)
    whole = corrected_time(1.0, scales, level, correction_of(found))
    return BalancedExpansion("L < q + 1", leading, whole - leading, coefficient, K)


def printed_lambda(activation: Any) -> float:
    """The paper's lambda (classes B, and D over B) or gamma_C = 6 a_2^2 / (alpha h) (classes C, and D over C)."""
    found = classify(activation)
    correction = correction_of(found)
    if found.centred_letter == "C":
        return 6 * found.a_q**2 / (found.alpha * found.h)
    return correction.kappa


def printed_time(K: float, scales: Array, threshold: float, found: SaddleClass) -> float:
    """int dU / (K U^(L-1) (1 + lambda U^(q-1))) (33), for balanced layers only; infinite where 1 + lambda U^(q-1)
    vanishes before the threshold.
    """
    from scipy.integrate import quad

    if (scales != scales[0]).any():
        raise NotSupportedError(
            "the paper's correction (33) is for balanced layers: give equal scales, or `source='exact'`."
        )
    epsilon, layers = float(scales[0]), len(scales)
    if epsilon >= threshold:
        return 0.0
    if epsilon == 0.0:
        return math.inf
    if found.q is None:
        return balanced_time(K, epsilon, layers, threshold)
    strength, q = printed_lambda(found.activation), found.q
    if Correction(strength / q, q).stall <= threshold:
        return math.inf

    def integrand(y: float) -> float:
        U = threshold * math.exp(y)
        return float(math.exp((2 - layers) * y) / (1 + strength * U ** (q - 1)))

    start = math.log(epsilon / threshold)
    value, _ = quad(integrand, start, 0.0, epsabs=0.0, epsrel=1e-12, limit=500)
    return float(value * threshold ** (2 - layers)) / K


def printed_expansion(activation: Any, epsilon: float, depth: int) -> float:
    """K t of (30) for L > q + 1 and of (31) at L = q + 1, with the printed coefficient and the sign of Cor. 17."""
    found, layers, eps = classify(activation), whole_number("depth", depth, 2), positive("epsilon", epsilon)
    strength = printed_lambda(activation)
    if layers == 2 or (found.q is not None and layers < found.q + 1):
        raise NotSupportedError(
            f"the printed expansions are for L > 2 and L >= q + 1, but L = {layers}: use balanced_expansion."
        )
    leading = eps ** (2 - layers) / (layers - 2)
    if found.q is None:
        return leading
    if layers == found.q + 1:
        return leading + strength * math.log(eps)
    power = layers - 1 - found.q
    return leading - strength * eps**-power / power


def normal_form(activation: Any, X: ArrayLike) -> Array:
    """The coordinates U of states X (..., L), to first order in the correction."""
    correction = correction_of(classify(activation))
    U = np.array(X, dtype=float)
    q = correction.q
    U[..., 0] -= (q - 1) / (q + 1) * correction.kappa * U[..., 0] ** q
    return U


def square_differences(X: ArrayLike) -> Array:
    """X_l^2 - X_1^2 for l = 2..L, of states (..., L); conserved at leading order."""
    states = np.asarray(X, dtype=float)
    first = states[..., :1]
    return np.asarray((states[..., 1:] - first) * (states[..., 1:] + first))
