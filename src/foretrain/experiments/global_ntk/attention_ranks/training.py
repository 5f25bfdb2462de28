"""Whether a lifted rank helps: gradient descent of attention blocks on one-dimensional Gaussian sequences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from foretrain.experiments.global_ntk.attention_ranks.measurement import Cell
from foretrain.experiments.parts import Parts
from foretrain.support.progress import track
from foretrain.support.seeds import integer, spawn

if TYPE_CHECKING:
    import xarray

_RATE = 0.15
_TRAINING, _FRESH = 32, 256  # sequences


@dataclass(frozen=True)
class Course:
    """How long blocks are trained, and how many of a kind."""

    steps: int
    draws: int


def trained(cells: Mapping[str, Cell], course: Course, seed: int, parts: Parts) -> xarray.Dataset:
    """Mean squared errors by kind of input: ``loss`` (kind, draw, step), ``fresh_loss`` on sequences not trained on.

    Both are relative to the mean square of the target. Kinds share teachers, sequences and the number of steps.
    """
    import xarray

    runs = {
        kind: parts.get(f"training {kind}", partial(_runs, cell, course, seed))
        for kind, cell in cells.items()
    }
    return xarray.concat(list(runs.values()), "kind").assign_coords(kind=list(runs))


def _runs(cell: Cell, course: Course, seed: int) -> xarray.Dataset:
    import xarray

    sources = spawn(seed, course.draws)
    found = [_run(cell, course.steps, own) for own in track(sources, f"training with {cell.name}")]
    return xarray.Dataset(
        {
            "loss": (("draw", "step"), np.stack([losses for losses, _ in found])),
            "fresh_loss": ("draw", np.array([fresh for _, fresh in found])),
        }
    )


def _run(cell: Cell, steps: int, seed: np.random.SeedSequence) -> tuple[np.ndarray, float]:
    """Full-batch gradient descent; a teacher, sequences and weights of its own for every draw."""
    import torch

    from foretrain.training.tasks import GaussianSequences

    for_weights, for_inputs, for_features, for_fresh, for_teacher = spawn(seed, 5)
    task = GaussianSequences(cell.n_in, cell.steps, teacher=integer(for_teacher))
    x, y = task.batch(_TRAINING, for_inputs)
    block = cell.block(for_weights, for_features)
    optimizer = torch.optim.SGD(block.parameters(), _RATE)
    losses = np.empty(steps + 1)
    for step in range(steps + 1):
        optimizer.zero_grad()
        loss = (block(x) - y).square().mean() / y.square().mean()
        losses[step] = loss.item()
        if step < steps:
            loss.backward()
            optimizer.step()
    with torch.no_grad():
        x, y = task.batch(_FRESH, for_fresh)
        return losses, float((block(x) - y).square().mean() / y.square().mean())
