"""Modes of a target: singular vectors of the target itself, of its parts by condition, or of parts that a user gives.

A target (samples, ..., outputs) is seen as a matrix (places, outputs). The singular modes of the whole mix what all
trials share with what tells them apart; ``components="trials"`` therefore splits the target into its mean over
trials and the deviations from it, which are orthogonal, and takes the modes of each. A mask weighs places in the
loss: modes, misfits and kernels are then those of sqrt(mask) times the target, so that what is not counted has no
part in them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from foretrain.support.answers import Answer, Result, labelled
from foretrain.support.arguments import whole_number
from foretrain.support.errors import InputError, unknown_name

Array = NDArray[np.float64]
Components: TypeAlias = Literal["trials", "target"] | Mapping[str, Any] | Any

_EQUAL = 1e-6  # singular values closer than this, relatively, have no modes of their own
_NOTHING = 1e-9  # of the target's size: so small a part or overlap is rounding


@dataclass(frozen=True, repr=False, eq=False)
class TargetModes(Result):
    """A target (places, outputs) and modes of it: (modes,), (modes, places), (modes, outputs), and their names.

    ``values`` are the overlaps <m, target>: singular values, where parts are orthogonal. ``weights`` are the roots of
    the mask, (places, outputs), which are inside of ``matrix`` and of the modes already.
    """

    matrix: Array
    values: Array
    left: Array
    right: Array
    names: tuple[str, ...]
    weights: Array

    @property
    def vectors(self) -> Array:
        """u (x) v of every mode, flat and of length 1: (modes, places * outputs)."""
        return (self.left[:, :, None] * self.right[:, None, :]).reshape(len(self.values), -1)

    def shares(self, misfit: Array) -> Array:
        """<m, misfit> / <m, target> of every mode: 1 where nothing of the target is there."""
        seen = self.weights * misfit.reshape(self.matrix.shape)
        return np.asarray(np.einsum("mp,po,mo->m", self.left, seen, self.right) / self.values)

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
        more = ".names, .left (modes, places), .right (modes, outputs), .vectors, .shares(misfit)"
        return Answer(statement, [more], lambda: labelled(variables, mode=np.array(self.names, dtype=str)))


def target_modes(y: Any, count: int = 3, components: Components = "target", mask: Any = None) -> TargetModes:
    """Leading modes of a target whose last axis are outputs and whose first are samples.

    ``components``: ``"target"`` for the singular modes of the whole, ``"trials"`` for those of the mean over trials
    and of the deviations from it, or parts of one's own with the target's shape, as a dictionary by name or as an
    array with the parts along its first axis; ``count`` modes are taken of each. ``mask`` weighs the places (see
    ``mask_weights``). Where singular values are equal the modes are a choice: those that lie along outputs are taken,
    in their order, so that rounding does not choose.

    Examples
    --------
    >>> y = np.array([[[1.0, 2.0]], [[1.0, -2.0]]])  # two trials of one step: the first output is the same in both
    >>> target_modes(y, components="trials").names
    ('mean', 'deviation')
    """
    count = whole_number("modes", count)
    target = np.asarray(y, dtype=np.float64)
    weights = np.sqrt(mask_weights(mask, target.shape))
    target = weights * np.where(weights > 0, target, 0.0)
    flat = (-1, target.shape[-1])
    matrix, size = target.reshape(flat), float(np.linalg.norm(target))
    if not size > 0:
        raise InputError("the target is zero everywhere: it has no modes.")
    names, left, right = [], [], []
    for name, part in _parts(target, weights, components).items():
        _, values, rows = np.linalg.svd(part.reshape(flat), full_matrices=False)
        rank = int(np.sum(values > max(1e-12 * values[0], _NOTHING * size)))
        if not rank:
            continue
        values, rows = values[:rank], rows[:rank]
        new = np.flatnonzero(np.diff(values, prepend=np.inf) < -_EQUAL * values[0])
        rows = np.concatenate([_along_outputs(group) for group in np.split(rows, new[1:])])[:count]
        left.append((part.reshape(flat) @ rows.T / values[:count]).T)
        right.append(rows)
        alone = rank == 1 or count == 1
        names += [name if alone else f"{name} {number + 1}" for number in range(len(rows))]
    if not names:
        raise InputError("no component has anything in it that is counted: give others in `components=`.")
    u, v = np.concatenate(left), np.concatenate(right)
    overlaps = np.einsum("mp,po,mo->m", u, matrix, v)
    for name, overlap in zip(names, overlaps):
        if abs(overlap) <= _NOTHING * size:
            raise InputError(f"the target has nothing of the component {name!r}: leave it out.")
    return TargetModes(
        matrix, np.abs(overlaps), u, np.sign(overlaps)[:, None] * v, tuple(names), weights.reshape(flat)
    )


def mask_weights(mask: Any, shape: tuple[int, ...]) -> Array:
    """A mask as weights with the target's shape: ones for None.

    It has the first axes of the target, (samples,), (samples, steps) or all, where axes of length one are repeated;
    true or positive entries count.
    """
    if mask is None:
        return np.ones(shape)
    given = np.asarray(mask.detach().cpu() if hasattr(mask, "detach") else mask)
    fits = given.ndim <= len(shape) and all(a in (1, b) for a, b in zip(given.shape, shape))
    if not fits or given.dtype.kind not in "biuf":
        raise InputError(
            f"`mask` has shape {given.shape}, but the target {shape}: give numbers with its first axes, such as "
            "(samples, steps)."
        )
    weights = np.asarray(given, dtype=np.float64).reshape(given.shape + (1,) * (len(shape) - given.ndim))
    if not (np.isfinite(weights).all() and (weights >= 0).all() and weights.any()):
        raise InputError(
            "`mask` must be finite, not negative, and count something: give ones where the loss looks."
        )
    return np.broadcast_to(weights, shape)


def _parts(target: Array, weights: Array, components: Components) -> dict[str, Array]:
    """Parts of a weighted target, weighted as well."""
    if isinstance(components, str):
        if components not in ("trials", "target"):
            raise unknown_name("`components`", components, ["trials", "target"])
        if components == "target":
            return {"mode": target}
        # The mean over the trials that are counted at a place: orthogonal to the deviations under the weights.
        counted = np.square(weights).sum(0)
        mean = (weights * target).sum(0) / np.where(counted > 0, counted, 1.0)
        return {"mean": weights * mean, "deviation": target - weights * mean}
    if isinstance(components, Mapping):
        parts = {str(name): part for name, part in components.items()}
    else:
        parts = {f"component {place + 1}": part for place, part in enumerate(components)}
    found = {}
    for name, part in parts.items():
        values = np.asarray(part.detach().cpu() if hasattr(part, "detach") else part, dtype=np.float64)
        if values.shape != target.shape:
            raise InputError(
                f"the component {name!r} has shape {values.shape}, but the target {target.shape}: give both the same."
            )
        values = np.where(weights > 0, values, 0.0)
        if not np.isfinite(values).all():
            raise InputError(f"the component {name!r} has entries that are nan or infinite: remove them.")
        found[name] = weights * values
    return found


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
