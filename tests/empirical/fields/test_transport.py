"""Metrics, pullbacks and transport operators: against matrices written out, and their structure."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from chain_networks import CASES, normal, note_network
from numpy.typing import NDArray

from foretrain.empirical.fields import Fields, fields
from foretrain.support.errors import InputError, NotEnoughMemoryError

Array = NDArray[np.float64]
NAMES = ("note", "unequal widths", "gelu, fixed matrix", "partly frozen", "by hand")


def weight(found: Fields, layer: int) -> Array:
    return found.state.chain.layer(layer).weight.numpy()


def dense_by_definition(found: Fields, layer: int, first: int, second: int) -> Array:
    """M_l from (186), (187) with matrices, outputs (C, C, n_l, n_l)."""
    above = layer + 1
    trains = found.state.chain.layer(above).trains_weight
    S = found.correlator(above).values[first, second] * trains
    own = S[:, :, None, None] * np.eye(found.widths[layer])
    if above == found.depth:
        return own
    W, a = weight(found, above), found.slope(above).values
    inner = dense_by_definition(found, above, first, second)
    left, right = W.T @ np.diag(a[first]), np.diag(a[second]) @ W
    return own + left @ inner @ right


@pytest.mark.parametrize("name", NAMES)
def test_metrics_by_definition(name: str) -> None:
    found = CASES[name].fields()
    for layer in range(found.depth):
        W, a = weight(found, layer + 1), found.slope(layer + 1).values
        G = found.metric(layer)
        assert G.dims == ("input_1", "input_2", "unit_1", "unit_2")
        for first, second in ((0, 0), (1, 3), (3, 1)):
            D = np.diag(a[first] * a[second])
            np.testing.assert_allclose(found.projector(layer, first, second).values, np.diag(D))
            np.testing.assert_allclose(G.values[first, second], W.T @ D @ W, atol=1e-12)
            np.testing.assert_allclose(
                found.metric(layer, first, second), G.values[first, second], atol=1e-13
            )


def test_some_pairs_are_those_of_all() -> None:
    found = CASES["note"].fields()
    some = found.metric(1, [4, 1], 2)
    assert some.dims == ("input_1", "unit_1", "unit_2")
    assert some["input_1"].values.tolist() == [4, 1]
    assert int(some["input_2"]) == 2
    np.testing.assert_allclose(some, found.metric(1).sel(input_1=[4, 1], input_2=2))


def test_structure_of_projectors_and_metrics() -> None:
    found = CASES["note"].fields()
    for layer in range(found.depth):
        D = found.projector(layer).values
        np.testing.assert_array_equal(D * D, D)
        G = found.metric(layer).values
        np.testing.assert_allclose(G, G.swapaxes(2, 3), atol=1e-13)
        np.testing.assert_allclose(G, G.swapaxes(0, 1), atol=1e-13)
        assert np.linalg.eigvalsh(G).min() > -1e-12
        identity = np.eye(found.widths[layer + 1])
        np.testing.assert_allclose(found.pullback(layer, identity), G, atol=1e-13)


def test_the_pullback_of_any_matrix() -> None:
    found = CASES["unequal widths"].fields()
    X = normal(5, 5, seed=8)
    W, a = weight(found, 2), found.slope(2).values
    expected = W.T @ np.diag(a[1]) @ X.numpy() @ np.diag(a[4]) @ W
    np.testing.assert_allclose(found.pullback(1, X, 1, 4), expected, atol=1e-13)
    assert found.pullback(1, X).shape == (5, 5, 8, 8)


@pytest.mark.parametrize("name", NAMES)
def test_transport_by_definition_and_by_recursion(name: str) -> None:
    found = CASES[name].fields()
    for layer in range(found.depth):
        dense = found.transport(layer)
        vectors = normal(5, found.widths[layer], seed=layer)
        acted = found.apply_transport(layer, vectors)
        one = found.apply_transport(layer, vectors[3], 1, 3)
        for first, second in ((0, 0), (1, 3), (4, 2)):
            expected = dense_by_definition(found, layer, first, second)
            np.testing.assert_allclose(dense.values[first, second], expected, atol=1e-11)
            product = expected @ vectors[second].numpy()
            np.testing.assert_allclose(acted.values[first, second], product, atol=1e-11)
        np.testing.assert_allclose(one, acted.values[1, 3], atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_the_sum_over_inputs_needs_no_pairs(name: str) -> None:
    found = CASES[name].fields()
    weights = normal(*found.outputs.shape, seed=3)
    for layer in range(found.depth):
        vectors = normal(5, found.widths[layer], seed=layer)
        expected = np.einsum("abcdij,bj,bd->aci", found.transport(layer).values, vectors, weights)
        np.testing.assert_allclose(found.transport_sum(layer, vectors, weights), expected, atol=1e-11)


def test_the_normalized_transport_is_the_notes() -> None:
    width = 12
    model, x = note_network(2), normal(3, width)
    found = fields(model, x, readout="mean", normalized=True)
    S1, S2 = (found.correlator(layer).values[0, 2, 0, 0] for layer in (1, 2))
    np.testing.assert_allclose(found.transport(1, 0, 2).values[0, 0], S2 * np.eye(width), atol=1e-14)
    M0 = S1 * np.eye(width) + S2 * np.asarray(found.metric(0, 0, 2))
    np.testing.assert_allclose(found.transport(0, 0, 2).values[0, 0], M0, atol=1e-14)


def test_forward_transport_is_the_jacobian_between_layers() -> None:
    found = CASES["tanh"].fields()
    chain = found.state.chain

    def rest(u: torch.Tensor) -> torch.Tensor:
        hidden = u.expand(chain.inputs, -1)
        for layer in (2, 3):
            hidden = chain.activate(layer, chain.layer(layer)(hidden))
        return hidden[0]

    expected = torch.autograd.functional.jacobian(rest, chain.u(1)[2])
    np.testing.assert_allclose(found.forward_transport(1, 3, 2), expected, atol=1e-12)
    np.testing.assert_array_equal(found.forward_transport(2, 2).values[0], np.eye(6))


def test_bad_requests() -> None:
    found = CASES["note"].fields()
    with pytest.raises(InputError, match="layer is 3"):
        found.metric(3)
    with pytest.raises(InputError, match=r"not all in 0\.\.4"):
        found.metric(0, 5, 1)
    with pytest.raises(InputError, match=r"\(3, 12\).*\(5, 12\)"):
        found.apply_transport(0, np.ones((3, 12)))


def test_all_pairs_are_formed_only_if_they_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    found = CASES["note"].fields()
    monkeypatch.setenv("FORETRAIN_MEMORY", "20kB")
    with pytest.raises(NotEnoughMemoryError, match="vectors"):
        found.transport(0)
    assert found.metric(0, 0, 1).shape == (12, 12)
