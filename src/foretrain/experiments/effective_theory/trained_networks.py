"""Trained networks at infinite width: algorithms end at one function, and ensembles agree with it (chapter 10)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from foretrain.compare.pictures import POSITIONS, add_bands, add_outputs, add_sizes, means_of, positions
from foretrain.experiments.judgements import (
    agreeing,
    computed_row,
    limit_row,
    measured_row,
    power_row,
    sampled,
)
from foretrain.experiments.parts import Parts
from foretrain.experiments.registry import Result, Row, plans
from foretrain.support.answers import FAINT, INK, PALETTE, SKY, Figure, labelled, log, names_axis
from foretrain.support.loading import handwritten_digits
from foretrain.support.progress import track
from foretrain.support.seeds import Seed, generator, spawn, with_seeds
from foretrain.theory.architecture import MLP, FloatArray
from foretrain.theory.prediction.bayes import bayes_equivalent_rates, bayes_prediction
from foretrain.theory.prediction.infinite_width import (
    CROSS_ENTROPY,
    GradientDescent,
    Outputs,
    Update,
    end_states,
    expected_loss,
    newton_update,
    output_kernels,
    single_samples,
)

if TYPE_CHECKING:
    from foretrain.compare.trained import TrainedComparison

PLANS: dict[str, Any] = {}

_X = 1.3 * np.array([[1, 0.2, -0.5], [-0.4, 1.1, 0.3], [0.1, -0.6, 1.2], [0.8, 0.7, 0.1], [-0.9, 0.3, 0.8]])
_Y = np.array([(1.0, -0.5), (-0.7, 0.8), (0.4, 1.2)])
_Y_TEST = np.array([(0.3, 0.1), (-0.2, 1.0)])
_TRAIN, _TESTS = _X[:3], _X[3:]
_REFERENCE = {  # means of both outputs on both tests, then covariances of the tests
    "gradient descent": (
        *(0.449106338, 0.046964001, -0.569578451, 1.196649210),
        *(0.0630783706, -0.0197762170, 0.0667604781),
    ),
    "Bayes": (
        *(0.469927978, 0.081900575, -0.680474001, 1.293872681),
        *(0.0610782580, -0.0188077428, 0.0634576719),
    ),
}
_LOSSES = {
    "test loss": {"bias": 0.1001523302, "variance": 0.1298388488, "fluctuation": 0.0250903618},
    "cross-entropy": {"bias": 1.2598630307, "variance": 0.0234733673},
}
_DIGITS = 6e-10
# Rates times the largest eigenvalue.
_ALGORITHMS = {"descent at 1.4": 1.4, "descent at 0.3": 0.3, "flow": None}
_PAIRS = (("descent at 1.4", "flow"), ("descent at 0.3", "flow"))


@dataclass(frozen=True)
class AlgorithmPlan:
    """Networks trained by several algorithms, and samples of the posterior."""

    widths: tuple[int, ...]
    draws: int
    bayes_draws: int
    bayes_widths: tuple[int, ...] = (32, 64, 128)


PLANS["algorithm_independence"] = plans(
    quick=AlgorithmPlan((32, 64, 128, 256), 60, 2_000),
    paper=AlgorithmPlan((64, 128, 256, 512, 1024), 400, 40_000),
)


def algorithm_independence(plan: AlgorithmPlan, seed: int) -> Result:
    """At infinite width every algorithm that learns the training set ends at the same function (section 10.2).

    In function space schedules of gradient descent, single samples, random Newton tensors and Newton's method end
    alike to rounding. Real networks, trained from the same start by gradient descent at two rates and by gradient
    flow, end apart by what falls as 1/n. Trained in the last layer alone, at the rates of (10.46), they are samples
    of the Bayesian posterior. Reference numbers of kernels, predictions and losses (10.40)-(10.55) stand at the
    beginning.
    """
    from foretrain.compare.judging.powers import slope_of
    from foretrain.compare.trained import compare_trained

    schedules, training, posterior = spawn(seed, 3)
    # Networks of which only the last layer learns, beside the Bayesian posterior.
    how: dict[str, Any] = {"learner": "bayes", "widths": plan.bayes_widths, "draws": plan.bayes_draws}
    bayes = compare_trained(_network(plan.bayes_widths[0]), _TRAIN, _Y, _TESTS, seed=posterior, **how)
    numbers = {"": bayes.theory, "_limit": bayes.limit, "_error": bayes.standard_error}
    beside = xr.Dataset({f"posterior{name}": ("entry", values) for name, values in numbers.items()})
    beside = beside.assign_coords(entry=[entry.label for entry in bayes.entries])
    data = xr.merge([_schedule_ends(schedules), _trained_ends(plan, training), beside])
    rows = _reference_rows()
    for name in data.schedule.values:
        own, title = data.sel(schedule=name), f"{name}: distance of the end from (10.31)"
        note = f"training error {float(own.training_error):.0e}"
        rows.append(computed_row(title, 0.0, own.end_distance, 1e-9, note))
    for pair in data.pair.values:
        apart = data.apart.sel(pair=pair)
        note = f"{float(np.sqrt((apart.isel(width=-1) ** 2).mean())):.2g} at n = {int(apart.width[-1])}"
        title = f"{pair}: power of n in the distance of the ends of the same networks"
        rows.append(power_row(title, -1.0, slope_of(apart), note))
    kernels = output_kernels(bayes_equivalent_rates(_network()), _TRAIN, _TESTS)
    same, judgement = np.abs(kernels.Theta_train - kernels.K_train).max(), bayes.judgement
    rows.append(computed_row("last layer alone at the rates (10.46): largest |Θ − K|", 0.0, same, 1e-14))
    title = (
        "last layers of real networks, trained: rms z of means and covariances against the posterior (bound)"
    )
    rows.append(Row(title, judgement.rms_bound, judgement.rms, agrees=bool(bayes.agrees)))
    names = ("posterior", "posterior_limit", "posterior_error")
    for entry in data.entry.values[bayes.of("mean")][:2]:
        title = f"last layers, trained: {entry}"
        rows.append(limit_row(title, data.sel(entry=entry), judgement.bound, names))
    good = all(row.agrees is not False for row in rows)
    verdict = (
        f"{data.sizes['schedule']} algorithms end within {float(data.end_distance.max()):.0e} of one function at "
        "infinite width; those of real networks end apart by what falls as 1/n; "
        f"{'all' if good else 'NOT all'} {len(rows)} checks agree."
    )
    return Result(verdict, tuple(rows), data, _algorithm_figure)


def _network(width: int = 1, outputs: int = 2) -> MLP:
    rates: dict[str, Any] = {"lambda_b": (0.2, 0.3, 0.1), "lambda_W": (0.6, 0.8, 0.5)}
    variances: dict[str, Any] = {"C_b": (0.1, 0.1, 0.05), "C_W": (1.2, 1.3, 1.0)}
    return MLP("tanh", 3, width, n_in=3, n_out=outputs, **variances, **rates)


def _reference_rows() -> list[Row]:
    """The reference's example: means on two test inputs and two outputs, covariances, losses."""
    mlp, rows = _network(), []
    descent = GradientDescent.of(mlp, _TRAIN, _Y, _TESTS).end()
    titles = [f"mean of output {output} on test {test}" for test in (1, 2) for output in (1, 2)]
    titles += [f"covariance of tests {pair}" for pair in ("1, 1", "1, 2", "2, 2")]
    for (name, reference), prediction in zip(
        _REFERENCE.items(), (descent, bayes_prediction(mlp, _TRAIN, _Y, _TESTS)), strict=True
    ):
        assert prediction.covariance is not None
        here = (*prediction.mean.values.ravel(), *prediction.covariance.values[np.triu_indices(2)])
        rows += [
            computed_row(f"{name}: {title}", value, number, _DIGITS)
            for title, value, number in zip(titles, reference, here, strict=True)
        ]
    probabilities = np.exp(_Y_TEST) / np.exp(_Y_TEST).sum(axis=1, keepdims=True)
    losses = expected_loss(descent, _Y_TEST), expected_loss(descent, probabilities, CROSS_ENTROPY)
    for (name, parts), loss in zip(_LOSSES.items(), losses, strict=True):
        rows += [
            computed_row(f"{name}: {part}", value, getattr(loss, part), _DIGITS)
            for part, value in parts.items()
        ]
    return rows


def _schedule_ends(seed: Seed) -> xr.Dataset:
    """Largest distances of the ends of schedules from (10.31), and of their training errors from zero."""
    drawing, sampling, tensors = spawn(seed, 3)
    kernels = output_kernels(_network(), _TRAIN, _TESTS)
    largest = float(np.linalg.eigvalsh(kernels.Theta_train)[-1])
    source = generator(drawing)
    start = Outputs(source.normal(size=(3, 2)), source.normal(size=(2, 2)))
    roots = [generator(own).normal(size=(3, 3)) for own in spawn(tensors, 5)]
    newton = newton_update(kernels)
    schedules = {
        "gradient descent": [Update(1 / largest)] * 3_000,
        "at changing rates": [Update((0.2 + 1.7 * (k % 2)) / largest) for k in range(4_000)],
        "single samples": list(single_samples(3, 0.9 / largest, 20_000, sampling)),
        "random Newton tensors, then Newton": [*(Update(0.1 / largest, r @ r.T) for r in roots), newton],
        "Newton": [newton],
    }
    return end_states(kernels, start, _Y, schedules).rename(distance="end_distance").drop_attrs()


def _trained_ends(plan: AlgorithmPlan, seed: Seed) -> xr.Dataset:
    """How far the same networks end apart on the tests by two algorithms: (pairs, widths, draws)."""
    from foretrain.compare.trained import Training, train_ensemble

    apart = []
    for width, own in track(with_seeds(plan.widths, seed), "widths"):
        mlp, ends = _network(width), {}
        largest = float(np.linalg.eigvalsh(output_kernels(mlp, _TRAIN).Theta_train)[-1])
        for name, rate in _ALGORITHMS.items():  # outputs on the tests: (networks, tests, outputs)
            how: dict[str, Any] = {"eta": (rate or 0.0) / largest}
            if rate is None:
                how = {"eta": 1.0, "algorithm": "flow", "stride": 0.5 / largest}
            training = Training(_Y, tolerance=1e-7, **how)
            ensemble = train_ensemble(mlp, _TRAIN, _TESTS, training, plan.draws, seed=own)
            ends[name] = ensemble.end[:, len(_TRAIN) :]
        apart.append([np.sqrt(((ends[a] - ends[b]) ** 2).mean(axis=(1, 2))) for a, b in _PAIRS])
    return xr.Dataset(
        {"apart": (("width", "pair", "draw"), np.array(apart))},
        coords={"width": list(plan.widths), "pair": [" and ".join(pair) for pair in _PAIRS]},
    )


def _algorithm_figure(data: xr.Dataset) -> Figure:
    figure = Figure("Every algorithm ends at the same function", columns=2, size=(13, 5.0))
    n = data.width.values.astype(float)
    title = "the same networks, trained to the end by two algorithms"
    panel = figure.panel(title, log("width n", ticks=n), log("rms distance of test outputs"))
    for pair in data.pair.values:
        size = np.sqrt((data.apart.sel(pair=pair) ** 2).mean("draw")).values
        panel.curve(n, size, "o-", str(pair))
    panel.curve(n, 1.5 * size[0] * n[0] / n, "--", "1/n", FAINT)
    title = "last layer trained alone: samples of the posterior"
    panel = figure.panel(title, names_axis(data.entry.values), "(networks − posterior) / standard error")
    panel.level(y=0, color=INK)
    scores = (data.posterior_limit - data.posterior) / data.posterior_error
    panel.curve(np.arange(len(scores)), scores, "o", error=1)
    return figure


WIDTHS = (32, 64, 128, 256, 512)
_ALLOWED = 3.0  # standard errors of a fitted power or of a share
_DEVIATIONS = 2.0  # of the band whose coverage is counted
_CLASSES = (3, 8)


@dataclass(frozen=True)
class EnsemblePlan:
    """How many networks are trained on the function and on the digits, and how long."""

    angle_draws: tuple[int, ...]  # trained networks by width
    digits_draws: tuple[int, ...]
    training: int  # digits
    tests: int
    steps: int
    shown: int  # networks whose outputs are kept one by one
    shown_widths: tuple[int, int] = (128, 512)  # of the function, of the digits


PLANS["trained_ensembles"] = plans(
    quick=EnsemblePlan((800, 640, 480, 320, 160), (480, 400, 320, 160, 80), 50, 100, 100, 100),
    paper=EnsemblePlan((8000, 6000, 4000, 2400, 1600), (2000, 1600, 1200, 800, 400), 200, 150, 200, 400),
)


@dataclass(frozen=True, eq=False)
class Task:
    """A network and data for it."""

    name: str
    mlp: MLP
    X_train: FloatArray
    Y_train: FloatArray
    X_test: FloatArray
    Y_test: FloatArray
    time: int | None  # steps; None: to the end
    positions: tuple[FloatArray, FloatArray] | None = (
        None  # of training and test inputs on the axis of a picture
    )


def trained_ensembles(plan: EnsemblePlan, seed: int, parts: Parts) -> Result:
    """Ensembles of real networks, trained, beside the prediction for them at infinite width (10.40), (10.41).

    A function of an angle through four points, trained to the end; and handwritten digits, 3 against 8, after a
    fixed number of steps, since the prediction is exact at any step and the end is thousands of them away. Networks
    of five widths are trained. Mean and variance of their outputs on test inputs must extrapolate to the prediction,
    and deviate from it at finite width by a part that falls as 1/n.
    """
    from foretrain.compare.trained import compare_trained

    data_seed, *seeds = spawn(seed, 3)
    tasks = (angle_task(), digits_task(plan.training, plan.tests, plan.steps, data_seed))
    draws = (plan.angle_draws, plan.digits_draws)
    found, shown = {}, {}
    for task, counts, width, own in zip(tasks, draws, plan.shown_widths, seeds, strict=True):
        first, second = spawn(own, 2)

        def keep(name: str, compute: Callable[[], xr.Dataset], task: Task = task) -> xr.Dataset:
            return parts.get(f"{task.name} {name}", compute)

        learned = (task.X_train, task.Y_train, task.X_test)
        how: dict[str, Any] = {"time": task.time, "widths": WIDTHS, "draws": counts, "seed": first}
        found[task.name] = compare_trained(task.mlp, *learned, keeper=keep, **how)
        networks = partial(_networks, task, width, plan.shown, found[task.name].goal.training, second)
        shown[task.name] = keep("networks", networks)
    rows = tuple(row for task in tasks for row in _rows(task, found[task.name], shown[task.name]))
    said = [
        f"{name} {'agrees' if each.agrees else 'does NOT agree'} (rms z {each.judgement.rms:.2f}; "
        f"{each.power_text()})"
        for name, each in found.items()
    ]
    verdict = (
        f"Trained networks against the prediction at infinite width: {', '.join(said)}; "
        f"{agreeing(rows)} checks agree."
    )
    # Both comparisons stand side by side: the names of one begin with its task.
    both = []
    for task in tasks:
        name = task.name
        added: dict[str, Any] = {f"network_{key}": value for key, value in shown[name].items()}
        for key, values in zip(POSITIONS, task.positions or ()):
            added[key] = (key.removeprefix("position_"), values)
        whole = found[name].to_dataset().assign(added)
        whole = whole.assign_attrs(shown_width=shown[name].attrs["width"])
        names = {str(key): f"{name}_{key}" for key in (*whole.variables, *whole.dims)}
        attributes = {f"{name}_{key}": value for key, value in whole.attrs.items()}
        both.append(whole.rename(names).drop_attrs(deep=False).assign_attrs(attributes))
    return Result(verdict, rows, xr.merge(both, combine_attrs="no_conflicts"), _ensemble_figure)


def angle_task() -> Task:
    """A function of an angle from four points: inputs on a circle, with mean square one."""
    seen, asked = np.array([-2.3, -0.9, 0.4, 1.7]), np.linspace(-np.pi, np.pi, 24, endpoint=False)
    targets = 0.8 * np.array([[0.9], [-0.6], [0.5], [-1.0]])
    x, tests = (np.sqrt(2) * np.stack([np.cos(each), np.sin(each)], axis=1) for each in (seen, asked))
    rates: dict[str, Any] = {"lambda_b": (0.2, 0.3, 0.1), "lambda_W": (0.6, 0.8, 0.5)}
    mlp = MLP("tanh", 3, WIDTHS[0], n_in=2, C_b=(0.1, 0.1, 0.05), C_W=(1.2, 1.3, 1.0), **rates)
    return Task("function", mlp, x, targets, tests, np.full((len(asked), 1), np.nan), None, (seen, asked))


def digits_task(training: int, tests: int, steps: int, seed: Seed) -> Task:
    """Images of 8 x 8 pixels, centred and with mean square one; targets ±1."""
    images, labels = handwritten_digits()
    chosen = np.flatnonzero(np.isin(labels, _CLASSES))
    order = generator(seed).permutation(chosen)[: training + tests]
    x = images[order]
    x -= x[:training].mean(axis=0)
    x /= np.sqrt(np.mean(x[:training] ** 2))
    y = np.where(labels[order] == _CLASSES[0], 1.0, -1.0)[:, None]
    mlp = MLP("tanh", depth=3, width=WIDTHS[0], n_in=x.shape[1], C_b=0.05, C_W=1.2, lambda_b=0.3)
    return Task("digits", mlp, x[:training], y[:training], x[training:], y[training:], steps)


def _networks(task: Task, width: int, draws: int, training: Any, seed: Seed) -> xr.Dataset:
    """Outputs of single networks of one width after training: (network, test)."""
    from foretrain.compare.trained import train_ensemble

    mlp = task.mlp.replace(width=width)
    found = train_ensemble(mlp, task.X_train, task.X_test, training, draws, seed=seed)
    ends = found.end[:, len(task.X_train) :, 0]
    return labelled(
        {"output": ("network test", ends), "target": ("test", task.Y_test[:, 0])}, {"width": width}
    )


def _rows(task: Task, found: TrainedComparison, shown: xr.Dataset) -> list[Row]:
    from scipy.special import ndtr

    judgement = found.judgement
    title = f"{task.name}: rms z of means and variances, extrapolated to infinite width"
    note = f"largest |z| {judgement.largest:.2f} of at most {judgement.bound:.2f}"
    bound = f"at most {judgement.rms_bound:.2f}"
    rows = [Row(title, bound, judgement.rms, agrees=found.agrees, note=note)]
    for name, words in (("mean", "mean"), ("covariance", "variance")):
        power, title = found.power(name), f"{task.name}: power of n in the deviation of the {words}"
        unseen = Row(title, -1.0, "hidden by noise", note="more networks resolve it")
        rows.append(unseen if power is None else power_row(title, -1.0, power))
    outputs, targets, width = shown.output.values, task.Y_test[:, 0], int(shown.attrs["width"])
    mean, deviation = found.goal.law.mean[:, 0], np.sqrt(found.goal.law.covariance.diagonal())
    if task.time is None:
        inside = np.abs(outputs - mean) < _DEVIATIONS * deviation
        title = f"function: share of outputs in the band of ±2σ, width {width}"
        return [*rows, _share_row(title, inside, 0.9545)]
    expected = float(ndtr(mean * targets / deviation).mean())
    title = f"digits: accuracy of single networks, width {width}"
    rows.append(_share_row(title, outputs * targets > 0, expected))
    predicted, ensemble = ((np.sign(each) == targets).mean() for each in (mean, outputs.mean(axis=0)))
    title = "digits: accuracy of the mean of all networks"
    return [*rows, Row(title, float(predicted), float(ensemble), agrees=bool(ensemble == predicted))]


def _share_row(title: str, hits: NDArray[np.bool_], expected: float) -> Row:
    """A share with the standard error over networks, whose outputs hang together."""
    return measured_row(title, expected, *sampled(hits.mean(axis=1)), _ALLOWED)


def task_of(data: xr.Dataset, name: str) -> xr.Dataset:
    """The numbers of one task, by their own names."""
    start = f"{name}_"
    chosen = data[[str(key) for key in data.data_vars if str(key).startswith(start)]]
    chosen = chosen.drop_vars([key for key in chosen.coords if not str(key).startswith(start)])
    names = {str(key): str(key).removeprefix(start) for key in (*chosen.variables, *chosen.dims)}
    own = {str(key): value for key, value in data.attrs.items() if str(key).startswith(start)}
    attributes = {key.removeprefix(start): value for key, value in own.items()}
    return chosen.rename(names).drop_attrs(deep=False).assign_attrs(attributes)


def _ensemble_figure(data: xr.Dataset) -> Figure:
    """One row of panels for the function and one for the digits."""
    title = "Really trained networks beside the prediction at infinite width"
    figure = Figure(title, columns=3, size=(16, 9))
    line, digits = (task_of(data, name) for name in ("function", "digits"))
    heading = "Function of an angle: "
    add_bands(figure, line, heading)
    # n times the deviation of the mean over the input: one curve for all widths if it falls as 1/n.
    label, trained, x, order = positions(line)
    deviation, title = "n × (mean of networks − prediction)", f"{heading}the deviation, times the width"
    panel = figure.panel(title, x=label, y=deviation, legend_columns=3)
    panel.level(y=0)
    scaled, errors = (means_of(line, f"scaled_deviation{end}")[:, order] for end in ("", "_error"))
    for color, width, values, error in zip(PALETTE, line.width.values, scaled, errors):
        panel.curve(x, values, "o-", f"n = {width}", color, size=3, width=1)
        panel.curve(x, values, "", "", color, error=error, alpha=0.4)
    panel.curve(trained, np.zeros_like(trained), "s", "", INK, size=6)
    add_sizes(figure, line, heading)
    heading = "Digits 3 and 8: "
    add_outputs(figure, digits, heading)
    # Outputs of single networks in units of the predicted spread around the predicted mean.
    outputs = digits.network_output.values
    spread = np.sqrt(np.diagonal(digits.predicted_covariance.values))
    scores = ((outputs - digits.predicted_mean.values[:, 0]) / spread).ravel()
    right = float(np.mean(outputs * digits.network_target.values > 0))
    axis, title = "(output − predicted mean) / predicted σ", f"{heading}spread over networks"
    panel = figure.panel(title, x=axis, y="density")
    label = (
        f"networks of width {digits.attrs['shown_width']}:\nmean {scores.mean():+.3f}, σ {scores.std():.3f}\n"
    )
    panel.histogram(scores, np.linspace(-4, 4, 41), f"{label}accuracy {right:.1%}", SKY)
    grid = np.linspace(-4, 4, 201)
    panel.curve(grid, np.exp(-(grid**2) / 2) / np.sqrt(2 * np.pi), "-", "Gaussian", INK)
    add_sizes(figure, digits, heading)
    return figure
