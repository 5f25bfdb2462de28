"""``foretrain critical``: the critical initialisation of an activation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from foretrain.cli.frame import Command, command_answer
from foretrain.cli.networks import (
    ActivationName,
    Settings,
    SkipConnection,
    Width,
    activation_of,
    widths_of,
)
from foretrain.support.answers import Answer, Table
from foretrain.support.errors import InputError

if TYPE_CHECKING:
    import xarray

    from foretrain.theory.architecture import MLP
    from foretrain.theory.criticality import Criticality, CriticalPoint

Range = tuple[float, float]
Widths = int | list[int]


def critical(
    name: ActivationName,
    settings: Settings = None,
    gamma: SkipConnection = 0.0,
    depth: Annotated[
        int | None, typer.Option("--depth", help="Also show the layers of a network of this depth.")
    ] = None,
    width: Width = "128",
    tuned: Annotated[bool, typer.Option("--tuned", help="Add the correction of order 1/width.")] = False,
    c_b_range: Annotated[
        Range | None, typer.Option("--c-b-range", metavar="LOW HIGH", help="Bias variances of the picture.")
    ] = None,
    c_w_range: Annotated[
        Range | None, typer.Option("--c-w-range", metavar="LOW HIGH", help="Weight variances of the picture.")
    ] = None,
    points: Annotated[int, typer.Option("--points", help="Points of the picture along each axis.")] = 121,
) -> Answer:
    """Find C_b and C_W at which signals neither explode nor vanish with depth, and the laws that then hold.

    The picture and the saved data are the phase diagram over (C_b, C_W), which discontinuous functions have not. The
    exit code is 1 if there is no critical initialisation.
    """
    from foretrain.theory.criticality import criticality

    found = criticality(activation_of(name, settings), gamma)
    widths = widths_of(width)
    network = _network(found, depth, widths, tuned)
    diagram = _diagram(found, c_b_range, c_w_range, points) if found.activation.is_continuous else None
    return command_answer(
        _document(found, network),
        _text(found, network, depth, widths, tuned),
        data=diagram,
        figure=None if diagram is None else lambda: _draw(diagram),
        holds=found.exists,
    )


def _network(found: Criticality, depth: int | None, width: Widths, tuned: bool) -> MLP | None:
    if depth is None:
        if tuned:
            raise InputError("--tuned is about the layers of a network: add --depth.")
        return None
    if not found.exists:
        return None
    from foretrain.theory.architecture import MLP

    return MLP.critical(found.activation, depth, width, gamma=found.gamma or None, tuned=tuned)


def _diagram(
    found: Criticality, c_b_range: Range | None, c_w_range: Range | None, points: int
) -> xarray.Dataset:
    """The phase diagram, by default around the critical point."""
    from foretrain.theory.criticality.phase_diagram import phase_diagram

    C_b, C_W = (found.C_b or 0.0, found.C_W or 1.0)
    return phase_diagram(
        found.activation,
        C_b=c_b_range or (0.0, max(0.5, 3 * C_b)),
        C_W=c_w_range or (0.0, 3 * C_W),
        points=points,
        gamma=found.gamma,
    )


def _draw(diagram: xarray.Dataset) -> Any:
    from foretrain.report.phases import phase_figure

    return phase_figure(diagram)


def _document(found: Criticality, network: MLP | None) -> dict[str, Any]:
    return {
        "activation": found.activation.label,
        "gamma": found.gamma,
        "exists": found.exists,
        "universality_class": found.universality_class,
        "reason": found.reason,
        "point": _facts(found.point) if found.point else None,
        "others": [_facts(point) for point in found.others],
        "layers": None if network is None else [layer._asdict() for layer in network.layers],
    }


def _facts(point: CriticalPoint) -> dict[str, Any]:
    return {
        "K_star": point.K_star,
        "C_b": point.C_b,
        "C_W": point.C_W,
        "class": point.kind,
        "stability": point.stability,
        "coefficients": point.coefficients,
        "exponents": point.exponents,
        "corrections": point.corrections,
    }


def _text(
    found: Criticality, network: MLP | None, depth: int | None, width: Widths, tuned: bool
) -> list[str | Table]:
    heading = f"Critical initialisation of {found.activation.label}"
    heading += f" with skip connection gamma = {found.gamma:g}" if found.gamma else ""
    if found.point is None:
        return [f"{heading}: none, since {found.reason}.", *_other_points(found)]
    parts: list[str | Table] = [heading, Table(("quantity", "value", "meaning"), _rows(found.point))]
    parts += _other_points(found)
    parts.append(f"In Python:\n  {_call(found, depth, width, tuned)}")
    return parts if network is None else [*parts, repr(network)]


def _rows(point: CriticalPoint) -> list[tuple[str, str, str]]:
    K_star = "any" if point.K_star is None else f"{point.K_star:.10g}"
    rows = [
        ("C_b", f"{point.C_b:.10g}", "variance of biases"),
        ("C_W", f"{point.C_W:.10g}", "variance of weights times fan-in"),
        ("K*", K_star, f"fixed point of the kernel, {point.stability}"),
        ("class", point.kind, "universality class"),
    ]
    rows += [(key, f"{value:.6g}", _EXPONENTS[key]) for key, value in point.exponents.items()]
    rows += [(key, f"{value:.6g}", _coefficient_meaning(key)) for key, value in point.coefficients.items()]
    rows += [(key, f"{value:.6g}", _CORRECTIONS[key]) for key, value in point.corrections.items()]
    return rows


_EXPONENTS = {
    "p_0": "K - K* falls as depth^-p_0",
    "p_parallel": "difference of the norms of nearby inputs ~ depth^-p_parallel",
    "p_perpendicular": "squared distance of nearby inputs ~ depth^-p_perpendicular",
    "p_V": "four-point vertex ~ depth^-p_V",
    "p_1": "next-to-leading metric ~ depth^-p_1",
    "p_1_tuned": "the same with the corrections below",
}
_CORRECTIONS = {"C_b_1": "add C_b_1 / n to C_b at fan-in n", "C_W_1": "add C_W_1 / n to C_W at fan-in n"}
_COEFFICIENTS = {
    "A_2": "mean square of the two slopes",
    "A_4": "mean fourth power of the two slopes",
    "rho": "closing of angles: psi' = psi - rho psi^2 / 3",
    "nu": "four-point vertex: V / K^2 grows by nu per layer",
    "h": "chi_perp = 1 + 2 h (K - K*)",
    "source": "what a layer adds to the four-point vertex at K*",
}


def _coefficient_meaning(key: str) -> str:
    if key in _COEFFICIENTS:
        return _COEFFICIENTS[key]
    letter, order = key.split("_")
    if letter == "b":
        return f"chi_perp = 1 + ... + {key} K^{order}"
    return f"step of the kernel, coefficient of (K - K*)^(1+{order})"


def _other_points(found: Criticality) -> list[str | Table]:
    if not found.others:
        return []
    rows = [(p.K_star, p.C_b, p.C_W, p.stability) for p in found.others]
    return [
        "Other points where both susceptibilities are one:",
        Table(("K*", "C_b", "C_W", "stability"), rows),
    ]


def _call(found: Criticality, depth: int | None, width: Widths, tuned: bool) -> str:
    """The line of Python that builds a network like this."""
    named = found.activation.method != "numerical" and not found.activation.strip_is_measured
    activation = repr(found.activation.label) if named else found.activation.name
    layers = depth or (10 if isinstance(width, int) else len(width) + 1)
    options = [activation, f"depth={layers}", f"width={width}"]
    options += [f"gamma={found.gamma:g}"] if found.gamma else []
    options += ["tuned=True"] if tuned else []
    return f"ft.MLP.critical({', '.join(options)})"


COMMAND = Command(
    critical,
    examples=(
        "foretrain critical gelu",
        "foretrain critical tanh --gamma 0.6 --depth 12 --width 256 --tuned",
        "foretrain critical act.py:mine --plot phases.png --c-b-range 0 1 --c-w-range 0 4",
    ),
    saves=True,
    draws=True,
    aliases={"c_b": "--c-b-range", "c_w": "--c-w-range"},
)
