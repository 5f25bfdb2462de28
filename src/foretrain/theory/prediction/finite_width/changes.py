"""Of order 1/n besides the mean prediction: how training changes the tangent kernel, and the covariance.

With u = [z] the part of the initial outputs that training leaves, and l = -[H - Theta] Theta^-1 eps, an output ends
at Theta_bA Theta_AA^-1 y + u + l + c, where c are the terms of the mean prediction before their average. To order
1/n the covariance has u with u (the 1/n part of the metric), u with l (D, F), l with l (A, B), and u with c: there
u meets an initial output in an error, which makes a derivative of the mean by the targets, or it meets a dNTK (P,
Q). The book prints one part of it (∞.167).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from foretrain.support.arguments import Array
from foretrain.support.errors import NotSupportedError
from foretrain.theory.flow import flow
from foretrain.theory.prediction.algorithms import Plan
from foretrain.theory.prediction.finite_width.mean import mean_terms, pairs_of_errors, projection
from foretrain.theory.prediction.finite_width.tensors import Places, Store

if TYPE_CHECKING:
    import xarray as xr

Pairs = dict[tuple[str, Places], Array]

FIRST, MIDDLE, LAST = (0, 1), (0, 2), (0, 3)
"""Where two samples stand that are not trained on, in the order of a tensor's indices."""
_IN_FRONT = {"P": (LAST,), "Q": (LAST,)}
_ALL = {
    "A": (MIDDLE,),
    "B": (FIRST, LAST),
    "D": (MIDDLE,),
    "F": (FIRST, LAST),
    "P": (LAST, (1, 3)),
    "Q": (LAST, (1, 3), (2, 3)),
}
_MEANINGS = {
    "metric": "1/n part of the metric of initial outputs",
    "ntk_and_output": "initial outputs with the tangent kernel (D, F)",
    "ntk_variance": "fluctuations of the tangent kernel with each other (A, B)",
    "mean_response": "initial outputs as a shift of the targets in the mean prediction",
    "dntk_and_output": "initial outputs with the dNTK (P, Q), of which (∞.167) is a part",
}


def covariance_parts(store: Store, targets: Array, plan: Plan) -> dict[str, Array]:
    """All parts with their 1/n: (tests, tests, outputs, outputs)."""
    if plan.time is not None:
        raise NotSupportedError(
            "the covariance at order 1/n is known at the end of training only: leave `time` out."
        )
    tensors = store.pairs(_ALL)
    project, one = projection(store), np.eye(targets.shape[1])
    samples = np.concatenate([store.train, store.test])
    metric = flow(store.mlp, samples, ["G1"], tolerance=store.tolerance)["G1"].values[-1]
    values, vectors = store.modes.values, store.modes.vectors
    # -E[z_x H_ya z_b]_c Theta^ab: -(D_xbya + n_L F_xyba + F_xaby) Theta^ab for equal outputs.
    inverse = (vectors / values) @ vectors.T
    joined = tensors["D", MIDDLE] + len(one) * tensors["F", FIRST] + tensors["F", LAST]
    ntk_and_output = -np.einsum("xyab,ab,ij->xyij", joined, inverse, one, optimize=True)
    # E[dH_axb z_y] Z_A E[eps_a eps_b]: Q_abxy for equal outputs, Q_axby straight, P_axby crossed.
    errors = pairs_of_errors(store, targets, plan.course().projectors.A)
    dntk_between = _joined(tensors["Q", (2, 3)], tensors["Q", (1, 3)], tensors["P", (1, 3)], errors)
    # E[H_xa H_yb]_c Theta^-1 Theta^-1 E[eps eps]: B_xyab for equal outputs, A_(xa)(yb) straight, B_xbay crossed.
    errors = pairs_of_errors(store, targets, 1 / np.multiply.outer(values, values))
    crossed = tensors["B", LAST].swapaxes(2, 3)
    across = {
        "ntk_and_output": ntk_and_output,
        "dntk_and_output": dntk_in_front(tensors, store, targets, plan) + dntk_between,
    }
    raw = {
        "metric": np.einsum("xy,ij->xyij", metric, one),
        "ntk_variance": _joined(tensors["B", FIRST], tensors["A", MIDDLE], crossed, errors),
        **{name: part + part.transpose(1, 0, 3, 2) for name, part in across.items()},
    }
    found = {
        name: np.einsum("xa,abij,yb->xyij", project, part, project, optimize=True)
        for name, part in raw.items()
    }
    response = _mean_response(store, targets, plan)
    found["mean_response"] = response + response.transpose(1, 0, 3, 2)
    return {name: found[name] / store.width for name in _MEANINGS}


def dntk_of_the_book(store: Store, targets: Array, plan: Plan) -> Array:
    """n times the sum (∞.167) for all samples, without [..]: (D, D, outputs, outputs)."""
    return dntk_in_front(store.pairs(_IN_FRONT), store, targets, plan)


def dntk_in_front(tensors: Pairs, store: Store, targets: Array, plan: Plan) -> Array:
    """E[dH_xab z_y] Z_B E[eps_a eps_b]."""
    errors = pairs_of_errors(store, targets, plan.course().projectors.B)
    P, Q = tensors["P", LAST], tensors["Q", LAST]
    return _joined(P, Q, Q.swapaxes(2, 3), errors)


def _mean_response(store: Store, targets: Array, plan: Plan) -> Array:
    """-E[z_a u_y] d(mean of x)/dy_a, exact, since the mean is a cubic polynomial of the targets."""
    kernels, tests, outputs = store.kernels, len(store.test), targets.shape[1]
    basis = store.modes.vectors
    weights = projection(store)[:, : len(store.train)]
    moved = kernels.K_cross + weights @ kernels.K_train
    moved = moved @ basis @ basis.T
    found = np.empty((tests, tests, outputs, outputs))
    for test in range(tests):
        for output in range(outputs):
            shift = np.multiply.outer(moved[test], np.eye(outputs)[output])
            mean = {k: sum(mean_terms(store, targets + k * shift, plan).values()) for k in (-2, -1, 1, 2)}
            slope = (8 * (mean[1] - mean[-1]) - (mean[2] - mean[-2])) / 12
            found[:, test, :, output] = -slope
    return found


def _joined(same: Array, straight: Array, crossed: Array, errors: Array) -> Array:
    """delta_ik same E_jj + straight E_ik + crossed E_ki, summed over training samples."""
    found = np.einsum("xyab,jjab->xy", same, errors, optimize=True)[:, :, None, None] * np.eye(len(errors))
    found = found + np.einsum("xyab,ikab->xyik", straight, errors, optimize=True)
    return np.asarray(found + np.einsum("xyab,kiab->xyik", crossed, errors, optimize=True))


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
        tensors, outputs = self.store.pairs(_PAIRS), self.targets.shape[1]
        # The first differential: -(P_xy12 + n_L Q_xy12 + Q_x1y2) f^12 for equal outputs.
        basis = self.store.modes.vectors
        inverse = (basis * self.plan.course().mean) @ basis.T
        joined = tensors["P", FIRST] + outputs * tensors["Q", FIRST] + tensors["Q", MIDDLE]
        first = -np.einsum("xyab,ab,ik->xyik", joined, inverse, np.eye(outputs), optimize=True)
        half = first + self._second_differentials(tensors)
        whole = half + half.transpose(1, 0, 3, 2)
        dims = ("sample_1", "sample_2", "output_1", "output_2")
        meaning = "mean change of the tangent kernel by training, with its 1/n; training samples first"
        return xr.DataArray(
            whole / self.store.width, dims=dims, name="ntk_change", attrs={"meaning": meaning}
        )

    def covariance_correction(self) -> xr.Dataset:
        """All of order 1/n in the covariance at the end of training: its parts and their sum."""
        import xarray as xr

        parts = covariance_parts(self.store, self.targets, self.plan)
        dims = ("test_1", "test_2", "output_1", "output_2")
        total = np.sum(list(parts.values()), axis=0)
        meaning = (
            "all of order 1/n in the covariance of trained outputs, to be added to that at infinite width"
        )
        named = {
            name: (dims, part, {"meaning": f"{_MEANINGS[name]}, with its 1/n"})
            for name, part in parts.items()
        }
        return xr.Dataset({"total": (dims, total, {"meaning": meaning}), **named})

    def _second_differentials(self, T: Pairs) -> Array:
        """(R + S)_xy12, T_xy21 for equal outputs, (R + T)_x12y, S_x1y2 straight, (R + U)_x2y1, U_x21y crossed."""
        projectors, one = self.plan.course().projectors, np.eye(self.targets.shape[1])
        A, B = (pairs_of_errors(self.store, self.targets, each) for each in (projectors.A, projectors.B))
        same = np.einsum("xyab,jjab->xy", T["R", FIRST] + T["S", FIRST], B, optimize=True)
        same += np.einsum("xyba,jjab->xy", T["T", FIRST], A, optimize=True)
        straight = np.einsum("xyab,ikab->xyik", T["R", LAST] + T["T", LAST], B, optimize=True)
        straight += np.einsum("xyab,ikab->xyik", T["S", MIDDLE], A, optimize=True)
        crossed = np.einsum("xyba,kiab->xyik", T["R", MIDDLE] + T["U", MIDDLE], B, optimize=True)
        crossed += np.einsum("xyba,kiab->xyik", T["U", LAST], A, optimize=True)
        return np.asarray(same[:, :, None, None] * one + straight + crossed)
