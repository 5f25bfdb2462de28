"""Which way a parameter takes, and that all ways lead to the same kernel."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from brute_force import assert_equal, brute_force, force_way, normal, ready, slow_parameters, tokens
from torch import Tensor, nn

from foretrain.empirical.tangent_kernel import ntk
from foretrain.empirical.tangent_kernel.capture import Site
from foretrain.empirical.tangent_kernel.planning import Job, cheapest, costs


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LSTM(3, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)[0].mean(1)


class Attentive(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x, x)[0].mean(1)


class Crossed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, kdim=3, vdim=5, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x[:, :, :3], torch.cat([x, x[:, :, :1]], -1))[0].mean(1)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 3)

    def forward(self, ids: Tensor) -> Tensor:
        return torch.tanh(self.table(ids)).mean(1) @ self.table.weight.T


COMMON: dict[str, tuple[Callable[[], nn.Module], Tensor]] = {
    "linear": (lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), normal(4, 3)),
    "linear at positions": (lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)), normal(4, 6, 3)),
    "convolution": (lambda: nn.Sequential(nn.Conv2d(2, 3, 2), nn.Tanh(), nn.Conv2d(3, 1, 2)), normal(4, 2, 4, 4)),
    "grouped convolution": (lambda: nn.Conv2d(4, 4, 2, groups=2), normal(4, 4, 3, 3)),
    "depthwise convolution": (lambda: nn.Conv1d(3, 3, 2, groups=3), normal(4, 3, 5)),
    "transposed convolution": (lambda: nn.ConvTranspose2d(2, 2, 2, stride=2), normal(4, 2, 2, 2)),
    "grouped transposed": (lambda: nn.ConvTranspose1d(4, 2, 3, groups=2), normal(4, 4, 3)),
    "embedding": (lambda: nn.Sequential(nn.Embedding(7, 3, padding_idx=2), nn.Tanh(), nn.Flatten()), tokens(4, 3)),
    "attention": (Attentive, normal(4, 3, 4)),
    "attention of unequal widths": (Crossed, normal(4, 3, 4)),
    "encoder": (lambda: nn.TransformerEncoderLayer(4, 2, 6, batch_first=True), normal(4, 3, 4)),
    "recurrent": (Recurrent, normal(4, 3, 3)),
    "layer norm": (lambda: nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4)), normal(4, 5, 3)),
    "group norm": (lambda: nn.Sequential(nn.Conv2d(2, 4, 2), nn.GroupNorm(2, 4)), normal(4, 2, 3, 3)),
    "instance norm": (lambda: nn.Sequential(nn.Conv1d(2, 4, 2), nn.InstanceNorm1d(4, affine=True)), normal(4, 2, 5)),
    "batch norm": (lambda: nn.Sequential(nn.Conv2d(2, 4, 2), nn.BatchNorm2d(4)), normal(4, 2, 3, 3)),
    "root mean square norm": (lambda: nn.Sequential(nn.Linear(3, 4), nn.RMSNorm(4)), normal(4, 5, 3)),
    "prelu": (lambda: nn.Sequential(nn.Linear(3, 4), nn.PReLU(4)), normal(4, 3)),
    "tied table": (Tied, tokens(4, 5)),
}  # fmt: skip


@pytest.mark.slow(after=5)
@pytest.mark.parametrize("name", COMMON)
@pytest.mark.parametrize("outputs", ["full", "trace"])
def test_common_layers_are_never_treated_sample_by_sample(name: str, outputs: str) -> None:
    make, x = COMMON[name]
    assert not slow_parameters(ntk(ready(make), x, outputs=outputs))
    assert not slow_parameters(ntk(ready(make), x, x[:3], outputs=outputs, batch_size=2))
    assert not slow_parameters(ntk(ready(make), x, batch_size=3))


@pytest.mark.slow(after=11)
@pytest.mark.parametrize("way", ["pairs", "gradient", "gram"])
@pytest.mark.parametrize("name", COMMON)
def test_all_ways_agree(name: str, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever way the costs would choose, each possible one must give the kernel."""
    make, x = COMMON[name]
    force_way(way, monkeypatch)
    model = ready(make)
    expected = brute_force(model, x)
    kernel = ntk(model, x)
    assert_equal(kernel.values, expected)
    if way == "gradient":  # is always possible
        assert not {"gram", "pairs"} & {route.way for route in kernel.routes.values()}
    assert_equal(ntk(model, x, x[1:], batch_size=2).values, expected[:, 1:])
    traced = ntk(model, x, outputs="trace", batch_size=3)
    assert_equal(traced.values, expected.diagonal(dim1=2, dim2=3).sum(-1))
    rates = {parameter: 0.5 + number for number, (parameter, _) in enumerate(model.named_parameters())}
    weighted = ntk(model, x, rates=rates, by="parameter")
    plain = ntk(model, x, by="parameter")
    for parameter, rate in rates.items():
        torch.testing.assert_close(weighted[parameter], rate * plain[parameter], rtol=1e-10, atol=1e-12)
    assert_equal(plain.total(), expected)


JOB = Job(rows=100, columns=100, outputs=10, trace=False, symmetric=True)


def test_a_large_layer_at_one_position_goes_by_grams() -> None:
    assert cheapest(JOB, Site(groups=1, p=1000, q=1000, positions=1)) == "gram"


def test_a_large_layer_at_few_positions_goes_by_pairs() -> None:
    assert cheapest(JOB, Site(groups=1, p=4000, q=4000, positions=2)) == "pairs"


def test_a_small_filter_at_many_positions_goes_by_gradients() -> None:
    assert cheapest(JOB, Site(groups=1, p=9, q=8, positions=1000)) == "gradient"


def test_a_large_table_is_never_formed() -> None:
    table = Site(groups=1, p=50_000, q=64, positions=16, is_table=True)
    assert cheapest(JOB, table) == "pairs"


def test_a_table_looked_up_once_does_not_go_by_grams() -> None:
    # Its inputs are rows, not vectors.
    assert "gram" not in costs(JOB, Site(groups=1, p=7, q=3, positions=1, is_table=True))


def test_pairs_of_samples_to_compute() -> None:
    assert JOB.pairs == 5050
    assert Job(3, 4, 2, trace=False, symmetric=False).pairs == 12
    assert JOB.samples == 100
    assert Job(3, 4, 2, trace=False, symmetric=False).samples == 7


def test_the_trace_is_cheaper_than_the_whole() -> None:
    whole, traced = (Job(100, 100, 10, trace, symmetric=True) for trace in (False, True))
    for site in (Site(1, 50, 50, 1), Site(1, 50, 50, 9), Site(1, 50, 50, 9, is_table=True)):
        cheaper, dearer = costs(traced, site), costs(whole, site)
        assert all(cheaper[way] < dearer[way] for way in cheaper)


def test_routes_say_what_was_found() -> None:
    kernel = ntk(ready(COMMON["linear"][0]), COMMON["linear"][1])
    assert str(kernel.routes["0.weight"]) == "gram: 3 x 4, 1 position"
    assert str(kernel.routes["0.bias"]) == "gram: with 0.weight"
