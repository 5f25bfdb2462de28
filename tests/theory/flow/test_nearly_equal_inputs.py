"""ft.flow of kinked activations at inputs that nearly agree: tensors move in proportion to the distance, at any."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np
import pytest

from foretrain.theory.architecture import MLP
from foretrain.theory.flow import flow

DISTANCES = (1e-4, 5e-5, 3e-5, 1e-5, 3e-6, 1e-6, 3e-7, 1e-8, 1e-9)
TENSORS = ("V", "D", "F", "A", "B", "H1", "G1")
TOLERANCE = 1e-5


def network(name: str | Callable[[np.ndarray], np.ndarray]) -> MLP:
    variances = {"C_b": [0.1, 0.2, 0.05], "C_W": [1.5, 2, 1.2]}
    return MLP(name, 3, [20, 35], **variances, lambda_b=[0.3, 0.1, 0.6], lambda_W=[1, 0.5, 2])


def shifted_relu(z: np.ndarray) -> np.ndarray:
    return np.maximum(z - 0.4, 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "tensors", "distances"),
    [
        ("relu", TENSORS, DISTANCES),
        ("abs", TENSORS, DISTANCES),
        (shifted_relu, ("D", "A"), (3e-6, 1e-6)),
    ],
    ids=["relu", "abs", "shifted"],
)
def test_tensors_move_in_proportion_to_the_distance(
    name: str | Callable[[np.ndarray], np.ndarray], tensors: Sequence[str], distances: Sequence[float]
) -> None:
    net = network(name)
    still, moved = (flow(net, [[1, 0.5], [1, 0.5 + e]], tensors) for e in (0, 1e-3))
    for e in distances:
        found = flow(net, [[1, 0.5], [1, 0.5 + e]], tensors)
        for key in tensors:
            start, end = still[key].values, moved[key].values
            expected = start + e / 1e-3 * (end - start)
            atol = TOLERANCE * max(np.abs(start).max(), 1)
            np.testing.assert_allclose(found[key].values, expected, rtol=0, atol=atol, err_msg=f"{key} {e}")


def plane_mean(f: Callable[[np.ndarray], np.ndarray], a: float, b: float, c: float) -> float:
    """<f f> by the trapezoidal rule in two independent variables, with the determinant to its last digit."""
    x = np.linspace(-9.5, 9.5, 400)
    w = (x[1] - x[0]) * np.exp(-0.5 * x**2) / np.sqrt(2 * np.pi)
    spread = np.sqrt(float(Fraction(a) * Fraction(b) - Fraction(c) ** 2) / a)
    inner = f(c / np.sqrt(a) * x[:, None] + spread * x) @ w
    return float(w @ (f(np.sqrt(a) * x) * inner))


@pytest.mark.slow
@pytest.mark.parametrize("distance", [1e-1, 1e-3, 1e-6])
@pytest.mark.parametrize("observables", [["K"], ["K", "V"]])
def test_kernels_of_nearly_parallel_inputs_add_no_error_from_layer_to_layer(
    distance: float, observables: list[str]
) -> None:
    net = MLP("tanh", 8, 20, C_b=0.1, C_W=2.0)
    first, second = np.random.default_rng(3).standard_normal((2, 5))
    X = 1.5 * np.array([first, first + distance * second])
    K = net.with_inputs(X).first_kernel(X)
    found = flow(net, X, observables)["K"].values
    for layer in range(1, 8):
        new = [plane_mean(np.tanh, K[i, i], K[j, j], K[i, j]) for i, j in ((0, 0), (0, 1), (1, 1))]
        K = 0.1 + 2.0 * np.array([new[:2], new[1:]])
        np.testing.assert_allclose(found[layer], K, rtol=3e-11)
