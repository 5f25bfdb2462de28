"""Estimators: scikit-learn's contract, predictions against ft.predict and dense formulas, published kernels."""

from __future__ import annotations

import pickle
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import log_softmax, logsumexp
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.datasets import load_digits, load_iris, load_wine
from sklearn.model_selection import GridSearchCV, StratifiedKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator
from torch import nn

import foretrain as ft
from foretrain.support.errors import ForetrainError, InputError, NotSupportedError
from foretrain.theory import layers
from foretrain.theory.prediction.kernels import last_layer

RNG = np.random.default_rng(3)
X, TESTS = RNG.normal(size=(12, 3)), RNG.normal(size=(5, 3))
Y = np.stack([np.sin(X[:, 0]), X[:, 1] * X[:, 2]], axis=1)
LABELS = np.array([0, 1, 2] * 4)
CONSTANTS: dict[str, Any] = {"activation": "gelu", "depth": 3, "C_W": 1.7, "C_b": 0.2}
MLP = ft.MLP(**CONSTANTS, width=1, n_out=2, lambda_W=1.7, lambda_b=0.2)


@pytest.mark.slow(after=1)
@pytest.mark.parametrize(
    "estimator",
    [
        ft.NTKRegressor(),
        ft.NTKClassifier(),
        ft.NTKRegressor(kernel="nngp", learner="bayes", noise=0.1, activation="erf"),
        ft.NTKRegressor(fixed_layers=1, depth=2, noise=0.01, activation="gelu"),
        ft.NTKClassifier(kernel="nngp", depth=4, C_W=1.5, C_b=0.5),
        ft.NTKClassifier(noise=0.1, label_smoothing=0.2),
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore")  # checks fit repeated inputs on purpose
def test_all_checks_of_scikit_learn(estimator: Any) -> None:
    check_estimator(estimator, on_skip=None)


# Predictions


@pytest.mark.parametrize(
    ("chosen", "asked"),
    [
        ({}, {}),
        ({"kernel": "nngp", "learner": "bayes"}, {"learner": "bayes"}),
        ({"kernel": "nngp", "learner": "bayes", "noise": 0.3}, {"learner": "bayes", "noise": 0.3}),
        ({"kernel": "nngp"}, {"learner": "bayes"}),  # the last layer alone, trained to the end
    ],
)
def test_predictions_are_those_of_predict(chosen: dict[str, Any], asked: dict[str, Any]) -> None:
    expected = ft.predict(MLP, X, Y, TESTS, **asked)
    fitted = ft.NTKRegressor(**CONSTANTS, **chosen).fit(X, Y)
    mean, deviation = fitted.predict(TESTS, return_std=True)
    _, covariance = fitted.predict(TESTS, return_cov=True)
    assert fitted.predict(TESTS) == pytest.approx(expected.mean.values, abs=1e-10)
    assert mean == pytest.approx(expected.mean.values, abs=1e-10)
    for output in range(2):
        assert deviation[:, output] == pytest.approx(expected.standard_deviation.values, abs=1e-9)
        assert covariance[..., output] == pytest.approx(expected.covariance.values, abs=1e-10)
    single = ft.NTKRegressor(**CONSTANTS, **chosen).fit(X, Y[:, 0])
    assert [one.shape for one in single.predict(TESTS, return_cov=True)] == [(5,), (5, 5)]
    assert single.predict(TESTS) == pytest.approx(mean[:, 0], abs=1e-12)


@pytest.mark.parametrize("kernel", ["ntk", "nngp"])
@pytest.mark.parametrize("learner", ["gradient_descent", "bayes"])
def test_with_a_ridge_by_dense_formulas(kernel: str, learner: str) -> None:
    K, Theta = last_layer(MLP, np.concatenate([X, TESTS]))
    moved, n, noise = (Theta if kernel == "ntk" else K), len(X), 0.4
    P = moved[n:, :n] @ np.linalg.inv(moved[:n, :n] + noise * np.eye(n))
    if learner == "bayes":
        covariance = moved[n:, n:] - P @ moved[:n, n:]
    else:  # of Q z(0) with Q = (-P, 1)
        Q = np.concatenate([-P, np.eye(len(TESTS))], axis=1)
        covariance = Q @ K @ Q.T
    fitted = ft.NTKRegressor(**CONSTANTS, kernel=kernel, learner=learner, noise=noise).fit(X, Y[:, 0])
    mean, found = fitted.predict(TESTS, return_cov=True)
    assert mean == pytest.approx(P @ Y[:, 0], abs=1e-10)
    assert found == pytest.approx(covariance, abs=1e-10)
    assert fitted.predict(TESTS, return_std=True)[1] == pytest.approx(np.sqrt(np.diagonal(covariance)))


def test_a_ridge_is_descent_with_a_penalty_on_the_way_from_the_start() -> None:
    """A linear network of one layer, drawn and trained by a closed form in its weights: w(0) matters."""
    inputs, y, noise = X[:, :2], Y[:, 0], 0.5
    fitted = ft.NTKRegressor(depth=1, C_W=3.0, C_b=0.0, noise=noise).fit(inputs, y)
    mean, covariance = fitted.predict(TESTS[:, :2], return_cov=True)
    scale = np.sqrt(3.0 / 2)  # z = scale w.x with w ~ N(0, 1) at the rate 1
    features, tests = scale * inputs, scale * TESTS[:, :2]
    shrunk = np.linalg.solve(features.T @ features + noise * np.eye(2), features.T)
    kept = tests - tests @ shrunk @ features  # what is left of w(0) in the answers
    assert mean == pytest.approx(tests @ shrunk @ y, abs=1e-12)
    assert covariance == pytest.approx(kept @ kept.T, abs=1e-12)


@pytest.mark.parametrize("parts", [1, 40])
def test_many_tests_go_in_parts(monkeypatch: pytest.MonkeyPatch, parts: int) -> None:
    from foretrain.compare.estimators import kernel_machines

    fitted = ft.NTKRegressor().fit(X, Y)
    mean, deviation = fitted.predict(TESTS, return_std=True)
    monkeypatch.setattr(kernel_machines, "_ENTRIES", parts)
    monkeypatch.setattr(kernel_machines, "_TOGETHER", 1)
    again = fitted.predict(TESTS, return_std=True)
    assert fitted.predict(TESTS) == pytest.approx(mean, abs=1e-12)
    assert again[0] == pytest.approx(mean, abs=1e-12)
    assert again[1] == pytest.approx(deviation, abs=1e-9)


# Networks


def published_kernels(inputs: Any, depths: int) -> Any:
    """The program of Arora et al. (2020) for the UCI datasets: layers of relu, of which the first are fixed."""
    kernels = np.zeros((depths, depths, len(inputs), len(inputs)))
    for fixed in range(depths):
        S = inputs @ inputs.T
        H = np.zeros_like(S)
        for depth in range(depths):
            if fixed <= depth:
                H += S
            kernels[depth, fixed] = H
            L = np.diag(S)
            P = np.clip(np.sqrt(np.outer(L, L)), 1e-9, None)
            cosine = np.clip(S / P, -1, 1)
            S = (cosine * (np.pi - np.arccos(cosine)) + np.sqrt(1 - cosine**2)) * P / 2 / np.pi
            H = H * (np.pi - np.arccos(cosine)) / 2 / np.pi
    return kernels


def test_fixed_layers_are_those_of_the_published_protocol() -> None:
    points = np.concatenate([X, TESTS])
    published = published_kernels(points, 4)
    for depth in range(2, 5):  # that of one layer is singular
        for fixed in range(depth):
            machine = ft.NTKRegressor(depth=depth, fixed_layers=fixed, C_W=1.0, C_b=0.0).fit(X, Y)
            kernel = published[depth - 1, fixed] / 3  # our inputs are divided by their number of components
            expected = kernel[12:, :12] @ np.linalg.solve(kernel[:12, :12] + 1e-14 * np.eye(12), Y)
            assert machine.predict(TESTS) == pytest.approx(expected, abs=1e-6)
            assert machine._kernels(points)[1] == pytest.approx(kernel, abs=1e-7)


def test_all_layers_fixed_but_the_last_is_the_nngp() -> None:
    one, other = (ft.NTKRegressor(**CONSTANTS, **c) for c in ({"fixed_layers": 2}, {"kernel": "nngp"}))
    # The bias of the last layer trains at the rate C_b, its weights at C_W: Theta = K (10.46).
    assert one.fit(X, Y).predict(TESTS) == pytest.approx(other.fit(X, Y).predict(TESTS), abs=1e-9)


def module() -> nn.Module:
    parts = nn.Linear(3, 16), nn.GELU(), nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 1)
    return nn.Sequential(*parts).double()


def by_hand() -> layers.Signal:
    law = {"C_W": 1.7, "C_b": 0.2}
    hidden = layers.data().linear(**law).activation("gelu").linear(**law).activation("gelu")
    return hidden.linear(**law)


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("kernel", ["nngp", "ntk"])
def test_any_description_of_a_network_answers_alike(kernel: str) -> None:
    expected = ft.NTKRegressor(**CONSTANTS, kernel=kernel, noise=0.01).fit(X, Y).predict(TESTS, True)
    described: list[dict[str, Any]] = [
        {"network": MLP},
        {"network": by_hand()},
        {"network": module(), "init": {"*": (1.7, 0.2)}},
    ]
    for parameters in described:
        machine = clone(ft.NTKRegressor(**parameters, kernel=kernel, noise=0.01)).fit(X, Y)
        again = pickle.loads(pickle.dumps(machine))
        for one in (machine, again):
            mean, deviation = one.predict(TESTS, return_std=True)
            assert mean == pytest.approx(expected[0], abs=1e-9)
            assert deviation == pytest.approx(expected[1], abs=1e-8)
        assert machine.predict(TESTS[:1]) == pytest.approx(expected[0][:1], abs=1e-9)
    alone = machine.predict(TESTS[:1], return_std=True)[1]
    assert alone == pytest.approx(expected[1][:1], abs=1e-8)


def make(width: int) -> nn.Module:
    parts = nn.Conv2d(1, width, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10)
    return nn.Sequential(*parts).double()


def test_images_as_rows() -> None:
    images, labels = load_digits(return_X_y=True)
    images, labels = images[:40] / 16, labels[:40]
    init = {"*": (2.0, 0.1)}
    machine = ft.NTKClassifier(network=make, init=init, input_shape=(1, 8, 8)).fit(images[:30], labels[:30])
    one_hot = np.eye(10)[labels[:30]] - 0.1
    shaped = torch.tensor(images.reshape(-1, 1, 8, 8))
    expected = ft.predict(make, shaped[:30], one_hot, shaped[30:], init=init, spread="none")
    assert machine.decision_function(images[30:]) == pytest.approx(expected.mean.values, abs=1e-8)
    hand = layers.data((8, 8)).convolution(3, C_W=2, C_b=0.1).activation("relu").mean().linear(C_W=2, C_b=0.1)
    same = ft.NTKClassifier(network=hand, input_shape=(8, 8, 1)).fit(images[:30], labels[:30])
    assert same.predict_proba(images[30:]) == pytest.approx(machine.predict_proba(images[30:]), abs=1e-8)


# Classes


def test_scores_are_mean_logits_of_networks_trained_on_the_cross_entropy() -> None:
    smoothing = 0.15
    machine = ft.NTKClassifier(**CONSTANTS, label_smoothing=smoothing).fit(X, LABELS)
    trained = ft.predict(
        MLP.replace(n_out=3), X, LABELS, TESTS, loss="cross_entropy", label_smoothing=smoothing, draws=2
    )
    found = np.log(machine.predict_proba(TESTS))
    assert found == pytest.approx(log_softmax(trained.mean.values, axis=1), abs=1e-8)
    squares = ft.predict(MLP.replace(n_out=3), X, np.eye(3)[LABELS] - 1 / 3, TESTS)
    assert machine.decision_function(TESTS) == pytest.approx(squares.mean.values, abs=1e-9)
    assert machine.label_smoothing_ == pytest.approx(smoothing)
    own = machine.predict_proba(X)[np.arange(12), LABELS]
    assert own == pytest.approx(np.full(12, 1 - smoothing), abs=1e-8)


def test_smoothing_makes_labels_likeliest_when_each_is_left_out() -> None:
    X, labels = load_iris(return_X_y=True)
    chosen = np.random.default_rng(0).permutation(150)[:30]
    X, labels = X[chosen], labels[chosen]
    machine = ft.NTKClassifier(depth=2, noise=0.1).fit(X, labels)
    others = [np.delete(np.arange(30), k) for k in range(30)]
    left_out = np.concatenate(
        [clone(machine).fit(X[o], labels[o]).decision_function(X[[k]]) for k, o in enumerate(others)]
    )
    own = left_out[np.arange(30), labels]

    def unlikeliness(smoothing: float) -> float:
        scale = np.log((1 - smoothing) * 2 / smoothing)
        return float(np.sum(logsumexp(scale * left_out, axis=1) - scale * own))

    best = machine.label_smoothing_
    least = 2 / 33  # Laplace's rule: N = 30, three classes
    assert best >= least * (1 - 1e-3)
    tried = np.linspace(max(least, best / 2), 0.6, 200)
    assert unlikeliness(best) <= min(map(unlikeliness, tried)) + 1e-4
    softer = clone(machine).set_params(noise=3.0).fit(X, labels)
    assert softer.label_smoothing_ < 0.6


def test_two_classes_have_one_score() -> None:
    labels = np.where(X[:, 0] > 0, "yes", "no")
    machine = ft.NTKClassifier().fit(X, labels)
    scores = machine.decision_function(X)
    assert scores == pytest.approx(np.where(labels == "yes", 1.0, -1.0), abs=1e-8)
    likely = machine.classes_[machine.predict_proba(TESTS).argmax(axis=1)]
    assert (machine.predict(TESTS) == likely).all()
    assert (machine.predict(TESTS) == np.where(machine.decision_function(TESTS) > 0, "yes", "no")).all()
    assert machine.score(X, labels) == 1.0


def test_grid_search_over_the_network() -> None:
    data, labels = load_wine(return_X_y=True)
    pipeline = make_pipeline(StandardScaler(), ft.NTKClassifier(C_b=0.0))
    grid = {"ntkclassifier__depth": [1, 3], "ntkclassifier__kernel": ["ntk", "nngp"]} | {
        "ntkclassifier__noise": [0.01, 1.0]
    }
    folds = StratifiedKFold(4, shuffle=True, random_state=0)
    search = GridSearchCV(pipeline, grid, cv=folds).fit(data[::2], labels[::2])
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    assert search.best_score_ > 0.93
    assert search.score(data[1::2], labels[1::2]) > 0.93
    assert cross_val_score(ft.NTKRegressor(noise=0.1), data[:60], labels[:60], cv=3).shape == (3,)


def test_parameters_are_those_of_scikit_learn() -> None:
    machine = ft.NTKRegressor(C_W=(1.0, 2.0, 3.0), noise=0.1)
    assert is_regressor(machine)
    assert is_classifier(ft.NTKClassifier())
    assert machine.get_params()["C_W"] == (1.0, 2.0, 3.0)
    assert repr(machine) == "NTKRegressor(C_W=(1.0, 2.0, 3.0), noise=0.1)"
    before = machine.fit(X, Y).predict(TESTS)
    assert np.abs(machine.set_params(C_b=0.5).fit(X, Y).predict(TESTS) - before).max() > 1e-3
    with pytest.raises(ValueError, match="Invalid parameter 'width'"):
        machine.set_params(width=3)


# What cannot be


@pytest.mark.parametrize(
    ("parameters", "named"),
    [
        ({"kernel": "rbf"}, "kernel"),
        ({"learner": "guess"}, "learner"),
        ({"noise": -1.0}, "noise"),
        ({"fixed_layers": 3}, "fixed_layers"),
        ({"depth": 0}, "depth"),
        ({"C_W": -1.0}, "C_W"),
        ({"network": MLP, "depth": 4}, "depth"),
        ({"network": MLP, "init": {"*": (1.0, 0.0)}}, "init"),
        ({"rates": "standard"}, "rates"),
        ({"network": by_hand(), "input_shape": (2, 2)}, "input_shape"),
        ({"network": 3}, "model"),
        ({"network": layers.data((3,)).linear(), "input_shape": (3, 1)}, "network"),
    ],
)
def test_bad_parameters_are_named(parameters: dict[str, Any], named: str) -> None:
    with pytest.raises(ForetrainError) as caught:
        ft.NTKRegressor(**parameters).fit(X, Y)
    assert named in caught.value.parameters


def test_other_errors() -> None:
    with pytest.raises(NotSupportedError, match="infinite"):
        ft.NTKRegressor(activation=np.sign).fit(X, Y)
    assert ft.NTKRegressor(activation=np.sign, kernel="nngp").fit(X, Y).predict(X) == pytest.approx(Y)
    with pytest.raises(InputError, match="one class"):
        ft.NTKClassifier().fit(X, np.zeros(12))
    for share in (0.0, 0.7, -1):
        with pytest.raises(InputError, match="label_smoothing"):
            ft.NTKClassifier(label_smoothing=share).fit(X, LABELS)
    with pytest.raises(InputError, match="return_cov"):
        ft.NTKRegressor().fit(X, Y).predict(X, return_std=True, return_cov=True)


def run(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    ).stdout.strip()


@pytest.mark.slow
def test_scikit_learn_is_asked_for_only_here() -> None:
    loaded = "[m for m in ('sklearn', 'torch') if m in sys.modules]"
    code = f"import sys, foretrain as ft; print({loaded}); ft.NTKKernel; print({loaded})"
    assert run(code) == "[]\n['sklearn']"


def test_without_scikit_learn_the_way_to_it_is_told() -> None:
    code = (
        "import sys; sys.modules['sklearn'] = None\n"
        "import foretrain as ft\n"
        "print('NTKRegressor' in ft.__all__)\n"
        "try: ft.NTKRegressor\n"
        "except ft.ForetrainError as error: print(error)"
    )
    listed, error = run(code).splitlines()
    assert listed == "False"  # so that a star import goes through
    assert "pip install 'foretrain[sklearn]'" in error
