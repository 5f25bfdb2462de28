"""What trained networks say about the order 1/n, in batches.

With z^F the output that a network would end at if its own tangent kernel stayed, and z^L its part of first order in
Ĥ − Theta, the mean of trained outputs is

    E[z(T)] = E[z(T) − z^F] + E[z^F − z^L] + E[z^L]

The first part is the interaction, the second what the variance of the kernel does; both are of order 1/n, and so is
their scatter once mirrored networks are averaged. The third has a scatter of order n^(-1/2) that would hide them, but
its mean is known: the one at infinite width, and the term of H1, which ``foretrain.compare`` of H1 measures.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from foretrain.compare.judging.entries import BatchValues
from foretrain.compare.trained.ensemble import TrainedEnsemble
from foretrain.compare.trained.finite.entries import values_at
from foretrain.compare.trained.finite.goal import FiniteGoal
from foretrain.support.errors import InputError
from foretrain.support.seeds import Seed, spawn
from foretrain.theory.architecture import MLP, FloatArray

UNTRAINED = 2  # for each trained network: z^F costs a fraction of training
_CHUNK_BYTES = 2e8  # of kernels held at once


def measure_trained(
    goal: FiniteGoal, mlp: MLP, draws: int, batches: int, seed: Seed
) -> tuple[BatchValues, float]:
    """Batch values of all entries from networks of one width, and the mean number of steps."""
    first, second = spawn(seed, 2)
    parts, steps = [], 0.0
    for numbers in _chunks(goal, draws):
        trained = goal.train(mlp, numbers, first)
        lost = int(trained.diverged.sum())
        if lost:
            raise InputError(
                f"{lost} of {trained.draws:,} networks of width {mlp.widths[-2]} did not come to an end of training, "
                "so that their mean says nothing: give wider networks, smaller targets or a smaller `eta`."
            )
        parts.append(_changes(trained))
        steps += float(trained.steps.sum()) / draws
    columns = _by_batch(parts, batches)
    curved = []
    for numbers in _chunks(goal, UNTRAINED * draws):
        drawn = goal.draw(mlp, numbers, second)
        assert drawn.free is not None
        curved.append({"ntk_variance": drawn.free[:, drawn.trained_inputs :] - goal.linearised(drawn)})
    columns |= _by_batch(curved, batches)
    known = goal.scaled_terms["ntk_mean"] / mlp.widths[-2]
    columns["mean"] = known + columns["interaction"] + columns["ntk_variance"]
    scaled = {name: mlp.widths[-2] * values for name, values in columns.items()}
    return BatchValues(values_at(goal.entries, scaled)), steps


def _changes(found: TrainedEnsemble) -> dict[str, FloatArray]:
    """What the change of kernels does, and that change itself with samples before outputs, network by network."""
    assert found.free is not None
    assert found.kernel_before is not None
    assert found.kernel_after is not None
    return {
        "interaction": (found.end - found.free)[:, found.trained_inputs :],
        "ntk_change": (found.kernel_after - found.kernel_before).transpose(0, 3, 4, 1, 2),
    }


def _chunks(goal: FiniteGoal, draws: int) -> Iterator[range]:
    """Numbers of networks whose kernels fit in memory together, mirrored ones side by side."""
    legs = goal.goal.training.targets.shape[1] * (len(goal.goal.X_train) + len(goal.goal.X_test))
    pairs = max(1, int(_CHUNK_BYTES / (64 * legs**2)))
    return (range(first, min(first + 2 * pairs, draws)) for first in range(0, draws, 2 * pairs))


def _by_batch(parts: list[dict[str, FloatArray]], batches: int) -> dict[str, FloatArray]:
    """Means over the networks of each batch."""
    found = {}
    for name in parts[0]:
        values = np.concatenate([part[name] for part in parts])
        found[name] = values.reshape(batches, -1, *values.shape[1:]).mean(axis=1)
    return found
