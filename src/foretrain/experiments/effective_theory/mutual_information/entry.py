"""Information between neurons of a layer: the truncated series, the exact mixture, and random networks (appendix A).

The series (A.71) has a maximum at r* = 4 / (20 + 3 m_1 + 3 m_2) / nu and is negative beyond 3/2 r*. Given the metric
the neurons are Gaussian, so that the exact information is one integral over the law of the metric: it has no maximum,
for scale-invariant networks in the limit of large width and depth, nor for tanh networks of width ten.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from foretrain.experiments.judgements import agreement_rows
from foretrain.experiments.registry import Result, Row, Scale
from foretrain.support.progress import track
from foretrain.support.seeds import Seed, spawn
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

if TYPE_CHECKING:
    import xarray
    from matplotlib.figure import Figure

_GROUPS = (1, 5)  # neurons on either side
_SPREADS = np.linspace(0, 0.8, 81)
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


PLANS: Mapping[Scale, Plan] = {Scale.QUICK: Plan(6_000, 40_000), Scale.PAPER: Plan(60_000, 400_000)}


def mutual_information(plan: Plan, seed: int) -> Result:
    """(A.71) beside the exact information of deep networks and of tanh networks of width ten."""
    import xarray

    wide, narrow = spawn(seed, 2)
    data = xarray.merge(
        [_curves(), _wide_networks(plan.draws, wide), _tanh_networks(plan.tanh_draws, narrow)]
    )
    rows = (
        *_exact_rows(),
        *_coefficient_rows(),
        *_linear_rows(data),
        *_tanh_rows(data),
        _maximum_row(data),
    )
    ratio = _EXACT[1] / _PRINTED[1]
    verdict = (
        "The exact information between neurons grows with depth without a maximum; the truncated series peaks at r*, "
        f"where the exact one is {ratio:.2g} times as large, and is negative beyond 3/2 r*."
    )
    return Result(verdict, rows, data, partial(_draw, data))


def _curves() -> xarray.Dataset:
    """Printed, complete and exact information of scale-invariant networks by nu r."""
    import xarray

    exact = [[mixture_information(log_normal_law(float(y)), m, m).value for y in _SPREADS] for m in _GROUPS]
    dims = ("neurons", "spread")
    return xarray.Dataset(
        {
            "exact": (dims, exact),
            "printed": (dims, [printed_information(m, m, _SPREADS) for m in _GROUPS]),
            "complete": (dims, [complete_information(m, m, _SPREADS, "scale-invariant") for m in _GROUPS]),
            "complete_zero": (dims, [complete_information(m, m, _SPREADS, "K*=0") for m in _GROUPS]),
        },
        coords={"neurons": list(_GROUPS), "spread": _SPREADS},
    )


def _wide_networks(draws: int, seed: Seed) -> xarray.Dataset:
    """Random networks at depths up to nu r = 0.8, by activation; linear ones with their exact law."""
    import xarray

    tasks = [
        (name, width, depth)
        for name, width in _NETWORKS.items()
        for depth in _depths(width, fluctuation_rate(name))
    ]
    columns = [
        _one(*task, draws, own)
        for task, own in track(list(zip(tasks, spawn(seed, len(tasks)), strict=True)), "networks")
    ]
    names = ("measured", "measured_error", "law")
    stacked = {key: (("network", "neurons"), [column[key] for column in columns]) for key in names}
    activations, widths, depths = zip(*tasks, strict=True)
    # What has fluctuated are the hidden layers, one less than the depth.
    reached = [fluctuation_rate(name) * (depth - 1) / width for name, width, depth in tasks]
    labels = {"activation": activations, "width": widths, "depth": depths, "reached": reached}
    return xarray.Dataset(stacked, coords={key: ("network", list(values)) for key, values in labels.items()})


def _depths(width: int, nu: float) -> list[int]:
    return sorted({max(2, round(1 + y * width / nu)) for y in (0.15, 0.3, 0.45, 0.6, 0.75)})


def _one(name: str, width: int, depth: int, draws: int, seed: Seed) -> dict[str, list[float]]:
    mlp = MLP.critical(name, depth, width, n_in=1, n_out=10)
    law = sampled_law(mlp, [1.0], draws, seed=seed)
    found = [mixture_information(law, m, m) for m in _GROUPS]
    exact = [np.nan] * len(_GROUPS)
    if name == "linear":
        own = linear_law([width] * (depth - 1))
        exact = [mixture_information(own, m, m).value for m in _GROUPS]
    return {
        "measured": [each.value for each in found],
        "measured_error": [each.standard_error for each in found],
        "law": exact,
    }


def _tanh_networks(draws: int, seed: Seed) -> xarray.Dataset:
    """Width ten, K = 1 at the first layer, at the layers of the reference."""
    import xarray

    layers = list(_TANH)
    mlp = MLP("tanh", depth=max(layers), width=_TANH_WIDTH, n_in=1, n_out=_TANH_WIDTH)
    found = []
    for layer, own in track(list(zip(layers, spawn(seed, len(layers)), strict=True)), "tanh networks"):
        law = sampled_law(mlp, [1.0], draws, layer=layer, seed=own)
        found.append([mixture_information(law, m, m) for m in _GROUPS])
    dims = ("layer", "neurons")
    return xarray.Dataset(
        {
            "tanh": (dims, [[each.value for each in row] for row in found]),
            "tanh_error": (dims, [[each.standard_error for each in row] for row in found]),
            "tanh_reference": (dims, list(_TANH.values())),
        },
        coords={"layer": layers},
    )


def _exact_rows() -> list[Row]:
    rows = []
    unit = turning_point(1, 1)
    for name, published in (("exact", _EXACT), ("(A.71)", _PRINTED)):
        for multiple, expected in published.items():
            y = multiple * unit
            exact, printed = mixture_information(log_normal_law(y), 1, 1).value, printed_information(1, 1, y)
            here = exact if name == "exact" else float(printed)
            title = f"I(1,1) {name} at {multiple} r*" if multiple > 1 else f"I(1,1) {name} at r*"
            rows.append(Row(title, expected, here, agrees=bool(abs(here - expected) <= _DIGIT)))
    return rows


def _coefficient_rows() -> list[Row]:
    """Cubic coefficients by Richardson extrapolation: of the entropy in X, of the information in nu r."""
    rows = []
    for m in (1, 2, 4):
        expected, here = (m**3 + 10 * m**2 + 16 * m) / 48, _entropy_coefficient(m)
        agrees = bool(abs(here / expected - 1) < 1e-3)
        rows.append(Row(f"S, coefficient of X³ (A.66), m = {m}", expected, here, agrees=agrees))
    for m in (1, 4):
        here, title = _information_coefficient(m), f"I, relative coefficient of νr, m₁ = m₂ = {m}"
        complete, printed = -(14 + 6 * m) / 6, -(20 + 6 * m) / 6
        rows.append(Row(f"{title}, complete", complete, here, agrees=bool(abs(here / complete - 1) < 5e-3)))
        rows.append(
            Row(
                f"{title}, (A.71)",
                printed,
                here,
                agrees=bool(abs(here / printed - 1) < 5e-3),
                note="(A.71) puts X = νr into a series of third order, where X = νr + (νr)²/2 is needed",
                disputed=True,
            )
        )
    return rows


def _entropy_coefficient(m: int) -> float:
    """One linear layer has X = 2/n exactly."""
    values = []
    for n in (200, 400, 800):
        exact = mixture_entropy(linear_law([n]), m).value
        values.append((exact - float(entropy_series(m, 2 / n, order=2))) / (2 / n) ** 3)
    return _richardson(values)


def _information_coefficient(m: int) -> float:
    values = []
    for y in (0.02, 0.01, 0.005):
        leading = m**2 / 8 * y**2
        values.append((mixture_information(log_normal_law(y), m, m).value / leading - 1) / y)
    return _richardson(values)


def _richardson(values: list[float]) -> float:
    """The limit of three values at steps 4, 2 and 1, whose errors are a step and its square."""
    first = [2 * fine - coarse for coarse, fine in pairwise(values)]
    return (4 * first[1] - first[0]) / 3


def _linear_rows(data: xarray.Dataset) -> tuple[Row]:
    linear = data.isel(network=data.activation.values == "linear")
    scores = ((linear.measured - linear.law) / linear.measured_error).values
    _, largest = agreement_rows(scores)
    return (
        Row(
            f"linear networks of width {_NETWORKS['linear']} against their exact law: {largest.quantity}",
            largest.expected,
            largest.here,
            agrees=largest.agrees,
        ),
    )


def _tanh_rows(data: xarray.Dataset) -> list[Row]:
    rows = []
    for layer in data.layer.values:
        for m in _GROUPS:
            point = data.sel(layer=layer, neurons=m)
            expected, here, error = (float(point[key]) for key in ("tanh_reference", "tanh", "tanh_error"))
            digit = 0.5 * 10.0 ** (-4 if expected < 0.1 and m == 1 else -3)
            close = abs(here - expected) <= 3 * error + digit + _REFERENCE_ERROR * expected
            title = f"tanh, n = {_TANH_WIDTH}, layer {layer}: I({m},{m})"
            rows.append(Row(title, expected, here, error, agrees=bool(close)))
    return rows


def _maximum_row(data: xarray.Dataset) -> Row:
    """Whether any exact or measured information falls with depth by more than its error."""
    steps = data.tanh.diff("layer").values
    errors = np.hypot(data.tanh_error.values[1:], data.tanh_error.values[:-1])
    grows = bool((steps > 3 * errors).all() and (data.exact.diff("spread") > 0).all())
    note = "a property of the truncated series: r* is the depth at which perturbation theory ends, νr(m₁ + m₂) ~ 1"
    here = "grows at every depth" if grows else "falls somewhere"
    title, claim = "I against depth over width (A.72)", "a maximum at r*"
    return Row(title, claim, here, agrees=not grows, note=note, disputed=True)


def _draw(data: xarray.Dataset) -> Figure:
    from foretrain.experiments.effective_theory.mutual_information.drawing import draw

    return draw(data, _TANH_WIDTH, fluctuation_rate("tanh"))
