"""As many threads as the layers of a model are worth.

Layers of a few hundred units are done before a second thread has begun, and on a machine with other work threads
then wait for each other: a step of a small network takes up to fifty times longer with two threads than with one.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from foretrain.doctor.setup import Setup

_WORTH = 1e8  # multiplications of one layer in a step: some milliseconds of one core
_SAMPLES = 128  # in a step, where all data are taken


@contextmanager
def suited_threads(setup: Setup) -> Iterator[None]:
    """One thread for torch and numpy inside, unless a layer is large enough to be shared; afterwards as before."""
    samples = min(setup.batch_size or _SAMPLES, len(setup.task.x))
    if "largest layer" not in setup.known:
        setup.known["largest layer"] = largest_layer(setup.model, setup.task.x[:1])
    if samples * setup.known["largest layer"] >= _WORTH:
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


def largest_layer(model: nn.Module, x: Tensor) -> int:
    """Multiplications that one call of the largest layer takes; of a recurrent layer those of one step in time."""
    counts = [0]

    def count(module: nn.Module, _: Any, result: Any) -> None:
        weights = [weight for weight in module.parameters(recurse=False) if weight.ndim >= 2]
        if isinstance(module, nn.RNNBase):
            counts.append(len(x) * max(weight.numel() for weight in weights))
        elif isinstance(result, Tensor) and not isinstance(module, nn.Embedding):
            counts.extend(result.numel() * weight[0].numel() for weight in weights)

    at_rest = copy.deepcopy(model).eval()
    for module in at_rest.modules():
        module.register_forward_hook(count)
    with torch.no_grad():
        at_rest(x)
    return max(counts)
