"""`python -m bench.scaling`: how costs grow, measured at small sizes, fitted, kept with a date, and extrapolated.

Each law is a sum of powers of one size with constants that are not negative, fitted to CPU seconds of
one core with equal relative weights. The powers come from reading the code, the constants from the measurement; the
exponent between the two largest sizes is shown beside them, so that a model that does not fit can be seen.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from scipy.optimize import nnls
from threadpoolctl import threadpool_limits

import foretrain as ft
from bench.harness import records
from bench.harness.rates import Rates
from bench.peer_side.torch_networks import perceptron
from foretrain.support.errors import ForetrainError
from foretrain.support.progress import track

KIND = "scaling"
WIDTHS = (784, 1000, 1000, 10)
GRU_UNITS, GRU_STEPS = 128, 50
LAYERS = 10
REPEATS = 3
BUDGET = 6.0  # seconds of the clock after which a size is not repeated
LARGE = (1e4, 1e6, 1e9)
STRIP = 6000  # samples whose factors a worker of 700 MB holds, see docs/large-kernels.md

Job = Callable[[], object]


@dataclass(frozen=True)
class Law:
    """A computation whose cost depends on one size: how it is made, and what it must hold and move."""

    name: str
    of: str  # what the size counts
    sizes: tuple[int, ...]
    powers: tuple[int, ...]
    make: Callable[[int], Job]
    result: Callable[[float], float]  # bytes of the answer
    moved: Callable[[float], float]  # bytes read and written through a shared disk or network


@dataclass(frozen=True)
class Fit:
    """What was measured, and the constants of the law in core seconds."""

    name: str
    of: str
    sizes: list[int]
    seconds: list[float]
    powers: list[int]
    constants: list[float]
    exponent: float  # between the two largest sizes
    worst: float  # largest relative deviation of the fit from a measurement

    def at(self, size: float) -> float:
        """Core seconds at a size."""
        return float(sum(c * size**p for c, p in zip(self.constants, self.powers)))


def laws() -> list[Law]:
    """The computations of the library that people run at many sizes."""
    inputs = 4.0 * WIDTHS[0]
    parameters = 4.0 * sum((before + 1) * after for before, after in pairwise(WIDTHS))
    states = 4.0 * GRU_UNITS * GRU_STEPS
    return [
        Law(
            f"K at infinite width, relu, {LAYERS} layers",
            "inputs",
            (250, 500, 1000, 1500),
            (0, 2),
            lambda size: _flow("relu", size, ["K"]),
            lambda size: 8 * size**2,
            lambda size: 8 * size**2,
        ),
        Law(
            f"K and Theta at infinite width, tanh, {LAYERS} layers",
            "inputs",
            (250, 500, 1000),
            (0, 2),
            lambda size: _flow("tanh", size, ["K", "Theta"]),
            lambda size: 16 * size**2,
            lambda size: 16 * size**2,
        ),
        Law(
            "V, D, F, A, B at chosen quadruples, tanh, 5 layers",
            "quadruples",
            (4, 8, 16, 32),
            (0, 1),
            _quadruples,
            lambda size: 5 * 8 * size,
            lambda size: 5 * 8 * size,
        ),
        Law(
            "prediction of trained networks at infinite width, relu",
            "training inputs",
            (500, 1000, 2000),
            (2, 3),
            _prediction,
            lambda size: 16 * size**2,
            lambda size: 16 * size**2,
        ),
        Law(
            "NTK of an MLP 784-1000-1000-10, trace, float32",
            "inputs",
            (128, 256, 512, 1024),
            (1, 2),
            _tangent_kernel,
            lambda size: 4 * size**2,
            lambda size: 4 * size**2 + inputs * size**2 / (2 * STRIP),
        ),
        Law(
            "one product with that NTK, never formed",
            "inputs",
            (128, 256, 512, 1024),
            (0, 1),
            _product,
            lambda size: 40 * size,
            lambda size: inputs * size + 2 * parameters,
        ),
        Law(
            f"one product with the global-state NTK, GRU of {GRU_UNITS} units, {GRU_STEPS} steps",
            "samples",
            (8, 16, 32, 64),
            (0, 1),
            _state_product,
            lambda size: states * size,
            lambda size: 2 * states * size,
        ),
    ]


def _inputs(size: int, width: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.random.default_rng(0).standard_normal((size, width))


def _flow(activation: str, size: int, names: Sequence[str]) -> Job:
    network, X = ft.MLP.critical(activation, depth=LAYERS, width=100), _inputs(size, 20)
    return lambda: ft.flow(network, X, names)


def _quadruples(size: int) -> Job:
    network, X = ft.MLP.critical("tanh", depth=5, width=100), _inputs(4 * size, 10)
    chosen = np.arange(4 * size).reshape(size, 4)
    return lambda: ft.flow(network, X, ["V", "D", "F", "A", "B"], quadruples=chosen)


def _prediction(size: int) -> Job:
    network, X = ft.MLP.critical("relu", depth=3, width=100), _inputs(size + 10, 20)
    return lambda: ft.predict(network, X[10:], X[10:, 0], X[:10])


def _perceptron(size: int) -> tuple[torch.nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    return perceptron(WIDTHS), torch.randn(size, WIDTHS[0])


def _tangent_kernel(size: int) -> Job:
    model, x = _perceptron(size)
    return lambda: ft.ntk(model, x, outputs="trace")


def _product(size: int) -> Job:
    model, x = _perceptron(size)
    operator, vector = ft.ntk_operator(model, x), torch.randn(size, WIDTHS[-1])
    return lambda: operator.matvec(vector)


def _state_product(size: int) -> Job:
    torch.manual_seed(0)
    model = torch.nn.GRU(16, GRU_UNITS, batch_first=True)
    kernel = ft.global_ntk(model, torch.randn(size, GRU_STEPS, 16))
    vector = torch.randn(size, GRU_STEPS, GRU_UNITS)
    return lambda: kernel.matvec(vector)


def core_seconds(job: Job) -> float:
    """The least CPU time of a few calls after a first one."""
    job()
    found: list[float] = []
    end = time.monotonic() + BUDGET
    while len(found) < REPEATS and (not found or time.monotonic() < end):
        start = time.process_time()
        job()
        found.append(time.process_time() - start)
    return min(found)


def fit(law: Law, seconds: Sequence[float]) -> Fit:
    """Constants of the powers, none negative, by least squares of relative deviations."""
    sizes, times = np.array(law.sizes, dtype=float), np.array(seconds)
    columns = np.stack([sizes**power / times for power in law.powers], axis=1)
    scale = columns.max(axis=0)
    constants = nnls(columns / scale, np.ones(len(times)))[0] / scale
    deviation = np.abs(columns @ constants - 1).max()
    exponent = np.log(times[-1] / times[-2]) / np.log(sizes[-1] / sizes[-2])
    return Fit(
        law.name,
        law.of,
        list(law.sizes),
        [float(value) for value in times],
        list(law.powers),
        [float(value) for value in constants],
        float(exponent),
        float(deviation),
    )


def measured() -> dict[str, Any]:
    """Everything measured and fitted, with what a reader must know of the machine."""
    facts, threads = records.machine_facts(), torch.get_num_threads()
    torch.set_num_threads(1)  # threads that wait for each other would count as work
    with threadpool_limits(1):
        fits = [
            asdict(fit(law, [core_seconds(law.make(size)) for size in law.sizes]))
            for law in track(laws(), "scaling")
        ]
        rate = Rates().gemm("float32")
    torch.set_num_threads(threads)
    return facts | {"gemm float32 of one core [flop/s]": rate, "fits": fits}


def latest() -> dict[str, Any]:
    """The newest record of the folder of results."""
    return records.latest(KIND, "python -m bench.scaling")


def fitted_table(record: dict[str, Any]) -> str:
    """Markdown: the laws with their constants, and how well they fit."""
    rows = [
        "| computation | core seconds | measured at | exponent at the end | worst deviation |",
        "|---|---|---|---|---|",
    ]
    for found in map(_fit_of, record["fits"]):
        terms = [f"{c:.2g} {_power(found.of, p)}" for c, p in zip(found.constants, found.powers) if c > 0]
        sizes = f"{found.sizes[0]:,} to {found.sizes[-1]:,}"
        rows.append(
            f"| {found.name} | {' + '.join(terms)} | {sizes} | {found.exponent:.2f} | {found.worst:.0%} |"
        )
    return "\n".join(rows)


def large_table(record: dict[str, Any]) -> str:
    """Markdown: core hours, bytes of the answer and bytes moved at large sizes, extrapolated."""
    heads = [f"{size:.0e}".replace("e+0", "e") for size in LARGE]
    rows = [
        "| computation | " + " | ".join(f"at {head}" for head in heads) + " |",
        "|---" * (1 + len(LARGE)) + "|",
    ]
    known = {law.name: law for law in laws()}
    for found in map(_fit_of, record["fits"]):
        law = known[found.name]
        cells = [
            f"{_hours(found.at(size))}; {_bytes(law.result(size))}; {_bytes(law.moved(size))}"
            for size in LARGE
        ]
        rows.append(f"| {found.name}, by {found.of} | " + " | ".join(cells) + " |")
    return "\n".join(rows)


def _fit_of(entry: dict[str, Any]) -> Fit:
    return Fit(**entry)


def _power(of: str, power: int) -> str:
    letter = {"quadruples": "Q", "samples": "B"}.get(of, "N")
    return "" if power == 0 else letter if power == 1 else f"{letter}^{power}"


def _hours(seconds: float) -> str:
    hours = seconds / 3600
    return f"{seconds:.2g} core s" if hours < 0.1 else f"{_short(hours)} core h"


def _bytes(count: float) -> str:
    for unit, size in (("EB", 1e18), ("PB", 1e15), ("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{_short(count / size)} {unit}"
    return f"{count:.0f} B"


def _short(value: float) -> str:
    return f"{value:.2g}" if value < 100 else f"{value:,.0f}" if value < 1e6 else f"{value:.1e}"


def main() -> int:
    """Measure, keep the record, print both tables."""
    parser = argparse.ArgumentParser(prog="python -m bench.scaling", description=__doc__)
    parser.add_argument("--show", action="store_true", help="show the newest record instead of measuring")
    if not parser.parse_args().show:
        record = measured()
        print(f"kept in {records.keep(record, records.path_of(KIND, record['date']))}")
    try:
        print(fitted_table(latest()), large_table(latest()), sep="\n\n")
    except ForetrainError as error:
        raise SystemExit(str(error)) from None
    return 0


if __name__ == "__main__":
    sys.exit(main())
