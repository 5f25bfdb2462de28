"""Mean and covariance of an ensemble of trained networks, entry by entry, with their batch values.

A trained output less the prediction for its mean is e = z_B(T) − m = (e − f) + (f − l) + l. Here l = z_B − P z_A is
what is random at infinite width, and f what the network would end at if its own tangent kernel stayed as it is. Each
part is averaged where that is cheap:

    l        has mean zero at any width, and given the hidden layers E[l l] = Q Ĝ Q, Q = (−P, 1), with Ĝ the metric of
             the output (4.70)
    f − l    comes from the kernel's fluctuations, of order n^(-1/2): from many networks that are not trained
    e − f    comes from the kernel's changes, of order 1/n: from the trained networks

and the covariance from E[e e − f f] + E[f f − l l + Q Ĝ Q] likewise. Mirrored networks are averaged in pairs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from foretrain.compare.judging.entries import BatchValues
from foretrain.compare.trained.columns import Columns, Entries, pseudo_values
from foretrain.compare.trained.ensemble import (
    InitialEnsemble,
    TrainedEnsemble,
    draw_ensemble,
    train_ensemble,
)
from foretrain.compare.trained.goal import Goal, Law
from foretrain.support.errors import InputError
from foretrain.support.seeds import Seed, spawn
from foretrain.theory.architecture import MLP, FloatArray

UNTRAINED = 8  # for each trained network: together they take about as long as its training
_CHUNK_BYTES = 1e8  # of kernels and metrics held at once


def measure(
    goal: Goal, entries: Entries, mlp: MLP, draws: int, batches: int, seed: Seed
) -> tuple[BatchValues, float]:
    """Train networks of one width, and read them: batch values, and the mean number of steps."""
    first, second = spawn(seed, 2)
    parts, steps = [], 0.0
    for numbers in _chunks(goal, draws):
        found = _trained(goal, mlp, numbers, first)
        parts.append(_of_trained(goal.law, found, entries))
        steps += float(found.steps.sum()) / draws
    columns = Columns.joined(parts).by_batch(batches)
    if goal.has_free_end:
        options: dict[str, Any] = {"seed": second, "mirrored": True, "keep": ("free", "metric")}
        more = []
        for numbers in _chunks(goal, UNTRAINED * draws):
            drawn = draw_ensemble(mlp, goal.X_train, goal.X_test, goal.training, numbers, **options)
            assert drawn.free is not None
            whole = _less_mean(goal.law, drawn.free, entries)  # f, and with the next line f − l
            more.append(whole.plus(_noise(goal.law, drawn, entries), -1.0))
        columns = columns.plus(Columns.joined(more).by_batch(batches))
    return pseudo_values(goal.law, columns, entries), steps


def sampled_law(law: Law, batches: int, entries: Entries) -> BatchValues | None:
    """Batch values of the law itself, where it had to be sampled."""
    if law.samples is None:
        return None
    return pseudo_values(law, Columns.of(law.samples - law.mean, entries).by_batch(batches), entries)


def _chunks(goal: Goal, draws: int) -> Iterator[range]:
    outputs, inputs = goal.law.mean.shape[1], len(goal.X_train) + len(goal.X_test)
    each = 8 * 4 * (outputs * inputs) ** 2
    size = max(2, 2 * int(_CHUNK_BYTES / each / 2))
    for first in range(0, draws, size):
        yield range(first, min(first + size, draws))


def _trained(goal: Goal, mlp: MLP, numbers: range, seed: Seed) -> TrainedEnsemble:
    options: dict[str, Any] = {"keep": ("free",) if goal.has_free_end else ("metric",)}
    found = train_ensemble(
        mlp, goal.X_train, goal.X_test, goal.training, numbers, seed=seed, mirrored=True, **options
    )
    lost = int(found.diverged.sum())
    if lost:
        raise InputError(
            f"{lost} of {len(numbers)} networks of width {max(mlp.hidden_widths)} run away at eta "
            f"{goal.training.eta:.4g}: give a smaller `eta`, or wider networks."
        )
    return found


def _of_trained(law: Law, found: TrainedEnsemble, entries: Entries) -> Columns:
    """e − f of trained networks; e − l where training is not linear with a fixed kernel; e where no l is known."""
    whole = _less_mean(law, found.end, entries)
    if found.free is not None:
        return whole.plus(_less_mean(law, found.free, entries), -1.0)
    return whole if law.weights is None else whole.plus(_noise(law, found, entries), -1.0)


def _less_mean(law: Law, outputs: FloatArray, entries: Entries) -> Columns:
    return Columns.of(outputs[:, -len(law.mean) :] - law.mean, entries)


def _noise(law: Law, found: InitialEnsemble, entries: Entries) -> Columns:
    """l, and its products less what they are expected to be given the hidden layers."""
    linear = _linear_part(law, found)
    expected = Columns.with_moments(0.0 * linear, *_expected_moments(law, found), entries)
    return Columns.of(linear, entries).plus(expected, -1.0)


def _linear_part(law: Law, found: InitialEnsemble) -> FloatArray:
    """l = z_B − P z_A, with the noise of targets, or without the mean over outputs: (networks, tests, outputs)."""
    size = found.trained_inputs
    z = found.start[:, :size]
    if found.offsets is not None:
        z = z + found.offsets
    if law.centred:
        z = z - z.mean(axis=2, keepdims=True)
    return np.asarray(found.start[:, size:] - np.asarray(law.weights) @ z)


def _expected_moments(law: Law, found: InitialEnsemble) -> tuple[FloatArray, FloatArray]:
    """E[l_i l_i] and E[l_i l_j] given the hidden layers of each network: Q Ĝ Q and 0, unless outputs are centred."""
    assert law.weights is not None
    assert found.metric is not None
    Q = np.concatenate([-law.weights, np.eye(len(law.weights))], axis=1)
    own = Q @ found.metric @ Q.T + found.training.noise * law.weights @ law.weights.T
    if not law.centred:
        return own, np.zeros_like(own)
    size, outputs = found.trained_inputs, law.mean.shape[1]
    between = (found.metric[:, size:, size:] - own) / outputs
    return own + between, between
