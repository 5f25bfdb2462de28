"""Tables of vectors: embeddings, bags, positions, tied tables."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from brute_force import Case, check, normal, tokens
from torch import Tensor, nn
from torch.nn import functional

IDS = tokens(4, 5)


class Words(nn.Module):
    """Embedded words through a small network, averaged over the sequence."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 3, **options)
        self.last = nn.Linear(3, 2)

    def forward(self, ids: Tensor) -> Tensor:
        return self.last(torch.tanh(self.table(ids)) ** 2).mean(1)


@pytest.mark.parametrize("padding", [None, 0, 3, -1])
def test_embedding_with_padding(padding: int | None) -> None:
    check(Case(lambda: Words(padding_idx=padding), IDS))


@pytest.mark.parametrize("shape", [(4, 1), (4, 4), (3, 3), (4, 12)])
def test_sequences_of_other_lengths(shape: tuple[int, int]) -> None:
    check(Case(Words, tokens(*shape)))


def test_one_word_per_sample() -> None:
    check(Case(lambda: nn.Sequential(nn.Embedding(7, 3), nn.Linear(3, 2)), tokens(4)))


def test_the_same_word_everywhere() -> None:
    check(Case(Words, torch.full((4, 5), 2)))


def test_sparse_gradients() -> None:
    check(Case(lambda: Words(sparse=True), IDS))


def test_samples_on_the_second_axis() -> None:
    class Second(Words):
        def forward(self, ids: Tensor) -> Tensor:
            return self.last(torch.tanh(self.table(ids)))

    check(Case(Second, tokens(5, 4), axis=1))


class Bag(nn.Module):
    def __init__(self, mode: str, **options: Any) -> None:
        super().__init__()
        self.table, self.last = nn.EmbeddingBag(7, 3, mode=mode, **options), nn.Linear(3, 2)

    def forward(self, ids: Tensor) -> Tensor:
        return self.last(torch.tanh(self.table(ids)))


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_are_exact(mode: str) -> None:
    check(Case(lambda: Bag(mode), IDS, slow=("table.weight",)))


def test_bags_with_padding_are_exact() -> None:
    check(Case(lambda: Bag("mean", padding_idx=1), IDS, slow=("table.weight",)))


class Language(nn.Module):
    """Words and positions; with ``tied`` the same table reads the words out."""

    def __init__(self, tied: bool, scale: float = 1.0) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(7, 4), nn.Embedding(5, 4)
        self.mixer, self.head = nn.Linear(4, 4), nn.Linear(4, 7, bias=not tied)
        if tied:
            self.head.weight = self.words.weight
        self.scale = scale

    def forward(self, ids: Tensor) -> Tensor:
        places = torch.arange(ids.shape[1])
        hidden = self.words(ids) * self.scale + self.positions(places)
        return self.head(hidden + torch.tanh(self.mixer(hidden)))[:, -2:, :3]


@pytest.mark.parametrize("scale", [1.0, 2.0])
@pytest.mark.parametrize("tied", [False, True])
def test_language_models(tied: bool, scale: float) -> None:
    check(Case(lambda: Language(tied, scale), tokens(4, 5)))


def test_a_table_as_a_parameter() -> None:
    class Indexed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.last = nn.Parameter(torch.randn(7, 3)), nn.Linear(3, 2)

        def forward(self, ids: Tensor) -> Tensor:
            return self.last(torch.tanh(self.table[ids])).mean(1)

    check(Case(Indexed, IDS, slow=("table",)))


def test_words_as_one_hot_vectors_times_a_matrix() -> None:
    class OneHot(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.last = nn.Parameter(torch.randn(7, 3)), nn.Linear(3, 2)

        def forward(self, ids: Tensor) -> Tensor:
            return self.last(torch.tanh(functional.one_hot(ids, 7).to(self.table) @ self.table)).mean(1)

    check(Case(OneHot, IDS))


def test_learned_positions_that_are_cut_and_added() -> None:
    class Positions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.positions, self.last = nn.Parameter(torch.randn(9, 3)), nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(torch.tanh(x + self.positions[: x.shape[1]]))

    check(Case(Positions, normal(4, 5, 3)))
