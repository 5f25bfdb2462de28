"""Contractions of tensors with matrices: which pull-back each tensor needs, exact where it is cheap or asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from foretrain.support.seeds import Seed
from foretrain.theory.flow.request import Request
from foretrain.theory.pairs import Pairs
from foretrain.theory.recursions import contraction as values
from foretrain.theory.recursions import ntk_contraction as tangents
from foretrain.theory.recursions.contraction import Contraction, on_pairs
from foretrain.theory.recursions.ntk import TangentExpectations

_FEW_INPUTS = 8  # up to here a contraction is exact by default
_DRAWS = 16_384
_COSTLY_DRAWS = 1_024  # where a draw costs N^3


T = TypeVar("T")


class _Ways(NamedTuple, Generic[T]):
    """Ways to compute what a layer adds to a contraction."""

    diagonal: T
    exact: T
    sampled: Callable[[int, Seed], T]
    draws: int

    def choose(self, request: Request) -> T:
        """The exact one where it is cheap or asked for, else the sampled one."""
        assert request.matrices is not None
        inputs = request.matrices.shape[-1]
        if not (request.matrices * (1 - np.eye(inputs))).any():
            return self.diagonal
        if request.draws == 0 or (request.draws is None and inputs <= _FEW_INPUTS):
            return self.exact
        return self.sampled(request.draws or self.draws, request.seed)


_COVARIANCE = _Ways[values.FormCovariance](
    values.diagonal_covariance, values.exact_covariance, values.SampledCovariance, _DRAWS
)
_CROSS = _Ways[tangents.CrossSource](
    tangents.diagonal_cross, tangents.exact_cross, tangents.SampledCross, _DRAWS
)
_CROSS_VARIANCE = _Ways[tangents.CrossSource](
    tangents.diagonal_cross_variance,
    tangents.exact_cross_variance,
    tangents.SampledCrossVariance,
    _COSTLY_DRAWS,
)


def contraction(name: str, request: Request) -> Contraction[TangentExpectations]:
    """The contraction of one of V, D, F, A, B with the pairs of matrices of the request."""
    assert request.matrices is not None
    left, right = request.matrices[:, 0], request.matrices[:, 1]
    if name == "F":
        return Contraction(left, right, tangents.CrossPullBack(_CROSS.choose(request)))
    if name == "B":
        return Contraction(left, right, tangents.CrossVariancePullBack(_CROSS_VARIANCE.choose(request)))
    pairs = Pairs(left.shape[-1])
    forms = on_pairs(left, pairs), on_pairs(right, pairs)
    covariance = _COVARIANCE.choose(request)
    if name == "V":
        return Contraction(*forms, values.VertexPullBack(covariance))
    first, second = (
        tangents.joint_forms(form, row) for form, row in zip(forms, tangents.SIDES[name], strict=True)
    )
    return Contraction(first, second, tangents.JointPullBack(covariance))
