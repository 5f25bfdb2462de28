"""The largest stable learning rate: the top eigenvalue of rates x Gauss-Newton matrix of the loss."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from foretrain.doctor.setup import Case

_SHARE = 0.5  # of the largest stable rate: the rate that is recommended
_ITERATIONS = 30
_SAMPLES = 512


@dataclass(frozen=True)
class Edge:
    """Where descent becomes unstable: rate x curvature reaches 2 (1 + momentum)."""

    product: float  # top eigenvalue of rates x curvature, at the rates that are used
    limit: float
    rate: float  # the largest rate that is used

    @property
    def largest_rate(self) -> float:
        """At which the steepest direction begins to grow."""
        return self.rate * self.limit / self.product if self.product > 0 else float("inf")

    @property
    def recommended(self) -> float:
        """Half of it."""
        return _SHARE * self.largest_rate


def edge(case: Case) -> Edge:
    """From power iteration with Jacobian products, so that no matrix is formed."""
    task, rates = case.chosen(_SAMPLES), case.recipe.rates
    weights = {name: p for name, p in case.model.named_parameters() if name in rates}
    roots = [rates[name] ** 0.5 for name in weights]
    outputs = case.model(task.x)
    probe = torch.zeros_like(outputs, requires_grad=True)
    pulled = torch.autograd.grad(outputs, list(weights.values()), probe, create_graph=True)
    (slope,) = torch.autograd.grad(task.loss(outputs, task.y), outputs, create_graph=True)

    def product(vector: list[Tensor]) -> list[Tensor]:
        scaled = [root * part for root, part in zip(roots, vector)]
        (change,) = torch.autograd.grad(pulled, probe, scaled, retain_graph=True)
        (curved,) = torch.autograd.grad(slope, outputs, change, retain_graph=True)
        back = torch.autograd.grad(outputs, list(weights.values()), curved, retain_graph=True)
        return [root * part for root, part in zip(roots, back)]

    vector = [torch.randn_like(p) for p in weights.values()]
    top = 0.0
    for _ in range(_ITERATIONS):
        size = sum(float(part.square().sum()) for part in vector) ** 0.5
        if size == 0:
            break
        vector = product([part / size for part in vector])
        top = sum(float(part.square().sum()) for part in vector) ** 0.5
    return Edge(top, 2 * (1 + case.recipe.momentum), case.recipe.rate)
