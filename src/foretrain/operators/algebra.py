"""Sums, multiples, products and adjoints of operators, with the structure each of them inherits.

Products and sums are kept as flat lists of parts, so that J @ J.T and P @ K @ P.T are recognised as what they are:
an operator that reads the same from both ends is symmetric, and positive if its middle is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from math import isfinite
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

from foretrain.operators.basic import Identity, Zero
from foretrain.operators.linear_map import kind_of
from foretrain.operators.operator import Operator
from foretrain.operators.spaces import VectorSpace
from foretrain.support.errors import InputError, NotSupportedError

Term = tuple[float, Operator]


class Derived(Operator):
    """An operator made of others, its ``parts``: of their kind and as dear as all of them together."""

    def __init__(
        self,
        parts: Sequence[Operator],
        domain: VectorSpace,
        codomain: VectorSpace,
        *,
        symmetric: bool = False,
        positive: bool = False,
    ) -> None:
        super().__init__(domain, codomain, symmetric=symmetric, positive=positive, **kind_of(*parts))
        self.parts = tuple(parts)
        self.flops = sum(part.flops for part in parts)

    @property
    def has_adjoint(self) -> bool:
        """Whether every part has one."""
        return self.symmetric or all(part.has_adjoint for part in self.parts)


class Adjoint(Derived):
    """The adjoint of an operator."""

    def __init__(self, parent: Operator) -> None:
        super().__init__([parent], parent.codomain, parent.domain)

    @property
    def has_adjoint(self) -> bool:
        """The adjoint of an adjoint is the operator itself."""
        return True

    def _apply(self, flat: Tensor) -> Tensor:
        return self.parts[0].apply_adjoint(flat)

    def _apply_adjoint(self, flat: Tensor) -> Tensor:
        return self.parts[0].apply(flat)


class Composition(Derived):
    """The product of factors, the last one applied first."""

    def __init__(self, factors: Sequence[Operator]) -> None:
        # Factors that read the same from both ends are what their middle is, or the identity where there is none.
        half, even = len(factors) // 2, len(factors) % 2 == 0
        mirrored = all(factors[i].adjoint() is factors[-1 - i] for i in range(half))
        super().__init__(
            factors,
            factors[-1].domain,
            factors[0].codomain,
            symmetric=mirrored and (even or factors[half].symmetric),
            positive=mirrored and (even or factors[half].positive),
        )

    def _apply(self, flat: Tensor) -> Tensor:
        for factor in reversed(self.parts):
            flat = factor.apply(flat)
        return flat

    def _apply_adjoint(self, flat: Tensor) -> Tensor:
        for factor in self.parts:
            flat = factor.apply_adjoint(flat)
        return flat

    def _make_adjoint(self) -> Operator:
        return Composition([factor.adjoint() for factor in reversed(self.parts)])


class LinearCombination(Derived):
    """A sum of multiples of operators between the same spaces."""

    def __init__(self, terms: Sequence[Term]) -> None:
        first = terms[0][1]
        symmetric = first.domain == first.codomain
        if (
            symmetric
        ):  # and the adjoints of the terms, which live as long as they are compared, are the terms again
            pairs = [(factor, term.adjoint()) for factor, term in terms]
            ours, theirs = (Counter((factor, id(term)) for factor, term in each) for each in (terms, pairs))
            symmetric = ours == theirs
        super().__init__(
            [term for _, term in terms],
            first.domain,
            first.codomain,
            symmetric=symmetric,
            positive=all(factor >= 0 and term.positive for factor, term in terms),
        )
        self.terms = tuple(terms)

    def _apply(self, flat: Tensor) -> Tensor:
        return self._summed([(factor, term.apply) for factor, term in self.terms], flat)

    def _apply_adjoint(self, flat: Tensor) -> Tensor:
        return self._summed([(factor, term.apply_adjoint) for factor, term in self.terms], flat)

    @staticmethod
    def _summed(products: Sequence[tuple[float, Callable[[Tensor], Tensor]]], flat: Tensor) -> Tensor:
        (factor, first), *others = products
        total = factor * first(flat)
        for factor, product in others:
            total += factor * product(flat)
        return total

    def _make_adjoint(self) -> Operator:
        return LinearCombination([(factor, term.adjoint()) for factor, term in self.terms])


class Declared(Derived):
    """An operator whose user knows more of its structure than its parts show."""

    def __init__(self, parent: Operator, *, symmetric: bool, positive: bool) -> None:
        super().__init__(
            [parent],
            parent.domain,
            parent.codomain,
            symmetric=symmetric or parent.symmetric,
            positive=positive or parent.positive,
        )

    def _apply(self, flat: Tensor) -> Tensor:
        return self.parts[0].apply(flat)

    def _apply_adjoint(self, flat: Tensor) -> Tensor:
        return self.parts[0].apply_adjoint(flat)


def compose(*operators: Operator) -> Operator:
    """The product A B ... of operators whose spaces fit."""
    for left, right in pairwise(operators):
        if left.domain != right.codomain:
            raise InputError(
                f"the product does not fit: the left operator takes {left.domain.describe()}, but the right one "
                f"gives {right.codomain.describe()}; tensor_like aligns axes, lift adds missing ones."
            )
    check_same_kind(operators)
    first, last = operators[0], operators[-1]
    factor, parts = 1.0, list[Operator]()
    for operator in operators:
        terms = _terms(operator)
        outer, inner = terms[0] if len(terms) == 1 else (1.0, operator)
        factor *= outer
        parts += inner.parts if isinstance(inner, Composition) else [inner]
    if any(isinstance(part, Zero) for part in parts):
        return Zero(last.domain, first.codomain, dtype=first.dtype, device=first.device)
    proper = [part for part in parts if not isinstance(part, Identity)] or parts[:1]
    return scale(Composition(proper) if len(proper) > 1 else proper[0], factor)


def add(*operators: Operator) -> Operator:
    """The sum of operators between the same spaces."""
    if not operators:
        raise InputError("there is nothing to add: give at least one operator.")
    first = operators[0]
    for other in operators[1:]:
        if (other.domain, other.codomain) != (first.domain, first.codomain):
            raise InputError(
                f"the sum does not fit: one operator goes from {first.domain.describe()} to "
                f"{first.codomain.describe()}, the other from {other.domain.describe()} to "
                f"{other.codomain.describe()}; tensor_like aligns axes, lift adds missing ones."
            )
    check_same_kind(operators)
    return _combination([term for operator in operators for term in _terms(operator)], first)


def scale(operator: Operator, factor: Any) -> Operator:
    """A real multiple of an operator."""
    number = real_number(factor)
    if number == 1.0:
        return operator
    return _combination([(number * inner, term) for inner, term in _terms(operator)], operator)


def gram(jacobian: Operator) -> Operator:
    """J J*, symmetric and positive by construction.

    >>> from foretrain.operators import Space, dense_operator, gram
    >>> J = dense_operator([[1.0, 2.0, 3.0]], Space.of(parameter=3), Space.of(output=1))
    >>> gram(J).dense()
    tensor([[14.]], dtype=torch.float64)
    """
    return compose(jacobian, jacobian.adjoint())


def compress(operator: Operator, basis: Operator) -> Operator:
    """Q* A Q: what A does inside the space Q comes from; symmetric and positive where A is."""
    return compose(basis.adjoint(), operator, basis)


def declare(operator: Operator, *, symmetric: bool = False, positive: bool = False) -> Operator:
    """The same operator with a declared structure; nothing is computed or made symmetric."""
    known = (operator.symmetric or not (symmetric or positive)) and (operator.positive or not positive)
    return operator if known else Declared(operator, symmetric=symmetric, positive=positive)


def real_number(value: Any) -> float:
    """A scalar given as a number, a numpy scalar or a tensor with one entry and no axes."""
    if isinstance(value, Tensor | np.ndarray | np.generic) and value.ndim == 0:
        value = value.item()
    if isinstance(value, complex):
        raise NotSupportedError("complex multiples of an operator are not offered: operators are real.")
    if not isinstance(value, Real) or not isfinite(value):
        given = repr(value) if isinstance(value, Real) else f"a {type(value).__name__}"
        raise InputError(
            f"an operator can be multiplied by a finite real number, not by {given}: use @ for vectors."
        )
    return float(value)


def check_same_spaces(first: Operator, second: Operator) -> None:
    """Operators that are measured against each other act between the same spaces, in the same dtype and place."""
    if (first.domain, first.codomain) != (second.domain, second.codomain):
        raise InputError(
            f"the operators act between different spaces, {first.domain.describe()} to "
            f"{first.codomain.describe()} and {second.domain.describe()} to {second.codomain.describe()}: "
            "align one with first.tensor_like(second)."
        )
    check_same_kind((first, second))


def check_same_kind(operators: Iterable[Operator]) -> None:
    """Operators that work together share dtype and device."""
    kinds: dict[tuple[torch.dtype, torch.device], None] = {(o.dtype, o.device): None for o in operators}
    if len(kinds) > 1:
        named = " and ".join(f"{dtype} on {device}" for dtype, device in kinds)
        raise InputError(
            f"operators of different kinds, {named}, cannot be combined: make them of the same dtype and device."
        )


def _terms(operator: Operator) -> Sequence[Term]:
    return operator.terms if isinstance(operator, LinearCombination) else [(1.0, operator)]


def _combination(terms: Sequence[Term], like: Operator) -> Operator:
    """The simplest operator equal to the sum: equal terms are merged, zeros are left out."""
    factors: dict[Operator, float] = {}
    for factor, term in terms:
        if not isinstance(term, Zero):
            factors[term] = factors.get(term, 0.0) + factor
    kept = [(factor, term) for term, factor in factors.items() if factor != 0]
    if not kept:
        return Zero(like.domain, like.codomain, dtype=like.dtype, device=like.device)
    return kept[0][1] if len(kept) == 1 and kept[0][0] == 1.0 else LinearCombination(kept)
