"""The autograd graph of one forward pass as a list of nodes, so that two passes can be compared node by node.

An edge (node, slot) stands for the tensor that a node gave as its slot-th result; the gradient there is what
torch.autograd hands to the node in the backward pass.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from math import prod
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node

from foretrain.empirical.autograd_graph.ownership import Owner, SampleAxis, Silent, owners, weights

Edge = tuple[int, int]  # index of the node, number of its result

# Rows may be picked or ordered by values in these: what is known of one batch may not hold for the next.
_VALUE_DEPENDENT = (
    "Index",
    "Gather",
    "Scatter",
    "Masked",
    "Sort",
    "Topk",
    "Take",
    "PackPadded",
    "Unique",
    "Nested",
    "Put",
)

_MANY_NODES = 150
_SMALL_NODE = 20_000  # entries: going to a node takes as long as computing with so many
_TOGETHER = 8


@dataclass(frozen=True)
class Tape:
    """All nodes behind the outputs of a batch, in an order that depends on the graph alone."""

    outputs: Tensor
    nodes: Sequence[Node]
    inputs: Sequence[tuple[Edge | None, ...]]  # of every node: the edges that it takes
    leaves: Mapping[str, int]  # of every parameter that is used: the node where its gradient arrives
    cache: dict[Any, Any] = field(default_factory=dict, repr=False)  # what is needed in every backward pass

    @cached_property
    def names(self) -> tuple[str, ...]:
        """What every node does, in torch's words."""
        return tuple(node.name().removeprefix("torch::autograd::") for node in self.nodes)

    @cached_property
    def shape(self) -> int:
        """Equal for graphs that are built alike, of the same parameters."""
        return hash((self.names, tuple(self.inputs), tuple(self.leaves.items())))

    @cached_property
    def users(self) -> Mapping[Edge, Sequence[tuple[int, int]]]:
        """Who takes an edge: (node, position among its inputs)."""
        found: dict[Edge, list[tuple[int, int]]] = {}
        for index, inputs in enumerate(self.inputs):
            for position, edge in enumerate(inputs):
                if edge is not None:
                    found.setdefault(edge, []).append((index, position))
        return found

    @cached_property
    def results(self) -> Mapping[int, Sequence[Edge]]:
        """The edges of every node that somebody takes, and the output itself."""
        found: dict[int, list[Edge]] = {0: [(0, 0)]}
        for edge in self.users:
            found.setdefault(edge[0], []).append(edge)
        return found

    @property
    def depends_on_values(self) -> bool:
        """Whether some node picks entries by indices or masks."""
        return any(name.startswith(_VALUE_DEPENDENT) for name in self.names)

    def shape_at(self, edge: Edge) -> tuple[int, ...]:
        """The shape of the tensor that an edge stands for."""
        node, slot = edge
        if self.names[node] == "AccumulateGrad":
            return tuple(self.nodes[node].variable.shape)  # type: ignore[attr-defined]
        return tuple(self.nodes[node]._input_metadata[slot].shape)

    def dtype_at(self, edge: Edge) -> torch.dtype:
        """The dtype of the tensor that an edge stands for."""
        node, slot = edge
        if self.names[node] == "AccumulateGrad":
            return self.nodes[node].variable.dtype  # type: ignore[attr-defined,no-any-return]
        return self.nodes[node]._input_metadata[slot].dtype  # type: ignore[no-any-return]

    def saved(self, node: int, name: str) -> Any:
        """What a node kept of its arguments for the backward pass."""
        return getattr(self.nodes[node], f"_saved_{name}")

    def gradients(self, edges: Sequence[Edge], cotangent: Tensor) -> list[Tensor | None]:
        """Gradients of the sum of outputs * cotangent at the edges; None where it does not arrive."""
        if not edges:
            return []
        targets = [GradientEdge(self.nodes[node], slot) for node, slot in edges]
        return list(
            torch.autograd.grad(self.outputs, targets, cotangent, retain_graph=True, allow_unused=True)
        )

    def gradients_of_many(
        self, edges: Sequence[Edge], cotangents: Iterable[Tensor]
    ) -> Iterator[list[Tensor | None]]:
        """The same for one cotangent after the other; on graphs of many small nodes several go in one pass."""
        waiting = iter(cotangents)
        while together := list(islice(waiting, _TOGETHER if self._is_fine(edges) else 1)):
            found = self._in_one_pass(edges, together) if len(together) > 1 else None
            for number, cotangent in enumerate(together):
                if found is None:
                    yield self.gradients(edges, cotangent)
                else:
                    yield [None if values is None else values[number] for values in found]

    @property
    def is_long(self) -> bool:
        """Whether there are so many nodes that going from one to the next takes a good part of a pass."""
        return len(self.nodes) >= _MANY_NODES

    def _is_fine(self, edges: Sequence[Edge]) -> bool:
        """Whether a backward pass takes its time for going from node to node, not for the numbers in them."""
        if not self.is_long or not edges or self.cache.get("alone"):
            return False
        return median(prod(self.shape_at(edge)) for edge in edges) <= _SMALL_NODE

    def _in_one_pass(self, edges: Sequence[Edge], cotangents: Sequence[Tensor]) -> list[Tensor | None] | None:
        """Gradients (many, ...) at every edge; None if some node cannot take several at once."""
        targets = [GradientEdge(self.nodes[node], slot) for node, slot in edges]
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="There is a performance drop")
                found = torch.autograd.grad(
                    self.outputs,
                    targets,
                    torch.stack(list(cotangents)),
                    retain_graph=True,
                    allow_unused=True,
                    is_grads_batched=True,
                )
        except RuntimeError:
            self.cache["alone"] = True
            return None
        return list(found)

    def pull_back(self, edge: Edge, parameters: Sequence[Tensor], cotangents: Tensor) -> list[Tensor | None]:
        """Carry many gradients at one edge (many, ...) down to the parameters behind it."""
        node, slot = edge
        return list(
            torch.autograd.grad(
                [GradientEdge(self.nodes[node], slot)],
                list(parameters),
                [cotangents],
                retain_graph=True,
                allow_unused=True,
                is_grads_batched=True,
            )
        )


def read(outputs: Tensor, parameters: Mapping[str, Tensor]) -> Tape:
    """Walk the graph behind the outputs once, depth first, in the order of every node's inputs."""
    root = outputs.grad_fn
    assert root is not None  # the model's output was checked
    index: dict[Node, int] = {root: 0}
    nodes: list[Node] = [root]
    functions: list[Any] = [root.next_functions]
    waiting = [root]
    while waiting:
        for node, _ in functions[index[waiting.pop()]]:
            if node is not None and node not in index:
                index[node] = len(nodes)
                nodes.append(node)
                functions.append(node.next_functions)
                waiting.append(node)
    inputs = [
        tuple(None if node is None else (index[node], slot) for node, slot in taken) for taken in functions
    ]
    place = {id(node.variable): number for number, node in enumerate(nodes) if hasattr(node, "variable")}
    leaves = {name: place[id(value)] for name, value in parameters.items() if id(value) in place}
    return Tape(outputs, nodes, inputs, leaves)


def fixed_normal(like: Tensor) -> Tensor:
    """Normal numbers of a tensor's shape, always the same, that leave everybody else's random numbers alone."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(like.shape, generator=generator, dtype=torch.float64).to(like)


class Probe:
    """Gradients at any edges for two mixes of outputs: plain, and with sample n weighted by w_n."""

    def __init__(self, tape: Tape, cotangent: Tensor, moved: Callable[[], Tape | None] | None = None) -> None:
        """``moved`` gives the graph with parameters moved at random, for tensors where no gradient arrives here."""
        self.tape = tape
        self._moved = moved
        self.samples = len(cotangent)
        self.weights = weights(self.samples, cotangent)
        self._mixes = cotangent, cotangent * self.weights[:, None]
        self.plain: dict[Edge, Tensor | None] = {}
        self.weighted: dict[Edge, Tensor | None] = {}
        self._lengths: dict[str, float] = {}  # squared, of the weighted mix's gradients
        self.owners: dict[Edge, Owner] = {(0, 0): SampleAxis(1, tape.outputs.shape[1])}

    def ask(self, edges: Iterable[Edge]) -> None:
        """Two backward passes for all edges that are not known yet."""
        new = [edge for edge in dict.fromkeys(edges) if edge not in self.plain]
        if not new:
            return
        self.plain |= zip(new, self.tape.gradients(new, self._mixes[0]))
        # Where passes are dear, this one gives the lengths of the parameters' gradients as well.
        leaves = self.tape.leaves if self.tape.is_long and not self._lengths else {}
        weighted = self.tape.gradients([*new, *((leaf, 0) for leaf in leaves.values())], self._mixes[1])
        self.weighted |= zip(new, weighted)
        for name, gradient in zip(leaves, weighted[len(new) :]):
            self._lengths[name] = _squared_length(gradient)
        unknown = [edge for edge in new if edge not in self.owners]
        found = owners([(self.plain[edge], self.weighted[edge]) for edge in unknown], self.samples)
        self.owners |= zip(unknown, found)
        self._ask_elsewhere([edge for edge in new if isinstance(self.owners[edge], Silent)])

    def squared_lengths(self, names: Sequence[str]) -> dict[str, float]:
        """Of the gradients of the weighted mix with respect to parameters."""
        used = [name for name in names if name in self.tape.leaves and name not in self._lengths]
        gradients = self.tape.gradients([(self.tape.leaves[name], 0) for name in used], self._mixes[1])
        self._lengths |= {name: _squared_length(gradient) for name, gradient in zip(used, gradients)}
        return {name: self._lengths.get(name, 0.0) for name in names}

    def _ask_elsewhere(self, silent: Sequence[Edge]) -> None:
        """Weights that are zero and units that are dead stop gradients: see where samples are without them."""
        other = self._moved() if silent and self._moved is not None else None
        if other is None or other.shape != self.tape.shape:
            return
        plain, weighted = (other.gradients(silent, mix) for mix in self._mixes)
        for edge, first, second in zip(silent, plain, weighted):
            (self.owners[edge],) = owners([(first, second)], self.samples)


def _squared_length(gradient: Tensor | None) -> float:
    if gradient is None:
        return 0.0
    dense = gradient.to_dense() if gradient.is_sparse else gradient
    length = torch.linalg.vector_norm(dense, dtype=torch.float64)  # sums of millions need it
    return float(length) ** 2
