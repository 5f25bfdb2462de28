"""A field and linear maps of it that are added up, such as x - mean of x over windows (architectures, section 4).

The same channels meet at different positions, or after different norms, whose statistics are numbers. The sum is one
linear map M_a of positions for each input a: S' = M_a S M_b^T, and Gaussian if the field is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from foretrain.theory.layers.channels import (
    Node,
    Step,
    matrix_of,
    node_of,
    pairs_read,
    step_of,
    unchanged,
)
from foretrain.theory.layers.expressions import Elementwise, Expression, Leaf, Sum
from foretrain.theory.layers.fields import Field, Kernel, Tile
from foretrain.theory.layers.linear_maps import Arranged, PositionMap, Superposed
from foretrain.theory.layers.normalisation import Normalised, Trained
from foretrain.theory.layers.positions import Array, Axis, Pairs, flat_positions, shape_of


def recombined(terms: Sequence[tuple[float, Field]]) -> Recombined | None:
    """The sum of fields as one linear map of the field that they are all made of, if there is one."""
    lines = [lineage(field) for _, field in terms]
    root = next((one for one in lines[0] if all(one in line for line in lines)), None)
    if root is None:
        return None
    paths = tuple(
        (weight, tuple(reversed(line[: line.index(root)]))) for (weight, _), line in zip(terms, lines)
    )
    steps = dict.fromkeys(step for _, path in paths for step in path)
    trains = any(isinstance(one, Trained) for one in steps)
    plain = not trains and not any(gain.own_position for gain in root.gains)
    gaussian = plain and root.gaussian and all(one.gaussian for one in steps)
    return Recombined(
        inputs=(root, *(one for one in steps if isinstance(one, Normalised))),
        positions=terms[0][1].positions,
        name=" + ".join(dict.fromkeys(field.name for _, field in terms)),
        gaussian=gaussian,
        gains=root.gains if gaussian else (),
        sources=root.sources,
        paths=paths,
        law=Sum(tuple((weight, Leaf(field)) for weight, field in terms)),
    )


def lineage(field: Field) -> list[Field]:
    """The field and what it is a linear map of, one after another."""
    line = [field]
    while _weight(line[-1]) or isinstance(line[-1], PositionMap | Arranged | Normalised | Recombined):
        line.append(line[-1].inputs[0])
    return line


def _weight(field: Field) -> float:
    """The number by which a field is its first input times a number, a gain for example; 0 for any other field."""
    if isinstance(field, Trained):
        return 1.0 if field.inputs[0] is field.inputs[1] or _weight(field.inputs[0]) else 0.0
    if isinstance(field, Superposed) and len(field.inputs) == 1:
        return field.weights[0]
    law = field.expression if isinstance(field, Elementwise) else None
    if (
        isinstance(law, Sum)
        and len(law.terms) == 1
        and isinstance(law.terms[0][1], Leaf)
        and not law.constant
    ):
        return law.terms[0][0]
    return 0.0


def _gain_rate(field: Trained) -> float:
    """The rate of a gain, by which the second moments after it are multiplied."""
    own = sum(gain.rate for gain in field.gains[len(field.inputs[0].gains) :])
    weight = 1.0 if field.inputs[0] is field.inputs[1] else _weight(field.inputs[0])
    return own + field.gain_rate / weight**2


@dataclass(frozen=True, eq=False, kw_only=True)
class Recombined(Field):
    """The sum of maps of the first input, each a weight and the fields on the way; the other inputs are norms."""

    paths: tuple[tuple[float, tuple[Field, ...]], ...]
    law: Expression

    @property
    def reads_points(self) -> bool:
        """Statistics of norms, and means."""
        return True

    @property
    def keeps_gains(self) -> bool:
        """Gains of the field pass through a map of positions."""
        return bool(self.gains)

    @property
    def for_any_library(self) -> bool:
        """Its maps are arrays of numpy."""
        return False

    @cached_property
    def _reads(self) -> Array:
        """Which positions each position reads: a matrix that is not 0 there."""
        total: Any = 0.0
        for _, path in self.paths:
            matrix: Any = np.eye(prod(self.inputs[0].positions))
            for step in path:
                matrix = (step._reads if isinstance(step, Recombined) else np.abs(_matrix(step))) @ matrix
            total = total + matrix
        return np.asarray(total)

    def needs(self, wanted: Pairs) -> tuple[Pairs, ...]:
        """All pairs of what the first position reads with what the second reads; of norms only what points have."""
        root, norms = self.inputs[0], self.inputs[1:]
        pairs = pairs_read(self._reads > 0, *flat_positions(wanted), root.positions)
        return (pairs, *(tuple(Axis(np.zeros(0, np.intp), n) for n in one.positions) for one in norms))

    def prepare(self, wanted: Pairs, given: tuple[Pairs, ...]) -> Pairs:
        """The pairs at hand."""
        return given[0]

    def kernel(self, tile: Tile, inputs: list[Kernel], pairs: Pairs, prepared: Pairs) -> Kernel:
        """S' = M S M^T, Theta' = M Theta M^T and what gains and shifts on the way add."""
        if tile.leaves_points:
            for one in (self, self.inputs[0], *(one for one in self._steps if isinstance(one, Trained))):
                tile.mean(one)
        rows, of_rows = self._maps(tile.row_points, tile.size)
        columns, of_columns = self._maps(tile.column_points, tile.column_size)
        S, Theta = (None if part is None else _dense(part, prepared, tile) for part in inputs[0])

        def both(one: Array, middle: Any, other: Array) -> Any:
            second = other.swapaxes(-1, -2)
            return one @ middle @ second if tile.own else one[:, None] @ middle @ second

        def means(field: Field) -> Any:
            if field.gaussian:
                return 0.0
            m, m_ = (points[field, "mean"] for points in (tile.row_points, tile.column_points))
            m, m_ = (np.moveaxis(one.reshape(-1, one.shape[-1]), -1, 0) for one in (m, m_))
            return m[:, :, None] * m_[:, None] if tile.own else m[:, None, :, None] * m_[:, None]

        # 1. The map on both sides; means by themselves, because norms subtract numbers.
        S = S - means(self.inputs[0])
        new_S = both(rows, S, columns) + means(self)
        new = np.zeros_like(new_S) if Theta is None else both(rows, Theta, columns)

        # 2. A gain adds its rate times the second moments where it stands, a shift its rate: both are mapped further.
        for step, (before, after) in of_rows.items():
            before_, after_ = of_columns[step]
            there = _gain_rate(step) * (both(before, S, before_) + means(step)) + step.shift_rate
            if step.own_position:
                there = there * np.eye(there.shape[-1])
            new = new + both(after, there, after_)
        p, q = flat_positions(pairs)
        shape = (*shape_of(pairs), *tile.shape)
        return Kernel(*(np.moveaxis(one[..., p, q], -1, 0).reshape(shape) for one in (new_S, new)))

    @cached_property
    def _steps(self) -> tuple[Field, ...]:
        return tuple(dict.fromkeys(step for _, path in self.paths for step in path))

    def _maps(self, points: Any, inputs: int) -> tuple[Any, dict[Trained, tuple[Any, Any]]]:
        """M (inputs, positions, positions of the field); for each gain on the way, the map before it and after it."""
        total: Any = 0.0
        trained: dict[Trained, tuple[Any, Any]] = {}
        for weight, path in self.paths:
            matrix: Any = np.eye(prod(self.inputs[0].positions))[None]
            after: dict[Trained, Any] = {}
            for step in path:
                inner: dict[Trained, tuple[Any, Any]] = {}
                if isinstance(step, Recombined):
                    one, inner = step._maps(points, inputs)
                elif isinstance(step, Normalised):
                    scale = np.moveaxis(points[step, "scale"].reshape(-1, inputs), -1, 0)
                    one = scale[:, :, None] * np.eye(scale.shape[1])
                else:
                    one = _matrix(step)[None]
                    if isinstance(step, Trained):
                        inner = {step: (one, one)}
                after = {gain: one @ further for gain, further in after.items()}
                for gain, (first, further) in inner.items():
                    trained.setdefault(gain, (first @ matrix, 0.0))
                    after[gain] = further
                matrix = one @ matrix
            total = total + weight * matrix
            for gain, further in after.items():
                trained[gain] = trained[gain][0], trained[gain][1] + weight * further
        return total, trained

    def mean(self, tile: Tile) -> Array:
        """The sum of the means of the terms."""
        total: Any = np.zeros((*self.positions, tile.size))
        for weight, path in self.paths:
            total = total + weight * tile.mean(path[-1] if path else self.inputs[0])
        return np.asarray(total)


@step_of.register
def _(of: Recombined, node: Node) -> Step:
    return Step((node_of(of.law, node.part),), unchanged)


def _matrix(step: Field) -> Array:
    """The linear map of positions from the input of a field to it; the identity for a norm."""
    if isinstance(step, PositionMap | Arranged):
        return matrix_of(step)
    return (1.0 if isinstance(step, Normalised | Trained) else _weight(step)) * np.eye(prod(step.positions))


def _dense(values: Array, pairs: Pairs, tile: Tile) -> Array:
    """A kernel over all pairs of positions, (inputs..., P, P); 0 where it is not known."""
    sizes = [axis.size for axis in pairs]
    p, q = flat_positions(pairs)
    whole = np.zeros((*tile.shape, prod(sizes), prod(sizes)))
    whole[..., p, q] = np.moveaxis(values.reshape(-1, *tile.shape), 0, -1)
    return whole
