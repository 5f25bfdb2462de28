"""⟨σσ⟩ and ⟨σ'σ'⟩ of pairs in float64, written for accuracy and independently of the package.

Closed forms where they exist, for every pair; a dense product rule for a sample of pairs otherwise. The
closed forms are held against another rule on that sample before they are trusted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import special

Array = npt.NDArray[np.float64]
Function = Callable[[Array], Array]

VALUE, DERIVATIVE = "value", "derivative"
SELF_CHECK = 2e-12
REACH = 9.5  # standard deviations: beyond, a Gaussian weighs less than 1e-20
STEP = 0.15  # in the preactivation and in the standard variable


@dataclass(frozen=True)
class Pairs:
    """Covariances (a, c; c, b) of pairs, one entry a pair."""

    a: Array
    b: Array
    c: Array

    @property
    def determinant(self) -> Array:
        """a b - c², exact to the last digit: the two products are formed without rounding."""
        product, rest = _exact_product(self.a, self.b)
        square, square_rest = _exact_product(self.c, self.c)
        return np.maximum((product - square) + (rest - square_rest), 0.0)


def _exact_product(x: Array, y: Array) -> tuple[Array, Array]:
    """Dekker's product: x y as a sum of two floats."""
    (x_high, x_low), (y_high, y_low) = _halves(x), _halves(y)
    product = x * y
    return product, ((x_high * y_high - product) + x_high * y_low + x_low * y_high) + x_low * y_low


def _halves(x: Array) -> tuple[Array, Array]:
    scaled = 134217729.0 * x
    high = scaled - (scaled - x)
    return high, x - high


def erf_closed(pairs: Pairs) -> dict[str, Array]:
    """(2/π) arcsin(2c / √((1+2a)(1+2b))) and its derivative by c."""
    root = np.sqrt(1 + 2 * (pairs.a + pairs.b) + 4 * pairs.determinant)
    return {VALUE: 2 / np.pi * np.arctan2(2 * pairs.c, root), DERIVATIVE: 4 / np.pi / root}


def relu_closed(pairs: Pairs) -> dict[str, Array]:
    """The arc-cosine kernels of orders 1 and 0, by the angle between the inputs."""
    root = np.sqrt(pairs.determinant)
    opening = np.pi - np.arctan2(root, pairs.c)
    return {VALUE: (root + opening * pairs.c) / (2 * np.pi), DERIVATIVE: opening / (2 * np.pi)}


def gelu_closed(pairs: Pairs) -> dict[str, Array]:
    """z Φ(z): with an independent Gaussian added to each input, Φ becomes a step."""
    a, b, c = pairs.a, pairs.b, pairs.c
    wide = 1 + a + b + pairs.determinant  # determinant of the widened covariance
    root = np.sqrt(wide)
    chance = 0.25 + np.arctan2(c, root) / (2 * np.pi)
    both = (1 + a) * (1 + b)
    value = c * chance + (c**2 + a * b * wide) / (both * root) / (2 * np.pi)
    slope = chance + c * (1 / wide + (1 - a * b) / both + 1) / root / (2 * np.pi)
    return {VALUE: value, DERIVATIVE: slope}


def relu_by_angle(pairs: Pairs) -> dict[str, Array]:
    """Gauss-Legendre over the directions of the whitened plane in which both inputs are positive."""
    angle = np.arctan2(np.sqrt(pairs.determinant), pairs.c)[:, None]
    nodes, weights = np.polynomial.legendre.leggauss(40)
    half = (np.pi - angle) / 2
    direction = angle / 2 + half * nodes
    size = np.sqrt(pairs.a * pairs.b)
    integrand = np.cos(direction) * np.cos(direction - angle)
    return {
        VALUE: size * np.sum(half * weights * integrand, axis=1) / np.pi,
        DERIVATIVE: np.sum(half * weights, axis=1) / (2 * np.pi),
    }


def dense_rule(value: Function, derivative: Function) -> Callable[[Pairs], dict[str, Array]]:
    """The product trapezoid rule in the whitened plane; converges geometrically for smooth functions."""

    def rule(pairs: Pairs) -> dict[str, Array]:
        each = [_dense_pair(value, derivative, *entry) for entry in _entries(pairs)]
        return {VALUE: np.array([e[0] for e in each]), DERIVATIVE: np.array([e[1] for e in each])}

    return rule


def _entries(pairs: Pairs) -> list[tuple[float, float, float, float]]:
    return list(zip(pairs.a.tolist(), pairs.b.tolist(), pairs.c.tolist(), pairs.determinant.tolist()))


def _dense_pair(
    value: Function, derivative: Function, a: float, b: float, c: float, determinant: float
) -> tuple[float, float]:
    """Exchanged so that the first input is the wider one: its deviation is what the other is divided by."""
    if b > a:
        a, b = b, a
    first, rest = np.sqrt(a), np.sqrt(determinant / a)
    x, weight_x = _grid(first)
    y, weight_y = _grid(rest)
    other = (c / first) * x[:, None] + rest * y
    return (
        float((weight_x * value(first * x)) @ value(other) @ weight_y),
        float((weight_x * derivative(first * x)) @ derivative(other) @ weight_y),
    )


def _grid(deviation: float) -> tuple[Array, Array]:
    step = STEP / max(1.0, deviation)
    count = int(np.ceil(REACH / step))
    x = step * np.arange(-count, count + 1, dtype=np.float64)
    weight: Array = step * np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi)
    return x, weight


@dataclass(frozen=True)
class Activation:
    """An activation of the benchmark and how its reference is computed."""

    name: str
    value: Function
    derivative: Function
    closed: Callable[[Pairs], dict[str, Array]] | None = None
    check: Callable[[Pairs], dict[str, Array]] | None = None

    def squares(self, variances: Array) -> dict[str, Array]:
        """⟨σ²⟩ and ⟨σ'²⟩ of single inputs, which errors are measured against."""
        if self.closed:
            return self.closed(Pairs(variances, variances, variances))
        deviations = np.sqrt(variances)
        x, weight = _grid(float(deviations.max()))
        z = deviations[:, None] * x
        return {VALUE: self.value(z) ** 2 @ weight, DERIVATIVE: self.derivative(z) ** 2 @ weight}

    def rule(self) -> Callable[[Pairs], dict[str, Array]]:
        """The rule for a sample of pairs."""
        return self.check or dense_rule(self.value, self.derivative)


def _tanh_derivative(z: Array) -> Array:
    return np.asarray(1 / np.cosh(z) ** 2)


def _mish_derivative(z: Array) -> Array:
    inner = np.tanh(np.logaddexp(0, z))
    return np.asarray(inner + z * (1 - inner**2) * special.expit(z))


ACTIVATIONS = {
    activation.name: activation
    for activation in (
        Activation("tanh", np.tanh, _tanh_derivative),
        Activation("erf", special.erf, lambda z: 2 / np.sqrt(np.pi) * np.exp(-(z**2)), erf_closed),
        Activation(
            "relu",
            lambda z: np.maximum(z, 0.0),
            lambda z: (z > 0).astype(float),
            relu_closed,
            relu_by_angle,
        ),
        Activation(
            "gelu",
            lambda z: z * special.ndtr(z),
            lambda z: special.ndtr(z) + z * np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi),
            gelu_closed,
        ),
        Activation("mish", lambda z: z * np.tanh(np.logaddexp(0, z)), _mish_derivative),
    )
}


class Reference:
    """The true kernels of one activation and one covariance, and the error of others against them."""

    def __init__(self, activation: Activation, K: npt.NDArray[Any], count: int = 300) -> None:
        self._activation = activation
        self._K = np.asarray(K, dtype=np.float64)
        self._count = count
        self._rows = self._columns = np.empty(0, dtype=np.intp)
        self._truth: dict[str, Array] | None = None
        self._scale: dict[str, Array] = {}

    def error(self, found: Mapping[str, npt.NDArray[Any]]) -> float:
        """The largest deviation of both kernels, relative to √(⟨σ²⟩⟨σ²⟩); nan if one is not a number."""
        truth = self._compute()
        every = self._activation.closed is not None
        worst = []
        for name, true in truth.items():
            got = np.asarray(found[name], dtype=np.float64)
            scale = self._scale[name]
            if every:
                worst.append(np.abs(got - true) / np.multiply.outer(scale, scale))
            else:
                sizes = scale[self._rows] * scale[self._columns]
                worst.append(np.abs(got[self._rows, self._columns] - true) / sizes)
        return float(np.max(worst))

    def _compute(self) -> dict[str, Array]:
        if self._truth is None:
            self._rows, self._columns = _sample(self._K, self._count)
            variances = np.diagonal(self._K).copy()
            self._scale = {n: np.sqrt(v) for n, v in self._activation.squares(variances).items()}
            i, j = self._rows, self._columns
            sampled = self._activation.rule()(Pairs(variances[i], variances[j], self._K[i, j]))
            if self._activation.closed is None:
                self._truth = sampled
            else:
                every = Pairs(*np.broadcast_arrays(variances[:, None], variances[None, :], self._K))
                self._truth = self._activation.closed(every)
                self._agree(sampled)
        return self._truth

    def _agree(self, sampled: dict[str, Array]) -> None:
        assert self._truth is not None
        for name, values in sampled.items():
            sizes = self._scale[name][self._rows] * self._scale[name][self._columns]
            worst = float(np.max(np.abs(self._truth[name][self._rows, self._columns] - values) / sizes))
            if worst > SELF_CHECK:
                raise ArithmeticError(
                    f"two references for {self._activation.name} ({name}) differ by {worst:.1e}: "
                    "the benchmark's closed form or its product rule is wrong."
                )


def _sample(K: Array, count: int) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Random pairs, and those at the ends: diagonal, widest, most parallel and most opposite."""
    generator = np.random.default_rng(7)
    deviations = np.sqrt(np.diagonal(K))
    correlations = np.triu(K / np.multiply.outer(deviations, deviations), 1)
    order = np.argsort(correlations, axis=None)
    ends = np.unravel_index(np.concatenate([order[:10], order[-30:]]), K.shape)
    wide = np.argsort(deviations)[[0, 1, -2, -1]]
    picks = generator.integers(0, len(K), (2, count - 60))
    diagonal = np.concatenate([generator.integers(0, len(K), 12), wide])
    rows = np.concatenate([picks[0], diagonal, ends[0], wide])
    columns = np.concatenate([picks[1], diagonal, ends[1], wide[::-1]])
    return rows, columns
