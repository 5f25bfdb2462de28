"""``foretrain compare``: theory beside real random networks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foretrain.cli.activation import find
from foretrain.cli.comparison_answer import joined, judged
from foretrain.cli.frame import Answer, Command, Seed
from foretrain.cli.options import BiasVariance, DataFile, SkipConnection, WeightVariance
from foretrain.cli.output import Table
from foretrain.support.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from foretrain.activations import Activation
    from foretrain.compare.comparison import Comparison
    from foretrain.theory.architecture import MLP

_DRAWS = 20_000
# Generic inputs: unequal norms, no right angles.
_INPUTS = ((1.0, -0.5, 0.8), (0.3, 1.1, -0.4), (-0.7, 0.2, 0.9), (0.5, 0.6, 1.2))


def compare(
    activations: Annotated[list[str], typer.Argument(help="Names, or file.py:function; one or several.")],
    depth: Annotated[int, typer.Option("--depth", help="Layers of weights, L.")] = 5,
    width: Annotated[
        str, typer.Option("--width", help="Hidden width, or one for each layer: 100,50,100.")
    ] = "64",
    inputs: Annotated[
        int, typer.Option("--inputs", min=1, max=len(_INPUTS), help="How many of the built-in inputs.")
    ] = 2,
    data: DataFile = None,
    samples: Annotated[int, typer.Option("--samples", min=1, help="How many inputs of the data file.")] = 4,
    draws: Annotated[
        int | None,
        typer.Option("--draws", help="Networks per width, on average [default: 20000, if trained 400]."),
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
    learner: Annotated[
        str | None, typer.Option("--learner", help="If trained: gradient_descent [default] or bayes.")
    ] = None,
    algorithm: Annotated[
        str | None, typer.Option("--algorithm", help="If trained: gradient_descent [default] or flow.")
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
    of their outputs on x_test are compared with the prediction at infinite width.

    The answer is that theory agrees (exit code 0) or not (1): the root mean square of independent z-scores is at
    most 1.3 (more if they are few) and no |z| exceeds the bound that one run in a hundred would exceed by chance,
    for all activations together.
    """
    from foretrain.compare.comparison import compare as run
    from foretrain.support.progress import track
    from foretrain.support.seeds import spawn

    chosen = None if scales is None else _numbers("--scales", scales)
    networks = [_network(find(name, []), depth, width, c_b, c_w, gamma) for name in activations]
    training = {
        "learner": learner,
        "algorithm": algorithm,
        "loss": loss,
        "eta": eta,
        "time": time,
        "noise": noise,
    }
    _refuse_misplaced(trained, training, {"observables": observables, "method": method})
    if trained:
        from foretrain.cli.compare_trained import compare_networks, training_data

        options = training | {"scales": chosen, "draws": draws}
        given = {name: value for name, value in options.items() if value is not None}
        return compare_networks(networks, training_data(data), given, seed)
    X = _inputs(inputs, data, samples)
    wanted = None if observables is None else _names("--observables", observables)
    tasks = list(zip(networks, spawn(seed, len(networks)), strict=True))
    count = _DRAWS if draws is None else draws
    found = [
        run(mlp, X, wanted, count, scales=chosen, method=method or "auto", seed=own_seed)
        for mlp, own_seed in track(tasks, "activations")
    ]
    return _answer(found, seed)


def _refuse_misplaced(trained: bool, training: Mapping[str, Any], initial: Mapping[str, Any]) -> None:
    """Options of training without --trained, or of initialisation with it."""
    others, advice = (initial, "leave out") if trained else (training, "add")
    for name, value in others.items():
        if value is not None:
            kind = "networks at initialisation" if trained else "trained networks"
            raise InputError(f"--{name} is for {kind}: {advice} --trained.")


def _names(option: str, text: str) -> list[str]:
    names = [part.strip() for part in text.split(",")]
    if not all(names):
        raise InputError(f"{option} is {text!r}: give names separated by commas.")
    return names


def _numbers(option: str, text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"{option} is {text!r}: give numbers separated by commas.") from None


def _inputs(count: int, data: Path | None, samples: int) -> NDArray[Any]:
    import numpy as np

    if data is None:
        return np.array(_INPUTS[:count])
    from foretrain.support.loading import load_inputs

    return load_inputs(data)[:samples]


def _network(
    act: Activation, depth: int, width: str, c_b: float | None, c_w: float | None, gamma: float
) -> MLP:
    """With the variances given, else the critical ones."""
    from foretrain.theory.architecture import MLP

    widths = [int(number) if number.is_integer() else number for number in _numbers("--width", width)]
    hidden: Any = widths[0] if len(widths) == 1 else widths
    skips = gamma or None
    if c_b is not None and c_w is not None:
        return MLP(act, depth=depth, width=hidden, C_b=c_b, C_W=c_w, gamma=skips)
    critical = MLP.critical(act, depth=depth, width=hidden, gamma=skips)
    given = {"C_b": c_b, "C_W": c_w}
    return critical.replace(**{name: value for name, value in given.items() if value is not None})


def _answer(found: Sequence[Comparison], seed: int) -> Answer:
    from foretrain.report.comparison import draw

    verdict = judged(found)
    text: list[str | Table] = []
    for comparison in found:
        text += _paragraphs(comparison)
    if len(found) > 1:
        text.append(_overview(found))
    datasets = [comparison.to_dataset() for comparison in found]
    return Answer(
        {**verdict.numbers, "seed": seed, "comparisons": [_document(comparison) for comparison in found]},
        [*text, verdict.sentence("Theory", "the networks")],
        data=joined(datasets),
        figure=partial(draw, datasets),
        holds=verdict.agrees,
    )


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


def _overview(found: Sequence[Comparison]) -> Table:
    columns = (
        "activation",
        "C_b of layer 2",
        "C_W of layer 2",
        "entries",
        "independent",
        "rms z",
        "largest |z|",
    )
    rows = [
        (
            c.mlp.activation.label,
            c.mlp.C_b[1],
            c.mlp.C_W[1],
            c.judgement.entries,
            c.judgement.independent,
            round(c.judgement.rms, 2),
            round(c.judgement.largest, 2),
        )
        for c in found
    ]
    return Table(columns, rows)


def _document(found: Comparison) -> dict[str, Any]:
    judgement = found.judgement
    return {
        "activation": found.mlp.activation.label,
        "C_b": list(found.mlp.C_b),
        "C_W": list(found.mlp.C_W),
        "gamma": list(found.mlp.gamma),
        "depth": found.mlp.depth,
        "method": found.ladder.method,
        "widths": [network.hidden_widths[0] for network in found.ladder.networks],
        "draws": list(found.ladder.draws),
        "rms_z": judgement.rms,
        "largest_z": judgement.largest,
        "verdict": found.verdict,
        "entries": found.rows(),
    }


COMMAND = Command(
    compare,
    examples=(
        "foretrain compare tanh --depth 5 --width 64",
        "foretrain compare tanh relu gelu sin swish --plot comparison.png",
        "foretrain compare tanh --depth 3 --width 24 --observables Theta,H1,D,F,A,B",
        "foretrain compare sin --depth 3 --width 32 --observables P,Q,R,S,T,U",
        "foretrain compare tanh --trained --depth 3 --width 64 --plot trained.png",
        "foretrain compare gelu --trained --data data.npz --time 200 --draws 200 --json",
        "foretrain compare relu --c-b 0.1 --c-w 1.8 --data data.npz --method conditional --save results",
    ),
    saves=True,
    draws=True,
)
