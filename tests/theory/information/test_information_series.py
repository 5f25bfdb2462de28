"""Series in X: the reference's numbers, a quadrature of the action they come from, networks, several inputs."""

from __future__ import annotations

import numpy as np
import pytest

from foretrain.support.errors import InputError
from foretrain.theory.architecture import MLP
from foretrain.theory.information import (
    entropy_series,
    information_series,
    layer_information,
    leading_information,
    network_information,
    relative_variance,
    tripartite_series,
    turning_point,
)

EXAMPLE = np.array([[1.0, 0.5, -0.3], [0.5, 0.8, 0.2], [-0.3, 0.2, 1.2]])


def test_numbers_of_the_reference() -> None:
    assert entropy_series(2, 0.05, order=2) == pytest.approx(2.8366270664, abs=1e-10)
    assert entropy_series(2, 0.05) == pytest.approx(2.8368353997, abs=1e-10)
    assert information_series(2, 3, 0.05, order=2) == pytest.approx(0.001875, abs=1e-15)
    assert information_series(2, 3, 0.05) == pytest.approx(0.001328125, abs=1e-15)
    assert tripartite_series(1, 2, 3, 0.05) == pytest.approx(9.375e-5, abs=1e-18)


@pytest.mark.parametrize("order", [2, 3])
def test_informations_are_sums_of_entropies(order: int) -> None:
    X, a, b, c = np.array([0.01, 0.07, 0.3]), 2, 3, 5

    def S(m: int) -> np.ndarray:
        return entropy_series(m, X, 1.7, order)

    assert information_series(a, b, X, order) == pytest.approx(S(a) + S(b) - S(a + b), abs=1e-14)
    if order == 3:
        together = S(a) + S(b) + S(c) - S(a + b) - S(a + c) - S(b + c) + S(a + b + c)
        assert tripartite_series(a, b, c, X) == pytest.approx(together, abs=1e-13)


def test_information_does_not_depend_on_units_but_entropy_does() -> None:
    shift = entropy_series(4, 0.1, 3.0) - entropy_series(4, 0.1, 1.0)
    assert shift == pytest.approx(2 * np.log(3.0))


def test_two_point_law_of_the_metric_by_brute_force() -> None:
    """G = 1 ± d with equal chance: X = d^2, with all cumulants known and no other law to confuse the orders."""
    for m in (1, 3):
        coefficients = []
        for d in (0.1, 0.05):
            z = np.linspace(0.0, 14.0, 200_001)
            sphere = {1: 2.0, 3: 4 * np.pi}[m] * z ** (m - 1)
            p = sum(0.5 * (2 * np.pi * G) ** (-m / 2) * np.exp(-(z**2) / (2 * G)) for G in (1 + d, 1 - d))
            exact = -np.trapezoid(sphere * p * np.log(p), z)
            coefficients.append((exact - entropy_series(m, d**2, order=2)) / d**6)
        limit = (4 * coefficients[1] - coefficients[0]) / 3
        assert limit == pytest.approx((m**3 + 10 * m**2 + 16 * m) / 48, rel=0.01)


def test_maximum_of_the_series() -> None:
    for m_1, m_2 in ((1, 1), (5, 5), (3, 50)):
        turn = turning_point(m_1, m_2)
        near = information_series(m_1, m_2, turn * np.array([0.99, 1.0, 1.01, 1.5]))
        assert near[1] > max(near[0], near[2])
        assert near[3] == pytest.approx(0, abs=1e-15)
        assert near[1] == pytest.approx(2 / 3 * m_1 * m_2 / (20 + 3 * m_1 + 3 * m_2) ** 2)


def test_relative_variance_of_networks() -> None:
    tanh = relative_variance(MLP("tanh", depth=20, width=50), [1.0])
    expected = {2: 0.62729081, 3: 1.21282335, 5: 2.40827353, 10: 5.52352424, 20: 11.96491337}
    for layer, value in expected.items():
        assert 50 * float(tanh.sel(layer=layer)) == pytest.approx(value, abs=1e-7)
    assert tanh.attrs["order"] == "leading"
    relu = relative_variance(MLP("relu", depth=4, width=[7, 9, 20], C_W=2.0), [0.3])
    assert relu.attrs["order"] == "exact"
    assert float(relu[-1]) == pytest.approx((1 + 5 / 7) * (1 + 5 / 9) * (1 + 5 / 20) - 1)


def test_layers_say_what_their_series_is_worth() -> None:
    found = layer_information(MLP("tanh", depth=60, width=100), [1.0], 5, 5)
    X = found["relative_variance"].values
    assert found["information"].sel(order="next").values == pytest.approx(information_series(5, 5, X))
    standing = found["standing"].values
    assert list(dict.fromkeys(standing)) == ["rising", "past its maximum", "negative"]
    assert (found["information"].sel(order="next").values[standing == "negative"] <= 0).all()
    assert found.attrs["turning_point"] == pytest.approx(0.08)
    assert found["metric"].sel(layer=10).item() == pytest.approx(0.0580118478 - 0.1071337503 / 100, abs=1e-9)
    first = found.sel(layer=1)
    assert float(first["entropy"].sel(order="next")) == pytest.approx(5 * np.log(2 * np.pi * np.e))


def test_several_inputs_of_the_example() -> None:
    # Inputs whose first kernel C_b + C_W x.x'/3 is that of the example.
    x = np.linalg.cholesky((EXAMPLE - 0.1) * 3 / 1.5)
    mlp = MLP("tanh", depth=3, width=40, C_b=0.1, C_W=1.5)
    assert network_information(mlp, x) * 40**2 == pytest.approx(4.871401336, abs=1e-8)
    assert network_information(mlp, x, 2, 3) == pytest.approx(6 * network_information(mlp, x))
    assert network_information(mlp, x, layer=1) == 0.0


def test_two_neurons_on_two_inputs_by_brute_force() -> None:
    """Four covariances with equal chance, the information of two neurons by quadrature in four dimensions."""
    K = np.array([[1.0, 0.4], [0.4, 0.8]])
    changes = np.array([[[1.0, 0.2], [0.2, 0.1]], [[0.3, -0.7], [-0.7, 0.6]]])
    points, weights = np.polynomial.hermite_e.hermegauss(20)
    grid = np.array(np.meshgrid(points, points)).reshape(2, -1)
    chance = np.outer(weights, weights).ravel() / (2 * np.pi)
    z = np.linalg.cholesky(K) @ grid
    ratios = []
    for size in (0.04, 0.02):
        metrics = [K + sign * size * change for change in changes for sign in (1, -1)]
        # Densities relative to the Gaussian of K.
        base = -np.einsum("ia,ij,ja->a", z, np.linalg.inv(K), z) / 2 - np.linalg.slogdet(K)[1] / 2
        one = np.array(
            [
                np.exp(
                    -np.einsum("ia,ij,ja->a", z, np.linalg.inv(G), z) / 2 - np.linalg.slogdet(G)[1] / 2 - base
                )
                for G in metrics
            ]
        )
        joint, single = one.T @ one / 4, one.mean(0)
        information = chance @ (joint * np.log(joint / np.outer(single, single))) @ chance
        V = sum(np.einsum("ab,cd->abcd", G - K, G - K) for G in metrics) / 4
        ratios.append(information / leading_information(K, V, 1))
    assert (4 * ratios[1] - ratios[0]) / 3 == pytest.approx(1, abs=3e-3)


def test_one_input_is_the_leading_series() -> None:
    assert leading_information(2.0, 3.0, 10, 2, 3) == pytest.approx(information_series(2, 3, 0.075, order=2))


def test_information_of_inputs_is_invariant_under_their_mixing() -> None:
    rng = np.random.default_rng(0)
    root = rng.normal(size=(6, 2, 2))
    metrics = root @ root.swapaxes(1, 2)
    K, mix = metrics.mean(0), np.array([[2.0, 1.0], [0.3, -1.0]])
    V = np.einsum("sab,scd->abcd", metrics - K, metrics - K) / 6
    mixed = np.einsum("abcd,ia,jb,kc,ld->ijkl", V, mix, mix, mix, mix)
    assert leading_information(mix @ K @ mix.T, mixed, 10) == pytest.approx(leading_information(K, V, 10))


def test_inputs_nearly_alike_are_refused_before_integrals_decide() -> None:
    """At a distance of 1e-4 rounding of integrals alone made it 37 nats."""
    mlp, x = MLP("tanh", 4, 20, C_b=0.1, C_W=1.3), np.array([1.0, 0.3])
    far, near = (network_information(mlp, [x, x + np.array([0.0, distance])]) for distance in (0.02, 0.01))
    assert near == pytest.approx(far, rel=1e-2)
    for distance in (1e-4, 0.0):
        with pytest.raises(InputError, match="nearly depend"):
            network_information(mlp, [x, x + np.array([0.0, distance])])


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda: leading_information(np.eye(2), np.ones((3,) * 4), 10), "give"),
        (lambda: information_series(1, 1, -0.1), "from 0 on"),
        (lambda: information_series(0, 1, 0.1), "number of neurons is 0"),
        (lambda: entropy_series(1, 0.1, order=4), "order is 4"),
        (lambda: entropy_series(1, 0.1, G=0.0), "G is 0.0"),
        (lambda: leading_information(np.ones((2, 2)), np.ones((2,) * 4), 10), "singular"),
        (lambda: relative_variance(MLP("tanh", 3, 5), [[1.0]]), "one input"),
        (lambda: relative_variance(MLP("tanh", 3, 5), [0.0]), "no signal"),
        (lambda: network_information(MLP("tanh", 3, 5), [[1.0]], layer=4), "choose from 1 to 3"),
    ],
)
def test_bad_input(ask: object, message: str) -> None:
    assert callable(ask)
    with pytest.raises(InputError, match=message):
        ask()
