"""Gradients sample by sample, for parameters that enter in a way that is not read from the graph: exact, slower."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt

import torch
from torch import Tensor

from foretrain.empirical.tangent_kernel.batches import Batch
from foretrain.empirical.tangent_kernel.model import Model


def sample_gradients(
    model: Model,
    batch: Batch,
    parameters: Mapping[str, Tensor],
    outputs: Sequence[int],
    rates: Mapping[str, float],
) -> Tensor:
    """(samples, outputs, entries of all parameters), with the roots of the rates inside.

    A sample goes through the model twice in one batch, because some models treat a batch of one differently.
    """
    values = list(parameters.values())
    roots = [sqrt(rates[name]) for name in parameters]
    entries = sum(value.numel() for value in values)
    result = values[0].new_zeros(batch.count, len(outputs), entries)
    for sample in range(batch.count):
        found = model(batch.pick([sample, sample]))
        for number, output in enumerate(outputs):
            gradients = torch.autograd.grad(found[0, output], values, retain_graph=True, allow_unused=True)
            start = 0
            for value, root, gradient in zip(values, roots, gradients):
                if gradient is not None:
                    dense = gradient.to_dense() if gradient.is_sparse else gradient
                    result[sample, number, start : start + value.numel()] = dense.reshape(-1) * root
                start += value.numel()
    return result
