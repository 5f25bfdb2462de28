"""The critical points of an activation: the search for them, and what is known of them.

The search for critical points (section 5.3.1): a condition on K alone, then C_W and C_b (5.71)-(5.73).

Around K = 0 of activations that vanish at 0, with a Taylor series there or one for each side, it is an expansion.
With C_W = 1 / A_2: C_W g = K (1 + sum a_p K^p), chi_perp = 1 + sum b_p K^p (5.83)-(5.85). Without a kink at 0 only
whole p occur; where a derivative jumps also p = 1/2, 3/2, ...
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from functools import cache, lru_cache
from itertools import pairwise
from numbers import Real
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import brentq

from foretrain.activations import Activation
from foretrain.activations import activation as find_activation
from foretrain.support.answers import INK, RED, Answer, Axis, Code, Figure, Panel, Part, Result, Table
from foretrain.support.arguments import Array
from foretrain.support.errors import InputError, NotSupportedError
from foretrain.theory.kernel_functions import KernelFunctions, coarse_means, is_measured

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


# Derivatives of a user's function are known to about ten digits: what is smaller counts as zero.
_NEGLIGIBLE = 1e-9


@dataclass(frozen=True)
class Sides:
    """Derivatives at 0, of order 0, 1, ..., from the left and from the right."""

    left: Array
    right: Array

    @property
    def slope_square(self) -> float:
        """A_2, the mean of s'(0)^2 over both sides (5.60)."""
        return float(self.left[1] ** 2 + self.right[1] ** 2) / 2

    @property
    def vertex_source(self) -> float:
        """3 A_4 / A_2^2 - 1: what a layer adds to V / K^2 as K -> 0 (5.116); 2 without a kink."""
        fourth = float(self.left[1] ** 4 + self.right[1] ** 4) / 2
        return 3 * fourth / self.slope_square**2 - 1

    @property
    def scale(self) -> float:
        """A variance within which the series is dominated by its first term, the unit of K here."""
        orders = np.arange(2, len(self.right))
        sizes = np.maximum(np.abs(self.left[2:]), np.abs(self.right[2:])) / math.sqrt(self.slope_square)
        factorials = np.array([math.factorial(int(p)) for p in orders], dtype=float)
        steepest = float(np.max((sizes / factorials) ** (1 / (orders - 1)), initial=0.0))
        return 1 / steepest**2 if steepest else math.inf


def sides(act: Activation) -> Sides | None:
    """Both one-sided series as far as derivatives are offered; None where they are not known."""
    try:
        kink = next((kink for kink in act.kinks if kink.location == 0), None)
        if kink is None:
            taylor = np.asarray(act.taylor(act.max_order), dtype=np.float64)
            return Sides(taylor, taylor)
        right = np.array([float(act.derivative(0.0, p)) for p in range(act.max_order + 1)])
        jumps = np.array([kink.jump(p) for p in range(act.max_order + 1)])
    except NotSupportedError:
        return None
    return Sides(right - jumps, right)


@dataclass(frozen=True)
class SmallKernel:
    """The coefficients a_p and b_p by their order p, and the first p with a_p != 0 (infinite: none is known)."""

    square: dict[float, float]
    slope_square: dict[float, float]
    order: float

    @property
    def leading(self) -> float:
        """The coefficient that decides how K moves near 0."""
        return self.square.get(self.order, 0.0)

    @property
    def perpendicular(self) -> float:
        """p_perp: chi_perp = 1 - p_perp / depth along K ~ (p (-a_p) depth)^(-1/p); infinite if not a power."""
        if math.isinf(self.order):
            return 0.0
        earlier = [b for p, b in self.slope_square.items() if p < self.order and b]
        if earlier:
            return math.copysign(math.inf, -earlier[0])
        return self.slope_square[self.order] / (self.order * self.leading)

    @property
    def next_order(self) -> float:
        """Relative corrections to the leading laws are of order K to this power: the next a_p, or K^p ~ 1/depth."""
        later = [p - self.order for p, a in self.square.items() if p > self.order and a]
        return min([self.order, *later])

    def named(self, factor: float) -> dict[str, float]:
        """a_p and b_p up to the leading ones (and a_2, the next one of (5.83)), as they act in the recursion."""
        last = self.order if 0.5 in self.square else max(self.order, 2.0)
        names = {f"a_{Fraction(p)}": factor * a for p, a in self.square.items() if p <= last}
        if math.isinf(self.order):
            return names
        return names | {
            f"b_{Fraction(p)}": factor * b for p, b in self.slope_square.items() if p <= self.order
        }


def expand(found: Sides) -> SmallKernel:
    """Coefficients of the expansions in K, zeros where only rounding is left."""
    step = 1 if np.array_equal(found.left, found.right) else Fraction(1, 2)
    top = Fraction(len(found.right) - 2, 2)
    orders = [step * i for i in range(1, int(top / step) + 1)]
    slopes = Sides(found.left[1:], found.right[1:])
    square, slope_square = {}, {}
    for p in orders:
        negligible = _NEGLIGIBLE * _absolute_moment(int(2 * p) + 2) / found.scale ** float(p)
        a = _coefficient(found, int(2 * p) + 2) / found.slope_square
        b = _coefficient(slopes, int(2 * p)) / found.slope_square
        square[float(p)] = a if abs(a) > negligible else 0.0
        slope_square[float(p)] = b if abs(b) > negligible else 0.0
    order = next((p for p, a in square.items() if a), math.inf)
    return SmallKernel(square, slope_square, order)


def _coefficient(series: Sides, power: int) -> float:
    """Coefficient of K^(power/2) in the mean square of a function given by its one-sided series."""
    total = 0.0
    for p in range(max(0, power - len(series.right) + 1), min(power, len(series.right) - 1) + 1):
        q = power - p
        both = series.right[p] * series.right[q] + (-1) ** power * series.left[p] * series.left[q]
        total += both / 2 / math.factorial(p) / math.factorial(q)
    return float(total) * _absolute_moment(power)


def _absolute_moment(power: int) -> float:
    """E|z|^power at variance 1."""
    if power % 2 == 0:
        return float(math.prod(range(1, power, 2)))
    return math.sqrt(2 / math.pi) * 2.0 ** (power // 2) * math.factorial(power // 2)


def taylor_coefficients(s: Array) -> dict[str, float]:
    """a_1, a_2, b_1 of the expansions around K = 0 (5.86)-(5.88), from s_p = sigma^(p)(0), p = 0..5."""
    r = s / s[1]
    return {
        "a_1": float(r[3] + 0.75 * r[2] ** 2),
        "a_2": float(0.25 * r[5] + 0.625 * r[4] * r[2] + 5 / 12 * r[3] ** 2),
        "b_1": float(r[3] + r[2] ** 2),
    }


_COARSELY_EQUAL = 1e-6
_SCANNED = np.geomspace(1e-8, 1e3, 177)
_EQUAL = 1e-9


@dataclass(frozen=True, repr=False)
class Susceptibility(Result):
    """Growth factors of perturbations from one layer to the next."""

    parallel: Any
    perpendicular: Any


def susceptibility(activation: Any, K: ArrayLike, C_W: ArrayLike = 1.0, gamma: Any = 0.0) -> Susceptibility:
    """chi_parallel = gamma^2 + C_W g'(K) and chi_perp = gamma^2 + C_W <s'^2> (5.50), (5.51), (B.15), (B.16).

    Examples
    --------
    >>> susceptibility("relu", K=1.0, C_W=2.0).perpendicular
    1.0
    """
    try:
        variance, weight = np.asarray(K, dtype=float), np.asarray(C_W, dtype=float)
    except (TypeError, ValueError) as error:
        raise InputError("K and C_W must be real numbers or arrays of them.") from error
    for name, value in (("K", variance), ("C_W", weight)):
        if not (np.isfinite(value).all() and (value >= 0).all()):
            raise InputError(f"`{name}` must be finite and not negative: it is a variance.")
    if not isinstance(gamma, Real) or not math.isfinite(gamma):
        raise InputError(f"`gamma` is {gamma!r}: give one finite number.")
    skip, values = float(gamma) ** 2, KernelFunctions(activation).at(variance)
    both = (skip + weight * values.square_slope, skip + weight * values.slope_square)
    return Susceptibility(*(float(c) if np.ndim(c) == 0 else c for c in both))


def weight_share(gamma: float) -> float:
    """1 - gamma^2, the share of the variance that a residual layer takes from its weights at criticality (B.20)."""
    share = 1 - float(gamma) ** 2
    if not share > 0:
        raise InputError(
            f"`gamma` is {gamma:g}: with gamma^2 >= 1 the skip connection alone keeps or enlarges every signal, so "
            "that no C_W > 0 is critical; give -1 < gamma < 1."
        )
    return share


def criticality(activation: Any, gamma: float = 0.0) -> Criticality:
    """Find the critical (C_b, C_W, K*) of an activation, or show that there is none (section 5.3.1).

    Returned is the scale-invariant point if every K is critical, else the stable one at K* = 0, else a half-stable
    one at K* > 0; unstable roots are listed in ``others``. ``gamma`` is the skip connection of a residual network:
    C_b and C_W are 1 - gamma^2 times those of the plain one, K* and the exponents are the same (B.20), (B.21).

    Examples
    --------
    >>> found = criticality("tanh")
    >>> found.universality_class, found.C_b, found.C_W, found.exponents["p_V"]
    ('K*=0', 0.0, 1.0, 1.0)
    """
    act, share = find_activation(activation), weight_share(gamma)
    if act.slopes is not None and any(act.slopes):
        return Criticality(act, _scale_invariant(act.slopes, share), (), "", float(gamma))
    functions = KernelFunctions(act)
    at_zero = _at_zero(functions, share)
    roots = [at_zero] if at_zero else []
    roots += [_half_stable(functions, K, share) for K in _equal_susceptibilities(act)]
    allowed = [p for p in roots if p.C_b >= -1e-12]
    chosen = [p for p in allowed if p.kind == "K*=0" and p.stability == "stable"]
    chosen += [p for p in allowed if p.kind == "half-stable"]
    point = chosen[0] if chosen else None
    others = tuple(p for p in allowed if p is not point)
    reason = "" if point else _reason(act, roots, allowed)
    return Criticality(act, point, others, reason, float(gamma))


def _reason(act: Activation, roots: list[CriticalPoint], allowed: list[CriticalPoint]) -> str:
    if allowed:
        return "the only critical points repel on both sides"
    if roots:
        root = roots[0]
        return (
            f"the susceptibilities agree only at K = {root.K_star:.4g}, which needs C_b = {root.C_b:.4g} < 0"
        )
    if not act.is_continuous:
        return "it jumps, so that nearby inputs part at every C_W > 0"
    kernels, excess = _excess_over_scan(act)
    if not len(kernels):
        return "it is too steep to be searched for kernel values at which the two susceptibilities agree"
    if np.isnan(excess).all():
        return "its slope is zero everywhere, so that no signal passes"
    return f"the two susceptibilities agree at no kernel value (searched from {kernels[0]:.1g} to {kernels[-1]:.3g})"


def _vertex_growth(source: float, share: float) -> float:
    """What a layer adds to V / K^2 where chi_parallel = 1, from that of a plain layer (B.26)."""
    return share * (share * source + 4 * (1 - share))


def _scale_invariant(slopes: tuple[float, float], share: float) -> CriticalPoint:
    """Every K is a fixed point (5.66); corrections vanish with G1, if s is even or there is no skip."""
    minus, plus = slopes
    A_2, A_4 = (minus**2 + plus**2) / 2, (minus**4 + plus**4) / 2
    angle = share * (plus - minus) ** 2 / (plus**2 + minus**2) / math.pi
    growth = _vertex_growth(3 * A_4 / A_2**2 - 1, share)
    known = share == 1 or abs(minus) == abs(plus)
    return CriticalPoint(
        None,
        0.0,
        share / A_2,
        "scale-invariant",
        "marginal",
        {"A_2": A_2, "A_4": A_4, "rho": angle, "nu": growth},
        {"p_0": 0.0, "p_parallel": 0.0, "p_perpendicular": 0.0, "p_V": -1.0},
        {"C_b_1": 0.0, "C_W_1": 0.0} if known else {},
    )


def _at_zero(functions: KernelFunctions, share: float) -> CriticalPoint | None:
    """The limit K -> 0, where g'/<s'^2> -> (s_1^2 + s_0 s_2) / s_1^2 (5.73)."""
    found = sides(functions.activation)
    if found is None or not found.slope_square or found.left[0] != found.right[0]:
        return None
    C_W = share / found.slope_square
    if found.right[0]:
        smooth = np.array_equal(found.left, found.right)
        if not smooth or abs(found.right[0] * found.right[2]) > _EQUAL * found.slope_square:
            return None
        return CriticalPoint(0.0, -C_W * float(found.right[0]) ** 2, C_W, "K*=0", "needs a negative C_b")
    small = expand(found)
    decisive = small.leading
    if not decisive:  # linear around 0: C_W g / K - 1 at the smallest kernel where it shows
        kernels = _SCANNED[_SCANNED <= 1]
        excess = 1 / found.slope_square * functions.at(kernels).square / kernels - 1
        decisive = float(next(iter(excess[np.abs(excess) > _EQUAL]), 0.0))
    # Where s^2 is even near 0, odd moments of a neuron, which a skip connection makes, do not count.
    even = abs(found.left[1]) == abs(found.right[1])
    corrections = {}
    growth = _vertex_growth(found.vertex_source, share)
    if (even or share == 1) and math.isfinite(small.order):
        # The C_W_1 whose C_W_1 g cancels C_W g'' V / 2 = -(1 + p) growth K / 6 at large depth (5.141), (5.142).
        corrections = {"C_b_1": 0.0, "C_W_1": (1 + small.order) * growth / 6 / found.slope_square}
    # K ~ (p (-a_p) depth)^(-1/p) with p the order of the first a_p != 0; the rest follows from it.
    inverse = 1 / small.order
    exponents = {
        "p_0": inverse,
        "p_parallel": 1 + inverse,
        "p_perpendicular": small.perpendicular,
        "p_V": 2 * inverse - 1,
        "p_1": inverse - 1,
    }
    if math.isfinite(small.order):
        exponents["p_1_tuned"] = (1 + small.next_order) * inverse - 1
    return CriticalPoint(
        0.0,
        0.0,
        C_W,
        "K*=0",
        "stable" if decisive < 0 else "unstable",
        small.named(share) | {"nu": growth / 3},
        exponents,
        corrections,
    )


@lru_cache(maxsize=64)
def _equal_susceptibilities(act: Activation) -> tuple[float, ...]:
    """Sign changes of chi_parallel / chi_perp - 1 over eleven decades of K (5.73), remembered."""
    functions = KernelFunctions(act)

    def excess(log_K: float) -> float:
        return float(functions.ratio(np.exp(log_K))[0] - 1)

    kernels, curve = _excess_over_scan(act)
    # Where the ratio only tends to one the difference drowns in rounding: that is no root.
    clear = np.flatnonzero(np.abs(curve) > (_COARSELY_EQUAL if is_measured(act) else _EQUAL))
    brackets = [(i, j) for i, j in pairwise(clear) if curve[i] * curve[j] < 0 and j - i <= 2]
    return tuple(
        float(np.exp(brentq(excess, np.log(kernels[i]), np.log(kernels[j]), xtol=1e-14, rtol=1e-14)))
        for i, j in brackets
    )


@lru_cache(maxsize=64)
def _excess_over_scan(act: Activation) -> tuple[Array, Array]:
    """Kernels and chi_parallel / chi_perp - 1 there; for a user's function as far as it is resolved."""
    if not is_measured(act):
        return _SCANNED, KernelFunctions(act, tolerance=1e-10).ratio(_SCANNED) - 1
    means = coarse_means(act, _SCANNED)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = means.square_slope / means.slope_square
    return _SCANNED[: len(ratio)], ratio - 1


def _half_stable(functions: KernelFunctions, K: float, share: float) -> CriticalPoint:
    """A critical point at K > 0, with K' - K* = (K - K*) + a_1 (K - K*)^2 around it (5.102)."""
    values = functions.at(K)
    plain = float(1 / values.slope_square)
    bend = 0.5 * share * plain * float(values.square_bend)
    h = 0.5 * share * plain * float(values.slope_square_slope)
    growth = _vertex_growth(plain**2 * float(values.fourth - values.square**2) / K**2, share)
    return CriticalPoint(
        K,
        share * (K - plain * float(values.square)),
        share * plain,
        "half-stable",
        "attracts from below" if bend > 0 else "attracts from above",
        {"a_1": bend, "h": h, "source": growth * K**2, "nu": growth},
        {
            "p_0": 1.0,
            "p_parallel": 2.0,
            "p_perpendicular": 2 * h / bend if bend else math.inf,
            "p_V": -1.0,
            "p_1": -2.0,
        },
    )
