"""Spectra of kernels, metrics and weights."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from chain_networks import CASES, normal
from torch import nn

from foretrain.empirical.fields import effective_rank, entropy_rank, fields, heavy_tail
from foretrain.empirical.fields.spectra import metric_alignment
from foretrain.support.errors import InputError


@pytest.mark.parametrize("name", ["note", "gelu, fixed matrix", "partly frozen"])
def test_kernel_spectra_are_those_of_the_matrices(name: str) -> None:
    found = CASES[name].fields()
    spectrum = found.kernel_spectrum
    kernels = {"total": found.kernel} | {
        str(layer): found.kernel_by_layer.sel(layer=layer) for layer in range(1, found.depth + 1)
    }
    for part, kernel in kernels.items():
        ordered = kernel.transpose("input_1", "output_1", "input_2", "output_2").values
        size = int(np.sqrt(ordered.size))
        expected = np.linalg.eigvalsh(ordered.reshape(size, size))[::-1]
        np.testing.assert_allclose(spectrum.sel(part=part), expected, atol=1e-11)


@pytest.mark.parametrize("name", ["note", "unequal widths", "tanh"])
def test_metric_and_weight_spectra(name: str) -> None:
    found = CASES[name].fields()
    for layer in range(found.depth):
        kept = found.metric_spectrum(layer).values
        for index in range(5):
            values = np.linalg.eigvalsh(found.metric(layer, index, index).values)[::-1]
            np.testing.assert_allclose(kept[index], values[: kept.shape[1]], atol=1e-11)
            np.testing.assert_allclose(values[kept.shape[1] :], 0, atol=1e-11)
        np.testing.assert_array_equal(found.metric_spectrum(layer, 2), kept[2])
        W = found.state.chain.layer(layer + 1).weight.numpy()
        values = np.linalg.eigvalsh(W.T @ W)[::-1]
        np.testing.assert_allclose(found.weight_spectrum(layer + 1), values[: min(W.shape)], atol=1e-11)


def test_the_tail_is_that_of_the_weights() -> None:
    model = nn.Sequential(nn.Linear(40, 60), nn.Tanh(), nn.Linear(60, 1)).double()
    found = fields(model, normal(3, 40))
    W = model[0].weight.detach().numpy()
    assert found.tail(1).exponent == pytest.approx(heavy_tail(np.linalg.svd(W)[1] ** 2).exponent, rel=1e-9)


def test_alignment_is_a_rayleigh_quotient() -> None:
    found = CASES["unequal widths"].fields()
    gradients = normal(2, 8, seed=4)
    aligned = metric_alignment(found.state.chain, 1, torch.tensor([1, 3]), gradients)
    for row, index in enumerate((1, 3)):
        G, g = found.metric(1, index, index).values, gradients[row].numpy()
        top, vectors = np.linalg.eigh(G)
        assert float(aligned[row]) == pytest.approx(g @ G @ g / (g @ g) / top[-1], rel=1e-10)
        stiff = torch.tensor(vectors[:, -1:].T.copy())
        one = metric_alignment(found.state.chain, 1, torch.tensor([index]), stiff)
        assert float(one[0]) == pytest.approx(1.0, rel=1e-10)


def test_ranks_of_known_spectra() -> None:
    assert effective_rank([3.0, 3.0, 3.0, 3.0]) == pytest.approx(4)
    assert effective_rank([2.0, 1.0]) == pytest.approx(9 / 5)
    assert entropy_rank([5.0, 0.0, 0.0]) == pytest.approx(1)
    assert entropy_rank([2.0, 1.0]) == pytest.approx(3 / 4 ** (1 / 3))
    assert np.isnan(effective_rank([0.0, 0.0]))
    assert np.isnan(entropy_rank([0.0]))
    for values in np.random.default_rng(0).exponential(size=(20, 7)) ** 3:
        assert effective_rank(values) < entropy_rank(values) < 7


@pytest.mark.parametrize(("values", "message"), [([], "empty"), ([1.0, -0.5], "negative eigenvalue -0.5")])
def test_bad_spectra(values: list[float], message: str) -> None:
    for measure in (effective_rank, entropy_rank):
        with pytest.raises(InputError, match=message):
            measure(values)
