"""Recurrent cells, unit by unit: how the states of a step follow from those before and from the products.

A layer computes two products per step, q = W_hh h + b_hh of the state before and p = W_ih x + b_ih of its input, both
split into gates; what follows acts on every unit alone. So a small change obeys

    ds_i(t) = sum_j carry_ij ds_j(t-1) + sum_gates slope_i,gate dq_gate + sum_gates slope'_i,gate dp_gate,

with numbers for every step, sample and unit. Gates where both products count alike (slope = slope') share a slot;
a gate where they do not (the candidate of a GRU, whose hidden part is multiplied by r) has a second slot for p.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from foretrain.support.errors import NotSupportedError

Step = tuple[Tensor, ...]  # the states of a step, (samples, units) each


@dataclass(frozen=True)
class Slopes:
    """carry[i, j] (..., units) where it is not zero; by_slot[i] (..., slots, units)."""

    carry: dict[tuple[int, int], Tensor]
    by_slot: Sequence[Tensor]


class Cell(ABC):
    """States, gates and slots of a kind of cell. The first state is the one that products are taken of."""

    states: tuple[str, ...] = ("hidden",)
    gates: int = 1
    slots: int = 1
    used: Sequence[tuple[int, int]] = ((0, 0),)  # (state, slot) whose slope is not zero everywhere

    @property
    def slot_of_input(self) -> Sequence[int]:
        """The slot where p enters, for every gate."""
        return range(self.gates)

    @abstractmethod
    def step(self, before: Step, q: Tensor, p: Tensor) -> Step:
        """The next states; q and p are (..., gates * units)."""

    @abstractmethod
    def slopes(self, before: Step, q: Tensor, p: Tensor) -> Slopes:
        """The numbers of the linearised step, at all steps and samples at once."""


class PlainCell(Cell):
    """h = phi(q + p)."""

    def __init__(self, function: Callable[[Tensor], Tensor], slope: Callable[[Tensor], Tensor]) -> None:
        self._function, self._slope = function, slope  # the slope as a function of the value

    def step(self, before: Step, q: Tensor, p: Tensor) -> Step:
        """The next state."""
        return (self._function(q + p),)

    def slopes(self, before: Step, q: Tensor, p: Tensor) -> Slopes:
        """phi'."""
        return Slopes({}, [self._slope(self._function(q + p))[..., None, :]])


class GatedCell(Cell):
    """GRU: gates r, z and the candidate n = tanh(p_n + r q_n); h = (1 - z) n + z h."""

    gates, slots = 3, 4
    used = ((0, 0), (0, 1), (0, 2), (0, 3))

    @property
    def slot_of_input(self) -> Sequence[int]:
        """The candidate has a slot of its own for p."""
        return (0, 1, 3)

    def step(self, before: Step, q: Tensor, p: Tensor) -> Step:
        """The next state."""
        _, z, candidate, _ = self._parts(q, p)
        return (candidate + z * (before[0] - candidate),)

    def slopes(self, before: Step, q: Tensor, p: Tensor) -> Slopes:
        """Of r, z, and the candidate's hidden and input parts."""
        r, z, candidate, hidden = self._parts(q, p)
        by_input = (1 - z) * (1 - candidate**2)
        found = (
            by_input * hidden * r * (1 - r),
            (before[0] - candidate) * z * (1 - z),
            by_input * r,
            by_input,
        )
        return Slopes({(0, 0): z}, [torch.stack(found, -2)])

    @staticmethod
    def _parts(q: Tensor, p: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        q_r, q_z, hidden = q.chunk(3, -1)
        p_r, p_z, given = p.chunk(3, -1)
        r, z = torch.sigmoid(q_r + p_r), torch.sigmoid(q_z + p_z)
        return r, z, torch.tanh(given + r * hidden), hidden


class MemoryCell(Cell):
    """LSTM: gates i, f, g, o of q + p; c = f c + i g, h = o tanh(c)."""

    states = ("hidden", "cell")
    gates, slots = 4, 4
    used = ((0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 1), (1, 2))

    def step(self, before: Step, q: Tensor, p: Tensor) -> Step:
        """The next states."""
        i, f, g, o = self._parts(q, p)
        cell = f * before[1] + i * g
        return o * torch.tanh(cell), cell

    def slopes(self, before: Step, q: Tensor, p: Tensor) -> Slopes:
        """Of the cell, and of the hidden state both through the cell and through its own gate."""
        i, f, g, o = self._parts(q, p)
        shown = torch.tanh(f * before[1] + i * g)
        through = o * (1 - shown**2)  # from the cell to the hidden state
        cell = torch.stack(
            (g * i * (1 - i), before[1] * f * (1 - f), i * (1 - g**2), torch.zeros_like(o)), -2
        )
        hidden = cell * through[..., None, :]
        hidden[..., 3, :] = shown * o * (1 - o)
        return Slopes({(0, 1): through * f, (1, 1): f}, [hidden, cell])

    @staticmethod
    def _parts(q: Tensor, p: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        i, f, g, o = (q + p).chunk(4, -1)
        return torch.sigmoid(i), torch.sigmoid(f), torch.tanh(g), torch.sigmoid(o)


def layer_of(cell: nn.RNNCellBase) -> nn.RNNBase:
    """The recurrent layer that repeats a cell of torch, with the cell's own parameters."""
    kinds: list[tuple[type, Any]] = [(nn.RNNCell, nn.RNN), (nn.GRUCell, nn.GRU), (nn.LSTMCell, nn.LSTM)]
    kind = next((layer for known, layer in kinds if isinstance(cell, known)), None)
    if kind is None:
        raise NotSupportedError(
            f"{type(cell).__name__} is no cell of torch: give its step as a function f(h, x)."
        )
    more = {"nonlinearity": cell.nonlinearity} if isinstance(cell, nn.RNNCell) else {}
    with torch.device("meta"):  # draws no weights
        layer: nn.RNNBase = kind(cell.input_size, cell.hidden_size, bias=cell.bias, batch_first=True, **more)
    for name in ("weight_ih", "weight_hh", *(["bias_ih", "bias_hh"] if cell.bias else [])):
        delattr(layer, f"{name}_l0")
        setattr(layer, f"{name}_l0", getattr(cell, name))  # no parameter where it is computed from others
    return layer


def cell_of(module: nn.RNNBase) -> Cell:
    """The cell of a recurrent module of torch."""
    if isinstance(module, nn.GRU):
        return GatedCell()
    if isinstance(module, nn.LSTM):
        return MemoryCell()
    if module.mode == "RNN_RELU":
        return PlainCell(torch.relu, lambda value: (value > 0).to(value.dtype))
    return PlainCell(torch.tanh, lambda value: 1 - value**2)
