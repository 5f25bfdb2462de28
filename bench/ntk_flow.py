"""What the tangent kernel and its statistics cost in `ft.flow`: all tensors, one quadruple, one input, many inputs.

Theta of many inputs stands beside K alone, H1 beside G1, all tensors beside V alone, activations with a kink beside
tanh, and one quadruple beside all entries. The last columns of the table are exponents of our cost, fitted over the
sizes listed here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

import foretrain as ft
from bench.harness.jobs import Arrays, Job, Scaling

DIMENSION = 100
WIDTH = 100  # no cost depends on it
PRECISION = "float64"
TENSORS = ("V", "D", "F", "A", "B")

Matrix = npt.NDArray[np.float64]


def jobs() -> list[Job]:
    """All rows."""
    return [
        *(_tangent_kernel(name) for name in ("relu", "tanh")),
        _all_tensors(),
        *(_kinked(name) for name in ("elu", "softsign")),
        _quadruple(),
        _mean_correction(),
        _single_input(),
    ]


def _inputs(count: int) -> Matrix:
    return np.random.default_rng(0).standard_normal((count, DIMENSION))


def flow_call(name: str, count: int, depth: int, names: Sequence[str], **form: Any) -> Callable[[], Arrays]:
    """A flow of some of the inputs, and its last layer."""
    net, X = ft.MLP.critical(name, depth=depth, width=WIDTH), _inputs(count)

    def call() -> Arrays:
        found = ft.flow(net, X, names, **form)
        return {key: found[key].values[-1] for key in names}

    return call


def _tangent_kernel(name: str) -> Job:
    count, depth = 1000, 50
    return Job(
        name=f"Theta {name}, {count} inputs, {depth} layers",
        how="all layers kept, to 1e-10 / the kernel K alone",
        ours=flow_call(name, count, depth, ["Theta"]),
        sizes={"inputs": count, "layers": depth},
        precision=PRECISION,
        peer=flow_call(name, count, depth, ["K"]),
        scalings=(
            Scaling("N", {n: flow_call(name, n, depth, ["Theta"]) for n in (125, 250, 500, 1000)}),
            Scaling("L", {layers: flow_call(name, count, layers, ["Theta"]) for layers in (6, 12, 25, 50)}),
        ),
    )


def _all_tensors() -> Job:
    names = ["K", "Theta", *TENSORS]
    return Job(
        name="K, Theta, V, D, F, A, B tanh, all entries, 6 inputs, 20 layers",
        how="four-input expectations shared by all tensors / V alone",
        ours=flow_call("tanh", 6, 20, names),
        sizes={"inputs": 6, "layers": 20},
        precision=PRECISION,
        peer=flow_call("tanh", 6, 20, ["V"]),
        scalings=(
            Scaling("N", {n: flow_call("tanh", n, 5, names) for n in (3, 4, 6, 8)}),
            Scaling("L", {depth: flow_call("tanh", 4, depth, names) for depth in (5, 10, 20)}),
        ),
    )


def _kinked(name: str) -> Job:
    names = ["K", "Theta", *TENSORS]
    return Job(
        name=f"K, Theta, V, D, F, A, B {name}, all entries, 3 inputs, 5 layers",
        how="panels that end at the kink, shared by all tensors / tanh",
        ours=flow_call(name, 3, 5, names),
        sizes={"inputs": 3, "layers": 5},
        precision=PRECISION,
        peer=flow_call("tanh", 3, 5, names),
    )


def _quadruple() -> Job:
    one = np.array([[0, 1, 2, 3]])
    return Job(
        name="V, D, F, A, B tanh, one quadruple of 6 inputs, 50 layers",
        how="closed set of the quadruple / all entries",
        ours=flow_call("tanh", 6, 50, TENSORS, quadruples=one),
        sizes={"inputs": 6, "layers": 50, "quadruple": 1},
        precision=PRECISION,
        peer=flow_call("tanh", 6, 50, TENSORS),
        scalings=(
            Scaling("N", {n: flow_call("tanh", n, 10, TENSORS, quadruples=one) for n in (4, 16, 64, 256)}),
            Scaling(
                "L", {depth: flow_call("tanh", 4, depth, TENSORS, quadruples=one) for depth in (12, 25, 50)}
            ),
        ),
    )


def _mean_correction() -> Job:
    return Job(
        name="H1 tanh, 300 inputs, 10 layers",
        how="blocks of V, D, F inside pairs, never the full tensors / G1 alone",
        ours=flow_call("tanh", 300, 10, ["H1"]),
        sizes={"inputs": 300, "layers": 10},
        precision=PRECISION,
        peer=flow_call("tanh", 300, 10, ["G1"]),
        scalings=(Scaling("N", {n: flow_call("tanh", n, 6, ["H1"]) for n in (75, 150, 300, 600)}),),
    )


def _deep(depth: int) -> Callable[[], Arrays]:
    net = ft.MLP("tanh", depth=depth, width=WIDTH)
    names = ["K", "Theta", *TENSORS, "G1", "H1"]

    def call() -> Arrays:
        found = ft.flow(net, [[1.0]], names)
        return {name: found[name].values.ravel() for name in found}

    return call


def _single_input() -> Job:
    return Job(
        name="K, Theta, V, D, F, A, B, G1, H1 tanh, one input, 100,000 layers",
        how="functions of the kernel from tables that grow",
        ours=_deep(100_000),
        sizes={"input": 1, "layers": 100_000},
        precision=PRECISION,
        scalings=(Scaling("L", {depth: _deep(depth) for depth in (1_000, 10_000, 100_000)}),),
    )
