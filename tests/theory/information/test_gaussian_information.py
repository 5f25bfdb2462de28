"""Infinite width: entropy, information between inputs before and after training, and its invariances."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from foretrain.support.errors import InputError
from foretrain.theory.architecture import MLP
from foretrain.theory.information import (
    gaussian_entropy,
    gaussian_information,
    input_information,
    similarity_information,
    trained_input_information,
)

KERNEL = np.array([[2.0, 0.6, 0.3], [0.6, 1.0, -0.2], [0.3, -0.2, 0.7]])


def test_entropy_is_that_of_the_normal_law_and_extensive() -> None:
    one = multivariate_normal(cov=KERNEL).entropy()
    assert gaussian_entropy(KERNEL) == pytest.approx(one)
    assert gaussian_entropy(KERNEL, 7) == pytest.approx(7 * one)
    assert gaussian_entropy(3.0) == pytest.approx(np.log(2 * np.pi * np.e * 3) / 2)


def test_information_of_two_inputs() -> None:
    pair = KERNEL[:2, :2]
    expected = 0.5 * np.log(2.0 / (2.0 - 0.36))
    assert gaussian_information(KERNEL) == pytest.approx(expected)
    assert gaussian_entropy(2.0) + gaussian_entropy(1.0) - gaussian_entropy(pair) == pytest.approx(expected)
    assert gaussian_information(KERNEL, m=3) == pytest.approx(3 * expected)


def test_information_does_not_depend_on_units_and_groups_add_up() -> None:
    whole = gaussian_information(KERNEL, (0, 1), (2,))
    scale = np.diag([3.0, -0.1, 7.0])
    assert gaussian_information(scale @ KERNEL @ scale, (0, 1), (2,)) == pytest.approx(whole)
    # The chain rule I(01; 2) = I(1; 2) + I(0; 2 | 1), the last from the conditional covariance.
    given = KERNEL[np.ix_([0, 2], [0, 2])] - np.outer(KERNEL[[0, 2], 1], KERNEL[[0, 2], 1]) / KERNEL[1, 1]
    assert whole == pytest.approx(gaussian_information(KERNEL, (1,), (2,)) + gaussian_information(given))


@pytest.mark.parametrize("rho", [0.05, 0.5, 1.0, 4.0])
def test_equal_norms(rho: float) -> None:
    K = np.array([[1 + rho, 1 - rho], [1 - rho, 1 + rho]])  # K_[0] = 1, K_[2] = rho
    assert similarity_information(rho) == pytest.approx(gaussian_information(K), abs=1e-14)


def test_merged_inputs_share_everything() -> None:
    assert similarity_information(0.0) == np.inf
    assert gaussian_information(np.ones((2, 2))) == np.inf
    assert similarity_information(1.0) == 0


def test_inputs_that_repeat_within_a_group_tell_nothing_new() -> None:
    twice = KERNEL[np.ix_([0, 0, 1, 2], [0, 0, 1, 2])]
    assert gaussian_information(twice, (0, 1, 2), (3,)) == pytest.approx(
        gaussian_information(KERNEL, (0, 1), (2,)), rel=1e-10
    )
    assert gaussian_information(twice, (0, 2), (1, 3)) == np.inf


def test_critical_relu_merges_inputs_slowly_and_chaotic_tanh_forgets_them() -> None:
    pair = [[1.0, 0.0], [0.6, 0.8]]
    relu = input_information(MLP("relu", depth=30, width=10, C_W=2.0), pair)
    assert (np.diff(relu.values) > 0).all()
    assert relu.values[0] == pytest.approx(-0.5 * np.log(1 - 0.36))
    chaotic = input_information(MLP("tanh", depth=30, width=10, C_W=3.0), pair)
    assert chaotic.values[-1] < chaotic.values[0] / 100


def test_training_on_one_of_the_inputs_leaves_less_to_tell() -> None:
    mlp = MLP("tanh", depth=3, width=10, C_b=0.1, C_W=1.5)
    pair, between = [[1.0, 0.0], [0.6, 0.8]], [[0.8, 0.5]]
    prior = float(input_information(mlp, pair)[-1])
    assert trained_input_information(mlp, between, pair) != pytest.approx(prior, rel=1e-2)
    # Very noisy targets teach nothing.
    assert trained_input_information(mlp, between, pair, noise=1e9) == pytest.approx(prior, rel=1e-6)


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda: gaussian_entropy([[1.0, 2.0], [2.0, 1.0]]), "positive definite"),
        (lambda: gaussian_entropy([[1.0, 2.0], [0.0, 1.0]]), "symmetric"),
        (lambda: gaussian_entropy(-1.0), "positive definite"),
        (lambda: gaussian_entropy(1.0, 0), "number of neurons is 0"),
        (lambda: gaussian_information(np.diag([-1.0, 1.0])), "positive definite"),
        (lambda: gaussian_information(KERNEL, (0,), (0,)), "two separate groups"),
        (lambda: gaussian_information(KERNEL, (0,), (3,)), "two separate groups"),
        (lambda: similarity_information(-0.1), "from 0 on"),
        (lambda: input_information(MLP("tanh", 2, 5), [[1.0]]), "two inputs"),
    ],
)
def test_bad_input(ask: object, message: str) -> None:
    assert callable(ask)
    with pytest.raises(InputError, match=message):
        ask()
