"""P, Q, R, S, T, U of an ensemble: plain means over networks, batch by batch."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from foretrain.compare.ensembles import Ensemble
from foretrain.compare.initial.differential_kernels import tensors_of_networks
from foretrain.compare.judging.entries import BatchValues, Entry
from foretrain.support.memory import require_memory

Array = NDArray[np.float64]


def differential_batch_values(ensemble: Ensemble, entries: list[Entry]) -> BatchValues:
    """The mean over the networks of each batch, of every entry."""
    names = frozenset(entry.observable for entry in entries)
    kept = 8 * ensemble.batches * (ensemble.mlp.depth - 1) * len(names) * len(ensemble.X) ** 4
    require_memory(kept, f"the differentials of {ensemble.batches} batches", "use fewer draws or inputs")
    found = ensemble.each_batch(lambda number: _one_batch(ensemble, names, number))
    columns = [
        [batch[entry.layer - 2][entry.observable][entry.inputs] for entry in entries] for batch in found
    ]
    return BatchValues(np.array(columns))


def _one_batch(ensemble: Ensemble, names: frozenset[str], number: int) -> list[dict[str, Array]]:
    """Means over the networks of one batch, by layer from the second on and by name."""
    source = ensemble.probe_source(number)
    with torch.no_grad():
        sums = [
            list(tensors_of_networks(ensemble.mlp, ensemble.X, walk, source, names))
            for walk in ensemble.walks(number)
        ]
    return [
        {name: sum(part[name].numpy() for part in parts) / ensemble.draws_per_batch for name in names}
        for parts in zip(*sums)
    ]
