"""Flat blocks of vectors: rows of the identity, and random ones, which a seed makes the same on every device."""

from __future__ import annotations

import torch
from torch import Tensor

from foretrain.support.seeds import Seed, torch_generator


def random_signs(
    count: int, size: int, seed: Seed, *, dtype: torch.dtype, device: torch.device | str = "cpu"
) -> Tensor:
    """A flat block (count, size) of independent signs, plus or minus one with equal chance."""
    bits = torch.randint(0, 2, (count, size), generator=torch_generator(seed), dtype=torch.int8)
    return (2 * bits - 1).to(dtype=dtype, device=device)


def random_normals(
    count: int, size: int, seed: Seed, *, dtype: torch.dtype, device: torch.device | str = "cpu"
) -> Tensor:
    """A flat block (count, size) of independent standard normal numbers."""
    drawn = torch.randn(count, size, generator=torch_generator(seed), dtype=torch.float64)
    return drawn.to(dtype=dtype, device=device)


def basis_rows(
    start: int, stop: int, size: int, *, dtype: torch.dtype, device: torch.device | str = "cpu"
) -> Tensor:
    """Rows start to stop of the identity matrix."""
    rows = torch.zeros(stop - start, size, dtype=dtype, device=device)
    rows[torch.arange(stop - start), torch.arange(start, stop)] = 1
    return rows
