"""One channel of a field at all positions: a function of Gaussian fields, whatever its moments are.

A field that is not Gaussian has no law that its second moments would tell, but each of its channels is made of
Gaussian channels by steps that are known: maxima over windows, weights of few channels, norms, nonlinearities,
sums. A :class:`Program` is the list of these steps. It is evaluated on random draws, and pushes small changes of
its parents and parameters forward: with tangents t of covariance Theta, Theta' = E[(J t)(J' t')] (architectures,
sections 2 to 6).

Arrays are (channels of a group, inputs apart, blocks of positions, inputs together, positions, draws).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, singledispatch
from math import prod
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import scipy.sparse as sparse
from numpy.typing import NDArray
from scipy.fft import dct

from foretrain.activations import Activation
from foretrain.support.errors import NotSupportedError
from foretrain.theory.layers.expressions import Apply, Elementwise, Expression, Leaf, Product, Sum
from foretrain.theory.layers.fields import Field, Source
from foretrain.theory.layers.linear_maps import Arranged, ChannelPart, Joined, PositionMap, Superposed
from foretrain.theory.layers.normalisation import Normalised, Trained
from foretrain.theory.layers.positions import Array, Axis, Indices, Pairs, Weights

Push: TypeAlias = Callable[[list[Any], list[Any]], Any]
"""From changes of the inputs and of the parameters (None: none) to that of the result."""


class Node(NamedTuple):
    """A field or an expression; ``part``: of which parts of the channels, if it was cut."""

    of: Any
    part: tuple[Field, ...] = ()

    @property
    def sources(self) -> frozenset[Source]:
        """Channels of which layers it is made of."""
        if not self.part:
            return frozenset(self.of.sources)
        layers = {source.layer for source in self.of.sources}
        return frozenset(one for one in self.part[-1].sources if one.layer in layers)

    def meets(self, other: Node) -> bool:
        """Whether both are made of some channel."""
        return any(one.meets(two) for one in self.sources for two in other.sources)


@dataclass(frozen=True, eq=False)
class Parameter:
    """Numbers of each channel that train at a rate: ``copies`` sets, each with a basis (n, n), smoothest first."""

    rate: float
    copies: int = 1
    basis: Array = field(default_factory=lambda: np.ones((1, 1)))
    own_position: bool = False  # one for each position

    def changes(self, channels: int, positions: int, others: Any) -> tuple[Array | None, Array | None]:
        """Changes whose squares sum to the rate: the smoothest one, and a random one of all others."""
        size, n = np.sqrt(self.rate), len(self.basis)
        if not self.rate:
            return None, None
        if self.own_position:
            return None, size * others.normals(channels, 1, 1, 1, positions)
        signs = others.signs(channels * self.copies)
        signs = np.broadcast_to(signs, (channels * self.copies, signs.shape[-1]))
        smooth = (size * signs[:, None] * self.basis[:, :1]).reshape(channels, self.copies * n, 1, -1)
        if n == 1:
            return smooth, None
        rough = size * self.basis[:, 1:] @ others.normals(channels * self.copies, n - 1)
        return smooth, rough.reshape(*smooth.shape[:3], -1)


@dataclass(frozen=True, eq=False)
class Step:
    """How a channel follows from channels of other nodes.

    ``reads``: for each input the positions that each position reads, (members, positions), -1 for none; None for
    the position itself. ``aligned``: it reads one, and is given the inputs where it reads them.
    ``group``: so many channels of the inputs and of the result belong together. ``ranks``: of the random numbers
    of each channel, how many are smoother.
    """

    inputs: tuple[Node, ...]
    run: Callable[[Place, list[Array]], tuple[Array, Push]]
    reads: tuple[Indices | None, ...] = ()
    aligned: bool = True
    group: tuple[int, int] = (1, 1)
    ranks: tuple[int, ...] = ()
    parameters: tuple[Parameter, ...] = ()
    statistics: tuple[Field, ...] = ()

    def read(self, number: int) -> Indices | None:
        """Positions that are read of an input."""
        return self.reads[number] if self.reads else None


class Place(NamedTuple):
    """Where and with what a step is evaluated."""

    positions: Indices  # (blocks, n), -1 for none
    local: tuple[Indices | None, ...]  # of each input: (members, blocks, n), numbers in its list of positions
    normals: Any  # (channels, numbers, blocks, draws) of a step that has random numbers
    points: Callable[[Field, str, Indices], Array]  # what points of the inputs have


@dataclass(frozen=True, eq=False)
class Program:
    """Steps to one channel, each after its inputs; nodes without a step are independent Gaussian fields."""

    root: Node
    steps: dict[Node, Step | None]

    @cached_property
    def leaves(self) -> list[Node]:
        """The Gaussian fields."""
        return [node for node, step in self.steps.items() if step is None]

    @property
    def statistics(self) -> tuple[Field, ...]:
        """Fields whose numbers at single points are used."""
        return tuple(dict.fromkeys(one for step in self.steps.values() if step for one in step.statistics))

    @cached_property
    def parameters(self) -> dict[Node, tuple[Parameter, ...]]:
        """What trains in each step; of a Gaussian field its gains."""
        return {
            node: tuple(Parameter(gain.rate, own_position=gain.own_position) for gain in node.of.gains)
            if step is None
            else step.parameters
            for node, step in self.steps.items()
        }

    @cached_property
    def channels(self) -> dict[Node, int]:
        """How many channels of each node are drawn together: whole groups."""
        need = dict.fromkeys(self.steps, 1)
        for node in reversed(self.steps):
            if (step := self.steps[node]) is not None:
                groups = -(-need[node] // step.group[1])
                need[node] = groups * step.group[1]
                for one in step.inputs:
                    need[one] = max(need[one], groups * step.group[0])
        return need


@lru_cache(maxsize=64)
def program(law: Expression) -> Program:
    """The steps to an expression of fields; fields are opened where they share channels with others."""
    opened: set[Node] = set()
    while True:
        root, steps = node_of(law), dict[Node, Step | None]()
        _add(root, steps, opened)
        leaves = [node for node, step in steps.items() if step is None]
        meeting = {
            one for pair in itertools.combinations(leaves, 2) if pair[0].meets(pair[1]) for one in pair
        }
        if not meeting:
            return Program(root, steps)
        further = {node for node in meeting if step_of.dispatch(type(node.of)) is not _no_step}
        if not further:
            names = " and ".join(sorted({node.of.name for node in meeting}))
            raise NotSupportedError(
                f"different channels of {names} meet: this has no rule. Measure it with ft.ensemble."
            )
        opened |= further


def _add(node: Node, steps: dict[Node, Step | None], opened: set[Node]) -> None:
    if node in steps:
        return
    if isinstance(node.of, Field) and node.of.gaussian and node not in opened:
        steps[node] = None
        return
    step = step_of(node.of, node)
    for one in step.inputs:
        _add(one, steps, opened)
    steps[node] = step


def node_of(of: Any, part: tuple[Field, ...] = ()) -> Node:
    """What a field or expression is by its channels."""
    while True:
        if isinstance(of, Leaf):
            of = of.field
        elif isinstance(of, Field) and of.gaussian:
            return Node(of, part)
        elif getattr(of, "law", None) is not None:
            of = of.law
        elif isinstance(of, Elementwise):
            of = of.expression
        elif isinstance(of, ChannelPart):
            of, part = of.inputs[0], (*part, of)
        else:
            return Node(of, part)


@singledispatch
def step_of(of: Any, node: Node) -> Step:
    """The step to a field or expression from what it is made of."""
    raise NotSupportedError(
        f"{of.name}, which is not Gaussian in the limit: only its second moments are known, and a nonlinearity needs "
        "more. Measure it with ft.ensemble."
    )


_no_step = step_of.dispatch(object)


def evaluated(
    of: Program, layout: Layout, values: dict[Node, Array], normals: dict[Node, Array], points: Any
) -> tuple[Array, Callable[[dict[Any, Array]], Array]]:
    """The result where the Gaussian fields have these values, and what pushes changes to it.

    Changes: of Gaussian fields by their node, of parameters by node and number.
    """
    channels, pushes = of.channels, dict[Node, Push]()
    values = dict(values)

    def given(node: Node, step: Step, found: dict[Node, Any]) -> list[Any]:
        some = []
        for number, one in enumerate(step.inputs):
            value, where = found.get(one), layout.local[node][number]
            if value is not None:
                value = value[: channels[node] // step.group[1] * step.group[0]]
                value = picked(value, where[0]) if step.aligned and where is not None else value
            some.append(value)
        return some

    for node, step in of.steps.items():
        if step is not None:
            place = Place(layout.positions[node], layout.local[node], normals.get(node), points)
            values[node], pushes[node] = step.run(place, given(node, step, values))

    def push(changes: dict[Any, Array]) -> Array:
        found: dict[Any, Any] = dict(changes)
        for node, step in of.steps.items():
            own = [changes.get((node, k)) for k in range(len(of.parameters[node]))]
            if step is not None:
                some = given(node, step, found)
                if any(one is not None for one in (*some, *own)):
                    found[node] = pushes[node](some, own)
            else:  # gains of a Gaussian field
                for one in own:
                    if one is not None:
                        found[node] = added(found.get(node), per_channel(one) * values[node])
        return np.asarray(found[of.root])

    return values[of.root], push


@dataclass(frozen=True, eq=False)
class Layout:
    """Where each node is needed, block by block, and where its steps find what they read."""

    positions: dict[Node, Indices]  # (blocks, n), -1 for none
    local: dict[Node, tuple[Indices | None, ...]]

    @staticmethod
    def of(program: Program, outputs: Indices) -> Layout:
        """For these positions of the result, (blocks, n)."""
        blocks = np.arange(len(outputs))[:, None]
        wanted: dict[Node, list[Indices]] = {node: [] for node in program.steps}
        positions, local = dict[Node, Indices](), dict[Node, tuple[Indices | None, ...]]()
        for node in reversed(program.steps):
            at = outputs if node is program.root else _distinct(np.concatenate(wanted[node], axis=1))
            positions[node], step = at, program.steps[node]
            for number, one in enumerate(step.inputs if step else ()):
                assert step is not None
                wanted[one].append(_read(step.read(number), at).swapaxes(0, 1).reshape(len(at), -1))
        for node, step in program.steps.items():
            places: list[Indices | None] = []
            for number, one in enumerate(step.inputs if step else ()):
                assert step is not None
                have, need = positions[one], _read(step.read(number), positions[node])
                table = np.full((len(outputs), max(have.max(), need.max()) + 2), -1)
                table[blocks, have] = np.arange(have.shape[1])
                table[:, -1] = -1  # where -1, no position, looks itself up
                same = step.read(number) is None and np.array_equal(have, positions[node])
                places.append(None if same else table[blocks, need])
            local[node] = tuple(places)
        return Layout(positions, local)

    def part(self, blocks: Indices) -> Layout:
        """Some of the blocks."""
        return Layout(
            {node: one[blocks] for node, one in self.positions.items()},
            {
                node: tuple(None if one is None else one[:, blocks] for one in some)
                for node, some in self.local.items()
            },
        )

    def places_alone(self, program: Program) -> dict[Node, Indices | None]:
        """Where each position of the result finds the one position of a node that it depends on, if it is one."""
        found: dict[Node, Indices | None] = {}
        outputs = self.positions[program.root]
        found[program.root] = np.broadcast_to(np.arange(outputs.shape[1]), outputs.shape)
        for node in reversed(program.steps):
            step, mine = program.steps[node], found[node]
            for number, one in enumerate(step.inputs if step else ()):
                assert step is not None
                local, reads = self.local[node][number], step.read(number)
                theirs = mine
                if mine is None or (reads is not None and len(reads) > 1):
                    theirs = None
                elif local is not None:
                    theirs = np.where(mine < 0, -1, np.take_along_axis(local[0], np.maximum(mine, 0), axis=1))
                if one in found and not (theirs is not None and np.array_equal(found[one], theirs)):  # type: ignore[arg-type]
                    theirs = None
                found[one] = theirs
        return found


def _read(reads: Indices | None, at: Indices) -> Indices:
    """Positions that are read at these, (members, blocks, n)."""
    if reads is None:
        return at[None]
    return np.where(at < 0, -1, reads[:, np.maximum(at, 0)])


def _distinct(positions: Indices) -> Indices:
    """The distinct positions of each block in order, then -1."""
    ordered = np.sort(positions, axis=1)
    new = np.diff(ordered, axis=1, prepend=-1) > 0
    number = np.cumsum(new, axis=1) - 1
    distinct = np.full((len(ordered), max(int(number.max()) + 1, 1)), -1)
    block, column = np.nonzero(new)
    distinct[block, number[block, column]] = ordered[block, column]
    return distinct


# Positions


def matrix_of(of: PositionMap | Arranged) -> Array:
    """The map of all positions as a matrix."""
    if isinstance(of, Arranged):
        return np.asarray(np.eye(prod(of.positions))[_arranged(of)[0]])
    matrix = np.ones((1, 1))
    for one, size in zip(of.axes, of.inputs[0].positions, strict=True):
        matrix = np.kron(
            matrix, one.matrix_of_positions.toarray() if isinstance(one, Weights) else np.eye(size)
        )
    return matrix


def _arranged(of: Arranged) -> Indices:
    """Which position each new position was, (1, positions)."""
    before = of.inputs[0].positions
    return np.arange(prod(before)).reshape(before).transpose(of.order).reshape(1, -1)


def pairs_read(reads: NDArray[np.bool_], p: Indices, q: Indices, positions: Sequence[int]) -> Pairs:
    """All pairs of a position that p reads and one that q reads, for pairs of rows of ``reads`` (rows, positions)."""
    joint = sparse.csr_array((np.ones(len(p)), (p, q)), shape=(len(reads), len(reads)))
    found = []
    for k, size in enumerate(positions):
        others = tuple(1 + n for n in range(len(positions)) if n != k)
        along = reads.reshape(-1, *positions).any(axis=others).astype(np.float64)
        reached: Any = joint.dot(along)
        found.append(Axis(np.flatnonzero(along.T @ reached), size))
    return tuple(found)


# Arrays of channels


def picked(values: Array, where: Indices, none: float = 0.0) -> Array:
    """The values at these numbers of each block's positions, (blocks, n); ``none`` where there is no position."""
    blocks, inputs = np.arange(values.shape[-4]), np.arange(values.shape[-3])
    found = values[..., blocks[:, None, None], inputs[:, None], where[:, None], :]
    block, place = np.nonzero(where < 0)
    if len(block):
        found[..., block, :, place, :] = none
    return found


def per_channel(numbers: Array) -> Array:
    """Numbers of one parameter (channels, 1, blocks, draws), to be multiplied with values."""
    return numbers if numbers.ndim == 6 else numbers[:, 0, None, :, None, None, :]


def added(first: Any, second: Any) -> Any:
    """The sum of two changes, of which each may be None."""
    return second if first is None else first if second is None else first + second


def slope(function: Activation, z: Array) -> Array:
    """The slope; at a kink the mean of both sides, which is what closed forms give where a field vanishes."""
    if function.slopes is not None:
        minus, plus = function.slopes
        return np.asarray((plus + minus) / 2 + (plus - minus) / 2 * np.sign(z))
    found = np.array(function.derivative(z, 1), dtype=np.float64)
    for kink in function.kinks:
        found[z == kink.location] -= kink.jump(1) / 2
    return found


def cosines(sizes: Sequence[int]) -> Array:
    """An orthonormal basis of functions on a lattice, in columns from the smoothest on."""
    basis: Any = np.ones((1, 1))
    frequency = np.zeros(1)
    for size in sizes:
        basis = np.kron(basis, dct(np.eye(size), axis=0, norm="ortho").T)
        frequency = np.add.outer(frequency, (np.arange(size) / size) ** 2).ravel()
    return np.asarray(basis[:, np.argsort(frequency, kind="stable")])


# Steps


@step_of.register
def _(of: Apply, node: Node) -> Step:
    def run(place: Place, values: list[Array]) -> tuple[Array, Push]:
        (z,), function = values, of.activation
        rise = slope(function, z)
        value = rise * z if function.slopes else np.asarray(function.value(z), dtype=np.float64)
        return value, lambda changes, _: rise * changes[0]

    return Step((node_of(of.inner, node.part),), run)


@step_of.register
def _(of: Sum, node: Node) -> Step:
    return _weighted([weight for weight, _ in of.terms], [term for _, term in of.terms], node, of.constant)


@step_of.register
def _(of: Superposed, node: Node) -> Step:
    return _weighted(of.weights, of.inputs, node)


def _weighted(weights: Sequence[float], parts: Sequence[Any], node: Node, constant: float = 0.0) -> Step:
    def run(place: Place, values: list[Array]) -> tuple[Array, Push]:
        def total(some: list[Any], _: Any = None) -> Any:
            found = None
            for weight, one in zip(weights, some, strict=True):
                found = added(found, None if one is None else weight * one)
            return found

        return total(values) + constant, total

    return Step(tuple(node_of(one, node.part) for one in parts), run)


@step_of.register
def _(of: Product, node: Node) -> Step:
    def run(place: Place, values: list[Array]) -> tuple[Array, Push]:
        def push(changes: list[Any], _: list[Any]) -> Any:
            found = None
            for number, change in enumerate(changes):
                if change is not None:
                    others = [one for k, one in enumerate(values) if k != number]
                    found = added(found, prod(others, start=change))
            return found

        return prod(values[1:], start=values[0]), push

    return Step(tuple(node_of(one, node.part) for one in of.factors), run)


@step_of.register
def _(of: PositionMap, node: Node) -> Step:
    matrix = matrix_of(of)
    most = max(int(np.count_nonzero(matrix, axis=1).max()), 1)
    order = np.argsort(matrix == 0, axis=1, kind="stable")[:, :most]
    reads = np.where(np.take_along_axis(matrix, order, axis=1) != 0, order, -1).T

    def run(place: Place, values: list[Array]) -> tuple[Array, Push]:
        at = np.maximum(place.positions, 0)
        if most == 1:
            weights = np.take_along_axis(matrix, order, axis=1)[at, 0][:, None, :, None]
            return weights * values[0], lambda changes, _: weights * changes[0]
        local = place.local[0]
        assert local is not None
        some = np.zeros((*at.shape, values[0].shape[-2] + 1))
        np.put_along_axis(some, local.transpose(1, 2, 0), matrix[at[..., None], order[at]], axis=2)
        some = some[:, None, :, :-1]  # where nothing is read, -1 stood for the last one
        return some @ values[0], lambda changes, _: some @ changes[0]

    return Step((node_of(of.inputs[0], node.part),), run, (reads,), aligned=most == 1)


def unchanged(place: Place, values: list[Array]) -> tuple[Array, Push]:
    """The channels of the input."""
    return values[0], lambda changes, _: changes[0]


@step_of.register
def _(of: Arranged, node: Node) -> Step:
    return Step((node_of(of.inputs[0], node.part),), unchanged, (_arranged(of),))


@step_of.register
def _(of: Joined, node: Node) -> Step:
    reads, start = [], 0
    for one in of.inputs:
        where = np.full(of.positions, -1)
        inside = (slice(None),) * of.axis + (slice(start, start + one.positions[of.axis]),)
        where[inside] = np.arange(prod(one.positions)).reshape(one.positions)
        reads.append(where.reshape(1, -1))
        start += one.positions[of.axis]
    plain = _weighted([1.0] * len(of.inputs), of.inputs, node)
    return Step(plain.inputs, plain.run, tuple(reads))


@step_of.register
def _(of: Normalised, node: Node) -> Step:
    def run(place: Place, values: list[Array]) -> tuple[Array, Push]:
        centre, scale = (place.points(of, name, place.positions) for name in ("centre", "scale"))
        return scale * (values[0] - centre), lambda changes, _: scale * changes[0]

    return Step((node_of(of.inputs[0], node.part),), run, statistics=(of,))


@step_of.register
def _(of: Trained, node: Node) -> Step:
    gains = [(gain.rate, gain.own_position) for gain in of.gains[len(of.inputs[0].gains) :]]
    inputs = (of.inputs[0],) if gains else of.inputs
    gains = gains or [(of.gain_rate, of.own_position)]

    def run(place: Place, values: list[Array]) -> tuple[Array, Push]:
        def push(changes: list[Any], own: list[Any]) -> Any:
            gain, shift = (None if one is None else per_channel(one) for one in own)
            found = added(changes[0], None if gain is None else gain * values[-1])
            return added(found, None if shift is None else shift * np.ones_like(values[0]))

        return values[0], push

    parameters = [
        Parameter(rate, own_position=own) for rate, own in (*gains, (of.shift_rate, of.own_position))
    ]
    return Step(tuple(node_of(one, node.part) for one in inputs), run, parameters=tuple(parameters))
