"""Torch modules and functions as activations. This is the only file of the room that imports torch."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from foretrain.activations._activation import Activation
from foretrain.activations._callables.custom import Kinks, from_callable
from foretrain.activations._callables.numerical import HIGHEST_ORDER
from foretrain.activations._catalogue import member
from foretrain.support.errors import InputError

Match = tuple[str, dict[str, float]]

_PLAIN_MODULES: dict[type[nn.Module], str] = {
    nn.Tanh: "tanh",
    nn.ReLU: "relu",
    nn.SiLU: "swish",
    nn.Sigmoid: "sigmoid",
    nn.SELU: "selu",
    nn.Mish: "mish",
    nn.Softsign: "softsign",
    nn.Identity: "linear",
}

_FUNCTIONS: tuple[tuple[Callable[..., Any], str], ...] = (
    (torch.tanh, "tanh"),
    (functional.tanh, "tanh"),
    (torch.relu, "relu"),
    (functional.relu, "relu"),
    (torch.sigmoid, "sigmoid"),
    (functional.sigmoid, "sigmoid"),
    (torch.special.expit, "sigmoid"),
    (torch.erf, "erf"),
    (torch.special.erf, "erf"),
    (torch.sin, "sin"),
    (torch.cos, "cos"),
    (torch.abs, "abs"),
    (torch.square, "quadratic"),
    (functional.gelu, "gelu"),
    (functional.silu, "swish"),
    (functional.mish, "mish"),
    (torch.selu, "selu"),
    (functional.selu, "selu"),
    (functional.elu, "elu"),
    (functional.leaky_relu, "leaky_relu"),
    (functional.softplus, "softplus"),
    (functional.softsign, "softsign"),
)


def from_torch(spec: Callable[..., Any], kinks: Kinks, name: str | None) -> Activation:
    """The catalogue member that a torch module or function is, else its values and autograd derivatives."""
    match = None if name is not None else _match(spec)
    if match is not None:
        return member(*match)
    label = name or str(getattr(spec, "__name__", type(spec).__name__))
    function = spec
    if isinstance(spec, nn.Module):
        function = copy.deepcopy(spec).to(device="cpu", dtype=torch.float64).eval()
    return from_callable(
        TensorFunction(function),
        [AutogradDerivative(function, k) for k in range(1, _differentiable_orders(function) + 1)],
        kinks,
        label,
        f"the torch callable {label}",
        "by torch autograd",
    )


def takes_tensors(spec: Callable[..., Any]) -> bool:
    """Whether a plain Python function computes with torch tensors."""
    try:
        spec(torch.zeros(3, dtype=torch.float64))
    except Exception:  # anything may come out of a user's function
        return False
    return True


def _match(spec: Callable[..., Any]) -> Match | None:
    """Name and parameters of the catalogue member that this is exactly."""
    if isinstance(spec, nn.Module) and type(spec) in _PLAIN_MODULES:
        return _PLAIN_MODULES[type(spec)], {}
    if type(spec) is nn.GELU:
        return ("gelu_tanh" if spec.approximate == "tanh" else "gelu"), {}
    if type(spec) is nn.LeakyReLU:
        return "leaky_relu", {"slope": spec.negative_slope}
    if type(spec) is nn.PReLU and spec.num_parameters == 1:
        return "leaky_relu", {"slope": float(spec.weight.item())}
    if type(spec) is nn.ELU and spec.alpha > 0:
        return "elu", {"alpha": spec.alpha}
    if type(spec) is nn.Softplus and spec.beta == 1 and spec.threshold == 20:
        return "softplus", {}
    return next(((name, {}) for function, name in _FUNCTIONS if function is spec), None)


def _differentiable_orders(function: Callable[..., Any]) -> int:
    """How often autograd can differentiate; some torch functions have no derivatives, or no second ones."""
    argument = torch.tensor([-0.7, 0.4], dtype=torch.float64, requires_grad=True)
    for order in range(1, HIGHEST_ORDER + 1):
        try:
            if not function(argument).requires_grad:
                return 0
            AutogradDerivative(function, order)(np.array([-0.7, 0.4]))
        except (
            Exception
        ):  # what fails here for another reason fails, with words, where it is asked for values
            return order - 1
    return HIGHEST_ORDER


@dataclass(frozen=True)
class TensorFunction:
    """A tensor function that takes and gives numpy arrays."""

    function: Callable[..., Any]

    def __call__(self, z: NDArray[Any]) -> NDArray[Any]:
        """The values."""
        with torch.no_grad():
            return _to_numpy(self.function(torch.as_tensor(z)))


@dataclass(frozen=True)
class AutogradDerivative:
    """The derivative of a tensor function by nested autograd, as a function of numpy arrays."""

    function: Callable[..., Any]
    order: int

    def __call__(self, z: NDArray[Any]) -> NDArray[Any]:
        """The derivative; zero where autograd sees no dependence any more."""
        with torch.enable_grad():
            argument = torch.as_tensor(z).clone().requires_grad_(True)
            result = self.function(argument)
            for _ in range(self.order):
                if not result.requires_grad:
                    return np.zeros_like(z)
                (result,) = torch.autograd.grad(
                    result.sum(), argument, create_graph=True, materialize_grads=True
                )
        return _to_numpy(result)


def _to_numpy(result: object) -> NDArray[Any]:
    if not isinstance(result, Tensor):
        raise InputError(f"a torch activation must return a tensor, not {type(result).__name__}.")
    return np.asarray(result.detach().cpu().numpy())
