"""What the units of every layer answer, and factors by which every block gives signals of size one on the data.

A response pairs the output v of a layer with weights and the input u of the next one. Activations in between may be
modules or functions; where no pooling lies between, autograd gives the slope of each unit on each sample.

Plain blocks are rescaled as in layer-sequential unit variance (Mishkin & Matas 2015): from the first to the last,
the last weight of a block is multiplied until the standard deviation of its output is one. Residual blocks keep their
skip connection: the last weight of the branch is multiplied until the block adds a share 1 / (number of blocks) to
the second moment.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from foretrain.compare.plateau.layers import has_normalisation
from foretrain.doctor.blocks import Block, blocks_of, without_in_place
from foretrain.support.progress import stop_if_late

_CHANNELS_FIRST = (nn.modules.conv._ConvNd, nn.modules.batchnorm._NormBase, nn.GroupNorm)
_PLAIN = (nn.Linear, nn.LayerNorm, *_CHANNELS_FIRST)
_FLAT = 1e-6  # of the largest answer: below it an answer is constant
_CLOSED = 0.05  # of the steepest slope: below it a unit passes hardly any gradient
_SHUT = 0.01  # of the steepest, root mean square over the data: below it none
_ELEMENTWISE = 1e-4
_STEEPEST = 0.2  # a layer in which no unit is steeper is shut altogether; a sigmoid reaches 0.25
_ROUNDS = 3  # biases make the deviation a nonlinear function of the factor
_BISECTIONS = 12
_SKIP_LEFT = 0.3  # of the size of what enters a block, left without its last weight: a skip connection
_LARGEST = 1e6
_UNTOUCHED = (nn.RNNBase, nn.RNNCellBase, nn.MultiheadAttention, nn.Embedding, nn.EmbeddingBag)


@dataclass(frozen=True, eq=False)
class Response:
    """Units of one layer: values are (cases, units), where cases are samples and positions.

    ``slope`` is that of u over v in units of the steepest, None where pooling lies between.
    """

    name: str
    v: Tensor
    u: Tensor
    slope: Tensor | None

    @property
    def silent(self) -> Tensor:
        """Units that pass nothing on in any case, because of what enters them or of a bias below zero."""
        varies = _range(self.v) > 0
        if self.slope is not None:
            return (varies | (self.v.max(0).values < 0)) & (self.slope.square().mean(0).sqrt() < _SHUT)
        return varies & (_range(self.u) <= _FLAT * self.u.abs().max().clamp_min(1e-30))

    @property
    def reached(self) -> bool:
        """Whether anything that differs between samples enters the layer."""
        return bool((_range(self.v) > 0).any())

    @property
    def always_on(self) -> Tensor:
        """Units that are positive in all cases: by symmetry as many as are silent without a fault."""
        return self.v.min(0).values > 0

    @property
    def closed(self) -> float:
        """The share of units and cases with a slope below a twentieth of the steepest, where both sides saturate."""
        if self.slope is None:
            return 0.0
        positive = self.v > 0
        one_sided = int(((self.slope.abs() < _CLOSED) & positive).sum()) <= int(positive.sum()) / 2
        return 0.0 if one_sided else self.shut

    @property
    def shut(self) -> float:
        """The share of units and cases that pass hardly any gradient."""
        return 0.0 if self.slope is None else float((self.slope.abs() < _CLOSED).double().mean())


def responses(model: nn.Module, x: Tensor) -> list[Response]:
    """Of all layers that are called once and are followed by another one."""
    calls = _record(without_in_place(model), x)
    names = [name for name, _, _, _ in calls]
    found = []
    for (name, module, _, v), (_, _, u, _) in pairwise(calls):
        if names.count(name) > 1 or not isinstance(module, _PLAIN) or u is None or v is None:
            continue
        pair = _pair(name, module, v, u)
        if pair is not None:
            found.append(pair)
    return found


def units_last(module: nn.Module, values: Tensor) -> Tensor:
    """(cases, units)."""
    moved = values.movedim(1, -1) if isinstance(module, _CHANNELS_FIRST) and values.ndim > 2 else values
    return moved.reshape(-1, moved.shape[-1])


def _record(model: nn.Module, x: Tensor) -> list[tuple[str, nn.Module, Tensor | None, Tensor | None]]:
    """Name, module, input and output of the calls of modules that have weights and no parts."""
    calls: list[tuple[str, nn.Module, Tensor | None, Tensor | None]] = []

    def note(name: str) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            given = args[0] if args and isinstance(args[0], Tensor) else None
            calls.append((name, module, given, output if isinstance(output, Tensor) else None))

        return hook

    handles = [
        module.register_forward_hook(note(name))
        for name, module in model.named_modules()
        if not list(module.children()) and any(True for _ in module.parameters())
    ]
    try:
        with torch.enable_grad():
            model(x.clone().requires_grad_() if x.is_floating_point() else x)
    finally:
        for handle in handles:
            handle.remove()
    return calls


def _pair(name: str, module: nn.Module, v: Tensor, u: Tensor) -> Response | None:
    """None where u does not come from v, or is v itself."""
    if u is v or not (u.requires_grad and v.requires_grad):
        return None
    slopes_of_v: tuple[Tensor | None, ...] = torch.autograd.grad(
        u.sum(), v, retain_graph=True, allow_unused=True
    )
    slope = slopes_of_v[0]
    if slope is None:
        return None
    before = units_last(module, v.detach())
    if u.numel() == v.numel():
        answers = units_last(module, u.detach().reshape(v.shape))
        steepest = slope.abs().max().clamp_min(_STEEPEST)
        # Every number of u may depend on its own number of v, as behind an activation and not behind a softmax.
        probe = torch.randn(u.shape, generator=torch.Generator().manual_seed(0)).to(u)
        (answer,) = torch.autograd.grad(u, v, probe, retain_graph=True)
        missed = (answer - slope * probe.reshape(v.shape)).abs().max()
        elementwise = bool(missed <= _ELEMENTWISE * answer.abs().max().clamp_min(1e-30))
        slopes = units_last(module, slope / steepest) if elementwise else None
        return Response(name, before, answers, slopes)
    if isinstance(module, _CHANNELS_FIRST) and u.shape[1] == v.shape[1]:
        return Response(name, before, units_last(module, u.detach()), None)
    return None


def _range(values: Tensor) -> Tensor:
    return values.max(0).values - values.min(0).values


def unit_factors(model: nn.Module, x: Tensor) -> dict[str, float]:
    """By the name of the weight; blocks with normalisation, recurrence or attention set their own scale and stay."""
    private = without_in_place(model)
    blocks = blocks_of(private, x)
    names = {id(parameter): name for name, parameter in private.named_parameters()}
    factors: dict[str, float] = {}
    with torch.no_grad():
        for number, block in enumerate(blocks):
            module = block.module
            weights = [p for p in module.parameters() if p.ndim >= 2 and p.requires_grad]
            if has_normalisation(module) or any(isinstance(part, _UNTOUCHED) for part in module.modules()):
                continue
            if not weights or names[id(weights[-1])] in factors:
                continue
            weight = weights[-1]
            factor = _factor(private, x, block, weight, len(blocks))
            if number == len(blocks) - 1:
                factor = min(factor, 1.0)
            factors[names[id(weight)]] = float(f"{factor:.6g}")
            weight.mul_(factors[names[id(weight)]])
    return factors


def _factor(model: nn.Module, x: Tensor, block: Block, weight: Tensor, blocks: int) -> float:
    before, entering = weight.clone(), _deviation(block.given)
    weight.zero_()
    rest = _output_deviation(model, x, block.module)
    weight.copy_(before)
    # A lone layer has no skip connection; what it gives without its weight is its bias.
    if list(block.module.children()) and rest > _SKIP_LEFT * entering > 0:
        goal = (rest**2 + entering**2 / blocks) ** 0.5
        low, high = -3.0, 3.0  # powers of ten of the factor with which the block reaches the goal
        for _ in range(_BISECTIONS):
            middle = (low + high) / 2
            weight.copy_(10**middle * before)
            if _output_deviation(model, x, block.module) > goal:
                high = middle
            else:
                low = middle
        weight.copy_(before)
        return float(10 ** ((low + high) / 2))
    factor = 1.0
    for _ in range(_ROUNDS):
        found = _output_deviation(model, x, block.module)
        step = 1 / found if found > 0 else 1.0
        factor = min(factor * step, _LARGEST)
        weight.copy_(factor * before)
    weight.copy_(before)
    return factor


class _Reached(Exception):  # noqa: N818 - a signal, not an error
    """The output of the block is known."""


def _output_deviation(model: nn.Module, x: Tensor, module: nn.Module) -> float:
    stop_if_late()
    held: list[Any] = []

    def stop(part: nn.Module, given: Any, output: Any) -> None:
        held.append(output)
        raise _Reached

    handle = module.register_forward_hook(stop)
    try:
        model(x)
    except _Reached:
        pass
    finally:
        handle.remove()
    output = held[0] if held else None
    return _deviation(output if isinstance(output, Tensor) else None)


def _deviation(signal: Tensor | None) -> float:
    return 0.0 if signal is None or signal.numel() < 2 else float(signal.detach().double().std())
