"""Mean slopes and bends of an observable of one or two neurons, given as factors or as any callable."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from foretrain.gaussian import Factor, covariance_gradient, expectation
from foretrain.gaussian.observables import directions, factors_of
from foretrain.support.errors import InputError
from foretrain.theory.correlations.observable_derivatives import GOAL, Derivatives, derivatives_of

Array = NDArray[np.float64]


class ObservableMeans(NamedTuple):
    """<dO / du_{m; p}> and <d^2 O / du_{m; p} du_{n; q}> of neurons m, n in coordinates u = back z.

    Each is known to within ``error``.
    """

    backs: tuple[Array, ...]  # of each neuron (coordinates, inputs)
    slopes: tuple[Array, ...]
    bends: dict[tuple[int, int], Array]
    error: float
    is_accurate: bool

    def slope_along(self, neuron: int, vector: Array) -> tuple[float, float]:
        """The sum of a neuron's slopes with a vector (inputs,), and its error."""
        own = self.backs[neuron] @ vector
        return float(self.slopes[neuron] @ own), self.error * float(np.abs(own).sum())

    def bend_along(self, m: int, n: int, tensor: Array) -> tuple[float, float]:
        """The sum of bends with a tensor (inputs, inputs), and its error."""
        own = self.backs[m] @ tensor @ self.backs[n].T
        return float(np.sum(self.bends[m, n] * own)), self.error * float(np.abs(own).sum())


class OneNeuron(NamedTuple):
    """Derivatives of a function of one neuron in coordinates u = back z."""

    back: Array
    found: Derivatives


def observable_means(observable: Any, K: Array, neurons: int, kinks: Sequence[Any]) -> ObservableMeans:
    """Of a function of one neuron; of a tuple of two such, multiplied; or of a function of two neurons."""
    if neurons == 1:
        back, found = one_neuron(observable, K, kinks)
        return ObservableMeans(
            (back,), (found.slope,), {(0, 0): found.bend}, found.error, _is_accurate(found)
        )
    if isinstance(observable, tuple) and len(observable) == 2:
        return _of_product(*(one_neuron(each, K, kinks) for each in observable))
    if not callable(observable):
        raise InputError("an observable of two neurons is a tuple of two functions, or a function of both.")
    back, found = directions(K).back, derivatives_of(observable, K, 2, kinks)
    parts = slice(None, len(back)), slice(len(back), None)
    return ObservableMeans(
        (back, back),
        (found.slope[parts[0]], found.slope[parts[1]]),
        {(m, n): found.bend[parts[m], parts[n]] for m, n in np.ndindex(2, 2)},
        found.error,
        _is_accurate(found),
    )


def _of_product(first: OneNeuron, second: OneNeuron) -> ObservableMeans:
    """Of a product of functions of one neuron each."""
    f, g = first.found, second.found
    crossed = np.outer(f.slope, g.slope)
    return ObservableMeans(
        (first.back, second.back),
        (f.slope * g.mean, g.slope * f.mean),
        {(0, 0): f.bend * g.mean, (1, 1): g.bend * f.mean, (0, 1): crossed, (1, 0): crossed.T},
        f.error * g.size + g.error * f.size,  # no moment of a function exceeds its size much
        _is_accurate(f) and _is_accurate(g),
    )


def _is_accurate(found: Derivatives) -> bool:
    """Whether the integrals reached their goal."""
    return found.error <= GOAL * found.size


def one_neuron(function: Any, K: Array, kinks: Sequence[Any]) -> OneNeuron:
    """Derivatives of factors, one per input, by Price's theorem; of a callable by integration."""
    factors = factors_of(function, len(K))
    if factors is None:
        return OneNeuron(directions(K).back, derivatives_of(function, K, 1, kinks))
    return OneNeuron(np.eye(len(K)), _by_derivatives(factors, K))


def _by_derivatives(factors: list[Factor], K: Array) -> Derivatives:
    """Price's derivatives of a product, among the inputs whose factors are not constant."""
    moving = [place for place, f in enumerate(factors) if not f.is_constant] or [0]
    constants = [f.polynomial[0] for place, f in enumerate(factors) if place not in moving]
    own, block = [factors[place] for place in moving], K[np.ix_(moving, moving)]
    own[0] = own[0] * float(np.prod(constants))
    slope, bend = np.zeros(len(K)), np.zeros(K.shape)
    for place, f in enumerate(own):
        changed = [[*own[:place], part, *own[place + 1 :]] for part in f.derivative()]
        slope[moving[place]] = sum(float(expectation(each, block)) for each in changed)
    gradient = np.asarray(covariance_gradient(own, block).value)
    bend[np.ix_(moving, moving)] = (1 + np.eye(len(moving))) * gradient
    mean = float(expectation(own, block))
    size = max(abs(mean), float(np.abs(slope).max()), float(np.abs(bend).max()))
    return Derivatives(mean, slope, bend, 0.0, size)
