"""V, D and A are one recursion: the same entries come out on every closed set of pairs."""

from __future__ import annotations

import numpy as np
import pytest

import foretrain as ft
from foretrain.theory.flow import flow, layers
from foretrain.theory.recursions.expectations import PairExpectations, Step, next_kernel, next_tangent_kernel
from foretrain.theory.recursions.pairs import JointCovariance, Pairs, Side, quadruples_between

X = np.random.default_rng(3).standard_normal((4, 5))
NET = ft.MLP("erf", depth=4, width=[9, 7, 8], n_in=5, C_b=0.1, C_W=1.3, lambda_W=0.6)


def carry(joint: JointCovariance, tangents: slice) -> JointCovariance:
    """To the last layer, covariances from full tables of four inputs."""
    K, Theta = NET.first_kernel(X), layers.first_tangent_kernel(NET, X)
    left, right = joint.pairs
    for index, layer in enumerate(NET.layers[1:], start=1):
        old = PairExpectations(NET.activation, K, Theta=Theta)

        def covariance(i: int, j: int, old: PairExpectations = old) -> np.ndarray:
            a, b, c, d = np.moveaxis(quadruples_between(left, right), -1, 0)
            whole = old.pairs.tensor(old.covariance(i, j))[a, b, c, d]
            return whole[..., tangents if i else slice(None), :][..., tangents if j else slice(None)]

        joint.step(old, Step.into(NET, index), covariance)
        K, Theta = next_kernel(old, layer), next_tangent_kernel(old, Theta, layer)
    return joint


@pytest.mark.parametrize("names", ["V", "VD", "VDA"])
def test_every_closed_set_has_the_entries_of_the_full_tensors(names: str) -> None:
    full = {name: tensor[-1].values for name, tensor in flow(NET, X, list(names)).items()}
    rows = Pairs.closure(4, np.array([2, 0]), np.array([1, 3]))
    columns = Pairs.closure(4, np.array([1]), np.array([0]))
    a, b = np.array([[0, 1, 2], [3, 1, 0]])
    c, d = np.array([[2, 1, 3], [3, 0, 3]])
    for left, right, tangents in (
        (rows, columns, slice(None)),
        (Pairs.inside(4, a, b), Pairs.inside(4, c, d), slice(1, 2)),
    ):
        found = carry(JointCovariance(left, right, names, tangents), tangents).now()
        assert [*found] == [*names]
        i, j, k, m = np.moveaxis(quadruples_between(left, right), -1, 0)
        for name, block in found.items():
            expected = full[name][i, j, k, m]
            expected = expected[..., tangents, :] if name == "A" else expected
            expected = expected if name == "V" else expected[..., tangents]
            np.testing.assert_allclose(block, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("tangents", [slice(0, 0), slice(None)])
def test_pulling_back_is_the_transpose_of_the_step(tangents: slice) -> None:
    K, Theta = NET.first_kernel(X), layers.first_tangent_kernel(NET, X)
    layer = PairExpectations(NET.activation, K, Theta=Theta)
    side = Side(layer, Step.into(NET, 2), layer.pairs, tangents)
    size = len(layer.pairs) * (1 if tangents == slice(0, 0) else 2)
    v, forms = np.random.default_rng(0).standard_normal((2, 3, size))
    np.testing.assert_allclose((side @ v.T).T @ forms.T, v @ side.pull_back(forms).T, rtol=1e-12)
    weighed = np.concatenate([*side.weigh_back(forms).values()], axis=1)
    np.testing.assert_allclose(side.weigh(v.T).T @ forms.T, v @ weighed.T, rtol=1e-12)


def test_the_vertex_needs_no_tangent_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("nothing asked for Theta")

    monkeypatch.setattr(layers, "first_tangent_kernel", refuse)
    monkeypatch.setattr(layers, "next_tangent_kernel", refuse)
    assert [*flow(NET, X, ["V", "G1", "K"])] == ["V", "G1", "K"]
    assert flow(NET, X[:1], ["V"])["V"].shape == (4, 1, 1, 1, 1)
    with pytest.raises(AssertionError, match="Theta"):
        flow(NET, X, ["D"])
