"""Alignment of targets with tangent kernels, against its formula written out."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from small_kernels import OUTPUTS, SAMPLES, Array, inputs, matrix_of, network, targets

from foretrain.empirical import ntk, ntk_operator
from foretrain.empirical.kernel_analysis import alignment, regression


def brute_alignment(matrix: Array, y: Array) -> float:
    outer = y @ y.T
    return float(np.sum(matrix * outer) / np.linalg.norm(matrix) / np.linalg.norm(outer))


def centring(samples: int, outputs: int) -> Array:
    return np.kron(np.eye(samples) - 1 / samples, np.eye(outputs))


def test_alignment_of_a_known_case() -> None:
    y = np.array([1.0, -2.0, 0.5, 3.0])
    perfect = alignment(np.outer(y, y), y)
    assert (perfect.alignment, perfect.centred) == (pytest.approx(1), pytest.approx(1))
    assert perfect.energies[0] == pytest.approx(1)
    assert alignment(np.eye(4), y).alignment == pytest.approx(0.5)  # 1 / sqrt(4)
    constant = alignment(np.outer(y, y) + 100.0, y)
    assert constant.centred == pytest.approx(1)
    assert constant.alignment < 0.5


def test_alignment_is_its_formula() -> None:
    kernel, y = ntk(network(), inputs()), targets()
    matrix, flat = matrix_of(kernel), targets().reshape(-1, 1)
    found = alignment(kernel, y)
    middle = centring(SAMPLES, OUTPUTS)
    assert found.alignment == pytest.approx(brute_alignment(matrix, flat))
    assert found.centred == pytest.approx(brute_alignment(middle @ matrix @ middle, middle @ flat))
    modes = np.linalg.eigh(matrix)[1]
    assert found.energies == pytest.approx((modes[:, ::-1].T @ flat)[:, 0] ** 2 / np.sum(flat**2))
    assert found.cumulative[-1] == pytest.approx(1)
    needed = found.modes_for(0.5)
    assert needed is not None
    assert found.cumulative[needed - 1] >= 0.5 > found.cumulative[needed - 2]
    assert found.modes_for(1.0) == SAMPLES * OUTPUTS
    assert len(alignment(kernel, y, top=3).energies) == 3
    assert found.to_dataset().cumulative_energy.values == pytest.approx(found.cumulative)


def test_alignment_with_a_trace_sums_over_columns() -> None:
    kernel, y = ntk(network(), inputs(), outputs="trace"), targets()
    found = alignment(kernel, y)
    middle = centring(SAMPLES, 1)
    matrix = np.asarray(kernel)
    assert found.alignment == pytest.approx(brute_alignment(matrix, y))
    assert found.centred == pytest.approx(brute_alignment(middle @ matrix @ middle, middle @ y))
    assert found.cumulative[-1] == pytest.approx(1)
    signs = np.sign(y[:, 0])
    assert alignment(kernel, signs).alignment == pytest.approx(brute_alignment(matrix, signs[:, None]))


def test_alignment_of_an_operator_within_its_standard_error() -> None:
    model, x, y = network(), inputs(20), targets(samples=20)
    exact = alignment(ntk(model, x), y)
    found = alignment(ntk_operator(model, x), y, top=6, probes=200, seed=1)
    assert found.energies == pytest.approx(exact.energies[:6], abs=1e-8)
    assert 0 < found.alignment_error < 0.05 * exact.alignment
    assert abs(found.alignment - exact.alignment) < 3.5 * found.alignment_error
    assert abs(found.centred - exact.centred) < 3.5 * found.centred_error
    assert found.modes_for(0.999) is None
    assert "6 known modes" in repr(found)


def test_labels_become_one_hot() -> None:
    kernel = ntk(network(), inputs())
    labels = np.array([0, 2, 1, 1, 0, 2, 2, 0, 1])
    found = alignment(kernel, labels)
    assert found.one_hot
    assert "one-hot" in repr(found)
    assert found.alignment == pytest.approx(alignment(kernel, np.eye(3)[labels]).alignment)
    trained = regression(kernel, torch.as_tensor(labels), ridge=0.1)
    assert trained.one_hot
    assert trained.predictions == pytest.approx(regression(kernel, np.eye(3)[labels], ridge=0.1).predictions)
    some = ntk(network(), inputs(), outputs=[2, 0])
    chosen = np.eye(3)[labels][:, [2, 0]]
    assert alignment(some, labels).alignment == pytest.approx(alignment(some, chosen).alignment)
    one = ntk(network(), inputs(), outputs=[1])
    assert not alignment(one, labels).one_hot
