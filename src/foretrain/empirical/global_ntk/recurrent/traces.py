"""The exact trace of J J* of recurrent layers: sweeps back from every state, which all samples share.

A state depends on its own sample alone, so one sweep carries a vector of every sample, and the trace is the sum of
the squared lengths of each sample's gradients. The gradient of a weight is the sum over steps of s_t v_t^T, with the
sensitivities s and the rows v, and its squared length is the sum over pairs of steps of (s_t · s_t')(v_t · v_t').
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from foretrain.empirical.global_ntk.recurrent.layers import Layer
from foretrain.support.progress import track

if TYPE_CHECKING:
    from foretrain.empirical.global_ntk.recurrent.dynamics import RecurrentDynamics

_BLOCK_BYTES = 2.5e8  # of the sensitivities of the vectors that are swept together


def parameter_traces(
    dynamics: RecurrentDynamics, members: Sequence[str], most_flops: float
) -> tuple[dict[str, float], int] | None:
    """tr(J_p J_p*) by parameter on these states, and the number of sweeps; None if it is dearer.

    None too where a weight is used twice: its gradient is a sum over both places.
    """
    uses = Counter(name for layer in dynamics.layers for name in layer.weights.values())
    vectors = len(members) * dynamics.steps * dynamics.units
    is_stacked = dynamics.layers[-1].number > 0  # sensitivities then reach steps of both orders of time
    truncated = 1.0 if is_stacked else 0.5
    if max(uses.values()) > 1 or truncated * vectors * dynamics.flops / 2 > most_flops:
        return None
    columns = sum(layer.sweeps.cell.slots for layer in dynamics.layers) * dynamics.units
    each = dynamics.values.element_size() * dynamics.steps * dynamics.samples * columns
    together = max(1, min(dynamics.units, int(_BLOCK_BYTES / each)))
    total = dict.fromkeys(dynamics.parameters, 0.0)
    for layer, place in (dynamics.members[name] for name in members):
        number = dynamics.layers.index(layer)
        for step in track(range(dynamics.steps), "sweeps back from the states of every step"):
            for units in torch.split(torch.arange(dynamics.units), together):
                asked = step, slice(None), torch.arange(len(units)), units
                if is_stacked:
                    blocks = dynamics.zeros(len(units))
                    blocks[number][place][asked] = 1
                    for other, sensitivities in zip(dynamics.layers, dynamics.sweep_back(blocks)):
                        _add_squares(total, other, sensitivities)
                    continue
                # A layer alone has none after the step that is asked, in its own order of time.
                shape = (step + 1, dynamics.samples, len(units), dynamics.units)
                states = [dynamics.values.new_zeros(shape) for _ in layer.names]
                states[place][asked] = 1
                _add_squares(total, layer, layer.sweeps.back(states))
    return total, vectors


def _add_squares(total: dict[str, float], layer: Layer, sensitivities: Tensor) -> None:
    """The squared lengths of the gradients of the layer's parameters, summed over samples and vectors."""
    steps, samples = sensitivities.shape[:2]
    inputs = [slots for _, slots in layer.input_columns]
    for side, columns in (("hh", [layer.hidden_columns]), ("ih", inputs)):
        weight, bias = (layer.weights.get(f"{kind}_{side}") for kind in ("weight", "bias"))
        if weight is None and bias is None:
            continue
        pairs = sum((_pairs_of_steps(sensitivities[..., part]) for part in columns), torch.zeros(()))
        if bias is not None:
            total[bias] += float(pairs.sum(dtype=torch.float64))
        if weight is not None:
            rows = layer.rows if side == "hh" else layer.given_rows
            by_step = rows.view(-1, samples, 1, rows.shape[1])[:steps]
            total[weight] += float((pairs * _pairs_of_steps(by_step)).sum(dtype=torch.float64))


def _pairs_of_steps(part: Tensor) -> Tensor:
    """Inner products of all pairs of steps, summed over vectors: (samples, steps, steps) of (steps, samples, ...)."""
    steps, samples = part.shape[:2]
    by_sample = part.permute(1, 0, 2, 3).reshape(samples, steps, -1)
    return torch.bmm(by_sample, by_sample.mT)
