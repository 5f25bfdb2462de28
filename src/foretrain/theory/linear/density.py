"""The density of a neuron at any layer, by the inverse Mellin transform of E|z|^(s-1).

Integer moments do not determine it beyond layer 2 (they grow too fast), but complex ones do. The contour passes
through the saddle point, where the integrand does not oscillate, so that far tails keep their relative precision.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from foretrain.support.errors import InputError, NotSupportedError
from foretrain.theory.linear.law import log_chi_square_moment
from foretrain.theory.linear.moments import log_flow
from foretrain.theory.linear.network import DeepLinear, layer_index

Array = NDArray[np.float64]

_BLOCK = 64  # nodes of the contour at a time
_MOST_BLOCKS = 400
_NEAR_POLE = 0.25
_LEFT_OF_POLE = -0.5
_DIGITS = 2 * math.pi / 38  # step over distance to a singularity for 16 digits: exp(-38)


def density(network: DeepLinear, z: ArrayLike, G0: float, layer: int) -> Array:
    """p(z) of one neuron of a layer; infinite at z = 0 where a layer below has a single neuron."""
    place = layer_index(network, layer)
    if any(network.biases[1 : place + 1]):
        raise NotSupportedError(
            "the density is known only without biases after layer 1: set C_b = 0 there, or sample."
        )
    log_two_point = float(log_flow(network, G0, 1)[place, 0])
    if not math.isfinite(log_two_point):
        raise InputError("z is 0 with certainty, so it has no density: G0 or a C_W is 0.")
    size = np.abs(np.asarray(z, dtype=np.float64))
    if not np.isfinite(size).all():
        raise InputError("the points z must be finite numbers.")
    scaled = size.ravel() / math.exp(log_two_point / 2)
    law = _Law(network.widths[:place])
    return np.asarray(law.density(scaled).reshape(size.shape) / math.exp(log_two_point / 2))[()]


class _Law:
    """|z| at G_2 = 1, with hidden widths given: everything through the transform E|z|^(s-1)."""

    def __init__(self, widths: Sequence[int]) -> None:
        found, counts = np.unique(np.array(widths, dtype=int), return_counts=True)
        self._widths = [(int(n), int(count)) for n, count in zip(found, counts)]
        self._narrowest = int(found[0]) if len(found) else None

    def density(self, z: Array) -> Array:
        """p(z) for z >= 0."""
        if self._narrowest is None:
            return np.asarray(np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi))
        result = np.full(len(z), self._at_zero())
        log_z = np.log(np.where(z > 0, z, 1.0))
        saddle = self._saddle(log_z)
        pole = (saddle < _NEAR_POLE) & (self._narrowest > 1) & (z > 0)
        plain = (z > 0) & ~pole
        result[plain] = self._contour(log_z[plain], np.maximum(saddle[plain], _NEAR_POLE / 8))
        # Small z: the pole at s = 0 gives p(0), and the contour to its left the rest.
        result[pole] += self._contour(log_z[pole], np.full(int(pole.sum()), _LEFT_OF_POLE))
        return result

    def _log_transform(self, s: NDArray[np.complexfloating]) -> NDArray[np.complexfloating]:
        """log E|z|^(s-1)."""
        total = (s - 1) / 2 * math.log(2) + special.loggamma(s / 2) - math.log(math.pi) / 2
        for n, count in self._widths:
            total = total + count * log_chi_square_moment(n, (s - 1) / 2)
        return np.asarray(total)

    def _at_zero(self) -> float:
        if self._narrowest == 1:
            return math.inf
        factors = sum(count * float(log_chi_square_moment(n, -0.5)) for n, count in self._widths)
        return math.exp(factors) / math.sqrt(2 * math.pi)

    def _slope(self, c: Array) -> Array:
        """d/dc log E|z|^(c-1)."""
        total = math.log(2) / 2 + special.digamma(c / 2) / 2
        for n, count in self._widths:
            total = total + count / 2 * (special.digamma((n + c - 1) / 2) - math.log(n / 2))
        return np.asarray(total)

    def _saddle(self, log_z: Array) -> Array:
        """The real s > 0 where E|z|^(s-1) z^-s is least, by bisection in log s."""
        low, high = np.full(len(log_z), -12.0), np.full(len(log_z), 40.0)
        for _ in range(50):
            middle = (low + high) / 2
            below = self._slope(np.exp(middle)) < log_z
            low, high = np.where(below, middle, low), np.where(below, high, middle)
        return np.asarray(np.exp((low + high) / 2))

    def _step(self, c: Array) -> Array:
        """Fine enough for the width of the saddle and for the nearest pole."""
        curvature = special.polygamma(1, np.abs(c) / 2) / 4
        for n, count in self._widths:
            curvature = curvature + count / 4 * special.polygamma(1, (n + np.maximum(c, 0) - 1) / 2)
        distance = np.where(c > 0, c, -_LEFT_OF_POLE)
        return np.asarray(np.minimum(0.5 / np.sqrt(curvature), _DIGITS * distance))

    def _contour(self, log_z: Array, c: Array) -> Array:
        """(1 / 4 pi) int dt E|z|^(c+it-1) z^-(c+it) by the trapezoid rule."""
        step = self._step(c)
        total, largest = np.zeros(len(c)), np.zeros(len(c))
        for nodes in _blocks():
            s = c[:, None] + 1j * step[:, None] * nodes
            terms = np.exp(self._log_transform(s) - s * log_z[:, None])
            total += (np.where(nodes == 0, 1.0, 2.0) * terms.real).sum(axis=1)
            size = np.abs(terms[:, -1])
            largest = np.maximum(largest, np.abs(terms).max(axis=1))
            if np.all(size <= 1e-18 * largest):
                return total * step / (4 * math.pi)
        raise NotSupportedError(
            "the contour integral did not settle: z is too close to 0; use the value at 0."
        )


def _blocks() -> Iterator[NDArray[np.intp]]:
    for block in range(_MOST_BLOCKS):
        yield np.arange(block * _BLOCK, (block + 1) * _BLOCK)
