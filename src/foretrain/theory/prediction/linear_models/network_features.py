"""Feature maps of wide networks: those that a network draws at random, and the eigenfunctions of its kernel.

Learning the output layer alone is a linear model in the random features of layer L - 1, with kernel
k = C_b + C_W/n sum_j s_j s_j -> K (10.135); learning everything is, while weights stay near their start, a linear
model in the gradients sqrt(lambda) dz/dtheta (10.138), (10.139), with kernel H -> Theta (10.140).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import eigh

from foretrain.support.answers import Result
from foretrain.support.arguments import real_array
from foretrain.support.errors import InputError
from foretrain.support.memory import require_memory
from foretrain.support.seeds import Seed, generator
from foretrain.theory.architecture import MLP, check_network
from foretrain.theory.ensembles.networks import Parameters, activity, draw_layer, forward, weight_law
from foretrain.theory.prediction.cholesky import check_kernel

Array = NDArray[np.float64]


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
    source, law = generator(seed), weight_law("gaussian")
    layers = [draw_layer(sized, number, 1, law, source) for number in range(1, sized.depth + 1)]
    return NetworkFeatures(
        Parameters(sized, tuple(weight for weight, _ in layers), tuple(bias for _, bias in layers))
    )


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
        given = real_array("the kernel", kernel)
        if given.ndim != 2 or given.shape[1] != len(self.vectors):
            raise InputError(f"the kernel has shape {given.shape}: give (tests, {len(self.vectors)}).")
        return np.asarray(given @ self.vectors / np.sqrt(self.values))


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
