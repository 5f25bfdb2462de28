"""Fixed points of the kernel for given hyperparameters: K = C_b + C_W g(K) + gamma^2 K, and what flows to which.

The gap C_b + C_W g(K) - (1 - gamma^2) K is the step from one layer to the next. It is scanned over twelve decades.
Inflections of g split the range into pieces on which it has at most one extremum, and extrema split these into
pieces on which it is monotonic: close pairs and double roots, such as the half-stable points at criticality, are
not missed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from numbers import Real
from typing import Any, overload

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import brentq

from foretrain.activations import Activation
from foretrain.activations import activation as find_activation
from foretrain.gaussian import gram
from foretrain.support.answers import Result
from foretrain.support.arguments import Array
from foretrain.support.errors import InputError, NotSupportedError
from foretrain.theory.criticality.critical_points import susceptibility
from foretrain.theory.kernel_functions import KernelFunctions, is_measured, kernel_means

_SCANNED = np.geomspace(1e-9, 1e3, 289)
_FEWEST_SCANNED = 20
_SCAN_DIGITS, _ROOT_DIGITS = 1e-9, 1e-12  # gaps below this share of K are rounding
ONE = 1e-9  # a susceptibility this close to one counts as one
_BURN_IN = 200


@dataclass(frozen=True, repr=False)
class FixedPoint(Result):
    """A kernel value that layers leave as it is.

    ``stability`` is that of K itself: "stable", "unstable", "attracts from below", "attracts from above" or
    "marginal". ``phase`` is about nearby inputs: "ordered" if they merge (chi_perp < 1), "chaotic" if they part
    (chi_perp > 1), "critical" if both susceptibilities are one, "edge" if only chi_perp is.
    """

    K: float | None  # None: every value is a fixed point
    chi_parallel: float
    chi_perpendicular: float
    stability: str
    phase: str

    @property
    def depth_parallel(self) -> float:
        """Layers over which a change of the norm shrinks or grows by e; infinite at criticality."""
        return float(correlation_depth(self.chi_parallel))

    @property
    def depth_perpendicular(self) -> float:
        """Layers over which the distance of nearby inputs shrinks or grows by e; infinite at criticality."""
        return float(correlation_depth(self.chi_perpendicular))


def correlation_depth(chi: ArrayLike) -> Array:
    """1 / |log chi|: layers over which a perturbation changes by a factor e, infinite at chi = 1 (section 5.1).

    Examples
    --------
    >>> correlation_depth([0.9, 1.0]).round(3)
    array([9.491,   inf])
    """
    growth = np.abs(np.asarray(chi, dtype=float))
    with np.errstate(divide="ignore"):
        rate = np.abs(np.log(growth))
        return np.asarray(np.where(np.abs(growth - 1) < ONE, np.inf, 1 / rate))


def fixed_points(activation: Any, C_b: float, C_W: float, gamma: float = 0.0) -> tuple[FixedPoint, ...]:
    """All K with K = C_b + C_W g(K) + gamma^2 K, in ascending order (5.8), (B.11).

    Sought up to K = 1000, for a user's function as far as it is resolved.

    Examples
    --------
    >>> (point,) = fixed_points("tanh", C_b=0.3, C_W=1.5)
    >>> round(point.K, 8), round(point.chi_parallel, 8), point.phase
    (0.84617502, 0.31785006, 'ordered')
    """
    act, C_b, C_W, gamma = _checked(activation, C_b, C_W, gamma)
    if act.slopes is None:
        return Landscape(act, C_b, C_W, gamma).points
    # Scale-invariant activations: K' = C_b + chi K, with one susceptibility chi everywhere (5.60)-(5.65).
    chi = straight_growth(act.slopes, C_W, gamma)
    label = phase(chi, chi)
    if label != "critical" and chi < 1:
        return (FixedPoint(C_b / (1 - chi), chi, chi, "stable", label),)
    if C_b:
        return ()
    if label == "critical":
        return (FixedPoint(None, chi, chi, "marginal", label),)
    return (FixedPoint(0.0, chi, chi, "unstable", label),)


@overload
def flows_to(activation: Any, C_b: float, C_W: float, K1: float, gamma: float = 0.0) -> float: ...
@overload
def flows_to(
    activation: Any, C_b: float, C_W: float, K1: Array | list[float], gamma: float = 0.0
) -> Array: ...
def flows_to(activation: Any, C_b: float, C_W: float, K1: Any, gamma: float = 0.0) -> Any:
    """The kernel at infinite depth of a network that starts from K1: a fixed point, or infinity.

    nan where K ends in a cycle, which needs chi_parallel < -1.

    Examples
    --------
    >>> flows_to("relu", C_b=0.1, C_W=1.0, K1=[0.5, 7.0])
    array([0.2, 0.2])
    """
    act, C_b, C_W, gamma = _checked(activation, C_b, C_W, gamma)
    start = np.asarray(K1, dtype=float)
    if not (np.isfinite(start).all() and (start >= 0).all()):
        raise InputError("kernel values must be finite and not negative.")
    if act.slopes is not None:
        end = straight_end(straight_growth(act.slopes, C_W, gamma), C_b, start)
    else:
        landscape = Landscape(act, C_b, C_W, gamma)
        end = np.array([landscape.end(float(K)) for K in start.ravel()]).reshape(start.shape)
    return float(end) if start.ndim == 0 else end


def _checked(activation: Any, C_b: Any, C_W: Any, gamma: Any) -> tuple[Activation, float, float, float]:
    for name, value in (("C_b", C_b), ("C_W", C_W), ("gamma", gamma)):
        if not isinstance(value, Real) or not math.isfinite(value):
            raise InputError(f"`{name}` is {value!r}: give one finite number.")
        if value < 0 and name != "gamma":
            raise InputError(f"`{name}` is {value:g}: give zero or a positive number.")
    if not gamma**2 < 1:
        raise InputError(
            f"`gamma` is {gamma:g}: with gamma^2 >= 1 the kernel has no fixed point; give -1 < gamma < 1."
        )
    return find_activation(activation), float(C_b), float(C_W), float(gamma)


@dataclass(frozen=True)
class Scan:
    """g over the scanned kernels, its slope, <s'^2>, and the kernels where the curvature of g changes sign."""

    functions: KernelFunctions
    kernels: Array
    square: Array
    square_slope: Array
    slope_square: Array
    inflections: tuple[float, ...]


@lru_cache(maxsize=32)
def scan(act: Activation) -> Scan:
    """What every choice of hyperparameters shares: a second or less, then remembered."""
    means = kernel_means(act, _SCANNED, _SCAN_DIGITS / 10)
    kernels = _SCANNED[: len(means.square)]  # of a user's function as many as are resolved
    if len(kernels) < _FEWEST_SCANNED:
        raise NotSupportedError(
            f"{act.label} is too steep to be followed over kernel values: rescale it, for example to unit slope."
        )
    functions = KernelFunctions(act)

    # Small kernels leave only rounding of the curvature, whose changes of sign mean nothing.
    curved = np.abs(means.bend) > 1e-7 * np.abs(kernels * means.square_slope)
    turns = np.flatnonzero((means.bend[1:] * means.bend[:-1] < 0) & curved[1:] & curved[:-1])

    def bend(K: float) -> float:
        return float(functions.fast(K)[2])

    if is_measured(act):
        inflections = np.sqrt(
            kernels[turns] * kernels[turns + 1]
        ).tolist()  # to a few percent is enough there
    else:
        cells = [(float(kernels[i]), float(kernels[i + 1])) for i in turns]
        inflections = [float(brentq(bend, a, b)) for a, b in cells if bend(a) * bend(b) < 0]
    return Scan(functions, kernels, means.square, means.square_slope, means.slope_square, tuple(inflections))


class Landscape:
    """How the kernel moves at every K, for one activation and one choice of hyperparameters."""

    def __init__(self, act: Activation, C_b: float, C_W: float, gamma: float) -> None:
        self._scan = scan(act)
        self._C_b, self._C_W, self._gamma = C_b, C_W, gamma

    @cached_property
    def points(self) -> tuple[FixedPoint, ...]:
        """All fixed points, ascending."""
        at_zero = self._C_b + self._C_W * float(self._scan.functions.at(0.0).square)
        roots = [0.0] if at_zero == 0 else []
        # Roots between neighbouring kernels whose gap is clearly not zero.
        clear = np.flatnonzero(self._gaps)
        slopes = self._C_W * self._scan.square_slope - (1 - self._gamma**2)
        positive: list[float] = []
        for i, j in pairwise(clear):
            low, high = float(self._scan.kernels[i]), float(self._scan.kernels[j])
            inside = [turn for turn in self._scan.inflections if low < turn < high]
            quiet = self._gaps[i] * self._gaps[j] > 0 and slopes[i] * slopes[j] > 0 and not inside
            # Where the gap is lost in rounding over a longer stretch, as for activations linear around 0, no
            # single root can be named.
            if not quiet and j - i <= 2:
                for piece in pairwise([low, *inside, high]):
                    positive += self._roots_between(*piece)
        roots += positive
        found = []
        for K in roots:
            values = self._scan.functions.at(K)
            parallel = self._gamma**2 + self._C_W * float(values.square_slope)
            perpendicular = self._gamma**2 + self._C_W * float(values.slope_square)
            stability = self._stability(K, parallel, roots)
            found.append(FixedPoint(K, parallel, perpendicular, stability, phase(parallel, perpendicular)))
        return tuple(found)

    def end(self, start: float) -> float:
        """Where the flow from a kernel value ends; nan in a cycle."""
        K = start
        if (self._C_W * self._scan.square_slope + self._gamma**2 < 0).any():
            # A map that turns around can jump over fixed points: only the first steps need to be followed.
            for _ in range(_BURN_IN):
                K += self._gap(K)
        near = [p for p in self.points if p.K is not None and abs(K - p.K) <= 1e-6 * p.K]
        if not near:  # the first fixed point in the direction in which the kernel moves
            rising = self._gap(K) > 0
            ahead = [p for p in self.points if p.K is not None and (p.K > K if rising else p.K <= K)]
            near = ahead[:1] if rising else ahead[-1:]
        if not near:
            return math.inf
        assert near[0].K is not None
        return math.nan if near[0].chi_parallel < -1 else near[0].K

    def _gap(self, K: float) -> float:
        return self._C_b + self._C_W * float(self._scan.functions.fast(K)[0]) - (1 - self._gamma**2) * K

    def _gap_slope(self, K: float) -> float:
        return self._C_W * float(self._scan.functions.fast(K)[1]) - (1 - self._gamma**2)

    @cached_property
    def _gaps(self) -> Array:
        """The gap over the scanned kernels, zero where only rounding is left of it."""
        gap = self._C_b + self._C_W * self._scan.square - (1 - self._gamma**2) * self._scan.kernels
        size = self._C_b + self._C_W * self._scan.square + self._scan.kernels
        return np.asarray(np.where(np.abs(gap) > _SCAN_DIGITS * size, gap, 0.0))

    def _roots_between(self, low: float, high: float) -> list[float]:
        """Roots on a piece without inflection, on which the gap has at most one extremum."""
        places = [low, high]
        if self._gap_slope(low) * self._gap_slope(high) < 0:
            turn = float(brentq(self._gap_slope, low, high, xtol=1e-14, rtol=1e-14))
            if abs(self._gap(turn)) <= _ROOT_DIGITS * turn:
                return [turn]
            places.insert(1, turn)
        return [
            float(brentq(self._gap, a, b, xtol=1e-14, rtol=1e-14))
            for a, b in pairwise(places)
            if self._gap(a) * self._gap(b) < 0
        ]

    def _stability(self, K: float, parallel: float, roots: list[float]) -> str:
        if parallel < 0:
            return "stable" if parallel > -1 else "marginal" if parallel == -1 else "unstable"
        # Signs decide, not the slope: at a double root rounding of K alone moves the slope to either side of one.
        place = roots.index(K)
        before = roots[place - 1] if place else 0.0
        after = roots[place + 1] if place + 1 < len(roots) else math.inf
        pushes_up = K == 0 or self._direction(before, K) > 0
        pushes_down = self._direction(K, after) < 0
        if pushes_up and pushes_down:
            return "stable"
        if pushes_up and K:
            return "attracts from below"
        return "attracts from above" if pushes_down else "unstable"

    def _direction(self, low: float, high: float) -> float:
        """Sign of the gap between neighbouring roots."""
        between = self._gaps[(low < self._scan.kernels) & (high > self._scan.kernels) & (self._gaps != 0)]
        if len(between):
            return float(np.sign(between[len(between) // 2]))
        return float(np.sign(self._gap((low + high) / 2))) if math.isfinite(high) else 0.0


def phase(chi_parallel: float, chi_perpendicular: float) -> str:
    """What becomes of nearby inputs, from the susceptibilities at the fixed point."""
    if abs(chi_perpendicular - 1) >= ONE:
        return "ordered" if chi_perpendicular < 1 else "chaotic"
    return "critical" if abs(chi_parallel - 1) < ONE else "edge"


def straight_growth(slopes: tuple[float, float], C_W: Any, gamma: float) -> Any:
    """chi of a scale-invariant activation, for one C_W or many."""
    return gamma**2 + C_W * (slopes[0] ** 2 + slopes[1] ** 2) / 2


def straight_end(chi: ArrayLike, C_b: ArrayLike, start: ArrayLike) -> Array:
    """Where K' = C_b + chi K leads from ``start``: C_b / (1 - chi), the start itself, or infinity."""
    chi, C_b, start = np.broadcast_arrays(chi, C_b, start)
    with np.errstate(divide="ignore", invalid="ignore"):
        settled = C_b / (1 - chi)
    grown = np.where((start > 0) | (C_b > 0), np.inf, 0.0)
    critical = (np.abs(chi - 1) < ONE) & (C_b == 0)
    return np.asarray(np.select([critical, chi < 1 - ONE], [start, settled], grown))


_NEAREST = 1e-6  # to 1: the gap there is about -(chi_perp - 1)(1 - c), and has to be seen above rounding
_NO_GROWTH = 1e-12


def final_correlation(activation: Any, K: float, C_b: float, C_W: float, gamma: float = 0.0) -> float:
    """c* = K_12 / K at infinite depth of two inputs that are both at the fixed point K; nan for K = 0.

    The map of correlations has no negative Taylor coefficient, so it is convex on [0, 1] and maps 1 to 1: with a
    slope chi_perp of at most one there, 1 is its only fixed point; otherwise there is one more, which attracts.

    Examples
    --------
    >>> from foretrain.theory.criticality.fixed_points import flows_to
    >>> round(final_correlation("tanh", flows_to("tanh", 0.1, 3.0, 1.0), C_b=0.1, C_W=3.0), 4)
    0.4775
    """
    act = find_activation(activation)
    if K <= 0:
        return math.nan
    if susceptibility(act, K, C_W, gamma).perpendicular <= 1 + ONE:
        return 1.0

    def growth(c: float) -> float:
        pair = np.asarray(gram(act, K * np.array([[1.0, c], [c, 1.0]])))[0, 1]
        return float(C_b + C_W * pair + gamma**2 * K * c) / K - c

    if growth(0.0) <= _NO_GROWTH:  # an odd activation without biases
        return 0.0
    below = 1 - _NEAREST
    return float(brentq(growth, 0.0, below, xtol=1e-12)) if growth(below) < 0 else 1.0
