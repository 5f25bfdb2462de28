"""Width by width: what is measured of networks of one width is a part that can be kept."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from foretrain.compare.judging.entries import BatchValues
from foretrain.compare.judging.ladder import Ladder
from foretrain.support.seeds import Seed, spawn
from foretrain.theory.architecture import MLP

if TYPE_CHECKING:
    import xarray

Array = NDArray[np.float64]
Keeper: TypeAlias = "Callable[[str, Callable[[], xarray.Dataset]], xarray.Dataset]"
Measure: TypeAlias = Callable[
    [MLP, int, int, Seed], tuple[BatchValues, float]
]  # network, draws, batches, seed


def measured_widths(
    measure: Measure, ladder: Ladder, seed: Seed, keeper: Keeper | None
) -> tuple[tuple[BatchValues, ...], Array]:
    """Batch values of every width, and the mean numbers of steps; the keeper gives back what it kept."""
    keep = keeper or (lambda name, compute: compute())
    seeds = spawn(seed, len(ladder.networks))
    found = [
        keep(
            f"width {network.hidden_widths[0]}", partial(_part, measure, network, draws, ladder.batches, own)
        )
        for network, draws, own in zip(ladder.networks, ladder.draws, seeds, strict=True)
    ]
    batches = tuple(BatchValues(each["values"].values) for each in found)
    return batches, np.array([float(each["steps"]) for each in found])


def _part(measure: Measure, network: MLP, draws: int, batches: int, seed: Seed) -> xarray.Dataset:
    import xarray

    found, steps = measure(network, draws, batches, seed)
    return xarray.Dataset({"values": (("batch", "entry"), found.values), "steps": ((), steps)})
