"""Layers beside their natural scale, and which of them are the bottleneck."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from plateau_networks import Residual, chain
from torch import nn

from foretrain.compare.plateau.layers import find_bottleneck, is_chain, read_layers


def test_natural_scales_are_hes_for_rectifiers_and_unit_gain_for_the_first_layer() -> None:
    model = nn.Sequential(
        nn.Linear(50, 80), nn.ReLU(), nn.Linear(80, 70), nn.Tanh(), nn.Linear(70, 3), nn.Linear(3, 2)
    )
    layers = read_layers(model, torch.randn(4, 50))
    tanh = np.polynomial.hermite_e.hermegauss(80)
    square = np.sum(tanh[1] * np.cosh(tanh[0]) ** -4.0) / np.sum(tanh[1])
    gains = [1, math.sqrt(2), square**-0.5, 1]
    assert [layer.natural for layer in layers] == pytest.approx(
        [g * math.sqrt(n) for g, n in zip(gains, (80, 70, 3, 2))], rel=1e-4
    )
    assert [layer.activation for layer in layers] == ["none", "ReLU", "Tanh", "none"]


def test_the_bottleneck_is_nearer_to_the_smallest_layer_than_to_one() -> None:
    scales = [0.04, 0.05 * 1.47, 1.47, 0.3 * 1.47]
    layers = read_layers(chain(nn.Tanh, [40, 64, 64, 64, 40], scales), torch.randn(4, 40))
    found = find_bottleneck(layers)
    assert [layer.name for layer in found.layers] == ["0.weight", "2.weight"]
    assert found.epsilon == pytest.approx(math.sqrt(0.04 * 0.05), rel=0.05)
    healthy = read_layers(chain(nn.Tanh, [40, 64, 64, 1], [1.0, 1.47, 1.0]), torch.randn(4, 40))
    assert find_bottleneck(healthy).count == 0


def test_activations_that_are_functions_count_as_he() -> None:
    layers = read_layers(Residual(9), torch.randn(3, 9))
    assert layers[1].natural == pytest.approx(math.sqrt(2) * 3)
    assert layers[1].activation == "a function"


def test_only_networks_without_detours_are_chains() -> None:
    x = torch.randn(8, 6)
    model = chain(nn.GELU, [6, 8, 5, 2], [1.0, 1.0, 1.0], bias=True)
    assert is_chain(model, x, read_layers(model, x))
    residual = Residual(6)
    assert not is_chain(residual, x, read_layers(residual, x))


def test_shared_weights_are_rescaled_once() -> None:
    shared = nn.Linear(6, 6, bias=False)
    model = nn.Sequential(shared, nn.Tanh(), shared, nn.Tanh(), nn.Linear(6, 1))
    assert [layer.name for layer in read_layers(model, torch.randn(2, 6))] == ["0.weight", "4.weight"]


def test_the_law_does_not_apply_to_a_matrix_that_is_used_twice() -> None:
    shared, last = nn.Linear(3, 3, bias=False), nn.Linear(3, 1, bias=False)
    twice, once = nn.Sequential(shared, nn.Tanh(), shared, last), nn.Sequential(shared, nn.Tanh(), last)
    x = torch.randn(16, 3)
    assert not is_chain(twice, x, read_layers(twice, x))
    assert is_chain(once, x, read_layers(once, x))
