"""The recurrent modules of torch: RNN, GRU, LSTM, in layers, in both directions, with or without biases."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property

import torch
from torch import Tensor, nn

from foretrain.empirical.global_ntk.dynamics import Dynamics, Site, Values
from foretrain.empirical.global_ntk.recurrent.layers import WEIGHTS, Layer, add_gradient, layers_of
from foretrain.empirical.global_ntk.recurrent.traces import parameter_traces
from foretrain.empirical.models.model import close
from foretrain.operators import Space, SumSpace
from foretrain.support.errors import InputError, NotSupportedError
from foretrain.support.memory import available_bytes, require_memory

Workspace = tuple[list[Tensor], list[list[Tensor]]]  # every layer's room, and its states

_ROWS, _BLOCK = 256, 16  # rows of samples and vectors that make products fast, and most vectors for it
_KEPT_BYTES = 5e8  # of arrays that wait for the next product
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
        own = {id(value) for name, value in module.named_parameters() if "." not in name}
        for name, value in self.parameters.items():
            if id(value) not in own:  # weights that are computed from others: orthogonal, normalised
                raise NotSupportedError(
                    f"the weights of {type(module).__name__} are computed from {name!r}: put the module into "
                    "nn.Sequential and name it as a state, `states='0'`."
                )
        self.module = type(module).__name__
        self.samples, self.steps, _ = x.shape
        self.units = module.hidden_size
        with torch.no_grad():
            self.layers = layers_of(module, x.detach().transpose(0, 1), start, prefix, self.parameters)
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
        self._kept: list[Workspace] = []  # at most one

    @property
    def returned(self) -> tuple[str, ...]:
        """The states that the module returns for every step."""
        last = self.layers[-1].number
        return tuple(layer.names[0] for layer in self.layers if layer.number == last)

    def propagate(self, changes: Tensor) -> Tensor:
        """P: one sweep forward."""
        return self.joined(self._swept(self.parts(changes)))

    def propagate_adjoint(self, vectors: Tensor) -> Tensor:
        """P*: back-propagation through time."""
        blocks = self.parts(vectors)
        self.sweep_back(blocks)
        return self.joined(blocks)

    def constrain(self, changes: Tensor) -> Tensor:
        """P^-1 = D_h F: every step less what follows from the states before it and below it, all at once."""
        blocks, found = self.parts(changes), []
        for layer, states in zip(self.layers, blocks):
            products = layer.room(len(changes))
            if (below := self.below(layer, blocks)) is not None:
                layer.add_from_below(products, below)
            answers = layer.sweeps.follow(states, products)
            found.append([state - answer for state, answer in zip(states, answers)])
        return self.joined(found)

    def constrain_adjoint(self, vectors: Tensor) -> Tensor:
        """Its adjoint."""
        blocks, found = self.parts(vectors), self.parts(vectors)
        for layer, given, own in zip(self.layers, blocks, found):
            answers, products = layer.sweeps.follow_adjoint(given)
            for state, answer in zip(own, answers):
                state -= answer
            self._add_below(layer, found, products, -1.0)
        return self.joined(found)

    @property
    def structure(self) -> str:
        """Which layers have states, and how these follow from each other."""
        return (
            f"The states are {', '.join(self.members)} of {self.module} at its {self.steps} steps, each "
            "following from the one before it: P = (I - D_h f T)^-1 is one sweep through time, and K is what "
            "parameters do to each step while the one before it is held."
        )

    def local_push(self, tangents: Values) -> Tensor:
        """D_theta f."""
        count = len(next(iter(tangents.values())))
        blocks = []
        for layer in self.layers:
            products = layer.room(count)
            layer.write_products(products, tangents)
            blocks.append(layer.sweeps.respond(products))
        return self.joined(blocks)

    def local_pull(self, vectors: Tensor) -> Values:
        """Its adjoint."""
        return self._gradients(self._local_sensitivities(vectors))

    def push(self, tangents: Values) -> Tensor:
        """J: one sweep forward, with the changes of the products on the way."""
        count = len(next(iter(tangents.values())))
        return self._pushed(count, lambda layer, room: layer.write_products(room, tangents))

    @property
    def draws_by_sample(self) -> bool:
        """A weight that is used twice has one change for both places."""
        return not self._tied

    def random_states(self, count: int, generator: torch.Generator, *, by_sample: bool = False) -> Tensor:
        """J g by random products, whose covariance is known."""
        if not (by_sample and self.draws_by_sample):
            return super().random_states(count, generator)
        return self._pushed(count, lambda layer, room: layer.write_random_products(room, generator))

    def _pushed(self, count: int, write: Callable[[Layer, Tensor], None]) -> Tensor:
        """The states' changes where nothing but products changes."""
        with self._workspace(count) as (rooms, blocks):
            _clear(blocks)
            return self.joined(self._swept(blocks, write, rooms))

    def pull(self, vectors: Tensor) -> Values:
        """J*: one sweep back."""
        return self._gradients(self.sweep_back(self.parts(vectors)))

    def product(self, vectors: Tensor) -> Tensor:
        """J J*, with one set of large arrays."""
        with self._workspace(len(vectors)) as (rooms, blocks):
            for given, states in zip(self._views(vectors), blocks):
                for values, state in zip(given, states):
                    state.copy_(values)
            gradients = self._gradients(self.sweep_back(blocks, rooms))
            _clear(blocks)
            return self.joined(
                self._swept(blocks, lambda layer, room: layer.write_products(room, gradients), rooms)
            )

    def parameter_product(self, tangents: Values) -> Values:
        """J* J, with one set of large arrays."""
        with self._workspace(len(next(iter(tangents.values())))) as (rooms, blocks):
            _clear(blocks)
            self._swept(blocks, lambda layer, room: layer.write_products(room, tangents), rooms)
            return self._gradients(self.sweep_back(blocks, rooms))

    @contextmanager
    def _workspace(self, count: int) -> Iterator[Workspace]:
        """Arrays for all products and states, those of the last time if they fit: new memory is slow at first."""
        kept = self._kept.pop() if self._kept else None  # nobody else has them now
        if kept is None or kept[0][0].shape[2] != count:
            kept = [layer.room(count) for layer in self.layers], self.zeros(count)
        yield kept
        if sum(array.nbytes for arrays in (kept[0], *kept[1]) for array in arrays) <= _KEPT_BYTES:
            self._kept[:] = [kept]

    def local_product(self, vectors: Tensor) -> Tensor:
        """K, with one set of large arrays."""
        rooms = list(self._local_sensitivities(vectors))
        gradients = self._gradients(rooms)
        blocks = []
        for layer, room in zip(self.layers, rooms):
            layer.write_products(room, gradients)
            blocks.append(layer.sweeps.respond(room))
        return self.joined(blocks)

    def _local_sensitivities(self, vectors: Tensor) -> Iterator[Tensor]:
        return (layer.sweeps.sensitivities(block) for layer, block in zip(self.layers, self.parts(vectors)))

    def _gradients(self, sensitivities: Iterable[Tensor]) -> Values:
        """Of all counted parameters, from the sensitivities at the products of every layer."""
        found: Values = {}
        for layer, own in zip(self.layers, sensitivities):
            for name, part in layer.gradients(own).items():
                add_gradient(found, name, part)
        return found

    def parameter_traces(
        self, members: Sequence[str] | None, most_flops: float
    ) -> tuple[dict[str, float], int] | None:
        """By sweeps back that all samples share: see ``recurrent.traces``."""
        return parameter_traces(self, tuple(self.members) if members is None else members, most_flops)

    @cached_property
    def sites(self) -> Sequence[Site]:
        """Of every layer: both weights together where they feed the same sum, apart in a GRU.

        A weight that is used in two places has cross terms between them, which no site holds: it has none.
        """
        found = []
        for layer in self.layers:
            cell = layer.sweeps.cell
            apart: list[tuple[str, ...]] = [("weight_hh", "bias_hh"), ("weight_ih", "bias_ih")]
            own = {kind for kind, name in layer.weights.items() if name not in self._tied}
            for kinds in [WEIGHTS] if cell.slots == cell.gates else apart:
                if own & {*kinds}:
                    found.append(LayerSite(self, layer, [kind for kind in kinds if kind in own]))
        return found

    @cached_property
    def _tied(self) -> set[str]:
        """Weights that are used in two places."""
        used = Counter(name for layer in self.layers for name in layer.weights.values())
        return {name for name, count in used.items() if count > 1}

    def _swept(
        self,
        blocks: list[list[Tensor]],
        write: Callable[[Layer, Tensor], None] | None = None,
        rooms: Sequence[Tensor] | None = None,
    ) -> list[list[Tensor]]:
        """Sweep forward through all layers, in place; a layer's hidden changes go into the next.

        ``write`` fills a room with the changes of the layer's products; without it they have none of their own.
        """
        count = blocks[0][0].shape[2]
        for number, layer in enumerate(self.layers):
            below = self.below(layer, blocks)
            products = None
            if write is not None or below is not None:
                products = layer.room(count) if rooms is None else rooms[number]
                if write is not None:
                    write(layer, products)
                if below is not None:
                    layer.add_from_below(products, below)
            layer.sweeps.forward(blocks[number], products)
        return blocks

    def below(self, layer: Layer, blocks: Sequence[Sequence[Tensor]]) -> Tensor | None:
        """Changes of a layer's inputs, in its own order of time; None for the first, whose inputs are given."""
        lower = [
            layer.in_order(other.in_order(states[0]))
            for other, states in zip(self.layers, blocks)
            if other.number == layer.number - 1
        ]
        if not lower:
            return None
        return lower[0] if len(lower) == 1 else torch.cat(lower, -1)

    def sweep_back(self, blocks: list[list[Tensor]], rooms: Sequence[Tensor] | None = None) -> list[Tensor]:
        """Adjoint states of all layers, in place; gives the sensitivities at their products."""
        found: dict[int, Tensor] = {}
        for number in reversed(range(len(self.layers))):
            layer = self.layers[number]
            found[number] = layer.sweeps.back(blocks[number], None if rooms is None else rooms[number])
            self._add_below(layer, blocks, found[number])
        return [found[number] for number in range(len(self.layers))]

    def _add_below(
        self, layer: Layer, blocks: list[list[Tensor]], products: Tensor, factor: float = 1.0
    ) -> None:
        """Add what sensitivities at a layer's products are at the states that it takes, if it takes some."""
        if not layer.number:
            return
        lower = [(i, other) for i, other in enumerate(self.layers) if other.number == layer.number - 1]
        given = layer.sweeps.weights.given
        terms = [products[..., slots] @ given[gates] for gates, slots in layer.input_columns]
        inputs = layer.in_order(sum(terms[1:], terms[0]))
        for part, (i, other) in zip(torch.split(inputs, self.units, -1), lower):
            blocks[i][0].add_(other.in_order(part), alpha=factor)

    def parts(self, flat: Tensor) -> list[list[Tensor]]:
        """Copies of every layer's states as (steps, samples, vectors, units), in its own order of time."""
        plain = torch.contiguous_format
        return [[state.clone(memory_format=plain) for state in states] for states in self._views(flat)]

    def _views(self, flat: Tensor) -> list[list[Tensor]]:
        """The same without copies."""
        size = self.samples * self.steps * self.units
        parts = iter(torch.split(flat, size, 1))
        shape = len(flat), self.samples, self.steps, self.units
        return [
            [layer.in_order(next(parts).view(shape).permute(2, 1, 0, 3)) for _ in layer.names]
            for layer in self.layers
        ]

    def _flat(self, block: Tensor, layer: Layer) -> Tensor:
        return layer.in_order(block).permute(2, 1, 0, 3).reshape(block.shape[2], -1)

    def joined(self, blocks: Sequence[Sequence[Tensor]]) -> Tensor:
        """The flat form of blocks of all layers' states."""
        flat = [self._flat(state, layer) for layer, states in zip(self.layers, blocks) for state in states]
        return flat[0] if len(flat) == 1 else torch.cat(flat, 1)

    def zeros(self, count: int) -> list[list[Tensor]]:
        """Blocks of all layers' states."""
        shape = (self.steps, self.samples, count, self.units)
        return [[self.values.new_zeros(shape) for _ in layer.names] for layer in self.layers]

    def _best_block(self) -> int:
        """As many vectors as run fast together and fit."""
        slots = sum(layer.sweeps.cell.slots for layer in self.layers)
        item = self.values.element_size()
        each = item * (slots * self.steps * self.samples * self.units + 3 * len(self.values))
        require_memory(each, "one vector of states and its products", "use fewer samples or steps")
        fast = min(_BLOCK, max(2, _ROWS // self.samples))
        return max(1, min(fast, int(min(_BLOCK_BYTES, available_bytes() / 4) / each)))

    def _check(self, module: nn.RNNBase, x: Tensor, start: Sequence[Tensor] | None) -> None:
        """What was computed here must be what the module computes."""
        given = x.detach() if module.batch_first else x.detach().transpose(0, 1)
        first = () if start is None else (tuple(start) if isinstance(module, nn.LSTM) else start[0],)
        with torch.no_grad():
            found, _ = module(given, *first)
        expected = found if module.batch_first else found.transpose(0, 1)
        members = list(self.members)
        parts = self.values.view(len(members), self.samples, self.steps, self.units)
        mine = torch.cat([parts[members.index(name)] for name in self.returned], -1)
        if not close(expected, mine):
            raise NotSupportedError(
                f"{type(module).__name__} does not compute what its weights say (a hook, dropout between layers or a "
                "subclass with its own forward): write it as a loop over a module and name that as a state."
            )


def _clear(blocks: list[list[Tensor]]) -> None:
    for states in blocks:
        for state in states:
            state.zero_()


def as_samples_first(module: nn.RNNBase, x: object) -> Tensor:
    """The inputs of a recurrent module as (samples, steps, features)."""
    if not isinstance(x, Tensor) or x.ndim != 3:
        raise InputError(
            f"{type(module).__name__} must be given a batch (samples, steps, features), not "
            f"{tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__}: pad packed sequences, and add a "
            "batch axis to a single one."
        )
    return x if module.batch_first else x.transpose(0, 1)


class LayerSite(Site):
    """A layer's product of the state before, of its inputs, or of both where they are added."""

    def __init__(self, dynamics: RecurrentDynamics, layer: Layer, kinds: Sequence[str]) -> None:
        self._dynamics, self._layer = dynamics, layer
        self._kinds = tuple(kind for kind in WEIGHTS if kind in kinds and kind in layer.weights)
        self.parameters = tuple(layer.weights[kind] for kind in self._kinds)
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
        blocks = dynamics.zeros(len(changes))
        for number, other in enumerate(dynamics.layers):
            products = room if other is layer else None
            below = dynamics.below(other, blocks) if other.number > layer.number else None
            if below is not None:
                products = other.room(len(changes))
                other.add_from_below(products, below)
            if products is not None:
                other.sweeps.forward(blocks[number], products)
        return dynamics.joined(blocks)

    def propagate_adjoint(self, vectors: Tensor) -> Tensor:
        """P_w*: sensitivities at the products."""
        dynamics, layer = self._dynamics, self._layer
        found = dynamics.sweep_back(dynamics.parts(vectors))[dynamics.layers.index(layer)]
        parts = [layer.in_order(found)[..., slots] for _, slots in self._columns]
        block = parts[0] if len(parts) == 1 else torch.cat(parts, -1)
        return block.permute(2, 1, 0, 3).reshape(len(vectors), -1)
