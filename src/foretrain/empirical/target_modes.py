"""Singular modes of a target, seen as a matrix (places, outputs)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foretrain.support.answers import Answer, Result, labelled
from foretrain.support.arguments import whole_number
from foretrain.support.errors import InputError

Array = NDArray[np.float64]

_EQUAL = 1e-6  # singular values closer than this, relatively, have no modes of their own


@dataclass(frozen=True, repr=False, eq=False)
class TargetModes(Result):
    """A target (places, outputs) and its leading singular modes: (modes,), (modes, places), (modes, outputs)."""

    matrix: Array
    values: Array
    left: Array
    right: Array

    @property
    def vectors(self) -> Array:
        """u (x) v of every mode, flat and of length 1: (modes, places * outputs)."""
        return (self.left[:, :, None] * self.right[:, None, :]).reshape(len(self.values), -1)

    def shares(self, misfit: Array) -> Array:
        """<m, misfit> / sigma of every mode: 1 where nothing of the target is there."""
        inside = np.einsum("mp,po,mo->m", self.left, misfit.reshape(self.matrix.shape), self.right)
        return np.asarray(inside / self.values)

    def answer(self) -> Answer:
        """The singular values; the modes are in the data."""
        places, outputs = self.matrix.shape
        values = ", ".join(f"{value:.4g}" for value in self.values)
        statement = f"TargetModes of {places} places x {outputs} outputs: singular values {values}"
        variables = {
            "singular_value": ("mode", self.values),
            "left": ("mode place", self.left),
            "right": ("mode output", self.right),
        }
        more = ".left (modes, places), .right (modes, outputs), .vectors, .shares(misfit)"
        return Answer(statement, [more], lambda: labelled(variables, counted=["mode"]))


def target_modes(matrix: Array, count: int = 3) -> TargetModes:
    """Leading modes of a target (places, outputs).

    Where singular values are equal the modes are a choice: those that lie along outputs are taken, in their order,
    so that rounding does not choose.
    """
    count = whole_number("modes", count)
    _, values, right = np.linalg.svd(matrix, full_matrices=False)
    rank = int(np.sum(values > 1e-12 * values[0])) if len(values) and values[0] > 0 else 0
    if not rank:
        raise InputError("the target is zero everywhere: it has no modes.")
    values, right = values[:rank], right[:rank]
    new = np.flatnonzero(np.diff(values, prepend=np.inf) < -_EQUAL * values[0])
    right = np.concatenate([_along_outputs(group) for group in np.split(right, new[1:])])
    left = (matrix @ right.T / values).T
    return TargetModes(matrix, values[:count], left[:count], right[:count])


def _along_outputs(rows: Array) -> Array:
    """Another orthonormal basis of the same space: pivoted elimination, the first of equal columns first."""
    found, rest = [], rows
    for _ in rows:
        sizes = np.linalg.norm(rest, axis=0)
        pivot = int(np.argmax(sizes > (1 - _EQUAL) * sizes.max()))
        direction = rest[:, pivot] / sizes[pivot]
        found.append((pivot, direction @ rows))
        rest = rest - np.outer(direction, direction @ rest)
    return np.stack([row for _, row in sorted(found, key=lambda pair: pair[0])])
