"""Predictions for torch modules: those of the MLP they are, and of networks that no MLP is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import foretrain as ft
from foretrain.support.errors import ForetrainError
from foretrain.theory.prediction.predict import Bayes

RNG = np.random.default_rng(0)
X, Y, TESTS = RNG.normal(size=(6, 3)), RNG.normal(size=(6, 2)), RNG.normal(size=(4, 3))
LABELS = np.array([0, 1, 1, 0, 1, 0])
MLP = ft.MLP("gelu", depth=3, width=64, n_in=3, n_out=2, C_b=0.1, C_W=1.7, lambda_b=0.3, lambda_W=0.8)
OPTIONS: dict[str, Any] = {"init": {"*": (1.7, 0.1)}, "rates": {"*": (0.8, 0.3)}}


def module() -> nn.Module:
    layers = nn.Linear(3, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 2)
    return nn.Sequential(*layers).double()


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"time": 7},
        {"algorithm": "flow", "time": 0.6},
        {"eta": 0.05, "time": 3},
        {"learner": "bayes", "noise": 0.2},
        {"learner": "bayes", "noise": 0.2, "noisy_labels": True, "spread": "variance"},
        {"learner": Bayes(noise=0.1)},
        {"spread": "none"},
        {"spread": "variance"},
    ],
)
def test_a_module_is_predicted_as_the_mlp_it_is(asked: dict[str, Any]) -> None:
    expected, found = (
        ft.predict(MLP, X, Y, TESTS, **asked),
        ft.predict(module(), X, Y, TESTS, **asked, **OPTIONS),
    )
    np.testing.assert_allclose(found.mean, expected.mean, rtol=1e-8, atol=1e-10)
    assert (found.variance is None) == (expected.variance is None)
    if expected.variance is not None:
        np.testing.assert_allclose(found.variance, expected.variance, rtol=1e-7, atol=1e-10)
    if expected.covariance is not None:
        np.testing.assert_allclose(found.covariance, expected.covariance, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("asked", [{"label_smoothing": 0.1}, {"algorithm": "flow", "time": 2.0, "draws": 50}])
def test_classes_too(asked: dict[str, Any]) -> None:
    asked = {"loss": "cross_entropy", **asked}
    expected = ft.predict(MLP, X, LABELS, TESTS, **asked)
    found = ft.predict(module(), X, LABELS, TESTS, **asked, **OPTIONS)
    np.testing.assert_allclose(found.mean, expected.mean, rtol=1e-6, atol=1e-8)


def test_a_convolutional_network_interpolates_its_training_images() -> None:
    images = torch.randn(6, 1, 6, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def make(width: int) -> nn.Module:
        layers = nn.Conv2d(1, width, 3), nn.ReLU(), nn.Conv2d(width, width, 3), nn.ReLU()
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(4 * width, 2)).double()

    found = ft.predict(make, images, Y, images[:3], init={"*": (2.0, 0.1)})
    np.testing.assert_allclose(found.mean, Y[:3], atol=1e-8)
    assert float(np.abs(found.variance).max()) < 1e-8
    assert "3 test inputs" in repr(found)


def test_what_a_module_has_not_is_told() -> None:
    for options, sentence in (
        ({"regime": "finite"}, "predicted at infinite width"),
        ({"noise": 0.1}, "noise is for Bayesian inference"),
        ({"learner": "bayes", "time": 3}, "Bayesian inference has no algorithm"),
        ({"learner": "guess"}, "learner"),
    ):
        with pytest.raises(ForetrainError, match=sentence):
            ft.predict(module(), X, Y, TESTS, **options)
    with pytest.raises(ForetrainError, match="Y_train"):
        ft.predict(module(), X, Y[:, :1], TESTS)
    with pytest.raises(ForetrainError, match="are for torch modules"):
        ft.predict(MLP, X, Y, TESTS, init={"*": (1.0, 0.0)})
    with pytest.raises(ForetrainError, match="give an MLP"):
        ft.predict(3, X, Y, TESTS)
