"""Options that several commands share, what they mean, and the networks that they describe."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foretrain.support.errors import InputError, unknown_name

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from foretrain.activations import Activation
    from foretrain.theory.architecture import MLP

_PREDICTED_LOSSES = ("squared_error", "cross_entropy")
Model = Annotated[str, typer.Argument(help="model.py:make, a function that returns the torch model.")]
DataFile = Annotated[
    Path | None, typer.Option("--data", metavar="FILE.npz", help="Take the inputs x of a data file.")
]
Samples = Annotated[int, typer.Option("--samples", min=1, help="How many inputs of the data file.")]
Engine = Annotated[str | None, "local, threads, dask://host:port or ray://host:port."]
Workers = Annotated[int | None, "Processes [default: one for each core]."]
Loss = Annotated[
    str | None,
    "mse, squared_error (half the SUM) or cross_entropy [default: cross_entropy for whole-number labels].",
]
ActivationName = Annotated[str, typer.Argument(help="The activation: a name, or file.py:function.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=NUMBER", help="A parameter of the activation, such as slope=0.2."),
]
Depth = Annotated[int, "Layers of weights, L."]
Width = Annotated[str, "Hidden width, or one for each layer: 100,50,100."]
BiasVariance = Annotated[float | None, "Variance of biases [default: critical]."]
WeightVariance = Annotated[float | None, "Variance of weights times fan-in [default: critical]."]
SkipConnection = Annotated[float, "Skip connections of hidden layers."]


def spelt(text: str) -> str:
    """A word of a list in the one spelling that is used inside; capitals and hyphens do not matter."""
    return text.strip().lower().replace("-", "_")


def predicted_loss(text: str) -> str:
    """The name of a loss where theory predicts what training makes of it."""
    name = spelt(text)
    if name not in _PREDICTED_LOSSES:
        raise unknown_name("`loss`", text, _PREDICTED_LOSSES)
    return name


def names_in(option: str, text: str) -> list[str]:
    """Names between commas."""
    names = [part.strip() for part in text.split(",")]
    if not all(names):
        raise InputError(f"{option} is {text!r}: give names separated by commas.")
    return names


def numbers_in(option: str, text: str) -> list[float]:
    """Numbers between commas."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"{option} is {text!r}: give numbers separated by commas, such as 0.5,2.") from None


def whole_numbers_in(option: str, text: str) -> list[int]:
    """Whole numbers between commas."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise InputError(
            f"{option} is {text!r}: give whole numbers separated by commas, such as 3,4."
        ) from None


def inputs_in(data: Path, samples: int) -> NDArray[Any]:
    """The first inputs of a data file, as rows."""
    from foretrain.support.loading import load_inputs

    return load_inputs(data)[:samples]


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
