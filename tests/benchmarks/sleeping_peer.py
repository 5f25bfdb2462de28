"""A peer for the tests of the link: its call takes as long as it is told."""

import time

from bench.peer_side.serve import Run


def _prepare(arrays, options) -> Run:  # type: ignore[no-untyped-def]
    time.sleep(options["seconds"])
    return lambda: {"sum": arrays["numbers"].sum()}


CALLS = {"sum": _prepare}
