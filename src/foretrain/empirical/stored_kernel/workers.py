"""The options of a stored kernel, and the workers that they ask for."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any

from foretrain.empirical.stored_kernel.grid import Needs
from foretrain.empirical.stored_kernel.layout import Layout
from foretrain.support import engines
from foretrain.support.errors import InputError, NotEnoughMemoryError
from foretrain.support.memory import available_bytes, human_bytes, parse_bytes, require_memory

_MEMORY_SHARE = 0.8  # of what is available, for all workers
_PROCESS_BYTES = 3.5e8  # of a worker process before it does anything: interpreter and libraries
_MOST_ROOM = 4e9  # bytes per worker; more would not be faster
_CLUSTER_ROOM = 1e9  # bytes per worker of a cluster, whose machines are not known
_TASKS_PER_WORKER = 4  # of a cluster; each takes all the work it can get


@dataclass(frozen=True)
class Stored:
    """Where a kernel is stored, and how its tiles are computed; None is left to this machine."""

    folder: str | Path
    engine: object = None
    workers: int | None = None
    memory: float | str | None = None  # bytes that each worker may take, or text such as "1GB"
    side: int | None = None  # samples along a tile, which stay as they are when the store is created
    threads: int | None = None  # of each worker, 1 by default, which stay so too
    overwrite: bool = False


def asked_of_store(folder: str | Path | None, **options: Any) -> Stored | None:
    """Where and how a kernel is stored; None where no folder is named, for which other options are refused."""
    if folder is not None:
        return Stored(folder, **options)
    given = [name for name, value in options.items() if value is not None and value is not False]
    if given:
        names = " and ".join(f"`{'batch_size' if name == 'side' else name}=`" for name in given)
        raise InputError(f"only stored kernels take {names}: name a folder with `store=`.")
    return None


class Workers:
    """Who computes the tiles: where, how many, and with how much memory each."""

    def __init__(self, options: Stored) -> None:
        self.engine, self.limit = options.engine, options.workers
        self.is_local = self.engine is None or self.engine in ("local", "threads")
        self.count = max(1, engines.capacity(self.engine, self.limit))
        memory: Any = options.memory
        if isinstance(memory, str):
            memory = parse_bytes(memory, "memory=")
        number = isinstance(memory, Real) and not isinstance(memory, bool)
        if memory is not None and not (number and float(memory) > 0):
            raise InputError(f"`memory=`{memory!r} is no size: give bytes above 0, or text such as '1GB'.")
        self._memory: float | None = memory
        if self.limit is None and self.engine in (None, "local"):
            # As many workers as the memory has room for; one needs no process of its own.
            while self.count > 1 and self.room <= 0:
                self.count -= 1
                self.limit = self.count

    @property
    def in_this_process(self) -> bool:
        """Whether workers share the memory of this process."""
        return self.engine == "threads" or (self.is_local and self.count == 1)

    @property
    def room(self) -> float:
        """Bytes that each worker may fill."""
        if self._memory is None and not self.is_local:
            return _CLUSTER_ROOM
        own = 0.0 if self.in_this_process else _PROCESS_BYTES
        room = self._each - own if self._memory is not None else min(_MOST_ROOM, self._each - own)
        return max(0.0, room)

    @property
    def _each(self) -> float:
        """Bytes that each worker may take in all."""
        return _MEMORY_SHARE * available_bytes() / self.count if self._memory is None else self._memory

    def require_processes(self) -> None:
        """Refuse processes that have no memory left once they have started."""
        if self.room <= 0 and not self.in_this_process:
            way_out = "pass `workers=1`, which needs no other process, or " if self.is_local else ""
            raise NotEnoughMemoryError(
                f"a worker process takes about {human_bytes(_PROCESS_BYTES)} before it computes anything, but each "
                f"of {self.count} may take only {human_bytes(self._each)}: {way_out}allow more memory."
            )

    def require_room(self, layout: Layout, needs: Needs) -> None:
        """Refuse tiles that do not fit the memory of a worker."""
        sides = layout.grid.sides
        side = max(sides)
        fewer = ", `outputs='trace'|--trace` or a list of fewer outputs" if layout.is_sum else ""
        require_memory(
            needs.working(side) + needs.factors * side,
            f"a worker with tiles of {sides[0]} x {sides[1]} samples",
            f"use fewer workers, or a new store with a smaller `batch_size=`{fewer}",
            share=1.0,
            available=int(self.room),
        )

    def tasks(self, parts: int) -> int:
        """How many tasks are handed out: one for each worker, and more for those that join a cluster later."""
        return max(1, min(parts, self.count * (1 if self.is_local else _TASKS_PER_WORKER)))
