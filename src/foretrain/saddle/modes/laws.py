"""Modewise escape, each mode by itself (App. E): t_k = I_L(theta) / Gamma_k, and what a mode settles at.

Mode k starts with X_1 = 0 and all other layers at rho_k; c_k = X_1 obeys dc/ds = K (rho^2 + c^2)^((L-1)/2). Inside
a block the width is N_B, and times are matrix times s = N_B t. The law knows nothing of the other modes: the flow
of all blocks together (``block_escape``) says where that fails.

Closure coefficients of odd activations are products of one-dimensional averages: on the diagonal manifold the drive
of entry (k, m) of A_l is E[df_k/dh_m] E[(y_m - f_m) h_m], h_m what layer l gets from mode m. It contains the
teacher's beta_m and is of the same order in the scales as their own growth. The printed drives hold no beta_m: D_k
U_m^q E[z^q sigma'] in (62), which vanishes by symmetry for odd q, and D_k D_m times an open scalar in (64), of
higher order in the scales. They can apply only to a mode m that is already fitted, where E[(y_m - f_m) h_m] is
small. The printed damping of rotations is right at leading order, that of off-block entries has D_k U_m where the
exact one has its square.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.integrate import quad
from scipy.optimize import brentq
from scipy.special import hyp2f1

from foretrain.activations import activation as find_activation
from foretrain.saddle.classes import classify, escape_coupling
from foretrain.saddle.parameters import Array, check_beta, check_scales
from foretrain.saddle.scalar_flow import ChainField, gaussian_rule
from foretrain.support.answers import Result, labelled
from foretrain.support.arguments import positive, whole_number
from foretrain.support.errors import InputError, NotSupportedError

if TYPE_CHECKING:
    import xarray as xr


def transit_integral(depth: int, theta: ArrayLike) -> Array:
    """I_L(theta) = int_0^theta (1 + s^2)^(-(L-1)/2) ds = theta 2F1(1/2, (L-1)/2; 3/2; -theta^2).

    >>> round(float(transit_integral(3, 1.0)) * 4 / math.pi, 12)
    1.0
    """
    reach = np.asarray(theta, dtype=float)
    power = (whole_number("depth", depth, 2) - 1) / 2
    ends = np.isinf(reach)
    inside = np.where(ends, 0.0, reach)
    whole = math.sqrt(math.pi) / 2 * math.gamma(power - 0.5) / math.gamma(power) if depth > 2 else math.inf
    return np.where(ends, np.sign(reach) * whole, inside * hyp2f1(0.5, power, 1.5, -(inside**2)))


def chain_moment(activation: Any, depth: int, rho: float) -> float:
    """T_L(rho) = E[prod_{j=1..L-1} sigma'(c_j)], c_1 = rho g, c_{j+1} = rho sigma(c_j); alpha^(L-1) at rho = 0."""
    act, layers = find_activation(activation), whole_number("depth", depth, 2)
    rule = gaussian_rule(act, refinement=1)
    signal, product = rho * rule.points, np.ones_like(rule.points)
    for _ in range(layers - 1):
        product = np.asarray(product * act.derivative(signal, 1), dtype=np.float64)
        signal = np.asarray(rho * act.value(signal), dtype=np.float64)
    return float(product @ rule.weights)


def mode_coupling(activation: Any, depth: int, rho: float, block_width: int, beta: float) -> float:
    """K_L^k = beta_k h T_L(rho_k) / sqrt(N_B) (52), per matrix time s; the paper prints N for the block's N_B."""
    moment = chain_moment(activation, depth, rho)
    return check_beta(beta) * classify(activation).h * moment / math.sqrt(whole_number("width", block_width))


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
    time = transit_integral(depth, positive("threshold", threshold) / scales) / rate
    rank = np.empty(len(rate), dtype=int)
    rank[np.argsort(-rate, kind="stable")] = np.arange(1, len(rate) + 1)
    variables = {"beta": strengths, "rho": scales, "K": K, "rate": rate, "time": time, "rank": rank}
    if epsilon is not None:
        variables["critical_depth"] = np.array([critical_depth(r, epsilon, depth) for r in scales])
    return labelled(
        {name: ("mode", values) for name, values in variables.items()},
        {"time_unit": "matrix time s", "depth": depth, "block_width": block_width, "threshold": threshold},
        counted=("mode",),
    )


def critical_depth(rho: float, epsilon: float, depth: int) -> float:
    """r_k of rho_k^(L-2) = epsilon^(r_k - 2): how many layers at epsilon make the mode as slow as it is.

    >>> round(critical_depth(0.1, 0.01, depth=4), 12)
    3.0
    """
    layers, small = whole_number("depth", depth, 2), positive("epsilon", epsilon)
    if small >= 1 or layers == 2:
        raise InputError("a critical depth needs epsilon below 1 and at least three layers.")
    return 2 + (layers - 2) * math.log(positive("rho", rho)) / math.log(small)


def critical_scale(bottleneck: float, epsilon: float, depth: int) -> float:
    """rho_k = epsilon^((r_k - 2) / (L - 2)), the inverse of :func:`critical_depth`."""
    layers, small = whole_number("depth", depth, 2), positive("epsilon", epsilon)
    if layers == 2:
        raise InputError(
            "with two layers the escape does not depend on a critical depth: give three or more."
        )
    return float(small ** ((bottleneck - 2) / (layers - 2)))


def fitted_product(activation: Any, depth: int, beta: float, block_width: int) -> float:
    """prod_l X_l = beta h / (sqrt(N_B) alpha^(L-1)), where a mode settles at leading order in small scales."""
    found, layers = classify(activation), whole_number("depth", depth, 2)
    return (
        check_beta(beta)
        * found.h
        / (math.sqrt(whole_number("width", block_width)) * found.alpha ** (layers - 1))
    )


def fitted_scales(activation: Any, scales: ArrayLike, *, beta: float, block_width: int) -> Array:
    """Where a mode settles: the least loss among X with the start's X_l^2 - X_1^2, which the escape conserves.

    The averages are exact. (The scalar flow (4) itself then creeps on along a valley of almost equal loss.)
    """
    X = check_scales(scales)
    escape_coupling(classify(activation), len(X), whole_number("width", block_width), beta)
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


@dataclass(frozen=True)
class DriveAndDamping:
    """o' = drive - damping o of every entry (k, m) between modes, per matrix time s; (k, k) is nan."""

    drive: Array
    damping: Array


def product_coefficients(
    activation: Any, scales: ArrayLike, betas: ArrayLike, block_width: int, layer: int
) -> DriveAndDamping:
    """The drive of the off-diagonal entries of A_layer, and E[(df/do)^2], their damping at a small misfit."""
    X, strengths = np.asarray(scales, dtype=float), np.asarray(betas, dtype=float)
    act = find_activation(activation)
    if act.parity != "odd":
        raise NotSupportedError(f"{act.label} is not odd: take coefficients(), which needs no symmetry.")
    if X.ndim != 2 or X.shape[1:] != strengths.shape or not 1 <= layer < len(X):
        raise InputError(
            f"scales have shape {X.shape}, betas {strengths.shape}, and layer is {layer}: give (layers, modes), "
            "(modes) and a layer below the last."
        )
    width = whole_number("width", block_width)
    chains = [ChainField(act, width, float(beta), refinement=1) for beta in strengths]
    ways = [chain.passage(X[:, mode]) for mode, chain in enumerate(chains)]
    weights = chains[0].rule.weights
    above = np.stack([way.above[layer - 1] for way in ways])
    below = np.stack([way.outputs[layer - 1] for way in ways])
    misfit = np.stack([-way.residual for way in ways])
    drive = np.outer(above @ weights, (misfit * below) @ weights)
    damping = np.outer(above**2 @ weights, below**2 @ weights)
    return DriveAndDamping(_between(drive / width), _between(damping / width))


def printed_damping(activation: Any, scales: ArrayLike, layer: int) -> Array:
    """The paper's damping of entries (k, m) per matrix time: of rotations (64) for layer 1, of C (62) for layer 2."""
    X, act, alpha = np.asarray(scales, dtype=float), find_activation(activation), classify(activation).alpha
    if layer not in (1, 2) or X.ndim != 2 or len(X) < 3:
        raise InputError(f"layer is {layer}: the paper has dampings for layers 1 and 2 of three or more.")
    rule, (depth, modes) = gaussian_rule(act, refinement=1), X.shape
    squares = np.array([act.derivative(u * rule.points, 1) ** 2 @ rule.weights for u in X[0]])
    if layer == 1:
        own = (alpha ** (depth - 2) * X[1:].prod(axis=0)) ** 2 * squares
        return _between(np.outer(own, np.ones(modes)))
    return _between(np.outer(X[2:].prod(axis=0), alpha**2 / modes * squares * X[0]))


def _between(values: Array) -> Array:
    return np.asarray(np.where(np.eye(len(values), dtype=bool), np.nan, values))


@dataclass(frozen=True, repr=False)
class Stage(Result):
    """Drive F, damping H and growth K of a mode's first-layer scale U, per matrix time s."""

    depth: int
    drive: float
    damping: float
    growth: float

    def rate(self, U: float) -> float:
        """dU/ds."""
        return self.drive - self.damping * U + self.growth * U ** (self.depth - 1)

    def time(self, threshold: float, start: float = 0.0) -> float:
        """When U reaches the threshold from ``start``; infinite if it comes to rest before."""
        level = positive("threshold", threshold)
        if not 0 <= start <= level:
            raise InputError(f"start is {start:g}: give a number from 0 to the threshold {level:g}.")
        # The rate is smallest at an end, or where damping and growth balance.
        places, power = [start, level], self.depth - 1
        if power > 1:
            places.append((self.damping / (power * self.growth)) ** (1 / (power - 1)))
        if min(self.rate(float(np.clip(place, start, level))) for place in places) <= 0:
            return math.inf
        split = (self.drive / self.growth) ** (1 / power)
        points = [split] if start < split < level else None

        def pace(U: float) -> float:
            return 1 / self.rate(U)

        return float(quad(pace, start, level, points=points, epsabs=0, epsrel=1e-11, limit=500)[0])


def stage(activation: Any, depth: int, *, beta: float, rho: float, block_width: int) -> Stage:
    """The stage of a mode whose other layers are at rho: F = K rho^(L-1), H = (alpha rho)^(2(L-1)), K of (7).

    Both come from the scalar flow (4) at leading order: the teacher drives X_1 at K prod X_l, and the network's own
    answer sqrt(N_B) (alpha rho)^(L-1) U g damps it.

    >>> found = stage("tanh", 4, beta=1.0, rho=0.1, block_width=64)
    >>> round(found.drive / found.growth, 12)
    0.001
    """
    layers, found, scale = whole_number("depth", depth, 2), classify(activation), positive("rho", rho)
    K = escape_coupling(found, layers, whole_number("width", block_width), beta)
    return Stage(layers, K * scale ** (layers - 1), (found.alpha * scale) ** (2 * (layers - 1)), K)
