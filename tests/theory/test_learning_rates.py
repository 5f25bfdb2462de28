"""Learning rates by class, balanced ones by inputs, and the networks that use them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from foretrain.support.errors import InputError, NotSupportedError
from foretrain.theory.architecture import MLP
from foretrain.theory.criticality import criticality
from foretrain.theory.flow import flow
from foretrain.theory.learning_rates import balanced_rates, class_rates, recommended
from foretrain.theory.ntk_shares import equivalence, shares


def last(mlp: MLP, *names: str) -> list[float]:
    found = flow(mlp, [[1.0]], names)
    return [float(found[name].values[-1].ravel()[0]) for name in names]


def test_recommended_rates_at_depth_twenty() -> None:
    """The reference's values at L = 20 with overall rates one."""
    tanh = recommended(MLP("tanh", 20, 50)).on(MLP("tanh", 20, 50))
    expected = [1.51120609, -0.107426536, 0.180675831, 2.35193628, 14.0559248]
    np.testing.assert_allclose(last(tanh, "Theta", "D", "F", "A", "B"), expected, rtol=1e-8)
    relu = MLP.critical("relu", 20, 50)
    np.testing.assert_allclose(last(relu, "Theta", "V", "D", "F", "A", "B"), [2, 380, 133, 76, 68.875, 49.4])


def test_laws_of_the_classes() -> None:
    layers = np.arange(1.0, 31)
    for name in ("tanh", "sin", "erf"):
        rates = recommended(criticality(name), depth=30, lambda_b=2.0, lambda_W=3.0)
        np.testing.assert_allclose(rates.lambda_b, 2 / layers, rtol=1e-9)
        np.testing.assert_allclose(rates.lambda_W, 3.0, rtol=1e-9)
    rates = recommended(criticality("leaky_relu"), depth=30, lambda_b=2.0, lambda_W=3.0)
    np.testing.assert_allclose(rates.lambda_b, 2 / 30)
    np.testing.assert_allclose(rates.lambda_W, 3 / 30)
    assert "(9.94)" in repr(rates)


@pytest.mark.slow(after=2)
@pytest.mark.parametrize("gamma", [None, 0.5])
@pytest.mark.parametrize("name", ["gelu", "swish"])
def test_half_stable_rates_at_the_fixed_point(name: str, gamma: float | None) -> None:
    """A signal at K* has equal terms, lambda / L each."""
    mlp = MLP.critical(name, 12, 8, gamma=gamma, lambda_b=0.6, lambda_W=1.7)
    x = np.sqrt((criticality(name).K_star - mlp.C_b[0]) / mlp.C_W[0])
    found = shares(mlp, [[x]])
    np.testing.assert_allclose(found.contribution.sel(group="bias").values.ravel(), 0.6 / 12, rtol=1e-4)
    np.testing.assert_allclose(found.contribution.sel(group="weight").values.ravel(), 1.7 / 12, rtol=1e-4)
    with_skip = criticality(name, gamma or 0.0)
    np.testing.assert_allclose(class_rates(with_skip, 12, 0.6, 1.7).lambda_W, mlp.lambda_W, rtol=1e-8)


def test_half_stable_networks_are_balanced_for_inputs_that_suit() -> None:
    """On the attracting side exactly; inputs on the other side do not count."""
    found = criticality("gelu")
    x = np.sqrt((found.K_star * np.array([1.3, 2.0]) - found.C_b) / found.C_W)[:, None]
    mlp = MLP.critical("gelu", 20, 8, X=x)
    terms = shares(mlp, x).contribution.values
    mean = np.einsum("lgaa->lg", terms) / 2
    np.testing.assert_allclose(mean, 1 / 20, rtol=1e-9)
    with pytest.warns(UserWarning, match="1 of 3 inputs"):
        mixed = MLP.critical("gelu", 20, 8, X=np.concatenate([x, [[0.5]]]))
    np.testing.assert_allclose(mixed.lambda_W, mlp.lambda_W)
    with pytest.warns(UserWarning, match="1 of 1 inputs"):
        lost = MLP.critical("gelu", 20, 8, X=[[0.5]])
    np.testing.assert_allclose(lost.lambda_W, MLP.critical("gelu", 20, 8).lambda_W)


@pytest.mark.slow(after=2)
@pytest.mark.parametrize(
    "mlp",
    [
        MLP("tanh", 15, 8, C_b=0.2, C_W=1.7),
        MLP("relu", 15, 8, C_b=0.1, C_W=1.5),
        MLP("swish", 15, 8, C_W=2.0, gamma=0.5),
    ],
)
def test_any_network_can_be_balanced(mlp: MLP) -> None:
    X = np.array([[1.0, 0.3], [-0.4, 2.0], [0.1, 0.2]])
    balanced = recommended(mlp, X, lambda_b=0.4, lambda_W=0.9).on(mlp)
    terms = np.einsum("lgaa->lg", shares(balanced, X).contribution.values) / 3
    np.testing.assert_allclose(terms[:, 0], 0.4 / 15, rtol=1e-9)
    np.testing.assert_allclose(terms[:, 1], 0.9 / 15, rtol=1e-9)
    Theta = flow(balanced, X, ["Theta"])["Theta"].sel(layer=15).values
    assert np.trace(Theta) / 3 == pytest.approx(1.3)
    assert equivalence(balanced, X).holds
    assert not equivalence(mlp, X).holds


def test_wanted_orders() -> None:
    mlp = MLP("tanh", 4, 8, C_W=1.3)
    rates = balanced_rates(mlp, [[1.0]], 2.0, 1.0, wanted=[1, 2, 3, 4])
    terms = shares(rates.on(mlp), [[1.0]]).contribution.values[..., 0, 0]
    np.testing.assert_allclose(terms[:, 0], 2 * np.array([0.1, 0.2, 0.3, 0.4]))
    np.testing.assert_allclose(terms[:, 1], np.array([0.1, 0.2, 0.3, 0.4]))
    with pytest.raises(InputError, match="wanted must list 4"):
        balanced_rates(mlp, [[1.0]], wanted=[1, 2])


def test_the_law_tends_to_balance_with_depth() -> None:
    """(9.96) against the exact numbers: biases to 1 / L each at large l, within log l / l."""
    mlp = MLP("tanh", 400, 8)
    law, exact = recommended(mlp), recommended(mlp, [[1.0]], lambda_W=0.5)
    ratio = law.lambda_b / exact.lambda_b
    assert ratio[-1] == pytest.approx(1.0)
    assert abs(ratio[200] - 1) < abs(ratio[20] - 1) < abs(ratio[0] - 1)
    assert law.lambda_W[-1] / exact.lambda_W[-1] == pytest.approx(1.0, abs=0.02)


def test_layers_that_no_power_balances_are_refused() -> None:
    """An even part with a_1 = 0: chi_perp = 1 + b_1 K with K ~ depth^(-1/2)."""
    found = criticality("tanh")
    assert found.point is not None
    outgrowing = replace(found.point, exponents={**found.exponents, "p_perpendicular": -np.inf})
    with pytest.raises(NotSupportedError, match="no power of depth"):
        class_rates(replace(found, point=outgrowing), 5)


def test_bad_input() -> None:
    with pytest.raises(InputError, match="not critical"):
        recommended(MLP("tanh", 4, 8, C_W=1.1))
    with pytest.raises(InputError, match="not critical"):
        recommended(MLP("tanh", 4, 8, C_b=0.01))
    with pytest.raises(InputError, match="not critical"):
        recommended(MLP("sigmoid", 4, 8))
    assert recommended(MLP.critical("tanh", 4, 8, tuned=True)).lambda_b[3] == pytest.approx(0.25)
    with pytest.raises(InputError, match="give depth="):
        recommended(criticality("tanh"))
    with pytest.raises(InputError, match="leave depth out"):
        recommended(MLP("tanh", 4, 8), depth=5)
    with pytest.raises(InputError, match="lambda_b is -1"):
        recommended(MLP("tanh", 4, 8), lambda_b=-1.0)
    with pytest.raises(NotSupportedError, match="no critical initialisation"):
        class_rates(criticality("sigmoid"), 4)
    with pytest.raises(InputError, match="weights of layer 1"):
        balanced_rates(MLP("tanh", 4, 8), [[0.0]])
