"""Pairs of two sets of inputs: the block of the square, every route, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gram_checks import inputs

from foretrain.gaussian import cross_gram, factor, gram, grams, mehler, second_moments, z
from foretrain.support.errors import InputError

ROWS = 5
PRODUCTS: list[tuple[Any, Any]] = [
    ("relu", "relu"),
    (("relu", 1), ("relu", 1)),
    ("relu", ("relu", 1)),
    ("erf", "erf"),
    (("gelu", 1), ("gelu", 1)),
    ("sin", "sin"),
    ("sign", "sign"),
    ("tanh", "tanh"),
    (("tanh", 1), "tanh"),
    ("selu", ("selu", 1)),
    (factor("tanh") * z, ("softplus", 2)),
    (("relu", 2), "relu"),
]


def sides(K: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    variance = np.diagonal(K)
    return K[:ROWS, ROWS:], variance[:ROWS], variance[ROWS:]


@pytest.mark.parametrize("kind", ["spread", "near", "repeated"])
def test_it_is_the_block_of_the_square(kind: str) -> None:
    K = inputs(12, kind)
    squares, crosses = gram(PRODUCTS, K), cross_gram(PRODUCTS, *sides(K))
    assert isinstance(squares, list)
    assert isinstance(crosses, list)
    for square, cross, product in zip(squares, crosses, PRODUCTS, strict=True):
        allowed = square.error[:ROWS, ROWS:] + cross.error + 1e-13
        assert cross.value.shape == cross.error.shape == (ROWS, 7)
        block, finite = square.value[:ROWS, ROWS:], np.isfinite(cross.value)
        assert (cross.value[~finite] == block[~finite]).all()
        assert (np.abs(cross.value[finite] - block[finite]) <= allowed[finite]).all(), product
        assert cross.rule.split(" and ")[0] == square.rule.split(" and ")[0]


def test_the_sides_are_not_exchanged() -> None:
    K = inputs(12, "spread")
    (found,) = cross_gram([(("tanh", 1), ("tanh", 3))], *sides(K))  # type: ignore[misc]
    (other,) = cross_gram([(("tanh", 3), ("tanh", 1))], *sides(K))  # type: ignore[misc]
    (square,) = gram([(("tanh", 1), ("tanh", 3))], K)  # type: ignore[misc]
    np.testing.assert_allclose(found.value, square.value[:ROWS, ROWS:], atol=1e-9)
    np.testing.assert_allclose(other.value.T, square.value[ROWS:, :ROWS], atol=1e-9)
    assert np.abs(found.value - other.value).max() > 1e-3


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("many", [False, True])
def test_late_pairs_of_two_sets(many: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the split of kinks, one by one and by interpolation."""
    monkeypatch.setattr(mehler, "split_pairs", lambda *_: None)
    monkeypatch.setattr(grams, "_FEW", 10 if many else 1000)
    K = inputs(12, "near")
    (square,) = gram([("elu", "elu")], K)  # type: ignore[misc]
    (cross,) = cross_gram([("elu", "elu")], *sides(K))  # type: ignore[misc]
    assert ("interpolated" in cross.rule) == many
    np.testing.assert_allclose(cross.value, square.value[:ROWS, ROWS:], atol=1e-9)


def test_strips_and_tiles_of_large_rectangles() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(700, 8))
    K = X @ X.T / 8
    variance = np.diagonal(K)
    for name in ("relu", "tanh"):
        wide = cross_gram(name, K[:3], variance[:3], variance)
        whole = gram(name, K)
        np.testing.assert_allclose(wide.value, whole.value[:3], atol=1e-10)  # type: ignore[union-attr]


def test_float32_stays_float32() -> None:
    K, rows, columns = (part.astype(np.float32) for part in sides(inputs(12, "spread")))
    for name in ("relu", "tanh"):
        found = cross_gram(name, K, rows, columns)
        precise = cross_gram(name, K, rows, columns, dtype=np.float64)
        assert found.value.dtype == np.float32  # type: ignore[union-attr]
        np.testing.assert_allclose(found.value, precise.value, atol=1e-5)  # type: ignore[union-attr]


@pytest.mark.parametrize("f", ["relu", ("relu", 1), "erf", ("gelu", 1), "sign", "tanh", ("selu", 1)])
def test_second_moments_are_the_diagonal(f: Any) -> None:
    K = inputs(9, "spread")
    of = factor(*f) if isinstance(f, tuple) else factor(f)
    (square,) = gram([(of, of)], K)  # type: ignore[misc]
    np.testing.assert_allclose(
        second_moments(of, np.diagonal(K).copy()), np.diagonal(square.value), rtol=1e-10
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([[0.5, 0.2]], [1.0], [1.0]), "do not fit"),
        (([[1.5]], [1.0], [1.0]), "exceeds the root"),
        (([[0.5]], [-1.0], [1.0]), "between 0"),
        (([[np.nan]], [1.0], [1.0]), "finite"),
        (([["a"]], [1.0], [1.0]), "real numbers"),
        ((np.empty((0, 1)), [], [1.0]), "no inputs"),
    ],
)
def test_bad_input(arguments: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        cross_gram("relu", *arguments)
