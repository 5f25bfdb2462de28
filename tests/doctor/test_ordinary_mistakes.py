"""Mistakes that people make, each in a network that would learn without it: the cause is named, and mending it heals.

Every mistake has its twin: the same network, data and training without it, which must be called healthy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from planted_networks import digits
from torch import Tensor, nn
from torch.nn.functional import (
    binary_cross_entropy_with_logits,
    cross_entropy,
    dropout,
    mse_loss,
    one_hot,
    scaled_dot_product_attention,
)

import foretrain as ft

Patient = tuple[nn.Module, Any, Tensor, dict[str, Any]]


@dataclass(frozen=True)
class Mistake:
    """``make(True)`` has the mistake, ``make(False)`` is its twin; ``named`` stands in the title of the cause."""

    make: Callable[[bool], Patient]
    named: str
    cured: bool = True  # whether the doctor can mend it by itself


MISTAKES: dict[str, Mistake] = {}


def mistake(
    named: str, *, cured: bool = True
) -> Callable[[Callable[[bool], Patient]], Callable[[bool], Patient]]:
    def register(make: Callable[[bool], Patient]) -> Callable[[bool], Patient]:
        MISTAKES[make.__name__.replace("_", " ")] = Mistake(make, named, cured)
        return make

    return register


def network(*last: nn.Module, width: int = 48) -> nn.Sequential:
    return nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10), *last)


def trained_by_adam(model: nn.Module, rate: float = 3e-3, **options: Any) -> dict[str, Any]:
    return {"optimizer": torch.optim.Adam(model.parameters(), lr=rate), "batch_size": 64} | options


def images() -> tuple[Tensor, Tensor]:
    x, y = digits(900)
    return x - 0.5, y


def on_digits(model: nn.Module, **options: Any) -> Patient:
    return model, *images(), trained_by_adam(model, **options)


def recall(length: int = 8, kinds: int = 4, samples: int = 800) -> tuple[Tensor, Tensor]:
    """The first of some tokens is asked for."""
    x = torch.randint(kinds, (samples, length))
    return x, x[:, 0].clone()


@mistake("go through softmax before cross-entropy")
def softmax_twice(broken: bool) -> Patient:
    return on_digits(network(nn.Softmax(1)) if broken else network(), rate=1e-3)


@mistake("go through sigmoid before a loss with logits")
def sigmoid_twice(broken: bool) -> Patient:
    x, y = images()
    model = nn.Sequential(
        nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1), nn.Sigmoid() if broken else nn.Identity()
    )
    even = (y % 2).float()[:, None]
    return model, x, even, trained_by_adam(model, loss=binary_cross_entropy_with_logits)


@mistake("log_softmax is missing")
def logits_for_nll(broken: bool) -> Patient:
    return on_digits(network() if broken else network(nn.LogSoftmax(1)), loss=nn.NLLLoss())


@mistake("The loss broadcasts")
def flat_targets(broken: bool) -> Patient:
    x = torch.linspace(-1, 1, 300)[:, None]
    y = torch.sin(5 * x)
    model = nn.Sequential(nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, 1))
    return (
        model,
        x,
        y[:, 0] if broken else y,
        trained_by_adam(model, 0.02, loss=lambda o, t: (o - t).square().mean()),
    )


@mistake("its sign is turned round")
def negative_loss(broken: bool) -> Patient:
    sign = -1 if broken else 1
    return on_digits(network(), loss=lambda o, t: sign * cross_entropy(o, t))


@mistake("does not compare each output with its own target")
def mean_before_squares(broken: bool) -> Patient:
    x = torch.linspace(-1, 1, 300)[:, None]
    model = nn.Sequential(nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, 1))

    def loss(o: Tensor, t: Tensor) -> Tensor:
        return (o.mean(0) - t.mean(0)).square().sum() if broken else (o - t).square().mean()

    return model, x, torch.sin(5 * x), trained_by_adam(model, 0.02, loss=loss)


@mistake("leaves out all samples of class 3")
def ignored_class(broken: bool) -> Patient:
    x, y = images()
    kept = y < 4
    model = network()
    loss = nn.CrossEntropyLoss(ignore_index=3 if broken else -100)
    return model, x[kept], y[kept], trained_by_adam(model, loss=loss)


@mistake("of the targets are out of reach")
def bounded_outputs(broken: bool) -> Patient:
    x = torch.linspace(-1, 1, 300)[:, None]
    model = nn.Sequential(
        nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, 1), nn.ReLU() if broken else nn.Identity()
    )
    return model, x, torch.sin(5 * x), trained_by_adam(model, 0.02, loss=mse_loss)


@mistake("weights of classes in the loss")
def odd_weights_of_classes(broken: bool) -> Patient:
    weight = torch.full((10,), 1e-3)
    weight[3] = 1e3
    return on_digits(network(), loss=nn.CrossEntropyLoss(weight=weight if broken else None))


@mistake("climbs the loss")
def maximised(broken: bool) -> Patient:
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3, maximize=broken)
    return model, *images(), {"optimizer": optimizer, "batch_size": 64}


class Climber(torch.optim.SGD):
    """An optimizer of one's own, with the wrong sign."""

    def step(self, closure: Any = None) -> Any:
        loss = closure() if closure is not None else None
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.add_(group["lr"] * parameter.grad)
        return loss


@mistake("A small step of Climber raises the loss", cured=False)
def wrong_sign(broken: bool) -> Patient:
    model = network()
    optimizer = (Climber if broken else torch.optim.SGD)(model.parameters(), lr=0.1)
    return model, *images(), {"optimizer": optimizer, "batch_size": 64}


@mistake("The epsilon of Adam")
def large_epsilon(broken: bool) -> Patient:
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3, eps=10.0 if broken else 1e-8)
    return model, *images(), {"optimizer": optimizer, "batch_size": 64}


@mistake("Gradients are clipped to a norm of")
def clipped_away(broken: bool) -> Patient:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    return model, *images(), {"optimizer": optimizer, "batch_size": 64, "clip_norm": 1e-4 if broken else 10.0}


@mistake("The schedule leaves")
def rate_that_falls_at_once(broken: bool) -> Patient:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    schedule = (lambda step: 0.5**step) if broken else (lambda step: 1.0)
    return model, *images(), {"optimizer": optimizer, "batch_size": 64, "scheduler": schedule}


@mistake("the way back from the loss is cut", cured=False)
def features_through_numpy(broken: bool) -> Patient:
    class Features(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.out = nn.Linear(64, 6), nn.Linear(6, 10)

        def forward(self, x: Tensor) -> Tensor:
            h = torch.relu(self.first(x))
            return self.out(torch.from_numpy(h.detach().numpy()) if broken else h)

    return on_digits(Features(), rate=0.01)


@mistake("in a Python list")
def layers_in_a_list(broken: bool) -> Patient:
    class Listed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layers = [nn.Linear(64, 6), nn.Linear(6, 32)]
            self.hidden = layers if broken else nn.ModuleList(layers)
            self.out = nn.Linear(32, 10)

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.hidden:
                x = torch.relu(layer(x))
            return self.out(x)

    return on_digits(Listed(), rate=0.01)


@mistake("have requires_grad off")
def frozen_by_accident(broken: bool) -> Patient:
    model = nn.Sequential(nn.Linear(64, 6), nn.ReLU(), nn.Linear(6, 10))
    model[0].requires_grad_(not broken)
    return on_digits(model, rate=0.01)


@mistake("are copies of each other")
def equal_weights(broken: bool) -> Patient:
    model = network()
    if broken:
        nn.init.constant_(model[0].weight, 0.02)
        nn.init.constant_(model[2].weight, 0.02)
    return on_digits(model)


@mistake("is a bottleneck", cured=False)
def one_unit(broken: bool) -> Patient:
    layers = [nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 1 if broken else 24), nn.ReLU()]
    return on_digits(nn.Sequential(*layers, nn.Linear(1 if broken else 24, 10)))


@mistake("The network is linear")
def no_activation(broken: bool) -> Patient:
    x = torch.randn(900, 2)
    y = ((x[:, 0] > 0) ^ (x[:, 1] > 0)).long()
    bend = nn.Identity if broken else nn.ReLU
    model = nn.Sequential(nn.Linear(2, 32), bend(), nn.Linear(32, 32), bend(), nn.Linear(32, 2))
    return model, x, y, trained_by_adam(model, 0.01)


@mistake("Dropout of 0.98 drowns the signal")
def everything_dropped(broken: bool) -> Patient:
    share = 0.98 if broken else 0.1
    return on_digits(
        nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Dropout(share), nn.Linear(48, 10)), rate=1e-3
    )


@mistake("Dropout of 0.95 drowns the signal")
def noise_at_rest(broken: bool) -> Patient:
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.out = nn.Linear(64, 48), nn.Linear(48, 10)

        def forward(self, x: Tensor) -> Tensor:
            h = torch.relu(self.first(x))
            return self.out(dropout(h, 0.95) if broken else dropout(h, 0.1, self.training))

    return on_digits(Noisy())


@mistake("changes its inputs in place", cured=False)
def inputs_overwritten(broken: bool) -> Patient:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = network()

        def forward(self, x: Tensor) -> Tensor:
            if broken:
                x *= 1.5
            return self.net(x)

    model = Scaled()
    x, y = images()
    return model, x.clone(), y, trained_by_adam(model)


@mistake("Targets belong to other rows")
def labels_one_row_late(broken: bool) -> Patient:
    x, y = images()
    return (model := network()), x, y.roll(1) if broken else y, trained_by_adam(model)


@mistake("it has no embedding", cured=False)
def tokens_as_quantities(broken: bool) -> Patient:
    source = torch.Generator().manual_seed(0)
    x = torch.randint(30, (900, 3), generator=source)
    y = torch.randint(2, (30,), generator=source)[x[:, 0]]

    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = None if broken else nn.Embedding(30, 16)
            self.net = nn.Sequential(nn.Linear(3 if broken else 48, 32), nn.ReLU(), nn.Linear(32, 2))

        def forward(self, x: Tensor) -> Tensor:
            return self.net(x.float() / 30 if self.embedding is None else self.embedding(x).flatten(1))

    model = Tokens()
    return model, x, y, trained_by_adam(model, 5e-3)


@mistake("Samples mix")
def steps_before_samples(broken: bool) -> Patient:
    x, y = recall(samples=600)

    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.out = nn.GRU(4, 32, batch_first=not broken), nn.Linear(32, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(self.rnn(x)[0][:, -1])

    model = Reader()
    return model, one_hot(x, 4).float(), y, trained_by_adam(model, 0.01)


@mistake("Answers do not", cured=False)
def first_step_is_read(broken: bool) -> Patient:
    x = torch.randn(800, 8, 1)

    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.out = nn.GRU(1, 32, batch_first=True), nn.Linear(32, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(self.rnn(x)[0][:, 0 if broken else -1])

    model = Sum()
    return model, x, x.sum(1) / 3, trained_by_adam(model, 0.01)


@mistake("The forget gates of 'rnn' are shut")
def forget_gates_shut(broken: bool) -> Patient:
    x, y = recall(length=12)

    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.out = nn.LSTM(4, 32, batch_first=True), nn.Linear(32, 4)
            with torch.no_grad():
                self.rnn.bias_ih_l0[32:64] = -8.0 if broken else 1.0

        def forward(self, x: Tensor) -> Tensor:
            return self.out(self.rnn(x)[0][:, -1])

    model = Reader()
    return model, one_hot(x, 4).float(), y, trained_by_adam(model, 5e-3)


class Attention(nn.Module):
    """One layer of attention over embedded tokens, with positions; answers from the mean or from every position."""

    def __init__(self, kinds: int, length: int, *, mode: str, each: bool) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(kinds, 32), nn.Embedding(length, 32)
        self.qkv, self.mix = nn.Linear(32, 96), nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32))
        self.out, self.mode, self.each = nn.Linear(32, kinds), mode, each

    def forward(self, x: Tensor) -> Tensor:
        h = self.tokens(x)
        if self.mode != "orderless":
            h = h + self.places(torch.arange(x.shape[1]))
        q, k, v = self.qkv(h).chunk(3, -1)
        if self.mode == "own":
            a = scaled_dot_product_attention(q, k, v, attn_mask=torch.eye(x.shape[1], dtype=torch.bool))
        elif self.mode == "axis":
            a = (q @ k.transpose(-2, -1) / 32**0.5).softmax(1) @ v
        else:
            a = scaled_dot_product_attention(q, k, v, is_causal=self.mode == "causal")
        h = h + a
        h = h + self.mix(h)
        return self.out(h if self.each else h.mean(1))


def token_loss(outputs: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(outputs.flatten(0, 1), y.flatten())


@mistake("positional information is missing")
def no_positions(broken: bool) -> Patient:
    x, y = recall(length=6)
    model = Attention(4, 6, mode="orderless" if broken else "", each=False)
    return model, x, y, trained_by_adam(model, 5e-3)


@mistake("sees the tokens that it is to predict", cured=False)
def future_in_sight(broken: bool) -> Patient:
    start = torch.randint(8, (700, 1))
    x = (start + 3 * torch.arange(11)) % 8
    model = Attention(8, 10, mode="" if broken else "causal", each=True)
    return model, x[:, :-1], x[:, 1:].clone(), trained_by_adam(model, loss=token_loss)


@mistake("every query looks at itself alone", cured=False)
def only_itself_in_sight(broken: bool) -> Patient:
    x = torch.randint(6, (800, 6))
    model = Attention(6, 6, mode="own" if broken else "", each=True)
    return model, x, x.flip(1).clone(), trained_by_adam(model, 5e-3, loss=token_loss)


def diagnosed(patient: Patient) -> ft.Diagnosis:
    model, x, y, options = patient
    return ft.doctor(model, x, y, **options)


@pytest.mark.slow
@pytest.mark.parametrize("name", MISTAKES)
def test_the_mistake_is_named_and_mended(name: str) -> None:
    made = MISTAKES[name]
    torch.manual_seed(0)
    found = diagnosed(made.make(True))
    assert not found.healthy
    assert found.cause is not None, found
    assert made.named in found.cause[1].title, found
    assert (found.proof is not None) == made.cured, found


@pytest.mark.slow
@pytest.mark.parametrize("name", MISTAKES)
def test_without_the_mistake_it_is_healthy(name: str) -> None:
    torch.manual_seed(0)
    found = diagnosed(MISTAKES[name].make(False))
    assert found.healthy, found
    assert found.headline.startswith("Healthy: it learns")
