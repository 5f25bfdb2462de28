"""The posterior to order 1/n: reference numbers, exactly solvable networks, and an expansion by brute force."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from finite_bayes_example import (
    COVARIANCE,
    LOG_EVIDENCE,
    MEAN,
    MLP,
    TARGETS,
    TEST,
    TRAIN,
    UNEQUAL,
    WIRED_MEAN,
    WIRING,
)
from scipy.stats import multivariate_normal

import foretrain as ft
from foretrain.support.errors import AccuracyWarning, InputError, NotEnoughMemoryError, NotSupportedError
from foretrain.theory.prediction.bayes import bayes_prediction, book_posterior_mean, finite_bayes_prediction
from foretrain.theory.recursions.pairs import Pairs

RNG = np.random.default_rng(5)
X = RNG.normal(size=(5, 4))
Y = RNG.normal(size=(3, 2))


def test_numbers_of_the_reference() -> None:
    found = finite_bayes_prediction(MLP, TRAIN, TARGETS, TEST)
    assert found.mean.dims == ("test", "output")
    assert found.covariance is not None
    assert found.wiring is not None
    assert found.variance is not None
    np.testing.assert_allclose(found.infinite_mean[0], MEAN[0], atol=1e-9)
    np.testing.assert_allclose(64 * (found.mean - found.infinite_mean)[0], MEAN[1], atol=1e-8)
    np.testing.assert_allclose(found.mean[0], [-0.456098486, 0.511008892], atol=1e-9)
    np.testing.assert_allclose(64 * found.terms["wiring"][0], WIRED_MEAN, atol=1e-8)
    np.testing.assert_allclose(found.covariance, [[COVARIANCE[0] + COVARIANCE[1] / 64]], atol=1e-9)
    np.testing.assert_allclose(64 * found.wiring.values[0, :, 0], WIRING, atol=1e-8)
    total = COVARIANCE[0] + (COVARIANCE[1] + np.diag(WIRING)) / 64
    np.testing.assert_allclose(found.variance[0], total, atol=1e-9)
    assert found.infinite_log_evidence == pytest.approx(LOG_EVIDENCE[0], abs=1e-9)
    assert 64 * (found.log_evidence - found.infinite_log_evidence) == pytest.approx(LOG_EVIDENCE[1], abs=1e-7)


def test_terms_add_up_and_everything_can_be_saved() -> None:
    found = finite_bayes_prediction(MLP, TRAIN, TARGETS, TEST)
    np.testing.assert_allclose(found.infinite_mean + sum(found.terms.values()), found.mean, atol=1e-15)
    np.testing.assert_allclose(sum(found.rest_terms.values()), found.terms["rest"], atol=1e-15)
    saved = found.to_dataset()
    assert {"mean", "mean_wiring", "mean_rest", "mean_metric", "covariance", "wiring", "variance"} <= set(
        saved
    )
    assert saved.attrs["expansion"] == found.expansion
    assert "n = 64" in repr(found)
    assert "wiring" in repr(found)


@pytest.mark.parametrize("observed", [1, 3])
def test_one_linear_hidden_layer_is_solvable(observed: int) -> None:
    """Its metric is Wishart: means stay, the covariance shrinks by A/n, and K-hat_BA K-hat_AA^-1 is Gaussian."""
    mlp = ft.MLP("linear", 2, 50, n_out=2, C_W=(1.3, 0.8))
    train, test = X[:observed], X[observed:]
    found = finite_bayes_prediction(mlp, train, 0.1 * Y[:observed], test)
    infinite = bayes_prediction(mlp, train, 0.1 * Y[:observed], test).covariance
    assert infinite is not None
    assert found.wiring is not None
    K = ft.flow(mlp, train)["K"].values[-1]
    overlap = 0.01 * Y[:observed].T @ np.linalg.solve(K, Y[:observed])
    np.testing.assert_allclose(found.mean, found.infinite_mean, atol=1e-12)
    np.testing.assert_allclose(found.covariance, (1 - observed / 50) * infinite, atol=1e-12)
    expected = np.einsum("bc,ij->bicj", infinite.values / 50, overlap)
    np.testing.assert_allclose(found.wiring, expected, atol=1e-12)


def test_one_observed_relu_input_in_closed_form() -> None:
    """With one input, M = (sum y^2 / K - n_L) / K and P = 1/K are numbers."""
    mlp, y = ft.MLP("relu", 3, 200, n_out=2, C_W=2.0), np.array([0.8, -1.1])
    inputs = np.array([[1.0, 0.3], [0.2, -0.9]])
    flow = ft.flow(mlp, inputs, ["K", "G1", "V"])
    K, G1, V = (flow[name].values[-1] for name in ("K", "G1", "V"))
    phi, M = K[1, 0] / K[0, 0], (y @ y / K[0, 0] - 2) / K[0, 0]
    Q = G1 + 0.5 * M * V[:, :, 0, 0] - V[:, 0, :, 0] / K[0, 0]
    found = finite_bayes_prediction(mlp, inputs[:1], [y], inputs[1:])
    np.testing.assert_allclose(
        found.mean[0], phi * y + (Q[1, 0] - phi * Q[0, 0]) * y / K[0, 0] / 200, atol=1e-12
    )
    bracket = K[1, 1] - phi * K[0, 1] + (Q[1, 1] - 2 * phi * Q[0, 1] + phi**2 * Q[0, 0]) / 200
    np.testing.assert_allclose(found.covariance, [[bracket]], atol=1e-12)


def expanded(
    F: Callable[[np.ndarray], np.ndarray], K: np.ndarray, V: np.ndarray, G1: np.ndarray
) -> np.ndarray:
    """The coefficient of 1/n of E F(metric), from differences of F along the principal directions of V."""
    pairs, h = Pairs(len(K)), 1e-3
    sizes, directions = np.linalg.eigh(V[pairs.first, pairs.second][:, pairs.first, pairs.second])
    total = (F(K + h * G1) - F(K - h * G1)) / (2 * h)
    for size, direction in zip(sizes, directions.T, strict=True):
        step = h * pairs.matrix(direction)
        total = total + 0.5 * size * (F(K + step) - 2 * F(K) + F(K - step)) / h**2
    return total


@pytest.mark.slow
@pytest.mark.parametrize("noise", [0.3, 0.6])
def test_brute_force_expansion_of_a_network_whose_layers_all_differ(noise: float) -> None:
    """E over metrics of the joint density times moments, expanded numerically, with unequal widths."""
    flow = ft.flow(UNEQUAL, X, ["K", "G1", "V"])
    K, G1, V = (flow[name].values[-1] for name in ("K", "G1", "V"))

    def weighed(G: np.ndarray) -> np.ndarray:
        """Density relative to infinite width, times 1, means, covariance, and products of means."""
        seen = G[:3, :3] + noise * np.eye(3)
        log = sum(multivariate_normal(cov=seen).logpdf(y) for y in Y.T) - start
        mean = G[3:, :3] @ np.linalg.solve(seen, Y)
        covariance = G[3:, 3:] - G[3:, :3] @ np.linalg.solve(seen, G[:3, 3:])
        products = np.einsum("bi,cj->bicj", mean, mean)
        parts = [np.ones(1), mean.ravel(), covariance.ravel(), products.ravel()]
        return np.exp(log) * np.concatenate(parts)

    start = sum(multivariate_normal(cov=K[:3, :3] + noise * np.eye(3)).logpdf(y) for y in Y.T)
    zeroth, first = weighed(K), expanded(weighed, K, V, G1)
    shift = first[1:] - zeroth[1:] * first[0]  # of weighted means
    found = finite_bayes_prediction(UNEQUAL, X[:3], Y, X[3:], noise=noise)
    mean, covariance = shift[:4].reshape(2, 2), shift[4:8].reshape(2, 2)
    leading = found.infinite_mean.values
    wiring = shift[8:].reshape(2, 2, 2, 2)
    wiring = wiring - np.einsum("bi,cj->bicj", mean, leading) - np.einsum("bi,cj->bicj", leading, mean)
    n = 240
    assert found.wiring is not None
    assert found.covariance is not None
    assert found.infinite_covariance is not None
    assert n * (found.log_evidence - found.infinite_log_evidence) == pytest.approx(first[0], rel=1e-4)
    np.testing.assert_allclose(n * (found.mean - found.infinite_mean), mean, atol=1e-4)
    np.testing.assert_allclose(n * (found.covariance - found.infinite_covariance), covariance, atol=1e-4)
    np.testing.assert_allclose(n * found.wiring, wiring, atol=2e-4)
    assert np.abs(mean).max() > 0.05


def test_the_form_of_the_book() -> None:
    np.testing.assert_allclose(
        book_posterior_mean(MLP, TRAIN, TARGETS, TEST)[0], [-0.460387569, 0.514991506], atol=1e-9
    )


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("observed", [1, 2])
def test_the_form_of_the_book_agrees_at_order_one_over_n(observed: int) -> None:
    wide, inputs = MLP.replace(width=10**6), np.concatenate([TRAIN, TEST])
    targets = TARGETS[:observed]
    literal = book_posterior_mean(wide, inputs[:observed], targets, inputs[observed:])
    residual = finite_bayes_prediction(wide, inputs[:observed], targets, inputs[observed:])
    assert 1e6 * float(np.abs(literal - residual.mean).max()) < 1e-4
    assert 1e6 * float(np.abs(residual.mean - residual.infinite_mean).max()) > 0.1


def test_training_points_stay_certain() -> None:
    found = finite_bayes_prediction(MLP, TRAIN, TARGETS, TRAIN)
    np.testing.assert_allclose(found.mean, TARGETS, atol=1e-12)
    np.testing.assert_allclose(found.covariance, 0, atol=1e-12)
    np.testing.assert_allclose(found.wiring, 0, atol=1e-12)


@pytest.mark.slow
def test_order_of_inputs_and_outputs_does_not_matter() -> None:
    data, tests = slice(0, 3), X[3:]
    found = finite_bayes_prediction(UNEQUAL, X[data], Y, tests, noise=0.2)
    mixed = finite_bayes_prediction(UNEQUAL, X[[2, 0, 1]], Y[[2, 0, 1]][:, ::-1], tests[::-1], noise=0.2)
    assert found.wiring is not None
    assert mixed.wiring is not None
    np.testing.assert_allclose(mixed.mean, found.mean[::-1, ::-1], atol=1e-10)
    np.testing.assert_allclose(mixed.wiring, found.wiring[::-1, ::-1, ::-1, ::-1], atol=1e-10)
    np.testing.assert_allclose(found.wiring, found.wiring.values.transpose(2, 3, 0, 1), atol=1e-12)
    assert mixed.log_evidence == pytest.approx(found.log_evidence, abs=1e-10)


def test_outputs_learn_from_each_other_only_at_finite_width() -> None:
    alone = finite_bayes_prediction(MLP, TRAIN, TARGETS, TEST)
    other = finite_bayes_prediction(MLP, TRAIN, TARGETS * [1, 0.5], TEST)
    assert float(abs(other.mean - alone.mean)[0, 0]) > 1e-3
    assert float(abs(other.infinite_mean - alone.infinite_mean)[0, 0]) < 1e-14
    np.testing.assert_allclose(other.terms["rest"][0, 0], alone.terms["rest"][0, 0], atol=1e-14)


@pytest.mark.slow
def test_test_inputs_do_not_know_each_other() -> None:
    """More of them than go together, one by one, and with all covariances."""
    tests = np.concatenate([X[3:], np.repeat(X[3:4], 15, axis=0), X[4:]])
    mlp = MLP.replace(width=400)
    many = finite_bayes_prediction(mlp, X[:2], 0.5 * Y[:2], tests, spread="variance")
    both = finite_bayes_prediction(mlp, X[:2], 0.5 * Y[:2], X[3:])
    none = finite_bayes_prediction(mlp, X[:2], 0.5 * Y[:2], X[3:], spread="none")
    assert many.variance is not None
    assert many.covariance is None
    assert many.variance_given_metric is not None
    assert many.infinite_variance is not None
    assert both.infinite_variance is not None
    assert many.wiring is not None
    assert both.covariance is not None
    assert both.wiring is not None
    assert len(tests) > 16
    for places in ([0, 1], [5, 17]):
        np.testing.assert_allclose(many.mean[places], both.mean, atol=1e-12)
        np.testing.assert_allclose(many.variance[places], both.variance, atol=1e-12)
        np.testing.assert_allclose(
            many.variance_given_metric[places], np.diagonal(both.covariance), atol=1e-12
        )
        np.testing.assert_allclose(many.infinite_variance[places], both.infinite_variance, atol=1e-12)
        for place, number in enumerate(places):
            np.testing.assert_allclose(many.wiring[number], both.wiring.values[place, :, place], atol=1e-12)
    np.testing.assert_allclose(none.mean, both.mean, atol=1e-14)
    assert none.covariance is None
    assert none.wiring is None
    assert none.log_evidence == pytest.approx(both.log_evidence, abs=1e-12)


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("mlp", [MLP, UNEQUAL.replace(activation="relu")], ids=["tanh", "relu"])
def test_sampled_integrals_agree_within_their_standard_errors(mlp: ft.MLP) -> None:
    arguments = (mlp, X[:2], Y[:2], X[3:])
    exact = finite_bayes_prediction(*arguments, noise=0.2, draws=0)
    found = finite_bayes_prediction(*arguments, noise=0.2, draws=8000, seed=3)
    errors = found.standard_error
    assert exact.standard_error is None
    assert errors is not None
    for name in ("mean", "covariance", "wiring"):
        scores = (getattr(found, name) - getattr(exact, name)) / errors[name]
        assert 0.05 < float(np.abs(scores).max()) < 5
    assert abs(found.log_evidence - exact.log_evidence) < 5 * float(errors["log_evidence"])
    assert float(errors["mean"].max()) < 0.3 * float(np.abs(exact.mean - exact.infinite_mean).max())
    assert "sampled" in repr(found)
    assert "standard_error_of_wiring" in found.to_dataset()


def test_many_training_inputs_are_sampled_without_being_asked() -> None:
    inputs = np.random.default_rng(0).normal(size=(17, 30))
    found = finite_bayes_prediction(
        ft.MLP("tanh", 2, 5000, C_W=1.5), inputs[:16], inputs[:16, 0], inputs[16:]
    )
    assert found.standard_error is not None


def test_a_network_without_hidden_layer_has_no_correction() -> None:
    found = finite_bayes_prediction(ft.MLP("tanh", 1, n_out=2, C_b=0.1), X[:3], Y, X[3:])
    np.testing.assert_array_equal(found.mean, found.infinite_mean)
    assert found.log_evidence == found.infinite_log_evidence


def test_a_warning_where_the_expansion_is_not_small() -> None:
    with pytest.warns(AccuracyWarning, match="importance_posterior"):
        found = finite_bayes_prediction(MLP.replace(width=8), TRAIN, 2 * TARGETS, TEST)
    assert found.expansion > 1


def test_bad_input(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="Y_train has shape"):
        finite_bayes_prediction(MLP, TRAIN, TARGETS[:, :1], TEST)
    with pytest.raises(InputError, match="components"):
        finite_bayes_prediction(MLP, TRAIN, TARGETS, TEST[:, :2])
    with pytest.raises(InputError, match="noise"):
        finite_bayes_prediction(MLP, TRAIN, TARGETS, TEST, noise=-1.0)
    with pytest.raises(InputError, match="draws"):
        finite_bayes_prediction(MLP, TRAIN, TARGETS, TEST, draws=3)
    with pytest.raises(InputError, match="spread"):
        finite_bayes_prediction(MLP, TRAIN, TARGETS, TEST, spread="all")  # type: ignore[arg-type]
    with pytest.raises(NotSupportedError, match="skip connections"):
        finite_bayes_prediction(MLP.replace(gamma=0.5), TRAIN, TARGETS, TEST)
    with pytest.raises(InputError, match="singular"):
        book_posterior_mean(MLP, TRAIN, TARGETS, TRAIN)
    monkeypatch.setenv("FORETRAIN_MEMORY", "100MB")
    many = np.random.default_rng(0).normal(size=(60, 3))
    with pytest.raises(NotEnoughMemoryError, match="pairs of pairs"):
        finite_bayes_prediction(MLP, many, np.zeros((60, 2)), TEST, noise=1.0, draws=100)


def test_targets_beyond_all_numbers() -> None:
    with pytest.raises(InputError, match="density"):
        finite_bayes_prediction(MLP, TRAIN, 1e160 * TARGETS, TEST)


def test_parts_say_what_they_mean() -> None:
    found = finite_bayes_prediction(MLP, TRAIN, TARGETS, TEST)
    parts = (found.terms | found.rest_terms).values()
    assert len({part.attrs["meaning"] for part in parts}) == 5
    assert all("shift of the posterior mean by" in part.attrs["meaning"] for part in parts)
