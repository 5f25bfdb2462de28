"""Deep linear networks: closed forms of the dNTK and ddNTK tensors, any number of inputs.

A deep linear network is linear in its input but not in its parameters, so that Q, S and T do not vanish: it learns
representations, while a network of one layer does not.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from foretrain.support.errors import InputError

Array = NDArray[np.float64]


def linear_dntk(K: ArrayLike, layer: int, lambda_b: float = 1.0, lambda_W: float = 1.0) -> dict[str, Array]:
    """F, B, P, Q, R, S, T, U (N, N, N, N) of a critical linear network at a layer, in stored order.

    For s(z) = z with C_b = 0, C_W = 1, uniform learning rates and equal hidden widths: K (N, N) is then that of the
    data, x.x / n_0. With h = lambda_b + lambda_W K, so that Theta = l h, from (8.79), (8.89), (11.52),
    (∞.179), (∞.180): F_1324 = l(l-1)/2 K_12 h_34, B_1324 = l(l-1)(2l-1)/6 h_12 h_34,
    Q_0123 = l(l^2-1)/6 lambda_W K_13 h_02, S_1234 = l^2(l^2-1)/12 lambda_W h_13 h_24,
    T_1342 = l^2(l^2-1)/12 lambda_W^2 h_12 K_34, and P = R = U = 0.

    Examples
    --------
    >>> round(linear_dntk([[1.0]], 10, 0.1, 0.1)["T"].item(), 12)
    1.65
    """
    kernel = np.asarray(K, dtype=float)
    if kernel.ndim != 2 or kernel.shape[0] != kernel.shape[1]:
        raise InputError(f"K has shape {kernel.shape}: give a square matrix, one row for each input.")
    if layer < 1:
        raise InputError(f"layer is {layer}: give a positive whole number.")
    h = lambda_b + lambda_W * kernel
    crossed = np.einsum("ac,bd->abcd", h, h)
    quartic = layer**2 * (layer**2 - 1) / 12
    nothing = np.zeros_like(crossed)
    return {
        "F": layer * (layer - 1) / 2 * np.einsum("ac,bd->abcd", kernel, h),
        "B": layer * (layer - 1) * (2 * layer - 1) / 6 * crossed,
        "P": nothing,
        "Q": layer * (layer**2 - 1) / 6 * lambda_W * np.einsum("bd,ac->abcd", kernel, h),
        "R": nothing,
        "S": quartic * lambda_W * crossed,
        "T": quartic * lambda_W**2 * np.einsum("ad,bc->abcd", h, kernel),
        "U": nothing,
    }
