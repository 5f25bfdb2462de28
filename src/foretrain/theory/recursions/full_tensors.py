"""Tensors of four inputs with all their entries: V, D and A on pairs of inputs, and F, B, P, Q, R, S, T, U by rules.

No 1/n is inside: the physical value at layer l is value / n_{l-1}. D has the pair of preactivations first; F and B
have their indices in the order 1, 3, 2, 4 of (8.67), (8.82); T in the order 1, 3, 4, 2 and U 1, 4, 2, 3 of (∞.12).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from foretrain.theory.recursions.legs import BentExpectations, Legs
from foretrain.theory.recursions.ntk import TangentExpectations
from foretrain.theory.recursions.pairs import Pairs
from foretrain.theory.recursions.preactivation import Step, next_vertex
from foretrain.theory.recursions.rules import RULES, closure, names_of, products_of

Array = NDArray[np.float64]
Indices = NDArray[np.intp]

_ON_PAIRS = {"V": "V", "D": "VD", "A": "VDA"}
"""Tensors that are matrices on pairs of inputs, and those of them that each one needs."""

PRODUCTS_ON_PAIRS = {"V": {(0, 0)}, "D": {(0, 0), (0, 1)}, "A": {(0, 0), (0, 1), (1, 1)}}
"""Orders of the derivatives in the products <s s t t> that each one needs."""


def carried(names: Iterable[str]) -> set[str]:
    """The tensors that have to be carried along to know those of ``names`` (others are left out)."""
    wanted = {*names}
    on_pairs = {needed for name in wanted & {*_ON_PAIRS} for needed in _ON_PAIRS[name]}
    return on_pairs | {*names_of(closure(wanted))}


class FullTensors:
    """V, D and A as matrices on pairs (P, P), the others as tensors (N, N, N, N): those that ``names`` need."""

    def __init__(self, pairs: Pairs, names: Iterable[str]) -> None:
        self._pairs = pairs
        on_pairs, on_inputs = (len(pairs),) * 2, (pairs.size,) * 4
        needed = carried(names)
        self._on_pairs = {name: np.zeros(on_pairs) for name in _ON_PAIRS if name in needed}
        self._ruled = {name: np.zeros(on_inputs) for name in RULES if name in needed}

    def now(self) -> dict[str, Array]:
        """All with four input indices."""
        tensor = self._pairs.tensor
        return {**{name: tensor(value) for name, value in self._on_pairs.items()}, **self._ruled}

    def step(self, old: BentExpectations, step: Step) -> None:
        """All tensors of the next layer from those of the old one."""
        # All products of four at once: on pairs of pairs if all are <s s t t>, else for all inputs.
        on_pairs: set[tuple[int, int]] = set().union(*(PRODUCTS_ON_PAIRS[name] for name in self._on_pairs))
        ruled = products_of(list(self._ruled))
        of_pairs = {(low, high) for high, second, low, last in ruled if high == second and low == last}
        if len(of_pairs) < len(ruled):
            old.find_tables(sorted(ruled | {(high, high, low, low) for low, high in on_pairs}))
        old.find_fourfold(sorted(on_pairs | of_pairs))
        rules = {"V": self._vertex, "D": self._mixed, "A": self._variance}
        following = {name: rules[name](old, step) for name in self._on_pairs}
        self._ruled = self._next_ruled(old, step)
        self._on_pairs = following

    def _next_ruled(self, old: BentExpectations, step: Step) -> dict[str, Array]:
        inputs = np.arange(self._pairs.size)
        first, second, third, fourth = np.ix_(inputs, inputs, inputs, inputs)
        inputs_of = (first, second, third, fourth)
        made: dict[str, Array] = {}
        legs = Legs(
            old,
            step,
            inputs_of,
            old=lambda name, *places: self._ruled[name][tuple(inputs_of[place] for place in places)],
            new=lambda name, *places: made[name][tuple(inputs_of[place] for place in places)],
            product=lambda *orders: self._product(old, inputs_of, orders),
        )
        for name, tensor in self._ruled.items():
            made[name] = np.array(np.broadcast_to(RULES[name].entry(legs), tensor.shape))
        return made

    def _product(self, old: BentExpectations, legs: tuple[Indices, ...], orders: Sequence[int]) -> Array:
        """The expectation of a product of four from its table, whose orders go from the highest down."""
        order = sorted(range(4), key=lambda place: -orders[place])
        a, b, c, d = (legs[place] for place in order)
        i, j, k, m = (orders[place] for place in order)
        if not old.has_table((i, j, k, m)):
            number = self._pairs.number
            return np.asarray(old.fourfold(i, k)[number[a, b], number[c, d]])
        return np.asarray(old.table((i, j, k, m))[a, b, c, d])

    def _vertex(self, old: TangentExpectations, step: Step) -> Array:
        return next_vertex(old, self._on_pairs["V"], step)

    def _mixed(self, old: TangentExpectations, step: Step) -> Array:
        """D' = C_W Cov(s s, Omega) + r C_W [M V M_Omega^T + C_W (M D) <s' s'>] (8.77), M = dF/dK."""
        M, M_Omega = old.response, old.tangent_response(step)
        grown = (M_Omega @ (M @ self._on_pairs["V"]).T).T + (M @ self._on_pairs["D"]) * self._growth(
            old, step
        )
        return np.asarray(step.C_W * (value_covariance(old, step) + step.ratio * grown))

    def _variance(self, old: TangentExpectations, step: Step) -> Array:
        """A' = Cov(Omega, Omega) + r [M_Omega V M_Omega^T + C_W^2 P A P + C_W (M_Omega D P + transpose)] (8.97).

        P multiplies by <s' s'>.
        """
        M_Omega, growth = old.tangent_response(step), self._growth(old, step)
        mixed = (M_Omega @ self._on_pairs["D"]) * growth
        own = growth[:, None] * self._on_pairs["A"] * growth
        grown = M_Omega.sandwich(self._on_pairs["V"]) + own + mixed + mixed.T
        weight = step.C_W * old.response.pairs.vector(old.Theta)
        slopes = step.lambda_W * old.covariance(1, 0) + old.covariance(1, 1) * weight
        source = step.lambda_W * value_covariance(old, step) + weight[:, None] * slopes  # Cov(Omega, Omega)
        return np.asarray(source + step.ratio * grown)

    def _growth(self, old: TangentExpectations, step: Step) -> Array:
        """C_W <s' s'> on pairs."""
        return step.C_W * self._pairs.vector(old.of(1, 1))


def value_covariance(old: TangentExpectations, step: Step) -> Array:
    """Cov(s_1 s_2, Omega_34) on pairs of pairs."""
    weight = step.C_W * old.response.pairs.vector(old.Theta)
    return np.asarray(step.lambda_W * old.covariance(0, 0) + old.covariance(0, 1) * weight)
