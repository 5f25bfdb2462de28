"""Setups that learn their training data and nothing else."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bench.doctor import data
from bench.doctor.case import Patient, pair
from bench.doctor.networks import SmallCNN, TabularMLP, mlp
from bench.doctor.training import skill

_MEMORISED = (
    r"memori",
    r"overfit",
    r"generali[sz]",
    r"held.out",
    r"unseen",
    r"random (label|target)",
    r"unrelated",
    r"belong",
    r"too few (samples|data)",
    r"more data",
    r"nothing to learn",
    r"shuffl",
)


@pair(
    "generalisation",
    "CNN",
    "The labels are random, and the network is large enough to learn them by heart.",
    *_MEMORISED,
)
def random_labels_by_heart(broken: bool) -> Patient:
    x, y = data.digit_images(300)
    y = torch.randint(10, (len(y),)) if broken else y
    model = SmallCNN(width=32)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    return model, x, y, {"loss": F.cross_entropy, "optimizer": optimizer, "batch_size": 64}


@pair("generalisation", "MLP", "Forty samples of four hundred columns, of which three count.", *_MEMORISED)
def forty_samples_of_four_hundred_columns(broken: bool) -> Patient:
    x = torch.randn(60 if broken else 1500, 400 if broken else 20)
    y = (x[:, :3].sum(1) > 0).long()
    model = mlp([x.shape[1], 64, 2])
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    return model, x, y, {"loss": F.cross_entropy, "optimizer": optimizer, "batch_size": 32}


def score_without_last_column(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """As when the model is used, where the column that was filled in afterwards is empty."""
    return skill(model, torch.cat([x[:, :-1], torch.zeros_like(x[:, -1:])], 1), y)


@pair(
    "generalisation",
    "MLP",
    "A column tells the target, and is empty when the model is used.",
    r"leak",
    r"(one|single|last) (column|feature|input)",
    r"column[^.]*target",
    r"copy of",
    score=score_without_last_column,
)
def column_that_tells_the_target(broken: bool) -> Patient:
    x, y = data.smooth_function(features=8)
    told = y + 0.01 * torch.randn_like(y) if broken else torch.randn_like(y)
    model = mlp([9, 64, 64, 1])
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    return model, torch.cat([x, told], 1), y, {"loss": F.mse_loss, "optimizer": optimizer, "batch_size": 64}


class BatchNeighbours(nn.Module):
    """Subtracts from every sample the one before it in the batch."""

    def __init__(self, neighbours: bool) -> None:
        super().__init__()
        self.net = TabularMLP(12, 4)
        self.neighbours = neighbours

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x - 3 * x.roll(1, 0) if self.neighbours else x)


@pair(
    "generalisation",
    "tabular MLP",
    "Every sample sees its neighbour in the batch.",
    r"\bmix",
    r"other samples",
    r"(over|across|between) (the )?(batch|samples)",
    r"depends on (the )?(batch|other|rest)",
    r"neighbour",
    r"leak",
)
def neighbours_in_the_batch_are_seen(broken: bool) -> Patient:
    x, y = data.rule_of_table(900)
    model = BatchNeighbours(broken)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    return model, x, y, {"loss": F.cross_entropy, "optimizer": optimizer, "batch_size": 64}
