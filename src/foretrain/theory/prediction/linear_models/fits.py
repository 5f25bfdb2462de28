"""Linear models fitted by least squares, with or without a ridge: through features, or through their kernel.

The loss is half the sum of squares plus a sum W^2, ``ridge`` being a. With a > 0 both ways give the same prediction
for any number of features and samples, by the push-through identity
Phi^T (Phi Phi^T + 2a)^-1 = (Phi^T Phi + 2a)^-1 Phi^T. Without a ridge, the solution of least norm is meant: a -> 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import eigh, lstsq

from foretrain.support.answers import Result
from foretrain.support.arguments import real_array
from foretrain.support.errors import InputError
from foretrain.support.memory import require_memory
from foretrain.theory.prediction.bayes.posterior import targets_for
from foretrain.theory.prediction.cholesky import check_kernel, factorise

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False, repr=False)
class PrimalFit(Result):
    """Weights W (features, outputs) of z = sum_j W_j phi_j."""

    weights: Array
    ridge: float
    rank: int

    def predict(self, features: ArrayLike) -> Array:
        """Outputs (tests, outputs) from test features (tests, F)."""
        given = real_array("features", features)
        if given.ndim != 2 or given.shape[1] != len(self.weights):
            raise InputError(f"features have shape {given.shape}: give (tests, {len(self.weights)}).")
        return np.asarray(given @ self.weights)


@dataclass(frozen=True, eq=False, repr=False)
class DualFit(Result):
    """Coefficients c (training samples, outputs) of z = sum_a k(x, x_a) c_a."""

    coefficients: Array
    ridge: float
    jitter: float
    rank: int

    def predict(self, kernel: ArrayLike) -> Array:
        """Outputs (tests, outputs) from the kernel (tests, training samples)."""
        given = real_array("the kernel", kernel)
        if given.ndim != 2 or given.shape[1] != len(self.coefficients):
            raise InputError(f"the kernel has shape {given.shape}: give (tests, {len(self.coefficients)}).")
        return np.asarray(given @ self.coefficients)


def fit_features(features: ArrayLike, Y: ArrayLike, ridge: float = 0.0) -> PrimalFit:
    """W = (M + 2a)^-1 Phi^T y with M = Phi^T Phi (10.122)-(10.124), features (N, F); least norm if a = 0.

    Of M (F, F) and the kernel (N, N) the smaller is factorised.

    Examples
    --------
    >>> fit_features([[1.0, 0.0], [1.0, 1.0], [1.0, 2.0]], [1.0, 3.0, 5.0])
    Linear model: 2 features, 1 outputs, least norm, rank 2, |W| = 2.236
    """
    phi, targets, a = _checked(features, Y, ridge)
    samples, size = phi.shape
    require_memory(
        8.0 * (3 * phi.size + 2 * min(samples, size) ** 2), "the fit", "use fewer features or samples"
    )
    if not a:
        weights, _, rank, _ = lstsq(phi, targets)
        return PrimalFit(np.asarray(weights), a, int(rank))
    if size <= samples:
        weights = factorise(phi.T @ phi, 2 * a).solve(phi.T @ targets)
    else:
        weights = phi.T @ factorise(phi @ phi.T, 2 * a).solve(targets)
    return PrimalFit(weights, a, min(samples, size))


def fit_kernel(kernel: ArrayLike, Y: ArrayLike, ridge: float = 0.0) -> DualFit:
    """c = (k + 2a)^-1 y for a kernel (N, N) of training samples (10.132); with a = 0 it must not be singular.

    One that is singular to rounding gets a jitter, which a warning reports; :func:`fit_singular_kernel` needs none.
    """
    training = factorise(kernel, 2 * _check_ridge(ridge))
    targets = targets_for(Y, len(training.lower))
    return DualFit(training.solve(targets), float(ridge), training.jitter, len(targets))


def fit_singular_kernel(kernel: ArrayLike, Y: ArrayLike, tolerance: float = 1e-12) -> DualFit:
    """c = k^+ y, the limit a -> 0: least squares of least norm, also with fewer features than samples.

    Eigenvalues below ``tolerance`` times the largest count as zero.
    """
    k = check_kernel(kernel)
    targets = targets_for(Y, len(k))
    require_memory(32.0 * k.size, f"the spectrum of {len(k):,} samples", "use fewer samples")
    values, vectors = eigh(k)
    kept = values > tolerance * max(values[-1], 0.0)
    if not kept.any():
        raise InputError("the kernel has no positive eigenvalue: give another one.")
    modes = vectors[:, kept]
    return DualFit(modes @ ((modes.T @ targets) / values[kept, None]), 0.0, 0.0, int(kept.sum()))


def push_through(features: ArrayLike, ridge: float) -> tuple[Array, Array]:
    """Both sides of Phi^T (Phi Phi^T + 2a)^-1 = (Phi^T Phi + 2a)^-1 Phi^T, which take targets to weights: (F, N)."""
    phi, _, a = _checked(features, np.zeros(len(np.atleast_1d(features))), ridge)
    if not a:
        raise InputError("`ridge` is 0: the identity needs a positive one, both sides being inverses.")
    dual = factorise(phi @ phi.T, 2 * a).solve(phi).T
    return dual, factorise(phi.T @ phi, 2 * a).solve(phi.T)


def _checked(features: ArrayLike, Y: ArrayLike, ridge: float) -> tuple[Array, Array, float]:
    phi = real_array("features", features)
    if phi.ndim != 2 or not phi.size:
        raise InputError(f"features have shape {phi.shape}: give (samples, features).")
    return phi, targets_for(Y, len(phi)), _check_ridge(ridge)


def _check_ridge(ridge: float) -> float:
    number = real_array("ridge", ridge)
    if number.ndim or number < 0:
        raise InputError(f"`ridge` is {ridge!r}: give one number, zero or positive.")
    return float(number)
