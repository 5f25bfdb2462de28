"""How a model uses its parameters: read off a pass with a few samples.

Parameters enter through tensors made of parameters alone (a weight, its transpose, a part of it, a normalised
weight): the sources. A source is used where it meets something that belongs to one sample each. A pass
with two samples shows all this; passes with more samples have the same graph.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from foretrain.empirical.autograd_graph.sites import (
    UnreadableError,
    Use,
    is_broadcast,
    is_plain_bias,
    is_product,
)
from foretrain.empirical.autograd_graph.tape import Edge, Owner, Probe, SampleAxis, Shared, Silent, Tape

# Entries are moved, not changed: gradients keep their lengths and angles.
_REARRANGING = (
    "Alias",
    "Clone",
    "Permute",
    "ReshapeAlias",
    "Select",
    "Slice",
    "Split",
    "SplitWithSizes",
    "Squeeze",
    "T",
    "ToCopy",
    "Transpose",
    "Unbind",
    "UnsafeSplit",
    "UnsafeSplitWithSizes",
    "UnsafeView",
    "Unsqueeze",
    "View",
)
_PARTING = ("Split", "SplitWithSizes", "Unbind", "UnsafeSplit", "UnsafeSplitWithSizes")


@dataclass
class Source:
    """A tensor D made of parameters alone, the edges where it occurs, and all its uses."""

    edges: list[Edge]
    shape: tuple[int, ...]
    scale: float | None  # D is a rearranged parameter times this; None: something else
    made: tuple[Any, ...]  # how it is rearranged
    uses: list[Use] = field(default_factory=list)


@dataclass
class Block:
    """Parameters that must be treated together, because they share sources."""

    parameters: tuple[str, ...]
    sources: list[Source]

    @property
    def direct(self) -> bool:
        """One parameter, or a part of one, whose gradients are those of its source up to order and scale."""
        return len(self.parameters) == 1 and len(self.sources) == 1 and self.sources[0].scale is not None


@dataclass
class Structure:
    """What is known about graphs of one shape."""

    blocks: list[Block]
    unreadable: dict[str, str]  # parameters that are treated sample by sample, and why
    unused: tuple[str, ...]
    depends_on_values: bool
    silent: dict[Edge, set[str]]  # where no gradient arrives: parameters that would have contributed
    certain: bool  # only one reading fits
    clear: bool  # the nodes themselves say where the samples are
    active: float  # entries per sample of all tensors that belong to samples
    bias_of: dict[str, str] = field(default_factory=dict)  # weight -> bias added to its product


@dataclass(frozen=True)
class _Path:
    """From a parameter to an edge: what was done to it."""

    edge: Edge
    steps: tuple[Any, ...]
    scale: float | None


def analyse(tape: Tape, parameters: Mapping[str, Tensor], probe: Probe) -> Structure:
    """Find the sources of all parameters, their uses, and the blocks that belong together."""
    leaves = {name: tape.leaves[name] for name in parameters if name in tape.leaves}
    climbs = {name: _Climb(tape, leaf) for name, leaf in leaves.items()}
    unreadable: dict[str, str] = {}
    met: set[Edge] = set()
    while waiting := [edge for climb in climbs.values() for edge in climb.wanted()]:
        probe.ask(waiting)
        met |= {*waiting}
        for name, climb in list(climbs.items()):
            try:
                climb.go_on(probe.owners)
            except UnreadableError as reason:
                unreadable[name] = str(reason)
                del climbs[name]
    sources: dict[Any, Source] = {}
    members: dict[str, list[Any]] = {}
    silent: dict[Edge, set[str]] = {}
    for name, climb in climbs.items():
        # Sources that come about by the same rearrangement of the same parameter are one.
        keys: dict[Any, None] = {}
        for path, use in climb.uses:
            key = (name, path.steps) if path.scale is not None else path.edge
            keys[key] = None
            if key not in sources:
                sources[key] = Source([], tape.shape_at(path.edge), path.scale, path.steps)
            sources[key].edges.append(path.edge)
            sources[key].uses.append(use)
        members[name] = list(keys)
        for edge in climb.silent:
            silent.setdefault(edge, set()).add(name)
    for source in sources.values():
        source.edges, source.uses = list(dict.fromkeys(source.edges)), list(dict.fromkeys(source.uses))
    blocks = _blocks({name: keys for name, keys in members.items() if keys}, sources)
    axes = [axis for edge in met if isinstance(axis := probe.owners[edge], SampleAxis)]
    return Structure(
        blocks=blocks,
        unreadable=unreadable,
        unused=tuple(name for name in parameters if name not in leaves),
        depends_on_values=tape.depends_on_values,
        silent=silent,
        certain=all(axis.certain for axis in axes),
        clear=met <= probe.known,
        active=float(sum(axis.before * axis.after for axis in axes)),
        bias_of=_biases(tape, blocks),
    )


class _Climb:
    """From a parameter through everything that the samples share, to what belongs to one sample each."""

    def __init__(self, tape: Tape, leaf: int) -> None:
        self.uses: list[tuple[_Path, Use]] = []
        self.silent: list[Edge] = []  # where no gradient arrives, whatever the parameters are
        self._tape = tape
        self._seen: set[Edge] = set()
        self._open: list[tuple[_Path, int, int]] = []  # at a path's end: node and position that use it
        self._rise(_Path((leaf, 0), (), 1.0))

    def wanted(self) -> list[Edge]:
        """Edges whose owners must be known to go on."""
        return [edge for _, node, _ in self._open for edge in self._tape.results[node]]

    def go_on(self, owners: Mapping[Edge, Owner]) -> None:
        """Decide for all open nodes whether they are uses, or are shared and lead further up."""
        now, self._open = self._open, []
        for path, node, position in now:
            results = self._tape.results[node]
            kinds = {type(owners[edge]) for edge in results}
            if kinds == {Silent}:
                self.silent += results
            elif kinds == {SampleAxis}:
                if self._tape.dtype_at((node, 0)).is_complex:
                    raise UnreadableError("it meets complex numbers")
                axis = owners.get((node, 0))
                known = is_product(self._tape, node, position) or is_broadcast(self._tape, node, position)
                if not known or not isinstance(axis, SampleAxis):
                    raise UnreadableError(f"it is used by {_kind(self._tape, node)}")
                self.uses.append((path, Use(node, position, axis)))
            elif kinds == {Shared}:
                for edge in results:
                    self._rise(_climbed(self._tape, path, position, edge))
            else:
                raise UnreadableError("its samples are apart in one result of a node and not in another")

    def _rise(self, path: _Path) -> None:
        """Go up through rearrangements, which need no question, to the nodes that do something else."""
        waiting = [path]
        while waiting:
            reached = waiting.pop()
            if reached.edge in self._seen:
                continue
            self._seen.add(reached.edge)
            for node, position in self._tape.users.get(reached.edge, ()):
                if _kind(self._tape, node) in _REARRANGING:
                    results = self._tape.results[node]
                    waiting += [_climbed(self._tape, reached, position, edge) for edge in results]
                else:
                    self._open.append((reached, node, position))


def _kind(tape: Tape, node: int) -> str:
    return tape.names[node].partition("Backward")[0]


def _climbed(tape: Tape, path: _Path, position: int, edge: Edge) -> _Path:
    node, slot = edge
    name = _kind(tape, node)
    if path.scale is None:
        return _Path(edge, (), None)
    # Sizes, dimensions and positions say what a rearrangement does.
    function = tape.nodes[node]
    kept = [(own, getattr(function, own)) for own in dir(type(function)) if own.startswith("_saved_")]
    step = (name, position, slot, tuple(pair for pair in kept if not isinstance(pair[1], Tensor)))
    if name in _REARRANGING:
        return _Path(edge, (*path.steps, step), path.scale)
    factor = _number(tape, node, name, position)
    if factor is None:
        return _Path(edge, (), None)
    return _Path(edge, (*path.steps, (*step, factor)), path.scale * factor)


def _number(tape: Tape, node: int, name: str, position: int) -> float | None:
    """The number that a parameter is multiplied by, None if it is not one."""
    if name == "Neg":
        return -1.0
    if name not in ("Mul", "Div") or (name == "Div" and position != 0):
        return None
    if any(edge is not None for i, edge in enumerate(tape.inputs[node]) if i != position):
        return None
    other = tape.saved(node, "other" if position == 0 else "self")
    if isinstance(other, Tensor):
        if other.ndim:
            return None
        other = other.item()
    return 1 / other if name == "Div" else float(other)


def _blocks(members: Mapping[str, Sequence[Any]], sources: Mapping[Any, Source]) -> list[Block]:
    """Parameters and sources that hang together; parts of one parameter that do not overlap go apart."""
    blocks: list[Block] = []
    left = dict(members)
    made_of: dict[Any, list[str]] = {}
    for name, keys in members.items():
        for key in keys:
            made_of.setdefault(key, []).append(name)
    while left:
        name, keys = left.popitem()
        names, found, waiting = [name], dict.fromkeys(keys), list(keys)
        while waiting:
            for other in made_of[waiting.pop()]:
                if other in left:
                    names.append(other)
                    new = left.pop(other)
                    found |= dict.fromkeys(new)
                    waiting += new
        own = [sources[key] for key in found]
        pieces = len(names) == 1 and len(found) > 1 and _are_pieces(list(found), sources)
        blocks += [
            Block(tuple(sorted(names)), part) for part in ([[one] for one in own] if pieces else [own])
        ]
    return sorted(blocks, key=lambda block: block.parameters)


def _are_pieces(keys: Sequence[Any], sources: Mapping[Any, Source]) -> bool:
    """Whether each source is another result of one and the same splitting of the parameter."""
    if any(sources[key].scale is None for key in keys):
        return False
    paths = [key[1] for key in keys]
    for depth in range(min(map(len, paths))):
        steps = [path[depth] for path in paths]
        slots = {step[2] for step in steps}
        alike = {(step[0], step[1], step[3]) for step in steps}
        if len(alike) > 1:
            return False
        if len(slots) == len(paths):
            return steps[0][0] in _PARTING
        if len(slots) > 1:
            return False
    return False


def _biases(tape: Tape, blocks: Sequence[Block]) -> dict[str, str]:
    """Biases that are added to just those products that a weight is used in."""
    weight_at: dict[tuple[int, ...], str] = {}
    for block in blocks:
        uses = block.sources[0].uses
        if block.direct and all(is_product(tape, use.node, use.position) for use in uses):
            weight_at[tuple(sorted(use.node for use in uses))] = block.parameters[0]
    found = {}
    for block in blocks:
        source = block.sources[0]
        nodes = tuple(sorted(use.node for use in source.uses))
        plain = all(is_plain_bias(tape, use) for use in source.uses)
        if block.direct and plain and source.scale == 1 and nodes in weight_at:
            found[weight_at[nodes]] = block.parameters[0]
    return found
