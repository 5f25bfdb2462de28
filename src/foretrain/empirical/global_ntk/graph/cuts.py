"""The states as edges of a recorded graph: which entries of their vector they hold, and which follows from which.

A loop h = f(h, x) that stacks its states shows them as inputs of the node that stacks. They are found by going back
from what is returned through nodes that only rearrange: each is asked for its own derivative at the numbers of the
entries, and hands them on to its inputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from foretrain.empirical.autograd_graph.tape import Tape

_REARRANGING = tuple(
    f"{name}Backward"
    for name in (
        *("Alias", "Cat", "Clone", "Permute", "ReshapeAlias", "Select", "Slice", "Squeeze", "Stack", "T"),
        *("Transpose", "UnsafeView", "Unsqueeze", "View"),
    )
)
_WRITTEN_INTO = "torch::autograd::CopySlices"


class Places:
    """Which entries of a vector of all states a tensor holds; ``index`` has the tensor's shape."""

    def __init__(self, index: Tensor) -> None:
        self.index = index
        steps = [0] * index.ndim
        for axis, size in enumerate(index.shape):
            if size > 1:
                steps[axis] = int((index.select(axis, 1) - index.select(axis, 0)).flatten()[0])
        self._start, self._steps = int(index.flatten()[0]), steps
        lattice = torch.full_like(index, self._start)
        for axis, (size, step) in enumerate(zip(index.shape, steps)):
            lattice += step * torch.arange(size, device=index.device).view(
                -1, *(1,) * (index.ndim - axis - 1)
            )
        self._is_lattice = torch.equal(lattice, index)

    def of(self, block: Tensor) -> Tensor:
        """The entries in a block (k, size) of vectors, (k, *shape)."""
        if not self._is_lattice:
            return block[:, self.index]
        block = block.contiguous()
        shape, steps = (len(block), *self.index.shape), (block.shape[1], *self._steps)
        return block.as_strided(shape, steps, block.storage_offset() + self._start)

    def put(self, block: Tensor, values: Tensor, *, add: bool = False) -> None:
        """Write values (k, *shape) into a contiguous block of vectors, or add them to what is there."""
        if not self._is_lattice:
            block[:, self.index] = values + block[:, self.index] if add else values
        elif add:
            self.of(block).add_(values)
        else:
            self.of(block).copy_(values)


@dataclass(frozen=True)
class Cut:
    """An edge of the graph at which states are, and their places."""

    edge: GradientEdge
    places: Places

    @property
    def is_parameter(self) -> bool:
        """Whether the state is a parameter itself, such as a learned first state."""
        return hasattr(self.edge.node, "variable")

    @property
    def zeros(self) -> Tensor:
        """Zeros of the tensor's shape and dtype, in the memory of one number."""
        node: Any = self.edge.node
        of = node.variable if self.is_parameter else node._input_metadata[self.edge.output_nr]
        return torch.zeros((), dtype=of.dtype, device=of.device).expand(tuple(of.shape))


def edge_of(tensor: Tensor) -> GradientEdge | None:
    """Where the graph has a tensor; None for one that nothing differentiable reaches."""
    return get_gradient_edge(tensor) if tensor.requires_grad else None


def origins(edge: GradientEdge | None, places: Tensor) -> list[Cut] | None:
    """The tensors that one was put together from, in the order of their places; None if some is there in part only.

    What nothing differentiable reaches is left out.
    """
    if edge is not None and not _rearranges(edge):
        return [Cut(edge, Places(places))]
    found: dict[tuple[object, int], tuple[GradientEdge, Tensor]] = {}
    # Numbers from one on: zero is for what is not among the states.
    waiting = [] if edge is None else [(edge, places.double() + 1)]
    while waiting:
        at, numbers = waiting.pop()
        if not bool(numbers.any()):
            continue
        if _rearranges(at):
            node_itself: Any = at.node
            handed = node_itself(numbers)
            parts = handed if isinstance(handed, tuple) else (handed,)
            for (node, slot), part in zip(at.node.next_functions, parts):
                if node is not None:
                    waiting.append((GradientEdge(node, slot), part))
            continue
        key = at.node, at.output_nr
        if key in found or not bool(numbers.all()):
            return None
        found[key] = at, numbers.long() - 1
    cuts = [Cut(at, Places(numbers)) for at, numbers in found.values()]
    return sorted(cuts, key=lambda cut: int(cut.places.index.flatten()[0]))


def _rearranges(edge: GradientEdge) -> bool:
    name = edge.node.name()
    return name.startswith(_REARRANGING) or name == _WRITTEN_INTO


def predecessors(tape: Tape, cuts: Sequence[Cut]) -> list[set[int]]:
    """For every cut those that it follows from directly, without another one between."""
    place = {node: number for number, node in enumerate(tape.nodes)}
    edges = [(place[cut.edge.node], cut.edge.output_nr) for cut in cuts]
    number = {edge: i for i, edge in enumerate(edges)}
    found: list[set[int]] = [set() for _ in cuts]
    for own, (start, _) in zip(found, edges):
        waiting, seen = [start], {start}
        while waiting:
            for edge in tape.inputs[waiting.pop()]:
                if edge in number:
                    own.add(number[edge])
                elif edge is not None and edge[0] not in seen:
                    seen.add(edge[0])
                    waiting.append(edge[0])
    return found
