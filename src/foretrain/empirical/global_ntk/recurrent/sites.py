"""Weight sites of recurrent layers: rows that a layer's weights multiply, and what its products do to all states."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from foretrain.empirical.global_ntk.dynamics import Site
from foretrain.empirical.global_ntk.recurrent.layers import WEIGHTS, Layer
from foretrain.operators import Space

if TYPE_CHECKING:
    from foretrain.empirical.global_ntk.recurrent.dynamics import RecurrentDynamics


class LayerSite(Site):
    """A layer's product of the state before, of its inputs, or of both where they are added."""

    def __init__(self, dynamics: RecurrentDynamics, layer: Layer, kinds: Sequence[str]) -> None:
        self._dynamics, self._layer = dynamics, layer
        self.parameters = tuple(
            layer.weights[kind] for kind in WEIGHTS if kind in kinds and kind in layer.weights
        )
        self._kinds = tuple(kind for kind in WEIGHTS if kind in kinds and kind in layer.weights)
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
                other.write_products(products, {}, below)
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


def sites_of(dynamics: RecurrentDynamics, layer: Layer, tied: Set[str]) -> list[Site]:
    """One for each product that the states' changes must be told apart for."""
    if layer.sweeps.cell.slots == layer.sweeps.cell.gates:
        groups: list[tuple[str, ...]] = [WEIGHTS]
    else:
        groups = [("weight_hh", "bias_hh"), ("weight_ih", "bias_ih")]
    own = [kind for kind, name in layer.weights.items() if name not in tied]
    counted = [tuple(kind for kind in kinds if kind in own) for kinds in groups]
    return [LayerSite(dynamics, layer, kinds) for kinds in counted if kinds]
