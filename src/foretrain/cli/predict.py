"""``foretrain predict``: what networks answer on test inputs after training, and the task that a data file sets."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from foretrain.cli.frame import Command, Seed
from foretrain.cli.options import (
    ActivationName,
    BiasVariance,
    Depth,
    Settings,
    SkipConnection,
    WeightVariance,
    Width,
    activation_of,
    network_of,
    predicted_loss,
    spelt,
)
from foretrain.support.answers import Answer, Part
from foretrain.support.errors import InputError
from foretrain.support.loading import Data, load_data

Array = NDArray[Any]

_TRAINED = np.array([-2.0, -1.3, -0.4, 0.3, 1.0, 1.9])
_HELD_OUT = 5
_CLASSES = 1000  # more of them need more samples
_TESTED = np.linspace(-3.0, 3.0, 61)
_MANY = 2000  # test inputs from which on covariances between them are not computed
_SMOOTHING = 0.1


@dataclass(frozen=True)
class Task:
    """Rows of inputs, targets (rows, outputs) or classes (rows,), the loss, and where all is from, in words."""

    x: Array
    y: Array
    x_test: Array
    y_test: Array | None
    loss: str
    outputs: int
    origin: str


def task_from(path: Path | None, loss: str | None, *, one_hot: bool, bayes: bool, few: bool) -> Task:
    """What a data file asks for; the example without one, of fewer points where many take minutes."""
    chosen = None if loss is None else predicted_loss(loss)
    if path is None:
        if chosen == "cross_entropy" or one_hot:
            raise InputError("the example has no classes: give a data file whose y holds whole numbers.")
        return _example(_TRAINED[1::2], _TESTED[10:51:2]) if few else _example(_TRAINED, _TESTED)
    data = load_data(path)
    if data.x_test is None:  # there is nothing to predict, so every fifth sample is kept for it
        held, count = np.arange(len(data.x)) % _HELD_OUT == _HELD_OUT - 1, len(data.x)
        if not held.any():
            raise InputError(
                f"{path} has no x_test and too few samples to hold some out: add the inputs to predict."
            )
        data = Data(data.x[~held], data.y[~held], data.x[held], data.y[held])
        origin = f"{len(data.x)} of {count} samples of {path}; every fifth is held out to be predicted"
    else:
        origin = f"{len(data.x)} training and {len(data.x_test)} test inputs of {path}"
    assert data.x_test is not None
    x, x_test = (np.asarray(rows.reshape(len(rows), -1), dtype=np.float64) for rows in (data.x, data.x_test))
    if data.y.dtype.kind in "biu" and data.y.size == len(data.y):
        task = Task(x, data.y.ravel(), x_test, data.y_test, "", 0, origin)
        return _classes(task, chosen, one_hot=one_hot, bayes=bayes)
    if one_hot or chosen == "cross_entropy":
        raise InputError(
            f"y in {path} holds no classes: save whole numbers, one for each input, or leave "
            f"{'--one-hot' if one_hot else '--loss cross_entropy'} out."
        )
    y = data.y.reshape(len(x), -1)
    y_test = None if data.y_test is None else data.y_test.reshape(len(x_test), -1)
    return Task(x, y, x_test, y_test, "squared_error", y.shape[1], origin)


def _classes(task: Task, chosen: str | None, *, one_hot: bool, bayes: bool) -> Task:
    """Classes as they are for the cross-entropy, else one column each, if that is what is wanted."""
    y = task.y.astype(np.int64)
    y_test = None if task.y_test is None else task.y_test.ravel().astype(np.int64)  # however they were saved
    if y_test is not None and task.y_test is not None and (y_test != task.y_test.ravel()).any():
        raise InputError("y holds classes but y_test does not: save whole numbers in both.")
    every = y if y_test is None else np.concatenate([y, y_test])
    count = int(every.max()) + 1
    if every.min() < 0 or count < 2:
        raise InputError(
            "y holds whole numbers but no classes 0, 1, ...: save it as floating-point numbers if they are targets."
        )
    if count > max(_CLASSES, 10 * len(every)):
        raise InputError(
            f"y names class {count - 1} among {len(every)} samples: number the classes 0, 1, ... without gaps, or "
            "save y as floating-point numbers if they are targets."
        )
    if one_hot:
        if chosen == "cross_entropy":
            raise InputError("--one-hot is for squared errors: leave it out with --loss cross_entropy.")
        tested = None if y_test is None else indicator(y_test, count)
        return Task(task.x, indicator(y, count), task.x_test, tested, "squared_error", count, task.origin)
    if chosen == "squared_error" or bayes:
        raise InputError(
            "y holds classes: add --one-hot to predict one output for each, or save it as floating-point numbers if "
            "they are targets."
        )
    return Task(task.x, y, task.x_test, y_test, "cross_entropy", count, task.origin)


def indicator(classes: Array, count: int) -> Array:
    """One column for each class, 1 in that of each input: (inputs, classes)."""
    return np.asarray(classes[:, None] == np.arange(count), dtype=np.float64)


def _example(trained: Array, tested: Array) -> Task:
    """Points of a wave; the constant second component of the inputs stands for a bias."""
    x, x_test = (np.stack([points, np.ones(len(points))], axis=1) for points in (trained, tested))
    y, y_test = (np.sin(1.6 * rows[:, :1]) + 0.3 * rows[:, :1] for rows in (x, x_test))
    origin = f"none given, so {len(x)} points of sin(1.6 x) + 0.3 x and {len(x_test)} test inputs (x, 1)"
    return Task(x, y, x_test, y_test, "squared_error", 1, origin)


def predict(
    name: ActivationName,
    data: Annotated[
        Path | None,
        typer.Option(
            "--data", metavar="FILE.npz", help="x, y and perhaps x_test, y_test [default: an example]."
        ),
    ] = None,
    depth: Depth = 3,
    width: Width = "100",
    c_b: BiasVariance = None,
    c_w: WeightVariance = None,
    lambda_b: Annotated[
        float | None, "Learning rate of biases [default: balanced, or 1 if --c-b and --c-w are given]."
    ] = None,
    lambda_w: Annotated[float | None, "The same of weights, times fan-in."] = None,
    gamma: SkipConnection = 0.0,
    settings: Settings = None,
    learner: Annotated[str, "gradient_descent or bayes."] = "gradient_descent",
    algorithm: Annotated[str, "gradient_descent, flow, two_step or newton."] = "gradient_descent",
    eta: Annotated[float | None, "Overall learning rate [default: the best; of the flow 1]."] = None,
    time: Annotated[float | None, "Steps, or flow time [default: the end of training]."] = None,
    momentum: Annotated[float, "Of steps, as torch.optim.SGD has it."] = 0.0,
    noise: Annotated[float, "Variance of the noise on targets, for bayes."] = 0.0,
    loss: Annotated[
        str | None, "squared_error or cross_entropy [default: cross_entropy for whole-number labels]."
    ] = None,
    smoothing: Annotated[
        float | None,
        typer.Option(
            "--label-smoothing",
            help=f"Of the cross-entropy: probability of other classes [default: {_SMOOTHING} at the end, else 0].",
        ),
    ] = None,
    one_hot: Annotated[bool, "Squared errors on one output for each class in y."] = False,
    regime: Annotated[str, "infinite, or finite: to order 1/width."] = "infinite",
    draws: Annotated[
        int | None, "Of what is sampled: networks, or sets of inputs at finite width [default: exact sums]."
    ] = None,
    tolerance: Annotated[
        float | None, "Of the integrals of training at finite width [default: 1e-10]."
    ] = None,
    seed: Seed = 0,
) -> Answer:
    """Predict what trained networks answer on test inputs: mean and spread over their initialisations.

    Without data an example is used; without x_test every fifth sample is held out. Where test targets are known, the
    loss on them is told, split into what the mean output misses (bias), what the spread adds (variance), and how it
    differs from network to network. The width matters with --regime finite only, where the cost grows with the fourth
    power of the number of training inputs.
    """
    from foretrain.theory.prediction.predict import predict as run

    act = activation_of(name, settings)
    learner, algorithm, regime = map(spelt, (learner, algorithm, regime))
    task = task_from(data, loss, one_hot=one_hot, bayes=learner == "bayes", few=regime == "finite")
    sizes = {"n_in": task.x.shape[1], "n_out": task.outputs}
    rates = {"lambda_b": lambda_b, "lambda_W": lambda_w}
    mlp = network_of(act, depth, width, c_b, c_w, gamma, **sizes, **rates)
    if smoothing is None and task.loss == "cross_entropy" and time is None:
        smoothing = _SMOOTHING
    found: Any = run(
        mlp,
        task.x,
        task.y,
        task.x_test,
        regime=regime,
        learner=learner,
        algorithm=algorithm,
        eta=eta,
        time=time,
        momentum=momentum,
        loss=task.loss,
        label_smoothing=smoothing,
        noise=noise,
        spread="covariance" if len(task.x_test) <= _MANY else "variance",
        draws=draws,
        seed=seed,
        tolerance=tolerance,
    )
    found = found.about(task.x, task.y, task.x_test, task.y_test, **found.task.attrs)
    answer: Answer = found.answer()
    about: list[Part] = [f"{mlp.headline}\nData: {task.origin}."]
    if smoothing:
        about.append(
            f"Labels are smoothed: classes that are not given have probability {smoothing:g} in all."
        )
    facts = {"data": task.origin, "loss": task.loss, "label_smoothing": smoothing}
    names = ("depth", "hidden_widths", "C_b", "C_W", "lambda_b", "lambda_W", "gamma")
    network = {"activation": act.label, **{name: getattr(mlp, name) for name in names}}
    return replace(answer, parts=[*about, *answer.parts], record=network | facts | answer.document())


COMMAND = Command(
    predict,
    examples=(
        "foretrain predict tanh",
        "foretrain predict erf --depth 4 --algorithm flow --time 2 --plot early.png",
        "foretrain predict relu --learner bayes --noise 0.01 --save posterior",
        "foretrain predict relu --data data.npz --depth 3 --loss cross-entropy --json",
        "foretrain predict tanh --depth 2 --width 50 --regime finite --plot finite.png",
        "foretrain predict gelu --data data.npz --one-hot --plot predicted.png",
    ),
)
