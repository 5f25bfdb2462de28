"""Operators of any size whose spectrum is known: diagonal in a random basis that a fast transform makes.

They say that products are as dear as those of a large network, so that estimates are made from dimension 257 on.
"""

from __future__ import annotations

import torch
from torch import Tensor

from foretrain.operators import Operator, Space

DEAR = 1e12  # operations of a product


class Spectral(Operator):
    """S F diag(values) F S with random signs S and the Hartley transform F, which is symmetric and orthogonal."""

    def __init__(self, values: Tensor, *, positive: bool = True, block: int = 8, seed: int = 0) -> None:
        super().__init__(
            Space.of(entry=len(values)),
            dtype=values.dtype,
            symmetric=True,
            positive=positive,
            best_block=block,
        )
        drawn = torch.randint(0, 2, (len(values),), generator=torch.Generator().manual_seed(seed))
        self.flops = DEAR
        self.values, self.signs, self.calls = values, (drawn * 2 - 1).to(values), 0

    def _apply(self, flat: Tensor) -> Tensor:
        self.calls += len(flat)
        return _hartley(_hartley(flat * self.signs) * self.values) * self.signs


class Matrix(Operator):
    """A dense matrix that counts its products."""

    def __init__(
        self, matrix: Tensor, *, symmetric: bool = False, positive: bool = False, block: int = 4
    ) -> None:
        rows, columns = matrix.shape
        domain = Space.of(entry=columns)
        codomain = domain if rows == columns else Space.of(image=rows)
        super().__init__(
            domain,
            codomain,
            dtype=matrix.dtype,
            symmetric=symmetric,
            positive=positive,
            best_block=block,
        )
        self.matrix, self.calls, self.flops = matrix, 0, DEAR

    def _apply(self, flat: Tensor) -> Tensor:
        self.calls += len(flat)
        return flat @ self.matrix.T

    def _apply_adjoint(self, flat: Tensor) -> Tensor:
        self.calls += len(flat)
        return flat @ self.matrix


def _hartley(rows: Tensor) -> Tensor:
    transformed = torch.fft.fft(rows, norm="ortho")
    return transformed.real + transformed.imag


def random_matrix(rows: int, columns: int, seed: int = 0) -> Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def symmetric_matrix(values: Tensor, seed: int = 0) -> Tensor:
    """With these eigenvalues."""
    rotation = torch.linalg.qr(random_matrix(len(values), len(values), seed))[0]
    return (rotation * values) @ rotation.T


def spectrum(name: str, size: int) -> Tensor:
    place = torch.arange(1, size + 1, dtype=torch.float64)
    if name.startswith("power"):
        return place ** -float(name.removeprefix("power "))
    if name.startswith("exponential"):
        return torch.exp(-place / float(name.removeprefix("exponential ")))
    if name.startswith("rank"):
        return (place <= int(name.removeprefix("rank "))).double()
    named = {
        "flat": torch.ones_like(place),
        "ramp": 1 - place / size,
        # The shape of a recurrent network's global-state NTK: no gaps, a slow start, a long tail.
        "stretched": torch.exp(-(place**0.6) / 14),
    }
    return named[name]
