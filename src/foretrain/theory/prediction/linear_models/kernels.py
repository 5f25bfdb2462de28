"""Kernels of linear models: k(x, x') = sum_j phi_j(x) phi_j(x') for features phi (10.127)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.spatial.distance import cdist

from foretrain.support.arguments import real_array
from foretrain.support.errors import InputError, unknown_name
from foretrain.support.memory import require_memory
from foretrain.theory.architecture import MLP, check_network
from foretrain.theory.prediction.kernels import cross_kernel, cross_tangent_kernel

Array = NDArray[np.float64]
Kernel = Callable[[ArrayLike, ArrayLike], Array]

_NETWORK_KERNELS = {"K": cross_kernel, "Theta": cross_tangent_kernel}


def linear_kernel(X1: ArrayLike, X2: ArrayLike) -> Array:
    """1 + x.x', of the features x and the constant feature 1 that stands for a bias ((10.128), with its bias)."""
    return 1.0 + linear_kernel_as_printed(X1, X2)


def linear_kernel_as_printed(X1: ArrayLike, X2: ArrayLike) -> Array:
    """x.x' as in (10.128), which leaves out the constant feature of (10.119): a model without a bias."""
    first, second = _two_sets(X1, X2)
    return np.asarray(first @ second.T)


def gaussian_kernel(X1: ArrayLike, X2: ArrayLike, scale: float = 1.0) -> Array:
    """exp(-|x - x'|^2 / (2 scale^2)) (10.133)."""
    length = real_array("scale", scale)
    if length.ndim or not length > 0:
        raise InputError(f"scale is {scale!r}: give a positive length.")
    first, second = _two_sets(X1, X2)
    return np.asarray(np.exp(-cdist(first, second, "sqeuclidean") / (2 * length**2)))


def weighted_kernel(features1: ArrayLike, features2: ArrayLike, weights: ArrayLike) -> Array:
    """sum_ij c_ij phi_i phi_j of features (N, F) (10.136); weights c are (F,), or symmetric and positive (F, F)."""
    first, second = _two_sets(features1, features2)
    c, size = real_array("weights", weights), first.shape[1]
    if c.shape == (size,):
        lowest = c.min()
        weighted = first * c
    elif c.shape == (size, size) and np.allclose(c, c.T):
        lowest = np.linalg.eigvalsh(c)[0]
        weighted = first @ c
    else:
        raise InputError(f"weights have shape {c.shape}: give ({size},), or a symmetric ({size}, {size}).")
    if lowest < -1e-12 * np.abs(c).max():
        raise InputError("weights are not positive semidefinite, so that the sum is no kernel: change them.")
    return np.asarray(weighted @ second.T)


def network_kernel(mlp: MLP, name: Literal["K", "Theta"] = "K") -> Kernel:
    """K (10.135) of an infinitely wide network, for Bayesian learning, or Theta (10.140), for gradient descent."""
    check_network(mlp)
    if name not in _NETWORK_KERNELS:
        raise unknown_name("kernel of a network", str(name), _NETWORK_KERNELS)
    return partial(_NETWORK_KERNELS[name], mlp)


def _two_sets(X1: ArrayLike, X2: ArrayLike) -> tuple[Array, Array]:
    first, second = real_array("the first set", X1), real_array("the second set", X2)
    if first.ndim != 2 or second.ndim != 2 or first.shape[1] != second.shape[1]:
        raise InputError(
            f"the two sets have shapes {first.shape} and {second.shape}: give (N1, components) and (N2, components)."
        )
    require_memory(
        24.0 * len(first) * len(second), f"a kernel of {len(first):,} x {len(second):,}", "use fewer samples"
    )
    return first, second
