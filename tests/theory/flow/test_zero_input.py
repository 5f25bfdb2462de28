"""ft.flow with an input whose kernel is exactly zero: the limit of small inputs, and a reference by quadrature."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from numpy.polynomial import Polynomial
from numpy.polynomial.hermite_e import hermegauss

from foretrain.theory.architecture import MLP
from foretrain.theory.flow import flow

TENSORS = tuple("VDFABPQRSTU")
CUBIC = Polynomial([0, 1, 0.2, -1 / 6])
OTHER = [0.5, 0.2]


def shifted_sine(z: np.ndarray) -> np.ndarray:
    return np.sin(z + 0.3) - np.sin(0.3)


def network(name: str | Callable[[np.ndarray], np.ndarray]) -> MLP:
    rates = {"lambda_b": [0.3, 0.1, 0.6], "lambda_W": [1, 0.5, 2]}
    return MLP(name, depth=3, width=[10, 14], C_W=[1, 1.3, 0.8], **rates)


@pytest.mark.slow(after=1)
@pytest.mark.filterwarnings(
    "ignore:.*shifted_sine"
)  # small inputs: a difference of sines has no relative accuracy
@pytest.mark.parametrize(
    "name", ["gelu", "swish", shifted_sine, CUBIC], ids=["gelu", "swish", "sin", "cubic"]
)
def test_every_tensor_is_the_limit_of_small_inputs(name: str | Callable[[np.ndarray], np.ndarray]) -> None:
    """What two small inputs leave, extrapolated to zero: a missing term would leave a gap."""
    net, names = network(name), ["G1", "H1", *TENSORS]
    zero, near, far = (flow(net, [[e, 0], OTHER], names) for e in (0, 1e-4, 2e-4))
    for key in names:
        limit = 2 * near[key].values - far[key].values
        atol = 1e-6 * np.abs(zero[key].values).max()
        np.testing.assert_allclose(zero[key].values, limit, rtol=0, atol=atol, err_msg=key)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gelu", CUBIC], ids=["gelu", "cubic"])
def test_chosen_quadruples_are_entries_of_the_whole(name: str | Callable[[np.ndarray], np.ndarray]) -> None:
    net, X = network(name), [[0, 0], OTHER]
    some = [(0, 1, 0, 0), (0, 1, 0, 1), (1, 0, 0, 1), (0, 0, 1, 1)]
    whole, chosen = flow(net, X, list("RT")), flow(net, X, list("RT"), quadruples=some)
    for key in "RT":
        expected = np.stack([whole[key].values[:, *legs] for legs in some], axis=1)
        np.testing.assert_allclose(chosen[key].values, expected, rtol=1e-8, atol=1e-12)


def mean(K: float, orders: Sequence[int], legs: Sequence[int]) -> float:
    """<product of derivatives of CUBIC> at leg 0, where z = 0, and leg 1, of variance K."""
    points, weights = hermegauss(40)
    z = [np.zeros_like(points), np.sqrt(K) * points]
    product = np.ones_like(points)
    for order, leg in zip(orders, legs, strict=True):
        product = product * (CUBIC.deriv(order) if order else CUBIC)(z[leg])
    return float(weights @ product / weights.sum())


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("legs", [(0, 1, 0, 0), (0, 1, 0, 1), (0, 1, 1, 1), (1, 0, 1, 0), (0, 0, 1, 1)])
def test_R_of_the_third_layer_by_quadrature(legs: tuple[int, int, int, int]) -> None:
    """(∞.177) written out, from B, P and R of the second layer, which are sources alone."""
    C, rate, bias, ratio = (1.0, 1.3, 0.8), (1.0, 0.5, 2.0), (0.3, 0.1), 1.4
    a, b, c, d = legs
    size = float(np.mean(np.square(OTHER)))
    K1, K2 = size, C[1] * mean(size, (0, 0), (1, 1))
    Theta1 = bias[0] + rate[0] * size * np.array([[0, 0], [0, 1]])
    old = [[(mean(K1, (0, 0), (i, j)), mean(K1, (1, 1), (i, j))) for j in (0, 1)] for i in (0, 1)]
    Theta2 = np.array(
        [
            [bias[1] + rate[1] * old[i][j][0] + C[1] * old[i][j][1] * Theta1[i, j] for j in (0, 1)]
            for i in (0, 1)
        ]
    )

    def source(K: float, Theta: np.ndarray, C_W: float, lambda_W: float) -> float:
        value = lambda_W * mean(K, (2, 0, 1, 1), legs)
        value += C_W * mean(K, (3, 1, 1, 1), legs) * Theta[a, b]
        return float(C_W * value * Theta[a, c] * Theta[a, d])

    def P2(last: int) -> float:
        product = mean(K1, (2, 1, 1, 0), (a, c, d, last))
        return float(C[1] ** 2 * product * Theta1[a, c] * Theta1[a, d])

    B2 = C[1] ** 2 * mean(K1, (1, 1, 1, 1), (a, a, c, d)) * Theta1[a, c] * Theta1[a, d]
    tilt_a = rate[2] * mean(K2, (2, 0), (a, b)) + C[2] * Theta2[a, b] * mean(K2, (3, 1), (a, b))
    tilt_b = rate[2] * mean(K2, (1, 1), (a, b)) + C[2] * Theta2[a, b] * mean(K2, (2, 2), (a, b))
    carried = tilt_a * (B2 + P2(a)) + tilt_b * P2(b)
    carried += C[2] * mean(K2, (1, 1), (a, b)) * source(K1, Theta1, C[1], rate[1])
    grown = ratio * C[2] * mean(K2, (1, 1), (c, d)) * carried
    expected = source(K2, Theta2, C[2], rate[2]) + grown
    found = flow(network(CUBIC), [[0, 0], OTHER], ["R"])["R"].values[2][legs]
    assert found == pytest.approx(expected, rel=1e-9)
