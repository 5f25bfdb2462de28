"""Tokens that do not arrive as they should."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bench.doctor import data
from bench.doctor.case import Patient, pair
from bench.doctor.networks import GPT, BagClassifier, SequenceClassifier, mlp, token_cross_entropy

_TOKENS = (r"embeddings?\b(?!\.)", r"vocabular", r"token")


@pair(
    "embeddings",
    "EmbeddingBag",
    "padding_idx swallows one of the two tokens that count.",
    r"padding",
    *_TOKENS,
)
def padding_index_swallows_a_token(broken: bool) -> Patient:
    x, y = data.majority()
    model = BagClassifier(3, 2, padding_idx=0 if broken else 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    return model, x, y, {"loss": F.cross_entropy, "optimizer": optimizer, "batch_size": 64}


class ClampedTokens(SequenceClassifier):
    """Treats tokens beyond a vocabulary that was counted wrongly as unknown."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.clamp(max=2))


@pair(
    "embeddings",
    "GRU",
    "The vocabulary is too small: most tokens become the same unknown one.",
    *_TOKENS,
    r"clamp",
    r"unknown",
    r"same (input|state|feature)",
)
def most_tokens_unknown(broken: bool) -> Patient:
    x, y = data.recall(length=6, vocabulary=10)
    model = (ClampedTokens if broken else SequenceClassifier)(10, 10)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    return model, x, y, {"loss": F.cross_entropy, "optimizer": optimizer, "batch_size": 64}


class NarrowTokens(nn.Module):
    """Frozen random embeddings, and an MLP on their mean."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(60, width)
        self.embedding.weight.requires_grad = False
        self.net = mlp([width, 32, 3])

    def forward(self, x: Tensor) -> Tensor:
        return self.net(self.embedding(x).mean(1))


@pair(
    "embeddings",
    "MLP",
    "Embeddings are random, frozen, and one number wide.",
    *_TOKENS,
    r"frozen",
    r"narrow",
    r"not trained",
    r"capacit",
    r"bottleneck",
    r"requires_grad",
)
def embeddings_frozen_and_narrow(broken: bool) -> Patient:
    x, y = data.bags()
    model = NarrowTokens(1 if broken else 64)
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=0.01)
    return model, x, y, {"loss": F.cross_entropy, "optimizer": optimizer, "batch_size": 64}


@pair(
    "embeddings",
    "EmbeddingBag",
    "max_norm of a thousandth keeps embeddings near zero.",
    r"max_norm",
    *_TOKENS,
    r"(signal|feature|activation)s?[^.]*(small|shrink|vanish)",
)
def embeddings_kept_near_zero(broken: bool) -> Patient:
    x, y = data.bags()
    model = BagClassifier(60, 3, width=8, max_norm=1e-3 if broken else None)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    return model, x, y, {"loss": F.cross_entropy, "optimizer": optimizer, "batch_size": 64}


class NumberedTokens(nn.Module):
    """Takes the numbers of tokens for quantities."""

    def __init__(self, embedded: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(60, 8) if embedded else None
        self.net = mlp([20 * (8 if embedded else 1), 64, 3])

    def forward(self, x: Tensor) -> Tensor:
        return self.net(self.embedding(x).flatten(1) if self.embedding is not None else x.float() / 60)


@pair(
    "embeddings",
    "MLP",
    "Numbers of unordered tokens are taken for quantities.",
    r"embeddings?\b(?!\.)",
    r"one.hot",
    r"categor",
    r"token",
    least=0.4,
)
def token_numbers_as_quantities(broken: bool) -> Patient:
    x, y = data.bags()
    x = torch.randperm(60)[x]
    model = NumberedTokens(not broken)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    return model, x, y, {"loss": F.cross_entropy, "optimizer": optimizer, "batch_size": 64}


@pair(
    "embeddings",
    "GPT",
    "Tied embeddings of deviation 10 make huge logits.",
    r"embeddings?\b(?!\.)",
    r"tied",
    r"logits?[^.]*(large|huge)",
    r"outputs?[^.]*(large|huge)",
    r"initiali",
    r"weights?[^.]*(large|scale)",
)
def tied_embeddings_too_large(broken: bool) -> Patient:
    x, y = data.text()
    model = GPT(14, 16)
    nn.init.normal_(model.wte.weight, std=40.0 if broken else 0.1)
    model.head.weight = model.wte.weight
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    return model, x, y, {"loss": token_cross_entropy, "optimizer": optimizer, "batch_size": 32}
