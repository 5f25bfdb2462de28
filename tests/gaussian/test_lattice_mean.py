from __future__ import annotations

import math

import numpy as np
import pytest

from foretrain.gaussian.action import lattice_mean
from foretrain.support.errors import AccuracyWarning


def flat(x: np.ndarray) -> np.ndarray:
    return np.ones(len(x))


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_exponentials_in_every_rank(rank: int) -> None:
    """<exp(a.z)> = exp(a K a / 2), smooth and unbounded."""
    root = np.random.default_rng(rank).normal(size=(rank, rank)) * 0.4
    found = lattice_mean(lambda z: np.exp(z.sum(axis=1)), root, flat, 1e-9)
    expected = math.exp(0.5 * (root @ root.T).sum())
    assert found.value == pytest.approx(expected, rel=1e-8)
    assert abs(found.value - expected) <= found.error


def test_weights_tilt_the_mean() -> None:
    found = lattice_mean(lambda z: z[:, 0], np.eye(1), lambda x: np.exp(0.5 * x[:, 0]), 1e-10)
    assert found.value == pytest.approx(0.5, abs=1e-10)


@pytest.mark.parametrize("kink", [0.0, 0.3, math.sqrt(2) / 3])
def test_errors_stay_honest_at_a_kink(kink: float) -> None:
    with pytest.warns(AccuracyWarning, match="settled"):
        found = lattice_mean(lambda z: np.abs(z[:, 0] - kink), np.eye(1), flat, 1e-15)
    density, below = math.exp(-(kink**2) / 2) / math.sqrt(2 * math.pi), 0.5 * math.erfc(-kink / math.sqrt(2))
    expected = 2 * density + kink * (2 * below - 1)
    assert abs(found.value - expected) <= 4 * found.error
    assert found.error < 1e-6


def test_the_rule_is_named() -> None:
    found = lattice_mean(lambda z: z[:, 0] ** 2, 3 * np.eye(1), flat, 1e-10)
    assert found.value == pytest.approx(9)
    assert "lattice of 81 points" in repr(found)
