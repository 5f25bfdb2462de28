"""Models with named states, each beside its equations written out by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from dense_dynamics import DOUBLE, Dense, States, normal, of_equations
from torch import Tensor, nn
from torch.nn.functional import conv2d, layer_norm, linear

from foretrain.empirical.global_ntk.graph.dynamics import GraphDynamics

P = Mapping[str, Tensor]
BATCH, TIMES, INPUTS, UNITS = 3, 4, 2, 3


class Loop(nn.Module):
    """A step module of the user, called once for every time; (samples, times, inputs), or times first."""

    def __init__(self, step: nn.Module, times_first: bool = False, cell: bool = False) -> None:
        super().__init__()
        self.step, self.times_first, self.cell = step, times_first, cell

    def forward(self, x: Tensor) -> Tensor:
        h: Any = torch.zeros(x.shape[1 if self.times_first else 0], UNITS, dtype=x.dtype)
        state = (h, h) if self.cell else h
        for now in x.unbind(0 if self.times_first else 1):
            state = self.step(now, state)
        return state[0] if self.cell else state


class TanhStep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.recurrent, self.input = nn.Linear(UNITS, UNITS), nn.Linear(INPUTS, UNITS, bias=False)

    def forward(self, x: Tensor, h: Tensor) -> Tensor:
        return torch.tanh(self.recurrent(h) + self.input(x))


class EulerStep(nn.Module):
    """A leaky unit with weights as plain parameters; the rate enters as a parameter that multiplies."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.input = (
            nn.Parameter(torch.zeros(UNITS, UNITS)),
            nn.Parameter(torch.zeros(INPUTS, UNITS)),
        )
        self.bias, self.rate = nn.Parameter(torch.zeros(UNITS)), nn.Parameter(torch.ones(UNITS))

    def forward(self, x: Tensor, h: Tensor) -> Tensor:
        return h + 0.3 * (-h * self.rate + torch.tanh(h) @ self.weight.T + x @ self.input + self.bias)


class Perceptron(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(INPUTS, 4), nn.Linear(4, 5), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.second(torch.tanh(self.first(x)))))


class Tied(nn.Module):
    """One layer used twice, and a norm between."""

    def __init__(self) -> None:
        super().__init__()
        self.inside, self.norm, self.out = nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 4)
        self.out.weight = self.inside.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.norm(torch.tanh(self.inside(x))))


class Autoencoder(nn.Module):
    """A weight and its transpose."""

    def __init__(self) -> None:
        super().__init__()
        self.code, self.decoded = nn.Linear(4, 3), nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.decoded(torch.tanh(self.code(x)) @ self.code.weight)


class Block(nn.Module):
    """Attention of the framework, then two layers on every token."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.inside, self.out = nn.Linear(4, 5), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        mixed, _ = self.attention(x, x, x, need_weights=False)
        return self.out(torch.tanh(self.inside(x + mixed)))


class HandWritten(nn.Module):
    """One head of attention as its formula."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(4, 3, bias=False) for _ in range(3))
        self.mixed = nn.Identity()
        self.out = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        scores = self.query(x) @ self.key(x).transpose(1, 2) / 3**0.5
        return self.out(self.mixed(torch.softmax(scores, -1) @ self.value(x)))


class Mixing(nn.Module):
    """Samples attend to each other."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(INPUTS, UNITS), nn.Linear(UNITS, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.first(x))
        return self.last(torch.softmax(h @ h.T, -1) @ h)


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(6, 4, padding_idx=2), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(self.table(x)).mean(1))


def _images() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 2, 2),
        nn.ReLU(inplace=True),
        nn.Conv2d(2, 2, 2, groups=2),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(8, 2),
    )


def _before(h: Tensor) -> Tensor:
    """The states of one time earlier, zeros at the first."""
    return torch.cat([torch.zeros_like(h[:, :1]), h[:, :-1]], 1)


def _tanh_rnn(p: P, x: Tensor, h: States) -> States:
    drive = linear(x, p["step.input.weight"])
    return {
        "step": torch.tanh(
            linear(_before(h["step"]), p["step.recurrent.weight"], p["step.recurrent.bias"]) + drive
        )
    }


def _euler(p: P, x: Tensor, h: States) -> States:
    old = _before(h["step"])
    drive = torch.tanh(old) @ p["step.weight"].T + x @ p["step.input"] + p["step.bias"]
    return {"step": old + 0.3 * (drive - old * p["step.rate"])}


def _gru(p: P, x: Tensor, h: States) -> States:
    old = _before(h["step"])
    inputs = linear(x, p["step.weight_ih"], p["step.bias_ih"]).chunk(3, -1)
    hidden = linear(old, p["step.weight_hh"], p["step.bias_hh"]).chunk(3, -1)
    reset, update = torch.sigmoid(inputs[0] + hidden[0]), torch.sigmoid(inputs[1] + hidden[1])
    return {"step": (1 - update) * torch.tanh(inputs[2] + reset * hidden[2]) + update * old}


def _gates(p: P, x: Tensor, old: Tensor) -> tuple[Tensor, ...]:
    sums = linear(x, p["step.weight_ih"], p["step.bias_ih"]) + linear(
        old, p["step.weight_hh"], p["step.bias_hh"]
    )
    take, keep, new, give = sums.chunk(4, -1)
    return torch.sigmoid(take), torch.sigmoid(keep), torch.tanh(new), torch.sigmoid(give)


def _lstm(p: P, x: Tensor, h: States) -> States:
    take, keep, new, give = _gates(p, x, _before(h["hidden"]))
    cell = keep * _before(h["cell"]) + take * new
    return {"hidden": give * torch.tanh(cell), "cell": cell}


def _lstm_hidden(p: P, x: Tensor, h: States) -> States:
    """The hidden state alone: cells follow from the hidden states before."""
    take, keep, new, give = _gates(p, x, _before(h["step"]))
    cells = [torch.zeros_like(h["step"][:, 0])]
    for t in range(x.shape[1]):
        cells.append(keep[:, t] * cells[-1] + take[:, t] * new[:, t])
    return {"step": give * torch.tanh(torch.stack(cells[1:], 1))}


def _perceptron(p: P, x: Tensor, h: States) -> States:
    return {
        "first": linear(x, p["first.weight"], p["first.bias"]),
        "second": linear(torch.tanh(h["first"]), p["second.weight"], p["second.bias"]),
        "last": linear(torch.tanh(h["second"]), p["last.weight"], p["last.bias"]),
    }


def _last_two(p: P, x: Tensor, h: States) -> States:
    first = linear(x, p["first.weight"], p["first.bias"])
    return {
        "second": linear(torch.tanh(first), p["second.weight"], p["second.bias"]),
        "last": linear(torch.tanh(h["second"]), p["last.weight"], p["last.bias"]),
    }


def _tied(p: P, x: Tensor, h: States) -> States:
    normed = layer_norm(torch.tanh(h["inside"]), (4,), p["norm.weight"], p["norm.bias"])
    return {
        "inside": linear(x, p["inside.weight"], p["inside.bias"]),
        "out": linear(normed, p["inside.weight"], p["out.bias"]),
    }


def _autoencoder(p: P, x: Tensor, h: States) -> States:
    return {
        "code": linear(x, p["code.weight"], p["code.bias"]),
        "decoded": torch.tanh(h["code"]) @ p["code.weight"],
    }


def _attention(p: P, x: Tensor) -> Tensor:
    query, key, value = linear(x, p["attention.in_proj_weight"], p["attention.in_proj_bias"]).chunk(3, -1)
    heads = []
    for head in (slice(0, 2), slice(2, 4)):
        scores = query[..., head] @ key[..., head].transpose(1, 2) / 2**0.5
        heads.append(torch.softmax(scores, -1) @ value[..., head])
    return linear(torch.cat(heads, -1), p["attention.out_proj.weight"], p["attention.out_proj.bias"])


def _block(p: P, x: Tensor, h: States) -> States:
    return {
        "attention": _attention(p, x),
        "inside": linear(x + h["attention"], p["inside.weight"], p["inside.bias"]),
        "out": linear(torch.tanh(h["inside"]), p["out.weight"], p["out.bias"]),
        "whole": h["out"],
    }


def _hand_written(p: P, x: Tensor, h: States) -> States:
    query, key = linear(x, p["query.weight"]), linear(x, p["key.weight"])
    weights = torch.softmax(query @ key.transpose(1, 2) / 3**0.5, -1)
    return {
        "value": linear(x, p["value.weight"]),
        "mixed": weights @ h["value"],
        "out": linear(h["mixed"], p["out.weight"], p["out.bias"]),
    }


def _mixing(p: P, x: Tensor, h: States) -> States:
    hidden = torch.tanh(h["first"])
    return {
        "first": linear(x, p["first.weight"], p["first.bias"]),
        "last": linear(torch.softmax(hidden @ hidden.T, -1) @ hidden, p["last.weight"], p["last.bias"]),
    }


def _words(p: P, x: Tensor, h: States) -> States:
    rows = torch.where((x == 2)[..., None], p["table.weight"].detach()[x], p["table.weight"][x])
    return {"table": rows, "out": linear(torch.tanh(h["table"]).mean(1), p["out.weight"], p["out.bias"])}


def _images_states(p: P, x: Tensor, h: States) -> States:
    return {
        "0": conv2d(x, p["0.weight"], p["0.bias"]),
        "3": torch.tanh(conv2d(torch.relu(h["0"]), p["2.weight"], p["2.bias"], groups=2)),
        "5": linear(h["3"].flatten(1), p["5.weight"], p["5.bias"]),
    }


@dataclass(frozen=True)
class Case:
    """A model, its states, their equations, and the parameters that are no weights or biases."""

    make: Callable[[], nn.Module]
    x: Tensor
    states: Any
    step: Callable[[P, Tensor, States], States]
    without: tuple[str, ...] = ()
    frozen: tuple[str, ...] = ()
    axis: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)

    def model(self, dtype: torch.dtype = DOUBLE) -> nn.Module:
        """Always the same one, with all parameters moved, since zeros and ones hide errors."""
        with torch.random.fork_rng():
            torch.manual_seed(1)
            model = self.make().double().eval()
            with torch.no_grad():
                for name, parameter in model.named_parameters():
                    parameter.add_(0.3 * torch.randn_like(parameter))
                    parameter.requires_grad_(name not in self.frozen)
        return model.to(dtype)

    def dynamics(self, dtype: torch.dtype = DOUBLE) -> GraphDynamics:
        x = self.x.to(dtype) if self.x.is_floating_point() else self.x
        return GraphDynamics(self.model(dtype), x, self.states, batch_axis=self.axis, **self.options)

    def dense(self, dynamics: GraphDynamics) -> Dense:
        """By the equations, with states in the engine's order and shapes, which other tests look at."""
        space: Any = dynamics.space
        members = space.members if hasattr(space, "members") else {self._only(): space}
        shapes = {name: member.shape for name, member in members.items()}
        values = {name: value.detach() for name, value in self.model().named_parameters()}
        x = self.x.movedim(self.axis, 0)
        return of_equations(lambda p, h: self.step(p, x, h), values, list(dynamics.parameters), shapes)

    def _only(self) -> str:
        return next(iter(self.states)) if not isinstance(self.states, str) else self.states or "output"


_SEQUENCE = normal(BATCH, TIMES, INPUTS)
_IMAGES = normal(BATCH, 1, 4, 4)
_TOKENS = normal(2, TIMES, 4)

CASES = {
    "tanh loop": Case(lambda: Loop(TanhStep()), _SEQUENCE, "step", _tanh_rnn),
    "times first": Case(
        lambda: Loop(TanhStep(), times_first=True),
        _SEQUENCE.transpose(0, 1).contiguous(),
        "step",
        _tanh_rnn,
        axis=1,
    ),
    "Euler loop": Case(lambda: Loop(EulerStep()), _SEQUENCE, ("step",), _euler, without=("step.rate",)),
    "GRU cell": Case(lambda: Loop(nn.GRUCell(INPUTS, UNITS)), _SEQUENCE, "step", _gru),
    "GRU cell with one sample": Case(lambda: Loop(nn.GRUCell(INPUTS, UNITS)), _SEQUENCE[:1], "step", _gru),
    "LSTM cell": Case(
        lambda: Loop(nn.LSTMCell(INPUTS, UNITS), cell=True),
        _SEQUENCE,
        {"hidden": "step", "cell": ("step", 1)},
        _lstm,
    ),
    "LSTM cell, hidden states": Case(
        lambda: Loop(nn.LSTMCell(INPUTS, UNITS), cell=True), _SEQUENCE, "step", _lstm_hidden
    ),
    "perceptron": Case(Perceptron, normal(BATCH, INPUTS), ("first", "second", "last"), _perceptron),
    "frozen first layer": Case(
        Perceptron,
        normal(BATCH, INPUTS),
        ("first", "second", "last"),
        _perceptron,
        frozen=("first.weight", "first.bias", "second.bias"),
    ),
    "chosen parameters": Case(
        Perceptron,
        normal(BATCH, INPUTS),
        ("first", "second", "last"),
        _perceptron,
        options={"parameters": ["second.weight", "last"]},
    ),
    "parameters before the first state": Case(
        Perceptron, normal(BATCH, INPUTS), ("second", "last"), _last_two
    ),
    "tied layers": Case(Tied, normal(BATCH, 4), ("inside", "out"), _tied, without=("norm.weight",)),
    "weight and transpose": Case(
        Autoencoder, normal(BATCH, 4), ("code", "decoded"), _autoencoder, without=("code.weight",)
    ),
    "attention": Case(
        Block, _TOKENS, {"attention": "attention", "inside": "inside", "out": "out", "whole": ""}, _block
    ),
    "attention by hand": Case(HandWritten, _TOKENS, ("value", "mixed", "out"), _hand_written),
    "coupled samples": Case(Mixing, normal(BATCH, INPUTS), ("first", "last"), _mixing),
    "words": Case(Words, torch.tensor([[0, 1, 2, 1], [3, 2, 5, 5]]), ("table", "out"), _words),
    "images": Case(_images, _IMAGES, ("0", "3", "5"), _images_states),
}
