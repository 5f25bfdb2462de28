"""Residual branches of any torch model: where a tensor is added to one that it was made of.

Every call of torch in one pass forwards is looked at. A sum is that of a residual connection if one of its terms was
computed from the other: that one is the stream, the other the branch. The last weights of the branch are those of
the layer (linear, convolution, normalisation, attention) from which it comes without another layer in between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

_SUMS = {"add", "add_", "__add__", "__radd__", "__iadd__"}
# Calls that leave the size of a branch what its last layer has made it, up to a fixed factor.
_PASSING = {
    *(
        "dropout",
        "dropout1d",
        "dropout2d",
        "dropout3d",
        "relu",
        "relu_",
        "mul",
        "mul_",
        "__mul__",
        "__rmul__",
    ),
    *("div", "__truediv__", "view", "reshape", "permute", "transpose", "flatten", "unflatten", "contiguous"),
    *("squeeze", "unsqueeze", "movedim", "swapaxes", "clone", "__getitem__"),
}


@dataclass(frozen=True)
class Branch:
    """Names of its last weights, and root mean squares of what it adds and of what it is added to."""

    weights: tuple[str, ...]
    size: float
    stream: float

    @property
    def ratio(self) -> float:
        """Branch over stream; infinite where the stream is zero."""
        return self.size / self.stream if self.stream > 0 else float("inf")


def branches_of(model: nn.Module, x: Tensor) -> list[Branch]:
    """In the order of their sums, those whose last weights are trained."""
    watch = _Watch(model)
    # Without gradients some layers of torch take shortcuts that cannot be seen.
    with torch.enable_grad(), watch:
        model(x)
    return watch.found


def shrinking_factors(model: nn.Module, x: Tensor) -> dict[str, float]:
    """By the name of the weight, so that no branch adds more than an equal share to the second moment.

    With so many branches of this share the stream becomes sqrt(2) times as large. The model is changed: each branch
    is measured with the earlier ones shrunk.
    """
    count = len(branches_of(model, x))
    factors: dict[str, float] = {}
    for place in range(count):
        branch = branches_of(model, x)[place]
        wanted = count**-0.5
        if branch.ratio <= wanted or branch.stream == 0 or branch.weights[0] in factors:
            continue
        factor = float(f"{wanted / branch.ratio:.4g}")
        with torch.no_grad():
            for name in branch.weights:
                model.get_parameter(name).mul_(factor)
                factors[name] = factor
    return factors


class _Watch(TorchFunctionMode):
    """Follows which tensor was made of which, and by which weights last."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.found: list[Branch] = []
        self._names = {id(p): name for name, p in model.named_parameters() if p.requires_grad}
        self._sources: dict[int, list[Tensor]] = {}
        self._weights: dict[int, tuple[str, ...]] = {}
        self._kept: list[Any] = []  # so that no address is used twice

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Call, and note what came of what."""
        given = list(_tensors([*args, *(kwargs or {}).values()]))
        name = getattr(func, "__name__", "")
        if name in _SUMS:
            self._note_sum(given)
        result = func(*args, **(kwargs or {}))
        for made in _tensors([result]):
            self._note(name, made, given)
        return result

    def _note(self, name: str, made: Tensor, given: list[Tensor]) -> None:
        self._kept.append(made)
        own = [id(one) for one in given]
        before = [one for one in given if one is not made]
        self._sources.setdefault(id(made), []).extend(before)
        names = tuple(self._names[one] for one in own if one in self._names)
        if name == "multi_head_attention_forward":
            names = tuple(one for one in names if "out_proj" in one)
        if names and name not in _SUMS:
            self._weights[id(made)] = names
        elif name in _PASSING and given and own[0] in self._weights and made.is_floating_point():
            self._weights[id(made)] = self._weights[own[0]]
        elif name in _SUMS:
            self._weights.pop(id(made), None)

    def _note_sum(self, given: list[Tensor]) -> None:
        if len(given) != 2 or given[0].shape != given[1].shape or not given[0].is_floating_point():
            return
        for stream, branch in (given, given[::-1]):
            weights = self._weights.get(id(branch), ())
            if stream is not branch and weights and self._is_made_of(branch, stream):
                self.found.append(Branch(weights, _size(branch), _size(stream)))
                return

    def _is_made_of(self, made: Tensor, source: Tensor) -> bool:
        seen, ahead = set[int](), [made]
        while ahead:
            one = ahead.pop()
            if one is source:
                return True
            if id(one) not in seen:
                seen.add(id(one))
                ahead += self._sources.get(id(one), [])
        return False


def _tensors(values: Any) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def _size(signal: Tensor) -> float:
    return float(signal.detach().double().square().mean().sqrt())
