"""Layers whose units treat all outputs alike: the trace needs no sensitivity of every output."""

from __future__ import annotations

import pytest
import torch
from brute_force import jacobian, kernel_of
from torch import Tensor, nn

from foretrain.empirical.tangent_kernel import ntk, planning
from foretrain.empirical.tangent_kernel.factors import Grams, separated
from foretrain.empirical.tangent_kernel.kernel import KernelOptions, prepare


@pytest.fixture(autouse=True)
def closely(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small kernels are looked at as closely as large ones."""
    monkeypatch.setattr(planning, "_LARGE", 1)


def traced(model: nn.Module, x: Tensor, x2: Tensor | None = None) -> Tensor:
    def rows(values: Tensor) -> Tensor:
        return jacobian(
            model.parameters(), [lambda n=n: model(values[n : n + 1]) for n in range(len(values))]
        )

    return kernel_of(rows(x), rows(x if x2 is None else x2)).diagonal(dim1=2, dim2=3).sum(-1)


def net(*layers: nn.Module, dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(*layers).to(dtype)


MODELS = {
    "relu": lambda: net(nn.Linear(3, 7), nn.ReLU(), nn.Linear(7, 6), nn.ReLU(), nn.Linear(6, 4)),
    "tanh": lambda: net(nn.Linear(3, 7), nn.Tanh(), nn.Linear(7, 4)),
    "dead units": lambda: net(nn.Linear(3, 40), nn.ReLU(), nn.Linear(40, 4)),
    "softmax": lambda: net(nn.Linear(3, 7), nn.Tanh(), nn.Linear(7, 4), nn.Softmax(-1)),
    "one output": lambda: net(nn.Linear(3, 7), nn.Tanh(), nn.Linear(7, 1)),
}


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("name", MODELS)
def test_the_trace_is_that_of_brute_force(name: str) -> None:
    model, x, x2 = MODELS[name](), torch.randn(9, 3).double(), torch.randn(5, 3).double()
    for size in ("auto", 1, 4):
        torch.testing.assert_close(ntk(model, x, outputs="trace", batch_size=size)[:], traced(model, x))
        found = ntk(model, x, x2, outputs="trace", batch_size=size)[:]
        torch.testing.assert_close(found, traced(model, x, x2), rtol=1e-10, atol=1e-10)


def test_it_is_used_below_the_readout_alone() -> None:
    model, x = MODELS["relu"](), torch.randn(9, 3).double()
    engine, batch, _ = prepare(model, x, options=KernelOptions("trace"))
    factors = engine.chunk(batch)[""]
    used = {key[0]: factor.outputs is not None for key, factor in factors.items()}
    assert used == {"0.weight": False, "2.weight": True, "4.weight": True}
    assert factors["2.weight",].sensitivities.shape == (1, 9, 1, 6)


def test_single_precision() -> None:
    model, x = MODELS["relu"](), torch.randn(9, 3)
    expected = traced(model, x.double())
    found = ntk(model.float(), x, outputs="trace")[:]
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)


def test_what_is_not_quite_separate_is_left_as_it_is() -> None:
    torch.manual_seed(0)
    own, outputs = torch.randn(1, 20, 1, 5).double(), torch.randn(1, 3, 5).double()
    own[0, :, 0, 2] = 0
    values = own * outputs[:, None]
    apart = separated(values)
    assert apart is not None
    torch.testing.assert_close(apart[0] * apart[1][:, None], values)
    values[0, 15, 1, 3] *= 1 + 1e-12
    assert separated(values) is None


def test_products_with_a_chunk_that_is_not_separated() -> None:
    torch.manual_seed(0)
    inputs, own, outputs = torch.randn(1, 4, 3), torch.randn(1, 4, 1, 5), torch.randn(1, 2, 5)
    apart = Grams(inputs, own, 1.0, 0.5, outputs=outputs)
    plain = apart.spread()
    part = slice(0, 4)
    for left, right in ((apart, plain), (plain, apart), (apart, apart)):
        tile, expected = torch.zeros(4, 4), torch.zeros(4, 4)
        left.accumulate(tile, part, right, part)
        plain.accumulate(expected, part, plain, part)
        torch.testing.assert_close(tile, expected)
