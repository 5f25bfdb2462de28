"""Operators between direct sums, made of operators between their members."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from foretrain.operators.algebra import Derived, check_same_kind
from foretrain.operators.operator import Operator
from foretrain.operators.spaces import SumSpace, VectorSpace
from foretrain.support.errors import InputError

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
