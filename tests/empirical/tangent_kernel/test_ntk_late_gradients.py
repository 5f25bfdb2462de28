"""Gradients formed while they are multiplied: tables, several passes, every core, and what is not repeated."""

from __future__ import annotations

import pytest
import torch
from brute_force import assert_equal, called, jacobian, kernel_of, lone, normal
from torch import Tensor, nn
from torch.nn import functional

from foretrain.empirical.tangent_kernel import engine, factors, ntk, planning
from foretrain.support import threads

WIDTH, TOKENS = 6, 50


class Transformer(nn.Module):
    """One block of attention on looked-up tokens or on patches; the head reads one position."""

    def __init__(self, tokens: bool, read: int) -> None:
        super().__init__()
        self.first = nn.Embedding(TOKENS, WIDTH) if tokens else nn.Linear(3, WIDTH)
        self.attend, self.up = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, 8)
        self.down, self.head = nn.Linear(8, WIDTH), nn.Linear(WIDTH, 2)
        self.norm, self.read = nn.LayerNorm(WIDTH), read

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        q, k, v = self.attend(self.norm(h)).chunk(3, -1)
        h = h + functional.scaled_dot_product_attention(q, k, v)
        h = h + self.down(functional.gelu(self.up(self.norm(h))))
        found: Tensor = self.head(h[:, self.read])
        return found


def inputs(tokens: bool, samples: int, length: int) -> Tensor:
    if tokens:
        return torch.randint(TOKENS, (samples, length), generator=torch.Generator().manual_seed(1))
    return normal(samples, length, 3)


def expected(model: nn.Module, x: Tensor) -> Tensor:
    found = jacobian(
        model.parameters(), [lambda n=n: called(model, lone(x, n)) for n in range(len(x))]
    ).squeeze(1)
    return kernel_of(found, found)


def made(tokens: bool, read: int) -> nn.Module:
    torch.manual_seed(0)
    return Transformer(tokens, read).double()


@pytest.mark.parametrize("cores", [1, 2, 3])
@pytest.mark.parametrize("batch_size", ["auto", 2])
@pytest.mark.parametrize("tokens", [True, False])
def test_products_on_every_core_and_of_several_passes(
    tokens: bool, batch_size: int | str, cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(factors, "_SQUARE_WORK", 0)
    monkeypatch.setattr(factors, "_FEWEST_LATE", 4)
    monkeypatch.setattr(factors, "_LATE_NUMBERS", 40)
    monkeypatch.setattr(threads, "free_cores", lambda: cores)
    model, x = made(tokens, -1), inputs(tokens, 5, 4)
    whole = expected(model, x)
    before = torch.get_num_threads()
    torch.set_num_threads(cores)
    try:
        assert_equal(ntk(model, x, batch_size=batch_size).values, whole)
        assert torch.get_num_threads() == cores
    finally:
        torch.set_num_threads(before)
    assert_equal(ntk(model, x, x[1:4], batch_size=batch_size).values, whole[:, 1:4])
    traced = ntk(model, x, outputs="trace", batch_size=batch_size).values
    assert_equal(traced, whole.diagonal(dim1=2, dim2=3).sum(-1))


def test_a_table_counts_the_rows_that_are_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    form = factors.LateGradients.blocks

    def watch(self: factors.LateGradients, *arguments: object) -> object:
        seen.extend([self.entries] if self.table is not None else [])
        return form(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(factors.LateGradients, "blocks", watch)
    model, x = made(True, 0), inputs(True, 6, 20)
    kernel = ntk(model, x)
    assert_equal(kernel.values, expected(model, x))
    assert kernel.routes["first.weight"].way == "gradient"
    assert seen[-1] == WIDTH * len(x.unique()) < WIDTH * TOKENS


@pytest.mark.parametrize(("length", "read"), [(64, -1), (65, 0), (65, -1), (4, 2), (6, 0)])
@pytest.mark.parametrize("tokens", [True, False])
def test_one_position_with_gradients_needs_no_second_backward_pass(
    tokens: bool, length: int, read: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With all gradients at one position several axes fit; which holds the samples shows in two sizes of batches."""

    def refuse(*_: object) -> None:
        raise AssertionError("the chunk was confirmed")

    monkeypatch.setattr(engine, "_confirm", refuse)
    model, x = made(tokens, read), inputs(tokens, 4, length)
    assert_equal(ntk(model, x).values, expected(model, x))


class ReadSomewhere(Transformer):
    """The head reads the positions that a sample names: behind the attention no other hears of a gradient."""

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        x, read = x[:, :-1], x[:, -1:]
        h = self.first(x[..., :3])
        q, k, v = self.attend(self.norm(h)).chunk(3, -1)
        h = h + functional.scaled_dot_product_attention(q, k, v)
        h = h + self.down(functional.gelu(self.up(self.norm(h))))
        chosen = (torch.arange(h.shape[1]) == read[..., 0].long()).to(h.dtype)
        found: Tensor = self.head((h * chosen[..., None]).sum(1))
        return found


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Positions of the sensitivities before and after they are shortened, where all weights form gradients."""
    positions: list[tuple[int, int]] = []
    original = factors.LateGradients.shortened

    def watched(self: factors.LateGradients) -> factors.LateGradients:
        short = original(self)
        positions.append((self.sensitivities.shape[-1], short.sensitivities.shape[-1]))
        return short

    monkeypatch.setattr(factors.LateGradients, "shortened", watched)
    monkeypatch.setattr(planning, "costs", only_gradients)
    return positions


@pytest.mark.parametrize("way", ["full", "trace", "x2"])
@pytest.mark.parametrize("batch_size", ["auto", 2, 1])
@pytest.mark.parametrize("places", [[1, 1, 1, 1, 1], [0, 0, 3, 3, 3], [0, 3, 3, 3, 3]])
def test_positions_without_gradients_are_left_out(
    places: list[int], batch_size: int | str, way: str, kept: list[tuple[int, int]]
) -> None:
    torch.manual_seed(0)
    model = ReadSomewhere(False, 0).double()
    x = normal(5, 5, 3)
    x[:, -1] = torch.tensor(places, dtype=x.dtype)[:, None]
    right = expected(model, x)
    if way == "x2":
        assert_equal(ntk(model, x, x[2:], batch_size=batch_size).values, right[:, 2:])
    elif way == "trace":
        assert_equal(
            ntk(model, x, outputs="trace", batch_size=batch_size).values, torch.einsum("nmaa->nm", right)
        )
    else:
        assert_equal(ntk(model, x, batch_size=batch_size).values, right)
    assert any(after < before for before, after in kept)


def only_gradients(job: planning.Job, site: planning.Site) -> dict[str, float]:
    return {"gradient": 1.0}


class Pooled(Transformer):
    """The head reads the mean over positions, which the last layer reaches by itself alone."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        found: Tensor = self.head((h + self.down(functional.gelu(self.up(self.norm(h))))).mean(1))
        return found


@pytest.mark.parametrize("way", ["full", "trace", "x2"])
@pytest.mark.parametrize("batch_size", ["auto", 2])
def test_one_position_stands_for_all_before_a_mean(
    batch_size: int | str, way: str, kept: list[tuple[int, int]]
) -> None:
    torch.manual_seed(0)
    model, x = Pooled(False, 0).double(), normal(5, 3, 3)
    right = expected(model, x)
    if way == "x2":
        assert_equal(ntk(model, x, x[2:], batch_size=batch_size).values, right[:, 2:])
    elif way == "trace":
        found = ntk(model, x, outputs="trace", batch_size=batch_size).values
        assert_equal(found, torch.einsum("nmaa->nm", right))
    else:
        assert_equal(ntk(model, x, batch_size=batch_size).values, right)
    assert (3, 1) in kept
