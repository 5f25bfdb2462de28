"""The search for critical points (section 5.3.1): a condition on K alone, then C_W and C_b (5.71)-(5.73).

Around K = 0 of activations that vanish at 0, with a Taylor series there or one for each side, it is an expansion.
With C_W = 1 / A_2: C_W g = K (1 + sum a_p K^p), chi_perp = 1 + sum b_p K^p (5.83)-(5.85). Without a kink at 0 only
whole p occur; where a derivative jumps also p = 1/2, 3/2, ...
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import brentq

from foretrain.activations import Activation
from foretrain.activations import activation as find_activation
from foretrain.support.answers import Result
from foretrain.support.arguments import Array
from foretrain.support.errors import InputError, NotSupportedError
from foretrain.theory.criticality.critical_points import Criticality, CriticalPoint
from foretrain.theory.kernel_functions import KernelFunctions, coarse_means, is_measured

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
