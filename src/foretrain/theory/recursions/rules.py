"""The rules of all tensors that follow one, entry by entry, in the order in which a step makes them.

F and B join preactivations and tangent kernel of two neurons (8.79), (8.89); P and Q the differential of the tangent
kernel and a preactivation (11.45)-(11.52); R, S, T, U are means of its second differentials (∞.177)-(∞.181), R of the
first kind (∞.11), the others of the second (∞.12). Activations whose slope jumps have no R to U, since <s'' s''> is
infinite.

A rule is written once, in terms of :class:`Legs`: expectations, Theta and tensors of the old layer on its legs 0, 1,
2, 3, the places in which the tensor is stored. Whether the legs run over all inputs or over chosen quadruples is not
its concern.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from foretrain.activations import activation
from foretrain.theory.recursions.expectations import Orders, PairExpectations, Step

Array = NDArray[np.float64]
Indices = NDArray[np.intp]
Places = tuple[int, int, int, int]
Entry = tuple[str, Places]
"""A tensor, and which of some legs stands at each of its places."""


class Lookup(Protocol):
    """Entries of a tensor by name, with one of the legs at each place."""

    def __call__(self, name: str, *places: int) -> Array:
        """The entry of every combination of inputs on the legs."""


@dataclass(frozen=True)
class Legs:
    """The inputs on the four legs of a tensor (broadcast against each other), and what is known of them.

    ``old`` are tensors of the old layer, ``new`` those that this step has already made, ``product`` expectations of
    products of derivatives of the activation, of these orders, on the legs in turn.
    """

    layer: PairExpectations
    step: Step
    inputs: tuple[Indices, Indices, Indices, Indices]
    old: Lookup
    new: Lookup
    product: Callable[[int, int, int, int], Array]

    def Theta(self, a: int, b: int) -> Array:
        """The tangent kernel of two legs."""
        return self._entry(self.layer.Theta, a, b)

    def pair(self, first: tuple[int, int], second: tuple[int, int]) -> Array:
        """<s^(i)_a s^(j)_b> for (a, i) and (b, j)."""
        (a, i), (b, j) = first, second
        return self._entry(self.layer.of(i, j), a, b)

    def slopes(self, a: int, b: int) -> Array:
        """<s'_a s'_b>."""
        return self.pair((a, 1), (b, 1))

    def moved(self, a: int, b: int) -> Array:
        """<s_a s''_b> made by integration by parts."""
        return self._entry(self.layer.mixed_response.other, a, b)

    def bend(self, a: int, b: int) -> Array:
        """<s''_a s_b> with s'' of the forward equation."""
        return self._twin_entry(self.layer.bend, a, b)

    def value_response(self, a: int, b: int) -> dict[int, Array]:
        """<d(s_a s'_b)/dz> by the leg of z."""
        return {a: self.slopes(a, b), b: self.moved(a, b)}

    def bend_response(self, a: int, b: int) -> dict[int, Array]:
        """<d(s''_a s'_b)/dz> by the leg of z, with s'' of the forward equation."""
        found = self.layer.bend_response
        return {a: self._twin_entry(found.own, a, b), b: self._twin_entry(found.other, a, b)}

    def through_F(
        self, left: Mapping[int, Array], right: Mapping[int, Array], second: int, last: int
    ) -> Array:
        """sum over legs i, j of left_i right_j F_{i second j last} of the old layer."""
        parts = [u * v * self.old("F", i, second, j, last) for i, u in left.items() for j, v in right.items()]
        return np.asarray(sum(parts))

    def _entry(self, matrix: Array, a: int, b: int) -> Array:
        return np.asarray(matrix[self.inputs[a], self.inputs[b]])

    def _twin_entry(self, matrix: Array, a: int, b: int) -> Array:
        twins = self.layer.twins
        return np.asarray(matrix[twins[self.inputs[a]], twins[self.inputs[b]]])


def _next_F(at: Legs) -> Array:
    """F'_1324 = C_W^2 [<s_1 s_2 s'_3 s'_4> Theta_34 + r <d(s_1 s'_3)> <d(s_2 s'_4)> F] (8.79).

    Stored in the order 1, 3, 2, 4.
    """
    carried = at.through_F(at.value_response(0, 1), at.value_response(2, 3), 1, 3)
    return at.step.C_W**2 * (at.product(0, 1, 0, 1) * at.Theta(1, 3) + at.step.ratio * carried)


def _next_B(at: Legs) -> Array:
    """B'_1324 = C_W^2 [<s'_1 s'_2 s'_3 s'_4> Theta_12 Theta_34 + r <s'_1 s'_3> <s'_2 s'_4> B] (8.89).

    Stored in the order 1, 3, 2, 4.
    """
    source = at.product(1, 1, 1, 1) * at.Theta(0, 2) * at.Theta(1, 3)
    carried = at.slopes(0, 1) * at.slopes(2, 3) * at.old("B", 0, 1, 2, 3)
    return at.step.C_W**2 * (source + at.step.ratio * carried)


def _next_P(at: Legs) -> Array:
    """P'_0123 = C_W^2 {<s''_0 s'_1 s'_2 s_3> Theta_01 Theta_02
    + r <s'_1 s'_2> [<s''_0 s_3> (P_0120 + B_0012) + <s'_0 s'_3> P_0123]} (11.49).
    """
    source = at.product(2, 1, 1, 0) * at.Theta(0, 1) * at.Theta(0, 2)
    carried = at.bend(0, 3) * at.old("B", 0, 0, 1, 2)
    carried = carried + at.moved(3, 0) * at.old("P", 0, 1, 2, 0)
    carried = carried + at.slopes(0, 3) * at.old("P", 0, 1, 2, 3)
    return at.step.C_W**2 * (source + at.step.ratio * at.slopes(1, 2) * carried)


def _next_Q(at: Legs) -> Array:
    """Q'_0123 = C_W^2 <s''_0 s'_1 s'_2 s_3> Theta_01 Theta_02 + (lambda_W / C_W) F'_1032
    + r C_W^2 {<s'_0 s'_1> [<s''_2 s_3> Q_0122 + <s'_2 s'_3> Q_0123]
    + Theta_01 <d(s''_0 s'_1)> <d(s'_2 s_3)> F_{.0.2}} (11.52), with F' of the new layer.
    """
    source = at.product(2, 1, 1, 0) * at.Theta(0, 1) * at.Theta(0, 2)
    values = at.value_response(3, 2)
    own = values[2] * at.old("Q", 0, 1, 2, 2) + values[3] * at.old("Q", 0, 1, 2, 3)
    bent = at.Theta(0, 1) * at.through_F(at.bend_response(0, 1), values, 0, 2)
    grown = at.step.C_W**2 * (source + at.step.ratio * (at.slopes(0, 1) * own + bent))
    return grown + at.step.lambda_W / at.step.C_W * at.new("F", 1, 0, 3, 2)


def _tilt(at: Legs, a: int, b: int) -> dict[int, Array]:
    """<d(lambda_W s'_a s_b + C_W Theta_ab s''_a s'_b)/dz> by the leg of z: M_ab; four terms in the book."""
    weight, value, bend = at.step.C_W * at.Theta(a, b), at.value_response(b, a), at.bend_response(a, b)
    return {leg: at.step.lambda_W * value[leg] + weight * bend[leg] for leg in (a, b)}


def _next_R(at: Legs) -> Array:
    """R'_0123 = lambda_W C_W <s''_0 s_1 s'_2 s'_3> Theta_02 Theta_03
    + C_W^2 <s'''_0 s'_1 s'_2 s'_3> Theta_01 Theta_02 Theta_03
    + r C_W <s'_2 s'_3> {M_01;0 (B_0023 + P_0230) + M_01;1 P_0231 + C_W <s'_0 s'_1> R_0123} (∞.177).
    """
    C, rate = at.step.C_W, at.step.lambda_W
    source = rate * at.product(2, 0, 1, 1) + C * at.product(3, 1, 1, 1) * at.Theta(0, 1)
    source = C * source * at.Theta(0, 2) * at.Theta(0, 3)
    tilt = _tilt(at, 0, 1)
    carried = tilt[0] * (at.old("B", 0, 0, 2, 3) + at.old("P", 0, 2, 3, 0)) + tilt[1] * at.old(
        "P", 0, 2, 3, 1
    )
    carried = carried + C * at.slopes(0, 1) * at.old("R", 0, 1, 2, 3)
    return np.asarray(source + at.step.ratio * C * at.slopes(2, 3) * carried)


def _next_S(at: Legs) -> Array:
    """S'_1234 = C_W lambda_W <s'_1 s'_2 s'_3 s'_4> Theta_13 Theta_24
    + C_W^2 <s''_1 s''_2 s'_3 s'_4> Theta_12 Theta_13 Theta_24
    + r C_W <s'_3 s'_4> {[lambda_W <s'_1 s'_2> + C_W Theta_12 <s''_1 s''_2>] B_1234 + C_W <s'_1 s'_2> S_1234} (∞.179).
    """
    C, rate, weight = at.step.C_W, at.step.lambda_W, at.step.C_W * at.Theta(0, 1)
    source = rate * at.product(1, 1, 1, 1) + weight * at.product(2, 2, 1, 1)
    source = C * source * at.Theta(0, 2) * at.Theta(1, 3)
    carried = (rate * at.slopes(0, 1) + weight * at.pair((0, 2), (1, 2))) * at.old("B", 0, 1, 2, 3)
    carried = carried + C * at.slopes(0, 1) * at.old("S", 0, 1, 2, 3)
    return np.asarray(source + at.step.ratio * C * at.slopes(2, 3) * carried)


def _next_T(at: Legs) -> Array:
    """T'_1342 = <(lambda_W s'_1 s_3 + C_W Theta_13 s''_1 s'_3)(lambda_W s'_2 s_4 + C_W Theta_24 s''_2 s'_4)> Theta_12
    + r {M_13 M_24 F_{.1.2} + C_W <s'_2 s'_4> M_13 Q_241. + C_W <s'_1 s'_3> M_24 Q_132.
    + C_W^2 <s'_1 s'_3> <s'_2 s'_4> T_1342} (∞.180).

    Stored in the order 1, 3, 4, 2: these are the places 0, 1, 2, 3.
    """
    C, rate = at.step.C_W, at.step.lambda_W
    left, right = C * at.Theta(0, 1), C * at.Theta(3, 2)
    source = rate**2 * at.product(1, 0, 0, 1)
    source = source + rate * (right * at.product(1, 0, 1, 2) + left * at.product(2, 1, 0, 1))
    source = source + left * right * at.product(2, 1, 1, 2)
    first, second = _tilt(at, 0, 1), _tilt(at, 3, 2)
    carried = at.through_F(first, second, 0, 3)
    carried = carried + C * at.slopes(3, 2) * sum(first[leg] * at.old("Q", 3, 2, 0, leg) for leg in (0, 1))
    carried = carried + C * at.slopes(0, 1) * sum(second[leg] * at.old("Q", 0, 1, 3, leg) for leg in (3, 2))
    carried = carried + C**2 * at.slopes(0, 1) * at.slopes(3, 2) * at.old("T", 0, 1, 2, 3)
    return np.asarray(source * at.Theta(0, 3) + at.step.ratio * carried)


def _next_U(at: Legs) -> Array:
    """U'_1423 = C_W^2 [<s''_1 s''_2 s'_3 s'_4> Theta_12 Theta_13 Theta_24
    + r <s'_1 s'_4> <s'_2 s'_3> U_1423] (∞.181).

    Stored in the order 1, 4, 2, 3: these are the places 0, 1, 2, 3.
    """
    source = at.product(2, 1, 2, 1) * at.Theta(0, 2) * at.Theta(0, 3) * at.Theta(2, 1)
    carried = at.slopes(0, 1) * at.slopes(2, 3) * at.old("U", 0, 1, 2, 3)
    return at.step.C_W**2 * (source + at.step.ratio * carried)


RULES: dict[str, Callable[[Legs], Array]] = {
    "F": _next_F,
    "B": _next_B,
    "P": _next_P,
    "Q": _next_Q,
    "R": _next_R,
    "S": _next_S,
    "T": _next_T,
    "U": _next_U,
}


class Needs(NamedTuple):
    """What a rule looks up: entries of the old layer's tensors, and products of four."""

    entries: tuple[Entry, ...]
    products: tuple[Orders, ...]


@cache
def needs(name: str) -> Needs:
    """What the rule of a tensor asks for, found by running it on one input."""
    entries: dict[Entry, None] = {}
    products: dict[Orders, None] = {}
    number = np.ones((1, 1))
    leg = np.zeros(1, dtype=np.intp)

    def old(name: str, *places: int) -> Array:
        i, j, k, m = places
        entries[name, (i, j, k, m)] = None
        return np.ones(1)

    def product(*orders: int) -> Array:
        i, j, k, m = orders
        products[i, j, k, m] = None
        return np.ones(1)

    layer = PairExpectations(activation("linear"), number, Theta=number)
    RULES[name](Legs(layer, Step(1.0), (leg,) * 4, old, lambda *_: np.ones(1), product))
    return Needs(tuple(entries), tuple(products))
