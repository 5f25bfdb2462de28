"""The evidence to order 1/n against networks in which it is known exactly, and scans of it."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from finite_bayes_example import LOG_EVIDENCE, MLP, TARGETS, TRAIN, UNEQUAL
from scipy.integrate import quad
from scipy.special import gammaln
from scipy.stats import chi2

import foretrain as ft
from foretrain.support.errors import AccuracyWarning, InputError
from foretrain.theory.prediction.bayes import (
    FiniteEvidence,
    finite_bayes_factor,
    finite_evidence_scan,
    finite_log_evidence,
    log_evidence,
)

X = np.random.default_rng(2).normal(size=(3, 5))
Y = np.array([0.4, -0.7, 0.3])


def test_number_of_the_reference() -> None:
    found = finite_log_evidence(MLP, TRAIN, TARGETS)
    assert found.infinite == pytest.approx(LOG_EVIDENCE[0], abs=1e-9)
    assert 64 * found.correction == pytest.approx(LOG_EVIDENCE[1], abs=1e-7)
    assert 64 * found.expansion == pytest.approx(7.1334549, abs=1e-6)
    assert float(found) == found.value
    assert "1/n included" in repr(found)
    assert "-1.75" in repr(FiniteEvidence(-1.5, -0.25, 0.1, 0.0))


def extrapolated(exact: dict[int, float], infinite: float) -> float:
    """The coefficient of 1/n from widths n, 2n, 4n, 8n."""
    values = [n * (value - infinite) for n, value in exact.items()]
    for power in (2, 4, 8):
        values = [(power * b - a) / (power - 1) for a, b in pairwise(values)]
    return values[0]


def test_two_linear_outputs_of_one_input_are_a_mixture_over_chi_squared() -> None:
    square, K = 1.7, 1.3 * 0.8  # sum of squared targets; metric K chi^2_n / n

    def density(n: int) -> float:
        def integrand(x: float) -> float:
            metric = K * x / n
            return float(chi2.pdf(x, n) * np.exp(-0.5 * square / metric) / (2 * np.pi * metric))

        low, high = chi2.ppf([1e-14, 1 - 1e-14], n)
        return float(np.log(quad(integrand, low, high, epsabs=0, epsrel=1e-13, limit=200)[0]))

    mlp = ft.MLP("linear", 2, 100, n_out=2, C_W=(1.3, 0.8))
    found = finite_log_evidence(mlp, [[1.0]], [[1.1, np.sqrt(square - 1.21)]])
    coefficient = extrapolated({n: density(n) for n in (200, 400, 800, 1600)}, found.infinite)
    assert 100 * found.correction == pytest.approx(coefficient, abs=1e-6)


def test_one_linear_output_of_several_inputs_by_the_wishart_law() -> None:
    """Of three chi-squared pivots, the last (n - 2 degrees) divides the squared targets."""
    mlp = ft.MLP("linear", 2, 100, C_W=(1.3, 0.8))
    found = finite_log_evidence(mlp, X, Y)
    K = ft.flow(mlp, X)["K"].values[-1]
    square = Y @ np.linalg.solve(K, Y)

    def density(n: int) -> float:
        def integrand(x: float) -> float:
            return float(chi2.pdf(x, n - 2) * np.sqrt(n / x) * np.exp(-0.5 * n * square / x))

        low, high = chi2.ppf([1e-14, 1 - 1e-14], n - 2)
        last = np.log(quad(integrand, low, high, epsabs=0, epsrel=1e-13, limit=200)[0])
        others = sum(
            0.5 * np.log(n / 2) + gammaln((degrees - 1) / 2) - gammaln(degrees / 2) for degrees in (n, n - 1)
        )
        return float(last + others - 0.5 * np.linalg.slogdet(2 * np.pi * K)[1])

    coefficient = extrapolated({n: density(n) for n in (200, 400, 800, 1600)}, found.infinite)
    assert 100 * found.correction == pytest.approx(coefficient, rel=1e-6)


@pytest.mark.parametrize("y", [0.3, 1.0, 2.0])
def test_one_relu_input_has_a_closed_form(y: float) -> None:
    """V = 5 (L - 1) K^2 and G1 = 0: with r = y^2 / K the shift is 5 (L - 1) [(r - 1)^2 / 8 - r / 2 + 1/4] / n."""
    found = finite_log_evidence(ft.MLP("relu", 6, 500, C_W=2.0), [[1.0]], [y])
    r = y**2 / 2
    assert found.correction == pytest.approx(25 / 500 * ((r - 1) ** 2 / 8 - r / 2 + 0.25), abs=1e-12)


def test_bayes_factors_count_widths() -> None:
    wide, narrow = MLP.replace(width=200), MLP.replace(width=100)
    assert finite_bayes_factor(wide, narrow, TRAIN, TARGETS) == pytest.approx(
        LOG_EVIDENCE[1] * (1 / 200 - 1 / 100), abs=1e-9
    )
    assert finite_bayes_factor(narrow, narrow, TRAIN, TARGETS) == 0


def test_a_scan_is_made_of_its_points() -> None:
    found = finite_evidence_scan(MLP, TRAIN, TARGETS, C_W=[1.0, 1.5], depth=[1, 3], noise=0.1)
    for depth in (1, 3):
        for C_W in (1.0, 1.5):
            other, point = MLP.replace(depth=depth, C_W=C_W), found.sel(depth=depth, C_W=C_W).squeeze()
            alone = finite_log_evidence(other, TRAIN, TARGETS, noise=0.1)
            assert float(point["log_evidence"]) == pytest.approx(alone.value, abs=1e-8)
            assert float(point["infinite_log_evidence"]) == pytest.approx(
                log_evidence(other, TRAIN, TARGETS, noise=0.1), abs=1e-8
            )
    assert found["reliable"].values.all()


@pytest.mark.slow
def test_what_is_sampled_takes_a_seed() -> None:
    options: dict[str, Any] = {"draws": 2000, "noise": 0.1}
    values = [finite_log_evidence(MLP, TRAIN, TARGETS, **options, seed=seed).value for seed in (0, 1)]
    assert values[0] != values[1]
    scans = [
        finite_evidence_scan(MLP, TRAIN, TARGETS, **options, seed=seed)["log_evidence"].item()
        for seed in (0, 1)
    ]
    assert scans == values
    assert finite_evidence_scan(MLP, TRAIN, TARGETS, **options)["log_evidence"].item() == values[0]
    wide = MLP.replace(width=640)
    factors = [finite_bayes_factor(MLP, wide, TRAIN, TARGETS, **options, seed=seed) for seed in (0, 1)]
    others = [finite_log_evidence(wide, TRAIN, TARGETS, **options, seed=seed).value for seed in (0, 1)]
    assert factors == [value - other for value, other in zip(values, others)]


def test_a_scan_says_where_it_is_not_reliable() -> None:
    found = finite_evidence_scan(MLP.replace(width=20), TRAIN, TARGETS, C_W=[0.7, 1.5])
    np.testing.assert_array_equal(found["reliable"].values.ravel(), found["expansion"].values.ravel() < 0.3)
    assert not found["reliable"].values.all()


def test_bad_input() -> None:
    with pytest.raises(InputError, match="give an MLP"):
        finite_log_evidence("tanh", TRAIN, TARGETS)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="layer to layer"):
        finite_evidence_scan(UNEQUAL, TRAIN, TARGETS)
    with pytest.warns(AccuracyWarning, match="only a guide"):
        finite_log_evidence(MLP.replace(width=5), TRAIN, TARGETS)
