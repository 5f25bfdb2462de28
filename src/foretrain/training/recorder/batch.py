"""The batch that observables look at."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


def batch_source(batch: Any) -> Callable[[], Any]:
    """What gives the batch: always the same, copied now, the first one of a loader; or a function's newest."""
    if isinstance(batch, torch.utils.data.DataLoader):
        batch = next(iter(batch))
    elif callable(batch) and not isinstance(batch, Tensor | nn.Module):
        source: Callable[[], Any] = batch
        return source
    kept = _copied(batch)
    return lambda: kept


def _copied(value: Any) -> Any:
    """Training loops may fill the same tensors again and again."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if type(value) in (tuple, list):
        return type(value)(_copied(item) for item in value)
    if type(value) is dict:
        return {key: _copied(item) for key, item in value.items()}
    return value
