"""Signal energy off the symmetric manifold: γ and the bounds by which Thm 11 closes on it (13-17, 45, 48)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from foretrain.support.errors import InputError
from foretrain.training.gradient_flow.networks import Networks, Weights, forward
from foretrain.training.gradient_flow.problem import Metric, Problem
from foretrain.training.gradient_flow.samples import Sample, gaussian_sample
from foretrain.training.gradient_flow.snapshots import Snapshots, operator_norms

if TYPE_CHECKING:
    import xarray as xr

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
    r = _small_layers(problem, shots, small_layers)
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


def _small_layers(problem: Problem, shots: Snapshots, small_layers: int | None) -> int:
    if small_layers is None:
        labels = np.unique(np.asarray(shots.labels.get("small_layers", [problem.depth])))
        if len(labels) > 1:
            raise InputError(
                "the networks differ in small_layers: ask for the signal energy of each kind by itself."
            )
        small_layers = int(labels[0])
    if not 1 <= small_layers <= problem.depth:
        raise InputError(
            f"small_layers is {small_layers}: give a number from 1 to the depth {problem.depth}."
        )
    return small_layers
