"""``foretrain critical``: the critical initialisation of an activation."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from foretrain.cli.frame import Command
from foretrain.cli.options import ActivationName, Settings, SkipConnection, Width, activation_of, widths_of
from foretrain.support.answers import Answer
from foretrain.support.errors import InputError

Range = tuple[float, float]


def critical(
    name: ActivationName,
    settings: Settings = None,
    gamma: SkipConnection = 0.0,
    depth: Annotated[int | None, "Also show the layers of a network of this depth."] = None,
    width: Width = "128",
    tuned: Annotated[bool, "Add the correction of order 1/width."] = False,
    c_b_range: Annotated[
        Range | None, typer.Option("--c-b-range", metavar="LOW HIGH", help="Bias variances of the picture.")
    ] = None,
    c_w_range: Annotated[
        Range | None, typer.Option("--c-w-range", metavar="LOW HIGH", help="Weight variances of the picture.")
    ] = None,
    points: Annotated[int, "Points of the picture along each axis."] = 121,
) -> Answer:
    """Find C_b and C_W at which signals neither explode nor vanish with depth, and the laws that then hold.

    The picture and the saved data are the phase diagram over (C_b, C_W), which discontinuous functions have not. The
    exit code is 1 if there is no critical initialisation.
    """
    from foretrain.theory.architecture import MLP
    from foretrain.theory.criticality import criticality

    found = criticality(activation_of(name, settings), gamma)
    widths = widths_of(width)
    if tuned and depth is None:
        raise InputError("--tuned is about the layers of a network: add --depth.")
    options: dict[str, Any] = {"gamma": found.gamma} if found.gamma else {}
    options |= {"tuned": True} if tuned else {}
    network = None
    if depth is not None and found.exists:
        network = MLP.critical(found.activation, depth, widths, **options)
    layers = depth or (10 if isinstance(widths, int) else len(widths) + 1)
    told = "".join(f", {key}={value!r}" for key, value in options.items())
    code = f"ft.MLP.critical({found.activation.code}, depth={layers}, width={widths}{told})"
    diagram = None
    if found.activation.is_continuous:
        diagram = found.phase_diagram(c_b_range, c_w_range, points)
    return found.presented(code if found.exists else "", network, diagram)


COMMAND = Command(
    critical,
    examples=(
        "foretrain critical gelu",
        "foretrain critical tanh --gamma 0.6 --depth 12 --width 256 --tuned",
        "foretrain critical act.py:mine --plot phases.png --c-b-range 0 1 --c-w-range 0 4",
    ),
    aliases={"c_b": "--c-b-range", "c_w": "--c-w-range"},
)
