"""What is known of the critical initialisations of one activation."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from foretrain.activations import Activation
from foretrain.support.answers import INK, RED, Answer, Axis, Code, Figure, Panel, Part, Result, Table
from foretrain.support.errors import InputError, NotSupportedError

if TYPE_CHECKING:
    import xarray

    from foretrain.theory.architecture import MLP


UniversalityClass = Literal["scale-invariant", "K*=0", "half-stable", "none"]


@dataclass(frozen=True, repr=False)
class CriticalPoint(Result):
    """A critical (C_b, C_W) with its fixed point, and how the kernel moves near it.

    ``coefficients`` act in the recursion of the network at hand, skip connection included: a_p and b_p around
    K* = 0 (5.83), (5.85); a_1, h and source at K* > 0 (5.102); A_2, A_4 and rho of the scale-invariant class
    (5.60), (5.163). nu is the growth of V / K^2 per layer, (B.29) and (B.35) with a skip connection.
    """

    K_star: float | None  # None: every kernel value is a fixed point
    C_b: float
    C_W: float
    kind: UniversalityClass
    stability: str  # "marginal", "stable", "unstable", "attracts from below", "attracts from above"
    coefficients: dict[str, float] = field(default_factory=dict)
    exponents: dict[str, float] = field(default_factory=dict)
    corrections: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, repr=False)
class Criticality(Result):
    """What is known of the critical initialisation of one activation, with skip connections gamma or without."""

    activation: Activation
    point: CriticalPoint | None
    others: tuple[CriticalPoint, ...]
    reason: str
    gamma: float = 0.0

    @property
    def exists(self) -> bool:
        """Whether a critical point with C_b >= 0 that attracts (at least from one side) was found."""
        return self.point is not None

    @property
    def C_b(self) -> float | None:
        """Bias variance at criticality."""
        return self.point.C_b if self.point else None

    @property
    def C_W(self) -> float | None:
        """Weight variance (times fan-in) at criticality."""
        return self.point.C_W if self.point else None

    @property
    def K_star(self) -> float | None:
        """The fixed point; None where every value is one, or where there is no criticality."""
        return self.point.K_star if self.point else None

    @property
    def universality_class(self) -> UniversalityClass:
        """``scale-invariant``, ``K*=0``, ``half-stable`` or ``none``."""
        return self.point.kind if self.point else "none"

    @property
    def exponents(self) -> dict[str, float]:
        """Exponents p of quantities ~ depth^(-p) at criticality (section 5.3, table of classes).

        p_0 of K - K*, p_parallel and p_perpendicular of the distances of nearby inputs, p_V of the vertex, p_1 of
        the next-to-leading metric and p_1_tuned of the same with ``corrections``.
        """
        return self.point.exponents if self.point else {}

    @property
    def corrections(self) -> dict[str, float]:
        """C_b_1 and C_W_1 of C_b + C_b_1 / n and C_W + C_W_1 / n, which slow the drift of the mean metric (5.142).

        Empty where none is known: the class half-stable, whose drift a_1 S (l - 1)(l - 2) / 2 from K* is too small
        to matter at common depths.
        """
        return self.point.corrections if self.point else {}

    def tuned(self, n: int) -> tuple[float, float]:
        """(C_b, C_W) of a layer with fan-in n, corrections of order 1/n included (5.138), (5.142)."""
        if n < 1:
            raise InputError(f"n is {n}: give the fan-in of the layer, a positive whole number.")
        if self.point is None or not self.point.corrections:
            raise NotSupportedError(
                f"corrections of order 1/n are not known for {self.activation.label} "
                f"(class {self.universality_class}, gamma = {self.gamma:g}): use C_b and C_W themselves."
            )
        return (
            self.point.C_b + self.point.corrections["C_b_1"] / n,
            self.point.C_W + self.point.corrections["C_W_1"] / n,
        )

    def phase_diagram(
        self,
        C_b: tuple[float, float] | None = None,
        C_W: tuple[float, float] | None = None,
        points: int = 121,
    ) -> xarray.Dataset:
        """The plane of C_b and C_W, by default around the critical point, see :func:`phase_diagram.phase_diagram`."""
        from foretrain.theory.criticality.phase_diagram import phase_diagram

        C_b = C_b or (0.0, max(0.5, 3 * (self.C_b or 0.0)))
        C_W = C_W or (0.0, 3 * (self.C_W or 1.0))
        return phase_diagram(self.activation, C_b, C_W, points, self.gamma)

    def answer(self) -> Answer:
        """The critical point, what its numbers mean, the other points and the phase diagram."""
        return self.presented()

    def presented(
        self, code: str = "", network: MLP | None = None, diagram: xarray.Dataset | None = None
    ) -> Answer:
        """The answer with code that makes such a network, its layers, and a phase diagram in place of the usual."""
        skip = f" with skip connection gamma = {self.gamma:g}" if self.gamma else ""
        statement = f"Critical initialisation of {self.activation.label}{skip}: "
        parts: list[Part] = []
        if self.point is None:
            statement += f"none, since {self.reason}."
        else:
            where = "any K" if self.K_star is None else f"K* = {self.K_star:.6g}"
            statement += f"C_b = {self.C_b:.6g}, C_W = {self.C_W:.6g}, {where}, class {self.point.kind}."
            parts.append(Table(("quantity", "value", "meaning"), _rows(self.point)))
        if self.others:
            rows = [(p.K_star, p.C_b, p.C_W, p.stability) for p in self.others]
            caption = "Other points where both susceptibilities are one:"
            parts.append(Table(("K*", "C_b", "C_W", "stability"), rows, caption))
        parts += [Code(code, "In Python:")] if code else []
        parts += [network.answer()] if network else []
        if not self.activation.is_continuous:
            return Answer(statement, parts, record=self._record(network), holds=self.exists)
        plane = cache(lambda: self.phase_diagram() if diagram is None else diagram)
        return Answer(
            statement,
            [*parts, lambda: phase_figure(plane())],
            data=plane,
            record=self._record(network),
            holds=self.exists,
        )

    def _record(self, network: MLP | None) -> dict[str, Any]:
        return {
            "activation": self.activation.label,
            "gamma": self.gamma,
            "exists": self.exists,
            "universality_class": self.universality_class,
            "reason": self.reason,
            "point": _facts(self.point) if self.point else None,
            "others": [_facts(point) for point in self.others],
            "layers": None if network is None else [layer._asdict() for layer in network.layers],
        }


def _facts(point: CriticalPoint) -> dict[str, Any]:
    return {"class" if name == "kind" else name: value for name, value in asdict(point).items()}


_MEANINGS = {
    "p_0": "K - K* falls as depth^-p_0",
    "p_parallel": "difference of the norms of nearby inputs ~ depth^-p_parallel",
    "p_perpendicular": "squared distance of nearby inputs ~ depth^-p_perpendicular",
    "p_V": "four-point vertex ~ depth^-p_V",
    "p_1": "next-to-leading metric ~ depth^-p_1",
    "p_1_tuned": "the same with the corrections below",
    "A_2": "mean square of the two slopes",
    "A_4": "mean fourth power of the two slopes",
    "rho": "closing of angles: psi' = psi - rho psi^2 / 3",
    "nu": "four-point vertex: V / K^2 grows by nu per layer",
    "h": "chi_perp = 1 + 2 h (K - K*)",
    "source": "what a layer adds to the four-point vertex at K*",
    "C_b_1": "add C_b_1 / n to C_b at fan-in n",
    "C_W_1": "add C_W_1 / n to C_W at fan-in n",
}


def _rows(point: CriticalPoint) -> list[tuple[str, str, str]]:
    K_star = "any" if point.K_star is None else f"{point.K_star:.10g}"
    rows = [
        ("C_b", f"{point.C_b:.10g}", "variance of biases"),
        ("C_W", f"{point.C_W:.10g}", "variance of weights times fan-in"),
        ("K*", K_star, f"fixed point of the kernel, {point.stability}"),
        ("class", point.kind, "universality class"),
    ]
    numbers = point.exponents | point.coefficients | point.corrections
    return rows + [(key, f"{value:.6g}", _meaning(key)) for key, value in numbers.items()]


def _meaning(key: str) -> str:
    if key in _MEANINGS:
        return _MEANINGS[key]
    letter, order = key.split("_")
    if letter == "b":
        return f"chi_perp = 1 + ... + {key} K^{order}"
    return f"step of the kernel, coefficient of (K - K*)^(1+{order})"


_DEPTHS = (1.0, 3.0, 10.0, 30.0, 100.0)
_CONTOURS = (3.0, 10.0, 30.0)


def phase_figure(diagram: xarray.Dataset) -> Figure:
    """Draw what :func:`foretrain.theory.criticality.phase_diagram.phase_diagram` returns.

    Blue: nearby inputs merge; orange: they part; the darker, the fewer layers it takes. Grey: the kernel grows
    without bound. White is the edge, with the critical point on it.
    """
    from foretrain.theory.criticality.phase_diagram import PHASES

    name, gamma = diagram.attrs["activation"], diagram.attrs["gamma"]
    C_W, C_b, chi = (diagram[key].values for key in ("C_W", "C_b", "chi_perpendicular"))
    bottom, top = float(C_b[0]), float(C_b[-1])
    title = f"Phases of {name}" + (f", skip connection γ = {gamma:g}" if gamma else "")
    figure = Figure(title, size=(7.2, 5.0), legend="below")
    panel = figure.panel(
        x=Axis("weight variance  $C_W$", low=float(C_W[0]), high=float(C_W[-1])),
        y=Axis("bias variance  $C_b$", low=bottom - 0.03 * (top - bottom), high=top),
    )
    # The colour follows the square root of 1/depth, so that the region next to the edge shows its structure.
    shade = np.sign(chi - 1) / np.sqrt(np.maximum(diagram["depth_perpendicular"].values, 1.0))
    for column in range(1, len(C_W)):  # what grows without bound is covered up to its exact edge
        shade[:, column] = np.where(np.isnan(shade[:, column]), shade[:, column - 1], shade[:, column])
    ticks = {sign * d**-0.5: f"{d:g}" for sign in (-1, 1) for d in _DEPTHS} | {0.0: "∞"}
    label = "nearby inputs merge  ←  layers per factor e  →  part"
    panel.heat_map(shade, C_W, C_b, label, diverging=True, low=-1, high=1, smooth=True, ticks=ticks)
    phases = diagram["phase"].values
    for phase, hatched in (("exploding", False), ("cycling", True)):
        if (phases == phase).any():
            low = np.clip(diagram["explosion_C_b"].values, bottom, top)
            panel.region(C_W, low, 1.01 * top + 0 * low, PHASES[phase], "#dddddd", alpha=1.0, hatched=hatched)
    known = np.isfinite(diagram["K"].values) & (chi > 0)
    rate = np.where(known, np.log(np.where(known, chi, 1.0)), np.nan)
    levels = sorted(sign / d for sign in (-1, 1) for d in _CONTOURS)
    drawn = [level for level in levels if np.nanmin(rate) < level < np.nanmax(rate)]
    panel.contours(C_W, C_b, rate, drawn, [f"{abs(1 / level):.0f}" for level in drawn], "#555555", width=0.6)
    _edges(panel, diagram)
    return figure


def _edges(panel: Panel, diagram: xarray.Dataset) -> None:
    """The lines on which susceptibilities are one, and the critical points."""
    if "scale-invariant" in diagram["critical_kind"].values:
        # Both lines are one: a weight variance, whatever the bias variance.
        label = r"$\chi_\perp = \chi_\parallel = 1$"
        panel.level(x=float(diagram["critical_C_W"][0]), label=label, color=INK, width=1.6)
    else:
        for line, style, label in (
            ("perpendicular", "-", r"$\chi_\perp = 1$"),
            ("parallel", "--", r"$\chi_\parallel = 1$"),
        ):
            C_W, C_b = (diagram[key].sel(line=line).values for key in ("line_C_W", "line_C_b"))
            panel.curve(C_W, C_b, style, label, INK)
    points = (diagram[f"critical_{key}"].values for key in ("C_W", "C_b", "stability"))
    for C_W, C_b, stability in zip(*points, strict=True):
        if stability == "unstable":
            panel.curve([C_W], [C_b], "o", "critical point, unstable", RED, size=7, hollow=True)
        else:
            panel.curve([C_W], [C_b], "*", "critical point", RED, size=13)
