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

from dataclasses import dataclass
from itertools import combinations_with_replacement
from typing import TypeAlias

import numpy as np

from foretrain.compare.judging.ladder import BatchValues, Entry
from foretrain.compare.trained.ensemble import InitialEnsemble, draw_ensemble, train_ensemble
from foretrain.compare.trained.goal import Goal, Law, moments
from foretrain.support.errors import InputError
from foretrain.support.seeds import Seed, spawn
from foretrain.theory.architecture import MLP, FloatArray

UNTRAINED = 8  # for each trained network: together they take about as long as its training
_CHUNK_BYTES = 1e8  # of kernels and metrics held at once
MOST_PAIRS = 6  # test inputs up to which all their pairs are compared; variances alone beyond


@dataclass(frozen=True, order=True)
class TrainedEntry(Entry):
    """One number that theory and trained networks share; inputs are numbers of test inputs."""

    output: int | None = None

    @property
    def label(self) -> str:
        """For example ``mean of output 1 at 0`` or ``covariance at 0 3``."""
        where = " ".join(map(str, self.inputs))
        of = "" if self.output is None else f" of output {self.output}"
        return f"{self.observable}{of} at {where}"


Entries: TypeAlias = list[TrainedEntry]


def entries_of(law: Law, depth: int) -> Entries:
    """Every mean, and the covariance of pairs of test inputs or, if they are many, of each alone.

    ``covariance`` is that over networks of an output on two test inputs, averaged over outputs, ``between`` that of
    two different outputs, averaged over pairs of outputs.
    """
    tests, outputs = law.mean.shape
    everywhere = combinations_with_replacement(range(tests), 2)
    pairs = list(everywhere) if tests <= MOST_PAIRS else [(b, b) for b in range(tests)]
    found = [TrainedEntry("mean", depth, (b,), i) for b in range(tests) for i in range(outputs)]
    names = ("covariance", "between") if outputs > 1 else ("covariance",)
    return found + [TrainedEntry(name, depth, pair) for name in names for pair in pairs]


def by_entry(mean: FloatArray, own: FloatArray, between: FloatArray, entries: Entries) -> FloatArray:
    """(…, entries) from (…, tests, outputs), and (…, tests, tests) of one output and of two different ones."""
    parts = [mean.reshape(*mean.shape[:-2], -1)]
    for matrices, name in ((own, "covariance"), (between, "between")):
        places = np.array([e.inputs for e in entries if e.observable == name], dtype=int).reshape(-1, 2)
        parts.append(matrices[..., places[:, 0], places[:, 1]])
    return np.concatenate(parts, axis=-1)


def values_of(law: Law, entries: Entries) -> FloatArray:
    """What the theory says."""
    return by_entry(law.mean, law.covariance, law.between, entries)


def columns_of(
    e: FloatArray, entries: Entries, products: tuple[FloatArray, FloatArray] | None = None
) -> FloatArray:
    """What is averaged: outputs less their predicted means and products of these, (pairs of networks, entries).

    e (networks, tests, outputs) has mirrored networks next to each other; products are its own unless given.
    """
    columns = by_entry(e, *(moments(e) if products is None else products), entries)
    return np.asarray((columns[::2] + columns[1::2]) / 2)


def over_batches(parts: list[FloatArray], batches: int) -> FloatArray:
    """Means over batches of pairs: (batches, entries)."""
    return np.asarray(np.concatenate(parts).reshape(batches, -1, parts[0].shape[1]).mean(axis=1))


def pseudo_values(law: Law, batches: FloatArray, entries: Entries) -> BatchValues:
    """Of the entries, by the jackknife: means, and products less products of means."""

    def estimates(means: dict[str, FloatArray]) -> FloatArray:
        columns = means["columns"]
        shift = columns[:, : law.mean.size].reshape(-1, *law.mean.shape)
        own, between = moments(shift)
        return columns + by_entry(np.broadcast_to(law.mean, shift.shape), -own, -between, entries)

    return BatchValues.jackknife(estimates, {"columns": batches})


def measure(
    goal: Goal, entries: Entries, mlp: MLP, draws: int, batches: int, seed: Seed
) -> tuple[BatchValues, float]:
    """Train networks of one width, and read them: batch values, and the mean number of steps."""
    first, second = spawn(seed, 2)
    law, data = goal.law, (goal.X_train, goal.X_test, goal.training)
    kept, parts, steps = ("free",) if goal.has_free_end else ("metric",), [], 0.0
    for numbers in goal.chunks(draws, _CHUNK_BYTES):
        found = train_ensemble(mlp, *data, numbers, seed=first, mirrored=True, keep=kept)
        lost = int(found.diverged.sum())
        if lost:
            raise InputError(
                f"{lost} of {len(numbers)} networks of width {max(mlp.hidden_widths)} run away at eta "
                f"{goal.training.eta:.4g}: give a smaller `eta`, or wider networks."
            )
        # e − f; e − l where training is not linear with a fixed kernel; e where no l is known.
        whole = _less_mean(law, found.end, entries)
        if found.free is not None:
            whole = whole - _less_mean(law, found.free, entries)
        elif law.weights is not None:
            whole = whole - _noise(law, found, entries)
        parts.append(whole)
        steps += float(found.steps.sum()) / draws
    columns = over_batches(parts, batches)
    if goal.has_free_end:
        more = []
        for numbers in goal.chunks(UNTRAINED * draws, _CHUNK_BYTES):
            drawn = draw_ensemble(mlp, *data, numbers, seed=second, mirrored=True, keep=("free", "metric"))
            assert drawn.free is not None
            more.append(_less_mean(law, drawn.free, entries) - _noise(law, drawn, entries))  # f − l
        columns = columns + over_batches(more, batches)
    return pseudo_values(law, columns, entries), steps


def sampled_law(law: Law, batches: int, entries: Entries) -> BatchValues | None:
    """Batch values of the law itself, where it had to be sampled."""
    if law.samples is None:
        return None
    columns = over_batches([columns_of(law.samples - law.mean, entries)], batches)
    return pseudo_values(law, columns, entries)


def _less_mean(law: Law, outputs: FloatArray, entries: Entries) -> FloatArray:
    return columns_of(outputs[:, -len(law.mean) :] - law.mean, entries)


def _noise(law: Law, found: InitialEnsemble, entries: Entries) -> FloatArray:
    """l, and its products less what they are expected to be given the hidden layers."""
    assert law.weights is not None
    assert found.metric is not None
    # l = z_B − P z_A, with the noise of targets, or without the mean over outputs: (networks, tests, outputs).
    size, outputs, P = found.trained_inputs, law.mean.shape[1], law.weights
    z = found.start[:, :size]
    if found.offsets is not None:
        z = z + found.offsets
    if law.centred:
        z = z - z.mean(axis=2, keepdims=True)
    linear = np.asarray(found.start[:, size:] - P @ z)
    # E[l_i l_i] and E[l_i l_j] given the hidden layers of each network: Q Ĝ Q and 0, unless outputs are centred.
    Q = np.concatenate([-P, np.eye(len(P))], axis=1)
    own = Q @ found.metric @ Q.T + found.training.noise * P @ P.T
    between = np.zeros_like(own)
    if law.centred:
        between = (found.metric[:, size:, size:] - own) / outputs
        own = own + between
    return columns_of(linear, entries) - columns_of(0.0 * linear, entries, (own, between))
