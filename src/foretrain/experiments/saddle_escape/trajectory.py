"""Whole networks against the scalar flow (Rawal & DeWeese, figure 1): the loss and every amplitude X_l.

tanh, depth 4, width 64, 16 inputs, on the symmetric manifold with X = (0.03, 0.05, 0.07, 0.09), normalized metric.
The population gradient flow of the whole network should lie on the scalar flow (4), and stochastic gradient descent
on fresh batches should scatter about it. At the quick size descent runs in a narrower network with larger scales,
beside the scalar flow of its own size. Times are matrix times s = learning rate of the first layer × steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import xarray

from foretrain.compare.judging.agreement import largest_score_allowed
from foretrain.experiments.judgements import claim_row
from foretrain.experiments.pictures import coloured
from foretrain.experiments.registry import Result, Row, plans
from foretrain.saddle import escape_time, reduced_flow
from foretrain.support.answers import BLUE, INK, Figure, log
from foretrain.support.progress import track
from foretrain.support.seeds import spawn, torch_generator
from foretrain.theory.architecture import FloatArray

if TYPE_CHECKING:
    import torch


_SCALES = (0.03, 0.05, 0.07, 0.09)
_SNAPSHOTS = 25
_THRESHOLD, _BEYOND = 0.3, 1.25  # snapshots reach beyond the escape by this factor
_FLOW_ERROR = 1e-3  # of the population average over a finite sample


@dataclass(frozen=True)
class Descent:
    """Stochastic gradient descent: the size of the network, the factor of the scales, and the steps."""

    width: int
    inputs: int
    factor: float
    batch: int
    steps: int
    seeds: int


@dataclass(frozen=True)
class Plan:
    """The whole network that flows, its sample, and the one that descends."""

    width: int
    inputs: int
    points: int
    descent: Descent


PLANS = plans(
    quick=Plan(64, 16, 4096, Descent(16, 16, 1.5, 128, 8000, 8)),
    paper=Plan(64, 16, 32768, Descent(64, 16, 1.0, 32768, 120_000, 5)),
)


def saddle_trajectory(plan: Plan, seed: int) -> Result:
    """Loss and amplitudes of whole networks, by flow and by descent, beside those of the scalar flow."""
    from foretrain.training import gradient_flow as flows

    # The adaptive flow of the whole network.
    problem = flows.Problem("tanh", depth=len(_SCALES), width=plan.width, inputs=plan.inputs)
    sample, rules = flows.gaussian_sample(problem, plan.points), flows.Integration(rtol=1e-6)
    start, times = flows.ansatz(problem, _SCALES), _times(plan.width, 1.0)
    shots = flows.snapshots(problem, start, times, metric="normalized", sample=sample, integration=rules)
    seen = flows.trajectory(problem, shots, sample=sample).isel(network=0)
    X, loss = seen["amplitude"].isel(mode=0).values, seen["loss"].values
    # Twice the same network: errors are zero.
    flow, descent = (
        _beside_flow(times, np.stack([X, X]), np.stack([loss, loss]), plan.width, 1.0),
        plan.descent,
    )
    moved = _descend(descent, seed)
    steps = _beside_flow(*moved, descent.width, descent.factor)
    data = xarray.concat([flow, steps], dim=xarray.Variable("run", ["flow", "descent"]), combine_attrs="drop")
    attributes = {key: getattr(descent, key) for key in ("factor", "batch", "steps", "seeds")}
    rate = float(moved[0][-1]) / descent.steps
    data = data.assign_attrs(width=plan.width, descent_width=descent.width, **attributes, rate=rate)
    flow, steps = data.sel(run="flow"), data.sel(run="descent")
    rows = (*_flow_rows(flow), *_descent_rows(steps))
    distance = float(np.abs(flow["X"] / flow["X_exact"] - 1).max())
    largest = max(np.abs(score).max() for score in scores(steps).values())
    verdict = (
        f"The flow of the whole network stays within {distance:.1e} of the scalar flow in every X_l; SGD (width "
        f"{descent.width}, batch {descent.batch}, {descent.steps} steps, {descent.seeds} seeds) within "
        f"{largest:.1f} standard errors of its own."
    )
    return Result(verdict, rows, data, _draw)


def _times(width: int, factor: float) -> FloatArray:
    """The snapshots: from the start to beyond the escape."""
    scales = factor * np.array(_SCALES)
    escape = escape_time("tanh", scales, width=width, threshold=_THRESHOLD, method="reduced")
    return np.linspace(0.0, _BEYOND * escape, _SNAPSHOTS)


def _beside_flow(
    times: FloatArray, X: FloatArray, loss: FloatArray, width: int, factor: float
) -> xarray.Dataset:
    """Means over networks (network, snapshot, ..), with errors, and the scalar flow at these times and as a curve."""
    scales, layered = factor * np.array(_SCALES), ("snapshot", "layer")
    (X_mean, X_error), (loss_mean, loss_error) = (
        (each.mean(axis=0), each.std(axis=0, ddof=1) / np.sqrt(len(each))) for each in (X, loss)
    )
    exact = reduced_flow("tanh", scales, width=width, times=times)
    curve = reduced_flow("tanh", scales, width=width, until=float(times[-1]))
    return xarray.Dataset(
        {
            "time": ("snapshot", times),
            "X": (layered, X_mean),
            "X_error": (layered, X_error),
            "loss": ("snapshot", loss_mean),
            "loss_error": ("snapshot", loss_error),
            "X_exact": (layered, exact["X"].values),
            "loss_exact": ("snapshot", exact["loss"].values),
            "curve_time": ("point", curve["time"].values),
            "curve_X": (("point", "layer"), curve["X"].values),
            "curve_loss": ("point", curve["loss"].values),
        },
        coords={"layer": np.arange(1, len(_SCALES) + 1)},
    )


def _descend(sizes: Descent, seed: int) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Plain descent on fresh batches, gradients by torch itself: times, X and losses (seed, snapshot, ..)."""
    import torch

    from foretrain.training.gradient_flow import Problem, amplitudes, ansatz, gaussian_sample

    problem = Problem("tanh", depth=len(_SCALES), width=sizes.width, inputs=sizes.inputs)
    times = _times(sizes.width, sizes.factor)
    due = set(np.linspace(0, sizes.steps, _SNAPSHOTS).round().astype(int).tolist())
    rates = [times[-1] / sizes.steps * rate for rate in problem.rates("normalized")]
    start = ansatz(problem, np.tile(sizes.factor * np.array(_SCALES), (sizes.seeds, 1)))
    weights = [values.clone().requires_grad_() for values in start.weights]
    sources = [torch_generator(own) for own in spawn(seed, sizes.seeds)]
    points = gaussian_sample(problem, 2048).points
    X, losses = [], []
    for step in track(range(sizes.steps + 1), "steps of descent"):
        if step in due:
            with torch.no_grad():
                X.append(amplitudes(problem, tuple(weights))[..., 0].numpy())
                losses.append(_losses(weights, points.expand(sizes.seeds, -1, -1)).numpy())
        shape = (sizes.inputs, sizes.batch)
        drawn = [torch.randn(shape, generator=source, dtype=torch.float64) for source in sources]
        gradients = torch.autograd.grad(_losses(weights, torch.stack(drawn)).sum(), weights)
        with torch.no_grad():
            for values, rate, gradient in zip(weights, rates, gradients):
                values -= rate * gradient
    return times, np.stack(X, axis=1), np.stack(losses, axis=1)


def _losses(weights: list[torch.Tensor], points: torch.Tensor) -> torch.Tensor:
    """½ E (f - y)² of every network on its own points."""
    h = points
    for matrix in weights[:-1]:
        h = (matrix @ h).tanh()
    return 0.5 * (weights[-1] @ h - points[:, :1].tanh()).square().mean(dim=(1, 2))


def _flow_rows(own: xarray.Dataset) -> list[Row]:
    note = f"Largest of {_SNAPSHOTS} snapshots; what is left is the average over a finite sample in 16 dimensions."
    off = float(np.abs(own["loss"] - own["loss_exact"]).max() / own["loss_exact"][0])
    distances = {"distance of the loss from the scalar flow, over the initial loss": off}
    for layer in own.layer.values.tolist():
        each = own.sel(layer=layer)
        title = f"relative distance of X_{layer} from the scalar flow"
        distances[title] = float(np.abs(each["X"] / each["X_exact"] - 1).max())
    return [
        claim_row(f"flow: {title}", f"< {_FLOW_ERROR:g}", distance, distance < _FLOW_ERROR, note)
        for title, distance in distances.items()
    ]


def scores(own: xarray.Dataset) -> dict[str, FloatArray]:
    """Distances of descent from the scalar flow in standard errors, at the snapshots after the start.

    At the start all networks are on the manifold: what their losses are off is the error of the average over points.
    """
    later, off = own.isel(snapshot=slice(1, None)), (own["loss"] - own["loss_exact"]).values
    found = {"loss": off[1:] / np.hypot(later["loss_error"].values, off[0])}
    for layer in own.layer.values.tolist():
        each = later.sel(layer=layer)
        found[f"X_{layer}"] = ((each["X"] - each["X_exact"]) / each["X_error"]).values
    return found


def _descent_rows(own: xarray.Dataset) -> list[Row]:
    found = scores(own)
    bound = largest_score_allowed(sum(map(len, found.values())))
    rows = []
    for name, score in found.items():
        each, key = (own, "loss") if name == "loss" else (own.sel(layer=int(name[2:])), "X")
        distance, largest = float(np.abs(each[key] / each[f"{key}_exact"] - 1).max()), np.abs(score).max()
        note = f"In standard errors over seeds; the largest relative distance is {distance:.2%}."
        title = f"SGD: largest |z| of {name} over snapshots (bound)"
        rows.append(claim_row(title, bound, largest, largest <= bound, note))
    return rows


def _draw(data: xarray.Dataset) -> Figure:
    title = "Whole networks on the scalar flow: tanh, depth 4, normalized metric"
    figure = Figure(title, columns=2, size=(12, 8))
    sgd = f"SGD, width {data.descent_width}, scales × {data.factor:g}, mean of {data.seeds} seeds"
    runs = {"flow": f"gradient flow, width {data.width}", "descent": sgd}
    for run, words in runs.items():
        own = data.sel(run=run)
        panel = figure.panel(words, "time s", "loss")
        panel.curve(own["curve_time"], own["curve_loss"], "-", "scalar flow (4)", INK)
        panel.curve(own.time, own.loss, "o", "whole network", BLUE, error=own.loss_error, hollow=True)
    for run in runs:
        own = data.sel(run=run)
        panel = figure.panel("", "time s", log("amplitude"), legend_columns=2)
        for layer, each, color in coloured(own, "layer"):
            panel.curve(own.curve_time, each.curve_X, color=color)
            panel.curve(own.time, each.X, "o", f"$X_{layer}$", color, error=each.X_error, hollow=True)
    return figure
