"""Factors for the weights of blocks, by which every block gives signals of size one on the data.

Plain blocks as in layer-sequential unit variance (Mishkin & Matas 2015): from the first to the last, the last
weight of a block is multiplied until the standard deviation of its output is one. Residual blocks keep their skip
connection: the last weight of the branch is multiplied until the block adds a share 1 / (number of blocks) to the
second moment.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from foretrain.compare.plateau.layers import has_normalisation
from foretrain.doctor.blocks.passage import Block, blocks_of, without_in_place

_ROUNDS = 3  # biases make the deviation a nonlinear function of the factor
_BISECTIONS = 12
_SKIP_LEFT = 0.3  # of the size of what enters a block, left without its last weight: a skip connection
_LARGEST = 1e6
_UNTOUCHED = (nn.RNNBase, nn.RNNCellBase, nn.MultiheadAttention, nn.Embedding, nn.EmbeddingBag)


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
        return _bisected(model, x, block.module, weight, goal)
    factor = 1.0
    for _ in range(_ROUNDS):
        found = _output_deviation(model, x, block.module)
        step = 1 / found if found > 0 else 1.0
        factor = min(factor * step, _LARGEST)
        weight.copy_(factor * before)
    weight.copy_(before)
    return factor


def _bisected(model: nn.Module, x: Tensor, module: nn.Module, weight: Tensor, goal: float) -> float:
    """The factor of a branch whose block reaches the goal, between a thousandth and a thousand."""
    before, low, high = weight.clone(), -3.0, 3.0
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        weight.copy_(10**middle * before)
        if _output_deviation(model, x, module) > goal:
            high = middle
        else:
            low = middle
    weight.copy_(before)
    return float(10 ** ((low + high) / 2))


class _Reached(Exception):  # noqa: N818 - a signal, not an error
    """The output of the block is known."""


def _output_deviation(model: nn.Module, x: Tensor, module: nn.Module) -> float:
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
