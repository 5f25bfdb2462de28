"""Any module: its states are nodes of the graph that one forward pass records.

States are what the model or submodules of it return. Where that was put together from tensors that follow from
each other, as the states of a loop h = f(h, x), each of these is a node. Passes through the whole graph give P and J:
P* is back-propagation through time. The graph cut at the states gives D_theta f and D_h f, hence K and P^-1.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge

from foretrain.empirical.autograd_graph.tape import Tape, read
from foretrain.empirical.global_ntk.dynamics import Dynamics, Site, Values
from foretrain.empirical.global_ntk.graph.cuts import Cut, Places, edge_of, origins, predecessors
from foretrain.empirical.global_ntk.graph.hooks import HookedModel, Kept
from foretrain.empirical.global_ntk.graph.passes import Carrier
from foretrain.empirical.global_ntk.graph.sites import find_sites
from foretrain.empirical.global_ntk.graph.states import (
    Layout,
    States,
    axis_of_samples,
    is_ambiguous,
    layout,
    named_states,
)
from foretrain.empirical.models.arguments import Batch, as_batch, chosen, trainable
from foretrain.empirical.models.model import (
    explained,
    refuse_checkpoints,
    refuse_false_gradients,
    refuse_ill_defined,
    refuse_not_finite,
    refuse_random,
)
from foretrain.operators import SumSpace
from foretrain.operators.spaces import VectorSpace
from foretrain.support.errors import InputError
from foretrain.support.memory import available_bytes
from foretrain.support.seeds import Seed

FREEZE = ', or draw it from a seed with noise="frozen"'
_FUSED = ("MkldnnRnnLayer", "CudnnRnn", "MiopenRnn")
_BLOCK = 16
_BLOCK_BYTES = 1e9
_COPIES = 4  # of states and parameters that a pass holds for every vector


class GraphDynamics(Dynamics):
    """The states of a module at the present parameters, for one batch.

    ``states``: paths of submodules whose results are the states, (path, entry) where they return several tensors,
    or {name: path or (path, entry)}; "" is the model itself. A module that is called T times, or returns a list of T
    tensors, gives a state with T times. Where the model itself stops gradients (detach), changes stop too. ``noise``
    is a seed for what the model draws at random, the same in every pass.

    >>> import torch
    >>> net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    >>> GraphDynamics(net, torch.randn(5, 3), states=("1", "2")).space.describe()
    '{1: (batch 5, unit 4), 2: (batch 5, unit 2)}'
    """

    def __init__(
        self,
        model: nn.Module,
        x: Any,
        states: States,
        parameters: Any = None,
        batch_axis: int = 0,
        shared: Collection[str | int] = (),
        noise: Seed | None = None,
    ) -> None:
        model = getattr(model, "_orig_mod", model)
        if not isinstance(model, nn.Module):
            raise InputError(f"states are named by submodules, but the model is a {type(model).__name__}.")
        refuse_ill_defined(model, is_frozen=noise is not None)
        everything = trainable(model, None)
        counted = chosen(everything, parameters)
        self._batch = as_batch(x, batch_axis, shared)
        self._hooked = HookedModel(model, everything, named_states(model, states), noise)
        found = self._first_pass(counted)
        self.parameters = {name: value for name, value in counted.items() if name in self.tape.leaves}
        self.ends: Sequence[Tensor] = [kept.tensor for calls in found for kept in calls]
        self.layouts = self._layouts(model, found)
        has_axis = all(part.axis is not None for part in self.layouts)
        self.samples = self._batch.count if has_axis else None
        spaces = [part.space for part in self.layouts]
        self.times = frozenset(space["time"] for space in spaces if "time" in space.names)
        named = {state.name: part.space for state, part in zip(self._hooked.states, self.layouts)}
        self.space: VectorSpace = self.layouts[0].space if len(self.layouts) == 1 else SumSpace(named)
        self._places = self._places_of_ends()
        self.values = self._values_of(found)
        refuse_not_finite(self.values)
        refuse_random(self.values, self._values_of(self._hooked.run(self._batch, False)), FREEZE)
        # As many vectors as go together without filling the memory with changes of states and parameters.
        entries = self.space.size + sum(value.numel() for value in self.parameters.values())
        room = min(_BLOCK_BYTES, available_bytes() / 4)
        self.best_block = int(max(1, min(_BLOCK, room / (_COPIES * entries * self.dtype.itemsize))))
        self._cut_states(found)
        names = self.parameters.values()
        self._through = Carrier(
            self.ends,
            {"states": [cut.edge for cut in self.cuts], "parameters": list(names)},
            {
                "states": [cut.places.index.shape for cut in self.cuts],
                "parameters": [p.shape for p in names],
            },
        )

    @property
    def tape_by_sample(self) -> Tape | None:
        """The same with (samples, entries) as its root; None if a state has no axis of samples."""
        if self.samples is None:
            return None
        axes = [part.axis or 0 for part in self.layouts for _ in range(part.calls)]
        rows = [state.movedim(axis, 0).reshape(self.samples, -1) for axis, state in zip(axes, self.ends)]
        return read(torch.cat(rows, 1), self.parameters)

    def to_ends(self, block: Tensor) -> list[Tensor]:
        """A block (k, size) as tensors (k, *shape) of all states, call by call."""
        return [places.of(block) for places in self._places]

    def from_ends(self, tensors: Sequence[Tensor]) -> Tensor:
        """The inverse of ``to_ends``."""
        return self._written(self._places, tensors)

    def propagate(self, changes: Tensor) -> Tensor:
        """P q: the transpose of the backward pass between the states."""
        found = self.from_ends(self._through.forth("states", self._at_cuts(changes)))
        return self._with_held(found, changes)

    def propagate_adjoint(self, vectors: Tensor) -> Tensor:
        """P* v: backward passes from all states to all states."""
        found = self._through.back("states", self.to_ends(vectors))
        return self._with_held(self._written([cut.places for cut in self.cuts], found), vectors)

    def constrain(self, changes: Tensor) -> Tensor:
        """D_h F q = q - D_h f q along the graph that is cut at the states."""
        return self._less(changes, self._local.forth("states", self._at_cuts(changes)), self._passing)

    def constrain_adjoint(self, vectors: Tensor) -> Tensor:
        """What arrives at the states by one backward pass through that graph is D_h f* v."""
        arrived = self._local.back("states", self._at_cuts(vectors, self._passing))
        return self._less(vectors, arrived, self.cuts)

    def push(self, tangents: Values) -> Tensor:
        """J t along the graph of all states, without stops at them."""
        return self.from_ends(self._through.forth("parameters", [tangents[name] for name in self.parameters]))

    def pull(self, vectors: Tensor) -> Values:
        """J* v by the same graph."""
        return dict(zip(self.parameters, self._through.back("parameters", self.to_ends(vectors))))

    def local_push(self, tangents: Values) -> Tensor:
        """D_theta f t along the graph that is cut at the states."""
        given = [value for name, value in tangents.items() if name not in self._as_states]
        count = len(next(iter(tangents.values())))
        found = self.values.new_zeros(count, self.space.size)
        if given and self._passing:
            for cut, values in zip(self._passing, self._local.forth("parameters", given)):
                cut.places.put(found, values)
        for name, places in self._as_states.items():
            places.put(found, tangents[name])
        return found

    def local_pull(self, vectors: Tensor) -> Values:
        """The adjoint by the same graph."""
        names = [name for name in self.parameters if name not in self._as_states]
        found = dict(zip(names, self._local.back("parameters", self._at_cuts(vectors, self._passing))))
        alone = {name: places.of(vectors) for name, places in self._as_states.items()}
        return {name: alone[name] if name in alone else found[name] for name in self.parameters}

    @cached_property
    def sites(self) -> Sequence[Site]:
        """Of the weights and biases that count; those that feed the same sum are one."""
        return find_sites(self, [cut.edge for cut in self.cuts])

    @property
    def structure(self) -> str:
        """Which nodes the states are, and how they follow from each other."""
        parts = [f"{state.name!r} ({says})" for state, says in zip(self._hooked.states, self._nodes) if says]
        taken = f"The states are {', '.join(parts)}."
        before = [(i, j) for i, own in enumerate(predecessors(self.tape, self.cuts)) for j in own]
        if not before:
            return (
                f"{taken} None follows from another, so that P is the identity and K all of NTK_S. If the model has "
                'a loop, let it return the states of every step (`states=("", 1)` is the second of its results), or '
                "name modules inside the loop with `states=`."
            )
        chain = all(i - j == 1 for i, j in before)
        order = "each follows from the one before it" if chain else "they follow from others before them"
        held = f" {len(self._held)} entries that nothing differentiable reaches are held."
        return (
            f"{taken} In the order of the recorded graph {order}: P = (I - D_h f T)^-1 is one pass through it, and K "
            f"is what parameters do to each state while those before it are held.{held if len(self._held) else ''}"
        )

    @cached_property
    def _local(self) -> Carrier:
        """The graph that is cut at the states."""
        names = [name for name in self.parameters if name not in self._as_states]
        starts = [self.parameters[name] for name in names]
        return Carrier(
            [cut.zeros for cut in self._passing],
            {"states": [cut.edge for cut in self.cuts], "parameters": starts},
            {
                "states": [cut.places.index.shape for cut in self.cuts],
                "parameters": [p.shape for p in starts],
            },
            [cut.edge for cut in self._passing],
        )

    def _cut_states(self, found: Sequence[Sequence[Kept]]) -> None:
        """Where the states are in the graph: where they were made if some follow from others there, or as returned.

        Sets ``cuts``; ``_passing``, those that are computed; ``_as_states``, parameters that are states themselves;
        ``_held``, entries that are at no cut; ``_nodes``, in words what is cut.
        """
        self.cuts: list[Cut] = []
        self._nodes: list[str] = []
        places = iter(self._places)
        for calls in found:
            by_call: dict[int, list[tuple[Kept, Places]]] = {}
            for kept in calls:
                by_call.setdefault(kept.call, []).append((kept, next(places)))
            steps = 0
            for parts in by_call.values():
                made = self._made_from_each_other(parts)
                steps += len(made)
                self.cuts += made or [Cut(_edge(kept.tensor), its) for kept, its in parts]
            whole = f"{len(calls)} times" if len(calls) > 1 else "once, as it is returned"
            self._nodes.append(f"read where its {steps} steps are computed" if steps else whole)
        self._passing = [cut for cut in self.cuts if not cut.is_parameter]
        own = {id(value): name for name, value in self.parameters.items()}
        alone = {id(cut.edge.node.variable): cut for cut in self.cuts if cut.is_parameter}  # type: ignore[attr-defined]
        self._as_states = {own[key]: cut.places for key, cut in alone.items() if key in own}
        left = torch.ones(self.space.size, dtype=torch.bool, device=self.device)
        for cut in self.cuts:
            left[cut.places.index.flatten()] = False
        self._held = left.nonzero().squeeze(1)

    def _made_from_each_other(self, parts: Sequence[tuple[Kept, Places]]) -> list[Cut]:
        """The tensors that the results of one call were put together from, if some follow from others."""
        found: list[Cut] = []
        used = {(cut.edge.node, cut.edge.output_nr) for cut in self.cuts}
        for kept, places in parts:
            made = origins(kept.origin, places.index)
            if made is None:
                return []
            found += made
        edges = [(cut.edge.node, cut.edge.output_nr) for cut in found]
        if len(found) < 2 or len({*edges}) < len(edges) or used & {*edges}:
            return []
        return found if any(predecessors(self.tape, found)) else []

    def _at_cuts(self, block: Tensor, cuts: Sequence[Cut] | None = None) -> list[Tensor]:
        return [cut.places.of(block) for cut in (self.cuts if cuts is None else cuts)]

    def _written(self, places: Sequence[Places], tensors: Sequence[Tensor]) -> Tensor:
        block = self.values.new_zeros(len(tensors[0]), self.space.size)
        for its, values in zip(places, tensors):
            its.put(block, values)
        return block

    def _with_held(self, block: Tensor, given: Tensor) -> Tensor:
        """Nothing that is known follows from entries at no cut: P is the identity there."""
        if len(self._held):
            block[:, self._held] = given[:, self._held]
        return block

    def _less(self, block: Tensor, tensors: Sequence[Tensor], cuts: Sequence[Cut]) -> Tensor:
        found = block.clone(memory_format=torch.contiguous_format)
        for cut, values in zip(cuts, tensors):
            cut.places.put(found, -values, add=True)
        return found

    def _first_pass(self, counted: Values) -> list[list[Kept]]:
        """All states in one graph; again without fused recurrent layers where there are some."""
        with explained(self._batch.arguments, counted.values()):
            found = self._hooked.run(self._batch)
        self.tape = _tape_of(found, counted)
        if any(name.startswith(_FUSED) for name in self.tape.names):
            self._hooked.use_plain_layers()
            found = self._hooked.run(self._batch)
            self.tape = _tape_of(found, counted)
        refuse_checkpoints(self.tape)
        refuse_false_gradients(self.tape)
        if not self.tape.leaves:
            raise InputError(
                "no state depends on a parameter that counts: name states after the first layer, or unfreeze "
                "parameters before them."
            )
        return found

    def _layouts(self, model: nn.Module, found: Sequence[Sequence[Kept]]) -> list[Layout]:
        count, usual = self._batch.count, self._batch.axis
        shapes = [[kept.tensor.shape for kept in calls] for calls in found]
        unclear = any(is_ambiguous(its[0], count) for its in shapes)
        grown: Sequence[torch.Size | None] = [None] * len(shapes)
        if unclear:  # which axis grows with one more sample says it, if the model takes that
            more: Batch = self._batch.pick([*range(count), 0])
            with suppress(Exception):  # whatever a model made for one number of samples says to another
                grown = [calls[0].tensor.shape for calls in self._hooked.run(more, False)]
        return [
            layout(state, model, its, axis_of_samples(its[0], more, count, usual))
            for state, its, more in zip(self._hooked.states, shapes, grown)
        ]

    def _places_of_ends(self) -> list[Places]:
        found, start = [], 0
        for part in self.layouts:
            index = torch.arange(start, start + part.space.size, device=self.ends[0].device)
            found += [Places(own[0]) for own in part.split(index[None])]
            start += part.space.size
        return found

    def _values_of(self, found: Sequence[Sequence[Kept]]) -> Tensor:
        tensors = [kept.tensor.detach() for calls in found for kept in calls]
        values = tensors[0].new_empty(1, self.space.size)
        for places, tensor in zip(self._places, tensors, strict=True):
            places.put(values, tensor[None])
        return values[0]


def _edge(tensor: Tensor) -> GradientEdge:
    edge = edge_of(tensor)
    assert edge is not None  # zero was added to it, which requires a gradient
    return edge


def _tape_of(found: Sequence[Sequence[Kept]], parameters: Any) -> Tape:
    root = torch.cat([kept.tensor.reshape(-1) for calls in found for kept in calls])
    return read(root[None], parameters)
