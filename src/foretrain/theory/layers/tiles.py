"""Kernels of a network of fields: which pairs of positions each needs, and tiles of inputs in bounded memory.

First every input with itself, which leaves the variances and means of single points; then tiles of pairs of
inputs, each of which needs nothing but those and its own memory, on all cores.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretrain.support.acceleration import accelerates, accelerator
from foretrain.support.arrays import namespace, on_host
from foretrain.support.errors import InputError
from foretrain.support.memory import keep_freed_pages, require_memory
from foretrain.support.progress import Progress
from foretrain.support.seeds import Seed, spawn
from foretrain.support.threads import PARTS_AT_ONCE, over_cores, thread_count
from foretrain.theory.layers.fields import Field, Kernel, Once, Points, Sampling, Tile, with_gains
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
DRAWS = 2**14  # of all repetitions together, at most
ACCURACY = 1e-3  # of sampled kernels, that people are given unless they ask for another
_FIRST_DRAWS = 128  # of each repetition, before its error is known
_TRIED = 3  # repetitions that say whether so few draws will do
_FEWEST_TIMES = 4  # as many draws when they were too few
ONE_TILE = 2**22  # entries of a matrix of all inputs and positions that are drawn together
_DRAWN_TOGETHER = 2**20  # where inputs are many: draws then take longer than roots
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
    """Fields in order, with the pairs of positions at which each is needed, and what it prepared for them.

    Where something is drawn, first those that lead to draws and that no draw touches: they are the same in all
    repetitions. Then all others that lead to draws, for which the rows and columns of a tile are taken together.
    """

    exact: list[Field]
    drawn: list[Field]
    others: list[Field]
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
        touched, leading = set[Field](), set[Field]()
        for field in fields:
            if field in pairs and (field.sampled or not touched.isdisjoint(field.inputs)):
                touched.add(field)
        for field in reversed(fields):
            if field in pairs and (field.sampled or field in leading):
                leading |= {field, *field.inputs}
        needed_ones = [field for field in fields if field in pairs]
        exact = [field for field in needed_ones if field in leading and field not in touched]
        drawn = [field for field in needed_ones if field in leading and field in touched]
        others = [field for field in needed_ones if field not in leading]
        kept = [*exact, *drawn, *others]
        prepared = {one: one.prepare(pairs[one], tuple(pairs[i] for i in one.inputs)) for one in kept}
        last_use = {one: field for field in kept for one in field.inputs}
        return Plan(exact, drawn, others, pairs, prepared, last_use)

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

        together = tile.together() if self.drawn else tile

        def before_draws() -> tuple[dict[Field, Kernel], Points]:
            kernels = self._continued(self.exact, {}, together)
            return kernels, dict(together.row_points)

        kernels, points = tile.once.kept(self, before_draws)
        if tile.leaves_points:
            tile.row_points.update(points)
        kernels = self._continued(self.drawn, dict(kernels), together)
        if together is not tile:
            for one, kernel in kernels.items():
                corner = (None if part is None else part[..., : tile.size, tile.size :] for part in kernel)
                kernels[one] = Kernel(*(None if part is None else part.copy() for part in corner))
        return self._continued(self.others, kernels, tile)

    def _continued(
        self, fields: list[Field], kernels: dict[Field, Kernel], tile: Tile
    ) -> dict[Field, Kernel]:
        """The kernels of these fields, and of those before that are still needed."""
        for field in fields:
            if not math.prod(shape_of(self.pairs[field])):
                kernels[field] = Kernel(tile.zeros(*shape_of(self.pairs[field]), *tile.shape), None)
                continue
            given = [self._given(field, number, kernels) for number in range(len(field.inputs))]
            kernels[field] = field.kernel(tile, given, self.pairs[field], self.prepared[field])
            if tile.leaves_points and all(len(axis.same) == axis.size for axis in self.pairs[field]):
                second = on_diagonal(kernels[field].S, self.pairs[field])
                tile.row_points[field, "second"] = 1 * (
                    second if tile.own else np.einsum("...aa->...a", second)
                )
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
        self,
        columns: Sides,
        first: slice,
        second: slice,
        sampling: Sampling | None,
        once: Once,
        compiled: bool,
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
            once=once,
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
    accuracy: float = 0.0,
    repetitions: int = 8,
) -> Found:
    """S and Theta of a field between all inputs, (pairs of positions..., N, N2); ``other``: a second set of inputs.

    Arrays of torch are computed with where they are, if every field is ``for_any_library``.
    ``positions``: at "all" pairs of positions of the output, or only for "equal" ones. Where a field has no formula,
    its means are taken over ``draws`` random numbers, and all is repeated with others: their spread is the error.
    Fewer draws are taken if the errors are then smaller than ``accuracy`` times the entries (root mean squares).
    """
    if not accuracy >= 0:
        raise InputError(f"`accuracy` is {accuracy!r}: give a share of the entries such as 1e-3, or 0.")
    fields = in_order(output)
    data, other = _positions_first(data), None if other is None else _positions_first(other)
    wanted = (diagonal if positions == "equal" else full)(output.positions)
    plan = Plan.backwards(fields, {output: wanted})
    entries = plan.entries * _count(data) * (_count(data) / 2 if other is None else _count(other))
    loops = accelerator(entries) if _is_here(data) else "torch"
    compiled = _is_here(data) and accelerates(entries)
    if not plan.drawn:
        S, Theta = _repeated(output, plan, data, other, [None], Once(), compiled)[:, 0]
        return Found(S, Theta, loops)
    numbers = {field: number for number, field in enumerate(fields)}
    sources, most = spawn(seed, repetitions), max(2, draws // repetitions)
    some, once = min(most, _FIRST_DRAWS) if accuracy else most, Once()
    while True:
        samplings = [Sampling(source, numbers, some) for source in sources]
        # The first repetitions say whether all are worth their time with so few draws.
        tried = repetitions if some >= most else min(_TRIED, repetitions)
        parts = _repeated(output, plan, data, other, samplings[:tried], once, compiled)
        mean, error, share = _mean_and_error(parts, repetitions)
        if tried < repetitions and share <= accuracy:
            others = _repeated(output, plan, data, other, samplings[tried:], once, compiled)
            mean, error, share = _mean_and_error(np.concatenate([parts, others], axis=1), repetitions)
        if some >= most or share <= accuracy:
            return Found(mean[0], mean[1], loops, (error[0], error[1]))
        # The same draws and more: an error shrinks at least with the root of their number.
        more = 2 ** math.ceil(math.log2(min(share / accuracy, most) ** 2))
        some = min(most, some * max(_FEWEST_TIMES, more))


def _is_here(data: Data) -> bool:
    """Whether the inputs are arrays of numpy, not of torch on a device."""
    return all(isinstance(values, np.ndarray) for values in data.values())


def _count(data: Data) -> int:
    """Inputs, in data (positions..., inputs, channels)."""
    field, values = next(iter(data.items()))
    return int(values.shape[len(field.positions)])


def _mean_and_error(parts: Array, repetitions: int) -> tuple[Array, Array, float]:
    """The mean of repetitions, the error of the mean of so many, and how large it is beside the mean."""
    mean, error = parts.mean(axis=1), parts.std(axis=1, ddof=1) / math.sqrt(repetitions)
    return mean, error, max(_share(one, of) for one, of in zip(error, mean, strict=True))


def _share(error: Array, of: Array) -> float:
    """How large errors are beside what they are of."""
    size = float(np.linalg.norm(of))
    return float(np.linalg.norm(error)) / size if size else 0.0


def _repeated(
    output: Field,
    plan: Plan,
    data: Data,
    other: Data | None,
    samplings: Sequence[Sampling | None],
    in_one_tile: Once,
    compiled: bool,
) -> Array:
    """S and Theta in each repetition, (2, repetitions, ...), tile by tile.

    ``in_one_tile`` keeps what no draw touches from one call to the next, if there is one tile.
    """
    wanted, same = plan.pairs[output], other is None
    counts = [_count(data), _count(data if other is None else other)]
    shape = (*shape_of(wanted), *counts)
    here = _is_here(data)
    room = TILE_ENTRIES if compiled and not plan.drawn else TILE_ENTRIES // _SWEPT
    keep_freed_pages()
    if not here:  # a device has its own cores, and wants them all busy
        room *= _DEVICE_TILES
    # Wide first: what is swept comes in runs of many columns. Then high: few tiles hold inputs beside themselves.
    width = max(1, min(counts[1], room // plan.largest, _WIDEST))
    height = max(1, min(counts[0], room // (plan.largest * width)))
    together = height * width
    if plan.drawn:  # rows and columns are drawn together
        height, width = _drawn_together(counts, plan.largest, same)
        together = height**2 if same and height == counts[0] else (height + width) ** 2
    require_memory(
        8
        * (
            2 * len(samplings) * math.prod(shape)
            + ARRAYS_AT_ONCE * plan.largest * together * min(thread_count(), PARTS_AT_ONCE)
        ),
        f"infinite-width kernels of {counts[0]} and {counts[1]} inputs at {plan.largest:,} pairs of positions",
        "use fewer inputs at a time, smaller images, or a head that flattens instead of pooling",
    )
    tiles = [
        (slice(i, min(i + height, counts[0])), slice(j, min(j + width, counts[1])))
        for i in range(0, counts[0], height)
        for j in range(i if same else 0, counts[1], width)
    ]
    found = np.zeros((2, len(samplings), *shape))
    alone = bool(plan.drawn) and same and len(tiles) == 1  # then it is its own source of what points have
    fields = in_order(output)
    if alone:
        plan = in_one_tile.kept("plan", lambda: Plan.backwards(fields, _of_points(fields) | {output: wanted}))

    def fill(part: tuple[tuple[slice, slice], int, Once]) -> None:
        blocks, number, once = part
        tile = rows[number].tile(columns[number], *blocks, samplings[number], once, compiled)
        if alone:
            tile = replace(tile, column_points=tile.row_points, alone=True)
        kernel = with_gains(plan.run(tile)[output], output.gains, wanted)
        for target, values in zip(found[:, number], kernel):
            if values is not None:
                values = on_host(values)
                target[..., blocks[0], blocks[1]] = values
                if same:
                    target[..., blocks[1], blocks[0]] = _mirrored(values, wanted)

    each = sum(field.work(plan.prepared[field]) for field in plan.drawn)
    inputs = 0 if alone else sum(counts[: 1 if same else 2])  # each by itself before all tiles
    inputs += sum(_together(tile, same) ** 2 for tile in tiles)
    work = each * inputs * sum(one.draws for one in samplings if one)
    with Progress("infinite-width kernel", total=work or len(tiles)) as bar:
        samplings = [one and replace(one, advance=bar.advance) for one in samplings]
        if alone:
            rows = [Sides(data, {}, counts[0])] * len(samplings)
        else:
            rows = _sides(fields, data, samplings, compiled)
        columns = rows if other is None else _sides(fields, other, samplings, compiled)
        at_once = max(1, PARTS_AT_ONCE // len(samplings))
        for start in range(0, len(tiles), at_once):
            some = [(blocks, in_one_tile if alone else Once()) for blocks in tiles[start : start + at_once]]
            parts = [(blocks, number, once) for blocks, once in some for number in range(len(samplings))]
            if here:
                over_cores(fill, parts, uses_blas=True)
            else:
                for part in parts:
                    fill(part)
            bar.advance(0 if work else len(some))
    if same and plan.drawn:  # each entry was drawn from one side; both sides are as good
        for values in found.reshape(-1, *shape):
            values += _mirrored(values, wanted)
        found /= 2
    return found


def _drawn_together(counts: list[int], largest: int, same: bool) -> tuple[int, int]:
    """Rows and columns of a tile: one tile for all if that is small, else parts whose roots are quick."""
    if same and counts[0] ** 2 * largest <= ONE_TILE:
        return counts[0], counts[0]
    most = max(1, math.isqrt(_DRAWN_TOGETHER // largest) // 2)
    height, width = (-(-count // -(-count // most)) for count in counts)
    return (height, height) if same else (height, width)


def _mirrored(values: Array, pairs: Pairs) -> Array:
    """Entries (a p, b q) as (b q, a p)."""
    for number, axis in enumerate(pairs):
        values = np.take(values, axis.places(axis.q, axis.p), axis=number)
    return np.swapaxes(values, -1, -2)


def _together(tile: tuple[slice, slice], same: bool) -> int:
    """How many inputs a tile draws together."""
    height, width = (int(part.stop - part.start) for part in tile)
    return height if same and tile[0] == tile[1] else height + width


def _of_points(fields: list[Field]) -> dict[Field, Pairs]:
    """What is computed to know what single points have."""
    return {field: diagonal(field.positions) for field in fields if field.reads_points}


def _sides(
    fields: list[Field], data: Data, samplings: Sequence[Sampling | None], compiled: bool
) -> list[Sides]:
    """What single points of a set of inputs have in each repetition: each input with itself, a block at a time."""
    count, repetitions = _count(data), range(len(samplings))
    wanted = _of_points(fields)
    if not wanted:
        return [Sides(data, {}, count)] * len(samplings)
    plan = Plan.backwards(fields, wanted)
    size = max(1, TILE_ENTRIES // plan.largest)
    parts: list[list[Points]] = []
    for start in range(0, count, size):
        block, once = _some_inputs(data, slice(start, start + size)), Once()
        inputs = min(size, count - start)

        def points_of(number: int, block: Data = block, once: Once = once, inputs: int = inputs) -> Points:
            points: Points = {}
            plan.run(
                Tile(
                    points,
                    points,
                    dict(block),
                    dict(block),
                    own=True,
                    shared=None,
                    size=inputs,
                    column_size=inputs,
                    sampling=samplings[number],
                    once=once,
                    compiled=compiled,
                )
            )
            return points

        parts.append(over_cores(points_of, repetitions, uses_blas=True))
    sides = []
    for some in zip(*parts, strict=True):
        joined_points = {
            name: namespace(some[0][name]).concatenate([one[name] for one in some], -1) for name in some[0]
        }
        sides.append(Sides(data, joined_points, count))
    return sides
