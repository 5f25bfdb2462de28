"""One instance of every type of result, made by the calls that users make, as small as they can be."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import nn

import foretrain as ft

X = np.array([[1.0, 0.5], [0.2, -1.0], [-0.4, 0.3]])
Y = np.array([[1.0], [-0.5], [0.2]])
# Classes that public functions return and that are no results but tools to go on with.
NOT_RESULTS = {"Activation", "Experiment", "Callable"}


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1)).double()


def recurrent() -> nn.Module:
    torch.manual_seed(0)
    return nn.GRU(2, 4, batch_first=True).double()


@cache
def tensors() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.tensor(X), torch.tensor(Y)


@cache
def samples() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, 2, generator=generator, dtype=torch.float64)
    return x, torch.tanh(x[:, :1])


@cache
def sequences() -> torch.Tensor:
    return torch.randn(3, 5, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def mlp(**options: Any) -> ft.MLP:
    return ft.MLP("tanh", depth=3, width=32, n_in=2, C_b=0.1, C_W=1.0, **options)


@cache
def kernel() -> Any:
    return ft.ntk(network(), tensors()[0])


@cache
def states() -> Any:
    return ft.global_ntk(recurrent(), sequences())


@cache
def diagnosis() -> Any:
    model = network()
    return ft.doctor(model, *samples(), optimizer=torch.optim.SGD(model.parameters(), lr=0.05))


@cache
def comparison() -> Any:
    return ft.compare(mlp(), X[:2], ["K", "V"], draws=500, widths=[16, 24, 32])


@cache
def plateau() -> Any:
    model = network()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(0.1)
    return ft.plateau(model, *samples(), lr=0.05)


EXAMPLES: dict[str, Callable[[], Any]] = {
    "flow": lambda: ft.flow(mlp(), X, ["K", "V", "G1", "Theta"]),
    "criticality": lambda: ft.criticality("gelu"),
    "kernel": kernel,
    "diagnosis": diagnosis,
    "no critical point": lambda: ft.criticality("sigmoid"),
    "critical point": lambda: ft.criticality("tanh").point,
    "susceptibility": lambda: ft.susceptibility("tanh", K=0.5, C_W=1.0),
    "network": lambda: mlp(),
    "prediction": lambda: ft.predict(mlp(), X[:2], Y[:2], X[2:]),
    "prediction of finite width": lambda: ft.predict(mlp(), X[:2], Y[:2], X[2:], regime="finite"),
    "posterior": lambda: ft.predict(mlp(), X[:2], Y[:2], X[2:], learner="bayes", noise=0.1),
    "posterior of finite width": lambda: ft.predict(mlp(), X[:2], Y[:2], X[2:], "finite", "bayes", noise=0.1),
    "advice": lambda: ft.advise("gelu", width=64, n_out=10),
    "expectation": lambda: ft.gaussian.expectation(["tanh", "tanh"], [[1.0, 0.5], [0.5, 1.0]]),
    "class of an activation": lambda: ft.saddle.classify("gelu"),
    "kernel by trace": lambda: ft.ntk(network(), tensors()[0], outputs="trace"),
    "spectrum": lambda: kernel().spectrum(),
    "alignment": lambda: kernel().alignment(tensors()[1]),
    "regression": lambda: kernel().regression(tensors()[1]),
    "operator": lambda: ft.ntk_operator(network(), tensors()[0]),
    "global kernel": states,
    "trace": lambda: states().trace(),
    "rank": lambda: states().effective_rank(),
    "modes": lambda: states().top_modes(2),
    "fields": lambda: ft.fields(network(), tensors()[0]),
    "dntk": lambda: ft.dntk(network(), tensors()[0]),
    "ddntk": lambda: ft.ddntk(network(), tensors()[0]),
    "comparison": comparison,
    "judgement": lambda: comparison().judgement,
    "plateau": plateau,
    "plan": lambda: diagnosis().plan(),
    "verification": lambda: diagnosis().verify(steps=3),
    "experiment": lambda: ft.experiments.get("parameter-count").run(),
}


@cache
def example(name: str) -> Any:
    """One of them; the same object for everybody who asks."""
    return EXAMPLES[name]()
