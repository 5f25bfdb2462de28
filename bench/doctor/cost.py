"""What the doctor costs beside a training step, of models that people have.

`python -m bench.doctor.cost` prints the time of `ft.doctor` within its usual budget and the peak of its memory,
beside two steps of Adam on the same model and batch; the doctor may take twice their memory.
"""

from __future__ import annotations

import argparse
import resource
import sys
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from time import perf_counter

import numpy as np
import torch
from torch import Tensor, nn

import foretrain as ft
from bench.harness.jobs import Arrays


class Block(nn.Module):
    """Of GPT-2: attention and two layers, each after a normalisation and beside a skip connection."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attend, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """(samples, positions, units) to the same."""
        samples, length, width = x.shape
        heads = self.attend(self.first(x)).reshape(samples, length, 3, self.heads, width // self.heads)
        mixed = nn.functional.scaled_dot_product_attention(*heads.permute(2, 0, 3, 1, 4), is_causal=True)
        x = x + self.project(mixed.transpose(1, 2).reshape(x.shape))
        return x + self.narrow(nn.functional.gelu(self.widen(self.second(x)), approximate="tanh"))


class Language(nn.Module):
    """GPT-2 with the readout tied to the embedding."""

    def __init__(self, vocabulary: int, width: int, depth: int, heads: int, length: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(depth)])
        self.last, self.readout = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        for part in self.modules():
            if isinstance(part, nn.Linear | nn.Embedding):
                nn.init.normal_(part.weight, std=0.02)
        self.readout.weight = self.tokens.weight

    def forward(self, x: Tensor) -> Tensor:
        """Tokens (samples, positions) to logits (samples, positions, vocabulary)."""
        hidden = self.tokens(x) + self.positions(torch.arange(x.shape[1]))
        return self.readout(self.last(self.blocks(hidden)))


class Beside(nn.Module):
    """Layers beside a skip connection, which may have a layer of its own."""

    def __init__(self, layers: nn.Module, skip: nn.Module, last: nn.Module) -> None:
        super().__init__()
        self.layers, self.skip, self.last = layers, skip, last

    def forward(self, x: Tensor) -> Tensor:
        """Both, added."""
        return self.last(self.layers(x) + self.skip(x))


def _convolution(given: int, units: int, size: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    layer = nn.Conv2d(given, units, size, stride, size // 2, groups=groups, bias=False)
    return [layer, nn.BatchNorm2d(units)]


def mobile_network() -> nn.Module:
    """MobileNetV2 for 32 x 32 pixels, a quarter of a million parameters."""
    layers, given = [*_convolution(3, 8, 3), nn.ReLU6()], 8
    for units, count, stride in ((16, 2, 1), (16, 2, 2), (24, 3, 2), (32, 3, 1), (56, 2, 2), (112, 1, 1)):
        for step in [stride, *[1] * (count - 1)]:
            wide = 6 * given
            inner = [
                *_convolution(given, wide, 1),
                nn.ReLU6(),
                *_convolution(wide, wide, 3, step, wide),
                nn.ReLU6(),
            ]
            block = nn.Sequential(*inner, *_convolution(wide, units, 1))
            same = step == 1 and given == units
            layers.append(Beside(block, nn.Identity(), nn.Identity()) if same else block)
            given = units
    layers += [*_convolution(given, 320, 1), nn.ReLU6(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Dropout(0.2), nn.Linear(320, 10))


def residual_network() -> nn.Module:
    """ResNet-18 for 32 x 32 pixels."""
    layers, given = [*_convolution(3, 64, 3), nn.ReLU()], 64
    for units, first in ((64, 1), (128, 2), (256, 2), (512, 2)):
        for stride in (first, 1):
            inner = [*_convolution(given, units, 3, stride), nn.ReLU(), *_convolution(units, units, 3)]
            skip = nn.Identity() if stride == 1 else nn.Sequential(*_convolution(given, units, 1, stride))
            layers.append(Beside(nn.Sequential(*inner), skip, nn.ReLU()))
            given = units
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


def text(samples: int, vocabulary: int) -> tuple[Tensor, Tensor]:
    """Tokens that count on in threes, and the next of each."""
    start = torch.randint(vocabulary, (samples, 1), generator=torch.Generator().manual_seed(0))
    tokens = (start + 3 * torch.arange(65)) % min(vocabulary, 500)
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def images(samples: int) -> tuple[Tensor, Tensor]:
    """Ten patterns in noise."""
    source = torch.Generator().manual_seed(0)
    labels = torch.randint(10, (samples,), generator=source)
    patterns = nn.functional.interpolate(torch.randn(10, 3, 8, 8, generator=source), scale_factor=4)
    return patterns[labels] + torch.randn(samples, 3, 32, 32, generator=source), labels


@dataclass(frozen=True)
class Patient:
    """A model, its data and its batches."""

    name: str
    model: Callable[[], nn.Module]
    data: Callable[[], tuple[Tensor, Tensor]]
    batch: int

    def made(self) -> nn.Module:
        """The same one every time."""
        torch.manual_seed(0)
        return self.model()

    def diagnose(self) -> Arrays:
        """By the doctor, within its usual budget."""
        model, (x, y) = self.made(), self.data()
        start = perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
            found = ft.doctor(model, x, y, optimizer=optimizer, batch_size=self.batch)
        examined = sum(not (one.cut or one.failed) for one in found.examinations.values())
        return {"seconds": np.array(perf_counter() - start), "examined": np.array(examined)}

    def step(self) -> Arrays:
        """Two steps of a training, of which the second one counts: in the first, Adam has no state yet."""
        model, (x, y) = self.made(), self.data()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        for _ in range(2):
            start = perf_counter()
            optimizer.zero_grad()
            outputs = model(x[: self.batch])
            logits = outputs.flatten(0, 1) if outputs.ndim == 3 else outputs
            nn.functional.cross_entropy(logits, y[: self.batch].flatten()).backward()
            optimizer.step()
        return {"seconds": np.array(perf_counter() - start)}


PATIENTS = (
    Patient("GPT-2, 9.2 M, 64 tokens", partial(Language, 8192, 256, 9, 4, 64), partial(text, 512, 8192), 16),
    Patient(
        "GPT-2, 3.3 M, 50,257 words", partial(Language, 50257, 64, 2, 2, 64), partial(text, 256, 50257), 8
    ),
    Patient("MobileNetV2, 0.25 M", mobile_network, partial(images, 1024), 32),
    Patient("ResNet-18, 11 M", residual_network, partial(images, 1024), 32),
)


def measured(patient: Patient, what: str) -> tuple[Arrays, float]:
    """What a fresh process returns that does nothing else, and by how many megabytes its memory grew."""
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        return process.submit(_measure, PATIENTS.index(patient), what).result()


def _measure(place: int, what: str) -> tuple[Arrays, float]:
    unit = 1024.0 if sys.platform != "darwin" else 1024.0**2
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found: Arrays = getattr(PATIENTS[place], what)()
    return found, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / unit


def main(arguments: Sequence[str] | None = None) -> int:
    """One row a model: seconds and checks of the doctor, and its memory beside that of a training step."""
    parser = argparse.ArgumentParser(prog="python -m bench.doctor.cost", description=__doc__)
    parser.add_argument("--only", default="", metavar="WORD", help="models with that in their name")
    chosen = [one for one in PATIENTS if parser.parse_args(arguments).only in one.name]
    print(f"{'model':28} {'step':>8} {'memory':>9} {'doctor':>8} {'memory':>9} {'times':>6} {'checks':>7}")
    for patient in chosen:
        step, step_memory = measured(patient, "step")
        found, memory = measured(patient, "diagnose")
        row = f"{patient.name:28} {float(step['seconds']):6.2f} s {step_memory:6.0f} MB "
        row += f"{float(found['seconds']):6.1f} s {memory:6.0f} MB {memory / step_memory:6.2f}"
        print(f"{row} {int(found['examined']):7d}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
