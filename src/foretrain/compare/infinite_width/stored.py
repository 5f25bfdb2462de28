"""Kernels of infinite width larger than memory: tiles of NNGP and NTK in a store, computed by many workers."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from foretrain.compare.infinite_width import Network, inputs_first, reading_of
from foretrain.compare.infinite_width.laws import Row
from foretrain.empirical.any_kernel import as_tensor
from foretrain.empirical.stored_kernel import Stored, compute
from foretrain.empirical.stored_kernel.contents import Aside, Contents
from foretrain.empirical.stored_kernel.grid import Grid, Needs, Tile
from foretrain.empirical.stored_kernel.identity import FORMAT, SampleValues, digest, finite
from foretrain.empirical.stored_kernel.layout import QUANTITY, Layout
from foretrain.empirical.stored_kernel.reading import StoredKernel
from foretrain.support.answers import Answer, Result, Table
from foretrain.support.seeds import Seed, seed_text, spawn
from foretrain.support.threads import thread_count
from foretrain.theory.layers.fields import Field
from foretrain.theory.layers.positions import full
from foretrain.theory.layers.tiles import (
    ARRAYS_AT_ONCE,
    ONE_TILE,
    TILE_ENTRIES,
    Data,
    Found,
    Plan,
    in_order,
    kernel_of,
)

_LABELS = ("nngp", "ntk", "nngp_error", "ntk_error")  # the errors only where something is sampled
_SAMPLES = 6  # of each side, whose kernels show what the network computes
_FEW_DRAWS = 64  # for those
_TOLERANCE = 1e-6  # of those: angles between near inputs have the root of the rounding
_TOLERANCE_OF_DRAWS = 1e-4  # roots of near-singular covariances round more
_MOST_ENTRIES = (
    2**28
)  # of the largest kernel inside a tile of the store: minutes of work, which is lost with a worker

# Work in several threads of a process has all its cores already, and limits of BLAS hold for the whole process.
_one_at_a_time = threading.Lock()


@dataclass(frozen=True, eq=False, repr=False)
class StoredInfiniteWidth(Result):
    """NNGP and NTK of a network of infinite width in a store on disk, and what was read to get them.

    ``nngp`` and ``ntk`` are operators that read tiles when they are used: ``.ntk @ V``, ``.ntk.tile(i, j)``,
    ``.ntk.spectrum()``. Positions that the output keeps are the outputs of each sample, flattened.
    """

    kernel: StoredKernel
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    outputs: int = 1  # channels of the output

    @property
    def nngp(self) -> StoredKernel:
        """The covariance of the outputs at initialisation."""
        return self.kernel["nngp"]

    @property
    def ntk(self) -> StoredKernel:
        """The tangent kernel."""
        return self.kernel["ntk"]

    @property
    def standard_error(self) -> dict[str, StoredKernel] | None:
        """Of both where something was sampled, None where everything is exact."""
        if _LABELS[2] not in (self.kernel.labels or ()):
            return None
        return {name: self.kernel[f"{name}_error"] for name in ("nngp", "ntk")}

    @cached_property
    def reading(self) -> Table:
        """What each module was taken for, its constants and rates, and how they were known."""
        return reading_of(self.rows)

    def answer(self) -> Answer:
        """How large the kernels are, where, and how far; what was read."""
        first, second = self.kernel.samples
        how = "exact" if self.standard_error is None else "partly sampled"
        said = self.kernel.answer()
        statement = (
            f"Kernels of infinite width between {first} and {second} inputs ({how}): {said.statement}."
        )
        parts = [*said.parts, self.reading, *self.notes]
        if not self.kernel.missing:
            loops = dict.fromkeys(str(record["loops"]) for record in self.kernel.records.values())
            parts.append(f"Loops over pairs of inputs: {', '.join(loops)}.")
        return Answer(statement, parts, said.data)


def compute_stored(network: Network, draws: int, seed: Seed, options: Stored) -> StoredInfiniteWidth:
    """Compute what a store does not have yet, and open it."""
    if not isinstance(seed, int | np.integer | np.random.SeedSequence):
        (seed,) = spawn(seed, 1)  # one for all tiles
    kernel = compute(Limit(network, draws, seed), options)
    return StoredInfiniteWidth(kernel, network.rows, network.notes, network.outputs)


@dataclass(frozen=True, eq=False)
class Limit(Contents):
    """NNGP and NTK as the contents of a store. All tiles have the same random numbers, as tiles in memory have."""

    network: Network
    draws: int
    seed: Seed

    said: ClassVar = {
        "model": "the model is another one",
        "init": "`init=` or the laws of the weights are others",
        "rates": "`rates=` are others",
        "data": "the inputs are others",
        "draws": "`draws=` or `seed=` are others",
        "versions": "the format of stores has another version",
        "function": "the model has other kernels than the one the store was made with",
    }

    @property
    def samples(self) -> tuple[int, int]:
        """How many inputs there are along both sides."""
        data, other = self.network.data, self.network.other
        first, second = (
            len(next(iter(values.values()))) for values in (data, data if other is None else other)
        )
        return first, second

    @property
    def symmetric(self) -> bool:
        """Whether there is one set of inputs."""
        return self.network.other is None

    @cached_property
    def _fields(self) -> list[Field]:
        return in_order(self.network.field)

    @property
    def _labels(self) -> tuple[str, ...]:
        return _LABELS if any(field.sampled for field in self._fields) else _LABELS[:2]

    @property
    def _width(self) -> int:
        return math.prod(self.network.field.positions)

    def digests(self) -> dict[str, str]:
        """Of the steps of the network, of its constants and of the inputs."""
        network, rows = self.network, self.network.rows
        steps = [f"{type(field).__name__} {field.name} {field.positions}" for field in self._fields]
        read = [f"{row.module} {row.taken_for} {row.fan_in!r}" for row in rows]
        random = [f"{self.draws} {seed_text(self.seed)}"] if len(self._labels) > 2 else []
        data = list[str | Tensor]()
        for side in (network.data, network.other):
            data += ["itself"] if side is None else map(as_tensor, side.values())
        return {
            "model": digest([*steps, *read, str(network.outputs)]),
            "init": digest(f"{row.C_W!r} {row.C_b!r}" for row in rows),
            "rates": digest(f"{row.lambda_W!r} {row.lambda_b!r}" for row in rows),
            "data": digest(data),
            "draws": digest(random),
            "versions": digest([str(FORMAT)]),
        }

    def sample_values(self) -> SampleValues:
        """NNGP, weighed over pairs of positions, and sizes of NNGP and NTK between a few inputs."""
        network, few = self.network, _SAMPLES if self._width == 1 else 2
        sides = [
            None if side is None else {one: _spread(values, few) for one, values in side.items()}
            for side in (network.data, network.other)
        ]
        assert sides[0] is not None
        draws = min(self.draws, _FEW_DRAWS)
        found = kernel_of(network.field, sides[0], sides[1], draws=draws, seed=self.seed)
        S, Theta = (part.reshape(-1, few**2) for part in (found.S, found.Theta))
        weights = np.random.default_rng(0).normal(size=len(S))
        sizes, of_ntk = (np.linalg.norm(part, axis=0).tolist() for part in (S, Theta))
        tolerance = _TOLERANCE if found.errors is None else _TOLERANCE_OF_DRAWS
        return SampleValues(finite((weights @ S).tolist()), finite(sizes), finite(of_ntk), tolerance)

    def needs(self) -> Needs:
        """What the arrays inside a tile take, what single points have, and the entries."""
        field, sampled = self.network.field, len(self._labels) > 2
        largest = Plan.backwards(self._fields, {field: full(field.positions)}).largest
        entries = max(ONE_TILE, 4 * largest) if sampled else max(TILE_ENTRIES, largest)
        return Needs(
            factors=float(sum(values[0].nbytes for values in self.network.data.values())),
            passes=8.0 * sum(math.prod(one.positions) for one in self._fields),
            entry=8.0 * len(self._labels) * self._width**2,
            fixed=8.0 * ARRAYS_AT_ONCE * entries * thread_count(),
            side=max(8, min(Needs.side, math.isqrt(_MOST_ENTRIES // largest))),
        )

    def facts(self) -> dict[str, Any]:
        """What the kernels decide of a layout."""
        return {
            "outputs": tuple(range(self._width)),
            "trace": not self.network.field.positions,
            "by": QUANTITY,
            "labels": self._labels,
            "dtype": "<f8",
            "model": self.network.description,
            "routes": {},
        }

    def job(self, layout: Layout, height: int, room: float, aside: Aside) -> LimitJob:
        """The network and its inputs, as tensors: those stay on disk until they are used."""
        network = self.network
        sides = tuple(
            {one: as_tensor(values) for one, values in side.items()}
            for side in (network.data, network.other)
            if side is not None
        )
        return LimitJob(layout.grid, network.field, sides, self.draws, self.seed, height)


@dataclass(frozen=True, eq=False)
class LimitJob:
    """All that a worker needs, and what it does with it."""

    grid: Grid
    field: Field
    sides: tuple[Mapping[Field, Tensor], ...]
    draws: int
    seed: Seed
    height: int

    def tiles(self) -> AbstractContextManager[LimitJob]:
        """Itself: a tile needs nothing but its inputs."""
        return nullcontext(self)

    def column(self, number: int, rows: range) -> Data:
        """The inputs of a column."""
        return self._inputs(1, number)

    def tile(self, tile: Tile, column: Data) -> tuple[Tensor, dict[str, Any]]:
        """NNGP, NTK and their errors; records have the squares, and on the diagonal the traces, one by one."""
        on_diagonal = self.grid.on_diagonal(tile)
        first, second = (column, None) if on_diagonal else (self._inputs(0, tile[0]), column)
        with _one_at_a_time:
            found = kernel_of(self.field, first, second, draws=self.draws, seed=self.seed)
        values = self._matrices(found)
        note: dict[str, Any] = {"chunk_samples": 0, "chunk_seconds": 0.0, "loops": found.loops}
        note["squares"] = {name: float(np.vdot(one, one)) for name, one in values.items()}
        if on_diagonal:
            note |= {"diagonal": {name: float(np.trace(one)) for name, one in values.items()}, "layers": {}}
        return torch.from_numpy(np.stack(list(values.values()))), note

    def _matrices(self, found: Found) -> dict[str, Any]:
        """Kernels over (input, position), by label."""
        width, parts = math.prod(self.field.positions), (found.S, found.Theta, *(found.errors or ()))
        return {
            name: inputs_first(part, self.field.positions).reshape(width * part.shape[-2], -1)
            for name, part in zip(_LABELS, parts)
        }

    def _inputs(self, axis: int, number: int) -> Data:
        samples = self.grid.chunk(axis, number)
        side = self.sides[axis if len(self.sides) > 1 else 0]
        return {one: values[samples.start : samples.stop].numpy() for one, values in side.items()}


def _spread(values: Any, count: int) -> Any:
    """Some inputs, spread over all of them."""
    return values[[(len(values) - 1) * k // max(1, count - 1) for k in range(count)]]
