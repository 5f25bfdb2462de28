"""Contractions of tensors with matrices: which pull-back each tensor needs, exact where it is cheap or asked for.

Cheap is what an estimate says: how many different products of activations at three and at four different inputs a
layer needs, times what one takes, as a closed form or as an integral.
"""

from __future__ import annotations

from collections.abc import Callable
from math import comb
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from foretrain.activations import Activation
from foretrain.gaussian import factor
from foretrain.gaussian.closed_forms import closed_form
from foretrain.support.seeds import Seed
from foretrain.theory.flow.request import Request
from foretrain.theory.recursions import contraction as rules
from foretrain.theory.recursions.contraction import Contraction, joint_contraction
from foretrain.theory.recursions.tensors import PRODUCTS_ON_PAIRS

_AFFORDABLE = 10.0  # seconds that an exact contraction may take without having been asked for
_SECONDS = {"closed form": (3e-4, 5e-4), "smooth": (1e-3, 1.5e-2), "kinked": (0.15, 0.3)}
"""What a product takes at three and at four different inputs, by the rule that integrates it."""
_PRODUCTS = {**PRODUCTS_ON_PAIRS, "F": {(0, 1)}, "B": {(1, 1)}}
"""Orders of the derivatives s and t in the products <s s t t> that each tensor needs."""
PULLED_BACK = tuple(_PRODUCTS)
"""Tensors that have a contraction without their N^4 entries."""
_DRAWS = 16_384
_COSTLY_DRAWS = 1_024  # where a draw costs N^3


T = TypeVar("T")


class _Ways(NamedTuple, Generic[T]):
    """Ways to compute what a layer adds to a contraction."""

    diagonal: T
    exact: T
    sampled: Callable[[int, Seed], T]
    draws: int

    def choose(self, name: str, request: Request) -> T:
        """The exact one where it is cheap or asked for, else the sampled one."""
        assert request.matrices is not None
        inputs = request.matrices.shape[-1]
        if not (request.matrices * (1 - np.eye(inputs))).any():
            return self.diagonal
        if request.draws == 0:
            return self.exact
        if (
            request.draws is None
            and exact_seconds(name, inputs, request.activation, request.depth) <= _AFFORDABLE
        ):
            return self.exact
        return self.sampled(request.draws or self.draws, request.seed)


_COVARIANCE = _Ways[rules.FormCovariance](
    rules.diagonal_covariance, rules.exact_covariance, rules.SampledCovariance, _DRAWS
)
_CROSS = _Ways[rules.CrossSource](rules.diagonal_cross, rules.exact_cross, rules.SampledCross, _DRAWS)
_CROSS_VARIANCE = _Ways[rules.CrossSource](
    rules.diagonal_cross_variance,
    rules.exact_cross_variance,
    rules.SampledCrossVariance,
    _COSTLY_DRAWS,
)


def contraction(name: str, request: Request) -> Contraction:
    """The contraction of one of V, D, F, A, B with the pairs of matrices of the request."""
    assert request.matrices is not None
    left, right = request.matrices[:, 0], request.matrices[:, 1]
    if name == "F":
        return Contraction(left, right, rules.CrossPullBack(_CROSS.choose(name, request)))
    if name == "B":
        return Contraction(left, right, rules.CrossVariancePullBack(_CROSS_VARIANCE.choose(name, request)))
    return joint_contraction(name, left, right, _COVARIANCE.choose(name, request))


def exact_seconds(name: str, inputs: int, activation: Activation, depth: int) -> float:
    """About how long the exact contraction of a tensor takes, within a factor of a few."""
    each_layer = 0.0
    for first, second in _PRODUCTS[name]:
        three, four = _SECONDS[_rule(activation, first, second)]
        # Two of each order can be told apart in 4 and in 6 ways.
        threes, fours = (1, 1) if first == second else (4, 6)
        each_layer += 3 * comb(inputs, 3) * threes * three + comb(inputs, 4) * fours * four
    return (depth - 1) * each_layer


def _rule(activation: Activation, first: int, second: int) -> str:
    """How products of four different inputs are integrated."""
    factors = [factor(activation, order) for order in (first, first, second, second)]
    if closed_form(factors, np.eye(4)[None], np.zeros((1, 4))) is not None:
        return "closed form"
    return "smooth" if activation.is_smooth else "kinked"
