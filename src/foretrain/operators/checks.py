"""Tests of an operator on random vectors: are its functions what they claim to be?"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from foretrain.operators.estimators.krylov import BlockKrylov
from foretrain.operators.flat_blocks import random_normals
from foretrain.operators.operator import Operator
from foretrain.support.answers import Answer, Result, fields_answer
from foretrain.support.errors import InputError
from foretrain.support.seeds import Seed, spawn

_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}
_VECTORS = 4


@dataclass(frozen=True, repr=False)
class OperatorCheck(Result):
    """Relative discrepancies found on random vectors; None where there is nothing to test."""

    batching: float
    linearity: float
    adjointness: float | None
    symmetry: float | None
    negativity: float | None

    def answer(self) -> Answer:
        """The discrepancies that were tested."""
        return fields_answer(self, "The operator passed: relative discrepancies on random vectors.")


def check(operator: Operator, *, tolerance: float | None = None, seed: Seed = 0) -> OperatorCheck:
    """Test that products do not depend on the block, are linear, fit the adjoint, and have the declared structure.

    Raises an error that names the first property that fails; positivity is tested on a small Krylov space. The
    tolerance is 1e-9 in float64 and 1e-4 in float32 unless given.
    """
    allowed = _TOLERANCE[operator.dtype] if tolerance is None else tolerance
    inside, outside, weights = (
        random_normals(_VECTORS, size, key, dtype=operator.dtype, device=operator.device)
        for size, key in zip((operator.size, operator.codomain.size, _VECTORS), spawn(seed, 3))
    )
    products = operator.apply(inside)
    if not bool(torch.isfinite(products).all()):
        raise InputError("the operator's products with finite vectors are not finite: check its function.")
    adjointness = symmetry = negativity = None
    if operator.symmetric:
        symmetry = _pairing_gap(outside, products, operator.apply(outside), inside)
    elif operator.has_adjoint:
        adjointness = _pairing_gap(outside, products, operator.apply_adjoint(outside), inside)
    if (
        operator.positive
    ):  # how negative it is on a Krylov space: -(least Ritz value) / (largest in size), or 0
        krylov = BlockKrylov(operator.apply, inside, 3 * _VECTORS)
        while krylov.has_room and not krylov.exhausted:
            krylov.extend()
        values = krylov.ritz()[0]
        largest = float(values.abs().max())
        negativity = max(0.0, -float(values[-1]) / largest) if largest else 0.0
    found = OperatorCheck(
        batching=_distance(torch.cat([operator.apply(row) for row in torch.split(inside, 1)]), products),
        linearity=_distance(operator.apply(weights[:1] @ inside), weights[:1] @ products),
        adjointness=adjointness,
        symmetry=symmetry,
        negativity=negativity,
    )
    failures = {
        "batching": "a product changes with the vectors beside it in a block: the function must treat rows alone",
        "linearity": "the operator is not linear: A(au + bv) differs from a Au + b Av",
        "adjointness": "the adjoint does not fit: <u, A v> differs from <A* u, v>",
        "symmetry": "the operator is declared symmetric but is not: <u, A v> differs from <A u, v>",
        "negativity": "the operator is declared positive but has a negative direction: <v, A v> < 0",
    }
    for name, sentence in failures.items():
        value = getattr(found, name)
        if value is not None and not value <= allowed:
            raise InputError(f"{sentence} (relative size {value:.2g}, allowed {allowed:.2g}).")
    return found


def _distance(found: Tensor, expected: Tensor) -> float:
    scale = float(expected.norm())
    gap = float((found - expected).norm())
    return gap / scale if scale else gap


def _pairing_gap(outside: Tensor, products: Tensor, back: Tensor, inside: Tensor) -> float:
    """|<u, A v> - <A* u, v>| over all pairs, relative to |u| |A v|."""
    forward, backward = outside @ products.T, back @ inside.T
    scale = float(outside.norm() * products.norm()) or float(back.norm() * inside.norm())
    gap = float((forward - backward).norm())
    return gap / scale if scale else gap
