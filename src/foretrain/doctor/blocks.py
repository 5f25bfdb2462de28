"""The blocks of any torch model in the order of their calls, the signals between them, and residual branches.

Blocks are the parts with weights of the outermost containers: entries of nn.Sequential and nn.ModuleList, layers of a
transformer, stages of a residual network; normalisations belong to what is around them. The signal after a block is
what enters the next one, so that skip connections made outside of the blocks count, unless pooling lies between them.

Residual branches are found by looking at every call of torch in one pass forwards. A sum is that of a residual
connection if one of its terms was computed from the other: that one is the stream, the other the branch. The last
weights of the branch are those of the layer (linear, convolution, normalisation, attention) from which it comes
without another layer in between.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from foretrain.compare.plateau.layers import has_normalisation
from foretrain.support.seeds import Seed, torch_generator

Array = NDArray[np.float64]

_OPENED = (
    nn.Sequential,
    nn.ModuleList,
    nn.ModuleDict,
    nn.TransformerEncoder,
    nn.TransformerDecoder,
    nn.Transformer,
)
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


@dataclass(frozen=True, eq=False)
class Block:
    """A part of the model with weights of its own, and what it was called with."""

    name: str
    module: nn.Module
    given: Tensor | None
    output: Tensor | None


@dataclass(frozen=True, eq=False)
class Passage:
    """Signals after the blocks up to the last one before the output: sizes and how they are alike.

    ``size`` is the root mean square, ``distance`` that of the differences between samples, ``alikeness`` the mean
    cosine between samples, ``gradient`` the norm of a gradient that starts with norm one at the last of them.
    """

    names: tuple[str, ...]
    size: Array
    distance: Array
    alikeness: Array
    gradient: Array

    @property
    def distance_ratio(self) -> float:
        """Last over first."""
        return _ratio(self.distance[-1], self.distance[0])

    @property
    def gradient_ratio(self) -> float:
        """First over last."""
        return _ratio(self.gradient[0], self.gradient[-1])

    @property
    def spread(self) -> Array:
        """The share of the signal that differs between samples."""
        return np.asarray(self.distance / np.where(self.size > 0, self.size, 1))


def blocks_of(model: nn.Module, x: Tensor) -> list[Block]:
    """In the order of their first calls, with their tensors in one graph; the model must not work in place."""
    parts = dict(_parts("", model, root=True))
    given: dict[str, Tensor | None] = {}
    outputs: dict[str, Tensor | None] = {}

    def note(name: str) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            given.setdefault(name, _tensor(args or tuple(kwargs.values())))
            outputs[name] = _tensor(output)

        return hook

    handles = [
        part.register_forward_hook(note(name), with_kwargs=True)
        for name, part in parts.items()
        if any(True for _ in part.parameters()) and (list(part.children()) or not has_normalisation(part))
    ]
    try:
        with torch.enable_grad():
            model(x)
    finally:
        for handle in handles:
            handle.remove()
    return [Block(name, parts[name], given[name], outputs[name]) for name in given]


def without_in_place(model: nn.Module) -> nn.Module:
    """A copy whose activations leave their inputs as they are."""
    private = copy.deepcopy(model)
    for module in private.modules():
        if getattr(module, "inplace", False) is True:
            module.inplace = False  # type: ignore[assignment]
    return private


def passage(model: nn.Module, x: Tensor, seed: Seed) -> Passage:
    """Measure the signals after all blocks but the last one, where they lead to the last of them."""
    given = x.detach().clone()
    if given.is_floating_point():
        given.requires_grad_()
    blocks = blocks_of(without_in_place(model), given)
    known = list[tuple[str, Tensor]]()
    for block, later in pairwise(blocks):
        output, entering = block.output, later.given
        passes = output is None or (entering is not None and entering.numel() == output.numel())
        signal = entering if passes else output
        if signal is not None and signal.requires_grad:
            known.append((block.name, signal))
    if not known:
        return Passage((), *(np.empty(0) for _ in range(4)))
    # Of one random direction at the last signal, scaled to norm one.
    last = known[-1][1]
    probe = torch.randn(last.shape, generator=torch_generator(seed)).to(last)
    signals = [signal for _, signal in known]
    gradients = torch.autograd.grad(last, signals, probe / probe.norm(), allow_unused=True)
    kept = [
        (name, signal, gradient) for (name, signal), gradient in zip(known, gradients) if gradient is not None
    ]
    return Passage(
        tuple(name for name, _, _ in kept),
        np.array([float(signal.detach().double().square().mean().sqrt()) for _, signal, _ in kept]),
        np.array([_distance(signal) for _, signal, _ in kept]),
        np.array([_alikeness(signal) for _, signal, _ in kept]),
        np.array([float(gradient.double().norm()) for _, _, gradient in kept]),
    )


def _parts(name: str, module: nn.Module, *, root: bool) -> Iterator[tuple[str, nn.Module]]:
    children = list(module.named_children())
    opened = children and (root or isinstance(module, _OPENED)) and not isinstance(module, nn.RNNBase)
    alone = len(children) == 1 and not list(module.parameters(recurse=False))
    if not (opened or alone):
        yield name, module
        return
    for own, child in children:
        yield from _parts(f"{name}.{own}" if name else own, child, root=root and len(children) == 1)


def _tensor(values: Any) -> Tensor | None:
    """The first floating-point tensor of what a module takes or returns."""
    if isinstance(values, Tensor):
        return values if values.is_floating_point() else None
    if isinstance(values, dict):
        values = tuple(values.values())
    if isinstance(values, tuple | list):
        return next((found for found in map(_tensor, values) if found is not None), None)
    return None


def _distance(signal: Tensor) -> float:
    if len(signal) < 2:
        return 0.0
    return float(np.sqrt(2 * float(signal.detach().double().var(0).mean())))


def _alikeness(signal: Tensor) -> float:
    flat = signal.detach().double().flatten(1)
    if len(flat) < 2:
        return float("nan")
    units = flat / flat.norm(dim=1, keepdim=True).clamp_min(1e-300)
    count = len(units)
    return float((units.sum(0).square().sum() - count) / (count * (count - 1)))


def _ratio(above: float, below: float) -> float:
    return float(above / below) if below > 0 else 1.0


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
