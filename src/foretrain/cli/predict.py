"""``foretrain predict``: what networks answer on test inputs after training."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from foretrain.cli.activation import find
from foretrain.cli.frame import Answer, Command, Seed
from foretrain.cli.options import BiasVariance, Loss, SkipConnection, WeightVariance
from foretrain.cli.predict_answer import document, paragraphs
from foretrain.cli.predict_data import Task, task_from

if TYPE_CHECKING:
    import xarray

    from foretrain.activations import Activation
    from foretrain.theory.architecture import MLP

_MANY = 2000  # test inputs from which on covariances between them are not computed
_SMOOTHING = 0.1


def predict(
    name: Annotated[str, typer.Argument(help="The activation: a name, or file.py:function.")],
    data: Annotated[
        Path | None,
        typer.Option(
            "--data", metavar="FILE.npz", help="x, y and perhaps x_test, y_test [default: an example]."
        ),
    ] = None,
    depth: Annotated[int, typer.Option("--depth", help="Layers of weights, L.")] = 3,
    width: Annotated[int, typer.Option("--width", help="Hidden width; matters with --regime finite.")] = 100,
    c_b: BiasVariance = None,
    c_w: WeightVariance = None,
    lambda_b: Annotated[
        float | None, typer.Option("--lambda-b", help="Learning rate of biases [default: balanced].")
    ] = None,
    lambda_w: Annotated[
        float | None,
        typer.Option("--lambda-w", help="Learning rate of weights times fan-in [default: balanced]."),
    ] = None,
    gamma: SkipConnection = 0.0,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=NUMBER", help="A parameter of the activation, such as slope=0.2."),
    ] = None,
    learner: Annotated[
        str, typer.Option("--learner", help="gradient_descent or bayes.")
    ] = "gradient_descent",
    algorithm: Annotated[
        str, typer.Option("--algorithm", help="gradient_descent, flow, two_step or newton.")
    ] = "gradient_descent",
    eta: Annotated[
        float | None, typer.Option("--eta", help="Overall learning rate [default: the best; of the flow 1].")
    ] = None,
    time: Annotated[
        float | None, typer.Option("--time", help="Steps, or flow time [default: the end of training].")
    ] = None,
    noise: Annotated[
        float, typer.Option("--noise", help="Variance of the noise on targets, for bayes.")
    ] = 0.0,
    loss: Loss = None,
    smoothing: Annotated[
        float | None,
        typer.Option(
            "--label-smoothing",
            help=f"Of the cross-entropy: probability of other classes [default: {_SMOOTHING} at the end, else 0].",
        ),
    ] = None,
    one_hot: Annotated[
        bool, typer.Option("--one-hot", help="Squared errors on one output for each class in y.")
    ] = False,
    regime: Annotated[
        str, typer.Option("--regime", help="infinite, or finite: to order 1/width.")
    ] = "infinite",
    draws: Annotated[
        int | None,
        typer.Option(
            "--draws",
            help="Of what is sampled: networks, or sets of inputs at finite width [default: exact sums].",
        ),
    ] = None,
    seed: Seed = 0,
) -> Answer:
    """Predict what trained networks answer on test inputs: mean and spread over their initialisations.

    Without data an example is used; without x_test every fifth sample is held out. Where test targets are known, the
    loss on them is told, split into what the mean output misses (bias), what the spread adds (variance), and how it
    differs from network to network. At finite width the cost grows with the fourth power of the training inputs.
    """
    from foretrain.report.prediction import draw_prediction
    from foretrain.theory.prediction.entry import predict as run

    act = find(name, settings or [])
    learner, algorithm, regime = (
        word.strip().lower().replace("-", "_") for word in (learner, algorithm, regime)
    )
    task = task_from(data, loss, one_hot=one_hot, bayes=learner == "bayes", few=regime == "finite")
    mlp = _network(act, depth, width, task, c_b, c_w, gamma, {"lambda_b": lambda_b, "lambda_W": lambda_w})
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
    )
    stored = _dataset(found.to_dataset(), task, mlp)
    return Answer(
        document(mlp, task, found, smoothing),
        paragraphs(mlp, task, found, smoothing),
        data=stored,
        figure=lambda: draw_prediction(stored),
    )


def _network(
    act: Activation,
    depth: int,
    width: int,
    task: Task,
    c_b: float | None,
    c_w: float | None,
    gamma: float,
    rates: dict[str, float | None],
) -> MLP:
    """With the variances and rates given, else those of a critical network."""
    from foretrain.theory.architecture import MLP

    sizes = {"depth": depth, "width": width, "n_in": task.x.shape[1], "n_out": task.outputs}
    skips = gamma or None
    if c_b is not None and c_w is not None:
        plain = MLP(act, C_b=c_b, C_W=c_w, gamma=skips, **sizes)
    else:
        plain = MLP.critical(act, gamma=skips, **sizes)
    given = {"C_b": c_b, "C_W": c_w, **rates}
    return plain.replace(**{name: value for name, value in given.items() if value is not None})


def _dataset(found: xarray.Dataset, task: Task, mlp: MLP) -> xarray.Dataset:
    """The prediction with the data it is about, so that its picture can be drawn from the file alone."""
    about = {
        "x": (("train", "component"), task.x),
        "x_test": (("test", "component"), task.x_test),
        "y": (("train", "output") if task.y.ndim == 2 else ("train",), task.y),
    }
    if task.y_test is not None:
        about["y_test"] = (("test", "output") if task.y_test.ndim == 2 else ("test",), task.y_test)
    network = f"{mlp.activation.label}, depth {mlp.depth}"
    return found.assign(about).assign_attrs(network=network, loss=task.loss)


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
    saves=True,
    draws=True,
)
