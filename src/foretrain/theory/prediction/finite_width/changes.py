"""Of order 1/n besides the mean prediction: how training changes the tangent kernel, and a part of the covariance."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from foretrain.support.errors import NotSupportedError
from foretrain.theory.prediction.finite_width.mean import errors_of, interpolation
from foretrain.theory.prediction.finite_width.plan import Plan
from foretrain.theory.prediction.finite_width.store import Store

if TYPE_CHECKING:
    import xarray as xr

Array = NDArray[np.float64]

_PAIRS = {"P": (1,), "Q": (1, 2), "R": (1, 2, 3), "S": (1, 2), "T": (1, 3), "U": (2, 3)}
_COVARIANCE = {"P": (3,), "Q": (3,)}


@dataclass(frozen=True, eq=False)
class Changes:
    """What is computed on demand for one prediction."""

    store: Store
    targets: Array
    plan: Plan

    def ntk_change(self) -> xr.DataArray:
        """The mean of H(t) - H(0), with its 1/n: X_ab + X_ba with X_ab = -dH_abc a_c + (ddI + ddII)_abcd Z_B eps eps
        + ddII_acbd Z_A eps eps (∞.117).
        """
        if self.plan.clock is None and not self.plan.leaps:
            raise NotSupportedError(
                "the change of the tangent kernel is known for gradient_descent, flow and two_step only, not for "
                "projectors in general: choose one of these."
            )
        half = self._first_differential() + self._second_differentials()
        whole = half + half.transpose(1, 0, 3, 2)
        dims = ("sample_1", "sample_2", "output_1", "output_2")
        meaning = "mean change of the tangent kernel by training, with its 1/n; training samples first"
        return _labelled("ntk_change", whole / self.store.width, dims, meaning)

    def dntk_covariance(self) -> xr.DataArray:
        """The outputs before training times the dNTK term of Z_B (∞.167), with [..] on both tests, and its 1/n."""
        raw = self.dntk_times_output()
        size = len(self.store.train)
        project = np.eye(len(raw))[size:]
        project[:, :size] = -interpolation(self.store) @ self.store.modes.vectors.T
        half = np.einsum("xa,abij,yb->xyij", project, raw, project, optimize=True)
        whole = half + half.transpose(1, 0, 3, 2)
        dims = ("test_1", "test_2", "output_1", "output_2")
        meaning = "one contribution of order 1/n to the covariance, of dNTK and initial outputs (∞.167), with its 1/n"
        return _labelled("dntk_covariance", whole / self.store.width, dims, meaning)

    def dntk_times_output(self) -> Array:
        """n E[dH_abc Z_B eps_b eps_c z_d] for all samples a and d, paired as in (∞.167): (D, D, outputs, outputs)."""
        tensors, pairs = self.store.pairs(_COVARIANCE), self._errors_B
        same = np.einsum("xyab,jjab->xy", tensors["P", 3], pairs, optimize=True)
        straight = np.einsum("xyab,ikab->xyik", tensors["Q", 3], pairs, optimize=True)
        crossed = np.einsum("xyba,kiab->xyik", tensors["Q", 3], pairs, optimize=True)
        return np.asarray(same[:, :, None, None] * np.eye(len(pairs)) + straight + crossed)

    @cached_property
    def _tensors(self) -> dict[tuple[str, int], Array]:
        return self.store.pairs(_PAIRS)

    @cached_property
    def _errors_A(self) -> Array:
        return self._pairs_of_errors(self.plan.course().projectors.A)

    @cached_property
    def _errors_B(self) -> Array:
        return self._pairs_of_errors(self.plan.course().projectors.B)

    def _pairs_of_errors(self, Z: Array) -> Array:
        """Z E[eps_j eps_k] on training samples: (outputs, outputs, A, A)."""
        errors, basis = errors_of(self.store, self.targets), self.store.modes.vectors
        moments = np.einsum("jp,kq->jkpq", errors.y, errors.y)
        moments += np.einsum("jk,pq->jkpq", np.eye(errors.outputs), errors.K)
        return np.asarray(np.einsum("pq,jkpq,ap,bq->jkab", Z, moments, basis, basis, optimize=True))

    def _first_differential(self) -> Array:
        """-(P_xy12 + n_L Q_xy12 + Q_x1y2) f^12 for equal outputs."""
        T, basis, outputs = self._tensors, self.store.modes.vectors, self.targets.shape[1]
        inverse = (basis * self.plan.course().mean) @ basis.T
        joined = T["P", 1] + outputs * T["Q", 1] + T["Q", 2]
        return np.asarray(-np.einsum("xyab,ab,ik->xyik", joined, inverse, np.eye(outputs), optimize=True))

    def _second_differentials(self) -> Array:
        """(R + S)_xy12, T_xy21 for equal outputs, (R + T)_x12y, S_x1y2 straight, (R + U)_x2y1, U_x21y crossed."""
        T, one = self._tensors, np.eye(self.targets.shape[1])
        A, B = self._errors_A, self._errors_B
        same = np.einsum("xyab,jjab->xy", T["R", 1] + T["S", 1], B, optimize=True)
        same += np.einsum("xyba,jjab->xy", T["T", 1], A, optimize=True)
        straight = np.einsum("xyab,ikab->xyik", T["R", 3] + T["T", 3], B, optimize=True)
        straight += np.einsum("xyab,ikab->xyik", T["S", 2], A, optimize=True)
        crossed = np.einsum("xyba,kiab->xyik", T["R", 2] + T["U", 2], B, optimize=True)
        crossed += np.einsum("xyba,kiab->xyik", T["U", 3], A, optimize=True)
        return np.asarray(same[:, :, None, None] * one + straight + crossed)


def _labelled(name: str, values: Array, dims: tuple[str, ...], meaning: str) -> xr.DataArray:
    import xarray as xr

    return xr.DataArray(values, dims=dims, name=name, attrs={"meaning": meaning})
