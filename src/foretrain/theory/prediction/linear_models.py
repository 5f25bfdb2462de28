"""Linear models and kernel methods (section 10.4), and the features by which wide networks are such models.

``fit_features``       least squares in features, ridge or least norm; ``PrimalFit.predict``
``fit_kernel``         the same through a kernel; ``fit_singular_kernel`` for the limit without ridge
``push_through``       why both agree
``linear_kernel``      and ``gaussian_kernel``, ``weighted_kernel``, ``network_kernel`` (K or Theta of an MLP)
``network_features``   random and tangent features of a network of finite width
``eigen_features``     the features that a kernel has on its training samples

The loss is half the sum of squares plus a sum W^2, ``ridge`` being a. With a > 0 both ways give the same prediction
for any number of features and samples, by the push-through identity
Phi^T (Phi Phi^T + 2a)^-1 = (Phi^T Phi + 2a)^-1 Phi^T. Without a ridge, the solution of least norm is meant: a -> 0.

Learning the output layer alone is a linear model in the random features of layer L - 1, with kernel
k = C_b + C_W/n sum_j s_j s_j -> K (10.135); learning everything is, while weights stay near their start, a linear
model in the gradients sqrt(lambda) dz/dtheta (10.138), (10.139), with kernel H -> Theta (10.140).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import eigh, lstsq
from scipy.spatial.distance import cdist

from foretrain.support.answers import Result
from foretrain.support.arguments import Array, real_array
from foretrain.support.errors import InputError, unknown_name
from foretrain.support.memory import require_memory
from foretrain.support.seeds import Seed, generator
from foretrain.theory.architecture import MLP, check_network
from foretrain.theory.ensembles import Parameters, activity, draw_parameters, forward
from foretrain.theory.prediction.bayes.posterior import targets_for
from foretrain.theory.prediction.cholesky import check_kernel, factorise
from foretrain.theory.prediction.kernels import cross_kernel, cross_tangent_kernel


@dataclass(frozen=True, eq=False, repr=False)
class PrimalFit(Result):
    """Weights W (features, outputs) of z = sum_j W_j phi_j."""

    weights: Array
    ridge: float
    rank: int

    def predict(self, features: ArrayLike) -> Array:
        """Outputs (tests, outputs) from test features (tests, F)."""
        return _tests("features", features, len(self.weights)) @ self.weights


@dataclass(frozen=True, eq=False, repr=False)
class DualFit(Result):
    """Coefficients c (training samples, outputs) of z = sum_a k(x, x_a) c_a."""

    coefficients: Array
    ridge: float
    jitter: float
    rank: int

    def predict(self, kernel: ArrayLike) -> Array:
        """Outputs (tests, outputs) from the kernel (tests, training samples)."""
        return _tests("the kernel", kernel, len(self.coefficients)) @ self.coefficients


def _tests(name: str, values: ArrayLike, columns: int) -> Array:
    """What is known of test samples, (tests, columns), or an error."""
    given = real_array(name, values)
    if given.ndim != 2 or given.shape[1] != columns:
        verb = "have" if name.endswith("s") else "has"
        raise InputError(f"{name} {verb} shape {given.shape}: give (tests, {columns}).")
    return given


def fit_features(features: ArrayLike, Y: ArrayLike, ridge: float = 0.0) -> PrimalFit:
    """W = (M + 2a)^-1 Phi^T y with M = Phi^T Phi (10.122)-(10.124), features (N, F); least norm if a = 0.

    Of M (F, F) and the kernel (N, N) the smaller is factorised.

    Examples
    --------
    >>> fit_features([[1.0, 0.0], [1.0, 1.0], [1.0, 2.0]], [1.0, 3.0, 5.0]).rank
    2
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


@dataclass(frozen=True, eq=False, repr=False)
class NetworkFeatures(Result):
    """The features of one random network; the same object gives the features of any inputs."""

    parameters: Parameters

    @property
    def mlp(self) -> MLP:
        """The architecture, whose widths set the number of features."""
        return self.parameters.mlp

    def outputs(self, X: ArrayLike) -> Array:
        """Outputs at initialisation: (N, n_L)."""
        return np.asarray(forward(self.parameters, X)[self.mlp.depth][0].T)

    def random(self, X: ArrayLike) -> Array:
        """sqrt(C_b) and sqrt(C_W / n) s_j of the last hidden layer: (N, n_{L-1} + 1), with mean kernel K."""
        mlp, inputs = self.mlp, self.mlp.check_inputs(X)
        signals = _signals(mlp, inputs, forward(self.parameters, inputs), mlp.depth)
        layer = mlp.layers[-1]
        constant = np.full((len(inputs), 1), np.sqrt(layer.C_b))
        return np.concatenate([constant, np.sqrt(layer.C_W / signals.shape[1]) * signals], axis=1)

    def tangent(self, X: ArrayLike, output: int = 0) -> Array:
        """sqrt(lambda) dz/dtheta of one output (10.139): (N, P), biases before weights, layer 1 first."""
        mlp, inputs = self.mlp, self.mlp.check_inputs(X)
        if not 0 <= output < mlp.n_out:
            raise InputError(f"`output` is {output}: give a number from 0 to {mlp.n_out - 1}.")
        require_memory(
            24.0 * len(inputs) * mlp.parameter_count,
            f"{mlp.parameter_count:,} features of {len(inputs):,} inputs",
            "use fewer inputs or a narrower network",
        )
        z, blocks = forward(self.parameters, inputs), []
        for number, sensitivity in self._sensitivities(z, output):
            layer, signals = mlp.layers[number - 1], _signals(mlp, inputs, z, number)
            rate_b, rate_W = np.sqrt(layer.lambda_b), np.sqrt(layer.lambda_W / signals.shape[1])
            weights = rate_W * sensitivity[:, :, None] * signals[:, None, :]
            blocks.append(np.concatenate([rate_b * sensitivity, weights.reshape(len(inputs), -1)], axis=1))
        return np.concatenate(blocks[::-1], axis=1)

    def _sensitivities(self, z: dict[int, Array], output: int) -> Iterator[tuple[int, Array]]:
        """dz^(L)_output / dz^(l) as (N, n_l), from the output to layer 1."""
        mlp = self.mlp
        sensitivity = np.zeros((z[1].shape[2], mlp.n_out))
        sensitivity[:, output] = 1.0
        for layer in mlp.layers[::-1]:
            yield layer.number, sensitivity
            if layer.number > 1:
                slope = np.asarray(mlp.activation.derivative(z[layer.number - 1][0], 1)).T
                back = (sensitivity @ self.parameters.weights[layer.number - 1][0]) * slope
                sensitivity = back + layer.gamma * sensitivity if layer.gamma else back


def network_features(mlp: MLP, X: ArrayLike, seed: Seed = 0) -> NetworkFeatures:
    """One random network as a feature map; inputs ``X`` only tell how many components inputs have."""
    check_network(mlp)
    sized = mlp.with_inputs(X)
    require_memory(8.0 * sized.parameter_count, "the parameters of the network", "use a smaller width")
    return NetworkFeatures(draw_parameters(sized, 1, generator(seed).standard_normal))


@dataclass(frozen=True, eq=False, repr=False)
class EigenFeatures(Result):
    """Features phi_m = sqrt(e_m) times the eigenvectors of a kernel on training samples, largest eigenvalue first."""

    values: Array  # (R,)
    vectors: Array  # (N, R)
    left_out: float  # share of the trace that the discarded eigenvalues have

    @property
    def training(self) -> Array:
        """On the training samples: (N, R); their products are the kernel."""
        return np.asarray(self.vectors * np.sqrt(self.values))

    def extend(self, kernel: ArrayLike) -> Array:
        """On other samples, from their kernel with the training samples (tests, N): (tests, R)."""
        return _tests("the kernel", kernel, len(self.vectors)) @ self.vectors / np.sqrt(self.values)


def eigen_features(kernel: ArrayLike, rank: int | None = None, tolerance: float = 1e-12) -> EigenFeatures:
    """The ``rank`` leading eigenfeatures of a kernel (N, N), or all above ``tolerance`` of the largest eigenvalue."""
    k = check_kernel(kernel)
    if rank is not None and not 1 <= rank <= len(k):
        raise InputError(f"rank is {rank}: give a number from 1 to {len(k)}.")
    require_memory(32.0 * k.size, f"the spectrum of {len(k):,} samples", "use fewer samples")
    values, vectors = eigh(k)
    values, vectors = values[::-1], vectors[:, ::-1]
    kept = int((values > tolerance * max(values[0], 0.0)).sum())
    if not kept:
        raise InputError("the kernel has no positive eigenvalue: give another one.")
    kept = kept if rank is None else min(kept, rank)
    left_out = max(0.0, 1 - float(values[:kept].sum() / np.trace(k)))
    return EigenFeatures(values[:kept].copy(), vectors[:, :kept].copy(), left_out)


def _signals(mlp: MLP, inputs: Array, z: dict[int, Array], number: int) -> Array:
    """What enters a layer of the one network: (N, n_{l-1})."""
    return inputs if number == 1 else activity(mlp, z[number - 1][0]).T
