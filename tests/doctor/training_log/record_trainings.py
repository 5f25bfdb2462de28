"""Train small networks of many kinds, healthy and faulty, and keep their logs in ``trainings.npz``.

Run this file to make them anew; tests only read what it has written. What a training is called says what is wrong
with it, and ``EXPECTED`` which finding a reader of its log should make; healthy ones should raise no complaint.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

PLACE = Path(__file__).with_name("trainings.npz")
SGD, ADAM = torch.optim.SGD, torch.optim.Adam
Batches = Iterator[tuple[Tensor, Tensor]]

# Names of the findings that count as a detection.
EXPECTED: dict[str, tuple[str, ...]] = {
    "MLP, SGD rate too large": ("divergence", "plateau", "baseline"),
    "regression, SGD rate too large": ("divergence",),
    "CNN, SGD rate too large": ("divergence", "plateau", "baseline", "start"),
    "GRU, Adam rate too large": ("divergence", "plateau", "rise", "baseline"),
    "MLP, rate ramped up until it breaks": ("divergence", "rise", "spikes"),
    "MLP, Adam rate too large": ("plateau", "baseline", "divergence", "rise"),
    "MLP, SGD rate too small": ("slow", "plateau", "baseline"),
    "CNN, Adam rate too small": ("slow", "plateau", "baseline", "end"),
    "GRU, rate too small": ("slow", "plateau"),
    "MLP, nothing in the optimizer": ("plateau", "baseline"),
    "regression, all frozen, full batch": ("constant",),
    "ReLU network that is dead": ("constant",),
    "labels without a signal, seen once": ("plateau", "baseline"),
    "deep tanh network, small weights": ("plateau", "baseline"),
    "linear network, small weights, escapes": ("plateau",),
    "MLP overfits noisy labels": ("overfitting",),
    "regression overfits few samples": ("overfitting",),
    "CNN overfits, logged by epoch": ("overfitting",),
    "a bad batch in every epoch": ("spikes",),
    "regression with bad samples now and then": ("spikes",),
    "rate restarted too high": ("spikes",),
    "rate decays too soon": ("schedule", "end"),
    "CNN, rate decays too soon": ("schedule",),
    "noise floor until the rate is lowered": ("schedule",),
    "random labels learned by heart": ("epochs",),
    "readout starts far too large": ("start",),
}


def digits() -> tuple[Tensor, Tensor]:
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))
    return torch.tensor(x[order] / 8 - 1, dtype=torch.float32), torch.tensor(y[order])


X, Y = digits()
CROSS_ENTROPY = nn.functional.cross_entropy
MSE = nn.functional.mse_loss


def mlp(*widths: int, act: type[nn.Module] = nn.ReLU, scale: float = 1.0) -> nn.Sequential:
    layers: list[nn.Module] = []
    for a, b in pairwise(widths):
        layers += [nn.Linear(a, b), act()]
    model = nn.Sequential(*layers[:-1])
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(scale)
    return model


def cnn() -> nn.Sequential:
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 16, 3), nn.ReLU(), nn.Flatten(),
        nn.Linear(256, 10),
    )  # fmt: skip


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.Module]) -> None:
        super().__init__()
        self.cell, self.readout = kind(2, 24, batch_first=True), nn.Linear(24, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.readout(self.cell(x)[0][:, -1])


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(12, 32), nn.Parameter(0.1 * torch.randn(8, 32))
        self.block = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.readout = nn.Linear(32, 12)

    def forward(self, x: Tensor) -> Tensor:
        return self.readout(self.block(self.embed(x) + self.place)).flatten(0, 1)


def batches(x: Tensor, y: Tensor, size: int, shuffle: bool = True) -> Batches:
    while True:
        order = torch.randperm(len(x)) if shuffle else torch.arange(len(x))
        for start in range(0, len(x) - size + 1, size):
            chosen = order[start : start + size]
            yield x[chosen], y[chosen]


def summed(size: int) -> Batches:
    while True:
        x = torch.randn(size, 10, 2)
        yield x, (x[..., 0] * (x[..., 1] > 0)).sum(1, keepdim=True)


def reversals(size: int) -> Batches:
    while True:
        x = torch.randint(12, (size, 8))
        yield x, x.flip(1).flatten()


def regression(count: int, noise: float = 0.1, inputs: int = 8) -> tuple[Tensor, Tensor]:
    x = torch.randn(count, inputs)
    return x, torch.sin(x[:, :1]) + 0.5 * x[:, 1:2] + noise * torch.randn(count, 1)


def train(
    model: nn.Module,
    data: Batches,
    optimizer: torch.optim.Optimizer,
    loss: Callable[..., Tensor],
    steps: int,
    schedule: Callable[[int], float] = lambda step: 1.0,
    held_out: tuple[Tensor, Tensor] | None = None,
    every: int = 1,
    epoch: int = 0,
    baseline: float | None = None,
) -> dict[str, Any]:
    """A log of means over ``every`` steps; ``epoch`` is the number of steps of one, if it is logged."""
    rate = optimizer.param_groups[0]["lr"]
    log: dict[str, list[float]] = {"step": [], "loss": [], "lr": [], "grad_norm": []}
    log |= {"epoch": []} if epoch else {}
    validation: dict[str, list[float]] = {"step": [], "loss": []}
    recent = []
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = rate * schedule(step)
        x, y = next(data)
        value = loss(model(x), y)
        optimizer.zero_grad()
        if value.requires_grad:
            value.backward()
        gradients = [weight.grad.norm() for weight in model.parameters() if weight.grad is not None]
        optimizer.step()
        recent.append(value.item())
        if (step + 1) % every == 0:
            norm = float(torch.stack(gradients).norm()) if gradients else 0.0
            row = {
                "step": step,
                "loss": float(np.mean(recent)),
                "lr": rate * schedule(step),
                "grad_norm": norm,
            }
            for name, number in (row | ({"epoch": step // epoch} if epoch else {})).items():
                log[name].append(float(f"{number:.6g}"))
            recent = []
        if held_out is not None and (step + 1) % (steps // 40) == 0:
            with torch.no_grad():
                validation["step"].append(step)
                validation["loss"].append(float(f"{float(loss(model(held_out[0]), held_out[1])):.6g}"))
        if step > 30 and not math.isfinite(log["loss"][-1] if log["loss"] else 0.0):
            break
    return {"columns": log, "validation": validation if held_out else None, "baseline": baseline}


def cosine(steps: int, warm_up: int = 0) -> Callable[[int], float]:
    def factor(step: int) -> float:
        if step < warm_up:
            return (step + 1) / warm_up
        return 0.5 * (1 + math.cos(math.pi * (step - warm_up) / (steps - warm_up)))

    return factor


def classify(
    model: nn.Module, kind: Any, rate: float, steps: int = 400, size: int = 32, **options: Any
) -> Any:
    """Digits, with the baseline of ten classes; ``momentum`` and the like go to the optimizer."""
    known = {key: options.pop(key) for key in ("momentum", "weight_decay") if key in options}
    x, y = options.pop("data", (X[:1200], Y[:1200]))
    optimizer = kind(model.parameters(), lr=rate, **known)
    source = options.pop("batches", None) or batches(x, y, size)
    return train(model, source, optimizer, CROSS_ENTROPY, steps, **({"baseline": math.log(10)} | options))


def fit(model: nn.Module, kind: Any, rate: float, steps: int, source: Batches, **options: Any) -> Any:
    return train(model, source, kind(model.parameters(), lr=rate), MSE, steps, **options)


def full(x: Tensor, y: Tensor) -> Batches:
    return batches(x, y, len(x), shuffle=False)


def noisy_labels(count: int, share: float) -> tuple[Tensor, Tensor]:
    wrong = torch.rand(count) < share
    return X[:count], torch.where(wrong, torch.randint(10, (count,)), Y[:count])


def fresh_noise(size: int) -> Batches:
    while True:
        yield torch.randn(size, 64), torch.randint(10, (size,))


def dead() -> nn.Module:
    model = mlp(8, 16, 16, 1)
    nn.init.constant_(model[0].bias, -100.0)
    nn.init.constant_(model[2].bias, -100.0)
    for weight in (model[4].weight, model[4].bias):
        weight.requires_grad_(False)
    return model


def spoilt(period: int, x: Tensor, y: Tensor, size: int) -> Batches:
    """A batch with a wild target after every ``period`` batches, or now and then for period 0."""
    source, dice = batches(x, y, size), np.random.default_rng(1)
    for step, (a, b) in enumerate(source):
        bad = step % period == period - 1 if period else dice.random() < 0.015
        yield (
            (a, b + 12.0 * torch.randn(1) if bad else b)
            if b.is_floating_point()
            else (a, (b + 3) % 10 if bad else b)
        )


def restarts(step: int) -> float:
    return 0.5 * (1 + math.cos(math.pi * (step % 100) / 100)) * (1.0 if step < 100 else 6.0)


def large_readout() -> nn.Module:
    model = mlp(64, 64, 10)
    with torch.no_grad():
        model[2].weight.mul_(60.0)
    return model


class Untrained(torch.optim.SGD):
    """An optimizer that was given the parameters of another model."""

    def step(self, closure: Any = None) -> None:
        return None


TRAININGS: dict[str, Callable[[], Any]] = {
    "healthy MLP, SGD": lambda: classify(mlp(64, 64, 10), SGD, 0.1),
    "healthy MLP, Adam": lambda: classify(mlp(64, 64, 64, 10, act=nn.GELU), ADAM, 1e-3, 600),
    "healthy MLP, momentum": lambda: classify(
        mlp(64, 64, 10, act=nn.Tanh), SGD, 0.05, momentum=0.9, weight_decay=1e-3
    ),
    "healthy CNN, Adam": lambda: classify(cnn(), ADAM, 2e-3, 300),
    "healthy CNN, batches of 8": lambda: classify(cnn(), SGD, 0.03, 800, size=8),
    "healthy MLP, batches of 2": lambda: classify(mlp(64, 32, 10), SGD, 0.01, 1500, size=2),
    "healthy logistic regression": lambda: classify(mlp(64, 10), SGD, 0.05, 500),
    "healthy MLP, cosine": lambda: classify(mlp(64, 64, 10), SGD, 0.2, 500, schedule=cosine(500)),
    "healthy attention, warm-up": lambda: train(
        m := Attention(), reversals(32), ADAM(m.parameters(), lr=3e-3), CROSS_ENTROPY, 600, cosine(600, 60),
        baseline=math.log(12),
    ),
    "healthy attention, Adam": lambda: train(
        m := Attention(), reversals(32), ADAM(m.parameters(), lr=2e-3), CROSS_ENTROPY, 500, baseline=math.log(12)
    ),
    "healthy GRU": lambda: fit(Recurrent(nn.GRU), ADAM, 5e-3, 400, summed(32)),
    "healthy LSTM, logged every 5 steps": lambda: fit(Recurrent(nn.LSTM), ADAM, 1e-2, 500, summed(32), every=5),
    "healthy regression, full batch": lambda: fit(mlp(8, 64, 1, act=nn.Tanh), SGD, 0.1, 300, full(*regression(200))),
    "healthy regression, Adam": lambda: fit(mlp(8, 64, 64, 1), ADAM, 2e-3, 600, batches(*regression(2000), 32)),
    "healthy autoencoder": lambda: fit(mlp(64, 32, 8, 32, 64), ADAM, 2e-3, 500, batches(X, X, 64)),
    "healthy MLP, by epoch": lambda: classify(mlp(64, 64, 10), SGD, 0.05, 37 * 25, every=37),
    "healthy MLP with validation": lambda: classify(
        mlp(64, 64, 10), SGD, 0.05, 600, weight_decay=1e-3, held_out=(X[1200:], Y[1200:])
    ),
    "healthy regression with validation": lambda: fit(
        mlp(8, 32, 1, act=nn.Tanh), SGD, 0.05, 600, batches(*regression(2000), 32), held_out=regression(500)
    ),
    "healthy CNN, rate lowered in steps": lambda: classify(
        cnn(), ADAM, 2e-3, 450, schedule=lambda step: 0.3 ** (step // 150)
    ),
    "healthy linear regression, batches of 4": lambda: fit(mlp(8, 1), SGD, 0.01, 1000, batches(*regression(4000), 4)),
    "healthy MLP, epochs logged": lambda: classify(mlp(64, 64, 10), ADAM, 1e-3, 370, epoch=37),
    "MLP, SGD rate too large": lambda: classify(mlp(64, 64, 10), SGD, 30.0),
    "regression, SGD rate too large": lambda: fit(mlp(8, 64, 1), SGD, 3.0, 300, batches(*regression(500), 32)),
    "CNN, SGD rate too large": lambda: classify(cnn(), SGD, 4.0, momentum=0.9),
    "GRU, Adam rate too large": lambda: fit(Recurrent(nn.GRU), ADAM, 1.0, 400, summed(32)),
    "MLP, rate ramped up until it breaks": lambda: classify(
        mlp(64, 64, 64, 10), SGD, 0.01, 400, schedule=lambda step: 1.03**step
    ),
    "MLP, Adam rate too large": lambda: classify(mlp(64, 64, 64, 10), ADAM, 0.3),
    "MLP, SGD rate too small": lambda: classify(mlp(64, 64, 10), SGD, 1e-4),
    "CNN, Adam rate too small": lambda: classify(cnn(), ADAM, 2e-6),
    "GRU, rate too small": lambda: fit(Recurrent(nn.GRU), SGD, 1e-5, 300, full(*next(summed(128)))),
    "MLP, nothing in the optimizer": lambda: classify(mlp(64, 64, 10), Untrained, 0.1),
    "regression, all frozen, full batch": lambda: fit(mlp(8, 16, 1), Untrained, 0.1, 200, full(*regression(100))),
    "ReLU network that is dead": lambda: fit(dead(), SGD, 0.1, 200, full(*regression(100))),
    "labels without a signal, seen once": lambda: classify(mlp(64, 64, 10), SGD, 0.003, batches=fresh_noise(32)),
    "deep tanh network, small weights": lambda: classify(mlp(64, *[64] * 5, 10, act=nn.Tanh, scale=0.2), SGD, 0.05),
    "linear network, small weights, escapes": lambda: fit(
        mlp(8, 32, 32, 1, act=nn.Identity, scale=0.12), SGD, 0.05, 400, full(*regression(200))
    ),
    "MLP overfits noisy labels": lambda: classify(
        mlp(64, 256, 10), ADAM, 2e-3, 800, data=noisy_labels(300, 0.3), held_out=(X[1200:], Y[1200:])
    ),
    "regression overfits few samples": lambda: fit(
        mlp(8, 128, 128, 1), ADAM, 2e-3, 600, batches(*regression(40, 0.5), 20), held_out=regression(400, 0.5)
    ),
    "CNN overfits, logged by epoch": lambda: classify(
        cnn(), ADAM, 4e-3, 400, data=noisy_labels(200, 0.4), every=10, size=20, held_out=(X[1200:], Y[1200:])
    ),
    "a bad batch in every epoch": lambda: classify(
        mlp(64, 64, 10), SGD, 0.05, 600, batches=spoilt(50, X[:1200], Y[:1200], 32)
    ),
    "regression with bad samples now and then": lambda: fit(
        mlp(8, 64, 1), SGD, 0.01, 600, spoilt(0, *regression(2000), 32)
    ),
    "rate restarted too high": lambda: fit(
        mlp(8, 64, 64, 1), SGD, 0.1, 600, batches(*regression(500), 64), schedule=restarts
    ),
    "rate decays too soon": lambda: classify(mlp(64, 64, 10), SGD, 0.02, 600, schedule=lambda step: 0.97**step),
    "CNN, rate decays too soon": lambda: classify(
        cnn(), ADAM, 5e-4, 500, schedule=lambda step: 1.0 if step < 50 else 0.01
    ),
    "noise floor until the rate is lowered": lambda: fit(
        mlp(8, 1), SGD, 0.15, 800, batches(*regression(4000, 1.0, 8), 4),
        schedule=lambda step: 1.0 if step < 400 else 0.05,
    ),
    "random labels learned by heart": lambda: classify(
        mlp(64, 1024, 10), ADAM, 2e-3, 8 * 38, data=(torch.randn(1216, 64), torch.randint(10, (1216,))), epoch=38
    ),
    "readout starts far too large": lambda: classify(large_readout(), ADAM, 1e-2),
}  # fmt: skip


def record() -> None:
    """Thresholds were set on synthetic curves and on trainings with other seeds than these."""
    torch.set_num_threads(1)
    arrays = {}
    for place, (name, make) in enumerate(TRAININGS.items()):
        torch.manual_seed(1000 + place)
        log = make()
        columns = log["columns"] | {f"validation {key}": v for key, v in (log["validation"] or {}).items()}
        columns |= {"baseline": log["baseline"]} if log["baseline"] else {}
        arrays |= {f"{name}|{key}": np.array(values, dtype=np.float32) for key, values in columns.items()}
    np.savez_compressed(PLACE, **arrays)


if __name__ == "__main__":
    record()
