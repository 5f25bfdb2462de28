"""Closed forms of products of activations under a zero-mean Gaussian (exact; singular K allowed).

Each family takes the product as *slots*: one activation derivative each, with the covariance of the slots, so
that powers and repeated inputs need no formula of their own.

Two inputs of piecewise polynomials have orthant moments with the angle kept to its last digit: it comes from the
exact determinant, so that a step feels inputs apart as long as K tells them apart.

Whole tiles of pairs have <sigma sigma> and <sigma' sigma'> written for speed: each tile rule takes the variances of
the rows (m, 1) and columns (1, n) and the covariances (m, n) of a tile, or all of one shape for a list of pairs, in
float32 or float64, and fills the targets of the orders asked for; what two orders share is computed once.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.polynomial import polynomial as poly
from numpy.typing import NDArray

from foretrain.activations import Activation
from foretrain.gaussian.covariance import difference_of_products
from foretrain.gaussian.factors import Factor
from foretrain.gaussian.orthant import piecewise_polynomial_moment
from foretrain.gaussian.wick import gaussian_moment
from foretrain.support.arrays import beside, namespace, on_host

Array = NDArray[np.float64]
Pieces = tuple[Sequence[float], Sequence[float]]
Tile = NDArray[Any]
Targets = Mapping[int, Tile]
TileRule = Callable[[Tile, Tile, Tile, Targets], None]

_local = threading.local()
_NEARLY_PARALLEL = {8: 1e-2, 4: 1e-4}  # by the bytes of a number
_PARALLEL = 8e-15  # 1 - rho^2 below this is what rounding leaves of two equal inputs: one direction


def quadrant_moment(pieces: Sequence[Pieces], K: Array) -> tuple[Array, Array]:
    """E[p_1(z_1) p_2(z_2)], each p polynomial on z < 0 and on z >= 0, for a stack (B, 2, 2)."""
    moments = _Moments(K)
    value, size = np.zeros(len(K)), np.zeros(len(K))
    # p = minus + (plus - minus) theta: coefficients of the polynomial and of what the step multiplies.
    parts = [
        (np.asarray(minus, dtype=float), np.atleast_1d(poly.polysub(plus, minus))) for minus, plus in pieces
    ]
    for first_step, first in enumerate(parts[0]):
        for second_step, second in enumerate(parts[1]):
            for i, a in enumerate(first):
                for j, b in enumerate(second):
                    if a and b:
                        term = a * b * moments.get((i, j), (first_step, second_step))
                        value += term
                        # What cancels inside a moment rounds like its natural size.
                        size += np.abs(term) + abs(a * b) * K[:, 0, 0] ** (i / 2) * K[:, 1, 1] ** (j / 2)
    return value, 8 * _EPS * size


def _half_line_moment(pieces: Sequence[Pieces], K: Array) -> tuple[Array, Array]:
    """The same of one input, for a stack (B, 1, 1)."""
    value, size = np.zeros(len(K)), np.zeros(len(K))
    for sign, coefficients in zip((-1, 1), pieces[0], strict=True):
        for k, coefficient in enumerate(coefficients):
            absolute = 2 ** (k / 2) * math.gamma((k + 1) / 2) / math.sqrt(math.pi)
            term = (0.5 * coefficient * sign**k * absolute) * K[:, 0, 0] ** (k / 2)
            value += term
            size += np.abs(term)
    return value, 8 * _EPS * size


class _Moments:
    """M(k; t) = E[z_1^k1 z_2^k2 theta(z_1)^t1 theta(z_2)^t2], by parts down to probabilities."""

    def __init__(self, K: Array) -> None:
        self._K = K
        a, b, c = K[:, 0, 0], K[:, 1, 1], K[:, 0, 1]
        self._determinant = np.maximum(difference_of_products(a, b, c, c), 0.0)
        self._found: dict[tuple[tuple[int, int], tuple[int, int]], Array] = {}

    def get(self, powers: tuple[int, int], steps: tuple[int, int]) -> Array:
        """The moment for every covariance of the stack."""
        if (powers, steps) not in self._found:
            self._found[powers, steps] = self._compute(powers, steps)
        return self._found[powers, steps]

    def _compute(self, powers: tuple[int, int], steps: tuple[int, int]) -> Array:
        if powers == (0, 0):
            return self._probability(steps)
        i = 0 if powers[0] else 1
        left = list(powers)
        left[i] -= 1
        total = np.zeros(len(self._K))
        for j in (0, 1):
            if left[j]:
                lower = list(left)
                lower[j] -= 1
                total += self._K[:, i, j] * left[j] * self.get((lower[0], lower[1]), steps)
            elif steps[j]:
                # E[delta(z_j) z^power theta(z)^step] for z the other input, of variance det / K_jj given z_j = 0.
                power, variance = left[1 - j], self._K[:, j, j]
                absolute = 2 ** (power / 2) * math.gamma((power + 1) / 2) / math.sqrt(math.pi)
                share = absolute / 2 if steps[1 - j] else absolute * (power % 2 == 0)
                spread = (self._determinant / variance) ** (power / 2)
                total += self._K[:, i, j] * (share * spread / np.sqrt(2 * math.pi * variance))
        return total

    def _probability(self, steps: tuple[int, int]) -> Array:
        if sum(steps) < 2:
            return np.full(len(self._K), 0.5 ** sum(steps))
        angle = np.arctan2(self._K[:, 0, 1], np.sqrt(self._determinant))
        return np.asarray(0.25 + angle / (2 * math.pi))


_EPS = float(np.finfo(float).eps)
_MOST_SINES = 8


class Closed(NamedTuple):
    """Value and error of a stack of expectations."""

    value: Array
    error: Array


def closed_form(factors: Sequence[Factor], K: Array, mean: Array) -> Closed | None:
    """The closed form of ``E prod_i f_i(z_i)`` for a stack K (B, n, n), or None if none is known."""
    if all(f.is_polynomial for f in factors):
        value, size = np.zeros(len(K)), np.zeros(len(K))
        for powers in product(*(range(len(f.polynomial)) for f in factors)):
            weight = math.prod(f.polynomial[p] for f, p in zip(factors, powers))
            if weight:
                term = weight * gaussian_moment(K, powers, mean=mean)
                value += term
                size += np.abs(term)
        return Closed(value, 16 * _EPS * size)
    if mean.any():
        return None
    pieces = [f.pieces for f in factors if f.pieces is not None]
    if len(pieces) == len(factors):
        rule = {1: _half_line_moment, 2: quadrant_moment}.get(len(pieces), piecewise_polynomial_moment)
        return Closed(*rule(pieces, K))
    return _by_family(factors, K)


def _by_family(factors: Sequence[Factor], K: Array) -> Closed | None:
    families = {t.activation.closed_form for f in factors for t in f.terms}
    slots = [
        (t.activation, t.order, i) for i, f in enumerate(factors) for t in f.terms for _ in range(t.power)
    ]
    if len(families) != 1 or any(len(f.polynomial) > 1 for f in factors):
        return None
    where = [i for _, _, i in slots]
    spread = K[:, where][:, :, where]
    orders = [order for _, order, _ in slots]
    weight = math.prod(f.polynomial[0] for f in factors)
    family = families.pop()
    found: Closed | None = None
    if family == "sine":
        phases = [(order - (act.name == "sin")) * math.pi / 2 for act, order, _ in slots]
        found = _sines(phases, spread)
    elif family == "erf":
        found = _erf(orders, spread)
    elif family == "gelu":
        # The exact (erf) GELU: its mean, its mean slope, and the pair formulas for value and slope.
        if orders in ([0], [1]):
            k = spread[:, 0, 0]
            mean = k / np.sqrt(2 * math.pi * (1 + k)) if orders == [0] else np.full(len(k), 0.5)
            found = Closed(mean, 8 * _EPS * mean)
        elif orders in ([0, 0], [1, 1]):
            value = np.empty(len(K))
            _gelu_tile(spread[:, 0, 0], spread[:, 1, 1], spread[:, 0, 1], {orders[0]: value})
            found = Closed(value, 16 * _EPS * (np.abs(value) + orders[0]))
    return None if found is None else Closed(weight * found.value, abs(weight) * found.error)


def _sines(phases: list[float], K: Array) -> Closed | None:
    """``E prod cos(z_a + phase_a)``: a sum of 2^n exponentials over signs.

    With sines among them the ones cancel; expm1 leaves them out, which keeps two sines exact at tiny K.
    """
    n = len(phases)
    odd = sum(round(p / (math.pi / 2)) % 2 for p in phases)
    if odd % 2:
        return Closed(np.zeros(len(K)), np.zeros(len(K)))
    if n > _MOST_SINES or (odd > 2 and np.diagonal(K, axis1=1, axis2=2).max(initial=0.0) < 0.1):
        return None
    signs, weights = _signs_and_weights(tuple(round(p / (math.pi / 2)) for p in phases))
    exponents = -0.5 * np.einsum("si,bij,sj->bs", signs, K, signs)
    terms = np.expm1(exponents) if odd else np.exp(exponents)
    value, size = terms @ weights, np.abs(terms).sum(axis=1)
    return Closed(value / 2 ** (n - 1), 4 * n * _EPS * size)


@lru_cache(maxsize=256)
def _signs_and_weights(quarters: tuple[int, ...]) -> tuple[Array, Array]:
    """The choices of signs (choices, n) that do not vanish for these phases, in quarter turns, and their weights."""
    signs = np.array([(1.0, *rest) for rest in product((1, -1), repeat=len(quarters) - 1)])
    weights = np.array([1.0, 0.0, -1.0, 0.0])[(signs @ quarters).astype(int) % 4]
    return signs[weights != 0], weights[weights != 0]


def _erf(orders: list[int], K: Array) -> Closed | None:
    """erf erf is an arcsine; first derivatives are Gaussians: (2/sqrt pi)^n det(1 + 2K)^(-1/2)."""
    n = len(orders)
    if orders == [0, 0]:
        a, b, c = 1 + 2 * K[:, 0, 0], 1 + 2 * K[:, 1, 1], 2 * K[:, 0, 1]
        value = 2 / math.pi * np.arctan2(c, np.sqrt(difference_of_products(a, b, c, c)))
        return Closed(value, 8 * _EPS * np.abs(value))
    if all(order == 1 for order in orders):
        value = (2 / math.sqrt(math.pi)) ** n / np.sqrt(np.linalg.det(np.eye(n) + 2 * K))
        return Closed(value, 8 * n * _EPS * value)
    return None


def closed_pair(f: Factor, g: Factor) -> tuple[Activation, int] | None:
    """The activation and order if <f g> is a closed form of this file, else None."""
    if f.terms != g.terms or len(f.terms) != 1 or f.polynomial != (1.0,) or g.polynomial != (1.0,):
        return None
    term, offered = f.terms[0], tuple[int, ...]()
    activation = term.activation
    if activation.slopes is not None or activation.closed_form in ("erf", "gelu", "sine"):
        offered = (0, 1)
    elif activation.degree == 0 and activation.pieces is not None:
        offered = (0,)
    return (activation, term.order) if term.power == 1 and term.order in offered else None


def tile_rule(activation: Activation, *, compiled: bool = False) -> TileRule:
    """The function that fills tiles for this activation; ``compiled``: in one pass by numba, for arrays of numpy."""
    family, options = "Erf" if activation.closed_form == "erf" else "Gelu", tuple[float, ...]()
    if activation.slopes is not None:
        family, options = "ScaleInvariant", activation.slopes
    elif activation.degree == 0 and activation.pieces is not None:
        family, options = "Step", (activation.pieces[0][0], activation.pieces[1][0])
    elif activation.closed_form == "sine":
        family = "Sine" if activation.name == "sin" else "Cosine"
    by_sweeps = partial(_SWEEPS[family], *options)
    if not compiled:
        return by_sweeps
    from foretrain.gaussian import fused_pairs

    return partial(fused_pairs.fill, fused_pairs.LAWS[family](*options), by_sweeps)


def fill_equal(activation: Activation, order: int, value: Tile, where: Any, variance: Tile) -> None:
    """Pairs of one input with itself, of this variance: for scale-invariant activations a plain product.

    The angle formula rounds it, and knows nothing of a zero variance.
    """
    if activation.slopes is not None:
        minus, plus = activation.slopes
        mean_square = (minus**2 + plus**2) / 2
        value[where] = mean_square * (variance if order == 0 else np.ones_like(variance))


def own_values(activation: Activation, order: int, variance: Tile) -> Tile:
    """<sigma^2> of this order for single inputs (N,), with the rounding of the tiles."""
    value, row = np.empty_like(variance), variance[None]
    tile_rule(activation)(row, row, row, {order: value[None]})
    fill_equal(activation, order, value, slice(None), variance)
    return value


def workspace(slot: int | str, shape: tuple[int, ...], dtype: Any = np.float64) -> Tile:
    """Memory of a shape, kept for each thread: fresh pages would cost more than the arithmetic."""
    kept, size = _local.__dict__.setdefault("kept", {}), math.prod(shape)
    key = slot, np.dtype(dtype)
    if key not in kept or kept[key].size < size:
        kept[key] = np.empty(size, dtype=dtype)
    return np.asarray(kept[key][:size].reshape(shape))


def _workspace(slot: int, like: Any) -> Any:
    library = namespace(like)
    return workspace(slot, like.shape, like.dtype) if library is np else library.empty_like(like)


class _Angle(NamedTuple):
    """What rectifiers and steps are made of; the arrays are scratch that the caller may overwrite."""

    size: Any  # sqrt(ab)
    rho: Any  # the correlation c / size, 0 where a variance is zero
    near: Any  # where pairs are nearly parallel: indices, or None for nowhere
    height: Any  # sqrt(ab - c^2) there, to its last digit


def _arcsine(a: Tile, b: Tile, c: Tile, out: Tile) -> _Angle:
    """Fills ``out`` with pi/2 plus the arcsine of the correlation.

    Nearly parallel pairs go through the exact determinant, in float64 also for float32: it keeps the digits of a
    small angle.
    """
    library = namespace(c)
    size = library.multiply(a**0.5, b**0.5, out=_workspace(0, c))
    divisor = size if bool((a > 0).all()) and bool((b > 0).all()) else library.where(size > 0, size, 1.0)
    rho = library.divide(c, divisor, out=_workspace(1, c))
    largest = max(float(rho.max()), -float(rho.min()))
    if largest > 1:
        library.clip(rho, -1, 1, out=rho)
    library.arcsin(rho, out=out)
    near, height = None, None
    if largest > (limit := 1 - _NEARLY_PARALLEL[c.dtype.itemsize]):
        flat = library.where(abs(rho).reshape(-1) > limit)[
            0
        ]  # few as a rule: their numbers are less than a mask
        near = library.unravel_index(flat, rho.shape)
        covariance = on_host(c[near]).astype(np.float64)
        of_row, of_column = (on_host(library.broadcast_to(v, c.shape)[near]) for v in (a, b))
        determinant = difference_of_products(of_row, of_column, covariance, covariance)
        exact = np.sqrt(np.where(determinant > _PARALLEL * of_row * of_column, determinant, 0.0))
        height = beside(exact, c)
        out[near] = beside(np.arctan2(covariance, exact), c)
    out += math.pi / 2
    return _Angle(size, rho, near, height)


def _scale_invariant_tile(minus: float, plus: float, a: Tile, b: Tile, c: Tile, out: Targets) -> None:
    """(5.159), (5.161): sigma = plus z for z > 0 and minus z for z < 0."""
    library, jump, both = namespace(c), (plus - minus) ** 2, plus * minus
    angle = out[1] if 1 in out else _workspace(2, c)
    size, rho, near, height = _arcsine(a, b, c, out=angle)
    if 0 in out:
        # sqrt(ab - c^2) + c angle, with the root as sqrt(ab) sqrt(1 - rho^2) where that keeps its digits.
        root = library.multiply(rho, rho, out=out[0])
        library.subtract(library.asarray(1.0), root, out=root)
        library.sqrt(root, out=root)
        root *= size
        if near is not None:
            root[near] = height
        root += library.multiply(angle, c, out=rho)
        _affine(root, jump / (2 * math.pi), both * c if both else 0.0)
    if 1 in out:
        _affine(angle, jump / (2 * math.pi), both)


def _affine(tile: Any, slope: float, offset: Any) -> None:
    """tile = slope tile + offset, in place, skipping what does nothing."""
    if slope != 1:
        tile *= slope
    if not isinstance(offset, float) or offset:
        tile += offset


def _step_tile(low: float, high: float, a: Tile, b: Tile, c: Tile, out: Targets) -> None:
    """A step from ``low`` to ``high``: <theta theta> = 1/4 + arcsin(rho) / 2 pi."""
    _arcsine(a, b, c, out=out[0])
    _affine(out[0], (high - low) ** 2 / (2 * math.pi), float(low * high))


def _sine_tile(shift: int, a: Tile, b: Tile, c: Tile, out: Targets) -> None:
    """exp(-(a+b)/2) times cosh c for cosines, sinh c for sines, without overflow."""
    library = namespace(c)
    size = library.abs(c, out=_workspace(0, c))
    decay = library.subtract(size, a / 2, out=_workspace(1, c))
    decay -= b / 2
    library.exp(decay, out=decay)
    decay *= 0.5
    size *= -2
    library.expm1(size, out=size)
    for order, target in out.items():
        if (order + shift) % 2:
            library.add(size, 2, out=target)
            target *= decay
        else:
            library.multiply(size, decay, out=target)
            library.copysign(target, c, out=target)


def _determinant(a: Tile, b: Tile, c: Tile) -> tuple[Any, Any]:
    """ab - c^2 and c^2: formed first, since adding to them later loses nothing for nearly parallel inputs."""
    library = namespace(c)
    square = library.multiply(c, c, out=_workspace(0, c))
    determinant = library.multiply(a, b, out=_workspace(1, c))
    determinant -= square
    library.clip(determinant, 0, None, out=determinant)  # what rounding leaves of large variances
    return determinant, square


def _erf_tile(a: Tile, b: Tile, c: Tile, out: Targets) -> None:
    """(2/pi) arcsin(2c / sqrt((1+2a)(1+2b))) and (4/pi) / sqrt((1+2a)(1+2b) - 4c^2)."""
    library = namespace(c)
    if 1 in out:
        determinant, _ = _determinant(a, b, c)
        slope = library.multiply(determinant, 4, out=out[1])
        slope += 1 + 2 * a
        slope += 2 * b
        library.sqrt(slope, out=slope)
        library.reciprocal(slope, out=slope)
        slope *= 4 / math.pi
    if 0 in out:
        sine = library.multiply(c, (0.5 + a) ** -0.5, out=out[0])
        sine *= (0.5 + b) ** -0.5
        library.arcsin(sine, out=sine)
        sine *= 2 / math.pi


def _gelu_tile(a: Tile, b: Tile, c: Tile, out: Targets) -> None:
    """The exact (erf) GELU: with D = (1+a)(1+b) - c^2, q = 1/(1+a) + 1/(1+b), P = arcsin(c / sqrt(..)) / 2 pi + 1/4.

    c P + (ab - c^2 + q c^2) / (2 pi sqrt D) and P + c (1/D + q) / (2 pi sqrt D).
    """
    library, s, t = namespace(c), 1 / (1 + a), 1 / (1 + b)
    determinant, square = _determinant(a, b, c)
    widened = library.add(determinant, 1 + a, out=_workspace(2, c))
    widened += b  # D
    q = library.add(s, t, out=_workspace(3, c))
    numerator = library.multiply(square, q, out=square)
    numerator += determinant
    root = library.sqrt(widened, out=determinant)
    library.reciprocal(root, out=root)
    root *= 1 / (2 * math.pi)
    angle = library.multiply(c, s**0.5, out=_workspace(4, c))
    angle *= t**0.5
    library.arcsin(angle, out=angle)
    angle *= 1 / (2 * math.pi)
    angle += 0.25
    if 1 in out:
        slope = library.multiply(root, root, out=out[1])
        slope *= 4 * math.pi**2
        slope += q
        slope *= root
        slope *= c
        slope += angle
    if 0 in out:
        numerator *= root
        angle *= c
        library.add(numerator, angle, out=out[0])


_SWEEPS: dict[str, Callable[..., None]] = {
    "ScaleInvariant": _scale_invariant_tile,
    "Step": _step_tile,
    "Erf": _erf_tile,
    "Gelu": _gelu_tile,
    "Sine": partial(_sine_tile, 0),
    "Cosine": partial(_sine_tile, 1),
}
