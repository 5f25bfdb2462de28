"""The tangent kernel of a model as the contents of a store: products of factors, which workers keep for some rows."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from foretrain.empirical.models.arguments import Batch, layer_of
from foretrain.empirical.models.model import unchanged
from foretrain.empirical.stored_kernel.contents import Aside, Contents
from foretrain.empirical.stored_kernel.grid import Grid, Needs, Tile
from foretrain.empirical.stored_kernel.identity import (
    SAID,
    SampleValues,
    fingerprint,
    leaves,
    sample_values,
    short_description,
)
from foretrain.empirical.stored_kernel.layout import Layout
from foretrain.empirical.tangent_kernel.capture import Key
from foretrain.empirical.tangent_kernel.engine import Engine, Factors, probe
from foretrain.empirical.tangent_kernel.factors import Factor, add_products, add_symmetric_products
from foretrain.empirical.tangent_kernel.kernel import KernelOptions, prepare
from foretrain.empirical.tangent_kernel.planning import GraphChangedError
from foretrain.support.errors import NotSupportedError

_TRIAL_SAMPLES = 8

# One thread at a time looks at a model or runs it: that changes settings of the whole process.
_model_lock = threading.RLock()


@dataclass(frozen=True)
class Tangents(Contents):
    """A kernel that can be computed, as ``tangent_kernel.kernel.prepare`` gives it for the same ``by``."""

    tangents: Engine
    first: Batch
    second: Batch | None
    by: str | None = None

    said: ClassVar = SAID

    @property
    def samples(self) -> tuple[int, int]:
        """How many there are along both sides."""
        return self.tangents.job.rows, self.tangents.job.columns

    @property
    def symmetric(self) -> bool:
        """Whether it is the kernel of samples with themselves."""
        return self.second is None

    def digests(self) -> dict[str, str]:
        """Of model, parameters, data and options."""
        return fingerprint(self.tangents, self.first, self.second, self.by)

    def sample_values(self) -> SampleValues:
        """Outputs and gradients of a few samples."""
        return sample_values(self.tangents, self.first, self.second)

    def needs(self) -> Needs:
        """Bytes per sample as a small chunk shows them, and per pair of samples."""
        tangents = self.tangents
        few = self.first.pick([k % self.first.count for k in range(_TRIAL_SAMPLES)])
        factors = tangents.until_settled(lambda: tangents.chunk(few))
        held = sum(factor.bytes for own in factors.values() for factor in own.values()) / _TRIAL_SAMPLES
        width = 1 if tangents.job.trace else len(tangents.outputs)
        entry = len(set(tangents.labels.values())) * width**2 * tangents.dtype.itemsize
        passes = tangents.memory.passes + max(0.0, tangents.memory.factors - held)
        return Needs(held, passes, entry)

    def facts(self) -> dict[str, Any]:
        """What the kernel decides of a layout."""
        tangents = self.tangents
        return {
            "outputs": tuple(tangents.outputs),
            "trace": tangents.job.trace,
            "by": self.by,
            "labels": tuple(dict.fromkeys(tangents.labels.values())) if self.by is not None else None,
            "dtype": {torch.float32: "<f4", torch.float64: "<f8"}[tangents.dtype],
            "model": short_description(tangents.model.function),
            "routes": {name: str(route) for name, route in tangents.routes.items()},
        }

    def job(self, height: int, room: float, aside: Aside) -> TangentJob:
        """The job of an engine that has looked at the model."""
        tangents = self.tangents
        model, names, rates = tangents.model, frozenset(tangents.parameters), dict(tangents.rates)
        given = model.given_parameters
        options = KernelOptions(
            "trace" if tangents.job.trace else tuple(tangents.outputs),
            output=model.output,
            parameters=(lambda name, _: name in names) if given is None else given,
            rates=lambda name, _: rates[name],
            # Contributions of layers are kept apart, for the record of their shares.
            by="parameter" if self.by == "parameter" else "layer",
            batch_axis=self.first.axis,
        )
        return TangentJob(model.function, options, self.first, self.second, height, room, aside)

    def put_aside(self, aside: Aside, grid: Grid) -> Aside:
        """Find, chunk by chunk in their order, how parameters must be treated for all chunks to go together."""
        before = {key: set(names) for key, names in aside.items()}
        found = {key: set(names) for key, names in before.items()}
        everything = set(self.tangents.parameters)
        while found["unreadable"] != everything and (change := self._first_change(found, grid)) is not None:
            new = change.unreadable - found["unreadable"] | change.by_gradient - found["by_gradient"]
            found["unreadable"] |= change.unreadable if new else everything
            found["by_gradient"] |= change.by_gradient
        # What a worker met does not show here: all parameters go the way that suits any graph.
        if found == before:
            found["unreadable"] = everything
        if found == before:
            raise NotSupportedError(
                "the model's graph changes from one pass to the next: make it depend on its inputs alone."
            )
        return found

    def _first_change(self, aside: Aside, grid: Grid) -> GraphChangedError | None:
        try:
            tangents, *sides = self.job(1, 0.0, aside).prepared()
            for axis, batch in enumerate(side for side in sides if side is not None):
                for number in range(grid.count(axis)):
                    tangents.chunk(batch.pick(list(grid.chunk(axis, number))))
        except GraphChangedError as change:
            return change
        return None


@dataclass(frozen=True)
class TangentJob:
    """All that ``prepare`` takes, and how large a strip of the kernel may be."""

    model: Any
    options: KernelOptions
    first: Batch
    second: Batch | None
    height: int  # rows of tiles in a strip
    room: float  # bytes for factors that are kept
    aside: Aside

    def __getstate__(self) -> dict[str, Any]:
        second = None if self.second is None else _compact(self.second)
        return self.__dict__ | {"first": _compact(self.first), "second": second}

    def prepared(self) -> tuple[Engine, Batch, Batch | None]:
        """The model looked at anew."""
        tangents, first, second = prepare(self.model, self.first, self.second, self.options)
        if any(self.aside.values()):
            tangents.look_again(GraphChangedError(**self.aside))
        # A plan of its own, from samples that do not depend on which chunk comes first.
        if second is not None:
            tangents.chunk(probe(second))
        return tangents, first, second

    @contextmanager
    def tiles(self, layout: Layout) -> Iterator[TangentTiles]:
        """Products of factors, while the model stays as it is."""
        with unchanged(self.model):
            with _model_lock:
                tangents, first, second = self.prepared()
            yield TangentTiles(layout, tangents, Chunks(tangents, layout.grid, (first, second), self.room))


def _compact(batch: Batch) -> Batch:
    """Samples that are a small part of a larger tensor are copied: with a tensor, all of its memory is sent."""
    tensors = [leaf for leaf in leaves(batch.arguments) if isinstance(leaf, Tensor)]
    parts = any(value.untyped_storage().nbytes() > 2 * value.nbytes for value in tensors)
    return batch.pick(range(batch.count)) if parts else batch


class TangentTiles:
    """Tiles as products of the factors of their rows and columns."""

    def __init__(self, layout: Layout, tangents: Engine, chunks: Chunks) -> None:
        self._layout, self._tangents, self._chunks = layout, tangents, chunks
        self.spent = chunks.spent

    def column(self, number: int, rows: range) -> Factors:
        """The factors of a column."""
        self._chunks.rows = rows
        return self._chunks.of(1, number)

    def tile(self, tile: Tile, column: Factors) -> tuple[Tensor, dict[str, Any]]:
        """A tile; its record has the sum of squares, and on the diagonal the trace, of all contributions together."""
        note: dict[str, Any] = {}
        if self._layout.grid.on_diagonal(tile):
            values, layers = self._on_diagonal(column, tile)
            note = {"diagonal": sum(layers.values()), "layers": layers}
        else:
            values = self._beside(self._chunks.of(0, tile[0]), column, tile)
        total = values[0] if len(values) == 1 else values.sum(0)
        return values, note | {"squares": float(torch.linalg.vector_norm(total, dtype=torch.float64)) ** 2}

    def _on_diagonal(self, factors: Factors, tile: Tile) -> tuple[Tensor, dict[str, float]]:
        """A tile (labels, rows, columns) and every layer's part of its trace, one label after the other."""
        rows = self._layout.width
        values = self._zeros(len(factors) if self._layout.labels is not None else 1, tile)
        layers: dict[str, float] = {}
        for number, (label, own) in enumerate(factors.items()):
            part = values[number] if self._layout.labels is not None else self._zeros(1, tile)[0]
            add_symmetric_products(part, list(own.values()), rows)
            layer = layer_of(label) if self._layout.by == "parameter" else label
            layers[layer] = layers.get(layer, 0.0) + float(part.diagonal().sum(dtype=torch.float64))
            if self._layout.labels is None:
                values[0] += part
        return values, layers

    def _beside(self, left: Factors, right: Factors, tile: Tile) -> Tensor:
        groups = list(zip(left.values(), right.values()))
        if self._layout.labels is None:  # all contributions in one sum
            merged: list[dict[Key, Factor]] = [
                {key: factor for own in side.values() for key, factor in own.items()}
                for side in (left, right)
            ]
            groups = [(merged[0], merged[1])]
        values = self._zeros(len(groups), tile)
        for part, (mine, theirs) in zip(values, groups):
            both = [key for key in mine if key in theirs]  # no gradient on one side means no product
            add_products(part, [mine[key] for key in both], [theirs[key] for key in both], self._layout.width)
        return values

    def _zeros(self, labels: int, tile: Tile) -> Tensor:
        first, second = (side * self._layout.width for side in self._layout.grid.shape(tile))
        like = next(iter(self._tangents.parameters.values()))
        return like.new_zeros(labels, first, second, dtype=self._tangents.dtype)


class Chunks:
    """Factors of chunks: those of a strip's rows are kept while its columns pass, others as long as there is room."""

    def __init__(self, tangents: Engine, grid: Grid, sides: tuple[Batch, Batch | None], room: float) -> None:
        self._tangents, self._grid, self._room = tangents, grid, room
        self._sides = sides
        self._kept: dict[tuple[int, int], Factors] = {}
        self._bytes: dict[tuple[int, int], int] = {}
        self.rows = range(0)  # whose factors are used again and again
        self._samples, self._seconds = 0, 0.0

    def of(self, axis: int, number: int) -> Factors:
        """The factors of a chunk."""
        key = (0 if self._grid.symmetric else axis), number
        if key in self._kept:
            return self._kept[key]
        found = self._computed(*key)
        size = sum(factor.bytes for factors in found.values() for factor in factors.values())
        # Chunks that are no rows of the strip make room.
        others = [kept for kept in self._kept if kept[0] == 1 or kept[1] not in self.rows]
        while others and sum(self._bytes.values()) + size > self._room:
            oldest = others.pop(0)
            del self._kept[oldest], self._bytes[oldest]
        if sum(self._bytes.values()) + size <= self._room:
            self._kept[key], self._bytes[key] = found, size
        return found

    def spent(self) -> tuple[int, float]:
        """Samples that went through the model since this was asked the last time, and seconds for them."""
        found = self._samples, self._seconds
        self._samples, self._seconds = 0, 0.0
        return found

    def _computed(self, axis: int, number: int) -> Factors:
        start = time.perf_counter()
        batch, samples = self._sides[axis], self._grid.chunk(axis, number)
        assert batch is not None
        with _model_lock:
            # A list of samples is copied: memory that begins elsewhere could be summed in another order.
            found = self._tangents.chunk(batch.pick(list(samples)))
        self._samples += len(samples)
        self._seconds += time.perf_counter() - start
        return found
