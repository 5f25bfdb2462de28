from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foretrain.gaussian.cumulants import (
    Estimate,
    cumulant_tensor,
    cumulants_from_moments,
    even_cumulants_from_moments,
    even_moments_from_cumulants,
    joint_cumulant,
    joint_moment,
    moment_tensor,
    moments_from_cumulants,
    sample_excess_kurtosis,
    sample_four_point,
    sample_inter_neuron,
    sample_joint_cumulant,
    sample_square_correlation,
    sample_two_point,
    scale_mixture_connected,
    scale_mixture_moment,
)
from foretrain.gaussian.wick import set_partitions, wick_moment
from foretrain.support.errors import InputError

K = np.array([[1.0, 0.5, -0.2], [0.5, 1.2, 0.4], [-0.2, 0.4, 0.9]])


def test_poisson_has_equal_cumulants() -> None:
    # Touchard polynomials at 1 are the Bell numbers.
    assert moments_from_cumulants(np.ones(6)) == pytest.approx([1, 2, 5, 15, 52, 203])
    assert cumulants_from_moments([1, 2, 5, 15, 52, 203]) == pytest.approx(np.ones(6))


def test_gamma_cumulants() -> None:
    """A chi-squared variable with n degrees: kappa_m = 2^(m-1) (m-1)! n."""
    n = 5
    moments = np.cumprod([n + 2 * s for s in range(5)]).astype(float)
    assert cumulants_from_moments(moments) == pytest.approx([n, 2 * n, 8 * n, 48 * n, 384 * n], rel=1e-12)


def test_even_conversion_matches_the_printed_coefficients() -> None:
    m2, m4, m6, m8 = 1.3, 4.7, 31.0, 420.0
    expected = [
        m2,
        m4 - 3 * m2**2,
        m6 - 15 * m4 * m2 + 30 * m2**3,
        m8 - 28 * m6 * m2 - 35 * m4**2 + 420 * m4 * m2**2 - 630 * m2**4,
    ]
    assert even_cumulants_from_moments([m2, m4, m6, m8]) == pytest.approx(expected, rel=1e-13)
    full = cumulants_from_moments([0, m2, 0, m4, 0, m6, 0, m8])
    assert full[1::2] == pytest.approx(expected, rel=1e-13)
    assert full[::2] == pytest.approx(0)


@settings(deadline=None, max_examples=30)
@given(st.lists(st.floats(-3, 3), min_size=1, max_size=7))
def test_conversions_are_inverse(values: list[float]) -> None:
    batch = np.array([values, [2 * v for v in values]])
    assert cumulants_from_moments(moments_from_cumulants(batch)) == pytest.approx(batch, abs=1e-6)
    assert even_cumulants_from_moments(even_moments_from_cumulants(batch)) == pytest.approx(batch, abs=1e-3)


def test_batches_are_converted_row_by_row() -> None:
    rng = np.random.default_rng(1)
    table = rng.normal(size=(2, 3, 5))
    assert cumulants_from_moments(table)[1, 2] == pytest.approx(cumulants_from_moments(table[1, 2]))


def test_fractions_stay_exact() -> None:
    moments = np.array([Fraction(1, 3), Fraction(1, 2), Fraction(7, 5)], dtype=object)
    kappa = cumulants_from_moments(moments)
    assert kappa[2] == Fraction(7, 5) - 3 * Fraction(1, 3) * Fraction(1, 2) + 2 * Fraction(1, 27)
    assert list(moments_from_cumulants(kappa)) == list(moments)


def test_gaussian_correlators_beyond_two_points_have_no_connected_part() -> None:
    for indices in ([0, 1, 2, 2], [0, 0, 1, 1, 2, 2], [0, 1, 2]):
        assert joint_cumulant(lambda block: wick_moment(K, block), indices) == pytest.approx(0, abs=1e-12)
    assert joint_cumulant(lambda block: wick_moment(K, block), [0, 1]) == K[0, 1]


def test_joint_moment_of_a_gaussian_is_wicks_theorem() -> None:
    def connected(block: tuple[int, ...]) -> float:
        return float(K[block]) if len(block) == 2 else 0.0

    indices = [0, 1, 1, 2, 0, 2]
    assert joint_moment(connected, indices, even=True) == pytest.approx(wick_moment(K, indices))
    assert joint_moment(connected, indices) == pytest.approx(wick_moment(K, indices))


def test_joint_cumulant_is_additive_over_independent_variables() -> None:
    """For X = A + B with A, B independent, cumulants add; the moments are enumerated over four equal outcomes."""
    outcomes_a = np.array([[0.0, 1.0, 3.0], [2.0, -1.0, 0.5]])
    outcomes_b = np.array([[1.0, 1.0, -2.0], [0.0, 4.0, 1.0], [-3.0, 0.2, 0.1]])
    both = (outcomes_a[:, None] + outcomes_b[None]).reshape(-1, 3)

    def moment_of(table: np.ndarray) -> Callable[[tuple[int, ...]], Any]:
        return lambda block: table[:, list(block)].prod(axis=1).mean()

    for indices in ([0, 1, 2], [0, 0, 1, 2], [0, 1, 1, 2, 2]):
        parts = [joint_cumulant(moment_of(t), indices) for t in (outcomes_a, outcomes_b)]
        assert joint_cumulant(moment_of(both), indices) == pytest.approx(sum(parts), rel=1e-11, abs=1e-11)


def test_tensors_agree_with_single_correlators_and_invert() -> None:
    rng = np.random.default_rng(2)
    draws = rng.normal(size=(7, 2)) ** 3
    moments = {
        order: np.einsum(
            ",".join("s" + "abcd"[i] for i in range(order)) + "->" + "abcd"[:order], *[draws] * order
        )
        / 7
        for order in (1, 2, 3, 4)
    }
    kappa = cumulant_tensor(moments, 4)
    single = joint_cumulant(lambda block: moments[len(block)][block], [0, 1, 1, 0])
    assert kappa[0, 1, 1, 0] == pytest.approx(single, rel=1e-12)
    cumulants = {order: cumulant_tensor(moments, order) for order in (1, 2, 3, 4)}
    assert moment_tensor(cumulants, 4) == pytest.approx(moments[4], rel=1e-11)


def test_even_tensors_need_even_orders_only() -> None:
    quartic = np.einsum("ab,cd->abcd", K, K)
    quartic = quartic + quartic.transpose(0, 2, 1, 3) + quartic.transpose(0, 3, 2, 1)
    assert cumulant_tensor({2: K, 4: quartic}, 4) == pytest.approx(0, abs=1e-15)
    assert moment_tensor({2: K, 4: np.zeros((3,) * 4)}, 4) == pytest.approx(quartic)
    assert cumulant_tensor({2: K}, 3) == pytest.approx(0)


def test_scale_mixtures_carry_the_cumulants_of_the_variance() -> None:
    """R takes the values 1 and 3 with equal odds: every partition of six points, against kappa_3(R)."""
    moments_of_R = [2.0, 5.0, 14.0]
    kappa = cumulants_from_moments(moments_of_R)
    for neurons in (
        [1, 1, 2, 2],
        [1, 1, 1, 1],
        [1, 1, 2, 2, 3, 3],
        [1] * 6,
        [1, 1, 1, 1, 2, 2],
        [1, 2, 2, 2],
    ):
        direct = joint_cumulant(lambda block: scale_mixture_moment(moments_of_R, block), neurons, even=True)
        assert scale_mixture_connected(moments_of_R, neurons) == pytest.approx(direct, abs=1e-12)
    assert scale_mixture_connected(moments_of_R, [1, 1, 2, 2]) == kappa[1] == 1.0
    assert scale_mixture_connected(moments_of_R, [1] * 6) == pytest.approx(15 * kappa[2])


def test_partitions_of_even_laws_have_the_printed_counts() -> None:
    assert len(set_partitions(6, even=True)) == 31


Estimator = Callable[[np.ndarray], Estimate]


def repeated(
    estimator: Estimator, make: Callable[[np.random.Generator], np.ndarray], repeats: int
) -> np.ndarray:
    rng = np.random.default_rng(20)
    found = [estimator(make(rng)) for _ in range(repeats)]
    return np.array([[e.value, e.standard_error] for e in found])


def mixture_layer(rng: np.random.Generator, draws: int, neurons: int) -> np.ndarray:
    """z = sqrt(R) g with R = chi2_8 / 8: kappa_2(R) = 1/4, so kappa_4(z) = 3/4."""
    return np.sqrt(rng.chisquare(8, size=(draws, 1)) / 8) * rng.normal(size=(draws, neurons))


FOURTH_OF_R = 1.25
CASES: list[tuple[Estimator, int, float]] = [
    (sample_two_point, 1, 1.0),
    (sample_two_point, 5, 1.0),
    (sample_four_point, 1, 0.75),
    (sample_four_point, 5, 0.75),
    (sample_inter_neuron, 2, 0.25),
    (sample_inter_neuron, 5, 0.25),
    (sample_excess_kurtosis, 4, 0.75),
    (sample_square_correlation, 3, 0.25 / (3 * FOURTH_OF_R - 1)),
]


@pytest.mark.slow(after=3)
@pytest.mark.parametrize(("estimator", "neurons", "truth"), CASES)
def test_quoted_errors_are_right_on_a_scale_mixture(estimator: Estimator, neurons: int, truth: float) -> None:
    """The scatter of repeated estimates is the quoted error, and they scatter around the truth."""
    table = repeated(estimator, lambda rng: mixture_layer(rng, 6000, neurons), 150)
    scatter = table[:, 0].std(ddof=1)
    # 150 repeats know the scatter to 6 %; heavy tails of z^8 add a little.
    assert table[:, 1].mean() == pytest.approx(scatter, rel=0.25)
    assert abs(table[:, 0].mean() - truth) < 4 * scatter / np.sqrt(150)


def test_variances_on_gaussian_draws() -> None:
    """24 K^4 / S from one neuron, 4 K^4 / S from one pair (section 1.2's estimators), at K = 2."""
    draws, repeats = 2000, 600
    for estimator, neurons, constant in ((sample_four_point, 1, 24), (sample_inter_neuron, 2, 4)):
        table = repeated(estimator, lambda rng, n=neurons: np.sqrt(2) * rng.normal(size=(draws, n)), repeats)
        assert table[:, 0].var(ddof=1) * draws / 16 == pytest.approx(constant, rel=0.25)
        assert (table[:, 1] ** 2).mean() * draws / 16 == pytest.approx(constant, rel=0.1)


def test_four_point_estimate_is_unbiased_for_few_draws() -> None:
    table = repeated(sample_four_point, lambda rng: rng.normal(size=(5, 1)), 10_000)
    # The plug-in estimate would be off by -6/5.
    assert abs(table[:, 0].mean()) < 4 * table[:, 0].std() / 100


def test_jackknife_of_a_six_point_correlator() -> None:
    """E[z1^2 z2^2 z3^2] connected is kappa_3(R) = 8 n / n^3 = 1/8 for R = chi2_8 / 8."""
    estimates = repeated(
        lambda z: sample_joint_cumulant(z, [0, 0, 1, 1, 2, 2], even=True),
        lambda rng: mixture_layer(rng, 4000, 3),
        200,
    )
    scatter = estimates[:, 0].std(ddof=1)
    assert estimates[:, 1].mean() == pytest.approx(scatter, rel=0.3)
    assert abs(estimates[:, 0].mean() - 1 / 8) < 4 * scatter / np.sqrt(200)


def test_trailing_axes_are_kept() -> None:
    rng = np.random.default_rng(3)
    draws = rng.normal(size=(50, 4, 2, 3))
    for estimator in (sample_two_point, sample_four_point, sample_inter_neuron, sample_square_correlation):
        whole = estimator(draws)
        assert whole.value.shape == whole.standard_error.shape == (2, 3)
        single = estimator(draws[:, :, 1, 2])
        assert whole.value[1, 2] == pytest.approx(single.value)
        assert whole.standard_error[1, 2] == pytest.approx(single.standard_error)


def test_estimates_print() -> None:
    assert "1.25 ± 0.012" in repr(Estimate(1.25, 0.0123))
    assert "1, 1" in repr(Estimate(np.ones(2), np.ones(2)))


def test_bad_input() -> None:
    with pytest.raises(InputError, match="list ordered"):
        cumulants_from_moments(1.0)
    with pytest.raises(InputError, match="at least one index"):
        joint_cumulant(lambda block: 1.0, [])
    with pytest.raises(InputError, match=r"orders \[4\]"):
        cumulant_tensor({2: K}, 4)
    with pytest.raises(InputError, match="same length"):
        cumulant_tensor({2: np.ones((2, 3))}, 2)
    with pytest.raises(InputError, match="even number"):
        scale_mixture_moment([1.0], [1, 1, 1])
    with pytest.raises(InputError, match="first 2 moments"):
        scale_mixture_connected([1.0], [1, 1, 1, 1])
    with pytest.raises(InputError, match="two draws"):
        sample_two_point([1.0])
    with pytest.raises(InputError, match="at least 2 neurons"):
        sample_inter_neuron(np.ones(5))
    with pytest.raises(InputError, match="not finite"):
        sample_four_point([1.0, np.nan])
    with pytest.raises(InputError, match="finite table"):
        sample_joint_cumulant(np.ones(4), [0])
    with pytest.raises(InputError, match="50 blocks"):
        sample_joint_cumulant(np.ones((4, 1)), [0, 0])
    with pytest.raises(InputError, match="within the 1 variables"):
        sample_joint_cumulant(np.ones((60, 1)), [0, 1])
