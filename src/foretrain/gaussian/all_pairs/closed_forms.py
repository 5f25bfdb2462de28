"""Closed forms of <sigma sigma> and <sigma' sigma'> for whole tiles of pairs, written for speed.

Each function takes the variances of the rows (m, 1) and columns (1, n) and the covariances (m, n) of a tile, or all
of one shape for a list of pairs, in float32 or float64, and fills the targets of the orders asked for; what two
orders share is computed once.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretrain.activations import Activation
from foretrain.gaussian.covariance import difference_of_products
from foretrain.gaussian.factors import Factor

Array = NDArray[np.float64]
Tile = NDArray[Any]
Targets = Mapping[int, Tile]
TileRule = Callable[[Tile, Tile, Tile, Targets], None]

_local = threading.local()
_NEARLY_PARALLEL = {"float64": 1e-2, "float32": 1e-4}


def closed_pair(f: Factor, g: Factor) -> tuple[Activation, int] | None:
    """The activation and order if <f g> is a closed form of this file, else None."""
    if f.terms != g.terms or len(f.terms) != 1 or f.polynomial != (1.0,) or g.polynomial != (1.0,):
        return None
    term = f.terms[0]
    offered = _orders_of(term.activation)
    return (term.activation, term.order) if term.power == 1 and term.order in offered else None


def _orders_of(activation: Activation) -> tuple[int, ...]:
    if activation.slopes is not None or activation.closed_form in ("erf", "gelu", "sine"):
        return (0, 1)
    return (0,) if activation.degree == 0 and activation.pieces is not None else ()


def tile_rule(activation: Activation) -> TileRule:
    """The function that fills tiles for this activation."""
    if activation.slopes is not None:
        return partial(_scale_invariant, *activation.slopes)
    if activation.degree == 0 and activation.pieces is not None:
        return partial(_steps, activation.pieces[0][0], activation.pieces[1][0])
    if activation.closed_form == "sine":
        return partial(_sines, 0 if activation.name == "sin" else 1)
    return _erf if activation.closed_form == "erf" else _gelu


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
    kept, size = _local.__dict__, math.prod(shape)
    key = f"{np.dtype(dtype).name} {slot}"
    if key not in kept or kept[key].size < size:
        kept[key] = np.empty(size, dtype=dtype)
    return np.asarray(kept[key][:size].reshape(shape))


def _workspace(slot: int, like: Tile) -> Tile:
    return workspace(slot, like.shape, like.dtype)


def _correlation(a: Tile, b: Tile, c: Tile) -> tuple[Tile, float]:
    """The correlation, zero where a variance is zero, in [-1, 1], and its largest size."""
    with np.errstate(divide="ignore"):
        inverse = [np.where(v > 0, 1 / np.sqrt(v), 0).astype(c.dtype, copy=False) for v in (a, b)]
    rho = np.multiply(c, inverse[0], out=_workspace(0, c))
    rho *= inverse[1]
    largest = max(float(rho.max()), -float(rho.min()))
    if largest > 1:
        np.clip(rho, -1, 1, out=rho)
    return rho, largest


def _arcsine(a: Tile, b: Tile, c: Tile, out: Tile) -> tuple[Any, Array]:
    """arcsin of the correlation plus pi/2, and for nearly parallel pairs their positions and sqrt(ab - c^2).

    Those pairs go through the exact determinant, in float64 also for float32: it keeps the digits of a small angle.
    """
    rho, largest = _correlation(a, b, c)
    limit = 1 - _NEARLY_PARALLEL[c.dtype.name]
    near: Any = (slice(0), slice(0))
    height = np.empty((0, 0))
    np.arcsin(rho, out=out)
    if largest > limit:
        near = np.nonzero(np.abs(rho, out=rho) > limit)
        covariance = c[near].astype(np.float64)
        of_row, of_column = (np.broadcast_to(v, c.shape)[near] for v in (a, b))
        determinant = difference_of_products(of_row, of_column, covariance, covariance)
        height = np.sqrt(np.maximum(determinant, 0.0))
        out[near] = np.arctan2(covariance, height)
    out += math.pi / 2
    return near, height


def _scale_invariant(minus: float, plus: float, a: Tile, b: Tile, c: Tile, out: Targets) -> None:
    """(5.159), (5.161): sigma = plus z for z > 0 and minus z for z < 0."""
    jump, both = (plus - minus) ** 2, plus * minus
    angle = out[1] if 1 in out else _workspace(1, c)
    near, height = _arcsine(a, b, c, out=angle)
    if 0 in out:
        square = np.multiply(c, c, out=_workspace(0, c))
        root = np.multiply(a, b, out=out[0])
        root -= square
        with np.errstate(invalid="ignore"):  # below zero only by rounding, where the inputs are parallel
            np.sqrt(root, out=root)
        root[near] = height
        root += np.multiply(angle, c, out=square)
        _affine(root, jump / (2 * math.pi), both * c if both else 0.0)
    if 1 in out:
        _affine(angle, jump / (2 * math.pi), both)


def _affine(tile: Tile, slope: float, offset: Any) -> None:
    """tile = slope tile + offset, in place, skipping what does nothing."""
    if slope != 1:
        tile *= slope
    if np.any(offset):
        tile += offset


def _steps(low: float, high: float, a: Tile, b: Tile, c: Tile, out: Targets) -> None:
    """A step from ``low`` to ``high``: <theta theta> = 1/4 + arcsin(rho) / 2 pi."""
    _arcsine(a, b, c, out=out[0])
    _affine(out[0], (high - low) ** 2 / (2 * math.pi), low * high)


def _sines(shift: int, a: Tile, b: Tile, c: Tile, out: Targets) -> None:
    """exp(-(a+b)/2) times cosh c for cosines, sinh c for sines, without overflow."""
    size = np.abs(c, out=_workspace(0, c))
    decay = np.subtract(size, a / 2, out=_workspace(1, c))
    decay -= b / 2
    np.exp(decay, out=decay)
    decay *= 0.5
    size *= -2
    np.expm1(size, out=size)
    for order, target in out.items():
        if (order + shift) % 2:
            np.add(size, 2, out=target)
            target *= decay
        else:
            np.multiply(size, decay, out=target)
            np.copysign(target, c, out=target)


def _determinant(a: Tile, b: Tile, c: Tile) -> tuple[Tile, Tile]:
    """ab - c^2 and c^2: formed first, since adding to them later loses nothing for nearly parallel inputs."""
    square = np.multiply(c, c, out=_workspace(0, c))
    determinant = np.multiply(a, b, out=_workspace(1, c))
    determinant -= square
    return determinant, square


def _erf(a: Tile, b: Tile, c: Tile, out: Targets) -> None:
    """(2/pi) arcsin(2c / sqrt((1+2a)(1+2b))) and (4/pi) / sqrt((1+2a)(1+2b) - 4c^2)."""
    if 1 in out:
        determinant, _ = _determinant(a, b, c)
        slope = np.multiply(determinant, 4, out=out[1])
        slope += 1 + 2 * a
        slope += 2 * b
        np.sqrt(slope, out=slope)
        np.divide(4 / math.pi, slope, out=slope)
    if 0 in out:
        sine = np.multiply(c, 1 / np.sqrt(0.5 + a), out=out[0])
        sine *= 1 / np.sqrt(0.5 + b)
        np.arcsin(sine, out=sine)
        sine *= 2 / math.pi


def _gelu(a: Tile, b: Tile, c: Tile, out: Targets) -> None:
    """The exact (erf) GELU: with D = (1+a)(1+b) - c^2 and q = 1/(1+a) + 1/(1+b), see the reference's closed forms."""
    s, t = 1 / (1 + a), 1 / (1 + b)
    determinant, square = _determinant(a, b, c)
    widened = np.add(determinant, 1 + a, out=_workspace(2, c))
    widened += b  # D
    q = np.add(s, t, out=_workspace(3, c))
    numerator = np.multiply(square, q, out=square)
    numerator += determinant
    root = np.sqrt(widened, out=determinant)
    np.divide(1 / (2 * math.pi), root, out=root)
    angle = np.multiply(c, np.sqrt(s), out=_workspace(4, c))
    angle *= np.sqrt(t)
    np.arcsin(angle, out=angle)
    angle *= 1 / (2 * math.pi)
    angle += 0.25
    if 1 in out:
        slope = np.divide(numerator, widened, out=out[1])
        q *= 2
        slope += q
        slope -= 1
        slope *= root
        slope *= c
        slope += angle
    if 0 in out:
        numerator *= root
        angle *= c
        np.add(numerator, angle, out=out[0])
