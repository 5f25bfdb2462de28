"""Options that several commands share, and what they mean."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foretrain.support.errors import InputError, unknown_name

if TYPE_CHECKING:
    from numpy.typing import NDArray

_PREDICTED_LOSSES = ("squared_error", "cross_entropy")
Model = Annotated[str, typer.Argument(help="model.py:make, a function that returns the torch model.")]
DataFile = Annotated[
    Path | None, typer.Option("--data", metavar="FILE.npz", help="Take the inputs x of a data file.")
]
Samples = Annotated[int, typer.Option("--samples", min=1, help="How many inputs of the data file.")]
Engine = Annotated[
    str | None, typer.Option("--engine", help="local, threads, dask://host:port or ray://host:port.")
]
Workers = Annotated[int | None, typer.Option("--workers", help="Processes [default: one for each core].")]
Loss = Annotated[
    str | None,
    typer.Option(
        "--loss",
        help="mse, squared_error (half the SUM) or cross_entropy [default: cross_entropy for whole-number labels].",
    ),
]


def spelt(text: str) -> str:
    """A word of a list in the one spelling that is used inside; capitals and hyphens do not matter."""
    return text.strip().lower().replace("-", "_")


def predicted_loss(text: str) -> str:
    """The name of a loss where theory predicts what training makes of it."""
    name = spelt(text)
    if name not in _PREDICTED_LOSSES:
        raise unknown_name("loss", text, _PREDICTED_LOSSES)
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
