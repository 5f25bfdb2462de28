"""Information between neurons of a layer: the truncated series, the exact mixture, and random networks (appendix A).

The series (A.71) has a maximum at r* = 4 / (20 + 3 m_1 + 3 m_2) / nu and is negative beyond 3/2 r*. Given the metric
the neurons are Gaussian, so that the exact information is one integral over the law of the metric: it has no maximum,
for scale-invariant networks in the limit of large width and depth, nor for tanh networks of width ten.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise, product

import numpy as np
import xarray as xr

from foretrain.experiments.judgements import agreement_rows, computed_row
from foretrain.experiments.registry import Result, Row, plans
from foretrain.support.answers import BLUE, FAINT, GREEN, INK, ORANGE, RED, Axis, Figure
from foretrain.support.progress import track
from foretrain.support.seeds import Seed, spawn, with_seeds
from foretrain.theory.architecture import MLP
from foretrain.theory.information import (
    complete_information,
    entropy_series,
    linear_law,
    log_normal_law,
    mixture_entropy,
    mixture_information,
    printed_information,
    sampled_law,
    turning_point,
)
from foretrain.theory.residual_networks import fluctuation_rate

_GROUPS = (1, 5)  # neurons on either side
_SPREADS = np.linspace(0, 0.8, 81)
_REACHED = (0.15, 0.3, 0.45, 0.6, 0.75)  # nu r of random networks, roughly
_NETWORKS = {"linear": 24, "relu": 60, "tanh": 24}  # widths
_TANH_WIDTH = 10
_TANH = {  # layer: information of 1 and 1, of 5 and 5 neurons, as the reference measured them
    3: (0.0014, 0.029),
    6: (0.0074, 0.116),
    11: (0.0244, 0.277),
    21: (0.0735, 0.543),
    41: (0.194, 0.906),
}
_EXACT = {1: 0.002027, 2: 0.006305, 4: 0.017639}  # at these multiples of nu r = 2/13
_PRINTED = {1: 0.000986, 2: -0.003945, 4: -0.078895}
_DIGIT = 6e-7
_REFERENCE_ERROR = 0.02  # the reference prints no standard errors


@dataclass(frozen=True)
class Plan:
    """How many deep networks, and tanh networks of width ten, are drawn."""

    draws: int
    tanh_draws: int


PLANS = plans(quick=Plan(6_000, 40_000), paper=Plan(60_000, 400_000))


def mutual_information(plan: Plan, seed: int) -> Result:
    """(A.71) beside the exact information of deep networks and of tanh networks of width ten."""
    wide, narrow = spawn(seed, 2)
    data = xr.merge([_curves(), _wide_networks(plan.draws, wide), _tanh_networks(plan.tanh_draws, narrow)])
    rows = []
    for name, published in (("exact", _EXACT), ("(A.71)", _PRINTED)):
        for multiple, expected in published.items():
            y = multiple * turning_point(1, 1)
            exact, printed = mixture_information(log_normal_law(y), 1, 1).value, printed_information(1, 1, y)
            title = f"I(1,1) {name} at {multiple} r*" if multiple > 1 else f"I(1,1) {name} at r*"
            rows.append(computed_row(title, expected, exact if name == "exact" else float(printed), _DIGIT))
    rows += [*_coefficient_rows(), *_linear_rows(data), *_tanh_rows(data)]
    # Whether any exact or measured information falls with depth by more than its error.
    steps = data.tanh.diff("layer").values
    errors = np.hypot(data.tanh_error.values[1:], data.tanh_error.values[:-1])
    grows = bool((steps > 3 * errors).all() and (data.exact.diff("spread") > 0).all())
    note = "a property of the truncated series: r* is the depth at which perturbation theory ends, νr(m₁ + m₂) ~ 1"
    here = "grows at every depth" if grows else "falls somewhere"
    title, claim = "I against depth over width (A.72)", "a maximum at r*"
    rows.append(Row(title, claim, here, agrees=not grows, note=note, disputed=True))
    ratio = _EXACT[1] / _PRINTED[1]
    verdict = (
        "The exact information between neurons grows with depth without a maximum; the truncated series peaks at r*, "
        f"where the exact one is {ratio:.2g} times as large, and is negative beyond 3/2 r*."
    )
    return Result(verdict, tuple(rows), data, _figure)


def _curves() -> xr.Dataset:
    """Printed, complete and exact information of scale-invariant networks by nu r."""
    exact = [[mixture_information(log_normal_law(float(y)), m, m).value for y in _SPREADS] for m in _GROUPS]
    curves = {
        "exact": exact,
        "printed": [printed_information(m, m, _SPREADS) for m in _GROUPS],
        "complete": [complete_information(m, m, _SPREADS, "scale-invariant") for m in _GROUPS],
        "complete_zero": [complete_information(m, m, _SPREADS, "K*=0") for m in _GROUPS],
    }
    return xr.Dataset(
        {name: (("neurons", "spread"), values) for name, values in curves.items()},
        coords={"neurons": list(_GROUPS), "spread": _SPREADS},
    )


def _wide_networks(draws: int, seed: Seed) -> xr.Dataset:
    """Random networks at depths up to nu r = 0.8, by activation; linear ones with their exact law."""
    tasks = [
        (name, width, depth)
        for name, width in _NETWORKS.items()
        for depth in sorted({max(2, round(1 + y * width / fluctuation_rate(name))) for y in _REACHED})
    ]
    measured, errors, exact = [], [], []
    for (name, width, depth), own in track(with_seeds(tasks, seed), "networks"):
        law = sampled_law(MLP.critical(name, depth, width, n_in=1, n_out=10), [1.0], draws, seed=own)
        found = [mixture_information(law, m, m) for m in _GROUPS]
        measured.append([each.value for each in found])
        errors.append([each.standard_error for each in found])
        exact.append([np.nan] * len(_GROUPS))
        if name == "linear":
            known = linear_law([width] * (depth - 1))
            exact[-1] = [mixture_information(known, m, m).value for m in _GROUPS]
    activations, widths, depths = zip(*tasks, strict=True)
    # What has fluctuated are the hidden layers, one less than the depth.
    reached = [fluctuation_rate(name) * (depth - 1) / width for name, width, depth in tasks]
    labels = {"activation": activations, "width": widths, "depth": depths, "reached": reached}
    columns = {"measured": measured, "measured_error": errors, "law": exact}
    return xr.Dataset(
        {name: (("network", "neurons"), values) for name, values in columns.items()},
        coords={key: ("network", list(values)) for key, values in labels.items()},
    )


def _tanh_networks(draws: int, seed: Seed) -> xr.Dataset:
    """Width ten, K = 1 at the first layer, at the layers of the reference."""
    layers = list(_TANH)
    mlp = MLP("tanh", depth=max(layers), width=_TANH_WIDTH, n_in=1, n_out=_TANH_WIDTH)
    found = []
    for layer, own in track(with_seeds(layers, seed), "tanh networks"):
        law = sampled_law(mlp, [1.0], draws, layer=layer, seed=own)
        found.append([mixture_information(law, m, m) for m in _GROUPS])
    dims = ("layer", "neurons")
    return xr.Dataset(
        {
            "tanh": (dims, [[each.value for each in row] for row in found]),
            "tanh_error": (dims, [[each.standard_error for each in row] for row in found]),
            "tanh_reference": (dims, list(_TANH.values())),
        },
        coords={"layer": layers},
    )


def _coefficient_rows() -> list[Row]:
    """Cubic coefficients by Richardson extrapolation: of the entropy in X, of the information in nu r."""
    rows = []
    for m in (1, 2, 4):
        values = []
        for n in (200, 400, 800):  # one linear layer has X = 2/n exactly
            exact = mixture_entropy(linear_law([n]), m).value
            values.append((exact - float(entropy_series(m, 2 / n, order=2))) / (2 / n) ** 3)
        expected, title = (m**3 + 10 * m**2 + 16 * m) / 48, f"S, coefficient of X³ (A.66), m = {m}"
        rows.append(computed_row(title, expected, _richardson(values), 1e-3 * expected))
    for m in (1, 4):
        values = []
        for y in (0.02, 0.01, 0.005):
            leading = m**2 / 8 * y**2
            values.append((mixture_information(log_normal_law(y), m, m).value / leading - 1) / y)
        here, title = _richardson(values), f"I, relative coefficient of νr, m₁ = m₂ = {m}"
        complete, printed = -(14 + 6 * m) / 6, -(20 + 6 * m) / 6
        rows.append(computed_row(f"{title}, complete", complete, here, 5e-3 * abs(complete)))
        note = "(A.71) puts X = νr into a series of third order, where X = νr + (νr)²/2 is needed"
        allowed = 5e-3 * abs(printed)
        rows.append(computed_row(f"{title}, (A.71)", printed, here, allowed, note, disputed=True))
    return rows


def _richardson(values: list[float]) -> float:
    """The limit of three values at steps 4, 2 and 1, whose errors are a step and its square."""
    first = [2 * fine - coarse for coarse, fine in pairwise(values)]
    return (4 * first[1] - first[0]) / 3


def _linear_rows(data: xr.Dataset) -> tuple[Row]:
    linear = data.isel(network=data.activation.values == "linear")
    _, largest = agreement_rows(((linear.measured - linear.law) / linear.measured_error).values)
    title = f"linear networks of width {_NETWORKS['linear']} against their exact law"
    return (replace(largest, quantity=f"{title}: {largest.quantity}"),)


def _tanh_rows(data: xr.Dataset) -> list[Row]:
    rows = []
    for layer, m in product(data.layer.values, _GROUPS):
        point = data.sel(layer=layer, neurons=m)
        expected, here, error = (float(point[key]) for key in ("tanh_reference", "tanh", "tanh_error"))
        digit = 0.5 * 10.0 ** (-4 if expected < 0.1 and m == 1 else -3)
        close = abs(here - expected) <= 3 * error + digit + _REFERENCE_ERROR * expected
        title = f"tanh, n = {_TANH_WIDTH}, layer {layer}: I({m},{m})"
        rows.append(Row(title, expected, here, error, agrees=bool(close)))
    return rows


def _figure(data: xr.Dataset) -> Figure:
    title = "Information between neurons of a layer: the truncated series and the truth"
    figure = Figure(title, size=(17.0, 5.0))
    for m in _GROUPS:
        # Information over nu r, for so many neurons on either side.
        own = data.sel(neurons=m)
        y, turn, top = own.spread.values, turning_point(m, m), 1.25 * float(own.exact.max())
        panel = figure.panel(
            f"{m} and {m} neurons" if m > 1 else "two neurons",
            x=Axis(r"$\nu r$,  $r$ = hidden layers over width", low=0, high=y[-1]),
            y=Axis("nats", low=-0.2 * top, high=top),
            legend="best" if m == 1 else "",
        )
        panel.curve(y, own.exact, "-", "exact, scale-invariant, deep and wide", INK, width=2.4)
        good = own.printed.values >= 0
        panel.curve(y[good], own.printed[good], "-", "series (A.71)", RED, width=2)
        panel.curve(y[~good], own.printed[~good], ":", "(A.71), negative: invalid", RED, width=1.4)
        panel.curve(y, own.complete, "--", "with all terms of third order", RED, width=1.1)
        for name, marker, color in (("linear", "s", GREEN), ("relu", "o", BLUE), ("tanh", "^", ORANGE)):
            at = own.isel(network=own.activation.values == name)
            label = f"random {name} networks, n = {int(at.width[0])}"
            error = 2 * at.measured_error
            panel.curve(at.reached, at.measured, marker, label, color, error=error, size=6, hollow=True)
        panel.curve([turn, turn], [-0.2 * top, 0.3 * top], "--", "", FAINT, width=1.2)
        panel.note(turn, -0.17 * top, r"$r^*$", size=11)
        panel.level(y=0)
    title = f"tanh networks of width {_TANH_WIDTH}: no maximum"
    across = Axis("layer", low=0, high=max(_TANH) + 1)
    panel = figure.panel(title, x=across, y=Axis("nats", low=-0.15, high=1.0))
    layer, nu = np.linspace(1, max(_TANH), 400), fluctuation_rate("tanh")
    for m, color in zip(_GROUPS, (BLUE, ORANGE)):
        own, series = data.sel(neurons=m), printed_information(m, m, nu * layer / _TANH_WIDTH)
        panel.curve(own.layer, own.tanh, "-", f"exact, {m} and {m}", color, error=2 * own.tanh_error, width=2)
        panel.curve(own.layer, own.tanh_reference, "o", "", color, size=8, hollow=True)
        panel.curve(layer, series, ":", f"series (A.71), {m} and {m}", color)
    panel.legend_entry("o", "reference", hollow=True)
    panel.level(y=0)
    return figure
