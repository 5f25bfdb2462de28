from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import foretrain as ft
from foretrain.activations import catalogue
from foretrain.compare.build import torch_activation
from foretrain.support.errors import NotSupportedError

PARAMETERS = {"monomial": {"power": 3}, "scale_invariant": {"minus": -0.3, "plus": 1.2}}
# Away from kinks, where torch and the library may choose different sides.
Z = np.array([-31.0, -6.3, -2.2, -0.7, -0.01, 0.02, 0.4, 1.9, 5.5, 27.0])


def values_and_slopes(act: ft.Activation) -> tuple[np.ndarray, np.ndarray]:
    z = torch.tensor(Z, requires_grad=True)
    found = torch_activation(act)(z)
    (slope,) = torch.autograd.grad(found.sum(), z)
    return found.detach().numpy(), slope.numpy()


@pytest.mark.parametrize("name", catalogue())
def test_every_catalogue_member_has_its_values_and_slopes(name: str) -> None:
    act = ft.activation(name, **PARAMETERS.get(name, {}))
    value, slope = values_and_slopes(act)
    np.testing.assert_allclose(value, act.value(Z), rtol=1e-13, atol=2e-15)
    np.testing.assert_allclose(slope, act.derivative(Z, 1), rtol=1e-12, atol=2e-14)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("swish", {"beta": 1.7}),
        ("leaky_relu", {"slope": 0.2}),
        ("elu", {"alpha": 0.4}),
        ("linear", {"slope": -2}),
    ],
)
def test_parameters_are_passed_on(name: str, parameters: dict[str, float]) -> None:
    act = ft.activation(name, **parameters)
    np.testing.assert_allclose(values_and_slopes(act)[0], act.value(Z), rtol=1e-13, atol=1e-300)


def test_a_step_keeps_the_graph_and_has_slope_zero() -> None:
    value, slope = values_and_slopes(ft.activation("perceptron"))
    assert set(value) == {0.0, 1.0}
    assert not slope.any()


def test_a_numpy_function_is_differentiable_twice() -> None:
    act = ft.activation(lambda z: np.tanh(z) + 0.3 * np.tanh(z) ** 2, name="bent")
    z = torch.tensor([-1.1, 0.2, 0.9], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(torch_activation(act), (z,))


def test_a_numpy_function_refuses_what_it_has_no_derivative_for() -> None:
    act = ft.activation(lambda z: np.tanh(z) + 0.3 * np.tanh(z) ** 2, name="bent")
    z = torch.tensor([0.3], dtype=torch.float64, requires_grad=True)
    result = torch_activation(act)(z)
    for _ in range(6):
        (result,) = torch.autograd.grad(result, z, create_graph=True)
    with pytest.raises(NotSupportedError, match="highest order is 6"):
        torch.autograd.grad(result, z)


def test_what_came_from_torch_is_used_itself() -> None:
    def mine(z: torch.Tensor) -> torch.Tensor:
        return torch.tanh(z) + 0.3 * torch.tanh(z) ** 2

    assert torch_activation(ft.activation(mine)) is mine


def test_a_torch_module_comes_as_a_frozen_copy() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(1.5))

        def forward(self, z: torch.Tensor) -> torch.Tensor:
            return torch.tanh(self.scale * z)

    function = torch_activation(ft.activation(Scaled()))
    assert isinstance(function, nn.Module)
    assert not any(parameter.requires_grad for parameter in function.parameters())
    np.testing.assert_allclose(function(torch.tensor([0.4], dtype=torch.float64)), [np.tanh(0.6)], rtol=1e-14)


def test_float32_stays_float32() -> None:
    act = ft.activation(lambda z: np.tanh(z) ** 3, name="cubed")
    assert torch_activation(act)(torch.zeros(2)).dtype == torch.float32
