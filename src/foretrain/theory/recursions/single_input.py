"""One input: K, V and G1 layer by layer (5.108)-(5.110), to any depth.

The functions of the kernel come from a table that grows along the flow, so that a layer costs microseconds.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from foretrain.theory.architecture import MLP
from foretrain.theory.kernel_functions import shared_functions

Array = NDArray[np.float64]


def single_input_flow(
    mlp: MLP, first: float, C_b_1: ArrayLike = 0.0, C_W_1: ArrayLike = 0.0
) -> dict[str, Array]:
    """K, V and G1 at layers 1..L, starting from the kernel of layer 1.

    V' = (n_l / n_{l-1}) chi_parallel^2 V + C_W^2 [<s^4> - <s^2>^2] and
    G1' = (n_l / n_{l-1}) [chi_parallel G1 + C_W g'' V / 2] + C_b_1 + C_W_1 g, with the order-1/n parts of C_b and C_W
    at the layer reached (5.140), one number or one per layer; they do not touch layer 1.
    """
    b_1, W_1 = (np.broadcast_to(np.asarray(c, dtype=np.float64), mlp.depth) for c in (C_b_1, C_W_1))
    functions = shared_functions(mlp.activation)
    K, V, G1 = (np.zeros(mlp.depth) for _ in range(3))
    K[0] = first
    with np.errstate(over="ignore", invalid="ignore"):  # a kernel that is not finite is refused by name
        for index, layer in enumerate(mlp.layers[1:], start=1):
            square, slope, bend, _, _, fourth = functions.fast(K[index - 1])
            ratio = width_ratio(mlp, index)
            K[index] = layer.C_b + layer.C_W * square
            response = layer.C_W * slope
            V[index] = ratio * response**2 * V[index - 1] + layer.C_W**2 * (fourth - square**2)
            G1[index] = ratio * (response * G1[index - 1] + 0.5 * layer.C_W * bend * V[index - 1])
            G1[index] += b_1[index] + W_1[index] * square
    return {"K": K, "V": V, "G1": G1}


def width_ratio(mlp: MLP, index: int) -> float:
    """n_l / n_{l-1} for the step from layer l = ``index`` to the next; never with n_0, where it multiplies zero."""
    return 1.0 if index < 2 else mlp.hidden_widths[index - 1] / mlp.hidden_widths[index - 2]
