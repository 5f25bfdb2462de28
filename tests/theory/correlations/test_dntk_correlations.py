"""Correlators of the dNTK and means of the ddNTKs, assembled from the tensors of a flow."""

from __future__ import annotations

import numpy as np
import pytest

from foretrain.gaussian import z
from foretrain.support.errors import InputError
from foretrain.theory.architecture import MLP
from foretrain.theory.correlations import ddntk_mean, observable_dntk, preactivation_dntk
from foretrain.theory.flow import flow

X = np.array([[1.0, 0.5], [-0.4, 1.1]])
NET = MLP("tanh", depth=3, width=[8, 12], C_b=0.1, C_W=1.3, lambda_b=0.5)
FLOW = flow(NET, X, ["K", *"PQRSTU"])
AT = {name: FLOW[name].values[-1] for name in FLOW}


def test_pairings_of_neurons() -> None:
    P, Q = AT["P"], AT["Q"]
    inputs = (0, 1, 1, 0)
    cases = {
        (0, 1, 1, 0): P[0, 1, 1, 0],
        (0, 0, 1, 1): Q[0, 1, 1, 0],
        (0, 1, 0, 1): Q[0, 1, 1, 0],
        (2, 2, 2, 2): P[0, 1, 1, 0] + 2 * Q[0, 1, 1, 0],
        (0, 1, 2, 0): 0.0,
    }
    for neurons, value in cases.items():
        found = preactivation_dntk(NET, X, neurons, inputs)
        assert float(found) == pytest.approx(value / 12, rel=1e-9)
        assert found.fan_in == 12
    uneven = preactivation_dntk(NET, X, (0, 0, 0, 0), (1, 0, 1, 0))
    assert float(uneven) == pytest.approx((P[1, 0, 1, 0] + Q[1, 0, 1, 0] + Q[1, 1, 0, 0]) / 12, rel=1e-9)


def test_means_of_second_differentials() -> None:
    R, S, T, U = (AT[name] for name in "RSTU")
    a = (0, 1, 1, 0)
    first = ddntk_mean(NET, X, (3, 3, 3, 3), a, "first")
    assert float(first) == pytest.approx((R[0, 1, 1, 0] + R[0, 1, 0, 1] + R[0, 0, 1, 1]) / 12, rel=1e-9)
    cases = {
        (0, 0, 1, 1): S[0, 1, 1, 0],
        (0, 1, 0, 1): T[0, 1, 0, 1],
        (0, 1, 1, 0): U[0, 0, 1, 1],
    }
    for neurons, value in cases.items():
        assert float(ddntk_mean(NET, X, neurons, a, "second")) == pytest.approx(value / 12, rel=1e-9)
    with pytest.raises(InputError, match="kind"):
        ddntk_mean(NET, X, (0, 0, 1, 1), a, "third")  # type: ignore[arg-type]


def test_observables_by_factors_and_by_functions() -> None:
    """O = z_0 z_1 (z_0 of another neuron)^2: slopes K_01 K_00 ... by Wick."""
    K, P, Q = AT["K"], AT["P"], AT["Q"]

    def both(points: np.ndarray) -> np.ndarray:
        return points[:, 0, 0] * points[:, 1, 1] ** 2

    expected = {
        (0, 1, 1): K[1, 1] * P[0, 0, 1, 0],  # moves neuron 0: <z_1^2> P
        (0, 0, 1): 0.0,  # moves neuron 1: <z_0> <2 z_1> vanish
        (0, 0, 0): K[1, 1] * (P[0, 0, 1, 0] + Q[0, 0, 1, 0] + Q[0, 1, 0, 0]),
    }
    for neurons, value in expected.items():
        for observable in (([z, 1.0], [1.0, z**2]), both):
            found = observable_dntk(observable, NET, X, (0, 1), neurons, (0, 0, 1))
            assert float(found) == pytest.approx(value / 12, rel=1e-6, abs=1e-9)


def test_one_neuron() -> None:
    """O = z gives (11.45); O = sin z has slope exp(-K/2); O = z^3 has 3 K."""
    K, P = AT["K"], AT["P"]
    linear = observable_dntk([1.0, z], NET, X, (0,), (0, 1, 1), (0, 0, 1))
    assert float(linear) == pytest.approx(float(preactivation_dntk(NET, X, (0, 1, 1, 0), (0, 0, 1, 1))))
    sine = observable_dntk(["sin", 1.0], NET, X, (0,), (0, 1, 1), (0, 0, 1))
    assert float(sine) == pytest.approx(np.exp(-K[0, 0] / 2) * P[0, 0, 1, 0] / 12, rel=1e-8)
    cube = observable_dntk(lambda points: points[:, 1] ** 3, NET, X, (0,), (0, 1, 1), (0, 0, 1))
    assert float(cube) == pytest.approx(3 * K[1, 1] * P[0, 0, 1, 1] / 12, rel=1e-6)
    assert float(observable_dntk([z, 1.0], NET, X, (5,), (0, 1, 1), (0, 0, 1))) == 0.0


def test_bad_requests() -> None:
    with pytest.raises(InputError, match="3 whole numbers"):
        observable_dntk([z, 1.0], NET, X, (0,), (0, 1), (0, 0, 1))
    with pytest.raises(InputError, match="tuple of two"):
        observable_dntk("tanh", NET, X, (0, 1), (0, 1, 1), (0, 0, 1))
    with pytest.raises(InputError, match="layer"):
        preactivation_dntk(NET, X, (0, 1, 1, 0), (0, 0, 1, 1), layer=4)
