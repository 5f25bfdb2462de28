"""Steps that are mostly noise."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bench.doctor import data
from bench.doctor.case import Patient, pair
from bench.doctor.networks import Mixer, SequenceClassifier, SmallCNN, mlp

_NOISE = (
    r"batch(es)?\b[^.]*(small|large|nois|size)",
    r"(small|large)r?[^.]*batch",
    r"nois[ey]",
    r"rate[^.]*(large|high|lower|reduc|smaller|unstable|too)",
    r"(lower|reduce|smaller)[^.]*rate",
)
_FAST = (*_NOISE[3:], r"diverge", r"unstable", r"\bsum", r"reduction")


@pair("noise", "MLP", "One sample in a batch at a large rate.", *_NOISE)
def one_sample_at_a_large_rate(broken: bool) -> Patient:
    x, y = data.digits()
    model = mlp([64, 64, 10])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    return model, x, y, {"loss": F.cross_entropy, "optimizer": optimizer, "batch_size": 1 if broken else 64}


@pair("noise", "CNN", "Two samples in a batch of Adam at 0.05.", *_NOISE)
def adam_with_two_samples(broken: bool) -> Patient:
    x, y = data.digit_images(1000)
    model = SmallCNN()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05 if broken else 5e-3)
    return model, x, y, {"loss": F.cross_entropy, "optimizer": optimizer, "batch_size": 2 if broken else 48}


class NoisyInputs(nn.Module):
    """Adds noise to its inputs while it is trained."""

    def __init__(self, deviation: float) -> None:
        super().__init__()
        self.net = mlp([64, 64, 10])
        self.deviation = deviation

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x + self.deviation * torch.randn_like(x) if self.training else x)


@pair(
    "noise",
    "MLP",
    "Inputs get noise that is thirty times larger than they are.",
    r"nois",
    r"augment",
    r"random(ly|ness)|random (noise|state|start)",
    r"differ[^.]*(call|pass)",
)
def augmentation_that_drowns_inputs(broken: bool) -> Patient:
    x, y = data.digits()
    model = NoisyInputs(30.0 if broken else 0.3)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    return model, x, y, {"loss": F.cross_entropy, "optimizer": optimizer, "batch_size": 64}


@pair("noise", "MLP", "The loss is a sum over the batch, at the rate of a mean.", *_FAST)
def sum_at_the_rate_of_a_mean(broken: bool) -> Patient:
    x, y = data.smooth_function()
    model = mlp([8, 64, 64, 1])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.15)
    loss = nn.MSELoss(reduction="sum" if broken else "mean")
    return model, x, y, {"loss": loss, "optimizer": optimizer, "batch_size": 128}


class DroppedInputs(Mixer):
    """Drops most pixels while it is trained."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(F.dropout(x, 0.97, self.training))


@pair(
    "noise",
    "MLP-Mixer",
    "Ninety-seven pixels in a hundred are dropped.",
    r"drop",
    r"nois",
    r"augment",
    r"random(ly|ness)|random (noise|state|start)",
)
def pixels_dropped(broken: bool) -> Patient:
    x, y = data.digit_images()
    model = (DroppedInputs if broken else Mixer)(width=24, depth=1)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    return model, x, y, {"loss": F.cross_entropy, "optimizer": optimizer, "batch_size": 64}


@pair("noise", "GRU", "Four sequences in a batch at a rate of 3 with momentum.", *_NOISE, *_FAST)
def four_sequences_at_a_rate_of_three(broken: bool) -> Patient:
    x, y = data.recall(length=6)
    model = SequenceClassifier(6, 6)
    optimizer = torch.optim.SGD(model.parameters(), lr=3.0 if broken else 0.2, momentum=0.9)
    return model, x, y, {"loss": F.cross_entropy, "optimizer": optimizer, "batch_size": 4 if broken else 64}
