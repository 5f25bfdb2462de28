"""Fully connected networks, and weights on either side of every product that torch has."""

from __future__ import annotations

import math

import pytest
import torch
from brute_force import DOUBLE, Case, check, normal
from torch import Tensor, nn
from torch.nn import functional

ACTIVATIONS = [nn.Tanh, nn.ReLU, nn.GELU, nn.SiLU, nn.Softplus, nn.LeakyReLU, nn.ELU, nn.Hardtanh, nn.Sigmoid]


def mlp(activation: type[nn.Module], bias: bool, depth: int = 3) -> nn.Module:
    layers: list[nn.Module] = [nn.Linear(3, 5, bias=bias)]
    for _ in range(depth - 2):
        layers += [activation(), nn.Linear(5, 5, bias=bias)]
    return nn.Sequential(*layers, activation(), nn.Linear(5, 2, bias=bias))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_mlps(activation: type[nn.Module], bias: bool) -> None:
    kernel = check(Case(lambda: mlp(activation, bias), normal(5, 3)))
    assert {route.way for route in kernel.routes.values()} == {"gram"}


def test_the_kernel_of_a_linear_layer_is_known() -> None:
    x = normal(4, 3)
    kernel = check(Case(lambda: nn.Linear(3, 2), x))
    expected = (x @ x.T + 1)[:, :, None, None] * torch.eye(2, dtype=DOUBLE)
    torch.testing.assert_close(kernel.values, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("shape", [(4, 6, 3), (4, 2, 5, 3), (4, 4, 3), (3, 3, 3), (4, 1, 3)])
def test_linear_layers_at_several_positions(shape: tuple[int, ...]) -> None:
    check(Case(lambda: mlp(nn.Tanh, True), normal(*shape)))


@pytest.mark.parametrize("axis", [1, 2])
def test_samples_along_another_axis(axis: int) -> None:
    check(Case(lambda: mlp(nn.Tanh, True), normal(3, 4, 4, 3), axis=axis))


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        hidden = x + self.second(torch.tanh(self.first(x))) / math.sqrt(2)
        return self.last(torch.cat([hidden, x * hidden], -1))


def test_residual_connections() -> None:
    check(Case(Residual, normal(4, 4)))


def test_one_number_per_sample_without_an_output_axis() -> None:
    class Scalar(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x).squeeze(-1)

    assert check(Case(Scalar, normal(4, 3))).shape == (4, 4, 1, 1)


PRODUCTS = {
    "linear": (lambda w, b, x: functional.linear(x, w, b), (5, 3), (5,)),
    "linear at positions": (
        lambda w, b, x: functional.linear(x[:, None] * x[:, :, None], w, b),
        (5, 3),
        (5,),
    ),
    "right of @": (lambda w, b, x: x @ w + b, (3, 5), (5,)),
    "left of @": (lambda w, b, x: (w @ x.T + b).T, (5, 3), (5, 1)),
    "transposed": (lambda w, b, x: x @ w.T + b, (5, 3), (5,)),
    "mT": (lambda w, b, x: x @ w.mT + b, (5, 3), (5,)),
    "matmul of stacks": (lambda w, b, x: torch.matmul(x[:, None, None], w) + b, (2, 3, 5), (5,)),
    "left of stacks": (lambda w, b, x: torch.matmul(w, x[:, None, :, None]) + b, (2, 5, 3), (5, 1)),
    "vector": (lambda w, b, x: (x @ w)[:, None] + b, (3,), (2,)),
    "addmm": (lambda w, b, x: torch.addmm(b, x, w, beta=0.5, alpha=2.0), (3, 5), (5,)),
    "addmm on the left": (lambda w, b, x: torch.addmm(b, w, x.T, beta=1.5, alpha=-2.0).T, (5, 3), (5, 1)),
    "baddbmm": (
        lambda w, b, x: torch.baddbmm(
            b, x[:, None].expand(-1, 2, -1).transpose(0, 1), w, alpha=3.0
        ).transpose(0, 1),
        (2, 3, 5),
        (2, 1, 5),
    ),
    "bmm on the left": (
        lambda w, b, x: torch.bmm(w, x.T.expand(2, -1, -1)).permute(2, 0, 1) + b,
        (2, 5, 3),
        (5,),
    ),
    "einsum right": (lambda w, b, x: torch.einsum("ni,ij->nj", x, w) + b, (3, 5), (5,)),
    "einsum left": (lambda w, b, x: torch.einsum("ji,ni->nj", w, x) + b, (5, 3), (5,)),
    "einsum heads": (lambda w, b, x: torch.einsum("ni,hij->nhj", x, w) + b, (2, 3, 5), (2, 5)),
    "einsum of two axes": (
        lambda w, b, x: torch.einsum("nij,ijk->nk", x[:, :, None] * x[:, None], w) + b,
        (3, 3, 5),
        (5,),
    ),
    "einsum with itself": (lambda w, b, x: torch.einsum("ni,nj,ijk->nk", x, x, w) + b, (3, 3, 5), (5,)),
    "inner": (lambda w, b, x: torch.inner(x, w) + b, (5, 3), (5,)),
    "tensordot": (lambda w, b, x: torch.tensordot(x, w, dims=([1], [1])) + b, (5, 3), (5,)),
    "mul and sum": (lambda w, b, x: (x[:, None] * w).sum(-1) + b, (5, 3), (5,)),
    "elementwise": (lambda w, b, x: torch.tanh(x * w) - b, (3,), (3,)),
    "divided": (lambda w, b, x: w / (2 + x**2) - b / 3, (3,), (3,)),
}


class Product(nn.Module):
    """One hand-written product between two ordinary layers."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.function, weight, bias = PRODUCTS[name]
        self.first = nn.Linear(4, 3)
        self.weight = nn.Parameter(torch.randn(*weight))
        self.bias = nn.Parameter(torch.randn(*bias))

    def forward(self, x: Tensor) -> Tensor:
        result = self.function(self.weight, self.bias, torch.tanh(self.first(x)))
        return result.reshape(len(x), -1)[:, :4].sin()


def test_a_loop_over_samples_is_exact() -> None:
    class Loop(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(5, 3))

        def forward(self, x: Tensor) -> Tensor:
            return torch.stack([torch.tanh(self.weight @ row) for row in x])

    check(Case(Loop, normal(4, 3), slow=("weight",)))


@pytest.mark.parametrize("name", PRODUCTS)
def test_hand_written_products(name: str) -> None:
    check(Case(lambda: Product(name), normal(4, 4)))
