"""As many threads as the layers of a model are worth.

Layers of a few hundred units are done before a second thread has begun, and on a machine with other work threads
then wait for each other: a step of a small network takes up to fifty times longer with two threads than with one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from foretrain.doctor.setup.case import Setup
from foretrain.doctor.setup.work import work_of

_WORTH = 1e8  # multiplications of one layer in a step: some milliseconds of one core
_SAMPLES = 128  # in a step, where all data are taken


@contextmanager
def suited_threads(setup: Setup) -> Iterator[None]:
    """One thread for torch and numpy inside, unless a layer is large enough to be shared; afterwards as before."""
    samples = min(setup.batch_size or _SAMPLES, len(setup.task.x))
    if samples * work_of(setup).largest >= _WORTH:
        yield
        return
    from threadpoolctl import threadpool_limits

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            yield
    finally:
        torch.set_num_threads(before)
