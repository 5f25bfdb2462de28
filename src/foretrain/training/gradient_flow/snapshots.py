"""Networks along their flow: weights at chosen times, what is read from them, and their signal energy.

The signal energy off the symmetric manifold is γ with the bounds by which Thm 11 closes on it (13-17, 45, 48).
"""

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
from foretrain.training.gradient_flow.integration import (
    Flows,
    Integration,
    groups,
    population_field,
    prepared_sample,
)
from foretrain.training.gradient_flow.networks import Networks, Weights, amplitudes, forward, mean_losses
from foretrain.training.gradient_flow.problem import Metric, Problem, Sample, gaussian_sample

if TYPE_CHECKING:
    import xarray as xr

Times = Sequence[Any] | NDArray[np.floating]
_MEANINGS = {
    "gamma": "γ = E[f g] (13)",
    "gamma_rate": "dγ/dt along the flow, exactly",
    "T": "Σ_l ρ_l ‖G_l‖², G_l = ∂γ/∂W_l (14)",
    "S": "Σ_l ρ_l ⟨G_l, E[f δ_l h_{l-1}ᵀ]⟩, the part of dγ/dt that works against the signal (15)",
    "S_ratio": "|S| / (|γ| T): bounded on the bootstrap interval",
    "growth_ratio": "(dγ/dt) / (β h T): at least one half where (16) holds, one at leading order",
    "M": "largest operator norm of the small layers",
    "G_norm": "‖G_l‖",
    "G_error": "‖G_l - α^{L-1} B_l A_{l-1}ᵀ‖ / ‖G_l‖: the rank-one form (45)",
    "speed": "‖Ẇ_l‖",
    "speed_ratio": "‖Ẇ_l‖ / M^{r-1}: bounded where (48) holds",
    "growth_exponent": "log T / log |γ|: at least 2 - 2/r up to constants (17)",
    "nondegeneracy": "|γ| / ε^r: bounded below at the start (needs the label epsilon)",
}


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
    given = np.asarray(times, dtype=np.float64)
    clock = np.tile(given, (len(networks), 1)) if given.ndim == 1 else given
    if clock.ndim != 2 or len(clock) != len(networks) or not clock.size:
        raise InputError(f"times have shape {given.shape}: give (times) or ({len(networks)}, times).")
    if not np.isfinite(clock).all() or (clock < 0).any() or (np.diff(clock, axis=1) < 0).any():
        raise InputError("times must be finite, not negative and in ascending order.")
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


def signal_energy(
    problem: Problem,
    seen: Snapshots | Networks,
    *,
    small_layers: int | None = None,
    metric: Metric = "uniform",
    sample: Sample | None = None,
) -> xr.Dataset:
    """γ, G_l, T, S, M of networks (network, snapshot) and the ratios that the bounds of section 3 speak of.

    ``small_layers`` is r, the layers that start at ε: the label of the networks unless given, else all. h = E[g σ(g)]
    is taken over the same sample as everything else; T and S carry the rates of the metric, so that at leading order
    dγ/dt = β h T - S for every metric.
    """
    shots = seen
    if isinstance(shots, Networks):
        weights = tuple(values[:, None].double() for values in shots.weights)
        shots = Snapshots(np.zeros((len(shots), 1)), weights, shots.labels)
    labels = np.unique(np.asarray(shots.labels.get("small_layers", [problem.depth])))
    if small_layers is None and len(labels) > 1:
        raise InputError(
            "the networks differ in small_layers: ask for the signal energy of each kind by itself."
        )
    r = int(labels[0]) if small_layers is None else small_layers
    if not 1 <= r <= problem.depth:
        raise InputError(f"small_layers is {r}: give a number from 1 to the depth {problem.depth}.")
    points = (gaussian_sample(problem) if sample is None else sample).to(torch.float64)
    rates = problem.rates(metric)
    each = [
        _quantities(problem, shots.at(number).weights, points, rates, r)
        for number in range(shots.time.shape[1])
    ]
    found: dict[str, Any] = {}
    for name in each[0]:
        values = torch.stack([quantities[name] for quantities in each], dim=1).numpy()
        dims = ("network", "snapshot", "layer")[: values.ndim]
        found[name] = (dims, values, {"meaning": _MEANINGS[name]})
    if "epsilon" in shots.labels:
        size = np.abs(found["gamma"][1]) / np.asarray(shots.labels["epsilon"], dtype=float)[:, None] ** r
        found["nondegeneracy"] = (("network", "snapshot"), size, {"meaning": _MEANINGS["nondegeneracy"]})
    coords = {"layer": np.arange(1, problem.depth + 1)}
    return shots.labelled(found, coords, problem=repr(problem), small_layers=r, rates=list(rates))


def _quantities(
    problem: Problem, weights: Weights, sample: Sample, rates: tuple[float, ...], r: int
) -> dict[str, Tensor]:
    """Everything at one snapshot: three backward passes from one forward pass, for g, f and f - y."""
    made = forward(problem, weights, sample.points)
    g = sample.points[:1]
    by_signal = made.gradients((g * sample.weights).expand_as(made.outputs))
    by_output = made.gradients(made.outputs * sample.weights)
    by_error = made.gradients((made.outputs - sample.targets) * sample.weights)
    gamma = (made.outputs * g * sample.weights).sum(dim=(1, 2))
    T = _weighted(rates, by_signal, by_signal)
    S = _weighted(rates, by_signal, by_output)
    gamma_rate = -_weighted(rates, by_signal, by_error)
    signal = float((g * problem.nonlinearity.value(g) * sample.weights).sum())
    M = operator_norms(weights)[:, :r].amax(dim=1)
    speed = torch.stack([rate * _norm(gradient) for rate, gradient in zip(rates, by_error)], dim=1)
    G_norm = torch.stack([_norm(G) for G in by_signal], dim=1)
    rank_one = _rank_one(problem, weights)
    error = torch.stack([_norm(G - approximate) for G, approximate in zip(by_signal, rank_one)], dim=1)
    return {
        "gamma": gamma,
        "gamma_rate": gamma_rate,
        "T": T,
        "S": S,
        "S_ratio": S.abs() / (gamma.abs() * T),
        "growth_ratio": gamma_rate / (problem.betas[0] * signal * T),
        "growth_exponent": T.log() / gamma.abs().log(),
        "M": M,
        "G_norm": G_norm,
        "G_error": error / G_norm,
        "speed": speed,
        "speed_ratio": speed / M[:, None] ** (r - 1),
    }


def _rank_one(problem: Problem, weights: Weights) -> list[Tensor]:
    """α^{L-1} B_l A_{l-1}ᵀ (45): A_0 = v_1, A_j = W_j A_{j-1}; B_L = 1, B_l = W_{l+1}ᵀ B_{l+1}."""
    networks = len(weights[0])
    direction = torch.zeros(networks, problem.inputs, 1, dtype=weights[0].dtype)
    direction[:, 0] = 1
    below = [direction]
    for matrix in weights[:-1]:
        below.append(matrix @ below[-1])
    above = [torch.ones(networks, 1, 1, dtype=weights[0].dtype)]
    for matrix in reversed(weights[1:]):
        above.append(matrix.mT @ above[-1])
    factor = problem.nonlinearity.slope_at_zero ** (problem.depth - 1)
    return [factor * b @ a.mT for a, b in zip(below, reversed(above))]


def _weighted(rates: tuple[float, ...], first: Weights, second: Weights) -> Tensor:
    products = [rate * (a * b).sum(dim=(1, 2)) for rate, a, b in zip(rates, first, second)]
    return torch.stack(products).sum(dim=0)


def _norm(values: Tensor) -> Tensor:
    return values.square().sum(dim=(1, 2)).sqrt()
