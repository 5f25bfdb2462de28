"""With what weights the tensors of the ensemble enter its mean prediction (∞.160)-(∞.165), corrected.

The mean of output i on a sample d is a sum over tensors, over places of d among their four indices, and over training
samples on the other three: sum_abc tensor[.. d ..]_abc weight_i,abc. The weights hold all that depends on the targets
and on the algorithm.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foretrain.theory.prediction.finite_width.projectors import Course

Array = NDArray[np.float64]
Entry = tuple[str, int]
"""A tensor, and at which of its places the sample stands that is predicted."""
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
