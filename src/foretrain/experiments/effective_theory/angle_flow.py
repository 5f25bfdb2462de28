"""The angle between two signals shrinks as 3 / (rho l) in critical scale-invariant networks (section 5.5).

Exact recursion (5.162) from several first angles, for slopes (0, 1) and (0.2, 1), beside real random networks of
three widths, whose angle of the mean metric is extrapolated to infinite width.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from foretrain.compare.judging.agreement import largest_score_allowed
from foretrain.experiments.effective_theory.depth_laws import leading_coefficient
from foretrain.experiments.effective_theory.width_limits import infinite_width
from foretrain.experiments.judgements import agreement_rows
from foretrain.experiments.registry import Result, Row, Scale
from foretrain.support.drawing import BLUE, FAINT, INK, ORANGE, PALETTE, new_figure
from foretrain.support.progress import track
from foretrain.support.seeds import Seed, spawn
from foretrain.theory.architecture import MLP, FloatArray
from foretrain.theory.criticality import criticality
from foretrain.theory.ensembles import sample_metric
from foretrain.theory.flow import flow
from foretrain.theory.two_inputs.angles import angle_flow as exact_angles

if TYPE_CHECKING:
    import xarray
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ACTIVATIONS = ("relu", "leaky_relu(slope=0.2)")
_FIRST = (0.03, 0.3, 1.0, np.pi / 2, 3.0)
_PUBLISHED = {
    np.pi / 2: {2: (1.24685022, 5e-9), 10: (0.545613197, 5e-10), 100: (0.085382232, 5e-10)},
    1.0: {2: (0.881275856, 5e-10), 5: (0.660029280, 5e-10), 10: (0.473429104, 5e-10)},
}
_MEASURED_FIRST = np.pi / 2
_SHOWN_LAYERS = 240


@dataclass(frozen=True)
class Plan:
    """How deep the recursion runs, and which layers of which networks are measured."""

    depth: int  # of the exact recursion
    layers: tuple[int, ...]  # at which networks are measured
    draws: dict[int, int]  # networks of each width


PLANS: Mapping[Scale, Plan] = {
    Scale.QUICK: Plan(1_000, (2, 3, 4, 6), {24: 6_000, 48: 14_000, 96: 6_000}),
    Scale.PAPER: Plan(100_000, (2, 3, 4, 6, 8), {32: 100_000, 64: 200_000, 128: 80_000}),
}


def angle_flow(plan: Plan, seed: int) -> Result:
    """Angle against depth from several starts, exact, asymptotic and measured."""
    import xarray

    data = xarray.merge([_curves(plan.depth), _measure(plan, seed)])
    # The layers of one ensemble are few and correlated: only the largest score is judged, not their spread.
    _, largest = agreement_rows(data.z.values)
    rows = (*_published_rows(data), *_limit_rows(data), _crossover_row(), *_measured_rows(data), largest)
    judgement = "agree" if all(row.agrees is not False for row in rows) else "do not agree"
    verdict = (
        f"Recursion, law 3 / (ρ ℓ) and random networks {judgement}: whatever the first angle, ReLU brings two "
        f"signals to {float(data.psi.isel(activation=0, layer=-1).max()):.2g} rad by layer {plan.depth:,} "
        f"(largest |z| of the measured angles {largest.here:.1f})."
    )
    return Result(verdict, rows, data, partial(_draw, data))


def _pair(psi: float) -> FloatArray:
    """Two inputs of length 1 at this angle."""
    return np.array([[1.0, 0.0], [np.cos(psi), np.sin(psi)]])


def _network(name: str, depth: int, width: int) -> MLP:
    C_W = criticality(name).C_W
    assert C_W is not None
    return MLP(name, depth, width=width, n_in=2, C_W=C_W)


def _curves(depth: int) -> xarray.Dataset:
    import xarray

    layers = np.geomspace(1, depth, _SHOWN_LAYERS).round()
    chosen = np.unique(np.append(layers, [layer for row in _PUBLISHED.values() for layer in row])).astype(int)
    starts = [(name, first) for name in _ACTIVATIONS for first in _FIRST]
    found = [
        exact_angles(_network(name, depth, 1), *_pair(first)).sel(layer=chosen)
        for name, first in track(starts, "angle recursions")
    ]
    shape = (len(_ACTIVATIONS), len(_FIRST))
    return xarray.Dataset(
        {
            "psi": (("activation", "first", "layer"), np.reshape([each.psi for each in found], (*shape, -1))),
            "crossover_depth": (
                ("activation", "first"),
                np.reshape([each.attrs["crossover_depth"] for each in found], shape),
            ),
        },
        coords={
            "activation": list(_ACTIVATIONS),
            "first": list(_FIRST),
            "layer": chosen,
            "rho": ("activation", [each.attrs["rho"] for each in found[:: len(_FIRST)]]),
        },
    )


def _measure(plan: Plan, seed: Seed) -> xarray.Dataset:
    """Angles of the mean metric of ReLU networks by width and layer, their limit, and the theory at first order."""
    import xarray

    widths, layers = list(plan.draws), list(plan.layers)
    tasks = list(zip(plan.draws.items(), spawn(seed, len(widths)), strict=True))
    found = [_angle_of_networks(n, draws, layers, own) for (n, draws), own in track(tasks, "networks")]
    value, error = (np.stack(column) for column in zip(*found, strict=True))
    limit, limit_error = infinite_width(widths, value, error)
    leading, slope = _first_order(layers)
    both, one = ("width", "measured_layer"), ("measured_layer",)
    return xarray.Dataset(
        {
            "measured": (both, value),
            "standard_error": (both, error),
            "limit": (one, limit),
            "limit_error": (one, limit_error),
            "theory": (one, leading),
            "slope": (one, slope),
            "z": (one, (limit - leading) / limit_error),
        },
        coords={"width": widths, "measured_layer": layers, "draws": ("width", list(plan.draws.values()))},
    )


def _angle_of_networks(
    width: int, draws: int, layers: list[int], seed: Seed
) -> tuple[FloatArray, FloatArray]:
    """arccos G_12 / sqrt(G_11 G_22) of the mean metric over networks, with its standard error."""
    mlp = _network("relu", max(layers), width)
    metric = sample_metric(
        mlp, _pair(_MEASURED_FIRST), draws, method="weights", layers=layers, seed=seed
    ).values
    mean = metric.mean(axis=0)
    relative = metric / mean
    cosine = mean[:, 0, 1] / np.sqrt(mean[:, 0, 0] * mean[:, 1, 1])
    # How far one network moves the cosine, to first order.
    influence = cosine * (relative[..., 0, 1] - (relative[..., 0, 0] + relative[..., 1, 1]) / 2)
    error = influence.std(axis=0, ddof=1) / np.sqrt(draws) / np.sqrt(1 - cosine**2)
    return np.arccos(cosine), error


def _first_order(layers: list[int]) -> tuple[FloatArray, FloatArray]:
    """Angle at infinite width and its slope in 1/n, -G1_12 / (K sin psi), as G1 of each norm vanishes (5.117)."""
    deep = flow(_network("relu", max(layers), 1), _pair(_MEASURED_FIRST), ["K", "G1"])
    K, shift = (deep[name].sel(layer=layers).values for name in ("K", "G1"))
    psi = np.arccos(K[:, 0, 1] / K[:, 0, 0])
    return psi, -shift[:, 0, 1] / (K[:, 0, 0] * np.sin(psi))


def _published_rows(data: xarray.Dataset) -> list[Row]:
    rows = []
    for first, values in _PUBLISHED.items():
        for layer, (expected, digits) in values.items():
            here = float(data.psi.sel(activation="relu", layer=layer).sel(first=first, method="nearest"))
            close = bool(abs(here - expected) <= 1.01 * digits)
            rows.append(Row(f"relu: ψ at layer {layer} from {first:.4g}", expected, here, agrees=close))
    return rows


def _limit_rows(data: xarray.Dataset) -> list[Row]:
    """ρ ψ ℓ -> 3 (5.166) from the largest first angles; the fit leaves out (log l / l)^2."""
    deep = data.sel(layer=slice(data.layer.values[-1] // 10, None))
    layer = deep.layer.values.astype(float)
    next_order = (np.log(layer[0]) / layer[0]) ** 2
    rows = []
    for name in _ACTIVATIONS:
        for first in _FIRST[2:]:
            psi = deep.psi.sel(activation=name, first=first)
            here = leading_coefficient(layer, float(psi.rho) * psi.values * layer)
            # A start is forgotten once l is far beyond the crossover depth.
            memory = float(deep.crossover_depth.sel(activation=name, first=first)) / layer[0]
            close = bool(abs(here / 3 - 1) <= next_order + memory**2)
            rows.append(Row(f"{name}: ρ ψ ℓ from {first:.4g}", 3.0, here, agrees=close))
    return rows


def _crossover_row() -> Row:
    """From a small angle, 1/ψ doubles over the crossover depth 3 / (ρ ψ); next order ρ ψ log 2 / 2."""
    first = _FIRST[0]
    rho = 1 / np.pi
    crossover = round(3 / (rho * first))
    psi = exact_angles(_network("relu", crossover + 1, 1), *_pair(first)).psi.values
    here = float(psi[-1] / first)
    close = bool(abs(2 * here - 1) <= rho * first)
    return Row(f"relu: ψ / ψ⁽¹⁾ after the crossover, {crossover} layers", 0.5, here, agrees=close)


def _measured_rows(data: xarray.Dataset) -> list[Row]:
    bound = largest_score_allowed(data.z.size)
    return [
        Row(
            f"random relu networks: ψ at layer {int(point.measured_layer)}",
            float(point.theory),
            float(point.limit),
            float(point.limit_error),
            agrees=bool(abs(float(point.z)) <= bound),
        )
        for point in (data.sel(measured_layer=layer) for layer in data.measured_layer.values)
    ]


def _draw(data: xarray.Dataset) -> Figure:
    figure, (depth, law, width) = new_figure(
        "Signals that start apart meet: the angle between them", 1, 3, (16, 4.9)
    )
    _draw_depth(depth, data)
    _draw_law(law, data)
    _draw_widths(width, data)
    return figure


def _draw_depth(panel: Axes, data: xarray.Dataset) -> None:
    for name, color, text in zip(
        _ACTIVATIONS, (BLUE, ORANGE), ("ReLU", "leaky ReLU, slope 0.2"), strict=True
    ):
        curves = data.sel(activation=name)
        panel.plot(
            data.layer, curves.psi.T, color=color, linewidth=1.8, label=[text] + [None] * (len(_FIRST) - 1)
        )
        late = data.layer.values[data.layer.values >= 4]
        panel.plot(late, 3 / (float(curves.rho) * late), "--", color=color, linewidth=1.1)
        crossover = curves.crossover_depth.values
        halfway = [float(curves.psi[i].interp(layer=depth + 1)) for i, depth in enumerate(crossover)]
        panel.plot(crossover + 1, halfway, "o", color=color, markersize=5, markerfacecolor="white")
    panel.plot([], [], "--", color=INK, linewidth=1.1, label=r"law  $3/(\rho\,\ell)$")
    panel.plot(
        [],
        [],
        "o",
        color=INK,
        markersize=5,
        markerfacecolor="white",
        label=r"crossover  $3/(\rho\,\psi^{(1)})$",
    )
    panel.set(xscale="log", yscale="log", xlabel=r"layer $\ell$", ylabel=r"angle $\psi$", ylim=(None, 4.5))
    panel.set_title("from five first angles", fontsize=11)
    panel.legend(frameon=False, fontsize=9, loc="lower left")


def _draw_law(panel: Axes, data: xarray.Dataset) -> None:
    for name, style in zip(_ACTIVATIONS, ("-", "--"), strict=True):
        for color, first in zip(PALETTE, _FIRST, strict=False):
            psi = data.psi.sel(activation=name, first=first)
            label = rf"$\psi^{{(1)}} = {first:.3g}$" if style == "-" else None
            panel.plot(
                data.layer, float(psi.rho) * psi * data.layer, style, color=color, linewidth=1.6, label=label
            )
    panel.axhline(3, color=INK, linewidth=0.9)
    panel.set(xscale="log", xlabel=r"layer $\ell$", ylabel=r"$\rho\,\psi\,\ell$", ylim=(0, 3.3))
    panel.set_title(r"all tend to 3; leaky ReLU dashed", fontsize=11)
    panel.legend(frameon=False, fontsize=9, loc="lower right")


def _draw_widths(panel: Axes, data: xarray.Dataset) -> None:
    """Shift of the measured angle from infinite width against 1/n, and the line of theory."""
    inverse = 1 / data.width.values
    grid = np.array([0, 1.1 * inverse.max()])
    for color, layer in zip(PALETTE, data.measured_layer.values, strict=False):
        point = data.sel(measured_layer=layer)
        theory = float(point.theory)
        panel.plot(grid, float(point.slope) * grid, color=color, linewidth=1.2)
        panel.errorbar(
            inverse,
            point.measured - theory,
            point.standard_error,
            fmt="o",
            color=color,
            markersize=5,
            markerfacecolor="white",
            label=f"layer {int(layer)}",
        )
        panel.errorbar(
            [0], [float(point.limit) - theory], [float(point.limit_error)], fmt="D", color=color, markersize=4
        )
    panel.axhline(0, color=FAINT, linewidth=0.8)
    panel.set(xlabel="1 / width", ylabel=r"measured $\psi$ − infinite-width $\psi$")
    panel.set_title("real random ReLU networks; lines: theory to order $1/n$", fontsize=11)
    panel.legend(frameon=False, fontsize=9, loc="upper left")
