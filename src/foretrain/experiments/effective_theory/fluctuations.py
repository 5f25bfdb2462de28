"""Fluctuations of random networks: the second layer exactly, the six-point vertex, and residual networks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import combinations_with_replacement, product
from typing import Any

import numpy as np
import xarray as xr

from foretrain.activations import Activation, activation
from foretrain.compare.judging.agreement import largest_score_allowed
from foretrain.experiments.effective_theory.width_limits import WidthPlan, infinite_width, limits
from foretrain.experiments.judgements import agreement_rows, computed_row, limit_row
from foretrain.experiments.pictures import add_scores, coloured, draw_limit
from foretrain.experiments.registry import Result, Row, plans
from foretrain.gaussian import expectations_at
from foretrain.support.answers import BLUE, FAINT, GREEN, INK, ORANGE, Axis, Figure, Panel, log
from foretrain.support.progress import track
from foretrain.support.seeds import Seed, generator, spawn, with_seeds
from foretrain.theory.architecture import MLP, FloatArray
from foretrain.theory.complexity import model_complexity
from foretrain.theory.ensembles import Ensemble, connected_correlator, correlator
from foretrain.theory.flow import flow
from foretrain.theory.flow.request import Method
from foretrain.theory.recursions.six_point import metric_cumulants, six_point_flow
from foretrain.theory.residual_networks import fluctuation_rate, optimal_aspect_ratio, optimal_skip

PLANS: dict[str, Any] = {}

_INPUTS = 4
_PAIRS = list(combinations_with_replacement(range(_INPUTS), 2))
_QUADRUPLES = [(*left, *right) for left, right in combinations_with_replacement(_PAIRS, 2)]
_SHOWN = ((0, 0), (0, 1), (0, 0, 0, 0), (0, 0, 1, 1), (0, 1, 2, 3))
_METRIC_OUTPUTS = 16  # neurons of layer 2 over which one network's correlators are averaged
_C_B, _C_W = 0.2, 1.5
_MARKERS = "os^D"


@dataclass(frozen=True)
class MetricPlan:
    """Activations and widths of the networks, and how many are drawn."""

    activations: tuple[str, ...]
    widths: tuple[int, ...]
    draws: int


PLANS["metric_fluctuations"] = plans(
    quick=MetricPlan(("tanh", "relu", "gelu"), (3, 8), 60_000),
    paper=MetricPlan(("tanh", "relu", "gelu", "sin", "swish", "softplus"), (1, 3, 8, 32), 400_000),
)


def metric_fluctuations(plan: MetricPlan, seed: int) -> Result:
    """The second layer of real random networks against Gaussian expectations that are exact at any width.

    With K the first layer's covariance (4.8), for every width n_1 of the first layer (4.37), (4.40)

        E[z_α z_β]                    = C_b + C_W ⟨σ_α σ_β⟩_K                                        one neuron,
        E[z_α z_β z'_γ z'_δ] conn.    = C_W²/n_1 (⟨σ_α σ_β σ_γ σ_δ⟩_K − ⟨σ_α σ_β⟩_K ⟨σ_γ σ_δ⟩_K)     two neurons.
    """
    cases = list(product(plan.activations, plan.widths))
    seeds = spawn(seed, 1 + len(cases))
    X = np.random.default_rng(seeds[0]).normal(size=(_INPUTS, 5))
    columns = []
    for (name, width), own_seed in track(list(zip(cases, seeds[1:], strict=True)), "networks"):
        mlp = MLP(name, depth=2, width=width, n_out=_METRIC_OUTPUTS, C_b=_C_B, C_W=_C_W)
        ensemble = Ensemble(mlp, X, plan.draws, method="weights", seed=own_seed)
        # From the neurons of real networks, in the order of the theory.
        two = correlator(ensemble, "11", layers=[2], inputs=_PAIRS, estimator="neurons")
        four = connected_correlator(ensemble, "1122", layers=[2], inputs=_QUADRUPLES, estimator="neurons")
        names = ("value", "standard_error")
        found = [np.concatenate([each[key].values[0] for each in (two, four)]) for key in names]
        columns.append((_exact(mlp, X), *found))
    shape, entries = (len(plan.activations), len(plan.widths), -1), (*_PAIRS, *_QUADRUPLES)
    data = xr.Dataset(
        {
            label: (("activation", "width", "entry"), np.reshape(values, shape))
            for label, values in zip(("theory", "measured", "standard_error"), zip(*columns, strict=True))
        },
        coords={
            "activation": list(plan.activations),
            "width": list(plan.widths),
            "entry": [_entry_name(indices) for indices in entries],
            "points": ("entry", [len(indices) for indices in entries]),
        },
        attrs={"C_b": _C_B, "C_W": _C_W, "draws": plan.draws, "outputs": _METRIC_OUTPUTS},
    )
    data["z"] = (data.measured - data.theory) / data.standard_error
    spread, largest = agreement_rows(data.z.values.ravel())
    rows, bound = [spread, largest], largest_score_allowed(data.z.size)
    for name, width, indices in product(plan.activations, plan.widths, _SHOWN):
        entry = data.sel(activation=name, width=width, entry=_entry_name(indices))
        title = f"{name}, n_1 = {width}: {_entry_name(indices)}"
        rows.append(limit_row(title, entry, bound, ("theory", "measured", "standard_error")))
    fours = data.isel(entry=data.points.values == 4)
    signal = float(np.abs(fours.theory / fours.standard_error).max())
    judgement = "agree" if spread.agrees and largest.agrees else "do not agree"
    verdict = (
        f"{data.z.size} correlators of layer 2 {judgement} with the exact Gaussian expectations "
        f"(rms z {spread.here:.2f}, largest |z| {largest.here:.1f}); "
        f"independent neurons would be wrong by up to {signal:.0f} standard errors."
    )
    return Result(verdict, tuple(rows), data, _metric_figure)


def _exact(mlp: MLP, X: FloatArray) -> FloatArray:
    """Two-point function of all pairs, then connected four-point function of all quadruples."""
    K = mlp.first_kernel(X)
    C_b, C_W, width = mlp.C_b[1], mlp.C_W[1], mlp.hidden_widths[0]
    quadruples = np.array(_QUADRUPLES)
    pairs, left, right = (
        expectations_at([mlp.activation] * 2, K, indices).value
        for indices in (_PAIRS, quadruples[:, :2], quadruples[:, 2:])
    )
    four = expectations_at([mlp.activation] * 4, K, quadruples).value
    return np.concatenate([C_b + C_W * pairs, C_W**2 / width * (four - left * right)])


def _entry_name(indices: tuple[int, ...]) -> str:
    numbers = [str(index + 1) for index in indices]
    if len(numbers) == 2:
        return f"G_{''.join(numbers)}"
    return f"V_({''.join(numbers[:2])})({''.join(numbers[2:])})/n"


def _metric_figure(data: xr.Dataset) -> Figure:
    title = "Layer 2 of real random networks against exact Gaussian expectations"
    figure = Figure(title, layout="ABC DEC", heights=(3, 1), size=(14.5, 5.6))
    # √G_αα for each leg of each entry, so that all activations fit on one axis.
    variances = [data.theory.sel(entry=_entry_name((i, i))).isel(width=0).values for i in range(_INPUTS)]
    legs = [np.sqrt(variances)[list(entry)].prod(axis=0) for entry in (*_PAIRS, *_QUADRUPLES)]
    data = data.assign_coords(unit=(("activation", "entry"), np.stack(legs, axis=-1)))
    two, four = (data.isel(entry=data.points.values == points) for points in (2, 4))
    sizes, widths = (four.theory / four.unit).values, data.width.values.tolist()
    ticks = [tick for tick in (-1, -0.1, -0.01, 0, 0.01, 0.1, 1) if 2 * sizes.min() <= tick <= sizes.max()]
    signed = partial(Axis, scale="symlog", ticks=ticks, threshold=0.01)
    measured = f"measured, {int(data.attrs['draws']):,} networks each"
    scores = data.z.values.ravel()
    bound = largest_score_allowed(scores.size)
    title, pulls = "connected four-point function, two neurons", Axis("z", low=-1.1 * bound, high=1.1 * bound)
    above = (
        figure.panel("two-point function, one neuron", y=measured),
        figure.panel(title, signed(), signed(measured), legend=""),
    )
    for panel, own in zip(above, (two, four)):
        theory = own.theory / own.unit
        ends = [float(theory.min()), float(theory.max())]
        panel.curve(ends, ends, "-", "", FAINT, width=1)
    spread, largest = agreement_rows(scores)
    label = f"rms {spread.here:.2f}\nlargest {largest.here:.2f}\n1 % bound {largest.expected:.2f}"
    add_scores(figure, scores, f"all {scores.size} z-scores", label)
    label = r"theory  $G_{\alpha\beta}$,  in units of $\sqrt{G_{\alpha\alpha}G_{\beta\beta}}$"
    signs = r"theory  $V_{(\alpha\beta)(\gamma\delta)}/n_1$,  same units, signed logarithm"
    below = figure.panel(x=label, y=pulls), figure.panel(x=signed(signs), y=pulls)
    for agreement, panel, own in zip(above, below, (two, four)):
        for end in (bound, 1.0):  # bands of the 1 % bound and of one standard error
            panel.region(low=-end, high=end)
        for (_, each, color), (marker, width) in product(coloured(own, "activation"), zip(_MARKERS, widths)):
            one = each.sel(width=width)
            x, y, error = (one[key] / one.unit for key in ("theory", "measured", "standard_error"))
            agreement.curve(x, y, marker, "", color, error=error, size=4.5, hollow=True)
            panel.curve(x, one.z, marker, "", color, size=3.5, alpha=0.8)
        for name, _, color in coloured(own, "activation"):
            agreement.legend_entry("-", name, color)
        for marker, width in zip(_MARKERS, widths):
            agreement.legend_entry(marker, f"$n_1 = {width}$", hollow=True)
    return figure


_BATCHES = 40
_CHUNK = 4_000_000  # random numbers at a time


@dataclass(frozen=True)
class _Case:
    label: str
    act: Activation
    C_b: float
    C_W: float
    reference: tuple[float, ...]  # U at layers 2, 3, ..
    digits: float

    def network(self, width: int) -> MLP:
        """As deep as there are numbers to compare with."""
        return MLP(self.act, len(self.reference) + 1, width, n_in=1, C_b=self.C_b, C_W=self.C_W)


PLANS["six_point_vertex"] = plans(
    quick=WidthPlan({40: 500_000, 80: 400_000, 160: 300_000}),
    paper=WidthPlan({40: 4_000_000, 80: 4_000_000, 160: 2_000_000}),
)


def _cases() -> tuple[_Case, ...]:
    bent = activation(lambda z: np.tanh(z) + np.tanh(z) ** 2 / 2, name="tanh + tanh²/2")
    return (
        _Case("relu", activation("relu"), 0.0, 2.0, (44, 238, 582, 1076, 1720), 1e-9),
        _Case("tanh + tanh²/2", bent, 0.05, 1.5, (1.02449, 1.42806, 1.47099), 1e-5),
    )


def six_point_vertex(plan: WidthPlan, seed: int) -> Result:
    """The six-point vertex of random networks against its recursion (epilogue, epsilon.20).

    The third cumulant of the stochastic metric is U / n^2. One input is sent through random layers: given the
    metric, the neurons of a layer are independent, which is exact at any width. Third cumulants of ReLU and of a
    function that is not odd are measured at three widths and extrapolated to infinite width. Counts of the numbers
    that describe trained networks come along.
    """
    cases = _cases()
    parts = [_limits(case, plan, own).expand_dims(case=[case.label]) for case, own in with_seeds(cases, seed)]
    data = xr.concat(parts, "case", join="outer")
    score = data.z.values[np.isfinite(data.z.values)]
    rows, bound = list(agreement_rows(score)), largest_score_allowed(score.size)
    for case in cases:
        for layer, reference in enumerate(case.reference, start=2):
            one, title = data.sel(case=case.label, layer=layer), f"{case.label}: U at layer {layer}"
            agrees = abs(float(one.theory) - reference) <= case.digits * reference
            rows.append(Row(f"{title}, recursion", reference, float(one.theory), agrees=agrees))
            rows.append(limit_row(f"{title}, networks", one, bound))
    # At the narrowest width, ReLU has a closed form at any width.
    narrow = data.sel(case="relu").isel(width=0)
    bound, names = largest_score_allowed(data.sizes["layer"]), ("exact", "measured", "measured_error")
    for layer in data.layer.values:
        title = f"relu: n² κ₃ at layer {layer}, n = {int(narrow.width)}"
        rows.append(limit_row(title, narrow.sel(layer=layer), bound, names))
    # (epsilon.14), and the vertex of thirty inputs.
    total, counts = model_complexity(0, 30, 20, 3).total, model_complexity(1, 30, 20, 3).counts
    assert total is not None
    assert counts is not None
    title = "numbers that fix infinite width: 3 outputs, 20 + 10 inputs"
    rows.append(Row(title, 990, total, agrees=total == 990))
    rows.append(Row("independent entries of V, 30 inputs", 108345, counts["V"], agrees=counts["V"] == 108345))
    word = "agree" if all(row.agrees for row in rows) else "do NOT all agree"
    verdict = (
        f"Third cumulants of the metric of random networks {word} with the six-point vertex of the recursion "
        f"(largest |z| {np.abs(score).max():.1f}); at finite width they differ from it by terms of order 1/n."
    )
    return Result(verdict, tuple(rows), data, _six_point_figure)


def _limits(case: _Case, plan: WidthPlan, seed: Seed) -> xr.Dataset:
    """U at every width with its standard error, its limit, and the recursion, at layers 2 and up."""
    values, errors = [], []
    for (width, draws), own in track(with_seeds(plan.draws.items(), seed), f"{case.label}: widths"):
        metrics = sampled_metrics(case.network(width), draws, own)
        batches = np.stack([width**2 * _third_cumulant(one) for one in np.split(metrics, _BATCHES, axis=1)])
        values.append(batches.mean(axis=0))
        errors.append(batches.std(axis=0, ddof=1) / np.sqrt(_BATCHES))
    theory = six_point_flow(case.network(1), 1.0)[1:, 0]
    exact = np.full((len(values), len(theory)), np.nan)
    if case.act.slopes is not None:
        exact = np.stack([metric_cumulants(case.network(width), 1.0)[1:, 1] for width in plan.draws])
    found = limits(list(plan.draws), values, errors, theory, "layer", np.arange(2, len(theory) + 2))
    return found.assign(exact=(("width", "layer"), exact))


def sampled_metrics(mlp: MLP, draws: int, seed: Seed) -> FloatArray:
    """The metric G of K = 1 at layer 1 in layers 2..L of so many networks: (layers, draws)."""
    source, width = generator(seed), mlp.hidden_widths[0]
    function: Callable[[Any], Any] = mlp.activation
    metrics = np.empty((mlp.depth - 1, draws))
    size = max(1, _CHUNK // width)
    for start in range(0, draws, size):
        count = min(size, draws - start)
        G = np.ones(count)
        for index, layer in enumerate(mlp.layers[1:]):
            z = np.sqrt(G)[:, None] * source.normal(size=(count, width))
            G = layer.C_b + layer.C_W * (np.asarray(function(z)) ** 2).mean(axis=1)
            metrics[index, start : start + count] = G
    return metrics


def _third_cumulant(samples: FloatArray) -> FloatArray:
    """The unbiased estimate along the last axis."""
    count = samples.shape[-1]
    centred = samples - samples.mean(axis=-1, keepdims=True)
    return np.asarray((centred**3).mean(axis=-1) * count**2 / ((count - 1) * (count - 2)))


def _six_point_figure(data: xr.Dataset) -> Figure:
    """Measured over theory against 1/n: the theory is the point (0, 1)."""
    figure = Figure("The six-point vertex: n² times the third cumulant of the metric", size=(13, 5.2))
    for case in data.case.values:
        own = data.sel(case=case).dropna("layer", subset=["theory"])
        lines = "; lines: exact at any width" if np.isfinite(own.exact.values).all() else ""
        title, ratio = f"{case} (diamonds: extrapolated{lines})", r"$n^2 \kappa_3$ / U of the recursion"
        panel = figure.panel(title, x="1 / width", y=ratio)
        for number, (layer, one, color) in enumerate(coloured(own, "layer")):
            theory, shift = float(one.theory), 0.008 * (number - own.sizes["layer"] / 2)
            draw_limit(panel, one, f"layer {layer}", color, unit=theory, shift=shift)
            if lines:
                places, exact = [0, *1 / own.width.values[::-1]], [1, *one.exact.values[::-1] / theory]
                panel.curve(places, exact, "-", "", color, width=1)
        panel.level(y=1, color=INK, dash="--")
    return figure


_COLORS = {"relu": BLUE, "linear": GREEN, "tanh": ORANGE}
_ACTIVATIONS = tuple(_COLORS)
_METHODS: tuple[Method, ...] = ("book", "complete")
_LAYER = 6  # the last with a skip connection, where V is measured
_RESIDUAL_OUTPUTS = 10
_COUPLINGS = np.round(np.linspace(-0.95, 0.95, 77), 10)
_STEPS = np.linspace(-1, 1, 30)
_VERTEX_COUPLINGS = 0.475 * (_STEPS + np.sin(np.pi / 2 * _STEPS))  # denser where the curves are steep
_REFERENCE_RATES = {
    ("relu", "book"): {0.3: 4.4681, 0.6: 2.9696, 0.9: 0.7961},
    ("relu", "complete"): {0.3: 6.2951834678, 0.6: 6.1960914932, 0.9: 2.5358545522},
    ("tanh", "complete"): {0.6: 0.5802666667, 0.9: 0.2292666667},
}
_REFERENCE_RATIOS = {
    "relu": {0.0: 0.016, 0.6: 0.0269396552, 0.9: 0.1004898882},
    "tanh": {0.0: 0.12, 0.6: 0.1378676471, 0.9: 0.3489386450},
}
_REFERENCE_SKIPS = {"relu": 0.9799960176, "linear": 0.9793703613, "tanh": 0.9336914848}  # at r = 1/2
_DIGITS = 1e-10


@dataclass(frozen=True)
class ResidualPlan:
    """Skip couplings of the networks, how many of which widths are drawn, and how."""

    couplings: dict[str, tuple[float, ...]]  # gamma of the networks that are measured
    draws: dict[int, int]  # networks of each width
    method: str


PLANS["residual_fluctuations"] = plans(
    quick=ResidualPlan(
        {"relu": (-0.6, 0.3, 0.6, 0.9), "linear": (0.3, 0.8), "tanh": (0.3, 0.8)},
        {32: 20_000, 64: 60_000, 128: 40_000},
        "conditional",
    ),
    paper=ResidualPlan(
        dict.fromkeys(_ACTIVATIONS, (-0.9, -0.5, 0.2, 0.45, 0.7, 0.9)),
        {32: 60_000, 64: 100_000, 128: 40_000},
        "weights",
    ),
)


def residual_fluctuations(plan: ResidualPlan, seed: int) -> Result:
    """Fluctuations of residual networks against the skip coupling gamma (appendix B).

    At criticality V / (n K^2) grows as nu L / n. The printed nu (B.29) leaves out what neurons remember of their own
    past beyond the quadratic order; the complete one does not. Random residual networks of three widths,
    extrapolated to infinite width, decide between them.
    """
    data = xr.merge([_curves(), _measure(plan, seed)])
    # So few scores say little by their spread: only the largest is judged.
    _, largest = agreement_rows(data.z.values)
    rows, bound = _reference_rows(), largest_score_allowed(data.z.size)
    for place in range(data.sizes["point"]):
        point = data.isel(point=place)
        name, gamma = point.measured_activation.item(), float(point.measured_gamma)
        title = f"{name}, γ = {gamma:g}: V/K² at layer {_LAYER}"
        row = limit_row(f"{title}, complete", point, bound, ("complete", "measured", "standard_error"))
        rows.append(row)
        if abs(float(point.book / point.complete) - 1) > 1e-9:  # the printed theory, for orientation
            rows.append(Row(f"{title}, book", float(point.book), row.here, row.standard_error))
    rows.append(largest)
    worst = data.isel(point=int(np.abs(data.z_book.values).argmax()))
    judgement = "agree" if all(row.agrees is not False for row in rows) else "do not agree"
    verdict = (
        f"Random residual networks {judgement} with the complete leading order (largest |z| {largest.here:.1f}); "
        f"the printed recursion is off by up to {abs(float(worst.z_book)):.0f} standard errors "
        f"({worst.measured_activation.item()}, γ = {float(worst.measured_gamma):g})."
    )
    return Result(verdict, tuple(rows), data, _residual_figure)


def _curves() -> xr.Dataset:
    """nu, r*, and V / K^2 at layer 6 by activation, method and gamma."""
    points = list(product(_ACTIVATIONS, _METHODS, _COUPLINGS))
    rates = [fluctuation_rate(name, gamma, method) for name, method, gamma in points]
    ratios = [
        optimal_aspect_ratio(name, gamma, n_out=_RESIDUAL_OUTPUTS, method=method)
        for name, method, gamma in points
    ]
    tasks = track(list(product(_ACTIVATIONS, _METHODS, _VERTEX_COUPLINGS)), "recursions")
    vertices = [_relative_vertex(name, float(gamma), method) for name, method, gamma in tasks]
    curves = {"rate": (rates, "gamma"), "best_ratio": (ratios, "gamma"), "vertex": (vertices, "vertex_gamma")}
    shape = (len(_ACTIVATIONS), len(_METHODS), -1)
    return xr.Dataset(
        {
            name: (("activation", "theory", gamma), np.reshape(values, shape))
            for name, (values, gamma) in curves.items()
        },
        coords={
            "activation": list(_ACTIVATIONS),
            "theory": list(_METHODS),
            "gamma": _COUPLINGS,
            "vertex_gamma": _VERTEX_COUPLINGS,
        },
        attrs={"n_out": _RESIDUAL_OUTPUTS},
    )


def _network(name: str, gamma: float, width: int) -> MLP:
    return MLP.critical(name, depth=_LAYER + 1, width=width, gamma=gamma, n_in=1)


def _input(name: str) -> list[list[float]]:
    """An input with kernel 1 at layer 1."""
    return [[1 / np.sqrt(MLP.critical(name, depth=2, width=1).C_W[0])]]


def _relative_vertex(name: str, gamma: float, method: Method) -> float:
    """V / K^2 at the layer that is measured."""
    deep = flow(_network(name, gamma, 1), _input(name), ["K", "V"], method=method)
    return float(deep["V"].sel(layer=_LAYER).squeeze() / deep["K"].sel(layer=_LAYER).squeeze() ** 2)


def _measure(plan: ResidualPlan, seed: Seed) -> xr.Dataset:
    """V / K^2 of random networks at layer 6, extrapolated to infinite width, beside both theories."""
    points = [(name, gamma) for name, couplings in plan.couplings.items() for gamma in couplings]
    columns = []
    for (name, gamma), source in track(with_seeds(points, seed), "residual networks"):
        values, errors = [], []
        for (width, draws), own in with_seeds(plan.draws.items(), source):
            mlp = _network(name, gamma, width)
            ensemble = Ensemble(mlp, _input(name), draws, method=plan.method, seed=own)
            seen = connected_correlator(ensemble, "1122", layers=[_LAYER], estimator="neurons")
            values.append(width * seen.value.values.ravel())
            errors.append(width * seen.standard_error.values.ravel())
        limit, error = infinite_width(list(plan.draws), np.stack(values), np.stack(errors))
        square = float(flow(mlp, _input(name))["K"].sel(layer=_LAYER).squeeze()) ** 2
        theories = [_relative_vertex(name, gamma, method) for method in _METHODS]
        columns.append((float(limit[0]) / square, float(error[0]) / square, *theories))
    found = dict(zip(("measured", "standard_error", *_METHODS), np.array(columns).T, strict=True))
    found["z"] = (found["measured"] - found["complete"]) / found["standard_error"]
    found["z_book"] = (found["measured"] - found["book"]) / found["standard_error"]
    activations, couplings = zip(*points, strict=True)
    labels = {"measured_activation": activations, "measured_gamma": couplings}
    return xr.Dataset(
        {name: ("point", values) for name, values in found.items()},
        coords={name: ("point", list(values)) for name, values in labels.items()},
    )


def _reference_rows() -> list[Row]:
    from scipy.optimize import brentq, minimize_scalar

    rows = []
    for (name, method), values in _REFERENCE_RATES.items():
        for gamma, expected in values.items():
            here = fluctuation_rate(name, gamma, method)
            rows.append(computed_row(f"{name}: ν {method}, γ = {gamma:g}", expected, here, _DIGITS))
    for name, values in _REFERENCE_RATIOS.items():
        for gamma, expected in values.items():
            here = optimal_aspect_ratio(name, gamma, n_out=_RESIDUAL_OUTPUTS, method="book")
            title = f"{name}: r* book, γ = {gamma:g}, {_RESIDUAL_OUTPUTS} outputs"
            rows.append(computed_row(title, expected, here, _DIGITS))
    for name, expected in _REFERENCE_SKIPS.items():
        here = optimal_skip(name, 0.5, n_out=_RESIDUAL_OUTPUTS, method="book")
        rows.append(
            computed_row(f"{name}: γ* book, r = 1/2, {_RESIDUAL_OUTPUTS} outputs", expected, here, _DIGITS)
        )
    # The complete nu of ReLU rises from 5 before it falls.
    peak = minimize_scalar(
        lambda gamma: -fluctuation_rate("relu", gamma), bounds=(0.1, 0.8), method="bounded"
    )
    back = brentq(lambda gamma: fluctuation_rate("relu", gamma) - fluctuation_rate("relu"), peak.x, 0.95)
    return [
        *rows,
        computed_row("relu: largest ν complete", 6.531, -peak.fun, 5e-4),
        computed_row("relu: γ of the largest ν", 0.449, peak.x, 5e-4),
        computed_row("relu: γ beyond which ν < ν(0)", 0.749, back, 5e-4),
    ]


def _residual_figure(data: xr.Dataset) -> Figure:
    figure = Figure(
        "Residual networks: fluctuations against the skip coupling", size=(16, 5.3), legend="below"
    )
    gamma, title = r"skip coupling $\gamma$", f"at layer {_LAYER}: real networks decide"
    panel = figure.panel(title, x=gamma, y=Axis("$V/K^2$", low=0))
    _draw_pair(panel, data.vertex, "vertex_gamma")
    for name, color in _COLORS.items():
        at = data.isel(point=data.measured_activation.values == name)
        error = at.standard_error
        panel.curve(at.measured_gamma, at.measured, "o", "", color, error=error, size=6, hollow=True)
    title = r"growth of fluctuations with depth, $V/(nK^2)=\nu L/n$"
    _draw_pair(figure.panel(title, x=gamma, y=Axis(r"$\nu$", low=0, high=7.2)), data.rate, "gamma")
    title, ticks = f"best depth over width for {_RESIDUAL_OUTPUTS} outputs", (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
    panel = figure.panel(title, x=gamma, y=log("$r^* = L/n$", ticks=ticks))
    _draw_pair(panel, data.best_ratio, "gamma")
    for name, color in _COLORS.items():
        panel.legend_entry("-", name, color)
    panel.legend_entry("-", "complete leading order")
    panel.legend_entry("--", "as printed, (B.29), (B.35)")
    panel.legend_entry("o", r"real networks, $n\to\infty$", hollow=True)
    return figure


def _draw_pair(panel: Panel, curves: xr.DataArray, gamma: str) -> None:
    """The complete theory and the printed one, by activation."""
    for name, color in _COLORS.items():
        for method, style, width in (("complete", "-", 2.2), ("book", "--", 1.4)):
            curve = curves.sel(activation=name, theory=method)
            panel.curve(curve[gamma], curve, style, "", color, width=width)
    panel.level(x=0)
