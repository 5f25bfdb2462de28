"""`ft.dntk` and `ft.ddntk` of networks of width 128 in float64, beside torch.func on the same weights and inputs.

The peer is the shortest exact program: with g_b = ∇z_b, the differentials are derivatives by s at s = 0 of
z(θ + Σ s_b g_b): `jacrev(jacrev(...))` for the dNTK, one more `jacrev` for dd_I. A Hessian of all parameters would
not fit: it has 10⁹ entries for each output. Errors are differences from the peer, over its largest entry.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev

import foretrain as ft
from bench.harness.jobs import Arrays, Job

WIDTH = 128
TOLERANCE = 1e-10
PEER = "torch.func, jacrev of jacrev"


class _Skip(nn.Module):
    """z = W_3 (h + tanh(W_2 h)): not a chain, so that `ft.dntk` has to take the way for any model."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.last = nn.Linear(WIDTH, 1)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.first(x))
        found: Tensor = self.last(hidden + torch.tanh(self.second(hidden)))
        return found


def _chain() -> nn.Module:
    return nn.Sequential(
        nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1)
    )


@dataclass(frozen=True)
class Case:
    """A network, how many inputs, which differential, and the ratio aimed at."""

    name: str
    build: Callable[[], nn.Module]
    inputs: int
    order: int
    aim: float


CASES = (
    Case("dntk of an MLP of 3 layers, N = 8", _chain, 8, 2, 10.0),
    Case("dntk of a network with a skip, N = 8", _Skip, 8, 2, 2.0),
    Case("dd_I and dd_II of an MLP of 3 layers, N = 4 (peer: dd_I)", _chain, 4, 3, 30.0),
)


def jobs() -> list[Job]:
    """All rows."""
    return [job(case) for case in CASES]


def job(case: Case) -> Job:
    """A case with its peer."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model, x = case.build().double(), torch.randn(case.inputs, WIDTH, dtype=torch.float64)
    nested = _nested(model, x, case.order)

    def ours() -> Arrays:
        found = ft.dntk(model, x) if case.order == 2 else ft.ddntk(model, x).dd_I
        return {"differential": np.asarray(found).reshape((case.inputs,) * (1 + case.order))}

    def error(arrays: Arrays) -> float:
        expected = nested()["differential"]
        return float(np.abs(arrays["differential"] - expected).max() / np.abs(expected).max())

    return Job(
        name=case.name,
        how="weights and inputs of seed 0",
        ours=ours,
        sizes={"inputs": case.inputs, "units a layer": WIDTH, "output": 1},
        precision="float64",
        peer={PEER: nested},
        aim=case.aim,
        tolerance=TOLERANCE,
        error=error,
    )


def _nested(model: nn.Module, x: Tensor, order: int) -> Callable[[], Arrays]:
    values = {name: value.detach() for name, value in model.named_parameters()}

    def outputs(parameters: dict[str, Tensor]) -> Tensor:
        found: Tensor = functional_call(model, parameters, (x,))[:, 0]
        return found

    def run() -> Arrays:
        gradients = jacrev(outputs)(values)

        def moved(s: Tensor) -> Tensor:
            return outputs(
                {name: value + torch.tensordot(s, gradients[name], dims=1) for name, value in values.items()}
            )

        function: Callable[[Tensor], Tensor] = moved
        for _ in range(order):
            function = jacrev(function)
        return {"differential": function(torch.zeros(len(x), dtype=x.dtype)).numpy()}

    return run
