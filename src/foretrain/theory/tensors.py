"""What each tensor of a random network means: the one table that flow, comparisons, laws and pictures read.

Indices are stored as the references store them. No 1/n is inside: the physical value at layer l is value / n_{l-1}
(six_point: / n_{l-1}^2).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Permutation = tuple[int, ...]

FAMILIES = (
    _TANGENT := "Tangent kernel",
    _MEAN := "Next order of the mean kernels",
    _COVARIANCE := "Covariances of z z and of the tangent kernel",
    _FIRST := "First differential of the tangent kernel",
    _SECOND := "Second differentials of the tangent kernel",
    _THREE := "Three-point tensor",
    _SIX := "Six-point tensor",
)
"""Titles of the panels that tensors of a kind share, in order."""
_PAIR_SWAPS: tuple[Permutation, ...] = ((1, 0, 2, 3), (0, 1, 3, 2))
_SIDES: Permutation = (2, 3, 0, 1)


class Tensor(NamedTuple):
    """One tensor.

    ``indices`` is the number of its input indices, ``family`` the title of the panel that it shares with others of
    its kind, ``symmetries`` are exchanges of stored indices that leave it unchanged: entry [p] says which index goes
    there.
    """

    title: str
    meaning: str
    indices: int
    family: str = ""
    symmetries: tuple[Permutation, ...] = ()


TENSORS = {
    "K": Tensor("kernel $K$", "kernel: covariance of a preactivation over inputs, at infinite width", 2),
    "V": Tensor(
        "four-point vertex $V$",
        "four-point vertex: n_{l-1} times the covariance of z_1 z_2 of one neuron and z_3 z_4 of another",
        4,
        _COVARIANCE,
        (*_PAIR_SWAPS, _SIDES),
    ),
    "G1": Tensor(
        r"$1/n$ shift of the metric $G^{\{1\}}$",
        "next-to-leading metric: n_{l-1} times the shift of the mean metric from the kernel",
        2,
        _MEAN,
    ),
    "norm_covariance": Tensor(
        "norm covariance", "entries (aa)(bb) of the four-point vertex V", 2, _COVARIANCE
    ),
    "entry_variance": Tensor(
        "entry variance",
        "entries (ab)(ab) of the four-point vertex V: n_{l-1} times the variance of the metric",
        2,
        _COVARIANCE,
    ),
    "Theta": Tensor(
        r"tangent kernel $\Theta$",
        "tangent kernel: the mean of the NTK at infinite width",
        2,
        _TANGENT,
    ),
    "H1": Tensor(
        r"$1/n$ shift of the NTK $H^{\{1\}}$",
        "next-to-leading tangent kernel: n_{l-1} times the shift of the mean NTK from Theta",
        2,
        _MEAN,
    ),
    "D": Tensor(
        "covariance $D$ of $zz$ and NTK",
        "n_{l-1} times the covariance of z_1 z_2 of one neuron and H_34 of another, indices 1234",
        4,
        _COVARIANCE,
        _PAIR_SWAPS,
    ),
    "F": Tensor(
        "cross covariance $F$ of $zz$ and NTK",
        "n_{l-1} times the mean of z_i;1 z_k;2 H_ik;34 of two neurons, indices stored as 1324",
        4,
        _COVARIANCE,
        (_SIDES,),
    ),
    "A": Tensor(
        "covariance $A$ of NTKs",
        "n_{l-1} times the covariance of H_12 of one neuron and H_34 of another, indices 1234",
        4,
        _COVARIANCE,
        (*_PAIR_SWAPS, _SIDES),
    ),
    "B": Tensor(
        "cross covariance $B$ of NTKs",
        "n_{l-1} times the mean of H_ik;12 H_ik;34 of two neurons, indices stored as 1324",
        4,
        _COVARIANCE,
        ((1, 0, 3, 2), _SIDES),
    ),
    "P": Tensor(
        "dNTK and preactivation $P$",
        "n_{l-1} times the mean of dH_ikk;012 z_i;3 of two neurons: how the tangent kernel of i moves with z_i",
        4,
        _FIRST,
        ((0, 2, 1, 3),),
    ),
    "Q": Tensor(
        "dNTK and preactivation $Q$",
        "n_{l-1} times the mean of dH_iik;012 z_k;3 of two neurons: how the tangent kernel of i, k moves with z_k",
        4,
        _FIRST,
    ),
    "R": Tensor(
        "first ddNTK $R$",
        "n_{l-1} times the mean of the first second differential of the NTK, ddH_iikk;0123 of two neurons",
        4,
        _SECOND,
        ((0, 1, 3, 2),),
    ),
    "S": Tensor(
        "second ddNTK $S$",
        "n_{l-1} times the mean of the second one, ddH_iikk;1234 of two neurons, indices 1234",
        4,
        _SECOND,
        ((1, 0, 3, 2),),
    ),
    "T": Tensor(
        "second ddNTK $T$",
        "n_{l-1} times the mean of the second one, ddH_ikik;1234 of two neurons, indices stored as 1342",
        4,
        _SECOND,
        ((3, 2, 1, 0),),
    ),
    "U": Tensor(
        "second ddNTK $U$",
        "n_{l-1} times the mean of the second one, ddH_ikki;1234 of two neurons, indices stored as 1423",
        4,
        _SECOND,
        (_SIDES,),
    ),
    "three_point": Tensor(
        "three-point function",
        "n_{l-1} E[z_i;1 z_j;2 z_j;3] of two neurons: what skip connections remember",
        3,
        _THREE,
    ),
    "six_point": Tensor(
        "six-point vertex",
        "n_{l-1}^2 times the third cumulant of the metric's entry of one input",
        1,
        _SIX,
    ),
}
MEANINGS = {name: tensor.meaning for name, tensor in TENSORS.items()}

FIRST_DIFFERENTIAL = tuple(name for name, tensor in TENSORS.items() if tensor.family == _FIRST)
SECOND_DIFFERENTIALS = tuple(name for name, tensor in TENSORS.items() if tensor.family == _SECOND)
DIFFERENTIALS = (*FIRST_DIFFERENTIAL, *SECOND_DIFFERENTIALS)
"""Those of the dNTK and of the ddNTKs."""
FOUR_INPUTS = tuple(name for name, tensor in TENSORS.items() if tensor.indices == 4)
"""Those with four input indices, which can be had on quadruples and contracted."""
TANGENT = ("Theta", "H1", "D", "F", "A", "B")
"""Those of the tangent kernel itself."""


class Measure(NamedTuple):
    """A dimensionless number that a tensor makes with powers of K and Theta, over n."""

    tensor: str
    power_of_K: int
    power_of_Theta: int

    def of(self, values: Mapping[str, Array], width: int | Array) -> Array:
        """At every layer."""
        scale = values["K"] ** float(self.power_of_K) * values["Theta"] ** float(self.power_of_Theta)
        return np.asarray(values[self.tensor] * scale / width)


NTK_MEASURES = {
    "V/(nK^2)": Measure("V", -2, 0),
    "D/(nKTheta)": Measure("D", -1, -1),
    "F/(nKTheta)": Measure("F", -1, -1),
    "B/(nTheta^2)": Measure("B", 0, -2),
    "A/(nTheta^2)": Measure("A", 0, -2),
}
"""Sizes of tensors of the tangent kernel (9.24)."""
DNTK_MEASURES = {
    "P/(nTheta^2)": Measure("P", 0, -2),
    "Q/(nTheta^2)": Measure("Q", 0, -2),
    **{f"{name}K/(nTheta^3)": Measure(name, 1, -3) for name in SECOND_DIFFERENTIALS},
}
"""Sizes of its differentials (11.62), (∞.21)."""
