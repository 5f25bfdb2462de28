"""Six-point vertex: the reference's numbers, exact ReLU cumulants, depth, widths, random networks."""

from __future__ import annotations

import numpy as np
import pytest

from foretrain.activations import activation
from foretrain.support.errors import InputError, NotSupportedError
from foretrain.theory.architecture import MLP
from foretrain.theory.ensembles import Ensemble
from foretrain.theory.recursions.single_input import single_input_flow
from foretrain.theory.recursions.six_point import metric_cumulants, six_point_flow


def bent(z: np.ndarray) -> np.ndarray:
    """tanh + tanh^2 / 2: neither odd nor even."""
    t = np.tanh(z)
    return t + t**2 / 2


def test_relu_of_the_reference() -> None:
    U = six_point_flow(MLP("relu", depth=6, width=10, C_W=2.0), [1.0])
    np.testing.assert_allclose(U[:, 0], [0, 44, 238, 582, 1076, 1720], atol=1e-9)


def test_relu_recursion_as_printed() -> None:
    """U' = (C_W^3 / 8) (U + 30 V K + 44 K^3), equal widths, any C_W and C_b (epsilon.20)."""
    net = MLP("relu", depth=7, width=10, C_b=0.1, C_W=1.7)
    flow = single_input_flow(net, 1.3)
    U = six_point_flow(net, 1.3)[:, 0]
    K, V = flow["K"], flow["V"]
    np.testing.assert_allclose(U[1:], 1.7**3 / 8 * (U + 30 * V * K + 44 * K**3)[:-1], rtol=1e-10)


@pytest.mark.slow
def test_smooth_activation_of_the_reference() -> None:
    net = MLP(activation(bent), depth=4, width=10, C_b=0.05, C_W=1.5)
    np.testing.assert_allclose(six_point_flow(net, 1.0)[1:, 0], [1.02449, 1.42806, 1.47099], atol=6e-6)


def test_inputs_are_independent_and_zero_stays_zero() -> None:
    net = MLP("tanh", depth=5, width=10)
    together = six_point_flow(net, [0.0, 0.7, 2.0])
    np.testing.assert_allclose(together[:, 1], six_point_flow(net, 0.7)[:, 0], rtol=1e-10)
    assert not together[:, 0].any()
    assert (together[1:, 1:] != 0).all()


def test_deep_relu_grows_as_the_square_of_depth() -> None:
    """U -> 75 l^2 K^3 (epsilon.21); the exact sum of the recursion is 75 l^2 - 181 l + 106."""
    depth = 3000
    U = six_point_flow(MLP("relu", depth=depth, width=10, C_W=2.0), 1.0)[:, 0]
    layer = np.arange(1, depth + 1)
    np.testing.assert_allclose(U, 75 * layer**2 - 181 * layer + 106, rtol=1e-8)
    assert U[-1] / (75 * depth**2) == pytest.approx(1, abs=2e-3)


@pytest.mark.slow
def test_many_layers_are_interpolated_to_the_same_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    net = MLP("tanh", depth=800, width=10)
    fast = six_point_flow(net, [1.0, 0.0])
    monkeypatch.setattr("foretrain.theory.recursions.six_point._FEW", 10_000)
    np.testing.assert_allclose(fast, six_point_flow(net, [1.0, 0.0]), rtol=1e-9, atol=1e-30)


def test_scale_invariance() -> None:
    net = MLP("leaky_relu(slope=0.3)", depth=4, width=10, C_W=1.4)
    np.testing.assert_allclose(six_point_flow(net, 2.0), 8 * six_point_flow(net, 1.0), rtol=1e-10)


@pytest.mark.parametrize("widths", [[1, 1, 1], [2, 3, 2]])
def test_leading_order_is_the_limit_of_the_exact_cumulants(widths: list[int]) -> None:
    """Also with a bias and unequal widths, whose ratios stay fixed in the limit."""
    net = MLP("relu", depth=4, width=widths, C_b=0.2, C_W=1.6)
    wide = [net.replace(width=[n * w for w in widths]) for n in (10_000, 20_000)]
    exact = [metric_cumulants(big, 1.0)[:, 1] for big in wide]
    np.testing.assert_allclose(2 * exact[1] - exact[0], six_point_flow(net, 1.0)[:, 0], rtol=1e-5)
    vertices = [metric_cumulants(big, 1.0)[:, 0] for big in wide]
    np.testing.assert_allclose(
        2 * vertices[1] - vertices[0], single_input_flow(net, 1.0)["V"], rtol=1e-6, atol=1e-9
    )


def test_exact_relu_moments() -> None:
    n, layer = 40, 4
    found = metric_cumulants(MLP("relu", depth=layer, width=n, C_W=2.0), 1.0)[-1]
    second, third = (1 + 5 / n) ** (layer - 1), (1 + 15 / n + 44 / n**2) ** (layer - 1)
    np.testing.assert_allclose(found, [n * (second - 1), n**2 * (third - 3 * second + 2)], rtol=1e-10)
    assert found[1] == pytest.approx(779.6, abs=0.05)
    assert metric_cumulants(MLP("relu", depth=6, width=50, C_W=2.0), 1.0)[-1, 1] == pytest.approx(
        2849, abs=0.5
    )


def test_bad_input() -> None:
    with pytest.raises(NotSupportedError, match="residual"):
        six_point_flow(MLP("relu", depth=4, width=10, gamma=0.5), 1.0)
    with pytest.raises(NotSupportedError, match="scale-invariant"):
        metric_cumulants(MLP("tanh", depth=3, width=10), 1.0)
    with pytest.raises(InputError, match="none negative"):
        six_point_flow(MLP("relu", depth=3, width=10), [-1.0])


def third_cumulant(net: MLP, draws: int, seed: int) -> tuple[float, float]:
    """n^2 kappa_3 of the metric at the output of random networks with x = 1, and its standard error over batches."""
    chunks = Ensemble(net, [[1.0]], draws, seed=seed).metrics([net.depth])
    metrics = np.concatenate([chunk[net.depth][:, 0, 0] for chunk in chunks])
    deviations = (metrics - metrics.mean()).reshape(20, -1) ** 3
    values = net.hidden_widths[-1] ** 2 * deviations.mean(axis=1)
    return float(values.mean()), float(values.std(ddof=1) / np.sqrt(20))


@pytest.mark.statistical
def test_random_networks_with_unequal_widths() -> None:
    """Widths 4 : 1 : 4 at two sizes, extrapolated in 1/n; equal widths give another number."""
    net = MLP(activation(bent), depth=4, width=[4, 1, 4], C_b=0.05, C_W=1.5)
    small, large = (third_cumulant(net.replace(width=[4 * n, n, 4 * n]), 500_000, seed=n) for n in (15, 30))
    value, error = 2 * large[0] - small[0], np.hypot(2 * large[1], small[1])
    first = net.first_kernel([[1.0]])[0, 0]
    assert abs(value - six_point_flow(net, first)[-1, 0]) < 4 * error
    assert abs(value - six_point_flow(net.replace(width=4), first)[-1, 0]) > 4 * error


@pytest.mark.statistical
def test_random_relu_networks_have_the_exact_cumulant() -> None:
    net = MLP("relu", depth=4, width=[30, 40, 20], C_b=0.1, C_W=1.8)
    value, error = third_cumulant(net, 600_000, seed=7)
    exact = metric_cumulants(net, float(net.first_kernel([[1.0]])[0, 0]))[-1, 1]
    assert abs(value - exact) < 4.5 * error
    assert error < 0.05 * exact
