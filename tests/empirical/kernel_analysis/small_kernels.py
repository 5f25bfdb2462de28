"""A small network with inputs and targets, and kernels without one."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from foretrain.empirical import TangentKernel

Array = NDArray[np.float64]
SAMPLES, OUTPUTS = 9, 3


def network(width: int = 16) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, OUTPUTS)).double()


def inputs(count: int = SAMPLES, seed: int = 1) -> Tensor:
    return torch.randn(count, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def matrix_of(kernel: TangentKernel) -> Array:
    values = np.asarray(kernel)
    n, m, c, _ = values.shape
    return np.transpose(values, (0, 2, 1, 3)).reshape(n * c, m * c)


def targets(seed: int = 0, samples: int = SAMPLES) -> Array:
    return np.random.default_rng(seed).normal(size=(samples, OUTPUTS))


def random_kernel(size: int, rank: int, seed: int = 0) -> Array:
    factor = np.random.default_rng(seed).normal(size=(size, rank))
    return factor @ factor.T
