"""Bayesian learning: the evidence of deep networks, and posteriors of networks of finite width (chapter 6)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import xarray as xr

from foretrain.compare.judging.agreement import largest_score_allowed
from foretrain.experiments.effective_theory.width_limits import infinite_width
from foretrain.experiments.judgements import agreeing, computed_row, limit_row, measured_row
from foretrain.experiments.parts import Parts
from foretrain.experiments.pictures import coloured
from foretrain.experiments.registry import Result, Row, plans
from foretrain.support.answers import BLUE, FAINT, INK, PALETTE, RED, Axis, Figure, labelled
from foretrain.support.progress import track
from foretrain.support.seeds import Seed, integer, spawn, with_seeds
from foretrain.theory.architecture import MLP, FloatArray
from foretrain.theory.ensembles import Ensemble
from foretrain.theory.prediction import bayes

PLANS: dict[str, Any] = {}

_DIGITS = 6e-7
_DEPTHS = (5, 20, 50)
_SINGLE = {  # one input, one output, y = 1, K at layer 1 equal to C_W: by depth, in the order of C_W
    "tanh": (
        (0.9, 1.0, 1.1, 1.5, 3.0),
        (
            (-5.081058, -3.799863, -3.015520, -1.789782, -1.441133),
            (-61.887489, -17.442559, -7.451109, -2.036276, -1.438920),
            (-1717.334649, -46.572684, -8.968628, -2.037420, -1.438920),
        ),
    ),
    "relu": (
        (1.8, 2.0, 2.2),
        (
            (-1.425488, -1.515512, -1.659018),
            (-2.268223, -1.515512, -2.255775),
            (-47.139630, -1.515512, -3.650396),
        ),
    ),
}
_SIMILAR, _DISSIMILAR = (1.0, 0.9), (1.0, -0.5)
_PAIR = np.sqrt(2) * np.linalg.cholesky(np.array([[1.0, 0.9], [0.9, 1.0]]))  # x.x / n_0 is that matrix
_PAIR_DEPTH, _PAIR_BIAS = 30, 0.1
_PAIR_WEIGHTS = (1.2, 1.5, 1.6, 1.7, 1.8, 2.0, 3.0)
_PAIR_EVIDENCE = (-73.779, -1.2232, -0.5715, -0.5813, -0.7820, -1.2663, -2.4906)
_PAIR_PROFILED = (-1.8790, -0.5472, -0.4865, -0.5812, -0.7593, -1.1665, -2.1712)
_SLIGHTLY = 1.1  # C_W that the footnote would count as slightly above the critical 1
_NOISE, _WIDTH = 0.25, 64  # of the networks that are drawn
_X, _Y = np.array([[1.2, -0.4], [0.3, 0.9], [-0.8, 0.6]]), np.array([[0.9], [-0.4]])  # the last is asked
_BOUND = 3.0


@dataclass(frozen=True)
class EvidencePlan:
    """How many networks are weighted, and how finely the evidence is scanned."""

    draws: int
    points: int  # of scans


PLANS["model_evidence"] = plans(quick=EvidencePlan(200_000, 61), paper=EvidencePlan(3_000_000, 301))


def model_evidence(plan: EvidencePlan, seed: int) -> Result:
    """Bayesian model comparison: the evidence of networks against their initialisation (sections 6.2.2 and 6.3.1).

    The evidence of deep networks at infinite width is put beside reference numbers and scanned over C_W: for ReLU
    depth leaves nothing but the critical value; for tanh that needs targets that are similar and a free scale of the
    outputs. Real random networks, weighted with the density of noisy targets, check evidence and posterior: noise
    belongs on the diagonal of the kernel, not into the variance of the last bias, as footnote 6 has it.
    """
    # Curves over C_W for the picture and for the places of their maxima.
    weights = {"relu": np.linspace(1.7, 2.3, plan.points), "tanh": np.linspace(0.9, 3.0, plan.points)}
    parts = [
        _single(name, values).rename(C_W=f"{name}_C_W").to_dataset(name=name)
        for name, values in weights.items()
    ]
    pairs = {"similar": _SIMILAR, "dissimilar": _DISSIMILAR}
    for name, targets in track(pairs.items(), "targets", total=len(pairs)):
        found = _pair(targets, np.linspace(1.2, 3.0, plan.points)).isel(C_b=0, depth=0, drop=True)
        kept = {"log_evidence": name, "profiled_log_evidence": f"{name}_profiled"}
        parts.append(found[list(kept)].rename({"C_W": "pair_C_W", **kept}))
    data = xr.merge([*(part.drop_attrs() for part in parts), _weighted(plan.draws, seed)])
    rows = [*_reference_rows(), *_best_rows(data)]
    for name in data.quantity.values:
        at = data.sel(quantity=name)
        expected, infinite, here, error = (
            float(at[key]) for key in ("diagonal", "infinite", "measured", "standard_error")
        )
        # What the order 1/n leaves is of the order of its square, relative to what it corrects.
        agrees = bool(abs(here - expected) <= _BOUND * error + (expected - infinite) ** 2)
        title = f"random tanh networks, n = {_WIDTH}, noise {_NOISE:g}: {name}"
        note = f"to order 1/n; at infinite width {infinite:.4f}"
        rows.append(Row(f"{title}, noise on the diagonal", expected, here, error, agrees, note))
        title = f"{title}, noise in C_b of the last layer (footnote 6)"
        note = "noise is independent for every sample, a bias is shared by all: the same for one input only"
        names = ("footnote", "measured", "standard_error")
        rows.append(limit_row(title, at, _BOUND, names, note, disputed=True))
    good = all(row.agrees is not False for row in rows if not row.disputed)
    best = float(data.relu.sel(depth=50).idxmax("relu_C_W"))
    verdict = (
        f"Evidences {'agree' if good else 'do NOT all agree'} with reference numbers and with random networks; at "
        f"depth 50 that of ReLU is largest at C_W = {best:.3g}, and noise on targets adds to the diagonal of K."
    )
    return Result(verdict, tuple(rows), data, _evidence_figure)


def _single(name: str, C_W: tuple[float, ...] | FloatArray) -> xr.DataArray:
    """Log evidence of one input by depth and C_W."""
    found = bayes.evidence_scan(MLP(name, 2, 1), [[1.0]], [1.0], C_W=C_W, depth=_DEPTHS)
    return found["log_evidence"].isel(C_b=0, drop=True)


def _pair(targets: tuple[float, float], C_W: tuple[float, ...] | FloatArray) -> xr.Dataset:
    """Log evidence of two similar inputs by C_W, as it is and with the best output scale."""
    return bayes.evidence_scan(MLP("tanh", _PAIR_DEPTH, 1, C_b=_PAIR_BIAS), _PAIR, list(targets), C_W=C_W)


def _reference_rows() -> list[Row]:
    rows = []
    for name, (weights, reference) in _SINGLE.items():
        found = _single(name, weights).transpose("depth", "C_W").values
        for depth, values, here in zip(_DEPTHS, reference, found, strict=True):
            for C_W, value, one in zip(weights, values, here, strict=True):
                title = f"{name}, one input, L = {depth}, C_W = {C_W:g}: log evidence"
                rows.append(computed_row(title, value, one, _DIGITS * max(1.0, abs(value) / 10)))
    similar = _pair(_SIMILAR, _PAIR_WEIGHTS)
    for key, words, evidence in (
        ("log_evidence", "log evidence", _PAIR_EVIDENCE),
        ("profiled_log_evidence", "with the best output scale", _PAIR_PROFILED),
    ):
        for C_W, value, one in zip(_PAIR_WEIGHTS, evidence, similar[key].values.ravel(), strict=True):
            digits = 6e-5 if value > -10 else 6e-4
            title = f"tanh, two similar inputs, L = {_PAIR_DEPTH}, C_W = {C_W:g}: {words}"
            rows.append(computed_row(title, value, one, digits))
    return rows


def _best_rows(data: xr.Dataset) -> list[Row]:
    """Where the evidence is largest."""
    relu = float(data.relu.sel(depth=50).idxmax("relu_C_W"))
    tanh = float(data.tanh.sel(depth=50).idxmax("tanh_C_W"))
    similar = bayes.best_point(_pair(_SIMILAR, np.linspace(1.2, 3.0, 91)), by="profiled_log_evidence").C_W
    rises = bool((data.dissimilar.diff("pair_C_W") > 0).all())
    note = "depth leaves only the critical value"
    return [
        computed_row("relu, one input, L = 50: C_W of the largest evidence", 2.0, relu, 0.05, note),
        Row(
            "tanh, one input with Σ y² = 1, L = 50: C_W of the largest evidence (footnote 22: slightly above 1)",
            f"at most {_SLIGHTLY:g}",
            tanh,
            agrees=tanh <= _SLIGHTLY,
            note="K falls as 1/2l at C_W = 1 and is too small for such a target; above it K settles at a value of "
            "order one, and nothing in a single target speaks against disorder",
            disputed=True,
        ),
        Row(
            f"tanh, similar inputs and targets, L = {_PAIR_DEPTH}: C_W of the largest evidence, best output scale",
            "near critical: between 1.5 and 1.8",
            similar,
            agrees=1.5 <= similar <= 1.8,
        ),
        Row(
            "tanh, similar inputs, dissimilar targets: evidence against C_W",
            "keeps rising",
            "keeps rising" if rises else "falls somewhere",
            agrees=rises,
        ),
    ]


def _weighted(draws: int, seed: Seed) -> xr.Dataset:
    """Evidence and posterior mean by weighting explicit random networks with the density of noisy targets."""
    batches, mlp = 50, MLP("tanh", 3, _WIDTH, n_in=2, C_b=0.1, C_W=1.5)
    evidence, mean = np.empty(batches), np.empty(batches)
    for place, own in enumerate(track(spawn(seed, batches), "weighted networks")):
        ensemble = Ensemble(mlp, _X, draws // batches, method="weights", seed=own)
        z = np.concatenate([chunk[3][:, 0] for chunk in ensemble.preactivations([3])])
        log_weight = -((z[:, :2] - _Y[:, 0]) ** 2).sum(axis=1) / (2 * _NOISE) - np.log(2 * np.pi * _NOISE)
        weight = np.exp(log_weight)
        evidence[place], mean[place] = weight.mean(), (weight * z[:, 2]).mean()
    # Ratios and logarithms of the means of all, with errors from the batches.
    total, product = evidence.mean(), mean.mean()
    ratio = product / total
    root = np.sqrt(batches)
    errors = [evidence.std(ddof=1) / total / root, (mean - ratio * evidence).std(ddof=1) / total / root]
    # Noise on the diagonal, to order 1/n; and in the variance of the last bias, at infinite width.
    train, tests = _X[:2], _X[2:]
    finite = bayes.finite_bayes_prediction(mlp, train, _Y, tests, noise=_NOISE)
    shifted = mlp.replace(C_b=[*mlp.C_b[:-1], mlp.C_b[-1] + _NOISE])
    shared = bayes.bayes_prediction(shifted, train, _Y, tests)
    columns = {
        "measured": [np.log(total), ratio],
        "standard_error": errors,
        "diagonal": [finite.log_evidence, float(finite.mean.values[0, 0])],
        "infinite": [finite.infinite_log_evidence, float(finite.infinite_mean.values[0, 0])],
        "footnote": [bayes.log_evidence(shifted, train, _Y), float(shared.mean.values[0, 0])],
    }
    return xr.Dataset(
        {name: ("quantity", values) for name, values in columns.items()},
        coords={"quantity": ["log evidence", "posterior mean"]},
        attrs={"draws": draws},
    )


def _evidence_figure(data: xr.Dataset) -> Figure:
    figure = Figure("Evidence of deep networks against the variance of their weights", size=(15.5, 4.9))
    for name, critical in (("relu", 2), ("tanh", 1)):
        evidence = Axis("log evidence", low=-8, high=0)
        panel = figure.panel(f"{name}, one input, y = 1", x="$C_W$", y=evidence)
        for depth, own, color in coloured(data, "depth"):
            panel.curve(data[f"{name}_C_W"], own[name], "-", f"L = {depth}", color)
        panel.level(x=critical, dash="--")
    title = f"tanh, two similar inputs, L = {_PAIR_DEPTH}, $C_b$ = {_PAIR_BIAS:g}"
    panel = figure.panel(title, x="$C_W$", y=Axis("log evidence", low=-6, high=0))
    for name, color in (("similar", BLUE), ("dissimilar", RED)):
        panel.curve(data.pair_C_W, data[name], "-", f"{name} targets", color)
        panel.curve(data.pair_C_W, data[f"{name}_profiled"], "--", "", color, width=1.2)
    panel.legend_entry("--", "with the best output scale")
    return figure


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
class PosteriorPlan:
    """How many networks of which widths are weighted."""

    draws: dict[int, int]  # by multiple of the narrowest widths; most where the limit has its noise from


PLANS["finite_width_posterior"] = plans(
    quick=PosteriorPlan({1: 100_000, 2: 500_000, 4: 700_000}),
    paper=PosteriorPlan({1: 1_000_000, 2: 5_000_000, 4: 7_000_000}),
)


def finite_width_posterior(plan: PosteriorPlan, seed: int, parts: Parts) -> Result:
    """Bayesian learning at finite width (section 6.4) against exact posteriors of networks of finite width.

    Networks are weighted with the density of the targets, which is exact at any width. What that changes against
    infinite width, times n, is measured at three widths and carried to 1/n = 0 with a quadratic: there stands the
    coefficient of 1/n that the theory gives, for evidence, posterior mean, covariance, the covariance between
    outputs and the shift of the metric of both hidden layers. The book (footnote 35) has the earlier of them at
    1/n^2.
    """
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
    return Result(verdict, rows, data, _posterior_figure)


def _measure(case: Case, multiple: int, draws: int, seed: int) -> xr.Dataset:
    """n times what finite width changes, by importance weights."""
    mlp = case.mlp.replace(width=[multiple * width for width in case.mlp.hidden_widths])
    posterior = bayes.importance_posterior(mlp, *_DATA, draws=draws, noise=case.noise, seed=seed)
    infinite = _theory(mlp, case.noise)
    n = mlp.hidden_widths[-1]
    start = np.zeros(len(QUANTITIES))
    start[0], start[1:3] = infinite.infinite_log_evidence, infinite.infinite_mean.values[0]
    start[3] = _entry(infinite.infinite_covariance)
    return xr.Dataset(
        {
            "value": ("quantity", n * (_values(posterior.to_dataset()) - start)),
            "standard_error": ("quantity", n * _values(posterior.standard_error)),
            "effective_draws": posterior.effective_draws,
        }
    )


def _theory(mlp: MLP, noise: float) -> bayes.FiniteBayesPrediction:
    return bayes.finite_bayes_prediction(mlp, *_DATA, noise=noise)


def _entry(values: xr.DataArray | None) -> float:
    assert values is not None
    return float(values.values[0, 0])


def _values(posterior: xr.Dataset) -> FloatArray:
    """All quantities in order, of a posterior or of its standard errors."""
    wiring = posterior["wiring"].values[0, :, 0]
    one = [posterior["log_evidence"].item(), *posterior["mean"].values[0], posterior["covariance"].item()]
    return np.array([*one, *wiring[np.triu_indices(2)], *_metrics(posterior["metric"])])


def _metrics(metric: xr.DataArray) -> list[float]:
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


def _table(data: xr.Dataset) -> tuple[Row, ...]:
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


def _posterior_figure(data: xr.Dataset) -> Figure:
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
