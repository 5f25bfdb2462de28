"""F, B, P, Q, R, S, T and U on chosen quadruples of inputs only, at a cost that does not depend on N.

A quadruple is an entry in the order in which each tensor is stored. What its recursion looks up are entries on the
same four inputs, at other places: a closed set of a few numbers for each quadruple.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from foretrain.theory.recursions.legs import BentExpectations, Entry, Legs, Lookup, Orders, Places
from foretrain.theory.recursions.preactivation import Step
from foretrain.theory.recursions.rules import RULES, WHOLE, closure

Array = NDArray[np.float64]
Indices = NDArray[np.intp]


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
