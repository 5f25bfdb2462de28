"""Networks of layers z^(k) = b + W s^(k-1), s^(k) = σ(z^(k)): what one gradient does to every layer, by rank one.

A leg a = (i, δ) is output i at sample δ. With δ_a = dz_a/dz^(k) its gradient is δ_a ⊗ s_a in W and δ_a in b, so that
the change of weights along g_b = λ∇z_b acts on any vector as (λ_W δ_b)(s_b · v). Along g_b, layers change by ż
(forward), and the backward fields δ_a, ε_a = dz_a/ds^(k) by δ̇_ab, ε̇_ab (backward). Nothing larger than a layer times
(legs)² is formed, and by the 2n + 1 rule these first-order changes suffice for third derivatives.

All tensors begin with an axis of networks and end with the axis of neurons.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from foretrain.support.answers import Answer, Result


@dataclass(frozen=True)
class Rates:
    """Learning rates of the weights and of the biases of a layer; 0 for what is not trained."""

    weight: float
    bias: float


@dataclass(frozen=True, repr=False, eq=False)
class Stack(Result):
    """Networks with T layers at some samples; the last weights are the rows of the outputs."""

    signals: Sequence[Tensor]  # s^(0)..s^(T-1), (networks, samples, n)
    derivatives: Sequence[tuple[Tensor, Tensor, Tensor]]  # σ', σ'', σ''' at z^(1)..z^(T-1), like the signals
    weights: Sequence[Tensor]  # W^(2)..W^(T), (networks, n_k, n_{k-1})
    rates: Sequence[Rates]  # of layers 1..T
    directions: int | None = None  # along the gradients of how many of the outputs; None for all

    @property
    def samples(self) -> int:
        """How many."""
        return int(self.signals[0].shape[1])

    @property
    def outputs(self) -> int:
        """How many."""
        return int(self.weights[-1].shape[1]) if self.weights else 0

    def answer(self) -> Answer:
        """How many networks, of which widths."""
        widths = "-".join(map(str, (*(signal.shape[-1] for signal in self.signals), self.outputs)))
        return Answer(
            f"Stack of {len(self.signals[0])} networks of widths {widths} at {self.samples} samples"
        )


@dataclass(frozen=True, eq=False)
class Level:
    """Layer k < T: the signal before it, the fields at it, and their changes along the directions."""

    rates: Rates
    signal: Tensor  # s^(k-1), (networks, samples, n)
    signal_change: Tensor | None  # ṡ^(k-1), (networks, samples, directions, n); None where s does not change
    derivatives: tuple[Tensor, Tensor, Tensor]
    change: Tensor  # ż^(k), (networks, samples, directions, n)
    field: Tensor  # δ^(k), (networks, legs, n)
    backward: Tensor  # ε^(k), (networks, legs, n)
    field_change: Tensor  # δ̇^(k), (networks, legs, directions, n)
    backward_change: Tensor  # ε̇^(k), (networks, legs, directions, n)


@dataclass(frozen=True, eq=False)
class Top:
    """Layer T: the signal before it, and its change."""

    rates: Rates
    signal: Tensor
    signal_change: Tensor


def with_derivatives(
    function: Callable[[Tensor], Tensor], z: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """σ, σ', σ'', σ''' of an elementwise function; zero from where autograd finds no dependence on z."""
    with torch.enable_grad():
        leaf = z.detach().requires_grad_()
        found = [function(leaf)]
        for _ in range(3):
            slope = None
            if found[-1].requires_grad:
                (slope,) = torch.autograd.grad(found[-1].sum(), leaf, create_graph=True, allow_unused=True)
            found.append(torch.zeros_like(z) if slope is None else slope)
    value, one, two, three = (values.detach() for values in found)
    return value, one, two, three


def overlap(rates: Rates, signal: Tensor) -> Tensor:
    """λ_b + λ_W s_a · s_b: (networks, samples, samples)."""
    return rates.bias + rates.weight * (signal @ signal.mT)


def levels(stack: Stack) -> tuple[list[Level], Top]:
    """All fields and their changes, layer by layer."""
    fields, backwards = _fields(stack)
    changes, signal_changes = _changes(stack, fields)
    field_changes, backward_changes = _field_changes(stack, fields, backwards, changes)
    found = [
        Level(
            stack.rates[k],
            stack.signals[k],
            signal_changes[k - 1] if k else None,
            stack.derivatives[k],
            changes[k],
            fields[k],
            backwards[k],
            field_changes[k],
            backward_changes[k],
        )
        for k in range(len(fields))
    ]
    return found, Top(stack.rates[-1], stack.signals[-1], signal_changes[-1])


def of_legs(values: Tensor, legs: int, axis: int = 1) -> Tensor:
    """Values of samples along an axis, at the sample of every leg: outputs first, then samples."""
    repeats = [1] * values.ndim
    repeats[axis] = legs // values.shape[axis]
    return values.repeat(repeats)


def _fields(stack: Stack) -> tuple[list[Tensor], list[Tensor]]:
    """δ and ε of layers 1..T-1."""
    samples, rows = stack.samples, stack.weights[-1]
    legs = stack.outputs * samples
    backward = rows.repeat_interleave(samples, dim=1)
    fields: list[Tensor] = []
    backwards: list[Tensor] = []
    for k in reversed(range(len(stack.derivatives))):
        field = of_legs(stack.derivatives[k][0], legs) * backward
        fields.insert(0, field)
        backwards.insert(0, backward)
        if k:
            backward = field @ stack.weights[k - 1]
    return fields, backwards


def _changes(stack: Stack, fields: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """ż and ṡ of layers 1..T-1 along the directions."""
    samples, networks = stack.samples, len(fields[0])
    count = _directions(stack) * samples
    changes: list[Tensor] = []
    signal_changes: list[Tensor] = []
    for k, field in enumerate(fields):
        kernel = of_legs(overlap(stack.rates[k], stack.signals[k]), count, axis=2)
        change = kernel[..., None] * field[:, None, :count]
        if k:
            carried = signal_changes[-1].flatten(1, 2) @ stack.weights[k - 1].mT
            change = change + carried.view(networks, samples, count, -1)
        changes.append(change)
        signal_changes.append(stack.derivatives[k][0][:, :, None] * change)
    return changes, signal_changes


def _field_changes(
    stack: Stack, fields: list[Tensor], backwards: list[Tensor], changes: list[Tensor]
) -> tuple[list[Tensor], list[Tensor]]:
    """δ̇ and ε̇ of layers 1..T-1 along the directions."""
    networks, legs = fields[0].shape[:2]
    count = _directions(stack) * stack.samples
    gram = same_output(stack, fields[0])[:, :count].expand(networks, -1, -1)
    field_changes: list[Tensor] = []
    backward_changes: list[Tensor] = []
    for k in reversed(range(len(fields))):
        turned = (stack.rates[k + 1].weight * gram)[..., None]
        signal = of_legs(stack.signals[k + 1], count)[:, None]
        if field_changes:
            carried = field_changes[0].flatten(1, 2) @ stack.weights[k]
            backward_change = carried.view(networks, legs, count, -1).addcmul_(turned, signal)
        else:
            backward_change = turned * signal
        slope, bend, _ = (values[:, None, :, None] for values in stack.derivatives[k])
        by_output = (networks, stack.outputs, stack.samples)
        field_change = bend * backwards[k].view(*by_output, 1, -1) * changes[k][:, None]
        field_change.addcmul_(slope, backward_change.view(*by_output, count, -1))
        field_changes.insert(0, field_change.flatten(1, 2))
        backward_changes.insert(0, backward_change)
        gram = fields[k] @ fields[k][:, :count].mT
    return field_changes, backward_changes


def same_output(stack: Stack, like: Tensor) -> Tensor:
    """Whether two legs are of the same output: (legs, legs)."""
    number = torch.arange(stack.outputs, device=like.device).repeat_interleave(stack.samples)
    return (number[:, None] == number).to(like.dtype)


def _directions(stack: Stack) -> int:
    return stack.outputs if stack.directions is None else stack.directions
