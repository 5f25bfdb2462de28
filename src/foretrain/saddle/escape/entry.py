"""The one door to escape times."""

from __future__ import annotations

import math
from typing import Any, Literal

from numpy.typing import ArrayLike

from foretrain.saddle.classes import classify, escape_coupling
from foretrain.saddle.escape.corrected import corrected_time, correction_of, printed_time
from foretrain.saddle.escape.reduced import reduced_time
from foretrain.saddle.escape.transit import transit_time
from foretrain.saddle.parameters import (
    TimeUnit,
    check_choice,
    check_scales,
    check_threshold,
    check_width,
    matrix_times,
)
from foretrain.support.errors import InputError
from foretrain.support.user_warnings import warn_user

Method = Literal["leading", "corrected", "reduced"]
Source = Literal["exact", "paper"]

METHODS: dict[Method, str] = {
    "leading": "leading order",
    "corrected": "first correction",
    "reduced": "exact scalar flow",
}
"""Ways to an escape time, from the roughest on, and what tables and legends call them."""


def escape_time(
    activation: Any,
    scales: ArrayLike,
    *,
    width: int = 64,
    beta: float = 1.0,
    threshold: float = 1.0,
    method: Method = "leading",
    time: TimeUnit = "matrix",
    source: Source = "exact",
) -> float:
    """How long gradient flow from small scales stays near the saddle: the first time at which X_1 = threshold.

    Parameters
    ----------
    activation
        A name, an activation, or any callable. In class D (sigma(0) != 0) "leading" and "corrected" speak of the
        centred network, sigma - sigma(0) in every layer and in the teacher, and warn; "reduced" follows sigma as it
        is given, as a network with it does, which may leave much earlier: the offset passes signals on where scales
        are small. Pass ``centred(activation)`` to hold the methods against each other.
    scales
        X_1(0), ..., X_L(0) in layer order (Def. 3): rows of W_1 of length X_1, entries X_l / N in the middle and
        X_L / sqrt(N) in the last layer. One may be zero; with two zeros nothing ever moves.
    width, beta
        N, and the strength of the teacher beta sigma(v . x).
    threshold
        On X_1. A first layer that is there already gives 0.
    method
        "leading": quadrature (10); "corrected": the first-order flow (24); "reduced": the exact scalar flow (4).
    time
        "matrix": s, learning rate of the first layer times steps; "reduced": t = s / N.
    source
        "paper" replaces the coefficients of "corrected" by the printed ones (33); balanced scales only.

    Returns
    -------
    The time, infinite if X_1 never gets there.

    Examples
    --------
    >>> round(escape_time("tanh", [0.1] * 4, width=64, threshold=0.3), 3)
    587.011
    """
    X, neurons = check_scales(scales), check_width(width)
    level = check_threshold(threshold, X)
    check_choice(method, "`method`", list(METHODS))
    check_choice(source, "`source`", ["exact", "paper"])
    if source == "paper" and method != "corrected":
        raise InputError(
            "`source='paper'` changes the coefficients of `method='corrected'`: give that method."
        )
    found, unit = classify(activation), matrix_times(neurons, time)
    K = escape_coupling(found, len(X), neurons, beta)
    if method != "reduced" and found.letter == "D":
        warn_user(f"{found.centring_note}.")
    if method == "leading":
        return transit_time(K, X, level) / unit
    if method == "reduced":
        expected = transit_time(K, X, level)
        # Where the leading order never leaves, another activation's offset may still start the flow.
        estimate = expected if math.isfinite(expected) else 1 / K
        return reduced_time(found.activation, X, neurons, beta, level, estimate) / unit
    if source == "paper":
        return printed_time(K, X, level, found) / unit
    return corrected_time(K, X, level, correction_of(found)) / unit
