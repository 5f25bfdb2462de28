"""The torch network and the optimizer groups that the theory speaks of.

>>> import torch, foretrain as ft
>>> from foretrain.compare.build import build, parameter_groups
>>> mlp = ft.MLP("tanh", depth=3, width=32, n_in=2)
>>> network = build(mlp, seed=1)
>>> optimizer = torch.optim.SGD(parameter_groups(network, mlp, eta=0.1))
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from foretrain.activations import Activation
from foretrain.support.errors import InputError, NotSupportedError
from foretrain.support.seeds import Seed, torch_generator
from foretrain.theory.architecture import MLP, check_network
from foretrain.theory.arguments import check_learning_rate

TensorFunction = Callable[[Tensor], Tensor]


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
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise InputError(f"`dtype` is {dtype!r}: give a floating-point torch type such as torch.float32.")
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise InputError(
            f"device {str(device)!r} cannot be used here ({error}): use `device='cpu'`."
        ) from error
    network = Network(whole, dtype, torch.device(device))
    source = torch_generator(seed)
    with torch.no_grad():
        for layer, linear in zip(whole.layers, linear_layers(network), strict=True):
            weight_deviation, bias_deviation = (layer.C_W / linear.in_features) ** 0.5, layer.C_b**0.5
            for values, deviation in ((linear.weight, weight_deviation), (linear.bias, bias_deviation)):
                normals = torch.randn(values.shape, dtype=torch.float64, generator=source)
                values.copy_(deviation * normals)
    return network


def linear_layers(network: nn.Module) -> list[nn.Linear]:
    """The linear layers of a network in their order."""
    return [module for module in network.modules() if isinstance(module, nn.Linear)]


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


def torch_activation(act: Activation) -> TensorFunction:
    """The torch function of an activation; what came from torch is given back, a module as a frozen copy."""
    if act.identity[0] == "callable":
        origin = getattr(getattr(act.identity[1], "subject", None), "function", None)
        if isinstance(origin, nn.Module):  # its parameters are part of the function, not of what is trained
            return copy.deepcopy(origin).requires_grad_(False)
        return _from_numpy(act) if origin is None else cast("TensorFunction", origin)
    build = _NATIVE.get(act.name)
    return _from_numpy(act) if build is None else build(act.parameters)


def _from_numpy(act: Activation) -> TensorFunction:
    def function(z: Tensor) -> Tensor:
        return cast("Tensor", _NumpyRule.apply(z, act, 0))  # type: ignore[no-untyped-call]

    return function


class _NumpyRule(torch.autograd.Function):
    """sigma^(k) by the activation's numpy rule; its derivative is sigma^(k+1) by the same."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, act: Activation, order: int) -> Tensor:
        """Values in float64, handed back in the type and on the device of the argument."""
        ctx.save_for_backward(z)
        ctx.act, ctx.order = act, order
        values = act.derivative(z.detach().to("cpu", torch.float64).numpy(), order)
        return torch.as_tensor(values).to(z)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        """Chain rule, itself differentiable as often as the activation is."""
        (z,) = ctx.saved_tensors
        if ctx.order >= ctx.act.max_order:
            raise NotSupportedError(
                f"derivative {ctx.order + 1} of {ctx.act.label} is not offered: "
                f"the highest order is {ctx.act.max_order}."
            )
        slope = _NumpyRule.apply(z, ctx.act, ctx.order + 1)  # type: ignore[no-untyped-call]
        return gradient * slope, None, None


def _step(z: Tensor) -> Tensor:
    """1 for z >= 0, else 0, with the derivative zero that autograd would not see in a comparison."""
    return (z >= 0).to(z.dtype) + 0.0 * z.clamp(-1.0, 1.0)


def _two_slopes(minus: float, plus: float) -> TensorFunction:
    return lambda z: torch.where(z < 0, minus * z, plus * z)


def _always(function: TensorFunction) -> Callable[[Mapping[str, float]], TensorFunction]:
    return lambda parameters: function


# functional.softplus is linear beyond 20, an error of 2e-9 that the theory does not make.
_NATIVE: dict[str, Callable[[Mapping[str, float]], TensorFunction]] = {
    "perceptron": _always(_step),
    "sign": _always(lambda z: 2.0 * _step(z) - 1.0),
    "sigmoid": _always(torch.sigmoid),
    "tanh": _always(torch.tanh),
    "erf": _always(torch.erf),
    "softsign": _always(functional.softsign),
    "sin": _always(torch.sin),
    "cos": _always(torch.cos),
    "linear": lambda parameters: lambda z: parameters["slope"] * z,
    "relu": _always(torch.relu),
    "leaky_relu": lambda parameters: _two_slopes(parameters["slope"], 1.0),
    "scale_invariant": lambda parameters: _two_slopes(parameters["minus"], parameters["plus"]),
    "abs": _always(torch.abs),
    "monomial": lambda parameters: lambda z: z ** int(parameters["power"]),
    "softplus": _always(lambda z: torch.logaddexp(z, torch.zeros_like(z))),
    "swish": lambda parameters: lambda z: z * torch.sigmoid(parameters["beta"] * z),
    "gelu": _always(functional.gelu),
    "gelu_tanh": _always(lambda z: functional.gelu(z, approximate="tanh")),
    "mish": _always(functional.mish),
    "elu": lambda parameters: lambda z: functional.elu(z, alpha=parameters["alpha"]),
    "selu": _always(functional.selu),
}
