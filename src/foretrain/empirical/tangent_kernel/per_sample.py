"""Gradients sample by sample, for parameters that enter in a way that is not read from the graph: exact, slower."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt

import torch
from torch import Tensor

from foretrain.empirical.models.batches import Batch
from foretrain.empirical.models.model import Model
from foretrain.support.progress import track


def sample_gradients(
    model: Model,
    batch: Batch,
    parameters: Mapping[str, Tensor],
    outputs: Sequence[int],
    rates: Mapping[str, float],
) -> dict[str, Tensor]:
    """{name: (samples, outputs, entries)}, with the roots of the rates inside.

    A sample goes through the model twice in one batch, because some models treat a batch of one differently.
    """
    found = {
        name: value.new_zeros(batch.count, len(outputs), value.numel()) for name, value in parameters.items()
    }
    if not parameters:
        return found
    for sample in track(range(batch.count), "gradients sample by sample"):
        given = model(batch.pick([sample, sample]))
        for number, output in enumerate(outputs):
            cotangent = torch.zeros_like(given)
            cotangent[0, output] = 1
            gradients = torch.autograd.grad(
                given, list(parameters.values()), cotangent, retain_graph=True, allow_unused=True
            )
            for name, gradient in zip(parameters, gradients):
                if gradient is not None:
                    dense = gradient.to_dense() if gradient.is_sparse else gradient
                    found[name][sample, number] = dense.reshape(-1) * sqrt(rates[name])
    return found
