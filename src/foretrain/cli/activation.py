"""``foretrain activation``: what is known about a nonlinearity."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foretrain.cli.frame import Command, command_answer
from foretrain.cli.networks import Settings, activation_of
from foretrain.support.answers import Answer, Table
from foretrain.support.errors import InputError, NotSupportedError

if TYPE_CHECKING:
    import xarray
    from matplotlib.figure import Figure

    from foretrain.activations import Activation

_TAYLOR_ORDER = 5
_DRAWN_RANGE = 5.0
_DRAWN_POINTS = 1001
_DRAWN_ORDERS = 2
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

    if name is None:
        if settings or variances:
            raise InputError("--set and --variance are about one activation: name it.")
        names = list(catalogue())
        return command_answer({"activations": names}, [Table(("name",), [(known,) for known in names])])
    act = activation_of(name, settings)
    moments = _moments(act, _checked(variances or [0.5, 1.0, 2.0]))
    curves = _curves(act)
    return command_answer(
        {**_facts(act), "moments": moments},
        [repr(act), Table(_MOMENT_COLUMNS, [tuple(row.values()) for row in moments])],
        data=curves,
        figure=lambda: _draw(act, curves),
    )


def _checked(variances: list[float]) -> list[float]:
    for K in variances:
        if not 0 <= K < math.inf:
            raise InputError(f"--variance is {K:g}: give zero or a positive number.")
    return variances


def _facts(act: Activation) -> dict[str, Any]:
    return {
        "name": act.name,
        "formula": act.formula,
        "parameters": act.parameters,
        "parity": act.parity,
        "degree": act.degree,
        "slopes": act.slopes,
        "kinks": [{"location": kink.location, "jumps": kink.jumps} for kink in act.kinks],
        "closed_form": act.closed_form,
        "max_order": act.max_order,
        "taylor": _taylor(act),
        "notes": act.notes,
    }


def _taylor(act: Activation) -> list[float] | None:
    """Derivatives at 0, or None where the function has no Taylor series there."""
    try:
        return [float(value) for value in act.taylor(min(_TAYLOR_ORDER, act.max_order))]
    except NotSupportedError:
        return None


def _moments(act: Activation, variances: Sequence[float]) -> list[dict[str, float]]:
    from foretrain.gaussian import moments

    table = moments(act, list(variances)).value
    return [
        {"variance": K, **{str(row.moment.item()): float(row) for row in table.sel(K=K)}} for K in variances
    ]


def _curves(act: Activation) -> xarray.Dataset:
    import numpy as np
    import xarray

    z = np.linspace(-_DRAWN_RANGE, _DRAWN_RANGE, _DRAWN_POINTS)
    orders = range(min(_DRAWN_ORDERS, act.max_order) + 1)
    values = np.stack([act.derivative(z, order) for order in orders])
    return xarray.Dataset(
        {"derivative": (("order", "z"), values)},
        coords={"order": list(orders), "z": z},
        attrs={"activation": act.label, "formula": act.formula},
    )


def _draw(act: Activation, curves: xarray.Dataset) -> Figure:
    from foretrain.support.drawing import PALETTE, new_figure

    figure, (panel,) = new_figure(act.label, 1, 1, (6.0, 4.0))
    for order, label in zip(curves["order"].values, ("σ", "σ′", "σ″")):
        panel.plot(curves["z"], curves["derivative"].sel(order=order), color=PALETTE[int(order)], label=label)
    for kink in act.kinks:
        panel.axvline(kink.location, color="gray", linewidth=0.8, linestyle=":")
    panel.set_xlabel("z")
    panel.legend(frameon=False)
    return figure


COMMAND = Command(
    activation,
    examples=(
        "foretrain activation",
        "foretrain activation leaky_relu --set slope=0.2 --plot leaky.png",
        "foretrain activation act.py:mine --variance 1 --variance 10 --json",
    ),
    saves=True,
    draws=True,
)
