"""Ensembles of real networks, trained, beside the prediction for them at infinite width (10.40), (10.41).

A function of an angle through four points, trained to the end; and handwritten digits, 3 against 8, after a fixed
number of steps, since the prediction is exact at any step and the end is thousands of them away. Networks of five
widths are trained. Mean and variance of their outputs on test inputs must extrapolate to the prediction, and deviate
from it at finite width by a part that falls as 1/n.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from foretrain.compare.trained.pictures import POSITIONS
from foretrain.experiments.effective_theory.trained_ensembles.drawing import draw
from foretrain.experiments.parts import Parts
from foretrain.experiments.registry import Result, Row, Scale
from foretrain.support.loading.digits import handwritten_digits
from foretrain.support.seeds import Seed, generator, spawn
from foretrain.theory.architecture import MLP

if TYPE_CHECKING:
    import xarray

    from foretrain.compare.trained import TrainedComparison

Array = NDArray[np.float64]

WIDTHS = (32, 64, 128, 256, 512)
_ALLOWED = 3.0  # standard errors of a fitted power or of a share
_DEVIATIONS = 2.0  # of the band whose coverage is counted
_CLASSES = (3, 8)


@dataclass(frozen=True)
class Plan:
    """How many networks are trained on the function and on the digits, and how long."""

    angle_draws: tuple[int, ...]  # trained networks by width
    digits_draws: tuple[int, ...]
    training: int  # digits
    tests: int
    steps: int
    shown: int  # networks whose outputs are kept one by one
    shown_widths: tuple[int, int] = (128, 512)  # of the function, of the digits


PLANS: Mapping[Scale, Plan] = {
    Scale.QUICK: Plan((800, 640, 480, 320, 160), (480, 400, 320, 160, 80), 50, 100, 100, 100),
    Scale.PAPER: Plan((8000, 6000, 4000, 2400, 1600), (2000, 1600, 1200, 800, 400), 200, 150, 200, 400),
}


@dataclass(frozen=True, eq=False)
class Task:
    """A network and data for it."""

    name: str
    mlp: MLP
    X_train: Array
    Y_train: Array
    X_test: Array
    Y_test: Array
    time: int | None  # steps; None: to the end
    positions: tuple[Array, Array] | None = None  # of training and test inputs on the axis of a picture


def trained_ensembles(plan: Plan, seed: int, parts: Parts) -> Result:
    """Mean and covariance of trained networks of five widths against theory, on a function and on digits."""
    data_seed, *seeds = spawn(seed, 3)
    tasks = (angle_task(), digits_task(plan.training, plan.tests, plan.steps, data_seed))
    draws = (plan.angle_draws, plan.digits_draws)
    found, shown = {}, {}
    for task, counts, width, own in zip(tasks, draws, plan.shown_widths, seeds, strict=True):
        first, second = spawn(own, 2)
        found[task.name] = _compared(task, counts, first, parts)
        networks = partial(_networks, task, width, plan.shown, found[task.name].goal.training, second)
        shown[task.name] = parts.get(f"{task.name} networks", networks)
    rows = tuple(row for task in tasks for row in _rows(task, found[task.name], shown[task.name]))
    data = _dataset(tasks, found, shown)
    return Result(_verdict(found, rows), rows, data, partial(draw, data))


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


def _compared(task: Task, draws: tuple[int, ...], seed: Seed, parts: Parts) -> TrainedComparison:
    from foretrain.compare.trained import compare_trained

    def kept(name: str, compute: Callable[[], xarray.Dataset]) -> xarray.Dataset:
        return parts.get(f"{task.name} {name}", compute)

    options: dict[str, Any] = {"time": task.time, "widths": WIDTHS, "draws": draws, "seed": seed}
    data = (task.X_train, task.Y_train, task.X_test)
    return compare_trained(task.mlp, *data, keeper=kept, **options)


def _networks(task: Task, width: int, draws: int, training: Any, seed: Seed) -> xarray.Dataset:
    """Outputs of single networks of one width after training: (network, test)."""
    import xarray

    from foretrain.compare.trained import train_ensemble

    mlp = task.mlp.replace(width=width)
    found = train_ensemble(mlp, task.X_train, task.X_test, training, draws, seed=seed)
    ends = found.end[:, len(task.X_train) :, 0]
    return xarray.Dataset(
        {"output": (("network", "test"), ends), "target": (("test",), task.Y_test[:, 0])},
        attrs={"width": width},
    )


def _rows(task: Task, found: TrainedComparison, shown: xarray.Dataset) -> list[Row]:
    judgement = found.judgement
    rows = [
        Row(
            f"{task.name}: rms z of means and variances, extrapolated to infinite width",
            f"at most {judgement.rms_bound:.2f}",
            judgement.rms,
            agrees=found.agrees,
            note=f"largest |z| {judgement.largest:.2f} of at most {judgement.bound:.2f}",
        )
    ]
    rows += [_power_row(task, found, name) for name in ("mean", "covariance")]
    mean, deviation = (found.goal.law.mean[:, 0], np.sqrt(found.goal.law.covariance.diagonal()))
    width = int(shown.attrs["width"])
    if task.time is None:
        inside = np.abs(shown.output.values - mean) < _DEVIATIONS * deviation
        rows.append(
            _share_row(f"function: share of outputs in the band of ±2σ, width {width}", inside, 0.9545)
        )
        return rows
    right = shown.output.values * task.Y_test[:, 0] > 0
    expected = float(_normal_share(mean * task.Y_test[:, 0] / deviation).mean())
    rows.append(_share_row(f"digits: accuracy of single networks, width {width}", right, expected))
    ensemble = (np.sign(shown.output.values.mean(axis=0)) == task.Y_test[:, 0]).mean()
    predicted = (np.sign(mean) == task.Y_test[:, 0]).mean()
    together = "digits: accuracy of the mean of all networks"
    rows.append(Row(together, float(predicted), float(ensemble), agrees=bool(ensemble == predicted)))
    return rows


def _power_row(task: Task, found: TrainedComparison, name: str) -> Row:
    power = found.power(name)
    title = f"{task.name}: power of n in the deviation of the {'variance' if name == 'covariance' else name}"
    if power is None:
        return Row(title, -1.0, "hidden by noise", agrees=None, note="more networks resolve it")
    return Row(title, -1.0, power.value, power.standard_error, agrees=power.agrees(-1.0))


def _share_row(title: str, hits: NDArray[np.bool_], expected: float) -> Row:
    """A share with the standard error over networks, whose outputs hang together."""
    shares = hits.mean(axis=1)
    error = float(shares.std(ddof=1) / np.sqrt(len(shares)))
    agrees = bool(abs(shares.mean() - expected) <= _ALLOWED * error)
    return Row(title, expected, float(shares.mean()), error, agrees=agrees)


def _normal_share(z: Array) -> Array:
    from scipy.special import ndtr

    return np.asarray(ndtr(z))


def _dataset(
    tasks: tuple[Task, ...], found: dict[str, TrainedComparison], shown: dict[str, xarray.Dataset]
) -> xarray.Dataset:
    """Both comparisons side by side: the names of one begin with its task."""
    import xarray

    both = []
    for task in tasks:
        name = task.name
        added: dict[str, Any] = {f"network_{key}": value for key, value in shown[name].items()}
        if task.positions is not None:
            added |= {
                key: (key.removeprefix("position_"), value) for key, value in zip(POSITIONS, task.positions)
            }
        whole = found[name].to_dataset().assign(added)
        whole = whole.assign_attrs(shown_width=shown[name].attrs["width"])
        names = {str(key): f"{name}_{key}" for key in (*whole.variables, *whole.dims)}
        attributes = {f"{name}_{key}": value for key, value in whole.attrs.items()}
        both.append(whole.rename(names).drop_attrs(deep=False).assign_attrs(attributes))
    return xarray.merge(both, combine_attrs="no_conflicts")


def _verdict(found: dict[str, TrainedComparison], rows: tuple[Row, ...]) -> str:
    parts = [
        f"{name} {'agrees' if comparison.agrees else 'does NOT agree'} (rms z {comparison.judgement.rms:.2f}; "
        f"{comparison.power_text()})"
        for name, comparison in found.items()
    ]
    tested = [row for row in rows if row.agrees is not None]
    return (
        f"Trained networks against the prediction at infinite width: {', '.join(parts)}; "
        f"{sum(row.agrees is True for row in tested)} of {len(tested)} checks agree."
    )
