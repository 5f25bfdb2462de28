"""The forward equations of many networks at once: against automatic derivatives, and against the way by fields."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import foretrain as ft
from foretrain.empirical.differentials import (
    LayerDifferentials,
    LayeredDifferentials,
    Rates,
    forward_equations,
    stack_of,
    stack_of_models,
)
from foretrain.support.errors import InputError, NotEnoughMemoryError, NotSupportedError

WIDTHS, NETWORKS, SAMPLES = (2, 3, 4, 2), 3, 2
RATES = [Rates(0.7, 0.3), Rates(1.1, 0.5), Rates(0.4, 0.2)]


def function(z: Tensor) -> Tensor:
    return torch.sin(z + 0.4) + 0.1 * z**2


class Bent(nn.Module):
    def forward(self, z: Tensor) -> Tensor:
        return function(z)


def networks(seed: int = 0) -> tuple[list[Tensor], list[Tensor], Tensor]:
    source = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, dtype=torch.float64, generator=source)

    shapes = list(itertools.pairwise(WIDTHS))
    weights = [normal(NETWORKS, n, m) / m**0.5 for m, n in shapes]
    return weights, [0.3 * normal(NETWORKS, n) for _, n in shapes], normal(SAMPLES, WIDTHS[0])


def module(weights: list[Tensor], biases: list[Tensor], network: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for weight, bias in zip(weights, biases, strict=True):
        layer = nn.Linear(weight.shape[2], weight.shape[1]).double()
        layer.load_state_dict({"weight": weight[network], "bias": bias[network]})
        layers += [layer, Bent()]
    return nn.Sequential(*layers[:-1])


def rate_of(name: str, _: Tensor) -> float:
    rates = RATES[int(name.split(".")[0]) // 2]
    return rates.weight if name.endswith("weight") else rates.bias


class Hidden(nn.Module):
    """The same module, seen as no chain because its input passes a skip of weight zero."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) + 0.0 * x.sum(1, keepdim=True)


def output_first(joint: Tensor) -> Tensor:
    """Legs (sample, output) as legs (output, sample)."""
    places = torch.arange(len(joint)).view(SAMPLES, -1).T.flatten()
    for axis in range(joint.ndim):
        joint = joint.index_select(axis, places)
    return joint


def by_derivatives(model: nn.Module, x: Tensor) -> LayerDifferentials:
    """All four by automatic derivatives."""

    def rate(name: str, tensor: Tensor) -> float:
        return rate_of(name.removeprefix("inner."), tensor)

    hidden = Hidden(model)
    first, second = ft.dntk(hidden, x, rates=rate), ft.ddntk(hidden, x, rates=rate)
    assert first.route == "nested forward mode"
    kernel = torch.as_tensor(np.asarray(ft.ntk(hidden, x, outputs="full", rates=rate)))
    joint = kernel.permute(0, 2, 1, 3).reshape(2 * (SAMPLES * kernel.shape[-1],))
    return LayerDifferentials(
        *(
            output_first(values)
            for values in (joint, first.joint(), second.dd_I.joint(), second.dd_II.joint())
        )
    )


def parts(found: LayerDifferentials) -> tuple[Tensor, ...]:
    return found.ntk, found.dntk, found.dd_I, found.dd_II


def test_outputs_and_hidden_layers_against_derivatives() -> None:
    weights, biases, x = networks()
    layers = forward_equations(stack_of(weights, biases, x, function, RATES))
    assert list(layers) == [1, 2, 3]
    for number, network in ((2, 0), (3, 2)):
        expected = by_derivatives(module(weights[:number], biases[:number], network), x)
        for ours, theirs in zip(parts(layers[number]), parts(expected), strict=True):
            torch.testing.assert_close(ours[network], theirs, rtol=1e-11, atol=1e-12)
    assert all(not values.any() for values in parts(layers[1])[1:])


@pytest.mark.parametrize("options", [{}, {"outputs": [1], "samples": [1, 0, 1]}])
def test_models_and_the_way_by_fields(options: dict[str, list[int]]) -> None:
    weights, biases, x = networks(seed=1)
    models = [module(weights, biases, network) for network in range(NETWORKS)]
    stack = stack_of_models(models, x, rates=rate_of, **options)
    found, fields = forward_equations(stack)[3], LayeredDifferentials(stack)
    for ours, theirs in zip(parts(found)[1:], (fields.first(), fields.third(), fields.second()), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-12)
    if not options:
        whole = stack_of(weights, biases, x, function, RATES)
        torch.testing.assert_close(parts(forward_equations(whole)[3]), parts(found), rtol=1e-11, atol=1e-12)


def test_each_network_may_have_its_own_samples() -> None:
    weights, _, x = networks(seed=2)
    own = torch.stack([x, -x, 2 * x])
    many = forward_equations(stack_of(weights, None, own, torch.tanh, RATES))[3]
    alone = forward_equations(stack_of([w[1:2] for w in weights], None, -x, torch.tanh, RATES))[3]
    torch.testing.assert_close(many.dd_II[1:2], alone.dd_II)


def test_an_output_named_twice_shares_its_weights() -> None:
    weights, biases, x = networks(seed=3)
    model = module(weights, biases, 0)
    once, twice = ft.ddntk(model, x, rates=rate_of), ft.ddntk(model, x, rates=rate_of, outputs=[1, 0, 1])
    places = torch.tensor([1, 0, 1])
    for whole, picked in ((once.dd_I, twice.dd_I), (once.dd_II, twice.dd_II)):
        expected = whole.values
        for axis in range(4, 8):
            expected = expected.index_select(axis, places)
        torch.testing.assert_close(picked.values, expected, rtol=1e-10, atol=1e-11)
    with pytest.raises(NotSupportedError, match="twice"):
        stack_of_models([model], x, outputs=[1, 1])


def test_what_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    weights, biases, x = networks()
    with pytest.raises(InputError, match="do not follow"):
        stack_of(weights[::-1], biases, x, function, RATES)
    with pytest.raises(InputError, match="biases"):
        stack_of(weights, biases[:2], x, function, RATES)
    with pytest.raises(InputError, match="one for every layer"):
        stack_of(weights, biases, x, function, RATES[:2])
    with pytest.raises(InputError, match="equal layers"):
        stack_of_models(
            [module(weights, biases, 0), nn.Sequential(nn.Linear(2, 2), Bent(), nn.Linear(2, 2)).double()], x
        )
    with pytest.raises(NotSupportedError, match="model 0"):
        stack_of_models([nn.Sequential(nn.Linear(2, 2), nn.Softmax(1))], x.float())
    with pytest.raises(InputError, match="models must be"):
        stack_of_models([], x)
    monkeypatch.setenv("FORETRAIN_MEMORY", "10kB")
    with pytest.raises(NotEnoughMemoryError, match="LayeredDifferentials"):
        forward_equations(stack_of(weights, biases, x, function, RATES))
