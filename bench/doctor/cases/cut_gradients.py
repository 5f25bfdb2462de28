"""Gradients that do not arrive."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bench.doctor import data
from bench.doctor.case import Patient, pair
from bench.doctor.networks import AutoEncoder, DeepSets, ElmanLoop, SequenceClassifier, SmallCNN, UNet, mlp

_CUT = (
    r"no gradient",
    r"gradients? (is|are|stay)? ?(zero|0\b|none|cut|lost|missing)",
    r"(without|never|not|no)\b[^.]*gradient",
    r"gradients?[^.]*(not|never|cut|stop|vanish|zero)",
    r"detach",
    r"no_grad",
    r"requires_grad",
    r"cut off",
    r"disconnect",
    r"(never|not) (trained|updated|change|move)",
    r"frozen",
)


class DetachedMLP(nn.Module):
    """Body and head; the head may be kept from teaching the body."""

    def __init__(self, inputs: int, outputs: int, width: int, detached: bool) -> None:
        super().__init__()
        self.body = mlp([inputs, width, width, width], nn.Tanh)
        self.head = nn.Linear(width, outputs)
        self.detached = detached

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.body(x))
        return self.head(h.detach() if self.detached else h)


@pair("cut gradients", "MLP", "Features are detached before the head.", *_CUT)
def features_detached(broken: bool) -> Patient:
    x, y = data.spirals()
    model = DetachedMLP(2, 3, 24, broken)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    return model, x, y, {"loss": F.cross_entropy, "optimizer": optimizer, "batch_size": 64}


class NoGradEncoder(SequenceClassifier):
    """Encodes without a graph, as in evaluation code."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            out, _ = self.rnn(self.embedding(x))
        return self.fc(out[:, -1])


@pair("cut gradients", "GRU", "The encoder runs inside torch.no_grad().", *_CUT)
def encoder_inside_no_grad(broken: bool) -> Patient:
    x, y = data.recall(length=10)
    model = (NoGradEncoder if broken else SequenceClassifier)(6, 6, width=24)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    return model, x, y, {"loss": F.cross_entropy, "optimizer": optimizer, "batch_size": 64}


class QuantisedAutoEncoder(AutoEncoder):
    """Rounds its code to whole numbers."""

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(torch.round(self.encoder(x)))


@pair(
    "cut gradients", "autoencoder", "The code is rounded, which has no gradient.", *_CUT, r"round", r"quanti"
)
def code_rounded(broken: bool) -> Patient:
    x, _ = data.digits()
    model = (QuantisedAutoEncoder if broken else AutoEncoder)(code=16)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    return model, x, x.clone(), {"loss": F.mse_loss, "optimizer": optimizer, "batch_size": 64}


@pair("cut gradients", "CNN", "All but the biases were frozen by mistake.", *_CUT)
def all_but_biases_frozen(broken: bool) -> Patient:
    x, y = data.digit_images()
    model = SmallCNN(width=24)
    if broken:
        for name, parameter in model.named_parameters():
            parameter.requires_grad = name.endswith("bias")
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=2e-3)
    return model, x, y, {"loss": F.cross_entropy, "optimizer": optimizer, "batch_size": 32}


class DataSets(DeepSets):
    """Takes `.data` of the elements' features."""

    def forward(self, x: Tensor) -> Tensor:
        return self.rho(self.phi(x).mean(1).data)


@pair("cut gradients", "DeepSets", "The elements' features are taken as .data.", *_CUT, r"\.data")
def features_taken_as_data(broken: bool) -> Patient:
    x, y = data.sets()
    model = DataSets(width=12) if broken else DeepSets(width=12)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    return model, x, y, {"loss": F.mse_loss, "optimizer": optimizer, "batch_size": 64}


class NumpyUNet(UNet):
    """Smooths the coarse features with numpy."""

    def forward(self, x: Tensor) -> Tensor:
        fine = F.relu(self.down(x))
        coarse = F.relu(self.middle(F.max_pool2d(fine, 2)))
        wide = torch.cat([fine, F.relu(self.up(coarse))], 1).detach().numpy()
        return self.out(torch.from_numpy(wide / (1 + abs(wide))))


class SmoothUNet(UNet):
    """The same in torch."""

    def forward(self, x: Tensor) -> Tensor:
        fine = F.relu(self.down(x))
        coarse = F.relu(self.middle(F.max_pool2d(fine, 2)))
        wide = torch.cat([fine, F.relu(self.up(coarse))], 1)
        return self.out(wide / (1 + wide.abs()))


@pair("cut gradients", "U-Net", "Features pass through numpy.", *_CUT, r"numpy", by_loss=True)
def features_through_numpy(broken: bool) -> Patient:
    x, y = data.blobs()
    model = NumpyUNet(4) if broken else SmoothUNet(4)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    return model, x, y, {"loss": F.binary_cross_entropy_with_logits, "optimizer": optimizer, "batch_size": 16}


class DetachedLoop(ElmanLoop):
    """Cuts the graph at every step, as for stored states."""

    def step(self, x: Tensor, h: Tensor) -> Tensor:
        return super().step(x, h.detach())


@pair(
    "cut gradients",
    "RNN loop",
    "The state is detached at every step.",
    *_CUT,
    r"truncat",
    r"over time",
    r"memory",
)
def state_detached_at_every_step(broken: bool) -> Patient:
    x, y = data.recall(length=8, vocabulary=4)
    model = (DetachedLoop if broken else ElmanLoop)(8, 4, tokens=4)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    return model, x, y, {"loss": F.cross_entropy, "optimizer": optimizer, "batch_size": 64}


class ListedMLP(nn.Module):
    """Keeps its hidden layers in a list."""

    def __init__(self, registered: bool) -> None:
        super().__init__()
        layers = [nn.Linear(2, 20), nn.Linear(20, 20), nn.Linear(20, 20)]
        self.layers = nn.ModuleList(layers) if registered else layers
        self.head = nn.Linear(20, 3)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return self.head(x)


@pair(
    "cut gradients",
    "MLP",
    "Hidden layers are in a Python list, which registers nothing.",
    *_CUT,
    r"list",
    r"regist",
)
def layers_in_a_python_list(broken: bool) -> Patient:
    x, y = data.spirals()
    model = ListedMLP(registered=not broken)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    return model, x, y, {"loss": F.cross_entropy, "optimizer": optimizer, "batch_size": 64}


class Step(nn.Module):
    """A hard threshold."""

    def forward(self, x: Tensor) -> Tensor:
        return (x > 0).float()


@pair(
    "cut gradients",
    "MLP",
    "The activations are steps, of which the gradient is zero.",
    *_CUT,
    r"step",
    r"threshold",
)
def step_activations(broken: bool) -> Patient:
    x, y = data.smooth_function()
    model = mlp([8, 24, 24, 1], Step if broken else nn.Sigmoid)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    return model, x, y, {"loss": F.mse_loss, "optimizer": optimizer, "batch_size": 64}


class HardAttention(nn.Module):
    """Picks one token of a sequence by its score; or mixes them."""

    def __init__(self, hard: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(8, 16)
        self.position = nn.Parameter(0.5 * torch.randn(10, 16))
        self.score, self.fc = mlp([16, 16, 1]), mlp([16, 32, 8])
        self.hard = hard

    def forward(self, x: Tensor) -> Tensor:
        h = self.embedding(x) + self.position
        scores = self.score(h).squeeze(2)
        weights = F.one_hot(scores.argmax(1), 10).float() if self.hard else scores.softmax(1)
        return self.fc((weights.unsqueeze(2) * h).sum(1))


@pair(
    "cut gradients",
    "attention",
    "One token is picked by argmax, so that scores are never learned.",
    *_CUT,
    r"argmax",
)
def token_picked_by_argmax(broken: bool) -> Patient:
    x, y = data.recall(length=10, vocabulary=8)
    model = HardAttention(broken)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    return model, x, y, {"loss": F.cross_entropy, "optimizer": optimizer, "batch_size": 64}
