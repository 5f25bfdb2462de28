"""The mean prediction by sampled sums over training samples, for more of them than all entries allow.

Triples of training samples are drawn with probabilities in proportion to the weights that they have in the sum; the
tensors of a drawn triple are exact, for all test and training samples at the fourth place. So the mean over draws has
no bias, and its scatter is the standard error.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from foretrain.support.errors import InputError
from foretrain.support.memory import require_memory
from foretrain.support.progress import Progress
from foretrain.support.seeds import Seed, generator
from foretrain.theory.prediction.finite_width.mean import errors_of, interpolation, shift_term
from foretrain.theory.prediction.finite_width.plan import Plan
from foretrain.theory.prediction.finite_width.store import Store
from foretrain.theory.prediction.finite_width.tensors import ENTRIES, at_triples, require_time
from foretrain.theory.prediction.finite_width.weights import FOURFOLD, Weights, on_samples, weights_of

Array = NDArray[np.float64]
Indices = NDArray[np.intp]

_TOGETHER = 4_000  # quadruples
_WAY_OUT = "use fewer draws= or fewer training and test inputs"


class Sampled(NamedTuple):
    """n times every term (tests, outputs), and the standard error of their sum."""

    terms: dict[str, Array]
    standard_error: Array


def sampled_terms(store: Store, targets: Array, plan: Plan, draws: int, seed: Seed) -> Sampled:
    """n times the terms of :func:`mean_terms` at the end of training, from ``draws`` triples."""
    if isinstance(draws, bool) or not isinstance(draws, int) or draws < 2:
        raise InputError(f"draws is {draws!r}: give a whole number from 2 on.")
    if plan.time is not None:
        raise InputError("draws= samples the end of training only: leave time out, or draws.")
    errors, course, size = errors_of(store, targets), plan.course(), len(store.train)
    require_memory(
        16.0 * len(ENTRIES) * errors.outputs * size**3, f"the weights of {size:,} training inputs", _WAY_OUT
    )
    require_time(store.mlp, draws * (size + len(store.test)), _WAY_OUT)
    by_origin = {
        origin: on_samples(part, store.modes.vectors) for origin, part in weights_of(course, errors).items()
    }
    probability = _probabilities(store, by_origin)
    drawn = generator(seed).choice(size**3, size=draws, p=probability.ravel())
    chosen, counts = np.unique(drawn, return_counts=True)
    triples = np.stack(np.unravel_index(chosen, (size,) * 3), axis=1)
    values = _values(store, by_origin, triples, probability.ravel()[chosen])
    share = counts / draws
    terms = {"ntk_mean": shift_term(store, errors, course.mean)}
    terms |= {name: np.einsum("t,btj->bj", share, values[place]) for place, name in enumerate(FOURFOLD)}
    whole = values.sum(axis=0)
    mean = np.einsum("t,btj->bj", share, whole)
    scatter = np.einsum("t,btj->bj", share, (whole - mean[:, None]) ** 2)
    return Sampled(terms, np.sqrt(scatter / (draws - 1)))


def _probabilities(store: Store, by_origin: dict[str, Weights]) -> Array:
    """Of triples (A, A, A): the sum of all weights, each with the size that its tensor has on one input."""
    total = np.zeros((len(store.train),) * 3)
    for weights in by_origin.values():
        for (name, _), cube in weights.items():
            total += np.abs(cube).sum(axis=0) * math.sqrt(float(np.mean(store.alone[name] ** 2)))
    whole = float(total.sum())
    return total / whole if whole else np.full_like(total, 1 / total.size)


def _values(store: Store, by_origin: dict[str, Weights], triples: Indices, probability: Array) -> Array:
    """What every triple says about the terms: (origins, tests, triples, outputs)."""
    samples = np.concatenate([store.train, store.test])
    size, outputs = len(store.train), store.mlp.n_out
    require_memory(
        8.0 * (len(FOURFOLD) + len(ENTRIES)) * len(samples) * len(triples) * outputs,
        f"{len(triples):,} sampled triples",
        _WAY_OUT,
    )
    project = np.eye(len(samples))[size:]
    project[:, :size] = -interpolation(store) @ store.modes.vectors.T
    found = np.empty((len(FOURFOLD), len(store.test), len(triples), outputs))
    step = max(1, _TOGETHER // (4 * len(samples)))
    with Progress("sampled triples", total=len(triples)) as bar:
        for start in range(0, len(triples), step):
            part = slice(start, start + step)
            legs = triples[part]
            tensors = at_triples(store.mlp, store.train, samples, legs, store.tolerance)
            at = (slice(None), *legs.T)
            for place, name in enumerate(FOURFOLD):
                pieces = [
                    np.einsum("dt,jt->dtj", tensors[entry], cube[at] / probability[part])
                    for entry, cube in by_origin[name].items()
                ]
                found[place, :, part] = np.einsum("bd,dtj->btj", project, sum(pieces))
            bar.advance(len(legs))
    return found
