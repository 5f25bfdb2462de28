"""ft.flow: K, V, G1 against the reference's numbers, exact solutions and single-input limits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foretrain.support.errors import InputError, NotEnoughMemoryError, NotSupportedError
from foretrain.theory.architecture import MLP
from foretrain.theory.flow import flow

TWO_INPUTS = np.array([[1.0, -0.5, 0.8], [0.3, 1.1, -0.4]])
FOUR_INPUTS = np.array([[1, 0.4, 0.1, -0.2], [0.4, 0.8, 0.3, 0], [0.1, 0.3, 1.2, 0.5], [-0.2, 0, 0.5, 0.9]])


def inputs_with_gram(gram: np.ndarray) -> np.ndarray:
    """Inputs X with X X^T / n_0 equal to the given matrix."""
    return np.linalg.cholesky(gram) * np.sqrt(len(gram))


def test_single_input_table_of_the_reference() -> None:
    deep = flow(MLP("tanh", depth=100, width=10), [[1.0]], ["K", "V", "G1"])
    at = {name: deep[name].values.ravel() for name in deep}
    for layer, K, V, G1 in (
        (2, 0.3942944904, 0.09752373809, 0.0),
        (3, 0.2364504105, 0.06780749389, -0.03093251987),
        (10, 0.05801184784, 0.01858872759, -0.1071337503),
        (100, 0.005120715666, 0.001699271767, -0.1586884396),
    ):
        np.testing.assert_allclose(
            [at["K"][layer - 1], at["V"][layer - 1], at["G1"][layer - 1]], [K, V, G1], rtol=1e-9
        )


@pytest.mark.parametrize(
    ("name", "C_b", "C_W", "K1", "layer", "expected"),
    [
        ("sin", 0.0, 1.0, 0.8, 10, (0.09076343373, 0.04946127058, -0.1941528294)),
        ("gelu", 0.17292239, 1.98305826, 3.0, 10, (3.000034344, 395.3404769, 0.7218740261)),
        ("swish", 0.55514317, 1.98800468, 10.0, 10, (10.01276345, 4358.585065, 6.197903291)),
        ("relu", 0.1, 1.8, 1.0, 10, (1.0, 18.11640383, 0.0)),
        ("sin", 0.0, 1.0, 0.8, 100, (0.009826729335, 0.006403640968, -0.3130031875)),
        ("gelu", 0.17292239, 1.98305826, 3.0, 3, (3.000007635, 87.92913371, 0.02007067941)),
    ],
)
def test_single_input_other_activations(
    name: str, C_b: float, C_W: float, K1: float, layer: int, expected: tuple[float, ...]
) -> None:
    x = np.sqrt((K1 - C_b) / C_W)
    deep = flow(MLP(name, depth=layer, width=10, C_b=C_b, C_W=C_W), [[x]], ["K", "V", "G1"])
    found = [float(deep[key].values.ravel()[-1]) for key in ("K", "V", "G1")]
    np.testing.assert_allclose(found, expected, rtol=2e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "K1", "layer", "expected"),
    [
        ("tanh", 1.0, 2, 0.2628629936),
        ("tanh", 1.0, 5, 0.1635633984),
        ("tanh", 1.0, 100, 0.01170978203),
        ("sin", 0.8, 10, 0.1361007978),
        ("sin", 0.8, 100, 0.02029503989),
    ],
)
def test_tuned_metric_correction(name: str, K1: float, layer: int, expected: float) -> None:
    deep = flow(MLP(name, depth=layer, width=10), [[np.sqrt(K1)]], ["G1"], C_W_1=2 / 3)
    assert float(deep["G1"].values.ravel()[-1]) == pytest.approx(expected, rel=1e-9)


@pytest.mark.slow
def test_a_function_that_is_not_odd() -> None:
    net = MLP(lambda z: np.tanh(z) + 0.3 * np.tanh(z) ** 2, depth=10, width=10, C_b=0.05, C_W=1.2)
    deep = flow(net, [[np.sqrt(0.95 / 1.2)]], ["K", "V", "G1"])
    found = [float(deep[key].values.ravel()[-1]) for key in ("K", "V", "G1")]
    np.testing.assert_allclose(found, (0.2913838429, 0.1312527922, -0.1677480332), rtol=1e-8)


def test_two_inputs_with_unequal_widths() -> None:
    net = MLP("tanh", depth=4, width=[12, 24, 16], n_out=20, C_b=0.15, C_W=1.6)
    deep = flow(net, TWO_INPUTS, ["K", "V", "G1"])
    V = deep["V"].sel(layer=4).values
    found = [V[0, 0, 0, 0], V[0, 0, 0, 1], V[0, 0, 1, 1], V[0, 1, 0, 1], V[0, 1, 1, 1], V[1, 1, 1, 1]]
    expected = [0.241676967, 0.060078939, 0.011715278, 0.515264791, 0.059395289, 0.238660205]
    np.testing.assert_allclose(found, expected, atol=1e-9)
    np.testing.assert_allclose(
        deep["G1"].sel(layer=4).values, [[-0.069433866, 0.064207879], [0.064207879, -0.072124273]], atol=1e-9
    )


def test_relu_keeps_the_delta_functions() -> None:
    net = MLP("relu", depth=4, width=[20, 30, 25], C_W=2.0)
    X = inputs_with_gram(np.array([[1, 0.4], [0.4, 0.7]]) / 2.0)
    deep = flow(net, X, ["K", "V", "G1"])
    assert deep["K"].values[3, 0, 1] == pytest.approx(0.611242208, abs=1e-9)
    assert deep["G1"].values[3, 0, 1] == pytest.approx(-0.2686461072, abs=1e-9)
    V = deep["V"].values[3]
    assert V[0, 1, 0, 1] == pytest.approx(5.941037737, abs=1e-8)
    assert deep["G1"].values[3, 0, 0] == pytest.approx(0.0, abs=1e-12)


def test_quadruples_are_entries_of_the_full_tensor() -> None:
    net = MLP("sin", depth=3, width=10)
    X = inputs_with_gram(FOUR_INPUTS)
    chosen = [[0, 1, 2, 3], [0, 0, 1, 2], [3, 1, 1, 3]]
    full = flow(net, X, ["V"])["V"]
    only = flow(net, X, ["V"], quadruples=chosen)["V"]
    for number, (a, b, c, d) in enumerate(chosen):
        np.testing.assert_allclose(only.isel(quadruple=number).values, full.values[:, a, b, c, d], atol=1e-12)
    np.testing.assert_allclose(
        only.isel(quadruple=0).values[1:], [-0.009609530372, -0.007779802946], atol=1e-11
    )


def test_deep_linear_vertex_is_the_exact_one() -> None:
    net = MLP("linear", depth=6, width=50, C_W=1.0)
    X = inputs_with_gram(FOUR_INPUTS)
    V = flow(net, X, ["V"])["V"].values[5]
    K = FOUR_INPUTS
    expected = 5 * (np.einsum("ac,bd->abcd", K, K) + np.einsum("ad,bc->abcd", K, K))
    np.testing.assert_allclose(V, expected, atol=1e-11)


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("name", ["tanh", "relu"])
def test_copies_of_an_input_behave_like_one(name: str) -> None:
    net = MLP(name, depth=4, width=[8, 12, 9], C_b=0.1, C_W=1.5)
    x = np.array([[0.7, -1.2, 0.4]])
    both = flow(net, np.concatenate([x, x]), ["K", "V", "G1"])
    alone = flow(net, x, ["K", "V", "G1"])
    for key in ("K", "V", "G1"):
        doubled = both[key].values.reshape(4, -1)
        np.testing.assert_allclose(
            doubled, np.broadcast_to(alone[key].values.reshape(4, 1), doubled.shape), rtol=1e-9, atol=1e-12
        )


@pytest.mark.slow
@settings(max_examples=8, deadline=None)
@given(st.integers(0, 2**31 - 1))
def test_permuting_inputs_permutes_the_vertex(seed: int) -> None:
    rng = np.random.default_rng(seed)
    X, order = rng.standard_normal((3, 4)), rng.permutation(3)
    net = MLP("erf", depth=3, width=10, C_b=0.1, C_W=1.3)
    V = flow(net, X, ["V"])["V"].values
    permuted = flow(net, X[order], ["V"])["V"].values
    np.testing.assert_allclose(permuted, V[np.ix_(range(3), order, order, order, order)], atol=1e-9)
    pairs = V[2].reshape(9, 9)
    assert np.linalg.eigvalsh(pairs).min() > -1e-9


@pytest.mark.slow
def test_depth_of_a_hundred_thousand_follows_the_asymptotic_law() -> None:
    deep = flow(MLP("tanh", depth=100_000, width=10), [[1.0]], ["K", "V", "G1"])
    last = {name: float(deep[name].values.ravel()[-1]) for name in deep}
    assert last["K"] * 100_000 == pytest.approx(0.5, rel=1e-3)
    assert last["V"] / last["K"] ** 2 / 100_000 == pytest.approx(2 / 3, rel=1e-3)
    assert last["G1"] == pytest.approx(-1 / 6, rel=1e-3)


def test_residual_kernel_of_a_linear_network() -> None:
    net = MLP("linear", depth=6, width=10, C_W=[1.0, 0.75, 0.75, 0.75, 0.75, 1.0], gamma=0.5)
    np.testing.assert_allclose(flow(net, [[1.0], [0.5]])["K"].values[:, 0, 1], 0.5, atol=1e-14)


def test_result_says_what_it_is() -> None:
    deep = flow(MLP("tanh", depth=3, width=10), TWO_INPUTS, ["K", "V"])
    assert "V/(nK²)" in repr(deep)
    assert "four-point vertex" in deep["V"].attrs["meaning"]
    assert deep["V"].dims == ("layer", "input_1", "input_2", "input_3", "input_4")
    assert list(deep["K"].layer) == [1, 2, 3]
    assert {"K", "V"} <= set(deep.to_dataset())


def test_bad_input() -> None:
    net = MLP("tanh", depth=3, width=10)
    with pytest.raises(InputError, match="unknown observable 'W'"):
        flow(net, TWO_INPUTS, ["W"])
    with pytest.raises(InputError, match="shape"):
        flow(net, TWO_INPUTS, ["V"], quadruples=[[0, 1]])
    with pytest.raises(InputError, match="there are 2"):
        flow(net, TWO_INPUTS, ["V"], quadruples=[[0, 1, 2, 0]])
    with pytest.raises(NotSupportedError, match="skip connections"):
        flow(MLP("tanh", depth=4, width=10, gamma=0.5), TWO_INPUTS, ["G1"])
    with pytest.raises(InputError, match="C_b_1"):
        flow(net, TWO_INPUTS, ["G1"], C_b_1=[1.0, 2.0])
    with pytest.raises(InputError, match="method"):
        flow(net, TWO_INPUTS, ["V"], method="printed")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="tolerance"):
        flow(net, TWO_INPUTS, tolerance=0.0)
    with pytest.raises(InputError, match="observable"):
        flow(net, TWO_INPUTS, [])


def test_a_tensor_that_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORETRAIN_MEMORY", "1MB")
    with pytest.raises(NotEnoughMemoryError, match="quadruples"):
        flow(MLP("tanh", depth=3, width=10), np.ones((40, 3)), ["V"])


def test_quadruples_need_only_the_inputs_they_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORETRAIN_MEMORY", "50MB")
    X = np.random.default_rng(0).standard_normal((20_000, 3))
    net = MLP("erf", depth=3, width=10, C_W=1.3)
    found = flow(net, X, ["V"], quadruples=[[7, 19_999, 12, 7]])["V"]
    alone = flow(net, X[[7, 19_999, 12]], ["V"])["V"].values[:, 0, 1, 2, 0]
    np.testing.assert_allclose(found.values[:, 0], alone, atol=1e-12)
    assert [int(found[f"leg_{i}"][0]) for i in (1, 2, 3, 4)] == [7, 19_999, 12, 7]
    with pytest.raises(NotEnoughMemoryError, match="fewer inputs or layers"):
        flow(net, X, ["K"])


def test_kernels_that_explode_or_vanish_say_so() -> None:
    with pytest.raises(InputError, match=r"exceeds 1e\+30 at layer"):
        flow(MLP("relu", depth=60, width=9, C_W=9.0), TWO_INPUTS)
    with pytest.raises(InputError, match="below 1e-60"):
        flow(MLP("relu", depth=60, width=9, C_W=0.1), TWO_INPUTS, ["V"])
    assert flow(MLP("relu", depth=60, width=9, C_W=0.1), TWO_INPUTS)["K"].values[-1, 0, 1] > 0


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("name", ["tanh", "relu", "gelu", "swish", "elu"])
def test_an_input_among_others_is_the_single_input_recursion(name: str) -> None:
    X = np.random.default_rng(3).standard_normal((3, 4))
    net = MLP(name, depth=6, width=[12, 24, 16, 20, 9], C_b=0.1, C_W=[1.0, 1.5, 1.2, 1.4, 1.3, 1.1])
    many, one = flow(net, X, ["K", "V", "G1"]), flow(net, X[:1], ["K", "V", "G1"])
    for key in many:
        np.testing.assert_allclose(
            many[key].values.reshape(6, -1)[:, 0], one[key].values.ravel(), rtol=1e-12, atol=1e-13
        )


def test_deep_linear_metric_has_no_correction() -> None:
    X = np.random.default_rng(4).standard_normal((3, 4))
    net = MLP("linear", depth=6, width=[12, 24, 16, 20, 9], C_b=0.2, C_W=1.1)
    np.testing.assert_allclose(flow(net, X, ["G1"])["G1"].values, 0.0, atol=1e-13)
