"""Joint statistics of preactivations and tangent kernel with all their entries: V, D, A on pairs of inputs, F, B.

No 1/n is inside: the physical value at layer l is value / n_{l-1}. D has the pair of preactivations first; F and B
have their indices in the order 1, 3, 2, 4 of (8.67), (8.82).
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from foretrain.theory.pairs import Pairs
from foretrain.theory.recursions.ntk import TangentExpectations
from foretrain.theory.recursions.preactivation import Response, Step, next_vertex

Array = NDArray[np.float64]

FEEDS = {"V": "VDA", "D": "DA", "A": "A", "F": "F", "B": "B"}
"""Which tensors each one enters in the next layer."""

_PRODUCTS = {
    "V": {(0, 0)},
    "D": {(0, 0), (0, 1)},
    "A": {(0, 0), (0, 1), (1, 1)},
    "F": {(0, 1)},
    "B": {(1, 1)},
}
"""Orders of the derivatives in the products <s s t t> that each one needs."""


def carried(names: Iterable[str]) -> set[str]:
    """The tensors that have to be carried along to know those of ``names`` (others are left out)."""
    wanted = {*names}
    return {name for name, fed in FEEDS.items() if wanted & {*fed}}


class FullTensors:
    """V, D and A as matrices on pairs (P, P), F and B as tensors (N, N, N, N): those that ``names`` need."""

    def __init__(self, pairs: Pairs, names: Iterable[str]) -> None:
        self._pairs = pairs
        on_pairs, on_inputs = (len(pairs),) * 2, (pairs.size,) * 4
        self._values = {
            name: np.zeros(on_inputs if name in "FB" else on_pairs) for name in sorted(carried(names))
        }

    def now(self) -> dict[str, Array]:
        """All with four input indices."""
        tensor = self._pairs.tensor
        return {name: value if name in "FB" else tensor(value) for name, value in self._values.items()}

    def step(self, old: TangentExpectations, step: Step) -> None:
        """All tensors of the next layer from those of the old one."""
        rules = {
            "V": self._vertex,
            "D": self._mixed,
            "A": self._variance,
            "F": self._cross,
            "B": self._cross_variance,
        }
        old.find_fourfold(sorted(set().union(*(_PRODUCTS[name] for name in self._values))))
        self._values = {name: rules[name](old, step) for name in self._values}

    def _vertex(self, old: TangentExpectations, step: Step) -> Array:
        return next_vertex(old, self._values["V"], step)

    def _mixed(self, old: TangentExpectations, step: Step) -> Array:
        """D' = C_W Cov(s s, Omega) + r C_W [M V M_Omega^T + C_W (M D) <s' s'>] (8.77), M = dF/dK."""
        M, M_Omega = old.response, old.tangent_response(step)
        grown = _between(M, self._values["V"], M_Omega) + (M @ self._values["D"]) * self._growth(old, step)
        return np.asarray(step.C_W * (value_covariance(old, step) + step.ratio * grown))

    def _variance(self, old: TangentExpectations, step: Step) -> Array:
        """A' = Cov(Omega, Omega) + r [M_Omega V M_Omega^T + C_W^2 P A P + C_W (M_Omega D P + transpose)] (8.97).

        P multiplies by <s' s'>.
        """
        M_Omega, growth = old.tangent_response(step), self._growth(old, step)
        mixed = (M_Omega @ self._values["D"]) * growth
        own = growth[:, None] * self._values["A"] * growth
        grown = M_Omega.sandwich(self._values["V"]) + own + mixed + mixed.T
        return np.asarray(tangent_covariance(old, step) + step.ratio * grown)

    def _cross(self, old: TangentExpectations, step: Step) -> Array:
        """F'_1324 = C_W^2 [<s_1 s_2 s'_3 s'_4> Theta_34 + r <d(s_1 s'_3)> <d(s_2 s'_4)> F] (8.79)."""
        source = self._spread(old.fourfold(0, 1)) * old.Theta[None, :, None, :]
        return np.asarray(
            step.C_W**2 * (source + step.ratio * old.mixed_response.sandwich(self._values["F"]))
        )

    def _cross_variance(self, old: TangentExpectations, step: Step) -> Array:
        """B'_1324 = C_W^2 [<s'_1 s'_2 s'_3 s'_4> Theta_12 Theta_34 + r <s'_1 s'_3> <s'_2 s'_4> B] (8.89)."""
        source = self._spread(old.fourfold(1, 1)) * old.Theta[:, None, :, None] * old.Theta[None, :, None, :]
        growth = old.of(1, 1)
        own = growth[:, :, None, None] * growth * self._values["B"]
        return np.asarray(step.C_W**2 * (source + step.ratio * own))

    def _growth(self, old: TangentExpectations, step: Step) -> Array:
        """C_W <s' s'> on pairs."""
        return step.C_W * self._pairs.vector(old.of(1, 1))

    def _spread(self, on_pairs: Array) -> Array:
        """Entries (12), (34) of a matrix on pairs, at the places 1, 3, 2, 4 of a tensor."""
        return self._pairs.tensor(on_pairs).transpose(0, 2, 1, 3)


def _between(left: Response, V: Array, right: Response) -> Array:
    """M V N^T for two responses."""
    return np.asarray((right @ (left @ V).T).T)


def value_covariance(old: TangentExpectations, step: Step) -> Array:
    """Cov(s_1 s_2, Omega_34) on pairs of pairs."""
    weight = step.C_W * old.response.pairs.vector(old.Theta)
    return np.asarray(step.lambda_W * old.covariance(0, 0) + old.covariance(0, 1) * weight)


def tangent_covariance(old: TangentExpectations, step: Step) -> Array:
    """Cov(Omega_12, Omega_34) on pairs of pairs."""
    weight = step.C_W * old.response.pairs.vector(old.Theta)
    slopes = step.lambda_W * old.covariance(1, 0) + old.covariance(1, 1) * weight
    return np.asarray(step.lambda_W * value_covariance(old, step) + weight[:, None] * slopes)
