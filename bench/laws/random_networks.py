"""Theory: Gaussian averages, tensors of random networks, predictions of trained ones, escape times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

import foretrain as ft
from bench.laws.law import Job, Law
from foretrain.gaussian import gram

LAYERS, FEW_LAYERS = 10, 5
FOUR_POINT = ("V", "D", "F", "A", "B")
DIFFERENTIALS = ("P", "Q", "R", "S", "T", "U")
NUMBER = 8.0  # bytes
BY_ENTRIES = "chosen quadruples (`quadruples=`) or sums (`contract=`)"
IN_PRODUCTS = "products with the kernel of a torch network (`ft.ntk_operator`), or a sample of the inputs"
WITHOUT_SPREAD = "`spread='variance'`; `ft.ntk(..., store=)` with its streamed regression"


def laws() -> list[Law]:
    """Costs of `ft.gaussian`, `ft.flow`, `ft.predict` and `ft.saddle`."""
    return [*_kernels(), *_tensors(), *_predictions(), _escape()]


def _kernels() -> list[Law]:
    return [
        Law(
            "averages of all pairs, tanh (`gaussian.gram`)",
            "N",
            "inputs",
            (500, 1000, 2000),
            (0, 2),
            _gram,
            lambda size: NUMBER * size**2,
            instead=IN_PRODUCTS,
        ),
        Law(
            f"`K` at infinite width, relu, {LAYERS} layers",
            "N",
            "inputs",
            (1000, 2000, 3000),
            (0, 2),
            lambda size: _flow("relu", size, ["K"]),
            lambda size: LAYERS * NUMBER * size**2,
            instead=IN_PRODUCTS,
        ),
        Law(
            f"`K` and `Theta` at infinite width, tanh, {LAYERS} layers",
            "N",
            "inputs",
            (250, 500, 1000),
            (0, 2),
            lambda size: _flow("tanh", size, ["K", "Theta"]),
            lambda size: 2 * LAYERS * NUMBER * size**2,
            instead=IN_PRODUCTS,
        ),
        Law(
            "`K` and `Theta` of 200 inputs, tanh",
            "L",
            "layers",
            (5, 10, 20, 40),
            (0, 1),
            lambda size: _flow("tanh", 200, ["K", "Theta"], layers=size),
            lambda size: 2 * NUMBER * 200**2 * size,
            large=(1e3, 1e5),
            divides=False,
            instead="one input at any depth, or the laws of `theory.asymptotics`",
        ),
        Law(
            "`G1` and `H1`, tanh, 5 layers",
            "N",
            "inputs",
            (50, 100, 200),
            (0, 2),
            lambda size: _flow("tanh", size, ["G1", "H1"], layers=FEW_LAYERS),
            lambda size: 2 * FEW_LAYERS * NUMBER * size**2,
            large=(1e4, 1e6),
            instead="the pairs that matter",
        ),
    ]


def _tensors() -> list[Law]:
    return [
        Law(
            "`V`, all entries, tanh, 5 layers",
            "N",
            "inputs",
            (4, 6, 8, 12),
            (0, 4),
            lambda size: _flow("tanh", size, ["V"], layers=FEW_LAYERS),
            lambda size: FEW_LAYERS * NUMBER * size**4,
            large=(1e2, 1e3),
            instead=BY_ENTRIES,
        ),
        Law(
            "`V`, `D`, `F`, `A`, `B`, all entries, tanh, 5 layers",
            "N",
            "inputs",
            (3, 4, 6, 8),
            (0, 4),
            lambda size: _flow("tanh", size, FOUR_POINT, layers=FEW_LAYERS),
            lambda size: 5 * FEW_LAYERS * NUMBER * size**4,
            large=(1e2, 1e3),
            instead=BY_ENTRIES,
        ),
        Law(
            "`V`, `D`, `F`, `A`, `B` at chosen quadruples, tanh, 5 layers",
            "Q",
            "quadruples",
            (4, 8, 16, 32),
            (0, 1),
            _quadruples,
            lambda size: 5 * FEW_LAYERS * NUMBER * size,
        ),
        Law(
            "`V` contracted with two matrices, tanh, 5 layers",
            "N",
            "inputs",
            (50, 100, 200),
            (1, 2),
            _contraction,
            lambda size: FEW_LAYERS * NUMBER,
            large=(1e4, 1e6),
            moved=lambda size: 2 * NUMBER * size**2,
            held=lambda size: 2 * NUMBER * size**2,  # both matrices, for every draw
            instead="matrices of low rank on a sample of the inputs",
        ),
        Law(
            "`P` to `U`, all entries, tanh, 3 layers",
            "N",
            "inputs",
            (2, 3, 4, 6),
            (0, 4),
            lambda size: _flow("tanh", size, DIFFERENTIALS, layers=3),
            lambda size: 6 * 3 * NUMBER * size**4,
            large=(1e2, 1e3),
            instead="chosen quadruples (`quadruples=`)",
        ),
        Law(
            "all tensors `K` to `U` of one input, tanh",
            "L",
            "layers",
            (3000, 10000, 30000),
            (0, 1),
            _one_input,
            lambda size: 15 * NUMBER * size,
            large=(1e6, 1e8),
            divides=False,
            instead="the laws of `theory.asymptotics`",
        ),
    ]


def _predictions() -> list[Law]:
    return [
        Law(
            "prediction at infinite width, relu, 3 layers",
            "N",
            "training inputs",
            (500, 1000, 2000, 4000),
            (0, 2, 3),
            lambda size: _prediction(size, learner="gradient_descent"),
            lambda size: 2 * NUMBER * size**2,
            large=(1e5, 1e6),
            divides=False,
            instead=WITHOUT_SPREAD,
        ),
        Law(
            "posterior at infinite width, relu, 3 layers",
            "N",
            "training inputs",
            (500, 1000, 2000, 4000),
            (0, 2, 3),
            lambda size: _prediction(size, learner="bayes"),
            lambda size: NUMBER * size**2,
            large=(1e5, 1e6),
            divides=False,
            instead=WITHOUT_SPREAD,
        ),
        Law(
            "prediction to order 1/n, tanh, 2 layers",
            "N",
            "training inputs",
            (2, 3, 4, 5),
            (0, 4),
            lambda size: _finite(size, learner="gradient_descent"),
            lambda size: 15 * NUMBER * size**4,
            large=(1e2, 1e3),
            instead="infinite width, and `ft.compare(..., trained=True)` for the rest",
        ),
        Law(
            "posterior to order 1/n, tanh, 2 layers",
            "N",
            "training inputs",
            (3, 4, 6, 8),
            (0, 4),
            lambda size: _finite(size, learner="bayes"),
            lambda size: NUMBER * size**4,
            large=(1e2, 1e3),
            instead="`importance_posterior`, which samples networks",
        ),
    ]


def _escape() -> Law:
    """The plateau lasts a hundred times as long for every decade; its integration takes some steps more."""
    return Law(
        "escape time of tanh, depth 4, exact scalar flow",
        "d",
        "decades of the amplitude below 1",
        (4, 6, 8, 10),
        (0, 1),
        lambda size: (
            lambda: ft.saddle.escape_time(
                "tanh", [10.0**-size] * 4, width=64, threshold=0.3, method="reduced"
            )
        ),
        lambda size: NUMBER,
        large=(10.0, 100.0),
        divides=False,
    )


def _inputs(count: int, width: int = 20) -> npt.NDArray[np.float64]:
    return np.random.default_rng(0).standard_normal((count, width))


def _gram(size: int) -> Job:
    X = _inputs(size, 50)
    K = X @ X.T / 50
    return lambda: gram("tanh", K)


def _flow(activation: str, size: int, names: Sequence[str], layers: int = LAYERS) -> Job:
    network, X = ft.MLP.critical(activation, depth=layers, width=100), _inputs(size)
    return lambda: ft.flow(network, X, names)


def _quadruples(size: int) -> Job:
    network, X = ft.MLP.critical("tanh", depth=FEW_LAYERS, width=100), _inputs(4 * size, 10)
    chosen = np.arange(4 * size).reshape(size, 4)
    return lambda: ft.flow(network, X, FOUR_POINT, quadruples=chosen)


def _contraction(size: int) -> Job:
    network, X = ft.MLP.critical("tanh", depth=FEW_LAYERS, width=100), _inputs(size)
    first, second = np.random.default_rng(1).standard_normal((2, size, size)) / size
    return lambda: ft.flow(network, X, ["V"], contract=(first, second))


def _one_input(depth: int) -> Job:
    network = ft.MLP("tanh", depth=depth, width=100)
    names = ["K", "Theta", *FOUR_POINT, "G1", "H1", *DIFFERENTIALS]
    return lambda: ft.flow(network, [[1.0]], names)


def _prediction(size: int, **options: Any) -> Job:
    network, X = ft.MLP.critical("relu", depth=3, width=100), _inputs(size + 10)
    return lambda: ft.predict(network, X[10:], X[10:, 0], X[:10], **options)


def _finite(size: int, **options: Any) -> Job:
    network, X = ft.MLP("tanh", depth=2, width=1000, C_b=0.1, C_W=1.3, lambda_b=0.5), _inputs(size + 1)
    return lambda: ft.predict(network, X[1:], X[1:, 0], X[:1], regime="finite", **options)
