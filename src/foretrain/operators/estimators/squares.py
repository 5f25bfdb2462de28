"""A* A of an operator whose products are counted."""

from __future__ import annotations

from torch import Tensor

from foretrain.operators.estimators.probes import Counted, OperatorLike, SpaceLike


class _Squared:
    """A* A, symmetric and positive."""

    symmetric = True
    positive = True

    def __init__(self, counted: Counted) -> None:
        self._counted = counted
        self.domain: SpaceLike = counted.operator.domain
        self.codomain: SpaceLike = self.domain
        self.dtype = counted.dtype
        self.device = counted.operator.device
        self.best_block = counted.block
        self.flops = 2 * counted.operator.flops

    def apply(self, flat: Tensor) -> Tensor:
        return self._counted.apply_adjoint(self._counted.apply(flat))

    apply_adjoint = apply

    def same_spectrum(self) -> OperatorLike:
        return self

    def trace_by_structure(self, most_flops: float) -> tuple[float, int] | None:
        return None


def squared(counted: Counted) -> Counted:
    """A* A, whose eigenvectors are the right singular vectors of A; its products count twice on A."""
    return Counted(_Squared(counted))
