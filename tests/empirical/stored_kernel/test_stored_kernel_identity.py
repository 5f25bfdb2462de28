from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from stored_models import inputs, network
from torch import Tensor, nn

from foretrain.empirical.stored_kernel.identity import fingerprint
from foretrain.empirical.tangent_kernel.kernel import KernelOptions, prepare


def of(
    model: Any, x: Any, x2: Any = None, outputs: Any = "full", by: Any = None, **options: Any
) -> dict[str, str]:
    tangents, first, second = prepare(model, x, x2, KernelOptions(outputs, by=by, **options))
    return fingerprint(tangents, first, second, by)


def changed(first: dict[str, str], second: dict[str, str]) -> set[str]:
    return {key for key in first if first[key] != second[key]}


class Normed(nn.Module):
    def __init__(self, act: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.norm, self.act = nn.Linear(4, 3).double(), nn.BatchNorm1d(3).double().eval(), act

    def extra_repr(self) -> str:
        return repr(self.act)

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.norm(self.linear(x)))


@pytest.mark.slow
def test_copies_have_the_same_fingerprint() -> None:
    model, x = Normed(torch.tanh).eval(), inputs(7)
    reference = of(model, x)
    assert of(copy.deepcopy(model), x.clone()) == reference
    assert of(model, torch.cat([x, x])[:7]) == reference
    assert of(model, x.t().contiguous().t()) == reference
    assert of(torch.compile(model), x) == reference


def test_addresses_in_descriptions_do_not_count() -> None:
    x = inputs(7)
    one, other = Normed(lambda z: z * 2).eval(), Normed(lambda z: z * 2).eval()
    assert repr(one) != repr(other)
    assert of(one, x) == of(other, x)


def test_every_change_is_found_in_its_place() -> None:
    model, x = Normed(torch.tanh).eval(), inputs(7)
    reference = of(model, x)
    buffers = copy.deepcopy(model)
    buffers.norm.running_mean[1] = 1e-9
    assert changed(reference, of(buffers, x)) == {"parameters"}
    frozen = copy.deepcopy(model)
    frozen.linear.bias.requires_grad_(False)
    assert changed(reference, of(frozen, x)) == {"parameters", "options"}
    assert changed(reference, of(network(), x)) == {"model", "parameters", "options"}
    nudged = x.clone()
    nudged[3, 2] = torch.nextafter(nudged[3, 2], torch.tensor(9.0).double())
    assert changed(reference, of(model, nudged)) == {"data"}
    assert changed(reference, of(model, x.flip(0))) == {"data"}
    assert changed(reference, of(model, x, x)) == {"data"}
    assert changed(reference, of(copy.deepcopy(model).float(), x.float())) == {
        "parameters",
        "data",
        "options",
    }


@pytest.mark.parametrize(
    "options",
    [
        {"outputs": "trace"},
        {"outputs": [0]},
        {"outputs": [1, 0, 2]},
        {"by": "layer"},
        {"rates": 0.1},
        {"rates": {"linear.weight": 0.1}},
        {"parameters": "linear.*"},
        {"output": lambda y: y[:, :3]},
    ],
)
def test_every_option_counts(options: dict[str, Any]) -> None:
    model, x = Normed(torch.tanh).eval(), inputs(7)
    assert changed(of(model, x), of(model, x, **options)) == {"options"}


def test_inputs_of_several_parts() -> None:
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = network()

        def forward(self, a: Tensor, b: Tensor, scale: float = 1.0) -> Tensor:
            return self.inner(a + b * scale)

    model, a, b = Sum(), inputs(7), inputs(7, seed=2)
    reference = of(model, (a, b))
    assert changed(reference, of(model, (b, a))) == {"data"}
    assert changed(reference, of(model, {"a": a, "b": b})) == {"data"}
    assert changed(of(model, (a, b, 1.0)), of(model, (a, b, 2.0))) == {"data"}
