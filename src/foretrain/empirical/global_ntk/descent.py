"""How fast gradient descent lowers the loss from here, and which parameters do it (Cor. 2)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from foretrain.empirical.global_ntk.dynamics import Values

if TYPE_CHECKING:
    import xarray


@dataclass(frozen=True)
class LossDecrease:
    """-dL/dt of gradient flow at rate 1: <NTK_S err, err> = |J* err|^2, the sum of every parameter's part."""

    by_parameter: Mapping[str, float]

    @property
    def total(self) -> float:
        """<NTK_S err, err>."""
        return sum(self.by_parameter.values())

    @property
    def shares(self) -> Mapping[str, float]:
        """Parts of the total; zeros if nothing changes."""
        total = self.total
        return {name: part / total if total else 0.0 for name, part in self.by_parameter.items()}

    def to_xarray(self) -> xarray.DataArray:
        """The parts, labelled by parameter."""
        import xarray

        parts = list(self.by_parameter.values())
        return xarray.DataArray(
            parts, {"parameter": list(self.by_parameter)}, "parameter", name="loss_decrease"
        )

    def __repr__(self) -> str:
        parts = ", ".join(f"{name} {share:.1%}" for name, share in self.shares.items())
        return f"LossDecrease(total {self.total:.4g}: {parts})"


def loss_decrease(gradient: Values) -> LossDecrease:
    """From J* err, by parameter."""
    lengths = {
        name: float(torch.linalg.vector_norm(values, dtype=torch.float64)) ** 2
        for name, values in gradient.items()
    }
    return LossDecrease(lengths)
