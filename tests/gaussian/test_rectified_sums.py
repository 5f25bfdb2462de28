from __future__ import annotations

import itertools
import math

import mpmath as mp
import numpy as np
import pytest

from foretrain.gaussian.orthant import orthant_moment
from foretrain.gaussian.rectified_sums import RectifiedSum, rectified_sum, rectified_sum_mean
from foretrain.support.errors import InputError

Pair = tuple[float, float, float, float, float, float]

ONE_PAIR: Pair = (1.0, 1.4, 0.6, 0.8, 0.5, 0.3)
GENERIC: list[Pair] = [
    ONE_PAIR,
    (1.0, 1.4, -0.6, 0.8, 0.5, 0.3),
    (1.0, 1.4, 0.6, 0.8, 0.5, -0.3),
    (1.0, 0.4, -0.5, 0.8, 3.0, -1.2),
    (0.2, 2.0, 0.0, 1.3, 0.7, 0.5),
]


def values(pair: Pair) -> np.ndarray:
    """Second moment, weights and gains of one pair."""
    return np.array(rectified_sum(*pair, gains=True), dtype=float)


def natural_sizes(pairs: np.ndarray) -> np.ndarray:
    """What rounding of each of the five is measured by, for pairs (..., 6)."""
    a, a2, _, b, b2, _ = np.moveaxis(pairs, -1, 0)
    one = np.ones_like(a)
    return np.stack([np.sqrt((a + b) * (a2 + b2)), one, one, np.sqrt(a * a2), np.sqrt(b * b2)])


def at_correlations(a: float, a2: float, rho_u: float, b: float, b2: float, rho_v: float) -> Pair:
    return a, a2, rho_u * math.sqrt(a * a2), b, b2, rho_v * math.sqrt(b * b2)


# Independent references


def polar_integral(pair: Pair, nodes: int = 60) -> np.ndarray:
    """The five means as integrals over the directions of (u, v) and of (u', v'), the radii in closed form."""
    a, a2, k, b, b2, q = pair
    x, w = np.polynomial.legendre.leggauss(nodes)

    def directions(a: float, b: float) -> tuple[np.ndarray, np.ndarray]:
        edges = np.array([-math.atan2(math.sqrt(a), math.sqrt(b)), 0.0, math.pi / 2, math.pi])
        middles, halves = (edges[1:] + edges[:-1]) / 2, np.diff(edges) / 2
        return (middles[:, None] + halves[:, None] * x).ravel(), (halves[:, None] * w).ravel()

    (first, weight), (second, weight2) = directions(a, b), directions(a2, b2)
    rho, tau = k / math.sqrt(a * a2), q / math.sqrt(b * b2)
    left, right = 1 - rho**2, 1 - tau**2
    # The exponent -(A r^2 - 2 B r r' + C r'^2) / 2.
    A = np.cos(first) ** 2 / left + np.sin(first) ** 2 / right
    C = np.cos(second) ** 2 / left + np.sin(second) ** 2 / right
    B = rho * np.outer(np.cos(first), np.cos(second)) / left
    B += tau * np.outer(np.sin(first), np.sin(second)) / right
    product = np.outer(A, C)
    cosine = B / np.sqrt(product)
    rest = 1 - cosine**2
    opening = np.arccos(-cosine)
    density = np.outer(weight, weight2) / (4 * math.pi**2 * math.sqrt(left * right))
    plain = density / product * (1 / rest + cosine * opening / rest**1.5)
    squared = density / product**1.5 * (3 * cosine / rest**2 + opening * (1 + 2 * cosine**2) / rest**2.5)

    u, u2 = math.sqrt(a) * np.cos(first), math.sqrt(a2) * np.cos(second)
    v, v2 = math.sqrt(b) * np.sin(first), math.sqrt(b2) * np.sin(second)
    h, h2 = np.maximum(np.maximum(u, 0) + v, 0), np.maximum(np.maximum(u2, 0) + v2, 0)
    return np.array(
        [
            h @ squared @ h2,
            (u > 0) @ plain @ (u2 > 0),
            plain.sum(),
            np.maximum(u, 0) @ squared @ np.maximum(u2, 0),
            v @ squared @ v2,
        ]
    )


def quadrants(pairs: np.ndarray) -> np.ndarray:
    """The five means as sums of four-variable orthant moments over the signs of u and u', for pairs (n, 6)."""
    a, a2, k, b, b2, q = pairs.T
    fields = np.zeros((len(pairs), 4, 4))
    fields[:, 0, 0], fields[:, 1, 1], fields[:, 0, 1], fields[:, 1, 0] = a, a2, k, k
    fields[:, 2, 2], fields[:, 3, 3], fields[:, 2, 3], fields[:, 3, 2] = b, b2, q, q
    total = np.zeros((5, len(pairs)))
    for i, j in itertools.product((1, -1), repeat=2):
        on, on2 = i > 0, j > 0
        # The signed u, u' and what is rectified at last: u + v or v, u' + v' or v'.
        change = np.array([[i, 0, 0, 0], [0, j, 0, 0], [on, 0, 1, 0], [0, on2, 0, 1]], dtype=float)
        K = change @ fields @ change.T
        products = {p: orthant_moment(K, p) for p in ((0, 0, 0, 0), (0, 0, 1, 1), (1, 1, 0, 0))}
        of_v = products[0, 0, 1, 1].copy()
        if on:
            of_v -= orthant_moment(K, (1, 0, 0, 1))
        if on2:
            of_v -= orthant_moment(K, (0, 1, 1, 0))
        total[0] += products[0, 0, 1, 1]
        total[2] += products[0, 0, 0, 0]
        if on and on2:
            total[1] += products[0, 0, 0, 0]
            total[3] += products[1, 1, 0, 0]
            of_v += products[1, 1, 0, 0]
        total[4] += of_v
    return total


def probability(K: mp.matrix) -> mp.mpf:
    """P(all > 0) in the digits of mpmath; of four variables while all correlations grow together to (1 - e) R."""
    n = K.rows
    R = mp.matrix(n, n)
    for i, j in itertools.product(range(n), repeat=2):
        R[i, j] = K[i, j] / mp.sqrt(K[i, i] * K[j, j])
    if n < 4:
        arcs = sum((mp.asin(R[i, j]) for i, j in itertools.combinations(range(n), 2)), start=mp.mpf(0))
        return mp.mpf(2) ** -n + arcs / (2 * mp.pi * max(n - 1, 1))

    def slope(e: mp.mpf) -> mp.mpf:
        at = mp.eye(4) + (1 - e) * (R - mp.eye(4))
        total = mp.mpf(0)
        for i, j in itertools.combinations(range(4), 2):
            k, m = (index for index in range(4) if index not in (i, j))
            c = at[i, j]
            x, y = at[k, i] - c * at[k, j], at[k, j] - c * at[k, i]
            z, w = at[m, i] - c * at[m, j], at[m, j] - c * at[m, i]
            rest = 1 - c * c
            mixed = at[k, m] - (at[m, i] * x + at[m, j] * y) / rest
            first = 1 - (at[k, i] * x + at[k, j] * y) / rest
            second = 1 - (at[m, i] * z + at[m, j] * w) / rest
            total += R[i, j] / mp.sqrt(rest) * (mp.pi / 2 + mp.asin(mixed / mp.sqrt(first * second)))
        return total / (4 * mp.pi**2)

    # Panels that grow away from the end, from below the smallest eigenvalue on.
    edge = min(mp.eigsy(R, eigvals_only=True)) / 100
    edges = [edge * 8**n for n in range(200) if edge * 8**n < 0.3]
    last = mp.quad(lambda x: 2 * x * slope(x * x), [0, mp.sqrt(edge)])
    return mp.mpf(1) / 16 + last + mp.quad(slope, [*edges, 1], method="gauss-legendre")


def moment(K: mp.matrix, powers: list[int], whole: mp.mpf | None = None) -> mp.mpf:
    """E[prod z^power theta(z)] by parts; ``whole`` is the probability that all are positive, if known."""
    if not any(powers):
        return probability(K) if whole is None else whole
    i = next(index for index, power in enumerate(powers) if power)
    rest = [power - (index == i) for index, power in enumerate(powers)]
    total = mp.mpf(0)
    for j, power in enumerate(rest):
        others = [index for index in range(K.rows) if index != j]
        if power:
            total += K[i, j] * moment(K, [p - (index == j) for index, p in enumerate(rest)], whole)
        else:
            given = mp.matrix([[K[p, q] - K[p, j] * K[j, q] / K[j, j] for q in others] for p in others])
            total += K[i, j] / mp.sqrt(2 * mp.pi * K[j, j]) * moment(given, [rest[p] for p in others])
    return total


def many_digits(pair: Pair) -> np.ndarray:
    """As ``quadrants``, in the digits of mpmath and with no rounding of the covariances; not for parallel pairs."""
    a, a2, k, b, b2, q = (mp.mpf(float(entry)) for entry in pair)
    fields = mp.matrix([[a, k, 0, 0], [k, a2, 0, 0], [0, 0, b, q], [0, 0, q, b2]])
    total = [mp.mpf(0)] * 5
    for i, j in itertools.product((1, -1), repeat=2):
        on, on2 = int(i > 0), int(j > 0)
        change = mp.matrix([[i, 0, 0, 0], [0, j, 0, 0], [on, 0, 1, 0], [0, on2, 0, 1]])
        K = change * fields * change.T
        whole = probability(K)
        sums, signed = moment(K, [0, 0, 1, 1], whole), moment(K, [1, 1, 0, 0], whole)
        mixed = on * moment(K, [1, 0, 0, 1], whole) + on2 * moment(K, [0, 1, 1, 0], whole)
        both = on * on2
        parts = (sums, both * whole, whole, both * signed, sums - mixed + both * signed)
        total = [old + new for old, new in zip(total, parts)]
    return np.array([float(entry) for entry in total])


# The source's numbers, and brute force


def test_the_numbers_of_the_reference_for_one_pair() -> None:
    expected = [0.674659659735, 0.236129926755, 0.487809044100]
    np.testing.assert_allclose(rectified_sum(*ONE_PAIR)[:3], expected, atol=6e-13, rtol=0)


def test_the_numbers_of_the_reference_for_equal_inputs() -> None:
    expected = [1.033300934205, 0.383860236401, 0.633860236401]
    np.testing.assert_allclose(rectified_sum(1, 1, 1, 0.8, 0.8, 0.8)[:3], expected, atol=6e-13, rtol=0)


@pytest.mark.parametrize("pair", GENERIC)
def test_integral_over_directions(pair: Pair) -> None:
    np.testing.assert_allclose(values(pair), polar_integral(pair), rtol=1e-12, atol=1e-15)


def test_monte_carlo() -> None:
    rng = np.random.default_rng(7)
    draws = 400_000
    for pair in GENERIC:
        a, a2, k, b, b2, q = pair
        u, u2 = rng.multivariate_normal([0, 0], [[a, k], [k, a2]], draws).T
        v, v2 = rng.multivariate_normal([0, 0], [[b, q], [q, b2]], draws).T
        h, h2 = np.maximum(np.maximum(u, 0) + v, 0), np.maximum(np.maximum(u2, 0) + v2, 0)
        positive = (h > 0) & (h2 > 0)
        both = positive & (u > 0) & (u2 > 0)
        samples = np.array([h * h2, both, positive, u * u2 * both, v * v2 * positive])
        errors = samples.std(axis=1) / math.sqrt(draws)
        assert (np.abs(samples.mean(axis=1) - values(pair)) < 4.5 * errors).all()
        assert abs(h.mean() - rectified_sum_mean(a, b)) < 4.5 * h.std() / math.sqrt(draws)


# Nearly parallel, parallel and opposite pairs, and very different variances

APART = [0.5, 1e-1, 1e-2, 1e-3, 1e-4, 1e-6, 0.0]


@pytest.mark.parametrize("signs", [(1, 1), (1, -1), (-1, 1), (-1, -1)])
@pytest.mark.parametrize(
    "variances", [(1.0, 1.0, 0.8, 0.8), (1.0, 4.0, 0.75, 12.0), (1.0, 2.25, 0.75, 0.1875)]
)
def test_pairs_of_every_angle_agree_with_orthant_moments(
    variances: tuple[float, float, float, float], signs: tuple[int, int]
) -> None:
    a, a2, b, b2 = variances  # whose roots are exact, so that parallel pairs are
    pairs = np.array(
        [
            at_correlations(a, a2, signs[0] * (1 - x), b, b2, signs[1] * (1 - y))
            for x, y in itertools.product(APART, repeat=2)
        ]
    )
    error = np.abs(np.array(rectified_sum(*pairs.T, gains=True)) - quadrants(pairs)) / natural_sizes(pairs)
    assert error.max() < 5e-14


@pytest.mark.parametrize("ratio", [1e-6, 1e-3, 1e3, 1e6])
def test_very_different_variances(ratio: float) -> None:
    correlations = list(itertools.product((-0.999999, -0.7, 0.0, 0.4, 0.999999), repeat=2))
    shapes = [
        (ratio, ratio, 1, 1),
        (ratio, 1, 1, 1),
        (ratio, 1, ratio, 1),
        (1, 1, ratio, 1),
        (ratio, 1, 1, ratio),
    ]
    pairs = np.array(
        [at_correlations(a, a2, x, b, b2, y) for a, a2, b, b2 in shapes for x, y in correlations]
    )
    sizes = natural_sizes(pairs)
    sizes[4] = sizes[0]  # the orthants have v only as a difference of u + v and u
    error = np.abs(np.array(rectified_sum(*pairs.T, gains=True)) - quadrants(pairs)) / sizes
    assert error.max() < 1e-12


# Variances and correlations, and the five means by ``many_digits``.
SIXTY_DIGITS = [
    (
        (1.0, 1.4, 0.6, 0.8, 0.5, -0.3),
        [
            0.482135279519655854,
            0.236630809688614126,
            0.40560357101380118,
            0.348648978255524265,
            0.00843350934698334088,
        ],
    ),
    (
        (1.0, 1.0, 1 - 1e-15, 0.8, 0.8, 1 - 1e-15),
        [
            1.03330093420454157,
            0.383860229307862022,
            0.633860229357618185,
            0.462944961875695193,
            0.443820405912136836,
        ],
    ),
    (
        (1.0, 1.4, 1 - 1e-12, 0.8, 0.5, 0.3),
        [
            0.78309552416504162,
            0.340643636465848366,
            0.489890374657133242,
            0.536297096969321345,
            0.142974518358725186,
        ],
    ),
    (
        (1.0, 1.4, 0.3, 0.8, 0.8, 1 - 1e-15),
        [
            0.901868549413012155,
            0.213942627414331142,
            0.564695954315150695,
            0.244327176580533719,
            0.415689753369132422,
        ],
    ),
    (
        (1.0, 1.0, 1 - 1e-9, 0.8, 0.8, 1 - 1e-15),
        [
            1.03330093382068587,
            0.383854025004569733,
            0.63385758030965262,
            0.462943784058082201,
            0.443819228557463406,
        ],
    ),
    (
        (1.0, 1.4, -1 + 1e-12, 0.8, 0.5, 0.3),
        [
            0.392486461499993905,
            6.71861153056127568e-8,
            0.427383775139367379,
            5.29993714113117588e-20,
            0.125324701991242407,
        ],
    ),
    (
        (1.0, 4.0, 1 - 1e-6, 0.75, 12.0, -1 + 1e-9),
        [
            0.607252333891833021,
            0.219740432587726529,
            0.219744127731826666,
            0.734835171407062491,
            -0.216189562934248607,
        ],
    ),
    (
        (1e6, 1.4, 1 - 1e-6, 0.8, 0.5, 0.3),
        [
            602.863737521009579,
            0.414124857503835703,
            0.563465746489598825,
            573.093044588378478,
            0.14165525381039601,
        ],
    ),
    (
        (1.0, 1.4, 0.4, 1e6, 0.5, -0.9),
        [
            85.735072426936401,
            0.112579828432705232,
            0.204965745716297547,
            0.145067014900281341,
            -57.9244174135970034,
        ],
    ),
]


@pytest.mark.parametrize(("pair", "expected"), SIXTY_DIGITS)
def test_stored_values_of_many_digits(pair: Pair, expected: list[float]) -> None:
    exact = at_correlations(*pair)
    assert (np.abs(values(exact) - expected) < 1e-14 * natural_sizes(np.array(exact))).all()


@pytest.mark.slow(after=1)
@pytest.mark.parametrize(("pair", "expected"), SIXTY_DIGITS)
def test_values_of_many_digits_were_stored_rightly(pair: Pair, expected: list[float]) -> None:
    with mp.workdps(60):
        np.testing.assert_allclose(many_digits(at_correlations(*pair)), expected, rtol=1e-15)


def one_point(a: float, b: float) -> list[float]:
    """The five means at one point, by elementary integrals over the direction of (u, v)."""
    tilt, sine = math.atan2(math.sqrt(a), math.sqrt(b)), math.sqrt(a * b) / (a + b)
    both = math.sqrt(a * b) * math.cos(tilt) ** 2  # 2 pi E[u v] where u > 0 and h > 0
    above = a * (math.pi / 2 + tilt + sine) + b * (math.pi / 2 + tilt - sine) + 2 * both
    return [
        above / (2 * math.pi) + b / 4,
        0.25 + tilt / (2 * math.pi),
        0.5 + tilt / (2 * math.pi),
        a * (0.25 + (tilt + sine) / (2 * math.pi)),
        b * (0.5 + (tilt - sine) / (2 * math.pi)),
    ]


@pytest.mark.parametrize(("a", "b"), [(1.0, 0.8), (0.3, 0.3), (1e-6, 1.0), (1e6, 1.0), (0.1, 0.7)])
def test_a_point_with_itself(a: float, b: float) -> None:
    np.testing.assert_allclose(values((a, a, a, b, b, b)), one_point(a, b), rtol=3e-15)


# Limits and vanishing variances


def arccosine(a: float, a2: float, k: float) -> tuple[float, float]:
    """<relu relu> and <relu' relu'>."""
    angle = math.atan2(math.sqrt(a * a2 - k * k), k)
    step = (math.pi - angle) / (2 * math.pi)
    return math.sqrt(a * a2) * math.sin(angle) / (2 * math.pi) + k * step, step


@pytest.mark.parametrize("k", [-1.1, -0.3, 0.0, 0.6, 1.15])
def test_without_v_it_is_a_rectifier_of_u(k: float) -> None:
    value, step = arccosine(1.0, 1.4, k)
    # v decides where u < 0: with 1/2 if one of the two is, with 1/4 if both are.
    expected = [value, step, step + (0.5 - step) + step / 4, value, 0.0]
    np.testing.assert_allclose(values((1.0, 1.4, k, 0.0, 0.0, 0.0)), expected, rtol=1e-14, atol=1e-16)
    near = values((1.0, 1.4, k, 1e-18, 1e-18, 0.0))
    np.testing.assert_allclose(near, expected, atol=3e-9)


@pytest.mark.parametrize("q", [-0.6, -0.1, 0.0, 0.3, 0.62])
def test_without_u_it_is_a_rectifier_of_v(q: float) -> None:
    value, step = arccosine(0.8, 0.5, q)
    expected = [value, step / 4, step, 0.0, value]
    np.testing.assert_allclose(values((0.0, 0.0, 0.0, 0.8, 0.5, q)), expected, rtol=1e-14, atol=1e-16)
    near = values((1e-18, 1e-18, 0.0, 0.8, 0.5, q))
    np.testing.assert_allclose(near, expected, atol=3e-9)


@pytest.mark.parametrize("blank", list(itertools.product((0, 1), repeat=4)))
def test_blank_points_are_the_limit_of_small_independent_noise(blank: tuple[int, ...]) -> None:
    a, a2, b, b2 = (value * alive for value, alive in zip((1.0, 1.4, 0.8, 0.5), blank))
    k, q = 0.6 * blank[0] * blank[1], 0.3 * blank[2] * blank[3]
    noisy = (max(a, 1e-18), max(a2, 1e-18), k, max(b, 1e-18), max(b2, 1e-18), q)
    np.testing.assert_allclose(values((a, a2, k, b, b2, q)), values(noisy), atol=3e-9)


def test_independent_points_factorise() -> None:
    result = rectified_sum(1.0, 1.4, 0.0, 0.8, 0.5, 0.0)
    means = rectified_sum_mean([1.0, 1.4], [0.8, 0.5])
    shares = [math.atan2(math.sqrt(a), math.sqrt(b)) / (2 * math.pi) for a, b in ((1.0, 0.8), (1.4, 0.5))]
    assert float(result.second_moment) == pytest.approx(means[0] * means[1], rel=1e-15)
    assert float(result.weight_u) == pytest.approx((0.25 + shares[0]) * (0.25 + shares[1]), rel=1e-15)
    assert float(result.weight_v) == pytest.approx((0.5 + shares[0]) * (0.5 + shares[1]), rel=1e-15)


# Properties


def random_pairs(count: int) -> np.ndarray:
    rng = np.random.default_rng(3)
    a, a2, b, b2 = rng.uniform(0.1, 3, (4, count))
    rho, tau = rng.uniform(-0.99, 0.99, (2, count))
    return np.array([a, a2, rho * np.sqrt(a * a2), b, b2, tau * np.sqrt(b * b2)])


def test_exchange_of_the_two_points() -> None:
    pairs = random_pairs(500)
    there, back = rectified_sum(*pairs, gains=True), rectified_sum(*pairs[[1, 0, 2, 4, 3, 5]], gains=True)
    np.testing.assert_allclose(np.array(there), np.array(back), rtol=1e-12, atol=1e-15)


def test_scale() -> None:
    pairs = random_pairs(500)
    powers = np.array([1, 0, 0, 1, 1])[:, None]
    for scale in (1e-20, 1e-3, 7.0, 1e20):
        scaled = np.array(rectified_sum(*(pairs * scale), gains=True)) / scale**powers
        np.testing.assert_allclose(
            scaled, np.array(rectified_sum(*pairs, gains=True)), rtol=1e-11, atol=1e-15
        )


@pytest.mark.parametrize(("entry", "name"), [(2, "weight_u"), (5, "weight_v")])
def test_weights_are_derivatives_of_the_second_moment(entry: int, name: str) -> None:
    pairs = random_pairs(500)
    step = np.zeros((6, 1))
    step[entry] = 1e-5
    correlations = np.abs(pairs[[2, 5]]) / np.sqrt(pairs[[0, 3]] * pairs[[1, 4]])
    inner = pairs[:, correlations.max(axis=0) < 0.9]
    slope = rectified_sum(*(inner + step)).second_moment - rectified_sum(*(inner - step)).second_moment
    np.testing.assert_allclose(slope / 2e-5, getattr(rectified_sum(*inner), name), atol=2e-8)


def test_second_moments_of_many_points_are_positive_semidefinite() -> None:
    rng = np.random.default_rng(11)
    U, V = (x @ x.T / 8 for x in rng.standard_normal((2, 40, 8)))
    u, v = np.diag(U), np.diag(V)
    result = rectified_sum(u[:, None], u, U, v[:, None], v, V, gains=True)
    centred = result.second_moment - np.outer(rectified_sum_mean(u, v), rectified_sum_mean(u, v))
    for matrix in (*result, centred):
        assert matrix is not None
        np.testing.assert_allclose(matrix, matrix.T, rtol=1e-12, atol=1e-14)
        assert np.linalg.eigvalsh(matrix)[0] > -1e-12


# Shapes and bad input


def test_arguments_broadcast_and_blocks_do_not_matter() -> None:
    pairs = random_pairs(40_000)
    whole = np.array(rectified_sum(*pairs, gains=True))
    some = np.array(rectified_sum(*pairs[:, 33_000:33_010], gains=True))
    np.testing.assert_allclose(whole[:, 33_000:33_010], some, rtol=1e-15)
    table = rectified_sum(np.ones((3, 1)), np.full(4, 1.4), np.full((3, 4), 0.6), 0.8, 0.5, 0.3)
    assert table.weight_v.shape == (3, 4)
    np.testing.assert_allclose(table.weight_v, 0.487809044100, atol=6e-13)


def test_gains_only_on_request() -> None:
    result = rectified_sum(*ONE_PAIR)
    assert isinstance(result, RectifiedSum)
    assert result.gain_u is None
    assert result.gain_v is None


def test_no_pairs() -> None:
    assert rectified_sum(*np.empty((6, 0))).second_moment.shape == (0,)


@pytest.mark.parametrize(
    "pair",
    [
        (-1.0, 1.4, 0.6, 0.8, 0.5, 0.3),
        (1.0, 1.4, 0.6, 0.8, -0.5, 0.3),
        (1.0, 1.4, 1.3, 0.8, 0.5, 0.3),
        (1.0, 1.4, 0.6, 0.8, 0.0, 0.3),
        (1.0, math.inf, 0.6, 0.8, 0.5, 0.3),
        (1.0, 1.4, math.nan, 0.8, 0.5, 0.3),
    ],
)
def test_impossible_pairs_are_refused(pair: Pair) -> None:
    with pytest.raises(InputError, match="check the inputs"):
        rectified_sum(*pair)


@pytest.mark.parametrize("variance", [-1.0, math.nan, math.inf])
def test_impossible_variances_are_refused(variance: float) -> None:
    with pytest.raises(InputError, match="check the inputs"):
        rectified_sum_mean([1.0, variance], 1.0)
