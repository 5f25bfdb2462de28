"""Convolutions and transposed convolutions with every option, in one, two and three dimensions."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from brute_force import Case, check, normal
from torch import Tensor, nn

CONVOLUTIONS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "plain": (lambda: nn.Conv2d(2, 3, 3), (4, 2, 5, 5)),
    "stride": (lambda: nn.Conv2d(2, 3, 3, stride=2, padding=1), (4, 2, 6, 5)),
    "unequal": (
        lambda: nn.Conv2d(2, 3, (3, 2), stride=(1, 2), padding=(0, 1), dilation=(2, 1)),
        (4, 2, 7, 5),
    ),
    "groups": (lambda: nn.Conv2d(4, 6, 3, groups=2, padding=1), (4, 4, 4, 4)),
    "depthwise": (lambda: nn.Conv2d(4, 4, 3, groups=4, padding=1), (4, 4, 4, 4)),
    "depthwise multiplied": (lambda: nn.Conv2d(2, 6, 3, groups=2), (4, 2, 4, 4)),
    "dilation": (lambda: nn.Conv2d(2, 3, 3, dilation=2, padding=2), (4, 2, 5, 5)),
    "no bias": (lambda: nn.Conv2d(2, 3, 3, bias=False), (4, 2, 4, 4)),
    "same": (lambda: nn.Conv2d(2, 3, 3, padding="same"), (4, 2, 4, 4)),
    "same, even kernel": (lambda: nn.Conv2d(2, 3, 4, padding="same"), (4, 2, 4, 4)),
    "valid": (lambda: nn.Conv2d(2, 3, 2, padding="valid"), (4, 2, 4, 4)),
    "circular": (lambda: nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular"), (4, 2, 4, 4)),
    "reflect": (lambda: nn.Conv2d(2, 3, 3, padding=1, padding_mode="reflect"), (4, 2, 4, 4)),
    "replicate": (lambda: nn.Conv2d(2, 3, 3, padding=1, padding_mode="replicate"), (4, 2, 4, 4)),
    "1x1": (lambda: nn.Conv2d(3, 4, 1), (4, 3, 3, 3)),
    "one position": (lambda: nn.Conv2d(2, 4, 3), (4, 2, 3, 3)),
    "unused border": (lambda: nn.Conv2d(2, 3, 2, stride=3), (4, 2, 7, 6)),
    "one dimension": (lambda: nn.Conv1d(2, 3, 3, stride=2, padding=1), (4, 2, 7)),
    "one dimension, groups": (lambda: nn.Conv1d(4, 4, 3, groups=4, dilation=2), (4, 4, 7)),
    "three dimensions": (lambda: nn.Conv3d(2, 2, 2, stride=(1, 2, 1), padding=(0, 1, 0)), (4, 2, 3, 3, 3)),
}
TRANSPOSED: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "plain": (lambda: nn.ConvTranspose2d(2, 3, 3), (4, 2, 3, 3)),
    "stride": (lambda: nn.ConvTranspose2d(2, 3, 3, stride=2, padding=1, output_padding=1), (4, 2, 3, 2)),
    "unequal": (
        lambda: nn.ConvTranspose2d(2, 3, (3, 2), stride=(2, 3), padding=(1, 0), output_padding=(1, 2)),
        (4, 2, 2, 3),
    ),
    "groups": (lambda: nn.ConvTranspose2d(4, 6, 3, groups=2, padding=1), (4, 4, 3, 3)),
    "depthwise": (lambda: nn.ConvTranspose2d(3, 3, 2, groups=3, stride=2), (4, 3, 3, 3)),
    "dilation": (lambda: nn.ConvTranspose2d(2, 3, 3, dilation=2, padding=2), (4, 2, 4, 4)),
    "padding eats all": (lambda: nn.ConvTranspose2d(2, 3, 3, padding=2, bias=False), (4, 2, 4, 4)),
    "one dimension": (lambda: nn.ConvTranspose1d(2, 3, 4, stride=3, padding=1, output_padding=2), (4, 2, 3)),
    "one dimension, all": (
        lambda: nn.ConvTranspose1d(4, 2, 3, stride=2, padding=1, output_padding=1, groups=2, dilation=2),
        (4, 4, 4),
    ),
    "three dimensions": (lambda: nn.ConvTranspose3d(2, 2, 2, stride=2), (4, 2, 2, 2, 2)),
}


class Between(nn.Module):
    """The layer after another that multiplies channels, and two outputs that see all of its results differently."""

    def __init__(self, layer: nn.Module, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(shape[1], *(1 for _ in shape[2:])))
        self.layer = layer
        with torch.no_grad():
            features = layer(torch.zeros(1, *shape[1:])).numel()
        self.last = nn.Linear(features, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.layer(x * self.scale)).flatten(1))


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions(name: str) -> None:
    make, shape = CONVOLUTIONS[name]
    check(Case(lambda: Between(make(), shape), normal(*shape)))


@pytest.mark.parametrize("name", TRANSPOSED)
def test_transposed_convolutions(name: str) -> None:
    make, shape = TRANSPOSED[name]
    check(Case(lambda: Between(make(), shape), normal(*shape)))


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "pooled": (
        lambda: nn.Sequential(
            nn.Conv2d(1, 3, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(3, 4, 3, padding=1), nn.GELU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3),
        ),
        (4, 1, 6, 6),
    ),
    "channels and sizes equal samples": (
        lambda: nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.Tanh(), nn.Conv2d(4, 4, 3, padding=1)),
        (4, 4, 4, 4),
    ),
    "decoder": (
        lambda: nn.Sequential(
            nn.Linear(3, 8), nn.Unflatten(1, (2, 2, 2)), nn.Tanh(),
            nn.ConvTranspose2d(2, 2, 2, stride=2), nn.Tanh(), nn.Upsample(scale_factor=2), nn.Conv2d(2, 1, 5),
        ),
        (4, 3),
    ),
    "average pool and pixel shuffle": (
        lambda: nn.Sequential(nn.Conv2d(1, 4, 3), nn.PixelShuffle(2), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(4, 2)),
        (4, 1, 4, 4),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NETWORKS)
def test_convolutional_networks(name: str) -> None:
    make, shape = NETWORKS[name]
    check(Case(make, normal(*shape)))


def test_several_images_per_sample() -> None:
    class Frames(nn.Module):
        """Frames of a clip go through the convolution as if they were samples."""

        def __init__(self) -> None:
            super().__init__()
            self.convolution, self.last = nn.Conv2d(2, 3, 2), nn.Linear(3, 2)

        def forward(self, clip: Tensor) -> Tensor:
            samples, frames = clip.shape[:2]
            images = torch.tanh(self.convolution(clip.flatten(0, 1))).mean((-1, -2))
            return self.last(images.view(samples, frames, -1).amax(1))

    check(Case(Frames, normal(4, 3, 2, 3, 3)))


def test_one_filter_for_two_images() -> None:
    class Siamese(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convolution = nn.Conv2d(1, 3, 2)

        def forward(self, first: Tensor, second: Tensor) -> Tensor:
            return (self.convolution(first).tanh() * self.convolution(second)).mean((-1, -2))

    check(Case(Siamese, (normal(4, 1, 3, 3), normal(4, 1, 3, 3, seed=1))))
