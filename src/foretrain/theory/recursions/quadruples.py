"""Tensors of four inputs on chosen quadruples of inputs only, at a cost that does not depend on N.

A quadruple (a, b, c, d) is an entry in the order in which each tensor is stored. For V the closed set is the block
between {aa, ab, bb} and {cc, cd, dd}: marginalisation over the other inputs is exact. With D or A, the tangent kernel
of ab and that of cd join them: one matrix 4 x 4 holds 9 entries of V, 3 + 3 of D and one of A. Of the other tensors a
recursion looks up entries on the same four inputs at other places: a closed set of a few numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from foretrain.gaussian import Factor, factor, products_at
from foretrain.theory.recursions.legs import BentExpectations, Entry, Legs, Lookup, Orders, Places
from foretrain.theory.recursions.ntk import TangentExpectations
from foretrain.theory.recursions.pair_blocks import response_blocks
from foretrain.theory.recursions.preactivation import Step
from foretrain.theory.recursions.rules import RULES, WHOLE, closure


class RuledQuadruples:
    """The entries (Q,) of the tensors of ``names``, with those on the same inputs that they need."""

    def __init__(self, quadruples: Indices, names: Iterable[str]) -> None:
        self._used, places = np.unique(quadruples, return_inverse=True)
        self._own = places.reshape(quadruples.shape)
        self._values = {entry: np.zeros(len(quadruples)) for entry in closure(names)}

    def now(self) -> dict[str, Array]:
        """The entry of every quadruple."""
        return {name: value for (name, places), value in self._values.items() if places == WHOLE}

    def step(self, old: BentExpectations, step: Step) -> None:
        """All entries of the next layer."""
        layer = old.among(self._used)
        products = layer.products(
            {
                (entry, orders): (orders, self._legs(entry[1]))
                for entry in self._values
                for orders in RULES[entry[0]].products
            }
        )
        made: dict[Entry, Array] = {}
        for entry in self._values:
            made[entry] = self._next(entry, layer, step, made, products)
            self._tie(entry, made)
        self._values = made

    def _legs(self, places: Places) -> Indices:
        return self._own[:, list(places)]

    def _next(
        self,
        entry: Entry,
        layer: BentExpectations,
        step: Step,
        made: Mapping[Entry, Array],
        products: Mapping[tuple[Entry, Orders], Array],
    ) -> Array:
        name, places = entry
        first, second, third, fourth = self._legs(places).T
        legs = Legs(
            layer,
            step,
            (first, second, third, fourth),
            old=_at(self._values, places),
            new=_at(made, places),
            product=lambda i, j, k, m: products[entry, (i, j, k, m)],
        )
        return RULES[name].entry(legs)

    def _tie(self, entry: Entry, made: dict[Entry, Array]) -> None:
        """Where inputs repeat, entries at other places are the same number: kept apart, their rounding would grow."""
        name, places = entry
        for (other, there), value in made.items():
            if other == name and there != places:
                same = (self._legs(places) == self._legs(there)).all(axis=1)
                made[entry][same] = value[same]


def _at(values: Mapping[Entry, Array], legs: Places) -> Lookup:
    """Entries by their places on some of the legs."""

    def look_up(name: str, *places: int) -> Array:
        i, j, k, m = (legs[place] for place in places)
        return values[name, (i, j, k, m)]

    return look_up


Array = NDArray[np.float64]
Indices = NDArray[np.intp]
Request = tuple[list[Factor], Indices]

_PLACES = {"V": (1, 1), "D": (1, 3), "A": (3, 3)}
"""Where each tensor's own entry stands in a block."""


class QuadrupleTensors:
    """Every tensor of ``names`` at the entries that quadruples name."""

    def __init__(self, quadruples: Indices, names: Iterable[str]) -> None:
        joint, ruled = {*_PLACES} & {*names}, {*RULES} & {*names}
        self._joint = JointQuadruples(quadruples, joint) if joint else None
        self._ruled = RuledQuadruples(quadruples, ruled) if ruled else None

    def now(self) -> dict[str, Array]:
        """The entry of every quadruple."""
        return {
            name: value for part in (self._joint, self._ruled) if part for name, value in part.now().items()
        }

    def step(self, old: BentExpectations, step: Step) -> None:
        """All entries of the next layer."""
        if self._joint is not None:
            self._joint.step(old, step)
        if self._ruled is not None:
            self._ruled.step(old, step)


class JointQuadruples:
    """Joint blocks of V (Q, 3, 3) or of V, D and A (Q, 4, 4): those that ``names`` need."""

    def __init__(self, quadruples: Indices, names: Iterable[str]) -> None:
        self._used, places = np.unique(quadruples, return_inverse=True)
        self._own = places.reshape(quadruples.shape)
        self._rows = 4 if {*names} & {"D", "A"} else 3
        self._joint = np.zeros((len(quadruples), self._rows, self._rows))

    def now(self) -> dict[str, Array]:
        """The entry of every quadruple."""
        known = [name for name, place in _PLACES.items() if max(place) < self._rows]
        return {name: self._joint[:, *_PLACES[name]] for name in known}

    def step(self, old: TangentExpectations, step: Step) -> None:
        """All blocks of the next layer."""
        layer = old.among(self._used)
        self._joint = self._next_joint(layer, step, self._joint, self._products(layer))

    def _products(self, layer: TangentExpectations) -> dict[str, Array]:
        """All expectations of products of four that this step needs, which share their integrals."""
        s, slope = factor(layer.activation), factor(layer.activation, 1)
        ab, cd = self._own[:, :2], self._own[:, 2:]
        requests: dict[str, Request] = {
            "values": ([s] * 4, _joined(_pairs_of(ab)[:, :, None], _pairs_of(cd)[:, None]))
        }
        if self._rows == 4:
            requests["right slopes"] = [s, s, slope, slope], _joined(_pairs_of(ab), cd[:, None])
            requests["left slopes"] = [slope, slope, s, s], _joined(ab[:, None], _pairs_of(cd))
            requests["slopes"] = [slope] * 4, self._own
        found = products_at(list(requests.values()), layer.K, tolerance=layer.product_tolerance)
        return {name: np.asarray(item.value) for name, item in zip(requests, found, strict=True)}

    def _next_joint(
        self, layer: TangentExpectations, step: Step, joint: Array, products: dict[str, Array]
    ) -> Array:
        """J' = W Cov W^T + r R J R^T, W making (C_W s s, Omega) of (s s, s' s') and R its response."""
        left, right = (_Side(layer, step, two, self._rows) for two in (self._own[:, :2], self._own[:, 2:]))
        moments = np.empty_like(joint)
        moments[:, :3, :3] = products["values"]
        if self._rows == 4:
            moments[:, :3, 3], moments[:, 3, :3] = products["right slopes"], products["left slopes"]
            moments[:, 3, 3] = products["slopes"]
        covariance = moments - left.means[:, :, None] * right.means[:, None, :]
        source = left.weights @ covariance @ right.weights.transpose(0, 2, 1)
        return np.asarray(source + step.ratio * left.response @ joint @ right.response.transpose(0, 2, 1))


class _Side:
    """One index pair (a, b) of every quadruple: means (Q, rows) of s s of {aa, ab, bb} and, in a fourth row, s' s'.

    ``weights`` W and ``response`` R (Q, rows, rows) belong to C_W s s and, in the fourth row, Omega_ab.
    """

    def __init__(self, layer: TangentExpectations, step: Step, two: Indices, rows: int) -> None:
        a, b = two.T
        pairs, values = _pairs_of(two), layer.of(0, 0)
        self.means, shape = np.empty((len(a), rows)), (len(a), rows, rows)
        self.means[:, :3] = values[pairs[..., 0], pairs[..., 1]]
        self.weights, self.response = np.zeros(shape), np.zeros(shape)
        self.weights[:, [0, 1, 2], [0, 1, 2]] = step.C_W
        self.response[:, :3, :3] = step.C_W * response_blocks(layer, a, b)
        slopes = layer.of(1, 1)[a, b]
        if rows == 4:
            self.means[:, 3] = slopes
            self.weights[:, 3, 1], self.weights[:, 3, 3] = step.lambda_W, step.C_W * layer.Theta[a, b]
            self.response[:, 3, :3] = np.stack(layer.tangent_rows(a, b, step), axis=1)
        # aa, ab and bb of one input are one entry: all follow the first, lest their rounding grow apart.
        alone = a == b
        self.response[alone, :, 0] = self.response[alone].sum(axis=2)
        self.response[alone, :, 1:] = 0.0
        if rows == 4:
            self.response[:, 3, 3] = step.C_W * slopes


def _pairs_of(two: Indices) -> Indices:
    """(Q, 3, 2): the pairs aa, ab, bb."""
    a, b = two[:, 0], two[:, 1]
    return np.stack([np.stack([a, a], 1), np.stack([a, b], 1), np.stack([b, b], 1)], axis=1)


def _joined(first: Indices, second: Indices) -> Indices:
    """Quadruples of inputs from two pairs, broadcast against each other."""
    shape = (*np.broadcast_shapes(first.shape[:-1], second.shape[:-1]), 2)
    return np.concatenate([np.broadcast_to(first, shape), np.broadcast_to(second, shape)], axis=-1)
