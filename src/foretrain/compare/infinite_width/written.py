"""Nonlinearities that are written out in several operations: all of them together are one function of one tensor.

u / (1 + |u|) is a fine function, while 1 / z is none: so only the whole is turned into an activation, once something
that is no such operation reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from foretrain.activations import Activation, activation
from foretrain.compare.infinite_width.graph import operation_name
from foretrain.empirical.models.arguments import leaves, mapped

Node = torch.fx.Node
_CONVERSIONS = ("to", "_to_copy", "type_as")
_ELEMENTWISE = {"where", "clone", "contiguous", "alias", *_CONVERSIONS}


@dataclass(frozen=True, eq=False)
class Written:
    """An operation on functions of one tensor and numbers; without an operation, the tensor itself."""

    target: Any = None
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def at(self, z: Tensor, found: dict[Written, Tensor]) -> Tensor:
        """The value where the tensor is z; ``found``: values of what has been computed already."""
        if self.target is None:
            return z
        if self not in found:
            changes = isinstance(self.target, torch._ops.OpOverload) and self.target._schema.is_mutable
            args, kwargs = mapped(
                lambda one: one.at(z, found) if isinstance(one, Written) else one, self._given
            )
            if changes:
                args = mapped(lambda one: one.clone() if isinstance(one, Tensor) else one, args)
            found[self] = self.target(*args, **kwargs)
        return found[self]

    @property
    def _given(self) -> tuple[Any, Any]:
        return self.args, dict(self.kwargs)

    def text(self) -> str:
        """The operations in order, each with its arguments by number: the same for the same function."""
        numbers: dict[Written, int] = {}
        lines: list[str] = []

        def told(one: Any) -> str:
            if isinstance(one, Written):
                return f"#{number(one)}"
            return repr(one.item() if isinstance(one, Tensor) else one)

        def number(one: Written) -> int:
            if one not in numbers:
                line = f"{operation_name(one.target)} {one.target} {mapped(told, one._given)}"
                numbers[one] = len(lines)
                lines.append(line)
            return numbers[one]

        number(self)
        return "\n".join(lines)

    def activation(self) -> Activation:
        """The function as an activation, always the same one."""
        return _activation(_Function(self.text(), self))


@dataclass(frozen=True)
class _Function:
    text: str
    written: Written = field(compare=False)

    def __call__(self, z: Any) -> Tensor:
        if not isinstance(z, Tensor):
            raise TypeError("it takes tensors")
        return self.written.at(z, {}).to(z.dtype)


@lru_cache(maxsize=256)
def _activation(function: _Function) -> Activation:
    names = dict.fromkeys(line.split()[0] for line in function.text.split("\n"))
    return activation(function, name=f"what is written out ({', '.join(n for n in names if n != 'None')})")


def is_elementwise(node: Node) -> bool:
    """Whether an operation computes each entry from the same entries of its arguments alone, and draws nothing."""
    target, name = node.target, operation_name(node.target)
    if not isinstance(target, torch._ops.OpOverload):
        return False
    # What acts in place is not always marked, but its twin is.
    twin = getattr(getattr(torch.ops.aten, name, None), target._overloadname, target)
    pointwise = torch.Tag.pointwise in (*target.tags, *twin.tags) or name in _ELEMENTWISE
    return pointwise and torch.Tag.nondeterministic_seeded not in target.tags


def operation(node: Node, args: Any, kwargs: Any) -> Written:
    """An operation of the graph on functions; numbers have the full precision whatever the model has."""
    if operation_name(node.target) in _CONVERSIONS and node.meta["val"].is_floating_point():
        return Written(_as_real, tuple(one for one in leaves(args) if isinstance(one, Written))[:1])
    return Written(node.target, tuple(args), kwargs)


def _as_real(given: Tensor) -> Tensor:
    return given.double()
