"""Evidence: the reference's tables, scipy's normal density, closed forms for one and two inputs, and scans."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.stats import multivariate_normal

import foretrain as ft
from foretrain.support.errors import AccuracyWarning, InputError
from foretrain.theory.prediction.bayes import (
    bayes_factor,
    best_kernel,
    best_point,
    compare_hypotheses,
    evidence_scan,
    log_evidence,
    log_evidence_of_kernel,
    two_input_log_evidence,
)

TANH, RELU = ft.MLP("tanh", 5, 100), ft.MLP("relu", 5, 100)
ONE = [[1.0]]
PAIR = np.sqrt(2) * np.linalg.cholesky([[1, 0.9], [0.9, 1]])  # K^(1) = C_b + C_W times this overlap


def test_tables_of_the_reference() -> None:
    tanh = evidence_scan(TANH, ONE, [1.0], C_W=[0.9, 1.0, 1.1, 1.5, 3.0], depth=[5, 20, 50])
    expected = [
        [-5.081058, -3.799863, -3.015520, -1.789782, -1.441133],
        [-61.887489, -17.442559, -7.451109, -2.036276, -1.438920],
        [-1717.334649, -46.572684, -8.968628, -2.037420, -1.438920],
    ]
    np.testing.assert_allclose(tanh["log_evidence"].squeeze(), expected, atol=1e-6)
    relu = evidence_scan(RELU, ONE, [1.0], C_W=[1.8, 2.0, 2.2], depth=[5, 20, 50])
    expected = [
        [-1.425488, -1.515512, -1.659018],
        [-2.268223, -1.515512, -2.255775],
        [-47.139630, -1.515512, -3.650396],
    ]
    np.testing.assert_allclose(relu["log_evidence"].squeeze(), expected, atol=1e-6)
    assert log_evidence(RELU.replace(C_W=1.8), ONE, [1.0]) == pytest.approx(-1.425488, abs=1e-6)
    assert (best_point(relu).depth, best_point(relu).C_W) == (5, 1.8)


def test_depth_selects_near_critical_networks_for_similar_targets() -> None:
    C_W = [1.2, 1.5, 1.6, 1.7, 1.8, 2, 3]
    found = evidence_scan(TANH.replace(C_b=0.1), PAIR, [1.0, 0.9], C_W=C_W, depth=[30])
    plain = [-73.779, -1.2232, -0.5715, -0.5813, -0.7820, -1.2663, -2.4906]
    profiled = [-1.8790, -0.5472, -0.4865, -0.5812, -0.7593, -1.1665, -2.1712]
    np.testing.assert_allclose(found["log_evidence"].squeeze(), plain, atol=5e-4)
    np.testing.assert_allclose(found["profiled_log_evidence"].squeeze(), profiled, atol=5e-5)
    best = best_point(found)
    assert (best.C_W, best.at_edge) == (1.6, ())
    dissimilar = evidence_scan(TANH.replace(C_b=0.1), PAIR, [1.0, -0.5], C_W=C_W, depth=[30])
    assert (np.diff(dissimilar["log_evidence"].squeeze()) > 0).all()
    assert best_point(dissimilar, "profiled_log_evidence").at_edge == ("C_W",)


def test_profile_is_the_maximum_over_the_scale_of_the_kernel() -> None:
    K, Y = np.array([[1.0, 0.3], [0.3, 0.7]]), np.array([[1.0, 2.0], [-0.5, 0.4]])
    found = evidence_scan(ft.MLP("linear", 1, n_out=2), _inputs(K), Y)
    best = minimize_scalar(lambda log: -log_evidence_of_kernel(np.exp(log) * K, Y))
    assert float(found["profiled_log_evidence"].squeeze()) == pytest.approx(-best.fun, abs=1e-8)
    assert float(found["output_scale"].squeeze()) == pytest.approx(np.exp(best.x), rel=1e-4)


def _inputs(K: np.ndarray) -> np.ndarray:
    return np.linalg.cholesky(K) * np.sqrt(len(K))


def test_equals_the_density_of_scipy() -> None:
    rng = np.random.default_rng(2)
    root, Y = rng.normal(size=(6, 6)), rng.normal(size=(6, 3))
    K = root @ root.T
    for noise in (0.0, 0.7):
        expected = multivariate_normal(cov=K + noise * np.eye(6)).logpdf(Y.T).sum()
        assert log_evidence_of_kernel(K, Y, noise=noise) == pytest.approx(expected, rel=1e-10)


def test_two_inputs_in_components() -> None:
    rng = np.random.default_rng(3)
    for _ in range(5):
        root, Y = rng.normal(size=(2, 2)), rng.normal(size=(2, 3))
        K = root @ root.T
        assert two_input_log_evidence(K, Y) == pytest.approx(log_evidence_of_kernel(K, Y), rel=1e-10)
    with pytest.raises(InputError, match="determinant"):
        two_input_log_evidence([[1.0, 1.0], [1.0, 1.0]], [1.0, 2.0])


def test_best_kernel_and_the_two_wrong_ends() -> None:
    """(6.36)-(6.38): the best variance is the mean square of the targets; a power law above, exponential below."""
    y = np.array([[0.5, -1.5, 1.0]])
    best = best_kernel(y)
    assert best[0, 0] == pytest.approx(3.5 / 3)
    top = log_evidence_of_kernel(best, y)
    assert all(log_evidence_of_kernel(best * scale, y) < top for scale in (0.9, 1.1))
    far = [log_evidence_of_kernel([[10.0**p]], y) for p in (8, 9)]
    assert far[1] - far[0] == pytest.approx(-1.5 * np.log(10), rel=1e-5)
    near = [log_evidence_of_kernel([[10.0**p]], y) * 10.0**p for p in (-8, -9)]
    assert near == pytest.approx([-1.75, -1.75], rel=1e-5)
    many = np.random.default_rng(4).normal(size=(3, 9))
    peak = log_evidence_of_kernel(best_kernel(many), many)
    for seed in range(5):
        moved = best_kernel(many) + 0.05 * best_kernel(np.random.default_rng(seed).normal(size=(3, 9)))
        assert log_evidence_of_kernel(moved, many) < peak


@pytest.mark.parametrize(
    "mlp", [TANH, RELU, ft.MLP("swish", 6, 50, gamma=0.4)], ids=["tanh", "relu", "skips"]
)
def test_scan_is_the_evidence_of_each_network(mlp: ft.MLP) -> None:
    rng = np.random.default_rng(5)
    inputs, targets = rng.normal(size=(4, 3)), rng.normal(size=4)
    found = evidence_scan(
        mlp, inputs, targets, C_b=[0.0, 0.2], C_W=[0.8, 1.5, 2.0], depth=[3, 7, 4], noise=0.1
    )
    assert found["log_evidence"].dims == ("depth", "C_b", "C_W")
    assert list(found["depth"]) == [3, 4, 7]
    for point in ({"depth": 3, "C_b": 0.0, "C_W": 2.0}, {"depth": 7, "C_b": 0.2, "C_W": 0.8}):
        expected = log_evidence(mlp.replace(**point), inputs, targets, noise=0.1)
        assert float(found["log_evidence"].sel(point)) == pytest.approx(expected, abs=1e-7)
    assert float(found["probability"].sum()) == pytest.approx(1)
    assert float(found["log_bayes_factor"].max()) == 0


def test_scan_goes_on_where_single_points_fail() -> None:
    exploding = ft.MLP("swish", 40, 50)
    with pytest.warns(AccuracyWarning, match="are nan"):
        found = evidence_scan(exploding, ONE, [1.0], C_W=[1.0, 9.0], depth=[3, 40])
    values = found["log_evidence"].squeeze().values
    assert np.isnan(values).tolist() == [[False, False], [False, True]]
    nothing = evidence_scan(TANH, ONE, [1.0], C_b=[0.0], C_W=[0.0, 1.0])["log_evidence"].squeeze().values
    assert nothing[0] == -np.inf
    assert np.isfinite(nothing[1])
    with pytest.warns(AccuracyWarning, match="singular to rounding"):
        shifted = evidence_scan(TANH, [[1.0], [1.0]], [1.0, 1.0])
    assert float(shifted["jitter"].max()) > 0


def test_hypotheses() -> None:
    data = (PAIR, [1.0, 0.9])
    hypotheses = {str(C_W): TANH.replace(C_W=C_W, C_b=0.1) for C_W in (1.0, 1.5, 3.0)}
    flat = compare_hypotheses(hypotheses, *data)
    evidences = np.array([log_evidence(mlp, *data) for mlp in hypotheses.values()])
    np.testing.assert_allclose(flat["probability"], np.exp(evidences) / np.exp(evidences).sum(), rtol=1e-10)
    assert flat.attrs["log_evidence"] == pytest.approx(np.log(np.exp(evidences).mean()))
    factor = bayes_factor(hypotheses["1.5"], hypotheses["3.0"], *data)
    assert factor == pytest.approx(evidences[1] - evidences[2])
    prior = {"1.0": 0.0, "1.5": 1.0, "3.0": 3.0}
    weighted = compare_hypotheses(hypotheses, *data, prior=prior)["probability"].values
    assert weighted[0] == 0
    assert weighted[1] / weighted[2] == pytest.approx(np.exp(factor) / 3)


def test_bad_input() -> None:
    with pytest.raises(InputError, match="no hypotheses"):
        compare_hypotheses({}, ONE, [1.0])
    with pytest.raises(InputError, match="prior"):
        compare_hypotheses({"a": TANH}, ONE, [1.0], prior={"b": 1.0})
    with pytest.raises(InputError, match="positive and finite"):
        compare_hypotheses({"a": TANH}, ONE, [1.0], prior={"a": 0.0})
    with pytest.raises(InputError, match="whole numbers"):
        evidence_scan(TANH, ONE, [1.0], depth=[1.5])  # type: ignore[list-item]
    with pytest.raises(InputError, match="not negative"):
        evidence_scan(TANH, ONE, [1.0], C_W=[-1.0])
    with pytest.raises(InputError, match="layer to layer"):
        evidence_scan(ft.MLP("tanh", 2, 10, C_b=[0.0, 1.0]), ONE, [1.0], C_W=[1.0])
    with pytest.raises(InputError, match="unknown evidence"):
        best_point(evidence_scan(TANH, ONE, [1.0]), "evidence")
    with pytest.raises(InputError, match="inputs, outputs"):
        best_kernel([1.0])
