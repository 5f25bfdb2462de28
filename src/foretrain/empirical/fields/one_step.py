"""One step of gradient descent: what it changes to first order in lr, from the fields alone, and what really happens.

In the first order masks are frozen, as in the note; smooth activations need nothing else for residuals and
activations. Conjugate fields have a second part there, because slopes move with the preactivations: sigma''(v) dv. It
is zero for ReLU. (185) writes the change of b_l with M_l acting on u_l. That u_l, carried up with the masks, arrives
as u_{m-1} holds for ReLU without biases only; else the field u_{m-1} of each layer itself has to stand there, and
here it does.

A real change is the sum of three: the prediction, a remainder of order lr^2 with frozen masks, and the flip part,
which is all that goes through units whose slope jumps during the step. The first two are found by running the new
weights with the old masks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from foretrain.empirical.autograd_graph.chain import Chain, find_chain
from foretrain.empirical.fields.one_hidden_layer import Descent
from foretrain.empirical.fields.state import FieldState, check_targets, labelled
from foretrain.empirical.fields.transport import weighted_correlator
from foretrain.support.answers import (
    BLUE,
    FAINT,
    INK,
    ORANGE,
    RED,
    Answer,
    Figure,
    Result,
    Table,
    log,
)
from foretrain.support.answers import labelled as labelled_dataset
from foretrain.support.errors import InputError
from foretrain.support.progress import track

if TYPE_CHECKING:
    import xarray as xr


@dataclass(frozen=True, eq=False, repr=False)
class FirstOrderStep(Result):
    """Predicted changes of all inputs; the first ones are trained on, the others only watched (62)-(64)."""

    state: FieldState
    driving: Tensor  # residuals r of the trained inputs (training, C)
    lr: float
    loss_scale: float

    @property
    def training(self) -> int:
        """How many inputs are trained on."""
        return len(self.driving)

    @property
    def rate(self) -> float:
        """Factor of K r: 2 lr / M for the note's loss (171)."""
        return 2 * self.lr * self.loss_scale

    def residual(self) -> xr.DataArray:
        """Change of the residuals, -(2 lr / M) K r (171); of an input not trained on: of its outputs."""
        return self._label(
            self.residual_change, ("input", "output"), "first-order change of the residual (171)"
        )

    def local(self, layer: int) -> xr.DataArray:
        """Change of u_l by the weights of layer l alone (150)."""
        values = self.state.chain.a(self._check(layer)) * self.local_changes[layer - 1]
        return self._label(values, ("input", "unit"), f"change of u_{layer} by its own weights (150)")

    def activation(self, layer: int) -> xr.DataArray:
        """Full change of u_l (152)."""
        values = self.activation_changes[self._check(layer)]
        return self._label(values, ("input", "unit"), f"first-order change of u_{layer} (152)")

    def conjugate(self, layer: int) -> xr.DataArray:
        """Change of b_l, by ``part``: "transport" with frozen masks (185), "curvature" from slopes that move."""
        if not 0 <= layer < self.state.chain.depth:
            raise InputError(
                f"layer is {layer}: conjugate fields of layers 0..{self.state.chain.depth - 1} change."
            )
        values = torch.stack([self.transport_changes[layer], self.curvature_changes[layer]])
        found = self._label(
            values, ("part", "input", "output", "unit"), f"first-order change of b_{layer} (185)"
        )
        return found.assign_coords(part=["transport", "curvature"])

    @cached_property
    def local_changes(self) -> tuple[Tensor, ...]:
        """Change of v_l by the parameters of layer l, l = 1..L: -(2 lr / M) sum Q^{l-1} z_l r."""
        chain = self.state.chain
        changes = []
        for number in range(1, chain.depth + 1):
            below = chain.u(number - 1)
            driven = chain.layer(number).driven_by(below @ below[: self.training].T)
            masked = self.state.masked(number)[: self.training]
            changes.append(-self._strength * driven @ torch.einsum("bcn,bc->bn", masked, self.driving))
        return tuple(changes)

    @cached_property
    def preactivation_changes(self) -> tuple[Tensor, ...]:
        """Full change of v_l, l = 1..L: the local one and W_l times that of u_{l-1}."""
        chain = self.state.chain
        changes = [self.local_changes[0]]
        for number in range(2, chain.depth + 1):
            carried = (chain.a(number - 1) * changes[-1]) @ chain.layer(number).weight.T
            changes.append(self.local_changes[number - 1] + carried)
        return tuple(changes)

    @cached_property
    def activation_changes(self) -> tuple[Tensor, ...]:
        """Full change of u_l, l = 0..L (152)."""
        chain = self.state.chain
        moved = (chain.a(n) * change for n, change in enumerate(self.preactivation_changes, start=1))
        return (torch.zeros_like(chain.u(0)), *moved)

    @property
    def residual_change(self) -> Tensor:
        """Change of the outputs (inputs, C): the readout of the change of u_L."""
        return self.state.readout(self.activation_changes[-1])

    @cached_property
    def transport_changes(self) -> tuple[Tensor, ...]:
        """Change of b_l with frozen slopes, l = 0..L: -(2 lr / M) sum_m of S^m u_{m-1} r carried back (185)."""
        chain = self.state.chain
        changes = [torch.zeros_like(self.state.conjugates[-1])]
        for number in range(chain.depth, 0, -1):
            layer = chain.layer(number)
            back = (chain.a(number)[:, None, :] * changes[-1]) @ layer.weight
            if layer.trains_weight:
                correlated = weighted_correlator(self.state, number, self.driving)
                back = back - self._strength * correlated @ chain.u(number - 1)[: self.training]
            changes.append(back)
        return tuple(reversed(changes))

    @cached_property
    def curvature_changes(self) -> tuple[Tensor, ...]:
        """Change of b_l by the slopes that move, sigma''(v) dv, l = 0..L; zero for piecewise linear activations."""
        chain = self.state.chain
        changes = [torch.zeros_like(self.state.conjugates[-1])]
        for number in range(chain.depth, 0, -1):
            moved = chain.curvature(number) * self.preactivation_changes[number - 1]
            inside = (
                chain.a(number)[:, None, :] * changes[-1] + moved[:, None, :] * self.state.conjugates[number]
            )
            changes.append(inside @ chain.layer(number).weight)
        return tuple(reversed(changes))

    @property
    def _strength(self) -> float:
        """Factor of the sums over raw z and u: the readout's scale turns the note's b into a gradient of Y."""
        return self.rate * self.state.readout.scale

    def _check(self, layer: int) -> int:
        if not 1 <= layer <= self.state.chain.depth:
            raise InputError(f"layer is {layer}: give 1..{self.state.chain.depth}.")
        return layer

    def _label(self, values: Tensor, dims: tuple[str, ...], meaning: str) -> xr.DataArray:
        seen = [number < self.training for number in range(self.state.chain.inputs)]
        coords = {"training": ("input", seen)}
        return labelled(values, dims, meaning, coords, lr=self.lr, loss_scale=self.loss_scale)

    def answer(self) -> Answer:
        """What the step does to the loss, and how far the activations of every layer move."""
        change, watched = self.residual_change, self.state.chain.inputs - self.training
        before = float(self.loss_scale * (self.driving**2).sum())
        slope = float(2 * self.loss_scale * (self.driving * change[: self.training]).sum())
        statement = (
            f"First-order step with lr = {self.lr:g} on {self.training} inputs"
            f"{f', {watched} more watched' if watched else ''}: loss {before:.6g}, first-order change {slope:.4g}; "
            f"largest change of an output {float(change.abs().max()):.4g}."
        )
        sizes = [float(u.square().mean().sqrt()) for u in self.activation_changes[1:]]
        table = Table.of({"layer": range(1, len(sizes) + 1), "rms change of u": sizes})
        more = "residual(), local(l), activation(l) for l = 1..L, conjugate(l) for l = 0..L-1"
        return Answer(statement, [table, more], self.residual)


Change = dict[str, Tensor]
_MEASURES = {
    "change": "real change of the field",
    "error": "real minus predicted change",
    "frozen_error": "the same without mask flips: new weights with old masks, minus predicted change",
    "flip_part": "what mask flips add: real change minus change with old masks",
    "unflipped_error": "real minus predicted change of those inputs that flip no mask; nan if there is none",
    "roundoff": "resolution of the field in its dtype: smaller errors mean nothing",
}
_PIECES = 16
_HALVINGS = 26
_JUMP = 1e-3  # smallest jump of a slope that counts, relative to the largest slope of the layer


def crossed_kink(chain: Chain, number: int, old: Tensor, new: Tensor) -> Tensor:
    """Where the slope of layer l jumps between two preactivations (M, n_l), as booleans.

    The piece of the way over which the slope changes most is halved again and again: over a kink the change stays,
    for a smooth activation it goes to zero.
    """
    # In small pieces, because over a long way a smooth change of the slope may hide a jump.
    low, slope = old, chain.derivative(number, old)[1]
    way = _Way(old, old, slope, slope)
    for piece in range(1, _PIECES + 1):
        high = old + (piece / _PIECES) * (new - old) if piece < _PIECES else new
        next_slope = chain.derivative(number, high)[1]
        way = way.where_larger(_Way(low, high, slope, next_slope))
        low, slope = high, next_slope
    size = float(torch.maximum(way.slope_low.abs(), way.slope_high.abs()).max())
    for _ in range(_HALVINGS):
        if not bool((way.change > _JUMP * size).any()):
            break
        middle = (way.low + way.high) / 2
        slope = chain.derivative(number, middle)[1]
        first = _Way(way.low, middle, way.slope_low, slope)
        way = _Way(middle, way.high, slope, way.slope_high).where_larger(first)
    return way.change > _JUMP * size


@dataclass(frozen=True, eq=False)
class _Way:
    """An interval of preactivations for every unit, and the slopes at its ends."""

    low: Tensor
    high: Tensor
    slope_low: Tensor
    slope_high: Tensor

    @property
    def change(self) -> Tensor:
        return (self.slope_high - self.slope_low).abs()

    def where_larger(self, other: _Way) -> _Way:
        """Per unit the one of two intervals over which the slope changes more; this one on a tie."""
        mine = self.change >= other.change
        return _Way(
            torch.where(mine, self.low, other.low),
            torch.where(mine, self.high, other.high),
            torch.where(mine, self.slope_low, other.slope_low),
            torch.where(mine, self.slope_high, other.slope_high),
        )


def frozen_fields(before: FieldState, after: Chain) -> tuple[list[Tensor], list[Tensor]]:
    """Activations and conjugate fields of new weights with old masks, as the frozen-mask theory has them.

    Inputs run through the new weights, with every unit that meets a kink continued along its old slope.
    """
    chain = before.chain
    activations, slopes = [chain.u(0)], []
    for number, layer in enumerate(after.layers, start=1):
        v = layer(activations[-1])
        crossed = crossed_kink(chain, number, chain.v(number), v)
        u, slope = chain.derivative(number, v)
        continued = chain.u(number) + chain.a(number) * (v - chain.v(number))
        activations.append(torch.where(crossed, continued, u))
        slopes.append(torch.where(crossed, chain.a(number), slope))
    conjugates = [before.conjugates[-1]]
    for layer, slope in zip(reversed(after.layers), reversed(slopes)):
        conjugates.append((slope[:, None, :] * conjugates[-1]) @ layer.weight)
    return activations, conjugates[::-1]


@dataclass(frozen=True, eq=False, repr=False)
class StepReport(Result):
    """Predicted against real one-step changes; ``data`` is labelled by lr, field, norm and layer."""

    data: xr.Dataset

    def answer(self) -> Answer:
        """By learning rate: how far the fields move, and of what the error is made."""
        data = self.data.sel(norm="rms")
        keys = {"change": "change", "error": "error", "frozen_error": "frozen", "flip_part": "flips"}
        keys |= {"roundoff": "round-off"}
        rows, flips = [], []
        for lr in data["lr"].values.tolist():
            one = data.sel(lr=lr)
            errors = list(zip(one["error"].values, one["field"].values.tolist()))
            # The activation and the conjugate field with the largest error stand for all layers.
            worst = [max(pair for pair in errors if pair[1].startswith(start))[1] for start in ("u_", "b_")]
            for name in ("residual", *worst):
                rows.append((lr, name, *(float(one[key].sel(field=name)) for key in keys)))
            count, inputs = int(one["flips"].sum()), int(one["flipped_inputs"])
            flips.append(
                f"lr {lr:g}: {count} mask flips in {inputs} of {int(self.data.attrs['inputs'])} inputs"
            )
        table = Table(("lr", "field", *keys.values()), rows, "root mean square over inputs and units")
        said = "error = frozen (order lr^2) + flips; u and b: the layer with the largest error, all in .data"
        return Answer(
            "One step: predicted against real.", [table, "\n".join(flips), said, self._figure], self.data
        )

    def _figure(self) -> Figure:
        """All measures against the learning rate, of residuals, and of u and b in their worst layer."""
        figure = Figure("One step: predicted against real", columns=3)
        data = self.data.sel(norm="rms")
        lines = (
            ("change", "real change", INK, ".-"),
            ("error", "error", RED, ".-"),
            ("frozen_error", "without mask flips", BLUE, ".--"),
            ("flip_part", "mask flips", ORANGE, ".:"),
            ("roundoff", "round-off", FAINT, ".-"),
        )
        fields = {"residual": "residual r", "u_": "activations u, largest layer"}
        for start, heading in (fields | {"b_": "conjugate fields b, largest layer"}).items():
            panel = figure.panel(heading, log("learning rate"), log())
            chosen = data.isel(field=[str(name).startswith(start) for name in data["field"].values])
            for key, label, color, style in lines:
                values = chosen[key].max("field").values
                panel.curve(data["lr"].values, np.where(values > 0, values, np.nan), style, label, color)
        figure.legend = "below"
        return figure


def step_report(state: FieldState, lr: float | Sequence[float], y: Tensor, loss_scale: float) -> StepReport:
    """Take a real step for every lr, and hold residuals, activations and conjugate fields against the prediction."""
    rates = [float(rate) for rate in np.atleast_1d(np.asarray(lr, dtype=np.float64))]
    if not rates or not all(np.isfinite(rate) and rate > 0 for rate in rates):
        raise InputError(f"`lr` is {lr!r}: give one positive learning rate or several.")
    state.chain.check_unchanged()
    targets = check_targets(y, state.outputs)
    found = [_measures(state, rate, targets, loss_scale) for rate in track(rates, "real steps")]
    names = list(fields_by_name(state, state.chain.activations, state.conjugates))
    variables = {
        name: ("lr field norm", [step[name] for step in found], meaning)
        for name, meaning in _MEASURES.items()
    }
    data = labelled_dataset(
        {
            **variables,
            "flips": ("lr layer", [step["flips"] for step in found], "masks that flip"),
            "flipped_inputs": ("lr", [step["flipped_inputs"] for step in found]),
        },
        {"loss_scale": loss_scale, "inputs": state.chain.inputs, "readout": state.readout.label},
        ["layer"],
        lr=rates,
        field=names,
        field_layer=("field", [int(n[2:]) if n != "residual" else state.chain.depth for n in names]),
        norm=["rms", "max"],
    )
    return StepReport(data)


def _measures(state: FieldState, lr: float, y: Tensor, loss_scale: float) -> dict[str, Any]:
    """Of one step: all measures (field, norm), flips of every layer, and how many inputs flip."""
    descent = Descent(state.chain.model, state.chain.x, y, state.readout, lr, loss_scale)
    descent.step()
    after = FieldState(find_chain(descent.model, state.chain.x), state.readout)
    flips = [
        crossed_kink(state.chain, number, state.chain.v(number), after.chain.v(number))
        for number in range(1, state.chain.depth + 1)
    ]
    flipped = torch.stack([layer.any(dim=1) for layer in flips]).any(dim=0)
    old = fields_by_name(state, state.chain.activations, state.conjugates)
    real = _minus(fields_by_name(state, after.chain.activations, after.conjugates), old)
    frozen = _minus(fields_by_name(state, *frozen_fields(state, after.chain)), old)
    first_order = FirstOrderStep(state, state.outputs - y, lr, loss_scale)
    conjugate_changes = [
        frozen_part + moved
        for frozen_part, moved in zip(first_order.transport_changes, first_order.curvature_changes)
    ]
    predicted = fields_by_name(state, first_order.activation_changes, conjugate_changes)
    error = _minus(real, predicted)
    resolution = torch.finfo(y.dtype).eps
    by_measure = {
        "change": real,
        "error": error,
        "frozen_error": _minus(frozen, predicted),
        "flip_part": _minus(real, frozen),
        "unflipped_error": {name: values[~flipped] for name, values in error.items()},
        "roundoff": {name: resolution * values for name, values in old.items()},
    }
    found = {
        name: [
            [float((values**2).mean().sqrt()), float(values.abs().max())] if values.numel() else [np.nan] * 2
            for values in fields.values()
        ]
        for name, fields in by_measure.items()
    }
    return {**found, "flips": [int(layer.sum()) for layer in flips], "flipped_inputs": int(flipped.sum())}


def fields_by_name(state: FieldState, activations: Sequence[Tensor], conjugates: Sequence[Tensor]) -> Change:
    """Outputs, u_1..u_L and b_0..b_{L-1}."""
    found = {"residual": state.readout(activations[-1])}
    found |= {f"u_{number}": values for number, values in enumerate(activations) if number > 0}
    return found | {f"b_{number}": values for number, values in enumerate(conjugates[:-1])}


def _minus(first: Change, second: Change) -> Change:
    return {name: values - second[name] for name, values in first.items()}
