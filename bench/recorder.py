"""What a `Recorder` costs a real loop: an MLP learning from another one, through a shuffled DataLoader.

Records are due at every step, and the budget thins them. A row's time is that of everything (first-time work, the
loop, the dataset at the end), beside the loop alone. Its error is the share of time that recording adds to the loop
and its last record, measured by the clock in loops with and without a recorder that take turns: green within the
budget.
"""

from __future__ import annotations

import tempfile
import warnings
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np
import torch
from torch import nn

from bench.harness.jobs import Arrays, Job
from foretrain.training import observables
from foretrain.training.recorder import Recorder

BUDGETS = (0.01, 0.05, 0.2)
SAMPLES, PIXELS, CLASSES, WIDTH = 2048, 64, 10, 128  # about the size of scikit-learn's digits
BATCH = 32
EPOCHS = 100
TURNS = 3


def jobs() -> list[Job]:
    """One row a budget."""
    return [_job(budget) for budget in BUDGETS]


def _job(budget: float) -> Job:
    steps = EPOCHS * SAMPLES // BATCH
    return Job(
        name=f"Recorder, budget {budget:g}: {steps} steps of an MLP {PIXELS}-{WIDTH}-{WIDTH}-{CLASSES}",
        how="loss, spectra and NTK shares due at every step; error: share of the time that it adds / the loop alone",
        ours=partial(_recorded, budget),
        sizes={"steps": steps, "samples": SAMPLES, "units a layer": WIDTH},
        precision="float32",
        long=True,
        peer={"the loop alone": _alone},
        error=lambda _: _added_share(budget),
        tolerance=budget,
    )


def _training() -> tuple[
    nn.Module, torch.optim.Optimizer, torch.utils.data.DataLoader[tuple[torch.Tensor, ...]]
]:
    torch.manual_seed(0)
    teacher, model = _network(), _network()
    x = torch.randn(SAMPLES, PIXELS)
    labels = teacher(x).argmax(1)
    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(x, labels), batch_size=BATCH, shuffle=True
    )
    return model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), loader


def _network() -> nn.Module:
    layers = [
        nn.Linear(PIXELS, WIDTH),
        nn.ReLU(),
        nn.Linear(WIDTH, WIDTH),
        nn.ReLU(),
        nn.Linear(WIDTH, CLASSES),
    ]
    return nn.Sequential(*layers)


def _loop(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loader: torch.utils.data.DataLoader[tuple[torch.Tensor, ...]],
) -> None:
    for _ in range(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()


def _alone() -> Arrays:
    training = _training()
    start = perf_counter()
    _loop(*training)
    return {"seconds": np.array(perf_counter() - start)}


def _recorded(budget: float) -> Arrays:
    """Seconds from the first step to the end of the last record, and what the recorder says of itself."""
    model, optimizer, loader = _training()
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="the first and the last record")
        recorder = Recorder(
            Path(folder) / "run",
            model,
            ["loss", "weight_spectra", observables.ntk_shares(samples=8)],
            batch=loader,
            loss=nn.functional.cross_entropy,
            optimizer=optimizer,
            every=1,
            budget=budget,
        )
        start = perf_counter()
        _loop(model, optimizer, loader)
        recorder.close()
        seconds = perf_counter() - start - recorder.summary().closing_seconds
    return {
        "seconds": np.array(seconds),
        "overhead": np.array(recorder.overhead),
        "records": np.array(recorder.records),
    }


def _added_share(budget: float) -> float:
    """1 - without / with, medians of loops that take turns; not below 0, which noise may give."""
    turns = [(float(_alone()["seconds"]), float(_recorded(budget)["seconds"])) for _ in range(TURNS)]
    without, recorded = (median(times) for times in zip(*turns))
    return max(0.0, 1.0 - without / recorded)
