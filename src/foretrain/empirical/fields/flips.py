"""Mask flips: units whose slope jumps during a step, and the step as it would be had none of them flipped."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from foretrain.empirical.autograd_graph.chain import Chain
from foretrain.empirical.fields.state import FieldState

_PIECES = 16
_HALVINGS = 26
_JUMP = 1e-3  # smallest jump of a slope that counts, relative to the largest slope of the layer


def crossed_kink(chain: Chain, number: int, old: Tensor, new: Tensor) -> Tensor:
    """Where the slope of layer l jumps between two preactivations (M, n_l), as booleans.

    The piece of the way over which the slope changes most is halved again and again: over a kink the change stays,
    for a smooth activation it goes to zero.
    """
    way = _steepest_piece(chain, number, old, new)
    size = float(torch.maximum(way.slope_low.abs(), way.slope_high.abs()).max())
    for _ in range(_HALVINGS):
        if not bool((way.change > _JUMP * size).any()):
            break
        middle = (way.low + way.high) / 2
        slope = chain.derivative(number, middle)[1]
        first = _Way(way.low, middle, way.slope_low, slope)
        way = _Way(middle, way.high, slope, way.slope_high).where_larger(first)
    return way.change > _JUMP * size


@dataclass(frozen=True, eq=False)
class _Way:
    """An interval of preactivations for every unit, and the slopes at its ends."""

    low: Tensor
    high: Tensor
    slope_low: Tensor
    slope_high: Tensor

    @property
    def change(self) -> Tensor:
        return (self.slope_high - self.slope_low).abs()

    def where_larger(self, other: _Way) -> _Way:
        """Per unit the one of two intervals over which the slope changes more; this one on a tie."""
        mine = self.change >= other.change
        return _Way(
            torch.where(mine, self.low, other.low),
            torch.where(mine, self.high, other.high),
            torch.where(mine, self.slope_low, other.slope_low),
            torch.where(mine, self.slope_high, other.slope_high),
        )


def _steepest_piece(chain: Chain, number: int, old: Tensor, new: Tensor) -> _Way:
    """In small pieces, because over a long way a smooth change of the slope may hide a jump."""
    slope = chain.derivative(number, old)[1]
    best = _Way(old, old, slope, slope)
    low = old
    for piece in range(1, _PIECES + 1):
        high = old + (piece / _PIECES) * (new - old) if piece < _PIECES else new
        next_slope = chain.derivative(number, high)[1]
        best = best.where_larger(_Way(low, high, slope, next_slope))
        low, slope = high, next_slope
    return best


@dataclass(frozen=True, eq=False)
class FrozenFields:
    """Fields with new weights but old masks: what the frozen-mask theory describes at finite lr."""

    activations: tuple[Tensor, ...]
    conjugates: tuple[Tensor, ...]


def frozen_fields(before: FieldState, after: Chain) -> FrozenFields:
    """Run the inputs through the new weights, with every unit that meets a kink continued along its old slope."""
    chain = before.chain
    activations, slopes = [chain.u(0)], []
    for number, layer in enumerate(after.layers, start=1):
        v = layer(activations[-1])
        crossed = crossed_kink(chain, number, chain.v(number), v)
        u, slope = chain.derivative(number, v)
        continued = chain.u(number) + chain.a(number) * (v - chain.v(number))
        activations.append(torch.where(crossed, continued, u))
        slopes.append(torch.where(crossed, chain.a(number), slope))
    conjugates = [before.conjugates[-1]]
    for layer, slope in zip(reversed(after.layers), reversed(slopes)):
        conjugates.append((slope[:, None, :] * conjugates[-1]) @ layer.weight)
    return FrozenFields(tuple(activations), tuple(reversed(conjugates)))
