"""Networks with nothing equal against numbers of an independent program, and what users do wrong."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from finite_width_values import X_TEST, X_TRAIN, Y_TWO, Y, network

import foretrain as ft
from foretrain.support.errors import AccuracyWarning, InputError, NotSupportedError
from foretrain.theory.prediction.algorithms import Descent, GradientFlow
from foretrain.theory.prediction.finite_width import FiniteWidth, finite_prediction
from foretrain.theory.prediction.finite_width import corrections as stores

UNEQUAL = ft.MLP(
    "sin",
    depth=3,
    width=[40, 70],
    n_out=2,
    C_b=[0.1, 0.2, 0.05],
    C_W=[1.3, 0.9, 1.1],
    lambda_b=[0.5, 0.3, 0.2],
    lambda_W=[1.0, 0.6, 0.8],
)
# From the recursions on a trapezoidal grid, decomposed over explicit outputs, and the update equations (∞.81)-(∞.83)
# iterated step by step; 70 times what is of order 1/n.
AT_THE_END = {
    "ntk_mean": (0.032815244, -0.000911621),
    "ntk_variance": (-0.599906941, 0.540255026),
    "dntk": (-0.499847336, 0.374134968),
    "ddntk_1": (-1.166320165, 0.427304727),
    "ddntk_2": (1.760542788, -1.278980382),
}
AFTER_FOUR_STEPS = {
    "ntk_mean": (0.091230779, -0.048785983),
    "ntk_variance": (1.197631164, -0.742838974),
    "dntk": (-0.439635551, 0.304061699),
    "ddntk_1": (2.086086718, -1.441933705),
    "ddntk_2": (-0.748815593, 0.494874754),
}


@pytest.fixture(scope="module")
def unequal() -> FiniteWidth:
    return FiniteWidth.of(UNEQUAL, X_TRAIN, Y_TWO, X_TEST)


def test_layers_of_different_width_rate_and_variance(unequal: FiniteWidth) -> None:
    for found, infinite, expected in (
        (unequal.predict(Descent(0.4)), (-0.519184417, 0.774611242), AT_THE_END),
        (unequal.predict(Descent(0.4, 4)), (-0.371028725, 0.640924020), AFTER_FOUR_STEPS),
    ):
        np.testing.assert_allclose(found.infinite_mean[0], infinite, atol=2e-9)
        for name, values in expected.items():
            np.testing.assert_allclose(70 * found.terms[name][0], values, atol=2e-8)


def test_their_kernel_moves_and_their_outputs_covary(unequal: FiniteWidth) -> None:
    found = unequal.predict(Descent(0.4))
    change = [(1.167250731, -0.753037634), (-0.846687267, 0.191827171)]
    np.testing.assert_allclose(70 * found.ntk_change[2, 1], change, atol=5e-8)
    added = [(1.234008566, -0.647376840), (-0.647376840, 0.691435169)]
    np.testing.assert_allclose(70 * found.covariance_correction["total"][0, 0], added, atol=5e-8)


def test_training_inputs_are_no_cause_for_doubt() -> None:
    """Their correction is zero, which no integral can miss."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = finite_prediction(network(), X_TRAIN, Y, X_TRAIN)
    np.testing.assert_allclose(found.mean, Y, atol=1e-12)


@pytest.mark.filterwarnings("ignore:the corrections of order")
def test_inputs_nearly_alike_are_doubted() -> None:
    near = np.concatenate([X_TRAIN, X_TRAIN[:1] + 1e-3])
    with pytest.warns(AccuracyWarning, match="nearly alike"):
        finite_prediction(network(), near, np.concatenate([Y, Y[:1] + 0.3]), X_TEST, tolerance=1e-6)


def test_the_way_out_of_a_doubt_is_open() -> None:
    """``ft.predict`` says to lower tolerance=, and takes it."""
    near: Any = (np.concatenate([X_TRAIN, X_TRAIN[:1] + 1e-2]), np.concatenate([Y, Y[:1] + 0.003]), X_TEST)
    with pytest.warns(AccuracyWarning, match=r"tolerance 1e-05 .*tolerance="):
        ft.predict(network(width=10**5), *near, "finite", tolerance=1e-5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ft.predict(network(width=10**5), *near, "finite", tolerance=1e-11)


def test_too_many_inputs_are_refused_before_any_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "output_kernels", lambda *_, **__: pytest.fail("kernels were computed"))
    many = np.random.default_rng(0).normal(size=(500, 2))
    with pytest.raises(NotSupportedError, match=r"hours.*draws="):
        ft.predict(network(), many, many[:, 0], X_TEST, "finite")
    with pytest.raises(NotSupportedError, match="slope jumps"):
        ft.predict(network("relu"), many, many[:, 0], X_TEST, "finite")


@pytest.mark.filterwarnings("error")
def test_targets_beyond_all_numbers() -> None:
    with pytest.raises(InputError, match="rescale"):
        finite_prediction(network(), X_TRAIN, 1e200 * Y, X_TEST)


def test_numbers_of_numpy_are_whole() -> None:
    counts = (50, np.int64(50))
    first, second = (finite_prediction(network(), X_TRAIN, Y, X_TEST, draws=count) for count in counts)  # type: ignore[arg-type]
    np.testing.assert_array_equal(first.mean, second.mean)


def test_repeated_inputs_with_different_targets_learn_their_mean() -> None:
    twice = np.concatenate([X_TRAIN, X_TRAIN[:1]])
    same, mean = (np.concatenate([Y, Y[:1] + shift]) for shift in (0.0, 0.4))
    with pytest.warns(AccuracyWarning, match=r"different targets.*0\.2"):
        found = finite_prediction(network(), twice, mean, X_TEST, Descent(0.2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        expected = finite_prediction(
            network(), twice, same + np.array([[0.2], [0.0], [0.2]]), X_TEST, Descent(0.2)
        )
    np.testing.assert_allclose(found.mean, expected.mean, rtol=1e-10)


@pytest.mark.filterwarnings("ignore:the standard error")
def test_draws_that_all_agree_are_no_certainty() -> None:
    with pytest.raises(InputError, match="nothing is known"):
        [finite_prediction(network(), X_TRAIN, Y, X_TEST, draws=2, seed=seed) for seed in range(40)]
    alone = finite_prediction(network(), X_TRAIN[:1], Y[:1], X_TEST, draws=2)
    exact = finite_prediction(network(), X_TRAIN[:1], Y[:1], X_TEST)
    np.testing.assert_allclose(alone.mean, exact.mean, rtol=1e-10)
    np.testing.assert_allclose(alone.standard_error, 0, atol=1e-12)


def test_text_shows_what_there_is() -> None:
    late = finite_prediction(network(), X_TRAIN, Y, X_TEST, GradientFlow(2.0), spread="none")
    assert "±" not in repr(late)
    assert "± spread" in repr(finite_prediction(network(), X_TRAIN, Y, X_TEST, spread="variance"))
    assert "without hidden layers" in repr(finite_prediction(ft.MLP("tanh", 1), X_TRAIN, Y, X_TEST))


def test_saved_is_what_was_asked_for() -> None:
    found = finite_prediction(network(), X_TRAIN, Y, X_TEST)
    assert "ntk_change" not in found.to_dataset()
    total = found.covariance_correction["total"]
    data = found.ntk_change.to_dataset(name="ntk_change").merge(found.to_dataset())
    np.testing.assert_array_equal(data["covariance_correction_total"], total)
    np.testing.assert_array_equal(found.to_dataset()["ntk_change"], found.ntk_change)
