from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foretrain.gaussian.cumulants import sample_four_point, sample_inter_neuron, scale_mixture_connected
from foretrain.gaussian.wick import loop_count, pairings
from foretrain.support.errors import InputError, NotSupportedError
from foretrain.theory import linear
from foretrain.theory.linear import DeepLinear

TEN = DeepLinear([10] * 50)

# layer: G_4, G_6, G_8, kappa_2, kappa_3, kappa_4, Var O at n = 10, C_W = 1, G0 = 1
TABLE = {
    2: (1.2, 1.68, 2.688, 0.2, 0.08, 0.048, 0.44),
    5: (2.0736, 7.96594176, 52.20559592, 1.0736, 3.74514176, 26.325578, 1.48832),
    10: (5.159780352, 106.6064632, 7325.940371, 4.159780352, 93.12712219, 6875.561882, 5.191736422),
    50: (
        7583.698458,
        1.096869106e11,
        1.101625435e21,
        7582.698458,
        1.096868879e11,
        1.101625435e21,
        9099.43815,
    ),
}


@pytest.mark.parametrize("layer", list(TABLE))
def test_table_at_width_ten(layer: int) -> None:
    expected = TABLE[layer]
    moments = linear.moments(TEN, 1.0).sel(layer=layer).values
    kappa = linear.connected(TEN, 1.0).sel(layer=layer).values
    assert moments == pytest.approx([1.0, *expected[:3]], rel=2e-9)
    assert kappa == pytest.approx([1.0, *expected[3:6]], rel=2e-9)
    assert float(linear.fluctuation(TEN, 1.0).sel(layer=layer)) == pytest.approx(expected[6], rel=2e-9)


def test_width_one_hundred() -> None:
    network = DeepLinear([100] * 10)
    assert linear.moments(network, 1.0).values[-1, 1:3] == pytest.approx([1.195092569, 1.700989370], rel=1e-9)
    assert linear.connected(network, 1.0).values[-1, 2:] == pytest.approx(
        [0.1157116640, 0.1262003512], rel=1e-9
    )
    assert float(linear.fluctuation(network, 1.0)[-1]) == pytest.approx(0.2189944200, rel=1e-9)
    off_critical = linear.moments(DeepLinear([100] * 10, C_W=0.9), 1.0).values[-1, :3]
    assert off_critical == pytest.approx([0.3486784401, 0.1452953564, 0.0721069096], rel=1e-9)


def test_unequal_widths_and_the_width_factor() -> None:
    found = linear.moments(DeepLinear([8, 16, 4, 1], C_W=1.2), 0.7).values[3]
    assert found == pytest.approx([1.45152, 4.444263936, 24.19101746, 211.2311262], rel=1e-9)
    assert [linear.width_factor(m, 3) for m in range(1, 6)] == pytest.approx(
        [1, 5 / 3, 3.888889, 11.666667, 42.777778], rel=1e-6
    )


def test_biases() -> None:
    found = linear.moments(DeepLinear([4, 5, 1], C_W=0.8, C_b=0.3), 1.0).values[2]
    assert found == pytest.approx([1.244, 2.2509216, 6.045002749, 23.60789460], rel=1e-9)
    deep = linear.moments(DeepLinear([100] * 10, C_W=0.9, C_b=0.1), 1.0).values[-1, :3]
    assert deep == pytest.approx([1.0, 1.076490753, 1.252196440], rel=1e-9)


@pytest.mark.parametrize("n", [1, 3, 7])
@pytest.mark.parametrize("m", [1, 2, 3, 4])
def test_width_factor_counts_loops(m: int, n: int) -> None:
    """Each row of n^(loops - m) over all pairs of pairings sums to c_2m(n)."""
    every = pairings(2 * m)
    for one in every[:3]:
        assert sum(float(n) ** (loop_count(one, two) - m) for two in every) == pytest.approx(
            linear.width_factor(m, n), rel=1e-12
        )


def test_explicit_polynomial_quadrature() -> None:
    """Widths 2, 2, 1: E[z^4] over both neurons of layer 1 and all six later weights, integrated exactly."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(3)
    weights = weights / weights.sum()
    grid = np.stack(np.meshgrid(*[nodes] * 8, indexing="ij")).reshape(8, -1)
    mass = np.prod(np.stack(np.meshgrid(*[weights] * 8, indexing="ij")).reshape(8, -1), axis=0)
    C_W, G0 = 1.3, 0.9
    z = np.sqrt(C_W * G0) * grid[:2]
    z = np.sqrt(C_W / 2) * (grid[2:6].reshape(2, 2, -1) * z).sum(axis=1)
    z = np.sqrt(C_W / 2) * (grid[6:] * z).sum(axis=0)
    moments = linear.moments(DeepLinear([2, 2, 1], C_W=C_W), G0, 2).values[2]
    assert mass @ z**2 == pytest.approx(moments[0], rel=1e-12)
    assert mass @ z**4 == pytest.approx(3 * moments[1], rel=1e-12)


def test_two_point_of_one_and_of_several_inputs() -> None:
    network = DeepLinear([5, 6, 7], C_W=[1.1, 0.9, 2.0], C_b=[0.1, 0.0, 0.2], slope=0.5)
    assert linear.two_point(network, 2.0).values == pytest.approx([2.3, 0.5175, 0.45875])
    gram = np.array([[2.0, 0.3], [0.3, 1.0]])
    flow = linear.two_point(network, gram)
    assert flow.dims == ("layer", "input_1", "input_2")
    assert flow.values[:, 0, 0] == pytest.approx([2.3, 0.5175, 0.45875])
    assert flow.values[0, 0, 1] == pytest.approx(0.1 + 1.1 * 0.3)


def test_first_layer_is_gaussian_and_its_own_width_never_enters() -> None:
    for widths in ([1, 3], [50, 3], [1, 1]):
        assert linear.moments(DeepLinear(widths, C_W=1.5), 0.4).values[0] == pytest.approx(
            0.6 ** np.arange(1, 5)
        )
        assert linear.connected(DeepLinear(widths, C_W=1.5), 0.4).values[0, 1:] == pytest.approx(0, abs=1e-15)
    one = linear.moments(DeepLinear([3, 7]), 1.0).values
    two = linear.moments(DeepLinear([3, 70]), 1.0).values
    assert one == pytest.approx(two, rel=1e-15)


def test_labels() -> None:
    found = linear.moments(DeepLinear([3, 4]), 1.0, max_order=3)
    assert found.dims == ("layer", "order")
    assert list(found.layer) == [1, 2]
    assert list(found.order) == [1, 2, 3]
    assert linear.log_moments(DeepLinear([3, 4]), 1.0).name == "log G"


def test_logarithms_survive_where_moments_overflow() -> None:
    network = DeepLinear([10] * 5000)
    logs = linear.log_moments(network, 1.0, 3).values[-1]
    assert logs == pytest.approx([0, 4999 * np.log(1.2), 4999 * np.log(1.2 * 1.4)], rel=1e-12)
    assert linear.moments(network, 1.0, 3).values[-1, 1] == np.inf
    assert linear.log_moments(DeepLinear([10] * 3, C_W=1e-200), 1e-200).values[-1, 0] == pytest.approx(
        -800 * np.log(10)
    )


def test_zero_input_and_zero_weights() -> None:
    assert linear.moments(DeepLinear([4, 4]), 0.0).values == pytest.approx(0)
    only_bias = DeepLinear([4, 4, 4], C_W=0.0, C_b=2.0)
    assert linear.moments(only_bias, 1.0).values[-1] == pytest.approx([2, 4, 8, 16])
    assert linear.connected(only_bias, 1.0).values[-1, 1:] == pytest.approx(0, abs=1e-300)


def test_slope_is_a_gain_from_layer_two_on() -> None:
    a = linear.moments(DeepLinear([3, 4, 5], C_W=1.2, slope=-0.5), 1.0).values
    b = linear.moments(DeepLinear([3, 4, 5], C_W=[1.2, 0.3, 0.3]), 1.0).values
    assert a == pytest.approx(b, rel=1e-14)


def test_critical_tuning_preserves_the_two_point() -> None:
    network = DeepLinear.critical([7] * 30, slope=0.3)
    assert linear.two_point(network, 1.7).values == pytest.approx(1.7)
    assert linear.two_point(DeepLinear([7] * 30, C_W=1.1), 1.0).values[-1] == pytest.approx(1.1**30)


def test_connected_keeps_its_digits_at_large_width() -> None:
    """kappa_4 is 1e-12 of the moments here; leading order known, next order small."""
    found = linear.connected(DeepLinear([10_000] * 3), 1.0).values[-1]
    k = 2
    assert found[3] == pytest.approx((128 * k**3 - 96 * k**2 + 16 * k) / 1e12, rel=2e-3)
    exact = linear.connected_expansion(DeepLinear([10_000] * 3), 1.0, max_power=12).sum("power").values[-1]
    assert found[:3] == pytest.approx(exact[:3], rel=1e-7)


def test_expansion_in_inverse_width() -> None:
    n, layer = 1000, 10
    k = layer - 1
    series = linear.connected_expansion(DeepLinear([n] * layer), 1.0).values[-1]
    assert series[1, 1] * n == pytest.approx(2 * k)
    assert series[2, 2] * n**2 == pytest.approx(12 * k**2 - 4 * k)
    assert series[3, 3] * n**3 == pytest.approx(128 * k**3 - 96 * k**2 + 16 * k)
    assert series[2, :2] == pytest.approx(0, abs=1e-15)
    complete = linear.connected_expansion(DeepLinear([3, 5, 4]), 1.0, max_power=9).sum("power")
    assert complete.values == pytest.approx(linear.connected(DeepLinear([3, 5, 4]), 1.0).values, rel=1e-11)
    with_bias = DeepLinear([3, 5, 4], C_W=0.7, C_b=0.2)
    complete = linear.connected_expansion(with_bias, 1.3, max_power=9).sum("power")
    assert complete.values == pytest.approx(linear.connected(with_bias, 1.3).values, rel=1e-9, abs=1e-14)


def test_fluctuation_and_its_expansion() -> None:
    network = DeepLinear([4, 6, 9], C_W=1.3)
    G = 1.3 ** np.arange(1, 4) * 0.7
    expected = [((1 + 2 / np.array([4, 6, 9])[:layer]).prod() - 1) * G[layer - 1] ** 2 for layer in (1, 2, 3)]
    assert linear.fluctuation(network, 0.7).values == pytest.approx(expected, rel=1e-13)
    series = linear.fluctuation_expansion(network, 0.7, max_power=3)
    assert series.sum("power").values == pytest.approx(expected, rel=1e-12)
    assert series.values[:, 1] == pytest.approx(np.cumsum(2 / np.array([4, 6, 9])) * G**2, rel=1e-12)


@settings(deadline=None, max_examples=20)
@given(
    st.lists(st.integers(1, 12), min_size=2, max_size=5),
    st.floats(0.3, 2),
    st.floats(0.0, 1.0),
    st.floats(0.1, 3),
)
def test_moments_are_those_of_a_positive_variable(
    widths: list[int], C_W: float, C_b: float, G0: float
) -> None:
    network = DeepLinear(widths, C_W=C_W, C_b=C_b)
    logs = linear.log_moments(network, G0, 4).values
    # E[R^m]^2 <= E[R^(m-1)] E[R^(m+1)], and kappa_2 >= 0.
    assert np.all(2 * logs[:, 1:3] <= logs[:, :2] + logs[:, 2:] + 1e-12)
    assert np.all(linear.connected(network, G0, 2).values[:, 1] >= 0)
    # Inner layers may be exchanged when gains are equal and there is no bias.
    shuffled = DeepLinear([*widths[-2::-1], widths[-1]], C_W=C_W)
    assert linear.log_moments(shuffled, G0).values[-1] == pytest.approx(
        linear.log_moments(DeepLinear(widths, C_W=C_W), G0).values[-1], abs=1e-11
    )
    scaled = linear.log_moments(DeepLinear(widths, C_W=C_W), 2 * G0).values[-1]
    assert scaled - linear.log_moments(DeepLinear(widths, C_W=C_W), G0).values[-1] == pytest.approx(
        np.log(2) * np.arange(1, 5), abs=1e-11
    )


def real_networks(widths: list[int], C_W: float, draws: int, seed: int) -> np.ndarray:
    """Outputs of real random networks, weights drawn, for the input (1, 2, -1, .5): (draws, n_L)."""
    random = np.random.default_rng(seed)
    z = np.broadcast_to(np.array([1.0, 2.0, -1.0, 0.5]), (draws, 4))
    for n in widths:
        W = random.normal(size=(draws, n, z.shape[1])) * np.sqrt(C_W / z.shape[1])
        z = np.einsum("dij,dj->di", W, z)
    return z


def agrees(samples: np.ndarray, expected: float, deviations: float = 4.0) -> bool:
    error = samples.std(ddof=1) / np.sqrt(len(samples))
    return bool(abs(samples.mean() - expected) < deviations * error)


@pytest.mark.statistical
def test_real_networks() -> None:
    widths, C_W = [6, 9, 5, 7], 1.1
    G0 = (1 + 4 + 1 + 0.25) / 4
    z = np.concatenate([real_networks(widths, C_W, 100_000, seed) for seed in range(8)])
    network = DeepLinear(widths, C_W=C_W)
    G2, G4, G6 = linear.moments(network, G0, 3).values[-1]
    assert agrees((z**2).mean(axis=1), G2)
    assert agrees(z[:, 0] ** 4, 3 * G4)
    assert agrees(z[:, 0] ** 2 * z[:, 1] ** 2, G4)
    assert agrees(z[:, 0] ** 2 * z[:, 1] ** 2 * z[:, 2] ** 2, G6)
    square = (z**2).mean(axis=1)
    assert agrees((square - G2) ** 2, float(linear.fluctuation(network, G0)[-1]))
    kappa_2 = float(linear.connected(network, G0).values[-1, 1])
    pair, single = sample_inter_neuron(z), sample_four_point(z)
    assert abs(pair.value - kappa_2) < 4 * pair.standard_error
    assert abs(single.value - scale_mixture_connected([G2, G4], [1, 1, 1, 1])) < 4 * single.standard_error
    assert pair.value > 10 * pair.standard_error


@pytest.mark.statistical
def test_real_networks_with_biases() -> None:
    random = np.random.default_rng(11)
    draws, C_W, C_b = 400_000, 0.8, 0.3
    z = np.broadcast_to(np.array([1.0, 1.0]), (draws, 2))
    for n in (4, 5, 2):
        W = random.normal(size=(draws, n, z.shape[1])) * np.sqrt(C_W / z.shape[1])
        z = np.sqrt(C_b) * random.normal(size=(draws, n)) + np.einsum("dij,dj->di", W, z)
    G2, G4, _, _ = linear.moments(DeepLinear([4, 5, 2], C_W=C_W, C_b=C_b), 1.0).values[2]
    assert agrees(z[:, 0] ** 2, G2)
    assert agrees(z[:, 0] ** 2 * z[:, 1] ** 2, G4)


def test_non_gaussian_weights() -> None:
    found = linear.nongaussian_weights(DeepLinear([4, 5, 1]), np.ones(4), -6 / 5).sel(layer=3)
    assert [float(found[name]) for name in ("G2", "G4", "D")] == pytest.approx([1, 1.833, -0.8316], abs=1e-12)
    gaussian = linear.nongaussian_weights(DeepLinear([4, 5, 1]), np.ones(4), 0.0)
    assert gaussian.G4.values == pytest.approx(linear.moments(DeepLinear([4, 5, 1]), 1.0).values[:, 1])
    assert gaussian.fluctuation.values == pytest.approx(linear.fluctuation(DeepLinear([4, 5, 1]), 1.0).values)
    assert gaussian.D.values == pytest.approx(0)


def test_non_gaussian_weights_do_not_pile_up() -> None:
    n = 100
    deep = linear.nongaussian_weights(DeepLinear([n] * 40), np.ones(n), -6 / 5)
    # D / G_4 stays near 3 k_4 / n while kappa_2 grows with depth.
    assert (deep.D / deep.G4).values[1:] == pytest.approx(3 * -1.2 / n, rel=0.04)
    assert float(deep.G4[-1]) > 1.5 * float(deep.G4[1])


def test_rademacher_weights_by_enumeration() -> None:
    """Weights +-1 (kurtosis -2), widths 2 -> 2 -> 1: all 64 networks."""
    signs = np.array(np.meshgrid(*[[-1.0, 1.0]] * 6, indexing="ij")).reshape(6, -1).T
    x = np.array([1.0, 0.5])
    hidden = signs[:, :4].reshape(-1, 2, 2) @ x / np.sqrt(2)
    output = np.einsum("di,di->d", signs[:, 4:], hidden) / np.sqrt(2)
    found = linear.nongaussian_weights(DeepLinear([2, 1]), x, -2.0).sel(layer=2)
    assert (output**2).mean() == pytest.approx(float(found.G2), rel=1e-14)
    assert (output**4).mean() == pytest.approx(3 * float(found.G4) + float(found.D), rel=1e-14)


@pytest.mark.statistical
def test_uniform_weights_in_real_networks() -> None:
    random = np.random.default_rng(12)
    draws = 600_000
    z = np.broadcast_to(np.ones(4), (draws, 4))
    for n in (4, 5, 2):
        W = random.uniform(-1, 1, size=(draws, n, z.shape[1])) * np.sqrt(3 / z.shape[1])
        z = np.einsum("dij,dj->di", W, z)
    found = linear.nongaussian_weights(DeepLinear([4, 5, 2]), np.ones(4), -6 / 5).sel(layer=3)
    assert agrees(z[:, 0] ** 2 * z[:, 1] ** 2, float(found.G4))
    assert agrees(z[:, 0] ** 4, 3 * float(found.G4) + float(found.D))


def test_bad_input() -> None:
    with pytest.raises(InputError, match="widths"):
        DeepLinear([])
    with pytest.raises(InputError, match="widths"):
        DeepLinear([3, 0])
    with pytest.raises(InputError, match="widths"):
        DeepLinear(np.array([2.5]))
    with pytest.raises(InputError, match="C_W has shape"):
        DeepLinear([3, 4], C_W=[1.0])
    with pytest.raises(InputError, match="C_b is -1"):
        DeepLinear([3, 4], C_b=-1.0)
    with pytest.raises(InputError, match="slope"):
        DeepLinear([3], slope=np.nan)
    with pytest.raises(InputError, match="no critical tuning"):
        DeepLinear.critical([3], slope=0.0)
    with pytest.raises(InputError, match="G0 is -1"):
        linear.moments(TEN, -1.0)
    with pytest.raises(InputError, match="order is 0"):
        linear.connected(TEN, 1.0, 0)
    with pytest.raises(InputError, match="not symmetric"):
        linear.two_point(TEN, [[1.0, 0.5], [0.0, 1.0]])
    with pytest.raises(NotSupportedError, match="without biases"):
        linear.nongaussian_weights(DeepLinear([3], C_b=0.1), [1.0], 0.0)
    with pytest.raises(InputError, match="at least -2"):
        linear.nongaussian_weights(DeepLinear([3]), [1.0], -3.0)
    with pytest.raises(InputError, match="finite vector"):
        linear.nongaussian_weights(DeepLinear([3]), 1.0, 0.0)
