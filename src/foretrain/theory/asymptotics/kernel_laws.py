"""One network, one input: which asymptotic laws of the kernel hold, beside the exact recursion (section 5.3).

At fixed points other than K* = 0 and off criticality K - K*, dK_[1] fall as chi_parallel^l and ddK_[2] as chi_perp^l,
all at K*; V and G1 settle.

Near a half-stable K* > 0 (SWISH, GELU) (5.102), (5.103), with x = -a_1 (K - K*) at layer 1, t = l - 1 and s = 1 + x
t, the flow K' = K + a_1 (K - K*)^2 and all that hangs on it is solved at leading order in x for any x t: V = S* t
at x t << 1 as from K* itself, V = S* t / 5 at x t >> 1.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from foretrain.activations import Activation
from foretrain.support.arguments import Array, real_array
from foretrain.support.errors import InputError, NotSupportedError
from foretrain.theory.architecture import MLP
from foretrain.theory.arguments import one_input
from foretrain.theory.asymptotics.laws import Law, LawSet, Uniform
from foretrain.theory.asymptotics.scale_invariant import scale_invariant_laws
from foretrain.theory.asymptotics.zero_fixed_point import fine_tuned_laws, leading_term, zero_fixed_point_laws
from foretrain.theory.criticality import CriticalPoint, criticality, taylor_coefficients
from foretrain.theory.criticality.fixed_points import correlation_depth, flows_to
from foretrain.theory.kernel_functions import KernelValues, shared_functions
from foretrain.theory.recursions.single_input import single_input_flow
from foretrain.theory.tensors import MEANINGS
from foretrain.theory.two_inputs.nearby import Nearby, first_layer, propagate

if TYPE_CHECKING:
    import xarray as xr


def off_critical_laws(act: Activation, K_star: float, common: Uniform, start: Nearby, layer: Array) -> LawSet:
    """K, dK_[1], ddK_[2], and without skip connections V and G1, at leading order in what is left of K - K*."""
    at = shared_functions(act).at(K_star)
    parallel = common.gamma**2 + common.C_W * float(at.square_slope)
    perpendicular = common.gamma**2 + common.C_W * float(at.slope_square)
    constants = {
        "K_star": K_star,
        "chi_parallel": parallel,
        "chi_perpendicular": perpendicular,
        "depth_parallel": float(correlation_depth(parallel)),
        "depth_perpendicular": float(correlation_depth(perpendicular)),
    }
    # Prefactors of the exponentials, read off the exact flow where the gap is small but well above rounding.
    depth = 4
    if abs(parallel) < 1:
        depth += math.ceil(math.log(1e6) * max(constants["depth_parallel"], 0))
    last = propagate(common.network(act, depth), start).isel(layer=depth - 1)
    A = (float(last["K00"]) - K_star) * parallel**-depth if parallel else 0.0
    A_1 = float(last["K1"]) * parallel**-depth if parallel else 0.0
    A_2 = float(last["K2"]) * perpendicular**-depth
    constants |= {"A": A, "A_1": A_1, "A_2": A_2}
    decay = "relative O(chi_parallel^l)"
    gap = A * parallel**layer
    laws = {"K": Law(K_star + gap, "K* + A chi_parallel^l", "derived from (5.46)", decay)}
    if start.K1 or start.K2:
        laws["K1"] = Law(A_1 * parallel**layer, "A_1 chi_parallel^l", "(5.47)", decay)
    if start.K2 and perpendicular > parallel**2:
        laws["K2"] = Law(A_2 * perpendicular**layer, "A_2 chi_perp^l", "(5.48)", decay)
    if not common.gamma:
        laws |= _finite_width(at, common, parallel, K_star, gap, layer)
    statement = (
        f"off-critical: K tends to {K_star:.8g}, its rest falls by 1/e every "
        f"{constants['depth_parallel']:.4g} layers"
    )
    return LawSet("off-critical", statement, laws, constants)


def _finite_width(
    at: KernelValues, common: Uniform, parallel: float, K_star: float, K: Array, layer: Array
) -> dict[str, Law]:
    if K_star == 0:
        grown = Law(2 * layer * K**2, "2 l K^2", "derived", "relative O(1/l)")
        return {"V": grown, "fluctuation": Law(2 * layer, "2 l / n", "derived", "O(1) / n")}
    V = common.C_W**2 * float(at.fourth - at.square**2) / (1 - parallel**2)
    G1 = 0.5 * common.C_W * float(at.square_bend) * V / (1 - parallel)
    decay = "O(l chi_parallel^l)"
    flat = np.ones_like(layer)
    return {
        "V": Law(V * flat, "C_W^2 [<s^4> - <s^2>^2] / (1 - chi_parallel^2) at K*", "(5.109)", decay),
        "G1": Law(G1 * flat, "C_W g'' V / (2 (1 - chi_parallel)) at K*", "(5.110)", decay),
        "fluctuation": Law(V / K_star**2 * flat, "V / (n K*^2)", "(5.109)", decay),
    }


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
        source, e = point.coefficients["source"], x * t
        V = source * t * (1 + 2 * e + 2 * e**2 + e**3 + e**4 / 5) / s**4
        # t (t - 1) where the continuous flow has t^2: exact at K*.
        G1 = a_1 * source * t * (t - 1) * (10 + 10 * e + 5 * e**2 + e**3) / (20 * s**3)
        laws |= {
            "V": Law(V, "S* (s^5 - 1) / (5 x s^4): S* t near K*, S* t / 5 far on", "derived", off),
            "G1": Law(
                G1, "a_1 S* (s^5 - 5 s + 4) / (20 x^2 s^3): a_1 S* t (t-1) / 2 near K*", "derived", off
            ),
            "fluctuation": Law(V / K_star**2, "V / (n K*^2)", "derived", off),
        }
    side = "attracting" if x > 0 else "repelling" if x < 0 else "fixed"
    # |K - K*| up to which the quadratic term of the flow outweighs the cubic one: 3 |g'' / g'|.
    step = 1e-3 * K_star
    low, middle, high = shared_functions(act).at(K_star + np.array([-step, 0.0, step])).square_bend
    reach = float(abs(3 * middle * 2 * step / (high - low)))
    constants = {"K_star": K_star, "a_1": a_1, "x": x, "reach": reach}
    statement = f"half-stable at K* = {K_star:.8g}, {point.stability}; the input starts on the {side} side"
    return LawSet("half-stable", statement, laws, constants)


def _distance(start: Nearby, power: float, h: float, x: float, s: Array, t: Array) -> Array:
    """K2' = (1 + 2 h (K - K*)) K2 + h K1^2 along the flow."""
    log = np.log(s)
    exponent = (power - 3) * log
    # (s^(p-3) - 1) / ((p-3) x) -> t as x -> 0.
    small = np.abs(exponent) < 1e-8
    denominator = np.where(small, 1.0, (power - 3) * x)
    fed = np.where(small, t, np.expm1(exponent) / denominator)
    return np.asarray(np.exp(-power * log) * (start.K2 + h * start.K1**2 * fed))


_MEANINGS = {
    **MEANINGS,
    "K1": "dK_[1], half the difference of the variances of two nearby inputs",
    "K2": "ddK_[2], a quarter of the squared distance of two nearby inputs",
    "G1_tuned": "next-to-leading metric at C_W (1 + 2 / 3 n) in layers 2 and up (5.142)",
    "fluctuation": "variance of the metric over its square, V / (n K^2)",
}
_SAME = 1e-8
_CLEARLY_STABLE = 0.99  # chi_parallel below it rules criticality out without a search


def asymptotics(mlp: MLP, x: ArrayLike, delta_x: ArrayLike | None = None) -> xr.Dataset:
    """Laws of K, V, G1, V/(nK^2) in depth beside the exact recursion, for one input (section 5.3, 5.4).

    Every variable has the dimensions ``law`` ("exact", "asymptotic") and ``layer``, and says in its attributes
    its formula, its equation number and the order of what is left out. The dataset's attributes name the class
    and hold the data constants, such as l_0. With ``delta_x`` there are also the components K1 and K2 of the
    nearby inputs x ± delta_x / 2.

    The hyperparameters must be equal in all layers after the first. Off criticality the laws are the exponential
    approach to the fixed point. A residual network has laws for K, K1 and K2 in its layers 1..L-1.

    Examples
    --------
    >>> laws = asymptotics(MLP("tanh", depth=1000, width=100), [1.0])
    >>> laws.attrs["universality_class"], round(laws.attrs["l_0"], 4)
    ('K*=0', 0.3439)
    """
    vector = one_input(x)
    common = _uniform(mlp)
    gap = np.zeros_like(vector) if delta_x is None else real_array("delta_x", delta_x)
    start = first_layer(mlp, vector, gap)
    if start.K00 <= 0:
        raise InputError(
            "the input has no signal at layer 1 (x = 0 with C_b = 0): there is no flow to describe."
        )
    layer = np.arange(1.0, mlp.depth + (0 if common.gamma else 1))
    found = _laws(mlp.activation, common, start, layer)
    if delta_x is None:
        found = found.without("K1", "K2")
    nearby, variables = propagate(mlp, start), {}
    exact = {"K": nearby["K00"].values, "K1": nearby["K1"].values, "K2": nearby["K2"].values}
    if not common.gamma:
        exact |= single_input_flow(mlp, start.K00)
        exact["fluctuation"] = exact["V"] / exact["K"] ** 2
        if "G1_tuned" in found.laws:
            exact["G1_tuned"] = single_input_flow(mlp, start.K00, C_W_1=found.constants["c_W_1"])["G1"]
    for name, law in found.laws.items():
        dims, rows, about = law.beside(exact[name][: len(layer)], _MEANINGS[name])
        variables[name] = dims, rows / (mlp.hidden_widths[0] if name == "fluctuation" else 1), about
    return found.dataset(mlp, variables, found.constants)


def _uniform(mlp: MLP) -> Uniform:
    """The hyperparameters of layers 2..L, or 2..L-1 where skip connections end before the output."""
    inner = mlp.layers[1:-1] if mlp.is_residual else mlp.layers[1:]
    if not inner:
        raise InputError("asymptotic laws need a network of depth 2 or more.")
    if len({(layer.C_b, layer.C_W, layer.gamma) for layer in inner}) > 1:
        raise NotSupportedError(
            "C_b, C_W or gamma differ between layers after the first, where no law is known: use foretrain.flow."
        )
    if len(set(mlp.hidden_widths)) > 1:
        raise NotSupportedError(
            "the hidden widths differ, but the laws are stated for equal ones: use foretrain.flow."
        )
    return Uniform(inner[0].C_b, inner[0].C_W, inner[0].gamma)


def _laws(act: Activation, common: Uniform, start: Nearby, layer: Array) -> LawSet:
    if act.slopes is not None:
        return scale_invariant_laws(act, common, start, layer)
    coefficients = _expansion_at_zero(act, common)
    if coefficients:
        return _at_zero(act, coefficients, common, start, layer)
    K_star = flows_to(act, common.C_b, common.C_W, start.K00, common.gamma)
    if math.isfinite(K_star) and abs(_response(act, common, K_star)) < _CLEARLY_STABLE:
        return off_critical_laws(act, K_star, common, start, layer)
    point = _critical_point(act, common)
    if point is not None and point.kind == "half-stable":
        return half_stable_laws(act, point, common, start, layer)
    if point is not None and point.coefficients:
        return _at_zero(act, point.coefficients, common, start, layer)
    return _off_critical(act, common, start, layer)


def _at_zero(
    act: Activation, coefficients: dict[str, float], common: Uniform, start: Nearby, layer: Array
) -> LawSet:
    leading = leading_term(act, coefficients)
    if leading is None or leading.coefficient > 0:
        return _off_critical(act, common, start, layer)
    if leading.power == 1:
        return zero_fixed_point_laws(act, coefficients, common, start, layer)
    return fine_tuned_laws(act, leading, common, start, layer)


def _off_critical(act: Activation, common: Uniform, start: Nearby, layer: Array) -> LawSet:
    K_star = flows_to(act, common.C_b, common.C_W, start.K00, common.gamma)
    if not math.isfinite(K_star) or abs(_response(act, common, K_star)) > 1 - _SAME:
        end = "it grows without bound" if math.isinf(K_star) else "it does not settle exponentially"
        raise NotSupportedError(
            f"no law is known for the kernel of this input, for {end}: lower C_W, or take the critical values of "
            "foretrain.criticality."
        )
    return off_critical_laws(act, K_star, common, start, layer)


def _response(act: Activation, common: Uniform, K: float) -> float:
    """chi_parallel (B.15)."""
    return common.gamma**2 + common.C_W * float(shared_functions(act).at(K).square_slope)


def _expansion_at_zero(act: Activation, common: Uniform) -> dict[str, float]:
    """a_1, a_2, b_1 if the network is critical at K* = 0, which the Taylor series decides without a search."""
    try:
        s = np.asarray(act.taylor(5), dtype=np.float64)
    except NotSupportedError:
        return {}
    critical = common.C_b == 0 and s[0] == 0 and abs(common.C_W * s[1] ** 2 - common.remaining) <= _SAME
    return taylor_coefficients(s) if critical else {}


def _critical_point(act: Activation, common: Uniform) -> CriticalPoint | None:
    """The critical point whose (C_b, C_W), times 1 - gamma^2, are those of the network."""
    found = criticality(act)
    for point in (found.point, *found.others):
        if point is None:
            continue
        C_b, C_W = common.remaining * point.C_b, common.remaining * point.C_W
        if abs(common.C_W - C_W) <= _SAME * C_W and abs(common.C_b - C_b) <= _SAME * C_b:
            return point
    return None
