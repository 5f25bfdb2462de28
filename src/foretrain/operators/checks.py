"""Is an operator what it claims to be, and how far is it from another? Both by its products."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, sqrt

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from foretrain.operators.algebra import check_same_spaces
from foretrain.operators.estimators.estimate import jackknife
from foretrain.operators.estimators.krylov import BlockKrylov
from foretrain.operators.operator import Operator
from foretrain.operators.vectors import basis_rows, random_normals, random_signs
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


Array = NDArray[np.float64]

_EXACT_SIZE = 256
_SAME = {torch.float64: 1e-8, torch.float32: 1e-4}


@dataclass(frozen=True, repr=False)
class OperatorComparison(Result):
    """How far operator A is from operator B; errors are zero where every column was compared."""

    relative_difference: float
    relative_difference_error: float
    cosine: float
    cosine_error: float
    norm_ratio: float
    tolerance: float
    probes: int
    exact: bool

    @property
    def agree(self) -> bool:
        """Whether the difference, with two standard errors on top, is within the tolerance."""
        return self.relative_difference + 2 * self.relative_difference_error <= self.tolerance

    def answer(self) -> Answer:
        """Whether they agree, and by how much they differ."""
        how = f"all {self.probes} columns" if self.exact else f"{self.probes} random probes"
        verdict = "agree" if self.agree else "differ"
        meanings = {"relative_difference": "|A - B| / |B|", "norm_ratio": "|A| / |B|"}
        return fields_answer(
            self, f"The operators {verdict} at tolerance {self.tolerance:.2g} ({how}).", meanings
        )


def compare(
    first: Operator, second: Operator, *, tolerance: float | None = None, probes: int = 32, seed: Seed = 0
) -> OperatorComparison:
    """The relative difference |A - B| / |B| and the cosine of A and B in the Frobenius norm.

    Up to 256 columns (or ``probes``, if that is more) all are compared; beyond, random signs sample them, and the
    errors are jackknife standard errors. The tolerance is 1e-8 in float64 and 1e-4 in float32 unless given.

    >>> from foretrain.operators import Space, compare, identity
    >>> one = identity(Space.of(unit=3))
    >>> compare(1.1 * one, one, tolerance=0.2).answer().statement
    'The operators agree at tolerance 0.2 (all 3 columns).'
    """
    check_same_spaces(first, second)
    if probes < 2:
        raise InputError(f"`probes` is {probes}, but a standard error needs at least 2 of them.")
    exact = first.size <= max(_EXACT_SIZE, probes)
    moments = _moments(first, second, first.size if exact else probes, exact, seed)
    total = moments.sum(0)
    (difference, cosine), errors = _ratios(total), [0.0, 0.0]
    if not exact:  # from leaving out one probe at a time
        without = np.array([_ratios(rest) for rest in total - moments]).T
        errors = [
            jackknife(rests, value)[1] if np.all(np.isfinite(rests)) else inf
            for rests, value in zip(without, (difference, cosine))
        ]
    return OperatorComparison(
        relative_difference=difference,
        relative_difference_error=errors[0],
        cosine=cosine,
        cosine_error=errors[1],
        norm_ratio=_ratio(total[1], total[2]),
        tolerance=_SAME[first.dtype] if tolerance is None else tolerance,
        probes=len(moments),
        exact=exact,
    )


def _moments(first: Operator, second: Operator, count: int, exact: bool, seed: Seed) -> Array:
    """For every probe g: |Ag - Bg|², |Ag|², |Bg|² and <Ag, Bg>, in float64."""
    dtype, device = first.dtype, first.device
    size, step = first.size, min(first.best_block, second.best_block)
    signs = None if exact else random_signs(count, size, seed, dtype=dtype, device=device)
    rows: list[Tensor] = []
    for start in range(0, count, step):
        stop = min(start + step, count)
        if signs is None:
            block = basis_rows(start, stop, size, dtype=dtype, device=device)
        else:
            block = signs[start:stop]
        a, b = first.apply(block).double(), second.apply(block).double()
        parts = ((a - b).square().sum(1), a.square().sum(1), b.square().sum(1), (a * b).sum(1))
        rows.append(torch.stack(parts, dim=1))
    return torch.cat(rows).cpu().numpy()


def _ratios(total: Array) -> tuple[float, float]:
    """The relative difference, and the cosine: two operators that are both zero point the same way."""
    scale = sqrt(total[1] * total[2])
    cosine = float(np.clip(total[3] / scale, -1, 1)) if scale else float(total[0] == 0)
    return _ratio(total[0], total[2]), cosine


def _ratio(above: float, below: float) -> float:
    """The root of a ratio of squares, 0 for 0 / 0."""
    if below == 0:
        return 0.0 if above == 0 else inf
    return sqrt(above / below)
