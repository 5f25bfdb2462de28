"""Stacked states of independent flows, and the field that moves them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

State: TypeAlias = tuple[Tensor, ...]  # every tensor has the flows along its first axis
Clock: TypeAlias = NDArray[np.float64]  # one number for each flow


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The field at a state: Ẇ of every tensor, and for each flow the loss and its rate of change."""

    rates: State
    loss: Clock
    loss_rate: Clock

    def __getitem__(self, which: NDArray[np.intp]) -> Evaluation:
        return Evaluation(picked(self.rates, which), self.loss[which], self.loss_rate[which])


Field: TypeAlias = Callable[[State], Evaluation]


def picked(state: State, which: NDArray[np.intp]) -> State:
    """Some of the flows."""
    index = torch.from_numpy(np.asarray(which, dtype=np.int64))
    return tuple(values[index.to(values.device)] for values in state)


def chosen(mask: NDArray[np.bool_], new: State, old: State) -> State:
    """The new state of marked flows, the old one of all others."""
    flags = torch.from_numpy(mask)
    return tuple(
        torch.where(flags.to(a.device).reshape(-1, *(1,) * (a.ndim - 1)), a, b) for a, b in zip(new, old)
    )


def per_flow(values: Clock, like: Tensor) -> Tensor:
    """One number for each flow, shaped to multiply a stacked tensor."""
    shape = (len(values), *(1,) * (like.ndim - 1))
    return torch.from_numpy(values).to(dtype=like.dtype, device=like.device).reshape(shape)


def norms(values: Tensor) -> Clock:
    """The norm of a tensor, for each flow."""
    return np.asarray(torch.linalg.vector_norm(values.flatten(1), dim=1).double().cpu().numpy())


def total_norms(state: State) -> Clock:
    """The norm of all tensors together, for each flow."""
    return np.asarray(np.sqrt(sum(norms(values) ** 2 for values in state)))
