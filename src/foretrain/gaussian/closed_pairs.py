"""Closed forms of <sigma sigma> and <sigma' sigma'> for whole tiles of pairs, written for speed.

Each function takes the variances of the rows (m, 1) and columns (1, n) and the covariances (m, n) of a tile, in
float32 or float64, and fills the targets of the orders asked for; what two orders share is computed once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretrain.activations import Activation
from foretrain.gaussian.covariance import difference_of_products
from foretrain.gaussian.factors import Factor

Tile = NDArray[Any]
Targets = Mapping[int, Tile]
TileRule = Callable[[Tile, Tile, Tile, Targets], None]

_NEARLY_PARALLEL = 1e-6


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


def _correlation(a: Tile, b: Tile, c: Tile) -> tuple[Tile, Tile]:
    """sqrt(a b) and the correlation, zero where a variance is zero, clipped to [-1, 1]."""
    size = np.sqrt(a) * np.sqrt(b)
    if a.all() and b.all():
        rho = c / size
    else:
        rho = np.divide(c, size, out=np.zeros_like(size), where=size > 0)
    np.minimum(rho, 1, out=rho)
    np.maximum(rho, -1, out=rho)
    return size, rho


def _angle(a: Tile, b: Tile, c: Tile, rho: Tile, out: Tile) -> tuple[Tile, Any, Tile]:
    """arcsin(rho) / 2 pi, and for nearly parallel pairs their positions and sqrt(ab - c^2).

    Those pairs go through the exact determinant, which keeps the digits of a small angle.
    """
    np.arcsin(rho, out=out)
    near: Any = (slice(0), slice(0))
    height = np.empty((0, 0), dtype=out.dtype)
    if out.dtype == np.float64 and max(float(rho.max()), -float(rho.min())) > 1 - _NEARLY_PARALLEL:
        near = np.nonzero(np.abs(rho) > 1 - _NEARLY_PARALLEL)
        covariance = c[near]
        determinant = difference_of_products(a[near[0], 0], b[0, near[1]], covariance, covariance)
        height = np.sqrt(np.maximum(determinant, 0.0))
        out[near] = np.arctan2(covariance, height)
    out *= 1 / (2 * math.pi)
    return out, near, height


def _scale_invariant(minus: float, plus: float, a: Tile, b: Tile, c: Tile, out: Targets) -> None:
    """(5.159), (5.161): sigma = plus z for z > 0 and minus z for z < 0."""
    jump, both = (plus - minus) ** 2, plus * minus
    size, rho = _correlation(a, b, c)
    chance, near, height = _angle(a, b, c, rho, out=out.get(1, np.empty_like(rho)))
    chance += 0.25
    if 0 in out:
        value = np.multiply(rho, rho, out=rho)
        np.subtract(1, value, out=value)
        np.sqrt(value, out=value)
        value *= size
        value[near] = height
        value *= 1 / (2 * math.pi)
        np.multiply(chance, c, out=size)
        np.add(value, size, out=out[0])
        _affine(out[0], jump, both * c if both else 0.0)
    if 1 in out:
        _affine(chance, jump, both)


def _affine(tile: Tile, slope: float, offset: Any) -> None:
    """tile = slope tile + offset, in place, skipping what does nothing."""
    if slope != 1:
        tile *= slope
    if np.any(offset):
        tile += offset


def _steps(low: float, high: float, a: Tile, b: Tile, c: Tile, out: Targets) -> None:
    """A step from ``low`` to ``high``: <theta theta> = 1/4 + arcsin(rho) / 2 pi."""
    _, rho = _correlation(a, b, c)
    angle, _, _ = _angle(a, b, c, rho, out=out[0])
    _affine(angle, (high - low) ** 2, (high + low) ** 2 / 4)


def _sines(shift: int, a: Tile, b: Tile, c: Tile, out: Targets) -> None:
    """exp(-(a+b)/2) times cosh c for cosines, sinh c for sines, without overflow."""
    size = np.abs(c)
    decay = size - (a / 2 + b / 2)
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


def _erf(a: Tile, b: Tile, c: Tile, out: Targets) -> None:
    """(2/pi) arcsin(2c / sqrt((1+2a)(1+2b))) and (4/pi) / sqrt((1+2a)(1+2b) - 4c^2)."""
    inverse = 1 / np.sqrt(0.5 + a) * (1 / np.sqrt(0.5 + b))  # 2 / sqrt((1+2a)(1+2b))
    sine = np.multiply(c, inverse, out=out.get(0, np.empty_like(inverse)))
    if 1 in out:
        slope = np.multiply(sine, sine, out=out[1])
        np.subtract(1, slope, out=slope)
        np.sqrt(slope, out=slope)
        np.divide(inverse, slope, out=slope)
        slope *= 2 / math.pi
    if 0 in out:
        np.arcsin(sine, out=sine)
        sine *= 2 / math.pi


def _gelu(a: Tile, b: Tile, c: Tile, out: Targets) -> None:
    """The exact (erf) GELU, in the correlation c / sqrt((1+a)(1+b)) of the widened inputs."""
    s, t = 1 / (1 + a), 1 / (1 + b)
    inverse = np.sqrt(s) * np.sqrt(t)
    q = s + t
    sine = c * inverse
    share = sine * sine
    np.subtract(1, share, out=share)  # determinant / ((1+a)(1+b))
    root = np.sqrt(share)
    np.divide(inverse, root, out=root)
    root *= 1 / (2 * math.pi)  # 1 / (2 pi sqrt(determinant))
    angle = np.arcsin(sine, out=sine)
    angle *= 1 / (2 * math.pi)
    angle += 0.25
    numerator = q - 1
    numerator *= c
    numerator *= c
    numerator += a * b
    if 1 in out:
        slope = np.multiply(inverse, inverse, out=inverse)
        slope *= numerator
        slope /= share
        q *= 2
        slope += q
        slope -= 1
        slope *= root
        slope *= c
        np.add(slope, angle, out=out[1])
    if 0 in out:
        numerator *= root
        angle *= c
        np.add(numerator, angle, out=out[0])
