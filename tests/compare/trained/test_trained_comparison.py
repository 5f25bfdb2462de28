from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import foretrain as ft
from foretrain.compare.comparison import Comparison
from foretrain.compare.trained import TrainedComparison, compare_trained, train_ensemble
from foretrain.compare.trained.goal import Lesson, goal_of
from foretrain.compare.trained.statistics import (
    columns_of,
    entries_of,
    measure,
    over_batches,
    pseudo_values,
)
from foretrain.support.errors import InputError
from foretrain.theory.prediction.infinite_width import GradientDescent

X = 1.3 * np.array([(1, 0.2, -0.5), (-0.4, 1.1, 0.3), (0.1, -0.6, 1.2), (0.8, 0.7, 0.1), (-0.9, 0.3, 0.8)])
Y = np.array([(1, -0.5), (-0.7, 0.8), (0.4, 1.2)])
P = np.array([(0.7, 0.3), (0.2, 0.8), (0.5, 0.5)])
MLP = ft.MLP(
    "tanh",
    depth=3,
    width=24,
    n_out=2,
    C_b=(0.1, 0.1, 0.05),
    C_W=(1.2, 1.3, 1),
    lambda_b=(0.2, 0.3, 0.1),
    lambda_W=(0.6, 0.8, 0.5),
)
DATA: tuple[Any, ...] = (X[:3], Y, X[3:])
SMALL: dict[str, Any] = {"widths": (16, 32, 64), "draws": 60}
LARGE: dict[str, Any] = {"widths": (32, 64, 128), "draws": 400}
SOFT = Lesson(loss="cross_entropy")


@pytest.fixture(scope="module")
def found() -> TrainedComparison:
    return compare_trained(MLP, *DATA, **SMALL)


def test_the_theory_is_the_prediction(found: TrainedComparison) -> None:
    expected = GradientDescent.of(MLP, *DATA).end()
    covariance = expected.covariance.values
    np.testing.assert_allclose(found.theory[:4], expected.mean.values.ravel(), rtol=1e-12)
    np.testing.assert_allclose(
        found.theory[:4], [0.449106338, 0.046964001, -0.569578451, 1.196649210], rtol=1e-8
    )
    np.testing.assert_allclose(found.theory[4:7], [covariance[0, 0], covariance[0, 1], covariance[1, 1]])
    np.testing.assert_array_equal(found.theory[7:], 0.0)
    assert [entry.label for entry in found.entries][3::3] == [
        "mean of output 1 at 1",
        "covariance at 1 1",
        "between at 1 1",
    ]


def test_networks_agree_and_the_result_tells(found: TrainedComparison) -> None:
    assert found.agrees
    assert "agrees with trained networks" in found.verdict
    text = repr(found)
    for part in ("to the end", "n x rms deviation of between", "mean of output 0 at 0", found.verdict):
        assert part in text
    assert found.measured.shape == found.scaled_deviation.shape == (3, 10)
    np.testing.assert_allclose(found.scaled_deviation[1], 32 * (found.measured[1] - found.theory))
    rows = found.rows()
    assert rows[5]["observable"] == "covariance"
    assert rows[5]["tests"] == [0, 1]
    assert rows[3]["output"] == 1
    data = found.to_dataset()
    assert data.attrs["learner"] == "gradient_descent"
    np.testing.assert_allclose(data.predicted_mean.values.ravel(), found.theory[:4])
    np.testing.assert_allclose(data.scaled_deviation.values, found.scaled_deviation)
    assert data.sizes["kind"] == 3


def test_the_public_function_leads_to_both_comparisons(found: TrainedComparison) -> None:
    same = ft.compare(MLP, *DATA, trained=True, **SMALL)
    assert isinstance(same, TrainedComparison)
    np.testing.assert_array_equal(same.measured, found.measured)
    initial = ft.compare(MLP.replace(n_out=1), X[:1], ["K"], 500)
    assert isinstance(initial, Comparison)
    assert not isinstance(initial, TrainedComparison)
    assert ft.compare.compare(MLP.replace(n_out=1), X[:1], ["K"], 500).limit == pytest.approx(initial.limit)
    with pytest.raises(InputError, match="True or False"):
        ft.compare(MLP, *DATA, trained="yes")


def test_finished_widths_are_kept_and_read_back(found: TrainedComparison) -> None:
    kept: dict[str, Any] = {}

    def keeper(name: str, compute: Any) -> Any:
        if name not in kept:
            kept[name] = compute()
        return kept[name]

    first = compare_trained(MLP, *DATA, **SMALL, keeper=keeper)
    assert sorted(kept) == ["width 16", "width 32", "width 64"]
    second = compare_trained(MLP, *DATA, **SMALL, keeper=keeper)
    np.testing.assert_array_equal(first.measured, second.measured)
    np.testing.assert_array_equal(first.measured, found.measured)


@pytest.mark.statistical
def test_control_variates_change_the_noise_and_not_the_value() -> None:
    goal = goal_of(MLP.replace(n_in=3), *DATA)
    entries = entries_of(goal.law, 3)
    network = goal.mlp.replace(width=48)
    careful, _ = measure(goal, entries, network, 400, 100, 3)
    plain = train_ensemble(network, X[:3], X[3:], goal.training, 2000, seed=9, mirrored=True)
    columns = over_batches([columns_of(plain.end[:, 3:] - goal.law.mean, entries)], 100)
    raw = pseudo_values(goal.law, columns, entries)
    errors = np.hypot(careful.standard_error, raw.standard_error)
    assert np.abs((careful.estimate - raw.estimate) / errors).max() < 3.7
    ends = plain.end[:, 3:]
    expected = sum(np.cov(ends[..., i].T) for i in range(2)) / 2
    np.testing.assert_allclose(raw.estimate[4:7], expected[[0, 0, 1], [0, 1, 1]], rtol=0.01)
    np.testing.assert_allclose(raw.estimate[:4], ends.mean(axis=0).ravel(), rtol=1e-10)
    assert (
        careful.standard_error[4:7] < raw.standard_error[4:7]
    ).all()  # with a fifth of the trained networks


@pytest.mark.statistical
@pytest.mark.parametrize(
    ("learner", "options"),
    [
        ("bayes", {}),
        ("bayes", {"noise": 0.1}),
        ("gradient_descent", {"algorithm": "flow", "time": 1.5}),
        ("gradient_descent", {"time": 6, "eta": 0.7}),
    ],
)
def test_other_learners_and_times(learner: Any, options: dict[str, Any]) -> None:
    found = compare_trained(MLP, *DATA, learner=learner, **LARGE, **options, seed=1)
    expected = ft.predict(MLP, *DATA, learner=learner, **options)
    np.testing.assert_allclose(found.theory[:4], expected.mean.values.ravel(), rtol=1e-10)
    np.testing.assert_allclose(found.theory[[4, 6]], np.diagonal(expected.covariance.values), rtol=1e-10)
    assert found.agrees


@pytest.mark.statistical
@pytest.mark.parametrize("time", [None, 5])
def test_networks_agree_on_the_cross_entropy(time: int | None) -> None:
    assert compare_trained(MLP, X[:3], P, X[3:], loss="cross_entropy", time=time, **LARGE).agrees


def test_soft_labels_end_with_the_covariance_of_squared_errors_between_outputs() -> None:
    soft = goal_of(MLP, X[:3], P, X[3:], SOFT).law
    end = goal_of(MLP, X[:3], np.log(P) - np.log(P).mean(axis=1, keepdims=True), X[3:]).law
    np.testing.assert_allclose(soft.mean, end.mean)
    np.testing.assert_allclose(soft.covariance - soft.between, end.covariance)


def test_classes_may_be_named_by_numbers() -> None:
    labels = np.array([0, 1, 0])
    lesson = Lesson(loss="cross_entropy", time=3)
    named, given = (goal_of(MLP, X[:3], Y, X[3:], lesson) for Y in (labels, np.eye(2)[labels]))
    np.testing.assert_array_equal(named.training.targets, given.training.targets)
    np.testing.assert_array_equal(named.law.mean, given.law.mean)
    with pytest.raises(InputError, match="give a time"):
        goal_of(MLP, X[:3], labels, X[3:], SOFT)
    with pytest.raises(InputError, match="Y_train has shape"):
        goal_of(MLP, X[:3], labels[:2], X[3:], lesson)


@pytest.mark.slow
def test_labels_are_smoothed_as_they_are_in_predictions() -> None:
    labels, options = np.array([0, 1, 0]), {"loss": "cross_entropy", "label_smoothing": 0.1}
    smoothed = goal_of(MLP, X[:3], labels, X[3:], Lesson(**options))  # type: ignore[arg-type]
    given = goal_of(MLP, X[:3], 0.8 * np.eye(2)[labels] + 0.1, X[3:], SOFT)
    np.testing.assert_allclose(smoothed.training.targets, given.training.targets, rtol=1e-14)
    np.testing.assert_allclose(smoothed.law.mean, given.law.mean, rtol=1e-12)
    predicted = ft.predict(MLP, X[:3], labels, X[3:], draws=50, **options)  # type: ignore[arg-type]
    np.testing.assert_allclose(smoothed.law.mean, predicted.mean.values, rtol=1e-10)
    found = ft.compare(MLP, X[:3], labels, X[3:], trained=True, **options, **SMALL)
    np.testing.assert_allclose(found.theory[:4], smoothed.law.mean.ravel(), rtol=1e-12)
    with pytest.raises(InputError, match="loss='cross_entropy'"):
        goal_of(MLP, *DATA, Lesson(label_smoothing=0.1))


def test_a_law_that_is_sampled_counts_with_its_own_error() -> None:
    found = compare_trained(MLP, X[:3], P, X[3:], loss="cross_entropy", time=5, **SMALL)
    assert found.sampled_theory is not None
    theory = np.sqrt(np.diagonal(found.sampled_theory.covariance))
    assert (theory > 0).all()
    networks = np.sqrt((found._weights**2 * found.measured_error**2).sum(axis=0))
    np.testing.assert_allclose(found.standard_error, np.hypot(theory, networks))


def test_training_inputs_are_compared_exactly() -> None:
    found = compare_trained(MLP.replace(n_out=1), X[:3], Y[:, 0], X[:4], **SMALL)
    assert not found.fluctuates[:3].any()
    assert found.fluctuates[3]
    assert found.agrees
    np.testing.assert_allclose(found.limit[:3], Y[:, 0], atol=1e-6)


def test_a_wrong_prediction_is_seen(found: TrainedComparison) -> None:
    wrong = replace(found, theory=found.theory + 6 * found.standard_error * (np.arange(10) == 4))
    assert not wrong.agrees
    assert "does NOT agree" in wrong.verdict


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"learner": "svm"}, "unknown learner 'svm'"),
        ({"algorithm": "newton"}, "unknown algorithm 'newton'"),
        ({"loss": "hinge"}, "unknown loss 'hinge'"),
        ({"learner": "bayes", "time": 3}, "time and loss"),
        ({"noise": 0.1}, "learner='bayes'"),
        ({"eta": 100.0}, "2 / lambda_max"),
        ({"label_smoothing": 0.1}, "label_smoothing"),
        ({"time": 1.5}, "whole numbers"),
        ({"widths": (16, 32)}, "at least 3"),
        ({"widths": (16, 32, 64), "scales": (1, 2, 4)}, "either widths or scales"),
        ({"draws": 10}, "at least 40"),
        ({"draws": (40, 40)}, "3 widths"),
        ({"loss": "cross_entropy"}, "probabilit"),
    ],
)
def test_bad_input(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        compare_trained(MLP, *DATA, **options)


@pytest.mark.filterwarnings("ignore::foretrain.support.errors.AccuracyWarning")
def test_repeated_inputs_have_no_end_but_every_step_before_it() -> None:
    repeated = X[[0, 0, 1]]
    with pytest.raises(InputError, match="leave out repeated inputs"):
        compare_trained(MLP, repeated, Y, X[3:])
    assert np.isfinite(goal_of(MLP, repeated, Y, X[3:], Lesson(time=10)).law.mean).all()


def test_one_output_has_no_cross_entropy() -> None:
    with pytest.raises(InputError, match="one output"):
        compare_trained(MLP.replace(n_out=1), X[:3], np.ones(3), X[3:], loss="cross_entropy")


@pytest.mark.statistical
def test_published_shifts_of_mean_and_covariance() -> None:
    """n (mean − (10.40)) and n (covariance − (10.41)) after 60 steps at the best rate, as they were found before."""
    best = GradientDescent.of(MLP, *DATA).rates.best
    found = compare_trained(MLP, *DATA, widths=(32, 64, 128), draws=(2400, 1600, 1200), time=60, eta=best)
    assert found.agrees
    means = [(0.40, -0.03, -0.11, 0.60), (0.44, 0.07, -0.26, 0.91), (0.64, 0.06, -0.09, 0.60)]
    mean_errors = [0.08, 0.14, 0.28]
    variances = [(0.153, -0.169), (0.087, -0.258), (0.159, -0.218)]
    variance_errors = [0.028, 0.051, 0.098]
    for place in range(3):
        shift, error = found.scaled_deviation[place], found.scaled_deviation_error[place]
        assert error[:4].max() < 2 * mean_errors[place]
        z = (shift[:4] - means[place]) / np.hypot(error[:4], mean_errors[place])
        assert np.abs(z).max() < 3.5
        z = (shift[[4, 6]] - variances[place]) / np.hypot(error[[4, 6]], variance_errors[place])
        assert np.abs(z).max() < 3.5


@pytest.mark.statistical
def test_random_features_give_the_posterior_of_the_reference() -> None:
    found = compare_trained(MLP, *DATA, learner="bayes", widths=(50, 100, 200, 400), draws=400)
    expected = [
        0.469927978,
        0.081900575,
        -0.680474001,
        1.293872681,
        0.0610782580,
        -0.0188077428,
        0.0634576719,
    ]
    np.testing.assert_allclose(found.theory[:7], expected, rtol=1e-8)
    assert found.agrees


def test_data_that_are_missing_are_named() -> None:
    with pytest.raises(InputError, match="X_test, trained=True"):
        ft.compare(ft.MLP("tanh", depth=2, width=8), [[1.0]], [1.0], trained=True)
