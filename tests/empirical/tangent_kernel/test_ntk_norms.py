"""Normalisations with learned scales, and other parameters that multiply what belongs to a sample."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from brute_force import Case, check, normal
from torch import Tensor, nn


class Normalised(nn.Module):
    """A layer before and after the normalisation; statistics of batch norms are not their first values."""

    def __init__(self, norm: nn.Module, images: bool) -> None:
        super().__init__()
        self.first: nn.Module = nn.Conv2d(2, 4, 2) if images else nn.Linear(3, 4)
        self.norm = norm
        self.last = nn.Linear(16 if images else 4, 2)
        for name, buffer in norm.named_buffers():
            if name.startswith("running"):
                buffer.copy_(torch.rand(buffer.shape) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        found = torch.tanh(self.norm(self.first(x)))
        return self.last(found.flatten(1) if x.ndim == 4 else found)


VECTORS: dict[str, Callable[[], nn.Module]] = {
    "layer": lambda: nn.LayerNorm(4),
    "layer without bias": lambda: nn.LayerNorm(4, bias=False),
    "layer without parameters": lambda: nn.LayerNorm(4, elementwise_affine=False),
    "root mean square": lambda: nn.RMSNorm(4),
    "batch": lambda: nn.BatchNorm1d(4),
    "group": lambda: nn.GroupNorm(2, 4),
    "prelu": lambda: nn.PReLU(),
    "prelu of channels": lambda: nn.PReLU(4),
}
IMAGES: dict[str, Callable[[], nn.Module]] = {
    "layer": lambda: nn.LayerNorm([4, 2, 2]),
    "layer over space": lambda: nn.LayerNorm([2, 2]),
    "root mean square": lambda: nn.RMSNorm([4, 2, 2]),
    "batch": lambda: nn.BatchNorm2d(4),
    "batch without parameters": lambda: nn.BatchNorm2d(4, affine=False),
    "group": lambda: nn.GroupNorm(2, 4),
    "one group": lambda: nn.GroupNorm(1, 4),
    "instance": lambda: nn.InstanceNorm2d(4, affine=True),
    "instance with statistics": lambda: nn.InstanceNorm2d(4, affine=True, track_running_stats=True),
    "prelu of channels": lambda: nn.PReLU(4),
    "local response": lambda: nn.LocalResponseNorm(2),
}


@pytest.mark.parametrize("name", VECTORS)
def test_norms_of_vectors(name: str) -> None:
    check(Case(lambda: Normalised(VECTORS[name](), images=False), normal(4, 3)))


@pytest.mark.parametrize(
    "name", [n for n in VECTORS if "batch" not in n and "group" not in n and "channels" not in n]
)
def test_norms_at_several_positions(name: str) -> None:
    check(Case(lambda: Normalised(VECTORS[name](), images=False), normal(4, 5, 3)))


@pytest.mark.parametrize("name", IMAGES)
def test_norms_of_images(name: str) -> None:
    check(Case(lambda: Normalised(IMAGES[name](), images=True), normal(4, 2, 3, 3)))


def test_norm_of_sequences_by_batch_statistics_of_channels() -> None:
    check(
        Case(
            lambda: nn.Sequential(nn.Conv1d(2, 3, 2), nn.BatchNorm1d(3), nn.Tanh(), nn.Flatten()),
            normal(4, 2, 4),
        )
    )


def test_bilinear_layer_is_exact() -> None:
    check(Case(lambda: nn.Bilinear(2, 3, 2), (normal(4, 2), normal(4, 3, seed=1)), slow=("weight",)))


class Scales(nn.Module):
    """Scales of channels, of layers, and one number, as networks with learned gates have them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 4), nn.Linear(4, 4)
        self.channels, self.gate = nn.Parameter(torch.randn(4)), nn.Parameter(torch.randn(()))
        self.shift = nn.Parameter(torch.randn(1, 4))

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.first(x)) * self.channels
        return hidden + torch.sigmoid(self.gate) * self.second(hidden) - self.gate * self.shift


def test_scales_and_gates() -> None:
    check(Case(Scales, normal(4, 3)))


def test_a_scale_of_each_pixel() -> None:
    class Pixels(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale, self.bias = nn.Parameter(torch.randn(2, 3, 3)), nn.Parameter(torch.randn(1, 2, 1, 3))

        def forward(self, x: Tensor) -> Tensor:
            return torch.tanh(x * self.scale + self.bias).sum((1, 3))

    check(Case(Pixels, normal(4, 2, 3, 3)))
