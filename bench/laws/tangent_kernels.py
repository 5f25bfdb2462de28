"""Torch models: tangent kernels whole, as products and on disk, their analysis, their differentials, fields."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from itertools import pairwise
from math import isqrt
from pathlib import Path

import numpy as np
import torch

import foretrain as ft
from bench.laws.law import Job, Law
from bench.peer_side.torch_networks import perceptron

WIDTHS = (784, 1000, 1000, 10)
SMALL = 32  # inputs where the parameters are counted
MATRICES = 3  # of the networks whose parameters are counted, all square
STRIP = 6000  # samples whose factors a worker of 700 MB holds, see docs/large-kernels.md
NUMBER = 4.0  # bytes
PARAMETERS = (480_000, 1_920_000, 7_680_000, 30_720_000)
MODELS = (1e9, 1e12)
PRODUCTS = "products (`ft.ntk_operator`): trace, rank, modes and regression need no more"
PARTS = "parts of the parameters (`parameters=`), or a smaller model of the same kind"


def laws() -> list[Law]:
    """Costs of `ft.ntk`, `ft.ntk_operator`, `ft.fields`, `ft.dntk` and `ft.ddntk`."""
    return [*_kernels(), *_products(), *_differentials()]


def _kernels() -> list[Law]:
    return [
        Law(
            "NTK of an MLP 784-1000-1000-10, trace, float32",
            "N",
            "inputs",
            (128, 256, 512, 1024),
            (1, 2),
            lambda size: _kernel(WIDTHS, size, "trace"),
            lambda size: NUMBER * size**2,
            moved=_tiles,
            strip=STRIP,
            instead=PRODUCTS,
        ),
        Law(
            "NTK of an MLP 784-1000-1000-10, full, float32",
            "N",
            "inputs",
            (64, 128, 256, 512),
            (1, 2),
            lambda size: _kernel(WIDTHS, size, "full"),
            lambda size: NUMBER * (10 * size) ** 2,
            instead="the trace, chosen outputs (`outputs=[0, 5]`), or products",
        ),
        Law(
            f"NTK of an MLP 784-300-300-C, full, {SMALL} inputs",
            "C",
            "outputs",
            (16, 32, 64, 128),
            (1, 2),
            lambda size: _kernel((784, 300, 300, size), SMALL, "full"),
            lambda size: NUMBER * (SMALL * size) ** 2,
            large=(1e3, 1e5),
            instead="the trace, chosen outputs, or products",
        ),
        Law(
            f"NTK of an MLP with {MATRICES} square weights, trace, {SMALL} inputs",
            "P",
            "parameters",
            PARAMETERS,
            (0, 1),
            _kernel_by_parameters,
            lambda size: NUMBER * SMALL**2,
            large=MODELS,
            held=lambda size: NUMBER * size,
            divides=False,
            instead=PARTS,
        ),
        Law(
            "the same NTK, trace, on disk by one worker (`store=`)",
            "N",
            "inputs",
            (512, 1024, 2048, 3072),
            (0, 1, 2),
            _stored,
            lambda size: NUMBER * size**2,
            moved=_tiles,
            strip=STRIP,
            instead=PRODUCTS,
        ),
        Law(
            "regression with a kernel in memory",
            "N",
            "inputs",
            (500, 1000, 2000, 4000),
            (2, 3),
            _regression,
            lambda size: NUMBER * size,
            large=(1e5, 1e6),
            moved=lambda size: NUMBER * size**2,
            held=lambda size: 2 * NUMBER * size**2,
            divides=False,
            instead="the same from a stored kernel or from products: some hundred readings, no factor",
        ),
        Law(
            "collective fields and their kernels by layer, 20-256-256-1",
            "N",
            "inputs",
            (512, 1024, 2048),
            (1, 2),
            _fields,
            lambda size: 3 * 2 * NUMBER * size**2,
            large=(1e4, 1e6),
            instead="`ft.ntk(..., by='layer', store=)` for the kernels",
        ),
    ]


def _products() -> list[Law]:
    inputs = NUMBER * WIDTHS[0]
    parameters = NUMBER * sum((before + 1) * after for before, after in pairwise(WIDTHS))
    return [
        Law(
            "one product with the NTK of 784-1000-1000-10, never formed",
            "N",
            "inputs",
            (128, 256, 512, 1024),
            (0, 1),
            lambda size: _product(WIDTHS, size),
            lambda size: NUMBER * 10 * size,
            moved=lambda size: inputs * size,
            exchanged=2 * parameters,
        ),
        Law(
            f"one product with the NTK of {MATRICES} square weights, {SMALL} inputs",
            "P",
            "parameters",
            PARAMETERS,
            (0, 1),
            lambda size: _product(_square(size), SMALL),
            lambda size: NUMBER * SMALL,
            large=MODELS,
            held=lambda size: NUMBER * size,
            divides=False,
            instead=PARTS,
        ),
    ]


def _differentials() -> list[Law]:
    return [
        Law(
            "dNTK of an MLP 128-128-128-1, float64",
            "N",
            "inputs",
            (16, 32, 64, 128),
            (0, 3),
            lambda size: _differential(size, 2),
            lambda size: 2 * NUMBER * size**3,
            large=(1e3, 1e4),
            instead="what a step really changes: `step_prediction`, `fields.step_report`",
        ),
        Law(
            "both ddNTKs of an MLP 128-128-128-1, float64",
            "N",
            "inputs",
            (8, 16, 24, 32),
            (0, 4),
            lambda size: _differential(size, 3),
            lambda size: 2 * 2 * NUMBER * size**4,
            large=(1e2, 1e3),
            instead="the same",
        ),
    ]


def _tiles(size: float) -> float:
    """Each tile is written once, and every strip of rows reads the inputs of its columns."""
    return NUMBER * size**2 + NUMBER * WIDTHS[0] * size**2 / (2 * STRIP)


def _square(parameters: int) -> tuple[int, ...]:
    """Widths of a network with about so many parameters in square weights, and a readout."""
    return (isqrt(parameters // MATRICES),) * (MATRICES + 1) + (1,)


def _network(widths: Sequence[int], size: int) -> tuple[torch.nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    return perceptron(widths), torch.randn(size, widths[0])


def _kernel(widths: Sequence[int], size: int, outputs: str) -> Job:
    model, x = _network(widths, size)
    return lambda: ft.ntk(model, x, outputs=outputs)


def _kernel_by_parameters(parameters: int) -> Job:
    return _kernel(_square(parameters), SMALL, "trace")


def _stored(size: int) -> Job:
    model, x = _network(WIDTHS, size)

    def job() -> None:
        folder = Path(tempfile.mkdtemp())
        try:
            ft.ntk(model, x, outputs="trace", store=folder / "kernel.zarr", workers=1)
        finally:
            shutil.rmtree(folder)

    return job


def _regression(size: int) -> Job:
    model, x = _network((20, 64, 1), size)
    kernel = ft.ntk(model.double(), x.double(), outputs="trace")
    return lambda: kernel.regression(np.asarray(x[:, 0]), ridge=1e-3)


def _fields(size: int) -> Job:
    model, x = _network((20, 256, 256, 1), size)
    return lambda: ft.fields(model, x).kernel_by_layer


def _product(widths: Sequence[int], size: int) -> Job:
    model, x = _network(widths, size)
    operator, vector = ft.ntk_operator(model, x), torch.randn(size, widths[-1])
    return lambda: operator.matvec(vector)


def _differential(size: int, order: int) -> Job:
    torch.manual_seed(0)
    hidden = (torch.nn.Linear(128, 128), torch.nn.Tanh())
    model = torch.nn.Sequential(*hidden, torch.nn.Linear(128, 128), torch.nn.Tanh(), torch.nn.Linear(128, 1))
    x = torch.randn(size, 128, dtype=torch.float64)
    differential = ft.dntk if order == 2 else ft.ddntk
    return lambda: differential(model.double(), x)
