"""The mean prediction at order 1/n, n times each of its parts (∞.160)-(∞.165), corrected.

The mean of output i on a sample d is a sum over tensors, over places of d among their four indices, and over training
samples on the other three: sum_abc tensor[.. d ..]_abc weight_i,abc. The weights hold all that depends on the targets
and on the algorithm. With [m]_b = m_b - Theta_bA Theta_AA^-1 m_A, training adds [m]_b to a test output, and
Theta_bA Theta_AA^-1 times what it has added to the training outputs, which is nothing at the end.

For more training samples than all entries allow, sets of three are drawn with probabilities in proportion to the
weights that they have in the sum. All orders of a drawn set are summed, with exact tensors, and all test and training
samples at the fourth place. So the mean over draws has no bias, and its scatter is the standard error.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from foretrain.support.arguments import Array, whole_number
from foretrain.support.errors import InputError
from foretrain.support.memory import require_memory
from foretrain.support.progress import Progress, track
from foretrain.support.seeds import Seed, generator
from foretrain.theory.prediction.algorithms import Course, Plan
from foretrain.theory.prediction.finite_width.tensors import ENTRIES, Entry, Store, at_triples, require_time

Indices = NDArray[np.intp]

Weights = dict[Entry, Array]

ORIGINS = ("ntk_mean", "ntk_variance", "dntk", "ddntk_1", "ddntk_2")
"""The parts of the correction, in the order of (∞.160)."""
FOURFOLD = ORIGINS[1:]
"""Those of them that come from tensors of four samples."""


@dataclass(frozen=True, eq=False)
class Moments:
    """Errors before training along the modes of the training kernel: means -y (outputs, M), covariance K (M, M)."""

    y: Array
    K: Array

    @property
    def outputs(self) -> int:
        """n_L."""
        return len(self.y)

    def cubic(self) -> Array:
        """-E[eps_i4 sum_j eps_j5 eps_j6] without what three independent outputs leave out: w_i;456."""
        y, K = self.y, self.K
        pairs = np.einsum("jb,jc->bc", y, y) + self.outputs * K
        return np.asarray(
            np.einsum("ia,bc->iabc", y, pairs)
            + np.einsum("ib,ca->iabc", y, K)
            + np.einsum("ic,ab->iabc", y, K)
        )


def weights_of(course: Course, errors: Moments) -> dict[str, Weights]:
    """The weights along modes (outputs, M, M, M), by the origin of the contribution."""
    Z = course.projectors
    first, second = second_differential_weights(Z.IA, Z.IB, Z.IIA, Z.IIB, errors.cubic())
    return {
        "ntk_variance": variance_weights(course.variance, errors),
        "dntk": dntk_weights(Z.A, Z.B + Z.B.T, errors),
        "ddntk_1": first,
        "ddntk_2": second,
    }


def variance_weights(variance: Array, errors: Moments) -> Weights:
    """Of A_(d1)(23) + B_d213 + n_L B_d312, where 1 and 2 share a mode (∞.162)."""
    same = np.einsum("pr,pq,iq->iprq", np.eye(len(variance)), variance, errors.y)
    return {("A", 0): same, ("B", 0): same + errors.outputs * np.einsum("iprq->iqpr", same)}


def dntk_weights(Z_A: Array, Z_B_twice: Array, errors: Moments) -> Weights:
    """(∞.163): -(P_d123 + Q_d123 + n_L Q_d213) Z_B-part y_4 - (n_L P_1d23 + Q_1d23 + Q_12d3) Z_A^1234 y_4
    - (P_1d23 + n_L Q_1d23 + Q_12d3) Z_A^1243 y_4.
    """
    one, outputs = np.eye(len(Z_A)), errors.outputs
    front = -np.einsum("pr,pq,iq->ipqr", one, Z_B_twice, errors.y)
    crossed = -np.einsum("pr,pq,iq->ipqr", one, Z_A, errors.y)
    straight = -np.einsum("qr,pq,ip->ipqr", one, Z_A, errors.y)
    return {
        ("P", 0): front,
        ("Q", 0): front + outputs * np.einsum("ipqr->iqpr", front),
        ("P", 1): outputs * crossed + straight,
        ("Q", 1): crossed + outputs * straight,
        ("Q", 2): crossed + straight,
    }


def second_differential_weights(
    Z_IA: Array, Z_IB: Array, Z_IIA: Array, Z_IIB: Array, cubic: Array
) -> tuple[Weights, Weights]:
    """(∞.164) of R, and (∞.165) of S, T, U with the index orders of T and U the right way round."""
    turned, back = np.einsum("irpq->ipqr", cubic), np.einsum("iqrp->ipqr", cubic)
    first: Weights = {
        ("R", 0): -(Z_IB + _cycled(Z_IB) + _cycled(_cycled(Z_IB))) * cubic,
        ("R", 1): -Z_IA * cubic,
        ("R", 3): -Z_IA * turned - np.einsum("ipqr->iprq", Z_IA * back),
    }
    second: Weights = {
        ("S", 0): -Z_IIB * cubic,
        ("T", 0): -_cycled(_cycled(Z_IIB)) * cubic,
        ("U", 0): -_cycled(Z_IIB) * cubic,
        ("S", 2): -Z_IIA * turned,
        ("T", 1): -np.einsum("ipqr->iprq", Z_IIA * cubic),
        ("U", 3): -np.einsum("ipqr->iprq", Z_IIA * back),
    }
    return first, second


def on_samples(weights: Weights, vectors: Array) -> Weights:
    """The same for the training samples (outputs, A, A, A), from those along modes."""
    return {
        entry: np.einsum("ipqr,ap,bq,cr->iabc", cube, vectors, vectors, vectors, optimize=True)
        for entry, cube in weights.items()
    }


def _cycled(Z: Array) -> Array:
    """Z(q, r, p) at p, q, r: the order 231564 of its indices."""
    return np.asarray(np.einsum("qrp->pqr", Z))


def errors_of(store: Store, targets: Array) -> Moments:
    """Errors before training along the modes of the training kernel."""
    basis = store.modes.vectors
    return Moments((basis.T @ targets).T, basis.T @ store.kernels.K_train @ basis)


def interpolation(store: Store) -> Array:
    """Theta_BA Theta_AA^-1 acting on modes: (B, M)."""
    return np.asarray(store.kernels.Theta_cross @ store.modes.vectors / store.modes.values)


def projection(store: Store) -> Array:
    """[..] on all samples, training samples first: (-Theta_BA Theta_AA^-1, 1), (B, D)."""
    back = interpolation(store) @ store.modes.vectors.T
    return np.concatenate([-back, np.eye(len(back))], axis=1)


def pairs_of_errors(store: Store, targets: Array, Z: Array) -> Array:
    """Z E[eps_j eps_k] on training samples: (outputs, outputs, A, A)."""
    errors, basis = errors_of(store, targets), store.modes.vectors
    moments = np.einsum("jp,kq->jkpq", errors.y, errors.y)
    moments += np.einsum("jk,pq->jkpq", np.eye(errors.outputs), errors.K)
    return np.asarray(np.einsum("pq,jkpq,ap,bq->jkab", Z, moments, basis, basis, optimize=True))


def mean_terms(store: Store, targets: Array, plan: Plan) -> dict[str, Array]:
    """n times every term of the correction to the mean on the tests: (tests, outputs)."""
    errors, course = errors_of(store, targets), plan.course()
    found = {"ntk_mean": shift_term(store, errors, course.mean)}
    found |= {origin: bracket(store, weights) for origin, weights in weights_of(course, errors).items()}
    if plan.time is None:
        return found
    closing, back = _on_training_modes(store, errors, plan), interpolation(store)
    return {origin: value + back @ closing[origin] for origin, value in found.items()}


def bracket(store: Store, weights: Weights) -> Array:
    """[m]_b of the sum of tensors with weights along modes: (tests, outputs)."""
    basis = store.modes.vectors
    there = on_samples(weights, basis)
    trained = basis.T @ contracted(store.training, there)
    return np.asarray(contracted(store.tests, there) - interpolation(store) @ trained)


def contracted(tensors: dict[Entry, Array], weights: Weights) -> Array:
    """The sum over training samples on all other legs: (samples, outputs)."""
    parts = [
        np.einsum("dabc,iabc->di", tensors[entry], cube, optimize=True) for entry, cube in weights.items()
    ]
    return np.asarray(sum(parts))


def shift_term(store: Store, errors: Moments, mean: Array) -> Array:
    """(h_BA - Theta_BA Theta_AA^-1 h_AA) f(Theta_AA) y, with h the 1/n part of the mean tangent kernel."""
    basis, (train, cross) = store.modes.vectors, store.shift
    fitted = basis @ (mean[:, None] * errors.y.T)
    return np.asarray(cross @ fitted - interpolation(store) @ (basis.T @ (train @ fitted)))


def _on_training_modes(store: Store, errors: Moments, plan: Plan) -> dict[str, Array]:
    """What training has added to the training outputs along their modes (M, outputs), on the way to the end."""
    basis, values = store.modes.vectors, store.modes.values
    tensors = {entry: np.einsum("dabc,dk->kabc", cube, basis) for entry, cube in store.training.items()}
    shift = basis.T @ store.shift[0] @ basis
    found: dict[str, list[Array]] = {}
    for k, rate in enumerate(track(values, "modes")):
        course = plan.course(float(rate))
        found.setdefault("ntk_mean", []).append(errors.y @ (course.mean * shift[k]))
        own = {entry: cube[k : k + 1] for entry, cube in tensors.items()}
        for origin, weights in weights_of(course, errors).items():
            found.setdefault(origin, []).append(contracted(own, on_samples(weights, basis))[0])
    return {origin: np.stack(rows) for origin, rows in found.items()}


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
