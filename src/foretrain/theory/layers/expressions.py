"""Nonlinear functions of Gaussian fields, channel by channel, and their means (architectures, sections 4 and 5).

A residual block adds a rectified field to a fresh one and rectifies the sum; a gate multiplies two. What
follows needs the law of the result, which its second moment does not tell: so the result is kept as an
expression of the Gaussian fields it is made of, until a linear map, a norm or a pooling reads its moments.
Then, for h = f(g_1, ..., g_r) of independent Gaussian fields, S = <f f'>, Theta = sum_i <d_i f d_i f'> Theta_i.
Fields that occur twice are one: z sigmoid(z) is a function of z, not a product of two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np

from foretrain.activations import Activation, activation
from foretrain.gaussian.rectified_sums import rectified_sum, rectified_sum_mean
from foretrain.theory.layers.fields import Field, Kernel, Tile, on_same_positions
from foretrain.theory.layers.pair_means import exact_own, has_closed_means, pair_means, point_mean
from foretrain.theory.layers.positions import Array, Pairs, shape_of


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


def evaluated(of: Expression, z: Mapping[Field, Array]) -> tuple[Array, dict[Field, Array]]:
    """Value of an expression where its fields are z, and its slope in each of them."""
    if isinstance(of, Leaf):
        return z[of.field], {of.field: np.ones_like(z[of.field])}
    if isinstance(of, Apply):
        inner, slopes = evaluated(of.inner, z)
        rise = np.asarray(of.activation.derivative(inner, 1), dtype=np.float64)
        value = np.asarray(of.activation.value(inner), dtype=np.float64)
        return value, {one: rise * slope for one, slope in slopes.items()}
    total: Array = np.asarray(of.constant) if isinstance(of, Sum) else np.ones(())
    found: dict[Field, Array] = {}
    if isinstance(of, Sum):
        for weight, term in of.terms:
            value, slopes = evaluated(term, z)
            total = total + weight * value
            found |= {one: found.get(one, 0.0) + weight * slope for one, slope in slopes.items()}
        return total, found
    for factor in of.factors:
        value, slopes = evaluated(factor, z)
        found = {one: slope * value for one, slope in found.items()}
        found |= {one: found.get(one, 0.0) + total * slope for one, slope in slopes.items()}
        total = total * value
    return total, found


@lru_cache(maxsize=256)
def as_activation(of: Expression) -> Activation:
    """The nonlinearity that an expression of one field is."""
    if isinstance(of, Apply) and isinstance(of.inner, Leaf):
        return of.activation
    (one,) = leaves(of)
    return activation(
        lambda z: evaluated(of, {one: np.asarray(z, dtype=np.float64)})[0],
        derivatives=[lambda z: evaluated(of, {one: np.asarray(z, dtype=np.float64)})[1][one]],
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

    value: Any
    slopes: dict[Field, Any]
    gains: dict[Field, Any] = field(default_factory=dict)

    def scaled(self, factor: Any) -> Means:
        """All of them times a factor."""
        if isinstance(factor, float) and factor == 1:
            return self
        slopes = {one: factor * value for one, value in self.slopes.items()}
        return Means(factor * self.value, slopes, {one: factor * value for one, value in self.gains.items()})


RectifiedBlock: TypeAlias = tuple[tuple[float, Field], tuple[float, Field]]


@lru_cache(maxsize=1024)
def rectified_block(of: Expression) -> RectifiedBlock | None:
    """Weights and fields (u, v) of relu(relu(u) + v), the end of a residual block; None for anything else."""
    if not (isinstance(of, Apply) and of.activation.slopes == (0.0, 1.0) and isinstance(of.inner, Sum)):
        return None
    if of.inner.constant or len(of.inner.terms) != 2:
        return None
    terms = sorted(of.inner.terms, key=lambda term: isinstance(term[1], Leaf))
    (weight, skip), (other, branch) = terms
    if not (isinstance(skip, Apply) and skip.activation.slopes == (0.0, 1.0) and isinstance(branch, Leaf)):
        return None
    if weight < 0 or not isinstance(skip.inner, Leaf) or skip.inner.field is branch.field:
        return None
    return (weight, skip.inner.field), (other, branch.field)


@dataclass(frozen=True, eq=False)
class PairLaw:
    """What means over pairs of points are taken of: covariances of fields on a tile, as ``Tile.split`` has them."""

    field: Field
    tile: Tile
    pairs: Pairs
    covariances: dict[Field, Any]

    def means(self, of: Expression) -> Means:
        """The means of an expression."""
        if isinstance(of, Leaf):
            S = self.covariances[of.field]
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
        block = rectified_block(of)
        assert block is not None, "an expression without a formula is drawn (laws.with_formulas)"
        return self._of_block(block)

    def _of_block(self, block: RectifiedBlock) -> Means:
        """relu(relu(u) + v) of two independent fields: exact."""
        sides = [part for weight, one in block for part in self._variances(weight, one)]
        found = rectified_sum(*sides, gains=any(one.gains for _, one in block))
        (weight, u), (other, v) = block
        gains = {u: found.gain_u, v: found.gain_v}
        return Means(
            found.second_moment,
            {u: weight**2 * found.weight_u, v: other**2 * found.weight_v},
            {one: part for one, part in gains.items() if part is not None and one.gains},
        )

    def _variances(self, weight: float, one: Field) -> tuple[Array, Array, Array]:
        """Variances of the rows and columns, and covariances, of a field times a weight."""
        rows, columns = self._sides(one)
        return weight**2 * rows, weight**2 * columns, weight**2 * self.covariances[one]

    def _sides(self, one: Field) -> tuple[Any, Any]:
        return self.tile.rows((one, "second"), self.pairs), self.tile.columns((one, "second"), self.pairs)

    def _of_one(self, of: Expression, one: Field) -> Means:
        """A nonlinearity of one Gaussian field."""
        wanted = ("value", "slope", "gain") if one.gains else ("value", "slope")
        found = pair_means(as_activation(of), wanted, self.covariances[one], one, self.tile, self.pairs)
        return Means(found[0], {one: found[1]}, {one: found[2]} if one.gains else {})

    def _of_sum(self, of: Sum, independent: list[list[int]]) -> Means:
        """Independent terms: squares of weights, and products of their means."""
        total: Any = 0.0
        slopes: dict[Field, Any] = {}
        gains: dict[Field, Any] = {}
        # (sum of all means) x (same) - each term's own, which is in its <f f'> already.
        rows, columns = self._mean_at_points(of)
        cross = rows * columns
        for members in independent:
            weight, part = _joint(of, members)
            means = self.means(part).scaled(weight**2)
            row, column = self._mean_at_points(part)
            cross = cross - weight**2 * row * column
            total = total + means.value
            slopes |= means.slopes
            gains |= means.gains
        return Means(total if isinstance(cross, float) else total + cross, slopes, gains)

    def _of_product(self, of: Product, independent: list[list[int]]) -> Means:
        """Independent factors: second moments multiply, and each field meets those of the other factors."""
        found = [self.means(product([of.factors[k] for k in members])) for members in independent]
        value: Any = 1.0
        slopes: dict[Field, Any] = {}
        gains: dict[Field, Any] = {}
        for means in found:
            slopes = {one: part * means.value for one, part in slopes.items()}
            gains = {one: part * means.value for one, part in gains.items()}
            slopes |= {one: value * part for one, part in means.slopes.items()}
            gains |= {one: value * part for one, part in means.gains.items()}
            value = value * means.value
        return Means(value, slopes, gains)

    def _mean_at_points(self, of: Expression) -> tuple[Any, Any]:
        """<f> at the rows and at the columns."""
        if is_centred(of):
            return 0.0, 0.0
        if self.tile.leaves_points:
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


def mean_of(of: Expression, tile: Tile) -> Any:
    """<f> at the single points of the rows of a tile of own pairs."""
    return tile.kept((of, "mean"), lambda: _mean(of, tile))


def _mean(of: Expression, tile: Tile) -> Any:
    if isinstance(of, Leaf):
        return tile.mean(of.field)
    if is_centred(of):
        return tile.zeros(*leaves(of)[0].positions, tile.size)
    if isinstance(of, Sum):
        return of.constant + sum(weight * mean_of(term, tile) for weight, term in of.terms)
    if isinstance(of, Product) and len(groups(of.factors)) > 1:
        value: Any = 1.0
        for members in groups(of.factors):
            value = value * mean_of(product([of.factors[k] for k in members]), tile)
        return value
    fields = leaves(of)
    if len(fields) == 1:
        return point_mean(as_activation(of), tile.second(fields[0]))
    block = rectified_block(of)
    assert block is not None, "an expression without a formula is drawn (laws.with_formulas)"
    return rectified_sum_mean(*(weight**2 * tile.second(one) for weight, one in block))


@lru_cache(maxsize=4096)
def is_closed(of: Expression) -> bool:
    """Whether all means of an expression are closed forms that are written for any library of arrays."""
    if isinstance(of, Leaf):
        return True
    if isinstance(of, Apply):
        return isinstance(of.inner, Leaf) and has_closed_means(of.activation, bool(of.inner.field.gains))
    parts = of.factors if isinstance(of, Product) else [term for _, term in of.terms]
    return all(len(members) == 1 for members in groups(parts)) and all(map(is_closed, parts))


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

    @property
    def for_any_library(self) -> bool:
        """Whether it is made of closed forms alone."""
        return is_closed(self.expression)

    def kernel(self, tile: Tile, inputs: list[Kernel], pairs: Pairs, prepared: Any) -> Kernel:
        """S = <f f'>, Theta = sum_i <d_i f d_i f'> Theta_i, and what gains add."""
        shape, Theta = (*shape_of(pairs), *tile.shape), None
        kernels = dict(zip(self.inputs, inputs, strict=True))
        covariances = {}
        for one, kernel in kernels.items():
            S = (
                exact_own(kernel.S, tile, one, pairs)
                if one.gaussian and tile.shared is not None
                else kernel.S
            )
            covariances[one] = tile.split(S, pairs)
        means = PairLaw(self, tile, pairs, covariances).means(self.expression)
        for one, slope in means.slopes.items():
            if (given := kernels[one].Theta) is not None:
                # Slopes are arrays of nobody else, so that their products may take their place.
                part = slope if isinstance(slope, float) else slope.reshape(shape)
                part *= given
                Theta = part if Theta is None else Theta + part
            for gain in one.gains:
                more = gain.rate * means.gains[one].reshape(shape)
                if gain.own_position:
                    more = more * on_same_positions(pairs, more)
                Theta = more if Theta is None else Theta + more
        return Kernel(means.value.reshape(shape), Theta)

    def mean(self, tile: Tile) -> Any:
        """<f> at single points."""
        return mean_of(self.expression, tile)
