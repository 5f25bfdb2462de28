"""Changes of a value along changes of parameters, by backward passes, so that they can be differentiated again.

ż = J v is the gradient by u of v · Jᵀu, which is linear in u. Many at once go through one batched backward pass, or
one after the other where an operation cannot be batched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from foretrain.empirical.kernel_operator.passes import REFUSALS, Values
from foretrain.support.errors import NotSupportedError


def gradients(value: Tensor, parameters: Mapping[str, Tensor]) -> Values:
    """∇ of every entry of a vector: (entries, …) by parameter; the graph of the value is kept."""
    tensors = list(parameters.values())
    if not value.requires_grad:
        return {name: p.new_zeros(len(value), *p.shape) for name, p in parameters.items()}
    units = torch.eye(len(value), dtype=value.dtype, device=value.device)
    found = _many([value], tensors, [units], graph=False)
    return {
        name: p.new_zeros(len(value), *p.shape) if gradient is None else gradient
        for (name, p), gradient in zip(parameters.items(), found)
    }


def change_along(value: Tensor, parameters: Mapping[str, Tensor], step: Values) -> Tensor:
    """The change of a value along one step, with its graph."""
    return pushed_many(value, parameters, {name: part[None] for name, part in step.items()})[0]


def pushed_many(value: Tensor, parameters: Mapping[str, Tensor], steps: Values) -> Tensor:
    """Changes of a value along many steps, with their graph: (steps, …)."""
    count = len(next(iter(steps.values())))
    nothing = value.new_zeros(count, *value.shape)
    if not value.requires_grad:
        return nothing
    u = torch.zeros_like(value).requires_grad_()
    try:
        pulled = torch.autograd.grad(
            value, list(parameters.values()), u, create_graph=True, allow_unused=True
        )
        kept = {
            name: gradient.to_dense() if gradient.is_sparse else gradient
            for name, gradient in zip(parameters, pulled)
            if gradient is not None and gradient.requires_grad
        }
        if not kept:
            return nothing
        (change,) = _many(list(kept.values()), [u], [steps[name] for name in kept], graph=True)
    except REFUSALS as error:
        told = " ".join(str(error).splitlines()[:1])[:160]
        raise NotSupportedError(
            f"an operation of the model cannot be differentiated often enough ({told}): write it with plain torch "
            "operations."
        ) from error
    return nothing if change is None else change


def curvature_along(value: Tensor, parameters: Mapping[str, Tensor], steps: Values) -> Values:
    """The Hessian of a number times every step: (steps, …) by parameter."""
    slopes = {name: slope for name, slope in _slopes(value, parameters).items() if slope.requires_grad}
    found: list[Tensor | None] = [None] * len(parameters)
    if slopes:
        found = _many(
            list(slopes.values()), list(parameters.values()), [steps[n] for n in slopes], graph=False
        )
    return {
        name: torch.zeros_like(steps[name]) if part is None else part for name, part in zip(parameters, found)
    }


def repeated_along(value: Tensor, parameters: Mapping[str, Tensor], step: Values, order: int) -> float:
    """The derivative of a number along one step, so many times; nothing but gradients of numbers."""
    for _ in range(order):
        slopes = _slopes(value, parameters)
        if not slopes:
            return 0.0
        value = torch.stack([(slope * step[name]).sum() for name, slope in slopes.items()]).sum()
    return float(value.detach())


def _slopes(value: Tensor, parameters: Mapping[str, Tensor]) -> Values:
    """The gradient of a number with its graph, by the parameters on which it depends."""
    if not value.requires_grad:
        return {}
    found = torch.autograd.grad(value, list(parameters.values()), create_graph=True, allow_unused=True)
    return {
        name: slope.to_dense() if slope.is_sparse else slope
        for name, slope in zip(parameters, found)
        if slope is not None
    }


def _many(
    values: Sequence[Tensor], inputs: Sequence[Tensor], cotangents: Sequence[Tensor], graph: bool
) -> list[Tensor | None]:
    """Products of many cotangents, stacked along their first axis, with the Jacobian."""
    count = len(cotangents[0])
    if count > 1:
        try:
            return list(
                torch.autograd.grad(
                    values,
                    inputs,
                    cotangents,
                    retain_graph=True,
                    create_graph=graph,
                    allow_unused=True,
                    is_grads_batched=True,
                )
            )
        except REFUSALS:
            pass
    rows = [
        torch.autograd.grad(
            values,
            inputs,
            [cotangent[i] for cotangent in cotangents],
            retain_graph=True,
            create_graph=graph,
            allow_unused=True,
        )
        for i in range(count)
    ]
    return [_stacked(column) for column in zip(*rows)]


def _stacked(parts: Sequence[Tensor | None]) -> Tensor | None:
    found = [part.to_dense() if part.is_sparse else part for part in parts if part is not None]
    return torch.stack(found) if found else None
