from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

from foretrain.empirical.layer_scales import layer_scales
from foretrain.saddle import escape_time
from foretrain.support.errors import InputError, NotSupportedError


def chain(*widths: int) -> nn.Sequential:
    modules: list[nn.Module] = []
    for before, after in pairwise(widths):
        modules += [nn.Linear(before, after, bias=False, dtype=torch.float64), nn.Tanh()]
    return nn.Sequential(*modules[:-1])


def on_the_manifold(scales: list[float], width: int, v: torch.Tensor) -> nn.Sequential:
    model = chain(len(v), *[width] * (len(scales) - 1), 1)
    layers = [module for module in model if isinstance(module, nn.Linear)]
    with torch.no_grad():
        layers[0].weight.copy_(scales[0] * v.expand(width, -1))
        for layer, scale in zip(layers[1:-1], scales[1:-1]):
            layer.weight.fill_(scale / width)
        layers[-1].weight.fill_(scales[-1] / width**0.5)
    return model


def test_on_the_symmetric_manifold_every_reading_is_exact() -> None:
    v = torch.tensor([0.6, 0.0, 0.8], dtype=torch.float64)
    scales = [0.03, 0.05, 0.07, 0.09]
    found = layer_scales(on_the_manifold(scales, 64, v), direction=3 * v)
    for reading in (found.norm, found.spectral, found.signal):
        np.testing.assert_allclose(reading, scales, rtol=1e-12)
    time = escape_time("tanh", found.norm, width=found.width, threshold=0.3, method="reduced")
    assert time == pytest.approx(1887.7, abs=0.1)


def test_of_a_random_matrix_the_readings_differ_as_known() -> None:
    torch.manual_seed(0)
    width = 400
    model = chain(width, width, width, 1)
    for layer in model:
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=1 / layer.in_features**0.5)
    found = layer_scales(model, direction=np.eye(width)[0])
    assert found.spectral[1] == pytest.approx(2, rel=0.03)  # edge of the circular law's singular values
    assert found.norm[1] == pytest.approx(width**0.5, rel=0.02)
    assert found.signal[1] == pytest.approx(1, rel=0.15)


def test_a_dead_layer_passes_nothing() -> None:
    model = chain(2, 5, 5, 1)
    with torch.no_grad():
        model[0].weight.zero_()  # type: ignore[union-attr, operator]
    assert layer_scales(model, direction=[1, 0]).signal.tolist() == [0, 0, 0]
    assert np.isnan(layer_scales(model).signal).all()


def test_the_labels_are_the_layers_names() -> None:
    data = layer_scales(chain(2, 5, 5, 1)).to_dataset()
    assert data.name.values.tolist() == ["0", "2", "4"]
    assert data.attrs["width"] == 5
    assert "width 5" in repr(layer_scales(chain(2, 5, 5, 1)))


def test_what_is_no_chain_is_refused() -> None:
    with pytest.raises(NotSupportedError, match="has 1 linear layers"):
        layer_scales(nn.Sequential(nn.Linear(2, 3)))
    with pytest.raises(NotSupportedError, match="follow one another"):
        layer_scales(nn.Sequential(nn.Linear(2, 3), nn.Linear(2, 1)))
    with pytest.raises(NotSupportedError, match=r"several widths \(3, 4\)"):
        layer_scales(chain(2, 3, 4, 1))
    with pytest.raises(InputError, match="give 2 numbers"):
        layer_scales(chain(2, 3, 3, 1), direction=[1.0])
