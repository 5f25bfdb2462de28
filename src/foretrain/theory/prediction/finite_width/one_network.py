"""One given network: outputs, tangent kernel and dNTK during and after training, from its initial differentials.

To first order in the differentials (∞.81)-(∞.141), and with the network's own tangent kernel in the projectors, which
differs from the mean one at the next order in 1/n. All arrays are those of ``ft.ntk``, ``ft.dntk`` and ``ft.ddntk``,
training samples first.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import eigh

from foretrain.support.answers import Result
from foretrain.support.arguments import Array, real_array
from foretrain.support.errors import InputError
from foretrain.theory.arguments import check_targets
from foretrain.theory.prediction.algorithms import LearningRates, Plan, Projectors, finite_algorithm
from foretrain.theory.prediction.cholesky import Modes

_SINGULAR = 1e-12


@dataclass(frozen=True, eq=False, repr=False)
class TrainedNetwork(Result):
    """What training makes of one network: ``outputs`` (D, C), ``ntk`` (D, D, C, C), ``dntk`` (D, D, D, C, C, C).

    ``free_outputs`` are those with a frozen tangent kernel (∞.93).
    """

    outputs: Array
    free_outputs: Array
    ntk: Array
    dntk: Array
    statement: str


@dataclass(frozen=True, eq=False, repr=False)
class OneNetwork(Result):
    """A network before training; every pair (sample, output) is a leg, those of the training samples first."""

    z: Array  # (legs,)
    y: Array  # (training legs,)
    H: Array  # (legs, legs)
    dH: Array  # (legs, legs, legs)
    dd_I: Array
    dd_II: Array
    outputs: int

    @classmethod
    def of(
        cls,
        outputs: ArrayLike,
        targets: ArrayLike,
        ntk: ArrayLike,
        dntk: ArrayLike,
        dd_I: ArrayLike | None = None,
        dd_II: ArrayLike | None = None,
    ) -> OneNetwork:
        """From outputs (D, C) of all samples, targets (A, C) of the first A, and kernels of all samples.

        Without second differentials, these count as zero.
        """
        z = real_array("outputs", outputs)
        z = z[:, None] if z.ndim == 1 else z
        if z.ndim != 2:
            raise InputError(f"outputs have shape {z.shape}: give (samples, outputs).")
        count = len(np.atleast_1d(np.asarray(targets)))
        if count > len(z):
            raise InputError(f"there are {count} targets for {len(z)} samples: training samples come first.")
        y = check_targets(targets, count, z.shape[1])
        legs = z.size
        none = np.zeros((legs,) * 4)
        return cls(
            z.ravel(),
            y.ravel(),
            _legs("the ntk", ntk, 2, *z.shape),
            _legs("the dntk", dntk, 3, *z.shape),
            none if dd_I is None else _legs("dd_I", dd_I, 4, *z.shape),
            none if dd_II is None else _legs("dd_II", dd_II, 4, *z.shape),
            z.shape[1],
        )

    @property
    def rates(self) -> LearningRates:
        """Which learning rates converge."""
        return self._modes.rates

    @cached_property
    def _modes(self) -> Modes:
        size = len(self.y)
        values, vectors = eigh(self.H[:size, :size])
        if not values[0] > _SINGULAR * values[-1]:
            raise InputError(
                f"the tangent kernel of the training samples has eigenvalues from {values[0]:.3g} to "
                f"{values[-1]:.3g}: leave out repeated samples, or take a wider network."
            )
        return Modes(values, vectors)

    def trained(self, algorithm: Any = "gradient_descent") -> TrainedNetwork:
        """After training: (∞.102), (∞.117), (∞.124) at a time, (∞.141) at the end; as :func:`finite_prediction`."""
        plan = finite_algorithm(algorithm).plan(self._modes.values)
        # Outputs with a frozen tangent kernel, and what its differentials add.
        values, basis = self._modes.values, self._modes.vectors
        size, errors = len(self.y), self._errors
        course = plan.course()
        pull = self.H[:, :size] @ basis
        free = self.z - pull @ (course.mean * errors)
        moved = self._force(course.projectors)
        moved = moved - pull @ (basis.T @ moved[:size] / values)
        if plan.time is not None:
            along = [
                basis[:, k] @ self._force(plan.course(float(w)).projectors)[:size]
                for k, w in enumerate(values)
            ]
            moved = moved + pull @ (np.array(along) / values)
        samples, channels = len(self.z) // self.outputs, self.outputs
        ntk, dntk = self._kernels(plan)
        return TrainedNetwork(
            outputs=(free + moved).reshape(samples, channels),
            free_outputs=free.reshape(samples, channels),
            ntk=_by_sample(ntk, samples, channels),
            dntk=_by_sample(dntk, samples, channels),
            statement=plan.statement,
        )

    @property
    def _errors(self) -> Array:
        """Along modes."""
        return np.asarray(self._modes.vectors.T @ (self.z[: len(self.y)] - self.y))

    def _force(self, Z: Projectors) -> Array:
        """All terms of (∞.141) with a differential, without [..]: (legs,)."""
        A = slice(None, len(self.y))
        pairs, triples = self._on_legs(Z.A), self._on_legs(Z.IA)
        found = np.einsum("adb,ab->d", self.dH[A, :, A], pairs)
        found += np.einsum("dab,ab->d", self.dH[:, A, A], self._on_legs(Z.B))
        found += np.einsum("adbc,abc->d", self.dd_I[A, :, A, A], triples)
        found += np.einsum("dabc,abc->d", self.dd_I[:, A, A, A], self._on_legs(Z.IB))
        found += np.einsum("abdc,abc->d", self.dd_II[A, A, :, A], self._on_legs(Z.IIA))
        found += np.einsum("dabc,abc->d", self.dd_II[:, A, A, A], self._on_legs(Z.IIB))
        return np.asarray(found)

    def _on_legs(self, Z: Array) -> Array:
        """Z with one error along each of its modes, on training legs."""
        basis, errors = self._modes.vectors, self._errors
        for axis in range(Z.ndim):
            Z = np.moveaxis(np.tensordot(basis * errors, Z, axes=(1, axis)), 0, axis)
        return Z

    def _kernels(self, plan: Plan) -> tuple[Array, Array]:
        """H and dH at the end of the plan."""
        A, basis = slice(None, len(self.y)), self._modes.vectors
        course = plan.course()
        fitted = basis @ (course.mean * self._errors)
        in_A, in_B = self._on_legs(course.projectors.A), self._on_legs(course.projectors.B)
        second = self.dd_I + self.dd_II
        half = -self.dH[:, :, A] @ fitted + np.einsum("abcd,cd->ab", second[:, :, A, A], in_B)
        half += np.einsum("acbd,cd->ab", self.dd_II[:, A, :, A], in_A)
        turned = second + self.dd_II.swapaxes(1, 2)
        return self.H + half + half.T, self.dH - turned[..., A] @ fitted


def _legs(name: str, values: Any, indices: int, samples: int, outputs: int) -> Array:
    """From axes of all samples, then of all outputs, to one axis for each pair of them."""
    array = real_array(name, values)
    wanted = (samples,) * indices + (outputs,) * indices
    if array.shape == wanted[:indices] and outputs == 1:
        array = array.reshape(wanted)
    if array.shape != wanted:
        raise InputError(
            f"`{name}` has shape {array.shape}: give {wanted}, axes of samples before those of outputs."
        )
    places = [axis for i in range(indices) for axis in (i, indices + i)]
    return array.transpose(places).reshape((samples * outputs,) * indices)


def _by_sample(legs: Array, samples: int, outputs: int) -> Array:
    """The way back."""
    split = legs.reshape((samples, outputs) * legs.ndim)
    places = (*range(0, 2 * legs.ndim, 2), *range(1, 2 * legs.ndim, 2))
    return split.transpose(places)
