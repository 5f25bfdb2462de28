"""``foretrain compare``: theory beside real networks, at initialisation or trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foretrain.cli.compare.answer import Kind, answer
from foretrain.cli.frame import Command, Seed
from foretrain.cli.networks import (
    BiasVariance,
    Depth,
    SkipConnection,
    WeightVariance,
    Width,
    activation_of,
    network_of,
)
from foretrain.cli.options import DataFile, Samples, inputs_in, names_in, numbers_in, spelt
from foretrain.support.answers import Answer, Table
from foretrain.support.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from foretrain.compare.comparison import Comparison
    from foretrain.theory.architecture import MLP

_DRAWS = 20_000
# Generic inputs: unequal norms, no right angles.
_INPUTS = ((1.0, -0.5, 0.8), (0.3, 1.1, -0.4), (-0.7, 0.2, 0.9), (0.5, 0.6, 1.2))


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
        typer.Option(
            "--draws",
            help="Networks per width, on average [default: 20000; if trained 400, with --regime finite 4000, of "
            "bayes 200000].",
        ),
    ] = None,
    scales: Annotated[
        str | None, typer.Option("--scales", help="Multipliers of the width, at least three, such as 1,2,4.")
    ] = None,
    observables: Annotated[
        str | None,
        typer.Option(
            "--observables",
            help="Names such as K,V,G1; of the NTK Theta,H1,D,F,A,B; of its differentials P,Q,R,S,T,U "
            "[default: K,V,G1].",
        ),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            "--method", help="auto [default], weights (draw every weight) or conditional (no weights)."
        ),
    ] = None,
    c_b: BiasVariance = None,
    c_w: WeightVariance = None,
    gamma: SkipConnection = 0.0,
    trained: Annotated[
        bool, typer.Option("--trained", help="Train the networks and compare what they predict.")
    ] = False,
    regime: Annotated[
        str | None,
        typer.Option(
            "--regime",
            help="If trained: infinite width [default], or finite: what it changes to order 1/width.",
        ),
    ] = None,
    learner: Annotated[
        str | None, typer.Option("--learner", help="If trained: gradient_descent [default] or bayes.")
    ] = None,
    algorithm: Annotated[
        str | None,
        typer.Option(
            "--algorithm",
            help="If trained: gradient_descent [default], flow, or with --regime finite two_step.",
        ),
    ] = None,
    loss: Annotated[
        str | None, typer.Option("--loss", help="If trained: squared_error [default] or cross_entropy.")
    ] = None,
    eta: Annotated[
        float | None, typer.Option("--eta", help="If trained: learning rate [default: half the stable one].")
    ] = None,
    time: Annotated[
        float | None,
        typer.Option("--time", help="If trained: steps, or time of the flow [default: the end]."),
    ] = None,
    noise: Annotated[
        float | None, typer.Option("--noise", help="If trained by bayes: variance of noise on targets.")
    ] = None,
    seed: Seed = 0,
) -> Answer:
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
    _refuse_misplaced(trained, training, {"observables": observables, "method": method, "inputs": inputs})
    if trained:
        from foretrain.cli.compare.trained import compare_networks

        options = training | {"scales": multipliers, "draws": draws}
        given = {name: value for name, value in options.items() if value is not None}
        return compare_networks(networks, data, given, seed)
    if inputs is not None and data is not None:
        raise InputError("--inputs counts built-in ones and --data brings others: leave one out.")
    X = _built_in(inputs or 2) if data is None else inputs_in(data, samples)
    found = _at_initialisation(
        networks,
        X,
        None if observables is None else names_in("--observables", observables),
        _DRAWS if draws is None else draws,
        multipliers,
        method or "auto",
        seed,
    )
    return answer(found, _kind(), seed)


def _refuse_misplaced(trained: bool, training: Mapping[str, Any], initial: Mapping[str, Any]) -> None:
    """Options of training without --trained, or of initialisation with it."""
    others, advice = (initial, "leave out") if trained else (training, "add")
    for name, value in others.items():
        if value is not None:
            kind = "networks at initialisation" if trained else "trained networks"
            raise InputError(f"--{name} is for {kind}: {advice} --trained.")


def _built_in(count: int) -> NDArray[Any]:
    import numpy as np

    return np.array(_INPUTS[:count])


def _at_initialisation(
    networks: Sequence[MLP],
    X: NDArray[Any],
    observables: list[str] | None,
    draws: int,
    scales: list[float] | None,
    method: str,
    seed: int,
) -> list[Comparison]:
    from foretrain.compare.initial import compare_initial as run
    from foretrain.support.progress import track
    from foretrain.support.seeds import spawn

    tasks = list(zip(networks, spawn(seed, len(networks)), strict=True))
    return [
        run(mlp, X, observables, draws, scales=scales, method=method, seed=own)
        for mlp, own in track(tasks, "activations")
    ]


def _kind() -> Kind:
    from foretrain.report.comparison import comparison_figure

    return Kind("Theory", "the networks", _paragraphs, lambda _: {}, comparison_figure)


def _paragraphs(found: Comparison) -> list[str | Table]:
    from foretrain.compare.presentation import (
        ladder_text,
        last_layer_rows,
        notes,
        own_width_rows,
        score_rows,
    )

    last = found.mlp.depth
    parts: list[str | Table] = [
        f"{found.mlp.activation.label}: {ladder_text(found)}",
        Table((f"layer {last}", "theory", "measured limit", "standard error", "z"), last_layer_rows(found)),
        Table(("rms z", *(f"layer {layer}" for layer in range(2, last + 1))), score_rows(found)),
    ]
    parts += notes(found)
    finite = own_width_rows(found)
    if finite:
        width = found.ladder.networks[found.own].hidden_widths[0]
        columns = (
            f"at width {width}",
            "theory, n = infinity",
            "theory with 1/n",
            "measured",
            "standard error",
        )
        parts.append(Table(columns, finite))
    return parts


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
    saves=True,
    draws=True,
)
