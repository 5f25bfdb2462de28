"""Weights that are made of parameters, used several times, or start at zero."""

from __future__ import annotations

import math

import pytest
import torch
from brute_force import Case, check, normal
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations, parametrize


class NTKLinear(nn.Module):
    """Weights of unit variance, divided by the root of the width in the forward pass."""

    def __init__(self, inputs: int, outputs: int, way: str) -> None:
        super().__init__()
        self.weight, self.bias = (
            nn.Parameter(torch.randn(outputs, inputs)),
            nn.Parameter(torch.randn(outputs)),
        )
        self.way, self.root = way, math.sqrt(inputs)
        self.register_buffer("scale", torch.tensor(1 / self.root))

    def forward(self, x: Tensor) -> Tensor:
        if self.way == "weight divided":
            return functional.linear(x, self.weight / self.root, 0.1 * self.bias)
        if self.way == "weight times a buffer":
            return functional.linear(x, self.scale * self.weight, self.bias)
        if self.way == "product divided":
            return functional.linear(x, self.weight) / self.root + self.bias * 0.1
        return -(x @ (-self.weight / 2).t()) * (2 / self.root) + self.bias


@pytest.mark.parametrize(
    "way", ["weight divided", "weight times a buffer", "product divided", "negative and transposed"]
)
def test_ntk_parametrisation(way: str) -> None:
    kernel = check(
        Case(lambda: nn.Sequential(NTKLinear(3, 5, way), nn.Tanh(), NTKLinear(5, 2, way)), normal(4, 3))
    )
    assert {kernel.routes[name].way for name in ("0.weight", "2.weight")} == {"gram"}


@pytest.mark.parametrize("images", [False, True])
def test_weight_norm(images: bool) -> None:
    layer = (lambda: nn.Conv2d(2, 3, 2)) if images else (lambda: nn.Linear(3, 4))
    check(
        Case(
            lambda: nn.Sequential(parametrizations.weight_norm(layer()), nn.Tanh(), nn.Flatten()),
            normal(4, 2, 3, 3) if images else normal(4, 3),
        )
    )


def test_spectral_norm() -> None:
    check(
        Case(
            lambda: nn.Sequential(
                parametrizations.spectral_norm(nn.Linear(3, 4)), nn.Tanh(), nn.Linear(4, 2)
            ),
            normal(4, 3),
        )
    )


def test_orthogonal_parametrisation() -> None:
    check(
        Case(
            lambda: nn.Sequential(parametrizations.orthogonal(nn.Linear(3, 3)), nn.Tanh(), nn.Linear(3, 2)),
            normal(4, 3),
        )
    )


def test_symmetric_weight() -> None:
    class Symmetric(nn.Module):
        def forward(self, weight: Tensor) -> Tensor:
            return weight.triu() + weight.triu(1).mT

    def make() -> nn.Module:
        layer = nn.Linear(3, 3)
        parametrize.register_parametrization(layer, "weight", Symmetric())
        return nn.Sequential(layer, nn.Tanh(), nn.Linear(3, 2))

    check(Case(make, normal(4, 3)))


class LowRank(nn.Module):
    """A frozen layer and an update of rank one or two, whose second factor starts at zero."""

    def __init__(self, merged: bool) -> None:
        super().__init__()
        self.frozen = nn.Linear(3, 4).requires_grad_(False)
        self.down, self.up = nn.Parameter(torch.randn(2, 3)), nn.Parameter(torch.zeros(4, 2))
        self.merged = merged

    def forward(self, x: Tensor) -> Tensor:
        if self.merged:
            return functional.linear(x, self.frozen.weight + 2 * self.up @ self.down, self.frozen.bias)
        return self.frozen(x) + 2 * (x @ self.down.T) @ self.up.T


@pytest.mark.parametrize("merged", [False, True])
@pytest.mark.parametrize("trained", [False, True])
def test_low_rank_updates(merged: bool, trained: bool) -> None:
    def make() -> nn.Module:
        return nn.Sequential(LowRank(merged), nn.Tanh(), nn.Linear(4, 2))

    check(Case(make, normal(4, 3), shaken=trained))


def test_all_weights_zero_but_the_last() -> None:
    def make() -> nn.Module:
        model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
        nn.init.zeros_(model[0].weight)
        nn.init.zeros_(model[2].weight)
        return model

    check(Case(make, normal(4, 3), shaken=False))


class Twice(nn.Module):
    """One weight at work several times in a row."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.layer, self.times = nn.Linear(3, 3), times

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(self.times):
            x = torch.tanh(self.layer(x))
        return x


@pytest.mark.parametrize("times", [2, 5])
def test_a_layer_used_again(times: int) -> None:
    check(Case(lambda: Twice(times), normal(4, 3)))


class AutoEncoder(nn.Module):
    """The decoder is the transpose of the encoder."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.weight, self.scale = nn.Parameter(torch.randn(2, 3)), scale

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x @ self.weight.T) @ (self.scale * self.weight)


@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_a_weight_and_its_transpose(scale: float) -> None:
    check(Case(lambda: AutoEncoder(scale), normal(4, 3)))


def test_a_linear_weight_also_as_a_convolution() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(2, 3))

        def forward(self, x: Tensor) -> Tensor:
            image = functional.conv1d(x[:, :, None].expand(-1, -1, 2), self.weight[:, :, None])
            return torch.tanh(image.sum(-1)) * functional.linear(x, self.weight)

    check(Case(Both, normal(4, 3)))


class Parts(nn.Module):
    """One tensor cut into the weights of several layers, apart or overlapping."""

    def __init__(self, overlapping: bool) -> None:
        super().__init__()
        self.everything = nn.Parameter(torch.randn(6, 3))
        self.overlapping = overlapping

    def forward(self, x: Tensor) -> Tensor:
        if self.overlapping:
            first, second = self.everything[:4], self.everything[2:]
        else:
            first, second = self.everything.split([3, 3])
        return torch.tanh(x @ first.T)[:, :3] @ second.T


@pytest.mark.parametrize("overlapping", [False, True])
def test_parts_of_one_parameter(overlapping: bool) -> None:
    check(Case(lambda: Parts(overlapping), normal(4, 3)))


def test_one_vector_for_everything() -> None:
    class Flat(nn.Module):
        """All weights live in a single vector, as in hypernetworks and evolution strategies."""

        def __init__(self) -> None:
            super().__init__()
            self.theta = nn.Parameter(torch.randn(23))

        def forward(self, x: Tensor) -> Tensor:
            hidden = torch.tanh(x @ self.theta[:12].view(3, 4) + self.theta[12:16])
            return (hidden * self.theta[16:20]) @ self.theta[12:20].view(4, 2)

    check(Case(Flat, normal(4, 3)))


def test_a_stack_of_parameters() -> None:
    class Stacked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ParameterList([nn.Parameter(torch.randn(3)) for _ in range(4)])

        def forward(self, x: Tensor) -> Tensor:
            return torch.tanh(functional.linear(x, torch.stack(list(self.parts))))

    check(Case(Stacked, normal(4, 3)))


def test_weights_made_by_a_network_from_parameters() -> None:
    class Hyper(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.code, self.maker = nn.Parameter(torch.randn(2)), nn.Linear(2, 12)

        def forward(self, x: Tensor) -> Tensor:
            return torch.tanh(functional.linear(x, torch.tanh(self.maker(self.code)).view(4, 3)))

    check(Case(Hyper, normal(4, 3)))


def test_weights_made_by_a_network_from_the_sample() -> None:
    class Dynamic(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.maker = nn.Linear(2, 12)

        def forward(self, x: Tensor, code: Tensor) -> Tensor:
            return torch.bmm(torch.tanh(self.maker(code)).view(-1, 4, 3), x[:, :, None]).squeeze(-1)

    check(Case(Dynamic, (normal(4, 3), normal(4, 2, seed=1))))
