"""Operators on products and sums of spaces: Kronecker products, lifts to larger spaces, direct sums and blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from torch import Tensor

from foretrain.operators.algebra import Derived, check_same_kind
from foretrain.operators.basic import Identity
from foretrain.operators.operator import Operator
from foretrain.operators.spaces import Space, SumSpace, VectorSpace
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


Entry = tuple[slice, slice, Operator]  # where its results go, where its vectors come from


class BlockOperator(Derived):
    """A grid of operators, each between a part of the domain and a part of the codomain; the rest is zero."""

    def __init__(self, domain: VectorSpace, codomain: VectorSpace, entries: Sequence[Entry]) -> None:
        operators = [operator for _, _, operator in entries]
        check_same_kind(operators)
        diagonal = domain == codomain and all(rows == columns for rows, columns, _ in entries)
        # Symmetric inside one space if every block's adjoint stands at the mirrored place.
        places = {(rows.start, columns.start): operator for rows, columns, operator in entries}
        mirrored = (places.get(place[::-1]) is operator.adjoint() for place, operator in places.items())
        super().__init__(
            operators,
            domain,
            codomain,
            symmetric=domain == codomain and all(mirrored),
            positive=diagonal and all(operator.positive for operator in operators),
        )
        self.entries = tuple(entries)

    def _apply(self, flat: Tensor) -> Tensor:
        total = flat.new_zeros(flat.shape[0], self.codomain.size)
        for rows, columns, operator in self.entries:
            total[:, rows] += operator.apply(flat[:, columns])
        return total

    def _apply_adjoint(self, flat: Tensor) -> Tensor:
        total = flat.new_zeros(flat.shape[0], self.domain.size)
        for rows, columns, operator in self.entries:
            total[:, columns] += operator.apply_adjoint(flat[:, rows])
        return total


def direct_sum(operators: Mapping[str, Operator]) -> Operator:
    """The block-diagonal operator: every member is mapped by its own operator.

    >>> from foretrain.operators import Space, direct_sum, identity
    >>> layers = direct_sum({"first": identity(Space.of(unit=2)), "second": 3 * identity(Space.of(unit=1))})
    >>> layers.dense().diagonal()
    tensor([1., 1., 3.], dtype=torch.float64)
    """
    return block_operator({name: {name: operator} for name, operator in operators.items()})


def row(operators: Mapping[str, Operator]) -> Operator:
    """[J_1 ... J_m]: from the direct sum of the domains to the one codomain, summing over members."""
    _check_some(operators)
    codomain = _common({name: operator.codomain for name, operator in operators.items()}, "codomain", "row")
    domain = SumSpace({name: operator.domain for name, operator in operators.items()})
    whole = slice(0, codomain.size)
    return BlockOperator(domain, codomain, [(whole, domain.slices[n], o) for n, o in operators.items()])


def column(operators: Mapping[str, Operator]) -> Operator:
    """Operators from one domain on top of each other: into the direct sum of the codomains."""
    _check_some(operators)
    domain = _common({name: operator.domain for name, operator in operators.items()}, "domain", "column")
    codomain = SumSpace({name: operator.codomain for name, operator in operators.items()})
    whole = slice(0, domain.size)
    return BlockOperator(domain, codomain, [(codomain.slices[n], whole, o) for n, o in operators.items()])


def block_operator(grid: Mapping[str, Mapping[str, Operator]]) -> Operator:
    """The operator with the blocks {to: {from: operator}}; blocks left out are zero."""
    names = list(dict.fromkeys(name for blocks in grid.values() for name in blocks))
    _check_some(names)
    columns = {
        name: _common(
            {f"{to} <- {name}": blocks[name].domain for to, blocks in grid.items() if name in blocks},
            "domain",
            f"column {name!r}",
        )
        for name in names
    }
    rows = {
        to: _common({f"{to} <- {n}": o.codomain for n, o in blocks.items()}, "codomain", f"row {to!r}")
        for to, blocks in grid.items()
        if blocks
    }
    if set(rows) == set(columns):  # one order on both sides, so that equal members make equal spaces
        columns = {name: columns[name] for name in rows}
    domain, codomain = SumSpace(columns), SumSpace(rows)
    entries = [
        (codomain.slices[to], domain.slices[name], operator)
        for to, blocks in grid.items()
        for name, operator in blocks.items()
    ]
    return BlockOperator(domain, codomain, entries)


def _check_some(operators: Mapping[str, Operator] | Sequence[str]) -> None:
    if not operators:
        raise InputError("there are no operators to put together: give at least one by name.")


def _common(spaces: Mapping[str, VectorSpace], side: str, what: str) -> VectorSpace:
    (first_name, first), *others = spaces.items()
    for name, space in others:
        if space != first:
            raise InputError(
                f"the operators of a {what} share their {side}, but {first_name!r} has {first.describe()} "
                f"and {name!r} has {space.describe()}."
            )
    return first
