"""The same operator between other spaces: axes in another order, or one axis read as several."""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor

from foretrain.operators.algebra import compose
from foretrain.operators.basic import Identity
from foretrain.operators.operator import Operator
from foretrain.operators.spaces import Space, SumSpace, VectorSpace
from foretrain.operators.subspaces import Selection
from foretrain.support.errors import InputError


def rearrange(
    source: VectorSpace,
    target: VectorSpace,
    *,
    dtype: torch.dtype = torch.float64,
    device: str | torch.device = "cpu",
) -> Operator:
    """The orthogonal operator that turns vectors of one space into the same vectors of another.

    Spaces with the same axes or members: these are moved by name. Otherwise the flat form is read anew, which must
    leave every axis that both spaces have where it is: (site 15, unit 7) becomes (batch 3, time 5, unit 7).
    """
    if source == target:
        return Identity(source, dtype=dtype, device=device)
    return Selection(source, target, _indices(source, target), dtype=dtype, device=device)


def between(operator: Operator, domain: VectorSpace, codomain: VectorSpace) -> Operator:
    """The same operator from one space to another one, both rearranged; structure stays where they are equal."""
    dtype, device = operator.dtype, operator.device
    right = rearrange(operator.domain, domain, dtype=dtype, device=device)
    if (operator.domain, domain) == (operator.codomain, codomain):
        left = right
    else:
        left = rearrange(operator.codomain, codomain, dtype=dtype, device=device)
    return compose(left, operator, right.adjoint())


def operator_like(operator: Operator, reference: Operator | VectorSpace) -> Operator:
    """The same operator between the reference's spaces."""
    if isinstance(reference, VectorSpace):
        return between(operator, reference, reference)
    return between(operator, reference.domain, reference.codomain)


def _indices(source: VectorSpace, target: VectorSpace) -> Tensor:
    """For every entry of the target, where it stands in the source."""
    if source.size != target.size:
        raise InputError(
            f"{source.describe()} has {source.size} entries and {target.describe()} has {target.size}: "
            "only spaces of equal size can be read as each other; lift adds axes."
        )
    if (
        isinstance(source, SumSpace)
        and isinstance(target, SumSpace)
        and set(source.names) == set(target.names)
    ):
        starts = {name: where.start for name, where in source.slices.items()}
        return torch.cat(
            [starts[name] + _indices(source[name], member) for name, member in target.members.items()]
        )
    if isinstance(source, Space) and isinstance(target, Space):
        if set(source.axes) == set(target.axes):
            order = [source.position(name) for name in target.names]
            return torch.arange(source.size).reshape(source.shape).permute(order).reshape(-1)
        # Reading the flat form anew must not move an axis that both spaces have.
        for name in set(source.names) & set(target.names):
            if (source[name], _stride(source, name)) != (target[name], _stride(target, name)):
                raise InputError(
                    f"{source.describe()} cannot be read as {target.describe()}: axis {name!r} would not stay the "
                    "same axis; bring the axes into the same order first."
                )
    return torch.arange(source.size)


def _stride(space: Space, name: str) -> int:
    return prod(space.shape[space.position(name) + 1 :])
