"""What the recursion of a tensor of four inputs asks about the inputs on its legs.

A rule for one of F, B, P, Q, R, S, T, U is written once, in terms of :class:`Legs`: expectations, Theta and tensors
of the old layer on its legs 0, 1, 2, 3, the places in which the tensor is stored. Whether the legs run over all
inputs or over chosen quadruples is not its concern.

What becomes of the delta functions of activations whose slope jumps is said in ``kinks``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from foretrain.activations import Activation
from foretrain.gaussian import Factor, expectation, factor, products_at, z
from foretrain.support.errors import NotSupportedError
from foretrain.theory.recursions.kinks import Kinks, slope_jumps
from foretrain.theory.recursions.ntk import MixedResponse, TangentExpectations
from foretrain.theory.recursions.pairs import are_tied
from foretrain.theory.recursions.preactivation import Step

Array = NDArray[np.float64]
Indices = NDArray[np.intp]
Places = tuple[int, int, int, int]
Entry = tuple[str, Places]
"""A tensor, and which of some legs stands at each of its places."""
Orders = tuple[int, int, int, int]
"""Orders of the derivatives of the activation in a product of four."""

KeyT = TypeVar("KeyT")

_ONE_DIMENSION = 1e-13
_SAME_VARIANCE = 1e-12


class BentExpectations(TangentExpectations):
    """Expectations of one layer with second and third derivatives of the activation."""

    def __init__(
        self,
        activation: Activation,
        K: Array,
        Theta: Array,
        tolerance: float = 1e-10,
        kinks: Kinks = "delta",
    ) -> None:
        super().__init__(activation, K, Theta, tolerance)
        self.kinks = kinks
        self._tables: dict[Orders, Array] = {}

    def among(self, inputs: Indices) -> BentExpectations:
        """The same for some of the inputs only."""
        chosen = np.ix_(inputs, inputs)
        return BentExpectations(
            self.activation, self.K[chosen], self.Theta[chosen], self.tolerance, self.kinks
        )

    def derivative(self, order: int) -> Factor:
        """The derivative of the activation as it stands in the forward equation."""
        found = factor(self.activation, order)
        return found.pointwise() if order == 2 and self.kinks == "almost_everywhere" else found

    @cached_property
    def twins(self) -> Indices:
        """For each input the first of its copies where the slope jumps, since delta functions of copies are one's."""
        inputs = np.arange(len(self.K))
        if not slope_jumps(self.activation):
            return inputs
        a, b = np.meshgrid(inputs, inputs, indexing="ij")
        tied, variance = are_tied(self.K, a, b), self.K.diagonal()
        near = np.abs(variance[a] - variance[b]) <= _SAME_VARIANCE * variance[a]
        copies = tied & near & ((self.K > 0) | (a == b))
        at_zero = any(kink.location == 0 for kink in self.activation.kinks)
        if self.kinks == "delta" and at_zero and ((tied & ~copies).any() or (variance == 0).any()):
            raise NotSupportedError(
                "inputs are zero or multiples of each other, where products of the delta functions and steps of "
                f'{self.activation.label} have no definite value: leave them out, or give kinks="almost_everywhere".'
            )
        return np.asarray(copies.argmax(axis=1), dtype=np.intp)

    @cached_property
    def bend(self) -> Array:
        """<s''_a s_b> with s'' of the forward equation: (N, N)."""
        return self.product(self.derivative(2), factor(self.activation))

    @cached_property
    def bend_response(self) -> MixedResponse:
        """<d(s''_a s'_b)/dz> with s'' of the forward equation; ``own`` for z_a.

        Where the slope jumps and a = b, the two parts have no value apart, but <z s'' s'> / K is their sum.
        """
        if not slope_jumps(self.activation):
            return MixedResponse(self.of(3, 1), self.of(2, 2))
        bend, slope = self.derivative(2), factor(self.activation, 1)
        with np.errstate(invalid="ignore"):
            own = sum((self.product(part, slope) for part in bend.derivative()), np.zeros_like(self.K))
            other = self.product(bend, factor(self.activation, 2))
        variance = self.K.diagonal()
        safe = np.where(variance > 0, variance, 1.0)
        weighted = expectation([z * bend * slope], safe[:, None, None], tolerance=_ONE_DIMENSION)
        np.fill_diagonal(own, np.where(variance > 0, np.asarray(weighted.value) / safe, 0.0))
        np.fill_diagonal(other, 0.0)
        return MixedResponse(own, other)

    def places_of(self, legs: Indices, orders: Orders) -> Indices:
        """Where to take a product: at the first copies if it has second derivatives."""
        return self.twins[legs] if 2 in orders else legs

    def table(self, orders: Orders) -> Array:
        """<s_a s_b s_c s_d> with derivatives of these orders, for all inputs: (N, N, N, N)."""
        self.find_tables([orders])
        return self._tables[orders]

    def has_table(self, orders: Orders) -> bool:
        """Whether :meth:`find_tables` was asked for it."""
        return orders in self._tables

    def find_fourfold(self, orders: Iterable[tuple[int, int]]) -> None:
        """Those <s s t t> on pairs of pairs that a table holds are taken from it."""
        wanted, pairs = list(orders), self.response.pairs
        for low, high in {(min(two), max(two)) for two in wanted if two not in self._fourfold}:
            table = self._tables.get((high, high, low, low))
            if table is not None:
                first, second = pairs.first, pairs.second
                on_pairs = table[first[:, None], second[:, None], first, second]
                self._fourfold[high, low], self._fourfold[low, high] = on_pairs, on_pairs.T
        super().find_fourfold(wanted)

    def find_tables(self, wanted: Iterable[Orders]) -> None:
        """All of these :meth:`table` at once, which costs little more than one."""
        missing = [orders for orders in wanted if orders not in self._tables]
        every = np.stack(np.meshgrid(*[np.arange(len(self.K))] * 4, indexing="ij"), axis=-1)
        self._tables |= self.products({orders: (orders, every) for orders in missing})

    def products(self, requests: Mapping[KeyT, tuple[Orders, Indices]]) -> dict[KeyT, Array]:
        """Products of four at index sets (..., 4), sharing their integrals."""
        if not requests:
            return {}
        asked = [
            ([self.derivative(k) for k in orders], self.places_of(legs, orders))
            for orders, legs in requests.values()
        ]
        found = products_at(asked, self.K, tolerance=self.product_tolerance)
        values = {}
        for (key, (orders, legs)), item in zip(requests.items(), found, strict=True):
            values[key] = np.asarray(item.value)
            self._sharpen_alone(values[key], self.places_of(legs, orders), orders)
        return values

    def _sharpen_alone(self, value: Array, legs: Indices, orders: Orders) -> None:
        """Entries of one input alone are one-dimensional integrals: to all digits what one input would give."""
        alone = (legs == legs[..., :1]).all(axis=-1)
        if not alone.any():
            return
        first, second, third, fourth = (self.derivative(k) for k in orders)
        inputs, where = np.unique(legs[alone][:, 0], return_inverse=True)
        variance = self.K.diagonal()[inputs, None, None]
        tolerance = min(self.tolerance, _ONE_DIMENSION)
        exact = expectation([first * second * third * fourth], variance, tolerance=tolerance)
        value[alone] = np.asarray(exact.value)[where]


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

    layer: BentExpectations
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


@dataclass(frozen=True)
class Rule:
    """A tensor's recursion: the entry of the next layer, what it looks up, and its products of four."""

    entry: Callable[[Legs], Array]
    uses: tuple[Entry, ...]
    products: tuple[Orders, ...]
