"""Loops over time that users write by hand, each with one step that serves the loop and its equations alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from dense_dynamics import DOUBLE, States, normal
from graph_models import BATCH, INPUTS, TIMES, UNITS, Case, P
from torch import Tensor, nn
from torch.nn.functional import linear, softplus

# States of a step from those before, (..., units); with ``now`` the second from the first as it stands there.
Step = Callable[..., tuple[Tensor, ...]]
Shapes = Mapping[str, tuple[int, ...]]


class HandLoop(nn.Module):
    """Parameters as plain tensors, a loop in ``forward``, and what is returned of its states."""

    def __init__(self, step: Step, shapes: Shapes, how: str = "stack", states: int = 1) -> None:
        super().__init__()
        for name, shape in shapes.items():
            self.register_parameter(name, nn.Parameter(0.5 * torch.randn(*shape)))
        self.step, self.how, self.states = step, how, states

    def forward(self, x: Tensor) -> Any:
        own = dict(self.named_parameters())
        zeros = x.new_zeros(len(x), UNITS)
        start = own["start"].expand(len(x), -1) if "start" in own else zeros
        now = (start,) * self.states
        path = [now]
        for given in x.unbind(1):
            now = self.step(own, given, now)
            path.append(now)
        if self.how == "with the first":
            return torch.stack([states[0] for states in path], 1)
        several = [[states[i] for states in path[1:]] for i in range(self.states)]
        if self.how == "written into a buffer":
            found = x.new_zeros(*x.shape[:2], UNITS)
            for t, state in enumerate(several[0]):
                found[:, t] = state
            return found
        if self.how == "a list":
            return several[0]
        if self.how == "times first":
            return torch.stack(several[0]).transpose(0, 1)
        if self.how == "side by side":
            return torch.cat(several[0], 1).view(len(x), -1, UNITS)
        return tuple(torch.stack(states, 1) for states in several)


def _equations(step: Step, names: tuple[str, ...], p: P, x: Tensor, h: States) -> States:
    """The step at all times at once, each from the states one time earlier."""
    start = p["start"].expand(len(x), 1, -1) if "start" in p else x.new_zeros(len(x), 1, UNITS)
    before = tuple(torch.cat([start, h[name][:, :-1]], 1) for name in names)
    now = {"now": tuple(h[name] for name in names)} if len(names) > 1 else {}
    return dict(zip(names, step(p, x, before, **now)))


def _with_the_first(step: Step, p: P, x: Tensor, h: States) -> States:
    """The first state is a state, which its parameter gives, or which nothing changes."""
    first = p["start"].expand(len(x), 1, -1) if "start" in p else x.new_zeros(len(x), 1, UNITS)
    given = h["output"][:, :1] if "start" in p else first  # what nothing changes is held
    before = torch.cat([given, h["output"][:, 1:-1]], 1)
    return {"output": torch.cat([first, step(p, x, (before,))[0]], 1)}


def _tanh(p: P, x: Tensor, h: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (torch.tanh(linear(h[0], p["W"]) + linear(x, p["U"])),)


def _leaky_low_rank(p: P, x: Tensor, h: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    drive = linear(torch.tanh(h[0]) @ p["N"], p["M"]) + linear(x, p["U"], p["b"])
    return (0.7 * h[0] + 0.3 * drive,)


def _dale(p: P, x: Tensor, h: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    signs = torch.tensor([1.0, 1.0, -1.0], dtype=DOUBLE)
    return (torch.sigmoid(linear(h[0], p["W"].abs() * signs) + linear(x, p["U"].abs())),)


class _Spike(torch.autograd.Function):
    """A step whose derivative is replaced by a smooth one."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):  # type: ignore[no-untyped-def]
        return (x > 0).to(x)

    @staticmethod
    def setup_context(ctx, inputs, output):  # type: ignore[no-untyped-def]
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        (x,) = ctx.saved_tensors
        return gradient / (1 + 2 * x.abs()) ** 2


def _spiking(
    p: P, x: Tensor, h: tuple[Tensor, ...], now: tuple[Tensor, ...] | None = None
) -> tuple[Tensor, ...]:
    voltage = 0.8 * h[0] * (1 - h[1]) + linear(h[1], p["W"]) + linear(x, p["U"])
    return voltage, _Spike.apply((now or (voltage,))[0] - 0.3)


def _rate(p: P, x: Tensor, h: Tensor) -> Tensor:
    return -h + torch.tanh(linear(h, p["W"], p["b"]) + linear(x, p["U"]))


def _runge_kutta(p: P, x: Tensor, h: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    dt, own = 0.2, h[0]
    first = _rate(p, x, own)
    second = _rate(p, x, own + dt / 2 * first)
    third = _rate(p, x, own + dt / 2 * second)
    fourth = _rate(p, x, own + dt * third)
    return (own + dt / 6 * (first + 2 * second + 2 * third + fourth),)


def _diagonal(p: P, x: Tensor, h: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (torch.exp(-softplus(p["a"])) * h[0] + linear(x, p["B"]),)


def _selective(p: P, x: Tensor, h: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    dt = softplus(linear(x, p["D"], p["d"]))
    return (torch.exp(-softplus(p["a"]) * dt) * h[0] + dt * linear(x, p["B"]),)


def _two_layers(
    p: P, x: Tensor, h: tuple[Tensor, ...], now: tuple[Tensor, ...] | None = None
) -> tuple[Tensor, ...]:
    lower = torch.tanh(linear(h[0], p["W"]) + linear(x, p["U"]))
    return lower, torch.tanh(linear(h[1], p["V"]) + linear((now or (lower,))[0], p["C"]))


def _noisy(p: P, x: Tensor, h: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (torch.tanh(linear(h[0], p["W"]) + linear(x, p["U"]) + 0.3 * torch.randn_like(h[0])),)


def _noisy_equations(p: P, x: Tensor, h: States) -> States:
    """The noise of the seed, as the loop draws it: step by step."""
    from foretrain.support.seeds import kept_random_states

    with kept_random_states(7):
        noise = torch.stack([torch.randn(len(x), UNITS, dtype=DOUBLE) for _ in range(TIMES)], 1)
    before = torch.cat([x.new_zeros(len(x), 1, UNITS), h["output"][:, :-1]], 1)
    return {"output": torch.tanh(linear(before, p["W"]) + linear(x, p["U"]) + 0.3 * noise)}


class _Layers(nn.Module):
    """Two recurrent layers of torch, one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.lower = nn.RNN(INPUTS, UNITS, batch_first=True)
        self.upper = nn.GRU(UNITS, UNITS, batch_first=True)
        self.readout = nn.Linear(UNITS, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.readout(self.upper(self.lower(x)[0])[0])


def _layers(p: P, x: Tensor, h: States) -> States:
    before = {name: torch.cat([0 * state[:, :1], state[:, :-1]], 1) for name, state in h.items()}
    sums = linear(x, p["lower.weight_ih_l0"], p["lower.bias_ih_l0"])
    lower = torch.tanh(sums + linear(before["lower"], p["lower.weight_hh_l0"], p["lower.bias_hh_l0"]))
    given = linear(h["lower"], p["upper.weight_ih_l0"], p["upper.bias_ih_l0"]).chunk(3, -1)
    own = linear(before["upper"], p["upper.weight_hh_l0"], p["upper.bias_hh_l0"]).chunk(3, -1)
    reset, update = torch.sigmoid(given[0] + own[0]), torch.sigmoid(given[1] + own[1])
    upper = (1 - update) * torch.tanh(given[2] + reset * own[2]) + update * before["upper"]
    return {"lower": lower, "upper": upper}


_X = normal(BATCH, TIMES, INPUTS)
_SQUARE, _INPUT = (UNITS, UNITS), (UNITS, INPUTS)
_WEIGHTS: Shapes = {"W": _SQUARE, "U": _INPUT}


def _case(
    step: Step,
    shapes: Shapes = _WEIGHTS,
    how: str = "stack",
    names: tuple[str, ...] = ("output",),
    **more: Any,
) -> Case:
    states = {name: ("", i) for i, name in enumerate(names)} if len(names) > 1 else ""
    equations = partial(_equations, step, names)
    return Case(partial(HandLoop, step, shapes, how, len(names)), _X, states, equations, **more)


LOOPS = {
    **{
        f"tanh by hand, {how}": _case(_tanh, how=how)
        for how in ("stack", "written into a buffer", "a list", "times first", "side by side")
    },
    "a first state that is held": Case(
        partial(HandLoop, _tanh, _WEIGHTS, "with the first"), _X, "", partial(_with_the_first, _tanh)
    ),
    "a learned first state": _case(_tanh, {**_WEIGHTS, "start": (UNITS,)}, without=("start",)),
    "a learned first state among the states": Case(
        partial(HandLoop, _tanh, {**_WEIGHTS, "start": (UNITS,)}, "with the first"),
        _X,
        "",
        partial(_with_the_first, _tanh),
        without=("start",),
    ),
    "a parameter that is a state": Case(
        partial(HandLoop, _tanh, {**_WEIGHTS, "start": (BATCH, UNITS)}, "with the first"),
        _X,
        "",
        lambda p, x, h: {
            "output": torch.cat([p["start"][:, None], _tanh(p, x, (h["output"][:, :-1],))[0]], 1)
        },
        without=("start",),
    ),
    "leaky and low-rank": _case(
        _leaky_low_rank, {"M": (UNITS, 2), "N": (UNITS, 2), "U": _INPUT, "b": (UNITS,)}
    ),
    "Dale": _case(_dale, without=("W", "U")),
    "spiking": _case(_spiking, names=("voltage", "spikes")),
    "Runge-Kutta": _case(_runge_kutta, {**_WEIGHTS, "b": (UNITS,)}),
    "diagonal state space": _case(_diagonal, {"a": (UNITS,), "B": _INPUT}, without=("a",)),
    "selective state space": _case(
        _selective, {"a": (UNITS,), "B": _INPUT, "D": _INPUT, "d": (UNITS,)}, without=("a",)
    ),
    "two layers by hand": _case(
        _two_layers, {**_WEIGHTS, "V": _SQUARE, "C": _SQUARE}, names=("lower", "upper")
    ),
    "two layers of torch": Case(
        _Layers, _X, ("lower", "upper"), _layers, frozen=("readout.weight", "readout.bias")
    ),
    "noise": Case(partial(HandLoop, _noisy, _WEIGHTS), _X, "", _noisy_equations, options={"noise": 7}),
}
