"""Products of one operator with vectors and blocks, the operators made from data, and their dense forms."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import scipy.sparse.linalg
import torch
from random_operators import (
    DOUBLE,
    ByMatrix,
    assert_close,
    assert_is_matrix,
    normal,
    positive_matrix,
    positive_operator,
    random_operator,
)

from foretrain.operators import (
    Operator,
    Space,
    SumSpace,
    dense_operator,
    diagonal,
    from_functions,
    from_scipy,
    gram,
    identity,
    zero,
)
from foretrain.support.errors import InputError, NotEnoughMemoryError, NotSupportedError

X = Space.of(time=2, unit=3)
Y = Space.of(output=4)
SUM = SumSpace({"hidden": X, "cell": Y})


def test_products_take_structured_and_flat_vectors() -> None:
    operator = random_operator(X, Y)
    vector = normal(2, 3, seed=1)
    expected = operator.matrix @ vector.reshape(-1)
    for given in (vector, vector.reshape(-1), vector.numpy()):
        assert_close(operator.matvec(given), expected)
        assert_close(operator @ given, expected)
    back = operator.rmatvec(expected)
    assert back.shape == (2, 3)
    assert_close(back.reshape(-1), operator.matrix.T @ expected)


def test_blocks_are_cut_and_keep_their_order() -> None:
    operator = random_operator(X, Y)
    block = normal(8, 2, 3, seed=2)
    expected = block.reshape(8, 6) @ operator.matrix.T
    for given in (block, block.reshape(8, 6)):
        assert_close(operator.matmat(given), expected)
        assert_close(operator @ given, expected)
    assert operator.largest_block == 3
    assert operator.rmatmat(expected).shape == (8, 2, 3)
    assert operator.apply(torch.zeros(0, 6, dtype=DOUBLE)).shape == (0, 4)


def test_direct_sums_take_and_give_dicts() -> None:
    operator = random_operator(SUM)
    vector = {"hidden": normal(2, 3), "cell": normal(4, seed=1)}
    flat = torch.cat([vector["hidden"].reshape(-1), vector["cell"]])
    found = operator @ vector
    assert {name: tuple(part.shape) for name, part in found.items()} == {"hidden": (2, 3), "cell": (4,)}
    assert_close(torch.cat([found["hidden"].reshape(-1), found["cell"]]), operator.matrix @ flat)
    blocks = {name: torch.stack([part, 2 * part]) for name, part in vector.items()}
    assert_close((operator @ blocks)["cell"][1], 2 * found["cell"])


def test_operators_from_data() -> None:
    matrix = normal(4, 6)
    square = normal(6, 6)
    assert_is_matrix(identity(X), torch.eye(6, dtype=DOUBLE))
    assert_is_matrix(identity(SUM), torch.eye(10, dtype=DOUBLE))
    assert_is_matrix(zero(X, Y), torch.zeros(4, 6, dtype=DOUBLE))
    assert_is_matrix(zero(X), torch.zeros(6, 6, dtype=DOUBLE))
    assert_is_matrix(diagonal(X, square[0]), torch.diag(square[0]))
    assert_is_matrix(dense_operator(matrix, X, Y), matrix)
    assert_is_matrix(dense_operator(matrix.numpy(), X, Y), matrix)
    assert_is_matrix(dense_operator(square + square.T, X), square + square.T)
    assert_is_matrix(dense_operator(square @ square.T, X, positive=True), square @ square.T)
    functions = from_functions(X, Y, lambda flat: flat @ matrix.T, lambda flat: flat @ matrix)
    assert_is_matrix(functions, matrix)
    assert_is_matrix(from_scipy(matrix.numpy(), X, Y), matrix)
    assert_is_matrix(from_scipy(scipy.sparse.csr_array(matrix.numpy()), X, Y), matrix)


def test_structure_is_read_off_where_it_shows() -> None:
    square = normal(6, 6)
    assert dense_operator(square + square.T, X).symmetric
    assert not dense_operator(square, X).symmetric
    assert not dense_operator(square + square.T, X, Space.of(unit=2, time=3)).symmetric
    assert diagonal(X, torch.ones(6)).positive
    assert not diagonal(X, -torch.ones(6)).positive
    assert diagonal(X, -torch.ones(6)).symmetric
    assert zero(X).positive
    assert not zero(X, Y).symmetric


def test_declared_matrices_may_miss_their_transpose_by_rounding() -> None:
    matrix = positive_matrix(6)
    rounded = matrix.clone()
    rounded[0, 1] *= 1 + 1e-15
    assert not dense_operator(rounded, X).symmetric
    for operator in (dense_operator(rounded, X, positive=True), dense_operator(rounded, X, symmetric=True)):
        assert operator.symmetric
        assert torch.equal(operator.dense(), operator.dense().T)
        assert_is_matrix(operator, matrix)


def test_no_gradient_flows_through_products() -> None:
    weights = normal(6, 6).requires_grad_()
    operator = from_functions(X, X, lambda flat: flat @ weights, lambda flat: flat @ weights.T)
    assert not (operator @ normal(2, 3).requires_grad_()).requires_grad
    assert operator.linear_operator().matvec(np.ones(6)).shape == (6,)
    assert not dense_operator(weights, X).dense().requires_grad


def test_operators_travel_to_other_processes() -> None:
    operator = random_operator(X, Y)
    square = gram(operator)
    again = pickle.loads(pickle.dumps(square))
    assert again.positive
    assert_is_matrix(again, operator.matrix @ operator.matrix.T)
    assert_is_matrix(pickle.loads(pickle.dumps(operator.T)).T, operator.matrix)


def test_dense_form_goes_by_the_smaller_side() -> None:
    wide = ByMatrix(normal(2, 9), Space.of(a=9), Space.of(b=2))
    assert_close(wide.dense(), wide.matrix)
    assert wide.largest_block == 0  # two adjoint products instead of nine
    one_way = from_functions(Space.of(a=9), Space.of(b=2), lambda flat: flat @ wide.matrix.T)
    assert_close(one_way.dense(), wide.matrix)
    assert not one_way.has_adjoint
    with pytest.raises(NotSupportedError, match="without an adjoint"):
        one_way.T.dense()


def test_scipy_view() -> None:
    operator = random_operator(X, Y)
    view = operator.linear_operator()
    matrix = operator.matrix.numpy()
    vector, block = normal(6).numpy(), normal(6, 5).numpy()
    np.testing.assert_allclose(view @ vector, matrix @ vector, rtol=1e-12)
    np.testing.assert_allclose(view @ block, matrix @ block, rtol=1e-12)
    np.testing.assert_allclose(view.T @ normal(4, 5).numpy(), matrix.T @ normal(4, 5).numpy(), rtol=1e-12)
    np.testing.assert_allclose(view.matvec(vector[:, None]), (matrix @ vector)[:, None], rtol=1e-12)
    assert_is_matrix(from_scipy(view, X, Y), operator.matrix)
    positive = positive_operator(Space.of(a=12))
    values = scipy.sparse.linalg.eigsh(positive.linear_operator(), k=3, return_eigenvectors=False)
    np.testing.assert_allclose(values, torch.linalg.eigvalsh(positive.matrix)[-3:].numpy(), rtol=1e-9)


def test_labelled_dense_form() -> None:
    operator = random_operator(X)
    labelled = operator.to_xarray()
    assert labelled.dims == ("time", "unit", "time_2", "unit_2")
    assert float(labelled.sel(time=1, unit=2, time_2=0, unit_2=1)) == pytest.approx(
        float(operator.matrix[5, 1])
    )
    assert random_operator(X, Y).to_xarray().dims == ("output", "time", "unit")
    summed = random_operator(SUM).to_xarray()
    assert summed.dims == ("entry", "entry_2")
    assert summed.coords["member"].values.tolist() == ["hidden"] * 6 + ["cell"] * 4
    assert summed.coords["member_2"].dims == ("entry_2",)


def test_single_precision_stays_single() -> None:
    operator = ByMatrix(normal(6, 6, dtype=torch.float32), X)
    assert (operator @ torch.ones(2, 3)).dtype == torch.float32
    assert operator.dense().dtype == torch.float32
    assert operator.linear_operator().dtype == np.float32
    assert from_scipy(operator.linear_operator(), X).dtype == torch.float32
    assert (2.0 * operator + identity(X, dtype=torch.float32)).check() is not None


def test_results_are_the_callers_to_change() -> None:
    vector = torch.ones(2, 3, dtype=DOUBLE)
    (identity(X) @ vector).zero_()
    assert vector.sum() == 6
    matrix = dense_operator(normal(6, 6), X)
    matrix.dense().zero_()
    assert matrix.dense().abs().sum() > 0


def test_the_dense_form_of_something_huge_is_refused() -> None:
    with pytest.raises(NotEnoughMemoryError, match="top_modes"):
        identity(Space.of(unit=10**8)).dense()


def test_repr_tells_spaces_and_structure() -> None:
    assert repr(positive_operator(X)) == "ByMatrix on (time 2, unit 3): positive, torch.float64 on cpu"
    assert "from (time 2, unit 3) to (output 4): no declared structure" in repr(random_operator(X, Y))


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (
            lambda: random_operator(X) @ torch.ones(2, 3),
            InputError,
            "torch.float64 on cpu",
        ),
        (lambda: random_operator(X).matvec(normal(3, 2)), InputError, r"\(2, 3\) or, flat, \(6,\)"),
        (lambda: random_operator(X) @ normal(5), InputError, r"\(k, 6\)"),
        (lambda: random_operator(X).apply(normal(6)), InputError, r"\(k, 6\)"),
        (lambda: random_operator(X, Y).rmatvec(normal(6)), InputError, r"\(output 4\)"),
        (lambda: Operator(X, dtype=torch.complex128), NotSupportedError, "complex128"),
        (lambda: Operator(X, dtype=torch.float16), NotSupportedError, "float16"),
        (lambda: Operator(X, Y, dtype=DOUBLE, symmetric=True), InputError, "cannot be symmetric"),
        (lambda: Operator(X, dtype=DOUBLE, best_block=0), InputError, "at least one vector"),
        (lambda: dense_operator(normal(4, 6) * 1j, X, Y), NotSupportedError, "complex"),
        (lambda: dense_operator(normal(6, 4), X, Y), InputError, r"has shape \(4, 6\)"),
        (lambda: dense_operator(normal(6, 6), X, positive=True), InputError, r"\(M \+ M.T\) / 2"),
        (lambda: from_scipy(np.eye(5), X), InputError, r"shape \(5, 5\)"),
        (lambda: from_scipy(np.eye(6) * 1j, X), NotSupportedError, "complex"),
        (
            lambda: from_functions(X, Y, lambda flat: flat).matvec(normal(6)),
            InputError,
            "must return a tensor",
        ),
        (lambda: from_functions(X, X, lambda flat: flat.float()).matvec(normal(6)), InputError, "float64"),
        (lambda: from_functions(X, X, lambda flat: flat.numpy()).matvec(normal(6)), InputError, "ndarray"),
        (lambda: diagonal(X, normal(4)), InputError, r"\(2, 3\)|\(k, 6\)"),
    ],
)
def test_bad_input(make: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make()


def test_axes_are_named() -> None:
    assert identity(Space.of(batch=2, time=3, unit=4)).axes == ("batch", "time", "unit")
    assert random_operator(X, Y).axes == ("time", "unit")
    assert identity(SUM).axes == ("entry",)
