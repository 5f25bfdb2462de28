"""Networks with small weights, and what they learn, for the tests of plateaus."""

from __future__ import annotations

import math

import torch
from torch import nn


class Erf(nn.Module):
    def forward(self, z: torch.Tensor) -> torch.Tensor:
        return torch.erf(z)


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.second(torch.tanh(self.first(x)))


def chain(
    activation: type[nn.Module], sizes: list[int], scales: list[float], *, bias: bool = False, seed: int = 0
) -> nn.Sequential:
    """Gaussian layers whose entries have standard deviation scale / sqrt(fan-in)."""
    source = torch.Generator().manual_seed(seed)
    parts: list[nn.Module] = []
    for place, (inputs, outputs, scale) in enumerate(zip(sizes, sizes[1:], scales)):
        layer = nn.Linear(inputs, outputs, bias=bias)
        with torch.no_grad():
            layer.weight.copy_(torch.randn(outputs, inputs, generator=source) * scale / math.sqrt(inputs))
            if bias:
                layer.bias.zero_()
        parts += [activation()] * bool(place) + [layer]
    return nn.Sequential(*parts)


def task_of(
    inputs: int, samples: int = 256, seed: int = 1, mean: float = 0.0
) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(samples, inputs, generator=torch.Generator().manual_seed(seed))
    return x, torch.tanh(x[:, :1]) + mean


def product_of_scalars(depth: int, scale: float) -> tuple[nn.Sequential, torch.Tensor, torch.Tensor]:
    """f = w^L x with all w equal, one sample x = y = 1: the flow is exactly solvable."""
    model = nn.Sequential(*(nn.Linear(1, 1, bias=False) for _ in range(depth))).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(scale)
    return model, torch.ones(1, 1, dtype=torch.float64), torch.ones(1, 1, dtype=torch.float64)
