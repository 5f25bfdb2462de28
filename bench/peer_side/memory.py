"""How much memory a call needs on top of what its process holds: the peak during the call, minus before it.

Linux alone says it: writing 5 to /proc/self/clear_refs sets the peak (VmHWM) back to what is resident now. What
earlier calls freed is handed back to the system first, or the call could use it without being seen.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from pathlib import Path

PROCESS = Path("/proc/self/status")
SYSTEM = Path("/proc/meminfo")
RESET = Path("/proc/self/clear_refs")


def peak_increase(call: Callable[[], object]) -> int | None:
    """Bytes by which the call raises the resident memory at its peak, its result included; None if unknown."""
    gc.collect()
    try:
        ctypes.CDLL(None).malloc_trim(0)
        RESET.write_text("5")
        before = _bytes(PROCESS, "VmRSS")
    except (OSError, AttributeError):
        call()
        return None
    call()
    return max(0, _bytes(PROCESS, "VmHWM") - before)


def available() -> int | None:
    """Bytes that can be taken without swapping; None if the system does not say."""
    return _bytes(SYSTEM, "MemAvailable") if SYSTEM.exists() else None


def _bytes(table: Path, name: str) -> int:
    line = next(line for line in table.read_text().splitlines() if line.startswith(f"{name}:"))
    return 1024 * int(line.split()[1])
