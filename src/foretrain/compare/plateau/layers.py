"""How large the layers of a network are beside their natural scale, which of them hold it at the saddle, and the
factors that bring these to their natural scale, with what the scaling law says of them.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from foretrain.gaussian.nodes import gauss_hermite
from foretrain.support.errors import InputError, NotSupportedError

HE_GAIN = math.sqrt(2)  # where the nonlinearity before a layer is not a module of its own
SMALL = 0.5  # a network whose smallest layer is above this share of its natural scale has no bottleneck
_NODES = 64
_PROBES = 16  # samples that tell whether a network is a chain

_FED_BY_ACTIVATION = (nn.Linear, nn.modules.conv._ConvNd)  # others (recurrent, attention) have gain 1
_NORMALISERS = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)


@dataclass(frozen=True)
class LayerScale:
    """A weight matrix: its Frobenius norm, and the norm at its natural scale."""

    name: str
    norm: float
    natural: float
    activation: str  # of the nonlinearity that feeds it

    @property
    def relative(self) -> float:
        """Norm over natural norm: 1 passes gradients on at full size, ε << 1 is a bottleneck."""
        return self.norm / self.natural


@dataclass(frozen=True)
class Bottleneck:
    """The layers at the smallest scale.

    ``epsilon`` is the geometric mean of their relative scales. A layer belongs to them if its relative scale is
    nearer, by ratio, to the smallest one than to 1; none does where the smallest is above one half.
    """

    layers: tuple[LayerScale, ...]

    @property
    def count(self) -> int:
        """r of the critical-depth law."""
        return len(self.layers)

    @property
    def epsilon(self) -> float:
        """The scale of the bottleneck (1 where there is none)."""
        return math.exp(sum(math.log(layer.relative) for layer in self.layers) / max(1, self.count))


def find_bottleneck(layers: tuple[LayerScale, ...]) -> Bottleneck:
    """Which layers sit at the smallest scale, by the rule of :class:`Bottleneck`."""
    smallest = min(layer.relative for layer in layers)
    bound = math.sqrt(smallest) if smallest < SMALL else 0.0
    return Bottleneck(tuple(layer for layer in layers if layer.relative < bound))


@dataclass(frozen=True)
class ScalingLaw:
    """Rawal & DeWeese (12): with r layers at ε the plateau lasts ~ ε^-(r-2); r = 2: log(1/ε); r = 1: bounded.

    ``halving`` is what the law says one half of ε does to the plateau, ``halving_here`` what this network's own
    flow does then (nan: not followed to its end).
    """

    small_layers: int
    epsilon: float
    halving_here: float
    applies: bool  # derived for layers in a row

    @property
    def exponent(self) -> int:
        """Power of 1/ε."""
        return max(0, self.small_layers - 2)

    @property
    def halving(self) -> float:
        """Factor of the plateau if ε is halved."""
        if self.small_layers == 2:
            return math.log(2 / self.epsilon) / math.log(1 / self.epsilon)
        return 2.0**self.exponent

    @property
    def exponent_here(self) -> float:
        """The local power of 1/ε of this network."""
        return math.log2(self.halving_here)

    @property
    def formula(self) -> str:
        """The law in symbols."""
        return {1: "bounded", 2: "~ log(1/ε)"}.get(self.small_layers, f"~ ε^-{self.exponent}")

    @property
    def statement(self) -> str:
        """What the law says, and what the network itself does."""
        own = f", {self.halving_here:.3g} times by this network's own flow"
        scope = " (derived for layers in a row, which these are not: trust the flow)"
        return (
            f"Scaling law for {self.small_layers} layers at ε = {self.epsilon:.3g}: plateau {self.formula} as ε → 0; "
            f"halving ε makes it {self.halving:.3g} times as long by the law"
            f"{own if math.isfinite(self.halving_here) else ''}{'' if self.applies else scope}."
        )


def factors_to_natural(bottleneck: Bottleneck) -> dict[str, float]:
    """By how much to multiply each small weight matrix, by parameter name."""
    return {layer.name: 1 / layer.relative for layer in bottleneck.layers}


def rescaled(model: nn.Module, factors: dict[str, float]) -> nn.Module:
    """A copy of the model with some weights multiplied."""
    changed = copy.deepcopy(model)
    with torch.no_grad():
        for name, factor in factors.items():
            changed.get_parameter(name).mul_(factor)
    return changed


def read_layers(model: nn.Module, x: Tensor) -> tuple[LayerScale, ...]:
    """All trained weight matrices (also of convolutions, recurrent and attention layers; not embeddings).

    The natural norm is that of independent entries of variance g²/fan-in, where g² E[σ'(z)²] = 1 for z ~ N(0, 1): at
    this scale a gradient passes σ and W at its size. It is He's rule for rectifiers, g = 1 for the first layer.
    """
    feeding = _activations_before(model, x)
    found, seen = [], set()  # a weight that two modules share is read once
    for place, module in model.named_modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag):
            continue
        gain, label = feeding.get(place, (1.0, "none"))
        for own, weight in module.named_parameters(recurse=False):
            if weight.ndim < 2 or not weight.requires_grad or id(weight) in seen:
                continue
            seen.add(id(weight))
            name, norm = f"{place}.{own}" if place else own, float(weight.detach().double().norm())
            if not math.isfinite(norm):
                raise InputError(
                    f"{name} has entries that are nan or infinite: initialise the network again."
                )
            if norm == 0:
                raise NotSupportedError(
                    f"{name} is exactly zero: its scale cannot be mended by a factor, so initialise it again."
                )
            transposed = isinstance(module, nn.modules.conv._ConvTransposeNd)
            outputs = weight.shape[1] if transposed else weight.shape[0]
            found.append(LayerScale(name, norm, gain * math.sqrt(outputs), label))
    if not found:
        raise NotSupportedError(
            f"{type(model).__name__} has no trained weight matrix: there is nothing to rescale."
        )
    return tuple(found)


def has_normalisation(model: nn.Module) -> bool:
    """Whether the scale of some layers is undone by a normalisation after them."""
    return any(isinstance(module, _NORMALISERS) for module in model.modules())


def is_chain(model: nn.Module, x: Tensor, layers: tuple[LayerScale, ...]) -> bool:
    """Whether the signal passes every weight matrix once: without any one of them all inputs give the same output."""
    if len(layers) < 2 or has_normalisation(model):
        return False
    with leaf_calls(model) as calls, torch.no_grad():
        model(x[:2])
    used = [id(p) for _, module, _, _ in calls for p in module.parameters(recurse=False) if p.ndim >= 2]
    if len(set(used)) < len(used):  # a module called again, or a matrix of two modules
        return False
    emptied = copy.deepcopy(model)
    with torch.no_grad():
        for layer in layers:
            weight = emptied.get_parameter(layer.name)
            before = weight.clone()
            weight.zero_()
            outputs = emptied(x[:_PROBES])
            if not torch.allclose(outputs, outputs[:1].expand_as(outputs), rtol=1e-5, atol=1e-8):
                return False
            weight.copy_(before)
    return True


def _activations_before(model: nn.Module, x: Tensor) -> dict[str, tuple[float, str]]:
    """Gain and name of what feeds each linear or convolutional layer, from one pass of two samples."""
    found: dict[str, tuple[float, str]] = {}
    last: Tensor | None = None  # output of the layer before
    between: nn.Module | None = None
    with leaf_calls(model) as calls, torch.no_grad():
        model(x[:2])
    for name, module, given, output in calls:
        if isinstance(module, _FED_BY_ACTIVATION):
            if last is None or (between is None and given is last):
                found[name] = (1.0, "none")
            else:
                found[name] = (HE_GAIN, "a function") if between is None else _gain(between)
            last, between = output, None
        elif _is_pointwise(module):
            between = module
    return found


@contextmanager
def leaf_calls(model: nn.Module) -> Iterator[list[tuple[str, nn.Module, Any, Any]]]:
    """Record name, module, first input and output of every call of a leaf module."""
    seen: list[tuple[str, nn.Module, Any, Any]] = []

    def note(name: str) -> Any:
        return lambda module, given, output: seen.append((name, module, given[0] if given else None, output))

    leaves = [(name, module) for name, module in model.named_modules() if not list(module.children())]
    handles = [module.register_forward_hook(note(name)) for name, module in leaves]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def _is_pointwise(module: nn.Module) -> bool:
    """Whether a module without parameters acts on every number by itself, as an activation does."""
    if any(True for _ in (*module.parameters(), *module.buffers())):
        return False
    z = torch.linspace(-1.7, 2.3, 8).reshape(1, 8)
    try:
        with torch.no_grad():
            whole, part = module(z), module(z[:, 2:5])
    except (RuntimeError, TypeError, ValueError, IndexError):  # made for other shapes: not an activation
        return False
    return isinstance(whole, Tensor) and whole.shape == z.shape and torch.equal(whole[:, 2:5], part)


def _gain(module: nn.Module) -> tuple[float, str]:
    """E[σ'(z)²]^(-1/2) over a standard normal z, and the name of σ."""
    nodes, weights = gauss_hermite(_NODES)
    z = torch.tensor(nodes, dtype=torch.float32).reshape(1, -1).requires_grad_()
    with torch.enable_grad():
        (slope,) = torch.autograd.grad(module(z).sum(), z)
    square = float(np.sum(weights * slope.double().numpy().ravel() ** 2))
    return square**-0.5 if square > 0 else 1.0, type(module).__name__
