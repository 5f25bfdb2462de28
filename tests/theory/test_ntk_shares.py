"""Terms of the tangent kernel by layer and group: their sum, the source's numbers, verdicts, real networks."""

from __future__ import annotations

import numpy as np
import pytest

from foretrain.support.errors import AccuracyWarning, InputError, NotSupportedError
from foretrain.theory.architecture import MLP
from foretrain.theory.criticality import criticality
from foretrain.theory.ensembles import sample_parameters
from foretrain.theory.flow import flow
from foretrain.theory.network_tangent_kernel import layer_contributions
from foretrain.theory.ntk_shares import equivalence, gradients, shares

PAIR = np.array([[1.0, 0.5, -0.7], [0.2, -1.1, 0.9]])
UNEQUAL = {
    "depth": 4,
    "width": [36, 24, 48],
    "C_b": [0.1, 0.05, 0.2, 0.1],
    "lambda_b": [0.3, 0.2, 0.5, 0.1],
    "lambda_W": [1, 0.7, 1.2, 0.5],
}


@pytest.mark.parametrize(
    ("name", "C_W", "expected"),
    [
        ("tanh", [1, 1.5, 1.3, 1.2], [1.40256225, 0.439089051, 1.42291789]),
        ("relu", [1.5, 2, 1.8, 2], [2.76905, 0.891521358, 3.04745]),
    ],
)
def test_terms_add_up_to_the_tangent_kernel(name: str, C_W: list[float], expected: list[float]) -> None:
    mlp = MLP(name, C_W=C_W, **UNEQUAL)
    found = shares(mlp, PAIR)
    np.testing.assert_allclose(found.Theta.values[np.triu_indices(2)], expected, rtol=1e-8)
    recursion = flow(mlp, PAIR, ["Theta"])["Theta"].sel(layer=4).values
    np.testing.assert_allclose(found.contribution.sum(("layer", "group")), recursion, rtol=1e-12)
    np.testing.assert_allclose(found.share.sum(("layer", "group")), 1, rtol=1e-12)


@pytest.mark.parametrize(
    ("name", "C_W", "expected"),
    [
        ("tanh", 0.64, [1.377696343, 1.083947697, 1.396870118]),
        ("relu", 1.28, [2.18392, 1.318403390, 2.299746667]),
    ],
)
def test_skip_connections(name: str, C_W: float, expected: list[float]) -> None:
    """Test values of the reference on residual networks: skips into layers 2 to 4, so the output here is layer 5."""
    X = np.array([[1, 0.2, -0.5], [0.4, 1.1, 0.3]])
    mlp = MLP(name, 5, 50, C_b=0.05, C_W=C_W, gamma=0.6, lambda_b=0.3, lambda_W=0.7)
    recursion = flow(mlp, X, ["Theta"])["Theta"]
    np.testing.assert_allclose(recursion.sel(layer=4).values[np.triu_indices(2)], expected, rtol=1e-8)
    found = shares(mlp, X)
    np.testing.assert_allclose(found.Theta, recursion.sel(layer=5), rtol=1e-12)
    one = shares(mlp, X[:1])
    np.testing.assert_allclose(one.contribution[..., 0, 0], found.contribution[..., 0, 0], rtol=1e-10)


def test_shares_of_deep_tanh_at_the_recommended_rates() -> None:
    """L times the terms at L = 200 with (9.96): the reference's table."""
    L = 200
    mlp = MLP("tanh", L, 50, lambda_b=[1 / layer for layer in range(1, L + 1)])
    terms = L * shares(mlp, [[1.0]]).contribution.sel(layer=[1, 10, 50, 100, 200]).values[..., 0, 0]
    np.testing.assert_allclose(terms[:, 0], [0.714, 0.904, 0.977, 0.991, 1.0], atol=6e-4)
    np.testing.assert_allclose(terms[:, 1], [0.714, 0.524, 0.509, 0.508, 0.507], atol=6e-4)


def test_scale_invariant_layers_share_equally() -> None:
    found = shares(MLP("relu", 6, 20, C_W=2.0, lambda_b=0.4, lambda_W=1.3), [[1.0, 2.0]])
    np.testing.assert_allclose(found.contribution.sel(group="bias").values.ravel(), 0.4)
    np.testing.assert_allclose(found.contribution.sel(group="weight").values.ravel(), 1.3 * 2.5)


def test_verdicts() -> None:
    fair = equivalence(MLP.critical("tanh", depth=200, width=50), [[1.0], [0.3]])
    assert fair.holds
    assert "same order" in repr(fair)
    uniform = equivalence(MLP("tanh", depth=200, width=50), [[1.0]])
    assert not uniform.holds
    assert uniform.bias.exponent == pytest.approx(1.0, abs=0.1)  # p_perp = 1
    assert uniform.weight.is_fair
    assert uniform.bias.dominant[0] == 200
    assert "biases leave" in uniform.sentence
    exploding = equivalence(MLP("relu", 50, 50, C_W=2.3), [[1.0]])
    assert exploding.bias.is_exponential
    assert exploding.bias.rate == pytest.approx(-np.log(1.15), rel=1e-6)
    assert exploding.bias.dominant[0] == 1
    assert exploding.weight.spread == pytest.approx(1.0)  # the shrinking growth and growing signals cancel


def test_dominant_layers_hold_half() -> None:
    found = equivalence(MLP("linear", 4, 9, lambda_b=[1, 5, 2, 3], lambda_W=0.0), [[1.0]])
    assert found.bias.dominant == (2, 4)
    assert found.bias.spread == pytest.approx(5)
    assert found.weight.total == 0
    assert found.weight.dominant == ()


def test_gradient_factors() -> None:
    found = gradients(MLP("relu", 30, 50, C_W=2.4), [[1.0, 1.0]])
    np.testing.assert_allclose(found.chain.values[:, 0], 1.2 ** np.arange(29, -1, -1))
    np.testing.assert_allclose(found.signal.values[1:, 0], 1.2 ** np.arange(1, 30))
    assert "explode" in found.attrs["verdict"]
    assert "error factors grow" in found.attrs["verdict"]
    small = gradients(MLP("tanh", 40, 50, C_W=0.7), [[1.0, 1.0]])
    assert "vanish" in small.attrs["verdict"]
    assert "starve" in small.attrs["verdict"]
    for name in ("tanh", "relu", "gelu"):
        fine = gradients(MLP.critical(name, 100, 50), [[2.0, 1.0]])
        assert fine.attrs["verdict"].startswith("neither")
    chaotic = gradients(MLP("tanh", 60, 50, C_W=2.0), [[1.0]])
    assert chaotic.attrs["verdict"].startswith("gradients of early layers explode")
    assert "signals" not in chaotic.attrs["verdict"]


def test_bad_input() -> None:
    with pytest.raises(NotSupportedError, match="jumps"):
        shares(MLP(np.sign, 3, 5), PAIR)
    with pytest.raises(InputError, match="zero or not finite"):
        shares(MLP("tanh", 3, 5, lambda_b=0.0, lambda_W=0.0), [[1.0]])
    with pytest.raises(InputError, match="give an MLP"):
        shares(None, [[1.0]])
    with pytest.raises(InputError, match="zero or not finite"):
        equivalence(MLP("tanh", 3, 5, lambda_b=0.0, lambda_W=0.0), [[1.0]])


@pytest.mark.statistical
@pytest.mark.parametrize(("name", "gamma"), [("tanh", None), ("relu", None), ("tanh", 0.5)])
def test_random_networks_share_alike(name: str, gamma: float | None) -> None:
    """Mean terms of real networks, extrapolated to infinite width from two widths, are those of (9.28)."""
    C_W, means, variances = 0.9 * criticality(name).C_W, [], []
    for width, draws in ((40, 1500), (80, 1500)):
        mlp = MLP(name, 5, width, n_in=3, n_out=1, C_b=0.1, C_W=C_W, gamma=gamma, lambda_b=0.7, lambda_W=1.1)
        parts = layer_contributions(sample_parameters(mlp, draws, seed=width), PAIR)[:, :, :, 0, 0]
        means.append(parts.mean(axis=0))
        variances.append(parts.var(axis=0) / draws)
    expected = shares(mlp, PAIR).contribution.values
    np.testing.assert_allclose(means[1][-1, 0], expected[-1, 0], rtol=1e-12)  # biases of the output: lambda_b
    error = np.sqrt(4 * variances[1] + variances[0])
    # What a straight line in 1/n leaves out is of order (L / n)^2.
    assert (
        np.abs(2 * means[1] - means[0] - expected) < 4.2 * error + 0.3 * (5 / 80) ** 2 * expected.max()
    ).all()


def test_weights_without_a_signal_are_starved() -> None:
    found = equivalence(MLP("tanh", 3, 5), [[0.0, 0.0]])
    assert not found.holds
    assert found.weight.starved == (1, 2, 3)
    assert found.bias.is_fair
    assert "layers 1 to 3" in found.sentence
    assert "leave out" in found.sentence
    assert equivalence(MLP("tanh", 3, 5, lambda_W=0.0), [[0.0, 0.0]]).holds  # left out on purpose
    first = equivalence(MLP("tanh", 3, 5, C_b=0.5), [[0.0, 0.0]])
    assert first.weight.starved == (1,)
    assert "layer 1" in first.sentence


def test_a_zero_input_does_not_hide_what_explodes() -> None:
    verdict = gradients(MLP("linear", 30, 50, C_W=1.2), [[1.0, 1.0], [0.0, 0.0]]).attrs["verdict"]
    assert verdict == gradients(MLP("linear", 30, 50, C_W=1.2), [[1.0, 1.0]]).attrs["verdict"]
    assert "error factors grow" in verdict


def test_inputs_at_a_kink_are_warned_of() -> None:
    net, points = MLP("relu", 3, 5, C_W=2.0), [[1.0, 1.0], [0.0, 0.0]]
    for function in (shares, equivalence, gradients):
        with pytest.warns(AccuracyWarning, match="input 1 .*relu"):
            function(net, points)
