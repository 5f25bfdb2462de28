"""``foretrain compare``: theory beside real networks, at initialisation or trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from foretrain.cli.frame import Command, Seed
from foretrain.cli.options import (
    BiasVariance,
    DataFile,
    Depth,
    Samples,
    SkipConnection,
    WeightVariance,
    Width,
    activation_of,
    inputs_in,
    names_in,
    network_of,
    numbers_in,
    predicted_loss,
    spelt,
)
from foretrain.support.answers import Result
from foretrain.support.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from foretrain.theory.architecture import MLP

# Generic inputs: unequal norms, no right angles.
_INPUTS = ((1.0, -0.5, 0.8), (0.3, 1.1, -0.4), (-0.7, 0.2, 0.9), (0.5, 0.6, 1.2))
_TRAIN = ((1.3, 0.26, -0.65), (-0.52, 1.43, 0.39), (0.13, -0.78, 1.56))
_TARGETS = (1.0, -0.7, 0.4)
_TESTS = ((1.04, 0.91, 0.13), (-1.17, 0.39, 1.04))
_INFINITE_ONLY = ("time", "loss")


class TrainingData(NamedTuple):
    """What networks are trained on, and what they are asked."""

    x: NDArray[Any]
    y: NDArray[Any]
    x_test: NDArray[Any]


def compare(
    activations: Annotated[list[str], typer.Argument(help="Names, or file.py:function; one or several.")],
    depth: Depth = 5,
    width: Width = "64",
    inputs: Annotated[
        int | None,
        typer.Option(
            "--inputs", min=1, max=len(_INPUTS), help="How many of the built-in inputs [default: 2]."
        ),
    ] = None,
    data: DataFile = None,
    samples: Samples = 4,
    draws: Annotated[
        int | None,
        "Networks per width, on average [default: 20000; if trained 400, with --regime finite 4000, of "
        "bayes 200000].",
    ] = None,
    scales: Annotated[str | None, "Multipliers of the width, at least three, such as 1,2,4."] = None,
    observables: Annotated[
        str | None,
        "Names such as K,V,G1; of the NTK Theta,H1,D,F,A,B; of its differentials P,Q,R,S,T,U "
        "[default: K,V,G1].",
    ] = None,
    method: Annotated[
        str | None, "auto [default], weights (draw every weight) or conditional (no weights)."
    ] = None,
    c_b: BiasVariance = None,
    c_w: WeightVariance = None,
    gamma: SkipConnection = 0.0,
    trained: Annotated[bool, "Train the networks and compare what they predict."] = False,
    regime: Annotated[
        str | None, "If trained: infinite width [default], or finite: what it changes to order 1/width."
    ] = None,
    learner: Annotated[str | None, "If trained: gradient_descent [default] or bayes."] = None,
    algorithm: Annotated[
        str | None, "If trained: gradient_descent [default], flow, or with --regime finite two_step."
    ] = None,
    loss: Annotated[str | None, "If trained: squared_error [default] or cross_entropy."] = None,
    eta: Annotated[float | None, "If trained: learning rate [default: half the stable one]."] = None,
    time: Annotated[float | None, "If trained: steps, or time of the flow [default: the end]."] = None,
    noise: Annotated[float | None, "If trained by bayes: variance of noise on targets."] = None,
    seed: Seed = 0,
) -> Result:
    """Compare kernel, vertex, 1/n correction, NTK and its differentials with real random networks of several widths.

    With --trained the networks are trained on x, y of the data file, or on a small example, and mean and covariance
    of their outputs on x_test are compared with the prediction at infinite width; with --regime finite it is what
    finite width changes, times the width, split by origin.

    The answer is that theory agrees (exit code 0) or not (1): the root mean square of independent z-scores is at
    most 1.3 (more if they are few) and no |z| exceeds the bound that one run in a hundred would exceed by chance,
    for all activations together.
    """
    multipliers = None if scales is None else numbers_in("--scales", scales)
    networks = [network_of(activation_of(name), depth, width, c_b, c_w, gamma) for name in activations]
    training: dict[str, Any] = {"regime": regime, "learner": learner, "algorithm": algorithm, "loss": loss}
    training = {name: None if word is None else spelt(word) for name, word in training.items()}
    training |= {"eta": eta, "time": time, "noise": noise}
    initial: dict[str, Any] = {"observables": observables, "method": method, "inputs": inputs}
    for name, value in (initial if trained else training).items():
        if value is not None:
            kind, advice = (
                ("networks at initialisation", "leave out") if trained else ("trained networks", "add")
            )
            raise InputError(f"--{name} is for {kind}: {advice} --trained.")
    common = {"scales": multipliers, "draws": draws}
    given = {name: value for name, value in (training | common).items() if value is not None}
    if trained:
        task = _training_data(data)
        if "loss" in given:
            given["loss"] = predicted_loss(given["loss"])
        for name in _INFINITE_ONLY if given.get("regime") == "finite" else ():
            if name in given:
                raise InputError(
                    f"--{name} is for infinite width: leave it out with --regime finite, which is about the end of "
                    "training on squared errors."
                )
        # One output for each column of the targets, or for the cross-entropy of numbered classes one for each class.
        numbered = given.get("loss") == "cross_entropy" and task.y.shape[1] == 1
        outputs = max(2, int(task.y.max()) + 1) if numbered else task.y.shape[1]
        networks = [mlp.replace(n_out=outputs) for mlp in networks]
        return _compared(networks, task, {"trained": True, **given}, seed)
    if inputs is not None and data is not None:
        raise InputError("--inputs counts built-in ones and --data brings others: leave one out.")
    X = _INPUTS[: inputs or 2] if data is None else inputs_in(data, samples)
    given["observables"] = None if observables is None else names_in("--observables", observables)
    return _compared(networks, [X], {"method": method or "auto", **given}, seed)


def _compared(networks: Sequence[MLP], data: Sequence[Any], options: Mapping[str, Any], seed: int) -> Result:
    """Networks of every activation, one after the other, judged together; options are those of ``ft.compare``."""
    from foretrain.compare import compare as run
    from foretrain.compare.comparison import Comparisons
    from foretrain.support.progress import track
    from foretrain.support.seeds import spawn

    tasks = list(zip(networks, spawn(seed, len(networks)), strict=True))
    each = [run(mlp, *data, seed=own, **options) for mlp, own in track(tasks, "activations")]
    return Comparisons(tuple(each), seed)


def _training_data(path: Path | None) -> TrainingData:
    """Of a data file with x, y and x_test, or the built-in example."""
    import numpy as np

    if path is None:
        return TrainingData(np.array(_TRAIN), np.array(_TARGETS)[:, None], np.array(_TESTS))
    from foretrain.support.loading import load_data

    found = load_data(path)
    if found.x_test is None:
        raise InputError(f"{path} has no array 'x_test': add the inputs whose outputs are to be compared.")
    x, x_test = (np.asarray(each, dtype=float).reshape(len(each), -1) for each in (found.x, found.x_test))
    y = np.asarray(found.y, dtype=float)
    return TrainingData(x, y.reshape(len(y), -1), x_test)


COMMAND = Command(
    compare,
    examples=(
        "foretrain compare tanh --depth 5 --width 64",
        "foretrain compare tanh relu gelu sin swish --plot comparison.png",
        "foretrain compare tanh --depth 3 --width 24 --observables Theta,H1,D,F,A,B",
        "foretrain compare sin --depth 3 --width 32 --observables P,Q,R,S,T,U",
        "foretrain compare tanh --trained --depth 3 --width 64 --plot trained.png",
        "foretrain compare sin --trained --regime finite --depth 2 --width 64 --plot finite.png",
        "foretrain compare gelu --trained --data data.npz --time 200 --draws 200 --json",
        "foretrain compare relu --c-b 0.1 --c-w 1.8 --data data.npz --method conditional --save results",
    ),
)
