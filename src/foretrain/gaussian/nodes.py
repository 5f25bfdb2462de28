"""Nodes and weights of Gauss quadrature: the only place that builds them. Arrays are kept and read-only."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def _kept(nodes: Array, weights: Array) -> tuple[Array, Array]:
    nodes.setflags(write=False)
    weights.setflags(write=False)
    return nodes, weights


@lru_cache(maxsize=64)
def gauss_legendre(count: int) -> tuple[Array, Array]:
    """For the integral over [0, 1]."""
    x, w = np.polynomial.legendre.leggauss(count)
    return _kept((x + 1) / 2, w / 2)


@lru_cache(maxsize=64)
def gauss_hermite(count: int) -> tuple[Array, Array]:
    """For the mean over a standard normal variable; the weights add up to one."""
    x, w = np.polynomial.hermite_e.hermegauss(count)
    return _kept(x, w / math.sqrt(2 * math.pi))


@lru_cache(maxsize=8)
def gauss_laguerre(count: int) -> tuple[Array, Array]:
    """For the integral over [0, inf) with the weight exp(-x)."""
    return _kept(*np.polynomial.laguerre.laggauss(count))


def hermite_polynomials(x: Array, count: int) -> Array:
    """He_k(x) / sqrt(k!) for k < count, which are orthonormal under a standard normal: (count, ...)."""
    rows = np.empty((count, *x.shape))
    rows[0] = 1.0
    if count > 1:
        rows[1] = x
    for k in range(1, count - 1):
        rows[k + 1] = (x * rows[k] - math.sqrt(k) * rows[k - 1]) / math.sqrt(k + 1)
    return rows


def legendre_panels(edges: Array, count: int) -> tuple[Array, Array]:
    """Gauss-Legendre points and weights on every panel between sorted edges (..., E), panel by panel: (..., M)."""
    x, w = gauss_legendre(count)
    widths = np.diff(edges)[..., None]
    shape = (*edges.shape[:-1], -1)
    return (edges[..., :-1, None] + widths * x).reshape(shape), (widths * w).reshape(shape)
