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
    """With the variances and other arguments given, else those of a critical network.

    Where both variances are given, the activation need not have a critical initialisation, and rates are 1.
    """
    from foretrain.theory.architecture import MLP

    known = {name: value for name, value in others.items() if value is not None}
    sizes: dict[str, Any] = {"depth": depth, "width": widths_of(width), "gamma": gamma or None}
    if c_b is not None and c_w is not None:
        return MLP(act, **sizes, C_b=c_b, C_W=c_w, **known)
    given = {name: value for name, value in {"C_b": c_b, "C_W": c_w}.items() if value is not None}
    return MLP.critical(act, **sizes).replace(**given, **known)
