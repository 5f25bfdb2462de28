"""What a pass of a model costs in multiplications of its layers, and how much of it a check may take.

Counted and not timed, so that the same model is looked at in the same way on every machine, and treated networks in
the same way as the given one. A core makes about 10^10 multiplications in a second.

Layers of a few hundred units are done before a second thread has begun, and on a machine with other work threads
then wait for each other: a step of a small network takes up to fifty times longer with two threads than with one.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from foretrain.doctor.setup.case import Setup

STEP_PASSES = 3  # passes forwards that one step of training is worth
_FEWEST = 16  # samples
_WORTH = 1e8  # multiplications of one layer in a step, from which on threads pay: milliseconds of one core
_STEP_SAMPLES = 128  # in a step, where all data are taken


@dataclass(frozen=True)
class Work:
    """Multiplications of one sample's way forwards: in one call of the largest layer, and of all layers together."""

    largest: int
    total: int


def work_of(setup: Setup) -> Work:
    """Measured on one sample, once."""
    if "work" not in setup.known:
        setup.known["work"] = count_work(setup.model, setup.task.x[:1])
    found: Work = setup.known["work"]
    return found


def count_work(model: nn.Module, x: Tensor) -> Work:
    """By running it; the largest call of a recurrent layer is one step in time."""
    calls, total = [0], [0]

    def count(module: nn.Module, given: Any, result: Any) -> None:
        weights = [weight for weight in module.parameters(recurse=False) if weight.ndim >= 2]
        if isinstance(module, nn.RNNBase):
            calls.append(len(x) * max(weight.numel() for weight in weights))
            values = given[0] if given else x
            # Samples times steps in time of what a recurrent layer is given.
            rows = values.numel() // values.shape[-1] if isinstance(values, Tensor) else len(x)
            total.append(rows * sum(weight.numel() for weight in weights))
        elif isinstance(result, Tensor) and not isinstance(module, nn.Embedding):
            own = [result.numel() * weight[0].numel() for weight in weights]
            calls.extend(own)
            total.extend(own)

    at_rest = copy.deepcopy(model).eval()
    for module in at_rest.modules():
        module.register_forward_hook(count)
    with torch.no_grad():
        at_rest(x)
    return Work(max(calls), sum(total))


def affordable_samples(setup: Setup, wanted: int, passes: float, work: float) -> int:
    """As many of the wanted samples as so many passes forwards of all of them may take, but some in any case."""
    each = max(1.0, passes * work_of(setup).total)
    return min(wanted, max(_FEWEST, int(work / each)))


@contextmanager
def suited_threads(setup: Setup) -> Iterator[None]:
    """One thread for torch and numpy inside, unless a layer is large enough to be shared; afterwards as before."""
    samples = min(setup.batch_size or _STEP_SAMPLES, len(setup.task.x))
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
