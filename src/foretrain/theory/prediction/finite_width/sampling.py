"""The mean prediction by sampled sums over training samples, for more of them than all entries allow.

Sets of three training samples are drawn with probabilities in proportion to the weights that they have in the sum.
All orders of a drawn set are summed, with exact tensors, and all test and training samples at the fourth place. So
the mean over draws has no bias, and its scatter is the standard error.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from foretrain.support.arguments import whole_number
from foretrain.support.errors import InputError
from foretrain.support.memory import require_memory
from foretrain.support.progress import Progress
from foretrain.support.seeds import Seed, generator
from foretrain.theory.prediction.finite_width.mean import errors_of, projection, shift_term
from foretrain.theory.prediction.finite_width.projectors import Plan
from foretrain.theory.prediction.finite_width.store import Store
from foretrain.theory.prediction.finite_width.tensors import ENTRIES, at_triples, require_time
from foretrain.theory.prediction.finite_width.weights import FOURFOLD, Weights, on_samples, weights_of

Array = NDArray[np.float64]
Indices = NDArray[np.intp]

_TOGETHER = 20_000  # quadruples
_WAY_OUT = "use fewer draws= or fewer training and test inputs"


class Sampled(NamedTuple):
    """n times every term (tests, outputs), and the standard error of their sum."""

    terms: dict[str, Array]
    standard_error: Array


def sampled_terms(store: Store, targets: Array, plan: Plan, draws: int, seed: Seed) -> Sampled:
    """n times the terms of :func:`mean_terms` at the end of training, from ``draws`` sets of inputs."""
    draws = whole_number("draws", draws, least=2)
    if plan.time is not None:
        raise InputError("`draws=` samples the end of training only: leave `time` out, or `draws`.")
    errors, course, size = errors_of(store, targets), plan.course(), len(store.train)
    require_memory(
        16.0 * len(ENTRIES) * errors.outputs * size**3, f"the weights of {size:,} training inputs", _WAY_OUT
    )
    require_time(store.mlp, draws * (size + len(store.test)), _WAY_OUT)
    by_origin = {
        origin: on_samples(part, store.modes.vectors) for origin, part in weights_of(course, errors).items()
    }
    sets = _sets(store, by_origin)
    drawn = generator(seed).choice(len(sets.probability), size=draws, p=sets.probability)
    chosen, counts = np.unique(drawn, return_counts=True)
    if len(chosen) == 1 < len(sets.probability):
        raise InputError(
            f"all {draws} draws are of the same inputs, so that nothing is known of their error: give more `draws=`, "
            "or leave `draws` out."
        )
    values = _values(store, by_origin, sets, chosen)
    share = counts / draws
    terms = {"ntk_mean": shift_term(store, errors, course.mean)}
    terms |= {name: np.einsum("t,btj->bj", share, values[place]) for place, name in enumerate(FOURFOLD)}
    whole = values.sum(axis=0)
    mean = np.einsum("t,btj->bj", share, whole)
    scatter = np.einsum("t,btj->bj", share, (whole - mean[:, None]) ** 2)
    return Sampled(terms, np.sqrt(scatter / (draws - 1)))


class _Sets(NamedTuple):
    """Sets of three training samples: all orders (A^3, 3) by set, where those of a set start, how likely it is."""

    triples: Indices
    starts: Indices  # with the end of the last
    probability: Array


def _sets(store: Store, by_origin: dict[str, Weights]) -> _Sets:
    """Probabilities from the sum of all weights of a set, each with the size that its tensor has on one input."""
    size = len(store.train)
    total = np.zeros((size,) * 3)
    for weights in by_origin.values():
        for (name, _), cube in weights.items():
            total += np.abs(cube).sum(axis=0) * math.sqrt(float(np.mean(store.alone[name] ** 2)))
    triples = np.indices((size,) * 3).reshape(3, -1).T
    places = np.sort(triples, axis=1) @ np.array([size**2, size, 1])
    order = np.argsort(places, kind="stable")
    starts = np.flatnonzero(np.diff(places[order], prepend=-1))
    likely = np.add.reduceat(total.ravel()[order], starts)
    whole = float(likely.sum())
    likely = likely / whole if whole else np.full(len(starts), 1 / len(starts))
    return _Sets(triples[order], np.append(starts, len(triples)), likely)


def _values(store: Store, by_origin: dict[str, Weights], sets: _Sets, chosen: Indices) -> Array:
    """What every chosen set says about the terms: (origins, tests, sets, outputs)."""
    samples = np.concatenate([store.train, store.test])
    outputs = store.mlp.n_out
    require_memory(
        8.0 * len(FOURFOLD) * len(store.test) * len(chosen) * outputs,
        f"{len(chosen):,} sampled sets",
        _WAY_OUT,
    )
    project = projection(store)
    found = np.empty((len(FOURFOLD), len(store.test), len(chosen), outputs))
    step = max(1, _TOGETHER // (24 * len(samples)))
    with Progress("sampled sets of inputs", total=len(chosen)) as bar:
        for start in range(0, len(chosen), step):
            part = chosen[start : start + step]
            rows = [sets.triples[sets.starts[each] : sets.starts[each + 1]] for each in part]
            legs, first = np.concatenate(rows), np.cumsum([0, *map(len, rows[:-1])])
            tensors = at_triples(store.mlp, store.train, samples, legs, store.tolerance)
            at = (slice(None), *legs.T)
            for place, name in enumerate(FOURFOLD):
                pieces = [
                    np.einsum("dt,jt->dtj", tensors[entry], cube[at])
                    for entry, cube in by_origin[name].items()
                ]
                summed = np.add.reduceat(sum(pieces), first, axis=1) / sets.probability[part][:, None]
                found[place, :, start : start + step] = np.einsum("bd,dtj->btj", project, summed)
            bar.advance(len(part))
    return found
