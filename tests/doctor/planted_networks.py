"""Networks with a fault that was put there on purpose, and healthy ones, as users would write them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import pairwise

import torch
from torch import Tensor, nn

Activation = Callable[[], nn.Module]


@cache
def digits(samples: int = 200) -> tuple[Tensor, Tensor]:
    from sklearn.datasets import load_digits

    found = load_digits()
    x = torch.as_tensor(found.data / 16.0, dtype=torch.float32)
    return x[:samples], torch.as_tensor(found.target).long()[:samples]


def regression(samples: int = 200, features: int = 10, seed: int = 0) -> tuple[Tensor, Tensor]:
    """A smooth target of normal inputs."""
    source = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, features, generator=source)
    directions = torch.randn(features, 3, generator=source) / features**0.5
    return x, torch.sin(2 * x @ directions).sum(1, keepdim=True)


def mlp(
    sizes: list[int], activation: Activation, weight_variance: float, *, bias: float = 0.0, seed: int = 0
) -> nn.Sequential:
    """Weights of variance C_W / fan-in, biases that are all the same."""
    source = torch.Generator().manual_seed(seed)
    layers: list[nn.Module] = []
    for n_in, n_out in pairwise(sizes):
        layer = nn.Linear(n_in, n_out)
        with torch.no_grad():
            layer.weight.copy_((weight_variance / n_in) ** 0.5 * torch.randn(n_out, n_in, generator=source))
            layer.bias.fill_(bias)
        layers += [layer, activation()]
    return nn.Sequential(*layers[:-1])


def default_mlp(sizes: list[int], activation: Activation, *, seed: int = 0) -> nn.Sequential:
    """As torch initialises it."""
    torch.manual_seed(seed)
    pairs = [[nn.Linear(n_in, n_out), activation()] for n_in, n_out in pairwise(sizes)]
    return nn.Sequential(*[part for pair in pairs for part in pair][:-1])


def chain(features: int, width: int, hidden: int, outputs: int) -> list[int]:
    return [features, *[width] * hidden, outputs]


class GatedNetwork(nn.Module):
    """A GRU with a readout, as torch initialises both."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.GRU(3, 64, batch_first=True), nn.Linear(64, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.head(self.body(x)[0])
        return found
