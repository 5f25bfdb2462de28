"""Networks of layers, many at once: against the forward equations of the source and against automatic derivatives."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor, nn

import foretrain as ft
from foretrain.empirical.differentials.layered import LayeredDifferentials, Rates, Stack

WIDTHS, SAMPLES, NETWORKS = (3, 4, 5, 3, 2), 2, 3
RATES = [Rates(0.7, 0.3), Rates(1.1, 0.5), Rates(0.4, 0.2), Rates(0.9, 0.6)]


class Drawn:
    """Random tanh networks with all their layers."""

    def __init__(self, seed: int = 0) -> None:
        torch.manual_seed(seed)
        shapes = list(itertools.pairwise(WIDTHS))
        self.weights = [torch.randn(NETWORKS, n, m, dtype=torch.float64) / m**0.5 for m, n in shapes]
        self.biases = [0.3 * torch.randn(NETWORKS, n, dtype=torch.float64) for _, n in shapes]
        self.x = torch.randn(SAMPLES, WIDTHS[0], dtype=torch.float64)
        self.signals, self.derivatives = [self.x.expand(NETWORKS, -1, -1)], []
        for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
            t = torch.tanh(self.signals[-1] @ weight.mT + bias[:, None])
            self.derivatives.append((1 - t**2, -2 * t * (1 - t**2), (1 - t**2) * (6 * t**2 - 2)))
            self.signals.append(t)

    def stack(self, directions: int | None = None) -> Stack:
        return Stack(self.signals, self.derivatives, self.weights[1:], RATES, directions)

    def module(self, network: int) -> nn.Sequential:
        layers: list[nn.Module] = []
        for weight, bias in zip(self.weights, self.biases, strict=True):
            layer = nn.Linear(weight.shape[2], weight.shape[1]).double()
            layer.load_state_dict({"weight": weight[network], "bias": bias[network]})
            layers += [layer, nn.Tanh()]
        return nn.Sequential(*layers[:-1])


class Plain(nn.Module):
    """The same module, seen as no chain because its input passes a skip of weight zero."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        return self.module(x) + 0.0 * x.sum(1, keepdim=True)


def rates_by_name() -> dict[str, float]:
    found = {}
    for number, rates in enumerate(RATES):
        found |= {f"module.{2 * number}.weight": rates.weight, f"module.{2 * number}.bias": rates.bias}
    return found


def output_first(joint: Tensor) -> Tensor:
    """Legs (sample, output) as legs (output, sample)."""
    places = torch.arange(len(joint)).view(SAMPLES, -1).T.flatten()
    for axis in range(joint.ndim):
        joint = joint.index_select(axis, places)
    return joint


def test_layers_against_automatic_derivatives() -> None:
    drawn = Drawn()
    layered = LayeredDifferentials(drawn.stack())
    for network in range(NETWORKS):
        model = Plain(drawn.module(network))
        first = ft.dntk(model, drawn.x, rates=rates_by_name())
        second = ft.ddntk(model, drawn.x, rates=rates_by_name())
        assert first.route == "nested forward mode"
        pairs = (
            (layered.first(), first),
            (layered.third(), second.dd_I),
            (layered.second(), second.dd_II),
        )
        for found, expected in pairs:
            torch.testing.assert_close(found[network], output_first(expected.joint()), rtol=1e-12, atol=1e-12)


def forward_equation(drawn: Drawn, network: int) -> Tensor:
    """dH of the outputs by (11.24) with Ĥ by (8.12), neuron by neuron: indices (i0, i1, i2, δ0, δ1, δ2)."""
    n, x = WIDTHS[1], drawn.x
    eye = torch.eye(n, dtype=torch.float64)
    H = torch.einsum("ij,ab->ijab", eye, RATES[0].bias + RATES[0].weight * x @ x.T)
    dH = torch.zeros((n,) * 3 + (SAMPLES,) * 3, dtype=torch.float64)
    for layer in range(1, len(WIDTHS) - 1):
        W, rates = drawn.weights[layer][network], RATES[layer]
        s = drawn.signals[layer][network].T
        d1, d2 = (values[network].T for values in drawn.derivatives[layer - 1][:2])
        V = torch.einsum("ik,ka->ika", W, d1)
        same = torch.eye(len(W), dtype=torch.float64)
        bent = torch.einsum("ik,ka->ika", W, d2)
        new = torch.einsum("ika,jlb,mnc,klnabc->ijmabc", V, V, V, dH)
        new += torch.einsum("ika,jlb,mnc,klab,knac->ijmabc", bent, V, V, H, H)
        term = rates.weight * torch.einsum("ij,ka,kb,mnc,knac->ijmabc", same, d1, s, V, H)
        new += term + term.permute(0, 2, 1, 3, 5, 4)
        H = torch.einsum("ij,ab->ijab", same, rates.bias + rates.weight * s.T @ s) + torch.einsum(
            "ika,jlb,klab->ijab", V, V, H
        )
        dH = new
    return dH


def test_layers_against_the_forward_equation() -> None:
    drawn = Drawn(seed=1)
    outputs = WIDTHS[-1]
    found = LayeredDifferentials(drawn.stack()).first()
    for network in range(NETWORKS):
        split = found[network].view((outputs, SAMPLES) * 3).permute(0, 2, 4, 1, 3, 5)
        torch.testing.assert_close(split, forward_equation(drawn, network), rtol=1e-12, atol=1e-13)


def test_results_are_told_in_a_line() -> None:
    stack = Drawn().stack()
    told = repr(LayeredDifferentials(stack))
    assert told.startswith(f"LayeredDifferentials of a Stack of {NETWORKS} networks of widths ")
    assert f"at {SAMPLES} samples" in told
    assert len(told) < 150


def test_fewer_directions_are_a_slice() -> None:
    drawn = Drawn(seed=2)
    whole, part = LayeredDifferentials(drawn.stack()), LayeredDifferentials(drawn.stack(directions=1))
    torch.testing.assert_close(part.first(), whole.first()[..., :SAMPLES])
    places = (slice(None), *(slice(SAMPLES),) * 4)
    torch.testing.assert_close(part.second(), whole.second()[places])
    torch.testing.assert_close(part.third(), whole.third()[places])


@pytest.mark.parametrize("outputs", [None, [1]])
def test_chains_are_found(outputs: list[int] | None) -> None:
    drawn = Drawn()
    model = drawn.module(0)
    found = ft.dntk(model, drawn.x, outputs=outputs)
    assert found.route == "layer by layer"
    torch.testing.assert_close(found.values, ft.dntk(Plain(model), drawn.x, outputs=outputs).values)
    bent = nn.Sequential(*model, nn.Tanh())  # the outputs are no linear layer's
    assert ft.dntk(bent, drawn.x).route == "nested forward mode"
