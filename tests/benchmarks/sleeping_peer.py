"""A peer for the tests of the link: its call takes as long as it is told."""

import time
from typing import Any

from bench.peer_side.serve import Run


def _prepare(arrays: dict[str, Any], options: dict[str, Any]) -> Run:
    time.sleep(options["seconds"])
    return lambda: {"sum": arrays["numbers"].sum()}


CALLS = {"sum": _prepare}
