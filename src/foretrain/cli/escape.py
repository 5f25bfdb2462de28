"""``foretrain escape``: how long the plateau of a small initialisation is, for described and for real networks."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foretrain.cli.frame import Command, Seed
from foretrain.cli.models import BatchSize, as_inputs, check_takes, model_from
from foretrain.cli.options import Loss, Settings, activation_of, names_in, numbers_in, whole_numbers_in
from foretrain.support.answers import Answer, Table
from foretrain.support.errors import InputError

if TYPE_CHECKING:
    from foretrain.saddle import SaddleClass
    from foretrain.saddle.escape import Method


def escape(
    name: Annotated[
        str | None, typer.Argument(help="The activation: a name, or file.py:function; not with --model.")
    ] = None,
    depth: Annotated[str | None, "Layers L, such as 4 or 3,4,5 [default: 4]."] = None,
    epsilon: Annotated[str | None, "Initial scales [default: 0.01,0.03,0.1]."] = None,
    bottleneck: Annotated[
        str | None,
        typer.Option("--bottleneck", metavar="R", help="Only the first R layers are small: 3 or 3,4."),
    ] = None,
    others: Annotated[float | None, "Scale of the other layers [default: 1]."] = None,
    scales: Annotated[str | None, "One network by its scales X_1,...,X_L in layer order."] = None,
    width: Annotated[int | None, "Hidden width N [default: 64]."] = None,
    beta: Annotated[float | None, "Strength of the teacher [default: 1]."] = None,
    threshold: Annotated[
        float | None,
        "Escaped when X_1 is this large [default: 0.3]; with --model, when the loss is this small "
        "[default: --share of its plateau].",
    ] = None,
    lr: Annotated[float | None, "Learning rate of the first layer: times become steps."] = None,
    methods: Annotated[str | None, "Of leading,corrected,reduced [default: all that apply]."] = None,
    settings: Settings = None,
    model: Annotated[
        str | None, typer.Option("--model", metavar="FILE.py:FUNCTION", help="A torch network of your own.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option("--data", metavar="FILE.npz", help="What it learns: x and y.")
    ] = None,
    loss: Loss = None,
    batch_size: BatchSize = None,
    share: Annotated[float | None, "Escaped at this share of the plateau's loss [default: 0.5]."] = None,
    train_steps: Annotated[int | None, "Steps of real training at most, 0: none [default: 20000]."] = None,
    runs: Annotated[int | None, "Real trainings, by other orders of samples [default: 2]."] = None,
    seed: Seed = 0,
) -> Answer:
    """Predict how long gradient flow stays near the saddle at zero weights, where training looks stuck.

    The network f = W_L σ(... σ(W_1 x)) without biases learns a teacher β σ(v·x) of Gaussian inputs from scales X_l:
    rows of W_1 have length X_1, entries are X_l/N in the middle and X_L/√N in the last layer. Times are learning rate
    times steps, with the rate of the first layer and 1/N of it for the others; --lr turns them into steps.

    With --model it is your network on your data: how long its plateau is, by following its own gradient flow, which
    layers make it, the rescaling that removes it, and real training of both networks beside the prediction.
    """
    described = (depth, epsilon, bottleneck, others, scales, width, beta, methods, settings)
    trained = {"batch": batch_size, "loss": loss, "share": share, "train_steps": train_steps, "runs": runs}
    if model is not None:
        if name is not None or any(option is not None for option in described):
            raise InputError("--model brings its own network: leave the activation and its scales out.")
        given: dict[str, Any] = {key: value for key, value in trained.items() if value is not None}
        return answer_for_model(model, data, lr, threshold=threshold, seed=seed, **given)
    if name is None:
        raise InputError("give an activation, or --model model.py:make with --data and --lr.")
    if data is not None or any(value is not None for value in trained.values()):
        raise InputError(
            "--data, --loss, --batch-size, --share, --train-steps and --runs go with --model: add it."
        )
    from foretrain.saddle import classify, escape_table
    from foretrain.saddle.escape import METHODS

    found = classify(activation_of(name, settings))
    if lr is not None and not 0 < lr < math.inf:
        raise InputError(f"--lr is {lr}: give a positive learning rate.")
    # The first correction exists inside the four classes only.
    asked = {str(method) for method in METHODS if method != "corrected" or found.letter != "outside"}
    if methods is not None:
        asked = {*names_in("--methods", methods)}
        if not asked <= {*METHODS}:
            raise InputError(f"--methods is {methods!r}: choose from {', '.join(METHODS)}.")
    chosen = [method for method in METHODS if method in asked]
    task: dict[str, Any] = {
        "width": 64 if width is None else width,
        "beta": 1.0 if beta is None else beta,
        "threshold": 0.3 if threshold is None else threshold,
    }
    if scales is not None:
        if any(option is not None for option in (depth, epsilon, bottleneck, others)):
            raise InputError("--scales describes a whole network: leave --depth, --epsilon and the like out.")
        return _one_network(found, numbers_in("--scales", scales), chosen, task, lr)
    if others is not None and bottleneck is None:
        raise InputError("--others is the scale of layers beside a bottleneck: add --bottleneck.")
    grid: dict[str, Any] = {
        "depth": whole_numbers_in("--depth", "4" if depth is None else depth),
        "epsilon": numbers_in("--epsilon", "0.01,0.03,0.1" if epsilon is None else epsilon),
        "bottleneck": None if bottleneck is None else whole_numbers_in("--bottleneck", bottleneck),
        "others": 1.0 if others is None else others,
    }
    if bottleneck is not None and min(grid["bottleneck"]) > max(grid["depth"]):
        raise InputError("--bottleneck has more layers than any --depth: give fewer.")
    return escape_table(found.activation, formula=chosen, learning_rate=lr, **grid, **task).answer()


def _one_network(
    found: SaddleClass, scales: list[float], methods: list[Method], task: dict[str, Any], lr: float | None
) -> Answer:
    """Escape times of one network, and its amplitudes on the way."""
    from foretrain.saddle import coupling, escape_time, reduced_flow
    from foretrain.saddle.escape import METHODS, escape_answer, with_steps
    from foretrain.saddle.reduced_flow import trajectory_figure

    act = found.activation
    times = {method: escape_time(act, scales, method=method, **task) for method in methods}
    last = times.get("reduced", math.inf)
    path = reduced_flow(act, scales, **task) if 0 < last < math.inf else None
    rows = [(METHODS[method], time, *((time / lr,) if lr else ())) for method, time in times.items()]
    columns = ("method", "time s", *(("steps",) if lr else ()))
    table = Table(columns, rows, f"Scales {', '.join(f'{scale:g}' for scale in scales)}")
    coupled = coupling(act, len(scales), task["width"], task["beta"])
    record = {"scales": scales, "K": coupled, "times": with_steps(times, lr)}
    picture = None if path is None else lambda: trajectory_figure(path, task["threshold"])
    return escape_answer(found, task, lr, table, record, path, picture)


def answer_for_model(
    model: str,
    data: Path | None,
    lr: float | None,
    *,
    batch: int | None = None,
    loss: str | None = None,
    threshold: float | None = None,
    share: float = 0.5,
    train_steps: int = 20_000,
    runs: int = 2,
    seed: int = 0,
) -> Answer:
    """Predict the plateau of ``model.py:make`` on its data, advise, and train the given and the rescaled network.

    ``train_steps`` bounds real descent; 0: predict only.
    """
    from foretrain.compare.plateau import plateau
    from foretrain.support.loading import load_data

    if data is None:
        raise InputError(
            "--model needs --data FILE.npz with x and y: the plateau depends on what is learned."
        )
    if lr is None:
        raise InputError("--model needs --lr, the learning rate: the plateau is told in steps.")
    if train_steps < 0:
        raise InputError(f"--train-steps is {train_steps}: give 0 (do not train) or more.")
    if runs < 1:
        raise InputError(f"--runs is {runs}: give 1 or more.")
    if threshold is not None and not threshold > 0:
        raise InputError(f"--threshold is {threshold:g}: give a positive loss, which training can reach.")
    samples, network = load_data(data), model_from(model, seed)
    x = as_inputs(samples.x, network)
    check_takes(network, x[:2])
    found = plateau(
        network,
        x,
        samples.y,
        lr=lr,
        loss=loss,
        batch_size=batch,
        threshold=threshold,
        share=share,
    )
    trained = found.verify(runs=runs, max_steps=train_steps, seed=seed) if train_steps else None
    answer = (trained or found).answer()
    return replace(answer, record={**(answer.record or {}), "learning_rate": lr, "seed": seed})


COMMAND = Command(
    escape,
    examples=(
        "foretrain escape tanh --depth 3,4,5 --epsilon 0.01,0.03,0.1 --threshold 0.3 --plot escape.png",
        "foretrain escape gelu --depth 6 --bottleneck 3,4,5 --lr 0.05",
        "foretrain escape tanh --scales 0.03,0.05,0.07,0.09 --save plateau",
        "foretrain escape --model model.py:make --data data.npz --lr 0.05 --batch-size 64 --plot plateau.png",
    ),
)
