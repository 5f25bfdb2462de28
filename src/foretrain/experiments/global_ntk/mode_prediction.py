"""Which target modes a training learns within its steps: forecasts beside real trainings, on tasks kept apart.

Every threshold of ``predict_modes`` was set on Memory-Pro, student and teacher, and Gaussian sequences. Networks of
those tasks stand here as the first family; the second one, flip-flops, delayed match to sample, and filters and
delays, was not looked at before. Recurrent networks, some of them written as loops, are trained by plain descent at
two rates, with momentum, and by Adam, on one batch. The forecast comes first, from a quarter as many gradients.

A verdict is right if it says whether less than half of a mode is left at the end; "undecided" is not right. The order
of two modes of a training is right if the one with less left is foretold to have less; pairs that end within 0.02 of
each other are ties. Errors are binomial.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray

from foretrain.experiments.parts import Parts
from foretrain.experiments.registry import Result, Row, plans
from foretrain.support.answers import BLUE, FAINT, ORANGE, Axis, Figure
from foretrain.support.seeds import spawn

if TYPE_CHECKING:
    from torch import Tensor, nn

_TIE = 0.02  # of a mode
_GOALS = {"verdict": 0.85, "order": 0.95}
_FORECASTS = ("flow", "rehearsal")  # the frozen kernel, and what the verdict is made of
_OPTIMIZERS: dict[str, dict[str, Any]] = {  # rates of descent are parts of the largest stable one
    "slow descent": {"part": 0.1},
    "descent": {"part": 0.4},
    "momentum": {"part": 0.03, "momentum": 0.9},
    "Adam": {"lr": 5e-4, "optimizer": "adam"},
}
_FAMILIES = {
    "tasks that set the thresholds": ("Memory-Pro", "student and teacher"),
    "tasks kept apart": ("flip-flop", "match to sample", "filters and delays"),
}


@dataclass(frozen=True)
class Plan:
    """Units, trials of the batch, steps of the trainings of each seed, and which tasks."""

    units: int
    trials: int
    steps: tuple[int, ...]
    tasks: tuple[str, ...] = sum(_FAMILIES.values(), ())


PLANS = plans(quick=Plan(32, 24, (200, 400)), paper=Plan(64, 32, (300, 600, 1200, 2000)))


def mode_prediction(plan: Plan, seed: int, parts: Parts) -> Result:
    """Rates of right verdicts and orders by family, forecast and optimizer."""
    sources = spawn(seed, len(plan.tasks))
    records = [
        parts.get(f"{task} {cell}", partial(_trained, plan, task, cell, own))
        for task, source in zip(plan.tasks, sources, strict=True)
        for cell, own in zip(("GRU", "loop"), spawn(source, 2), strict=True)
    ]
    data = xarray.concat(records, "mode", combine_attrs="drop_conflicts")
    rows = []
    for family, tasks in _FAMILIES.items():
        own = data.isel(mode=np.isin(data.task, tasks))
        if not own.sizes["mode"]:
            continue
        for name, goal in _GOALS.items():
            for forecast in _FORECASTS:
                right = _rights(own, name, forecast)
                agrees = right.mean() >= goal if forecast == "rehearsal" else None
                rows.append(_row(f"{name} right, {family}, {forecast}", f"at least {goal:g}", right, agrees))
        for kind in _OPTIMIZERS:
            at = own.isel(mode=own.optimizer.values == kind)
            rows.append(
                _row(f"verdict right, {family}, {kind}", "", _rights(at, "verdict", "rehearsal"), None)
            )
        undecided = float((own.verdict == "undecided").mean())
        rows.append(Row(f"undecided, {family}", "", undecided))
        rows.append(Row(f"learned, {family}", "", float((own.left < data.attrs["threshold"]).mean())))
    gradients = float((data.gradients / data.steps).mean())
    rows.append(Row("gradients of the forecast beside those of the training", "", gradients))
    apart = [row for row in rows if "right, tasks kept apart, rehearsal" in row.quantity] or rows[1:4:2]
    said = ", ".join(
        f"{row.quantity.partition(' ')[0]} {row.here:.1%} ± {row.standard_error:.1%}" for row in apart
    )
    counted = (
        data.isel(mode=np.isin(data.task, _FAMILIES["tasks kept apart"])).sizes["mode"] or data.sizes["mode"]
    )
    return Result(
        f"Foretold for {counted} modes of trainings kept apart: right are {said}.", tuple(rows), data, _draw
    )


def _rights(data: xarray.Dataset, what: str, forecast: str) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Which of the verdicts or pairs are right."""
    left, told = data.left.values, data[forecast].values
    if what == "verdict":
        learned = np.where(left < data.attrs["threshold"], "learned", "not learned")
        frozen = np.where(told < data.attrs["threshold"], "learned", "not learned")
        known = np.isfinite(told)
        said = data.verdict.values if forecast == "rehearsal" else frozen
        return np.asarray((said == learned)[known], dtype=bool)
    found = []
    for run in np.unique(data.run):
        at = np.flatnonzero((data.run.values == run) & np.isfinite(told))
        found += [
            (told[i] < told[j]) == (left[i] < left[j])
            for i, j in combinations(at, 2)
            if abs(left[i] - left[j]) > _TIE
        ]
    return np.array(found, dtype=bool)


def _row(quantity: str, expected: str, right: np.ndarray[Any, np.dtype[np.bool_]], agrees: Any) -> Row:
    rate = float(right.mean()) if len(right) else float("nan")
    error = float(np.sqrt(rate * (1 - rate) / max(len(right), 1)))
    note = f"{int(right.sum())} of {len(right)}"
    return Row(quantity, expected, rate, error, None if agrees is None else bool(agrees), note)


def _trained(plan: Plan, task: str, cell: str, seed: np.random.SeedSequence) -> xarray.Dataset:
    """Forecasts for networks of one kind on one task, then their trainings: one row for each mode."""
    import torch

    from foretrain.empirical.mode_prediction import predict_modes
    from foretrain.empirical.rehearsal import Descent
    from foretrain.empirical.target_modes import target_modes

    rows: list[dict[str, Any]] = []
    for steps, own in zip(plan.steps, spawn(seed, len(plan.steps)), strict=True):
        first, drawn = spawn(own, 2)
        x, y = _batch(task, plan.trials, drawn)
        for kind, setting in _OPTIMIZERS.items():
            model = _network(cell, x, y, plan.units, first)
            options = {key: value for key, value in setting.items() if key not in ("part", "lr")}
            lr = setting.get("lr")
            if lr is None:
                lr = (
                    setting["part"]
                    * predict_modes(model, x, y, 1.0, 1, rehearsal=0, accuracy=0.01).largest_rate
                )
            told = predict_modes(model, x, y, lr, steps, accuracy=1e-3, **options)
            # The training itself.
            descent = Descent(lr, options.get("optimizer", "sgd"), options.get("momentum", 0.0))
            optimizer = descent.optimizer(list(model.parameters()))
            for _ in range(steps):
                optimizer.zero_grad()
                (model(x) - y).square().mean().backward()
                optimizer.step()
            with torch.no_grad():
                misfit = (y - model(x)).double().numpy()
            left = np.abs(target_modes(y.double().numpy(), components="trials").shares(misfit))
            rows += [
                {
                    "task": task,
                    "cell": cell,
                    "optimizer": kind,
                    "run": f"{task}, {cell}, {kind}, {steps}",
                    "steps": steps,
                    "name": name,
                    "left": float(left[place]),
                    "verdict": str(told.verdict[place, 0]),
                    "gradients": told.gradients,
                    **{one: float(abs(told.residual[one][place, 0])) for one in _FORECASTS},
                }
                for place, name in enumerate(told.modes)
            ]
    columns = {key: ("mode", np.array([row[key] for row in rows])) for key in rows[0]}
    return xarray.Dataset(columns, attrs={"threshold": told.threshold})


def _batch(task: str, trials: int, seed: np.random.SeedSequence) -> tuple[Tensor, Tensor]:
    import torch

    from foretrain.training import tasks

    makes: dict[str, Callable[[], Any]] = {
        "Memory-Pro": lambda: tasks.MemoryPro(7, 6, 7),
        "student and teacher": lambda: tasks.StudentTeacher(
            6,
            32,
            3,
            20,
            input_rank=6,
            trainable="all",
            seed=int(seed.generate_state(1)[0]),
            dtype=torch.float32,
        ),
        "flip-flop": lambda: tasks.FlipFlop(steps=20),
        "match to sample": tasks.MatchToSample,
        "filters and delays": lambda: tasks.FiltersAndDelays(steps=20),
    }
    x, y = makes[task]().batch(trials, seed)
    return x, y


def _network(cell: str, x: Tensor, y: Tensor, units: int, seed: np.random.SeedSequence) -> nn.Module:
    from foretrain.training import tasks

    sizes = x.shape[-1], units, y.shape[-1]
    if cell == "GRU":
        return tasks.Recurrent(*sizes, "gru", gain=1.3, seed=seed)
    return tasks.LeakyNetwork(*sizes, leak=0.4, gain=1.2, seed=seed)


def _draw(data: xarray.Dataset) -> Figure:
    """What was foretold to be left beside what was left, by family and forecast."""
    figure = Figure("Target modes left at the end of training", columns=2, size=(11, 9.5))
    for family, tasks in _FAMILIES.items():
        own = data.isel(mode=np.isin(data.task, tasks))
        for forecast, color in zip(_FORECASTS, (BLUE, ORANGE), strict=True):
            x, y = Axis("foretold share", low=0, high=1.2), Axis("share left by training", low=0, high=1.2)
            panel = figure.panel(f"{family}: {forecast}", x, y)
            told, left = (np.minimum(values, 1.15) for values in (own[forecast], own.left))
            panel.curve([0, 1.2], [0, 1.2], color=FAINT, width=1)
            panel.curve(told, left, "o", "", color)
            panel.level(x=data.attrs["threshold"])
            panel.level(y=data.attrs["threshold"])
    return figure
