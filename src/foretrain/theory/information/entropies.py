"""Entropies and information in nats, of tables and at infinite width.

Of tables of probabilities every axis is one variable (A.1)-(A.24); preactivations at infinite width are Gaussian
(A.26)-(A.29).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from numbers import Real
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import entr, rel_entr

from foretrain.support.arguments import Array, real_array
from foretrain.support.errors import InputError
from foretrain.theory.architecture import MLP
from foretrain.theory.flow import flow

if TYPE_CHECKING:
    import xarray as xr


_ROUNDING = 1e-9


def surprisal(p: ArrayLike) -> Array:
    """-log p of every outcome, infinite where it cannot happen (A.4)."""
    with np.errstate(divide="ignore"):
        return np.asarray(-np.log(_table(p)))


def entropy(p: ArrayLike) -> float:
    """S = -sum p log p of all variables together, between 0 and the log of the number of outcomes (A.1).

    Examples
    --------
    >>> round(entropy([0.5, 0.5]), 6)
    0.693147
    """
    return float(entr(_table(p)).sum())


def cross_entropy(p: ArrayLike, q: ArrayLike) -> float:
    """S[p, q] = -sum p log q: the entropy of p and the divergence from q to it; infinite where q rules p out."""
    return entropy(p) + divergence(p, q)


def divergence(p: ArrayLike, q: ArrayLike) -> float:
    """KL[p || q] = sum p log(p / q), never negative (A.12)."""
    first, second = _table(p), _table(q)
    if first.shape != second.shape:
        raise InputError(f"p has shape {first.shape} and q {second.shape}: give tables of the same outcomes.")
    return max(0.0, float(rel_entr(first, second).sum()))


def mutual_information(
    joint: ArrayLike, first: int | Iterable[int] = 0, second: int | Iterable[int] = 1
) -> float:
    """I = S_x + S_y - S_xy = KL[p_xy || p_x p_y] (A.14), (A.15).

    ``first`` and ``second`` are axes of the table, or groups of them; other axes are summed over.

    Examples
    --------
    >>> round(mutual_information(np.diag([0.25] * 4)), 6)
    1.386294
    """
    table = _table(joint)
    groups = [_axes(first, table), _axes(second, table)]
    if set(groups[0]) & set(groups[1]):
        raise InputError(f"axes {groups[0]} and {groups[1]} overlap: give two separate groups.")
    return max(0.0, sum(_entropy_of(table, g) for g in groups) - _entropy_of(table, groups[0] + groups[1]))


def conditional_information(joint: ArrayLike) -> float:
    """I(x, y | z) of a table with three axes, never negative."""
    table = _three(joint)
    return max(
        0.0,
        _entropy_of(table, (0, 2))
        + _entropy_of(table, (1, 2))
        - _entropy_of(table, (0, 1, 2))
        - _entropy_of(table, (2,)),
    )


def tripartite_information(joint: ArrayLike) -> float:
    """I_3 = I(x, y) - I(x, y | z) of a table with three axes (A.24).

    Positive where the variables repeat each other (copies), negative where two tell about the third only together
    (the exclusive or of two fair bits: -log 2).
    """
    table = _three(joint)
    ones = sum(_entropy_of(table, (axis,)) for axis in range(3))
    pairs = sum(_entropy_of(table, pair) for pair in ((0, 1), (0, 2), (1, 2)))
    return ones - pairs + _entropy_of(table, (0, 1, 2))


def _entropy_of(table: Array, axes: tuple[int, ...]) -> float:
    others = tuple(axis for axis in range(table.ndim) if axis not in axes)
    return float(entr(table.sum(axis=others)).sum())


def _axes(given: int | Iterable[int], table: Array) -> tuple[int, ...]:
    axes = (given,) if isinstance(given, int) else tuple(given)
    if not axes or any(not -table.ndim <= axis < table.ndim for axis in axes):
        raise InputError(f"axes {axes} do not name variables of a table with {table.ndim} axes.")
    return tuple(axis % table.ndim for axis in axes)


def _three(joint: ArrayLike) -> Array:
    table = _table(joint)
    if table.ndim != 3:
        raise InputError(f"the table has {table.ndim} axes: give one for each of three variables.")
    return table


def _table(p: ArrayLike) -> Array:
    table = np.asarray(p, dtype=np.float64)
    if not table.size or not np.isfinite(table).all() or (table < 0).any():
        raise InputError("the table holds negative or infinite numbers, or none: give probabilities.")
    if abs(table.sum() - 1) > _ROUNDING:
        raise InputError(f"the probabilities add up to {table.sum():.6g}: divide them by their sum.")
    return table


_DEPENDENT = 1e-14  # of the largest variance of a group: what is below is rounding
_BELOW_ZERO = 1e-8  # below zero, as integrals leave it
_NO_COVARIANCE = "the kernel is not positive definite: give a covariance matrix."


def neurons(m: object) -> float:
    """A number of neurons; halves of an odd layer are allowed, as (A.73) has them."""
    if isinstance(m, bool) or not isinstance(m, Real) or not 0 < float(m) < math.inf:
        raise InputError(f"the number of neurons is {m!r}: give a positive number.")
    return float(m)


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
    if values[0] < -_BELOW_ZERO * np.abs(values).max():
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
