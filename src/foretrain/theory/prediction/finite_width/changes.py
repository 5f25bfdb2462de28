"""Of order 1/n besides the mean prediction: how training changes the tangent kernel, and the covariance."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from foretrain.support.errors import NotSupportedError
from foretrain.theory.prediction.finite_width.covariance import (
    FIRST,
    LAST,
    MIDDLE,
    Pairs,
    covariance_parts,
    labelled_parts,
)
from foretrain.theory.prediction.finite_width.mean import pairs_of_errors
from foretrain.theory.prediction.finite_width.projectors import Plan
from foretrain.theory.prediction.finite_width.store import Store

if TYPE_CHECKING:
    import xarray as xr

Array = NDArray[np.float64]

_PAIRS = {
    "P": (FIRST,),
    "Q": (FIRST, MIDDLE),
    "R": (FIRST, MIDDLE, LAST),
    "S": (FIRST, MIDDLE),
    "T": (FIRST, LAST),
    "U": (MIDDLE, LAST),
}


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
        import xarray as xr

        if self.plan.clock is None and not self.plan.leaps:
            raise NotSupportedError(
                "the change of the tangent kernel is known for gradient_descent, flow and two_step only, not for "
                "projectors in general: choose one of these."
            )
        half = self._first_differential() + self._second_differentials()
        whole = half + half.transpose(1, 0, 3, 2)
        dims = ("sample_1", "sample_2", "output_1", "output_2")
        meaning = "mean change of the tangent kernel by training, with its 1/n; training samples first"
        return xr.DataArray(
            whole / self.store.width, dims=dims, name="ntk_change", attrs={"meaning": meaning}
        )

    def covariance_correction(self) -> xr.Dataset:
        """All of order 1/n in the covariance at the end of training."""
        return labelled_parts(covariance_parts(self.store, self.targets, self.plan))

    @cached_property
    def _tensors(self) -> Pairs:
        return self.store.pairs(_PAIRS)

    @cached_property
    def _errors_A(self) -> Array:
        return pairs_of_errors(self.store, self.targets, self.plan.course().projectors.A)

    @cached_property
    def _errors_B(self) -> Array:
        return pairs_of_errors(self.store, self.targets, self.plan.course().projectors.B)

    def _first_differential(self) -> Array:
        """-(P_xy12 + n_L Q_xy12 + Q_x1y2) f^12 for equal outputs."""
        T, basis, outputs = self._tensors, self.store.modes.vectors, self.targets.shape[1]
        inverse = (basis * self.plan.course().mean) @ basis.T
        joined = T["P", FIRST] + outputs * T["Q", FIRST] + T["Q", MIDDLE]
        return np.asarray(-np.einsum("xyab,ab,ik->xyik", joined, inverse, np.eye(outputs), optimize=True))

    def _second_differentials(self) -> Array:
        """(R + S)_xy12, T_xy21 for equal outputs, (R + T)_x12y, S_x1y2 straight, (R + U)_x2y1, U_x21y crossed."""
        T, one = self._tensors, np.eye(self.targets.shape[1])
        A, B = self._errors_A, self._errors_B
        same = np.einsum("xyab,jjab->xy", T["R", FIRST] + T["S", FIRST], B, optimize=True)
        same += np.einsum("xyba,jjab->xy", T["T", FIRST], A, optimize=True)
        straight = np.einsum("xyab,ikab->xyik", T["R", LAST] + T["T", LAST], B, optimize=True)
        straight += np.einsum("xyab,ikab->xyik", T["S", MIDDLE], A, optimize=True)
        crossed = np.einsum("xyba,kiab->xyik", T["R", MIDDLE] + T["U", MIDDLE], B, optimize=True)
        crossed += np.einsum("xyba,kiab->xyik", T["U", LAST], A, optimize=True)
        return np.asarray(same[:, :, None, None] * one + straight + crossed)
