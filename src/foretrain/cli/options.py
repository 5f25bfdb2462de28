"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

BiasVariance = Annotated[float | None, typer.Option("--c-b", help="Variance of biases [default: critical].")]
WeightVariance = Annotated[
    float | None, typer.Option("--c-w", help="Variance of weights times fan-in [default: critical].")
]
SkipConnection = Annotated[float, typer.Option("--gamma", help="Skip connections of hidden layers.")]
DataFile = Annotated[
    Path | None, typer.Option("--data", metavar="FILE.npz", help="Take the inputs x of a data file.")
]
