from __future__ import annotations

import math

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, special, stats

from foretrain.support.errors import InputError, NotSupportedError
from foretrain.theory import linear
from foretrain.theory.linear import DeepLinear, log_chi_square_moment

TEN = DeepLinear([10] * 50)


def bessel_density(z: float, n: int, G: float) -> float:
    """Layer 2 in closed form."""
    a, order = math.sqrt(n / G), (n - 1) / 2
    scaled = a * abs(z)
    front = a / (math.sqrt(math.pi) * 2**order * special.gamma(n / 2))
    return float(front * scaled**order * special.kv(order, scaled))


@pytest.mark.parametrize(
    ("layer", "absolute", "mean", "variance"),
    [
        (2, 0.7782167679, -0.103320244, 0.2213229557),
        (5, 0.7220747393, -0.413280976, 0.8852918229),
        (10, 0.6373599431, -0.929882196, 1.991906602),
        (50, 0.2348581695, -5.062691956, 10.84482483),
    ],
)
def test_table_at_width_ten(layer: int, absolute: float, mean: float, variance: float) -> None:
    assert float(linear.absolute_moment(TEN, 1.0, 1.0).sel(layer=layer)) == pytest.approx(absolute, rel=1e-9)
    found = linear.log_variance_statistics(TEN, 1.0).sel(layer=layer)
    assert float(found["mean"]) == pytest.approx(mean, rel=1e-8)
    assert float(found["variance"]) == pytest.approx(variance, rel=1e-9)


def test_absolute_moments_contain_the_even_ones() -> None:
    network = DeepLinear([3, 8, 2], C_W=1.4)
    moments = linear.moments(network, 0.6, 3).values
    for m, count in ((1, 1), (2, 3), (3, 15)):
        found = linear.absolute_moment(network, 0.6, 2 * m).values
        assert found == pytest.approx(count * moments[:, m - 1], rel=1e-12)
    assert linear.absolute_moment(network, 0.6, 0.0).values == pytest.approx(1.0)


def test_a_bias_in_layer_one_only_shifts_its_variance() -> None:
    shifted = DeepLinear([3, 8, 2], C_W=1.4, C_b=[0.5, 0, 0])
    plain = DeepLinear([3, 8, 2], C_W=1.4)
    G0 = (0.5 + 1.4 * 0.6) / 1.4
    assert linear.absolute_moment(shifted, 0.6, 1.3).values == pytest.approx(
        linear.absolute_moment(plain, G0, 1.3).values, rel=1e-13
    )


@pytest.mark.parametrize("n", [1, 7, 79, 80, 401, 10**6])
@pytest.mark.parametrize("s", [0.5, -0.45, 3.0, 0.3 + 2j])
def test_chi_square_moments_at_any_width(n: int, s: complex) -> None:
    with mp.workdps(40):
        a = mp.mpf(n) / 2
        expected = complex(mp.loggamma(a + s) - mp.loggamma(a) - s * mp.log(a))
    assert complex(log_chi_square_moment(n, s)) == pytest.approx(
        expected, rel=1e-12, abs=4e-14 if n < 80 else 2e-15
    )


def test_log_statistics_at_large_width() -> None:
    found = linear.log_variance_statistics(DeepLinear([10**7, 1]), 1.0)
    assert float(found["mean"][1]) == pytest.approx(-1e-7, rel=1e-6)
    assert float(found["variance"][1]) == pytest.approx(2e-7, rel=1e-6)


def test_density_reference_values() -> None:
    found = linear.density(DeepLinear([4, 1]), [0.0, 0.5, 1.0, 2.0], 0.8, 2)
    assert found == pytest.approx([0.5590169944, 0.3870810799, 0.1933439838, 0.0349428177], abs=6e-11)


@pytest.mark.parametrize("n", [1, 2, 3, 10, 51])
def test_layer_two_density_is_bessels(n: int) -> None:
    """Relative precision over many orders of magnitude of z and deep into the tail."""
    points = [1e-15 if n < 50 else 1e-5, 1e-8 if n < 50 else 1e-4, 1e-3, 0.1, 1.0, 5.0, 20.0, 60.0]
    found = linear.density(DeepLinear([n, 3]), points, 0.8, 2)
    assert found == pytest.approx([bessel_density(z, n, 0.8) for z in points], rel=1e-12)
    assert linear.density(DeepLinear([n, 3]), -2.0, 0.8, 2) == pytest.approx(
        bessel_density(2.0, n, 0.8), rel=1e-12
    )


@pytest.mark.parametrize("widths", [(1, 1), (2, 2), (3, 5), (2, 1)])
def test_layer_three_density_is_a_mixture(widths: tuple[int, int]) -> None:
    """Layer 2's density, averaged over the chi-square of the layer below by scipy."""
    first, second = widths
    for z in (0.1, 1.0, 4.0):

        def integrand(v: float, z: float = z) -> float:
            u = math.exp(v)
            return bessel_density(z, second, 0.8 * u / first) * stats.chi2.pdf(u, first) * u

        expected = integrate.quad(integrand, -60, 6, epsabs=1e-13, epsrel=1e-10, limit=400)[0]
        assert linear.density(DeepLinear([*widths, 1]), z, 0.8, 3) == pytest.approx(expected, rel=1e-9)


def test_layer_one_density_is_gaussian() -> None:
    network = DeepLinear([4, 4], C_W=2.0, C_b=[0.5, 0])
    points = np.array([[0.0, 1.0], [-2.0, 3.0]])
    assert linear.density(network, points, 0.5, 1) == pytest.approx(
        stats.norm.pdf(points, scale=math.sqrt(1.5))
    )


@pytest.mark.slow
@pytest.mark.parametrize("layer", [2, 3, 12, 50])
def test_densities_integrate_to_their_moments(layer: int) -> None:
    """On a logarithmic grid, which is exact to rounding for functions that decay at both ends."""
    v = np.linspace(-60, 25, 5000)
    z = np.exp(v)
    mass = 2 * linear.density(TEN, z, 1.3, layer) * z * (v[1] - v[0])
    assert mass.sum() == pytest.approx(1.0, rel=1e-11)
    for power in (0.5, 1.0, 2.0):
        expected = float(linear.absolute_moment(TEN, 1.3, power).sel(layer=layer))
        assert mass @ z**power == pytest.approx(expected, rel=1e-10)


def test_density_at_zero() -> None:
    assert linear.density(DeepLinear([1, 5, 2]), 0.0, 1.0, 3) == np.inf
    # n = 2: the Laplace law with scale sqrt(G / 2).
    assert linear.density(DeepLinear([2, 1]), 0.0, 1.0, 2) == pytest.approx(1 / math.sqrt(2), rel=1e-14)
    near = linear.density(DeepLinear([4, 4, 1]), [0.0, 1e-30], 1.0, 3)
    assert near[0] == pytest.approx(near[1], rel=1e-13)


@settings(deadline=None, max_examples=15)
@given(st.floats(0.01, 100), st.lists(st.integers(1, 9), min_size=1, max_size=4), st.floats(0.01, 30))
def test_density_scales(scale: float, widths: list[int], z: float) -> None:
    network = DeepLinear([*widths, 1])
    layer = network.depth
    one = linear.density(network, z, 1.0, layer)
    other = linear.density(network, z * math.sqrt(scale), scale, layer)
    assert other * math.sqrt(scale) == pytest.approx(one, rel=1e-11)


def test_sampler_matches_the_exact_law() -> None:
    network = DeepLinear([6, 9, 5, 7], C_W=1.1)
    R = linear.sample_variances(network, 200_000, 1.5625, seed=4)
    assert R.shape == (200_000, 4)
    logs = linear.log_variance_statistics(network, 1.5625)
    # log R has light tails: compare at four standard errors.
    for layer in range(1, 4):
        sample = np.log(R[:, layer])
        assert abs(sample.mean() - float(logs["mean"][layer])) < 4 * sample.std() / np.sqrt(len(sample))
        spread = (sample - sample.mean()) ** 2
        assert abs(spread.mean() - float(logs["variance"][layer])) < 4 * spread.std() / np.sqrt(len(sample))
    assert R[:, 0] == pytest.approx(1.1 * 1.5625)
    G2, G4 = linear.moments(network, 1.5625, 2).values[-1]
    for sample, expected in ((R[:, -1], G2), (R[:, -1] ** 2, G4)):
        assert abs(sample.mean() - expected) < 4 * sample.std() / np.sqrt(len(sample))


def test_sampler_with_biases_and_its_reproducibility() -> None:
    network = DeepLinear([4, 5, 2], C_W=0.8, C_b=0.3)
    z = linear.sample_preactivations(network, 200_000, 1.0, layer=3, neurons=2, seed=5)
    assert z.shape == (200_000, 2)
    G2, G4 = linear.moments(network, 1.0, 2).values[-1]
    for sample, expected in ((z[:, 0] ** 2, G2), (z[:, 0] ** 2 * z[:, 1] ** 2, G4)):
        assert abs(sample.mean() - expected) < 4 * sample.std() / np.sqrt(len(sample))
    again = linear.sample_preactivations(network, 200_000, 1.0, layer=3, neurons=2, seed=5)
    assert np.array_equal(z, again)
    plain, zero = (linear.sample_variances(network, 3, 1.0, **seed) for seed in ({}, {"seed": 0}))
    assert np.array_equal(plain, zero)  # the same numbers without a seed, too


def test_samples_follow_the_density() -> None:
    network = DeepLinear([3, 4, 5])
    z = np.sort(linear.sample_preactivations(network, 20_000, 1.0, layer=3, seed=6)[:, 0])
    grid = np.linspace(-12, 12, 4001)
    cumulative = integrate.cumulative_trapezoid(linear.density(network, grid, 1.0, 3), grid, initial=0)
    assert stats.kstest(z, lambda x: np.interp(x, grid, cumulative)).pvalue > 1e-3


@pytest.mark.statistical
def test_real_networks_have_this_log_variance_and_absolute_value() -> None:
    random = np.random.default_rng(7)
    draws, x = 400_000, np.array([1.0, 2.0, -1.0, 0.5])
    z = np.broadcast_to(x, (draws, 4))
    for n in (6, 9, 5, 7):
        below = z
        W = random.normal(size=(draws, n, z.shape[1])) * np.sqrt(1.1 / z.shape[1])
        z = np.einsum("dij,dj->di", W, z)
    network, G0 = DeepLinear([6, 9, 5, 7], C_W=1.1), float((x**2).mean())
    log_R = np.log(1.1 * (below**2).mean(axis=1))
    statistics = linear.log_variance_statistics(network, G0)
    expected = [
        (log_R, float(statistics["mean"][3])),
        ((log_R - log_R.mean()) ** 2, float(statistics["variance"][3])),
        (np.abs(z).mean(axis=1), float(linear.absolute_moment(network, G0, 1.0)[3])),
        ((np.abs(z) ** -0.3).mean(axis=1), float(linear.absolute_moment(network, G0, -0.3)[3])),
    ]
    for sample, value in expected:
        assert abs(sample.mean() - value) < 4 * sample.std() / np.sqrt(draws)


def test_bad_input() -> None:
    biased = DeepLinear([3, 4], C_b=0.1)
    with pytest.raises(NotSupportedError, match=r"without biases"):
        linear.absolute_moment(biased, 1.0, 1.0)
    with pytest.raises(NotSupportedError, match="log R"):
        linear.log_variance_statistics(biased, 1.0)
    with pytest.raises(NotSupportedError, match="density is known only"):
        linear.density(biased, 0.0, 1.0, 2)
    with pytest.raises(InputError, match="above -1"):
        linear.absolute_moment(TEN, 1.0, -1.0)
    with pytest.raises(InputError, match="non-zero input"):
        linear.log_variance_statistics(TEN, 0.0)
    with pytest.raises(InputError, match="no density"):
        linear.density(TEN, 0.0, 0.0, 2)
    with pytest.raises(InputError, match="points z"):
        linear.density(TEN, np.nan, 1.0, 2)
    with pytest.raises(InputError, match="layer 51"):
        linear.density(TEN, 0.0, 1.0, 51)
    with pytest.raises(InputError, match="at least one"):
        linear.sample_variances(TEN, 0, 1.0)
    with pytest.raises(InputError, match="11 of them"):
        linear.sample_preactivations(TEN, 5, 1.0, layer=2, neurons=11)
