"""How fast gradient descent lowers the loss from here, and which parameters do it (Cor. 2)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from foretrain.empirical.global_ntk.dynamics import Values
from foretrain.support.answers import Answer, Result, Table, labelled


@dataclass(frozen=True, repr=False, eq=False)
class LossDecrease(Result):
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

    def answer(self) -> Answer:
        """The total, and every parameter's part."""
        names, parts = list(self.by_parameter), list(self.by_parameter.values())
        columns = {"parameter": names, "part": parts, "share": list(self.shares.values())}
        data = labelled({"loss_decrease": ("parameter", parts)}, parameter=names)
        statement = f"Gradient flow at rate 1 lowers the loss by {self.total:.4g} per unit of time."
        return Answer(statement, [Table.of(columns)], data, self.by_parameter)


def loss_decrease(gradient: Values) -> LossDecrease:
    """From J* err, by parameter."""
    lengths = {
        name: float(torch.linalg.vector_norm(values, dtype=torch.float64)) ** 2
        for name, values in gradient.items()
    }
    return LossDecrease(lengths)
