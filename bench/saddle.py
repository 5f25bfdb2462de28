"""What escape times cost: adaptive gradient flow beside stochastic gradient descent on the published network.

He-normal tanh networks of depth 8 and width 128 whose first r layers are multiplied by ε, until the loss is below
0.02; descent at the published rate 0.01 and batch 512, the flow on as many quasi-random points, both in float32, one
network at a time. Errors of times are relative to a flow in float64 on 2048 points. The rows of gradients show as
error how many the flow takes for each step of descent: green if at most one for a hundred, which is asked where
descent takes more than 10,000 steps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import torch

from bench.harness.jobs import Arrays, Job
from foretrain.training.gradient_flow import (
    Integration,
    Networks,
    Problem,
    escape,
    gaussian_sample,
    scaled_he,
    stochastic_escape,
)

DEPTH, WIDTH = 8, 128
THRESHOLD = 0.02
RATE, BATCH = 0.01, 512
AIM = 0.01  # gradients of the flow for each step of descent
LONG = 10_000  # steps
QUICKLY = 1_000  # steps that a quick run takes


@dataclass(frozen=True)
class Case:
    """r small layers at ε, and about how many steps descent takes."""

    small_layers: int
    epsilon: float
    about: int

    @property
    def name(self) -> str:
        return f"r = {self.small_layers}, ε = {self.epsilon:g}, about {self.about:,} steps of SGD"

    def network(self) -> tuple[Problem, Networks]:
        """The published architecture; the same draw for every side."""
        problem = Problem("tanh", depth=DEPTH, width=WIDTH, inputs=16)
        return problem, scaled_he(problem, self.small_layers, self.epsilon, seeds=[0])


CASES = (Case(3, 0.03, 500), Case(5, 0.12, 2_500), Case(8, 0.22, 13_000))


def jobs() -> list[Job]:
    """Time and gradients of every case."""
    return [make(case) for case in CASES for make in (_times, _gradients)]


def _job(case: Case, what: str, **more: Any) -> Job:
    """Of the flow, with the labels that all rows share."""
    sizes = {"layers": DEPTH, "units a layer": WIDTH, "points": BATCH}
    return Job(
        name=f"{what}, {case.name}",
        ours=partial(_flow, case),
        sizes=sizes,
        precision="float32",
        long=case.about > QUICKLY,
        **more,
    )


def _times(case: Case) -> Job:
    return _job(
        case,
        "escape time",
        how="adaptive flow / SGD; error: of the escape time",
        peer={"SGD": partial(_descent, case)},
        error=_error(case),
        peer_error=_error(case),
    )


def _gradients(case: Case) -> Job:
    return _job(
        case,
        "gradients",
        how="error: gradients of the flow for each step that SGD takes in the same time",
        error=lambda found: float(found["gradients"] * RATE / _reference(case)),
        tolerance=AIM if case.about > LONG else None,
    )


def _flow(case: Case) -> Arrays:
    problem, networks = case.network()
    rules = Integration(rtol=1e-3, dtype=torch.float32)
    sample = gaussian_sample(problem, BATCH)
    found = escape(problem, networks, thresholds=(THRESHOLD,), sample=sample, integration=rules)
    return {"time": found["time"].values[0], "gradients": found["evaluations"].values[0]}


def _descent(case: Case) -> Arrays:
    """Looked at every 20 steps on a sample four times as large, which adds a tenth to the arithmetic."""
    problem, networks = case.network()
    found = stochastic_escape(
        problem,
        networks,
        lr=RATE,
        batch_size=BATCH,
        steps=2 * case.about,
        thresholds=(THRESHOLD,),
        sample=gaussian_sample(problem, 4 * BATCH),
        every=20,
        dtype=torch.float32,
        seed=1,
    )
    return {"time": found["time"].values[0]}


def _error(case: Case) -> Callable[[Arrays], float]:
    return lambda found: float(abs(found["time"][0] / _reference(case) - 1))


@cache
def _reference(case: Case) -> float:
    problem, networks = case.network()
    sample, rules = gaussian_sample(problem, 2048, seed=1), Integration(rtol=1e-5)
    found = escape(problem, networks, thresholds=(THRESHOLD,), sample=sample, integration=rules)
    return float(np.squeeze(found["time"].values))
