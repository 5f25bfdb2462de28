"""One network, one input: which asymptotic laws hold, beside the exact recursion."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from foretrain.activations import Activation
from foretrain.support.arguments import real_array
from foretrain.support.errors import InputError, NotSupportedError
from foretrain.theory.architecture import MLP
from foretrain.theory.arguments import one_input
from foretrain.theory.asymptotics.laws import LawSet, Uniform
from foretrain.theory.asymptotics.off_critical import half_stable_laws, off_critical_laws
from foretrain.theory.asymptotics.scale_invariant import scale_invariant_laws
from foretrain.theory.asymptotics.zero_fixed_point import fine_tuned_laws, leading_term, zero_fixed_point_laws
from foretrain.theory.criticality import CriticalPoint, criticality, taylor_coefficients
from foretrain.theory.criticality.fixed_points import flows_to
from foretrain.theory.kernel_functions import shared_functions
from foretrain.theory.recursions.single_input import single_input_flow
from foretrain.theory.tensors import MEANINGS
from foretrain.theory.two_inputs.nearby import Nearby, first_layer, propagate

if TYPE_CHECKING:
    import xarray as xr

Array = NDArray[np.float64]

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
    exact, variables = _exact(mlp, start, common, found), {}
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


def _exact(mlp: MLP, start: Nearby, common: Uniform, found: LawSet) -> dict[str, Array]:
    nearby = propagate(mlp, start)
    exact = {"K": nearby["K00"].values, "K1": nearby["K1"].values, "K2": nearby["K2"].values}
    if not common.gamma:
        exact |= single_input_flow(mlp, start.K00)
        exact["fluctuation"] = exact["V"] / exact["K"] ** 2
        if "G1_tuned" in found.laws:
            exact["G1_tuned"] = single_input_flow(mlp, start.K00, C_W_1=found.constants["c_W_1"])["G1"]
    return exact
