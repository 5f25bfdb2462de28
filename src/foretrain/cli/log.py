"""``foretrain log``: what a training log alone shows, and what to measure next."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from foretrain.cli.frame import Command
from foretrain.support.answers import Result


def log(
    path: Annotated[
        Path,
        typer.Argument(metavar="LOG", help="A CSV, JSON or JSON-lines file, such as trainer_state.json."),
    ],
    baseline: Annotated[
        float | None, "The loss of a constant answer: the logarithm of the number of balanced classes."
    ] = None,
) -> Result:
    """Read a training log and say whether the loss diverges, waits, overfits, spikes or still falls.

    Columns are found by their usual names: loss or train_loss, lr or learning_rate, val_loss or eval_loss, grad_norm,
    step, epoch. Every finding has its numbers with error bars, and the measurement that decides what to do. Exit
    code: 0, also with warnings; 1 if a finding is critical; 2 if the log cannot be read.
    """
    from foretrain.doctor.training_log import read_log

    return read_log(path, baseline=baseline)


COMMAND = Command(
    log,
    examples=(
        "foretrain log log.csv",
        "foretrain log log.csv --baseline 2.303 --plot log.png",
        "foretrain log log.csv --json --save reading",
    ),
)
