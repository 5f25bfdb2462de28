"""Expressions of fields: which have a formula, which are one Gaussian field again, and which must be drawn."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from foretrain.theory.layers.channels import program
from foretrain.theory.layers.drawn import drawn
from foretrain.theory.layers.expressions import (
    Apply,
    Elementwise,
    Expression,
    Leaf,
    Product,
    Sum,
    combination,
    leaves,
    linear_terms,
    product,
    rectified_block,
)
from foretrain.theory.layers.fields import Field, Source
from foretrain.theory.layers.linear_maps import Superposed
from foretrain.theory.layers.recombined import lineage, recombined
from foretrain.theory.layers.windowed import Grouped, WithoutMoments


@lru_cache(maxsize=8192)
def moments(law: Expression) -> Field:
    """The field that holds the moments of an expression."""
    law = with_formulas(law)
    if isinstance(law, Leaf):
        return law.field
    fields = leaves(law)
    return Elementwise(
        inputs=fields,
        positions=fields[0].positions,
        expression=law,
        name=fields[0].name if isinstance(law, Sum) else "activation",
        sources=frozenset().union(*(field.sources for field in fields)),
    )


@lru_cache(maxsize=8192)
def with_formulas(law: Expression) -> Expression:
    """The expression with each part whose moments have no formula as a field of means over draws."""
    if isinstance(law, Leaf | Apply):
        return law if has_formula(law) else _drawn(law)
    parts = law.factors if isinstance(law, Product) else [term for _, term in law.terms]
    weights = [1.0] * len(parts) if isinstance(law, Product) else [weight for weight, _ in law.terms]
    new: list[tuple[float, Expression]] = []
    for members in _dependent(parts, of_sum=isinstance(law, Sum)):
        some = [(weights[k], parts[k]) for k in members]
        fields = {field for _, part in some for field in leaves(part)}
        if len(some) == 1:
            new.append((some[0][0], with_formulas(some[0][1])))
        elif len(fields) == 1 and fields.pop().gaussian:
            new += some
        else:
            whole = Sum(tuple(some)) if isinstance(law, Sum) else product([part for _, part in some])
            new.append((1.0, _drawn(whole)))
    if isinstance(law, Product):
        return product([part for _, part in new])
    return combination(new, law.constant)


def has_formula(law: Leaf | Apply) -> bool:
    """Whether the moments of a field, or of a function of fields, need no draws."""
    if isinstance(law, Leaf):
        return not isinstance(law.field, WithoutMoments)
    fields = leaves(law)
    if not all(field.gaussian for field in fields):
        return False
    return len(fields) == 1 or (rectified_block(law) is not None and not meet(*fields))


def _drawn(law: Expression) -> Leaf:
    fields = leaves(law)
    return Leaf(drawn(law, fields[0].positions, fields[0].name if isinstance(law, Leaf) else "activation"))


def _dependent(parts: Sequence[Expression], of_sum: bool) -> list[list[int]]:
    """Numbers of the parts, those together whose products have means that are no products of means."""
    found: list[tuple[list[int], set[Field], set[Source]]] = []
    for number, part in enumerate(parts):
        members, fields, sources = [number], set(leaves(part)), set[Source]()
        for field in fields:
            # Weights of its own make the products of a convolution with everything else vanish on average.
            line = lineage(field) if of_sum and isinstance(part, Leaf) else []
            own = line[-1].own_sources if line and isinstance(line[-1], Grouped) else field.sources
            sources |= own
        apart = []
        for one in found:
            if one[1] & fields or any(s.meets(t) for s in one[2] for t in sources):
                members, fields, sources = one[0] + members, one[1] | fields, one[2] | sources
            else:
                apart.append(one)
        found = [*apart, (members, fields, sources)]
    return [sorted(members) for members, _, _ in found]


@lru_cache(maxsize=8192)
def collapsed(law: Expression) -> Expression:
    """A combination of Gaussian fields as one Gaussian field; with gains on several of them it stays what it is."""
    terms = linear_terms(law)
    if not terms or isinstance(law, Leaf) or (len(terms) > 1 and any(field.gains for _, field in terms)):
        return law
    fields = tuple(field for _, field in terms)
    if any(meet(a, b) for a, b in itertools.combinations(fields, 2)):
        return law
    return Leaf(
        Superposed(
            inputs=fields,
            weights=tuple(weight for weight, _ in terms),
            positions=fields[0].positions,
            name=" + ".join(dict.fromkeys(field.name for field in fields)),
            gaussian=True,
            gains=fields[0].gains if len(fields) == 1 else (),
            sources=frozenset().union(*(field.sources for field in fields)),
        )
    )


def total(first: Expression, second: Expression) -> Expression:
    """The sum of two expressions: one linear map of a field that both are maps of, else as :func:`sorted_out`."""
    law = combination([(1.0, first), (1.0, second)])
    if any(meet(a, b) for a, b in itertools.combinations(leaves(law), 2)):
        whole = recombined([(1.0, moments(collapsed(one))) for one in (first, second)])
        return sorted_out(law) if whole is None else Leaf(whole)
    return collapsed(law)


def sorted_out(law: Expression) -> Expression:
    """The expression in fields that share no channels where that can be; refused if it can neither be nor be drawn.

    Maps of one field become one map, and sums are opened where they share a part.
    """
    while True:
        meeting = {one for a, b in itertools.combinations(leaves(law), 2) if meet(a, b) for one in (a, b)}
        opened = {one for one in meeting if isinstance(one, Superposed)}
        if (joined := _as_one_map(law)) is not None:
            law = joined
        elif opened:
            law = substituted(law, lambda one, opened=opened: _parts(one) if one in opened else one)
        else:
            if meeting:
                program(law)
            return collapsed(law)


def _parts(field: Superposed) -> Expression:
    return combination([(w, Leaf(part)) for w, part in zip(field.weights, field.inputs, strict=True)])


def _as_one_map(law: Expression) -> Expression | None:
    """A sum in which two terms that are maps of one field are one; None if there are no such."""
    for a, b in itertools.combinations(law.terms if isinstance(law, Sum) else (), 2):
        if any(meet(one, two) for one in leaves(a[1]) for two in leaves(b[1])):
            field = recombined([(weight, moments(term)) for weight, term in (a, b)])
            if field is not None:
                others = [term for term in law.terms if term not in (a, b)]  # type: ignore[union-attr]
                return combination([*others, (1.0, Leaf(field))], law.constant)  # type: ignore[union-attr]
    return None


def meet(a: Field, b: Field) -> bool:
    """Whether two fields hold the same channels."""
    return a is not b and any(s.meets(t) for s in a.sources for t in b.sources)


def in_each_field(change: Callable[[Field], Field]) -> Callable[[Expression], Expression]:
    """The change of an expression that changes each of its fields, always to the same one."""
    found: dict[Field, Field] = {}

    def once(field: Field) -> Field:
        if field not in found:
            found[field] = change(field)
        return found[field]

    return lambda law: substituted(with_formulas(law), once)


def substituted(law: Expression, change: Any) -> Expression:
    """The expression with every field changed."""
    if isinstance(law, Leaf):
        changed = change(law.field)
        return Leaf(changed) if isinstance(changed, Field) else changed
    if isinstance(law, Apply):
        return Apply(law.activation, substituted(law.inner, change))
    if isinstance(law, Product):
        return product([substituted(one, change) for one in law.factors])
    return combination([(weight, substituted(one, change)) for weight, one in law.terms], law.constant)
