"""Two operators side by side: their relative Frobenius difference and cosine, exact or with error bars."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf, sqrt

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from foretrain.operators.algebra import check_same_spaces
from foretrain.operators.estimators.estimate import jackknife
from foretrain.operators.flat_blocks import basis_rows, random_signs
from foretrain.operators.operator import Operator
from foretrain.support.answers import Answer, Result, fields_answer
from foretrain.support.errors import InputError
from foretrain.support.seeds import Seed

Array = NDArray[np.float64]

_EXACT_SIZE = 256
_TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-4}


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
    return OperatorComparison(
        relative_difference=_relative_difference(total),
        relative_difference_error=0.0 if exact else _spread(_relative_difference, moments),
        cosine=_cosine(total),
        cosine_error=0.0 if exact else _spread(_cosine, moments),
        norm_ratio=_ratio(total[1], total[2]),
        tolerance=_TOLERANCE[first.dtype] if tolerance is None else tolerance,
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


def _relative_difference(total: Array) -> float:
    return _ratio(total[0], total[2])


def _cosine(total: Array) -> float:
    """The cosine; two operators that are both zero point the same way, one of them alone nowhere."""
    scale = sqrt(total[1] * total[2])
    if scale == 0:
        return 1.0 if total[0] == 0 else 0.0
    return float(np.clip(total[3] / scale, -1, 1))


def _ratio(above: float, below: float) -> float:
    """The root of a ratio of squares, 0 for 0 / 0."""
    if below == 0:
        return 0.0 if above == 0 else inf
    return sqrt(above / below)


def _spread(statistic: Callable[[Array], float], moments: Array) -> float:
    """Standard error of a function of sums, from leaving out one probe at a time."""
    without = np.array([statistic(rest) for rest in moments.sum(0) - moments])
    return jackknife(without, statistic(moments.sum(0)))[1] if np.all(np.isfinite(without)) else inf
