"""Symmetric matrices with given eigenvalues, and columns to multiply."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def symmetric(eigenvalues: Array, seed: int = 0) -> tuple[Array, Array]:
    """A matrix and its modes as columns."""
    size = len(eigenvalues)
    modes = np.linalg.qr(np.random.default_rng(seed).normal(size=(size, size)))[0]
    matrix = (modes * eigenvalues) @ modes.T
    return (matrix + matrix.T) / 2, modes


def columns(size: int, many: int, seed: int = 1) -> Array:
    return np.random.default_rng(seed).normal(size=(size, many))
