"""Forward and backward passes of stacked networks: one matrix product for all of them, written out by hand."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from foretrain.training.gradient_flow.networks import Weights
from foretrain.training.gradient_flow.problem import Problem
from foretrain.training.gradient_flow.samples import Sample


@dataclass(frozen=True, eq=False)
class Pass:
    """One forward pass: outputs f (networks, 1, points), h_0 .. h_{L-1} and σ'(z_1) .. σ'(z_{L-1})."""

    weights: Weights
    outputs: Tensor
    activations: list[Tensor]
    slopes: list[Tensor]

    def gradients(self, cotangent: Tensor) -> Weights:
        """Σ_points cotangent · ∂f/∂W_l for every layer; the cotangent is (networks or one, 1, points)."""
        delta = cotangent.expand_as(self.outputs)
        found = [delta @ self.activations[-1].mT]
        for layer in range(len(self.weights) - 1, 0, -1):
            delta = self.weights[layer].mT @ delta
            delta.mul_(self.slopes[layer - 1])
            found.append(delta @ self.activations[layer - 1].mT)
        return tuple(reversed(found))


def forward(problem: Problem, weights: Weights, points: Tensor) -> Pass:
    """Run every network on the points (inputs, points), or each on its own (networks, inputs, points)."""
    h, activations, slopes = points, [points], []
    for matrix in weights[:-1]:
        h, slope = problem.nonlinearity(matrix @ h)
        activations.append(h)
        slopes.append(slope)
    return Pass(weights, weights[-1] @ h, activations, slopes)


def loss_and_gradients(problem: Problem, weights: Weights, sample: Sample) -> tuple[Tensor, Weights]:
    """½ E (f - y)² and its gradients, for every network."""
    made = forward(problem, weights, sample.points)
    error = made.outputs - sample.targets
    weighted = error * sample.weights
    return 0.5 * (error * weighted).sum(dim=(-2, -1)), made.gradients(weighted)


def mean_losses(problem: Problem, weights: Weights, sample: Sample) -> Tensor:
    """½ E (f - y)² of every network."""
    h = sample.points
    for matrix in weights[:-1]:
        h = problem.nonlinearity.value(matrix @ h)
    error = weights[-1] @ h - sample.targets
    return 0.5 * (error.square() * sample.weights).sum(dim=(-2, -1))


def bytes_per_network(problem: Problem, sample_size: int, dtype: torch.dtype) -> int:
    """Memory of one gradient: activations, slopes and signals on their way back."""
    rows = (2 * (problem.depth - 1) + 2) * problem.width
    return rows * sample_size * torch.finfo(dtype).bits // 8
