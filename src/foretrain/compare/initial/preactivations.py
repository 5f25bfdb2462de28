"""K, V, G1, the three-point function and the kurtosis of random networks, from means over them, batch by batch.

For layer l and a pair A = (a, b) of inputs, X_j is the mean of z_ja z_jb of neuron j given the layer before: the
metric Ĝ_A in a plain layer (4.70), Ĝ_A + γ² z_ja z_jb (of the layer before) in one with a skip connection. Given the
layer before, different neurons are independent, so products over pairs of neurons j ≠ k measure
E[z_ja z_jb z_kc z_kd] with the average over the layer's own weights done exactly. The estimator "neurons" uses
z_ja z_jb of the layer itself instead, which is noisier and takes nothing from the theory.

Every estimate is a function of means over networks, and its batch values are the pseudo-values of the jackknife.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.polynomial import chebyshev
from torch import Tensor

from foretrain.activations import Activation
from foretrain.compare.ensembles import Ensemble, TorchLayer
from foretrain.compare.judging.ladder import BatchValues, Entry
from foretrain.gaussian import expectation, factor
from foretrain.gaussian.interpolation import interpolated_pairs
from foretrain.gaussian.mehler import MOST_TERMS, Series, series, terms_needed
from foretrain.support.memory import require_memory
from foretrain.theory.architecture import MLP, FloatArray
from foretrain.theory.recursions.expectations import PairExpectations
from foretrain.theory.recursions.pairs import Pairs

ESTIMATORS = ("metric", "neurons")

# Of the means <σ_a σ_b> for long lists of covariances.
_TOLERANCE = 1e-13
_FIRST_DEGREE, _LAST_DEGREE = 32, 256
_MOST_CORRELATED = 1 - 1e-12
_TOGETHER = 4096


@dataclass(frozen=True)
class Statistics:
    """Means over the networks of each batch, deviations taken from the kernel K of the theory."""

    mean: FloatArray  # (batches, layers, pairs): X_A − K_A, averaged over neurons
    product: FloatArray  # (batches, layers, pairs, pairs): (X_jA − K_A)(X_kB − K_B), averaged over j ≠ k
    triple: FloatArray  # (batches, layers, inputs, pairs): z_ia (X_jA − K_A), averaged over i ≠ j
    fourth: FloatArray  # (batches, layers, inputs): z_a⁴, averaged over neurons; estimator "neurons" only
    remainder: (
        FloatArray  # (batches, layers, pairs): F(Ĝ) − F(K) − M (Ĝ − K); of plain networks, if asked for
    )


def collect(ensemble: Ensemble, K: FloatArray, estimator: str, with_remainder: bool) -> Statistics:
    """All batches of an ensemble; K (layers, inputs, inputs) is the kernel of the theory."""
    pairs = Pairs(len(ensemble.X))
    depth, size = ensemble.mlp.depth, len(pairs)
    kept = ensemble.draws * depth * size if with_remainder else 0
    kept += ensemble.batches * depth * (2 * size + size**2 + pairs.size * (size + 1))
    require_memory(8 * kept, f"the metrics of {ensemble.draws} networks", "use fewer draws or inputs")

    def one_batch(number: int) -> list[FloatArray]:
        """Ĝ of every network (draws, layers, pairs), then the first four means of ``Statistics`` in their order."""
        with torch.no_grad():
            reader = _Reader(torch.from_numpy(K), estimator)
            chunks = [[reader.read(state) for state in walk] for walk in ensemble.walks(number)]
        by_layer = [[torch.cat(parts).numpy() for parts in zip(*layer)] for layer in zip(*chunks)]
        metrics, *columns = (np.stack(parts, axis=1) for parts in zip(*by_layer))
        return [metrics, *(column.mean(axis=0) for column in columns)]

    metrics, *means = zip(*ensemble.each_batch(one_batch), strict=True)
    mean, product, triple, fourth = map(np.stack, means)
    remainder = np.zeros_like(mean)
    # F(Ĝ) − F(K) − M (Ĝ − K) of layers 1..L-1, seen from layers 2..L.
    for layer in range(depth - 1 if with_remainder else 0):
        metric = np.concatenate([own[:, layer] for own in metrics])
        known, response = pairs.vector(K[layer]), PairExpectations(ensemble.mlp.activation, K[layer]).response
        curved = second_moments(ensemble.mlp, metric, pairs)
        curved -= second_moments(ensemble.mlp, known[None], pairs)
        curved -= (response @ (metric - known).T).T
        remainder[:, layer + 1] = curved.reshape(ensemble.batches, -1, size).mean(axis=1)
    return Statistics(mean, product, triple, fourth, remainder)


class _Reader:
    """Per-network statistics of one layer: Ĝ, X − K, its products over j ≠ k and with z_i, and z⁴."""

    def __init__(self, K: Tensor, estimator: str) -> None:
        self._K, self._estimator = K, estimator
        self._first, self._second = torch.triu_indices(K.shape[-1], K.shape[-1]).unbind()

    def read(self, state: TorchLayer) -> tuple[Tensor, ...]:
        kernel = self._pairs(self._K[state.layer.number - 1])
        metric = self._pairs(state.metric)
        if self._estimator == "neurons":
            legs = state.preactivations
            return metric, *self._over_neurons(legs, self._legs(legs) - kernel), (legs**4).mean(dim=1)
        shared = metric - kernel
        no_fourth = shared.new_zeros((len(shared), self._K.shape[-1]))
        if state.layer.gamma and state.previous is not None:
            legs = state.layer.gamma * state.previous
            return metric, *self._over_neurons(legs, shared[:, None] + self._legs(legs)), no_fourth
        no_triple = shared.new_zeros((len(shared), self._K.shape[-1], shared.shape[-1]))
        return metric, shared, shared[:, :, None] * shared[:, None, :], no_triple, no_fourth

    def _pairs(self, matrix: Tensor) -> Tensor:
        return matrix[..., self._first, self._second]

    def _legs(self, z: Tensor) -> Tensor:
        """z_ja z_jb: (draws, neurons, pairs)."""
        return z[..., self._first] * z[..., self._second]

    @staticmethod
    def _over_neurons(z: Tensor, X: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        neurons = X.shape[1]
        distinct = neurons * (neurons - 1) if neurons > 1 else float("nan")
        total, legs = X.sum(dim=1), z.sum(dim=1)
        product = (total[:, :, None] * total[:, None, :] - X.mT @ X) / distinct
        triple = (legs[:, :, None] * total[:, None, :] - z.mT @ X) / distinct
        return total / neurons, product, triple


def batch_values(mlp: MLP, K: FloatArray, statistics: Statistics, entries: list[Entry]) -> BatchValues:
    """Of the entries of one ensemble; K (layers, inputs, inputs) is the theory's kernel."""
    readers = _readers(mlp, K, {entry.observable for entry in entries})
    return pseudo_values(statistics, readers, entries, first_layer=1)


Means = TypeVar("Means")  # a dataclass of means (batches, ...)


def pseudo_values(
    statistics: Means,
    readers: Mapping[str, Callable[[Means], FloatArray]],
    entries: list[Entry],
    first_layer: int,
) -> BatchValues:
    """Of the entries, by the jackknife; a reader gives its tensor (…, layers, inputs, …) as a function of means."""
    names = {entry.observable for entry in entries}

    def function(columns: dict[str, FloatArray]) -> FloatArray:
        means = type(statistics)(**columns)
        tensors = {name: readers[name](means) for name in names}
        places: list[tuple[Any, ...]] = [(slice(None), e.layer - first_layer, *e.inputs) for e in entries]
        return np.stack([tensors[e.observable][place] for e, place in zip(entries, places)], axis=1)

    return BatchValues.jackknife(function, vars(statistics))


def _readers(mlp: MLP, K: FloatArray, wanted: set[str]) -> dict[str, Callable[[Statistics], FloatArray]]:
    """For each observable the function of means (any leading axis) that gives it at all layers and inputs."""
    pairs = Pairs(K.shape[-1])
    fan_in = np.array(mlp.widths[:-1], dtype=float)
    number = pairs.number

    def mean(means: Statistics) -> FloatArray:
        return np.asarray(K + means.mean[..., number])

    def vertex(means: Statistics) -> FloatArray:
        covariance = means.product - means.mean[..., :, None] * means.mean[..., None, :]
        scaled = fan_in[:, None, None] * covariance
        return np.asarray(scaled[..., number[:, :, None, None], number[None, None]])

    def three_point(means: Statistics) -> FloatArray:
        return np.asarray(fan_in[:, None, None, None] * means.triple[..., number])

    def kurtosis(means: Statistics) -> FloatArray:
        variance = np.diagonal(mean(means), axis1=-2, axis2=-1)
        return np.asarray(fan_in[:, None] * (means.fourth - 3 * variance**2))

    found: dict[str, Callable[[Statistics], FloatArray]] = {
        "K": mean,
        "V": vertex,
        "three_point": three_point,
        "kurtosis": kurtosis,
    }
    if "G1" in wanted:
        responses = [PairExpectations(mlp.activation, kernel).response for kernel in K[:-1]]

        def shift(means: Statistics) -> FloatArray:
            """n (E[Ĝ] − K), carried from layer to layer; layer 1 does not fluctuate.

            E[Ĝ] − K is C_W E[F(Ĝ) − F(K) − M (Ĝ − K)] + C_W M (E[Ĝ] − K) of the layer before, for any M; with
            M = dF/dK the noise of first order in Ĝ − K is gone, and that of n E[Ĝ − K] does not grow with n.
            """
            found = np.zeros_like(means.remainder)
            for layer, response in enumerate(responses, start=1):
                carried = (response @ found[..., layer - 1, :].T).T
                found[..., layer, :] = mlp.C_W[layer] * (means.remainder[..., layer, :] + carried)
            return np.asarray(fan_in[:, None, None] * found[..., number])

        found["G1"] = shift
    return {name: reader for name, reader in found.items() if name in wanted}


def second_moments(mlp: MLP, metric: FloatArray, pairs: Pairs) -> FloatArray:
    """F_ab = <σ_a σ_b> of many metrics (draws, pairs)."""
    found = np.empty_like(metric)
    same = pairs.first == pairs.second
    found[:, same] = single_means(mlp.activation, metric[:, same])
    for pair in np.flatnonzero(~same):
        a, b = pairs.first_twice[pair], pairs.second_twice[pair]
        found[:, pair] = pair_means(mlp.activation, metric[:, a], metric[:, b], metric[:, pair])
    return found


def single_means(activation: Activation, variance: FloatArray) -> FloatArray:
    """<σ²> at many variances (any shape)."""
    square = factor(activation) * factor(activation)
    if activation.closed_form is not None or not variance.all():
        return np.asarray(expectation([square], variance.reshape(-1, 1, 1)).value).reshape(variance.shape)

    def means(nodes: FloatArray) -> FloatArray:
        return np.asarray(expectation([square], nodes[:, None, None], tolerance=_TOLERANCE).value)[None]

    table = _Interpolation.of(variance, means)
    return np.asarray(table(variance.ravel())[0].reshape(variance.shape))


def pair_means(
    activation: Activation, first: FloatArray, second: FloatArray, cross: FloatArray
) -> FloatArray:
    """<σ_a σ_b> for covariances [[first, cross], [cross, second]], vectors of equal length, to nearly all digits.

    Closed forms, and lists with a variance of zero, go to :func:`foretrain.gaussian.expectation`. Of others the
    Hermite coefficients c_k(v) = <σ(√v x) He_k(x)> / √k! are interpolated in log v between Chebyshev points, and
    <σ_a σ_b> is Σ_k c_k(v_a) c_k(v_b) ρ^k (Mehler): a few matrix products for any number of pairs. Pairs so nearly
    parallel that the series would be too long are interpolated in two scales and an angle.
    """
    if activation.closed_form is not None or not (first.all() and second.all()):
        covariance = np.stack([first, cross, cross, second], axis=-1).reshape(-1, 2, 2)
        return np.asarray(expectation([activation, activation], covariance).value)
    rho = np.clip(cross / np.sqrt(first * second), -1.0, 1.0)
    both = np.concatenate([first, second])
    terms = _terms(activation, float(both.max()), float(np.abs(rho).max()))
    if terms is None:
        f = factor(activation)
        return interpolated_pairs(f, f, first, second, cross, 1e-11)[0]
    table = _Interpolation.of(both, lambda nodes: _coefficients(activation, nodes, terms).coefficients)
    found = np.empty_like(rho)
    for start in range(0, len(rho), _TOGETHER):
        part = slice(start, start + _TOGETHER)
        products = table(first[part]) * table(second[part])
        total = products[-1].copy()
        for row in products[-2::-1]:  # Horner's rule
            total *= rho[part]
            total += row
        found[part] = total
    return found


def _coefficients(activation: Activation, variance: FloatArray, terms: int) -> Series:
    return series(factor(activation), np.sqrt(variance), terms, _TOLERANCE)


def _terms(activation: Activation, widest: float, correlation: float) -> int | None:
    """Terms of the series that the widest variance and the largest correlation need, None if too many."""
    terms = 32
    while terms <= MOST_TERMS:
        found = _coefficients(activation, np.array([widest]), terms)
        needed = terms_needed(found, found, min(correlation, _MOST_CORRELATED), 10 * _TOLERANCE)
        if needed is not None:
            return max(needed, 1)
        terms *= 2
    return None


class _Interpolation:
    """Smooth functions of the variance as Chebyshev series in its logarithm, over the range asked for."""

    def __init__(self, low: float, high: float, coefficients: FloatArray) -> None:
        self._low, self._high, self._coefficients = low, high, coefficients

    @classmethod
    def of(cls, variance: FloatArray, function: Callable[[FloatArray], FloatArray]) -> _Interpolation:
        """Doubles the degree until the last coefficients vanish beside the largest."""
        low, high = np.log(float(variance.min())), np.log(float(variance.max()))
        high = max(high, low + 1e-9)
        degree = _FIRST_DEGREE
        while True:
            nodes = chebyshev.chebpts1(degree + 1)
            values = function(np.exp(low + (nodes + 1) * (high - low) / 2))
            fitted = values @ np.linalg.inv(chebyshev.chebvander(nodes, degree)).T
            rest = np.abs(fitted[:, -4:]).max()
            if rest <= _TOLERANCE * np.abs(values).max() or 2 * degree > _LAST_DEGREE:
                return cls(float(low), float(high), fitted)
            degree *= 2

    def __call__(self, variance: FloatArray) -> FloatArray:
        """(functions, variances)."""
        x = 2 * (np.log(variance) - self._low) / (self._high - self._low) - 1
        return np.asarray(
            self._coefficients @ chebyshev.chebvander(np.clip(x, -1, 1), self._coefficients.shape[1] - 1).T
        )
