"""Functions of a single kernel value that every single-input recursion and the criticality analysis are made of.

With s the activation and <.> over one Gaussian variable of variance K: g = <s^2>, its derivatives g' and g'',
<s'^2> and its derivative, <s^4> (5.49)-(5.53), (5.111); for the tangent kernel also d^2<s'^2>/dK^2, <s^2 s'^2> and
<s'^4> (9.13)-(9.16). Smooth activations use derivatives of s, stable down to
K -> 0; kinked ones weights in z, which need no delta functions.

Searches over decades of K look at many values at once. There a user's smooth function goes by its values alone:
signs are wanted, not fourteen digits, and its derivatives are slow where their arguments are wide. A trapezoidal
rule in z / sqrt(K) with central differences gives eight digits in milliseconds, as far as narrow features or fast
growth are resolved.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.polynomial import chebyshev
from numpy.typing import ArrayLike, NDArray

from foretrain.activations import Activation
from foretrain.activations import activation as find_activation
from foretrain.gaussian import Factor, expectation, factor, z
from foretrain.gaussian.quadrature import WIDEST
from foretrain.support.answers import labelled
from foretrain.support.errors import InputError
from foretrain.support.progress import track

if TYPE_CHECKING:
    import xarray as xr

Array = NDArray[np.float64]

_CELL, _DEGREE = 0.5, 15
_NODES = chebyshev.chebpts1(_DEGREE + 1)
_TO_COEFFICIENTS = np.linalg.inv(chebyshev.chebvander(_NODES, _DEGREE))


class KernelValues(NamedTuple):
    """All functions at some kernel values."""

    square: Array  # g = <s^2>
    square_slope: Array  # g'
    square_bend: Array  # g''
    slope_square: Array  # <s'^2>
    slope_square_slope: Array  # d/dK <s'^2>
    fourth: Array  # <s^4>


class TangentValues(NamedTuple):
    """What the statistics of the tangent kernel need besides, at some kernel values."""

    slope_square_bend: Array  # d^2/dK^2 <s'^2>
    mixed_fourth: Array  # <s^2 s'^2>
    slope_fourth: Array  # <s'^4>


class Tabulated(ABC):
    """Functions of a kernel value: exact rules, and a table of them that grows as needed (:meth:`fast`)."""

    def __init__(self, activation: Any, tolerance: float = 1e-13) -> None:
        self.activation: Activation = find_activation(activation)
        # Derivatives of a user's function are known to about this many digits only.
        self._tolerance = max(tolerance, 1e-10) if self.activation.strip_is_measured else tolerance
        self._cells: dict[int, Array] = {}

    @abstractmethod
    def _rule(self) -> Callable[[Array], list[Array]]:
        """The rule that suits the activation: all functions at kernel values (B,)."""

    def _exactly(self, K: ArrayLike) -> list[Array]:
        """All functions at an array of kernel values K >= 0."""
        variance = np.asarray(K, dtype=float)
        if not (np.isfinite(variance).all() and (variance >= 0).all()):
            raise InputError(
                "kernel values must be finite and not negative: if they grew with depth, choose a smaller `C_W`, "
                "fewer layers or smaller inputs."
            )
        flat = np.atleast_1d(variance).ravel()
        return [value.reshape(variance.shape) for value in self._rule()(flat)]

    def fast(self, K: float) -> Array:
        """All functions at one kernel value, in the order of ``at``, to about twelve digits, in microseconds."""
        # The rules have the limit at 0, and the errors for what is too large; a cell reaches above its K.
        if not 0 < K < WIDEST * math.exp(-_CELL):
            return np.array([float(value) for value in self._exactly(K)])
        cell, position = divmod(math.log(K), _CELL)
        angle = math.acos(2 * position / _CELL - 1)
        return np.asarray(self._coefficients(int(cell)) @ np.cos(angle * np.arange(_DEGREE + 1)))

    def interpolated(self, K: Array) -> Array:
        """All functions at many positive kernel values, one row each: as :meth:`fast`, cell by cell."""
        cell, position = np.divmod(np.log(K), _CELL)
        rows = []
        for number in track(np.unique(cell), "moments"):
            members = np.flatnonzero(cell == number)
            values = chebyshev.chebval(2 * position[members] / _CELL - 1, self._coefficients(int(number)).T)
            rows.append((members, values))
        found = np.empty((len(rows[0][1]) if rows else 0, len(K)))
        for members, values in rows:
            found[:, members] = values
        return found

    def _coefficients(self, cell: int) -> Array:
        """Chebyshev coefficients of all functions in log K: they are powers of K times smooth functions."""
        if cell not in self._cells:
            nodes = np.exp(_CELL * (cell + (1 + _NODES) / 2))
            with np.errstate(invalid="ignore"):  # infinite <s'^2> of discontinuous activations
                self._cells[cell] = np.stack([_TO_COEFFICIENTS @ values for values in self._exactly(nodes)])
        return self._cells[cell]

    def _mean(self, parts: Iterable[tuple[float, Factor]], K: Array) -> Array:
        total = np.zeros(len(K))
        for weight, f in parts:
            total += weight * np.asarray(expectation([f], K[:, None, None], tolerance=self._tolerance).value)
        return total


class KernelFunctions(Tabulated):
    """The functions of one activation, exact (:meth:`at`) or from a table that grows as needed (:meth:`fast`)."""

    def at(self, K: ArrayLike) -> KernelValues:
        """Values at an array of kernel values K >= 0, by the rules of :func:`foretrain.gaussian.expectation`."""
        return KernelValues(*self._exactly(K))

    def _rule(self) -> Callable[[Array], list[Array]]:
        if self.activation.slopes is not None:
            return self._scale_invariant
        if self.activation.is_smooth:
            return self._smooth
        return self._kinked if self.activation.is_continuous else self._discontinuous

    def ratio(self, K: ArrayLike) -> Array:
        """chi_parallel / chi_perp = <z s s'> / (K <s'^2>) for an array of K > 0 (5.73), from s and s' alone."""
        variance = np.atleast_1d(np.asarray(K, dtype=float))
        if not self.activation.is_continuous:  # <s'^2> is infinite
            return np.zeros_like(variance)
        s, slope = factor(self.activation), factor(self.activation, 1).pointwise()
        parallel = self._mean([(1.0, z * s * slope)], variance) / variance
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(parallel / self._mean([(1.0, slope * slope)], variance))

    def _scale_invariant(self, K: Array) -> list[Array]:
        """g = A_2 K, <s'^2> = A_2, <s^4> = 3 A_4 K^2 exactly (5.60)-(5.65), (5.113)."""
        assert self.activation.slopes is not None
        minus, plus = self.activation.slopes
        A_2, A_4 = (minus**2 + plus**2) / 2, (minus**4 + plus**4) / 2
        nothing, slope = np.zeros_like(K), np.full_like(K, A_2)
        return [A_2 * K, slope, nothing, slope, nothing, 3 * A_4 * K**2]

    def _smooth(self, K: Array) -> list[Array]:
        s = [factor(self.activation, order) for order in range(5)]
        return [
            self._mean([(1.0, s[0] * s[0])], K),
            self._mean([(1.0, s[1] * s[1]), (1.0, s[0] * s[2])], K),
            self._mean([(0.5, s[0] * s[4]), (2.0, s[1] * s[3]), (1.5, s[2] * s[2])], K),
            self._mean([(1.0, s[1] * s[1])], K),
            self._mean([(1.0, s[2] * s[2]), (1.0, s[1] * s[3])], K),
            self._mean([(1.0, s[0] ** 4)], K),
        ]

    def _discontinuous(self, K: Array) -> list[Array]:
        """Weights alone, since derivatives have delta functions; <s'^2> is infinite, and d/dK of it no number."""
        s, safe = factor(self.activation), np.maximum(K, 1e-30)
        square, second, fourth = (self._mean([(1.0, z**power * s * s)], safe) for power in (0, 2, 4))
        return [
            self._mean([(1.0, s * s)], K),
            (second - safe * square) / (2 * safe**2),
            (fourth - 6 * safe * second + 3 * safe**2 * square) / (4 * safe**4),
            np.full_like(K, np.inf),
            np.full_like(K, np.nan),
            self._mean([(1.0, s**4)], K),
        ]

    def _kinked(self, K: Array) -> list[Array]:
        s, slope = factor(self.activation), factor(self.activation, 1).pointwise()
        # z weights divide by K; at K = 0 the limit from above stands in.
        safe = np.maximum(K, 1e-30)
        first = self._mean([(1.0, z * s * slope)], safe)
        third = self._mean([(1.0, z * z * z * s * slope)], safe)
        square = self._mean([(1.0, slope * slope)], safe)
        weighted = self._mean([(1.0, z * z * slope * slope)], safe)
        return [
            self._mean([(1.0, s * s)], K),
            first / safe,
            (third / safe - 3 * first) / (2 * safe**2),
            square,
            (weighted / safe - square) / (2 * safe),
            self._mean([(1.0, s**4)], K),
        ]


class TangentFunctions(Tabulated):
    """The same for what the tangent kernel's statistics need besides; the activation must be continuous."""

    def at(self, K: ArrayLike) -> TangentValues:
        """Values at an array of kernel values K >= 0."""
        return TangentValues(*self._exactly(K))

    def _rule(self) -> Callable[[Array], list[Array]]:
        if self.activation.slopes is not None:
            return self._scale_invariant
        return self._smooth if self.activation.is_smooth else self._kinked

    def _scale_invariant(self, K: Array) -> list[Array]:
        """<s^2 s'^2> = A_4 K, <s'^4> = A_4 exactly (9.37), (9.38)."""
        assert self.activation.slopes is not None
        minus, plus = self.activation.slopes
        A_4 = (minus**4 + plus**4) / 2
        return [np.zeros_like(K), A_4 * K, np.full_like(K, A_4)]

    def _smooth(self, K: Array) -> list[Array]:
        s = [factor(self.activation, order) for order in range(6)]
        bend = self._mean([(0.5, s[1] * s[5]), (2.0, s[2] * s[4]), (1.5, s[3] * s[3])], K)
        return [bend, *self._fourth(K)]

    def _kinked(self, K: Array) -> list[Array]:
        slope, safe = factor(self.activation, 1).pointwise(), np.maximum(K, 1e-30)
        square, second, fourth = (self._mean([(1.0, z**power * slope**2)], safe) for power in (0, 2, 4))
        bend = (fourth - 6 * safe * second + 3 * safe**2 * square) / (4 * safe**4)
        return [bend, *self._fourth(K)]

    def _fourth(self, K: Array) -> list[Array]:
        s, slope = factor(self.activation), factor(self.activation, 1).pointwise()
        return [self._mean([(1.0, s**2 * slope**2)], K), self._mean([(1.0, slope**4)], K)]


@lru_cache(maxsize=16)
def shared_functions(act: Activation) -> KernelFunctions:
    """The functions of an activation with a table that later flows of the same activation use again."""
    return KernelFunctions(act)


@lru_cache(maxsize=16)
def shared_tangent_functions(act: Activation) -> TangentFunctions:
    """The same for :class:`TangentFunctions`."""
    return TangentFunctions(act)


_MEANINGS = {
    "g": "<s^2>, the mean square of the activation (5.49)",
    "chi_parallel": "gamma^2 + C_W g'(K), growth of a difference of norms from layer to layer (5.50), (B.15)",
    "chi_perpendicular": "gamma^2 + C_W <s'^2>, growth of the squared distance at equal norms (5.51), (B.16)",
    "h": "half the slope of chi_perp, how a difference of norms feeds the distance (5.52)",
    "j": "4 K^2 C_W g''(K), how the vertex feeds the next-to-leading metric (5.111)",
    "source": "C_W^2 [<s^4> - <s^2>^2], what a layer adds to the four-point vertex (5.109)",
}


def kernel_functions(activation: Any, K: ArrayLike, C_W: float = 1.0, gamma: float = 0.0) -> xr.Dataset:
    """g, chi_parallel, chi_perp, h, j and the vertex source at kernel values K (5.49)-(5.53), (5.111).

    Examples
    --------
    >>> table = kernel_functions("relu", K=0.5)
    >>> [float(table[name]) for name in ("g", "chi_perpendicular", "source")]
    [0.25, 0.5, 0.3125]
    """
    functions, places = KernelFunctions(activation), np.asarray(K, dtype=float)
    act = functions.activation
    if places.ndim > 1:
        raise InputError(f"kernel values have shape {places.shape}: give one number or a list of them.")
    if not act.is_smooth and act.slopes is None and not (places > 0).all():
        raise InputError(f"{act.label} has kinks, so that h need not exist at K = 0: give K > 0.")
    at = functions.at(places)
    values = {
        "g": at.square,
        "chi_parallel": gamma**2 + C_W * at.square_slope,
        "chi_perpendicular": gamma**2 + C_W * at.slope_square,
        "h": 0.5 * C_W * at.slope_square_slope,
        "j": 4 * places**2 * C_W * at.square_bend,
        "source": C_W**2 * (at.fourth - at.square**2),
    }
    dims = ("K",) if places.ndim else ()
    return labelled(
        {name: (dims, value, _MEANINGS[name]) for name, value in values.items()},
        {"activation": act.label, "C_W": C_W, "gamma": gamma},
        K=(dims, places, {"meaning": "variance of a preactivation"}),
    )


_REACH = 9.0
_FEWEST, _MOST = 401, 40_001
_POINTS_PER_LENGTH = 8
_EDGE = 1e-10  # share of the integrand at the ends of the range that says it was cut off


class KernelMeans(NamedTuple):
    """g, g', K^2 g'' and <s'^2> at many kernel values."""

    square: Array
    square_slope: Array
    bend: Array
    slope_square: Array


def is_measured(act: Activation) -> bool:
    """Whether an activation is a user's smooth function, whose derivatives are measured."""
    return act.strip_is_measured and act.is_smooth


def kernel_means(act: Activation, kernels: Array, tolerance: float) -> KernelMeans:
    """The functions at ascending positive kernels; of a user's smooth function as many of them as are resolved."""
    return coarse_means(act, kernels) if is_measured(act) else precise_means(act, kernels, tolerance)


def precise_means(act: Activation, kernels: Array, tolerance: float) -> KernelMeans:
    """From s and s' alone, which is fast and needs no smoothness (section 5.3)."""
    if not act.is_continuous:
        at = KernelFunctions(act, tolerance).at(kernels)
        return KernelMeans(at.square, at.square_slope, kernels**2 * at.square_bend, at.slope_square)
    s, slope = factor(act), factor(act, 1).pointwise()

    def mean(f: Factor) -> Array:
        return np.asarray(expectation([f], kernels[:, None, None], tolerance=tolerance).value)

    first, third = mean(z * s * slope), mean(z * z * z * s * slope)
    return KernelMeans(mean(s * s), first / kernels, (third / kernels - 3 * first) / 2, mean(slope * slope))


def coarse_means(act: Activation, kernels: Array) -> KernelMeans:
    """From values of s alone, up to the kernel from which on they do not resolve it."""
    found = []
    h = 0.003 * min(act.strip, 1.0)  # a small part of the function's own length
    for deviation in np.sqrt(kernels):
        points = int(2 * _REACH * deviation / act.strip * _POINTS_PER_LENGTH) | 1
        if points > _MOST:
            break
        u = np.linspace(-_REACH, _REACH, max(points, _FEWEST))
        weight = np.exp(-(u**2) / 2)
        weight /= weight.sum()
        with np.errstate(all="ignore"):  # what is not finite ends the range
            v = deviation * u
            far, near = (np.asarray(act.value(v + k * h)) - np.asarray(act.value(v - k * h)) for k in (2, 1))
            s, slope = np.asarray(act.value(v), dtype=np.float64), (8 * near - far) / (12 * h)
            products = (s * s, u * s * slope, u**3 * s * slope, slope * slope)
            means = [float(weight @ f) for f in products]
            ends = [np.abs(weight * f)[[0, -1]].sum() / np.abs(weight * f).sum() for f in products]
        if not np.isfinite(means).all() or np.nanmax(ends) > _EDGE:
            break
        square, first, third, slope_square = means
        found.append((square, first / deviation, deviation * (third - 3 * first) / 2, slope_square))
    return KernelMeans(*np.array(found).reshape(-1, 4).T)
