"""What `ft.flow` costs: kernels of many inputs, the four-point vertex in its three forms, one input to great depth.

Kernels stand beside neural-tangents on the same inputs and layers; the forms of V beside the full tensor or the
plain recursion that they replace. The last columns of the table are exponents of our cost, fitted over the sizes
listed here.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

import foretrain as ft
from bench.harness.jobs import Arrays, Job, PeerCall, Scaling
from bench.harness.rates import Work
from foretrain.theory.kernel_functions import KernelFunctions

INPUTS, DIMENSION, DEPTH = 1000, 100, 50
PEER = "neural-tangents"
PRECISION = "float64"
WIDTH = 100  # no cost depends on it

Matrix = npt.NDArray[np.float64]


def jobs() -> list[Job]:
    """All rows."""
    return [
        *(_kernel(name, "closed") for name in ("relu", "erf")),
        _kernel("tanh", None),
        _small_kernel_beside_numerical_peer(),
        _full_vertex(),
        _quadruple(),
        _contraction(),
        _metric_correction(),
        _single_input(),
        _single_input_beside_integrals(),
    ]


def _inputs(count: int) -> Matrix:
    return np.random.default_rng(0).standard_normal((count, DIMENSION))


def _critical(name: str, depth: int) -> ft.MLP:
    found = ft.criticality(name)
    return ft.MLP(name, depth=depth, width=WIDTH, C_b=found.C_b or 0.0, C_W=found.C_W or 1.0)


def _flow(name: str, count: int, depth: int, observable: str, **form: object) -> Callable[[], Arrays]:
    net, X = _critical(name, depth), _inputs(count)

    def call() -> Arrays:
        values: Matrix = ft.flow(net, X, [observable], **form)[observable].values  # type: ignore[arg-type]
        return {observable: values[-1]}

    return call


def _kernel(name: str, route: str | None) -> Job:
    pairs = INPUTS * (INPUTS + 1) / 2
    evaluations = {"arcsin": DEPTH * pairs, "sqrt": DEPTH * pairs} if route == "closed" else {}
    return Job(
        name=f"K {name}, {INPUTS} inputs, {DEPTH} layers",
        how="all layers kept, to 1e-10" + (" / last layer, closed form" if route else ""),
        ours=_flow(name, INPUTS, DEPTH, "K"),
        sizes={"inputs": INPUTS, "layers": DEPTH},
        precision=PRECISION,
        peer_precision="float32" if route else "",
        work=Work("float64", moved=8 * DEPTH * (INPUTS**2 + 2 * pairs), evaluations=evaluations),
        peer=_peer(name, INPUTS, DEPTH, route) if route else None,
        scalings=(
            Scaling("N", {n: _flow(name, n, DEPTH, "K") for n in (125, 250, 500, 1000)}),
            Scaling("L", {depth: _flow(name, INPUTS, depth, "K") for depth in (6, 12, 25, 50)}),
        ),
    )


def _small_kernel_beside_numerical_peer() -> Job:
    count, depth = 200, 10
    return Job(
        name=f"K tanh, {count} inputs, {depth} layers",
        how="to 1e-10 / numerical, 25 nodes",
        ours=_flow("tanh", count, depth, "K"),
        sizes={"inputs": count, "layers": depth},
        precision=PRECISION,
        peer_precision="float32",
        peer=_peer("tanh", count, depth, "numerical"),
    )


def _peer(name: str, count: int, depth: int, route: str) -> PeerCall:
    net = _critical(name, depth)
    options = {"activation": name, "route": route, "degree": 25, "depth": depth}
    options |= {"C_b": net.C_b[0], "C_W": net.C_W[0]}
    return PeerCall(PEER, "network", {"X": _inputs(count).astype(np.float32)}, options)


def _full_vertex() -> Job:
    return Job(
        name="V tanh, all entries, 6 inputs, 20 layers",
        how="four-input expectations at 1e-10",
        ours=_flow("tanh", 6, 20, "V"),
        sizes={"inputs": 6, "layers": 20},
        precision=PRECISION,
        scalings=(
            Scaling("N", {n: _flow("tanh", n, 10, "V") for n in (3, 4, 6, 8)}),
            Scaling("L", {depth: _flow("tanh", 4, depth, "V") for depth in (5, 10, 20, 40)}),
        ),
    )


def _quadruple() -> Job:
    one = np.array([[0, 1, 2, 3]])
    return Job(
        name="V tanh, one quadruple of 6 inputs, 50 layers",
        how="one quadruple / all entries",
        ours=_flow("tanh", 6, 50, "V", quadruples=one),
        sizes={"inputs": 6, "layers": 50, "quadruple": 1},
        precision=PRECISION,
        peer=_flow("tanh", 6, 50, "V"),
        scalings=(
            Scaling("N", {n: _flow("tanh", n, 10, "V", quadruples=one) for n in (4, 16, 64, 256)}),
            Scaling("L", {n: _flow("tanh", 4, n, "V", quadruples=one) for n in (6, 12, 25, 50)}),
        ),
    )


def _contraction() -> Job:
    def contracted(count: int, depth: int) -> Callable[[], Arrays]:
        weights = np.random.default_rng(1).standard_normal((2, count, count)) / count
        return _flow("tanh", count, depth, "V", contract=tuple(weights))

    return Job(
        name="V tanh, contracted with two matrices, 200 inputs, 10 layers",
        how="pull-back with 16,384 draws a layer, standard errors given",
        ours=contracted(200, 10),
        sizes={"inputs": 200, "layers": 10},
        precision=PRECISION,
        scalings=(
            Scaling("N", {n: contracted(n, 6) for n in (50, 100, 200, 400)}),
            Scaling("L", {depth: contracted(100, depth) for depth in (4, 8, 16)}),
        ),
    )


def _metric_correction() -> Job:
    return Job(
        name="G1 tanh, 300 inputs, 10 layers",
        how="blocks of V inside pairs, never the full tensor",
        ours=_flow("tanh", 300, 10, "G1"),
        sizes={"inputs": 300, "layers": 10},
        precision=PRECISION,
        scalings=(
            Scaling("N", {n: _flow("tanh", n, 6, "G1") for n in (75, 150, 300, 600)}),
            Scaling("L", {depth: _flow("tanh", 100, depth, "G1") for depth in (6, 12, 24)}),
        ),
    )


def _deep(depth: int) -> Callable[[], Arrays]:
    net = ft.MLP("tanh", depth=depth, width=WIDTH)

    def call() -> Arrays:
        found = ft.flow(net, [[1.0]], ["K", "V", "G1"])
        return {name: found[name].values.ravel() for name in found}

    return call


def _single_input() -> Job:
    return Job(
        name="K, V, G1 tanh, one input, 100,000 layers",
        how="functions of the kernel from a table that grows",
        ours=_deep(100_000),
        sizes={"input": 1, "layers": 100_000},
        precision=PRECISION,
        scalings=(Scaling("L", {depth: _deep(depth) for depth in (1_000, 10_000, 100_000)}),),
    )


def _single_input_beside_integrals() -> Job:
    depth = 1_000

    def integrating_every_layer() -> Arrays:
        functions, K = KernelFunctions("tanh"), 1.0
        for _ in range(depth - 1):
            K = float(functions.at(K).square)
        return {"K": np.array(K)}

    return Job(
        name=f"K, V, G1 tanh, one input, {depth:,} layers",
        how="table / new integrals at every layer",
        ours=_deep(depth),
        sizes={"input": 1, "layers": depth},
        precision=PRECISION,
        peer=integrating_every_layer,
    )
