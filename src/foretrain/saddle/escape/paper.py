"""The first correction as the paper prints it, kept for comparison; the corrected forms are in ``corrected``.

lambda takes the place of the exact coefficient: in class B it is kappa without the factor of the first layer and
without the drift of the gaps (the printed moment has the power q + 1, its derivation q, which is used here); in
class C it is gamma_C, with the factor of the first layer on every layer and E[g^2 sigma(g)] cut to 3 a_2.
"""

from __future__ import annotations

import math
from typing import Any

from foretrain.saddle.classes import SaddleClass, classify
from foretrain.saddle.escape.closed_forms import balanced_time
from foretrain.saddle.escape.corrected import correction_of
from foretrain.saddle.escape.transit import Correction
from foretrain.saddle.parameters import Array, check_depth, check_positive
from foretrain.support.errors import NotSupportedError


def printed_lambda(activation: Any) -> float:
    """The paper's lambda (classes B, and D over B) or gamma_C = 6 a_2^2 / (alpha h) (classes C, and D over C)."""
    return _lambda(classify(activation))


def _lambda(found: SaddleClass) -> float:
    correction = correction_of(found)
    if found.centred_letter == "C":
        return 6 * found.a_q**2 / (found.alpha * found.h)
    return correction.kappa


def printed_time(K: float, scales: Array, threshold: float, found: SaddleClass) -> float:
    """int dU / (K U^(L-1) (1 + lambda U^(q-1))) (33), for balanced layers only; infinite where 1 + lambda U^(q-1)
    vanishes before the threshold.
    """
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
    return _integral(_lambda(found), found.q, epsilon, threshold, layers) / K


def _integral(strength: float, q: int, epsilon: float, threshold: float, layers: int) -> float:
    from scipy.integrate import quad

    if Correction(strength / q, q).stall <= threshold:
        return math.inf

    def integrand(y: float) -> float:
        U = threshold * math.exp(y)
        return float(math.exp((2 - layers) * y) / (1 + strength * U ** (q - 1)))

    start = math.log(epsilon / threshold)
    value, _ = quad(integrand, start, 0.0, epsabs=0.0, epsrel=1e-12, limit=500)
    return float(value * threshold ** (2 - layers))


def printed_expansion(activation: Any, epsilon: float, depth: int) -> float:
    """K t of (30) for L > q + 1 and of (31) at L = q + 1, with the printed coefficient and the sign of Cor. 17."""
    found, layers, eps = classify(activation), check_depth(depth), check_positive(epsilon, "epsilon")
    strength = _lambda(found)
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
