"""All tensors of a flow share their integrals: the same numbers as one at a time, whole or on quadruples."""

from __future__ import annotations

import numpy as np
import pytest

from foretrain.gaussian import expectation, factor
from foretrain.theory.architecture import MLP
from foretrain.theory.flow import flow
from foretrain.theory.recursions.expectations import PairExpectations, Step
from foretrain.theory.recursions.tensors import QuadrupleTensors

X = np.random.default_rng(0).standard_normal((4, 6))
NAMES = ("V", "D", "F", "A", "B")
NETS = {
    "tanh": MLP("tanh", depth=4, width=30, C_b=0.1, C_W=1.4, lambda_b=0.5, lambda_W=1.2),
    "gelu": MLP("gelu", depth=3, width=30, C_W=1.8),
    "relu": MLP("relu", depth=4, width=30, C_W=2.0),
}


@pytest.mark.slow
@pytest.mark.parametrize("net", NETS.values(), ids=list(NETS))
def test_together_or_alone(net: MLP) -> None:
    together = flow(net, X, NAMES)
    for name in NAMES:
        alone = flow(net, X, [name])[name].values
        size = np.abs(alone).max()
        assert np.abs(together[name].values - alone).max() <= 3e-10 * size


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("net", NETS.values(), ids=list(NETS))
@pytest.mark.parametrize("names", [("V",), ("D",), ("F",), ("B",), NAMES])
def test_quadruples_are_entries_of_the_whole(net: MLP, names: tuple[str, ...]) -> None:
    quadruples = np.array(
        [[0, 1, 2, 3], [3, 1, 0, 2], [0, 0, 1, 2], [1, 2, 1, 2], [2, 2, 3, 3], [1, 1, 1, 1]]
    )
    whole, chosen = flow(net, X, names), flow(net, X, names, quadruples=quadruples)
    for name in names:
        entries = whole[name].values[:, *quadruples.T]
        assert chosen[name].values == pytest.approx(entries, abs=3e-10 * np.abs(entries).max())


def test_quadruples_carry_what_is_asked_for() -> None:
    quadruples = np.array([[0, 1, 2, 3]])
    assert QuadrupleTensors(quadruples, ["V"]).now().keys() == {"V"}
    assert QuadrupleTensors(quadruples, ["F", "B"]).now().keys() == {"F", "B"}
    assert QuadrupleTensors(quadruples, ["D"]).now().keys() == {"V", "D"}
    assert QuadrupleTensors(quadruples, ["A"]).now().keys() == {"V", "D", "A"}


def test_the_vertex_on_quadruples_does_not_feel_the_tangent_kernel() -> None:
    layer = PairExpectations(NETS["tanh"].activation, X @ X.T / 6)
    tensors = QuadrupleTensors(np.array([[0, 1, 2, 3]]), ["V"])
    tensors.step(layer, Step(1.3, lambda_W=np.nan))
    K = layer.K
    four = float(expectation(["tanh"] * 4, K, tolerance=1e-10))
    two = [float(expectation(["tanh"] * 2, K[i : i + 2, i : i + 2])) for i in (0, 2)]
    assert tensors.now()["V"][0] == pytest.approx(1.3**2 * (four - two[0] * two[1]), abs=1e-10)


@pytest.mark.parametrize("tolerance", [1e-4, 1e-10])
def test_products_of_four_heed_the_tolerance(tolerance: float) -> None:
    """Entries on distinct inputs against a much tighter integral."""
    layer = PairExpectations(NETS["tanh"].activation, X @ X.T / 6, tolerance)
    layer.find_together(fourfold=[(0, 0), (0, 1), (1, 1)])
    pairs = layer.response.pairs
    at = pairs.number[0, 1], pairs.number[2, 3]
    for orders in ((0, 0), (0, 1), (1, 1)):
        f = [factor("tanh", orders[k]) for k in (0, 0, 1, 1)]
        true = float(expectation(f, layer.K, tolerance=1e-12))
        assert abs(layer.fourfold(*orders)[at] - true) <= tolerance
        assert layer.fourfold(*orders[::-1])[at[::-1]] == layer.fourfold(*orders)[at]
