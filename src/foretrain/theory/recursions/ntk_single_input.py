"""One input: tangent kernel and joint statistics layer by layer (9.6)-(9.21), to any depth."""

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
from foretrain.theory.recursions.single_input import width_ratio

Array = NDArray[np.float64]


class Tangent(NamedTuple):
    """Everything about the tangent kernel of one input at one layer."""

    Theta: float
    D: float
    F: float
    A: float
    B: float
    H1: float


def tangent_flow(mlp: MLP, first: float, metric: dict[str, Array], C_W_1: Array) -> dict[str, Array]:
    """Theta, D, F, A, B and H1 at layers 1..L, from Theta of layer 1 and K, V, G1 of all layers; C_W_1 as for G1."""
    K, V, G1 = metric["K"], metric["V"], metric["G1"]
    values, tangents = shared_functions(mlp.activation), shared_tangent_functions(mlp.activation)
    kept = np.zeros((mlp.depth, len(Tangent._fields)))
    now = Tangent(first, 0.0, 0.0, 0.0, 0.0, 0.0)
    kept[0] = now
    with np.errstate(over="ignore", invalid="ignore"):  # a kernel that is not finite is refused by name
        for index, layer in enumerate(mlp.layers[1:], start=1):
            at = KernelValues(*values.fast(K[index - 1]))
            more = TangentValues(*tangents.fast(K[index - 1]))
            ratio = width_ratio(mlp, index)
            # Every tensor of the old layer counts n_{l-1}: with the ratio, it counts n_l.
            old = now._replace(**{name: ratio * getattr(now, name) for name in "DFAB"}, H1=ratio * now.H1)
            now = _next(layer, at, more, old, ratio * V[index - 1], ratio * G1[index - 1])
            now = now._replace(H1=now.H1 + C_W_1[index] * at.slope_square * old.Theta)
            kept[index] = now
    return {name: kept[:, column] for column, name in enumerate(Tangent._fields)}


def _next(layer: Layer, at: KernelValues, more: TangentValues, old: Tangent, V: float, G1: float) -> Tangent:
    """One layer on, with Omega = lambda_W s^2 + C_W Theta s'^2 (8.74) in the place of the NTK it will make."""
    C, rate, weight = layer.C_W, layer.lambda_W, layer.C_W * old.Theta
    growth = C * at.slope_square
    response = rate * at.square_slope + weight * at.slope_square_slope  # dOmega/dK
    slopes = more.mixed_fourth - at.square * at.slope_square  # Cov(s^2, s'^2)
    mixed = rate * (at.fourth - at.square**2) + weight * slopes  # Cov(s^2, Omega)
    variance = rate * mixed + weight * (rate * slopes + weight * (more.slope_fourth - at.slope_square**2))
    shift = rate * (at.square_slope * G1 + 0.5 * at.square_bend * V)
    shift += weight * (at.slope_square_slope * G1 + 0.5 * more.slope_square_bend * V)
    return Tangent(
        Theta=float(layer.lambda_b + rate * at.square + growth * old.Theta),  # (9.6)
        D=float(C * (mixed + at.square_slope * (response * V + growth * old.D))),  # (9.13)
        F=float(C**2 * (more.mixed_fourth * old.Theta + at.square_slope**2 * old.F)),  # (9.14)
        A=float(variance + response**2 * V + 2 * response * growth * old.D + growth**2 * old.A),  # (9.16)
        B=float(C**2 * more.slope_fourth * old.Theta**2 + growth**2 * old.B),  # (9.15)
        H1=float(shift + growth * old.H1 + C * at.slope_square_slope * (old.D + 2 * old.F)),
    )
