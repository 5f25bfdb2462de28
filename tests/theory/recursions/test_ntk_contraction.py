"""V, D, F, A and B on quadruples and contracted with matrices, against the full tensors."""

from __future__ import annotations

import numpy as np
import pytest

from foretrain.theory.architecture import MLP
from foretrain.theory.flow import Flow, flow

RNG = np.random.default_rng(4)
NAMES = ["V", "D", "F", "A", "B"]
X = RNG.standard_normal((4, 3))
LEFT, RIGHT = RNG.standard_normal((2, 4, 4))
QUADRUPLES = [[0, 1, 2, 3], [0, 2, 1, 3], [1, 1, 2, 3], [0, 2, 2, 2], [3, 3, 3, 3], [2, 0, 1, 2]]
NETS = {
    name: MLP(
        name,
        depth=4,
        width=[12, 24, 16],
        C_b=0.1,
        C_W=[1.0, 1.5, 1.2, 0.9],
        lambda_b=[0.3, 0.2, 0.5, 0.1],
        lambda_W=[1, 0.7, 1.2, 0.5],
    )
    for name in ("tanh", "relu")
}


@pytest.fixture(scope="module", params=NETS)
def case(request: pytest.FixtureRequest) -> tuple[MLP, Flow]:
    net = NETS[request.param]
    return net, flow(net, X, NAMES)


def summed(full: Flow, name: str, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    return np.asarray(np.einsum("ab,labcd,cd->l", left, full[name].values, right))


@pytest.mark.slow
def test_quadruples_are_entries_of_the_stored_tensors(case: tuple[MLP, Flow]) -> None:
    net, full = case
    found = flow(net, X, NAMES, quadruples=QUADRUPLES)
    for name in NAMES:
        expected = np.stack([full[name].values[:, *places] for places in QUADRUPLES], axis=1)
        np.testing.assert_allclose(found[name].values, expected, rtol=1e-11, atol=1e-13)
    assert found["F"].leg_2.values.tolist() == [row[1] for row in QUADRUPLES]


@pytest.mark.slow(after=1)
def test_exact_contraction(case: tuple[MLP, Flow]) -> None:
    net, full = case
    found = flow(net, X, NAMES, contract=[(LEFT, RIGHT), (RIGHT, RIGHT)])
    for name in NAMES:
        expected = np.stack([summed(full, name, left, RIGHT) for left in (LEFT, RIGHT)], axis=1)
        np.testing.assert_allclose(found[name].values, expected, rtol=1e-10, atol=1e-12)
        assert not found[name].standard_error.values.any()


def test_diagonal_matrices_are_exact_without_four_input_expectations(case: tuple[MLP, Flow]) -> None:
    net, full = case
    left, right = np.diag(LEFT[0]), np.diag(RIGHT[0])
    found = flow(net, X, NAMES, contract=(left, right), draws=10)
    for name in NAMES:
        np.testing.assert_allclose(found[name].values, summed(full, name, left, right), rtol=1e-8, atol=1e-10)
        assert not found[name].standard_error.values.any()


@pytest.mark.slow
def test_sampled_contraction_agrees_within_its_standard_error(case: tuple[MLP, Flow]) -> None:
    net, full = case
    found = flow(net, X, NAMES, contract=(LEFT, RIGHT), draws=20_000, seed=3)
    scores = []
    for name in NAMES:
        errors = found[name].standard_error.values[1:]
        assert (errors > 0).all()
        expected = summed(full, name, LEFT, RIGHT)[1:]
        assert (errors < 0.1 * np.abs(expected).max() + 0.05).all()
        scores.append((found[name].values[1:] - expected) / errors)
    assert np.abs(scores).max() < 3.6  # 15 scores, 1 in 200


def test_one_input() -> None:
    net = NETS["tanh"]
    full = flow(net, X[:1], NAMES)
    only = flow(net, X[:1], NAMES, quadruples=[[0, 0, 0, 0]] * 2)
    twice = flow(net, X[:1], NAMES, contract=([[2.0]], [[3.0]]))
    for name in NAMES:
        values = full[name].values.ravel()
        np.testing.assert_allclose(only[name].values, np.stack([values] * 2, axis=1))
        np.testing.assert_allclose(twice[name].values, 6 * values)
