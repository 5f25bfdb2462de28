"""The angle between two signals shrinks as 3 / (rho l) in critical scale-invariant networks (section 5.5).

Exact recursion (5.162) from several first angles, for slopes (0, 1) and (0.2, 1), beside real random networks of
three widths, whose angle of the mean metric is extrapolated to infinite width.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import xarray

from foretrain.compare.judging.agreement import largest_score_allowed
from foretrain.experiments.effective_theory.depth_laws import fitted_layers, leading_coefficient, shown_layers
from foretrain.experiments.effective_theory.width_limits import limits
from foretrain.experiments.judgements import agreement_rows, computed_row, limit_row
from foretrain.experiments.pictures import coloured
from foretrain.experiments.registry import Result, Row, plans
from foretrain.support.answers import BLUE, INK, ORANGE, PALETTE, Axis, Figure, labelled, log
from foretrain.support.progress import track
from foretrain.support.seeds import Seed, with_seeds
from foretrain.theory.architecture import MLP, FloatArray
from foretrain.theory.criticality import criticality
from foretrain.theory.ensembles import sample_metric
from foretrain.theory.flow import flow
from foretrain.theory.two_inputs.angles import angle_flow as exact_angles

_ACTIVATIONS = ("relu", "leaky_relu(slope=0.2)")
_FIRST = (0.03, 0.3, 1.0, np.pi / 2, 3.0)
_PUBLISHED = {
    np.pi / 2: {2: (1.24685022, 5e-9), 10: (0.545613197, 5e-10), 100: (0.085382232, 5e-10)},
    1.0: {2: (0.881275856, 5e-10), 5: (0.660029280, 5e-10), 10: (0.473429104, 5e-10)},
}
_MEASURED_FIRST = np.pi / 2


@dataclass(frozen=True)
class Plan:
    """How deep the recursion runs, and which layers of which networks are measured."""

    depth: int  # of the exact recursion
    layers: tuple[int, ...]  # at which networks are measured
    draws: dict[int, int]  # networks of each width


PLANS = plans(
    quick=Plan(1_000, (2, 3, 4, 6), {24: 6_000, 48: 14_000, 96: 6_000}),
    paper=Plan(100_000, (2, 3, 4, 6, 8), {32: 100_000, 64: 200_000, 128: 80_000}),
)


def angle_flow(plan: Plan, seed: int) -> Result:
    """Angle against depth from several starts, exact, asymptotic and measured."""
    data = xarray.merge([_curves(plan.depth), _measure(plan, seed)])
    # The layers of one ensemble are few and correlated: only the largest score is judged, not their spread.
    _, largest = agreement_rows(data.z.values)
    rows = []
    for first, values in _PUBLISHED.items():
        psi = data.psi.sel(activation="relu").sel(first=first, method="nearest")
        for layer, (value, digits) in values.items():
            title = f"relu: ψ at layer {layer} from {first:.4g}"
            rows.append(computed_row(title, value, psi.sel(layer=layer), 1.01 * digits))
    rows += _limit_rows(data)
    bound, names = largest_score_allowed(data.z.size), ("theory", "limit", "limit_error")
    for layer in data.measured_layer.values:
        title = f"random relu networks: ψ at layer {layer}"
        rows.append(limit_row(title, data.sel(measured_layer=layer), bound, names))
    rows.append(largest)
    judgement = "agree" if all(row.agrees is not False for row in rows) else "do not agree"
    verdict = (
        f"Recursion, law 3 / (ρ ℓ) and random networks {judgement}: whatever the first angle, ReLU brings two "
        f"signals to {float(data.psi.isel(activation=0, layer=-1).max()):.2g} rad by layer {plan.depth:,} "
        f"(largest |z| of the measured angles {largest.here:.1f})."
    )
    return Result(verdict, tuple(rows), data, _figure)


def _pair(psi: float) -> FloatArray:
    """Two inputs of length 1 at this angle."""
    return np.array([[1.0, 0.0], [np.cos(psi), np.sin(psi)]])


def _network(name: str, depth: int, width: int) -> MLP:
    C_W = criticality(name).C_W
    assert C_W is not None
    return MLP(name, depth, width=width, n_in=2, C_W=C_W)


def _curves(depth: int) -> xarray.Dataset:
    published = [layer for row in _PUBLISHED.values() for layer in row]
    chosen = np.unique(np.append(shown_layers(1, depth), published))
    starts = [(name, first) for name in _ACTIVATIONS for first in _FIRST]
    found = [
        exact_angles(_network(name, depth, 1), *_pair(first)).sel(layer=chosen)
        for name, first in track(starts, "angle recursions")
    ]
    shape = (len(_ACTIVATIONS), len(_FIRST))
    return labelled(
        {
            "psi": ("activation first layer", np.reshape([each.psi for each in found], (*shape, -1))),
            "crossover_depth": (
                "activation first",
                np.reshape([each.attrs["crossover_depth"] for each in found], shape),
            ),
        },
        activation=list(_ACTIVATIONS),
        first=list(_FIRST),
        layer=chosen,
        rho=("activation", [each.attrs["rho"] for each in found[:: len(_FIRST)]]),
    )


def _measure(plan: Plan, seed: Seed) -> xarray.Dataset:
    """Angles of the mean metric of ReLU networks by width and layer, their limit, and the theory at first order.

    An angle is arccos G_12 / sqrt(G_11 G_22) of the mean over networks, and has a standard error.
    """
    layers, values, errors = list(plan.layers), [], []
    for (width, draws), own in track(with_seeds(plan.draws.items(), seed), "networks"):
        mlp, pair = _network("relu", max(layers), width), _pair(_MEASURED_FIRST)
        metric = sample_metric(mlp, pair, draws, method="weights", layers=layers, seed=own).values
        mean = metric.mean(axis=0)
        relative = metric / mean
        cosine = mean[:, 0, 1] / np.sqrt(mean[:, 0, 0] * mean[:, 1, 1])
        # How far one network moves the cosine, to first order.
        influence = cosine * (relative[..., 0, 1] - (relative[..., 0, 0] + relative[..., 1, 1]) / 2)
        values.append(np.arccos(cosine))
        errors.append(influence.std(axis=0, ddof=1) / np.sqrt(draws) / np.sqrt(1 - cosine**2))
    leading, slope = _first_order(layers)
    found = limits(list(plan.draws), values, errors, leading, "measured_layer", layers)
    found = found.rename(standard_error="limit_error", measured_error="standard_error")
    counts = ("width", list(plan.draws.values()))
    return found.assign(slope=("measured_layer", slope)).assign_coords(draws=counts)


def _first_order(layers: list[int]) -> tuple[FloatArray, FloatArray]:
    """Angle at infinite width and its slope in 1/n, -G1_12 / (K sin psi), as G1 of each norm vanishes (5.117)."""
    deep = flow(_network("relu", max(layers), 1), _pair(_MEASURED_FIRST), ["K", "G1"])
    K, shift = (deep[name].sel(layer=layers).values for name in ("K", "G1"))
    psi = np.arccos(K[:, 0, 1] / K[:, 0, 0])
    return psi, -shift[:, 0, 1] / (K[:, 0, 0] * np.sin(psi))


def _limit_rows(data: xarray.Dataset) -> list[Row]:
    """ρ ψ ℓ -> 3 (5.166) from the largest first angles; the fit leaves out (log l / l)^2."""
    deep, layer, next_order = fitted_layers(data)
    rows = []
    for name in _ACTIVATIONS:
        for first in _FIRST[2:]:
            own = deep.sel(activation=name, first=first)
            here = leading_coefficient(layer, float(own.rho) * own.psi.values * layer)
            # A start is forgotten once l is far beyond the crossover depth.
            memory = float(own.crossover_depth) / layer[0]
            allowed = 3 * (next_order + memory**2)
            rows.append(computed_row(f"{name}: ρ ψ ℓ from {first:.4g}", 3.0, here, allowed))
    # From a small angle, 1/ψ doubles over the crossover depth 3 / (ρ ψ); the next order is ρ ψ log 2 / 2.
    first, rho = _FIRST[0], 1 / np.pi
    crossover = round(3 / (rho * first))
    psi = exact_angles(_network("relu", crossover + 1, 1), *_pair(first)).psi.values
    title = f"relu: ψ / ψ⁽¹⁾ after the crossover, {crossover} layers"
    return [*rows, computed_row(title, 0.5, psi[-1] / first, rho * first / 2)]


def _figure(data: xarray.Dataset) -> Figure:
    figure = Figure("Signals that start apart meet: the angle between them", columns=3, size=(16, 4.9))
    layer = log(r"layer $\ell$")
    angle, scaled = log(r"angle $\psi$", high=4.5), Axis(r"$\rho\,\psi\,\ell$", low=0, high=3.3)
    depths = figure.panel("from five first angles", layer, angle, legend="lower left")
    law = figure.panel("all tend to 3; leaky ReLU dashed", layer, scaled, legend="lower right")
    late = data.layer[data.layer >= 4]
    for name, text, color, dash in zip(
        _ACTIVATIONS, ("ReLU", "leaky ReLU, slope 0.2"), (BLUE, ORANGE), ("-", "--"), strict=True
    ):
        own = data.sel(activation=name)
        for first, shade in zip(_FIRST, PALETTE, strict=False):
            psi, crossover = own.psi.sel(first=first), float(own.crossover_depth.sel(first=first)) + 1
            depths.curve(data.layer, psi, "-", text, color)
            depths.curve(crossover, psi.interp(layer=crossover), "o", "", color, hollow=True)
            label = rf"$\psi^{{(1)}} = {first:.3g}$" if dash == "-" else ""
            law.curve(data.layer, own.rho * psi * data.layer, dash, label, shade)
        depths.curve(late, 3 / (own.rho * late), "--", "", color, width=1.1)
    depths.legend_entry("--", r"law  $3/(\rho\,\ell)$")
    depths.legend_entry("o", r"crossover  $3/(\rho\,\psi^{(1)})$", hollow=True)
    law.level(y=3, color=INK)
    # The shift of the measured angle from infinite width against 1/n, and the line of theory.
    title = "real random ReLU networks; lines: theory to order $1/n$"
    panel = figure.panel(title, "1 / width", r"measured $\psi$ − infinite-width $\psi$")
    inverse = 1 / data.width.values
    grid = np.array([0, 1.1 * inverse.max()])
    for number, at, color in coloured(data, "measured_layer"):
        label, error = f"layer {number}", at.standard_error
        panel.curve(grid, at.slope.item() * grid, "-", "", color, width=1.2)
        panel.curve(inverse, at.measured - at.theory, "o", label, color, error=error, hollow=True)
        panel.curve(0, at.limit - at.theory, "D", "", color, error=at.limit_error, size=4)
    panel.level(y=0)
    return figure
