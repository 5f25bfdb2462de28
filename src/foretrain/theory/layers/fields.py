"""A field: what a layer holds at every channel, position and input, in the limit of many channels.

A field is known by three numbers for each pair of points (a, p), (b, q), a point being an input at a position:
the second moment S over channels, the NTK Theta, both held in a :class:`Kernel`, and for single points the mean
m over channels. A field is ``gaussian`` where its channels are independent draws of a zero-mean Gaussian with
covariance S, as after every linear map; only then does S say what a nonlinearity makes of it.

Fields know nothing of numbers: each says which pairs of positions it reads (``needs``) and how its kernel
follows from those of its inputs on one tile of pairs of inputs (``kernel``).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from threading import RLock
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from foretrain.support.arrays import beside, zeros
from foretrain.theory.layers.positions import Array, Indices, Pairs, split_points, split_shape

Points = dict[tuple[Hashable, str], Array]
"""What single points have, (positions..., inputs): second moments and means, by field or expression."""


class Kernel(NamedTuple):
    """Second moments and NTK over pairs of positions and inputs, (pairs of each axis..., pairs of inputs...)."""

    S: Any
    Theta: Any  # None where no parameter was met yet


@dataclass(frozen=True)
class Gain:
    """The rate of a gain of each channel: the part rate * S of Theta, which varies with the values of channels.

    A linear map sees its mean; a nonlinearity must average it together with itself.
    """

    rate: float
    own_position: bool = False  # a gain for every channel and position: only p = q is in it


@dataclass(frozen=True)
class Source:
    """Channels from ``start`` to ``stop`` (as shares of all) of the layer whose weights were drawn for them."""

    layer: int
    start: float = 0.0
    stop: float = 1.0

    def meets(self, other: Source) -> bool:
        """Whether both have channels in common."""
        return self.layer == other.layer and self.start < other.stop and other.start < self.stop


@dataclass(frozen=True, eq=False, kw_only=True)
class Field:
    """One step of the calculation; ``inputs`` are the fields it reads."""

    inputs: tuple[Field, ...] = ()
    positions: tuple[int, ...] = ()
    name: str = ""
    gaussian: bool = False
    gains: tuple[Gain, ...] = ()
    sources: frozenset[Source] = field(default_factory=frozenset)

    @property
    def reads_points(self) -> bool:
        """Whether it reads second moments or means of single points of its inputs."""
        return False

    @property
    def keeps_gains(self) -> bool:
        """Whether gains of its inputs are its own affair; else they come as part of Theta."""
        return False

    @property
    def sampled(self) -> bool:
        """Whether its kernel is a mean over random draws."""
        return False

    def work(self, prepared: Any) -> float:
        """What one draw of one input costs, for progress bars: two together cost four times as much."""
        return 0.0

    @property
    def for_any_library(self) -> bool:
        """Whether its kernel is computed where the inputs are, by numpy or by torch on its device."""
        return not self.sampled

    def needs(self, wanted: Pairs) -> tuple[Pairs, ...]:
        """Pairs of positions of each input that these pairs of its own are made of."""
        return (wanted,) * len(self.inputs)

    def prepare(self, wanted: Pairs, given: tuple[Pairs, ...]) -> Any:
        """What :meth:`kernel` uses again in every tile, for example matrices between lists of pairs."""
        return None

    def kernel(self, tile: Tile, inputs: list[Kernel], pairs: Pairs, prepared: Any) -> Kernel:
        """The kernel on a tile, at these pairs of positions."""
        raise NotImplementedError

    def mean(self, tile: Tile) -> Any:
        """The mean over channels at single points; 0 for a Gaussian field."""
        return tile.zeros(*self.positions, tile.size)


@dataclass(frozen=True, eq=False)
class Sampling:
    """Random numbers for means that have no formula: the same for all tiles of a run, others in each repetition."""

    seed: np.random.SeedSequence  # of this repetition
    numbers: dict[Field, int]  # of the fields in their order
    draws: int
    advance: Callable[[float], None] = lambda _: None  # told of every part of the work


class Once:
    """What no draw touches, in a tile: computed by the first repetition for all of them."""

    def __init__(self) -> None:
        self._lock = RLock()
        self._values: dict[Any, Any] = {}

    def kept(self, name: Any, compute: Callable[[], Any]) -> Any:
        """What has this name; other threads wait while it is computed."""
        with self._lock:
            if name not in self._values:
                self._values[name] = compute()
            return self._values[name]


@dataclass(frozen=True, eq=False)
class Tile:
    """Pairs of inputs: each input of a block with itself (``own``), or all inputs of two blocks with each other.

    The first kind is computed for all inputs before the second, and leaves behind what single points have.
    """

    row_points: Points
    column_points: Points
    row_data: dict[Field, NDArray[Any]]
    column_data: dict[Field, NDArray[Any]]
    own: bool
    shared: tuple[Indices, Indices] | None  # rows and columns that are one input
    size: int  # inputs in the rows
    column_size: int
    sampling: Sampling | None = None
    compiled: bool = False  # whether loops over pairs are those of numba: arrays of numpy in a large job
    once: Once = field(default_factory=Once)
    alone: bool = False  # all inputs are in it, and nothing was computed before

    @property
    def leaves_points(self) -> bool:
        """Whether it leaves behind what single points have."""
        return self.own or self.alone

    @property
    def same(self) -> bool:
        """Whether rows and columns are the same inputs."""
        return self.shared is not None and self.size == self.column_size == len(self.shared[0])

    def zeros(self, *shape: int) -> Any:
        """An array of zeros where the inputs are."""
        return zeros(shape, next(iter(self.row_data.values())))

    def together(self) -> Tile:
        """The rows and columns as one set of inputs, of which all pairs are in the tile."""
        if self.own or self.same:
            return self
        size = self.size + self.column_size
        points = {
            name: np.concatenate([one, self.column_points[name]], -1) for name, one in self.row_points.items()
        }
        data = {
            one: np.concatenate([values, self.column_data[one]], len(one.positions))
            for one, values in self.row_data.items()
        }
        return replace(
            self,
            row_points=points,
            column_points=points,
            row_data=data,
            column_data=data,
            shared=(np.arange(size),) * 2,
            size=size,
            column_size=size,
        )

    @property
    def shape(self) -> tuple[int, ...]:
        """Axes of the inputs, after those of positions."""
        return (self.size,) if self.own else (self.size, self.column_size)

    def split(self, values: Any, pairs: Pairs) -> Any:
        """An array over pairs and inputs, seen so that :meth:`rows` and :meth:`columns` broadcast with it."""
        return values.reshape(*split_shape(pairs), *self.shape)

    def rows(self, name: tuple[Hashable, str], pairs: Pairs) -> Any:
        """What the first point of each pair has."""
        values = split_points(self.row_points[name], pairs, "p")
        return values if self.own else values[..., None]

    def columns(self, name: tuple[Hashable, str], pairs: Pairs) -> Any:
        """What the second point of each pair has."""
        values = split_points(self.column_points[name], pairs, "q")
        return values if self.own else values[..., None, :]

    def second(self, of: Field) -> Array:
        """Second moments of a field at single points."""
        return self.row_points[of, "second"]

    def mean(self, of: Field) -> Array:
        """Mean of a field at single points."""
        return self.kept((of, "mean"), lambda: of.mean(self))

    def kept(self, name: tuple[Hashable, str], compute: Callable[[], Array]) -> Array:
        """What single points of the rows have; computed in tiles of own pairs, and kept for those of all pairs."""
        if name not in self.row_points:
            self.row_points[name] = compute()
        return self.row_points[name]


def on_same_positions(pairs: Pairs, like: Any) -> Any:
    """1 where p = q along every axis, else 0, to be multiplied with an array over pairs and inputs."""
    masks = [(axis.p == axis.q).astype(np.float64) for axis in pairs]
    product = reduce(np.multiply.outer, masks, np.ones(()))
    return beside(product.reshape(product.shape + (1,) * (like.ndim - len(pairs))), like)


def with_gains(kernel: Kernel, gains: tuple[Gain, ...], pairs: Pairs) -> Kernel:
    """The kernel whose Theta holds the mean of what gains add."""
    for gain in gains:
        part = gain.rate * kernel.S
        if gain.own_position:
            part = part * on_same_positions(pairs, part)
        kernel = Kernel(kernel.S, part if kernel.Theta is None else kernel.Theta + part)
    return kernel


def weighted_sum(weights: Sequence[float], kernels: Sequence[Kernel]) -> Kernel:
    """Kernels times weights, added."""
    S, Theta = None, None
    for weight, kernel in zip(weights, kernels, strict=True):
        part, more = (one if one is None or weight == 1 else weight * one for one in kernel)
        S = part if S is None else S + part
        if more is not None:
            Theta = more if Theta is None else Theta + more
    return Kernel(S, Theta)
