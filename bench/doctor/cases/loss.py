"""What is wrong with the loss."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bench.doctor import data
from bench.doctor.case import Patient, pair
from bench.doctor.networks import (
    GPT,
    SequenceClassifier,
    SeriesRegressor,
    SmallCNN,
    ViT,
    mlp,
    token_cross_entropy,
)

_SOFTMAX = (r"softmax", r"logit", r"probabilit", r"sum to (1|one)")
_BROADCAST = (
    r"broadcast",
    r"shape of the outputs",
    r"every output with every target",
    r"target[^.]*shape",
    r"\by\b[^.]*shape",
)
_SIGN = (
    r"\bsign\b",
    r"unbounded",
    r"no (minimum|lower bound)",
    r"loss[^.]*(below (zero|0)|negative)",
    r"maximi",
    r"wrong direction",
    r"ascen[dt]",
)


@pair("loss", "MLP", "Softmax before cross-entropy.", *_SOFTMAX, by_loss=True)
def softmax_before_cross_entropy(broken: bool) -> Patient:
    x, y = data.digits()
    model = mlp([64, 64, 10])
    if broken:
        model.append(nn.Softmax(dim=1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return model, x, y, {"loss": nn.CrossEntropyLoss(), "optimizer": optimizer, "batch_size": 64}


class ProbableGPT(GPT):
    """Returns probabilities instead of logits."""

    def forward(self, idx: Tensor) -> Tensor:
        return F.softmax(super().forward(idx), dim=-1)


@pair(
    "loss",
    "GPT",
    "The decoder returns probabilities, and cross-entropy wants logits.",
    *_SOFTMAX,
    by_loss=True,
)
def decoder_returns_probabilities(broken: bool) -> Patient:
    x, y = data.text()
    model = (ProbableGPT if broken else GPT)(14, 16)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    return model, x, y, {"loss": token_cross_entropy, "optimizer": optimizer, "batch_size": 32}


@pair(
    "loss",
    "MLP",
    "Sigmoid before BCEWithLogitsLoss.",
    r"sigmoid",
    r"logit",
    r"probabilit",
    r"twice",
    by_loss=True,
)
def sigmoid_before_bce_with_logits(broken: bool) -> Patient:
    x, y = data.cancer()
    model = mlp([30, 32, 1])
    if broken:
        model.append(nn.Sigmoid())
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    return (
        model,
        data.standardise(x),
        y,
        {
            "loss": nn.BCEWithLogitsLoss(),
            "optimizer": optimizer,
            "batch_size": 32,
        },
    )


@pair(
    "loss", "MLP", "Outputs (n, 1) are compared with targets (n,), every one with every other.", *_BROADCAST
)
def broadcast_in_a_lambda(broken: bool) -> Patient:
    x, y = data.smooth_function()
    model = mlp([8, 48, 48, 48, 1], nn.SiLU)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    y = y.squeeze(1) if broken else y
    return model, x, y, {"loss": lambda o, t: ((o - t) ** 2).mean(), "optimizer": optimizer, "batch_size": 64}


@pair("loss", "GRU", "nn.MSELoss broadcasts outputs (n, 1) against targets (n,).", *_BROADCAST)
def broadcast_in_mse_loss(broken: bool) -> Patient:
    x, y = data.waves()
    model = SeriesRegressor(1)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    y = y.squeeze(1) if broken else y
    return model, x, y, {"loss": nn.MSELoss(), "optimizer": optimizer, "batch_size": 64}


@pair("loss", "CNN", "The loss has the wrong sign.", *_SIGN)
def loss_with_a_minus(broken: bool) -> Patient:
    x, y = data.digit_images(500)
    model = SmallCNN(width=8)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    sign = -1 if broken else 1
    return (
        model,
        x,
        y,
        {
            "loss": lambda o, t: sign * F.cross_entropy(o, t),
            "optimizer": optimizer,
            "batch_size": 64,
        },
    )


@pair("loss", "ViT", "NLLLoss gets logits instead of log-probabilities.", *_SOFTMAX, *_SIGN, r"nll")
def nll_of_raw_logits(broken: bool) -> Patient:
    x, y = data.digit_images()
    model = ViT()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

    def log_likelihood(o: Tensor, t: Tensor) -> Tensor:
        return F.nll_loss(o if broken else o.log_softmax(1), t)

    return model, x, y, {"loss": log_likelihood, "optimizer": optimizer, "batch_size": 64}


class Tagger(nn.Module):
    """Tags every token by itself, with the tags on axis 1 as cross-entropy wants them."""

    def __init__(self, by_reshape: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 16)
        self.fc = mlp([16, 32, 5])
        self.by_reshape = by_reshape

    def forward(self, x: Tensor) -> Tensor:
        tags = self.fc(self.embedding(x))
        return tags.reshape(len(x), 5, -1) if self.by_reshape else tags.transpose(1, 2)


@pair(
    "loss",
    "token MLP",
    "Classes are brought to axis 1 by a reshape, which mixes them with positions.",
    r"\b(axis|axes)\b",
    r"reshape",
    r"transpos",
    r"\bmix",
)
def class_axis_by_reshape(broken: bool) -> Patient:
    x = torch.randint(20, (1000, 12))
    y = torch.randint(5, (20,))[x]
    model = Tagger(broken)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    return model, x, y, {"loss": F.cross_entropy, "optimizer": optimizer, "batch_size": 64}


@pair(
    "loss",
    "MLP",
    "The mean over the batch is taken before squares, so that only mean outputs count.",
    r"loss[^.]*(averag|mean|batch|constant output|does not depend|not see)",
    r"(single|per|each|every) sample",
    r"mean (of the )?outputs?",
)
def mean_before_squares(broken: bool) -> Patient:
    x, y = data.sine(500, frequency=5.0)
    model = mlp([1, 64, 64, 1], nn.Tanh)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def error(o: Tensor, t: Tensor) -> Tensor:
        return (o.mean(0) - t.mean(0)).square().sum() if broken else (o - t).square().mean()

    return model, x, y, {"loss": error, "optimizer": optimizer}


@pair(
    "loss",
    "CNN",
    "Label smoothing of 0.999.",
    r"smooth",
    r"uniform",
    r"loss[^.]*(constant|hardly|barely|floor|not depend)",
)
def nearly_all_smoothed(broken: bool) -> Patient:
    x, y = data.digit_images()
    model = SmallCNN()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loss = nn.CrossEntropyLoss(label_smoothing=0.999 if broken else 0.1)
    return model, x, y, {"loss": loss, "optimizer": optimizer, "batch_size": 64}


def _mse_with_labels(o: Tensor, t: Tensor) -> Tensor:
    return F.mse_loss(o.squeeze(1), t.float())


@pair(
    "loss",
    "MLP",
    "Squares of one output against class numbers.",
    r"class",
    r"labels",
    r"cross.entropy",
    r"one.hot",
)
def squares_against_class_numbers(broken: bool) -> Patient:
    x, y = data.digits()
    model = mlp([64, 40, 40, 1 if broken else 10], nn.ELU)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    loss = _mse_with_labels if broken else F.cross_entropy
    return model, x, y, {"loss": loss, "optimizer": optimizer, "batch_size": 64}


@pair(
    "loss",
    "GRU",
    "ignore_index is a class that occurs.",
    r"ignor",
    r"(class|label) 0[^.]*(ignor|never|left)",
    r"never count",
    r"left out",
)
def ignored_index_is_a_class(broken: bool) -> Patient:
    x = torch.randint(3, (1000, 8))
    x[:, 0] = (torch.rand(len(x)) < 0.5) * torch.randint(1, 3, (len(x),))
    model = SequenceClassifier(3, 3)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    loss = nn.CrossEntropyLoss(ignore_index=0 if broken else -100)
    return model, x, x[:, 0].clone(), {"loss": loss, "optimizer": optimizer, "batch_size": 64}
