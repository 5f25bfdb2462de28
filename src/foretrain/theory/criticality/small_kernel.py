"""Expansion around K = 0 of activations that vanish at 0, with a Taylor series there or one for each side.

With C_W = 1 / A_2: C_W g = K (1 + sum a_p K^p), chi_perp = 1 + sum b_p K^p (5.83)-(5.85). Without a kink at 0 only
whole p occur; where a derivative jumps also p = 1/2, 3/2, ...
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from foretrain.activations import Activation
from foretrain.support.errors import NotSupportedError

Array = NDArray[np.float64]

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
