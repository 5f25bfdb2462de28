"""Small versions of the networks of `bench.ntk`: the kernel is that of brute force, and its work is counted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from bench.ntk import CASES
from bench.ntk_work import work
from bench.peer_side.torch_func_calls import tangent_kernel, tangent_kernel_by_a_loop
from bench.peer_side.torch_networks import NETWORKS
from torch import Tensor, nn

import foretrain as ft

TOKENS = {"vocabulary": 7, "tokens": 5, "layers": 2, "width": 8, "heads": 2, "outputs": 3}
SMALL: dict[str, tuple[Mapping[str, Any], tuple[int, ...]]] = {
    "perceptron": ({"widths": [5, 4, 6, 3]}, (4, 5)),
    "convolutional": ({"channels": [3, 4, 5], "strides": [1, 2], "outputs": 3}, (4, 3, 8, 8)),
    "attention": ({"width": 8, "heads": 2, "hidden": 16, "outputs": 3}, (4, 5, 8)),
    "generative": (TOKENS, (4, 5)),
    "encoder": (TOKENS, (4, 5)),
    "vision": ({"side": 8, "patch": 4, "layers": 2, "width": 8, "heads": 2, "outputs": 3}, (4, 3, 8, 8)),
    "residual": ({"channels": [4, 5, 6], "outputs": 3}, (4, 3, 8, 8)),
    "recurrent": ({"inputs": 4, "hidden": 5, "outputs": 3}, (4, 6, 4)),
}


def drawn(network: str) -> tuple[nn.Module, Tensor]:
    sizes, shape = SMALL[network]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = NETWORKS[network](**sizes).double()
        for parameter in model.parameters():
            parameter.data += 0.2 * torch.randn_like(parameter)
        return model, torch.randint(7, shape) if "vocabulary" in sizes else torch.randn(
            shape, dtype=torch.float64
        )


def by_brute_force(model: nn.Module, x: Tensor) -> Tensor:
    rows = [
        torch.cat(
            [g.flatten() for g in torch.autograd.grad(output, list(model.parameters()), retain_graph=True)]
        )
        for sample in x
        for output in model(torch.stack([sample, sample]))[0]
    ]
    jacobian = torch.stack(rows).unflatten(0, (len(x), -1))
    return torch.einsum("nap,mbp->nmab", jacobian, jacobian)


@pytest.mark.parametrize("network", SMALL)
def test_all_forms_of_the_kernel_are_those_of_brute_force(network: str) -> None:
    model, x = drawn(network)
    expected = by_brute_force(model, x)
    scale = expected.abs().max()

    def differs(found: object, right: Tensor) -> float:
        return float((torch.as_tensor(found) - right).abs().max() / scale)

    full = ft.ntk(model, x)
    assert not [name for name, route in full.routes.items() if route.way == "per sample"]
    assert differs(full.values, expected) < 1e-10
    assert differs(ft.ntk(model, x, batch_size=3).values, expected) < 1e-10
    assert differs(ft.ntk(model, x, x[1:3]).values, expected[:, 1:3]) < 1e-10
    assert differs(ft.ntk(model, x, outputs=[2, 0]).values, expected[..., [2, 0], :][..., [2, 0]]) < 1e-10
    assert differs(ft.ntk(model, x, outputs=[1]).values, expected[..., 1:2, 1:2]) < 1e-10
    traced = torch.einsum("nmaa->nm", expected)
    assert differs(ft.ntk(model, x, outputs="trace").values, traced) < 1e-10
    parts = ft.ntk(model, x, by="layer").values
    assert differs(parts.sum(0), expected) < 1e-10


@pytest.mark.parametrize("network", [name for name in SMALL if name != "recurrent"])
def test_peers_in_torch_give_the_same_kernel(network: str) -> None:
    model, x = drawn(network)
    sizes, _ = SMALL[network]
    model, x = model.float(), x.float() if x.is_floating_point() else x
    arrays = {"X": x.numpy()} | {name: value.numpy() for name, value in model.state_dict().items()}
    options = {"network": network, "sizes": sizes, "outputs": "full"}
    expected = by_brute_force(model.double(), x.double() if x.is_floating_point() else x)
    for peer in (tangent_kernel, tangent_kernel_by_a_loop):
        found = peer(arrays, options)()["ntk"]
        assert float((found - expected).abs().max() / expected.abs().max()) < 1e-4


def test_work_is_that_of_the_products() -> None:
    """Of a transformer of one layer, counted by hand: N = 3, T = 4, width 2, C = 5, by gradients."""
    sizes = {"vocabulary": 7, "tokens": 4, "layers": 1, "width": 2, "heads": 1, "outputs": 5}
    entries = [2 * 6, 2 * 2, 2 * 8, 8 * 2]
    through = 2 * 3 * 4 * sum(entries)
    attention = 2 * 3 * 2 * 4**2
    forward, backward = through + 2 * 3 * 2 * 5 + 2 * attention, 5 * (through + 4 * attention)
    gradients = 5 * through + sum(3 * 5 * (3 * 5 + 1) * size for size in entries)
    head = 3 * 4 * 2
    found = work("generative", sizes, (3, 4), "full", 5)
    assert found.flops == forward + backward + gradients + head


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_network_of_the_bench_has_a_small_version(case: Any) -> None:
    assert case.network in SMALL
