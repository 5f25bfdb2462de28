"""Mean derivatives of functions of preactivations: polynomials by hand, kinks, many directions, bad functions."""

from __future__ import annotations

import numpy as np
import pytest

from foretrain.gaussian.observables import directions
from foretrain.support.errors import InputError
from foretrain.theory.correlations import GOAL, derivatives_of

K = np.array([[1.3, 0.4], [0.4, 0.8]])


def in_inputs(found: np.ndarray, kernel: np.ndarray) -> np.ndarray:
    """Second derivatives with respect to z instead of u."""
    back = directions(kernel).back
    return np.asarray(back.T @ found @ back)


def test_directions_carry_the_covariance() -> None:
    cases = ((K, 2), (np.zeros((2, 2)), 0), (np.ones((3, 3)), 1), (np.diag([1e-12, 0.0, 1e6]), 2))
    for kernel, rank in cases:
        forth, back = directions(kernel)
        np.testing.assert_allclose(forth @ forth.T, kernel, rtol=1e-12, atol=1e-15)
        np.testing.assert_allclose(back @ forth, np.eye(forth.shape[1]), atol=1e-9)
        assert forth.shape == (len(kernel), rank)


@pytest.mark.parametrize("kinks", [[], [0.0], [[0.0], []]])
def test_a_polynomial_by_hand(kinks: list[float]) -> None:
    """O = z_0^2 z_1^2 + 3 z_0 z_1: <O> = K00 K11 + 2 K01^2 + 3 K01, <d0 d1 O> = 4 K01 + 3."""
    found = derivatives_of(lambda z: (z[:, 0] * z[:, 1]) ** 2 + 3 * z[:, 0] * z[:, 1], K, 1, kinks)
    assert found.mean == pytest.approx(1.3 * 0.8 + 2 * 0.16 + 1.2, rel=1e-9)
    np.testing.assert_allclose(found.slope, 0, atol=1e-8)
    np.testing.assert_allclose(
        in_inputs(found.bend, K), [[2 * 0.8, 4 * 0.4 + 3], [4 * 0.4 + 3, 2 * 1.3]], rtol=1e-7
    )
    assert found.error <= GOAL * found.size


@pytest.mark.parametrize("inputs", [1, 2, pytest.param(3, marks=pytest.mark.statistical)])
def test_exponentials_of_two_neurons(inputs: int) -> None:
    """<d_p d_q e^(a u)> = a_p a_q e^(a a / 2), in two to six directions."""
    slopes = np.array([[0.3, -0.2, 0.4], [0.1, 0.5, -0.3]])[:, :inputs]
    found = derivatives_of(
        lambda z: np.exp(np.sum(slopes * z.reshape(-1, 2, inputs), axis=(1, 2))), np.eye(inputs), 2, ()
    )
    flat, mean = slopes.ravel(), np.exp(np.sum(slopes**2) / 2)
    back = np.kron(np.eye(2), directions(np.eye(inputs)).back)
    assert found.mean == pytest.approx(mean, abs=found.error)
    np.testing.assert_allclose(back.T @ found.slope, flat * mean, atol=1e-6)
    np.testing.assert_allclose(back.T @ found.bend @ back, np.outer(flat, flat) * mean, atol=1e-6)
    assert found.error < 1e-6
    assert found.size == pytest.approx(np.exp(np.sum(slopes**2)), rel=1e-6)


def test_many_directions_are_sampled_with_an_error() -> None:
    found = derivatives_of(lambda z: z[:, 0] * z[:, 7] + z[:, 3], np.eye(8), 1, ())
    back = directions(np.eye(8)).back
    expected = np.zeros((8, 8))
    expected[0, 7] = expected[7, 0] = 1
    assert 0 < found.error < 1e-2
    assert np.abs(back.T @ found.bend @ back - expected).max() < 5 * found.error
    np.testing.assert_allclose(back.T @ found.slope, np.eye(8)[3], atol=5 * found.error)


def test_the_error_of_kinks_that_are_not_told_is_honest() -> None:
    """<|z|''> = 2 / sqrt(2 pi K) on a lattice that knows of no kink, and on panels that do."""
    kernel, exact = np.array([[0.7]]), 2 / np.sqrt(2 * np.pi)
    blind = derivatives_of(lambda z: np.abs(z[:, 0]), kernel, 1, ())
    told = derivatives_of(lambda z: np.abs(z[:, 0]), kernel, 1, 0.0)
    assert abs(blind.bend[0, 0] - exact * np.sqrt(0.7)) <= blind.error
    assert told.bend[0, 0] == pytest.approx(exact * np.sqrt(0.7), rel=1e-9)


def test_no_direction_at_all() -> None:
    found = derivatives_of(lambda z: np.cos(z[:, 0]) + 1, np.zeros((2, 2)), 1, ())
    assert (found.mean, found.error, found.bend.shape) == (2.0, 0.0, (0, 0))


def test_bad_functions_and_kinks() -> None:
    for function in (lambda z: z, lambda z: z[:, 0] * 1j, lambda z: 1.0):
        with pytest.raises(InputError, match="one real number"):
            derivatives_of(function, K, 1, ())
    with pytest.raises(InputError, match="not finite"):
        derivatives_of(lambda z: np.full(len(z), np.inf), K, 1, ())
    for kinks in (None, ["a"], [[0.0], [], []], [np.nan]):
        with pytest.raises(InputError, match="2 inputs"):
            derivatives_of(lambda z: z[:, 0], K, 1, kinks)
