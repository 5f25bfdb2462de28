"""Moments and connected correlators (cumulants): conversions, and sample estimates with standard errors."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from string import ascii_letters
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from foretrain.gaussian.wick import Partition, equal_index_pairings, set_partitions
from foretrain.support.answers import Result
from foretrain.support.errors import InputError

Indices = tuple[Any, ...]


def cumulants_from_moments(moments: ArrayLike) -> NDArray[Any]:
    """kappa_1..kappa_n from m_1..m_n, which lie along the last axis; any axes in front are a batch.

    By kappa_n = m_n - sum_j C(n-1, j-1) kappa_j m_(n-j). Fraction or Decimal objects stay what they are.
    """
    return _connect(_ordered(moments), step=1)


def moments_from_cumulants(cumulants: ArrayLike) -> NDArray[Any]:
    """m_1..m_n from kappa_1..kappa_n along the last axis."""
    return _disconnect(_ordered(cumulants), step=1)


def even_cumulants_from_moments(moments: ArrayLike) -> NDArray[Any]:
    """kappa_2, kappa_4, .. from m_2, m_4, .. along the last axis, for a law even in z (1.54), (1.61)."""
    return _connect(_ordered(moments), step=2)


def even_moments_from_cumulants(cumulants: ArrayLike) -> NDArray[Any]:
    """m_2, m_4, .. from kappa_2, kappa_4, .. along the last axis, for a law even in z."""
    return _disconnect(_ordered(cumulants), step=2)


def joint_cumulant(moment: Callable[[Indices], Any], indices: Sequence[Any], *, even: bool = False) -> Any:
    """The connected correlator of the variables named by ``indices``, which may repeat (1.56).

    ``moment`` gives E[prod z_i] for a tuple of indices, as a number or an array. ``even`` skips the blocks of
    odd size, which vanish for a law even under z -> -z: ``moment`` is then asked for even tuples only.
    """
    return _sum_over_partitions(moment, indices, even, _connected_weight)


def joint_moment(cumulant: Callable[[Indices], Any], indices: Sequence[Any], *, even: bool = False) -> Any:
    """The full correlator from the connected ones: the sum over all partitions into blocks (1.56)."""
    return _sum_over_partitions(cumulant, indices, even, lambda partition: 1)


def cumulant_tensor(moments: Mapping[int, ArrayLike], order: int) -> NDArray[Any]:
    """The whole tensor of connected correlators of one order from the tensors of moments {order: (N, .., N)}.

    Where no odd order is given the law is taken as even.
    """
    return _tensor(moments, order, _connected_weight)


def moment_tensor(cumulants: Mapping[int, ArrayLike], order: int) -> NDArray[Any]:
    """The whole tensor of moments of one order from the connected correlators {order: (N, .., N)}."""
    return _tensor(cumulants, order, lambda partition: 1)


def scale_mixture_moment(variance_moments: ArrayLike, neurons: Sequence[Hashable]) -> Any:
    """E[z_i1 .. z_i2m] for z_i = sqrt(R) g_i with independent standard normal g_i.

    ``variance_moments`` holds E[R], E[R^2], .. along its last axis; the neurons i1.. enter through the number
    of pairings that join equal ones (3.44).
    """
    return _mixture(_ordered(variance_moments), neurons)


def scale_mixture_connected(variance_moments: ArrayLike, neurons: Sequence[Hashable]) -> Any:
    """The connected correlator of z_i = sqrt(R) g_i: 2m points are carried by the m-th cumulant of R."""
    return _mixture(cumulants_from_moments(variance_moments), neurons)


@dataclass(frozen=True, repr=False)
class Estimate(Result):
    """A sample estimate and its standard error."""

    value: Any
    standard_error: Any


def sample_two_point(draws: ArrayLike) -> Estimate:
    """E[z^2] of a law with zero mean, its standard error from the scatter between draws.

    Here and in the next four functions ``draws`` has shape (draws,), (draws, neurons), (draws, neurons, ..).
    Neurons are pooled, being identically distributed; as they are not independent, a draw of the whole layer
    is the unit of the standard error. Further axes (layers, inputs) are kept.
    """
    square = _layers(draws, neurons=1) ** 2
    return _mean_estimate(square.mean(axis=1))


def sample_four_point(draws: ArrayLike) -> Estimate:
    """The connected E[z^4] - 3 E[z^2]^2 of single neurons, unbiased.

    Nearly Gaussian, its variance is 24 K^4 / S; subtracting the known 3 K^2 instead would make it 96 K^4 / S.
    """
    square = _layers(draws, neurons=1) ** 2
    second, fourth = _pooled(square)
    influence = fourth - 6 * second.mean(axis=0) * second
    error = _standard_error(influence)
    # Products of two different draws only: the square of the sample mean would be too large by Var(z^2) / S.
    squared_mean = (second.sum(axis=0) ** 2 - (second**2).sum(axis=0)) / (len(second) * (len(second) - 1))
    return Estimate(_plain(fourth.mean(axis=0) - 3 * squared_mean), error)


def sample_inter_neuron(draws: ArrayLike) -> Estimate:
    """The connected E[z_j^2 z_k^2] - E[z_j^2] E[z_k^2] for j != k (3.30), unbiased, the mean over all pairs.

    One pair has variance 4 K^4 / S when nearly Gaussian.
    """
    products = _pair_products(_layers(draws, neurons=2) ** 2)
    return _mean_estimate(products * len(products) / (len(products) - 1))


def sample_excess_kurtosis(draws: ArrayLike) -> Estimate:
    """kappa_4 / kappa_2^2 = E[z^4] / E[z^2]^2 - 3 of single neurons; the bias is of order 1 / S."""
    square = _layers(draws, neurons=1) ** 2
    second, fourth = _pooled(square)
    variance = second.mean(axis=0)
    ratio = fourth.mean(axis=0) / variance**2
    influence = fourth / variance**2 - 2 * ratio * second / variance
    return Estimate(_plain(ratio - 3), _standard_error(influence))


def sample_square_correlation(draws: ArrayLike) -> Estimate:
    """The correlation of z_j^2 and z_k^2, j != k, pooled over pairs: 0 for independent neurons."""
    square = _layers(draws, neurons=2) ** 2
    second, fourth = _pooled(square)
    products = _pair_products(square)
    spread = fourth.mean(axis=0) - second.mean(axis=0) ** 2
    correlation = products.mean(axis=0) / spread
    influence = (products - correlation * (fourth - 2 * second.mean(axis=0) * second)) / spread
    return Estimate(_plain(correlation), _standard_error(influence))


def sample_joint_cumulant(
    draws: ArrayLike, indices: Sequence[int], *, even: bool = False, blocks: int = 50
) -> Estimate:
    """Any connected correlator of the columns of ``draws`` (draws, variables), by a jackknife over blocks.

    The jackknife removes the bias of order 1 / S and gives the standard error; even: see joint_cumulant.
    """
    table = np.asarray(draws, dtype=np.float64)
    if table.ndim != 2 or not np.isfinite(table).all():
        raise InputError("the draws must be a finite table (draws, variables).")
    if any(not 0 <= index < table.shape[1] for index in indices):
        raise InputError(
            f"the indices {tuple(indices)} must lie within the {table.shape[1]} variables, from 0."
        )
    if not 2 <= blocks <= len(table):
        raise InputError(
            f"{len(table)} draws cannot be cut into {blocks} blocks: use between 2 and that many."
        )
    edges = np.linspace(0, len(table), blocks + 1).astype(int)
    sizes = np.diff(edges)

    def without_block(block_of_indices: Indices) -> NDArray[Any]:
        """The moment with each block left out in turn, then with all draws."""
        product = table[:, list(block_of_indices)].prod(axis=1)
        sums = np.add.reduceat(product, edges[:-1])
        return np.append((sums.sum() - sums) / (len(table) - sizes), sums.sum() / len(table))

    values = np.asarray(joint_cumulant(without_block, indices, even=even))
    left_out, full = values[:-1], values[-1]
    center = left_out.mean()
    variance = (blocks - 1) / blocks * ((left_out - center) ** 2).sum()
    return Estimate(float(blocks * full - (blocks - 1) * center), float(np.sqrt(variance)))


def _ordered(values: ArrayLike) -> NDArray[Any]:
    table = np.asarray(values)
    if table.ndim == 0:
        raise InputError("moments and cumulants must come as a list ordered from the lowest order up.")
    return table if table.dtype == object else table.astype(np.float64)


def _binomial_sum(kappa: list[Any], m: NDArray[Any], n: int, step: int) -> Any:
    """sum_(j<n) C(n-1, j-1) kappa_j m_(n-j), in orders that are multiples of ``step``."""
    return sum(
        (math.comb(step * n - 1, step * j - 1) * kappa[j - 1] * m[..., n - j - 1] for j in range(1, n)),
        start=0,
    )


def _connect(m: NDArray[Any], step: int) -> NDArray[Any]:
    kappa: list[Any] = []
    for n in range(1, m.shape[-1] + 1):
        kappa.append(m[..., n - 1] - _binomial_sum(kappa, m, n, step))
    return np.stack([np.asarray(k, dtype=m.dtype) for k in kappa], axis=-1) if kappa else m


def _disconnect(kappa: NDArray[Any], step: int) -> NDArray[Any]:
    m = np.array(kappa)
    terms = [kappa[..., j] for j in range(kappa.shape[-1])]
    for n in range(1, kappa.shape[-1] + 1):
        m[..., n - 1] = kappa[..., n - 1] + _binomial_sum(terms, m, n, step)
    return m


def _connected_weight(partition: Partition) -> int:
    blocks = len(partition)
    return math.factorial(blocks - 1) * (1 if blocks % 2 else -1)


def _sum_over_partitions(
    correlator: Callable[[Indices], Any],
    indices: Sequence[Any],
    even: bool,
    weight: Callable[[Partition], int],
) -> Any:
    if not indices:
        raise InputError("a correlator needs at least one index.")
    known: dict[tuple[int, ...], Any] = {}
    total: Any = 0
    for partition in set_partitions(len(indices), even=even):
        for block in partition:
            if block not in known:
                known[block] = correlator(tuple(indices[position] for position in block))
        total = total + weight(partition) * math.prod(
            (known[block] for block in partition[1:]), start=known[partition[0]]
        )
    return total


def _tensor(given: Mapping[int, ArrayLike], order: int, weight: Callable[[Partition], int]) -> NDArray[Any]:
    even = not any(degree % 2 for degree in given)
    tensors = {degree: np.asarray(tensor, dtype=np.float64) for degree, tensor in given.items()}
    missing = [n for n in range(1, order + 1) if n not in tensors and not (even and n % 2)]
    if missing or not tensors:
        raise InputError(f"the tensor of order {order} needs those of orders {missing}, which are not given.")
    size = {length for tensor in tensors.values() for length in tensor.shape}
    if len(size) > 1 or any(tensor.ndim != degree for degree, tensor in tensors.items()):
        raise InputError("a tensor of order m must have m axes, all of the same length.")
    total = np.zeros(tuple(size) * order)
    if even and order % 2:
        return total
    for partition in set_partitions(order, even=even):
        labels = ",".join("".join(ascii_letters[axis] for axis in block) for block in partition)
        blocks = [tensors[len(block)] for block in partition]
        total += weight(partition) * np.einsum(f"{labels}->{ascii_letters[:order]}", *blocks)
    return total


def _mixture(coefficients: NDArray[Any], neurons: Sequence[Hashable]) -> Any:
    if len(neurons) % 2 or not neurons:
        raise InputError(f"{len(neurons)} points were named, but only an even number has a correlator here.")
    if len(neurons) // 2 > coefficients.shape[-1]:
        raise InputError(f"{len(neurons)} points need the first {len(neurons) // 2} moments of the variance.")
    return equal_index_pairings(neurons) * coefficients[..., len(neurons) // 2 - 1]


def _layers(draws: ArrayLike, neurons: int) -> NDArray[np.float64]:
    """The draws as (draws, neurons, ...), refused where they cannot give a standard error."""
    table = np.asarray(draws, dtype=np.float64)
    if table.ndim == 1:
        table = table[:, None]
    if table.ndim == 0 or len(table) < 2:
        raise InputError("a standard error needs at least two draws along the first axis.")
    if table.shape[1] < neurons:
        raise InputError(
            f"this estimate needs draws of shape (draws, neurons) with at least {neurons} neurons."
        )
    if not np.isfinite(table).all():
        raise InputError("the draws have entries that are not finite.")
    return table


def _pooled(square: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Per draw, the means of z^2 and of z^4 over the neurons."""
    return np.asarray(square.mean(axis=1)), np.asarray((square**2).mean(axis=1))


def _pair_products(square: NDArray[np.float64]) -> NDArray[np.float64]:
    """Per draw, the mean over pairs j != k of (z_j^2 - mean)(z_k^2 - mean), each neuron with its own mean."""
    neurons = square.shape[1]
    centered = square - square.mean(axis=0)
    total = centered.sum(axis=1) ** 2 - (centered**2).sum(axis=1)
    return np.asarray(total / (neurons * (neurons - 1)))


def _mean_estimate(per_draw: NDArray[np.float64]) -> Estimate:
    return Estimate(_plain(per_draw.mean(axis=0)), _standard_error(per_draw))


def _standard_error(influence: NDArray[np.float64]) -> Any:
    """The delta method: the estimate moves with the mean of its influence function over independent draws."""
    return _plain(influence.std(axis=0, ddof=1) / np.sqrt(len(influence)))


def _plain(value: Any) -> Any:
    return np.asarray(value)[()]
