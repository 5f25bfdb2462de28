"""At infinite width every algorithm that learns the training set ends at the same function (section 10.2).

In function space schedules of gradient descent, single samples, random Newton tensors and Newton's method end alike
to rounding. Real networks, trained from the same start by gradient descent at two rates and by gradient flow, end
apart by what falls as 1/n. Trained in the last layer alone, at the rates of (10.46), they are samples of the Bayesian
posterior. Published numbers of kernels, predictions and losses (10.40)-(10.55) stand at the beginning.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray

from foretrain.experiments.judgements import computed_row, limit_row, power_row
from foretrain.experiments.registry import Result, Row, plans
from foretrain.support.answers import FAINT, INK, Figure, log, names_axis
from foretrain.support.progress import track
from foretrain.support.seeds import Seed, generator, spawn, with_seeds
from foretrain.theory.architecture import MLP
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

_X = 1.3 * np.array([[1, 0.2, -0.5], [-0.4, 1.1, 0.3], [0.1, -0.6, 1.2], [0.8, 0.7, 0.1], [-0.9, 0.3, 0.8]])
_Y = np.array([(1.0, -0.5), (-0.7, 0.8), (0.4, 1.2)])
_Y_TEST = np.array([(0.3, 0.1), (-0.2, 1.0)])
_TRAIN, _TESTS = _X[:3], _X[3:]
_PUBLISHED = {  # means of both outputs on both tests, then covariances of the tests
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
class Plan:
    """Networks trained by several algorithms, and samples of the posterior."""

    widths: tuple[int, ...]
    draws: int
    bayes_draws: int
    bayes_widths: tuple[int, ...] = (32, 64, 128)


PLANS = plans(quick=Plan((32, 64, 128, 256), 60, 2_000), paper=Plan((64, 128, 256, 512, 1024), 400, 40_000))


def algorithm_independence(plan: Plan, seed: int) -> Result:
    """Ends of several algorithms in function space and of real networks, and the posterior by random features."""
    from foretrain.compare.judging.powers import slope_of
    from foretrain.compare.trained import compare_trained

    schedules, training, posterior = spawn(seed, 3)
    # Networks of which only the last layer learns, beside the Bayesian posterior.
    how: dict[str, Any] = {"learner": "bayes", "widths": plan.bayes_widths, "draws": plan.bayes_draws}
    bayes = compare_trained(_network(plan.bayes_widths[0]), _TRAIN, _Y, _TESTS, seed=posterior, **how)
    numbers = {"": bayes.theory, "_limit": bayes.limit, "_error": bayes.standard_error}
    beside = xarray.Dataset({f"posterior{name}": ("entry", values) for name, values in numbers.items()})
    beside = beside.assign_coords(entry=[entry.label for entry in bayes.entries])
    data = xarray.merge([_schedule_ends(schedules), _trained_ends(plan, training), beside])
    rows = _published_rows()
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
    return Result(verdict, tuple(rows), data, _figure)


def _network(width: int = 1, outputs: int = 2) -> MLP:
    rates: dict[str, Any] = {"lambda_b": (0.2, 0.3, 0.1), "lambda_W": (0.6, 0.8, 0.5)}
    variances: dict[str, Any] = {"C_b": (0.1, 0.1, 0.05), "C_W": (1.2, 1.3, 1.0)}
    return MLP("tanh", 3, width, n_in=3, n_out=outputs, **variances, **rates)


def _published_rows() -> list[Row]:
    """The reference's example: means on two test inputs and two outputs, covariances, losses."""
    mlp, rows = _network(), []
    descent = GradientDescent.of(mlp, _TRAIN, _Y, _TESTS).end()
    titles = [f"mean of output {output} on test {test}" for test in (1, 2) for output in (1, 2)]
    titles += [f"covariance of tests {pair}" for pair in ("1, 1", "1, 2", "2, 2")]
    for (name, published), prediction in zip(
        _PUBLISHED.items(), (descent, bayes_prediction(mlp, _TRAIN, _Y, _TESTS)), strict=True
    ):
        assert prediction.covariance is not None
        here = (*prediction.mean.values.ravel(), *prediction.covariance.values[np.triu_indices(2)])
        rows += [
            computed_row(f"{name}: {title}", value, number, _DIGITS)
            for title, value, number in zip(titles, published, here, strict=True)
        ]
    probabilities = np.exp(_Y_TEST) / np.exp(_Y_TEST).sum(axis=1, keepdims=True)
    losses = expected_loss(descent, _Y_TEST), expected_loss(descent, probabilities, CROSS_ENTROPY)
    for (name, parts), loss in zip(_LOSSES.items(), losses, strict=True):
        rows += [
            computed_row(f"{name}: {part}", value, getattr(loss, part), _DIGITS)
            for part, value in parts.items()
        ]
    return rows


def _schedule_ends(seed: Seed) -> xarray.Dataset:
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


def _trained_ends(plan: Plan, seed: Seed) -> xarray.Dataset:
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
    return xarray.Dataset(
        {"apart": (("width", "pair", "draw"), np.array(apart))},
        coords={"width": list(plan.widths), "pair": [" and ".join(pair) for pair in _PAIRS]},
    )


def _figure(data: xarray.Dataset) -> Figure:
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
