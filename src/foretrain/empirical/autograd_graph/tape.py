"""The autograd graph of one forward pass as a list of nodes, and which entries of its tensors belong to which sample.

An edge (node, slot) stands for the tensor that a node gave as its slot-th result; the gradient there is what
torch.autograd hands to the node in the backward pass. Owners are found by two backward passes, the second with the
outputs of sample n weighted by w_n: an entry whose gradient grows by w_n belongs to sample n alone; one that grows by
anything else is shared by samples.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import islice
from math import prod
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node

from foretrain.support.user_warnings import filtered_warnings

# Powers of two scale floating-point numbers exactly; this leaves room for sums in another order.
_CLOSE = 1e-3
_CLOSE_OF_MANY = 0.1  # of the distance between the weights of neighbouring samples
_FEW = 8
_GLANCE = 64  # places that rule out most axes
_SMALLEST = 1e-30  # below it gradients in single precision round to nothing


@dataclass(frozen=True)
class SampleAxis:
    """A tensor's entries in memory order are (before, samples, after)."""

    before: int
    after: int
    others: tuple[int, ...] = field(
        default=(), compare=False
    )  # shorter ``after`` that put all entries as well

    @staticmethod
    def of(each: int, fitting: Sequence[int]) -> SampleAxis:
        """Of tensors with so many entries per sample: the longest of all fitting lengths."""
        return SampleAxis(each // fitting[0], fitting[0], tuple(fitting[1:]))

    def among(self, fitting: Collection[int]) -> SampleAxis:
        """What is left of the lengths that another pass does not rule out; as it was if none is."""
        left = [after for after in (self.after, *self.others) if after in fitting]
        return SampleAxis.of(self.before * self.after, left) if left else self

    @property
    def certain(self) -> bool:
        """Whether no other axis puts all entries with their samples."""
        return not self.others

    def split(self, tensor: Tensor, samples: int) -> Tensor:
        """As (before, samples, after)."""
        return tensor.reshape(self.before, samples, self.after)


@dataclass(frozen=True)
class Shared:
    """Several samples meet here: the tensor comes from parameters alone, or the model mixes samples."""


@dataclass(frozen=True)
class Silent:
    """No gradient arrives, so that nothing is known."""


Owner = SampleAxis | Shared | Silent


def weights(samples: int, like: Tensor) -> Tensor:
    """A weight for each sample: 1, 2, 4, ..., which scale floating-point numbers exactly; 1 to 2 for many samples."""
    return _weights(samples, like.dtype, like.device)


@lru_cache(maxsize=64)
def _weights(samples: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    numbers = torch.arange(samples, device=device, dtype=dtype)
    return 2.0**numbers if samples <= _FEW else 1 + numbers / samples


def owner(plain: Tensor | None, weighted: Tensor | None, samples: int) -> Owner:
    """Who owns the entries of a tensor, from its gradients in both passes."""
    if plain is None or weighted is None:
        return Silent()
    if plain.is_complex():
        plain, weighted = torch.view_as_real(plain), torch.view_as_real(weighted)
    first, second = plain.detach().reshape(-1), weighted.detach().reshape(-1)
    filled = int(torch.count_nonzero(first))
    if not filled:
        return Silent()
    if len(first) % samples == 0:  # the common case: samples come first, and their gradients scale exactly
        rows = first.view(samples, -1) * weights(samples, first)[:, None]
        if torch.equal(rows, second.view(samples, -1)):
            # An axis further down would leave at least half of the entries of a sample empty.
            after = len(first) // samples
            if filled > 0.5 * len(first):
                return SampleAxis(1, after)
            place = torch.nonzero(first).squeeze(1)
            fitting = _fitting(place, place.div(after, rounding_mode="floor"), len(first), samples)
            return SampleAxis.of(after, fitting)
    place = torch.nonzero(first.abs() > _SMALLEST).squeeze(1)
    if not len(place):
        return Silent()
    # The sample whose weight is nearest to the ratio of both gradients, if it is near enough.
    ratio = second[place].double() / first[place].double()
    is_power = samples <= _FEW
    number = torch.log2(ratio.clamp_min(_SMALLEST)) if is_power else (ratio - 1) * samples
    sample = number.round()
    near = (number - sample).abs() < (_CLOSE if is_power else _CLOSE_OF_MANY)
    if not bool((near & (sample >= 0) & (sample < samples)).all()):
        return Shared()
    # The axis that puts every entry with its sample. Where few entries have gradients, several may fit. With a
    # gradient of every sample in one stretch of memory, the longest one does: a longer one would put neighbouring
    # samples together.
    total = len(first)
    fitting = _fitting(place, sample.long(), total, samples) if total % samples == 0 else []
    if not fitting:
        return Shared()
    return SampleAxis.of(total // samples, fitting)


def _fitting(place: Tensor, sample: Tensor, total: int, samples: int) -> list[int]:
    """Lengths after the sample axis, longest first, that put all places with their samples."""
    each = total // samples
    small = [d for d in range(1, int(each**0.5) + 1) if each % d == 0]
    divisors = sorted({*small, *(each // d for d in small)}, reverse=True)
    lengths = torch.tensor(divisors, device=place.device)
    some = torch.linspace(0, len(place) - 1, min(len(place), _GLANCE), device=place.device).long()
    seen = place[some].div(lengths[:, None], rounding_mode="floor") % samples == sample[some]
    return [
        after
        for after in lengths[seen.all(1)].tolist()
        if bool((place.div(after, rounding_mode="floor") % samples == sample).all())
    ]


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

_VIEWS = ("View", "UnsafeView", "ReshapeAlias")
_LINEAR = (("AddmmBackward0", 2), ("MmBackward0", 1))
_MANY_NODES = 150
SMALL_NODE = 20_000  # entries: going to a node takes as long as computing with so many
_TOGETHER = 8


@dataclass(frozen=True)
class Tape:
    """All nodes behind the outputs of a batch, in an order that depends on the graph alone."""

    outputs: Tensor
    nodes: Sequence[Node]
    inputs: Sequence[tuple[Edge | None, ...]]  # of every node: the edges that it takes
    leaves: Mapping[str, int]  # of every parameter that is used: the node where its gradient arrives
    has_hooks: bool = False  # whether hooks of the user's are called on the way, which leave no nodes
    cache: dict[Any, Any] = field(default_factory=dict, repr=False)  # what is needed in every backward pass
    _shapes: dict[Edge, tuple[int, ...]] = field(default_factory=dict, repr=False)

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

    @cached_property
    def linear_weights(self) -> frozenset[str]:
        """Parameters that are used once, as they are or transposed, as the right factor of a matrix product."""
        found = set()
        for name, leaf in self.leaves.items():
            uses = self.users.get((leaf, 0), ())
            if len(uses) == 1 and self.names[uses[0][0]] == "TBackward0":
                uses = self.users.get((uses[0][0], 0), ())
            if len(uses) == 1 and (self.names[uses[0][0]], uses[0][1]) in _LINEAR:
                found.add(name)
        return frozenset(found)

    @property
    def depends_on_values(self) -> bool:
        """Whether some node picks entries by indices or masks."""
        return any(name.startswith(_VALUE_DEPENDENT) for name in self.names)

    def views(self, edge: Edge) -> list[Edge]:
        """Edges that stand for the same entries in the same order, in another shape."""
        found = [(node, 0) for node, _ in self.users.get(edge, ()) if self.names[node].startswith(_VIEWS)]
        before = self.inputs[edge[0]][0] if self.names[edge[0]].startswith(_VIEWS) else None
        return found if before is None else [*found, before]

    def shape_at(self, edge: Edge) -> tuple[int, ...]:
        """The shape of the tensor that an edge stands for."""
        if edge not in self._shapes:
            node, slot = edge
            is_leaf = self.names[node] == "AccumulateGrad"
            of: Any = self.nodes[node].variable if is_leaf else self.nodes[node]._input_metadata[slot]  # type: ignore[attr-defined]
            self._shapes[edge] = tuple(of.shape)
        return self._shapes[edge]

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
        # A pass then takes its time for going from node to node, not for the numbers in them.
        is_fine = self.is_long and bool(edges) and self.is_plain and not self._has_large_nodes(edges)
        while together := list(islice(waiting, _TOGETHER if is_fine and not self.cache.get("alone") else 1)):
            found = self._in_one_pass(edges, together) if len(together) > 1 else None
            for number, cotangent in enumerate(together):
                if found is None:
                    yield self.gradients(edges, cotangent)
                else:
                    yield [None if values is None else values[number] for values in found]

    def bears_threads(self, edges: Sequence[Edge]) -> bool:
        """Whether passes to these edges may run beside each other, and take long enough for that."""
        return (
            self.outputs.device.type == "cpu"
            and bool(edges)
            and self._has_large_nodes(edges)
            and self.is_plain
        )

    @cached_property
    def is_plain(self) -> bool:
        """Whether backward passes call nothing that a user wrote in Python: only then may several go together.

        Such code expects one gradient at a time. What torch passes to it for several at once may end the process when
        the code reads its memory (``gradient.data``), and code that keeps something may not be called by two threads.
        """
        written = torch.autograd.function.BackwardCFunction
        is_watched = self.has_hooks or torch.is_anomaly_enabled()
        return not is_watched and not any(isinstance(node, written) for node in self.nodes)

    def _has_large_nodes(self, edges: Sequence[Edge]) -> bool:
        return median(prod(self.shape_at(edge)) for edge in edges) > SMALL_NODE

    @property
    def is_long(self) -> bool:
        """Whether there are so many nodes that going from one to the next takes a good part of a pass."""
        return len(self.nodes) >= _MANY_NODES

    def _in_one_pass(self, edges: Sequence[Edge], cotangents: Sequence[Tensor]) -> list[Tensor | None] | None:
        """Gradients (many, ...) at every edge; None if some node cannot take several at once."""
        targets = [GradientEdge(self.nodes[node], slot) for node, slot in edges]
        try:
            return _batched(self.outputs, targets, torch.stack(list(cotangents)))
        except RuntimeError:
            self.cache["alone"] = True
            return None

    def pull_back(self, edge: Edge, parameters: Sequence[Tensor], cotangents: Tensor) -> list[Tensor | None]:
        """Carry many gradients at one edge (many, ...) down to the parameters behind it."""
        node, slot = edge
        return all_gradients(GradientEdge(self.nodes[node], slot), parameters, cotangents, self.is_plain)


def _batched(outputs: Any, targets: Sequence[Any], cotangents: Tensor) -> list[Tensor | None]:
    with filtered_warnings("ignore", "There is a performance drop"):
        return list(
            torch.autograd.grad(
                outputs, targets, cotangents, retain_graph=True, allow_unused=True, is_grads_batched=True
            )
        )


def all_gradients(
    outputs: Tensor | GradientEdge, parameters: Sequence[Tensor], cotangents: Tensor, is_plain: bool
) -> list[Tensor | None]:
    """Gradients (many, ...) for many cotangents, in one pass if the graph is plain and all nodes bear it."""
    if is_plain:
        try:
            return _batched(outputs, parameters, cotangents)
        except RuntimeError:
            pass  # some node has no rule for several at once
    kept: dict[int, Tensor] = {}
    for number, cotangent in enumerate(cotangents):
        gradients = torch.autograd.grad(outputs, parameters, cotangent, retain_graph=True, allow_unused=True)
        for place, gradient in enumerate(gradients):
            if gradient is not None:
                dense = gradient.to_dense() if gradient.is_sparse else gradient
                kept.setdefault(place, dense.new_zeros(len(cotangents), *dense.shape))[number] = dense
    return [kept.get(place) for place in range(len(parameters))]


def read(outputs: Tensor, parameters: Mapping[str, Tensor], has_hooks: bool = False) -> Tape:
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
    return Tape(outputs, nodes, inputs, leaves, has_hooks)


def fixed_normal(like: Tensor) -> Tensor:
    """Normal numbers of a tensor's shape, always the same, that leave everybody else's random numbers alone."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(like.shape, generator=generator, dtype=torch.float64).to(like)


class Probe:
    """Gradients at any edges for two mixes of outputs: plain, and with sample n weighted by w_n."""

    def __init__(
        self,
        tape: Tape,
        cotangent: Tensor,
        moved: Callable[[], Tape | None] | None = None,
        more: Callable[[], Tape] | None = None,
        known: Mapping[Edge, Owner] | None = None,
    ) -> None:
        """Of a graph with the owners that are ``known`` without gradients, and two more for what it does not show.

        ``moved`` gives that with parameters moved at random, for tensors where no gradient arrives here; ``more``
        that of another number of samples, for tensors with so few gradients that several axes would fit.
        """
        self.tape = tape
        self._moved, self._more = moved, more
        self.samples = len(cotangent)
        self.weights = weights(self.samples, cotangent)
        self._mixes = cotangent, cotangent * self.weights[:, None]
        self.plain: dict[Edge, Tensor | None] = {}
        self.weighted: dict[Edge, Tensor | None] = {}
        self._lengths: dict[str, float] = {}  # squared, of the weighted mix's gradients
        self.known = {(0, 0)} | (known or {}).keys()
        self.owners: dict[Edge, Owner] = {(0, 0): SampleAxis(1, tape.outputs.shape[1]), **(known or {})}

    def see(self, edges: Iterable[Edge]) -> None:
        """One backward pass for the plain gradients at all edges where they are not there yet."""
        new = [edge for edge in dict.fromkeys(edges) if edge not in self.plain]
        self.plain |= zip(new, self.tape.gradients(new, self._mixes[0]))

    def ask(self, edges: Iterable[Edge]) -> None:
        """Two backward passes for the owners of all edges that are not known yet."""
        new = [edge for edge in dict.fromkeys(edges) if edge not in self.plain and edge not in self.known]
        if not new:
            return
        self.see(new)
        # This pass gives the lengths of the parameters' gradients as well.
        leaves = {} if self._lengths else self.tape.leaves
        leaves = {name: leaf for name, leaf in leaves.items() if name not in self.tape.linear_weights}
        grown = self.tape.gradients([*new, *((leaf, 0) for leaf in leaves.values())], self._mixes[1])
        self.weighted |= zip(new, grown)
        for name, gradient in zip(leaves, grown[len(new) :]):
            self._lengths[name] = _squared_length(gradient)
        self.owners |= {edge: owner(self.plain[edge], self.weighted[edge], self.samples) for edge in new}
        # Weights that are zero and units that are dead stop gradients: see where samples are without them.
        silent = [edge for edge in new if isinstance(self.owners[edge], Silent)]
        other = self._moved() if silent and self._moved is not None else None
        if other is not None and other.shape == self.tape.shape:
            plain, weighted = (other.gradients(silent, mix) for mix in self._mixes)
            for edge, first, second in zip(silent, plain, weighted):
                self.owners[edge] = owner(first, second, self.samples)
        self._narrow(new)

    def _narrow(self, edges: Sequence[Edge]) -> None:
        """Of several axes that fit, keep that which grows with the number of samples, in a tensor or a view of it."""
        axes = {
            edge: axis for edge in edges if isinstance(axis := self.owners[edge], SampleAxis) and axis.others
        }
        other = self._more() if axes and self._more is not None else None
        if other is None or other.shape != self.tape.shape:
            return
        for edge, axis in axes.items():
            lengths = set()
            for one in (edge, *self.tape.views(edge)):
                mine, theirs = self.tape.shape_at(one), other.shape_at(one)
                changed = [
                    k for k, sizes in enumerate(zip(mine, theirs, strict=True)) if sizes[0] != sizes[1]
                ]
                if [(mine[k], theirs[k]) for k in changed] == [(self.samples, len(other.outputs))]:
                    lengths.add(prod(mine[changed[0] + 1 :]))
            self.owners[edge] = axis.among(lengths)

    def squared_lengths(self, names: Sequence[str]) -> dict[str, float]:
        """Of the gradients of the weighted mix with respect to parameters."""
        used = [name for name in names if name in self.tape.leaves and name not in self._lengths]
        gradients = self.tape.gradients([(self.tape.leaves[name], 0) for name in used], self._mixes[1])
        self._lengths |= {name: _squared_length(gradient) for name, gradient in zip(used, gradients)}
        return {name: self._lengths.get(name, 0.0) for name in names}


def _squared_length(gradient: Tensor | None) -> float:
    if gradient is None:
        return 0.0
    dense = gradient.to_dense() if gradient.is_sparse else gradient
    length = torch.linalg.vector_norm(dense, dtype=torch.float64)  # sums of millions need it
    return float(length) ** 2
