"""Means and covariances of functions of preactivations to order 1/n: (4.61), (4.64), (4.112).

They follow from the mean of a function of one neuron and its derivatives with respect to the metric: Price's for
smooth factors and for delta functions, and Hermite weights for everything else. Neither needs K to be invertible, and
with weights F may have kinks.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement, product
from typing import Any, Protocol

import numpy as np
from numpy.polynomial import Polynomial
from numpy.typing import ArrayLike

from foretrain.gaussian import Expectation, Factor, covariance_gradient, expectation, expectation_of
from foretrain.gaussian.expectation import MOST_INPUTS
from foretrain.gaussian.observables import directions, factors_of
from foretrain.support.answers import Result
from foretrain.support.arguments import Array
from foretrain.support.errors import NotSupportedError
from foretrain.support.user_warnings import warn_user
from foretrain.theory.architecture import MLP
from foretrain.theory.finite_width.statistics import LARGE, LayerStatistics, layer_statistics, too_deep

Function = Callable[[Array], Any]


class Observable(Protocol):
    """A function of one neuron whose expectation can be expanded in the metric."""

    def mean(self, K: Array) -> Expectation:
        """<F>_K."""

    def shift(self, statistics: LayerStatistics) -> Expectation:
        """dK<F> · G1 + dK²<F> · V / 2, without 1/n."""

    def gradient(self, K: Array) -> Expectation:
        """D (N, N) with d<F> = sum over all a, b of D_ab dK_ab."""


def prepare(
    functions: Sequence[Any], mlp: MLP, X: ArrayLike, layer: int | None, kinks: Sequence[Any]
) -> tuple[LayerStatistics, list[Observable]]:
    """The observables, and the statistics of the inputs that any of them looks at."""
    inputs = mlp.check_inputs(X)
    lists = [factors_of(F, len(inputs)) for F in functions]
    if any(factors is None for factors in lists):
        used = list(range(len(inputs)))
    else:
        moving = {i for factors in lists if factors for i, f in enumerate(factors) if not f.is_constant}
        used = sorted(moving) or [0]
    statistics = layer_statistics(mlp, inputs[used], layer)
    observables: list[Observable] = [
        _Weighted(F, kinks) if factors is None else _of_factors(factors, used)
        for F, factors in zip(functions, lists)
    ]
    return statistics, observables


def times(F: Any, H: Any, inputs: int) -> Any:
    """The product of two observables."""
    first, second = factors_of(F, inputs), factors_of(H, inputs)
    if (first is None) != (second is None):
        raise NotSupportedError(
            "one observable is a list of factors and the other a function: give two of a kind."
        )
    if first is not None and second is not None:
        return [f * h for f, h in zip(first, second)]
    return lambda z: np.asarray(F(z)) * np.asarray(H(z))


def _of_factors(factors: list[Factor], used: list[int]) -> Observable:
    """Derivatives where they exist, weights for kinks and for a user's function, whose derivatives are measured."""
    chosen = [factors[i] for i in used]
    chosen[0] = chosen[0] * math.prod(f.polynomial[0] for i, f in enumerate(factors) if i not in used)
    smooth = all(
        all(term.order + 4 <= term.activation.max_order for term in f.terms)
        and not f.kinks
        and not f.is_unproven
        for f in chosen
    )
    few = sum(not f.is_constant for f in chosen) <= MOST_INPUTS
    if any(f.deltas for f in chosen) or (smooth and few):
        return _Differentiated(chosen)

    def value(points: Array) -> Array:
        return np.asarray(math.prod(f(points[:, i]) for i, f in enumerate(chosen)))

    return _Weighted(value, [list(f.kinks) for f in chosen])


class _Differentiated:
    """A product of factors, differentiated: entry (a, b) of dK is <d_a d_b F> / 2 (Price)."""

    def __init__(self, factors: list[Factor]) -> None:
        moving = [i for i, f in enumerate(factors) if not f.is_constant] or [0]
        self.places = np.array(moving)
        self.factors = [factors[i] for i in moving]
        constants = [f.polynomial[0] for i, f in enumerate(factors) if i not in moving]
        self.factors[0] = self.factors[0] * math.prod(constants)

    def mean(self, K: Array) -> Expectation:
        """<F>_K."""
        return expectation(self.factors, self._block(K))

    def gradient(self, K: Array) -> Expectation:
        """D (N, N) with d<F> = sum over all a, b of D_ab dK_ab."""
        found = covariance_gradient(self.factors, self._block(K))
        share = 0.5 * (1 + np.eye(len(self.places)))
        spread = np.ix_(self.places, self.places)
        value, error = np.zeros(K.shape), np.zeros(K.shape)
        value[spread], error[spread] = share * found.value, share * found.error
        return Expectation(value, error, found.rule)

    def shift(self, statistics: LayerStatistics) -> Expectation:
        """dK<F> · G1 + (1/8) sum V_(ab)(cd) <d_a d_b d_c d_d F>."""
        slope = self.gradient(statistics.K)
        value = float(np.sum(slope.value * statistics.G1))
        error = float(np.sum(slope.error * np.abs(statistics.G1)))
        K, V = self._block(statistics.K), _symmetrised(statistics.V[np.ix_(*[self.places] * 4)])
        for legs in combinations_with_replacement(range(len(self.places)), 4):
            counts = Counter(legs)
            orderings = 24 // math.prod(math.factorial(count) for count in counts.values())
            weight = orderings * float(V[legs]) / 8
            if weight:
                parts = [_derivative(f, counts[i]) for i, f in enumerate(self.factors)]
                found = [expectation(list(choice), K) for choice in product(*parts)]
                value += weight * sum(float(part) for part in found)
                error += abs(weight) * sum(float(part.error) for part in found)
        return Expectation(np.asarray(value), np.asarray(error), slope.rule)

    def _block(self, K: Array) -> Array:
        return np.asarray(K[np.ix_(self.places, self.places)])


def _derivative(f: Factor, order: int) -> list[Factor]:
    """The terms of a derivative, equal ones collected."""
    parts = [f]
    for _ in range(order):
        collected: dict[Any, Polynomial] = {}
        for slope in (slope for part in parts for slope in part.derivative()):
            before = collected.get(slope.terms, Polynomial([0.0]))
            collected[slope.terms] = before + Polynomial(slope.polynomial)
        parts = [Factor(terms, tuple(map(float, p.coef))) for terms, p in collected.items() if p.coef.any()]
    return parts


class _Weighted:
    """Any function, its derivatives turned into Hermite polynomials of x = W z, independent on the support of K.

    Metrics never leave the support: what every network sends to zero in K it sends to zero.
    """

    def __init__(self, function: Function, kinks: Sequence[Any]) -> None:
        self.function, self.kinks = function, kinks

    def mean(self, K: Array) -> Expectation:
        """<F>_K."""
        return expectation_of(self.function, K, kinks=self.kinks)

    def gradient(self, K: Array) -> Expectation:
        """D = W^T <F (x x^T - 1)> W / 2."""
        whitening = directions(K).back
        rank = len(whitening)
        value, error = np.zeros((rank, rank)), np.zeros((rank, rank))
        for a, b in combinations_with_replacement(range(rank), 2):
            direction = np.zeros((rank, rank))
            direction[a, b] = 1.0
            found = self._with_weight(_HermiteWeight(direction, np.zeros((rank,) * 4)), whitening, K)
            value[a, b] = value[b, a] = float(found)
            error[a, b] = error[b, a] = float(found.error)
        size = np.abs(whitening)
        return Expectation(
            whitening.T @ value @ whitening, size.T @ error @ size, "Hermite weights on the support of K"
        )

    def shift(self, statistics: LayerStatistics) -> Expectation:
        """dK<F> · G1 + dK²<F> · V / 2 as one integral of F with a weight."""
        W = directions(statistics.K).back
        V = np.einsum("ijkl,ai,bj,ck,dl->abcd", _symmetrised(statistics.V), W, W, W, W, optimize=True)
        return self._with_weight(_HermiteWeight(W @ statistics.G1 @ W.T, V), W, statistics.K)

    def _with_weight(self, weight: _HermiteWeight, whitening: Array, K: Array) -> Expectation:
        def weighted(points: Array) -> Array:
            return np.asarray(self.function(points)) * weight(points @ whitening.T)

        return expectation_of(weighted, K, kinks=self.kinks)


@dataclass(frozen=True)
class _HermiteWeight:
    """A_ab He_ab(x) / 2 + B_abcd He_abcd(x) / 8 with B totally symmetric, at points (P, rank)."""

    second: Array
    fourth: Array

    def __call__(self, x: Array) -> Array:
        rank = x.shape[1]
        squares = (x[:, :, None] * x[:, None, :]).reshape(len(x), rank**2)
        trace = np.einsum("abcc->ab", self.fourth)
        quartic = np.sum(squares @ self.fourth.reshape(rank**2, rank**2) * squares, axis=1)
        quadratic = squares @ trace.ravel()
        plain = squares @ self.second.ravel() - np.trace(self.second)
        return np.asarray(plain / 2 + (quartic - 6 * quadratic + 3 * np.trace(trace)) / 8)


def _symmetrised(V: Array) -> Array:
    """The mean of V over the three ways to pair its indices: all that four equal derivatives feel."""
    return np.asarray((V + V.transpose(0, 2, 1, 3) + V.transpose(0, 3, 2, 1)) / 3)


@dataclass(frozen=True, repr=False)
class FirstOrder(Result):
    """A prediction to order 1/n: ``value`` = ``leading`` (infinite width) + ``correction`` (1/n included).

    ``error`` is the estimated error of the integrals; what the expansion leaves out is of order n^-2, about
    ``fluctuation`` times the correction.
    """

    also = ("value",)
    leading: float
    correction: float
    error: float
    layer: int
    fan_in: int
    fluctuation: float

    @property
    def value(self) -> float:
        """The sum of both orders."""
        return self.leading + self.correction

    def __float__(self) -> float:
        return self.value


def mean_of(
    F: Any, mlp: MLP, X: ArrayLike, layer: int | None = None, *, kinks: Sequence[Any] = ()
) -> FirstOrder:
    """E[F] = <F>_K + (1/n) [dK<F> · G1 + dK²<F> · V / 2] for one neuron of a layer (4.61), (4.112).

    Parameters
    ----------
    F
        Factors, one for each input, or a function of an array (points, inputs).
    X
        Inputs (N, n_in); those that no factor looks at cost nothing.
    kinks
        Where a function (not a factor, which knows) is not smooth: see :func:`foretrain.gaussian.expectation_of`.

    Examples
    --------
    >>> import foretrain as ft
    >>> found = mean_of([np.polynomial.Polynomial([0, 0, 1])], ft.MLP("relu", 3, 50, C_W=2.0), [[1.0, 2.0]])
    >>> round(found.leading, 10), round(found.correction, 10)
    (5.0, 0.0)
    """
    statistics, (observable,) = prepare([F], mlp, X, layer, kinks)
    leading, shift = _orders(observable, statistics)
    error = float(leading.error) + float(shift.error) / statistics.fan_in
    return _finish(statistics, float(leading), float(shift), error)


def covariance_of(
    F: Any, H: Any, mlp: MLP, X: ArrayLike, layer: int | None = None, *, kinks: Sequence[Any] = ()
) -> FirstOrder:
    """Cov[F(z_i), H(z_j)] = (1/n) dK<F> · V · dK<H> for two different neurons of a layer (4.64).

    At infinite width it is zero. For i = j use :func:`covariance_within_neuron`.
    """
    statistics, (first, second) = prepare([F, H], mlp, X, layer, kinks)
    left, right = first.gradient(statistics.K), second.gradient(statistics.K)
    V = statistics.V
    value = np.einsum("ab,abcd,cd->", left.value, V, right.value)
    error = np.einsum("ab,abcd,cd->", left.error, np.abs(V), np.abs(right.value))
    error += np.einsum("ab,abcd,cd->", np.abs(left.value), np.abs(V), right.error)
    return _finish(statistics, 0.0, float(value), float(error) / statistics.fan_in)


def covariance_within_neuron(
    F: Any, H: Any, mlp: MLP, X: ArrayLike, layer: int | None = None, *, kinks: Sequence[Any] = ()
) -> FirstOrder:
    """E[F H] - E[F] E[H] for two functions of the same neuron, strictly to order 1/n."""
    both = times(F, H, len(mlp.check_inputs(X)))
    statistics, observables = prepare([both, F, H], mlp, X, layer, kinks)
    (joint, joint_shift), (f, f_shift), (h, h_shift) = (_orders(item, statistics) for item in observables)
    leading = float(joint) - float(f) * float(h)
    shift = float(joint_shift) - float(f_shift) * float(h) - float(f) * float(h_shift)
    doubt = float(joint.error) + abs(float(f)) * float(h.error) + abs(float(h)) * float(f.error)
    shift_doubt = float(joint_shift.error) + abs(float(h)) * float(f_shift.error)
    shift_doubt += abs(float(f)) * float(h_shift.error)
    return _finish(statistics, leading, shift, doubt + shift_doubt / statistics.fan_in)


def _orders(observable: Observable, statistics: LayerStatistics) -> tuple[Expectation, Expectation]:
    return observable.mean(statistics.K), observable.shift(statistics)


def _finish(statistics: LayerStatistics, leading: float, shift: float, error: float) -> FirstOrder:
    size = statistics.fluctuation
    if size >= LARGE:  # the caller's caller is the user
        warn_user(too_deep(size))
    return FirstOrder(
        leading, shift / statistics.fan_in, error, statistics.layer, statistics.fan_in, float(size)
    )
