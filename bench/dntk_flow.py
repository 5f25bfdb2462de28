"""What the differentials of the tangent kernel cost in `ft.flow`: the full set K ... U, one quadruple, one input.

The full set stands beside the tensors up to B, one quadruple beside all entries. Exponents of our cost are fitted
over the sizes listed here.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

import foretrain as ft
from bench.harness.jobs import Arrays, Job, Scaling
from bench.ntk_flow import PRECISION, TENSORS, WIDTH, flow_call

DIFFERENTIALS = ("P", "Q", "R", "S", "T", "U")
KERNELS = ("K", "Theta", *TENSORS)


def jobs() -> list[Job]:
    """All rows."""
    return [_full_set(), _quadruple(), _single_input()]


def _full_set() -> Job:
    names = [*KERNELS, *DIFFERENTIALS]
    return Job(
        name="K ... U tanh, all entries, 3 inputs, 10 layers",
        how="one quadrature a layer for all tables / the tensors up to B",
        ours=flow_call("tanh", 3, 10, names),
        sizes={"inputs": 3, "layers": 10},
        precision=PRECISION,
        peer=flow_call("tanh", 3, 10, KERNELS),
        scalings=(
            Scaling("N", {n: flow_call("tanh", n, 3, names) for n in (2, 3, 4, 6)}),
            Scaling("L", {depth: flow_call("tanh", 3, depth, names) for depth in (5, 10, 20)}),
        ),
    )


def _quadruple() -> Job:
    one = np.array([[0, 1, 2, 3]])
    return Job(
        name="P ... U tanh, one quadruple of 4 inputs, 10 layers",
        how="closed set of the quadruple / all entries",
        ours=flow_call("tanh", 4, 10, DIFFERENTIALS, quadruples=one),
        sizes={"inputs": 4, "layers": 10, "quadruple": 1},
        precision=PRECISION,
        peer=flow_call("tanh", 4, 10, DIFFERENTIALS),
    )


def _deep(depth: int) -> Callable[[], Arrays]:
    net = ft.MLP("tanh", depth=depth, width=WIDTH)

    def call() -> Arrays:
        found = ft.flow(net, [[1.0]], [*KERNELS, *DIFFERENTIALS])
        return {name: found[name].values.ravel() for name in found}

    return call


def _single_input() -> Job:
    return Job(
        name="K ... U tanh, one input, 10,000 layers",
        how="functions of the kernel from tables that grow",
        ours=_deep(10_000),
        sizes={"input": 1, "layers": 10_000},
        precision=PRECISION,
        scalings=(Scaling("L", {depth: _deep(depth) for depth in (1_000, 10_000)}),),
    )
