"""Kernels of MLPs on small tables: the kernels, the protocol against a loop of its own, and a run from its parts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from foretrain.experiments.parts import Parts
from foretrain.experiments.small_data import kernel_classifiers as experiment
from foretrain.support.seeds import generator, spawn
from foretrain.theory.architecture import FloatArray

TINY = experiment.TablePlan(("iris",), 2, 2)


def brute_kernel(x: FloatArray, layers: int, fixed: int) -> FloatArray:
    """The recursion of the tangent kernel of relu by angles, one pair of inputs at a time."""
    found = np.empty((len(x), len(x)))
    for i, a in enumerate(x):
        for j, b in enumerate(x):
            sizes, angle = np.linalg.norm(a) * np.linalg.norm(b) / len(a), np.dot(a, b)
            angle = np.arccos(np.clip(angle / np.linalg.norm(a) / np.linalg.norm(b), -1, 1))
            total = 0.0
            for layer in range(layers):
                if layer:
                    total *= 1 - angle / np.pi
                    angle = np.arccos(min(1.0, (np.sin(angle) + (np.pi - angle) * np.cos(angle)) / np.pi))
                if layer >= fixed:
                    total += 2 * sizes * np.cos(angle)
            found[i, j] = total
    return found


@pytest.mark.parametrize(("layers", "fixed"), [(1, 0), (2, 0), (2, 1), (4, 0), (4, 2), (5, 4)])
def test_layers_that_are_fixed_do_not_contribute(layers: int, fixed: int) -> None:
    x = np.random.default_rng(2).normal(size=(6, 3))
    found = experiment.tangent_kernel(x, layers, fixed)
    np.testing.assert_allclose(found, brute_kernel(x, layers, fixed), rtol=1e-7)


def test_one_layer_is_linear() -> None:
    x = np.random.default_rng(3).normal(size=(5, 4))
    np.testing.assert_allclose(experiment.tangent_kernel(x, 1, 0), x @ x.T / 2)


def test_samples_are_dealt_with_equal_shares_of_classes() -> None:
    labels = np.repeat([0, 1, 2], [11, 30, 5])
    parts = experiment.dealt(labels, 4, np.random.default_rng(0))
    assert sorted(np.concatenate(parts)) == list(range(46))
    counts = np.array([np.bincount(labels[part], minlength=3) for part in parts])
    assert np.ptp(counts, axis=0).max() <= 1
    assert not np.array_equal(parts[0], experiment.dealt(labels, 4, np.random.default_rng(1))[0])


def test_the_protocol_is_that_of_a_loop_on_the_features(monkeypatch: pytest.MonkeyPatch) -> None:
    """RBF machines on features in place of kernels, chosen and scored in loops with the same parts."""
    svm, datasets = pytest.importorskip("sklearn.svm"), pytest.importorskip("sklearn.datasets")
    monkeypatch.setattr(experiment, "_COSTS", [0.1, 10.0])
    monkeypatch.setattr(experiment, "_GAMMAS", [0.1, 3.0])
    monkeypatch.setattr(experiment, "_NEIGHBOURS", [1])
    plan, seed = experiment.TablePlan(("iris",), 1, 1), np.random.SeedSequence(4)
    data = experiment._measure("iris", plan, seed)
    x, y = datasets.load_iris(return_X_y=True)
    x = (x - x.mean(axis=0)) / x.std(axis=0)

    def score(gamma: float, cost: float, seen: FloatArray, asked: FloatArray) -> float:
        fitted = svm.SVC(gamma=gamma / 4, C=cost).fit(x[seen], y[seen])
        return float(np.mean(fitted.predict(x[asked]) == y[asked]))

    def best(seen: FloatArray, asked: FloatArray) -> tuple[float, float]:
        return max(
            ((g, c) for g in (0.1, 3.0) for c in (0.1, 10.0)), key=lambda one: score(*one, seen, asked)
        )

    source = generator(spawn(seed, 1)[0])
    halves, folds = experiment.dealt(y, 2, source), experiment.dealt(y, 4, source)
    gamma, cost = best(*halves)
    rest = [np.setdiff1d(np.arange(150), asked) for asked in folds]
    inner = [[seen[part] for part in experiment.dealt(y[seen], 2, source)] for seen in rest]
    expected = [
        [score(gamma, cost, seen, asked) for seen, asked in zip(rest, folds, strict=True)],
        [score(*best(*pair), seen, asked) for pair, seen, asked in zip(inner, rest, folds, strict=True)],
    ]
    found = data.sel(classifier="RBF, SVM")
    np.testing.assert_allclose(found.accuracy.values[:, 0], expected)
    assert found.settings.values.tolist() == [f"γ {gamma:g}, C {cost:g}"]
    assert float(data.largest_class) == pytest.approx(1 / 3)
    nearest = np.linalg.norm(x[folds[0]][:, None] - x[rest[0]], axis=2).argmin(axis=1)
    expected = np.mean(y[rest[0]][nearest] == y[folds[0]])
    assert float(data.accuracy.sel(classifier="nearest neighbours")[0, 0, 0]) == pytest.approx(expected)
    ours = data.accuracy.sel(classifier="NTK, SVM")
    np.testing.assert_array_equal(ours, data.accuracy.sel(classifier="one layer, SVM"))


@pytest.mark.slow
def test_a_tiny_run_is_resumed_from_its_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sklearn")
    found = experiment.small_data_kernels(TINY, 3, Parts(tmp_path / "parts", {"seed": 3}))
    monkeypatch.setattr(experiment, "_measure", pytest.fail)
    again = experiment.small_data_kernels(TINY, 3, Parts(tmp_path / "parts", {"seed": 3}))
    assert again.verdict == found.verdict
    assert [row.quantity for row in again.table] == [row.quantity for row in found.table]
    assert len(found.table) == 10
    assert np.isnan(found.data.validation.values[0, 0, 1])
    assert "on iris; of its 4 differences to others" in found.verdict
    assert len(again.plot().axes) == 2


@pytest.mark.statistical
def test_quick_run_agrees() -> None:
    """On none of the tables is the tangent kernel worse than the others, by three standard errors."""
    pytest.importorskip("sklearn")
    result = experiment.small_data_kernels(experiment.PLANS["small_data_kernels"]["quick"], 1, Parts())
    assert result.agrees
    assert float(result.data.accuracy.sel(classifier="NTK, SVM").mean(["way", "repeat", "fold"]).min()) > 0.9
