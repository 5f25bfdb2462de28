"""Quadratic models trained by four algorithms beside the closed form (11.132)-(11.138).

The error of the closed form must fall by 4 whenever ε is halved, for predictions and for the effective kernel. Then
the trained kernels (11.140)-(11.142), as printed and one-sided; gradient descent from small to large learning rates;
and polynomial regression φ = x^j on a noisy line, with meta-features that the linear model does not have.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

from foretrain.experiments.judgements import computed_row
from foretrain.experiments.pictures import draw_guide
from foretrain.experiments.registry import Result, Row, plans
from foretrain.support.answers import BLUE, FAINT, GREEN, INK, ORANGE, PURPLE, RED, Figure, log
from foretrain.support.seeds import generator
from foretrain.theory.architecture import FloatArray
from foretrain.theory.prediction.nearly_kernel import (
    ALGORITHMS,
    QuadraticModel,
    counts,
    order_of_error,
    predict_as_printed,
    predict_one_sided,
    solve,
    train,
)

_TOY_SIZE = 6
_X, _Y = np.array([0.1, 0.7, 1.5]), np.array([0.5, -0.2, 0.9])
_TESTS = np.array([1.0, 0.3, 2.2])
_ETA = 0.2  # about 1.2 over the largest eigenvalue
_LINE = (0.3, 0.8)  # height at zero and slope
_NOISE = 0.25
_SAMPLES, _POWERS = 7, 12
_ENDS = ("direct", "flow", "ridgeless")  # descent would need 10⁵ steps at the condition number of the line
_MOVEMENT = 0.25  # of the features by training, at the largest ε of the noisy line
_HALVING = 0.05  # relative: what the third order in ε may add to a factor 4 (or 2)
_LOOKS = {
    "gradient_descent": ("gradient descent", BLUE),
    "flow": ("gradient flow", GREEN),
    "direct": ("direct optimisation", ORANGE),
    "ridgeless": ("ridgeless (least norm)", PURPLE),
}


@dataclass(frozen=True)
class Plan:
    """How often ε is halved from its largest value, and how finely learning rates and the noisy line are scanned."""

    largest_epsilon: float
    halvings: int
    rates: int
    line_quarter: int  # values of ε on each quarter of its range, so that half the largest is one of them

    @property
    def epsilons(self) -> tuple[float, ...]:
        """From the largest on."""
        return tuple(self.largest_epsilon * 0.5**power for power in range(self.halvings + 1))


PLANS = plans(quick=Plan(0.04, 3, 9, 2), paper=Plan(0.08, 7, 25, 4))


def quadratic_models(plan: Plan, seed: int) -> Result:
    """Closed form against training for every algorithm, trained kernels, and a noisy line."""
    parts = [
        order_of_error(
            QuadraticModel.from_features(features, meta_features),
            _X,
            _Y,
            _TESTS,
            epsilons=plan.epsilons,
            eta=_ETA,
        ),
        _kernel_forms(plan.epsilons),
        _rates(plan.rates),
        _noisy_line(generator(seed), 4 * plan.line_quarter + 1),
    ]
    data = xr.merge(parts)
    rows = []
    for kind, subject in (("error", "prediction"), ("kernel_error", "effective kernel (11.138)")):
        for algorithm in ALGORITHMS:
            title = f"{algorithm}: {subject}, error falls per halving of epsilon by"
            rows.append(_fall_row(title, data[kind].sel(algorithm=algorithm)))
    gain = float((data.correction / data.error).isel(epsilon=-1).min())
    title = "correction over error at the smallest epsilon, worst algorithm"
    rows.append(Row(title, "large", gain, agrees=gain > 10))
    title = "one-sided trained kernel against (11.132), difference falls per halving by"
    rows.append(_fall_row(title, data.one_sided_difference))
    title = "symmetric trained kernel (11.142) against (11.132), difference falls per halving by"
    note = (
        "The printed symmetric kernel differs from (11.132) at first order: it lies halfway between direct "
        "optimisation and the ridgeless end. The kernel sum of (phi + phi^E)/2 and phi has no such term."
    )
    rows.append(_fall_row(title, data.printed_difference, note, disputed=True))
    title = "effective kernels of gradient descent and least norm, difference falls per halving by"
    note = "Both share W^F, so from W = 0 the algorithm shows in this kernel only at second order."
    rows.append(_fall_row(title, data.kernel_difference, note))
    wrong = float(np.abs(data.rate_trained - data.rate_formula).max())
    spread = float(data.rate_formula.max() - data.rate_formula.min())
    title = "correction at x = 1 over learning rates: largest formula error over their spread"
    rows.append(Row(title, "small", wrong / spread, agrees=wrong < 0.1 * spread))
    rows += _line_rows(data)
    factors = [_halving(data.error.sel(algorithm=name).values) for name in ALGORITHMS]
    printed = _halving(data.printed_difference.values)
    verdict = (
        f"The closed form's error falls by {min(factors):.2f} to {max(factors):.2f} per halving of epsilon for all "
        f"{len(ALGORITHMS)} algorithms, as it must to be right to first order; the trained kernel as printed in "
        f"(11.142) differs from (11.132) by what falls only by {printed:.2f}, its one-sided form does not."
    )
    return Result(verdict, tuple(rows), data, _figure)


def features(x: Any) -> FloatArray:
    """φ_j = cos jx."""
    return np.asarray(np.cos(np.multiply.outer(x, np.arange(_TOY_SIZE))))


def meta_features(x: Any) -> FloatArray:
    """ψ_jk = sin((j + k) x) / (1 + j + k)."""
    return _waves(x, _TOY_SIZE, 1.0)


def _waves(x: Any, size: int, frequency: float) -> FloatArray:
    total = np.add.outer(np.arange(size), np.arange(size))
    return np.asarray(np.sin(frequency * np.multiply.outer(x, total)) / (1 + total))


def _kernel_forms(epsilons: tuple[float, ...]) -> xr.Dataset:
    """Predictions of trained kernels minus direct optimisation, and effective kernels of two algorithms."""
    printed, one_sided, kernels = [], [], []
    for epsilon in epsilons:
        model = QuadraticModel.from_features(features, meta_features, epsilon)
        direct = solve(model, _X, _Y, "direct")
        printed.append(np.abs(predict_as_printed(direct, _TESTS) - direct.predict(_TESTS)).max())
        one_sided.append(np.abs(predict_one_sided(direct, _TESTS) - direct.predict(_TESTS)).max())
        descent, least = (
            train(model, _X, _Y, name, _ETA).effective_kernel(_TESTS)
            for name in ("gradient_descent", "ridgeless")
        )
        kernels.append(np.abs(descent - least).max())
    return xr.Dataset(
        {
            "printed_difference": ("epsilon", printed),
            "one_sided_difference": ("epsilon", one_sided),
            "kernel_difference": ("epsilon", kernels),
        },
        coords={"epsilon": list(epsilons)},
    )


def _rates(count: int) -> xr.Dataset:
    """Gradient descent at rates up to 1.9 / w_max: what ε adds at x = 1, by formula and by training."""
    model = QuadraticModel.from_features(features, meta_features, 0.05)
    largest = float(np.linalg.eigvalsh(model.kernel(_X, _X))[-1])
    relative, test = np.linspace(0.1, 1.9, count), _TESTS[:1]
    linear = solve(model, _X, _Y, "direct").predict_linear(test)[0]
    formula, trained = (
        [
            float(way(model, _X, _Y, "gradient_descent", r / largest).predict(test)[0] - linear)
            for r in relative
        ]
        for way in (solve, train)
    )
    limits = [float(solve(model, _X, _Y, name).predict(test)[0] - linear) for name in _ENDS]
    return xr.Dataset(
        {
            "rate_formula": ("relative_rate", formula),
            "rate_trained": ("relative_rate", trained),
            "rate_limit": ("end", limits),
        },
        coords={"relative_rate": relative, "end": list(_ENDS)},
    )


def _noisy_line(source: np.random.Generator, count: int) -> xr.Dataset:
    """More powers than samples: the linear model follows the noise, and ε moves how."""
    x, grid = np.linspace(-1, 1, _SAMPLES), np.linspace(-1, 1, 101)
    y = _LINE[0] + _LINE[1] * x + _NOISE * source.normal(size=_SAMPLES)
    truth = _LINE[0] + _LINE[1] * grid

    def powers(x: Any) -> FloatArray:
        return np.asarray(np.power.outer(x, np.arange(_POWERS)))

    def waves(x: Any) -> FloatArray:
        return _waves(x, _POWERS, np.pi)

    small = QuadraticModel.from_features(powers, waves, 1e-6)
    largest = _MOVEMENT * 1e-6 / solve(small, x, y, "direct").expansion_parameter
    sizes = np.linspace(-largest, largest, count)
    formula = np.empty((len(_ENDS), count, len(grid)))
    trained, movement = np.empty_like(formula), np.empty(count)
    for place, epsilon in enumerate(sizes):
        model = QuadraticModel.from_features(powers, waves, float(epsilon))
        for row, name in enumerate(_ENDS):
            found = solve(model, x, y, name)
            formula[row, place] = found.predict(grid)
            trained[row, place] = train(model, x, y, name).predict(grid)
            movement[place] = found.expansion_parameter
    dims = ("end", "line_epsilon", "x")
    return xr.Dataset(
        {
            "line_formula": (dims, formula),
            "line_trained": (dims, trained),
            "line_truth": ("x", truth),
            "line_y": ("sample", y),
            "line_movement": ("line_epsilon", movement),
        },
        coords={"end": list(_ENDS), "line_epsilon": sizes, "x": grid, "sample": x},
    )


def _halving(values: FloatArray) -> float:
    """The mean factor by which a size falls per halving."""
    return float((values[:-1] / values[1:]).mean())


def _fall_row(title: str, values: xr.DataArray, note: str = "", **more: bool) -> Row:
    """By which factor a size of second order falls per halving."""
    return computed_row(title, 4.0, _halving(values.values), 4 * _HALVING, note, **more)


def _line_rows(data: xr.Dataset) -> list[Row]:
    largest, half = data.sizes["line_epsilon"] - 1, 3 * (data.sizes["line_epsilon"] - 1) // 4
    rows, sizes = [], data.line_epsilon.values
    for algorithm in _ENDS:
        formula, trained = (data[f"line_{way}"].sel(end=algorithm).values for way in ("formula", "trained"))
        error = trained - formula
        even = np.abs(error + error[::-1]).max(axis=1)  # epsilon and -epsilon: the third order drops out
        share = np.abs(error[largest]).max() / np.abs(trained[largest] - formula[largest // 2]).max()
        title = f"noisy line, {algorithm}: error, even in epsilon, falls by halving {sizes[largest]:.2g}, by"
        note = (
            f"At the larger epsilon features move by {float(data.line_movement[-1]):.2f} of themselves "
            f"(its square is allowed here), and the formula misses {share:.0%} of the change of the fit."
        )
        rows.append(computed_row(title, 4.0, even[largest] / even[half], 4 * _MOVEMENT**2, note))
    numbers, expected = counts(_POWERS), _POWERS * (_POWERS + 3) // 2
    title = f"functions to choose for {_POWERS} parameters, linear and quadratic model (11.121), (11.122)"
    here = f"{numbers.linear_functions} and {numbers.quadratic_functions}"
    agrees = numbers.quadratic_functions == expected
    return [*rows, Row(title, f"{_POWERS} and {expected}", here, agrees=agrees)]


def _figure(data: xr.Dataset) -> Figure:
    figure = Figure("Quadratic models: closed form and training", columns=3, size=(17, 9.2))
    x = data.epsilon.values
    epsilons = log("ε", ticks=[float(f"{value:.3g}") for value in (x if len(x) < 6 else x[::2])])
    difference = log("largest absolute difference")
    for kind, subject in (("", "prediction"), ("kernel_", "effective kernel (11.138)")):
        panel = figure.panel(f"Order of the error: {subject}", epsilons, difference, legend_columns=2)
        for name in data.algorithm.values:
            own, (label, color) = data.sel(algorithm=name), _LOOKS[name]
            panel.curve(x, own[f"{kind}error"], "o-", label, color, size=4)
            panel.curve(x, own[f"{kind}correction"], ":", "", color)
        panel.legend_entry("o-", "trained minus formula")
        panel.legend_entry(":", "formula minus linear model")
        start = float(data[f"{kind}error"].isel(epsilon=0).min()) / 3
        draw_guide(panel, x, start, 2, "ε²", len(x) // 2, above=False)
    panel = figure.panel("Kernels that training has moved", epsilons, difference)
    for values, label, color in (
        (data.printed_difference, "symmetric kernel as printed, from (11.132)", RED),
        (data.one_sided_difference, "one-sided kernel, from (11.132)", BLUE),
        (data.kernel_difference, "effective kernels: descent from least norm", GREEN),
    ):
        panel.curve(x, values, "o-", label, color, size=4)
    for values, power, text in ((data.printed_difference, 1, "ε"), (data.one_sided_difference, 2, "ε²")):
        draw_guide(panel, x, float(values[0]) / 2, power, text, len(x) // 2, above=False)
    rate, change = "learning rate times largest eigenvalue", "change of the prediction at x = 1 by ε"
    panel = figure.panel("The prediction remembers the algorithm", x=rate, y=change)
    panel.curve(data.relative_rate, data.rate_formula, "-", "gradient descent, formula (11.134)", BLUE)
    panel.curve(data.relative_rate, data.rate_trained, "o", "gradient descent, trained", BLUE)
    for name in _ENDS:
        label, color = _LOOKS[name]
        panel.level(y=data.rate_limit.sel(end=name), label=label, color=color, dash="--", width=1.2)
    panel.level(y=0, color=INK)
    _add_line(figure, data)
    return figure


def _add_line(figure: Figure, data: xr.Dataset) -> None:
    """Fits of the noisy line by gradient flow, and their distance from the line for every algorithm."""
    panel = figure.panel("Polynomial regression of a noisy line, gradient flow", x="x", y="y")
    own = data.sel(end="flow")
    panel.curve(data.x, data.line_truth, "--", "the line", INK, width=1.2)
    straight = own.line_formula.sel(line_epsilon=0, method="nearest")
    panel.curve(data.x, straight, "-", "linear model, ε = 0", FAINT)
    for place, color in ((0, ORANGE), (-1, BLUE)):
        at = own.isel(line_epsilon=place)
        epsilon = f"ε = {float(at.line_epsilon):.2g}"
        panel.curve(data.x, at.line_formula, "-", f"formula, {epsilon}", color)
        panel.curve(data.x[::4], at.line_trained[::4], ".", f"trained, {epsilon}", color, size=6)
    panel.curve(data.sample, data.line_y, "o", "noisy samples", INK, size=7)
    title = "Fine tuning by ε: distance of the fit from the line"
    panel = figure.panel(title, x="ε", y="root mean square distance from the line")
    for name in _ENDS:
        label, color = _LOOKS[name]
        for fit, style in ((data.line_formula, "-"), (data.line_trained, "o")):
            left = np.sqrt(((fit.sel(end=name) - data.line_truth) ** 2).mean("x"))
            panel.curve(data.line_epsilon, left, style, label if style == "-" else "", color)
    panel.legend_entry("-", "formula")
    panel.legend_entry("o", "trained")
