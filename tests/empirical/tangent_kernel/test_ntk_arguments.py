"""Forms in which parameters, rates, outputs and results may be given, and mistakes in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.checkpoint
from brute_force import assert_equal, normal
from torch import nn

import foretrain as ft
from foretrain.empirical.autograd_graph import sites
from foretrain.support.errors import InputError, NotSupportedError


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()


X = normal(5, 3)


def test_parameters_as_a_module_a_tensor_or_named_ones() -> None:
    net = network()
    whole = ft.ntk(net, X, parameters="0.*").values
    weight = ft.ntk(net, X, parameters="0.weight").values
    assert_equal(ft.ntk(net, X, parameters=net[0]).values, whole)
    assert_equal(ft.ntk(net, X, parameters=list(net[0].named_parameters(prefix="0"))).values, whole)
    assert_equal(ft.ntk(net, X, parameters=net[0].weight).values, weight)


def test_rates_as_an_optimizer() -> None:
    net = network()
    groups = [{"params": net[0].parameters(), "lr": 0.5}, {"params": net[2].parameters(), "lr": 2.0}]
    optimizer = torch.optim.SGD(groups, lr=1.0)
    assert_equal(
        ft.ntk(net, X, rates=optimizer).values, ft.ntk(net, X, rates={"0.*": 0.5, "2.*": 2.0}).values
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"outputs": [True, False]}, "outputs="),
        ({"parameters": [0]}, "parameters="),
        ({"rates": "fast"}, "rates="),
        ({"batch_size": 0.5}, "batch_size"),
        ({"batch_size": True}, "batch_size"),
    ],
)
def test_mistakes_are_named(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        ft.ntk(network(), X, **options)


def test_sizes_may_be_numpy_numbers() -> None:
    assert_equal(ft.ntk(network(), X, batch_size=np.int64(2)).values, ft.ntk(network(), X).values)  # type: ignore[arg-type]


def test_a_kernel_can_be_saved_and_loaded(tmp_path: Path) -> None:
    kernel = ft.ntk(network(), X, by="layer")
    ft.save(kernel, tmp_path / "kernel.zarr")
    loaded = ft.load(tmp_path / "kernel.zarr")
    np.testing.assert_array_equal(loaded["ntk"].values, np.asarray(kernel))
    assert list(loaded["ntk"].coords["layer"].values) == ["0", "2"]


def test_half_precision_inside_is_read_from_the_graph() -> None:
    net = network().float()

    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return self.net(x).float()

    kernel = ft.ntk(Mixed(), X.float())
    assert "per sample" not in {route.way for route in kernel.routes.values()}
    assert_equal(kernel.values, ft.ntk(net.double(), X).values, tolerance=0.05)


def test_a_large_weight_in_single_precision_is_read_from_the_graph() -> None:
    """Its gradient has so many entries that their squares must not be summed in single precision."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 2500), nn.LayerNorm(2500), nn.Linear(2500, 2500), nn.Tanh())
    kernel = ft.ntk(net, torch.randn(4, 3, 3), outputs=[0, 1])  # several positions: not a plain linear layer
    assert "per sample" not in {route.way for route in kernel.routes.values()}


@pytest.mark.parametrize("needs_gradient", [False, True])
def test_reentrant_checkpoints_are_refused(needs_gradient: bool) -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(torch.utils.checkpoint.checkpoint(self.first, x, use_reentrant=True))

    with pytest.raises(NotSupportedError, match="use_reentrant=False"):
        ft.ntk(Checkpointed(), torch.randn(4, 3, requires_grad=needs_gradient))


def test_the_check_of_what_was_read_does_not_depend_on_the_scale_of_outputs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A wrong reading is found also where all gradients are tiny, and then gradients are formed sample by sample."""
    net = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2)).double()

    def tiny(y: torch.Tensor) -> torch.Tensor:
        return 1e-12 * y.flip(1)  # behind which nodes do not say where the samples are

    right = ft.ntk(net, X, output=tiny).values
    monkeypatch.setitem(sites._READERS, ("NativeLayerNormBackward0", 1), sites._itself)
    found = ft.ntk(net, X, output=tiny)
    assert found.routes["1.weight"].way == "per sample"
    assert_equal(found.values, right)
