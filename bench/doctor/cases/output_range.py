"""Heads that cannot reach the targets."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bench.doctor import data
from bench.doctor.case import Patient, pair
from bench.doctor.networks import AutoEncoder, DeepSets, SeriesRegressor, SmallCNN, mlp

_RANGE = (
    r"(outputs?|head|predictions?)\b[^.]*(range|cannot|bounded|between|negative|positive|limited|confined)",
    r"range of (the )?(outputs?|targets?)",
    r"targets?\b[^.]*(out of|outside|beyond|cannot be reached|out of reach|unreachable)",
    r"(last|final|output) (activation|nonlinearity)",
)


@pair(
    "output range",
    "MLP",
    "A relu on the output, and half of the targets are negative.",
    *_RANGE,
    r"relu[^.]*(output|head|end)",
)
def relu_head_of_a_sine(broken: bool) -> Patient:
    x, y = data.sine()
    model = mlp([1, 64, 64, 1], nn.Tanh)
    if broken:
        model.append(nn.ReLU())
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    return model, x, y, {"loss": F.mse_loss, "optimizer": optimizer, "batch_size": 64}


@pair("output range", "MLP", "A sigmoid on the output, and targets from -2 to 2.", *_RANGE, r"sigmoid")
def sigmoid_head_of_standardised_targets(broken: bool) -> Patient:
    x, y = data.smooth_function(800, features=5)
    model = mlp([5, 100, 1], nn.GELU)
    if broken:
        model.append(nn.Sigmoid())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    return model, x, y, {"loss": F.mse_loss, "optimizer": optimizer, "batch_size": 64}


class BoundedSets(DeepSets):
    """Ends with a tanh."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(super().forward(x))


@pair(
    "output range",
    "DeepSets",
    "A tanh on the output, and targets from -8 to 8.",
    *_RANGE,
    r"tanh",
    r"saturat",
)
def tanh_head_of_large_targets(broken: bool) -> Patient:
    x, y = data.sets()
    model = BoundedSets() if broken else DeepSets()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    return model, x, 4 * y, {"loss": F.mse_loss, "optimizer": optimizer, "batch_size": 64}


class BatchSoftmaxCNN(SmallCNN):
    """Log-probabilities, over samples instead of classes."""

    axis = 0

    def forward(self, x: Tensor) -> Tensor:
        return F.log_softmax(super().forward(x), dim=self.axis)


class ClassSoftmaxCNN(BatchSoftmaxCNN):
    """Log-probabilities of classes."""

    axis = 1


def score_one_by_one(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """As when the model is used: every sample comes alone."""
    chosen = torch.cat([model(x[place : place + 1]).argmax(1) for place in range(len(x))])
    commonest = float(torch.bincount(y).max()) / len(y)
    return (float((chosen == y).float().mean()) - commonest) / (1 - commonest)


@pair(
    "output range",
    "CNN",
    "The softmax runs over the batch instead of the classes.",
    r"(over|across) (the )?(batch|samples)",
    r"other samples",
    r"\bmix",
    r"\baxis\b",
    r"softmax",
    score=score_one_by_one,
)
def softmax_over_the_batch(broken: bool) -> Patient:
    x, y = data.digit_images()
    model = BatchSoftmaxCNN() if broken else ClassSoftmaxCNN()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return model, x, y, {"loss": nn.NLLLoss(), "optimizer": optimizer, "batch_size": 32}


class ClampedAutoEncoder(AutoEncoder):
    """Returns pixels between 0 and 1."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(super().forward(x))


@pair(
    "output range",
    "autoencoder",
    "The decoder ends with a sigmoid, but pixels are standardised.",
    *_RANGE,
    r"sigmoid",
)
def sigmoid_decoder_of_standardised_pixels(broken: bool) -> Patient:
    x, _ = data.digits()
    model = ClampedAutoEncoder() if broken else AutoEncoder()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    return model, x, x.clone(), {"loss": F.mse_loss, "optimizer": optimizer, "batch_size": 64}


class PositiveForecast(SeriesRegressor):
    """Forecasts a series that is taken to be positive."""

    def forward(self, x: Tensor) -> Tensor:
        return F.softplus(super().forward(x))


@pair("output range", "GRU", "The forecast is made positive, and the series is not.", *_RANGE, r"softplus")
def positive_forecast_of_a_wave(broken: bool) -> Patient:
    x, y = data.waves(length=16)
    model = (PositiveForecast if broken else SeriesRegressor)(1, width=20, cell=nn.LSTM)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    return model, x, y, {"loss": nn.MSELoss(), "optimizer": optimizer, "batch_size": 64}


@pair(
    "output range",
    "MLP",
    "Logits pass a relu with a bias that switches it off.",
    *_RANGE,
    r"relu",
    r"dead",
    r"switched off",
)
def relu_before_cross_entropy(broken: bool) -> Patient:
    x, y = data.digits()
    model = mlp([64, 64, 64, 10])
    if broken:
        with torch.no_grad():
            model[-1].bias.sub_(0.6)
        model.append(nn.ReLU())
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    return model, x, y, {"loss": F.cross_entropy, "optimizer": optimizer, "batch_size": 64}
