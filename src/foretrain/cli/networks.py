"""Networks that are described by options: activation, sizes and variances, and the MLP they make."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foretrain.cli.options import whole_numbers_in
from foretrain.support.errors import InputError

if TYPE_CHECKING:
    from foretrain.activations import Activation
    from foretrain.theory.architecture import MLP

ActivationName = Annotated[str, typer.Argument(help="The activation: a name, or file.py:function.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=NUMBER", help="A parameter of the activation, such as slope=0.2."),
]
Depth = Annotated[int, typer.Option("--depth", help="Layers of weights, L.")]
Width = Annotated[str, typer.Option("--width", help="Hidden width, or one for each layer: 100,50,100.")]
BiasVariance = Annotated[float | None, typer.Option("--c-b", help="Variance of biases [default: critical].")]
WeightVariance = Annotated[
    float | None, typer.Option("--c-w", help="Variance of weights times fan-in [default: critical].")
]
SkipConnection = Annotated[float, typer.Option("--gamma", help="Skip connections of hidden layers.")]


def activation_of(name: str, settings: Sequence[str] | None = None) -> Activation:
    """The activation that a command's argument names, a function in a file included."""
    from foretrain.activations import activation as make

    if ":" not in name and not name.endswith(".py"):
        return make(f"{name}({', '.join(settings)})" if settings else name)
    if settings:
        raise InputError(f"--set is for activations with a name: give {name} its parameters in the file.")
    from foretrain.support.loading import load_callable

    return make(load_callable(name))


def widths_of(text: str) -> int | list[int]:
    """One hidden width, or one for each layer."""
    widths = whole_numbers_in("--width", text)
    return widths[0] if len(widths) == 1 else widths


def network_of(
    act: Activation,
    depth: int,
    width: str,
    c_b: float | None,
    c_w: float | None,
    gamma: float,
    **others: Any,
) -> MLP:
    """With the variances and other arguments given, else those of a critical network."""
    from foretrain.theory.criticality.critical_initialisation import critical_unless_given

    return critical_unless_given(act, depth, widths_of(width), c_b, c_w, gamma, **others)
