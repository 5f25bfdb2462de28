"""Layers of a recurrent module: what each computed, and its products with weights for blocks of vectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor, nn

from foretrain.empirical.global_ntk.dynamics import Values
from foretrain.empirical.global_ntk.recurrent.cells import cell_of
from foretrain.empirical.global_ntk.recurrent.sweeps import Sweeps, Weights, run

WEIGHTS = ("weight_hh", "weight_ih", "bias_hh", "bias_ih")
_MULTIPLE = 4  # lengths of rows that matrix products like


@dataclass
class Layer:
    """A layer in one direction: its sweeps, its place, and the names of its states and parameters."""

    sweeps: Sweeps
    number: int
    reverse: bool
    names: tuple[str, ...]  # of its states
    # weight_hh, ...: the model's name, for those that count; tied ones have the same.
    weights: Mapping[str, str]
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
        by_vector = sensitivities.flatten(0, 1).transpose(0, 1)  # (vectors, steps * samples, columns)
        found: Values = {}
        if (rows := self.rows_of("hh")) is not None:
            self._take_apart(found, "hh", _summed(rows, by_vector[:, :, self.hidden_columns]))
        if (rows := self.rows_of("ih")) is not None:
            parts = [_summed(rows, by_vector[:, :, slots]) for _, slots in self.input_columns]
            self._take_apart(found, "ih", parts[0] if len(parts) == 1 else torch.cat(parts, 2))
        return found

    def rows_of(self, side: str) -> Tensor | None:
        """What the counted parameters of one product multiply: its rows, and a column of ones for the bias.

        Columns of zeros fill them up: with 257 columns a product takes a sixth longer than with 260.
        """
        rows = self.rows if side == "hh" else self.given_rows
        parts = [rows] if f"weight_{side}" in self.weights else []
        if f"bias_{side}" in self.weights:
            parts.append(rows.new_ones(len(rows), 1))
        if not parts:
            return None
        filling = -sum(part.shape[1] for part in parts) % _MULTIPLE
        return torch.cat([*parts, rows.new_zeros(len(rows), filling)], 1)

    def _take_apart(self, found: Values, side: str, gradient: Tensor) -> None:
        """The weight's part of a gradient (vectors, columns of rows, gates * units), and the bias's."""
        width = 0
        if name := self.weights.get(f"weight_{side}"):
            width = (self.rows if side == "hh" else self.given_rows).shape[1]
            add_gradient(found, name, gradient[:, :width].mT)
        if name := self.weights.get(f"bias_{side}"):
            add_gradient(found, name, gradient[:, width])

    def _put_together(self, tangents: Values, side: str) -> Tensor | None:
        """The inverse: (vectors, columns of rows, gates * units); None if nothing changes."""
        names = [self.weights.get(f"{kind}_{side}") for kind in ("weight", "bias")]
        if not any(name in tangents for name in names):
            return None
        count, rows = len(next(iter(tangents.values()))), self.sweeps.cell.gates * self.sweeps.units
        widths = (self.rows if side == "hh" else self.given_rows).shape[1], 1
        parts = []
        for name, width in zip(names, widths):
            if name is not None:
                unchanged = self.rows.new_zeros(1, 1, 1).expand(count, rows, width)
                part = tangents.get(name, unchanged)
                parts.append(part.mT if part.ndim == 3 else part[:, None])
        filling = -sum(part.shape[1] for part in parts) % _MULTIPLE
        return torch.cat([*parts, self.rows.new_zeros(count, filling, rows)], 1)

    def write_products(self, room: Tensor, tangents: Values) -> None:
        """Changes of the products by changes of weights, written over what was there."""
        by_vector = room.flatten(0, 1).transpose(0, 1)  # (vectors, steps * samples, columns)
        hidden = by_vector[:, :, self.hidden_columns]
        change, rows = self._put_together(tangents, "hh"), self.rows_of("hh")
        if change is not None and rows is not None:
            torch.bmm(_each(rows, len(hidden)), change, out=hidden)
        else:
            hidden.zero_()
        change, rows = self._put_together(tangents, "ih"), self.rows_of("ih")
        for gates, slots in self.input_columns:
            into = by_vector[:, :, slots]
            is_new = slots.start >= self.hidden_columns.stop
            if change is not None and rows is not None:
                into.baddbmm_(_each(rows, len(into)), change[:, :, gates], beta=0 if is_new else 1)
            elif is_new:
                into.zero_()

    def add_from_below(self, room: Tensor, below: Tensor) -> None:
        """Add changes of the products by changes of the layer's inputs."""
        by_vector = room.flatten(0, 1).transpose(0, 1)
        for gates, slots in self.input_columns:
            by_vector[:, :, slots] += torch.matmul(
                below.flatten(0, 1).transpose(0, 1), self.sweeps.weights.given[gates].t()
            )

    def write_random_products(self, room: Tensor, generator: torch.Generator) -> None:
        """Changes of the products by random changes of the counted parameters, other ones for every sample.

        Rows V times normal numbers have the covariance V V*; so have R* times fewer of them, with V* = Q R.
        """
        steps, samples, count, _ = room.shape
        cell, units = self.sweeps.cell, self.sweeps.units
        rows = {"hh": self.rows_of("hh"), "ih": self.rows_of("ih")}
        sides = [
            ("hh",) * (slot < cell.gates) + ("ih",) * (slot in cell.slot_of_input)
            for slot in range(cell.slots)
        ]
        changes = room.view(steps, samples, count, cell.slots, units)
        for entering, group in groupby(range(cell.slots), lambda slot: sides[slot]):
            slots = [*group]
            into = changes[:, :, :, slots[0] : slots[-1] + 1]
            parts = [own for side in entering if (own := rows[side]) is not None]
            if not parts:
                into.zero_()
                continue
            by_sample = torch.cat(parts, 1).view(steps, samples, -1).transpose(0, 1)
            factor = torch.linalg.qr(by_sample.mT, mode="r").R.mT
            width = count * len(slots) * units
            shape = samples, factor.shape[2], width
            drawn = torch.randn(shape, generator=generator, dtype=room.dtype).to(room.device)
            into.copy_((factor @ drawn).transpose(0, 1).view(into.shape))


def add_gradient(found: Values, name: str, part: Tensor) -> None:
    """A parameter that is used twice has the sum of both."""
    found[name] = found[name] + part if name in found else part


def _summed(rows: Tensor, by_vector: Tensor) -> Tensor:
    """The sum over rows (rows, features) x (vectors, rows, columns), (vectors, features, columns).

    In this order: with few features the transposed product takes twenty times as long.
    """
    return torch.bmm(_each(rows.t(), len(by_vector)), by_vector)


def _each(rows: Tensor, count: int) -> Tensor:
    return rows.expand(count, *rows.shape)


def layers_of(
    module: nn.RNNBase,
    x: Tensor,
    start: Sequence[Tensor] | None,
    prefix: str,
    counted: Mapping[str, Tensor],
) -> list[Layer]:
    """Run all layers, each on the states of the one below."""
    found: list[Layer] = []
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
) -> Layer:
    number, direction = place
    suffix = f"_l{number}" + ("_reverse" if direction else "")
    values: dict[str, Tensor] = {
        kind: getattr(module, kind + suffix).detach().clone()  # training goes on, the kernel stays
        for kind in WEIGHTS
        if hasattr(module, kind + suffix)
    }
    weights = Weights(values["weight_hh"], values["weight_ih"], values.get("bias_hh"), values.get("bias_ih"))
    cell = cell_of(module)
    given = x.flip(0) if direction else x
    if start is None:
        start = [given.new_zeros(given.shape[1], module.hidden_size) for _ in cell.states]
    path = run(cell, given, weights, tuple(part.detach() for part in start))
    ending = (f"_{number}" if module.num_layers > 1 else "") + ("_reverse" if direction else "")
    known = {id(value): name for name, value in counted.items()}
    held = {kind: getattr(module, kind + suffix) for kind in values}
    names = {kind: known[id(value)] for kind, value in held.items() if id(value) in known}
    return Layer(
        sweeps=Sweeps(cell, weights, path),
        number=number,
        reverse=bool(direction),
        names=tuple(name + ending for name in cell.states),
        weights=names,
        rows=path.before[0].flatten(0, 1),
        given_rows=path.inputs.flatten(0, 1).contiguous(),
    )
