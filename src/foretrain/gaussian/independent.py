"""Independent directions of Gaussian variables, on the support of their covariance."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

_INDEPENDENT = 1e-9  # of the correlations' largest eigenvalue: below it a direction of the inputs is rounding


class Directions(NamedTuple):
    """K = forth forth^T on its support: z = forth u, u = back z with independent standard normals u."""

    forth: Array  # (inputs, directions)
    back: Array  # (directions, inputs)


def directions(K: Array) -> Directions:
    """Of the correlations, scaled back, so that inputs may differ much in size; zero inputs drop out."""
    size = np.sqrt(np.maximum(np.diagonal(K), 0.0))
    scale = np.divide(1.0, size, out=np.zeros_like(size), where=size > 0)
    variances, vectors = np.linalg.eigh(scale[:, None] * K * scale)
    kept = variances > _INDEPENDENT * max(variances.max(initial=0.0), np.finfo(float).tiny)
    roots = np.sqrt(variances[kept])
    return Directions(size[:, None] * vectors[:, kept] * roots, (vectors[:, kept] / roots).T * scale)
