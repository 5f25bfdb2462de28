"""The torch network and the optimizer groups that the theory speaks of.

>>> import torch, foretrain as ft
>>> from foretrain.compare.build import build, parameter_groups
>>> mlp = ft.MLP("tanh", depth=3, width=32, n_in=2)
>>> network = build(mlp, seed=1)
>>> optimizer = torch.optim.SGD(parameter_groups(network, mlp, eta=0.1))
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from foretrain.compare.torch_activation import torch_activation
from foretrain.support.errors import InputError
from foretrain.support.seeds import Seed, torch_generator
from foretrain.theory.architecture import MLP, check_network
from foretrain.theory.arguments import check_learning_rate


class Network(nn.Module):
    """z^(1) = b + W x, z^(l+1) = b + W σ(z^(l)) + γ z^(l) (4.2), (B.3): plain ``nn.Linear`` layers."""

    def __init__(self, mlp: MLP, dtype: torch.dtype, device: str | torch.device) -> None:
        super().__init__()
        self.mlp = mlp
        self.layers = nn.ModuleList(
            nn.Linear(fan_in, width, dtype=dtype, device=device) for fan_in, width in pairwise(mlp.widths)
        )
        self.activation = torch_activation(mlp.activation)

    def forward(self, x: Tensor) -> Tensor:
        """The output z^(L) of shape (..., n_L)."""
        return self.preactivations(x)[-1]

    def preactivations(self, x: Tensor) -> list[Tensor]:
        """z^(1), ..., z^(L), each of shape (..., n_l)."""
        found: list[Tensor] = []
        for layer, linear in zip(self.mlp.layers, self.layers, strict=True):
            fresh = linear(self.activation(found[-1]) if found else x)
            found.append(fresh + layer.gamma * found[-1] if layer.gamma else fresh)
        return found

    def extra_repr(self) -> str:
        """The parametrisation: what the initial variances are and how the table of layers reads."""
        rule = "b ~ N(0, C_b), W ~ N(0, C_W / fan-in), learning rates lambda_b and lambda_W / fan-in"
        return f"{rule}\n{self.mlp!r}"


def build(
    mlp: MLP,
    n_in: int | None = None,
    dtype: torch.dtype = torch.float64,
    device: str | torch.device = "cpu",
    seed: Seed = 0,
) -> Network:
    """A real torch network with freshly drawn parameters in the theory's parametrisation (2.19)-(2.22).

    ``n_in`` is needed only if ``mlp`` leaves it to the data. Numbers are drawn on the CPU in float64, so the same
    seed gives the same network on every device, rounded to ``dtype``.
    """
    check_network(mlp)
    if n_in is not None and mlp.n_in not in (None, n_in):
        raise InputError(f"`n_in` is {n_in} but the MLP has n_in {mlp.n_in}: leave one of them out.")
    whole = mlp if n_in is None or mlp.n_in is not None else mlp.replace(n_in=n_in)
    network = Network(whole, _check_dtype(dtype), _check_device(device))
    source = torch_generator(seed)
    with torch.no_grad():
        for layer, linear in zip(whole.layers, linear_layers(network), strict=True):
            weight_deviation, bias_deviation = (layer.C_W / linear.in_features) ** 0.5, layer.C_b**0.5
            linear.weight.copy_(weight_deviation * _normal(linear.weight, source))
            linear.bias.copy_(bias_deviation * _normal(linear.bias, source))
    return network


def _check_dtype(dtype: object) -> torch.dtype:
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise InputError(f"`dtype` is {dtype!r}: give a floating-point torch type such as torch.float32.")
    return dtype


def _check_device(device: str | torch.device) -> torch.device:
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise InputError(
            f"device {str(device)!r} cannot be used here ({error}): use `device='cpu'`."
        ) from error
    return torch.device(device)


def linear_layers(network: nn.Module) -> list[nn.Linear]:
    """The linear layers of a network in their order."""
    return [module for module in network.modules() if isinstance(module, nn.Linear)]


def _normal(like: Tensor, source: torch.Generator) -> Tensor:
    return torch.randn(like.shape, dtype=torch.float64, generator=source)


def parameter_groups(network: nn.Module, mlp: MLP, eta: float) -> list[dict[str, Any]]:
    """Groups for ``torch.optim``: learning rates η λ_b for biases and η λ_W / n_{l-1} for weights.

    ``torch.optim.SGD(groups)`` is then the theory's gradient descent. The network is one that :func:`build` made,
    or any other whose ``nn.Linear`` modules are the layers 1..L in their order.
    """
    if not isinstance(network, nn.Module):
        raise InputError(f"the network is {network!r}: give a torch module, such as build(mlp) makes.")
    check_network(mlp)
    eta = check_learning_rate(eta)
    linears = linear_layers(network)
    if len(linears) != mlp.depth:
        raise InputError(
            f"the network has {len(linears)} linear layers but the MLP has depth {mlp.depth}: give the MLP it is."
        )
    groups: list[dict[str, Any]] = []
    for layer, linear in zip(mlp.layers, linears, strict=True):
        if linear.out_features != layer.width:
            raise InputError(
                f"layer {layer.number} of the network has width {linear.out_features} but the MLP has "
                f"{layer.width}: give the MLP it is."
            )
        if linear.bias is not None:
            groups.append({"params": [linear.bias], "lr": eta * layer.lambda_b})
        groups.append({"params": [linear.weight], "lr": eta * layer.lambda_W / linear.in_features})
    return groups
