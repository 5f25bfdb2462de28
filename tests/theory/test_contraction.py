"""V contracted with matrices against the full tensor, exactly and sampled."""

from __future__ import annotations

import numpy as np
import pytest

from foretrain.support.errors import InputError, NotEnoughMemoryError
from foretrain.theory.architecture import MLP
from foretrain.theory.flow import flow

RNG = np.random.default_rng(3)
X = RNG.standard_normal((4, 3))
A, B = RNG.standard_normal((2, 4, 4))
UNEQUAL = MLP("tanh", depth=5, width=[12, 24, 16, 20], C_b=0.1, C_W=[1.0, 1.5, 1.2, 0.9, 1.1])


def from_the_full_tensor(net: MLP, inputs: np.ndarray, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    V = flow(net, inputs, ["V"])["V"].values
    return np.einsum("ab,labcd,cd->l", left, V, right)


@pytest.mark.parametrize(
    "net", [UNEQUAL, MLP("relu", depth=4, width=[7, 5, 9], C_W=2.0)], ids=["tanh", "relu"]
)
def test_exact_contraction_with_matrices_that_are_not_symmetric(net: MLP) -> None:
    found = flow(net, X, ["V"], contract=(A, B))["V"]
    assert found.dims == ("layer",)
    np.testing.assert_allclose(found.values, from_the_full_tensor(net, X, A, B), rtol=1e-10, atol=1e-13)
    assert not found.standard_error.values.any()


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
