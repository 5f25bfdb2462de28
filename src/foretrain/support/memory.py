"""The memory guard: a job states its estimate first, and is refused with a way out when it does not fit."""

from __future__ import annotations

import gc
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

import numpy as np

from foretrain.support.errors import InputError, NotEnoughMemoryError

_LIMIT_VARIABLE = "FORETRAIN_MEMORY"
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY_UNITS = {"k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_SIZE = re.compile(r"(?P<number>\d+(\.\d*)?|\.\d+)\s*(?P<prefix>[kmgt]?)(?P<binary>i?)b?", re.IGNORECASE)


def human_bytes(count: float) -> str:
    """A size in decimal units with three digits: ``human_bytes(2_500_000) == "2.5 MB"``."""
    size = float(count)
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(size) < 999.5:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:,.0f} PB"


def available_bytes() -> int:
    """Memory this process may still use.

    The smallest of what the system has free, what the control groups of the process leave, and the variable
    FORETRAIN_MEMORY (for example ``2GB``), by which a user of a shared machine lowers the limit.
    """
    import psutil

    limits = [int(psutil.virtual_memory().available), *_control_group_headrooms()]
    stated = os.environ.get(_LIMIT_VARIABLE, "").strip()
    if stated:
        limits.append(parse_bytes(stated, origin=f"the environment variable {_LIMIT_VARIABLE}"))
    return max(0, min(limits))


def require_memory(
    needed_bytes: float, what: str, way_out: str, share: float = 0.8, available: int | None = None
) -> None:
    """Refuse a job whose estimate exceeds its share of the available memory (measured now unless given).

    ``what`` starts the sentence ("the kernel of 10,000 inputs"), ``way_out`` ends it ("pass batch_size=").
    """
    available = available_bytes() if available is None else available
    if needed_bytes > share * available:
        raise NotEnoughMemoryError(
            f"{what} needs about {human_bytes(needed_bytes)} of memory, but only "
            f"{human_bytes(share * available)} may be used ({share:.0%} of the {human_bytes(available)} "
            f"available): {way_out.rstrip('.')}."
        )


def parse_bytes(text: str, origin: str) -> int:
    """The number of bytes a size such as ``500MB``, ``2 GB`` or ``1.5GiB`` stands for."""
    match = _SIZE.fullmatch(text.strip())
    if match is None or (match["binary"] and not match["prefix"]):
        raise InputError(f"{origin} is {text!r}, which is not a size: write it like 500MB, 2GB or 1.5GiB.")
    prefix = match["prefix"].lower()
    unit = _BINARY_UNITS[prefix] if match["binary"] else _UNITS[prefix]
    return int(float(match["number"]) * unit)


@contextmanager
def without_collection() -> Iterator[None]:
    """Without Python's search for reference cycles inside, as it was before afterwards. Also decorates functions.

    For when many small objects are made: a search takes long with torch.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@lru_cache(maxsize=1)
def keep_freed_pages() -> None:
    """Let arrays of a few MB that are made and freed in turn have the same pages again.

    Fresh pages take longer than a sweep over them. The allocator of glibc keeps what is freed up to twice the size of
    the largest piece that ever was, of 32 MB at most: so it gets one, which nobody touches. Others are not affected.
    """
    np.empty(2**25 - 2**15, dtype=np.uint8)


def _control_group_headrooms(
    root: Path = Path("/sys/fs/cgroup"), membership: Path = Path("/proc/self/cgroup")
) -> list[int]:
    """Limit minus usage of every control group (version 1 or 2) that holds this process and sets a limit."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:  # not Linux: no control groups
        return []
    headrooms = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            names = ("memory.max", "memory.current", "inactive_file")
            folders = _with_parents(root, path)
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            folders = _with_parents(root / "memory", path)
        else:
            continue
        headrooms += [room for folder in folders if (room := _headroom(folder, *names)) is not None]
    return headrooms


def _with_parents(root: Path, path: str) -> Iterator[Path]:
    """The folder of a control group and of all its ancestors, since each of them may set a limit."""
    folder = root / path.lstrip("/")
    yield folder
    while folder != root:
        folder = folder.parent
        yield folder


def _headroom(folder: Path, limit_name: str, usage_name: str, reclaimable_name: str) -> int | None:
    """What one control group leaves, or None where it sets no limit.

    File cache that the kernel gives back on demand counts as free.
    """
    try:
        limit = (folder / limit_name).read_text().strip()
        usage = int((folder / usage_name).read_text())
    except OSError:
        return None
    if limit == "max":
        return None
    try:
        statistics = (folder / "memory.stat").read_text()
    except OSError:
        statistics = ""
    reclaimable = re.search(rf"^{reclaimable_name} (\d+)$", statistics, re.MULTILINE)
    return max(0, int(limit) - usage + (int(reclaimable[1]) if reclaimable else 0))
