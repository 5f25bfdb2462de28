from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foretrain.gaussian.wick import wick_moment
from foretrain.support.errors import InputError, NotSupportedError
from foretrain.theory import linear
from foretrain.theory.linear import DeepLinear

GRAM = np.array([[1, 0.5, 0.2, 0], [0.5, 1, 0.1, 0.3], [0.2, 0.1, 1, 0.4], [0, 0.3, 0.4, 1]])
NETWORK = DeepLinear([3, 4, 5])
BIASED = DeepLinear([3, 4, 5], C_W=0.8, C_b=0.3)


def test_reference_values() -> None:
    four = linear.pairing_amplitudes(NETWORK, GRAM, [0, 1, 2, 3]).sel(layer=3)
    assert four.values == pytest.approx([0.2733333333, 0.2033333333, 0.1733333333], abs=6e-11)
    assert list(four.pairing.values) == ["(12)(34)", "(13)(24)", "(14)(23)"]
    six = linear.pairing_amplitudes(NETWORK, GRAM, [0, 1, 2, 3, 0, 1]).sel(layer=3)
    assert float(six.sel(pairing="(12)(34)(56)")) == pytest.approx(0.725, abs=1e-12)
    assert float(six.sum()) == pytest.approx(9.1, abs=1e-11)


def closed_four_point(network: DeepLinear, g: np.ndarray, C_W: float, layer: int) -> float:
    n = np.array(network.widths[: layer - 1])
    mean = g.mean()
    return float(C_W ** (2 * layer) * (mean * (1 + 2 / n).prod() + (g[0] - mean) * (1 - 1 / n).prod()))


def test_four_point_closed_form() -> None:
    network = DeepLinear([3, 4, 7, 2], C_W=1.2)
    g = np.array([GRAM[0, 1] * GRAM[2, 3], GRAM[0, 2] * GRAM[1, 3], GRAM[0, 3] * GRAM[1, 2]])
    amplitudes = linear.pairing_amplitudes(network, GRAM, [0, 1, 2, 3]).values[:, 0]
    expected = [closed_four_point(network, g, 1.2, layer) for layer in (1, 2, 3, 4)]
    assert amplitudes == pytest.approx(expected, rel=1e-13)
    part = linear.connected_four_point(network, GRAM, [[0, 1, 2, 3]]).values[:, 0]
    disconnected = 1.2 ** (2 * np.arange(1, 5)) * g[0]
    assert part == pytest.approx(np.array(expected) - disconnected, abs=1e-14)


def test_connected_four_point_with_biases() -> None:
    quadruples = np.array([[0, 1, 2, 3], [0, 0, 1, 1], [3, 3, 3, 3], [0, 2, 1, 3]])
    part = linear.connected_four_point(BIASED, GRAM, quadruples)
    assert part.dims == ("layer", "quadruple")
    kernels = linear.two_point(BIASED, GRAM).values
    for column, (a, b, c, d) in enumerate(quadruples):
        full = linear.pairing_amplitudes(BIASED, GRAM, [a, b, c, d]).values[:, 0]
        assert part.values[:, column] == pytest.approx(full - kernels[:, a, b] * kernels[:, c, d], abs=1e-14)
    single = linear.connected(BIASED, 1.0, 2).values[:, 1]
    assert part.values[:, 2] == pytest.approx(single, rel=1e-12)


@pytest.mark.parametrize("network", [NETWORK, BIASED])
@pytest.mark.parametrize("m", [1, 2, 3, 4])
def test_equal_inputs_give_the_single_input_moments(network: DeepLinear, m: int) -> None:
    amplitudes = linear.pairing_amplitudes(network, [[0.7]], [0] * (2 * m)).values
    moments = linear.moments(network, 0.7).values[:, m - 1]
    assert amplitudes == pytest.approx(np.broadcast_to(moments[:, None], amplitudes.shape), rel=1e-12)


def test_first_layer_is_wicks_theorem() -> None:
    kernel = 0.3 + 0.8 * GRAM
    found = linear.correlator(BIASED, GRAM, [0, 1, 2, 3, 0, 1], neurons=[7] * 6).values[0]
    assert found == pytest.approx(wick_moment(kernel, [0, 1, 2, 3, 0, 1]), rel=1e-13)
    two_neurons = linear.correlator(BIASED, GRAM, [0, 1, 2, 3], neurons=[1, 1, 2, 2]).values[0]
    assert two_neurons == pytest.approx(kernel[0, 1] * kernel[2, 3])


def test_one_layer_by_exact_quadrature() -> None:
    """Layer 2 given layer 1 is Gaussian: average its Wick sum over two neurons on two inputs, exactly."""
    gram, C_W, C_b = np.array([[1.0, 0.4], [0.4, 0.7]]), 0.9, 0.2
    nodes, weights = np.polynomial.hermite_e.hermegauss(5)
    weights = weights / weights.sum()
    grid = np.stack(np.meshgrid(*[nodes] * 4, indexing="ij")).reshape(2, 2, -1)
    mass = np.prod(np.stack(np.meshgrid(*[weights] * 4, indexing="ij")).reshape(4, -1), axis=0)
    z = np.einsum("ab,bjp->ajp", np.linalg.cholesky(C_b + C_W * gram), grid)
    kernel = C_b + C_W / 2 * np.einsum("ajp,bjp->pab", z, z)
    network = DeepLinear([2, 3], C_W=C_W, C_b=C_b)
    for inputs in ([0, 1, 0, 1], [0, 0, 1, 1, 0, 1], [0, 0, 1, 1, 0, 1, 0, 1]):
        expected = mass @ wick_moment(kernel, inputs)
        found = linear.correlator(network, gram, inputs, neurons=[0] * len(inputs)).values[1]
        assert found == pytest.approx(expected, rel=1e-12)


@settings(deadline=None, max_examples=20)
@given(st.permutations(range(4)), st.floats(0.2, 3))
def test_relabelling_points_relabels_pairings(order: list[int], scale: float) -> None:
    base = linear.correlator(BIASED, GRAM, [0, 1, 2, 3], neurons=[1, 1, 2, 2]).values
    neurons = [[1, 1, 2, 2][i] for i in order]
    assert linear.correlator(BIASED, GRAM, order, neurons).values == pytest.approx(base, rel=1e-12)
    scaled = linear.pairing_amplitudes(NETWORK, scale * GRAM, [0, 1, 2, 3]).values
    plain = linear.pairing_amplitudes(NETWORK, GRAM, [0, 1, 2, 3]).values
    assert scaled == pytest.approx(scale**2 * plain, rel=1e-12)


@pytest.mark.statistical
@pytest.mark.parametrize("C_b", [0.0, 0.3])
def test_real_networks(C_b: float) -> None:
    random = np.random.default_rng(8)
    draws, C_W = 400_000, 0.8
    inputs = 2 * np.linalg.cholesky(GRAM)  # n_0 = 4 columns: the Gram matrix divides by 4
    z = np.broadcast_to(inputs.T, (draws, 4, 4))
    for n in (3, 4, 5):
        W = random.normal(size=(draws, n, z.shape[1])) * np.sqrt(C_W / z.shape[1])
        z = W @ z + np.sqrt(C_b) * random.normal(size=(draws, n, 1))
    network = DeepLinear([3, 4, 5], C_W=C_W, C_b=C_b)
    cases = [([0, 1, 2, 3], [0, 0, 1, 1]), ([0, 1, 2, 3], [0, 1, 0, 1]), ([0, 1, 2, 3], [0, 1, 1, 0])]
    cases.append(([0, 1, 2, 3, 0, 1], [0, 0, 1, 1, 2, 2]))
    for points, neurons in cases:
        sample = np.prod([z[:, i, a] for i, a in zip(neurons, points)], axis=0)
        expected = float(linear.correlator(network, GRAM, points, neurons)[-1])
        assert abs(sample.mean() - expected) < 4 * sample.std() / np.sqrt(draws)


def test_bad_input() -> None:
    with pytest.raises(InputError, match="even number"):
        linear.pairing_amplitudes(NETWORK, GRAM, [0, 1, 2])
    with pytest.raises(NotSupportedError, match="945 pairings"):
        linear.pairing_amplitudes(NETWORK, GRAM, [0] * 10)
    with pytest.raises(InputError, match="within the 4"):
        linear.pairing_amplitudes(NETWORK, GRAM, [0, 4])
    with pytest.raises(InputError, match="each point needs both"):
        linear.correlator(NETWORK, GRAM, [0, 1], [0])
    with pytest.raises(InputError, match=r"table \(Q, 4\)"):
        linear.connected_four_point(NETWORK, GRAM, [0, 1, 2, 3])
    with pytest.raises(InputError, match="outside the 4"):
        linear.connected_four_point(NETWORK, GRAM, [[0, 1, 2, 4]])
    with pytest.raises(InputError, match="one Gram matrix"):
        linear.pairing_amplitudes(NETWORK, np.stack([GRAM, GRAM]), [0, 1])
