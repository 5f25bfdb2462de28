"""One recurrent layer, linearised: sweeps through time that carry blocks of small changes forward and back.

Everything is laid out as (steps, samples, vectors, features), so that the products with a weight at all steps and for
all vectors are one matrix product, and those of a step too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from foretrain.empirical.global_ntk.recurrent.cells import Cell, Slopes, Step


@dataclass
class Trajectory:
    """What a layer computed: its inputs (steps, samples, features), and the states before and after every step."""

    inputs: Tensor
    before: Step  # (steps, samples, units) each
    states: Step
    slopes: Slopes  # with an axis for the vectors before the slots


def run(cell: Cell, inputs: Tensor, weights: Weights, start: Step) -> Trajectory:
    """All steps of a layer in the order given."""
    given = torch.matmul(inputs, weights.given.t())
    if weights.given_bias is not None:
        given += weights.given_bias
    before, products = [start], []
    for p in given:
        q = before[-1][0] @ weights.hidden.t()
        if weights.hidden_bias is not None:
            q = q + weights.hidden_bias
        products.append(q)
        before.append(cell.step(before[-1], q, p))
    stacked = [torch.stack(states) for states in zip(*before)]
    earlier = tuple(states[:-1] for states in stacked)
    found = cell.slopes(earlier, torch.stack(products), given)
    slopes = Slopes(
        {pair: values[:, :, None] for pair, values in found.carry.items()},
        [values[:, :, None].contiguous() for values in found.by_slot],
    )
    return Trajectory(inputs, earlier, tuple(states[1:] for states in stacked), slopes)


@dataclass(frozen=True)
class Weights:
    """Of a layer: for the state before (gates * units, units), for the inputs (gates * units, features)."""

    hidden: Tensor
    given: Tensor
    hidden_bias: Tensor | None
    given_bias: Tensor | None


class Sweeps:
    """The linearised layer. ``products``: blocks (steps, samples, vectors, slots * units) of changes of q and p."""

    def __init__(self, cell: Cell, weights: Weights, path: Trajectory) -> None:
        self.cell, self.weights, self.path = cell, weights, path
        self.units = weights.hidden.shape[1]
        self._hidden_transposed = weights.hidden.t().contiguous()

    def sensitivities(self, vectors: Sequence[Tensor]) -> Tensor:
        """At the products of every step, for vectors at its states alone."""
        found = vectors[0][:, :, :, None] * self.path.slopes.by_slot[0]
        for i in range(1, len(vectors)):
            found.addcmul_(vectors[i][:, :, :, None], self.path.slopes.by_slot[i])
        return found.flatten(3)

    def respond(self, products: Tensor) -> list[Tensor]:
        """The adjoint of ``sensitivities``: what changes of a step's products do to its states."""
        changes = products.view(*products.shape[:3], self.cell.slots, self.units)
        states = [torch.zeros_like(changes[..., 0, :]) for _ in self.cell.states]
        for i, slot in self.cell.used:
            states[i].addcmul_(changes[..., slot, :], self.path.slopes.by_slot[i][..., slot, :])
        return states

    def follow(self, states: Sequence[Tensor], products: Tensor) -> list[Tensor]:
        """D_h f: how every step answers to the states before it and to changes of its products; uses these up."""
        products[1:, :, :, : self.cell.gates * self.units] += states[0][:-1] @ self._hidden_transposed
        found = self.respond(products)
        for (i, j), carry in self.path.slopes.carry.items():
            found[i][1:].addcmul_(states[j][:-1], carry[1:])
        return found

    def follow_adjoint(self, vectors: Sequence[Tensor]) -> tuple[list[Tensor], Tensor]:
        """The adjoint of ``follow``: at the states before, and at the products."""
        products = self.sensitivities(vectors)
        found = [torch.zeros_like(state) for state in vectors]
        found[0][:-1] = products[1:, :, :, : self.cell.gates * self.units] @ self.weights.hidden
        for (i, j), carry in self.path.slopes.carry.items():
            found[j][:-1].addcmul_(vectors[i][1:], carry[1:])
        return found, products

    def back(self, vectors: Sequence[Tensor], room: Tensor | None = None) -> Tensor:
        """P*: turns the block of every state (steps, samples, vectors, units) into adjoint states, in place.

        Gives the sensitivities at the products, (steps, samples, vectors, slots * units), in ``room`` if it is given.
        """
        steps, samples, count, units = vectors[0].shape
        slots, slopes = self.cell.slots, self.path.slopes
        shape = (steps, samples, count, slots, units)
        found = vectors[0].new_empty(shape) if room is None else room.view(shape)
        rows = self.cell.gates * units
        for t in reversed(range(steps)):
            now = found[t]
            torch.mul(vectors[0][t][:, :, None], slopes.by_slot[0][t], out=now)
            for i in range(1, len(vectors)):
                now.addcmul_(vectors[i][t][:, :, None], slopes.by_slot[i][t])
            if t:
                earlier = vectors[0][t - 1].view(-1, units)
                earlier.addmm_(now.view(-1, slots * units)[:, :rows], self.weights.hidden)
                for (i, j), carry in slopes.carry.items():
                    vectors[j][t - 1].addcmul_(vectors[i][t], carry[t])
        return found.view(steps, samples, count, slots * units)

    def forward(self, states: Sequence[Tensor], products: Tensor | None) -> None:
        """P: turns changes added to the states, and to the products, into changes of all states, in place.

        ``products`` is used up.
        """
        steps, samples, count, units = states[0].shape
        slots, slopes = self.cell.slots, self.path.slopes
        rows = self.cell.gates * units
        room = None if products is not None else states[0].new_zeros(samples * count, slots * units)
        for t in range(steps):
            now = room if products is None else products[t].view(-1, slots * units)
            assert now is not None
            if t:
                before = states[0][t - 1].view(-1, units)
                if products is None:
                    torch.mm(before, self._hidden_transposed, out=now[:, :rows])
                else:
                    now[:, :rows].addmm_(before, self._hidden_transposed)
                for (i, j), carry in slopes.carry.items():
                    states[i][t].addcmul_(states[j][t - 1], carry[t])
            if t or products is not None:
                changes = now.view(samples, count, slots, units)
                for i, slot in self.cell.used:
                    if products is not None or slot < self.cell.gates:
                        states[i][t].addcmul_(changes[:, :, slot], slopes.by_slot[i][t][:, :, slot])
