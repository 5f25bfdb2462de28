"""Sums, products, adjoints, Kronecker products, blocks and restrictions, against matrices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_operators import (
    DOUBLE,
    ByMatrix,
    assert_close,
    assert_is_matrix,
    normal,
    positive_operator,
    random_operator,
    symmetric_operator,
)
from torch import Tensor

from foretrain.operators import (
    Operator,
    Space,
    SumSpace,
    add,
    block_operator,
    column,
    compose,
    dense_operator,
    direct_sum,
    from_functions,
    gram,
    identity,
    kron,
    rearrange,
    row,
    select,
    select_member,
    select_where,
    span,
    zero,
)
from foretrain.support.errors import InputError, NotSupportedError

X = Space.of(time=2, unit=3)
Y = Space.of(output=4)
Z = Space.of(batch=2)
Pair = tuple[Operator, Tensor]


def test_sums_products_and_multiples() -> None:
    A, B, C = random_operator(X, Y, seed=1), random_operator(X, Y, seed=2), random_operator(Y, Z, seed=3)
    a, b, c = A.matrix, B.matrix, C.matrix
    assert_is_matrix(A + B, a + b)
    assert_is_matrix(A - 2 * B, a - 2 * b)
    assert_is_matrix(-A, -a)
    assert_is_matrix(A / 4, a / 4)
    assert_is_matrix(np.float64(3) * A, 3 * a)
    assert_is_matrix(torch.tensor(3.0) * A, 3 * a)
    assert_is_matrix(A * torch.tensor(3.0), 3 * a)
    assert_is_matrix(C @ A, c @ a)
    assert_is_matrix(C @ (A + B), c @ (a + b))
    assert_is_matrix((C @ A).T, (c @ a).T)
    assert_is_matrix((A + 0.5 * B).T, (a + 0.5 * b).T)
    assert_is_matrix(sum([A, B, A]), 2 * a + b)
    assert_is_matrix(compose(C, A, A.T, C.T), c @ a @ a.T @ c.T)
    assert_is_matrix(add(A, B, B), a + 2 * b)


def test_simplifications() -> None:
    A, B = random_operator(X, Y), random_operator(X, Y, seed=1)
    assert A.T.T is A
    assert A.T is not A
    assert (A + B).T.T.T.T is not None
    kept = (A @ A.T @ A).T
    assert kept.T.T is kept
    S = symmetric_operator(X)
    assert S.T is S
    assert identity(Y) @ A is A
    assert A @ identity(X) is A
    assert A + zero(X, Y) is A
    assert 1 * A is A
    assert (
        type(A - A).__name__
        == type(0 * A).__name__
        == type(zero(Z, Y) @ random_operator(X, Z)).__name__
        == "Zero"
    )
    assert (2 * A) / 2 is A
    assert (A + B) - B is A
    one = identity(X)
    assert one @ one is not None
    assert_is_matrix(one @ one, torch.eye(6, dtype=DOUBLE))
    assert kron(A) is A


def test_structure_that_is_inherited() -> None:
    A, J = random_operator(X), random_operator(X, Y)
    S, P, Q = symmetric_operator(X), positive_operator(X), positive_operator(X, seed=5)
    positive = [P + Q, 2 * P, P / 3, 0 * P, J @ J.T, J.T @ J, gram(J), J @ P @ J.T, 3 * (J @ (2 * P) @ J.T)]
    positive += [
        S @ S,
        A @ J.T @ J @ A.T,
        (2 * J) @ (2 * J).T,
        P.compress(J.T),
        kron(P, positive_operator(Y)),
    ]
    positive += [
        direct_sum({"a": P, "b": Q}),
        P.restrict(time=0),
        identity(X) + P,
        gram(A + 2 * S),
        S @ P @ S,
    ]
    symmetric = [P - Q, -P, S + P, A + A.T, (A + A.T) / 2, 0.5 * A + 0.5 * A.T, A @ S @ A.T, S - 2 * P]
    symmetric += [kron(S, positive_operator(Y)), S.restrict(unit=[0, 2]), -1 * gram(J), S.compress(J.T)]
    neither = [A, A + S, S @ P, A @ A, J @ A @ J.T, 2 * A + A.T, A @ P @ A, kron(A, positive_operator(Y))]
    for operator in positive:
        assert operator.positive
        assert operator.symmetric
    for operator in symmetric:
        assert operator.symmetric
        assert not operator.positive
    assert not any(operator.symmetric for operator in neither)
    for operator in (*positive, *symmetric, *neither):
        assert_is_matrix(operator, operator.T.dense().T)


def test_gram_matrices_are_the_products() -> None:
    J, P = random_operator(X, Y), positive_operator(X)
    j, p = J.matrix, P.matrix
    assert_is_matrix(gram(J), j @ j.T)
    assert_is_matrix(J @ P @ J.T, j @ p @ j.T)
    assert_is_matrix(P.compress(J.T), j @ p @ j.T)
    assert_is_matrix((2 * J) @ (3 * P) @ (2 * J).T, 12 * j @ p @ j.T)


def test_declared_structure() -> None:
    matrix = normal(6, 6)
    A, B = ByMatrix(matrix, X), ByMatrix(matrix.T.contiguous(), X)
    hidden = A @ B
    assert not hidden.symmetric
    declared = hidden.declare(positive=True)
    assert declared.positive
    assert_is_matrix(declared, matrix @ matrix.T)
    assert declared.declare(symmetric=True) is declared
    with pytest.raises(InputError, match="symmetric"):
        A.declare(symmetric=True).check()


def combined(kind: str, left: Pair, right: Pair, factor: float) -> Pair:
    """A rule of the algebra, on operators and on matrices."""
    (A, a), (B, b) = left, right
    rules: dict[str, Callable[[], Pair]] = {
        "add": lambda: (A + B, a + b),
        "compose": lambda: (A @ B, a @ b),
        "adjoint": lambda: (A.T, a.T),
        "scale": lambda: (factor * A, factor * a),
        "gram": lambda: (A @ A.T, a @ a.T),
        "compress": lambda: (B.T @ A @ B, b.T @ a @ b),
    }
    return rules[kind]()


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), data=st.data())
def test_any_expression_equals_its_matrix(seed: int, data: st.DataObject) -> None:
    space = Space.of(time=2, unit=2)
    pool: list[Operator] = [random_operator(space, seed=seed), symmetric_operator(space, seed=seed + 1)]
    pool += [positive_operator(space, seed=seed + 2, rank=2), identity(space)]
    matrices = [operator.dense() for operator in pool]
    for _ in range(data.draw(st.integers(1, 6))):
        i, j = (data.draw(st.integers(0, len(pool) - 1)) for _ in range(2))
        kind = data.draw(st.sampled_from(["add", "compose", "adjoint", "scale", "gram", "compress"]))
        factor = data.draw(st.sampled_from([-1.5, 0.0, 0.5, 1.0]))
        A, B, a, b = pool[i], pool[j], matrices[i], matrices[j]
        made = combined(kind, (A, a), (B, b), factor)
        pool.append(made[0])
        matrices.append(made[1])
    assert_is_matrix(pool[-1], matrices[-1])


def test_kronecker_products() -> None:
    A, B, C = (
        random_operator(Y, Space.of(site=2)),
        random_operator(X, Z, seed=1),
        positive_operator(Space.of(k=3)),
    )
    assert_is_matrix(kron(A, B), torch.kron(A.matrix, B.matrix))
    assert_is_matrix(kron(A, B, C), torch.kron(torch.kron(A.matrix, B.matrix), C.matrix))
    assert_is_matrix(kron(kron(A, B), C), torch.kron(torch.kron(A.matrix, B.matrix), C.matrix))
    assert kron(A, B, C).codomain == Space.of(site=2, batch=2, k=3)
    assert_is_matrix(kron(identity(Y), C), torch.kron(torch.eye(4, dtype=DOUBLE), C.matrix))
    assert_is_matrix(kron(C, identity(Y)).T, torch.kron(C.matrix, torch.eye(4, dtype=DOUBLE)))


def test_lifting_fills_up_with_the_identity() -> None:
    A = random_operator(Space.of(time=2))
    whole = Space.of(batch=3, time=2, unit=2)
    lifted = A.lift(whole)
    assert lifted.domain == lifted.codomain == whole
    tensor = torch.einsum(
        "ts,bc,uv->btucsv", A.matrix, torch.eye(3, dtype=DOUBLE), torch.eye(2, dtype=DOUBLE)
    )
    assert_is_matrix(lifted, tensor.reshape(12, 12))
    assert positive_operator(Space.of(unit=2)).lift(whole).positive
    shorter = random_operator(Space.of(time=2), Space.of(time=1)).lift(whole)
    assert shorter.codomain == Space.of(batch=3, time=1, unit=2)
    swapped = random_operator(Space.of(unit=2, batch=3))
    four = swapped.matrix.reshape(2, 3, 2, 3)
    expected = torch.einsum("ubvc,ts->btucsv", four, torch.eye(2, dtype=DOUBLE)).reshape(12, 12)
    assert_is_matrix(swapped.lift(whole), expected)


def test_axes_are_moved_by_name() -> None:
    A = random_operator(X)
    turned = A.tensor_like(Space.of(unit=3, time=2))
    expected = A.matrix.reshape(2, 3, 2, 3).permute(1, 0, 3, 2).reshape(6, 6)
    assert_is_matrix(turned, expected)
    assert positive_operator(X).tensor_like(turned).positive
    move = rearrange(X, Space.of(unit=3, time=2))
    assert_is_matrix(move @ move.T, torch.eye(6, dtype=DOUBLE))
    assert torch.equal(
        move @ torch.arange(6.0, dtype=DOUBLE).reshape(2, 3), torch.arange(6.0).reshape(2, 3).T.double()
    )


def test_a_kronecker_core_is_read_in_the_references_axes() -> None:
    """V V* ⊗ I on (site, unit) compared with an operator on (batch, time, unit), as in K ≈ V V* ⊗ I."""
    sites = normal(6, 4)
    core = kron(dense_operator(sites @ sites.T, Space.of(site=6), positive=True), identity(Space.of(unit=2)))
    reference = random_operator(Space.of(batch=2, time=3, unit=2))
    read = core.tensor_like(reference)
    assert (read.domain, read.positive) == (reference.domain, True)
    assert_is_matrix(read, torch.kron(sites @ sites.T, torch.eye(2, dtype=DOUBLE)))
    hidden = SumSpace({"a": X, "b": Y})
    other = SumSpace({"b": Y, "a": Space.of(unit=3, time=2)})
    A = random_operator(hidden)
    vector = {"a": normal(2, 3), "b": normal(4, seed=1)}
    turned = A.tensor_like(other) @ {"a": vector["a"].T, "b": vector["b"]}
    assert_close(turned["a"], (A @ vector)["a"].T)
    assert_close(turned["b"], (A @ vector)["b"])


def test_direct_sums_and_grids() -> None:
    A, B = random_operator(X, Y, seed=1), random_operator(Z, seed=2)
    assert_is_matrix(direct_sum({"a": A, "b": B}), torch.block_diag(A.matrix, B.matrix))
    assert direct_sum({"a": A, "b": B}).domain == SumSpace({"a": X, "b": Z})
    C = random_operator(Z, Y, seed=3)
    assert_is_matrix(row({"a": A, "c": C}), torch.cat([A.matrix, C.matrix], dim=1))
    assert row({"a": A, "c": C}).codomain == Y
    assert_is_matrix(column({"a": A.T, "c": C.T}), torch.cat([A.matrix, C.matrix], dim=1).T)
    J = row({"a": A, "c": C})
    assert gram(J).positive
    assert_is_matrix(gram(J), A.matrix @ A.matrix.T + C.matrix @ C.matrix.T)
    weighted = J @ direct_sum({"a": positive_operator(X), "c": 2 * identity(Z)}) @ J.T
    assert weighted.positive
    p = positive_operator(X).matrix
    assert_is_matrix(weighted, A.matrix @ p @ A.matrix.T + 2 * C.matrix @ C.matrix.T)


def test_a_grid_of_blocks() -> None:
    A, B, S = random_operator(X, Y), random_operator(Y, Z, seed=1), symmetric_operator(Y)
    grid = block_operator({"y": {"x": A, "y": S}, "z": {"y": B}})
    assert grid.domain == SumSpace({"x": X, "y": Y})
    assert grid.codomain == SumSpace({"y": Y, "z": Z})
    expected = torch.cat(
        [torch.cat([A.matrix, S.matrix], 1), torch.cat([torch.zeros(2, 6, dtype=DOUBLE), B.matrix], 1)]
    )
    assert_is_matrix(grid, expected)
    mirrored = block_operator({"x": {"y": A.T}, "y": {"x": A, "y": S}})
    assert mirrored.symmetric
    assert not mirrored.positive
    assert_is_matrix(mirrored, mirrored.T.dense().T)
    one = identity(X)
    off_diagonal = block_operator({"x": {"y": one}, "y": {"x": one}})
    assert off_diagonal.symmetric
    assert not off_diagonal.positive
    one_sided = block_operator({"x": {"x": identity(X), "y": A.T}, "y": {"y": S}})
    assert not one_sided.symmetric


@pytest.mark.parametrize(
    ("indices", "cut"),
    [
        ({"time": -1}, (slice(None), 1)),
        ({"unit": [2, 0]}, (slice(None), slice(None), [2, 0])),
        ({"time": 0, "unit": slice(1, None)}, (slice(None), 0, slice(1, None))),
        ({"batch": [True, False]}, ([0],)),
        ({"batch": torch.tensor([False, True]), "unit": np.int64(1)}, ([1], slice(None), 1)),
        ({"batch": 0, "time": 0, "unit": 0}, (0, 0, 0)),
        ({"time": slice(None)}, (slice(None),)),
    ],
)
def test_restriction_keeps_the_indices_named(indices: dict[str, Any], cut: tuple[Any, ...]) -> None:
    space = Space.of(batch=2, time=2, unit=3)
    places = torch.arange(12).reshape(2, 2, 3)[cut]
    for operator in (random_operator(space), positive_operator(space)):
        small = operator.restrict(**indices)
        assert small.domain.plain("test").shape == tuple(places.shape)
        assert small.positive == operator.positive
        assert_is_matrix(small, operator.matrix[places.reshape(-1)][:, places.reshape(-1)])


def test_restriction_of_each_side_by_its_axes() -> None:
    A = random_operator(X, Space.of(time=2, output=4))
    small = A.restrict(time=1, output=[0, 3])
    assert (small.domain, small.codomain) == (Space.of(unit=3), Space.of(output=2))
    assert_is_matrix(small, A.matrix.reshape(2, 4, 2, 3)[1][[0, 3]][:, 1])


def test_members_and_masks() -> None:
    space = SumSpace({"hidden": X, "cell": Y})
    P = positive_operator(space)
    assert P.restrict_to("cell").domain == Y
    assert P.restrict_to("cell").positive
    assert_is_matrix(P.restrict_to("cell"), P.matrix[6:, 6:])
    chosen = torch.tensor([[True, False, True], [False, False, True]])
    Q = positive_operator(X)
    assert Q.restrict_to(chosen).domain == Space.of(entry=3)
    assert_is_matrix(Q.restrict_to(chosen), Q.matrix[[0, 2, 5]][:, [0, 2, 5]])
    both = {"hidden": chosen, "cell": torch.zeros(4, dtype=torch.bool)}
    assert_is_matrix(P.restrict_to(both), P.matrix[[0, 2, 5]][:, [0, 2, 5]])
    picked = select_where(X, chosen)
    assert_is_matrix(picked @ picked.T, torch.eye(3, dtype=DOUBLE))
    embedding = select(X, time=0).T
    assert (embedding @ torch.ones(3, dtype=DOUBLE)).tolist() == [[1, 1, 1], [0, 0, 0]]
    assert_is_matrix(select_member(space, "hidden"), torch.eye(10, dtype=DOUBLE)[:6])


def test_compression_to_the_span_of_vectors() -> None:
    P, vectors = positive_operator(X), normal(2, 2, 3)
    basis = span(X, vectors)
    assert (basis.domain, basis.codomain) == (Space.of(mode=2), X)
    assert_is_matrix(basis, vectors.reshape(2, 6).T)
    seen = P.compress(basis)
    assert seen.positive
    assert_is_matrix(seen, vectors.reshape(2, 6) @ P.matrix @ vectors.reshape(2, 6).T)
    assert_is_matrix(span(X, vectors[0].numpy(), name="target"), vectors[0].reshape(6, 1))
    sums = SumSpace({"hidden": X, "cell": Y})
    both = span(sums, {"hidden": vectors, "cell": normal(2, 4)})
    assert_is_matrix(both, torch.cat([vectors.reshape(2, 6), normal(2, 4)], dim=1).T)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (
            lambda: random_operator(X) @ random_operator(Y),
            InputError,
            r"takes \(time 2, unit 3\).*gives \(output 4\)",
        ),
        (lambda: random_operator(X) + random_operator(Y), InputError, "sum does not fit"),
        (
            lambda: random_operator(X) + identity(X, dtype=torch.float32),
            InputError,
            "float64 on cpu and torch.float32",
        ),
        (lambda: random_operator(X) + 1, TypeError, "unsupported operand"),
        (lambda: random_operator(X) * random_operator(X), TypeError, "unsupported operand"),
        (lambda: random_operator(X) * "2", InputError, "finite real number"),
        (lambda: random_operator(X) * float("nan"), InputError, "finite real number"),
        (lambda: random_operator(X) * normal(6), InputError, "use @ for vectors"),
        (lambda: random_operator(X) * 1j, NotSupportedError, "complex"),
        (lambda: random_operator(X) / 0, InputError, "divided by zero"),
        (add, InputError, "nothing to add"),
        (kron, InputError, "at least one operator"),
        (lambda: kron(random_operator(X), random_operator(X)), InputError, "share the axis 'time'"),
        (lambda: kron(random_operator(SumSpace({"a": X})), identity(Y)), NotSupportedError, "direct sum"),
        (lambda: random_operator(X).lift(Y), InputError, "unknown axis"),
        (lambda: random_operator(X).lift(Space.of(time=2, unit=4)), InputError, "size 3 in the operator"),
        (lambda: random_operator(X, Y).lift(X), InputError, "build the product with kron"),
        (lambda: random_operator(X).tensor_like(Y), InputError, "lift adds axes"),
        (lambda: rearrange(X, Space.of(unit=3, step=2)), InputError, "axis 'unit' would not stay"),
        (lambda: direct_sum({}), InputError, "no operators"),
        (lambda: row({}), InputError, "no operators"),
        (lambda: row({"a": random_operator(X), "b": random_operator(Y)}), InputError, "share their codomain"),
        (
            lambda: column({"a": random_operator(X), "b": random_operator(Y)}),
            InputError,
            "share their domain",
        ),
        (lambda: random_operator(X).restrict(tim=0), InputError, "did you mean 'time'"),
        (lambda: random_operator(X).restrict(time=2), InputError, "beyond the axis"),
        (lambda: random_operator(X).restrict(time=[0, -2]), InputError, "twice"),
        (lambda: random_operator(X).restrict(time=[]), InputError, "numbers or a mask|no index"),
        (lambda: random_operator(X).restrict(time=[False, False]), InputError, "no index"),
        (lambda: random_operator(X).restrict(time=[True]), InputError, "length 1"),
        (lambda: random_operator(X).restrict(time=0.5), InputError, "does not choose"),
        (lambda: random_operator(X).restrict_to("a"), InputError, "axes, not members"),
        (lambda: random_operator(X, Y).restrict_to("a"), NotSupportedError, "select_member"),
        (lambda: random_operator(X).restrict_to(torch.ones(6)), InputError, "True and False"),
        (
            lambda: random_operator(X).restrict_to(torch.zeros(6, dtype=torch.bool)),
            InputError,
            "keeps no entry",
        ),
        (lambda: random_operator(SumSpace({"a": X})).restrict(time=0), NotSupportedError, "restrict_to"),
    ],
)
def test_bad_input(make: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make()


def test_operators_without_adjoint_say_so_in_products() -> None:
    one_way = from_functions(X, X, lambda flat: flat.roll(1, 1))
    assert not (one_way @ random_operator(X)).has_adjoint
    assert not (one_way + random_operator(X)).has_adjoint
    assert not kron(one_way, random_operator(Y)).has_adjoint
    assert not direct_sum({"a": one_way}).has_adjoint
    assert (one_way @ random_operator(X)).check().adjointness is None
