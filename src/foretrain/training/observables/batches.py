"""What a recorder's batch holds, and a model's outputs for it."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from foretrain.empirical.models.batches import as_batch
from foretrain.empirical.models.calls import call_with
from foretrain.support.errors import InputError


def inputs(batch: Any, samples: int | None = None) -> Any:
    """x of a batch (x, y), or of one that is x alone; ``samples``: only the first ones."""
    if batch is None:
        raise InputError("it needs inputs: give the Recorder a batch=(x, y).")
    x = batch[0] if _is_pair(batch) else batch
    if samples is None:
        return x
    given = as_batch(x)
    return x if given.count <= samples else given.pick(slice(samples)).arguments


def both(batch: Any) -> tuple[Any, Any]:
    """x and y of a batch (x, y)."""
    if not _is_pair(batch):
        raise InputError("it needs targets: give the Recorder a batch=(x, y) of inputs and targets.")
    return batch[0], batch[1]


def targets(batch: Any) -> Tensor:
    """y of a batch (x, y), which is a tensor."""
    _, y = both(batch)
    if not isinstance(y, Tensor):
        raise InputError("it needs targets: give the Recorder a batch=(x, y) whose y is a tensor.")
    return y


def outputs(model: nn.Module, x: Any) -> Any:
    """What the model returns; the arguments of models with several stand in a tuple or dict."""
    return call_with(model, x)


def _is_pair(batch: Any) -> bool:
    return isinstance(batch, tuple | list) and len(batch) == 2
