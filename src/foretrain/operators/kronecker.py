"""Kronecker products of operators on disjoint axes, and operators lifted to a larger space."""

from __future__ import annotations

from math import prod

from torch import Tensor

from foretrain.operators.algebra import Derived, check_same_kind
from foretrain.operators.basic import Identity
from foretrain.operators.operator import Operator
from foretrain.operators.spaces import Space, VectorSpace
from foretrain.operators.subspaces import between
from foretrain.support.errors import InputError


class Kronecker(Derived):
    """A ⊗ B ⊗ ..., each factor acting on its own axes."""

    def __init__(self, factors: tuple[Operator, ...]) -> None:
        super().__init__(
            factors,
            _product_space([factor.domain for factor in factors]),
            _product_space([factor.codomain for factor in factors]),
            symmetric=all(factor.symmetric for factor in factors),
            positive=all(factor.positive for factor in factors),
        )
        self.flops = 2.0 * self.domain.size * self.codomain.size

    def _apply(self, flat: Tensor) -> Tensor:
        return _along_each_axis(self.parts, flat)

    def _apply_adjoint(self, flat: Tensor) -> Tensor:
        return _along_each_axis(tuple(factor.adjoint() for factor in self.parts), flat)


def kron(*operators: Operator) -> Operator:
    """The Kronecker product: the axes of the first operator, then of the second, and so on.

    >>> from foretrain.operators import Space, dense_operator, identity, kron
    >>> A = dense_operator([[0.0, 1.0], [0.0, 0.0]], Space.of(time=2))
    >>> kron(A, identity(Space.of(unit=2))).dense()
    tensor([[0., 0., 1., 0.],
            [0., 0., 0., 1.],
            [0., 0., 0., 0.],
            [0., 0., 0., 0.]], dtype=torch.float64)
    """
    if not operators:
        raise InputError("a Kronecker product needs at least one operator.")
    check_same_kind(operators)
    factors = tuple(
        part
        for operator in operators
        for part in (operator.parts if isinstance(operator, Kronecker) else (operator,))
    )
    return factors[0] if len(factors) == 1 else Kronecker(factors)


def lift(operator: Operator, space: VectorSpace) -> Operator:
    """The operator on its own axes of a space, and the identity on the others: A ⊗ I in the space's axis order.

    An operator from some axes to the same axes with other sizes changes these sizes and leaves the order.
    """
    whole = space.plain("lift()")
    domain, codomain = (side.plain("lift()") for side in (operator.domain, operator.codomain))
    if domain.names and set(domain.names) != set(codomain.names):
        raise InputError(
            f"lift needs an operator that keeps its axes, but this one goes from {domain.describe()} to "
            f"{codomain.describe()}: build the product with kron."
        )
    for name, size in domain.axes:
        if whole[name] != size:
            raise InputError(
                f"axis {name!r} has size {size} in the operator, but size {whole[name]} in {whole.describe()}."
            )
    rest = whole.without(domain.names)
    product = kron(operator, Identity(rest, dtype=operator.dtype, device=operator.device))
    target = Space(*((n, codomain[n] if n in codomain.names else size) for n, size in whole.axes))
    return between(product, whole, target)


def _product_space(spaces: list[VectorSpace]) -> Space:
    axes = [axis for space in spaces for axis in space.plain("a Kronecker product").axes]
    names = [name for name, _ in axes]
    shared = sorted({name for name in names if names.count(name) > 1})
    if shared:
        raise InputError(
            f"the factors of a Kronecker product share the axis {shared[0]!r}: "
            "factors must act on different axes; @ composes operators on the same ones."
        )
    return Space(*axes)


def _along_each_axis(factors: tuple[Operator, ...], flat: Tensor) -> Tensor:
    """Apply factor i along position i of (k, n_1, ..., n_m)."""
    count, sizes = flat.shape[0], [factor.domain.size for factor in factors]
    for i, factor in enumerate(factors):
        before, after = prod(sizes[:i]), prod(sizes[i + 1 :])
        if not isinstance(factor, Identity):
            rows = flat.reshape(count, before, sizes[i], after).movedim(2, 3)
            products = factor.apply(rows.reshape(-1, sizes[i]))
            flat = products.reshape(count, before, after, factor.codomain.size).movedim(3, 2)
        sizes[i] = factor.codomain.size
    return flat.reshape(count, prod(sizes))
