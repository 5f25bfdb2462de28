"""The action of a layer gives back the correlators, agrees with first-order arithmetic, and runs."""

from __future__ import annotations

import numpy as np
import pytest

from foretrain.gaussian.action import NegativeCouplingWarning, QuarticAction, neuron_kernel
from foretrain.support.errors import InputError
from foretrain.theory.architecture import MLP
from foretrain.theory.couplings import LayerAction, layer_action, relevance, running
from foretrain.theory.finite_width import layer_statistics

INPUTS = np.array([[1.0, -0.5, 0.8], [0.3, 1.1, -0.4], [-0.7, 0.2, 0.9]])


def network(scale: int) -> MLP:
    return MLP("tanh", depth=4, width=[12 * scale, 24 * scale, 16 * scale], C_b=0.15, C_W=1.6)


def residual_power(gap: dict[int, float]) -> float:
    """The power of 1/n with which a gap falls from scale 16 to 32."""
    return float(np.log2(gap[16] / gap[32]))


@pytest.mark.parametrize("neurons", [1, 3])
def test_the_couplings_give_back_both_correlators(neurons: int) -> None:
    two, four, inverse = {}, {}, {}
    for scale in (16, 32):
        at = layer_statistics(network(scale), INPUTS)
        action = layer_action(network(scale), INPUTS, neurons=neurons)
        two[scale] = np.abs(action.two_point() - at.K - at.G1 / at.fan_in).max()
        four[scale] = np.abs(action.four_point() - at.V / at.fan_in).max()
        inverse[scale] = np.abs(action.quadratic @ action.metric - np.eye(3)).max()
    for gap in (two, four, inverse):
        assert residual_power(gap) == pytest.approx(2.0, abs=0.1)


def first_order(action: LayerAction) -> QuarticAction:
    with pytest.warns(NegativeCouplingWarning):
        return action.quartic_action()


def test_first_order_arithmetic_of_the_whole_action_agrees() -> None:
    action = layer_action(network(4), INPUTS[:2], neurons=2)
    whole = first_order(action)
    expected = np.kron(np.eye(2), action.two_point())
    np.testing.assert_allclose(whole.two_point(), expected, rtol=1e-12, atol=1e-14)
    connected = whole.connected_four_point().reshape((2, 2) * 4)
    np.testing.assert_allclose(connected[0, :, 0, :, 1, :, 1, :], action.four_point(), rtol=1e-11, atol=1e-15)
    V = action.four_point()
    np.testing.assert_allclose(connected[0, :, 1, :, 0, :, 1, :], V.transpose(0, 2, 1, 3), atol=1e-13)
    np.testing.assert_array_equal(connected[0, :, 0, :, 0, :, 1, :], 0.0)
    z = np.random.default_rng(0).standard_normal((2, 2))
    quadratic = 0.5 * np.einsum("ia,ab,ib->", z, np.linalg.inv(action.metric), z)
    squares = np.einsum("ia,ib->ab", z, z)
    literal = quadratic - np.einsum("abcd,ab,cd->", action.quartic, squares, squares) / 8
    assert float(whole.value(z.ravel())) == pytest.approx(literal, rel=1e-10)


def test_dropping_inputs_is_integrating_them_out() -> None:
    gap = {}
    for scale in (16, 32):
        kept = layer_action(network(scale), INPUTS, samples=[2, 0])
        both = first_order(layer_action(network(scale), INPUTS))
        gap[scale] = np.abs(kept.two_point() - both.two_point()[np.ix_([2, 0], [2, 0])]).max()
        assert not np.allclose(kept.quadratic, layer_action(network(scale), INPUTS).quadratic[::-2, ::-2])
    assert residual_power(gap) == pytest.approx(2.0, abs=0.1)
    alone = layer_action(network(4), INPUTS[[2, 0]])
    np.testing.assert_allclose(layer_action(network(4), INPUTS, samples=[2, 0]).metric, alone.metric)


def test_running_with_the_number_of_neurons() -> None:
    x, counts = INPUTS[0], [1, 2, 5, 16]
    gap, action_gap = {}, {}
    for scale in (16, 32):
        found = running(network(scale), x, neurons=counts)
        at = layer_statistics(network(scale), x[None])
        G, V = float(at.K[0, 0] + at.G1[0, 0] / at.fan_in), float(at.V[0, 0, 0, 0]) / at.fan_in
        np.testing.assert_allclose(found["inverse_quadratic"], [neuron_kernel(G, V, m) for m in counts])
        np.testing.assert_allclose(found["inverse_quadratic"] * found["quadratic"], 1.0)
        np.testing.assert_allclose(found["quartic"], V / G**4)
        g, v = found["quadratic"].values, float(found["quartic"][0])
        stepped = g[-1] - (counts[-1] - np.array(counts)) / 2 * v / g[-1]  # (4.100)
        gap[scale] = np.abs(g - stepped).max()
        exact = [float(layer_action(network(scale), x[None], neurons=m).quadratic[0, 0]) for m in counts]
        action_gap[scale] = np.abs(g - exact).max()
    assert residual_power(gap) == pytest.approx(2.0, abs=0.15)
    assert residual_power(action_gap) == pytest.approx(2.0, abs=0.15)


def test_the_action_does_not_know_the_width_of_its_own_layer() -> None:
    narrow = MLP("tanh", depth=4, width=[30, 30, 8], C_W=1.3)
    wide = MLP("tanh", depth=4, width=[30, 30, 800], C_W=1.3)
    np.testing.assert_allclose(
        layer_action(narrow, INPUTS, 3, neurons=2).quadratic,
        layer_action(wide, INPUTS, 3, neurons=2).quadratic,
    )


def test_layer_one_is_free() -> None:
    first = layer_action(network(1), INPUTS, 1, neurons=5)
    np.testing.assert_array_equal(first.quartic, 0.0)
    np.testing.assert_allclose(first.metric, network(1).first_kernel(INPUTS))


@pytest.mark.slow(after=1)
@pytest.mark.parametrize(
    ("net", "word", "power"),
    [
        (MLP("tanh", 60, 1000), "relevant", 1.0),
        (MLP("relu", 60, 1000, C_W=2.0), "relevant", 1.0),
        (MLP("tanh", 60, 1000, C_b=0.3, C_W=1.5), "marginal", 0.0),
        (MLP("tanh", 30, [10 * k**2 for k in range(1, 30)], C_b=0.3, C_W=1.5), "irrelevant", -2.0),
    ],
)
def test_the_quartic_coupling_is_relevant_at_criticality(net: MLP, word: str, power: float) -> None:
    found = relevance(net, INPUTS[:2])
    assert found["relevance"].values.tolist() == [word, word]
    np.testing.assert_allclose(found["power"], power, atol=0.12)
    assert found["coupling"].dims == ("layer", "input")


def test_bad_input() -> None:
    with pytest.raises(InputError, match="drop duplicated"):
        layer_action(network(1), INPUTS[[0, 1, 0]])
    with pytest.raises(InputError, match="input 1 is zero"):
        layer_action(MLP("tanh", 3, 20), np.array([[1.0, 0.0], [0.0, 0.0]]))
    with pytest.raises(InputError, match="neurons is 0"):
        layer_action(network(1), INPUTS, neurons=0)
    with pytest.raises(InputError, match="each once"):
        layer_action(network(1), INPUTS, samples=[0, 0])
    with pytest.raises(InputError, match="list of input numbers"):
        layer_action(network(1), INPUTS, samples=[])
    with pytest.raises(InputError, match="one input, but 3"):
        running(network(1), INPUTS)
    with pytest.raises(InputError, match="no longer positive"):
        running(network(1), INPUTS[0], neurons=[1, 10_000])
    with pytest.raises(InputError, match="at least 4 layers"):
        relevance(MLP("tanh", 3, 20), INPUTS)
    with pytest.raises(InputError, match="no fluctuations"):
        relevance(MLP("tanh", 5, 20), [[0.0]])
