"""What one step of gradient descent changes to first order in lr, from the fields alone.

Masks are frozen, as in the note; smooth activations need nothing else for residuals and activations. Conjugate fields
have a second part there, because slopes move with the preactivations: sigma''(v) dv. It is zero for ReLU.

(185) writes the change of b_l with M_l acting on u_l. That u_l, carried up with the masks, arrives as u_{m-1} holds
for ReLU without biases only; else the field u_{m-1} of each layer itself has to stand there, and here it does.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from foretrain.empirical.fields.state import FieldState, labelled
from foretrain.empirical.fields.transport import weighted_correlator
from foretrain.support.answers import Answer, Result, Table
from foretrain.support.errors import InputError

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
