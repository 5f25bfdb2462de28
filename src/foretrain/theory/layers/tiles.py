"""Kernels of a network of fields: which pairs of positions each needs, and tiles of inputs in bounded memory.

First every input with itself, which leaves the variances and means of single points; then tiles of pairs of
inputs, each of which needs nothing but those and its own memory, on all cores.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretrain.support.acceleration import accelerates, accelerator
from foretrain.support.arrays import namespace, on_host
from foretrain.support.memory import keep_freed_pages, require_memory
from foretrain.support.progress import Progress
from foretrain.support.seeds import Seed, spawn
from foretrain.support.threads import PARTS_AT_ONCE, over_cores, thread_count
from foretrain.theory.layers.fields import Field, Kernel, Points, Sampling, Tile, with_gains
from foretrain.theory.layers.positions import (
    Array,
    Pairs,
    diagonal,
    full,
    joined,
    on_diagonal,
    selected,
    shape_of,
)

TILE_ENTRIES = 2**18  # of the largest kernel in a tile, for which Python's share in the time is small
_SWEPT = 4  # times smaller is a tile that numpy sweeps again and again: it stays near the core
_WIDEST = 64  # columns of a tile
_DEVICE_TILES = 16  # times as large are the tiles of a device
DRAWS = 2**14  # of all repetitions together
ARRAYS_AT_ONCE = 12  # of the size of the largest kernel in a tile

Data = Mapping[Field, Any]  # arrays of numpy, or of torch on a device, which then computes all kernels


def in_order(output: Field) -> list[Field]:
    """All fields that lead to one, each after its inputs."""
    order: dict[Field, None] = {}
    stack = [(output, False)]
    while stack:
        field, ready = stack.pop()
        if field in order:
            continue
        if ready:
            order[field] = None
        else:
            stack.append((field, True))
            stack.extend((one, False) for one in reversed(field.inputs))
    return list(order)


@dataclass(frozen=True, eq=False)
class Plan:
    """Fields in order, with the pairs of positions at which each is needed, and what it prepared for them."""

    fields: list[Field]
    pairs: dict[Field, Pairs]
    prepared: dict[Field, Any]
    last_use: dict[Field, Field]

    @staticmethod
    def backwards(fields: list[Field], wanted: Mapping[Field, Pairs]) -> Plan:
        """From what is wanted of some fields to what is needed of all."""
        pairs: dict[Field, Pairs] = dict(wanted)
        for field in reversed(fields):
            if field in pairs:
                for one, needed in zip(field.inputs, field.needs(pairs[field]), strict=True):
                    pairs[one] = joined(pairs.get(one), needed)
        kept = [field for field in fields if field in pairs]
        prepared = {one: one.prepare(pairs[one], tuple(pairs[i] for i in one.inputs)) for one in kept}
        last_use = {one: field for field in kept for one in field.inputs}
        return Plan(kept, pairs, prepared, last_use)

    @property
    def largest(self) -> int:
        """Pairs of positions of the largest kernel."""
        return max(math.prod(shape_of(pairs)) for pairs in self.pairs.values())

    @property
    def entries(self) -> int:
        """Pairs of positions of all kernels that are computed from others."""
        return sum(math.prod(shape_of(pairs)) for field, pairs in self.pairs.items() if field.inputs)

    def run(self, tile: Tile) -> dict[Field, Kernel]:
        """The kernels of all fields that no other field reads."""
        kernels: dict[Field, Kernel] = {}
        for field in self.fields:
            if not math.prod(shape_of(self.pairs[field])):
                kernels[field] = Kernel(tile.zeros(*shape_of(self.pairs[field]), *tile.shape), None)
                continue
            given = [self._given(field, number, kernels) for number in range(len(field.inputs))]
            kernels[field] = field.kernel(tile, given, self.pairs[field], self.prepared[field])
            if tile.own and all(len(axis.same) == axis.size for axis in self.pairs[field]):
                tile.row_points[field, "second"] = 1 * on_diagonal(kernels[field].S, self.pairs[field])
            for one in field.inputs:
                if self.last_use[one] is field:
                    kernels.pop(one, None)
        return kernels

    def _given(self, field: Field, number: int, kernels: dict[Field, Kernel]) -> Kernel:
        """The kernel of an input, at the pairs that the field wants of it."""
        one = field.inputs[number]
        kernel, have = kernels[one], self.pairs[one]
        if not field.keeps_gains:
            kernel = with_gains(kernel, one.gains, have)
        if self.prepared[field] is not None:
            return kernel
        want = field.needs(self.pairs[field])[number]
        return Kernel(*(None if part is None else selected(part, have, want) for part in kernel))


def _positions_first(data: Data) -> dict[Field, Any]:
    """Data (inputs, positions..., channels) with the inputs behind the positions."""
    ordered = {}
    for field, values in data.items():
        moved = namespace(values).moveaxis(values, 0, len(field.positions))
        ordered[field] = moved.copy() if isinstance(moved, np.ndarray) else moved.contiguous()
    return ordered


def _some_inputs(data: Data, inputs: slice) -> dict[Field, Any]:
    """Data (positions..., inputs, channels) of some of the inputs."""
    return {
        field: values[(slice(None),) * len(field.positions) + (inputs,)] for field, values in data.items()
    }


@dataclass(frozen=True, eq=False)
class Sides:
    """What is known of a set of inputs: the data, and what single points have."""

    data: Data
    points: Points
    count: int

    def _part(self, inputs: slice) -> tuple[Points, dict[Field, NDArray[Any]]]:
        points = {name: values[..., inputs] for name, values in self.points.items()}
        return points, _some_inputs(self.data, inputs)

    def tile(
        self, columns: Sides, first: slice, second: slice, sampling: Sampling | None, compiled: bool
    ) -> Tile:
        """All inputs of a block of the rows with those of a block of the columns."""
        (row_points, row_data), (column_points, column_data) = self._part(first), columns._part(second)
        both = np.arange(max(first.start, second.start), min(first.stop, second.stop))
        return Tile(
            row_points,
            column_points,
            row_data,
            column_data,
            own=False,
            shared=(both - first.start, both - second.start) if columns is self and len(both) else None,
            size=first.stop - first.start,
            column_size=second.stop - second.start,
            sampling=sampling,
            compiled=compiled,
        )


@dataclass(frozen=True, eq=False)
class Found:
    """S and Theta of a network, and their standard errors where something was sampled."""

    S: Array
    Theta: Array
    loops: str  # what went through all pairs, as foretrain.support.acceleration names it
    errors: tuple[Array, Array] | None = None


def kernel_of(
    output: Field,
    data: Data,
    other: Data | None = None,
    *,
    positions: str = "all",
    seed: Seed = 0,
    draws: int = DRAWS,
    repetitions: int = 8,
) -> Found:
    """S and Theta of a field between all inputs, (pairs of positions..., N, N2); ``other``: a second set of inputs.

    Arrays of torch are computed with where they are, if every field is ``for_any_library``.
    ``positions``: at "all" pairs of positions of the output, or only for "equal" ones. Where a field has no formula,
    its means are taken over ``draws`` random numbers, and all is repeated with others: their spread is the error.
    """
    fields = in_order(output)
    data, other = _positions_first(data), None if other is None else _positions_first(other)
    plan = Plan.backwards(fields, {output: (diagonal if positions == "equal" else full)(output.positions)})
    entries = plan.entries * _count(data) * (_count(data) / 2 if other is None else _count(other))
    loops = accelerator(entries) if _is_here(data) else "torch"
    compiled = _is_here(data) and accelerates(entries)
    if not any(field.sampled for field in fields):
        return Found(*_once(output, plan, data, other, None, compiled), loops)
    numbers = {field: number for number, field in enumerate(fields)}
    parts = []
    for source in spawn(seed, repetitions):
        sampling = Sampling(source, numbers, max(2, draws // repetitions))
        parts.append(np.stack(_once(output, plan, data, other, sampling, compiled)))
    mean, spread = np.mean(parts, axis=0), np.std(parts, axis=0, ddof=1) / math.sqrt(repetitions)
    return Found(mean[0], mean[1], loops, (spread[0], spread[1]))


def _is_here(data: Data) -> bool:
    """Whether the inputs are arrays of numpy, not of torch on a device."""
    return all(isinstance(values, np.ndarray) for values in data.values())


def _count(data: Data) -> int:
    """Inputs, in data (positions..., inputs, channels)."""
    field, values = next(iter(data.items()))
    return int(values.shape[len(field.positions)])


def _once(
    output: Field,
    plan: Plan,
    data: Data,
    other: Data | None,
    sampling: Sampling | None,
    compiled: bool,
) -> tuple[Array, Array]:
    """S and Theta, tile by tile."""
    wanted, here = plan.pairs[output], _is_here(data)
    room = TILE_ENTRIES if compiled and sampling is None else TILE_ENTRIES // _SWEPT
    keep_freed_pages()
    rows = _sides(plan.fields, data, sampling, compiled)
    columns = rows if other is None else _sides(plan.fields, other, sampling, compiled)
    shape = (*shape_of(wanted), rows.count, columns.count)
    if not here:  # a device has its own cores, and wants them all busy
        room *= _DEVICE_TILES
    # Wide first: what is swept comes in runs of many columns. Then high: few tiles hold inputs beside themselves.
    width = max(1, min(columns.count, room // plan.largest, _WIDEST))
    height = max(1, min(rows.count, room // (plan.largest * width)))
    copies = ARRAYS_AT_ONCE
    if sampling is not None:  # rows and columns are drawn together, and joint laws hold roots and products
        width = height = max(1, min(math.isqrt(room // plan.largest), max(rows.count, columns.count)))
        copies *= 3
    require_memory(
        8 * (2 * math.prod(shape) + copies * plan.largest * width * height * thread_count()),
        f"infinite-width kernels of {rows.count} and {columns.count} inputs at {plan.largest:,} pairs of positions",
        "use fewer inputs at a time, smaller images, or a head that flattens instead of pooling",
    )
    S, Theta = np.zeros((2, *shape))
    same = columns is rows
    tiles = [
        (slice(i, min(i + height, rows.count)), slice(j, min(j + width, columns.count)))
        for i in range(0, rows.count, height)
        for j in range(i if same else 0, columns.count, width)
    ]

    def fill(blocks: tuple[slice, slice]) -> None:
        tile = rows.tile(columns, *blocks, sampling, compiled)
        found = with_gains(plan.run(tile)[output], output.gains, wanted)
        for target, part in zip((S, Theta), found):
            if part is not None:
                part = on_host(part)
                target[..., blocks[0], blocks[1]] = part
                if same:
                    target[..., blocks[1], blocks[0]] = _mirrored(part, wanted)

    with Progress("infinite-width kernel", total=len(tiles)) as bar:
        for start in range(0, len(tiles), PARTS_AT_ONCE):
            some = tiles[start : start + PARTS_AT_ONCE]
            if here:
                over_cores(fill, some, uses_blas=True)
            else:
                for blocks in some:
                    fill(blocks)
            bar.advance(len(some))
    if same and sampling is not None:  # each entry was drawn from one side; both sides are as good
        S, Theta = ((part + _mirrored(part, wanted)) / 2 for part in (S, Theta))
    return S, Theta


def _mirrored(values: Array, pairs: Pairs) -> Array:
    """Entries (a p, b q) as (b q, a p)."""
    for number, axis in enumerate(pairs):
        values = np.take(values, axis.places(axis.q, axis.p), axis=number)
    return np.swapaxes(values, -1, -2)


def _sides(fields: list[Field], data: Data, sampling: Sampling | None, compiled: bool) -> Sides:
    """What single points of a set of inputs have: each input with itself, a block of inputs at a time."""
    count = _count(data)
    wanted = {field: diagonal(field.positions) for field in fields if field.reads_points}
    if not wanted:
        return Sides(data, {}, count)
    plan = Plan.backwards(fields, wanted)
    size = max(1, TILE_ENTRIES // plan.largest)
    parts: list[Points] = []
    for start in range(0, count, size):
        block = _some_inputs(data, slice(start, start + size))
        points: Points = {}
        inputs = min(size, count - start)
        plan.run(
            Tile(
                points,
                points,
                block,
                block,
                own=True,
                shared=None,
                size=inputs,
                column_size=inputs,
                sampling=sampling,
                compiled=compiled,
            )
        )
        parts.append(points)
    points = {
        name: namespace(parts[0][name]).concatenate([one[name] for one in parts], -1) for name in parts[0]
    }
    return Sides(data, points, count)
