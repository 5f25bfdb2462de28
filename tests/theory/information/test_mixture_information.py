"""Exact entropies over the law of the metric: the reference's numbers, brute force, networks, series, invariances."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from scipy import stats

from foretrain.support.errors import InputError
from foretrain.theory.architecture import MLP
from foretrain.theory.information import (
    MetricLaw,
    entropy_series,
    gaussian_entropy,
    information_series,
    layer_information,
    linear_law,
    log_normal_law,
    mixture_entropy,
    mixture_information,
    mixture_tripartite,
    relative_variance,
    sampled_law,
    tripartite_series,
)
from foretrain.theory.residual_networks import fluctuation_rate


def certain(log_metric: list[float], weights: list[float]) -> MetricLaw:
    return MetricLaw(np.array(log_metric), np.array(weights), 0, "made up")


@pytest.mark.parametrize("m", [1, 2.5, 30, 400])
def test_one_metric_is_the_gaussian(m: float) -> None:
    assert mixture_entropy(certain([0.7], [1.0]), m).value == pytest.approx(
        gaussian_entropy(math.exp(0.7), m), abs=1e-9
    )


def test_two_metrics_by_brute_force() -> None:
    p, z = 0.3, np.linspace(-40, 40, 400_001)
    density = p * stats.norm.pdf(z) + (1 - p) * stats.norm.pdf(z, scale=3)
    direct = -np.trapezoid(density * np.log(density), z)
    law = certain([0.0, math.log(9)], [p, 1 - p])
    assert mixture_entropy(law, 1).value == pytest.approx(direct, abs=1e-10)


def test_two_neurons_in_the_plane_by_brute_force() -> None:
    z = np.linspace(-30, 30, 1201)
    x, y = np.meshgrid(z, z)
    square = x**2 + y**2
    joint = 0.5 * np.exp(-square / 2) / (2 * np.pi) + 0.5 * np.exp(-square / 8) / (8 * np.pi)
    one = 0.5 * stats.norm.pdf(z) + 0.5 * stats.norm.pdf(z, scale=2)
    step = (z[1] - z[0]) ** 2
    information = step * np.sum(joint * np.log(joint / np.outer(one, one)))
    law = certain([0.0, math.log(4)], [0.5, 0.5])
    assert mixture_information(law, 1, 1).value == pytest.approx(information, abs=1e-10)


@pytest.mark.parametrize(("multiple", "expected"), [(1, 0.002027), (2, 0.006305), (4, 0.017639)])
def test_log_normal_numbers_of_the_reference(multiple: int, expected: float) -> None:
    law = log_normal_law(multiple * 2 / 13)
    assert mixture_information(law, 1, 1).value == pytest.approx(expected, abs=5e-7)
    assert law.mean == pytest.approx(1, abs=1e-12)
    assert law.relative_variance == pytest.approx(math.expm1(multiple * 2 / 13), abs=1e-12)


@pytest.mark.parametrize("m", [1, 2, 4])
def test_cubic_coefficient_of_the_entropy_from_one_linear_layer(m: int) -> None:
    """X = 2/n exactly: Richardson in 1/n."""
    values = []
    for n in (200, 400, 800):
        exact, X = mixture_entropy(linear_law([n]), m).value, 2 / n
        values.append((exact - float(entropy_series(m, X, order=2))) / X**3)
    first = [2 * b - a for a, b in pairwise(values)]
    limit = (4 * first[1] - first[0]) / 3
    assert limit == pytest.approx((m**3 + 10 * m**2 + 16 * m) / 48, rel=1e-3)


@pytest.mark.parametrize(("m", "expected"), [(1, -10 / 3), (4, -19 / 3)])
def test_cubic_coefficient_of_the_information_is_the_complete_one(m: int, expected: float) -> None:
    """Relative to the leading term: -(14 + 6 m) / 6, not the printed -(20 + 6 m) / 6."""
    values = []
    for y in (0.02, 0.01, 0.005):
        exact = mixture_information(log_normal_law(y), m, m).value
        values.append((exact / (m**2 / 8 * y**2) - 1) / y)
    first = [2 * b - a for a, b in pairwise(values)]
    assert (4 * first[1] - first[0]) / 3 == pytest.approx(expected, rel=5e-3)


def test_small_spread_is_the_series() -> None:
    law = linear_law([2000])
    X = 1e-3
    assert mixture_information(law, 2, 3).value == pytest.approx(float(information_series(2, 3, X)), rel=1e-4)
    assert mixture_tripartite(law, 2, 3, 1).value == pytest.approx(
        float(tripartite_series(2, 3, 1, X)), rel=0.05
    )


def test_exact_information_grows_and_never_turns_over() -> None:
    y = np.linspace(0, 6, 16)
    for m in (1, 5, 50):
        values = np.array([mixture_information(log_normal_law(v), m, m).value for v in y])
        assert values[0] == pytest.approx(0, abs=1e-12)
        assert (np.diff(values) > 0).all()


def test_information_does_not_depend_on_the_unit_of_the_metric() -> None:
    law = linear_law([5, 8])
    moved = MetricLaw(law.log_metric + 3.0, law.weights, 0, "moved")
    assert mixture_information(moved, 2, 3).value == pytest.approx(
        mixture_information(law, 2, 3).value, abs=1e-11
    )
    shift = mixture_entropy(moved, 4).value - mixture_entropy(law, 4).value
    assert shift == pytest.approx(6.0, abs=1e-10)


@pytest.mark.parametrize("widths", [[1], [2], [7], [300], [3, 200], [10] * 30])
def test_linear_law_has_the_exact_moments(widths: list[int]) -> None:
    law = linear_law(widths)
    assert law.mean == pytest.approx(1, abs=1e-9)
    expected = math.prod(1 + 2 / n for n in widths) - 1
    assert law.relative_variance == pytest.approx(expected, rel=1e-8)


def test_linear_law_of_one_layer_is_chi_square() -> None:
    law = linear_law([6])
    below = law.weights[law.log_metric <= 0.2].sum()
    step = law.log_metric[1] - law.log_metric[0]
    assert below == pytest.approx(stats.chi2.cdf(6 * math.exp(0.2), 6), abs=step)


def test_sampled_networks_agree_with_the_exact_law() -> None:
    mlp = MLP("linear", depth=4, width=12, n_out=4)
    sampled, exact = sampled_law(mlp, [1.0], 8000, seed=3), linear_law([12] * 3)
    for m_1, m_2 in ((1, 1), (2, 2)):
        found = mixture_information(sampled, m_1, m_2)
        true = mixture_information(exact, m_1, m_2).value
        assert found.standard_error < 0.1 * true
        assert abs(found.value - true) < 4 * found.standard_error
    assert sampled.relative_variance == pytest.approx(float(relative_variance(mlp, [1.0])[-1]), rel=0.1)
    assert "8000" in repr(sampled)


@pytest.mark.slow
def test_standard_error_and_bias_of_sampled_laws() -> None:
    """Many small samples: their spread is the stated error, their mean the truth once the bias is out."""
    rng = np.random.default_rng(0)
    true = mixture_information(log_normal_law(0.5), 1, 1).value
    found = []
    for _ in range(200):
        points = rng.normal(-0.25, math.sqrt(0.5), 100)
        found.append(mixture_information(MetricLaw(points, np.full(100, 0.01), 100, ""), 1, 1))
    values, errors = np.array([f.value for f in found]), np.array([f.standard_error for f in found])
    assert values.std() == pytest.approx(float(np.sqrt((errors**2).mean())), rel=0.25)
    assert abs(values.mean() - true) < 3.5 * values.std() / math.sqrt(200)


@pytest.mark.statistical
@pytest.mark.parametrize(
    ("name", "C_b", "C_W", "layer", "width"),
    [("tanh", 0.0, 1.0, 4, 60), ("gelu", 0.1, 1.9, 3, 240), ("sin", 0.2, 1.5, 5, 60)],
)
def test_series_and_networks_of_any_kind(name: str, C_b: float, C_W: float, layer: int, width: int) -> None:
    """The series, with the X of the draws themselves, is as exact as 30 000 networks can tell."""
    mlp = MLP(name, depth=layer, width=width, C_b=C_b, C_W=C_W, n_out=4)
    law = sampled_law(mlp, [1.0], 30_000, seed=5)
    for m in (1, 2):
        found = mixture_information(law, m, m)
        series = float(information_series(m, m, law.relative_variance))
        left_out = (
            (m + 1)
            * law.relative_variance
            * abs(series - float(information_series(m, m, law.relative_variance, order=2)))
        )
        assert abs(found.value - series) < 3.5 * found.standard_error + left_out
    layers = layer_information(mlp, [1.0], 1, 1).sel(layer=layer, order="next")
    entropy = mixture_entropy(law, 2)
    assert abs(entropy.value - float(layers["entropy"])) < 3.5 * entropy.standard_error + 2 / width**2


@pytest.mark.statistical
def test_residual_relu_networks_are_log_normal_with_the_complete_growth() -> None:
    """Var[log G] grows by nu per layer and 1/n, with the complete nu = 6.196 and not the printed 2.970."""
    width, depths, draws = 200, (21, 41), 6000
    variances, errors = [], []
    for depth in depths:
        mlp = MLP.critical("relu", depth, width, n_out=2, gamma=0.6)
        logs = sampled_law(mlp, [1.0], draws, seed=depth).log_metric
        square = (logs - logs.mean()) ** 2
        variances.append(square.mean())
        errors.append(square.std() / math.sqrt(draws))
        skew, flat = stats.skew(logs), stats.kurtosis(logs)
        assert abs(skew) < 0.3
        assert abs(flat) < 0.4
    slope = (variances[1] - variances[0]) * width / 20
    error = math.hypot(*errors) * width / 20
    complete, printed = (fluctuation_rate("relu", 0.6, method) for method in ("complete", "book"))
    assert abs(slope - complete) < 3.5 * error + 20 / width
    assert abs(slope - printed) > 10 * error


@pytest.mark.statistical
@pytest.mark.parametrize(
    ("layer", "ones", "fives"),
    [(3, 0.0014, 0.029), (6, 0.0074, 0.116), (11, 0.0244, 0.277), (21, 0.0735, 0.543), (41, 0.194, 0.906)],
)
def test_tanh_networks_of_the_reference(layer: int, ones: float, fives: float) -> None:
    """Width 10, K = 1 at layer 1: no maximum in depth. The reference's own errors are of the size of its digits."""
    law = sampled_law(MLP("tanh", depth=41, width=10, n_out=10), [1.0], 40_000, layer=layer, seed=1)
    for m, expected in ((1, ones), (5, fives)):
        found = mixture_information(law, m, m)
        digits = 0.5 * 10.0 ** (-4 if expected < 0.1 else -3)
        assert abs(found.value - expected) < 4 * math.hypot(math.sqrt(2) * found.standard_error, digits)


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda: log_normal_law(-1.0), "variance of log G is -1.0"),
        (lambda: log_normal_law(100.0), "from 0 to 60"),
        (lambda: linear_law([]), "one per hidden layer"),
        (lambda: linear_law([0]), "positive whole numbers"),
        (lambda: mixture_information(log_normal_law(1.0), 1, 0), "number of neurons is 0"),
        (lambda: sampled_law(MLP("relu", 6, 2, C_W=2.0), [1.0], 500), "no signal at all"),
        (lambda: sampled_law(MLP("tanh", 4, 5, gamma=0.5), [1.0], 50, layer=3), "skip connection"),
        (lambda: sampled_law(MLP("tanh", 4, 5), [[1.0]], 50), "one input"),
        (lambda: sampled_law(MLP("tanh", 4, 5), [1.0], 1), "at least 2"),
    ],
)
def test_bad_input(ask: object, message: str) -> None:
    assert callable(ask)
    with pytest.raises(InputError, match=message):
        ask()
