"""Weights that start in a bad place."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from bench.doctor import data
from bench.doctor.case import Patient, pair
from bench.doctor.networks import (
    GPT,
    AutoEncoder,
    ElmanLoop,
    ResidualMLP,
    SequenceClassifier,
    SmallCNN,
    TabularMLP,
    mlp,
    token_cross_entropy,
)

_START = (
    r"^initialisation",
    r"initiali[sz](e|ed|ing)\b",
    r"weights?[^.]*(zero|small|large|scale|same|identical|equal|rescale|draw)",
    r"critical (C_W|init)",
)
_SMALL = (
    *_START,
    r"(signal|gradient|activation)s?[^.]*(vanish|shrink|fade|small|die)",
    r"plateau",
    r"saddle",
)
_LARGE = (*_START, r"(signal|gradient|activation|output|logit)s?[^.]*(explode|grow|large|huge)", r"saturat")


def fill(model: nn.Module, value: float) -> None:
    """Set all weights of layers, and no bias."""
    for parameter in model.parameters():
        if parameter.ndim > 1:
            nn.init.constant_(parameter, value)


@pair("initialisation", "MLP", "All weights are zero.", *_SMALL, r"symmetr", r"all zero")
def all_weights_zero(broken: bool) -> Patient:
    x, y = data.digits()
    model = mlp([64, 64, 10])
    if broken:
        for parameter in model.parameters():
            nn.init.zeros_(parameter)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    return model, x, y, {"loss": F.cross_entropy, "optimizer": optimizer, "batch_size": 64}


@pair(
    "initialisation",
    "MLP",
    "All units of a layer are the same.",
    *_START,
    r"symmetr",
    r"identical",
    r"same (unit|weight)",
    r"rank (of )?(1|one)\b",
)
def all_units_the_same(broken: bool) -> Patient:
    x, y = data.spirals()
    model = mlp([2, 48, 48, 3], nn.Tanh)
    if broken:
        fill(model, 0.1)
        for layer in (model[0], model[2]):
            nn.init.zeros_(layer.bias)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    return model, x, y, {"loss": F.cross_entropy, "optimizer": optimizer, "batch_size": 64}


@pair("initialisation", "MLP", "Weights of a deep network are drawn with deviation 0.001.", *_SMALL)
def weights_of_a_thousandth(broken: bool) -> Patient:
    x, y = data.digits()
    model = mlp([64, 64, 64, 64, 64, 10], nn.Tanh)
    if broken:
        for layer in model:
            if isinstance(layer, nn.Linear):
                nn.init.normal_(layer.weight, std=0.001)
                nn.init.zeros_(layer.bias)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    return model, x, y, {"loss": F.cross_entropy, "optimizer": optimizer, "batch_size": 64}


@pair("initialisation", "MLP", "Weights are drawn with deviation 1, so that tanh saturates.", *_LARGE)
def tanh_saturated_by_weights_of_one(broken: bool) -> Patient:
    x, y = data.smooth_function()
    model = mlp([8, 128, 128, 128, 1], nn.Tanh)
    if broken:
        for layer in model:
            if isinstance(layer, nn.Linear):
                nn.init.normal_(layer.weight)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    return model, x, y, {"loss": F.mse_loss, "optimizer": optimizer, "batch_size": 64}


@pair(
    "initialisation",
    "MLP",
    "Biases of -10 keep every relu off.",
    r"dead",
    r"\boff\b",
    r"bias",
    r"inactive",
    r"never active",
)
def relus_dead_by_their_biases(broken: bool) -> Patient:
    x, y = data.digits()
    model = mlp([64, 64, 64, 10])
    if broken:
        nn.init.constant_(model[2].bias, -10.0)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    return model, x, y, {"loss": F.cross_entropy, "optimizer": optimizer, "batch_size": 64}


@pair("initialisation", "MLP", "Sigmoids are saturated by weights that are 300 times too large.", *_LARGE)
def sigmoids_saturated(broken: bool) -> Patient:
    x, y = data.digits()
    model = mlp([64, 64, 64, 10], nn.Sigmoid)
    if broken:
        with torch.no_grad():
            model[0].weight.mul_(300)
            model[2].weight.mul_(300)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    return model, x, y, {"loss": F.cross_entropy, "optimizer": optimizer, "batch_size": 64}


@pair(
    "initialisation",
    "GPT",
    "All weights of a decoder are drawn with deviation 1.",
    *_LARGE,
    r"attention[^.]*(saturat|sharp|one.hot)",
)
def decoder_drawn_with_deviation_one(broken: bool) -> Patient:
    x, y = data.text()
    model = GPT(14, 16, depth=3)
    if broken:
        for module in model.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3 if broken else 3e-3)
    return model, x, y, {"loss": token_cross_entropy, "optimizer": optimizer, "batch_size": 32}


@pair(
    "initialisation",
    "RNN loop",
    "Recurrent weights have a gain of 10: states are chaotic.",
    *_LARGE,
    r"chao",
    r"recurrent weight",
    r"states?[^.]*(chao|explo|grow|saturat|unstable)",
)
def chaotic_recurrent_weights(broken: bool) -> Patient:
    x, y = data.waves(800, length=16)
    model = ElmanLoop(1, 1)
    nn.init.orthogonal_(model.rec.weight, gain=10.0 if broken else 1.0)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    return model, x, y, {"loss": F.mse_loss, "optimizer": optimizer, "batch_size": 64}


@pair(
    "initialisation",
    "CNN",
    "The second convolution starts at zero, and so does the head.",
    *_SMALL,
    r"all zero",
)
def convolution_and_head_at_zero(broken: bool) -> Patient:
    x, y = data.digit_images()
    model = SmallCNN()
    if broken:
        for parameter in (*model.conv2.parameters(), *model.fc.parameters()):
            nn.init.zeros_(parameter)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return model, x, y, {"loss": F.cross_entropy, "optimizer": optimizer, "batch_size": 64}


@pair(
    "initialisation",
    "GRU",
    "The head's weights are a thousand times too large.",
    *_LARGE,
    r"(head|readout)\b[^.]*(large|huge|scale)",
    by_loss=True,
)
def head_a_thousand_times_too_large(broken: bool) -> Patient:
    x, y = data.recall(length=8)
    model = SequenceClassifier(6, 6)
    if broken:
        with torch.no_grad():
            model.fc.weight.mul_(1000)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    return model, x, y, {"loss": F.cross_entropy, "optimizer": optimizer, "batch_size": 64}


@pair(
    "initialisation",
    "tabular MLP",
    "The scales of all batch normalisations start at zero.",
    *_SMALL,
    r"(batch|layer).?norm|normali[sz]ation",
    r"gamma",
)
def normalisation_scales_at_zero(broken: bool) -> Patient:
    x, y = data.rule_of_table()
    model = TabularMLP(12, 4)
    if broken:
        for layer in (model.bn1, model.bn2):
            nn.init.zeros_(layer.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return model, x, y, {"loss": F.cross_entropy, "optimizer": optimizer, "batch_size": 64}


@pair(
    "initialisation",
    "autoencoder",
    "Uniform weights from 0 to 0.1: signals keep to one direction.",
    *_START,
    r"weights?[^.]*positive",
    r"collapse",
    r"rank (of )?(1|one)\b",
)
def weights_all_positive(broken: bool) -> Patient:
    x, _ = data.digits()
    model = AutoEncoder(width=100, code=10)
    if broken:
        for layer in model.modules():
            if isinstance(layer, nn.Linear):
                nn.init.uniform_(layer.weight, 0, 0.1)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    return model, x, x.clone(), {"loss": F.mse_loss, "optimizer": optimizer, "batch_size": 64}


@pair(
    "initialisation",
    "residual MLP",
    "Weights three times too large in 12 residual blocks without norms.",
    *_LARGE,
    r"residual (block|branch|stream|connection)",
)
def residual_blocks_started_too_large(broken: bool) -> Patient:
    x, y = data.digits()
    model = ResidualMLP(64, 10, depth=12, norm=False)
    if broken:
        with torch.no_grad():
            for layer in (*model.up, *model.down):
                layer.weight.mul_(3)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    return model, x, y, {"loss": F.cross_entropy, "optimizer": optimizer, "batch_size": 64}
