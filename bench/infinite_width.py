"""What `ft.infinite_width` costs on convolutional networks: NNGP and NTK of images, from a torch module to matrices.

The peer is neural-tangents in float64 on the same images, compiled before the clock starts. The reference is its
kernel; ours agrees with it to rounding.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

import foretrain as ft
from bench.harness.jobs import Arrays, Job, PeerCall, Scaling
from bench.harness.rates import Work

PEER = "neural-tangents"
C_W, C_b = 2.0, 0.01
WIDTH = 4  # of the module that is read; the kernels are those of infinitely many channels
# name: images, rows and columns, depth, head, residual
CASES = {
    "conv-relu x3, pooling, 8x8": (100, 8, 3, "pooling", False),
    "conv-relu x3, flatten, 8x8": (400, 8, 3, "flatten", False),
    "conv-relu x3, pooling, 16x16": (20, 16, 3, "pooling", False),
    "ResNet of 3 blocks, pooling, 8x8": (50, 8, 3, "pooling", True),
    "ResNet of 3 blocks, flatten, 16x16": (200, 16, 3, "flatten", True),
}


class Block(nn.Module):
    """Two convolutions after rectifiers, beside a skip."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(WIDTH, WIDTH, 3, padding=1) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.second(torch.relu(self.first(torch.relu(x))))


def network(size: int, depth: int, head: str, residual: bool) -> nn.Module:
    """A plain or a residual convolutional network, as torch has it."""
    if residual:
        layers: list[nn.Module] = [
            nn.Conv2d(3, WIDTH, 3, padding=1),
            *(Block() for _ in range(depth)),
            nn.ReLU(),
        ]
    else:
        layers = []
        for k in range(depth):
            layers += [nn.Conv2d(WIDTH if k else 3, WIDTH, 3, padding=1), nn.ReLU()]
    pooled = head == "pooling"
    layers += [nn.AdaptiveAvgPool2d(1)] if pooled else []
    layers += [nn.Flatten(), nn.Linear(WIDTH if pooled else WIDTH * size**2, 1)]
    return nn.Sequential(*layers).double()


def jobs() -> list[Job]:
    """All rows."""
    return [_job(name, *case) for name, case in CASES.items()]


def _images(count: int, size: int) -> npt.NDArray[np.float64]:
    return np.random.default_rng(0).standard_normal((count, size, size, 3))


def _ours(count: int, size: int, depth: int, head: str, residual: bool) -> Callable[[], Arrays]:
    model, x = network(size, depth, head, residual), torch.from_numpy(_images(count, size)).movedim(-1, 1)

    def call() -> Arrays:
        kernels = ft.infinite_width(model, x, init={"*": (C_W, C_b)})
        return {"nngp": kernels.nngp.values, "ntk": kernels.ntk.values}

    return call


def _job(name: str, count: int, size: int, depth: int, head: str, residual: bool) -> Job:
    options = {"depth": depth, "head": head, "residual": residual, "C_W": C_W, "C_b": C_b}
    return Job(
        name=f"infinite width: {name}, {count} images",
        how="tiles, at the pairs of positions that the head reads / whole kernels, compiled",
        ours=_ours(count, size, depth, head, residual),
        work=_work(count, size, depth, head, residual),
        peer={f"{PEER} float64": PeerCall(PEER, "convolutional", {"x": _images(count, size)}, options)},
        aim=3.0,
        memory_aims={f"{PEER} float64": 10.0},
        sizes={"images": count, "positions": size**2, "convolutions": (2 * depth + 1) if residual else depth},
        precision="float64",
        scalings=(
            Scaling("N", {n: _ours(n, size, depth, head, residual) for n in (count // 4, count // 2, count)}),
            Scaling("P", {n * n: _ours(count // 4, n, depth, head, residual) for n in (size // 2, size)}),
        ),
    )


def _work(count: int, size: int, depth: int, head: str, residual: bool) -> Work:
    """For each pair of inputs and of positions one arcsine and root a nonlinearity, and the sums over taps by axis.

    Tiles stay in the cache: only the results must be moved.
    """
    pairs = count * (count + 1) / 2 * (size**2 if head == "flatten" else size**4)
    nonlinearities, convolutions = (2 * depth + 1, 2 * depth + 1) if residual else (depth, depth)
    additions = 2 * 2 * 2 * (convolutions - 0.5)  # of three taps, along two axes, of two kernels
    evaluations = {"arcsin": nonlinearities * pairs, "sqrt": nonlinearities * pairs}
    return Work("float64", flops=additions * pairs, moved=8 * 2 * count**2, evaluations=evaluations)
