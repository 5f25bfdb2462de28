"""Maps of pairs of positions in one pass, compiled by numba (the extra ``fast``) when first called.

A convolution is a sum over taps along each axis. Two axes go through together: the sum along the first, for one row
of the output, fills a plane that stays next to the core, from which the sum along the second is written out, with the
constant and what else is added. Numbers of entries have no sign: so the compiler knows that none counts from the end.

Import this module only where :func:`foretrain.support.acceleration.accelerates` says so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from foretrain.support.acceleration import call, kept, part
from foretrain.theory.layers.positions import Array, PairStep, Rows

_ZERO, _ONE, _TWO, _THREE = (np.uint64(n) for n in range(4))


class Ends(NamedTuple):
    """What is written for a sum: scale times it, plus a constant and a share of what is added."""

    scale: float
    constant: float
    share: float


@partial(part, inline="always")
def _summed(
    rows: Rows,
    s: Any,
    source: Array,
    start: Any,
    apart: Any,
    target: Array,
    into: Any,
    length: Any,
    ends: Ends,
    added: Any,
) -> None:
    """The sum over the entries of stretch ``s`` for so many numbers, from ``start`` in the source to the target."""
    first, count = rows.stretches[s, 2], rows.stretches[s, 3]
    if _ZERO < count <= _THREE:  # what is missing of three has the weight zero
        two, three = count > _ONE, count > _TWO
        second, third = first + _ONE if two else first, first + _TWO if three else first
        x = rows.weights[first] * ends.scale
        y = rows.weights[second] * ends.scale if two else 0.0
        z = rows.weights[third] * ends.scale if three else 0.0
        i, j = start + rows.columns[first] * apart, start + rows.columns[second] * apart
        k = start + rows.columns[third] * apart
        for n in range(length):
            total = x * source[i + n] + y * source[j + n] + z * source[k + n] + ends.constant
            if added is not None:
                total += ends.share * added[into + n]
            target[into + n] = total
    else:
        for n in range(length):
            total = ends.constant
            if added is not None:
                total += ends.share * added[into + n]
            target[into + n] = total
        for entry in range(first, first + count):
            x, i = rows.weights[entry] * ends.scale, start + rows.columns[entry] * apart
            for n in range(length):
                target[into + n] += x * source[i + n]


@kept
def _mapped(
    outer: Any,
    inner: Rows,
    source: Array,
    plane: Array,
    target: Array,
    blocks: Any,
    apart: Any,
    ends: Ends,
    added: Any,
) -> None:
    """The map along one axis, or two (``outer`` first), of arrays (blocks, axes..., apart), flat."""
    given, wanted = inner.inner * apart, inner.outer * apart
    if outer is None:
        for block in range(blocks):
            for s in range(np.uint64(len(inner.stretches))):
                into, length = block * wanted + inner.stretches[s, 0] * apart, inner.stretches[s, 1] * apart
                _summed(inner, s, source, block * given, apart, target, into, length, ends, added)
    else:
        for block in range(blocks):
            for o in range(np.uint64(len(outer.stretches))):
                for further in range(outer.stretches[o, 1]):
                    start = (block * outer.inner + further) * given
                    _summed(outer, o, source, start, given, plane, _ZERO, given, Ends(1.0, 0.0, 0.0), None)
                    row = (block * outer.outer + outer.stretches[o, 0] + further) * wanted
                    for s in range(np.uint64(len(inner.stretches))):
                        into, length = row + inner.stretches[s, 0] * apart, inner.stretches[s, 1] * apart
                        _summed(inner, s, plane, _ZERO, apart, target, into, length, ends, added)


def mapped(
    values: Array, steps: Sequence[PairStep], scale: float, constant: float, added: Array | None, share: float
) -> Array:
    """scale times the values after all steps, plus a constant and a share of an array; flat."""
    values, left = np.ascontiguousarray(values).ravel(), list(steps)
    while left:
        outer, step = None, left.pop(0)
        # Steps along neighbouring axes, the first axis first, go together.
        if left and left[0].blocks == step.blocks * int(step.rows.outer):
            outer, step = step, left.pop(0)
        axes = [one.rows for one in (outer, step) if one is not None]
        blocks = (outer or step).blocks
        apart = len(values) // (blocks * math.prod(int(rows.inner) for rows in axes))
        plane = np.empty(int(step.rows.inner) * apart if outer else 0)
        target = np.empty(blocks * apart * math.prod(int(rows.outer) for rows in axes))
        ends, addend = Ends(1.0, 0.0, 0.0), None
        if not left:
            ends, addend = (
                Ends(scale, constant, share),
                None if added is None else np.ascontiguousarray(added).ravel(),
            )
        sizes = np.uint64(blocks), np.uint64(apart)
        call(_mapped, outer and outer.rows, step.rows, values, plane, target, *sizes, ends, addend)
        values = target
    return values
