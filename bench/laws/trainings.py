"""What is done with whole trainings: plateaus, recording, diagnosis, comparison, sweeps."""

from __future__ import annotations

import tempfile
from math import isqrt
from pathlib import Path

import torch

import foretrain as ft
from bench.laws.law import Job, Law
from bench.peer_side.torch_networks import perceptron
from foretrain.experiments.sweep import sweep
from foretrain.training import Recorder

FEATURES = 16
NUMBER = 8.0  # bytes
SWEEP = """\
observable = "susceptibility"
[fixed]
activation = "tanh"
[axes]
C_W = {{ from = 0.5, to = 2.0, points = {points} }}
"""


def laws() -> list[Law]:
    """Costs of `ft.plateau`, `ft.training.Recorder`, `ft.doctor`, `ft.compare` and sweeps."""
    return [*_of_one_network(), *_of_many()]


def _of_one_network() -> list[Law]:
    return [
        Law(
            "plateau of a tanh network 16-32-32-1, with and without advice",
            "N",
            "samples",
            (512, 2048, 8192),
            (0, 1),
            _plateau,
            lambda size: NUMBER,
            moved=lambda size: 500 * NUMBER * size,
            instead="a sample of the data: the plateau is a matter of means",
        ),
        Law(
            "a step that is not recorded",
            "steps",
            "steps",
            (50_000, 100_000, 200_000),
            (0, 1),
            lambda size: _recorded(size, every=10**9),
            lambda size: NUMBER,
            divides=False,
        ),
        Law(
            "a record of loss, spectra and NTK shares, MLP 16-32-32-1",
            "records",
            "records",
            (10, 20, 40),
            (0, 1),
            lambda size: _recorded(size, every=1),
            lambda size: 100 * NUMBER * size,
            large=(1e4, 1e6),
            held=lambda size: 100 * NUMBER,  # one record; all of them are on disk
            divides=False,
            instead="`budget=`, which leaves out what costs too much",
        ),
        Law(
            "the doctor, MLP with two hidden layers, 256 samples",
            "P",
            "parameters",
            (16_000, 64_000, 256_000, 1_000_000),
            (0, 1),
            _doctor,
            lambda size: NUMBER * size,
            large=(1e9, 1e12),
            divides=False,
            instead="some checks (`checks=`), or a narrower network of the same kind",
        ),
    ]


def _of_many() -> list[Law]:
    return [
        Law(
            "`ft.compare`: `K` and `V`, tanh, 3 layers of 32, two inputs",
            "draws",
            "networks",
            (1000, 2000, 4000),
            (0, 1),
            _comparison,
            lambda size: 100 * NUMBER,
        ),
        Law(
            "`ft.compare(..., trained=True)`, tanh, 3 layers of 32, two inputs",
            "draws",
            "networks",
            (50, 100, 200),
            (0, 1),
            _trained_comparison,
            lambda size: 100 * NUMBER,
        ),
        Law(
            "a sweep of two numbers, kept point by point",
            "points",
            "points",
            (8, 32, 128),
            (0, 1),
            _sweep,
            lambda size: 10 * NUMBER * size,
        ),
    ]


def _samples(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    x = torch.randn(count, FEATURES)
    return x, torch.tanh(x[:, :1] + 0.5 * x[:, 1:2])


def _tanh(width: int) -> torch.nn.Sequential:
    torch.manual_seed(1)
    layers = perceptron((FEATURES, width, width, 1))
    return torch.nn.Sequential(*(torch.nn.Tanh() if isinstance(m, torch.nn.ReLU) else m for m in layers))


def _plateau(size: int) -> Job:
    (x, y), model = _samples(size), _tanh(32)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.1)
    return lambda: ft.plateau(model, x, y, lr=0.02)


def _recorded(steps: int, every: int) -> Job:
    (x, y), model = _samples(64), _tanh(32)
    loss = torch.nn.functional.mse_loss

    def job() -> None:
        with tempfile.TemporaryDirectory() as folder:
            names = ["loss", "weight_spectra", "ntk_shares"]
            options = {"batch": (x, y), "loss": loss, "every": every, "budget": None, "progress": False}
            with Recorder(Path(folder) / "run", model, names, **options) as recorder:
                for _ in range(steps):
                    recorder.step()

    return job


def _doctor(parameters: int) -> Job:
    (x, y), model = _samples(256), _tanh(isqrt(parameters))
    return lambda: ft.doctor(model, x, y, optimizer=0.05)


def _comparison(draws: int) -> Job:
    network = ft.MLP("tanh", depth=3, width=32, C_b=0.1, C_W=1.3)
    return lambda: ft.compare(network, [[1.0, 0.5], [-0.4, 1.1]], ["K", "V"], draws=draws)


def _trained_comparison(draws: int) -> Job:
    network = ft.MLP("tanh", depth=3, width=32, C_b=0.1, C_W=1.3)
    data = [[1.0, 0.5], [-0.4, 1.1]], [0.7, -0.3], [[0.3, 0.3]]
    return lambda: ft.compare(network, *data, trained=True, widths=[16, 32, 64], draws=draws)


def _sweep(points: int) -> Job:
    def job() -> None:
        with tempfile.TemporaryDirectory() as folder:
            spec = Path(folder) / "sweep.toml"
            spec.write_text(SWEEP.format(points=points), encoding="utf-8")
            sweep(spec, workers=1)

    return job
