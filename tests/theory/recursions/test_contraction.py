"""V contracted with matrices against the full tensor, exactly and sampled."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from foretrain.activations import activation
from foretrain.support.errors import InputError, NotEnoughMemoryError
from foretrain.theory.architecture import MLP
from foretrain.theory.flow import flow
from foretrain.theory.recursions import contraction
from foretrain.theory.recursions.contraction import exact_seconds

RNG = np.random.default_rng(3)
X = RNG.standard_normal((4, 3))
A, B = RNG.standard_normal((2, 4, 4))
UNEQUAL = MLP("tanh", depth=5, width=[12, 24, 16, 20], C_b=0.1, C_W=[1.0, 1.5, 1.2, 0.9, 1.1])


def from_the_full_tensor(net: MLP, inputs: np.ndarray, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    V = flow(net, inputs, ["V"])["V"].values
    return np.einsum("ab,labcd,cd->l", left, V, right)


@pytest.mark.slow(after=1)
@pytest.mark.parametrize(
    "net", [UNEQUAL, MLP("relu", depth=4, width=[7, 5, 9], C_W=2.0)], ids=["tanh", "relu"]
)
def test_exact_contraction_with_matrices_that_are_not_symmetric(net: MLP) -> None:
    found = flow(net, X, ["V"], contract=(A, B))["V"]
    assert found.dims == ("layer",)
    np.testing.assert_allclose(found.values, from_the_full_tensor(net, X, A, B), rtol=1e-10, atol=1e-13)
    assert not found.standard_error.values.any()


@pytest.mark.slow
def test_several_contractions_at_once() -> None:
    found = flow(UNEQUAL, X, ["K", "V"], contract=[(A, B), (A, A), (B, B)])["V"]
    assert found.dims == ("layer", "contraction")
    for number, (left, right) in enumerate([(A, B), (A, A), (B, B)]):
        np.testing.assert_allclose(
            found.values[:, number], from_the_full_tensor(UNEQUAL, X, left, right), rtol=1e-10, atol=1e-13
        )


def test_diagonal_matrices_need_two_input_expectations_only() -> None:
    weights = np.diag(RNG.standard_normal(4))
    found = flow(UNEQUAL, X, ["V"], contract=(weights, weights), draws=10)["V"]
    np.testing.assert_allclose(found.values, from_the_full_tensor(UNEQUAL, X, weights, weights), rtol=1e-9)
    assert not found.standard_error.values.any()


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("name", ["tanh", "gelu", "relu"])
def test_sampled_contraction_agrees_within_its_standard_error(name: str) -> None:
    net = UNEQUAL.replace(activation=name)
    found = flow(net, X, ["V"], contract=[(A, B), (A, A)], draws=60_000, seed=5)["V"]
    expected = np.stack([from_the_full_tensor(net, X, A, right) for right in (B, A)], axis=1)
    errors = found.standard_error.values[1:]
    assert (errors > 0).all()
    assert np.abs((found.values - expected)[1:] / errors).max() < 4
    assert (errors[:, 1] < 0.03 * expected[1:, 1]).all()


def test_the_quadratic_part_is_not_sampled() -> None:
    net = MLP("linear", depth=4, width=10, C_b=0.2)
    found = flow(net, X, ["V"], contract=(A, B), draws=1)["V"]
    np.testing.assert_allclose(found.values, from_the_full_tensor(net, X, A, B), rtol=1e-10, atol=1e-13)
    np.testing.assert_allclose(found.standard_error.values, 0.0, atol=1e-12)


def test_the_same_seed_gives_the_same_numbers() -> None:
    first, again, other = (
        flow(UNEQUAL, X, ["V"], contract=(A, B), draws=100, seed=seed)["V"].values for seed in (1, 1, 2)
    )
    assert (first == again).all()
    assert (first != other).any()


def test_many_inputs_without_the_full_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORETRAIN_MEMORY", "100MB")
    inputs = RNG.standard_normal((60, 20))
    with pytest.raises(NotEnoughMemoryError, match="contract"):
        flow(UNEQUAL, inputs, ["V"])
    uniform = np.full((60, 60), 1 / 3600)
    found = flow(UNEQUAL, inputs, ["V"], contract=(uniform, uniform), draws=4096)["V"]
    assert (found.values[1:] > 0).all()


def test_one_input() -> None:
    alone = flow(UNEQUAL, X[:1], ["V"])["V"].values.ravel()
    found = flow(UNEQUAL, X[:1], ["V"], contract=([[2.0]], [[3.0]]))["V"]
    np.testing.assert_allclose(found.values, 6 * alone, rtol=1e-14)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"contract": A}, "pair"),
        ({"contract": (A[:2], B)}, "pair"),
        ({"contract": (A, B, A)}, "pair"),
        ({"contract": (A * np.nan, B)}, "finite"),
        ({"contract": (A, B), "quadruples": [[0, 1, 2, 3]]}, "give one"),
        ({"contract": (A, B), "draws": -1}, "draws"),
    ],
)
def test_bad_contractions(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        flow(UNEQUAL, X, ["V"], **arguments)  # type: ignore[arg-type]


def test_contraction_without_the_vertex_is_an_error() -> None:
    with pytest.raises(InputError, match="add it"):
        flow(UNEQUAL, X, ["K"], contract=(A, B))


@pytest.mark.slow
def test_what_is_cheap_is_exact_whatever_the_number_of_inputs() -> None:
    """Nine inputs: closed forms of relu take a second, integrals of selu minutes."""
    inputs, left = RNG.standard_normal((9, 5)), RNG.standard_normal((9, 9))
    net = MLP("relu", depth=3, width=[7, 5], C_W=2.0)
    found = flow(net, inputs, ["V"], contract=(left, left))["V"]
    assert not found.standard_error.values.any()
    np.testing.assert_array_equal(found.values, flow(net, inputs, ["V"], contract=(left, left), draws=0)["V"])
    sampled = flow(net.replace(activation="selu"), inputs, ["V"], contract=(left, left))["V"]
    assert (sampled.standard_error.values[1:] > 0).all()


def test_the_estimate_of_the_effort() -> None:
    relu, tanh, elu = (activation(name) for name in ("relu", "tanh", "elu"))
    assert exact_seconds("V", 2, elu, 50) == 0.0  # two-input expectations only
    assert exact_seconds("V", 9, relu, 5) == pytest.approx(4 / 2 * exact_seconds("V", 9, relu, 3))
    for name in ("V", "D", "F", "A", "B"):
        assert (
            exact_seconds(name, 9, relu, 3) < exact_seconds(name, 9, tanh, 3) < exact_seconds(name, 9, elu, 3)
        )
        assert exact_seconds(name, 8, tanh, 3) < exact_seconds(name, 9, tanh, 3)
    # As many products as there are distinct ones, counted by hand.
    distinct = {tuple(sorted(q)) for q in product(range(6), repeat=4)}
    counts = [sum(len({*q}) == size for q in distinct) for size in (3, 4)]
    assert exact_seconds("V", 6, tanh, 2) == pytest.approx(counts @ np.array(contraction._SECONDS["smooth"]))
    mixed = {(tuple(sorted(q[:2])), tuple(sorted(q[2:]))) for q in product(range(6), repeat=4)}
    counts = [sum(len({*a, *b}) == size for a, b in mixed) for size in (3, 4)]
    assert exact_seconds("F", 6, tanh, 2) == pytest.approx(counts @ np.array(contraction._SECONDS["smooth"]))
