"""Stochastic gradient descent of whole networks with several modes, beside the flow of their block means.

At the published size descent takes hours, so that the quick one is narrower and starts from larger scales, beside the
block flow of its own size. It is timed by its loss: it has escaped when its loss is that of the block flow where the
first mode's X_1 passes the threshold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from foretrain.experiments.registry import Row
from foretrain.saddle.modes import block_escape, block_flow
from foretrain.support.seeds import Seed, integer, spawn

if TYPE_CHECKING:
    import xarray

_ALLOWED = 0.02  # relative: the finite rate and the noise of the batches, beyond three standard errors


@dataclass(frozen=True)
class Descent:
    """The network that descends, its batches, and its steps up to twice the expected escape."""

    width: int
    epsilon: float
    batch: int
    steps: int
    seeds: int
    every: int = 2


def descend(
    sizes: Descent, betas: Sequence[float], inputs: int, depth: int, threshold: float, seed: Seed
) -> xarray.Dataset:
    """Escape times of the first mode by descent, and that of the block flow."""
    import xarray

    from foretrain.training.gradient_flow import Problem, ansatz, gaussian_sample, stochastic_escape

    block = sizes.width // len(betas)
    scales = np.full((depth, len(betas)), sizes.epsilon)
    exact = float(block_escape("tanh", scales, betas, block, threshold=threshold, until=1e5).values[0])
    level = float(block_flow("tanh", scales, betas, block, np.array([0.0, exact]))["loss"][-1])
    problem = Problem("tanh", depth=depth, width=sizes.width, inputs=inputs, betas=tuple(betas))
    (own,) = spawn(seed, 1)
    found = stochastic_escape(
        problem,
        ansatz(problem, np.tile(scales, (sizes.seeds, 1, 1))),
        lr=2 * exact / sizes.steps,
        batch_size=sizes.batch,
        steps=sizes.steps,
        thresholds=(level,),
        metric="normalized",
        sample=gaussian_sample(problem, 2048),
        every=sizes.every,
        seed=integer(own),
    )
    return xarray.Dataset(
        {"descent_time": ("descent_seed", found["time"].values[:, 0]), "descent_exact": exact}
    )


def descent_row(data: xarray.Dataset, sizes: Descent) -> Row:
    """Mean over seeds beside the block flow."""
    times, exact = data["descent_time"].values, float(data["descent_exact"])
    mean, error = float(times.mean()), float(times.std(ddof=1) / np.sqrt(len(times)))
    return Row(
        f"SGD, width {sizes.width}, ε = {sizes.epsilon:g}: first mode's escape, block flow and whole networks",
        exact,
        mean,
        error,
        agrees=bool(abs(mean - exact) <= 3 * error + _ALLOWED * exact),
        note=f"Batch {sizes.batch}, {sizes.steps} steps, {len(times)} seeds; to agree within three standard errors "
        f"and {_ALLOWED:.0%} for the finite rate.",
    )
