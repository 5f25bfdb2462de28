"""What is wrong with the optimizer."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from bench.doctor import data
from bench.doctor.case import Patient, pair
from bench.doctor.networks import (
    AutoEncoder,
    DeepSets,
    Encoder,
    GraphNet,
    Mixer,
    ResidualMLP,
    ResNet,
    SequenceClassifier,
    SeriesRegressor,
    SmallCNN,
    TabularMLP,
    UNet,
    mlp,
    token_cross_entropy,
)

_LEFT_OUT = (
    r"optimizer[^.]*(not|miss|only|leav|without|few|none|other)",
    r"(never|not) (trained|updated|change|move)",
    r"do(es)? not train",
    r"frozen",
    r"left out",
    r"stale",
    r"parameters? that (is|are) not",
)
_SLOW = (
    r"rate[^.]*(small|low|rais|increas|larger|higher|slow|too|another|suit)",
    r"(raise|increase|larger|higher)[^.]*rate",
)
_FAST = (
    r"rate[^.]*(large|high|lower|reduc|smaller|unstable|stable|too|another|suit)",
    r"(lower|reduce|smaller)[^.]*rate",
    r"diverge",
    r"unstable",
)


@pair("optimizer", "MLP", "The optimizer has the head alone.", *_LEFT_OUT)
def optimizer_of_the_head_alone(broken: bool) -> Patient:
    x, y = data.spirals()
    model = mlp([2, 32, 32, 3])
    optimizer = torch.optim.Adam(model[-1].parameters() if broken else model.parameters(), lr=0.02)
    return model, x, y, {"loss": F.cross_entropy, "optimizer": optimizer, "batch_size": 64}


@pair("optimizer", "CNN", "The optimizer was made before the model was made anew.", *_LEFT_OUT)
def optimizer_of_an_earlier_model(broken: bool) -> Patient:
    x, y = data.digit_images()
    model = SmallCNN(width=12)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=2e-3)
    if broken:
        model = SmallCNN(width=12)
    return model, x, y, {"loss": F.cross_entropy, "optimizer": optimizer, "batch_size": 64}


@pair("optimizer", "GRU", "The recurrent layer was replaced after the optimizer was made.", *_LEFT_OUT)
def layer_replaced_after_the_optimizer(broken: bool) -> Patient:
    x, y = data.recall(length=14)
    model = SequenceClassifier(6, 6)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    if broken:
        model.embedding = nn.Embedding(6, 16)
        model.rnn = nn.GRU(16, 32, batch_first=True)
    return model, x, y, {"loss": F.cross_entropy, "optimizer": optimizer, "batch_size": 64}


@pair("optimizer", "MLP", "Weight decay of 1 with plain descent.", r"decay", r"regulari")
def descent_with_decay_of_one(broken: bool) -> Patient:
    x, y = data.digits()
    model = mlp([64, 48, 48, 10])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, weight_decay=1.0 if broken else 1e-4)
    return model, x, y, {"loss": F.cross_entropy, "optimizer": optimizer, "batch_size": 64}


@pair("optimizer", "transformer encoder", "AdamW with a weight decay of 50.", r"decay", r"regulari")
def adamw_with_decay_of_fifty(broken: bool) -> Patient:
    x, y = data.reversal()
    model = Encoder(9, 9, 7, tokens_out=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=50.0 if broken else 0.01)
    return model, x, y, {"loss": token_cross_entropy, "optimizer": optimizer, "batch_size": 64}


@pair("optimizer", "autoencoder", "Adam with eps = 1.", r"\beps", r"epsilon", *_SLOW)
def adam_with_eps_of_one(broken: bool) -> Patient:
    x, _ = data.digits()
    model = AutoEncoder(width=48, code=20)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3, eps=1.0 if broken else 1e-8)
    return model, x, x.clone(), {"loss": F.mse_loss, "optimizer": optimizer, "batch_size": 64}


@pair("optimizer", "CNN", "Momentum of 0.999.", r"momentum", *_FAST)
def momentum_of_0_999(broken: bool) -> Patient:
    x, y = data.digit_images()
    model = SmallCNN(width=12)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.999 if broken else 0.9)
    return model, x, y, {"loss": F.cross_entropy, "optimizer": optimizer, "batch_size": 64}


@pair("optimizer", "MLP", "Adam's betas are exchanged.", r"beta", r"momentum", *_FAST, by_loss=True)
def betas_exchanged(broken: bool) -> Patient:
    x, y = data.digits()
    model = mlp([64, 64, 64, 10])
    betas = (0.999, 0.9) if broken else (0.9, 0.999)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, betas=betas)
    return model, x, y, {"loss": F.cross_entropy, "optimizer": optimizer, "batch_size": 64}


@pair(
    "optimizer", "GNN", "The optimizer maximises.", r"maximi", r"\bsign\b", r"ascen[dt]", r"wrong direction"
)
def optimizer_that_maximises(broken: bool) -> Patient:
    x, y = data.graphs()
    model = GraphNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3, maximize=broken)
    return model, x, y, {"loss": F.cross_entropy, "optimizer": optimizer, "batch_size": 64}


@pair(
    "optimizer",
    "GRU",
    "The recurrent layer's group has a rate of 0.",
    *_LEFT_OUT,
    r"rate (of|is) 0",
    r"rate[^.]*zero",
)
def group_with_rate_zero(broken: bool) -> Patient:
    x, y = data.adding(length=12)
    model = SeriesRegressor(2)
    groups = [
        {"params": model.rnn.parameters(), "lr": 0.0 if broken else 0.01},
        {"params": model.fc.parameters()},
    ]
    optimizer = torch.optim.Adam(groups, lr=0.01)
    return model, x, y, {"loss": F.mse_loss, "optimizer": optimizer, "batch_size": 64}


@pair("optimizer", "ResNet", "Descent at a rate of 1e-5.", *_SLOW)
def descent_at_1e_5(broken: bool) -> Patient:
    x, y = data.digit_images(600)
    model = ResNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-5 if broken else 0.05, momentum=0.9)
    return model, x, y, {"loss": F.cross_entropy, "optimizer": optimizer, "batch_size": 32}


@pair("optimizer", "transformer encoder", "Adam at a rate of 1e-6.", *_SLOW)
def adam_at_1e_6(broken: bool) -> Patient:
    x, y = data.sorting()
    model = Encoder(8, 8, 6, tokens_out=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-6 if broken else 3e-3)
    return model, x, y, {"loss": token_cross_entropy, "optimizer": optimizer, "batch_size": 64}


@pair("optimizer", "MLP-Mixer", "Adam at a rate of 0.3.", *_FAST, by_loss=True)
def adam_at_0_3(broken: bool) -> Patient:
    x, y = data.digit_images()
    model = Mixer()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.3 if broken else 3e-3)
    return model, x, y, {"loss": F.cross_entropy, "optimizer": optimizer, "batch_size": 64}


@pair("optimizer", "DeepSets", "Descent at a rate of 5.", *_FAST)
def descent_at_5(broken: bool) -> Patient:
    x, y = data.sets()
    model = DeepSets()
    optimizer = torch.optim.SGD(model.parameters(), lr=5.0 if broken else 0.05, momentum=0.9)
    return model, x, y, {"loss": F.mse_loss, "optimizer": optimizer, "batch_size": 64}


@pair("optimizer", "U-Net", "Adagrad's rate decays by 1 / (1 + t).", r"decay", *_SLOW)
def adagrad_whose_rate_decays(broken: bool) -> Patient:
    x, y = data.blobs()
    model = UNet()
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.02, lr_decay=1.0 if broken else 0.0)
    return model, x, y, {"loss": F.binary_cross_entropy_with_logits, "optimizer": optimizer, "batch_size": 16}


@pair("optimizer", "residual MLP", "RMSprop at a rate of 0.5.", *_FAST)
def rmsprop_at_0_5(broken: bool) -> Patient:
    x, y = data.smooth_function()
    model = ResidualMLP(8, 1, depth=3)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=0.5 if broken else 2e-3)
    return model, x, y, {"loss": F.mse_loss, "optimizer": optimizer, "batch_size": 64}


@pair("optimizer", "tabular MLP", "Descent at a rate of 1e-4 without momentum.", *_SLOW)
def cautious_descent_of_a_table(broken: bool) -> Patient:
    x, y = data.rule_of_table()
    model = TabularMLP(12, 4, width=32)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4 if broken else 0.1)
    return model, x, y, {"loss": F.cross_entropy, "optimizer": optimizer, "batch_size": 64}
