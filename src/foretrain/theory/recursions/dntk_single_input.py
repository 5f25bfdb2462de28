"""One input: P, Q of the dNTK (11.55), (11.56) and R, S, T, U of the ddNTKs (∞.14)-(∞.18) layer by layer."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from foretrain.theory.architecture import MLP, Layer
from foretrain.theory.kernel_functions import (
    KernelValues,
    TangentValues,
    shared_functions,
    shared_tangent_functions,
)
from foretrain.theory.recursions.dntk_functions import (
    BendValues,
    SecondBendValues,
    shared_bend_functions,
    shared_second_bend_functions,
)
from foretrain.theory.recursions.kinks import Kinks
from foretrain.theory.recursions.single_input import width_ratio

Array = NDArray[np.float64]


class _Old(NamedTuple):
    """Tensors of the old layer, counted in n_l; Theta counts nothing."""

    Theta: float
    F: float
    B: float


def dntk_flow(mlp: MLP, known: dict[str, Array], kinks: Kinks) -> dict[str, Array]:
    """P and Q at layers 1..L, from K, Theta, F and B of all layers."""
    tables = shared_functions(mlp.activation), shared_bend_functions(mlp.activation, kinks)
    P, Q = np.zeros(mlp.depth), np.zeros(mlp.depth)
    with np.errstate(over="ignore", invalid="ignore"):  # a kernel that is not finite is refused by name
        for index, layer in enumerate(mlp.layers[1:], start=1):
            K, ratio = known["K"][index - 1], width_ratio(mlp, index)
            at, bent = KernelValues(*tables[0].fast(K)), BendValues(*tables[1].fast(K))
            old = _old(known, index, ratio)
            growth = ratio * layer.C_W**2 * at.slope_square * at.square_slope  # r chi_perp chi_parallel
            source = layer.C_W**2 * bent.bend_fourth * old.Theta**2
            P[index] = source + growth * P[index - 1]
            P[index] += layer.C_W**2 * at.slope_square * bent.bend * old.B
            through = layer.C_W**2 * bent.bend_response * at.square_slope * old.Theta * old.F
            Q[index] = source + growth * Q[index - 1] + through
            if layer.C_W:
                Q[index] += layer.lambda_W / layer.C_W * known["F"][index]
    return {"P": P, "Q": Q}


def ddntk_flow(mlp: MLP, known: dict[str, Array]) -> dict[str, Array]:
    """R, S, T and U at layers 1..L, from K, Theta, F, B, P and Q of all layers."""
    act = mlp.activation
    tables = (
        shared_functions(act),
        shared_tangent_functions(act),
        shared_bend_functions(act, "delta"),
        shared_second_bend_functions(act),
    )
    found = np.zeros((4, mlp.depth))
    with np.errstate(over="ignore", invalid="ignore"):
        for index, layer in enumerate(mlp.layers[1:], start=1):
            K, ratio = known["K"][index - 1], width_ratio(mlp, index)
            at, tangent = KernelValues(*tables[0].fast(K)), TangentValues(*tables[1].fast(K))
            bent, second = BendValues(*tables[2].fast(K)), SecondBendValues(*tables[3].fast(K))
            P, Q = (ratio * known[name][index - 1] for name in "PQ")
            added = _added(layer, at, tangent, bent, second, _old(known, index, ratio), P, Q)
            found[:, index] = ratio * (layer.C_W * at.slope_square) ** 2 * found[:, index - 1] + added
    return dict(zip("RSTU", found, strict=True))


def _old(known: dict[str, Array], index: int, ratio: float) -> _Old:
    return _Old(known["Theta"][index - 1], ratio * known["F"][index - 1], ratio * known["B"][index - 1])


def _added(
    layer: Layer,
    at: KernelValues,
    tangent: TangentValues,
    bent: BendValues,
    second: SecondBendValues,
    old: _Old,
    P: float,
    Q: float,
) -> Array:
    """All of R', S', T', U' but what they had: M_0 and M_1 are the tilts by z_0 and z_1 of the rules in ddntk."""
    C, rate, weight = layer.C_W, layer.lambda_W, layer.C_W * old.Theta
    growth = C * at.slope_square
    M_0 = rate * bent.bend + weight * (bent.bend_response - second.bend_square)
    M_1 = rate * at.slope_square + weight * second.bend_square
    square = weight**2 * second.bend_square_fourth * old.Theta
    R = weight * (rate * bent.bend_fourth * old.Theta + weight * second.third_fourth * old.Theta)
    R += growth * (M_0 * (old.B + P) + M_1 * P)
    S = weight * rate * tangent.slope_fourth * old.Theta + square + growth * M_1 * old.B
    T = rate**2 * tangent.mixed_fourth * old.Theta + 2 * weight * rate * bent.bend_fourth * old.Theta + square
    T += (M_0 + M_1) ** 2 * old.F + 2 * growth * (M_0 + M_1) * Q
    return np.array([R, S, T, square])
