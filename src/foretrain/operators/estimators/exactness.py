"""When an answer is exact: as long as that takes no more than a second or two, or no more than a good estimate.

An exact answer takes products with all unit vectors, of the operator or of a smaller one with the same spectrum (J*
J for J J*, where there are fewer parameters than states). With a budget it is given where the budget has one product
for each of them, so that ``products`` forces either. Without one it is given up to dimension 256, and beyond as long
as the products take no more than 2e10 operations by the operator's ``flops``: for a matrix, up to dimension 2000. An
``accuracy`` that is asked for bounds the work: then it is 5e8 operations, about what an estimate costs at least.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

from foretrain.operators.estimators.probes import Counted

if TYPE_CHECKING:
    from foretrain.operators.operator import Operator

AFFORDABLE = 2e10  # floating-point operations: a second or two on one core
QUICK = 5e8  # a few hundredths of a second
SMALL = 256  # up to this dimension the dense form costs less than a good estimate
_DECOMPOSITION = 10.0  # times the cube of the dimension: operations of a symmetric eigensolver


def affordable(accuracy: float | None) -> float:
    """The floating-point operations that an exact answer may take."""
    return AFFORDABLE if accuracy is None else QUICK


def is_affordable(
    operators: Iterable[Operator],
    products: int | None,
    accuracy: float | None = None,
    *,
    decomposed: bool = False,
) -> bool:
    """Whether products of all of them with all unit vectors, and a decomposition, are worth their cost."""
    every = list(operators)
    size = max(op.domain.size for op in every)
    if products is not None:
        return len(every) * size <= products
    if size <= SMALL and accuracy is None:
        return True
    flops = size * sum(op.flops for op in every)
    return flops + (_DECOMPOSITION * size**3 if decomposed else 0.0) <= affordable(accuracy)


def exact_moments(counted: Counted) -> tuple[float, float]:
    """tr A and tr(A* A), in units of the products, from products with all unit vectors that are not kept."""
    first, second = [], []
    for place, images in counted.unit_products():
        first.append(float(images[:, place].diagonal().double().sum()))
        second.append(float(images.double().square().sum()))
    return math.fsum(first), math.fsum(second)
