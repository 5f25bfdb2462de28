"""Directional derivatives of a model's outputs along the gradients of its outputs, by torch's automatic derivatives.

Legs a are pairs (sample, output). With g_a = λ∇z_a, differentials are derivatives along some g: D²z[g_b, g_c] and
D³z[g_b, g_c, g_d] of all samples at once. Nested forward mode takes many sets of directions together. It is wrong for
some operations of torch and missing for others, so what it finds is compared, along one random direction, with
repeated gradients; nested backward passes are taken where the two differ. In these, ż = J v is the gradient by u of
v · Jᵀu, which is linear in u. Many go through one batched pass, or one after the other where that is not possible.

The fused normalisations keep mean, deviation or norm from the forward pass and take them for constants when their own
derivatives are differentiated again, by nested forward mode and by backward passes alike: ``differentiable_often``
writes them out in plain operations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import combinations_with_replacement, permutations
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from foretrain.empirical.kernel_operator.passes import (
    REFUSALS,
    Linearised,
    Values,
    agreement,
    differentiable_kernels,
)
from foretrain.empirical.models.arguments import Batch
from foretrain.support.errors import NotSupportedError
from foretrain.support.memory import available_bytes
from foretrain.support.progress import Progress


@contextmanager
def differentiable_often() -> Iterator[None]:
    """Models that run inside can be differentiated as often as their plain operations."""
    with differentiable_kernels(), _WrittenOut():
        yield


def layer_norm(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *_: Any,
) -> Tensor:
    """(x − mean) / √(variance + eps) over the last axes."""
    found = _standard(x, list(range(-len(normalized_shape), 0)), eps)
    return _scaled(found, weight, bias, tuple(normalized_shape))


def group_norm(
    x: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *_: Any,
) -> Tensor:
    """The same over groups of channels and all positions."""
    grouped = x.reshape(x.shape[0], num_groups, -1)
    found = _standard(grouped, [-1], eps).reshape(x.shape)
    return _scaled(found, weight, bias, (-1, *(1,) * (x.ndim - 2)))


def rms_norm(
    x: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    """x / √(mean of x² + eps) over the last axes."""
    axes = list(range(-len(normalized_shape), 0))
    small = torch.finfo(x.dtype).eps if eps is None else eps
    found = x * torch.rsqrt((x * x).mean(axes, keepdim=True) + small)
    return _scaled(found, weight, None, tuple(normalized_shape))


def instance_norm(
    x: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Every channel of every sample alone; with statistics kept from before, nothing needs to be written out."""
    if use_input_stats:
        return group_norm(x, x.shape[1], weight, bias, eps)
    return functional.instance_norm(
        x, running_mean, running_var, weight, bias, use_input_stats, momentum, eps
    )


def weight_norm(v: Tensor, g: Tensor, dim: int = 0) -> Tensor:
    """g v / |v|, with a norm for every entry along an axis; -1 for one of all."""
    axes = [axis for axis in range(v.ndim) if axis != dim]
    return v * (g * torch.rsqrt((v * v).sum(axes, keepdim=True)))


def _standard(x: Tensor, axes: list[int], eps: float) -> Tensor:
    centred = x - x.mean(axes, keepdim=True)
    return centred * torch.rsqrt((centred * centred).mean(axes, keepdim=True) + eps)


def _scaled(x: Tensor, weight: Tensor | None, bias: Tensor | None, shape: tuple[int, ...]) -> Tensor:
    found = x if weight is None else x * weight.reshape(shape)
    return found if bias is None else found + bias.reshape(shape)


_INSTEAD: Mapping[Any, Callable[..., Tensor]] = {
    functional.layer_norm: layer_norm,
    torch.layer_norm: layer_norm,
    functional.group_norm: group_norm,
    torch.group_norm: group_norm,
    functional.rms_norm: rms_norm,
    torch.rms_norm: rms_norm,
    functional.instance_norm: instance_norm,
    torch._weight_norm: weight_norm,
}
_FIRST_NAME = "input"  # of the first argument in torch


class _WrittenOut(TorchFunctionMode):
    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        given = dict(kwargs or {})
        instead = _INSTEAD.get(func)
        if instead is None:
            return func(*args, **given)
        if _FIRST_NAME in given:
            args = (given.pop(_FIRST_NAME), *args)
        return instead(*args, **given)


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
    grad = partial(torch.autograd.grad, values, inputs, retain_graph=True, allow_unused=True)
    count = len(cotangents[0])
    if count > 1:
        try:
            return list(grad(cotangents, create_graph=graph, is_grads_batched=True))
        except REFUSALS:
            pass
    rows = [grad([cotangent[i] for cotangent in cotangents], create_graph=graph) for i in range(count)]
    columns = [
        [part.to_dense() if part.is_sparse else part for part in column if part is not None]
        for column in zip(*rows)
    ]
    return [torch.stack(column) if column else None for column in columns]


Function = Callable[[Values], Tensor]
BACKWARD = "nested backward passes"
_CHUNK_BYTES = 2.0**28
_SHARE = 0.25  # of the available memory that one pass may take


@dataclass(frozen=True, eq=False)
class Directions:
    """A model at a batch, and the gradients of its outputs times their learning rates."""

    linear: Linearised
    batch: Batch
    rates: Mapping[str, float]
    bytes_per_sample: float  # of one pass

    @cached_property
    def at(self) -> Values:
        """Parameters without their graph."""
        return {name: value.detach() for name, value in self.linear.parameters.items()}

    @property
    def legs(self) -> int:
        """Samples times outputs."""
        return self.batch.count * len(self.linear.outputs)

    @property
    def parameter_bytes(self) -> int:
        """Of one vector of all parameters."""
        return sum(value.numel() * value.element_size() for value in self.at.values())

    @cached_property
    def gradients(self) -> Values:
        """∇z of every leg, by parameter: (legs, …)."""
        parameters, parts = self.linear.parameters, []
        with differentiable_often(), torch.enable_grad():
            for number in range(self.batch.count):
                outputs = self.linear.rows(self.batch.pick([number]))[0]
                found: list[Tensor | None] = [None] * len(parameters)
                if outputs.requires_grad:
                    units = torch.eye(len(outputs), dtype=outputs.dtype, device=outputs.device)
                    found = _many([outputs], list(parameters.values()), [units], graph=False)
                given = zip(parameters.items(), found)
                parts.append(
                    {n: p.new_zeros(len(outputs), *p.shape) if g is None else g for (n, p), g in given}
                )
        return {name: torch.cat([part[name] for part in parts]).detach() for name in self.at}

    @cached_property
    def steps(self) -> Values:
        """g = λ∇z of every leg."""
        return {name: self.rates[name] * value for name, value in self.gradients.items()}

    def chosen_steps(self, numbers: Tensor) -> Values:
        """g of some legs."""
        return {name: value[numbers.to(value.device)] for name, value in self.steps.items()}


def derivative(directions: Directions, order: int) -> tuple[Tensor, str]:
    """D^k z_a[g_b, g_c, …] as (legs,) * (1 + order), and how it was found."""
    routes = (("nested forward mode", _by_forward_mode), (BACKWARD, _by_backward_passes))
    with differentiable_often():
        for route, way in routes:
            try:
                values = way(directions, order)
            except REFUSALS:
                continue
            # From (sets, legs) to all orders of the directions.
            found = values.new_empty((directions.legs,) * (1 + order))
            index = torch.tensor(_sets(directions.legs, order), device=values.device)
            for places in permutations(range(order)):
                found.movedim(0, -1)[index[:, list(places)].unbind(1)] = values
            # Repeated gradients of one random combination, along one random direction, have to give the same.
            source = torch.Generator().manual_seed(0)
            along, weights = (torch.randn(directions.legs, generator=source).to(found) for _ in range(2))
            step = {
                name: torch.tensordot(along.to(value), value, dims=1)
                for name, value in directions.steps.items()
            }
            with torch.enable_grad():
                value = directions.linear.rows(directions.batch).flatten() @ weights
                expected = repeated_along(value, directions.linear.parameters, step, order)
            contracted, size = found, found.abs()
            for _ in range(order):
                contracted, size = contracted @ along, size @ along.abs()
            allowed = agreement(found.dtype) * float(size @ weights.abs())
            if abs(float(contracted @ weights) - expected) <= allowed:
                return found, route
    raise NotSupportedError(
        f"derivatives of order {order} of this model, by several ways of torch, disagree: an operation of it cannot "
        "be differentiated so often; write it with plain torch operations."
    )


def _sets(legs: int, order: int) -> list[tuple[int, ...]]:
    """Every set of directions once."""
    return list(combinations_with_replacement(range(legs), order))


def _by_forward_mode(directions: Directions, order: int) -> Tensor:
    """(sets, legs): chunks of sets go through the model together."""
    linear, sets = directions.linear, _sets(directions.legs, order)

    def outputs(values: Values) -> Tensor:
        return linear.rows(directions.batch, linear.changed(values), differentiable=False)

    def pushed(function: Function, tangent: Values) -> Function:
        return lambda values: torch.func.jvp(function, (values,), (tangent,))[1]

    def along(*tangents: Values) -> Tensor:
        nested: Function = outputs
        for tangent in tangents:
            nested = pushed(nested, tangent)
        return nested(directions.at).flatten()

    each = order * directions.parameter_bytes
    each += 2**order * directions.bytes_per_sample * directions.batch.count
    size = max(1, math.floor(min(_CHUNK_BYTES, _SHARE * available_bytes()) / max(each, 1.0)))
    parts = []
    with Progress("directions", total=len(sets)) as bar:
        for start in range(0, len(sets), size):
            chosen = torch.tensor(sets[start : start + size])
            tangents = [directions.chosen_steps(column) for column in chosen.unbind(1)]
            parts.append(torch.func.vmap(along)(*tangents))
            bar.advance(len(chosen))
    return torch.cat(parts)


def _by_backward_passes(directions: Directions, order: int) -> Tensor:
    """The same; sets that begin alike share their first derivatives, and their last direction goes in one pass."""
    parameters, legs = directions.linear.parameters, directions.legs
    found = []
    prefixes = _sets(legs, order - 1)
    with torch.enable_grad(), Progress("directions", total=len(prefixes)) as bar:
        outputs = directions.linear.rows(directions.batch)
        held: dict[tuple[int, ...], Tensor] = {(): outputs}
        for prefix in prefixes:
            for depth in range(1, order):
                if prefix[:depth] not in held:
                    held = {key: value for key, value in held.items() if len(key) < depth}
                    step = {name: value[prefix[depth - 1]] for name, value in directions.steps.items()}
                    held[prefix[:depth]] = change_along(held[prefix[: depth - 1]], parameters, step)
            last = directions.chosen_steps(torch.arange(prefix[-1], legs))
            found.append(pushed_many(held[prefix], parameters, last).detach().flatten(1))
            bar.advance()
    return torch.cat(found)


def gradients_of_changes(directions: Directions) -> Values:
    """u_ac = (∇∇z_a) g_c by parameter: (legs a, legs c, …), two backward passes for every a."""
    parameters, count = directions.linear.parameters, directions.batch.count
    found = []
    with differentiable_often(), torch.enable_grad(), Progress("samples", total=count) as bar:
        for number in range(count):
            outputs = directions.linear.rows(directions.batch.pick([number]))[0]
            found += [curvature_along(value, parameters, directions.steps) for value in outputs]
            bar.advance()
    return {name: torch.stack([part[name] for part in found]) for name in found[0]}
