"""The estimator: scikit-learn's contracts without scikit-learn in the package, and agreement with what it wraps."""

from __future__ import annotations

import pickle
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone, is_regressor
from sklearn.compose import TransformedTargetRegressor
from sklearn.metrics import r2_score
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.validation import check_is_fitted

from foretrain.support.errors import AccuracyWarning, InputError, NotSupportedError
from foretrain.theory.prediction.nearly_kernel import (
    ALGORITHMS,
    NearlyKernelRegressor,
    QuadraticModel,
    solve,
    train,
)

RNG = np.random.default_rng(5)
X, X_TEST = RNG.normal(size=(12, 2)), RNG.normal(size=(5, 2))
Y = np.sin(X[:, 0]) + 0.3 * X[:, 1]
FREQUENCIES, SHIFTS = RNG.normal(size=(2, 40)), RNG.uniform(0, 2 * np.pi, 40)
COUPLING = RNG.normal(size=(40, 40)) / 40
COUPLING = COUPLING + COUPLING.T


def waves(x: Any) -> Any:
    return np.cos(x @ FREQUENCIES + SHIFTS) / np.sqrt(20)


def wave_pairs(x: Any) -> Any:
    moved = np.sin(x @ FREQUENCIES + SHIFTS)
    return moved[:, :, None] * moved[:, None, :] * COUPLING


def kernel(x1: Any, x2: Any) -> Any:
    return waves(x1) @ waves(x2).T


def meta_kernel(x0: Any, x1: Any, x2: Any) -> Any:
    return np.einsum("njk,aj,bk->nab", wave_pairs(x0), waves(x1), waves(x2))


def estimator(**options: Any) -> NearlyKernelRegressor:
    return NearlyKernelRegressor(waves, wave_pairs, **{"algorithm": "flow", "epsilon": 0.02, **options})


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_fit_and_predict_are_the_closed_form_for_features_and_for_kernels(algorithm: str) -> None:
    model = QuadraticModel.from_features(waves, wave_pairs, 0.02)
    expected = solve(model, X, Y, algorithm).predict(X_TEST)
    by_features = estimator(algorithm=algorithm).fit(X, Y)
    by_kernels = NearlyKernelRegressor(
        kernel=kernel, meta_kernel=meta_kernel, algorithm=algorithm, epsilon=0.02
    ).fit(X, Y)
    assert by_features.predict(X_TEST) == pytest.approx(expected, abs=1e-12)
    assert by_kernels.predict(X_TEST) == pytest.approx(expected, abs=1e-8)
    assert by_kernels.effective_kernel(X_TEST, X) == pytest.approx(
        by_features.effective_kernel(X_TEST, X), abs=1e-9
    )
    assert by_features.predict(X) == pytest.approx(Y, abs=1e-9)


def test_training_in_place_of_the_formula() -> None:
    formula, trained = (
        estimator(algorithm="ridgeless", solver=solver, epsilon=0.005).fit(X, Y)
        for solver in ("formula", "training")
    )
    expected = train(QuadraticModel.from_features(waves, wave_pairs, 0.005), X, Y, "ridgeless")
    assert trained.predict(X_TEST) == pytest.approx(expected.predict(X_TEST), abs=1e-12)
    linear = estimator(epsilon=0.0).fit(X, Y).predict(X_TEST)
    correction = np.abs(formula.predict(X_TEST) - linear).max()
    assert np.abs(formula.predict(X_TEST) - trained.predict(X_TEST)).max() < 0.1 * correction
    assert trained.effective_features(X_TEST).shape == (1, 5, 40)
    assert trained.effective_features(X_TEST) == pytest.approx(formula.effective_features(X_TEST), abs=1e-2)


def test_clone_and_parameters() -> None:
    first = estimator(eta=0.1)
    copy = clone(first)
    assert copy is not first
    assert copy.get_params() == first.get_params()
    assert not hasattr(clone(first.set_params(algorithm="direct").fit(X, Y)), "solution_")
    assert first.set_params(epsilon=0.5).epsilon == 0.5
    with pytest.raises(InputError, match=r"unknown parameter 'epsilom'.*'epsilon'"):
        first.set_params(epsilom=1)
    assert repr(estimator()) == (
        "NearlyKernelRegressor(features=waves, meta_features=wave_pairs, algorithm='flow', epsilon=0.02)"
    )


def test_scikit_learn_sees_a_regressor() -> None:
    assert is_regressor(estimator())
    check_is_fitted(estimator().fit(X, Y))
    with pytest.raises(Exception, match="not fitted"):
        check_is_fitted(estimator())


@pytest.mark.filterwarnings("ignore::foretrain.support.errors.AccuracyWarning")
def test_pipeline_grid_search_and_cross_validation() -> None:
    pipeline = make_pipeline(StandardScaler(), estimator())
    search = GridSearchCV(
        pipeline,
        {
            "nearlykernelregressor__epsilon": [0.0, 0.02],
            "nearlykernelregressor__algorithm": ["flow", "direct"],
        },
        cv=3,
    ).fit(X, Y)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    assert search.predict(X_TEST).shape == (5,)
    assert search.best_estimator_.score(X, Y) == pytest.approx(1.0, abs=1e-9)
    scores = cross_val_score(estimator(), X, Y, cv=3)
    own = estimator().fit(X[4:], Y[4:])
    assert scores[0] == pytest.approx(r2_score(Y[:4], own.predict(X[:4])))
    scaled = TransformedTargetRegressor(estimator(), transformer=StandardScaler()).fit(X, Y)
    assert scaled.predict(X) == pytest.approx(Y, abs=1e-8)


def test_scores_equal_those_of_scikit_learn() -> None:
    targets = np.stack([Y, Y**2 - X[:, 1]], axis=1)
    weight = RNG.uniform(0.5, 2, 5)
    wanted = RNG.normal(size=(5, 2))
    found = estimator(epsilon=0.005).fit(X, targets)
    assert found.predict(X_TEST).shape == (5, 2)
    assert found.score(X_TEST, wanted) == pytest.approx(r2_score(wanted, found.predict(X_TEST)))
    assert found.score(X_TEST, wanted, weight) == pytest.approx(
        r2_score(wanted, found.predict(X_TEST), sample_weight=weight)
    )
    constant = np.stack([np.ones(5), wanted[:, 1]], axis=1)
    assert found.score(X_TEST, constant) == pytest.approx(r2_score(constant, found.predict(X_TEST)))
    assert found.score(X, targets) == pytest.approx(1.0, abs=1e-9)


def test_offset_is_added_and_not_learned() -> None:
    found = estimator(offset=lambda x: x[:, 0]).fit(X, Y)
    rest = estimator().fit(X, Y - X[:, 0])
    assert found.predict(X_TEST) == pytest.approx(rest.predict(X_TEST) + X_TEST[:, 0], abs=1e-12)


@pytest.mark.parametrize(
    "options",
    [{"features": waves, "meta_features": wave_pairs}, {"kernel": kernel, "meta_kernel": meta_kernel}],
)
def test_a_fitted_estimator_can_be_pickled(options: Any) -> None:
    found = NearlyKernelRegressor(**options, epsilon=0.02, algorithm="flow").fit(X, Y)
    assert (pickle.loads(pickle.dumps(found)).predict(X_TEST) == found.predict(X_TEST)).all()


def test_a_second_fit_leaves_nothing_of_the_first() -> None:
    found = estimator().fit(X, Y).set_params(solver="training", algorithm="ridgeless").fit(X[:5], Y[:5])
    assert not hasattr(found, "expansion_parameter_")
    with pytest.raises(InputError, match="unknown parameter"):
        found.set_params(epsilon=0.3, wrong=1)
    assert found.epsilon == 0.02


def test_samples_of_another_shape_are_refused_even_with_as_many_numbers() -> None:
    images = X.reshape(12, 2, 1)
    found = NearlyKernelRegressor(lambda x: waves(x[:, :, 0])).fit(images, Y)
    assert found.predict(images) == pytest.approx(Y, abs=1e-8)
    with pytest.raises(InputError, match=r"\(1, 2\).*\(2, 1\)"):
        found.predict(X.reshape(12, 1, 2))


def test_bad_input() -> None:
    for name, value in (("features", np.ones(3)), ("kernel", "rbf"), ("offset", 1.0)):
        with pytest.raises(InputError, match=f"{name} is a .*function"):
            NearlyKernelRegressor(**{name: value}).fit(X, Y)
    with pytest.raises(InputError, match=r"model is a int.*NetworkFeatures"):
        NearlyKernelRegressor(model=3).fit(X, Y)  # type: ignore[arg-type]
    for epsilon in ("0.1", None, True, np.nan):
        with pytest.raises(InputError, match="epsilon is"):
            estimator(epsilon=epsilon).fit(X, Y)
        with pytest.raises(InputError, match="epsilon is"):
            NearlyKernelRegressor(kernel=kernel, meta_kernel=meta_kernel, epsilon=epsilon).fit(X, Y)  # type: ignore[arg-type]
    for y in (None, 1j * Y, ["a"] * 12):
        with pytest.raises(InputError, match=r"not a real array|is complex|cannot be read"):
            estimator().fit(X, y)
    with pytest.raises(InputError, match="sum above zero"):
        estimator().fit(X, Y).score(X, Y, np.zeros(12))
    with pytest.raises(InputError, match="not fitted"):
        estimator().predict(X)
    with pytest.raises(InputError, match="give either"):
        NearlyKernelRegressor().fit(X, Y)
    with pytest.raises(InputError, match="give either"):
        estimator(kernel=kernel).fit(X, Y)
    with pytest.raises(InputError, match="meta_kernel goes with kernel"):
        estimator(meta_kernel=meta_kernel).fit(X, Y)
    with pytest.raises(InputError, match="meta_features go with features"):
        NearlyKernelRegressor(meta_features=wave_pairs, kernel=kernel).fit(X, Y)
    with pytest.raises(InputError, match="unknown solver"):
        estimator(solver="train").fit(X, Y)
    with pytest.raises(InputError, match="2 / lambda_max"):
        estimator(algorithm="gradient_descent", eta=10.0).fit(X, Y)
    with pytest.raises(InputError, match="X has 3 columns"):
        estimator().fit(X, Y).predict(np.ones((2, 3)))
    with pytest.raises(InputError, match="y has shape"):
        estimator().fit(X, Y).score(X_TEST, Y[:5, None])
    with pytest.raises(InputError, match="at least one sample"):
        estimator().fit(np.empty((0, 2)), [])
    with pytest.raises(NotSupportedError, match="no parameters"):
        NearlyKernelRegressor(kernel=kernel).fit(X, Y).effective_features(X)
    with pytest.warns(AccuracyWarning, match="not small"):
        estimator(epsilon=50.0).fit(X, Y)


@pytest.mark.slow
def test_neither_torch_nor_scikit_learn_is_imported() -> None:
    code = (
        "import sys; from foretrain.theory.prediction.nearly_kernel import NearlyKernelRegressor as R; "
        "R(lambda x: x).fit([[1.0, 0.0], [0.5, 1.0]], [1.0, 2.0]).predict([[1.0, 1.0]]); "
        "print(sorted({'torch', 'sklearn', 'matplotlib', 'xarray'} & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
