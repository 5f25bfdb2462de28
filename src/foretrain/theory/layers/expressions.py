"""Nonlinear functions of Gaussian fields, channel by channel, and their means (architectures, sections 4 and 5).

A residual block adds a rectified field to a fresh one and rectifies the sum; a gate multiplies two. What
follows needs the law of the result, which its second moment does not tell: so the result is kept as an
expression of the Gaussian fields it is made of, until a linear map, a norm or a pooling reads its moments.
Then, for h = f(g_1, ..., g_r) of independent Gaussian fields, S = <f f'>, Theta = sum_i <d_i f d_i f'> Theta_i.
Fields that occur twice are one: z sigmoid(z) is a function of z, not a product of two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, TypeAlias

import numpy as np

from foretrain.activations import Activation, activation
from foretrain.support.errors import NotSupportedError
from foretrain.theory.layers.fields import Field, Kernel, Tile, on_same_positions
from foretrain.theory.layers.pair_means import pair_means, point_mean
from foretrain.theory.layers.positions import Array, Pairs


@dataclass(frozen=True)
class Leaf:
    """A field as it is."""

    field: Field


@dataclass(frozen=True)
class Sum:
    """A linear combination and a constant."""

    terms: tuple[tuple[float, Expression], ...]
    constant: float = 0.0


@dataclass(frozen=True)
class Product:
    """A product."""

    factors: tuple[Expression, ...]


@dataclass(frozen=True)
class Apply:
    """A nonlinearity."""

    activation: Activation
    inner: Expression


Expression: TypeAlias = Leaf | Sum | Product | Apply


@lru_cache(maxsize=4096)
def leaves(of: Expression) -> tuple[Field, ...]:
    """The fields that an expression is made of, each once."""
    if isinstance(of, Leaf):
        return (of.field,)
    if isinstance(of, Apply):
        return leaves(of.inner)
    parts = of.factors if isinstance(of, Product) else [term for _, term in of.terms]
    return tuple(dict.fromkeys(one for part in parts for one in leaves(part)))


def combination(terms: Sequence[tuple[float, Expression]], constant: float = 0.0) -> Expression:
    """A linear combination, in which sums are opened and equal terms joined."""
    weights: dict[Expression, float] = {}
    for weight, term in terms:
        inner = term.terms if isinstance(term, Sum) else ((1.0, term),)
        constant += weight * term.constant if isinstance(term, Sum) else 0.0
        for factor, part in inner:
            weights[part] = weights.get(part, 0.0) + weight * factor
    left = tuple((weight, part) for part, weight in weights.items() if weight)
    if len(left) == 1 and left[0][0] == 1 and not constant:
        return left[0][1]
    return Sum(left, constant)


def product(factors: Sequence[Expression]) -> Expression:
    """A product, in which products are opened."""
    opened: list[Expression] = []
    for one in factors:
        opened += one.factors if isinstance(one, Product) else [one]
    return opened[0] if len(opened) == 1 else Product(tuple(opened))


def linear_terms(of: Expression) -> tuple[tuple[float, Field], ...] | None:
    """Weights and Gaussian fields if the expression is a combination of those without a constant, else None."""
    terms = of.terms if isinstance(of, Sum) else ((1.0, of),)
    if isinstance(of, Sum) and of.constant:
        return None
    found = []
    for weight, term in terms:
        if not isinstance(term, Leaf) or not term.field.gaussian:
            return None
        found.append((weight, term.field))
    return tuple(found)


def function_of_one(of: Expression, z: Array) -> tuple[Array, Array]:
    """Value and slope of an expression of one field, where that field is z."""
    if isinstance(of, Leaf):
        return z, np.ones_like(z)
    if isinstance(of, Apply):
        inner, slope = function_of_one(of.inner, z)
        outer, rise = of.activation.value(inner), of.activation.derivative(inner, 1)
        return np.asarray(outer, dtype=np.float64), np.asarray(rise * slope, dtype=np.float64)
    if isinstance(of, Sum):
        value, slope = np.full_like(z, of.constant), np.zeros_like(z)
        for weight, term in of.terms:
            part, rise = function_of_one(term, z)
            value, slope = value + weight * part, slope + weight * rise
        return value, slope
    value, slope = np.ones_like(z), np.zeros_like(z)
    for factor in of.factors:
        part, rise = function_of_one(factor, z)
        value, slope = value * part, slope * part + value * rise
    return value, slope


@lru_cache(maxsize=256)
def as_activation(of: Expression) -> Activation:
    """The nonlinearity that an expression of one field is."""
    if isinstance(of, Apply) and isinstance(of.inner, Leaf):
        return of.activation
    return activation(
        lambda z: function_of_one(of, np.asarray(z, dtype=np.float64))[0],
        derivatives=[lambda z: function_of_one(of, np.asarray(z, dtype=np.float64))[1]],
        name="a composed activation",
    )


def groups(parts: Sequence[Expression]) -> list[list[int]]:
    """Numbers of the parts, those together that have fields in common."""
    found: list[tuple[set[Field], list[int]]] = []
    for number, part in enumerate(parts):
        fields, members = set(leaves(part)), [number]
        apart = []
        for others, numbers in found:
            if others & fields:
                fields, members = fields | others, numbers + members
            else:
                apart.append((others, numbers))
        found = [*apart, (fields, members)]
    return [sorted(members) for _, members in found]


@dataclass
class Means:
    """<f f'> over pairs of points; for each field <d_i f d_i f'> and, where it has gains, <g d_i f g' d_i f'>."""

    value: Array
    slopes: dict[Field, Array | float]
    gains: dict[Field, Array] = field(default_factory=dict)

    def scaled(self, factor: Array | float) -> Means:
        """All of them times a factor."""
        slopes = {one: factor * value for one, value in self.slopes.items()}
        return Means(factor * self.value, slopes, {one: factor * value for one, value in self.gains.items()})


@dataclass(frozen=True, eq=False)
class PairLaw:
    """What means over pairs of points are taken of: kernels of fields on a tile, at some pairs of positions."""

    tile: Tile
    pairs: Pairs
    kernels: dict[Field, Kernel]

    def means(self, of: Expression) -> Means:
        """The means of an expression."""
        if isinstance(of, Leaf):
            S = self.kernels[of.field].S
            return Means(S, {of.field: 1.0}, {of.field: S} if of.field.gains else {})
        if isinstance(of, Sum | Product):
            parts = of.factors if isinstance(of, Product) else tuple(term for _, term in of.terms)
            independent = groups(parts)
            if len(independent) > 1 or (isinstance(of, Sum) and len(parts) == 1):
                return (
                    self._of_product(of, independent)
                    if isinstance(of, Product)
                    else self._of_sum(of, independent)
                )
        fields = leaves(of)
        if len(fields) == 1:
            return self._of_one(of, fields[0])
        raise NotSupportedError(
            f"a nonlinear function of {len(fields)} independent fields ({', '.join(one.name for one in fields)}) "
            "has no rule yet: measure it with ft.ensemble."
        )

    def _of_one(self, of: Expression, one: Field) -> Means:
        """A nonlinearity of one Gaussian field."""
        wanted = ("value", "slope", "gain") if one.gains else ("value", "slope")
        found = pair_means(as_activation(of), wanted, self.kernels[one].S, one, self.tile, self.pairs)
        return Means(found[0], {one: found[1]}, {one: found[2]} if one.gains else {})

    def _of_sum(self, of: Sum, independent: list[list[int]]) -> Means:
        """Independent terms: squares of weights, and products of their means."""
        total: Array | float = 0.0
        slopes: dict[Field, Array | float] = {}
        gains: dict[Field, Array] = {}
        # (sum of all means) x (same) - each term's own, which is in its <f f'> already.
        rows, columns = self._mean_at_points(of)
        cross: Array | float = rows * columns
        for members in independent:
            weight, part = _joint(of, members)
            means = self.means(part).scaled(weight**2)
            row, column = self._mean_at_points(part)
            cross = cross - weight**2 * row * column
            total = total + means.value
            slopes |= means.slopes
            gains |= means.gains
        return Means(np.asarray(total + cross), slopes, gains)

    def _of_product(self, of: Product, independent: list[list[int]]) -> Means:
        """Independent factors: second moments multiply, and each field meets those of the other factors."""
        found = [self.means(product([of.factors[k] for k in members])) for members in independent]
        value: Array | float = 1.0
        slopes: dict[Field, Array | float] = {}
        gains: dict[Field, Array] = {}
        for means in found:
            slopes = {one: part * means.value for one, part in slopes.items()}
            gains = {one: part * means.value for one, part in gains.items()}
            slopes |= {one: value * part for one, part in means.slopes.items()}
            gains |= {one: np.asarray(value * part) for one, part in means.gains.items()}
            value = value * means.value
        return Means(np.asarray(value), slopes, gains)

    def _mean_at_points(self, of: Expression) -> tuple[Array | float, Array | float]:
        """<f> at the rows and at the columns."""
        if is_centred(of):
            return 0.0, 0.0
        if self.tile.own:
            mean_of(of, self.tile)
        return self.tile.rows((of, "mean"), self.pairs), self.tile.columns((of, "mean"), self.pairs)


def _joint(of: Sum, members: list[int]) -> tuple[float, Expression]:
    """Terms that depend on each other, as a weight and an expression."""
    if len(members) == 1:
        return of.terms[members[0]]
    return 1.0, Sum(tuple(of.terms[k] for k in members))


@lru_cache(maxsize=4096)
def is_centred(of: Expression) -> bool:
    """Whether the mean vanishes because the expression is odd in a Gaussian field, as far as can be told."""
    if isinstance(of, Leaf):
        return of.field.gaussian
    if isinstance(of, Sum):
        return not of.constant and all(is_centred(term) for _, term in of.terms)
    if isinstance(of, Apply):
        return of.activation.parity == "odd" and linear_terms(of.inner) is not None
    return len(groups(of.factors)) > 1 and any(
        is_centred(product([of.factors[k] for k in members])) for members in groups(of.factors)
    )


def mean_of(of: Expression, tile: Tile) -> Array:
    """<f> at the single points of the rows of a tile of own pairs."""
    return tile.kept((of, "mean"), lambda: _mean(of, tile))


def _mean(of: Expression, tile: Tile) -> Array:
    if isinstance(of, Leaf):
        return tile.mean(of.field)
    if is_centred(of):
        return np.zeros((*leaves(of)[0].positions, tile.size))
    if isinstance(of, Sum):
        return np.asarray(of.constant + sum(weight * mean_of(term, tile) for weight, term in of.terms))
    if isinstance(of, Product) and len(groups(of.factors)) > 1:
        value: Array | float = 1.0
        for members in groups(of.factors):
            value = value * mean_of(product([of.factors[k] for k in members]), tile)
        return np.asarray(value)
    fields = leaves(of)
    if len(fields) == 1:
        return point_mean(as_activation(of), tile.second(fields[0]))
    raise NotSupportedError("the mean of a nonlinear function of several fields has no rule yet.")


@dataclass(frozen=True, eq=False, kw_only=True)
class Elementwise(Field):
    """The moments of an expression: what a linear map, a norm or a pooling reads of it."""

    expression: Expression

    @property
    def reads_points(self) -> bool:
        """Variances and means."""
        return True

    @property
    def keeps_gains(self) -> bool:
        """Gains are averaged together with the nonlinearity."""
        return True

    @cached_property
    def nonlinear(self) -> bool:
        """Whether anything but sums occurs."""
        return linear_terms(self.expression) is None

    def kernel(self, tile: Tile, inputs: list[Kernel], pairs: Pairs, prepared: Any) -> Kernel:
        """S = <f f'>, Theta = sum_i <d_i f d_i f'> Theta_i, and what gains add."""
        law = PairLaw(tile, pairs, dict(zip(self.inputs, inputs, strict=True)))
        means, Theta = law.means(self.expression), None
        for one, slope in means.slopes.items():
            part = law.kernels[one].Theta
            if part is not None:
                Theta = slope * part if Theta is None else Theta + slope * part
            for gain in one.gains:
                more = gain.rate * means.gains[one]
                if gain.own_position:
                    more = more * on_same_positions(pairs, len(tile.shape))
                Theta = more if Theta is None else Theta + more
        return Kernel(means.value, Theta)

    def mean(self, tile: Tile) -> Array:
        """<f> at single points."""
        return mean_of(self.expression, tile)
