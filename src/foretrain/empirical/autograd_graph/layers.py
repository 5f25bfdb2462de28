"""The layers of a model while it runs: what goes into each and comes out, what that depends on, and by which slope.

Calls of layers are recorded in one of two ways: all linear maps and convolutions of parameters, as torch's functions
see them, so that modules and functional networks are found alike; or all calls of ``nn.Linear``. With ``cut`` the
graph ends behind every call, whose value becomes a leaf: autograd then shows from which calls a signal comes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from foretrain.empirical.autograd_graph.tape import fixed_normal

Kind = Literal["linear", "convolution", "left product"]

_CONVOLUTIONS: tuple[Any, ...] = (functional.conv1d, functional.conv2d, functional.conv3d)
_PRODUCTS: tuple[Any, ...] = (torch.matmul, torch.mm, Tensor.matmul, Tensor.mm, Tensor.__matmul__)
_ADDED_PRODUCTS: tuple[Any, ...] = (torch.addmm, Tensor.addmm)
_TENSOR: Any = Tensor  # whose properties are descriptors, which the type checker does not know
_TRANSPOSES: tuple[Any, ...] = (
    _TENSOR.T.__get__,
    _TENSOR.mT.__get__,
    Tensor.t,
    torch.t,
    Tensor.transpose,
    torch.transpose,
)


@dataclass(frozen=True, eq=False)
class WeightCall:
    """A linear map or convolution of a parameter: what goes in and comes out (bias included), with their graph."""

    signal: Tensor
    value: Tensor
    weight: str
    bias: str | None
    kind: Kind
    by_columns: bool  # the parameter is (inputs, outputs), as in x @ W
    grouped: bool

    @property
    def axis(self) -> int:
        """Which axis of signal and value counts units."""
        return {"linear": -1, "convolution": 1, "left product": -2}[self.kind]

    def rows(self, weight: Tensor) -> Tensor:
        """A weight, or its gradient, as a matrix (outputs, everything else)."""
        return weight.T if self.by_columns else weight.flatten(1)

    def columns(self, weight: Tensor) -> Tensor:
        """A weight, or its gradient, as a matrix (inputs, everything else)."""
        return weight if self.by_columns else weight.transpose(0, 1).flatten(1)


@dataclass(frozen=True, eq=False)
class LinearCall:
    """A call of an ``nn.Linear``: what goes in and what comes out, with their graph, and a copy of what went in."""

    signal: Tensor
    value: Tensor
    name: str
    module: nn.Linear
    input: Tensor


@contextmanager
def linear_calls(model: nn.Module) -> Iterator[list[LinearCall]]:
    """All calls of linear modules in their order, cut, while the model runs inside."""
    calls: list[LinearCall] = []

    def record(name: str) -> Any:
        def hook(module: nn.Linear, args: tuple[Any, ...], kwargs: dict[str, Any], v: Tensor) -> Tensor:
            signal = args[0] if args else kwargs["input"]
            leaf = v.detach().clone().requires_grad_()
            calls.append(LinearCall(signal, leaf, name, module, signal.detach().clone()))
            return leaf.clone()  # the copy may be overwritten by an activation that works in place

        return hook

    hooks = [
        module.register_forward_hook(record(name or "the model"), with_kwargs=True)
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear)
    ]
    try:
        yield calls
    finally:
        for handle in hooks:
            handle.remove()


class WeightCalls(TorchFunctionMode):
    """Collects the calls of weights while a model runs inside; ``cut`` ends the graph behind every call."""

    def __init__(self, parameters: Mapping[str, Tensor], cut: bool) -> None:
        super().__init__()
        self.calls: list[WeightCall] = []
        self._cut = cut
        self._names = {id(value): name for name, value in parameters.items()}
        self._transposed: dict[int, tuple[str, Tensor]] = {}  # tensors are kept, so that ids stay theirs

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        named = kwargs or {}
        result = func(*args, **named)
        if func in _TRANSPOSES and id(args[0]) in self._names and args[0].ndim == 2:
            self._transposed[id(result)] = (self._names[id(args[0])], result)
            return result
        found = self._found(func, args, named)
        if found is None or not isinstance(result, Tensor):
            return result
        value = result.detach().requires_grad_() if self._cut else result
        self.calls.append(WeightCall(**found, value=value))
        return value.clone()  # the copy may be overwritten by an activation that works in place

    def _found(
        self, func: Callable[..., Any], args: tuple[Any, ...], named: Mapping[str, Any]
    ) -> dict[str, Any] | None:
        """What is known of the call if it is one of a weight, else None."""
        if func is functional.linear or func in _CONVOLUTIONS:
            by_name = tuple(named.get(name) for name in ("input", "weight", "bias")[len(args) :])
            signal, weight, bias, *others = args + by_name
            if id(weight) not in self._names or (bias is not None and id(bias) not in self._names):
                return None
            groups = named.get("groups", others[3] if len(others) > 3 else 1)
            return {
                "weight": self._names[id(weight)],
                "bias": None if bias is None else self._names[id(bias)],
                "kind": "linear" if func is functional.linear else "convolution",
                "by_columns": False,
                "grouped": groups != 1,
                "signal": signal,
            }
        if func in _PRODUCTS and len(args) == 2:
            return self._product(*args)
        if func in _ADDED_PRODUCTS and len(args) == 3 and not named and id(args[0]) in self._names:
            product = self._product(*args[1:])
            return product and {**product, "bias": self._names[id(args[0])]}
        return None

    def _product(self, left: Tensor, right: Tensor) -> dict[str, Any] | None:
        """A signal times a parameter, x @ W or x @ W.T, or a parameter times a signal, W @ x or W.T @ x."""
        names = [self._matrix_name(left), self._matrix_name(right)]
        if (names[0] is None) == (names[1] is None):
            return None
        from_left = names[0] is not None
        weight, signal = (left, right) if from_left else (right, left)
        turned = id(weight) in self._transposed
        return {
            "weight": names[0] or names[1],
            "bias": None,
            "kind": "left product" if from_left else "linear",
            "by_columns": turned == from_left,
            "grouped": False,
            "signal": signal,
        }

    def _matrix_name(self, values: Tensor) -> str | None:
        """The name of the parameter that a matrix is, or whose transpose it is."""
        if values.ndim != 2:
            return None
        turned = self._transposed.get(id(values))
        return self._names.get(id(values)) if turned is None else turned[0]


def slopes(end: Tensor, sources: Sequence[Tensor]) -> list[Tensor | None]:
    """The gradient of the sum of an end by every source; None for those that it is not made of."""
    learning = [source for source in sources if source.requires_grad]
    if not end.requires_grad or not learning:
        return [None] * len(sources)
    with torch.enable_grad():
        found = torch.autograd.grad(end.sum(), learning, retain_graph=True, allow_unused=True)
    received = iter(found)
    return [next(received) if source.requires_grad else None for source in sources]


def dependence(end: Tensor, sources: Sequence[Tensor]) -> list[int]:
    """The places of the sources that an end is made of, as autograd knows it."""
    return [place for place, slope in enumerate(slopes(end, sources)) if slope is not None]


def is_elementwise(value: Tensor, end: Tensor, slope: Tensor) -> bool:
    """Whether the slope of an end is all: no entry of it depends on the value of another, up to a reshape."""
    probe = fixed_normal(value)
    with torch.enable_grad():
        mixed = (end.reshape(value.shape) * probe).sum()
        (answer,) = torch.autograd.grad(mixed, value, retain_graph=True)
    expected = slope * probe
    size = max(float(expected.abs().max()), 1e-30)
    return not float((answer - expected).abs().max()) > 64 * torch.finfo(slope.dtype).eps * size
