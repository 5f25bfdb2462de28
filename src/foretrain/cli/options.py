"""Options that several commands share, and what they mean."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from foretrain.support.errors import unknown_name

_LOSSES = ("cross_entropy", "mse")
BiasVariance = Annotated[float | None, typer.Option("--c-b", help="Variance of biases [default: critical].")]
WeightVariance = Annotated[
    float | None, typer.Option("--c-w", help="Variance of weights times fan-in [default: critical].")
]
SkipConnection = Annotated[float, typer.Option("--gamma", help="Skip connections of hidden layers.")]
DataFile = Annotated[
    Path | None, typer.Option("--data", metavar="FILE.npz", help="Take the inputs x of a data file.")
]
Engine = Annotated[
    str | None, typer.Option("--engine", help="local, threads, dask://host:port or ray://host:port.")
]
Workers = Annotated[int | None, typer.Option("--workers", help="Processes [default: one for each core].")]
Loss = Annotated[
    str | None,
    typer.Option("--loss", help="mse or cross_entropy [default: cross_entropy for whole-number labels]."),
]


def loss_name(text: str) -> str:
    """The name of a loss in the one spelling that is used inside; capitals and hyphens do not matter."""
    name = text.strip().lower().replace("-", "_")
    if name not in _LOSSES:
        raise unknown_name("loss", text, _LOSSES)
    return name
