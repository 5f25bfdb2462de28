"""Models whose graph or whose choice of rows depends on the values of the samples."""

from __future__ import annotations

import pytest
import torch
from brute_force import Case, assert_equal, brute_force, check, normal, ready, slow_parameters
from torch import Tensor, nn

from foretrain.empirical.tangent_kernel import ntk


class Experts(nn.Module):
    """Each sample goes to the expert that its gate likes best; what is not routed is not computed."""

    def __init__(self, chosen: int) -> None:
        super().__init__()
        self.gate, self.chosen = nn.Linear(3, 3), chosen
        self.experts = nn.ModuleList(
            [nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)) for _ in range(3)]
        )

    def forward(self, x: Tensor) -> Tensor:
        weights, order = torch.softmax(self.gate(x), -1).topk(self.chosen, -1)
        result = x.new_zeros(len(x), 2)
        for number, expert in enumerate(self.experts):
            rows, place = torch.where(order == number)
            if len(rows):
                result = result.index_add(0, rows, weights[rows, place, None] * expert(x[rows]))
        return result


@pytest.mark.parametrize("size", ["auto", 1, 2, 3])
@pytest.mark.parametrize("chosen", [1, 2])
def test_mixture_of_experts(chosen: int, size: int | str) -> None:
    model, x = ready(lambda: Experts(chosen)), normal(9, 3)
    order = torch.softmax(model.gate(x), -1).argmax(-1)
    assert len(order.unique()) > 1  # else nothing is routed
    assert_equal(ntk(model, x, batch_size=size).values, brute_force(model, x))


class Dense(Experts):
    """All experts see all samples, and a mask chooses: the graph is always the same."""

    def forward(self, x: Tensor) -> Tensor:
        order = self.gate(x).argmax(-1)
        found = torch.stack([expert(x) for expert in self.experts], 1)
        return found[torch.arange(len(x)), order]


@pytest.mark.parametrize("size", ["auto", 2])
def test_masked_experts(size: int | str) -> None:
    model, x = ready(lambda: Dense(1)), normal(9, 3)
    assert_equal(ntk(model, x, batch_size=size).values, brute_force(model, x))


class Branches(nn.Module):
    """Python decides, sample by sample, which layer is used and how often."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.last = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        rows = []
        for row in x:
            hidden = row
            while hidden.norm() > 0.8:
                layer = self.left if hidden[0] > 0 else self.right
                hidden = 0.5 * torch.tanh(layer(hidden))
            rows.append(hidden)
        return self.last(torch.stack(rows))


@pytest.mark.parametrize("size", ["auto", 1, 3])
def test_control_flow_of_each_sample(size: int | str) -> None:
    model, x = ready(Branches), normal(6, 3)
    assert_equal(ntk(model, x, batch_size=size).values, brute_force(model, x))


class Rare(nn.Module):
    """A parameter that only some samples reach: chunks without such a sample do not have it in their graph."""

    def __init__(self, readable: bool) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 2)
        self.scale, self.shift = nn.Parameter(torch.randn(4)), nn.Parameter(torch.randn(4))
        self.rare, self.readable = nn.Parameter(torch.randn(4)), readable

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.first(x)) * self.scale + self.shift
        positive = x[:, :1] > 0
        if bool(positive.any()):
            rare = self.rare if self.readable else torch.maximum(hidden, self.rare)
            hidden = torch.where(positive, hidden * rare, hidden)
        return self.last(hidden)


SIGNS = torch.tensor([1.0, -1, 1, -1, -1, -1, 1, 1, -1])[:, None]


@pytest.mark.slow(after=6)
@pytest.mark.parametrize("size", ["auto", 1, 2, 3])
@pytest.mark.parametrize("readable", [True, False])
@pytest.mark.parametrize("flipped", [1, -1])
def test_a_parameter_that_some_chunks_do_not_have(readable: bool, size: int | str, flipped: int) -> None:
    model, x = ready(lambda: Rare(readable)), normal(9, 3)
    x[:, :1] = flipped * SIGNS * x[:, :1].abs()
    assert_equal(ntk(model, x, batch_size=size).values, brute_force(model, x))
    expected = brute_force(model, x)
    assert_equal(ntk(model, x[:5], x[3:], batch_size=size).values, expected[:5, 3:])


class Sorted(nn.Module):
    """Samples are sorted before the layers and put back afterwards, which leaves every sample as it is."""

    def __init__(self, by_hand: bool) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
        self.by_hand = by_hand

    def forward(self, x: Tensor) -> Tensor:
        order = x[:, 0].argsort(descending=True)
        if not self.by_hand:
            return self.layers(x[order])[order.argsort()]
        found = self.layers(torch.stack([x[i] for i in order.tolist()]))
        return torch.stack([found[i] for i in order.argsort().tolist()])


@pytest.mark.parametrize("by_hand", [False, True])
@pytest.mark.parametrize("sorted_first", [True, False])
@pytest.mark.parametrize("size", ["auto", 2, 3])
def test_samples_in_another_order_inside(by_hand: bool, sorted_first: bool, size: int | str) -> None:
    # The first look takes samples 0, 4 and 8: where these are in order already, it sees no reordering.
    model, x = ready(lambda: Sorted(by_hand)), normal(9, 3)
    if sorted_first:
        x[[0, 4, 8], 0] = torch.tensor([2.0, 0.5, -2.0], dtype=x.dtype)
    assert_equal(ntk(model, x, batch_size=size).values, brute_force(model, x))


class Early(nn.Module):
    """Samples that are sure leave after the first layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.early, self.late = nn.Linear(3, 4), nn.Linear(4, 2), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.first(x))
        found = self.early(hidden)
        unsure = found[:, 0] < 0
        result = found.clone()
        result[unsure] = found[unsure] + self.late(hidden[unsure] ** 2)
        return result


@pytest.mark.parametrize("size", ["auto", 1, 2, 4])
def test_early_exits(size: int | str) -> None:
    model, x = ready(Early), normal(9, 3)
    assert_equal(ntk(model, x, batch_size=size).values, brute_force(model, x))


class MaxPooled(nn.Module):
    """Indices that depend on values, but stay within each sample."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        best = hidden.norm(dim=-1).argmax(1)
        return self.last(torch.take_along_dim(hidden, best[:, None, None], 1).squeeze(1) + hidden.amax(1))


def test_choices_within_a_sample_stay_fast() -> None:
    check(Case(MaxPooled, normal(5, 3, 3)))


def test_a_dead_network_in_the_first_look() -> None:
    # Samples 0, 2 and 4 leave all rectifiers shut, the others open them.
    def make() -> nn.Module:
        model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
        nn.init.constant_(model[0].weight, 1.0)
        nn.init.zeros_(model[0].bias)
        return model

    model = ready(make, shaken=False)
    x = normal(5, 3).abs() * torch.tensor([-1.0, 1, -1, 1, -1])[:, None]
    for size in ("auto", 1, 2):
        kernel = ntk(model, x, batch_size=size)
        assert_equal(kernel.values, brute_force(model, x))
        assert not slow_parameters(kernel).keys() & {"2.weight", "2.bias"}


class TimeFirst(nn.Module):
    """Positions come first inside, and only the best of them counts."""

    def __init__(self) -> None:
        super().__init__()
        self.score = nn.Linear(2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.score(x.transpose(0, 1).contiguous()).amax(0)


@pytest.mark.parametrize("size", ["auto", 2, 3])
def test_a_layout_that_fits_the_first_samples_by_chance(size: int | str) -> None:
    # In samples 0, 3 and 6 the best positions are 0, 1 and 2: as if samples were the first axis inside.
    model, x = ready(TimeFirst), normal(7, 3, 2)
    for place, sample in enumerate((0, 3, 6)):
        best = int(model.score(x[sample]).argmax())
        x[sample, [place, best]] = x[sample, [best, place]]
    assert_equal(ntk(model, x, batch_size=size).values, brute_force(model, x))
