"""Small data for the cases: sets that ship with scikit-learn, and tasks that are drawn from torch's generator."""

from __future__ import annotations

import math

import numpy as np
import torch
from sklearn import datasets
from torch import Tensor

Data = tuple[Tensor, Tensor]


def standardise(values: Tensor) -> Tensor:
    """Every column with mean 0 and standard deviation 1."""
    return (values - values.mean(0)) / values.std(0).clamp_min(1e-8)


def _shuffled(x: np.ndarray, y: np.ndarray, count: int | None = None) -> Data:
    order = torch.randperm(len(x))[:count]
    return torch.as_tensor(x, dtype=torch.float32)[order], torch.as_tensor(y)[order]


def digits(count: int = 1200) -> Data:
    """Handwritten digits as 64 numbers around 0, and their labels."""
    x, y = _shuffled(*datasets.load_digits(return_X_y=True), count=count)
    return (x / 16 - 0.305) / 0.376, y.long()


def digit_images(count: int = 800) -> Data:
    """The same as images (samples, 1, 8, 8)."""
    x, y = digits(count)
    return x.reshape(-1, 1, 8, 8), y


def wine() -> Data:
    """13 raw measurements of wines, from 0.1 to 1,700, and three cultivars."""
    x, y = _shuffled(*datasets.load_wine(return_X_y=True))
    return x, y.long()


def cancer() -> Data:
    """30 raw measurements of tumours, and whether they are benign, as a column of 0 and 1."""
    x, y = _shuffled(*datasets.load_breast_cancer(return_X_y=True))
    return x, y.float().unsqueeze(1)


def diabetes() -> Data:
    """Ten standardised measurements, and the standardised progress of the disease as a column."""
    x, y = _shuffled(*datasets.load_diabetes(return_X_y=True))
    return standardise(x), standardise(y.float().unsqueeze(1))


def spirals(count: int = 900, classes: int = 3, turns: float = 0.75) -> Data:
    """Points in the plane on arms that wind around each other, and the number of the arm."""
    y = torch.randint(classes, (count,))
    radius = torch.rand(count)
    angle = 2 * math.pi * (turns * radius + y / classes) + 0.15 * torch.randn(count)
    return 2 * torch.stack([radius * angle.cos(), radius * angle.sin()], 1), y


def sine(count: int = 600, frequency: float = 3.0, noise: float = 0.05) -> Data:
    """One number between -1 and 1, and the sine of some multiple of it."""
    x = 2 * torch.rand(count, 1) - 1
    return x, torch.sin(frequency * x) + noise * torch.randn(count, 1)


def smooth_function(count: int = 1000, features: int = 8) -> Data:
    """Normal inputs, and a standardised smooth function of three of them."""
    x = torch.randn(count, features)
    y = torch.sin(1.5 * x[:, :1]) + x[:, 1:2] * x[:, 2:3] + 0.05 * torch.randn(count, 1)
    return x, standardise(y)


def rule_of_table(count: int = 1200, features: int = 12) -> Data:
    """A table of normal columns, and a class by the signs of two sums."""
    x = torch.randn(count, features)
    return x, (x[:, :3].sum(1) > 0).long() + 2 * (x[:, 3:6].sum(1) > 0).long()


def parity(count: int = 1000, bits: int = 3, features: int = 8) -> Data:
    """Signs, and whether the first few of them multiply to +1."""
    x = torch.randint(2, (count, features)).float() * 2 - 1
    return x, (x[:, :bits].prod(1) > 0).long()


def adding(count: int = 1000, length: int = 20) -> Data:
    """The adding problem: numbers and marks (samples, time, 2), and the sum of the two that are marked."""
    values, marks = torch.rand(count, length), torch.zeros(count, length)
    half = length // 2
    marks[torch.arange(count), torch.randint(half, (count,))] = 1
    marks[torch.arange(count), half + torch.randint(length - half, (count,))] = 1
    return torch.stack([values, marks], 2), standardise((values * marks).sum(1, keepdim=True))


def recall(count: int = 1000, length: int = 12, vocabulary: int = 6) -> Data:
    """Tokens, and the first of them, which is asked for at the end."""
    x = torch.randint(vocabulary, (count, length))
    return x, x[:, 0].clone()


def majority(count: int = 1000, length: int = 15, vocabulary: int = 2) -> Data:
    """Tokens, and the one that occurs most often."""
    x = torch.randint(vocabulary, (count, length))
    return x, torch.nn.functional.one_hot(x, vocabulary).sum(1).argmax(1)


def text(count: int = 800, length: int = 16) -> Data:
    """Next characters of a language of short words: inputs (samples, length) and the same one step later."""
    words = ["tick", "tack", "gong", "bell", "ring", "song"]
    letters = sorted({letter for word in words for letter in word} | {" "})
    stream = " ".join(words[int(number)] for number in torch.randint(len(words), (count * length // 4 + 8,)))
    codes = torch.tensor([letters.index(letter) for letter in stream])
    starts = torch.randint(len(codes) - length - 1, (count, 1))
    windows = codes[starts + torch.arange(length + 1)]
    return windows[:, :-1].contiguous(), windows[:, 1:].contiguous()


def sorting(count: int = 1200, length: int = 6, vocabulary: int = 8) -> Data:
    """Tokens, and the same tokens in their order."""
    x = torch.randint(vocabulary, (count, length))
    return x, x.sort(1).values


def reversal(count: int = 1000, length: int = 7, vocabulary: int = 9) -> Data:
    """Tokens, and the same tokens from the last to the first."""
    x = torch.randint(vocabulary, (count, length))
    return x, x.flip(1).contiguous()


def bags(count: int = 1000, length: int = 20, vocabulary: int = 60) -> Data:
    """Token bags of three topics, each of which prefers a third of the vocabulary, and the topic."""
    y = torch.randint(3, (count,))
    own = torch.rand(count, length) < 0.3
    topical = y[:, None] * (vocabulary // 3) + torch.randint(vocabulary // 3, (count, length))
    return torch.where(own, topical, torch.randint(vocabulary, (count, length))), y


def sets(count: int = 800, size: int = 10) -> Data:
    """Sets of points (samples, size, 3), and the standardised mean product of their first coordinates."""
    x = torch.randn(count, size, 3)
    return x, standardise(
        (x[..., 0] * x[..., 1]).mean(1, keepdim=True) + 0.5 * x[..., 2].mean(1, keepdim=True)
    )


def graphs(count: int = 500, nodes: int = 10) -> Data:
    """Graphs as (samples, nodes, nodes + 4): adjacency and features; the class of a node is that of its group."""
    groups = torch.randint(2, (count, nodes))
    same = groups[:, :, None] == groups[:, None, :]
    edges = torch.rand(count, nodes, nodes) < torch.where(same, 0.7, 0.1)
    adjacency = (edges | edges.transpose(1, 2) | torch.eye(nodes, dtype=torch.bool)).float()
    features = torch.randn(count, nodes, 4)
    features[..., 0] += 1.2 * (groups - 0.5)
    return torch.cat([adjacency, features], 2), groups


def blobs(count: int = 300, size: int = 16) -> Data:
    """Noisy images (samples, 1, size, size) with a bright disc, and the mask of the disc as 0 and 1."""
    place = torch.arange(size).float()
    centre = size * (0.25 + 0.5 * torch.rand(count, 2, 1, 1))
    radius = 2 + 2 * torch.rand(count, 1, 1)
    mask = ((place[:, None] - centre[:, 0]) ** 2 + (place[None] - centre[:, 1]) ** 2 < radius**2).float()
    return (2 * mask - 0.3 + 0.7 * torch.randn(count, size, size)).unsqueeze(1), mask.unsqueeze(1)


def waves(count: int = 600, length: int = 24) -> Data:
    """Sine waves of random phase and frequency (samples, length, 1), and their next value."""
    phase, frequency = 2 * math.pi * torch.rand(count, 1), 0.2 + 0.4 * torch.rand(count, 1)
    series = torch.sin(phase + frequency * torch.arange(length + 1)) + 0.02 * torch.randn(count, length + 1)
    return series[:, :-1, None].contiguous(), series[:, -1:].contiguous()
