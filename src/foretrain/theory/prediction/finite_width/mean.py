"""The mean prediction at order 1/n, n times each of its parts (∞.160)-(∞.165).

With [m]_b = m_b - Theta_bA Theta_AA^-1 m_A, training adds [m]_b to a test output, and Theta_bA Theta_AA^-1 times
what it has added to the training outputs, which is nothing at the end.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from foretrain.support.progress import track
from foretrain.theory.prediction.finite_width.projectors import Plan
from foretrain.theory.prediction.finite_width.store import Store
from foretrain.theory.prediction.finite_width.weights import Entry, Moments, Weights, on_samples, weights_of

Array = NDArray[np.float64]


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
