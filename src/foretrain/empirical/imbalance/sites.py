"""Where a model uses its weights: every linear map and convolution with a parameter, seen while the model runs.

The calls themselves are watched, so that modules and functional networks are found alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

Kind = Literal["linear", "convolution", "left product"]

_CONVOLUTIONS: tuple[Any, ...] = (functional.conv1d, functional.conv2d, functional.conv3d)
_PRODUCTS: tuple[Any, ...] = (
    torch.matmul,
    torch.mm,
    Tensor.matmul,
    Tensor.mm,
    Tensor.__matmul__,
)
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
class Site:
    """One use of a weight: what goes in, what comes out (bias included), both with their graph."""

    weight: str
    bias: str | None
    kind: Kind
    by_columns: bool  # the parameter is (inputs, outputs), as in x @ W
    grouped: bool
    signal: Tensor
    value: Tensor

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


class Watch(TorchFunctionMode):
    """Collects sites while a model runs; with ``cut`` the graph ends at every site, whose value becomes a leaf."""

    def __init__(self, parameters: Mapping[str, Tensor], cut: bool) -> None:
        super().__init__()
        self.sites: list[Site] = []
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
        self.sites.append(Site(**found, value=value))
        return value.clone()  # the copy may be overwritten by an activation that works in place

    def _found(
        self, func: Callable[..., Any], args: tuple[Any, ...], named: Mapping[str, Any]
    ) -> dict[str, Any] | None:
        """What is known of the call if it is a site, else None."""
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
