"""Gaussian variables as unit vectors: correlations become angles, and conditioning becomes projection.

z_i = scale_i a_i.x with x standard normal; given z_j = 0, a_j is projected out of the other vectors.

Singular covariances are the limit of K + eta 1: a vector that a projection annihilates survives as its
direction in the perturbation, so that equal, opposite and dependent variables need no case of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from foretrain.gaussian.covariance import difference_of_products

Array = NDArray[np.float64]

EPS = float(np.finfo(np.float64).eps)
_SMALLEST_PIVOT = 16 * EPS
_SHORTEST = 1e-12  # well above the rounding that inner products of equal inputs come with


class Projection(NamedTuple):
    """The vectors once those of some variables are projected out."""

    vectors: Array  # (B, n, n); exactly 0 where a vector lies in the span of those projected out
    relations: Array  # (B, n, n); what was subtracted, in terms of the original vectors: the perturbation
    lengths: Array  # (B, n)
    units: Array  # (B, n, 2n); normalised vectors, or normalised relations for those that vanished
    noise: Array  # (B, n); rounding error of the vectors
    turned: Array  # (B, n); rounding error of the units


def unit_vectors(correlations: Array) -> Array:
    """Unit vectors (B, n, n) with the given correlations: a Cholesky factor, largest pivot first.

    A direction is given up when no variable has more than rounding left in it; until then every variable
    keeps its share, however small, since moments of positive power feel it.
    """
    batch, n, _ = correlations.shape
    rows = np.arange(batch)
    rest = np.clip(correlations, -1.0, 1.0)
    rest[:, np.arange(n), np.arange(n)] = 1.0
    vectors = np.zeros_like(rest)
    for column in range(n):
        pivot = np.argmax(np.diagonal(rest, axis1=1, axis2=2), axis=1)
        largest = rest[rows, pivot, pivot]
        alive = largest > _SMALLEST_PIVOT
        safe = np.where(alive, largest, 1.0)[:, None]
        step = np.where(alive[:, None], rest[rows, pivot], 0.0)
        vectors[:, :, column] = step / np.sqrt(safe)
        shares = difference_of_products(rest, safe[:, :, None], step[:, :, None], step[:, None, :])
        rest = shares / safe[:, :, None]
        # The pivot itself is used up, whatever rounding says.
        rest[rows, pivot], rest[rows, :, pivot] = 0.0, 0.0
    return np.asarray(vectors / np.linalg.norm(vectors, axis=2, keepdims=True))


def start(vectors: Array) -> Projection:
    """The vectors (B, n, n) before anything is projected out."""
    relations = np.broadcast_to(np.eye(vectors.shape[1]), vectors.shape)
    return _sort(vectors, relations, np.full(vectors.shape[:2], EPS))


def project_out(base: Projection, path: Sequence[tuple[int, Projection]]) -> Projection:
    """Condition on z_j = 0 for every j of the path; with each j comes the projection of those before it."""
    vectors, relations = base.vectors, base.relations
    for j, _ in path:
        # Nearly parallel vectors are subtracted first, which is exact, and their small difference projected.
        signs = np.sign(np.einsum("bnv,bv->bn", base.vectors, base.vectors[:, j]))[:, :, None]
        difference = base.vectors - signs * base.vectors[:, None, j]
        nearer = (np.linalg.norm(difference, axis=2) < np.linalg.norm(vectors, axis=2))[:, :, None]
        vectors = np.where(nearer, difference, vectors)
        relations = np.where(nearer, base.relations - signs * base.relations[:, None, j], relations)
    noise = EPS * np.linalg.norm(vectors, axis=2)
    for _ in range(2):  # the second pass removes what rounding left of the first
        for j, before in path:
            direction, length = before.units[:, j, : vectors.shape[2]], before.lengths[:, j, None]
            along = np.einsum("bnv,bv->bn", vectors, direction)
            shares = along / np.where(length > 0, length, 1.0)
            vectors = vectors - along[:, :, None] * direction[:, None]
            relations = relations - shares[:, :, None] * before.relations[:, None, j]
            noise = noise + np.abs(along) * before.turned[:, j, None]
    return _sort(vectors, relations, noise)


def _sort(vectors: Array, relations: Array, noise: Array) -> Projection:
    """Tell the vectors that are left from those that lie in the span of what was projected out."""
    lengths = np.linalg.norm(vectors, axis=2)
    gone = lengths < np.maximum(32 * noise, _SHORTEST)
    noise = np.where(gone, lengths, noise)
    lengths = np.where(gone, 0.0, lengths)
    vectors = np.where(gone[:, :, None], 0.0, vectors)
    size = np.linalg.norm(relations, axis=2)
    perturbed = np.where(gone[:, :, None], relations / np.where(size > 0, size, 1.0)[:, :, None], 0.0)
    safe = np.where(gone, 1.0, lengths)
    units = np.concatenate([vectors / safe[:, :, None], perturbed], axis=2)
    return Projection(vectors, relations, lengths, units, noise, np.where(gone, 0.0, noise / safe))


def angle_between(u: Array, v: Array) -> Array:
    """The angle between unit vectors, to full precision also near 0 and pi."""
    return np.asarray(2 * np.arctan2(np.linalg.norm(u - v, axis=-1), np.linalg.norm(u + v, axis=-1)))
