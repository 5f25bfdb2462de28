"""The weight sites of a graph (Thm 1): V from what products kept, P_w by passes between states and products."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from foretrain.empirical.autograd_graph.sites import UnreadableError
from foretrain.empirical.autograd_graph.tape import Edge, Probe, Tape, fixed_normal
from foretrain.empirical.global_ntk.dynamics import Site
from foretrain.empirical.global_ntk.graph.passes import Carrier
from foretrain.empirical.global_ntk.graph.readings import Reading, readings
from foretrain.operators import Space

_MOST_GROUPS = 16  # every group of a convolution is a site of its own
_AGREES = {torch.float64: 1e-8, torch.float32: 2e-3}  # of squared lengths of gradients
_AGREES_HALF = 0.1


class Rooted(Protocol):
    """Dynamics with a graph: vectors of states go to its ends and come from there."""

    parameters: Mapping[str, Tensor]
    values: Tensor
    tape: Tape  # the graph with (1, entries) as its root
    ends: Sequence[Tensor]  # the tensors that the graph computes
    samples: int | None  # how many there are, if they are along an axis
    times: frozenset[int]  # lengths of the axes called time

    @property
    def tape_by_sample(self) -> Tape | None:
        """The same with (samples, entries) as its root, if samples are along an axis."""

    def to_ends(self, block: Tensor) -> list[Tensor]:
        """Vectors (k, size) of the states as cotangents of the ends."""

    def from_ends(self, tensors: Sequence[Tensor]) -> Tensor:
        """The transpose: what changes of the ends do to the states."""


class GraphSite(Site):
    """Weights and biases whose products go into the same sum: their inputs side by side, the sensitivities once."""

    def __init__(
        self, dynamics: Rooted, carrier: Carrier, start: str, parts: Sequence[Reading], group: int
    ) -> None:
        self._dynamics, self._carrier, self._start = dynamics, carrier, start
        self._parts, self._group = parts, group
        self.parameters = tuple(dict.fromkeys(part.parameter for part in parts))
        part, times = parts[0], dynamics.times
        like = dynamics.values.new_zeros(())
        shown = part.arranged(group, [like.expand(1, *shape) for shape in part.shapes])
        _, samples, positions, features = shown.shape
        uses, rest = len(part.readers), positions // len(part.readers)
        by_sample = samples == dynamics.samples
        axes = [("batch", samples)] if by_sample else []
        if len({*part.shapes}) > 1:
            uses, rest = 1, positions
        if uses > 1:
            axes.append(("time" if uses in times else "use", uses))
        if not by_sample:
            axes.append(("row", rest))
        elif rest > 1:
            axes.append(("time" if uses == 1 and rest in times else "position", rest))
        self.space = Space(*axes, ("feature", features))

    @cached_property
    def inputs(self) -> Tensor:
        """V: the inputs of the weights, and ones for the biases. For a table, its rows that occur."""
        parts = [part.inputs(self._group).to(self._dynamics.values) for part in self._parts]
        return torch.cat(parts, -1).flatten(0, 1).contiguous()

    def propagate(self, changes: Tensor) -> Tensor:
        """P_w: changes are put where the products are and carried to the states."""
        placed = self._parts[0].placed(self._group, changes)
        return self._dynamics.from_ends(self._carrier.forth(self._start, placed))

    def propagate_adjoint(self, vectors: Tensor) -> Tensor:
        """P_w*: gradients at the products."""
        gradients = self._carrier.back(self._start, self._dynamics.to_ends(vectors))
        return self._parts[0].arranged(self._group, gradients).flatten(1)


def find_sites(dynamics: Rooted, stops: Sequence[GradientEdge] = ()) -> list[GraphSite]:
    """All weights and biases that act as such; scales, and weights made of other parameters, do not.

    Where samples are not apart, in a model that couples them, the whole batch counts as one. ``stops``: further edges
    at which there are states.
    """
    used = dynamics.tape.leaves
    left = {name: value for name, value in dynamics.parameters.items() if name in used}
    found: list[Reading] = []
    for tape in (dynamics.tape_by_sample, dynamics.tape):
        if tape is not None and left:
            place = {node: number for number, node in enumerate(tape.nodes)}
            states = {(place[end.grad_fn], 0) for end in dynamics.ends if end.grad_fn in place}
            states |= {(place[stop.node], stop.output_nr) for stop in stops if stop.node in place}
            confirmed = _confirmed(tape, left, states)
            found += confirmed
            for reading in confirmed:
                left.pop(reading.parameter, None)
    order = list(dynamics.parameters)
    together: dict[object, list[Reading]] = {}
    for reading in sorted(found, key=lambda one: (one.is_bias, order.index(one.parameter))):
        together.setdefault(reading.key, []).append(reading)
    groups = {f"site {i}": parts for i, parts in enumerate(together.values())}
    starts = {}
    for name, (first, *_) in groups.items():
        nodes = first.readers[0].tape.nodes
        starts[name] = [GradientEdge(nodes[node], slot) for node, slot in first.edges]
    carrier = Carrier(dynamics.ends, starts, {name: parts[0].shapes for name, parts in groups.items()})
    return [
        GraphSite(dynamics, carrier, name, parts, group)
        for name, parts in groups.items()
        for group in range(parts[0].groups)
    ]


def _confirmed(tape: Tape, parameters: Mapping[str, Tensor], states: Set[Edge]) -> list[Reading]:
    """Readings that give the lengths of the gradients of their parameters."""
    cotangent = fixed_normal(tape.outputs)
    probe = Probe(tape, cotangent)
    known = readings(tape, parameters, probe, states)
    found = [reading for reading in known if reading.groups <= _MOST_GROUPS]
    expected = probe.squared_lengths(list(parameters))
    edges = list(dict.fromkeys(edge for reading in found for edge in reading.edges))
    gradients = dict(zip(edges, tape.gradients(edges, cotangent * probe.weights[:, None])))
    lengths = dict.fromkeys(parameters, 0.0)
    for reading in found:
        at_edges = [
            tape.outputs.new_zeros(shape) if (values := gradients[edge]) is None else values
            for edge, shape in zip(reading.edges, reading.shapes)
        ]
        lengths[reading.parameter] += _squared_length(reading, at_edges)
    tolerance = _AGREES.get(tape.outputs.dtype, _AGREES_HALF)
    rounding = torch.finfo(tape.outputs.dtype).eps * max(expected.values())
    return [
        reading
        for reading in found
        if abs(lengths[name := reading.parameter] - expected[name]) <= tolerance * expected[name] + rounding
    ]


def _squared_length(reading: Reading, gradients: Sequence[Tensor]) -> float:
    """Of the parameter's gradient, from its inputs and sensitivities; nan if they cannot be read."""
    total = 0.0
    try:
        for group in range(reading.groups):
            sensitivities = reading.arranged(group, [values[None] for values in gradients])[0].flatten(0, 1)
            inputs = reading.inputs(group).flatten(0, 1).to(sensitivities)
            total += float(torch.linalg.vector_norm(sensitivities.t() @ inputs, dtype=torch.float64)) ** 2
    except UnreadableError:
        return float("nan")
    return total
