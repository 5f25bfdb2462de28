"""Second changes D²z[v, w] of a model's outputs along two changes of its parameters, one pair at a time.

Nested forward mode is the cheapest way. It is missing for some operations of torch and wrong for others, so it is
compared on a few samples with repeated gradients; backward passes take its place where the two differ.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from foretrain.empirical.differentials.backward import change_along, curvature_along, repeated_along
from foretrain.empirical.differentials.written_out import differentiable_often
from foretrain.empirical.kernel_operator.passes import REFUSALS, Linearised, Values, agreement
from foretrain.empirical.models.batches import Batch
from foretrain.support.errors import NotSupportedError

Way = Callable[[Linearised, Batch, Values, Values], Tensor]

_REFUSALS = (*REFUSALS, NotSupportedError)  # the latter of passes that explain what torch says


def by_forward_mode(linear: Linearised, batch: Batch, first: Values, second: Values) -> Tensor:
    """(samples, outputs) by a forward pass inside a forward pass."""

    def outputs(values: Values) -> Tensor:
        # With gradients allowed: torch then takes formulas that can be differentiated again.
        return linear.rows(batch, linear.changed(values))

    def slope(values: Values) -> Tensor:
        found: Tensor = torch.func.jvp(outputs, (values,), (first,))[1]
        return found

    at = {name: value.detach() for name, value in linear.parameters.items()}
    with differentiable_often(), torch.enable_grad():
        change: Tensor = torch.func.jvp(slope, (at,), (second,))[1]
    return change.detach()


def by_backward_passes(linear: Linearised, batch: Batch, first: Values, second: Values) -> Tensor:
    """The same by passes backward, two for every direction."""
    with differentiable_often(), torch.enable_grad():
        slope = change_along(linear.rows(batch), linear.parameters, first)
        return change_along(slope, linear.parameters, second).detach()


def right_way(linear: Linearised, batch: Batch) -> Way:
    """The first way that repeated gradients of a random sum of outputs confirm on a few samples."""
    few, source = batch.pick(range(min(batch.count, 2))), torch.Generator().manual_seed(0)
    along = {
        name: torch.randn(value.shape, generator=source).to(value.detach())
        for name, value in linear.parameters.items()
    }
    for way in (by_forward_mode, by_backward_passes):
        try:
            found = way(linear, few, along, along)
            weights = torch.randn(found.shape, generator=source).to(found)
            with differentiable_often(), torch.enable_grad():
                total = (linear.rows(few) * weights).sum()
                expected = repeated_along(total, linear.parameters, along, 2)
        except _REFUSALS:
            continue
        allowed = agreement(found.dtype) * float((found * weights).abs().sum())
        if abs(float((found * weights).sum()) - expected) <= allowed:
            return way
    raise NotSupportedError(
        "second derivatives of this network, by several ways of torch, are missing or disagree: an operation of it "
        "cannot be differentiated twice; write it with plain torch operations."
    )


def hessian_product(linear: Linearised, batch: Batch, weights: Tensor, along: Values) -> Values:
    """Σ_α c_α d²z_α/dθdθ v, for weights (samples, outputs)."""
    with differentiable_often(), torch.enable_grad():
        total = (linear.rows(batch) * weights).sum()
        found = curvature_along(
            total, linear.parameters, {name: value[None] for name, value in along.items()}
        )
    return {name: value[0].detach() for name, value in found.items()}
