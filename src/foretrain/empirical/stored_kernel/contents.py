"""What a store is asked of the kernel it holds: its identity and sizes, and in a worker the image of each tile."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager
from typing import Any, ClassVar, Protocol

from torch import Tensor

from foretrain.empirical.stored_kernel.grid import Needs, Tile
from foretrain.empirical.stored_kernel.identity import SampleValues
from foretrain.empirical.stored_kernel.layout import Layout

Aside = Mapping[
    str, Collection[str]
]  # parameters that all workers must treat in another way than a few samples suggest


class Tiles(Protocol):
    """A worker's side: images of tiles, column by column."""

    def column(self, number: int, rows: range) -> Any:
        """What the tiles of a column have in common; ``rows`` of tiles will be used again and again."""

    def tile(self, tile: Tile, column: Any) -> tuple[Tensor, dict[str, Any]]:
        """(labels, rows, columns) as matrices over (sample, output), and what its record says of the numbers.

        Also ``chunk_samples`` that went through a model since the last one, and ``chunk_seconds`` for them.
        """


class Job(Protocol):
    """What is sent to workers."""

    @property
    def height(self) -> int:
        """Rows of tiles in a strip."""

    def tiles(self) -> AbstractContextManager[Tiles]:
        """Begin to compute in a worker."""


class Contents(Protocol):
    """A kernel that can be computed tile by tile."""

    said: ClassVar[Mapping[str, str]]  # of each digest, and of "function": what another one means

    @property
    def samples(self) -> tuple[int, int]:
        """How many there are along both sides."""

    @property
    def symmetric(self) -> bool:
        """Whether it is the kernel of samples with themselves."""

    def digests(self) -> dict[str, str]:
        """Digests that stay the same as long as the kernel does."""

    def sample_values(self) -> SampleValues:
        """Numbers of a few samples, which show what a function computes."""

    def needs(self) -> Needs:
        """The memory that a worker takes."""

    def facts(self) -> dict[str, Any]:
        """Outputs, labels and so on: the fields of a ``Layout`` that the kernel decides."""

    def job(self, layout: Layout, height: int, room: float, aside: Aside) -> Job:
        """What workers are sent; ``room``: bytes for what they keep."""

    def put_aside(self, aside: Aside, layout: Layout) -> Aside:
        """What to put aside after a worker found a graph unlike the others."""
        return aside
