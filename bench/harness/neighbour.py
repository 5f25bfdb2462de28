"""A busy neighbour: a process of the benchmark's own that keeps one core busy, and ends by itself."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

LONGEST_SECONDS = 600
_SPIN = f"import time\nend = time.monotonic() + {LONGEST_SECONDS}\nwhile time.monotonic() < end: pass"


@contextmanager
def busy_neighbour() -> Iterator[None]:
    """One core is busy with something else inside this block."""
    with subprocess.Popen([sys.executable, "-c", _SPIN]) as process:
        try:
            yield
        finally:
            process.kill()
