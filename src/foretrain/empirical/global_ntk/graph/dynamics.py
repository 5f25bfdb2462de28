"""Any module by named submodules: the states are what these return, at every call.

One pass with all states as nodes of the graph gives P and J, another one that is cut at the states gives D_theta f.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from foretrain.empirical.autograd_graph.tape import Tape, read
from foretrain.empirical.global_ntk.dynamics import Dynamics, Site, Values
from foretrain.empirical.global_ntk.graph.hooks import HookedModel, connected, cut, untouched
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

_FUSED = ("MkldnnRnnLayer", "CudnnRnn", "MiopenRnn")
_BLOCK = 16
_BLOCK_BYTES = 1e9
_COPIES = 4  # of states and parameters that a pass holds for every vector


class GraphDynamics(Dynamics):
    """The states of a module at the present parameters, for one batch.

    ``states``: paths of submodules whose results are the states, (path, entry) where they return several tensors, or
    {name: path or (path, entry)}. A module that is called T times gives a state with T times. Where the model itself
    stops gradients (detach), changes stop too.

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
    ) -> None:
        model = getattr(model, "_orig_mod", model)
        if not isinstance(model, nn.Module):
            raise InputError(f"states are named by submodules, but the model is a {type(model).__name__}.")
        refuse_ill_defined(model)
        everything = trainable(model, None)
        self.parameters = chosen(everything, parameters)
        self._batch = as_batch(x, batch_axis, shared)
        self._hooked = HookedModel(model, everything, named_states(model, states))
        found = self._first_pass()
        self.ends: Sequence[Tensor] = [state for kept in found for state in kept]
        self.layouts = self._layouts(model, found)
        has_axis = all(part.axis is not None for part in self.layouts)
        self.samples = self._batch.count if has_axis else None
        spaces = [part.space for part in self.layouts]
        self.times = frozenset(space["time"] for space in spaces if "time" in space.names)
        named = {state.name: part.space for state, part in zip(self._hooked.states, self.layouts)}
        self.space: VectorSpace = self.layouts[0].space if len(self.layouts) == 1 else SumSpace(named)
        self.values = self._values_of(found)
        refuse_not_finite(self.values)
        refuse_random(self.values, self._values_of(self._hooked.run(self._batch, untouched, False)))
        # As many vectors as go together without filling the memory with changes of states and parameters.
        entries = self.space.size + sum(value.numel() for value in self.parameters.values())
        room = min(_BLOCK_BYTES, available_bytes() / 4)
        self.best_block = int(max(1, min(_BLOCK, room / (_COPIES * entries * self.dtype.itemsize))))
        names = self.parameters.values()
        self._through = Carrier(
            self.ends,
            {"states": self.ends, "parameters": list(names)},
            {"states": [s.shape for s in self.ends], "parameters": [p.shape for p in names]},
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
        found, start = [], 0
        for part in self.layouts:
            found += part.split(block[:, start : start + part.space.size])
            start += part.space.size
        return found

    def from_ends(self, tensors: Sequence[Tensor]) -> Tensor:
        """The inverse of ``to_ends``."""
        waiting = iter(tensors)
        parts = [part.join([next(waiting) for _ in range(part.calls)]) for part in self.layouts]
        return parts[0] if len(parts) == 1 else torch.cat(parts, 1)

    def propagate(self, changes: Tensor) -> Tensor:
        """P q: the transpose of the backward pass between the states."""
        return self.from_ends(self._through.forth("states", self.to_ends(changes)))

    def propagate_adjoint(self, vectors: Tensor) -> Tensor:
        """P* v: backward passes from all states to all states."""
        return self.from_ends(self._through.back("states", self.to_ends(vectors)))

    def push(self, tangents: Values) -> Tensor:
        """J t along the graph of all states, without stops at them."""
        return self.from_ends(self._through.forth("parameters", [tangents[name] for name in self.parameters]))

    def pull(self, vectors: Tensor) -> Values:
        """J* v by the same graph."""
        return dict(zip(self.parameters, self._through.back("parameters", self.to_ends(vectors))))

    def local_push(self, tangents: Values) -> Tensor:
        """D_theta f t along the graph that is cut at the states."""
        return self.from_ends(self._local.forth("parameters", [tangents[name] for name in self.parameters]))

    def local_pull(self, vectors: Tensor) -> Values:
        """The adjoint by the same graph."""
        return dict(zip(self.parameters, self._local.back("parameters", self.to_ends(vectors))))

    @cached_property
    def sites(self) -> Sequence[Site]:
        """Of the weights and biases that count; those that feed the same sum are one."""
        return find_sites(self)

    @cached_property
    def _local(self) -> Carrier:
        found = self._hooked.run(self._batch, cut)
        refuse_random(self.values, self._values_of(found))
        return Carrier(
            [state for kept in found for state in kept],
            {"parameters": list(self.parameters.values())},
            {"parameters": [value.shape for value in self.parameters.values()]},
        )

    def _first_pass(self) -> list[list[Tensor]]:
        """All states in one graph; again without fused recurrent layers where there are some."""
        with explained(self._batch.arguments, self.parameters.values()):
            found = self._hooked.run(self._batch, connected)
        self.tape = _tape_of(found, self.parameters)
        if any(name.startswith(_FUSED) for name in self.tape.names):
            self._hooked.use_plain_layers()
            found = self._hooked.run(self._batch, connected)
            self.tape = _tape_of(found, self.parameters)
        refuse_checkpoints(self.tape)
        refuse_false_gradients(self.tape)
        if not self.tape.leaves:
            raise InputError(
                "no state depends on a parameter that counts: name states after the first layer, or unfreeze "
                "parameters before them."
            )
        return found

    def _layouts(self, model: nn.Module, found: Sequence[Sequence[Tensor]]) -> list[Layout]:
        count, usual = self._batch.count, self._batch.axis
        shapes = [[state.shape for state in kept] for kept in found]
        unclear = any(is_ambiguous(its[0], count) for its in shapes)
        grown: Sequence[torch.Size | None] = [None] * len(shapes)
        if unclear:  # which axis grows with one more sample says it, if the model takes that
            more: Batch = self._batch.pick([*range(count), 0])
            with suppress(Exception):  # whatever a model made for one number of samples says to another
                grown = [kept[0].shape for kept in self._hooked.run(more, untouched, False)]
        return [
            layout(state, model, its, axis_of_samples(its[0], more, count, usual))
            for state, its, more in zip(self._hooked.states, shapes, grown)
        ]

    def _values_of(self, found: Sequence[Sequence[Tensor]]) -> Tensor:
        return self.from_ends([state.detach()[None] for kept in found for state in kept])[0]


def _tape_of(found: Sequence[Sequence[Tensor]], parameters: Any) -> Tape:
    root = torch.cat([state.reshape(-1) for kept in found for state in kept])
    return read(root[None], parameters)
