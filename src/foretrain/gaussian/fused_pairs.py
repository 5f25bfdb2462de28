"""Closed forms of all pairs in one pass, compiled by numba (the extra ``fast``) when a rule is first called.

A pass reads each covariance once and writes <sigma sigma> and <sigma' sigma'>, where the sweeps of
:mod:`foretrain.gaussian.closed_forms` read and write ten to twenty arrays. Each law is a function of one pair without
branches, so that the compiler computes eight pairs at a time, or sixteen in float32.

The determinant ab - c^2 is exact to its last digits for any two inputs (what rounding takes from a product is one
fused multiplication and addition), in float64 for float32 too: nearly parallel inputs need no case of their own.

Import this module only for a job that :func:`foretrain.support.acceleration.accelerates`. Numba compiles anew when
this file changes, not when another one does: what its loops call must stand here too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numba import types
from numba.extending import intrinsic, overload
from numpy.typing import NDArray

from foretrain.support.acceleration import call, kept, part

Tile = NDArray[Any]

_PI, _HALF_PI, _QUARTER_PI = math.pi, math.pi / 2, math.pi / 4
_PARALLEL = 8e-15  # as in closed_forms: 1 - rho^2 that rounding leaves of two equal inputs
_AT_ONCE = 512  # pairs whose variances are laid out first
_SIDE = np.uint64(32)  # of a tile whose mirror image is read
_ZERO = np.uint64(0)  # numba knows of a number without sign that it does not count from the end of an array
_RANGE = {
    8: (1e-75, 1e75),
    4: (1e-30, 1e12),
}  # variances whose products and cubes are floats, by the bytes of one


class ScaleInvariant(NamedTuple):
    """sigma = plus z for z > 0 and minus z for z < 0."""

    minus: float
    plus: float


class Step(NamedTuple):
    """``low`` for z < 0 and ``high`` for z > 0; of its slope there is no closed form here."""

    low: float
    high: float


class Erf(NamedTuple):
    """The error function."""


class Gelu(NamedTuple):
    """The exact (erf) GELU."""


class Sine(NamedTuple):
    """The sine."""


class Cosine(NamedTuple):
    """The cosine."""


Law = ScaleInvariant | Step | Erf | Gelu | Sine | Cosine


# Numbers, of the precision of the covariances


def _as(like: float, x: float) -> float:
    """x with the precision of another number."""
    raise NotImplementedError("only compiled code calls this")


@overload(_as, strict=False)  # type: ignore[untyped-decorator]
def _as_type(like: Any, x: Any) -> Any:
    return (lambda like, x: np.float32(x)) if like is types.float32 else (lambda like, x: np.float64(x))


@intrinsic  # type: ignore[untyped-decorator]
def _fma(typing: Any, x: Any, y: Any, z: Any) -> Any:
    """x y + z of three numbers of one type, rounded once."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.fma(*arguments)

    return x(x, x, x), generate


@intrinsic  # type: ignore[untyped-decorator]
def _power_of_two(typing: Any, shifted: Any) -> Any:
    """2^n for the sum of n and :data:`_SHIFT`, whose lowest bits are the exponent of 2^n."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        integer, real = (context.get_value_type(one) for one in (types.int64, types.float64))
        bits = builder.bitcast(arguments[0], integer)
        return builder.bitcast(builder.shl(bits, integer(52)), real)

    return types.float64(types.float64), generate


@part
def _determinant(a: float, b: float, c: float, least: float) -> float:
    """ab - c^2 in float64, to 1.5 units of its last digit (Kahan); 0 below ``least`` times ab."""
    a, b, c = np.float64(a), np.float64(b), np.float64(c)
    square = c * c
    found = _fma(a, b, -square) + _fma(-c, c, square)
    return 0.0 if found <= least * (a * b) else found


def _tail(w: float) -> float:
    """(atan(z) / z - 1) / z^2 for w = z^2."""
    raise NotImplementedError("only compiled code calls this")


@overload(_tail, strict=False)  # type: ignore[untyped-decorator]
def _tail_of(w: Any) -> Any:
    """Minimax for |z| <= tan(pi/8): z^3 times the error is below 2e-18 z, and 7e-10 z in float32."""

    def in_float32(w: Any) -> Any:
        p = _fma(_as(w, -0.0608344804409434), w, _as(w, 0.10595999623501368))
        p = _fma(p, w, _as(w, -0.1424384851349453))
        p = _fma(p, w, _as(w, 0.19998489427492883))
        return _fma(p, w, _as(w, -0.3333331550514389))

    def in_float64(w: Any) -> Any:
        p = _fma(-0.01792232616952146, w, 0.038078364837349)
        p = _fma(p, w, -0.050398472854850426)
        p = _fma(p, w, 0.05848009321365432)
        p = _fma(p, w, -0.06663120441200972)
        p = _fma(p, w, 0.07692061642292407)
        p = _fma(p, w, -0.09090897836745394)
        p = _fma(p, w, 0.11111110786148139)
        p = _fma(p, w, -0.14285714280248707)
        p = _fma(p, w, 0.19999999999954085)
        return _fma(p, w, -0.333333333333332)

    return in_float32 if w is types.float32 else in_float64


@part
def _angles(c: float, height: float) -> tuple[float, float]:
    """atan2(c, height) for height >= 0, and pi/2 more: each as exact where it is small. 0 and pi/2 for two zeros."""
    size, half = abs(c), _as(c, _HALF_PI)
    flat = height >= size
    small, large = (size, height) if flat else (height, size)
    wide = small > _as(c, math.tan(math.pi / 8)) * large
    # atan(small / large) is pi/4 + atan((small - large) / (small + large)), if it is wide.
    numerator = small - large if wide else small
    denominator = small + large if wide else large
    z = numerator / (_as(c, 1.0) if denominator == 0 else denominator)
    angle = _fma(_tail(z * z) * (z * z), z, z) + (_as(c, _QUARTER_PI) if wide else _as(c, 0.0))
    rise = angle if flat else half - angle  # atan2(size, height)
    fall = half - angle if flat else angle  # its complement
    return math.copysign(rise, c), fall if c < 0 else half + rise


_LOG2_HIGH, _LOG2_LOW, _LOG2_E = 0.6931471803691238, 1.9082149292705877e-10, 1 / math.log(2)
_SHIFT = 1.5 * 2.0**52 + 1023  # adding it rounds to integers
_LOWEST = -708.0  # of arguments whose exponential is still a normal number


@part
def _exponential(x: float) -> tuple[float, float]:
    """2^n and exp(r) - 1 with exp(x) = 2^n exp(r), for x between -708 and 708."""
    shifted = x * _LOG2_E + _SHIFT
    n = shifted - _SHIFT
    r = _fma(n, -_LOG2_LOW, _fma(n, -_LOG2_HIGH, x))
    # (exp(r) - 1 - r) / r^2: minimax for |r| <= log(2)/2, r^2 times the error is below 4e-18.
    p = _fma(2.511789791382153e-08, r, 2.76312638807891e-07)
    p = _fma(p, r, 2.755721616408463e-06)
    p = _fma(p, r, 2.4801489986317794e-05)
    p = _fma(p, r, 0.00019841269917560313)
    p = _fma(p, r, 0.0013888888946975502)
    p = _fma(p, r, 0.008333333333307113)
    p = _fma(p, r, 0.04166666666651556)
    p = _fma(p, r, 0.166666666666667)
    p = _fma(p, r, 0.5000000000000012)
    return _power_of_two(shifted), _fma(p * r, r, r)


# Laws: <sigma sigma> and <sigma' sigma'> of one pair with variances a, b and covariance c


def _scale_invariant(law: ScaleInvariant, a: float, b: float, c: float) -> tuple[float, float]:
    """(5.159), (5.161)."""
    height = _as(c, math.sqrt(_determinant(a, b, c, _PARALLEL)))
    _, angle = _angles(c, height)
    jump = _as(c, (law.plus - law.minus) ** 2 * (0.5 / _PI))
    both = _as(c, law.plus * law.minus)
    return jump * _fma(c, angle, height) + both * c, jump * angle + both


def _step(law: Step, a: float, b: float, c: float) -> tuple[float, float]:
    """1/4 + arcsin(rho) / 2 pi for a step from 0 to 1."""
    _, angle = _angles(c, _as(c, math.sqrt(_determinant(a, b, c, _PARALLEL))))
    jump = _as(c, (law.high - law.low) ** 2 * (0.5 / _PI))
    return jump * angle + _as(c, law.low * law.high), angle


def _erf(law: Erf, a: float, b: float, c: float) -> tuple[float, float]:
    """With D = (1 + 2a)(1 + 2b) - 4c^2: (2/pi) atan2(2c, sqrt D) and (4/pi) / sqrt D."""
    D = _fma(4.0, _determinant(a, b, c, 0.0), 1 + 2 * (np.float64(a) + np.float64(b)))
    height = _as(c, math.sqrt(D))
    angle, _ = _angles(c + c, height)
    return angle * _as(c, 2 / _PI), _as(c, 4 / _PI) / height


def _gelu(law: Gelu, a: float, b: float, c: float) -> tuple[float, float]:
    """With D = (1 + a)(1 + b) - c^2 and q = 1/(1 + a) + 1/(1 + b), as the rule of closed_forms."""
    determinant, one, turn = _determinant(a, b, c, 0.0), _as(c, 1.0), _as(c, 0.5 / _PI)
    height = _as(c, math.sqrt(determinant + (1 + (np.float64(a) + np.float64(b)))))
    widened = (one + a) * (one + b)
    both = one / (widened * height)  # one division for two
    inverse, q = widened * both, (one + a + (one + b)) * height * both  # 1 / sqrt D
    numerator, root = _fma(c * c, q, _as(c, determinant)), inverse * turn
    _, angle = _angles(c, height)
    share = angle * turn
    return _fma(numerator, root, c * share), _fma(c * root, _fma(inverse, inverse, q), share)


@part
def _hyperbolic(a: float, b: float, c: float) -> tuple[float, float]:
    """exp(-(a + b)/2) times sinh c and cosh c in float64, without overflow."""
    size = abs(np.float64(c))
    exponent = -0.5 * ((np.float64(a) - size) + (np.float64(b) - size))
    bounded = -_LOWEST if exponent > -_LOWEST else exponent
    whole, rest = _exponential(_LOWEST if bounded < _LOWEST else bounded)
    half = 0.0 if exponent < _LOWEST else 0.5 * _fma(whole, rest, whole)
    power, left = _exponential(_LOWEST if -2 * size < _LOWEST else -2 * size)
    less = _fma(power, left, power - 1)  # exp(-2 size) - 1
    return math.copysign(-less * half, c), (less + 2) * half


def _sine(law: Sine, a: float, b: float, c: float) -> tuple[float, float]:
    return _hyperbolic(a, b, c)


def _cosine(law: Cosine, a: float, b: float, c: float) -> tuple[float, float]:
    slope, value = _hyperbolic(a, b, c)
    return value, slope


_MEANS: dict[type[Law], Callable[..., tuple[float, float]]] = {
    ScaleInvariant: _scale_invariant,
    Step: _step,
    Erf: _erf,
    Gelu: _gelu,
    Sine: _sine,
    Cosine: _cosine,
}
LAWS: dict[str, Callable[..., Law]] = {law.__name__: law for law in _MEANS}


def _means(law: Law, a: float, b: float, c: float) -> tuple[float, float]:
    """Of the law, whichever it is."""
    raise NotImplementedError("only compiled code calls this")


@overload(_means, strict=False)  # type: ignore[untyped-decorator]
def _means_of(law: Any, a: Any, b: Any, c: Any) -> Any:
    return _MEANS[law.instance_class]


# All pairs


@kept
def _fill(
    law: Law, a: Tile, b: Tile, c: Tile, first_a: Any, first_b: Any, n: Any, lists: bool, left: Tile, right: Tile,
    value: Any, slope: Any,
) -> None:  # fmt: skip
    """Rows of n covariances, whose variances begin at these entries of a and b.

    The entries of b go on along a row; those of a do where both are ``lists``, else a row has one. The variances of
    some rows at a time are laid out in ``left`` and ``right``.
    """
    at_once, rows = np.uint64(len(left)) // n, np.uint64(len(first_a))
    for first in range(_ZERO, rows, at_once):
        some = min(at_once, rows - first)
        for row in range(some):
            start, start_a, start_b = row * n, first_a[first + row], first_b[first + row]
            for k in range(n):
                left[start + k] = a[start_a + k] if lists else a[start_a]
                right[start + k] = b[start_b + k]
        for k in range(some * n):
            found = _means(law, left[k], right[k], c[first * n + k])
            if value is not None:
                value[first * n + k] = found[0]
            if slope is not None:
                slope[first * n + k] = found[1]


@lru_cache(maxsize=256)
def _first_entries(given: tuple[int, ...], shape: tuple[int, ...]) -> NDArray[np.uint64]:
    """Where the variances of each row of covariances of a shape begin in an array that broadcasts with it."""
    numbers = np.arange(math.prod(given), dtype=np.uint64).reshape(given)
    return np.broadcast_to(numbers[..., :1], (*shape[:-1], 1)).flatten()


def fill(
    law: Law, otherwise: Callable[..., None], a: Tile, b: Tile, c: Tile, out: Mapping[int, Tile]
) -> None:
    """As the tile rules of :mod:`foretrain.gaussian.closed_forms`.

    Those do the work (``otherwise``) where variances are so large or small that their products are no floats.
    """
    if not (_has_products(a) and _has_products(b)):
        otherwise(a, b, c, out)
        return
    if not c.size:
        return
    axes = [k for k, n in enumerate(c.shape) if n > 1] or [c.ndim - 1]
    a, b, c = (one.reshape([one.shape[k] for k in axes]) for one in (a, b, c))
    if a.shape[-1] > b.shape[-1]:  # all laws are symmetric
        a, b = b, a
    targets = {order: np.ascontiguousarray(target) for order, target in out.items()}
    value, slope = (None if order not in targets else targets[order].ravel() for order in (0, 1))
    starts = (_first_entries(one.shape, c.shape) for one in (a, b))
    flat = (np.ascontiguousarray(one).ravel() for one in (a, b, c))
    n = c.shape[-1]
    laid_out = np.empty((2, max(n, _AT_ONCE // n * n)), dtype=c.dtype)
    call(_fill, law, *flat, *starts, np.uint64(n), a.shape[-1] > 1, *laid_out, value, slope)
    for order, target in targets.items():
        if target is not out[order]:
            out[order][...] = target


def _has_products(variance: Tile) -> bool:
    """Whether products of variances are floats, and zero only where a variance is."""
    positive, (low, high) = variance[variance > 0], _RANGE[variance.dtype.itemsize]
    return not positive.size or low < float(positive.min()) <= float(positive.max()) < high


@kept
def _horner(a: Tile, b: Tile, power: Tile, out: Tile) -> None:
    """sum_k a_ik b_kj power_ij^k for tiles (m, terms), (terms, n) and (m, n); four terms at a time."""
    for i in range(len(a)):
        row, of_powers = out[i], power[i]
        for j in range(len(row)):
            row[j] = 0
        for done in range(0, len(b), 4):
            k = len(b) - done
            a3, a2, a1, a0 = a[i, k - 1], a[i, k - 2], a[i, k - 3], a[i, k - 4]
            b3, b2, b1, b0 = b[k - 1], b[k - 2], b[k - 3], b[k - 4]
            for j in range(len(row)):
                p = of_powers[j]
                total = _fma(row[j], p, a3 * b3[j])
                total = _fma(total, p, a2 * b2[j])
                total = _fma(total, p, a1 * b1[j])
                row[j] = _fma(total, p, a0 * b0[j])


def horner(a: Tile, b: Tile, power: Tile) -> Tile:
    """sum_k a_ki b_kj power_ij^k of coefficients (terms, m) and (terms, n)."""
    terms = len(a) + -len(a) % 4
    first, second = np.zeros((a.shape[1], terms), a.dtype), np.zeros((terms, b.shape[1]), b.dtype)
    first[:, : len(a)], second[: len(b)] = a.T, b
    out = np.empty_like(power)
    call(_horner, first, second, np.ascontiguousarray(power), out)
    return out


@kept
def _is_sound(K: Tile, wide: Tile, allowed: float, first: Any, end: Any, turned: Tile) -> bool:
    """Whether K_ij = K_ji up to what is allowed, and |K_ij| <= wide_i wide_j, for these rows i and all j >= i.

    Tile by tile, each K_ji brought beside K_ij first, so that many are compared at a time. NaN is not sound.
    """
    size, bad = np.uint64(len(K)), 0
    for top in range(first, end, _SIDE):
        height = min(_SIDE, end - top)
        for left in range(top, size, _SIDE):
            width = min(_SIDE, size - left)
            for j in range(width):
                for i in range(height):
                    turned[i, j] = K[left + j, top + i]
            for i in range(height):
                row, of_row, mirror = K[top + i], wide[top + i], turned[i]
                for j in range(width):
                    entry = row[left + j]
                    near = abs(entry - mirror[j]) <= allowed
                    bad += not (near & (abs(entry) <= of_row * wide[left + j]))
    return bad == 0


def is_sound(K: Tile, wide: Tile, allowed: float, first: int, end: int) -> bool:
    """Whether these rows of a matrix (N, N) are those of a covariance, as far as pairs tell."""
    turned = np.empty((int(_SIDE), int(_SIDE)), K.dtype)
    return bool(call(_is_sound, K, wide, K.dtype.type(allowed), np.uint64(first), np.uint64(end), turned))
