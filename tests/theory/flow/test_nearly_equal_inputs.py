"""ft.flow of kinked activations at inputs that nearly agree: tensors move in proportion to the distance, at any."""

from __future__ import annotations

from collections.abc import Callable, Sequence

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
