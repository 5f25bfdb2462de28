"""Mean, slope and bend of a function of one neuron, given as factors or as any callable."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.polynomial import Polynomial
from numpy.typing import NDArray

from foretrain.activations import Activation
from foretrain.gaussian import Factor, covariance_gradient, expectation
from foretrain.gaussian.factors import as_factor
from foretrain.support.errors import InputError
from foretrain.theory.observable_derivatives import GOAL, Derivatives, derivatives_of, directions

Array = NDArray[np.float64]


class OneNeuron(NamedTuple):
    """Derivatives of a function of one neuron in coordinates u = back z."""

    back: Array
    found: Derivatives


def is_accurate(found: Derivatives) -> bool:
    """Whether the integrals reached their goal."""
    return found.error <= GOAL * found.size


def one_neuron(function: Any, K: Array, kinks: Sequence[Any]) -> OneNeuron:
    """Derivatives of factors, one per input, by Price's theorem; of a callable by integration."""
    if isinstance(function, str | Factor | Activation | Polynomial):
        function = [function]
    if not isinstance(function, Sequence):
        if not callable(function):
            raise InputError(f"{function!r} is no observable: give factors, one per input, or a function.")
        return OneNeuron(directions(K).back, derivatives_of(function, K, 1, kinks))
    if len(function) != len(K):
        raise InputError(
            f"{len(function)} factors were given for {len(K)} inputs: give one each, 1.0 for none."
        )
    return OneNeuron(np.eye(len(K)), _by_derivatives([as_factor(each) for each in function], K))


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
