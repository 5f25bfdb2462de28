"""Independent oracles for Gaussian expectations: nothing of foretrain is used in this file.

``line``          one input, composite Gauss-Legendre
``plane``         any number of inputs that span a plane, polar coordinates graded towards the lines z_i = 0
``one_factor``    inputs with one common part, ``z_i = a_i t + s_i y_i``: a line integral of line integrals
``two_factors``   inputs with two common parts
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import mpmath as mp
import numpy as np
from scipy import special

Function = Callable[[Any], Any]
Numbers = Sequence[float] | np.ndarray

_T, _W = np.polynomial.legendre.leggauss(22)
_RADIUS = 12.5
_SELU = (1.0507009873554804934193349852946, 1.6732632423543772848170429916717)


def panels(edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Gauss-Legendre points and weights between sorted edges (last axis)."""
    width = np.diff(edges, axis=-1)[..., None] / 2
    middle = (edges[..., 1:, None] + edges[..., :-1, None]) / 2
    shape = (*edges.shape[:-1], -1)
    return (middle + width * _T).reshape(shape), (width * _W).reshape(shape)


def normal(x: Any) -> Any:
    return np.exp(-0.5 * np.asarray(x) ** 2) / math.sqrt(2 * math.pi)


def line(f: Function, variance: float, mean: float = 0.0, kinks: Sequence[float] = (0.0,)) -> float:
    """E f(mean + sqrt(variance) x)."""
    deviation = math.sqrt(variance)
    count = math.ceil(2 * _RADIUS / min(0.5, 0.3 / deviation))
    breaks = [(k - mean) / deviation for k in kinks]
    inside = [b for b in breaks if abs(b) < _RADIUS]
    graded = [b + s * 2.0**-k for b in inside for s in (-1, 1) for k in range(20)]
    x, w = panels(
        np.sort(np.concatenate([np.linspace(-_RADIUS, _RADIUS, count + 1), inside, np.clip(graded, -12, 12)]))
    )
    return float(np.sum(w * normal(x) * f(mean + deviation * x)))


def angle(K: Any) -> float:
    """The angle between two inputs, with no loss for nearly parallel ones."""
    with mp.workdps(60):
        a, b, c = (mp.mpf(float(v)) for v in (K[0][0], K[1][1], K[0][1]))
        return float(mp.atan2(mp.sqrt(max(a * b - c * c, mp.mpf(0))), c))


def _sector(start: float, stop: float, finest: float) -> np.ndarray:
    """Edges between two rays, graded towards both."""
    width = stop - start
    count = max(2, math.ceil(math.log2(width / finest)))
    share = width / 2 * 2.0 ** -np.arange(count)
    edges = np.concatenate([[start], start + share[::-1], stop - share[1:], [stop]])
    return np.sort(edges)


def plane(functions: Sequence[Function], deviations: Numbers, angles: Numbers) -> float:
    """E prod f_i(d_i r cos(phi - alpha_i)) over the plane; kinks at zero only."""
    rays = sorted({(a + s * math.pi / 2) % (2 * math.pi) for a in angles for s in (-1, 1)})
    rays.append(rays[0] + 2 * math.pi)
    finest = 1e-2 / max(1.0, *deviations)
    edges = [_sector(a, b, finest) for a, b in itertools.pairwise(rays) if b - a > 1e-15]
    small = 1.5 * 2.0 ** -np.arange(1, 4 + math.ceil(math.log2(max(1.0, *deviations))))
    radii = np.concatenate([[0.0], small[::-1], np.arange(1.5, _RADIUS + 0.1, 1.0)])
    r, wr = panels(radii)
    total = 0.0
    for part in edges:
        phi, wp = panels(part)
        product = np.ones((len(phi), len(r)))
        for f, d, alpha in zip(functions, deviations, angles):
            product *= f(d * np.cos(phi - alpha)[:, None] * r)
        total += float(wp @ product @ (wr * r * np.exp(-0.5 * r**2)))
    return total / (2 * math.pi)


def pair(f: Function, g: Function, K: Any) -> float:
    """E f(z_1) g(z_2), kinks at zero only."""
    return plane([f, g], [math.sqrt(K[0][0]), math.sqrt(K[1][1])], [0.0, angle(K)])


def smoothed(f: Function, points: np.ndarray, width: float, kinks: Sequence[float] = (0.0,)) -> np.ndarray:
    """E f(point + width y) at many points."""
    count = math.ceil(2 * _RADIUS / min(1.0, 0.6 / width))
    base = np.broadcast_to(np.linspace(-_RADIUS, _RADIUS, count + 1), (len(points), count + 1))
    breaks = [np.clip((k - points[:, None]) / width, -_RADIUS, _RADIUS) for k in kinks]
    y, w = panels(np.sort(np.concatenate([base, *breaks], axis=1), axis=1))
    return np.asarray(np.sum(w * normal(y) * f(points[:, None] + width * y), axis=1))


def one_factor(
    functions: Sequence[Function],
    common: Numbers,
    own: Numbers,
    kinks: Sequence[float] = (0.0,),
) -> float:
    """E prod f_i(common_i t + own_i y_i), all own_i > 0."""
    finest = min(s / max(abs(a), 1e-300) for a, s in zip(common, own))
    count = math.ceil(2 * _RADIUS / min(0.5, finest, 0.5 / max(1.0, *np.abs(common))))
    t, w = panels(np.linspace(-_RADIUS, _RADIUS, count + 1))
    product = w * normal(t)
    for f, a, s in zip(functions, common, own):
        product *= smoothed(f, a * t, s, kinks)
    return float(product.sum())


def one_factor_covariance(common: Numbers, own: Numbers) -> np.ndarray:
    return np.outer(common, common) + np.diag(np.square(own))


def two_factors(functions: Sequence[Function], common: np.ndarray, own: Numbers) -> float:
    """E prod f_i(common_i . t + own_i y_i) with t in two dimensions, all own_i of order one."""
    t, w = panels(np.linspace(-8.5, 8.5, 15))
    weight = w * normal(t)
    first, second = np.meshgrid(t, t, indexing="ij")
    product = np.outer(weight, weight)
    for f, row, s in zip(functions, common, own):
        m = (row[0] * first + row[1] * second).ravel()
        grid = np.linspace(-1, 1, 2 * math.ceil(np.abs(m).max() / min(0.4, s)) + 1) * np.abs(m).max()
        product *= _through_table(f, s, grid, m).reshape(product.shape)
    return float(product.sum())


def _through_table(f: Function, width: float, edges: np.ndarray, m: np.ndarray) -> np.ndarray:
    """E f(m + width y) by Legendre series on cells."""
    nodes, _ = panels(edges)
    values = smoothed(f, nodes, width).reshape(-1, len(_T))
    series = np.linalg.solve(np.polynomial.legendre.legvander(_T, len(_T) - 1), values.T)
    cell = np.clip(np.searchsorted(edges, m) - 1, 0, len(edges) - 2)
    local = (2 * m - edges[cell] - edges[cell + 1]) / (edges[cell + 1] - edges[cell])
    return np.asarray(np.polynomial.legendre.legval(local, series[:, cell], tensor=False))


def sines(sine: Sequence[bool], K: Any) -> float:
    """E of a product of sines (True) and cosines, by characteristic functions in 60 digits."""
    n, odd = len(sine), sum(sine)
    if odd % 2:
        return 0.0
    with mp.workdps(60):
        total = mp.mpf(0)
        for bits in range(2**n):
            s = [1 - 2 * (bits >> i & 1) for i in range(n)]
            form = sum(s[i] * s[j] * mp.mpf(float(K[i][j])) for i in range(n) for j in range(n))
            total += math.prod(s[i] for i in range(n) if sine[i]) * mp.exp(-form / 2)
        return float((-1) ** (odd // 2) * total / 2**n)


def random_covariance(rng: np.random.Generator, n: int, largest: float = 1.0) -> np.ndarray:
    A = rng.standard_normal((n, n + 1))
    K = A @ A.T
    return np.asarray(K * (largest / np.diagonal(K).max()))


def _logistic(z: Any) -> Any:
    return special.expit(z)


def _logistic1(z: Any) -> Any:
    return special.expit(z) * special.expit(-z)


def _logistic2(z: Any) -> Any:
    return -_logistic1(z) * np.tanh(z / 2)


def _sech2(z: Any) -> Any:
    return 4 * _logistic1(2 * z)


def _mish(z: Any, order: int) -> Any:
    t, s = np.tanh(np.logaddexp(0, z)), _logistic(z)
    t1 = (1 - t**2) * s
    t2 = -2 * t * (1 - t**2) * s**2 + (1 - t**2) * _logistic1(z)
    return (z * t, t + z * t1, 2 * t1 + z * t2)[order]


def _gelu_tanh(z: Any, order: int) -> Any:
    c = math.sqrt(2 / math.pi)
    u, u1, u2 = c * (z + 0.044715 * z**3), c * (1 + 0.134145 * z**2), c * 0.26829 * z
    g = _logistic(2 * u)
    g1 = 0.5 * _sech2(u) * u1
    g2 = 0.5 * _sech2(u) * (u2 - 2 * np.tanh(u) * u1**2)
    return (z * g, g + z * g1, 2 * g1 + z * g2)[order]


def _exponential(alpha: float, scale: float, order: int) -> Function:
    def f(z: Any) -> Any:
        below = np.minimum(z, 0.0)
        left = alpha * (np.expm1(below) if order == 0 else np.exp(below))
        return scale * np.where(z < 0, left, (z, 1.0, 0.0)[order])

    return f


SMOOTH: dict[str, tuple[Function, Function, Function]] = {
    "sigmoid": (_logistic, _logistic1, _logistic2),
    "tanh": (np.tanh, _sech2, lambda z: -2 * np.tanh(z) * _sech2(z)),
    "erf": (
        special.erf,
        lambda z: 2 / math.sqrt(math.pi) * np.exp(-(z**2)),
        lambda z: -4 * z / math.sqrt(math.pi) * np.exp(-(z**2)),
    ),
    "sin": (np.sin, np.cos, lambda z: -np.sin(z)),
    "cos": (np.cos, lambda z: -np.sin(z), lambda z: -np.cos(z)),
    "softplus": (lambda z: np.logaddexp(0, z), _logistic, _logistic1),
    "swish": (
        lambda z: z * _logistic(z),
        lambda z: _logistic(z) + z * _logistic1(z),
        lambda z: 2 * _logistic1(z) + z * _logistic2(z),
    ),
    "gelu": (
        lambda z: z * special.ndtr(z),
        lambda z: special.ndtr(z) + z * normal(z),
        lambda z: (2 - z**2) * normal(z),
    ),
    "gelu_tanh": (lambda z: _gelu_tanh(z, 0), lambda z: _gelu_tanh(z, 1), lambda z: _gelu_tanh(z, 2)),
    "mish": (lambda z: _mish(z, 0), lambda z: _mish(z, 1), lambda z: _mish(z, 2)),
}
"""Value and two derivatives of the smooth members of the catalogue."""

KINKED: dict[str, tuple[Function, Function, Function]] = {
    "relu": (lambda z: np.maximum(z, 0), lambda z: 1.0 * (z > 0), np.zeros_like),
    "leaky_relu(slope=0.1)": (
        lambda z: np.where(z > 0, z, 0.1 * z),
        lambda z: np.where(z > 0, 1.0, 0.1),
        np.zeros_like,
    ),
    "abs": (np.abs, np.sign, np.zeros_like),
    "softsign": (
        lambda z: z / (1 + np.abs(z)),
        lambda z: (1 + np.abs(z)) ** -2.0,
        lambda z: -2 * np.sign(z) * (1 + np.abs(z)) ** -3.0,
    ),
    "elu": (_exponential(1, 1, 0), _exponential(1, 1, 1), _exponential(1, 1, 2)),
    "selu": (
        _exponential(_SELU[1], _SELU[0], 0),
        _exponential(_SELU[1], _SELU[0], 1),
        _exponential(_SELU[1], _SELU[0], 2),
    ),
}
"""The same for members with a kink at zero, away from the kink."""

FUNCTIONS = {**SMOOTH, **KINKED}

PRODUCTS: dict[str, Callable[[tuple[Function, Function, Function]], Function]] = {
    "s": lambda s: s[0],
    "s'": lambda s: s[1],
    "s''": lambda s: s[2],
    "z s'": lambda s: lambda t: t * s[1](t),
    "s^2": lambda s: lambda t: s[0](t) ** 2,
    "s^4": lambda s: lambda t: s[0](t) ** 4,
}
"""What stands at one input, as a plain function of the value and two derivatives (delta functions left out)."""

VARIANCES = (1e-8, 1e-3, 1.0, 30.0, 100.0)
CORRELATIONS = (0.0, 0.5, 0.9, 0.999, 1 - 1e-8, 1 - 1e-12, 1.0, -1.0, -0.999)


def two(variance: float, correlation: float, ratio: float = 1.0) -> np.ndarray:
    """A covariance of two inputs, the second ``ratio`` times as long."""
    return np.array([[1.0, correlation * ratio], [correlation * ratio, ratio**2]]) * variance


def size(functions: Sequence[Function], K: Any, kinks: Sequence[float] = (0.0,)) -> float:
    """sqrt(prod <f_i^2>), to which accuracy is relative."""
    squares = [line(lambda t, f=f: f(t) ** 2, float(K[i][i]), 0.0, kinks) for i, f in enumerate(functions)]
    return math.sqrt(math.prod(squares))


def check(found: Any, true: float, scale: float, tolerance: float) -> None:
    """The target is met, and the error estimate is honest (up to rounding)."""
    error = abs(float(found.value) - true)
    assert error <= tolerance * scale, f"{found!r} is off by {error:.1e}, scale {scale:.1e}"
    assert error <= float(found.error) + 1e-13 * scale, f"{found!r} is off by {error:.1e}"
