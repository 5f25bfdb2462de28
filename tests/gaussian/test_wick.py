from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foretrain.gaussian.wick import (
    double_factorial,
    equal_index_pairings,
    gaussian_moment,
    loop_count,
    pairings,
    set_partitions,
    wick_moment,
)
from foretrain.support.errors import InputError, NotSupportedError

FOUR = np.array([[1, 0.5, 0.2, -0.3], [0.5, 1.2, 0.4, 0.1], [0.2, 0.4, 0.9, 0.25], [-0.3, 0.1, 0.25, 1.1]])


def quadrature_moment(K: np.ndarray, powers: list[int]) -> float:
    """The same moment by tensor Gauss-Hermite quadrature, exact for polynomials of this degree."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(6)
    weights = weights / weights.sum()
    values, vectors = np.linalg.eigh(K)
    x = np.array(list(itertools.product(nodes, repeat=len(K))))
    w = np.prod(np.array(list(itertools.product(weights, repeat=len(K)))), axis=1)
    z = x @ (vectors * np.sqrt(np.maximum(values, 0))).T
    return float(w @ np.prod(z ** np.array(powers), axis=1))


def test_double_factorials_count_pairings() -> None:
    assert [double_factorial(n) for n in (-1, 0, 1, 2, 5, 7, 8)] == [1, 1, 1, 2, 15, 105, 384]
    assert [len(pairings(2 * m)) for m in range(7)] == [1, 1, 3, 15, 105, 945, 10395]


@pytest.mark.parametrize("n", [2, 4, 6, 8])
def test_pairings_are_distinct_and_use_every_item_once(n: int) -> None:
    found = pairings(n)
    assert len(set(found)) == len(found)
    for pairing in found:
        assert sorted(item for pair in pairing for item in pair) == list(range(n))
        assert all(a < b for a, b in pairing)


def test_set_partitions_are_counted_by_bell_numbers_and_by_type() -> None:
    assert [len(set_partitions(n)) for n in range(8)] == [1, 1, 2, 5, 15, 52, 203, 877]
    kinds: dict[tuple[int, ...], int] = {}
    for partition in set_partitions(8, even=True):
        kind = tuple(sorted(map(len, partition)))
        kinds[kind] = kinds.get(kind, 0) + 1
    assert kinds == {(8,): 1, (2, 6): 28, (4, 4): 35, (2, 2, 4): 210, (2, 2, 2, 2): 105}


def test_even_partitions_are_those_of_the_full_list() -> None:
    kept = [p for p in set_partitions(6) if all(len(block) % 2 == 0 for block in p)]
    assert sorted(kept) == sorted(set_partitions(6, even=True))


def test_reference_values() -> None:
    assert wick_moment(FOUR, [0, 1, 2, 3]) == pytest.approx(0.025, abs=1e-14)
    assert wick_moment(FOUR, [0, 0, 1, 1, 2, 3]) == pytest.approx(0.161, abs=1e-14)
    assert gaussian_moment(FOUR, [2, 2, 2, 2]) == pytest.approx(2.5663, abs=1e-13)


@pytest.mark.parametrize("powers", [[2, 2, 1, 1], [4, 0, 3, 1], [2, 2, 2, 2], [0, 5, 0, 1], [1, 1, 1, 0]])
def test_against_exact_quadrature(powers: list[int]) -> None:
    assert gaussian_moment(FOUR, powers) == pytest.approx(
        quadrature_moment(FOUR, powers), rel=1e-12, abs=1e-13
    )


def test_against_the_sum_over_pairings() -> None:
    indices = [0, 1, 1, 2, 3, 0, 2, 2]
    by_hand = sum(math.prod(FOUR[indices[a], indices[b]] for a, b in p) for p in pairings(8))
    assert wick_moment(FOUR, indices) == pytest.approx(by_hand, rel=1e-13)


def test_wick_counts_of_the_quartic_action() -> None:
    """Of the eight-point pairings, four external and four internal legs: 9 + 72 + 24 (section 1.3)."""
    external = [sum(a < 4 and b < 4 for a, b in p) for p in pairings(8)]
    assert [external.count(joined) for joined in (2, 1, 0)] == [9, 72, 24]


def test_a_mean_shifts_the_moments() -> None:
    mean, K = np.array([0.3, -0.7]), FOUR[:2, :2]
    # E[(x + a)^2 (y + b)^2] expanded by hand.
    a, b = mean
    expected = (
        gaussian_moment(K, [2, 2]) + b**2 * K[0, 0] + a**2 * K[1, 1] + 4 * a * b * K[0, 1] + a**2 * b**2
    )
    assert gaussian_moment(K, [2, 2], mean) == pytest.approx(expected, rel=1e-14)
    assert gaussian_moment(K, [1, 0], mean) == mean[0]


def test_batches_of_covariances_and_means() -> None:
    stack = np.stack([FOUR, 2 * FOUR, np.eye(4)]).reshape(3, 1, 4, 4)
    found = gaussian_moment(stack, [2, 1, 1, 0])
    assert found.shape == (3, 1)
    assert found[:, 0] == pytest.approx([gaussian_moment(K[0], [2, 1, 1, 0]) for K in stack], rel=1e-14)
    means = np.arange(20.0).reshape(5, 4)
    assert gaussian_moment(FOUR, [1, 0, 0, 0], means) == pytest.approx(means[:, 0])


def test_singular_covariances_need_no_inverse() -> None:
    vector = np.array([1.0, -2.0, 0.5])
    K = np.outer(vector, vector)
    assert gaussian_moment(K, [2, 1, 3]) == pytest.approx(15 * 1 * -2.0 * 0.125)
    assert gaussian_moment(np.zeros((2, 2)), [2, 0]) == 0
    assert gaussian_moment(np.zeros((2, 2)), [0, 0]) == 1


def test_fractions_stay_exact() -> None:
    K = np.array([[Fraction(1, 3), Fraction(1, 7)], [Fraction(1, 7), Fraction(2)]], dtype=object)
    # E[z1^2 z2^2] = K11 K22 + 2 K12^2
    assert gaussian_moment(K, [2, 2]) == Fraction(2, 3) + 2 * Fraction(1, 49)
    assert isinstance(gaussian_moment(K, [4, 0]), Fraction)


@settings(deadline=None, max_examples=30)
@given(st.permutations(range(4)), st.lists(st.integers(0, 3), min_size=4, max_size=4), st.floats(0.1, 10))
def test_permutations_and_scaling(order: list[int], powers: list[int], scale: float) -> None:
    moment = gaussian_moment(FOUR, powers)
    permuted = gaussian_moment(FOUR[np.ix_(order, order)], [powers[i] for i in order])
    assert permuted == pytest.approx(moment, rel=1e-12, abs=1e-13)
    scaled = gaussian_moment(scale * FOUR, powers)
    assert scaled == pytest.approx(scale ** (sum(powers) / 2) * moment, rel=1e-11, abs=1e-13)


@settings(deadline=None, max_examples=20)
@given(
    st.lists(st.sampled_from([-1.0, 1.0]), min_size=4, max_size=4),
    st.lists(st.integers(0, 3), min_size=4, max_size=4),
)
def test_sign_flips(signs: list[float], powers: list[int]) -> None:
    flipped = gaussian_moment(FOUR * np.outer(signs, signs), powers)
    parity = math.prod(s**p for s, p in zip(signs, powers))
    assert flipped == pytest.approx(parity * gaussian_moment(FOUR, powers), rel=1e-13)


def test_loops() -> None:
    assert loop_count(((0, 1), (2, 3)), ((0, 1), (2, 3))) == 2
    assert loop_count(((0, 1), (2, 3)), ((0, 2), (1, 3))) == 1
    assert loop_count(((0, 1), (2, 3), (4, 5)), ((0, 2), (1, 3), (4, 5))) == 2
    assert loop_count((), ()) == 0


def test_equal_index_pairings_against_enumeration() -> None:
    for indices in ([1, 1, 2, 2], [1, 2, 2, 1, 1, 1], [1, 1, 1, 2], [3] * 8, [1, 2]):
        by_hand = sum(all(indices[a] == indices[b] for a, b in p) for p in pairings(len(indices)))
        assert equal_index_pairings(indices) == by_hand
    assert equal_index_pairings([1, 1, 2]) == 0


def test_bad_input() -> None:
    with pytest.raises(InputError, match="5 items"):
        pairings(5)
    with pytest.raises(NotSupportedError, match="34459425 pairings"):
        pairings(18)
    with pytest.raises(NotSupportedError, match="678570 partitions"):
        set_partitions(11)
    with pytest.raises(InputError, match="cannot be split"):
        set_partitions(-1)
    with pytest.raises(InputError, match="not symmetric"):
        gaussian_moment([[1.0, 0.5], [0.0, 1.0]], [1, 1])
    with pytest.raises(InputError, match="positive semidefinite"):
        gaussian_moment([[1.0, 2.0], [2.0, 1.0]], [1, 1])
    with pytest.raises(InputError, match="not finite"):
        gaussian_moment([[np.nan]], [2])
    with pytest.raises(InputError, match="3 inputs"):
        gaussian_moment(np.eye(2), [1, 1, 2])
    with pytest.raises(InputError, match="whole numbers"):
        gaussian_moment(np.eye(2), [1, -1])
    with pytest.raises(NotSupportedError, match="order 700"):
        gaussian_moment(np.eye(1), [700])
    with pytest.raises(InputError, match="index 2"):
        wick_moment(np.eye(2), [0, 2])
    with pytest.raises(InputError, match="mean has shape"):
        gaussian_moment(np.eye(2), [1, 1], mean=[1.0])
    with pytest.raises(InputError, match="mean has entries"):
        gaussian_moment(np.eye(1), [1], mean=[np.inf])
    with pytest.raises(InputError, match="objects"):
        gaussian_moment(np.array([["one"]], dtype=object), [2])
    with pytest.raises(InputError, match="double factorial"):
        double_factorial(-3)
    with pytest.raises(InputError, match="different items"):
        loop_count(((0, 1),), ((0, 2),))
