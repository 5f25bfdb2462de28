"""Tensors of four inputs, with all entries or on chosen quadruples: V, D and A jointly, F, B and P to U by rules.

No 1/n is inside: the physical value at layer l is value / n_{l-1}. D has the pair of preactivations first; F and B
have their indices in the order 1, 3, 2, 4 of (8.67), (8.82); T in the order 1, 3, 4, 2 and U 1, 4, 2, 3 of (∞.12).

A quadruple (a, b, c, d) is an entry in the order in which each tensor is stored, at a cost that does not depend on N:
marginalisation over the other inputs is exact. For V the closed set is the block between {aa, ab, bb} and {cc, cd,
dd}; with D or A, the tangent kernels of ab and of cd join it. Of the other tensors a recursion looks up entries on
the same four inputs at other places: a closed set of a few numbers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from foretrain.theory.recursions.expectations import Orders, PairExpectations, Step
from foretrain.theory.recursions.pairs import JointCovariance, Pairs, quadruples_between
from foretrain.theory.recursions.rules import RULES, Entry, Legs, Lookup, Places, needs

Array = NDArray[np.float64]
Indices = NDArray[np.intp]

PRODUCTS_ON_PAIRS = {"V": {(0, 0)}, "D": {(0, 0), (0, 1)}, "A": {(0, 0), (0, 1), (1, 1)}}
"""Tensors that are matrices on pairs of inputs, and the orders of derivatives in the <s s t t> that each needs."""
_WHOLE = (0, 1, 2, 3)


def carried(names: Iterable[str]) -> set[str]:
    """The tensors that have to be carried along to know those of ``names`` (others are left out)."""
    wanted = {*names}
    last = max((place for place, name in enumerate("VDA") if name in wanted), default=-1)
    return {*"VDA"[: last + 1]} | {name for name, _ in closure(wanted)}


def closure(names: Iterable[str]) -> tuple[Entry, ...]:
    """All entries on the same legs that the tensors of ``names`` need at their own places, in order."""
    found: set[Entry] = set()
    fresh: set[Entry] = {(name, _WHOLE) for name in names if name in RULES}
    while fresh:
        found |= fresh
        fresh = {
            (used, (places[i], places[j], places[k], places[m]))
            for name, places in fresh
            for used, (i, j, k, m) in needs(name).entries
        } - found
    return tuple(sorted(found, key=lambda entry: (list(RULES).index(entry[0]), entry[1] != _WHOLE, entry[1])))


class FullTensors:
    """V, D and A as matrices on pairs (P, P), the others as tensors (N, N, N, N): those that ``names`` need."""

    def __init__(self, pairs: Pairs, names: Iterable[str]) -> None:
        self._pairs, needed = pairs, carried(names)
        self._on_pairs = {*PRODUCTS_ON_PAIRS} & needed
        self._joint = JointCovariance(pairs, pairs, self._on_pairs, slice(None))
        self._ruled = {name: np.zeros((pairs.size,) * 4) for name in RULES if name in needed}
        self._fluctuates = False
        self._needed = needed

    def now(self) -> dict[str, Array]:
        """All with four input indices."""
        joint = self._joint.now() if self._on_pairs else {}
        return {**{name: self._pairs.tensor(value) for name, value in joint.items()}, **self._ruled}

    def step(self, old: PairExpectations, step: Step) -> None:
        """All tensors of the next layer from those of the old one."""
        # All products at once; of four on pairs of pairs if all are <s s t t>, else for all inputs.
        on_pairs: set[tuple[int, int]] = set().union(*(PRODUCTS_ON_PAIRS[name] for name in self._on_pairs))
        ruled = {_descending(orders) for name in self._ruled for orders in needs(name).products}
        of_pairs = {(low, high) for high, second, low, last in ruled if high == second and low == last}
        tables = sorted(ruled) if len(of_pairs) < len(ruled) else ()
        pairs = _of_two(self._needed, self._fluctuates)
        old.find_together(fourfold=sorted(on_pairs | of_pairs), tables=tables, pairs=pairs)
        self._fluctuates = True
        if self._ruled:
            self._ruled = self._next_ruled(old, step)
        if self._on_pairs:
            self._joint.step(old, step, old.covariance)

    def _next_ruled(self, old: PairExpectations, step: Step) -> dict[str, Array]:
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
            made[name] = np.array(np.broadcast_to(RULES[name](legs), tensor.shape))
        return made

    def _product(self, old: PairExpectations, legs: tuple[Indices, ...], orders: Sequence[int]) -> Array:
        """The expectation of a product of four from its table, whose orders go from the highest down."""
        order = sorted(range(4), key=lambda place: -orders[place])
        a, b, c, d = (legs[place] for place in order)
        i, j, k, m = _descending(orders)
        if not old.has_table((i, j, k, m)):
            number = self._pairs.number
            return np.asarray(old.fourfold(i, k)[number[a, b], number[c, d]])
        return np.asarray(old.table((i, j, k, m))[a, b, c, d])


def _of_two(names: Collection[str], fluctuates: bool) -> list[tuple[int, int]]:
    """Orders of the derivatives at two inputs in the kernels, and in the responses once something fluctuates."""
    kernels = [(0, 0), *([(1, 1)] if fluctuates or {*names} - {"V"} else [])]
    bends = [(3, 1), (2, 2)] if {*names} - {"V", "F", "B", "P", "U"} else []
    return [*kernels, *([(2, 0), *bends] if fluctuates else [])]


def _descending(orders: Sequence[int]) -> Orders:
    first, second, third, fourth = sorted(orders, reverse=True)
    return first, second, third, fourth


class QuadrupleTensors:
    """Every tensor of ``names`` at the entries (Q,) that quadruples name, with those that they need."""

    def __init__(self, quadruples: Indices, names: Iterable[str]) -> None:
        self._used, places = np.unique(quadruples, return_inverse=True)
        self._own = places.reshape(quadruples.shape)
        self._on_pairs = {*PRODUCTS_ON_PAIRS} & carried(names)
        left, right = (Pairs.inside(len(self._used), *two.T) for two in (self._own[:, :2], self._own[:, 2:]))
        self._joint = JointCovariance(left, right, self._on_pairs, slice(1, 2))
        self._ruled = {entry: np.zeros(len(quadruples)) for entry in closure(names)}
        # Where quadruples hold most pairs of their inputs, expectations of two share the integrals of those of four.
        inputs = len(self._used)
        most = 0 < inputs * (inputs + 1) <= 20 * len(quadruples)
        self._of_two = carried(names) if most else None
        self._fluctuates = False

    def now(self) -> dict[str, Array]:
        """The entry of every quadruple."""
        # Of aa, ab, bb the entry is the second; a tangent kernel has but one.
        joint = self._joint.now() if self._on_pairs else {}
        place = {"V": (1, 1), "D": (1, 0), "A": (0, 0)}
        own = {name: value for (name, places), value in self._ruled.items() if places == _WHOLE}
        return {**{name: block[:, *place[name]] for name, block in joint.items()}, **own}

    def step(self, old: PairExpectations, step: Step) -> None:
        """All entries of the next layer; expectations of products share their integrals."""
        layer = old.among(self._used)
        left, right = self._joint.pairs
        quadruples, chosen = quadruples_between(left, right), {0: slice(None), 1: slice(1, 2)}
        wanted: set[tuple[int, int]] = set().union(*(PRODUCTS_ON_PAIRS[name] for name in self._on_pairs))
        if "A" in self._on_pairs:
            wanted.add((1, 0))
        between = {(i, j): ((i, i, j, j), quadruples[:, chosen[i], chosen[j]]) for i, j in sorted(wanted)}
        at_entries = {
            (entry, orders): (orders, self._legs(entry[1]))
            for entry in self._ruled
            for orders in needs(entry[0]).products
        }
        found = layer.products(
            {**{("V", k): v for k, v in between.items()}, **at_entries},
            () if self._of_two is None else _of_two(self._of_two, self._fluctuates),
        )
        self._fluctuates = True
        if self._on_pairs:
            self._step_jointly(layer, step, {k: found["V", k] for k in between})
        if self._ruled:
            self._ruled = self._next_ruled(layer, step, {k: found[k] for k in at_entries})

    def _step_jointly(
        self, layer: PairExpectations, step: Step, products: Mapping[tuple[int, int], Array]
    ) -> None:
        left, right = self._joint.pairs
        chosen = {0: slice(None), 1: slice(1, 2)}

        def covariance(i: int, j: int) -> Array:
            first, second = (
                pairs.vector(layer.of(k, k))[:, chosen[k]] for pairs, k in ((left, i), (right, j))
            )
            return products[i, j] - first[:, :, None] * second[:, None, :]

        self._joint.step(layer, step, covariance)

    def _next_ruled(
        self, layer: PairExpectations, step: Step, products: Mapping[tuple[Entry, Orders], Array]
    ) -> dict[Entry, Array]:
        made: dict[Entry, Array] = {}
        for entry in self._ruled:
            made[entry] = self._next_entry(entry, layer, step, made, products)
            # Where inputs repeat, entries at other places are the same number: kept apart, their rounding would grow.
            name, places = entry
            for (other, there), value in made.items():
                if other == name and there != places:
                    same = (self._legs(places) == self._legs(there)).all(axis=1)
                    made[entry][same] = value[same]
        return made

    def _legs(self, places: Places) -> Indices:
        return self._own[:, list(places)]

    def _next_entry(
        self,
        entry: Entry,
        layer: PairExpectations,
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
            old=_at(self._ruled, places),
            new=_at(made, places),
            product=lambda i, j, k, m: products[entry, (i, j, k, m)],
        )
        return RULES[name](legs)


def _at(values: Mapping[Entry, Array], legs: Places) -> Lookup:
    """Entries by their places on some of the legs."""

    def look_up(name: str, *places: int) -> Array:
        i, j, k, m = (legs[place] for place in places)
        return values[name, (i, j, k, m)]

    return look_up
