"""Off criticality: exponential approach to the stable fixed point that the input flows to (section 5.3).

K - K*, dK_[1] fall as chi_parallel^l and ddK_[2] as chi_perp^l, all at K*; V and G1 settle.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from foretrain.activations import Activation
from foretrain.theory.asymptotics.laws import Law, LawSet, Uniform
from foretrain.theory.criticality.fixed_points import correlation_depth
from foretrain.theory.kernel_functions import KernelValues, shared_functions
from foretrain.theory.two_inputs.nearby import Nearby, propagate

Array = NDArray[np.float64]


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
    amplitudes = _amplitudes(act, common, start, K_star, constants)
    constants |= amplitudes
    decay = "relative O(chi_parallel^l)"
    gap = amplitudes["A"] * parallel**layer
    laws = {"K": Law(K_star + gap, "K* + A chi_parallel^l", "derived from (5.46)", decay)}
    if start.K1 or start.K2:
        laws["K1"] = Law(amplitudes["A_1"] * parallel**layer, "A_1 chi_parallel^l", "(5.47)", decay)
    if start.K2 and perpendicular > parallel**2:
        laws["K2"] = Law(amplitudes["A_2"] * perpendicular**layer, "A_2 chi_perp^l", "(5.48)", decay)
    if not common.gamma:
        laws |= _finite_width(at, common, parallel, K_star, gap, layer)
    statement = (
        f"off-critical: K tends to {K_star:.8g}, its rest falls by 1/e every "
        f"{constants['depth_parallel']:.4g} layers"
    )
    return LawSet("off-critical", statement, laws, constants)


def _amplitudes(
    act: Activation, common: Uniform, start: Nearby, K_star: float, constants: dict[str, float]
) -> dict[str, float]:
    """Prefactors of the exponentials, read off the exact flow where the gap is small but well above rounding."""
    parallel, perpendicular = constants["chi_parallel"], constants["chi_perpendicular"]
    depth = (
        4 + math.ceil(math.log(1e6) * max(float(correlation_depth(parallel)), 0)) if abs(parallel) < 1 else 4
    )
    last = propagate(common.network(act, depth), start).isel(layer=depth - 1)
    gap = float(last["K00"]) - K_star
    return {
        "A": gap * parallel**-depth if parallel else 0.0,
        "A_1": float(last["K1"]) * parallel**-depth if parallel else 0.0,
        "A_2": float(last["K2"]) * perpendicular**-depth,
    }


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
