"""``foretrain predict``: what networks answer on test inputs after training."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, cast

import typer

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
    spelt,
)
from foretrain.cli.prediction_task import task_from
from foretrain.support.answers import Answer, Part

_MANY = 2000  # test inputs from which on covariances between them are not computed
_SMOOTHING = 0.1


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
        cast("Any", regime),
        cast("Any", learner),
        cast("Any", algorithm),
        eta,
        time,
        loss=cast("Any", task.loss),
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
