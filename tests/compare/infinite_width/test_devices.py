"""Kernels are computed where the model is, as far as their formulas and the device allow."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import foretrain as ft
from foretrain.compare.infinite_width import Network, _beside_model
from foretrain.theory.layers import data
from foretrain.theory.layers.tiles import kernel_of

WEIGHTS = {"C_W": 2.0, "C_b": 0.1, "lambda_W": 2.0, "lambda_b": 0.1}


def network(activation: str) -> Network:
    output = data().linear(**WEIGHTS).activation(activation).linear(**WEIGHTS)
    values = output.inputs(np.random.default_rng(0).standard_normal((5, 3)))
    return Network(output.field, values, None, "by hand", device=torch.device("cpu"))


def test_closed_forms_go_to_the_device_and_give_the_same_numbers() -> None:
    here = network("relu")
    moved = _beside_model(here)
    assert not moved.notes
    assert all(isinstance(one, torch.Tensor) for one in moved.data.values())
    found, expected = kernel_of(here.field, moved.data), kernel_of(here.field, here.data)
    np.testing.assert_allclose(found.Theta, expected.Theta, rtol=1e-13)


def test_a_sum_of_numpy_stays_on_the_processor_and_says_so() -> None:
    here = network("tanh")
    same = _beside_model(here)
    assert same.data is here.data
    assert same.notes[0].startswith("Computed by the processor instead of cpu: ")


def test_a_device_without_double_precision_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise TypeError("no float64")

    here = network("relu")
    monkeypatch.setattr(torch, "zeros", refuse)
    assert "double precision" in _beside_model(here).notes[0]


@pytest.mark.skipif(not torch.accelerator.is_available(), reason="needs an accelerator")
def test_a_model_on_an_accelerator() -> None:
    net = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 36, 1))
    x = torch.randn(4, 3, 8, 8)
    expected = ft.infinite_width(net, x)
    found = ft.infinite_width(net.to(torch.accelerator.current_accelerator()), x)
    np.testing.assert_allclose(found.ntk, expected.ntk, rtol=1e-6)
