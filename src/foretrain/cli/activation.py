"""``foretrain activation``: what is known about a nonlinearity."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Annotated

import typer

from foretrain.cli.frame import Command
from foretrain.cli.options import Settings, activation_of
from foretrain.support.answers import Answer, Table
from foretrain.support.errors import InputError

_MOMENT_COLUMNS = ("K", "<σ>", "<σ²>", "<σ⁴>", "<σ'²>", "<zσσ'>")


def activation(
    name: Annotated[
        str | None, typer.Argument(help="A name, or file.py:function; without it, all names are listed.")
    ] = None,
    settings: Settings = None,
    variances: Annotated[
        list[float] | None, typer.Option("--variance", metavar="K", help="Where to take Gaussian moments.")
    ] = None,
) -> Answer:
    """Show formula, symmetry, kinks, Taylor series and Gaussian moments of an activation function.

    The moments are over z with mean 0 and variance K; those of the derivative include its delta functions.
    """
    from foretrain.activations import catalogue
    from foretrain.gaussian import moments

    if name is None:
        if settings or variances:
            raise InputError("--set and --variance are about one activation: name it.")
        names = list(catalogue())
        return Answer("", [Table(("name",), [(known,) for known in names])], record={"activations": names})
    act = activation_of(name, settings)
    chosen = variances or [0.5, 1.0, 2.0]
    for K in chosen:
        if not 0 <= K < math.inf:
            raise InputError(f"--variance is {K:g}: give zero or a positive number.")
    table = moments(act, chosen).value
    rows = [{"variance": K, **{str(one.moment.item()): float(one) for one in table.sel(K=K)}} for K in chosen]
    answer = act.answer()
    return replace(
        answer,
        parts=[*answer.parts, Table(_MOMENT_COLUMNS, [tuple(row.values()) for row in rows])],
        record={**answer.document(), "moments": rows},
    )


COMMAND = Command(
    activation,
    examples=(
        "foretrain activation",
        "foretrain activation leaky_relu --set slope=0.2 --plot leaky.png",
        "foretrain activation act.py:mine --variance 1 --variance 10 --json",
    ),
)
