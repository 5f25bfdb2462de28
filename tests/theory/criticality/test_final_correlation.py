"""The end of the correlation of two inputs against the recursion, layer by layer."""

from __future__ import annotations

import math

import numpy as np
import pytest

import foretrain as ft
from foretrain.theory.criticality.fixed_points import final_correlation, flows_to


@pytest.mark.slow(after=1)
@pytest.mark.parametrize(
    ("name", "C_b", "C_W", "gamma"),
    [
        ("tanh", 0.1, 3.0, 0.0),
        ("tanh", 0.05, 2.5, 0.4),
        ("sin", 0.2, 4.0, 0.0),
        ("tanh", 0.3, 1.5, 0.0),  # ordered
        ("relu", 0.5, 1.0, 0.0),  # ordered
    ],
)
def test_deep_networks_end_there(name: str, C_b: float, C_W: float, gamma: float) -> None:
    K = flows_to(name, C_b, C_W, 1.0, gamma)
    mlp = ft.MLP(name, depth=301, width=9, C_b=C_b, C_W=C_W, gamma=gamma or None)
    deep = ft.flow(mlp, [[1.0, 0.2], [-0.3, 0.9]])["K"].values[-2]
    expected = deep[0, 1] / math.sqrt(deep[0, 0] * deep[1, 1])
    assert final_correlation(name, K, C_b, C_W, gamma) == pytest.approx(expected, abs=1e-6)


def test_odd_activations_without_biases_forget_everything() -> None:
    assert final_correlation("tanh", flows_to("tanh", 0.0, 2.0, 1.0), 0.0, 2.0) == 0.0


def test_no_signal_has_no_correlation() -> None:
    assert np.isnan(final_correlation("tanh", 0.0, 0.0, 0.5))
