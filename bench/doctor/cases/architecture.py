"""Networks that cannot carry what the task needs."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bench.doctor import data
from bench.doctor.case import Patient, pair
from bench.doctor.networks import (
    AutoEncoder,
    DeepSets,
    GraphNet,
    Mixer,
    ResidualMLP,
    ResNet,
    SmallCNN,
    TabularMLP,
    UNet,
    mlp,
)

_CAPACITY = (
    r"capacit",
    r"bottleneck",
    r"narrow",
    r"one unit",
    r"rank (of )?(1|one)\b",
    r"width of (1|one)\b",
    r"los(e|t|es|ing) information",
    r"cannot (express|represent|fit|carry)",
    r"too few units",
)
_LOST = (
    r"pool",
    r"averag(es|ed|ing)",
    r"los(e|t|es|ing) (the )?(information|place|position)",
    r"same (output|state|feature)s? for",
    r"collaps",
    r"indistinguish",
    r"cannot (express|represent|fit|tell|see|distinguish)",
    r"do(es)? not (depend|reach|see)",
    r"information[^.]*(lost|destroy|remov|gone)",
)
_MIXED = (
    r"\bmix",
    r"other samples",
    r"(over|across|between) (the )?(batch|samples)",
    r"batch (axis|dimension|order|composition)",
    r"reshape",
    r"\bview\b",
    r"sample (axis|depends)",
    r"depends on (the )?(batch|other|rest)",
)
_NORM = (
    r"(batch|layer).?norm|normali[sz]ation",
    r"running (mean|statistic|average)",
    r"batch (size|statistic)",
    r"statistics",
    r"evaluation mode",
)
_DROPOUT = (r"dropout|dropped", r"\bnois[ey]", r"regulari")


@pair(
    "architecture",
    "MLP",
    "There is no nonlinearity, and the classes are not linear.",
    r"non.?linear",
    r"(network|model|it) is (only |purely )?linear",
    r"activation function",
)
def no_nonlinearity(broken: bool) -> Patient:
    x, y = data.spirals()
    model = mlp([2, 48, 48, 3], nn.Identity if broken else nn.ReLU)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    return model, x, y, {"loss": F.cross_entropy, "optimizer": optimizer, "batch_size": 64}


@pair("architecture", "MLP", "Everything passes through one unit.", *_CAPACITY)
def bottleneck_of_one_unit(broken: bool) -> Patient:
    x, y = data.digits()
    model = mlp([64, 64, 1 if broken else 32, 64, 10])
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    return model, x, y, {"loss": F.cross_entropy, "optimizer": optimizer, "batch_size": 64}


class EarlyPooling(nn.Module):
    """Pools, and convolves what is left."""

    def __init__(self, places: int) -> None:
        super().__init__()
        self.places = places
        self.conv = nn.Conv2d(1, 32, 3, padding=1)
        self.fc = mlp([32 * places**2, 32, 10])

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(F.relu(self.conv(F.adaptive_avg_pool2d(x, self.places))).flatten(1))


@pair(
    "architecture",
    "CNN",
    "Images are averaged to one pixel before the first convolution.",
    *_LOST,
    *_CAPACITY,
)
def images_pooled_to_one_pixel(broken: bool) -> Patient:
    x, y = data.digit_images()
    model = EarlyPooling(1 if broken else 8)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    return model, x, y, {"loss": F.cross_entropy, "optimizer": optimizer, "batch_size": 64}


class ChannelsFirst(nn.Module):
    """Takes a series (samples, time, features) to features first, by the wrong or the right operation."""

    def __init__(self, by_view: bool) -> None:
        super().__init__()
        self.by_view = by_view
        self.fc = mlp([24, 32, 1])

    def forward(self, x: Tensor) -> Tensor:
        # (samples, time, 1) -> (time, samples) -> (samples, time)
        steps = x.squeeze(2).t()
        return self.fc(steps.reshape(len(x), -1) if self.by_view else steps.t())


@pair("architecture", "MLP", "A reshape after a transposition mixes samples.", *_MIXED)
def reshape_that_mixes_samples(broken: bool) -> Patient:
    x, y = data.waves()
    model = ChannelsFirst(broken)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    return model, x, y, {"loss": F.mse_loss, "optimizer": optimizer, "batch_size": 64}


@pair(
    "architecture",
    "deep MLP",
    "Thirty sigmoid layers without skips.",
    r"depth|deep",
    r"vanish",
    r"(signal|gradient)s?[^.]*(shrink|fade|die|small|lost)",
    r"skip",
    r"^initialisation",
    r"collaps",
    r"saturat",
)
def thirty_sigmoid_layers(broken: bool) -> Patient:
    x, y = data.digits()
    model = mlp([64, *[48] * (30 if broken else 2), 10], nn.Sigmoid if broken else nn.Tanh)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    return model, x, y, {"loss": F.cross_entropy, "optimizer": optimizer, "batch_size": 64}


@pair(
    "architecture",
    "residual MLP",
    "Residual branches are multiplied by 20.",
    r"residual (block|branch|stream|connection)",
    r"branch",
    r"(signal|gradient|activation|output)s?[^.]*(explode|grow|large|huge)",
    r"\bgains?\b",
)
def residual_branches_too_strong(broken: bool) -> Patient:
    x, y = data.smooth_function()
    model = ResidualMLP(8, 1, depth=8, scale=20.0 if broken else 0.5, norm=False)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    return model, x, y, {"loss": F.mse_loss, "optimizer": optimizer, "batch_size": 64}


def _dropped(rate: float) -> nn.Sequential:
    layers = list[nn.Module]()
    for before, after in ((64, 64), (64, 64)):
        layers += [nn.Linear(before, after), nn.ReLU(), nn.Dropout(rate)]
    return nn.Sequential(*layers, nn.Linear(64, 10))


@pair("architecture", "MLP", "Dropout of 0.97 after every layer.", *_DROPOUT)
def dropout_of_0_97(broken: bool) -> Patient:
    x, y = data.digits()
    model = _dropped(0.97 if broken else 0.1)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    return model, x, y, {"loss": F.cross_entropy, "optimizer": optimizer, "batch_size": 64}


@pair("architecture", "MLP", "Outputs of a regression are dropped out.", *_DROPOUT)
def dropout_of_the_output(broken: bool) -> Patient:
    x, y = data.smooth_function()
    model = mlp([8, 96, 96, 1], nn.LeakyReLU)
    model.append(nn.Dropout(0.7 if broken else 0.0))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    return model, x, y, {"loss": F.mse_loss, "optimizer": optimizer, "batch_size": 64}


@pair(
    "architecture",
    "ResNet",
    "Batch normalisation with two images in a batch.",
    *_NORM,
    r"batch(es)?[^.]*(small|large)",
)
def normalisation_of_two_images(broken: bool) -> Patient:
    x, y = data.digit_images()
    model = ResNet()
    model.head_norm = nn.BatchNorm1d(10)
    model.fc = nn.Sequential(model.fc, model.head_norm)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    return model, x, y, {"loss": F.cross_entropy, "optimizer": optimizer, "batch_size": 2 if broken else 64}


@pair("architecture", "tabular MLP", "Momentum 0: running statistics are never taken.", *_NORM)
def running_statistics_never_taken(broken: bool) -> Patient:
    x, y = data.wine()
    model = TabularMLP(13, 3, momentum=0.0 if broken else 0.1)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    return model, x, y, {"loss": F.cross_entropy, "optimizer": optimizer, "batch_size": 32}


class NormalisedOutput(nn.Module):
    """Ends with a layer normalisation of its output, or normalises the layer before it."""

    def __init__(self, last: bool) -> None:
        super().__init__()
        self.body = mlp([8, 64, 64])
        self.norm = nn.LayerNorm(1 if last else 64)
        self.out = nn.Linear(64, 1)
        self.last = last

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.body(x))
        return self.norm(self.out(h)) if self.last else self.out(self.norm(h))


@pair(
    "architecture",
    "MLP",
    "Layer normalisation of a single output makes it constant.",
    r"(batch|layer).?norm|normali[sz]ation",
    r"constant output",
    r"same output",
    r"outputs?[^.]*(constant|do(es)? not (vary|depend))",
)
def layer_norm_of_one_output(broken: bool) -> Patient:
    x, y = data.smooth_function()
    model = NormalisedOutput(broken)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    return model, x, y, {"loss": F.mse_loss, "optimizer": optimizer, "batch_size": 64}


@pair(
    "architecture",
    "GNN",
    "Thirty rounds of averages make all nodes the same.",
    *_LOST,
    r"over.?smooth",
    r"depth|deep",
    r"all nodes",
    r"vanish",
)
def graph_averaged_thirty_times(broken: bool) -> Patient:
    x, y = data.graphs()
    model = GraphNet(30 if broken else 3, width=24, own=not broken)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    return model, x, y, {"loss": F.cross_entropy, "optimizer": optimizer, "batch_size": 64}


class CoarseUNet(UNet):
    """Pools to one place, and has no skip."""

    def __init__(self, width: int = 8) -> None:
        super().__init__(width)
        self.out = nn.Conv2d(width, 1, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        coarse = F.relu(self.middle(F.adaptive_max_pool2d(F.relu(self.down(x)), 1)))
        return self.out(F.relu(self.up(coarse.expand(-1, -1, 8, 8))))


@pair(
    "architecture",
    "U-Net",
    "The image is pooled to one place, and there is no skip.",
    *_LOST,
    r"skip",
    *_CAPACITY,
)
def segmentation_without_places(broken: bool) -> Patient:
    x, y = data.blobs()
    model = CoarseUNet() if broken else UNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    return model, x, y, {"loss": F.binary_cross_entropy_with_logits, "optimizer": optimizer, "batch_size": 16}


class SummedSets(DeepSets):
    """Sums the elements before any network sees them."""

    def __init__(self) -> None:
        super().__init__()
        self.phi = nn.Linear(3, 32)


@pair(
    "architecture",
    "DeepSets",
    "Elements are only averaged linearly, and the target is a product.",
    *_LOST,
    r"non.?linear",
    *_CAPACITY,
)
def set_averaged_before_any_nonlinearity(broken: bool) -> Patient:
    x, y = data.sets()
    model = SummedSets() if broken else DeepSets()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    return model, x, y, {"loss": F.mse_loss, "optimizer": optimizer, "batch_size": 64}


class BlindMixer(Mixer):
    """Averages patches before any of them meets another."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.patch(x).flatten(2).transpose(1, 2).mean(1)
        for ln2, channels in zip(self.ln2, self.channels):
            h = h + channels(ln2(h))
        return self.head(h)


@pair("architecture", "MLP-Mixer", "Patches are averaged before they are mixed.", *_LOST)
def patches_averaged_before_mixing(broken: bool) -> Patient:
    x, y = data.digit_images()
    model = (BlindMixer if broken else Mixer)(width=48)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    return model, x, y, {"loss": F.cross_entropy, "optimizer": optimizer, "batch_size": 64}


@pair("architecture", "autoencoder", "The code is one number.", *_CAPACITY, r"code (is|of|has)")
def code_of_one_number(broken: bool) -> Patient:
    x, _ = data.digits()
    model = AutoEncoder(code=1 if broken else 16)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    return model, x, x.clone(), {"loss": F.mse_loss, "optimizer": optimizer, "batch_size": 64}


class NormalisedInput(nn.Module):
    """Normalises every sample by itself, or all by the same numbers, before an MLP."""

    def __init__(self, each: bool) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(16, elementwise_affine=False) if each else nn.BatchNorm1d(16)
        self.net = mlp([16, 48, 48, 1])

    def forward(self, x: Tensor) -> Tensor:
        return self.net(self.norm(x))


@pair(
    "architecture",
    "MLP",
    "Every sample is normalised by itself, and the target is its size.",
    r"(batch|layer).?norm|normali[sz]ation",
    *_LOST,
)
def size_normalised_away(broken: bool) -> Patient:
    x = torch.randn(1000, 16) * (0.2 + 2 * torch.rand(1000, 1))
    y = data.standardise(x.norm(dim=1, keepdim=True))
    model = NormalisedInput(broken)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    return model, x, y, {"loss": F.mse_loss, "optimizer": optimizer, "batch_size": 64}


class ShuffledCNN(SmallCNN):
    """Flattens with the batch in the wrong place."""

    def forward(self, x: Tensor) -> Tensor:
        h = F.max_pool2d(F.relu(self.conv2(F.max_pool2d(F.relu(self.conv1(x)), 2))), 2)
        return self.fc(h.permute(1, 2, 3, 0).reshape(len(x), -1))


@pair("architecture", "CNN", "Flattening after a permutation mixes samples.", *_MIXED)
def flatten_that_mixes_samples(broken: bool) -> Patient:
    x, y = data.digit_images()
    model = ShuffledCNN() if broken else SmallCNN()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    return model, x, y, {"loss": nn.CrossEntropyLoss(), "optimizer": optimizer, "batch_size": 32}
