from __future__ import annotations

import math

import numpy as np
import pytest

from foretrain.gaussian.orthant import angle_between, project_out, start, unit_vectors


def random_correlations(count: int, n: int, rank: int, seed: int) -> np.ndarray:
    inputs = np.random.default_rng(seed).normal(size=(count, n, rank))
    inputs /= np.linalg.norm(inputs, axis=2, keepdims=True)
    return inputs @ inputs.transpose(0, 2, 1)


@pytest.mark.parametrize("rank", [1, 2, 3, 4, 5])
def test_vectors_have_the_correlations_and_the_rank(rank: int) -> None:
    R = random_correlations(20, 4, rank, seed=rank)
    vectors = unit_vectors(R)
    assert vectors @ vectors.transpose(0, 2, 1) == pytest.approx(R, abs=4e-15)
    assert np.all((np.abs(vectors).max(axis=1) > 0).sum(axis=1) == min(rank, 4))


def test_projection_is_the_schur_complement() -> None:
    R = random_correlations(10, 4, 4, seed=1)
    base = start(unit_vectors(R))
    one = project_out(base, [(0, base)])
    two = project_out(base, [(0, base), (2, one)])
    kept, given = [1, 3], [0, 2]
    for index in range(10):
        block = R[index][np.ix_(kept, given)] @ np.linalg.inv(R[index][np.ix_(given, given)])
        schur = R[index][np.ix_(kept, kept)] - block @ R[index][np.ix_(given, kept)]
        found = two.vectors[index, kept] @ two.vectors[index, kept].T
        assert found == pytest.approx(schur, abs=1e-13)
    assert np.all(two.lengths[:, given] == 0)


def test_annihilated_vectors_keep_their_direction_in_the_perturbation() -> None:
    """Three equal variables: given one, the others are e_i - e_0, at 60 degrees, as K + eta 1 has it."""
    base = start(unit_vectors(np.ones((1, 3, 3))))
    after = project_out(base, [(0, base)])
    assert np.all(after.lengths == 0)
    assert angle_between(after.units[:, 1], after.units[:, 2]) == pytest.approx(math.pi / 3)
    eta = 1e-6
    near = start(unit_vectors((np.ones((1, 3, 3)) + eta * np.eye(3)) / (1 + eta)))
    limit = project_out(near, [(0, near)])
    assert angle_between(limit.units[:, 1], limit.units[:, 2]) == pytest.approx(math.pi / 3, abs=1e-5)


@pytest.mark.parametrize("angle", [0.0, 1e-12, 1e-6, 0.3, math.pi / 2, math.pi - 1e-9, math.pi])
def test_angles_near_zero_and_pi(angle: float) -> None:
    u, v = np.array([1.0, 0.0]), np.array([math.cos(angle), math.sin(angle)])
    assert angle_between(u, v) == pytest.approx(angle, rel=1e-14, abs=2e-16)
