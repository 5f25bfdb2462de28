"""The global-state NTK of a GRU: products, what is asked of them, and the whole matrix."""

from __future__ import annotations

from collections.abc import Callable
from math import isqrt

import torch

import foretrain as ft
from bench.laws.law import Job, Law
from foretrain.empirical.global_ntk import GlobalNTK

SAMPLES, STEPS, UNITS, FEATURES = 16, 50, 128, 16
NUMBER = 4.0  # bytes
SHORT, SMALL_UNITS = 6, 8  # steps and units where all entries are written out
SHORTER = "shorter windows of time, or some of the states (`restrict`)"
FEWER = "a sample of the batch: ranks and modes hardly change with it"


def laws() -> list[Law]:
    """Costs of `ft.global_ntk`."""
    states = NUMBER * UNITS * STEPS
    gru = f"GRU of {UNITS} units"
    return [
        Law(
            f"one product with the global-state NTK, {gru}, {STEPS} steps",
            "B",
            "samples",
            (32, 64, 128, 256),
            (0, 1),
            lambda size: _product(_kernel(samples=size)),
            lambda size: states * size,
            moved=lambda size: 2 * states * size,
            instead=FEWER,
        ),
        Law(
            f"the same, {SAMPLES} samples",
            "T",
            "time steps",
            (50, 100, 200, 400),
            (0, 1),
            lambda size: _product(_kernel(steps=size)),
            lambda size: NUMBER * UNITS * SAMPLES * size,
            large=(1e4, 1e6),
            divides=False,
            instead=SHORTER,
        ),
        Law(
            f"the same, {SAMPLES} samples, {STEPS} steps, GRUs",
            "P",
            "parameters",
            (48_000, 192_000, 768_000, 3_072_000),
            (0, 1),
            lambda size: _product(_kernel(units=isqrt(size // 3))),
            lambda size: NUMBER * SAMPLES * STEPS * (size / 3) ** 0.5,
            large=(1e9, 1e12),
            held=lambda size: NUMBER * size,
            divides=False,
            instead="some of the parameters (`parameters=`)",
        ),
        Law(
            f"one product with the core of it, {gru}, {STEPS} steps",
            "B",
            "samples",
            (32, 64, 128),
            (0, 1),
            lambda size: _core(_kernel(samples=size)),
            lambda size: states * size,
            instead="the concatenated core, without propagators",
        ),
        Law(
            f"effective rank of it to 1 %, {gru}, {STEPS} steps",
            "B",
            "samples",
            (8, 16, 32),
            (0, 1),
            lambda size: _asked(_kernel(samples=size), lambda kernel: kernel.effective_rank()),
            lambda size: NUMBER,
            moved=lambda size: 200 * states * size,
            instead=FEWER,
        ),
        Law(
            f"three leading modes of it, {gru}, {STEPS} steps",
            "B",
            "samples",
            (8, 16, 32),
            (0, 1),
            lambda size: _asked(_kernel(samples=size), lambda kernel: kernel.top_modes(3)),
            lambda size: 3 * states * size,
            moved=lambda size: 100 * states * size,
            instead=FEWER,
        ),
        Law(
            f"all entries of it, GRU of {SMALL_UNITS} units, {SHORT} steps",
            "S",
            "states",
            (768, 1536, 3072),
            (1, 2),
            _written,
            lambda size: NUMBER * size**2,
            large=(1e5, 1e6),
            instead="products, modes, partial traces: nothing needs the entries",
        ),
    ]


def _kernel(samples: int = SAMPLES, steps: int = STEPS, units: int = UNITS) -> GlobalNTK:
    torch.manual_seed(0)
    model = torch.nn.GRU(FEATURES, units, batch_first=True)
    return ft.global_ntk(model, torch.randn(samples, steps, FEATURES))


def _product(kernel: GlobalNTK) -> Job:
    vector = torch.randn(kernel.size)
    return lambda: kernel.apply(vector[None])


def _core(kernel: GlobalNTK) -> Job:
    core, vector = kernel.core, torch.randn(kernel.size)
    return lambda: core.apply(vector[None])


def _asked(kernel: GlobalNTK, question: Callable[[GlobalNTK], object]) -> Job:
    return lambda: question(kernel)


def _written(size: int) -> Job:
    kernel = _kernel(samples=size // (SHORT * SMALL_UNITS), steps=SHORT, units=SMALL_UNITS)
    return lambda: kernel.dense()
