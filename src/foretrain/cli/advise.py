"""``foretrain advise``: depth, initialisation, learning rates and skip connections for an activation and a width."""

from __future__ import annotations

from typing import Annotated

from foretrain.cli.frame import Command, Seed
from foretrain.cli.options import ActivationName, DataFile, Samples, Settings, activation_of, inputs_in, spelt
from foretrain.support.answers import Answer


def advise(
    name: ActivationName,
    width: Annotated[int, "Width of all hidden layers."],
    settings: Settings = None,
    depth: Annotated[int | None, "A depth to judge [default: that at r*]."] = None,
    n_out: Annotated[int, "Number of outputs."] = 1,
    gamma: Annotated[float | None, "Skip connections of hidden layers."] = None,
    data: DataFile = None,
    samples: Samples = 128,
    loss: Annotated[
        str, "For the largest stable step on --data: squared_error (half the SUM), mse or cross_entropy."
    ] = "squared_error",
    seed: Seed = 0,
) -> Answer:
    """Say how deep a network of a given width may be, and how to initialise and train it.

    Depths are judged by the dimensionless ratios of all tensors of order 1/width: inside below 0.1, at the edge below
    0.3, outside beyond. r* is the depth over width at which the truncated information between the two halves of the
    output peaks. The exit code is 1 if the depth that was asked about is outside. The picture draws random networks.
    """
    from foretrain.theory.advice import advise as ask

    found = ask(
        activation_of(name, settings),
        width,
        n_out=n_out,
        gamma=gamma,
        depth=depth,
        X=None if data is None else inputs_in(data, samples),
        loss=spelt(loss),
    )
    return found.answer(seed)


COMMAND = Command(
    advise,
    examples=(
        "foretrain advise gelu --width 256",
        "foretrain advise tanh --width 128 --depth 20 --n-out 10 --plot advice.png",
        "foretrain advise relu --width 512 --depth 40 --n-out 10 --gamma 0.98",
        "foretrain advise tanh --width 64 --data data.npz --loss mse --json",
    ),
)
