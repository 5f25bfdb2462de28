"""Torch modules and functions as activations."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from scipy import special
from torch import nn
from torch.nn import functional

from foretrain.activations import activation
from foretrain.support.errors import InputError

Z = np.linspace(-5.0, 5.0, 41)


@pytest.mark.parametrize(
    ("spec", "label"),
    [
        (nn.Tanh(), "tanh"),
        (nn.ReLU(), "relu"),
        (nn.ReLU(inplace=True), "relu"),
        (nn.GELU(), "gelu"),
        (nn.GELU(approximate="tanh"), "gelu_tanh"),
        (nn.SiLU(), "swish(beta=1.0)"),
        (nn.LeakyReLU(0.2), "leaky_relu(slope=0.2)"),
        (nn.PReLU(), "leaky_relu(slope=0.25)"),
        (nn.ELU(0.5), "elu(alpha=0.5)"),
        (nn.SELU(), "selu"),
        (nn.Softplus(), "softplus"),
        (nn.Mish(), "mish"),
        (nn.Softsign(), "softsign"),
        (nn.Sigmoid(), "sigmoid"),
        (nn.Identity(), "linear(slope=1.0)"),
        (torch.tanh, "tanh"),
        (torch.relu, "relu"),
        (functional.relu, "relu"),
        (functional.gelu, "gelu"),
        (functional.silu, "swish(beta=1.0)"),
        (functional.leaky_relu, "leaky_relu(slope=0.01)"),
        (functional.softplus, "softplus"),
        (torch.sigmoid, "sigmoid"),
        (torch.erf, "erf"),
        (torch.sin, "sin"),
        (torch.abs, "abs"),
    ],
)
def test_members_are_recognised_and_compute_what_torch_does(spec: Callable[..., Any], label: str) -> None:
    act = activation(spec)
    assert act == activation(label)
    assert act.label == label
    with torch.no_grad():
        expected = spec(torch.tensor(Z, dtype=torch.float32)).numpy()
    np.testing.assert_allclose(act(Z), expected, rtol=1e-5, atol=1e-6)


class Snake(nn.Module):
    """z + sin(az)^2 / a with a trainable a."""

    def __init__(self) -> None:
        super().__init__()
        self.frequency = nn.Parameter(torch.tensor(0.75))

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        return z + torch.sin(self.frequency * z) ** 2 / self.frequency


def test_any_module_by_autograd_in_float64() -> None:
    module = Snake()
    act = activation(module)
    assert act.name == "Snake"
    assert "autograd" in repr(act)
    np.testing.assert_allclose(act(Z), Z + np.sin(0.75 * Z) ** 2 / 0.75, atol=1e-14)
    np.testing.assert_allclose(act.derivative(Z, 1), 1.0 + np.sin(1.5 * Z), atol=1e-14)
    np.testing.assert_allclose(act.derivative(Z, 4), -(1.5**3) * np.cos(1.5 * Z), atol=1e-13)
    assert module.frequency.dtype == torch.float32
    assert module.training
    copy = pickle.loads(pickle.dumps(act))
    np.testing.assert_array_equal(copy.derivative(Z, 2), act.derivative(Z, 2))


def test_softplus_with_another_beta_takes_the_generic_route() -> None:
    act = activation(nn.Softplus(beta=2.0))
    assert act.is_smooth
    member = activation("softplus")
    np.testing.assert_allclose(act(Z), 0.5 * member(2.0 * Z), atol=1e-9)
    np.testing.assert_allclose(act.derivative(Z, 3), 4.0 * member.derivative(2.0 * Z, 3), atol=1e-8)
    assert activation(nn.Softplus(threshold=5.0)).kinks[0].location == 5.0


def test_kinked_modules() -> None:
    act = activation(nn.Hardtanh(-1.0, 2.0))
    assert [kink.location for kink in act.kinks] == [-1.0, 2.0]
    assert [kink.jump(1) for kink in act.kinks] == [1.0, -1.0]
    assert act.derivative(np.array([-1.0, 0.0, 2.0])).tolist() == [1.0, 1.0, 0.0]
    celu = activation(nn.CELU(2.0))
    np.testing.assert_allclose(celu.kinks[0].jumps[:5], [0.0, 0.0, -0.5, -0.25, -0.125], atol=1e-12)


def test_a_function_without_second_derivative_in_torch() -> None:
    act = activation(nn.Hardsigmoid())
    np.testing.assert_allclose(act.derivative(np.array([0.0, 4.0]), 1), [1.0 / 6.0, 0.0], atol=1e-15)
    np.testing.assert_allclose(act.derivative(np.array([0.0, 4.0]), 2), [0.0, 0.0], atol=1e-12)


def test_plain_functions_of_tensors() -> None:
    act = activation(lambda z: torch.tanh(z) * torch.sigmoid(z))
    np.testing.assert_allclose(act.taylor(3), [0.0, 0.5, 0.5, -1.0], atol=1e-14)
    bound = activation(partial(functional.leaky_relu, negative_slope=0.3))
    assert bound.slopes == pytest.approx((0.3, 1.0), abs=1e-12)


class Straight(torch.autograd.Function):
    """Rounds, and pretends that it did not."""

    @staticmethod
    def forward(ctx: Any, z: torch.Tensor) -> torch.Tensor:
        return torch.round(z)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (nn.Linear(3, 3), "fails on an array"),
        (nn.Softmax(dim=-1), "element by element"),
        (nn.ReLU, "pass an instance"),
        (Straight.apply, "derivative 1 .* autograd"),
        (torch.sum, "shape"),
        (nn.GLU(), "shape"),
        (nn.BatchNorm1d(3), "fails on an array"),
        (nn.MultiheadAttention(4, 2), "fails on an array"),
        (torch.softmax, "fails on an array"),
        (lambda z: (torch.tanh(z),), "must return a tensor, not tuple"),
        (lambda z: torch.complex(z, z), "complex"),
    ],
)
def test_what_is_not_an_activation(spec: Any, words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        activation(spec)
    assert "\n" not in str(caught.value)


def test_steep_and_narrow_tensor_functions() -> None:
    steep = activation(lambda z: torch.tanh(200.0 * z))
    assert 0.003 < steep.strip < 0.008
    np.testing.assert_allclose(steep.taylor(3), [0.0, 200.0, 0.0, -2 * 200.0**3], rtol=1e-12)
    assert activation(lambda z: torch.exp(-0.5 * ((z - 1.234) / 0.01) ** 2)).strip < 0.04
    assert activation(lambda z: torch.nn.functional.hardtanh(z)).strip == np.inf


@pytest.mark.parametrize("function", [torch.special.bessel_j0, lambda z: torch.special.bessel_j0(z).detach()])
def test_functions_without_autograd_are_differentiated_numerically(function: Callable[..., Any]) -> None:
    act = activation(function)
    assert "Chebyshev" in repr(act)
    # Torch computes it to a few times 1e-7 only.
    np.testing.assert_allclose(act.derivative(Z, 1), -special.j1(Z), atol=2e-6)
