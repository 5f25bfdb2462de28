"""Healthy setups that look strange."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bench.doctor import data
from bench.doctor.case import Patient, healthy
from bench.doctor.networks import (
    GPT,
    AutoEncoder,
    DeepSets,
    ResidualMLP,
    ResNet,
    SmallCNN,
    TabularMLP,
    mlp,
    token_cross_entropy,
)


@healthy("unusual", "residual MLP")
def branches_that_start_at_zero() -> Patient:
    x, y = data.digits()
    model = ResidualMLP(64, 10, depth=10, norm=False)
    for layer in model.down:
        nn.init.zeros_(layer.weight)
        nn.init.zeros_(layer.bias)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    return model, x, y, {"loss": F.cross_entropy, "optimizer": optimizer, "batch_size": 64}


class ReZero(ResidualMLP):
    """Residual branches times learned numbers that start at zero."""

    def __init__(self, inputs: int, outputs: int, depth: int) -> None:
        super().__init__(inputs, outputs, depth=depth, norm=False)
        self.alpha = nn.Parameter(torch.zeros(depth))

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        for alpha, up, down in zip(self.alpha, self.up, self.down):
            h = h + alpha * down(F.relu(up(h)))
        return self.head(h)


@healthy("unusual", "residual MLP")
def rezero() -> Patient:
    x, y = data.smooth_function()
    model = ReZero(8, 1, 8)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    return model, x, y, {"loss": F.mse_loss, "optimizer": optimizer, "batch_size": 64}


@healthy("unusual", "CNN")
def head_that_starts_at_zero() -> Patient:
    x, y = data.digit_images()
    model = SmallCNN(width=20)
    nn.init.zeros_(model.fc.weight)
    nn.init.zeros_(model.fc.bias)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    return model, x, y, {"loss": F.cross_entropy, "optimizer": optimizer, "batch_size": 64}


@healthy("unusual", "ResNet")
def last_norm_scale_of_blocks_at_zero() -> Patient:
    x, y = data.digit_images(600)
    model = ResNet()
    for block in model.blocks:
        nn.init.zeros_(block.bn2.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return model, x, y, {"loss": F.cross_entropy, "optimizer": optimizer, "batch_size": 32}


@healthy("unusual", "frozen MLP")
def linear_probe_of_frozen_features() -> Patient:
    x, y = data.digits()
    backbone = nn.Sequential(nn.Linear(64, 300), nn.ReLU())
    for parameter in backbone.parameters():
        parameter.requires_grad = False
    model = nn.Sequential(backbone, nn.Linear(300, 10))
    optimizer = torch.optim.Adam(model[1].parameters(), lr=5e-3)
    return model, x, y, {"loss": F.cross_entropy, "optimizer": optimizer, "batch_size": 64}


@healthy("unusual", "MLP")
def small_rate_that_suffices() -> Patient:
    x, y = data.cancer()
    model = mlp([30, 128, 128, 1])
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)
    return (
        model,
        data.standardise(x),
        y,
        {
            "loss": nn.BCEWithLogitsLoss(),
            "optimizer": optimizer,
            "batch_size": 64,
        },
    )


@healthy("unusual", "MLP", least=0.3)
def heavy_dropout_and_decay() -> Patient:
    x, y = data.diabetes()
    model = nn.Sequential(nn.Linear(10, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.3)
    return model, x, y, {"loss": F.mse_loss, "optimizer": optimizer, "batch_size": 64}


@healthy("unusual", "MLP")
def one_class_in_twenty() -> Patient:
    x = torch.randn(2000, 10)
    y = (x[:, 0] + x[:, 1] > 2.3).long()
    model = mlp([10, 32, 2])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    return model, x, y, {"loss": F.cross_entropy, "optimizer": optimizer, "batch_size": 64}


@healthy("unusual", "CNN")
def labels_smoothed() -> Patient:
    x, y = data.digit_images()
    model = SmallCNN(width=14)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    return (
        model,
        x,
        y,
        {"loss": nn.CrossEntropyLoss(label_smoothing=0.2), "optimizer": optimizer, "batch_size": 64},
    )


@healthy("unusual", "deep MLP")
def deep_and_narrow() -> Patient:
    x, y = data.sine()
    model = mlp([1, *[12] * 8, 1], nn.Tanh)
    for layer in model:
        if isinstance(layer, nn.Linear):
            nn.init.orthogonal_(layer.weight, gain=1.1)
            nn.init.zeros_(layer.bias)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    return model, x, y, {"loss": F.mse_loss, "optimizer": optimizer, "batch_size": 64}


@healthy("unusual", "MLP")
def adam_with_large_eps() -> Patient:
    x, y = data.smooth_function()
    model = mlp([8, 64, 64, 1], nn.Tanh)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05, eps=0.1)
    return model, x, y, {"loss": F.mse_loss, "optimizer": optimizer, "batch_size": 64}


@healthy("unusual", "GPT", least=0.4)
def embeddings_tied_to_the_head() -> Patient:
    x, y = data.text()
    model = GPT(14, 16)
    model.head.weight = model.wte.weight
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    return model, x, y, {"loss": token_cross_entropy, "optimizer": optimizer, "batch_size": 32}


@healthy("unusual", "DeepSets")
def sets_need_no_positions() -> Patient:
    x, y = data.sets()
    model = DeepSets(width=64)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    return model, x, y, {"loss": F.mse_loss, "optimizer": optimizer, "batch_size": 64}


@healthy("unusual", "linear", least=0.06)
def small_signal_in_noise() -> Patient:
    x = torch.randn(4000, 5)
    y = data.standardise(0.35 * x[:, :1] + torch.randn(4000, 1))
    model = nn.Linear(5, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    return model, x, y, {"loss": F.mse_loss, "optimizer": optimizer, "batch_size": 128}


@healthy("unusual", "MLP")
def forty_samples_that_suffice() -> Patient:
    y = torch.arange(40) % 2
    x = torch.randn(40, 3) + 1.5 * (2 * y[:, None] - 1)
    model = mlp([3, 16, 2])
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    return model, x, y, {"loss": F.cross_entropy, "optimizer": optimizer}


@healthy("unusual", "CNN")
def log_softmax_before_cross_entropy() -> Patient:
    class LogCNN(SmallCNN):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).log_softmax(1)

    x, y = data.digit_images()
    model = LogCNN(width=10)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    return model, x, y, {"loss": F.cross_entropy, "optimizer": optimizer, "batch_size": 64}


@healthy("unusual", "linear autoencoder", least=0.3)
def autoencoder_without_nonlinearity() -> Patient:
    x, _ = data.digits()
    model = nn.Sequential(nn.Linear(64, 16, bias=False), nn.Linear(16, 64, bias=False))
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    return model, x, x.clone(), {"loss": F.mse_loss, "optimizer": optimizer, "batch_size": 64}


@healthy("unusual", "tabular MLP")
def raw_columns_behind_batch_norm() -> Patient:
    x, y = data.cancer()
    model = TabularMLP(30, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    return model, x, y, {"loss": nn.BCEWithLogitsLoss(), "optimizer": optimizer, "batch_size": 64}


@healthy("unusual", "autoencoder", least=0.3)
def masked_autoencoder() -> Patient:
    class Masked(AutoEncoder):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(F.dropout(x, 0.3, self.training))

    x, _ = data.digits()
    model = Masked(code=24)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    return model, x, x.clone(), {"loss": F.mse_loss, "optimizer": optimizer, "batch_size": 64}


@healthy("unusual", "MLP")
def batches_of_four_at_a_small_rate() -> Patient:
    x, y = data.digits()
    model = mlp([64, 64, 10])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    return model, x, y, {"loss": F.cross_entropy, "optimizer": optimizer, "batch_size": 4}
