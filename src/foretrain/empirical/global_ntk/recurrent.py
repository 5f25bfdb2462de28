"""The recurrent modules of torch: RNN, GRU, LSTM, in layers, in both directions, with or without biases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor, nn

from foretrain.empirical.global_ntk.cells import cell_of
from foretrain.empirical.global_ntk.dynamics import Dynamics, Site, Values
from foretrain.empirical.global_ntk.sweeps import Sweeps, Weights, run
from foretrain.empirical.tangent_kernel.refusals import close
from foretrain.operators import Space, SumSpace
from foretrain.support.errors import InputError, NotSupportedError
from foretrain.support.memory import available_bytes, require_memory

_WEIGHTS = ("weight_hh", "weight_ih", "bias_hh", "bias_ih")
_BLOCK = 16
_BLOCK_BYTES = 1e9  # of the arrays that a block of vectors needs at once


class RecurrentDynamics(Dynamics):
    """A recurrent module with the inputs of a batch, (samples, steps, features), and its state at the start.

    One layer in one direction has the space (batch, time, unit); otherwise the states are a direct sum, named
    hidden, cell, with the number of the layer and "reverse" where there are several.
    """

    def __init__(
        self,
        module: nn.RNNBase,
        x: Tensor,
        start: Sequence[Tensor] | None = None,
        parameters: Mapping[str, Tensor] | None = None,
        prefix: str = "",
    ) -> None:
        """``start`` is a list of what the module takes; ``parameters`` have the model's names, with the prefix."""
        if module.proj_size:
            raise NotSupportedError(
                "an LSTM with proj_size has another matrix inside its step: write it as a loop over a module of your "
                "own and name that as a state."
            )
        named = {prefix + name: value for name, value in module.named_parameters()}
        self.parameters = named if parameters is None else parameters
        self.samples, self.steps, _ = x.shape
        self.units = module.hidden_size
        with torch.no_grad():
            self.layers = _layers(module, x.detach().transpose(0, 1), start, prefix, self.parameters)
        self.members = {name: (layer, i) for layer in self.layers for i, name in enumerate(layer.names)}
        each = Space.of(batch=self.samples, time=self.steps, unit=self.units)
        self.space = each if len(self.members) == 1 else SumSpace(dict.fromkeys(self.members, each))
        self.values = torch.cat(
            [
                self._flat(layer.sweeps.path.states[i][:, :, None], layer)
                for layer, i in self.members.values()
            ],
            1,
        )[0]
        self._check(module, x, start)
        self.best_block = self._best_block()

    @property
    def returned(self) -> tuple[str, ...]:
        """The states that the module returns for every step."""
        last = self.layers[-1].number
        return tuple(layer.names[0] for layer in self.layers if layer.number == last)

    def propagate(self, changes: Tensor) -> Tensor:
        """P: one sweep forward."""
        return self._joined(self._swept(self._parts(changes), {}))

    def propagate_adjoint(self, vectors: Tensor) -> Tensor:
        """P*: back-propagation through time."""
        blocks = self._parts(vectors)
        self._sweep_back(blocks)
        return self._joined(blocks)

    def local_push(self, tangents: Values) -> Tensor:
        """D_theta f."""
        count = len(next(iter(tangents.values())))
        blocks = []
        for layer in self.layers:
            products = layer.room(count)
            layer.write_products(products, tangents, None)
            blocks.append(layer.sweeps.respond(products))
        return self._joined(blocks)

    def local_pull(self, vectors: Tensor) -> Values:
        """Its adjoint."""
        found: Values = {}
        for layer, block in zip(self.layers, self._parts(vectors)):
            found |= layer.gradients(layer.sweeps.sensitivities(block))
        return found

    def push(self, tangents: Values) -> Tensor:
        """J: one sweep forward, with the changes of the products on the way."""
        count = len(next(iter(tangents.values())))
        return self._joined(self._swept(self._zeros(count), tangents))

    def pull(self, vectors: Tensor) -> Values:
        """J*: one sweep back."""
        found: Values = {}
        for layer, sensitivities in zip(self.layers, self._sweep_back(self._parts(vectors))):
            found |= layer.gradients(sensitivities)
        return found

    def product(self, vectors: Tensor) -> Tensor:
        """J J*, with one set of large arrays."""
        blocks = self._parts(vectors)
        kept = self._sweep_back(blocks)
        gradients: Values = {}
        for layer, sensitivities in zip(self.layers, kept):
            gradients |= layer.gradients(sensitivities)
        for states in blocks:
            for state in states:
                state.zero_()
        return self._joined(self._swept(blocks, gradients, kept))

    def sites(self) -> Sequence[Site]:
        """Of every layer: both weights together where they feed the same sum, apart in a GRU."""
        return [site for layer in self.layers for site in _sites(self, layer)]

    def _swept(
        self, blocks: list[list[Tensor]], tangents: Values, rooms: Sequence[Tensor] | None = None
    ) -> list[list[Tensor]]:
        """Sweep forward through all layers, in place; a layer's hidden changes go into the next."""
        count = blocks[0][0].shape[2]
        for number, layer in enumerate(self.layers):
            below = self._below(layer, blocks)
            products = None
            if tangents or below is not None:
                products = layer.room(count) if rooms is None else rooms[number]
                layer.write_products(products, tangents, below)
            layer.sweeps.forward(blocks[number], products)
        return blocks

    def _below(self, layer: _Layer, blocks: Sequence[Sequence[Tensor]]) -> Tensor | None:
        """Changes of a layer's inputs, in its own order of time; None for the first, whose inputs are given."""
        lower = [
            layer.in_order(other.in_order(states[0]))
            for other, states in zip(self.layers, blocks)
            if other.number == layer.number - 1
        ]
        if not lower:
            return None
        return lower[0] if len(lower) == 1 else torch.cat(lower, -1)

    def _sweep_back(self, blocks: list[list[Tensor]]) -> list[Tensor]:
        """Adjoint states of all layers, in place; gives the sensitivities at their products."""
        found: dict[int, Tensor] = {}
        for number in reversed(range(len(self.layers))):
            layer = self.layers[number]
            found[number] = layer.sweeps.back(blocks[number])
            if layer.number:
                self._hand_down(layer, layer.back_to_inputs(found[number]), blocks)
        return [found[number] for number in range(len(self.layers))]

    def _hand_down(self, layer: _Layer, inputs: Tensor, blocks: list[list[Tensor]]) -> None:
        lower = [(i, other) for i, other in enumerate(self.layers) if other.number == layer.number - 1]
        for part, (i, other) in zip(torch.split(layer.in_order(inputs), self.units, -1), lower):
            blocks[i][0] += other.in_order(part)

    def _parts(self, flat: Tensor) -> list[list[Tensor]]:
        """Copies of every layer's states as (steps, samples, vectors, units), in its own order of time."""
        size = self.samples * self.steps * self.units
        parts = iter(torch.split(flat, size, 1))
        return [[self._block(next(parts), layer) for _ in layer.names] for layer in self.layers]

    def _block(self, flat: Tensor, layer: _Layer) -> Tensor:
        block = flat.view(len(flat), self.samples, self.steps, self.units).permute(2, 1, 0, 3)
        return layer.in_order(block).clone(memory_format=torch.contiguous_format)

    def _flat(self, block: Tensor, layer: _Layer) -> Tensor:
        return layer.in_order(block).permute(2, 1, 0, 3).reshape(block.shape[2], -1)

    def _joined(self, blocks: Sequence[Sequence[Tensor]]) -> Tensor:
        flat = [self._flat(state, layer) for layer, states in zip(self.layers, blocks) for state in states]
        return flat[0] if len(flat) == 1 else torch.cat(flat, 1)

    def _zeros(self, count: int) -> list[list[Tensor]]:
        shape = (self.steps, self.samples, count, self.units)
        return [[self.values.new_zeros(shape) for _ in layer.names] for layer in self.layers]

    def _best_block(self) -> int:
        """As many vectors as run fast together and fit."""
        slots = sum(layer.sweeps.cell.slots for layer in self.layers)
        item = self.values.element_size()
        each = item * (slots * self.steps * self.samples * self.units + 3 * len(self.values))
        require_memory(each, "one vector of states and its products", "use fewer samples or steps")
        return max(1, min(_BLOCK, int(min(_BLOCK_BYTES, available_bytes() / 4) / each)))

    def _check(self, module: nn.RNNBase, x: Tensor, start: Sequence[Tensor] | None) -> None:
        """What was computed here must be what the module computes."""
        with torch.no_grad():
            found, _ = module(*_as_taken(module, x.detach(), start))
        expected = found if module.batch_first else found.transpose(0, 1)
        members = list(self.members)
        parts = self.values.view(len(members), self.samples, self.steps, self.units)
        mine = torch.cat([parts[members.index(name)] for name in self.returned], -1)
        if not close(expected, mine):
            raise NotSupportedError(
                f"{type(module).__name__} does not compute what its weights say (a hook, dropout between layers or a "
                "subclass with its own forward): write it as a loop over a module and name that as a state."
            )


@dataclass
class _Layer:
    """A layer in one direction: its sweeps, its place, and the names of its states and parameters."""

    sweeps: Sweeps
    number: int
    reverse: bool
    names: tuple[str, ...]  # of its states
    weights: Mapping[str, str]  # weight_hh, ...: the model's name, for those that count
    rows: Tensor  # of the hidden product, (steps * samples, units)
    given_rows: Tensor  # of the inputs' product

    def in_order(self, block: Tensor) -> Tensor:
        """From this layer's order of time to the usual one, or back."""
        return block.flip(0) if self.reverse else block

    def room(self, count: int) -> Tensor:
        """Changes of all products: (steps, samples, vectors, slots * units)."""
        steps, samples, units = self.sweeps.path.states[0].shape
        return self.rows.new_zeros(steps, samples, count, self.sweeps.cell.slots * units)

    @property
    def hidden_columns(self) -> slice:
        """Of the slots where the hidden product enters."""
        return slice(0, self.sweeps.cell.gates * self.sweeps.units)

    @property
    def input_columns(self) -> list[tuple[slice, slice]]:
        """(columns of the gates, columns of the slots) where the inputs' product enters, in stretches."""
        units, found, gate = self.sweeps.units, [], 0
        slots = self.sweeps.cell.slot_of_input
        for _, stretch in groupby(enumerate(slots), lambda pair: pair[1] - pair[0]):
            length = len(list(stretch))
            start = slots[gate]
            found.append(
                (slice(gate * units, (gate + length) * units), slice(start * units, (start + length) * units))
            )
            gate += length
        return found

    def gradients(self, sensitivities: Tensor) -> Values:
        """Of all counted parameters, from the sensitivities at the products of all steps."""
        by_vector = sensitivities.flatten(0, 1).permute(1, 2, 0)  # (vectors, columns, steps * samples)
        found: Values = {}
        if name := self.weights.get("weight_hh"):
            found[name] = _many(by_vector[:, self.hidden_columns], self.rows)
        if name := self.weights.get("bias_hh"):
            found[name] = by_vector[:, self.hidden_columns].sum(-1)
        if name := self.weights.get("weight_ih"):
            parts = [_many(by_vector[:, slots], self.given_rows) for _, slots in self.input_columns]
            found[name] = parts[0] if len(parts) == 1 else torch.cat(parts, 1)
        if name := self.weights.get("bias_ih"):
            found[name] = torch.cat([by_vector[:, slots].sum(-1) for _, slots in self.input_columns], 1)
        return found

    def write_products(self, room: Tensor, tangents: Values, below: Tensor | None) -> None:
        """Changes of the products by changes of weights and of the layer's inputs, written over what was there."""
        by_vector = room.flatten(0, 1).transpose(0, 1)  # (vectors, steps * samples, columns)
        taken = {kind: tangents[name] for kind, name in self.weights.items() if name in tangents}
        hidden = by_vector[:, :, self.hidden_columns]
        if "weight_hh" in taken:
            torch.bmm(_each(self.rows, len(hidden)), taken["weight_hh"].transpose(1, 2), out=hidden)
        else:
            hidden.zero_()
        if "bias_hh" in taken:
            hidden += taken["bias_hh"][:, None]
        for gates, slots in self.input_columns:
            into = by_vector[:, :, slots]
            if slots.start >= self.hidden_columns.stop:
                into.zero_()
            if "weight_ih" in taken:
                change = taken["weight_ih"][:, gates].transpose(1, 2)
                into.baddbmm_(_each(self.given_rows, len(into)), change)
            if "bias_ih" in taken:
                into += taken["bias_ih"][:, None, gates]
            if below is not None:
                into += torch.matmul(
                    below.flatten(0, 1).transpose(0, 1), self.sweeps.weights.given[gates].t()
                )

    def back_to_inputs(self, sensitivities: Tensor) -> Tensor:
        """Sensitivities at the layer's inputs."""
        parts = [
            sensitivities[..., slots] @ self.sweeps.weights.given[gates]
            for gates, slots in self.input_columns
        ]
        return sum(parts[1:], parts[0])


def _many(by_vector: Tensor, rows: Tensor) -> Tensor:
    """(vectors, columns, rows) times (rows, features) for every vector."""
    return torch.bmm(by_vector, _each(rows, len(by_vector)))


def _each(rows: Tensor, count: int) -> Tensor:
    return rows.expand(count, *rows.shape)


def _layers(
    module: nn.RNNBase,
    x: Tensor,
    start: Sequence[Tensor] | None,
    prefix: str,
    counted: Mapping[str, Tensor],
) -> list[_Layer]:
    """Run all layers, each on the states of the one below."""
    found: list[_Layer] = []
    directions = 2 if module.bidirectional else 1
    inputs = x
    for number in range(module.num_layers):
        outputs = []
        for direction in range(directions):
            first = None if start is None else [part[number * directions + direction] for part in start]
            layer = _layer(module, inputs, first, (number, direction), prefix, counted)
            found.append(layer)
            outputs.append(layer.in_order(layer.sweeps.path.states[0]))
        inputs = outputs[0] if directions == 1 else torch.cat(outputs, -1)
    return found


def _layer(
    module: nn.RNNBase,
    x: Tensor,
    start: Sequence[Tensor] | None,
    place: tuple[int, int],
    prefix: str,
    counted: Mapping[str, Tensor],
) -> _Layer:
    number, direction = place
    suffix = f"_l{number}" + ("_reverse" if direction else "")
    values: dict[str, Tensor] = {
        kind: getattr(module, kind + suffix).detach() for kind in _WEIGHTS if hasattr(module, kind + suffix)
    }
    weights = Weights(values["weight_hh"], values["weight_ih"], values.get("bias_hh"), values.get("bias_ih"))
    cell = cell_of(module)
    given = x.flip(0) if direction else x
    if start is None:
        start = [given.new_zeros(given.shape[1], module.hidden_size) for _ in cell.states]
    path = run(cell, given, weights, tuple(part.detach() for part in start))
    ending = (f"_{number}" if module.num_layers > 1 else "") + ("_reverse" if direction else "")
    names = {kind: prefix + kind + suffix for kind in _WEIGHTS if prefix + kind + suffix in counted}
    return _Layer(
        sweeps=Sweeps(cell, weights, path),
        number=number,
        reverse=bool(direction),
        names=tuple(name + ending for name in cell.states),
        weights=names,
        rows=path.before[0].flatten(0, 1),
        given_rows=path.inputs.flatten(0, 1).contiguous(),
    )


class _LayerSite(Site):
    """A layer's product of the state before, of its inputs, or of both where they are added."""

    def __init__(self, dynamics: RecurrentDynamics, layer: _Layer, kinds: Sequence[str]) -> None:
        self._dynamics, self._layer = dynamics, layer
        self.parameters = tuple(
            layer.weights[kind] for kind in _WEIGHTS if kind in kinds and kind in layer.weights
        )
        self._kinds = tuple(kind for kind in _WEIGHTS if kind in kinds and kind in layer.weights)
        units, gates = layer.sweeps.units, layer.sweeps.cell.gates
        self.space = Space.of(batch=dynamics.samples, time=dynamics.steps, feature=gates * units)
        of_inputs = not any(kind.endswith("hh") for kind in self._kinds)
        same = [(slice(0, gates * units), slice(0, gates * units))]
        self._columns = layer.input_columns if of_inputs else same

    @property
    def inputs(self) -> Tensor:
        """V: states before, inputs, and ones for biases, of the counted parameters."""
        layer = self._layer
        ones = layer.rows.new_ones(len(layer.rows), 1)
        parts = {"weight_hh": layer.rows, "weight_ih": layer.given_rows, "bias_hh": ones, "bias_ih": ones}
        rows = torch.cat([parts[kind] for kind in self._kinds], 1)
        by_step = layer.in_order(rows.view(self._dynamics.steps, self._dynamics.samples, -1))
        return by_step.transpose(0, 1).flatten(0, 1)

    def propagate(self, changes: Tensor) -> Tensor:
        """P_w: the changes go into the products of every step."""
        dynamics, layer = self._dynamics, self._layer
        room = layer.room(len(changes))
        block = changes.view(len(changes), *self.space.shape).permute(2, 1, 0, 3)
        for gates, slots in self._columns:
            room[..., slots] = layer.in_order(block)[..., gates]
        blocks = dynamics._zeros(len(changes))
        for number, other in enumerate(dynamics.layers):
            products = room if other is layer else None
            below = dynamics._below(other, blocks) if other.number > layer.number else None
            if below is not None:
                products = other.room(len(changes))
                other.write_products(products, {}, below)
            if products is not None:
                other.sweeps.forward(blocks[number], products)
        return dynamics._joined(blocks)

    def propagate_adjoint(self, vectors: Tensor) -> Tensor:
        """P_w*: sensitivities at the products."""
        dynamics, layer = self._dynamics, self._layer
        found = dynamics._sweep_back(dynamics._parts(vectors))[dynamics.layers.index(layer)]
        parts = [layer.in_order(found)[..., slots] for _, slots in self._columns]
        block = parts[0] if len(parts) == 1 else torch.cat(parts, -1)
        return block.permute(2, 1, 0, 3).reshape(len(vectors), -1)


def _sites(dynamics: RecurrentDynamics, layer: _Layer) -> list[Site]:
    if layer.sweeps.cell.slots == layer.sweeps.cell.gates:
        groups: list[tuple[str, ...]] = [_WEIGHTS]
    else:
        groups = [("weight_hh", "bias_hh"), ("weight_ih", "bias_ih")]
    counted = [tuple(kind for kind in kinds if kind in layer.weights) for kinds in groups]
    return [_LayerSite(dynamics, layer, kinds) for kinds in counted if kinds]


def _as_taken(module: nn.RNNBase, x: Tensor, start: Sequence[Tensor] | None) -> tuple[object, ...]:
    """Arguments as the module takes them."""
    given = x if module.batch_first else x.transpose(0, 1)
    if start is None:
        return (given,)
    return given, (tuple(start) if isinstance(module, nn.LSTM) else start[0])


def as_samples_first(module: nn.RNNBase, x: object) -> Tensor:
    """The inputs of a recurrent module as (samples, steps, features)."""
    if not isinstance(x, Tensor) or x.ndim != 3:
        raise InputError(
            f"{type(module).__name__} must be given a batch (samples, steps, features), not "
            f"{tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__}: pad packed sequences, and add a "
            "batch axis to a single one."
        )
    return x if module.batch_first else x.transpose(0, 1)
