"""The spaces operators act between: tensors with named axes, and direct sums of such spaces.

A vector has two forms. Structured: a tensor with the space's axes, or a dict of the members' vectors for a direct
sum. Flat: its ``size`` numbers in a row, row-major in axis order, members side by side. A block of k vectors has k as
its first axis in either form.

>>> from foretrain.operators import Space, SumSpace
>>> states = Space.of(batch=3, time=5, unit=7)
>>> states.shape, states.size
((3, 5, 7), 105)
>>> SumSpace({"hidden": states, "cell": states}).size
210
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import Any, TypeAlias

import torch
from torch import Tensor

from foretrain.support.answers import Answer, Result
from foretrain.support.errors import InputError, NotSupportedError, unknown_name

Vector: TypeAlias = Any  # a tensor, or for a direct sum a dict of vectors: the space says which


class VectorSpace(Result, ABC):
    """What every space can do: tell its size and turn vectors from one form into the other."""

    @property
    @abstractmethod
    def size(self) -> int:
        """The dimension: how many numbers a vector has."""

    @abstractmethod
    def flatten(self, vector: Vector) -> Tensor:
        """One vector, structured or flat, as (1, size)."""

    @abstractmethod
    def flatten_block(self, block: Vector) -> Tensor:
        """A block of k vectors, structured or flat, as (k, size)."""

    @abstractmethod
    def unflatten_block(self, flat: Tensor) -> Vector:
        """The structured form of a block (k, size)."""

    @abstractmethod
    def describe(self) -> str:
        """The space in words for messages, such as (batch 3, time 5)."""

    def unflatten(self, flat: Tensor) -> Vector:
        """The structured form of one flat vector (size,)."""
        return _first(self.unflatten_block(flat.reshape(1, self.size)))

    def plain(self, purpose: str) -> Space:
        """This space if it is a plain tensor space; otherwise the error that says what it cannot be used for."""
        if isinstance(self, Space):
            return self
        raise NotSupportedError(
            f"{purpose} needs a space with axes, but {self.describe()} is a direct sum: "
            "restrict the operator to one member first, with op.restrict_to(member)."
        )


class Space(VectorSpace):
    """Tensors with named axes: ``Space(("batch", 3), ("unit", 7))`` or ``Space.of(batch=3, unit=7)``.

    Two spaces are equal when names, sizes and order agree. Without axes it is the space of numbers.
    """

    def __init__(self, *axes: tuple[str, int]) -> None:
        for axis in axes:
            if not isinstance(axis, tuple) or len(axis) != 2:
                raise InputError(
                    f"{axis!r} is not an axis: give (name, size), or use Space.of(`batch=3`, `unit=7`)."
                )
            name, size = axis
            if not isinstance(name, str) or not name:
                raise InputError(f"{name!r} is not a name for an axis: give a string such as 'time'.")
            if isinstance(size, bool) or not hasattr(size, "__index__") or size.__index__() < 1:
                raise InputError(f"axis {name!r} has size {size!r}, but a size is a whole number from 1 on.")
        self.axes = tuple((name, size.__index__()) for name, size in axes)
        repeated = sorted({name for name in self.names if self.names.count(name) > 1})
        if repeated:
            raise InputError(f"axis {repeated[0]!r} appears twice in a space: give every axis its own name.")

    @classmethod
    def of(cls, **sizes: int) -> Space:
        """The space with these axes, in the order written."""
        return cls(*sizes.items())

    @property
    def names(self) -> tuple[str, ...]:
        """The axes' names in order."""
        return tuple(name for name, _ in self.axes)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one structured vector."""
        return tuple(size for _, size in self.axes)

    @property
    def size(self) -> int:
        """The product of the axes' sizes."""
        return prod(self.shape)

    def __getitem__(self, name: str) -> int:
        """The size of one axis."""
        return self.shape[self.position(name)]

    def position(self, name: str) -> int:
        """Where an axis stands."""
        if name not in self.names:
            raise unknown_name(f"axis of {self.describe()}", str(name), self.names)
        return self.names.index(name)

    def only(self, names: Collection[str]) -> Space:
        """The axes named, in this space's order."""
        for name in names:
            self.position(name)
        return Space(*(axis for axis in self.axes if axis[0] in names))

    def without(self, names: Collection[str]) -> Space:
        """The axes not named, in this space's order."""
        for name in names:
            self.position(name)
        return Space(*(axis for axis in self.axes if axis[0] not in names))

    def renamed(self, **names: str) -> Space:
        """The same axes under new names: ``space.renamed(time="step")``."""
        for name in names:
            self.position(name)
        return Space(*((names.get(name, name), size) for name, size in self.axes))

    def __mul__(self, other: Space) -> Space:
        """The tensor product: these axes, then the other's."""
        if not isinstance(other, Space):
            return NotImplemented
        return Space(*self.axes, *other.axes)

    def flatten(self, vector: Vector) -> Tensor:
        """One vector of shape ``shape`` or (size,), as (1, size)."""
        tensor = _as_tensor(vector, self)
        if tuple(tensor.shape) in (self.shape, (self.size,)):
            return tensor.reshape(1, self.size)
        is_block = tensor.ndim and tuple(tensor.shape[1:]) in (self.shape, (self.size,))
        raise InputError(
            f"a vector of {self.describe()} has shape {self.shape} or, flat, ({self.size},), but this one has shape "
            f"{tuple(tensor.shape)}{': use matmat for a block of vectors' if is_block else ''}."
        )

    def flatten_block(self, block: Vector) -> Tensor:
        """A block of shape (k, *shape) or (k, size), as (k, size)."""
        tensor = _as_tensor(block, self)
        if tensor.ndim and tuple(tensor.shape[1:]) in (self.shape, (self.size,)):
            return tensor.reshape(tensor.shape[0], self.size)
        inner = "".join(f", {size}" for size in self.shape)
        raise InputError(
            f"a block of k vectors of {self.describe()} has shape (k{inner}) or, flat, (k, {self.size}), "
            f"but this one has shape {tuple(tensor.shape)}."
        )

    def unflatten_block(self, flat: Tensor) -> Tensor:
        """The block (k, size) with the axes spelled out."""
        return flat.reshape(flat.shape[0], *self.shape)

    def describe(self) -> str:
        """The axes with their sizes."""
        return f"({', '.join(f'{name} {size}' for name, size in self.axes)})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Space) and self.axes == other.axes

    def __hash__(self) -> int:
        return hash(self.axes)

    def answer(self) -> Answer:
        """The space as it is made."""
        axes = ", ".join(f"({name!r}, {size})" for name, size in self.axes)
        return Answer(f"Space({axes})", record={"axes": dict(self.axes)})


class SumSpace(VectorSpace):
    """The direct sum of named spaces, such as the states of several layers; a vector is a dict of theirs."""

    def __init__(self, members: Mapping[str, VectorSpace]) -> None:
        if not members:
            raise InputError("a direct sum needs at least one member: give {name: space}.")
        for name, member in members.items():
            if not isinstance(name, str) or not isinstance(member, VectorSpace):
                raise InputError(
                    f"{name!r}: {member!r} is not a member of a direct sum: give {{name: space}}."
                )
        self.members = dict(members)

    @property
    def names(self) -> tuple[str, ...]:
        """The members' names in order."""
        return tuple(self.members)

    @property
    def size(self) -> int:
        """The sum of the members' sizes."""
        return sum(member.size for member in self.members.values())

    @property
    def slices(self) -> dict[str, slice]:
        """Where each member's numbers stand in the flat form."""
        found, start = {}, 0
        for name, member in self.members.items():
            found[name] = slice(start, start + member.size)
            start += member.size
        return found

    def __getitem__(self, name: str) -> VectorSpace:
        """One member's space."""
        if name not in self.members:
            raise unknown_name(f"member of {self.describe()}", str(name), self.names)
        return self.members[name]

    def flatten(self, vector: Vector) -> Tensor:
        """One vector, a dict of members or flat (size,), as (1, size)."""
        if isinstance(vector, Mapping):
            self._check_names(vector)
            parts = [member.flatten(vector[name]) for name, member in self.members.items()]
            return torch.cat(parts, dim=1)
        tensor = _as_tensor(vector, self)
        if tuple(tensor.shape) != (self.size,):
            raise InputError(
                f"a vector of the direct sum {self.describe()} is a dict of its members or has shape "
                f"({self.size},), but this one has shape {tuple(tensor.shape)}."
            )
        return tensor.reshape(1, self.size)

    def flatten_block(self, block: Vector) -> Tensor:
        """A block, a dict of members' blocks or flat (k, size), as (k, size)."""
        if isinstance(block, Mapping):
            self._check_names(block)
            parts = [member.flatten_block(block[name]) for name, member in self.members.items()]
            counts = {name: part.shape[0] for name, part in zip(self.names, parts)}
            if len(set(counts.values())) > 1:
                raise InputError(f"the members' blocks hold different numbers of vectors, {counts}.")
            return torch.cat(parts, dim=1)
        tensor = _as_tensor(block, self)
        if tensor.ndim != 2 or tensor.shape[1] != self.size:
            raise InputError(
                f"a block of k vectors of the direct sum {self.describe()} is a dict of its members' blocks or "
                f"has shape (k, {self.size}), but this one has shape {tuple(tensor.shape)}."
            )
        return tensor

    def unflatten_block(self, flat: Tensor) -> dict[str, Vector]:
        """The members' blocks by name."""
        slices = self.slices
        return {name: member.unflatten_block(flat[:, slices[name]]) for name, member in self.members.items()}

    def describe(self) -> str:
        """The members with their axes."""
        return "{" + ", ".join(f"{name}: {member.describe()}" for name, member in self.members.items()) + "}"

    def _check_names(self, vector: Mapping[str, Vector]) -> None:
        if set(vector) != set(self.members):
            raise InputError(
                f"a vector of the direct sum has the members {', '.join(map(repr, self.names))}, "
                f"but this one has {', '.join(map(repr, vector)) or 'none'}."
            )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SumSpace) and list(self.members.items()) == list(other.members.items())

    def __hash__(self) -> int:
        return hash(tuple(self.members.items()))

    def answer(self) -> Answer:
        """The space as it is made."""
        members = {name: member.answer().document() for name, member in self.members.items()}
        return Answer(f"SumSpace({self.members!r})", record={"members": members})


def axis_names(over: str | Iterable[str]) -> tuple[str, ...]:
    """Axis names given as one string or several, each once."""
    names = (over,) if isinstance(over, str) else tuple(over)
    if len(set(names)) < len(names):
        raise InputError(f"an axis is named twice in {names}: name each axis once.")
    return names


def axis_indices(space: Space, first: Sequence[str]) -> Tensor:
    """The flat index of every entry, as (entries of the axes in ``first``, entries of the others), row-major.

    ``first`` is taken in the order given, the others in the space's own: ``flat[:, indices.reshape(-1)]`` moves axes.
    """
    others = space.without(first)
    order = [space.position(name) for name in (*first, *others.names)]
    grid = torch.arange(space.size).reshape(space.shape).permute(order)
    return grid.reshape(-1, others.size)


def leaves(vector: Vector) -> Iterator[Any]:
    """The arrays of a structured vector, whatever dicts they lie in."""
    if isinstance(vector, Mapping):
        for part in vector.values():
            yield from leaves(part)
    else:
        yield vector


def _as_tensor(value: Vector, space: VectorSpace) -> Tensor:
    if isinstance(value, Tensor):
        return value
    raise InputError(
        f"a vector of {space.describe()} is a torch tensor here, not {type(value).__name__}: "
        "convert it with tensor_like(operator, value)."
    )


def _first(block: Vector) -> Vector:
    if isinstance(block, dict):
        return {name: _first(part) for name, part in block.items()}
    return block[0]
