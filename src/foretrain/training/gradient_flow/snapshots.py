"""Networks along their flow: weights at chosen times, and what is read from them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from foretrain.support.errors import InputError
from foretrain.support.memory import require_memory
from foretrain.support.progress import Progress
from foretrain.training.gradient_flow.flows import Flows
from foretrain.training.gradient_flow.integration import (
    Integration,
    groups,
    population_field,
    prepared_sample,
)
from foretrain.training.gradient_flow.networks import Networks, Weights, amplitudes, mean_losses
from foretrain.training.gradient_flow.problem import Metric, Problem
from foretrain.training.gradient_flow.samples import Sample

if TYPE_CHECKING:
    import xarray as xr

Times = Sequence[Any] | NDArray[np.floating]


@dataclass(frozen=True, eq=False)
class Snapshots:
    """Weights (network, snapshot, outputs, inputs) at times (network, snapshot); nan where a flow gave up before."""

    time: NDArray[np.float64]
    weights: Weights = field(repr=False)
    labels: Mapping[str, NDArray[Any]]

    def at(self, snapshot: int) -> Networks:
        """All networks at one of the snapshots."""
        return Networks(tuple(values[:, snapshot] for values in self.weights), self.labels)

    def labelled(self, variables: Mapping[str, Any], coords: Mapping[str, Any], **attrs: Any) -> xr.Dataset:
        """Variables (network, snapshot, ...) as a Dataset with the time of every snapshot."""
        import xarray as xr

        labels = {name: ("network", values) for name, values in self.labels.items()}
        networks, count = self.time.shape
        place = {"network": np.arange(networks), "snapshot": np.arange(count)}
        time = {"time": (("network", "snapshot"), self.time)}
        return xr.Dataset(variables, coords={**place, **time, **labels, **coords}, attrs=attrs)


def snapshots(
    problem: Problem,
    networks: Networks,
    times: Times,
    *,
    metric: Metric = "uniform",
    sample: Sample | None = None,
    integration: Integration | None = None,
) -> Snapshots:
    """The weights of each network at times (times) or, each at its own, (networks, times).

    Steps end at the times, so that nothing is interpolated. After an escape run,
    ``times = found["time"].values[:, :1] * np.linspace(0, 1.2, 25)`` follows every network through its own escape.
    """
    rules = integration or Integration()
    points = prepared_sample(problem, sample, rules)
    clock = _times(times, len(networks))
    numbers = sum(math.prod(shape) for shape in problem.shapes)
    require_memory(8.0 * clock.size * numbers, f"{clock.size} snapshots of {problem!r}", "take fewer times")
    field = population_field(problem, points, metric)
    stored = tuple(
        torch.full((*clock.shape, *shape), math.nan, dtype=torch.float64) for shape in problem.shapes
    )
    with Progress("snapshots", total=clock.size) as bar:
        for which in groups(problem, networks, points, rules):
            flows = rules.flows(field, networks[which].weights)
            _follow(flows, clock[which], tuple(values[which] for values in stored), rules, bar)
    return Snapshots(clock, stored, networks.labels)


def trajectory(problem: Problem, seen: Snapshots, *, sample: Sample | None = None) -> xr.Dataset:
    """Loss, amplitudes X_l of every mode, norms and operator norms of the weights, at every snapshot.

    The loss is taken over ``sample``, the usual one unless given, in float64.
    """
    points = prepared_sample(problem, sample, Integration())
    moments = [seen.at(number).weights for number in range(seen.time.shape[1])]
    along = ("network", "snapshot")
    asked: dict[str, tuple[tuple[str, ...], Callable[[Weights], Tensor]]] = {
        "loss": (along, lambda weights: mean_losses(problem, weights, points)),
        "amplitude": ((*along, "layer", "mode"), lambda weights: amplitudes(problem, weights)),
        "norm": ((*along, "layer"), lambda w: torch.stack([torch.linalg.matrix_norm(v) for v in w], dim=1)),
        "operator_norm": ((*along, "layer"), operator_norms),
    }
    variables = {
        name: (dims, torch.stack([measure(weights) for weights in moments], dim=1).numpy())
        for name, (dims, measure) in asked.items()
    }
    coords = {"layer": np.arange(1, problem.depth + 1), "mode": np.arange(1, problem.modes + 1)}
    return seen.labelled(variables, coords, problem=repr(problem))


def operator_norms(weights: Weights) -> Tensor:
    """The largest singular value (networks, layers); nan where weights are not finite."""
    found = torch.full((len(weights[0]), len(weights)), math.nan, dtype=weights[0].dtype)
    for layer, values in enumerate(weights):
        finite = torch.isfinite(values).all(dim=-1).all(dim=-1)
        found[finite, layer] = torch.linalg.matrix_norm(values[finite], ord=2)
    return found


def _follow(
    flows: Flows, times: NDArray[np.float64], stored: Weights, rules: Integration, bar: Progress
) -> None:
    """Step every flow from one of its times to the next, and store its weights there."""
    place, following = np.arange(len(flows)), np.zeros(len(flows), dtype=int)
    while len(flows):
        ahead = times[place, following] - flows.time
        there = np.flatnonzero(ahead <= 1e-13 * flows.time)
        if len(there):
            for values, state in zip(stored, flows.state):
                values[place[there], following[there]] = state[torch.from_numpy(there)].double()
            bar.advance(len(there))
            following[there] += 1
            live = following < times.shape[1]
            flows.keep(live)
            place, following = place[live], following[live]
            continue
        given_up = (flows.evaluations >= rules.max_evaluations) | flows.stuck
        if given_up.any():
            flows.keep(~given_up)
            place, following, ahead = place[~given_up], following[~given_up], ahead[~given_up]
        if len(flows):
            flows.attempt(ahead)


def _times(times: Times, networks: int) -> NDArray[np.float64]:
    array = np.asarray(times, dtype=np.float64)
    table = np.broadcast_to(array, (networks, array.shape[-1])).copy() if array.ndim == 1 else array
    if table.ndim != 2 or len(table) != networks or not table.size:
        raise InputError(f"times have shape {array.shape}: give (times) or ({networks}, times).")
    if not np.isfinite(table).all() or (table < 0).any() or (np.diff(table, axis=1) < 0).any():
        raise InputError("times must be finite, not negative and in ascending order.")
    return table
