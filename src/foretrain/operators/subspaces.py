"""Selections of entries, operators restricted to them, and the same operator between rearranged spaces.

A selection S picks entries of a vector; its adjoint puts them back among zeros, and S S* is the identity. Restricting
an operator to the entries picked is S A S*; a selection of all entries in another order rearranges a space.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from foretrain.operators.algebra import compose
from foretrain.operators.basic import Identity
from foretrain.operators.operator import Operator
from foretrain.operators.spaces import Space, SumSpace, VectorSpace
from foretrain.support.errors import InputError, NotSupportedError

Indices = Mapping[str, Any]


class Selection(Operator):
    """The entries at given flat indices, each at most once, as a vector of the codomain."""

    def __init__(
        self,
        domain: VectorSpace,
        codomain: VectorSpace,
        indices: Tensor,
        *,
        dtype: torch.dtype,
        device: str | torch.device,
    ) -> None:
        super().__init__(domain, codomain, dtype=dtype, device=device, best_block=64)
        self.indices = indices.to(self.device)
        self.flops = float(self.domain.size)

    def _apply(self, flat: Tensor) -> Tensor:
        return flat[:, self.indices]

    def _apply_adjoint(self, flat: Tensor) -> Tensor:
        return flat.new_zeros(flat.shape[0], self.domain.size).index_copy(1, self.indices, flat)


def select(
    space: Space, *, dtype: torch.dtype = torch.float64, device: str | torch.device = "cpu", **indices: Any
) -> Operator:
    """The operator that keeps some indices of axes: ``select(space, time=-1, unit=[0, 3])``.

    A number drops its axis; a slice, a list or a mask keeps it. Its adjoint embeds the small space.
    """
    return _selection(space, indices, dtype=dtype, device=device)


def select_where(
    space: VectorSpace,
    mask: Any,
    *,
    name: str = "entry",
    dtype: torch.dtype = torch.float64,
    device: str | torch.device = "cpu",
) -> Operator:
    """The operator that keeps the entries of a mask over the whole space, in one new axis."""
    kept = torch.as_tensor(mask) if not isinstance(mask, Mapping) else mask
    flat = space.flatten(kept)[0]
    if flat.dtype != torch.bool:
        raise InputError(f"a mask holds True and False, but this one holds {flat.dtype}.")
    if not flat.any():
        raise InputError("the mask keeps no entry: at least one must be True.")
    indices = flat.nonzero()[:, 0]
    return Selection(space, Space((name, len(indices))), indices, dtype=dtype, device=device)


def select_member(
    space: VectorSpace,
    member: str,
    *,
    dtype: torch.dtype = torch.float64,
    device: str | torch.device = "cpu",
) -> Operator:
    """The operator that keeps one member of a direct sum; its adjoint embeds that member."""
    if not isinstance(space, SumSpace):
        raise InputError(f"{space.describe()} has axes, not members: keep indices of axes with restrict().")
    target = space[member]
    where = space.slices[member]
    return Selection(space, target, torch.arange(where.start, where.stop), dtype=dtype, device=device)


def restrict(operator: Operator, indices: Indices) -> Operator:
    """S A S* for a selection of indices of axes, on every side that has the axis."""
    domain, codomain = (side.plain("restrict()") for side in (operator.domain, operator.codomain))
    for name in indices:
        if name not in codomain.names:
            domain.position(name)
    kind = {"dtype": operator.dtype, "device": operator.device}
    right = _selection(domain, {n: i for n, i in indices.items() if n in domain.names}, **kind)
    if domain == codomain:
        left = right
    else:
        left = _selection(codomain, {n: i for n, i in indices.items() if n in codomain.names}, **kind)
    return compose(left, operator, right.adjoint())


def restrict_to(operator: Operator, part: Any) -> Operator:
    """S A S* for one member of a direct sum, or for the entries of a mask over the space."""
    if operator.domain != operator.codomain:
        raise NotSupportedError(
            f"restrict_to needs an operator inside one space, but this one goes from {operator.domain.describe()} "
            f"to {operator.codomain.describe()}: multiply by select_member or select_where on the side meant."
        )
    dtype, device = operator.dtype, operator.device
    if isinstance(part, str):
        chosen = select_member(operator.domain, part, dtype=dtype, device=device)
    else:
        chosen = select_where(operator.domain, part, dtype=dtype, device=device)
    return compose(chosen, operator, chosen.adjoint())


def _selection(space: Space, indices: Indices, **kind: Any) -> Operator:
    for name in indices:
        space.position(name)
    grid = torch.arange(space.size).reshape(space.shape)
    axes = []
    for position, (name, size) in enumerate(space.axes):
        kept = _kept_indices(name, size, indices[name]) if name in indices else torch.arange(size)
        grid = grid.index_select(position, kept)
        index = indices.get(name, slice(None))
        if isinstance(index, slice) or np.ndim(index):  # a number drops its axis
            axes.append((name, len(kept)))
    if tuple(axes) == space.axes and torch.equal(grid.reshape(-1), torch.arange(space.size)):
        return Identity(space, **kind)
    return Selection(space, Space(*axes), grid.reshape(-1), **kind)


def _kept_indices(name: str, size: int, index: Any) -> Tensor:
    if isinstance(index, slice):
        kept = np.arange(size)[index]
    else:
        given = np.atleast_1d(index.cpu().numpy() if isinstance(index, Tensor) else np.asarray(index))
        if given.ndim != 1 or given.dtype.kind not in "iub":
            raise InputError(
                f"{name}={index!r} does not choose indices: give a number, a slice, a list of numbers or a mask."
            )
        if given.dtype.kind == "b" and len(given) != size:
            raise InputError(
                f"the mask for axis {name!r} has length {len(given)}, but the axis has size {size}."
            )
        kept = np.flatnonzero(given) if given.dtype.kind == "b" else given.astype(np.int64)
    if not len(kept):
        raise InputError(f"{name}={index!r} keeps no index of the axis: keep at least one.")
    if kept.min() < -size or kept.max() >= size:
        raise InputError(f"{name}={index!r} reaches beyond the axis, which has size {size}.")
    kept = kept % size
    if len(np.unique(kept)) < len(kept):
        raise InputError(f"{name}={index!r} keeps an index twice: keep each index at most once.")
    return torch.as_tensor(kept)


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
