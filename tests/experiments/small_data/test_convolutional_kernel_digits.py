"""Convolutional kernels on digits: sets, the kernel of the network that is trained, and training side by side."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from foretrain.compare.infinite_width import infinite_width
from foretrain.compare.prediction import predict
from foretrain.experiments.parts import Parts
from foretrain.experiments.small_data import kernel_classifiers as experiment
from foretrain.support.seeds import torch_generator
from foretrain.theory import layers

pytest.importorskip("sklearn")

TINY = experiment.DigitsPlan((20, 30), sets=2, images=100, tests=40, networks=2, width=4, steps=3)
TASK = experiment.Task.drawn(TINY, np.random.default_rng(0))


def test_sets_show_all_digits_and_share_no_image() -> None:
    assert TASK.x.shape == (100, 1, 8, 8)
    assert [sets.shape for sets in TASK.sets] == [(2, 20), (2, 30)]
    for sets, count in zip(TASK.sets, (2, 3), strict=True):
        for seen in sets:
            np.testing.assert_array_equal(np.bincount(TASK.labels[seen]), np.full(10, count))
        assert not np.intersect1d(*sets).size
    assert not np.intersect1d(TASK.sets[1], TASK.asked).size
    assert np.intersect1d(TASK.sets[0], TASK.sets[1]).size == 40  # smaller sets are parts of larger ones
    other = experiment.Task.drawn(TINY, np.random.default_rng(1))
    assert not np.array_equal(TASK.labels, other.labels) or not np.array_equal(TASK.x, other.x)


@pytest.mark.slow
@pytest.mark.parametrize("head", ["flatten", "mean"])
def test_the_kernel_is_that_of_the_network_that_is_trained(head: str) -> None:
    """As written by hand, and as read from the weights of a network."""
    x = TASK.x[:3]
    found = experiment._kernels(TASK._replace(x=x))[head].values
    h = layers.data((8, 8)).convolution(3, padding=1, C_W=2).activation("relu")
    h = h.convolution(3, padding=1, stride=2, C_W=2).activation("relu")
    h = h.flatten(C_W=1) if head == "flatten" else h.mean().linear(C_W=1)
    np.testing.assert_allclose(found, infinite_width(h, np.moveaxis(x, 1, -1)).ntk.values, rtol=1e-10)
    drawn = experiment.network(64, head, torch_generator(0)).double()
    np.testing.assert_allclose(infinite_width(drawn, x).ntk.values, found, rtol=1e-10)


def test_networks_side_by_side_are_trained_like_one_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = replace(TINY, sets=1, networks=1, steps=8)
    seed, (seen,) = np.random.SeedSequence(5), TASK.sets[0][:1]
    found = experiment._networks(plan, TASK, "mean", seen[None], seed)
    source = torch_generator(seed)
    alone = experiment.network(plan.width, "mean", source)
    optimizer = torch.optim.Adam(alone.parameters(), 0.01)
    images, digits = torch.tensor(TASK.x, dtype=torch.float32), torch.tensor(TASK.labels)
    for _ in range(plan.steps):
        batch = torch.tensor(seen)[torch.randint(20, (1, 32), generator=source)[0]]
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(alone(images[batch]), digits[batch]).backward()
        optimizer.step()
    with torch.no_grad():
        answers = alone(images).argmax(1) == digits
    np.testing.assert_array_equal(found["network"].values[0], answers[TASK.asked].double())
    np.testing.assert_array_equal(found["networks together"].values[0], answers[TASK.asked].double())
    assert float(found.fitted) == pytest.approx(float(answers[seen].double().mean()))


def test_networks_of_a_set_learn_that_set_only() -> None:
    """Networks of the first set answer the same whatever the second set is."""
    seed = np.random.SeedSequence(6)
    first, second = (
        experiment._networks(TINY, TASK, "flatten", np.stack([TASK.sets[0][0], other]), seed)
        for other in TASK.sets[0]
    )
    np.testing.assert_array_equal(first["network"].values[0], second["network"].values[0])
    assert not np.array_equal(first["network"].values[1], second["network"].values[1])


@pytest.mark.slow
def test_regression_is_the_prediction_for_infinite_width() -> None:
    seen, asked = TASK.sets[0][0], TASK.asked
    Theta = experiment._kernels(TASK)["flatten"].values
    model = experiment.network(8, "flatten", torch_generator(0)).double()
    laws = {"*": (2.0, 0.0), "5": (1.0, 0.0)}
    targets = np.eye(10)[TASK.labels[seen]] - 0.1
    expected = predict(model, TASK.x[seen], targets, TASK.x[asked], init=laws)
    right = expected.mean.values.argmax(axis=1) == TASK.labels[asked]
    np.testing.assert_array_equal(experiment._regression(Theta, TASK, seen), right)


@pytest.mark.slow
def test_a_tiny_run_is_resumed_from_its_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "parts"
    found = experiment.convolutional_kernel_digits(TINY, 3, Parts(folder, {"seed": 3}))
    kept = {path.name for path in folder.glob("*.zarr")}
    assert kept == {"kernels.zarr", "machines.zarr"} | {
        f"networks_{head}_{size}.zarr" for head in ("flatten", "mean") for size in (20, 30)
    }
    for name in ("_kernels", "_machines", "_networks"):
        monkeypatch.setattr(experiment, name, pytest.fail)
    again = experiment.convolutional_kernel_digits(TINY, 3, Parts(folder, {"seed": 3}))
    assert again.verdict == found.verdict
    assert len(found.table) == 2 * 7 + 4 + 5
    assert found.data.hits.shape == (7, 2, 2, 40)
    assert len(again.plot().axes) == 2
    untrained = [row for row in found.table if "training images" in row.quantity]
    assert not all(row.agrees for row in untrained)  # three steps are too few, which is noticed


@pytest.mark.statistical
def test_quick_run_agrees() -> None:
    result = experiment.convolutional_kernel_digits(
        experiment.PLANS["convolutional_kernel_digits"]["quick"], 1, Parts()
    )
    assert result.agrees
    assert result.data.hits.mean(["set", "test"]).sel(classifier="kernel, flatten").values[-1] > 0.8
