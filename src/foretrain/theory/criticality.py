"""Criticality of the kernel: susceptibilities, critical points of any activation, universality classes.

A critical initialisation has a fixed point K* = C_b + C_W g(K*) at which both susceptibilities are one,
chi_parallel = C_W g'(K*) = chi_perp = C_W <s'^2> = 1 (5.55), (5.56): signals neither explode nor vanish, and
nearby inputs neither merge nor part, exponentially in depth.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq

from foretrain.activations import Activation, activation
from foretrain.support.errors import NotSupportedError
from foretrain.theory.kernel_functions import KernelFunctions

Array = NDArray[np.float64]
UniversalityClass = Literal["scale-invariant", "K*=0", "half-stable", "none"]

_SCANNED = np.geomspace(1e-6, 1e3, 145)
_EQUAL = 1e-9


@dataclass(frozen=True)
class Susceptibility:
    """Growth factors of perturbations from one layer to the next."""

    parallel: Any
    perpendicular: Any


def susceptibility(spec: Any, K: ArrayLike, C_W: ArrayLike = 1.0, gamma: float = 0.0) -> Susceptibility:
    """chi_parallel = gamma^2 + C_W g'(K) and chi_perp = gamma^2 + C_W <s'^2> (5.50), (5.51), (B.15), (B.16).

    Examples
    --------
    >>> susceptibility("relu", K=1.0, C_W=2.0)
    Susceptibility(parallel=1.0, perpendicular=1.0)
    """
    values = KernelFunctions(spec).at(K)
    weight = np.asarray(C_W, dtype=float)
    both = (gamma**2 + weight * values.square_slope, gamma**2 + weight * values.slope_square)
    return Susceptibility(*(float(c) if np.ndim(c) == 0 else c for c in both))


@dataclass(frozen=True)
class CriticalPoint:
    """A critical (C_b, C_W) with its fixed point, and how the kernel moves near it."""

    K_star: float | None  # None: every kernel value is a fixed point
    C_b: float
    C_W: float
    kind: UniversalityClass
    stability: str  # "marginal", "stable", "unstable", "attracts from below", "attracts from above"
    coefficients: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Criticality:
    """What is known of the critical initialisation of one activation."""

    activation: Activation
    point: CriticalPoint | None
    others: tuple[CriticalPoint, ...]
    reason: str

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
        """Decay exponents p of quantities ~ depth^(-p) at criticality (section 5.3, table of classes)."""
        return _exponents(self.point) if self.point else {}

    def __repr__(self) -> str:
        head = f"Criticality of {self.activation.label}: "
        if self.point is None:
            return head + f"none ({self.reason})"
        where = "any K" if self.point.K_star is None else f"K* = {self.point.K_star:.10g}"
        lines = [
            head + f"class {self.point.kind}, {self.point.stability}",
            f"  C_b = {self.point.C_b:.10g}, C_W = {self.point.C_W:.10g}, {where}",
            "  exponents " + ", ".join(f"{k} = {v:g}" for k, v in self.exponents.items()),
        ]
        lines += [
            f"  also, {p.stability}: K* = {p.K_star:.6g}, C_b = {p.C_b:.6g}, C_W = {p.C_W:.6g}"
            for p in self.others
        ]
        return "\n".join(lines)


def criticality(spec: Any) -> Criticality:
    """Find the critical (C_b, C_W, K*) of an activation, or show that there is none (section 5.3.1).

    Returned is the scale-invariant point if every K is critical, else the stable one at K* = 0, else a half-stable
    one at K* > 0; unstable roots are listed in ``others``.

    Examples
    --------
    >>> criticality("tanh")
    Criticality of tanh: class K*=0, stable
      C_b = 0, C_W = 1, K* = 0
      exponents p_0 = 1, p_parallel = 2, p_perpendicular = 1, p_V = 1
    """
    act = activation(spec)
    if act.slopes is not None and any(act.slopes):
        return Criticality(act, _scale_invariant(act), (), "")
    functions = KernelFunctions(act)
    roots = [point for point in (_at_zero(act), *_positive_roots(functions)) if point is not None]
    allowed = [p for p in roots if p.C_b >= -1e-12]
    chosen = [p for p in allowed if p.kind == "K*=0" and p.stability == "stable"]
    chosen += [p for p in allowed if p.kind == "half-stable"]
    point = chosen[0] if chosen else None
    return Criticality(
        act, point, tuple(p for p in allowed if p is not point), _reason(roots, allowed, point)
    )


def _reason(roots: list[CriticalPoint], allowed: list[CriticalPoint], point: CriticalPoint | None) -> str:
    if point is not None:
        return ""
    if allowed:
        return "the only critical points repel on both sides"
    if roots:
        root = roots[0]
        return (
            f"the susceptibilities agree only at K = {root.K_star:.4g}, which needs C_b = {root.C_b:.4g} < 0"
        )
    return "the two susceptibilities agree at no kernel value"


def _scale_invariant(act: Activation) -> CriticalPoint:
    assert act.slopes is not None
    minus, plus = act.slopes
    A_2, A_4 = (minus**2 + plus**2) / 2, (minus**4 + plus**4) / 2
    angle = (plus - minus) ** 2 / (plus**2 + minus**2) / np.pi
    return CriticalPoint(
        None, 0.0, 1 / A_2, "scale-invariant", "marginal", {"A_2": A_2, "A_4": A_4, "rho": float(angle)}
    )


def _at_zero(act: Activation) -> CriticalPoint | None:
    """The limit K -> 0, where g'/<s'^2> -> (s_1^2 + s_0 s_2) / s_1^2 (5.73)."""
    if any(kink.location == 0 for kink in act.kinks):
        return _at_kink(act)
    try:
        s = np.asarray(act.taylor(5), dtype=np.float64)
    except NotSupportedError:
        return None
    if s[1] == 0 or abs(s[0] * s[2]) > _EQUAL * s[1] ** 2:
        return None
    C_W = 1 / s[1] ** 2
    if s[0] != 0:
        return CriticalPoint(0.0, -C_W * s[0] ** 2, C_W, "K*=0", "needs a negative C_b")
    coefficients = taylor_coefficients(s)
    leading = coefficients["a_1"] or coefficients["a_2"]
    stability = "stable" if leading < 0 else "unstable" if leading > 0 else "undecided at this order"
    return CriticalPoint(0.0, 0.0, C_W, "K*=0", stability, coefficients)


def _at_kink(act: Activation) -> CriticalPoint | None:
    """The limit K -> 0 where the slope is continuous at 0 but the second derivative jumps (softsign, ELU).

    C_W g = K + a K^(3/2) and chi_perp = 1 + a K^(1/2) with a = C_W s_1 J_2 sqrt(2/pi), J_2 the jump: K falls as
    (2 / a depth)^2, twice as fast as for analytic activations.
    """
    kink = next(k for k in act.kinks if k.location == 0)
    value, slope = float(act.value(0.0)), float(act.derivative(0.0, 1))
    if kink.jump(0) or kink.jump(1) or value or not slope or not kink.jump(2):
        return None
    C_W = 1 / slope**2
    bend = C_W * slope * kink.jump(2) * float(np.sqrt(2 / np.pi))
    stability = "stable" if bend < 0 else "unstable"
    return CriticalPoint(0.0, 0.0, C_W, "K*=0", stability, {"a_1/2": bend})


def taylor_coefficients(s: Array) -> dict[str, float]:
    """a_1, a_2, b_1 of the expansions around K = 0 (5.86)-(5.88), from s_p = sigma^(p)(0), p = 0..5."""
    r = s / s[1]
    return {
        "a_1": float(r[3] + 0.75 * r[2] ** 2),
        "a_2": float(0.25 * r[5] + 0.625 * r[4] * r[2] + 5 / 12 * r[3] ** 2),
        "b_1": float(r[3] + r[2] ** 2),
    }


def _positive_roots(functions: KernelFunctions) -> list[CriticalPoint]:
    """Half-stable points: sign changes of chi_parallel / chi_perp - 1 over nine decades of K."""

    def excess(log_K: float) -> float:
        return float(functions.ratio(np.exp(log_K))[0] - 1)

    curve = KernelFunctions(functions.activation, tolerance=1e-10).ratio(_SCANNED) - 1
    # Where the ratio only tends to one the difference drowns in rounding: that is no root.
    clear = np.abs(curve) > _EQUAL
    points = []
    places = np.flatnonzero(clear)
    for i, j in pairwise(places):
        if curve[i] * curve[j] < 0 and j - i <= 2:
            root = brentq(excess, np.log(_SCANNED[i]), np.log(_SCANNED[j]), xtol=1e-14, rtol=1e-14)
            points.append(_half_stable(functions, float(np.exp(root))))
    return points


def _half_stable(functions: KernelFunctions, K: float) -> CriticalPoint:
    values = functions.at(K)
    C_W = float(1 / values.slope_square)
    bend = 0.5 * C_W * float(values.square_bend)
    h = 0.5 * C_W * float(values.slope_square_slope)
    source = C_W**2 * float(values.fourth - values.square**2)
    side = "attracts from below" if bend > 0 else "attracts from above"
    return CriticalPoint(
        K, K - C_W * float(values.square), C_W, "half-stable", side, {"a_1": bend, "h": h, "source": source}
    )


def _exponents(point: CriticalPoint) -> dict[str, float]:
    c = point.coefficients
    if point.kind == "scale-invariant":
        return {"p_0": 0.0, "p_parallel": 0.0, "p_perpendicular": 0.0, "p_V": -1.0}
    if "a_1/2" in c:
        return {"p_0": 2.0, "p_parallel": 3.0, "p_perpendicular": 2.0, "p_V": 3.0}
    if point.kind == "K*=0":
        # With a_1 = 0 the next coefficient rules: K ~ depth^(-1/2).
        order = 1 if c["a_1"] else 2
        perpendicular = c["b_1"] / c["a_1"] if c["a_1"] else float("nan")
        return {
            "p_0": 1 / order,
            "p_parallel": (1 + order) / order,
            "p_perpendicular": perpendicular,
            "p_V": 2 / order - 1,
        }
    return {"p_0": 1.0, "p_parallel": 2.0, "p_perpendicular": 2 * c["h"] / c["a_1"], "p_V": -1.0}
