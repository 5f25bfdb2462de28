"""What is known of a cost before it is measured: the size it depends on, its powers, what it holds and moves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf

Job = Callable[[], object]
Bytes = Callable[[float], float]

CLUSTER_INPUTS, INTERNET_INPUTS = 1e6, 1e9


@dataclass(frozen=True)
class Law:
    """A computation whose cost depends on one size: how it is made, and what it must hold and move.

    ``powers`` are read off the code. ``result`` is bytes of the answer, ``moved`` bytes that go through a shared disk
    or a network if the work is divided (by default the answer once), ``held`` bytes that one machine must have in
    memory (by default the answer where the work is not divided, else nothing worth counting). ``divides`` says if the
    work can be divided among machines that do not talk; ``strip`` is the size up to which the linear part is paid
    once, beyond it once for every strip above the diagonal. ``large`` holds two sizes that nobody measures here,
    ``instead`` what to use where they are too much.
    """

    name: str
    size: str  # its letter
    of: str  # what it counts
    sizes: tuple[int, ...]
    powers: tuple[int, ...]
    make: Callable[[int], Job]
    result: Bytes
    large: tuple[float, float] = (CLUSTER_INPUTS, INTERNET_INPUTS)
    moved: Bytes | None = None
    held: Bytes | None = None
    strip: float = inf
    exchanged: float = 0.0  # bytes that every machine sends and receives besides
    divides: bool = True
    instead: str = ""

    def bytes_moved(self, size: float) -> float:
        """Through a shared disk or a network."""
        return (self.moved or self.result)(size)

    def bytes_held(self, size: float) -> float:
        """In the memory of one machine."""
        if self.held is not None:
            return self.held(size)
        return 0.0 if self.divides else self.result(size)
