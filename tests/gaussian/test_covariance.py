from __future__ import annotations

from fractions import Fraction

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_integrals import random_covariance

from foretrain.gaussian.covariance import (
    check_covariance,
    check_gram,
    condition,
    difference_of_products,
    staircase,
)
from foretrain.support.errors import InputError

quick = settings(deadline=None, max_examples=40)
moderate = st.floats(-1e6, 1e6, allow_subnormal=False).filter(lambda v: v == 0 or abs(v) > 1e-30)


class TestCheckCovariance:
    def test_passes_what_is_a_covariance(self) -> None:
        K = random_covariance(np.random.default_rng(0), 4)
        checked = check_covariance(K)
        assert checked.dtype == np.float64
        assert np.array_equal(checked, K)
        assert checked is not K

    @pytest.mark.parametrize("K", [[[0.0]], np.zeros((3, 3)), np.ones((2, 2)), [[1, -1], [-1, 1]], [[4]]])
    def test_singular_and_whole_numbers_pass(self, K: object) -> None:
        assert check_covariance(K).dtype == np.float64

    def test_a_stack_keeps_its_shape(self) -> None:
        assert check_covariance(np.ones((2, 5, 3, 3))).shape == (2, 5, 3, 3)
        assert check_covariance(np.ones((0, 2, 2))).shape == (0, 2, 2)

    def test_rounding_passes(self) -> None:
        X = np.random.default_rng(1).standard_normal((4, 2)).astype(np.float32)
        check_covariance(X @ X.T)
        K = np.ones((2, 2))
        K[0, 1] += 1e-12
        check_covariance(K)

    @pytest.mark.parametrize(
        ("K", "words"),
        [
            ([[1.0, np.nan], [np.nan, 1.0]], "not finite"),
            ([[np.inf]], "not finite"),
            (np.ma.masked_array(np.eye(2), mask=[[0, 0], [0, 1]]), "is masked"),
            ([[1.0, 0.2], [0.3, 1.0]], "not symmetric"),
            ([[1.0, 2.0], [2.0, 1.0]], "not positive semidefinite"),
            ([[-1.0]], "not positive semidefinite"),
            (np.stack([np.eye(2), [[1, 1.1], [1.1, 1]]]), "not positive semidefinite"),
            ([1.0, 2.0], "square matrix"),
            ([[1.0, 2.0]], "square matrix"),
            (np.zeros((0, 0)), "square matrix"),
            (1.0, "square matrix"),
            ([["a"]], "real numbers"),
            ([[1j]], "real numbers"),
        ],
    )
    def test_bad_input_gives_one_clear_sentence(self, K: object, words: str) -> None:
        with pytest.raises(InputError, match=words) as raised:
            check_covariance(K)
        assert str(raised.value).endswith(".")

    def test_the_number_of_inputs(self) -> None:
        with pytest.raises(InputError, match=r"2 x 2.* 3 inputs"):
            check_covariance(np.eye(2), inputs=3)


class TestCheckGram:
    def test_keeps_the_precision(self) -> None:
        assert check_gram(np.eye(3, dtype=np.float32)).dtype == np.float32
        assert check_gram([[1, 0], [0, 1]]).dtype == np.float64

    @pytest.mark.parametrize("size", [1, 63, 200, 201, 300])
    @pytest.mark.parametrize("place", ["first", "last"])
    def test_finds_a_flaw_wherever_it_is(self, size: int, place: str) -> None:
        i, j = (0, size - 1) if place == "first" else (size - 1, size // 2)
        K = np.eye(size)
        flawed = K.copy()
        flawed[i, j] = np.nan
        with pytest.raises(InputError, match="not finite"):
            check_gram(flawed)
        if i != j:
            flawed = K.copy()
            flawed[i, j] = 0.5
            with pytest.raises(InputError, match="not symmetric"):
                check_gram(flawed)
            flawed[j, i] = flawed[i, j] = -1.5
            with pytest.raises(InputError, match="exceeds" if size > 200 else "not positive semidefinite"):
                check_gram(flawed)

    @pytest.mark.parametrize("size", [3, 300])
    def test_masked_entries_are_no_numbers(self, size: int) -> None:
        with pytest.raises(InputError, match="is masked: fill"):
            check_gram(np.ma.masked_array(np.eye(size), mask=np.eye(size)))
        check_gram(np.ma.masked_array(np.eye(size)))

    def test_negative_variance_and_shape(self) -> None:
        with pytest.raises(InputError, match="not positive semidefinite"):
            check_gram(np.diag([1.0, -1.0]))
        with pytest.raises(InputError, match=r"\(N, N\)"):
            check_gram(np.ones((2, 2, 2)))
        with pytest.raises(InputError, match="square"):
            check_gram(np.ones((2, 3)))


@quick
@given(a=moderate, b=moderate, c=moderate, d=moderate)
def test_difference_of_products_is_exact_to_the_last_digit(a: float, b: float, c: float, d: float) -> None:
    exact = Fraction(a) * Fraction(b) - Fraction(c) * Fraction(d)
    found = float(difference_of_products(a, b, c, d))
    assert abs(Fraction(found) - exact) <= abs(exact) * Fraction(1, 2**50)


def test_difference_of_products_of_nearly_parallel_inputs() -> None:
    a, c = 1.0 + 2.0**-30, 1.0 + 2.0**-31
    assert float(difference_of_products(a, 1.0, c, c)) == float(Fraction(a) - Fraction(c) ** 2)


class TestCondition:
    def test_is_the_schur_complement(self) -> None:
        K = random_covariance(np.random.default_rng(2), 4)
        for pivot in range(4):
            others = [i for i in range(4) if i != pivot]
            exact = mp.matrix(3, 3)
            for a, i in enumerate(others):
                for b, j in enumerate(others):
                    exact[a, b] = mp.mpf(K[i, j]) - mp.mpf(K[i, pivot]) * K[pivot, j] / mp.mpf(
                        K[pivot, pivot]
                    )
            found = condition(K[None], pivot)[0]
            assert np.allclose(found, np.array(exact.tolist(), dtype=float), rtol=1e-13, atol=1e-15)

    def test_nearly_parallel_pair_keeps_its_digits(self) -> None:
        rho = 1 - 1e-13
        K = np.array([[[1.0, rho], [rho, 1.0]]])
        exact = float(1 - Fraction(rho) ** 2)
        assert condition(K, 0)[0, 0, 0] == pytest.approx(exact, rel=1e-14)

    def test_a_known_constant_tells_nothing(self) -> None:
        K = np.diag([0.0, 2.0, 3.0])[None]
        assert np.array_equal(condition(K, 0)[0], np.diag([2.0, 3.0]))

    def test_duplicates_leave_nothing(self) -> None:
        assert np.array_equal(condition(np.ones((1, 3, 3)), 1), np.zeros((1, 2, 2)))


class TestStaircase:
    @pytest.mark.parametrize("n", [1, 2, 3, 4])
    def test_rebuilds_the_covariance(self, n: int) -> None:
        rng = np.random.default_rng(n)
        K = np.stack([random_covariance(rng, n, 10.0**k) for k in range(-8, 3)])
        steps = staircase(K)
        for b in range(len(K)):
            lower, order = steps.factor[b], steps.order[b]
            assert np.allclose(np.triu(lower, 1), 0)
            assert sorted(order) == list(range(n))
            assert np.allclose(
                lower @ lower.T, K[b][np.ix_(order, order)], rtol=1e-12, atol=1e-14 * K[b].max()
            )

    def test_largest_variance_first(self) -> None:
        steps = staircase(np.diag([1.0, 3.0, 2.0])[None])
        assert steps.order[0].tolist() == [1, 2, 0]

    @pytest.mark.parametrize(
        ("vectors", "rank"),
        [
            ([[0, 0], [0, 0]], 0),
            ([[1, 0], [1, 0]], 1),
            ([[1, 0], [-1, 0], [2, 0]], 1),
            ([[1, 0], [0.5, 0.5], [1.5, 0.5]], 2),
            ([[1, 0], [1, 0], [0, 1], [0, -1]], 2),
            ([[1, 0, 0], [0, 1, 0], [0, 0, 1], [0.25, 0.5, -0.75]], 3),
        ],
    )
    def test_exact_ranks(self, vectors: list[list[float]], rank: int) -> None:
        V = np.array(vectors, dtype=float)
        steps = staircase((V @ V.T)[None])
        assert steps.rank[0] == rank
        order = steps.order[0]
        assert np.allclose(steps.factor[0] @ steps.factor[0].T, (V @ V.T)[np.ix_(order, order)], atol=1e-15)

    @pytest.mark.parametrize(("n", "rank"), [(3, 1), (3, 2), (4, 1), (4, 2), (4, 3)])
    def test_rounding_makes_no_new_direction(self, n: int, rank: int) -> None:
        rng = np.random.default_rng(10 * n + rank)
        V = rng.standard_normal((200, n, rank))
        assert (staircase(V @ np.swapaxes(V, 1, 2)).rank <= rank).all()

    def test_a_nearly_parallel_pair_is_not_dropped(self) -> None:
        rho = 1 - 1e-12
        steps = staircase(np.array([[[1.0, rho], [rho, 1.0]]]))
        assert steps.rank[0] == 2
        assert steps.factor[0, 1, 1] == pytest.approx(float(1 - Fraction(rho) ** 2) ** 0.5, rel=1e-14)
