"""Entropy and information at infinite width, where preactivations are Gaussian (A.26)-(A.29)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from foretrain.support.arguments import real_array
from foretrain.support.errors import InputError
from foretrain.theory.architecture import MLP
from foretrain.theory.flow import flow
from foretrain.theory.information.series import neurons

if TYPE_CHECKING:
    import xarray as xr

Array = NDArray[np.float64]

_DEPENDENT = 1e-14  # of the largest variance of a group: what is below is rounding
_ROUNDING = 1e-8  # below zero, as integrals leave it
_NO_COVARIANCE = "the kernel is not positive definite: give a covariance matrix."


def gaussian_entropy(K: ArrayLike, m: float = 1) -> float:
    """(m/2) log |2 pi e K| of m independent neurons, K a variance or a covariance over inputs (A.26)."""
    kernel = _kernel(K)
    return neurons(m) / 2 * (len(kernel) * math.log(2 * math.pi * math.e) + _log_determinant(kernel))


def gaussian_information(
    K: ArrayLike, first: Sequence[int] = (0,), second: Sequence[int] = (1,), m: float = 1
) -> float:
    """Information between a neuron's values on two groups of inputs, (1/2) log |K_1| |K_2| / |K_12| (A.28).

    m independent neurons have m times as much. Infinite where one group determines something of the other.

    Examples
    --------
    >>> round(gaussian_information([[1.0, 0.6], [0.6, 1.0]]), 6)  # -log(1 - 0.36) / 2
    0.223144
    """
    kernel = _kernel(K)
    groups = [list(first), list(second)]
    chosen = groups[0] + groups[1]
    if not all(groups) or len(set(chosen)) < len(chosen) or not set(chosen) <= set(range(len(kernel))):
        raise InputError(f"inputs {groups[0]} and {groups[1]} are not two separate groups of {len(kernel)}.")
    bases = [_independent(kernel, group) for group in groups]
    parts = [_log_determinant(basis.T @ kernel @ basis) for basis in (*bases, np.hstack(bases))]
    return neurons(m) / 2 * max(0.0, parts[0] + parts[1] - parts[2])


def _independent(kernel: Array, group: Sequence[int]) -> Array:
    """Columns that pick the group's inputs, or as many combinations of them as are not determined by others."""
    picked = np.eye(len(kernel))[:, list(group)]
    values, vectors = np.linalg.eigh(picked.T @ kernel @ picked)
    if values[0] < -_ROUNDING * np.abs(values).max():
        raise InputError(_NO_COVARIANCE)
    known = values > _DEPENDENT * values[-1]
    return np.asarray(picked if known.all() else picked @ vectors[:, known])


def similarity_information(rho: ArrayLike) -> Array:
    """(1/2) log (1 + rho)^2 / (4 rho) at equal norms, rho = K_[2] / K_[0] (A.29).

    Infinite for inputs that have merged (rho = 0), zero for uncorrelated ones (rho = 1).
    """
    ratio = real_array("rho", rho)
    if (ratio < 0).any():
        raise InputError("rho = K_[2] / K_[0] is a ratio of variances: give numbers from 0 on.")
    with np.errstate(divide="ignore"):
        return np.asarray(np.log1p(ratio) - np.log(4 * ratio) / 2)[()]


def input_information(mlp: MLP, X: ArrayLike) -> xr.DataArray:
    """Information between a neuron's values on two inputs at every layer, before training (A.28).

    Inputs that have merged to the accuracy of integrals have about 11 nats, or infinitely many.
    """
    kernels = flow(mlp, _pair(mlp, X), ["K"])["K"]
    values = [gaussian_information(kernel) for kernel in kernels.values]
    found = kernels[:, 0, 0].copy(data=values).rename("information")
    return found.assign_attrs(meaning="mutual information of a neuron's values on two inputs, in nats")


def trained_input_information(
    mlp: MLP, X_train: ArrayLike, X: ArrayLike, noise: float = 0.0, m: float = 1
) -> float:
    """The same at the output after Bayesian learning, from the posterior covariance (6.57); targets play no part."""
    from foretrain.theory.prediction.bayes import bayes_prediction

    pair = _pair(mlp, X)
    targets = np.zeros((len(mlp.check_inputs(X_train)), mlp.n_out))
    covariance = bayes_prediction(mlp, X_train, targets, pair, noise=noise).covariance
    assert covariance is not None
    return gaussian_information(covariance.values, m=m)


def _pair(mlp: MLP, X: ArrayLike) -> Array:
    inputs = mlp.check_inputs(X)
    if len(inputs) != 2:
        raise InputError(f"X has {len(inputs)} rows: give the two inputs that are compared.")
    return inputs


def _kernel(K: ArrayLike) -> Array:
    kernel = np.atleast_2d(real_array("the kernel", K))
    size = len(kernel)
    if kernel.shape != (size, size) or not np.allclose(kernel, kernel.T, rtol=1e-10, atol=0):
        raise InputError(f"the kernel has shape {kernel.shape}: give a variance, or a symmetric matrix.")
    return kernel


def _log_determinant(kernel: Array) -> float:
    sign, size = np.linalg.slogdet(kernel)
    if sign < 0 or (np.diagonal(kernel) <= 0).any():
        raise InputError(_NO_COVARIANCE)
    return float(size)
