"""Correlators with the tangent kernel: assembly from tensors, observables, and random networks."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from numpy.polynomial import Polynomial

from foretrain.support.errors import AccuracyWarning, InputError
from foretrain.theory.architecture import MLP
from foretrain.theory.correlations import (
    ntk_covariance,
    ntk_mean,
    observable_ntk,
    preactivation_ntk,
)
from foretrain.theory.ensembles import forward, sample_parameters
from foretrain.theory.flow import flow
from foretrain.theory.network_tangent_kernel import output_kernel

X = np.array([[1.0, 0.5, -0.7], [0.2, -1.1, 0.9]])
REFERENCE = MLP(
    "tanh",
    4,
    [36, 24, 48],
    n_out=4,
    C_b=[0.1, 0.05, 0.2, 0.1],
    C_W=[1, 1.5, 1.3, 1.2],
    lambda_b=[0.3, 0.2, 0.5, 0.1],
    lambda_W=[1, 0.7, 1.2, 0.5],
)
Z, ONE = Polynomial([0.0, 1.0]), 1.0


@pytest.mark.parametrize(
    ("neurons", "inputs", "expected"),
    [
        ((0, 0, 1, 1), (0, 0, 0, 1), 0.157832141),  # A_0001
        ((0, 1, 0, 1), (0, 1, 0, 1), 0.12938243),  # B_1324 with samples 1..4 = 0, 1, 0, 1: B_0011
        ((0, 1, 1, 0), (0, 1, 1, 0), 0.12938243),  # B_1423, the same entry with the second kernel transposed
        ((0, 1, 0, 1), (0, 0, 1, 1), 2.01702803),  # B_0101
        ((0, 0, 0, 0), (0, 0, 0, 0), 0.560138511 + 2 * 2.92863916),
        ((0, 0, 0, 1), (0, 0, 0, 0), 0.0),
        ((0, 1, 2, 3), (0, 0, 0, 0), 0.0),
    ],
)
def test_covariances_from_the_reference_tensors(
    neurons: tuple[int, ...], inputs: tuple[int, ...], expected: float
) -> None:
    found = ntk_covariance(REFERENCE, X, neurons, inputs)
    assert float(found) * 48 == pytest.approx(expected, rel=1e-6)
    assert found.fan_in == 48
    assert sum(found.terms.values()) == pytest.approx(found.value)


@pytest.mark.parametrize(
    ("neurons", "inputs", "expected"),
    [
        ((0, 0, 1, 1), (0, 1, 0, 0), 0.00578768199),  # D_0100
        ((0, 0, 1, 1), (0, 0, 0, 1), -0.0668463094),  # D_0001
        ((0, 1, 0, 1), (0, 1, 0, 1), 0.00823201633),  # F_0011
        ((0, 1, 0, 1), (0, 1, 1, 0), 0.00462087009),  # F_0110
        ((0, 1, 1, 0), (0, 1, 0, 1), 0.00462087009),  # F_1423 = F_0110
        ((0, 0, 0, 0), (0, 0, 0, 0), -0.258919397 + 2 * 0.239773408),
    ],
)
def test_mixed_correlators_from_the_reference_tensors(
    neurons: tuple[int, ...], inputs: tuple[int, ...], expected: float
) -> None:
    assert float(preactivation_ntk(REFERENCE, X, neurons, inputs)) * 48 == pytest.approx(expected, rel=1e-6)


def test_mean_from_the_reference() -> None:
    found = ntk_mean(REFERENCE, X).sel(layer=4)
    np.testing.assert_allclose(
        found["mean"].values[0], [1.40256225 - 0.0906339451 / 48, 0.439089051 + 0.231489533 / 48], rtol=1e-8
    )
    assert not ntk_mean(REFERENCE, X).correction.sel(layer=1).any()


@pytest.mark.slow
@pytest.mark.parametrize(("i3", "i4"), [(0, 0), (0, 1), (1, 0), (2, 2), (0, 2)])
def test_products_of_preactivations_are_an_observable(i3: int, i4: int) -> None:
    """(8.71) with O = z_{i1; a1} z_{i2; a2} is (8.67), for factors, functions of each and functions of both."""
    for a in ((0, 0, 1, 0), (1, 0, 0, 1)):
        expected = float(preactivation_ntk(REFERENCE, X, (0, 1, i3, i4), a))
        first, second = ([Z if place == each else ONE for place in range(2)] for each in a[:2])
        arguments = (REFERENCE, X, (0, 1), (i3, i4), a[2:])
        assert float(observable_ntk((first, second), *arguments)) == pytest.approx(expected, abs=1e-12)
        halves = (lambda z, a=a: z[:, a[0]], lambda z, a=a: z[:, a[1]])
        assert float(observable_ntk(halves, *arguments)) == pytest.approx(expected, abs=1e-10)
        same = float(preactivation_ntk(REFERENCE, X, (0, 0, i3, i4), a))
        square = [f if f is not ONE else g for f, g in zip(first, second, strict=True)]
        if a[0] == a[1]:
            square = [Polynomial([0, 0, 1.0]) if place == a[0] else ONE for place in range(2)]
        found = observable_ntk(square, REFERENCE, X, (0,), (i3, i4), a[2:])
        assert float(found) == pytest.approx(same, abs=1e-12)


def test_a_function_of_two_neurons() -> None:
    """One input, so that both neurons are two directions of quadrature; O = tanh(z_0) tanh(z_1)^2 two ways."""
    mlp = MLP("gelu", 3, 20, n_out=2, C_b=0.1, C_W=1.8)
    x = X[:1]
    for neurons in ((0, 0), (0, 1), (1, 1), (2, 2)):
        arguments = (mlp, x, (0, 1), neurons, (0, 0))
        joint = observable_ntk(lambda z: np.cosh(z[:, 0, 0] / 3) * np.tanh(z[:, 1, 0]) ** 2, *arguments)
        split = observable_ntk((lambda z: np.cosh(z[:, 0] / 3), lambda z: np.tanh(z[:, 0]) ** 2), *arguments)
        assert float(joint) == pytest.approx(float(split), rel=1e-7, abs=1e-12)


def test_dependent_inputs() -> None:
    """Three inputs, two of them parallel and C_b = 0: a linear network's K is singular at every layer."""
    mlp, points = MLP("linear", 3, 20, n_out=1), np.array([[1.0, 0.5], [-2.0, -1.0], [0.3, 0.4]])
    found = observable_ntk(lambda z: z[:, 0] * z[:, 1] * np.cos(z[:, 2]), mlp, points, (0,), (0, 0), (0, 2))
    alone = observable_ntk(
        lambda z: -2 * z[:, 0] ** 2 * np.cos(z[:, 1]), mlp, points[[0, 2]], (0,), (0, 0), (0, 1)
    )
    assert float(found) == pytest.approx(float(alone), rel=1e-7)


def test_kinks_are_exact() -> None:
    """O = relu(z_1) relu(z_2) of one neuron: <d_1 d_2 O> = <theta theta>, by factors and by weights."""
    arguments = (REFERENCE, X, (0,), (0, 0), (0, 1))
    exact = float(observable_ntk(["relu", "relu"], *arguments))
    weighted = observable_ntk(lambda z: np.maximum(z, 0).prod(axis=1), *arguments, kinks=[0.0])
    assert float(weighted) == pytest.approx(exact, rel=1e-6)
    found = flow(REFERENCE, X, ["K", "D", "F"])
    K, D, F = (found[name].sel(layer=4).values for name in ("K", "D", "F"))
    c = K[0, 1] / np.sqrt(K[0, 0] * K[1, 1])
    same, cross = np.sqrt(1 - c**2) / (2 * np.pi), np.arccos(-c) / (2 * np.pi)
    bends = np.array([[same * np.sqrt(K[1, 1] / K[0, 0]), cross], [cross, same * np.sqrt(K[0, 0] / K[1, 1])]])
    by_hand = 0.5 * np.sum(bends * D[:, :, 0, 1]) + np.einsum("ij,ij->", bends, F[:, 0, :, 1])
    assert exact * 48 == pytest.approx(by_hand, rel=1e-8)


def test_first_layer_has_no_fluctuations() -> None:
    assert float(ntk_covariance(REFERENCE, X, (0, 0, 0, 0), (0, 0, 0, 0), layer=1)) == 0
    assert float(preactivation_ntk(REFERENCE, X, (0, 0, 0, 0), (0, 0, 0, 0), layer=1)) == 0
    assert ntk_covariance(REFERENCE, X, (0,) * 4, (0,) * 4, layer=1).fan_in == 3
    assert "36" in repr(ntk_covariance(REFERENCE, X, (0, 0, 0, 0), (0, 0, 0, 0), layer=2))


def test_bad_input() -> None:
    with pytest.raises(InputError, match="give 4 whole numbers"):
        ntk_covariance(REFERENCE, X, (0, 0, 1), (0, 0, 0, 0))
    with pytest.raises(InputError, match="give numbers from 0 to 1"):
        ntk_covariance(REFERENCE, X, (0, 0, 1, 1), (0, 0, 0, 2))
    with pytest.raises(InputError, match="choose from 1 to 4"):
        ntk_covariance(REFERENCE, X, (0, 0, 1, 1), (0, 0, 0, 0), layer=5)
    with pytest.raises(InputError, match="two different ones"):
        observable_ntk(["relu", "relu"], REFERENCE, X, (0, 0), (0, 0), (0, 0))
    with pytest.raises(InputError, match="3 factors were given"):
        observable_ntk(["relu"] * 3, REFERENCE, X, (0,), (0, 0), (0, 0))
    for of in ((), (0, 0), (0, 1, 2), 0, (0.5,)):
        with pytest.raises(InputError, match="name one neuron"):
            observable_ntk(["relu", "relu"], REFERENCE, X, of, (0, 0), (0, 0))
    for layer in (0, 1.5, "last", True):
        with pytest.raises(InputError, match="choose from 1 to"):
            ntk_covariance(REFERENCE, X, (0, 0, 1, 1), (0, 0, 0, 0), layer=layer)
    with pytest.raises(InputError, match="give an MLP"):
        ntk_covariance(None, X, (0, 0, 1, 1), (0, 0, 0, 0))
    with pytest.raises(InputError, match="tuple of two"):
        observable_ntk(3.0, REFERENCE, X, (0, 1), (0, 0), (0, 0))


@pytest.mark.statistical
@pytest.mark.parametrize("name", ["tanh", "relu"])
def test_random_networks(name: str) -> None:
    """Depth 2, where the leading order is exact at any width: means of products over whole networks."""
    draws, width = 60_000, 8
    mlp = MLP(name, 2, width, n_in=3, n_out=2, C_b=0.1, C_W=1.4, lambda_b=0.4, lambda_W=1.2)
    parameters = sample_parameters(mlp, draws, seed=4)
    H, z = output_kernel(parameters, X), forward(parameters, X)[2]
    dH = H - H.mean(axis=0)
    cases = [
        ((0, 0, 1, 1), (0, 1, 0, 0)),
        ((0, 1, 0, 1), (0, 1, 0, 1)),
        ((0, 1, 1, 0), (0, 1, 1, 1)),
        ((0, 0, 0, 0), (0, 1, 0, 1)),
    ]
    scores = []
    for (i, j, k, m), (a, b, c, d) in cases:
        for samples, expected in (
            (dH[:, i, j, a, b] * dH[:, k, m, c, d], ntk_covariance(mlp, X, (i, j, k, m), (a, b, c, d))),
            (
                z[:, i, a] * z[:, j, b] * dH[:, k, m, c, d],
                preactivation_ntk(mlp, X, (i, j, k, m), (a, b, c, d)),
            ),
        ):
            scores.append((samples.mean() - float(expected)) / (samples.std() / np.sqrt(draws)))
    assert np.abs(scores).max() < 3.6
    assert np.sqrt(np.mean(np.square(scores))) < 1.7


@pytest.mark.statistical
def test_an_observable_of_random_networks() -> None:
    """E[tanh(z_0) tanh(z_1) dH_01] at width 48: leading order, with the mean of H at order 1/n as well."""
    draws, width = 40_000, 48
    mlp = MLP("tanh", 3, width, n_in=3, n_out=2, C_b=0.1, C_W=1.4, lambda_b=0.4, lambda_W=1.2)
    values, kernels = [], []
    for seed in range(8):
        parameters = sample_parameters(mlp, draws // 8, seed=seed)
        H, z = output_kernel(parameters, X), forward(parameters, X)[3]
        values.append(np.tanh(z[:, 0, 0]) * np.tanh(z[:, 1, 0]) * H[:, 0, 1, 0, 0])
        kernels.append(H[:, 0, 0, 0, 1])
    found, kernel = np.concatenate(values), np.concatenate(kernels)
    observable = (["tanh", ONE], ["tanh", ONE])
    expected = float(observable_ntk(observable, mlp, X, (0, 1), (0, 1), (0, 0)))
    error = found.std() / np.sqrt(draws)
    assert abs(found.mean() - expected) < 3.5 * error + 3 * 3 / width * abs(expected)
    assert expected > 5 * error
    mean = ntk_mean(mlp, X).sel(layer=3)["mean"].values[0, 1]
    assert abs(kernel.mean() - mean) < 3.5 * kernel.std() / np.sqrt(draws) + 10 / width**2


@pytest.mark.slow(after=2)
@pytest.mark.parametrize("neurons", [(0, 1), (1, 0), (0, 0), (2, 2)])
def test_functions_of_two_neurons_and_inputs_are_as_good_as_factors(neurons: tuple[int, int]) -> None:
    """Four directions: no warning, and the factors' numbers to far more digits than sampling has."""

    def joint(z: np.ndarray) -> np.ndarray:
        return np.tanh(z[:, 0, 0]) * (1 + z[:, 0, 1]) * np.sin(z[:, 1, 0]) * (0.5 + z[:, 1, 1])

    split = (["tanh", Polynomial([1.0, 1.0])], ["sin", Polynomial([0.5, 1.0])])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = observable_ntk(joint, REFERENCE, X, (0, 1), neurons, (0, 1))
    exact = observable_ntk(split, REFERENCE, X, (0, 1), neurons, (0, 1))
    assert float(exact) != 0
    assert float(found) == pytest.approx(float(exact), rel=1e-8)
    assert abs(float(found) - float(exact)) <= found.error < 1e-6 * abs(float(exact))
    assert exact.error == 0


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("kinks", [[], [0.0]])
def test_what_cannot_be_integrated_well_says_how_well(kinks: list[float]) -> None:
    """relu(z_0) z_1 of two neurons and two inputs, whose kink is not told, or in too many directions for panels."""

    def joint(z: np.ndarray) -> np.ndarray:
        return np.maximum(z[:, 0, 0], 0) * z[:, 1, 1]

    arguments = (REFERENCE, X, (0, 1), (0, 1), (0, 1))
    exact = float(observable_ntk((["relu", ONE], [ONE, Z]), *arguments))
    with pytest.warns(AccuracyWarning, match="is known to within"):
        found = observable_ntk(joint, *arguments, kinks=kinks)
    assert abs(float(found) - exact) <= 2 * found.error
    assert 0 < found.error < 0.05 * abs(exact)
    assert f"{found.error:.6g}" in repr(found)


def test_functions_that_do_not_give_a_number_for_each_point() -> None:
    for of in ((0,), (0, 1)):
        with pytest.raises(InputError, match="one real number"):
            observable_ntk(lambda z: z, REFERENCE, X, of, (0, 1), (0, 1))
