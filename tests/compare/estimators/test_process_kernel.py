"""The kernel object: values, slopes, and Gaussian processes of scikit-learn beside those of foretrain."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from scipy.optimize import approx_fprime
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.gaussian_process import GaussianProcessClassifier, GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.model_selection import GridSearchCV
from sklearn.svm import SVC
from torch import nn

import foretrain as ft
from foretrain.support.errors import InputError
from foretrain.theory.prediction.bayes import log_evidence
from foretrain.theory.prediction.kernels import cross_tangent_kernel, last_layer

RNG = np.random.default_rng(5)
X, TESTS = RNG.normal(size=(9, 3)), RNG.normal(size=(80, 3))
Y = np.sin(2 * X[:, 0]) + X[:, 1]


def network(activation: str = "relu", C_W: float = 2.0, C_b: float = 0.1) -> ft.MLP:
    return ft.MLP(activation, 3, 1, C_W=C_W, C_b=C_b, lambda_W=C_W, lambda_b=C_b)


def test_values_are_those_of_the_theory() -> None:
    K, Theta = last_layer(network(), X)
    assert ft.NTKKernel()(X) == pytest.approx(Theta, rel=1e-12)
    assert ft.NTKKernel(kernel="nngp")(X) == pytest.approx(K, rel=1e-12)
    assert ft.NTKKernel()(X, TESTS) == pytest.approx(cross_tangent_kernel(network(), X, TESTS), rel=1e-12)
    for kernel in (ft.NTKKernel(), ft.NTKKernel(kernel="nngp"), ft.NTKKernel(network=network())):
        assert kernel.diag(TESTS) == pytest.approx(np.diagonal(kernel(TESTS)), rel=1e-12)
        assert not kernel.is_stationary()


def slopes(kernel: Any, step: float = 1e-2) -> Any:
    """By the six-point formula at a much larger step, whose error is of sixth order."""
    found = []
    for direction in np.eye(kernel.n_dims):
        at = [kernel.clone_with_theta(kernel.theta + k * step * direction)(X) for k in (1, -1, 2, -2, 3, -3)]
        found.append((45 * (at[0] - at[1]) - 9 * (at[2] - at[3]) + (at[4] - at[5])) / (60 * step))
    return np.stack(found, axis=-1)


@pytest.mark.parametrize(
    ("activation", "accuracy"), [("relu", 1e-7), ("erf", 1e-7), ("gelu", 1e-7), ("tanh", 1e-6)]
)
@pytest.mark.parametrize("kind", ["ntk", "nngp"])
def test_slopes_beside_other_differences(activation: str, accuracy: float, kind: str) -> None:
    kernel = ft.NTKKernel(
        activation=activation, C_W=1.4, C_b=0.3, kernel=kind, fixed_layers=int(kind == "ntk")
    )
    values, found = kernel(X, eval_gradient=True)
    assert values == pytest.approx(kernel(X), rel=1e-14)
    assert found.shape == (9, 9, 2)
    assert np.abs(found - slopes(kernel)).max() < accuracy * np.abs(found).max()


def test_slopes_that_are_known_exactly() -> None:
    linear = ft.NTKKernel(depth=1, C_W=1.5, C_b=0.3, kernel="nngp")
    expected = np.stack([1.5 * X @ X.T / 3, np.full((9, 9), 0.3)], axis=-1)
    assert linear(X, eval_gradient=True)[1] == pytest.approx(expected, rel=1e-7, abs=1e-9)
    # Without biases everything is proportional to C_W^depth, for relu.
    homogeneous = ft.NTKKernel(depth=4, C_b=0.0)
    values, found = homogeneous(X, eval_gradient=True)
    assert found[..., 0] == pytest.approx(4 * values, rel=1e-7)
    assert homogeneous.n_dims == 1


def test_which_constants_are_tuned() -> None:
    assert [one.name for one in ft.NTKKernel().hyperparameters] == ["C_W", "C_b"]
    assert ft.NTKKernel().theta == pytest.approx(np.log([2.0, 0.1]))
    assert ft.NTKKernel().bounds == pytest.approx(np.log([[0.1, 10.0], [1e-3, 10.0]]))
    assert ft.NTKKernel(C_b_bounds="fixed").n_dims == 1
    assert ft.NTKKernel(C_W=(1.0, 1.5, 2.0)).n_dims == 1
    given = ft.NTKKernel(network=network())
    assert given.n_dims == 0
    values, found = given(X, eval_gradient=True)
    assert found.shape == (9, 9, 0)
    assert values == pytest.approx(ft.NTKKernel()(X))


def test_the_posterior_of_the_nngp_is_bayesian_inference() -> None:
    process = GaussianProcessRegressor(ft.NTKKernel(kernel="nngp"), alpha=0.2, optimizer=None).fit(X, Y)
    expected = ft.predict(network(), X, Y, TESTS, learner="bayes", noise=0.2)
    mean, deviation = process.predict(TESTS, return_std=True)
    assert mean == pytest.approx(expected.mean.values[:, 0], abs=1e-10)
    assert deviation == pytest.approx(expected.standard_deviation.values, abs=1e-8)
    assert process.predict(TESTS, return_cov=True)[1] == pytest.approx(expected.covariance.values, abs=1e-9)
    assert process.log_marginal_likelihood_value_ == pytest.approx(log_evidence(network(), X, Y, noise=0.2))
    machine = ft.NTKRegressor(kernel="nngp", learner="bayes", noise=0.2).fit(X, Y)
    assert machine.predict(TESTS) == pytest.approx(mean, abs=1e-10)


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("kind", ["nngp", "ntk"])
@pytest.mark.filterwarnings("ignore:The optimal value found")
def test_the_marginal_likelihood_tunes_a_composition(kind: str) -> None:
    kernel = ConstantKernel(0.5) * ft.NTKKernel(kernel=kind, depth=2) + RBF(0.7) + WhiteKernel(0.05)
    process = GaussianProcessRegressor(kernel, optimizer=None).fit(X, Y)
    theta = process.kernel_.theta
    _, slope = process.log_marginal_likelihood(theta, eval_gradient=True)
    assert len(slope) == 5
    assert slope == pytest.approx(
        approx_fprime(theta, process.log_marginal_likelihood, 1e-6), rel=1e-3, abs=1e-4
    )
    tuned = GaussianProcessRegressor(kernel).fit(X, Y)
    assert tuned.log_marginal_likelihood_value_ > process.log_marginal_likelihood_value_ + 0.1
    # At the best point no slope is left but towards a bound.
    theta, bounds = tuned.kernel_.theta, tuned.kernel_.bounds
    inside = (theta > bounds[:, 0] + 1e-3) & (theta < bounds[:, 1] - 1e-3)
    assert inside.any()
    left = tuned.log_marginal_likelihood(theta, eval_gradient=True)[1]
    assert np.abs(left[inside]).max() < 1e-2


def test_it_is_a_kernel_like_those_of_scikit_learn() -> None:
    kernel = ft.NTKKernel(activation="erf", depth=2)
    other = clone(kernel)
    assert other == kernel
    assert other != ft.NTKKernel(activation="erf", depth=3)
    assert repr(kernel + WhiteKernel()) == (
        "NTKKernel(erf, depth=2, kernel='ntk', C_W=2.0, C_b=0.1) + WhiteKernel(noise_level=1)"
    )
    assert "MLP" in repr(ft.NTKKernel(network=network()))
    assert pickle.loads(pickle.dumps(kernel))(X) == pytest.approx(kernel(X))
    kernel.theta = np.log([3.0, 0.5])
    assert (kernel.C_W, kernel.C_b) == pytest.approx((3.0, 0.5))
    product = kernel * WhiteKernel()
    assert product.get_params()["k1__depth"] == 2
    with pytest.raises(InputError, match="eval_gradient"):
        kernel(X, TESTS, eval_gradient=True)


def test_classifiers_take_it() -> None:
    data, labels = load_iris(return_X_y=True)
    data = (data - data.mean(axis=0)) / data.std(axis=0)
    process = GaussianProcessClassifier(ft.NTKKernel(depth=2), optimizer=None).fit(data[::3], labels[::3])
    assert process.score(data[1::3], labels[1::3]) > 0.8
    assert process.predict_proba(data[:4]).sum(axis=1) == pytest.approx(1)
    # The published protocol for small datasets: a support vector machine, depth and fixed layers searched.
    machine = SVC(kernel=ft.NTKKernel(C_b=0.0))
    grid = {"kernel__depth": [2, 3], "kernel__fixed_layers": [0, 1], "C": [1.0, 100.0]}
    search = GridSearchCV(machine, grid, cv=2).fit(data[::3], labels[::3])
    assert search.score(data[1::3], labels[1::3]) > 0.9


def test_a_torch_module_in_a_process() -> None:
    net = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1)).double()
    kernel = ft.NTKKernel(network=net, init={"*": (2.0, 0.1)}) + WhiteKernel(0.1)
    found, expected = (
        GaussianProcessRegressor(one).fit(X, Y).predict(TESTS[:4], return_std=True)
        for one in (kernel, ft.NTKKernel(C_W_bounds="fixed", C_b_bounds="fixed") + WhiteKernel(0.1))
    )
    for one, other in zip(found, expected, strict=True):
        assert one == pytest.approx(other, abs=1e-6)
