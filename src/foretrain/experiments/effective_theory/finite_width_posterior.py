"""Bayesian learning at finite width (section 6.4) against exact posteriors of networks of finite width.

Networks are weighted with the density of the targets, which is exact at any width. What that changes against infinite
width, times n, is measured at three widths and carried to 1/n = 0 with a quadratic: there stands the coefficient of
1/n that the theory gives, for evidence, posterior mean, covariance, the covariance between outputs and the shift of
the metric of both hidden layers. The book (footnote 35) has the earlier of them at 1/n^2.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import xarray

from foretrain.compare.judging.agreement import largest_score_allowed
from foretrain.experiments.effective_theory.width_limits import infinite_width
from foretrain.experiments.judgements import agreeing, limit_row, measured_row
from foretrain.experiments.parts import Parts
from foretrain.experiments.registry import Result, Row, plans
from foretrain.support.answers import FAINT, INK, PALETTE, Axis, Figure, labelled
from foretrain.support.progress import track
from foretrain.support.seeds import integer, with_seeds
from foretrain.theory.architecture import MLP, FloatArray
from foretrain.theory.prediction import bayes

# The first kernel of the example is [[1, .5, -.3], [.5, .8, .2], [-.3, .2, 1.2]]; the third input is not observed.
_FIRST = np.array([[1.0, 0.5, -0.3], [0.5, 0.8, 0.2], [-0.3, 0.2, 1.2]])
_INPUTS = np.linalg.cholesky((_FIRST - 0.1) / 1.5) * np.sqrt(3)
_DATA = _INPUTS[:2], np.array([(0.7, -0.4), (0.2, 0.9)]).T, _INPUTS[2:]  # inputs, targets, tests
_PAIRS, _WIRED = ((0, 0), (0, 1), (0, 2)), ((1, 1), (1, 2), (2, 2))  # of inputs, of outputs
QUANTITIES = (
    "log evidence",
    *(f"mean of output {i}" for i in (1, 2)),
    "variance of an output, given the metric",
    *(f"covariance of means of outputs {i} and {j}" for i, j in _WIRED),
    *(f"metric of layer {layer}, inputs {a} and {b}" for layer in (2, 3) for a, b in _PAIRS),
)
_FOOTNOTE = "metric of layer 2, inputs 0 and 1"
_PANELS = {  # quantities and their labels
    "log evidence": {"log evidence": "log p(targets)"},
    "posterior mean": {f"mean of output {i}": f"output {i}" for i in (1, 2)},
    "posterior covariance": {
        "variance of an output, given the metric": "one output, given metric",
        **{f"covariance of means of outputs {i} and {j}": f"means of {i}, {j}" for i, j in _WIRED},
    },
    "shift of hidden layers": {
        f"metric of layer {layer}, inputs 0 and {b}": f"layer {layer}, inputs 0, {b}"
        for layer in (3, 2)
        for b in (0, 1)
    },
}


@dataclass(frozen=True)
class Case:
    """A network at its narrowest, and the noise of its targets."""

    label: str
    mlp: MLP
    noise: float


_RELU = MLP("relu", 3, [48, 32], n_out=2, C_b=(0.1, 0.2, 0.1), C_W=(1.5, 1.7, 1.4))
CASES = (
    Case("tanh", MLP("tanh", 3, 32, n_out=2, C_b=0.1, C_W=1.5), 0.0),
    Case("relu, unequal layers", _RELU, 0.1),
)


@dataclass(frozen=True)
class Plan:
    """How many networks of which widths are weighted."""

    draws: dict[int, int]  # by multiple of the narrowest widths; most where the limit has its noise from


PLANS = plans(
    quick=Plan({1: 100_000, 2: 500_000, 4: 700_000}), paper=Plan({1: 1_000_000, 2: 5_000_000, 4: 7_000_000})
)


def finite_width_posterior(plan: Plan, seed: int, parts: Parts) -> Result:
    """Coefficients of 1/n of the posterior, from theory and from exact posteriors at three widths."""
    tasks = [(case, multiple) for case in CASES for multiple in plan.draws]
    measured = [
        parts.get(
            f"{case.label} {multiple}", partial(_measure, case, multiple, plan.draws[multiple], integer(own))
        )
        for (case, multiple), own in track(with_seeds(tasks, seed), "widths")
    ]
    scales, narrow = list(plan.draws), CASES[0].mlp
    shape = (len(CASES), len(scales), len(QUANTITIES))
    value, error = (
        np.reshape([part[name].values for part in measured], shape) for name in ("value", "standard_error")
    )
    effective = np.reshape([float(part["effective_draws"]) for part in measured], shape[:2])
    limit, limit_error = zip(*(infinite_width(scales, *own) for own in zip(value, error)), strict=True)
    book = bayes.book_posterior_mean(narrow, *_DATA) - _theory(narrow, 0.0).infinite_mean
    data = labelled(
        {
            "measured": ("case scale quantity", value),
            "standard_error": ("case scale quantity", error),
            "effective_draws": ("case scale", effective),
            "limit": ("case quantity", np.stack(limit)),
            "limit_error": ("case quantity", np.stack(limit_error)),
            "theory": ("case quantity", np.stack([_coefficients(case) for case in CASES])),
            "book_mean": ("output", (narrow.hidden_widths[-1] * book).values[0]),
        },
        case=[case.label for case in CASES],
        scale=scales,
        quantity=list(QUANTITIES),
        width=("scale", [multiple * narrow.hidden_widths[-1] for multiple in scales]),
    )
    rows = _table(data)
    tested, footnote = [row for row in rows if row.agrees is not None][:-1], rows[-1]
    worst = max(abs(row.z or 0.0) for row in tested)
    verdict = (
        f"{agreeing(tested)} coefficients of 1/n agree with exact posteriors (largest |z| {worst:.1f}); the "
        f"layer before the last hidden one moves at 1/n (ratio {footnote.here:.3g} where footnote 35 has "
        f"{footnote.expected:.3g})."
    )
    return Result(verdict, rows, data, _figure)


def _measure(case: Case, multiple: int, draws: int, seed: int) -> xarray.Dataset:
    """n times what finite width changes, by importance weights."""
    mlp = case.mlp.replace(width=[multiple * width for width in case.mlp.hidden_widths])
    posterior = bayes.importance_posterior(mlp, *_DATA, draws=draws, noise=case.noise, seed=seed)
    infinite = _theory(mlp, case.noise)
    n = mlp.hidden_widths[-1]
    start = np.zeros(len(QUANTITIES))
    start[0], start[1:3] = infinite.infinite_log_evidence, infinite.infinite_mean.values[0]
    start[3] = _entry(infinite.infinite_covariance)
    return xarray.Dataset(
        {
            "value": ("quantity", n * (_values(posterior.to_dataset()) - start)),
            "standard_error": ("quantity", n * _values(posterior.standard_error)),
            "effective_draws": posterior.effective_draws,
        }
    )


def _theory(mlp: MLP, noise: float) -> bayes.FiniteBayesPrediction:
    return bayes.finite_bayes_prediction(mlp, *_DATA, noise=noise)


def _entry(values: xarray.DataArray | None) -> float:
    assert values is not None
    return float(values.values[0, 0])


def _values(posterior: xarray.Dataset) -> FloatArray:
    """All quantities in order, of a posterior or of its standard errors."""
    wiring = posterior["wiring"].values[0, :, 0]
    one = [posterior["log_evidence"].item(), *posterior["mean"].values[0], posterior["covariance"].item()]
    return np.array([*one, *wiring[np.triu_indices(2)], *_metrics(posterior["metric"])])


def _metrics(metric: xarray.DataArray) -> list[float]:
    return [metric.sel(layer=layer)[pair].item() for layer in (2, 3) for pair in _PAIRS]


def _coefficients(case: Case) -> FloatArray:
    """n times the order 1/n of everything."""
    theory = _theory(case.mlp, case.noise)
    moved = bayes.representation_shift(case.mlp, *_DATA, noise=case.noise)["metric"]
    assert theory.wiring is not None
    n, wiring = case.mlp.hidden_widths[-1], theory.wiring.values[0, :, 0]
    shift = [
        theory.log_evidence - theory.infinite_log_evidence,
        *(theory.mean - theory.infinite_mean).values[0],
        _entry(theory.covariance) - _entry(theory.infinite_covariance),
        *wiring[np.triu_indices(2)],
        *_metrics(moved),
    ]
    return n * np.array(shift)


def _table(data: xarray.Dataset) -> tuple[Row, ...]:
    bound = largest_score_allowed(len(CASES) * len(QUANTITIES))
    names, label = ("theory", "limit", "limit_error"), CASES[0].label
    rows = [
        limit_row(f"{name}: {quantity}, times n", data.sel(case=name, quantity=quantity), bound, names)
        for name in data["case"].values
        for quantity in QUANTITIES
    ]
    # (6.88) letter by letter at the narrowest width, beside the exact posterior there: no claim, which is closer.
    first, last = data["width"].values[[0, -1]]
    for quantity, book in zip(QUANTITIES[1:3], data["book_mean"].values.tolist(), strict=True):
        own = data.sel(case=label, quantity=quantity).isel(scale=0)
        title = f"{label}, n = {first}: {quantity} by (6.88) literally, times n"
        exact, error, strict = (own[key].item() for key in ("measured", "standard_error", "theory"))
        note = f"its parts beyond 1/n are not controlled; strictly to first order it is {strict:.3g}"
        rows.append(Row(f"{title}, beside the exact one", exact, book, error, note=note))
    # Whether n times the shift of layer 2 stays or falls with n.
    own = data.sel(case=label, quantity=_FOOTNOTE)
    narrow, wide = own["measured"].values[[0, -1]]
    error = abs(wide / narrow) * np.hypot(*(own["standard_error"] / own["measured"]).values[[0, -1]])
    title = f"{label}: {_FOOTNOTE}, times n: n = {last} over n = {first}, by footnote 35"
    note = (
        "the book has this layer at 1/n^2, but the sum over the neurons after it makes that 1/n, as measured"
    )
    return (*rows, measured_row(title, first / last, wide / narrow, error, 3, note, disputed=True))


def _figure(data: xarray.Dataset) -> Figure:
    """n times what finite width changes, against 1/n: one row of panels for each network.

    Measured values, the quadratic through them and their limit, and the theory as a star.
    """
    title = "Bayesian learning at finite width: exact posteriors, and their order 1/n from theory"
    cases = data["case"].values
    figure = Figure(title, columns=len(_PANELS), size=(18, 4.6 * len(cases)))
    ticks = {0: "0", **{1 / width: f"1/{width}" for width in data["width"].values.tolist()}}
    for row, case in enumerate(cases):
        own = data.sel(case=case)
        label = "1/n, n the width of the last hidden layer" if row == len(cases) - 1 else ""
        x = Axis(label, low=-0.0015, high=1.06 * max(ticks), ticks=ticks)
        for column, (name, quantities) in enumerate(_PANELS.items()):
            y = Axis("" if column else "n × (exact − infinite width)", room=0.36)
            panel = figure.panel(f"{case}: {name}", x, y, legend="upper center", legend_columns=2)
            for (quantity, label), color in zip(quantities.items(), PALETTE, strict=False):
                one = own.sel(quantity=quantity)
                inverse, limit = 1 / one["width"].values, one.limit.item()
                panel.curve(inverse, one.measured, "o", label, color, error=one.standard_error, size=4)
                fine = np.linspace(0, inverse.max(), 60)
                curve = np.polyfit([0, *inverse], [limit, *one.measured.values], 2)
                panel.curve(fine, np.polyval(curve, fine), "-", "", color, width=1, alpha=0.6)
                panel.curve(0, limit, "_", "", color, error=one.limit_error)
                panel.curve(0, one.theory, "*", "", color, size=11)
            if name == "shift of hidden layers":  # layer 2, were it at 1/n^2 from its narrowest network on
                line = [0, own.measured.sel(quantity=_FOOTNOTE).values[0]]
                panel.curve([0, max(ticks)], line, "--", "1/n² (footnote 35)", FAINT, width=1.2)
            panel.curve([], [], "*", "theory at 1/n → 0", INK, hollow=True, size=11)
            panel.level(x=0, width=0.8)
    return figure
