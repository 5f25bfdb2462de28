"""What a store is asked of the kernel it holds: its identity and sizes, and in a worker the image of each tile."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager
from typing import Any, ClassVar, Protocol

from torch import Tensor

from foretrain.empirical.stored_kernel.grid import Grid, Needs, Tile
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
        """(labels, rows, columns) as matrices over (sample, output), and what its record says of the numbers."""

    def spent(self) -> tuple[int, float]:
        """Samples that went through a model since this was asked the last time, and seconds for them."""


class Job(Protocol):
    """What is sent to workers."""

    @property
    def height(self) -> int:
        """Rows of tiles in a strip."""

    def tiles(self, layout: Layout) -> AbstractContextManager[Tiles]:
        """Begin to compute in a worker."""


class Contents(ABC):
    """A kernel that can be computed tile by tile."""

    said: ClassVar[Mapping[str, str]]  # of each digest, and of "function": what another one means

    @property
    @abstractmethod
    def samples(self) -> tuple[int, int]:
        """How many there are along both sides."""

    @property
    @abstractmethod
    def symmetric(self) -> bool:
        """Whether it is the kernel of samples with themselves."""

    @abstractmethod
    def digests(self) -> dict[str, str]:
        """Digests that stay the same as long as the kernel does."""

    @abstractmethod
    def sample_values(self) -> SampleValues:
        """Numbers of a few samples, which show what a function computes."""

    @abstractmethod
    def needs(self) -> Needs:
        """The memory that a worker takes."""

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """Outputs, labels and so on: the fields of a ``Layout`` that the kernel decides."""

    @abstractmethod
    def job(self, height: int, room: float, aside: Aside) -> Job:
        """What workers are sent; ``room``: bytes for what they keep."""

    def put_aside(self, aside: Aside, grid: Grid) -> Aside:
        """What to put aside after a worker found a graph unlike the others."""
        raise NotImplementedError
