"""Modewise escape, each mode by itself (App. E): t_k = I_L(theta) / Gamma_k, and what a mode settles at.

Mode k starts with X_1 = 0 and all other layers at rho_k; c_k = X_1 obeys dc/ds = K (rho^2 + c^2)^((L-1)/2). Inside
a block the width is N_B, and times are matrix times s = N_B t. The law knows nothing of the other modes: the flow of
all blocks together (``block_escape``) says where that fails.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import brentq
from scipy.special import hyp2f1

from foretrain.activations import activation as find_activation
from foretrain.saddle.chain_field import ChainField
from foretrain.saddle.classes import classify
from foretrain.saddle.couplings import escape_coupling
from foretrain.saddle.gaussian_rule import gaussian_rule
from foretrain.saddle.parameters import (
    Array,
    check_beta,
    check_depth,
    check_positive,
    check_scales,
    check_width,
)
from foretrain.support.errors import InputError, NotSupportedError

if TYPE_CHECKING:
    import xarray as xr


def transit_integral(depth: int, theta: ArrayLike) -> Array:
    """I_L(theta) = int_0^theta (1 + s^2)^(-(L-1)/2) ds = theta 2F1(1/2, (L-1)/2; 3/2; -theta^2).

    >>> round(float(transit_integral(3, 1.0)) * 4 / math.pi, 12)
    1.0
    """
    reach = np.asarray(theta, dtype=float)
    power = (check_depth(depth) - 1) / 2
    ends = np.isinf(reach)
    inside = np.where(ends, 0.0, reach)
    whole = math.sqrt(math.pi) / 2 * math.gamma(power - 0.5) / math.gamma(power) if depth > 2 else math.inf
    return np.where(ends, np.sign(reach) * whole, inside * hyp2f1(0.5, power, 1.5, -(inside**2)))


def chain_moment(activation: Any, depth: int, rho: float) -> float:
    """T_L(rho) = E[prod_{j=1..L-1} sigma'(c_j)], c_1 = rho g, c_{j+1} = rho sigma(c_j); alpha^(L-1) at rho = 0."""
    act, layers = find_activation(activation), check_depth(depth)
    rule = gaussian_rule(act, refinement=1)
    signal, product = rho * rule.points, np.ones_like(rule.points)
    for _ in range(layers - 1):
        product = np.asarray(product * act.derivative(signal, 1), dtype=np.float64)
        signal = np.asarray(rho * act.value(signal), dtype=np.float64)
    return float(product @ rule.weights)


def mode_coupling(activation: Any, depth: int, rho: float, block_width: int, beta: float) -> float:
    """K_L^k = beta_k h T_L(rho_k) / sqrt(N_B) (52), per matrix time s; the paper prints N for the block's N_B."""
    moment = chain_moment(activation, depth, rho)
    return check_beta(beta) * classify(activation).h * moment / math.sqrt(check_width(block_width))


def mode_times(
    activation: Any,
    betas: Sequence[float],
    rhos: Sequence[float],
    *,
    depth: int,
    block_width: int,
    threshold: float = 0.5,
    epsilon: float | None = None,
) -> xr.Dataset:
    """Escape times of the modes, each by itself, and their order.

    Variables over ``mode``: ``K`` (52), ``rate`` Gamma_k = K rho_k^(L-2), ``time`` = I_L(threshold / rho_k) / Gamma_k
    in matrix time s, ``rank`` by Gamma_k (1 escapes first), and ``critical_depth`` r_k if ``epsilon`` is given.

    >>> found = mode_times("tanh", (1.0, 0.3), (0.1, 0.5), depth=4, block_width=20)
    >>> found["rank"].values
    array([2, 1])
    """
    import xarray as xr

    strengths, scales = np.asarray(betas, dtype=float), np.asarray(rhos, dtype=float)
    if strengths.ndim != 1 or strengths.shape != scales.shape or not strengths.size:
        raise InputError(
            f"betas and rhos have shapes {strengths.shape} and {scales.shape}: give one of each for every mode."
        )
    if not ((scales > 0).all() and np.isfinite(scales).all()):
        raise InputError("the scales rho must be positive: with all layers at zero a mode never escapes.")
    K = np.array([mode_coupling(activation, depth, r, block_width, b) for r, b in zip(scales, strengths)])
    if not (K > 0).all():
        raise InputError(
            f"K of the modes is {K.tolist()}: only modes with K > 0 escape along positive scales."
        )
    rate = K * scales ** (depth - 2)
    time = transit_integral(depth, check_positive(threshold, "threshold") / scales) / rate
    rank = np.empty(len(rate), dtype=int)
    rank[np.argsort(-rate, kind="stable")] = np.arange(1, len(rate) + 1)
    variables = {"beta": strengths, "rho": scales, "K": K, "rate": rate, "time": time, "rank": rank}
    if epsilon is not None:
        variables["critical_depth"] = np.array([critical_depth(r, epsilon, depth) for r in scales])
    return xr.Dataset(
        {name: ("mode", values) for name, values in variables.items()},
        coords={"mode": np.arange(1, len(rate) + 1)},
        attrs={
            "time_unit": "matrix time s",
            "depth": depth,
            "block_width": block_width,
            "threshold": threshold,
        },
    )


def critical_depth(rho: float, epsilon: float, depth: int) -> float:
    """r_k of rho_k^(L-2) = epsilon^(r_k - 2): how many layers at epsilon make the mode as slow as it is.

    >>> round(critical_depth(0.1, 0.01, depth=4), 12)
    3.0
    """
    layers, small = check_depth(depth), check_positive(epsilon, "epsilon")
    if small >= 1 or layers == 2:
        raise InputError("a critical depth needs epsilon below 1 and at least three layers.")
    return 2 + (layers - 2) * math.log(check_positive(rho, "rho")) / math.log(small)


def critical_scale(bottleneck: float, epsilon: float, depth: int) -> float:
    """rho_k = epsilon^((r_k - 2) / (L - 2)), the inverse of :func:`critical_depth`."""
    layers, small = check_depth(depth), check_positive(epsilon, "epsilon")
    if layers == 2:
        raise InputError(
            "with two layers the escape does not depend on a critical depth: give three or more."
        )
    return float(small ** ((bottleneck - 2) / (layers - 2)))


def fitted_product(activation: Any, depth: int, beta: float, block_width: int) -> float:
    """prod_l X_l = beta h / (sqrt(N_B) alpha^(L-1)), where a mode settles at leading order in small scales."""
    found, layers = classify(activation), check_depth(depth)
    return check_beta(beta) * found.h / (math.sqrt(check_width(block_width)) * found.alpha ** (layers - 1))


def fitted_scales(activation: Any, scales: ArrayLike, *, beta: float, block_width: int) -> Array:
    """Where a mode settles: the least loss among X with the start's X_l^2 - X_1^2, which the escape conserves.

    The averages are exact. (The scalar flow (4) itself then creeps on along a valley of almost equal loss.)
    """
    X = check_scales(scales)
    escape_coupling(classify(activation), len(X), check_width(block_width), beta)
    field = ChainField(find_activation(activation), block_width, beta)
    gaps = X**2 - X[0] ** 2
    least = math.sqrt(max(0.0, float(-gaps.min())))

    def along(U: float) -> Array:
        return np.asarray(np.sqrt(np.maximum(U**2 + gaps, 0.0)))

    def drift(U: float) -> float:
        place = along(U)
        return float(field.rates(place) @ (U / np.maximum(place, 1e-300)))

    low, high = max(float(X[0]), least * (1 + 1e-9), 1e-6), max(1.0, 2 * float(X[0]))
    while drift(high) > 0:
        high *= 2
        if high > 1e6:
            raise NotSupportedError(f"a mode of {field.activation.label} settles at no finite scale.")
    if drift(low) <= 0:
        raise InputError("the scales start beyond where the mode settles: give smaller ones.")
    return along(float(brentq(drift, low, high, xtol=1e-13, rtol=1e-13)))
