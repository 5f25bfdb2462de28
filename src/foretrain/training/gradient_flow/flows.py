"""Embedded Runge-Kutta steps for stacks of independent flows, each with its own clock and its own step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from foretrain.training.gradient_flow.interpolation import Clock
from foretrain.training.gradient_flow.methods import Method, Tolerance

State: TypeAlias = tuple[Tensor, ...]  # every tensor has the flows along its first axis

_SAFETY, _GROWTH, _SHRINKAGE = 0.9, 5.0, 0.2


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The field at a state: Ẇ of every tensor, and for each flow the loss and its rate of change."""

    rates: State
    loss: Clock
    loss_rate: Clock

    def __getitem__(self, which: NDArray[np.intp]) -> Evaluation:
        return Evaluation(picked(self.rates, which), self.loss[which], self.loss_rate[which])


Field: TypeAlias = Callable[[State], Evaluation]


@dataclass(frozen=True, eq=False)
class Interval:
    """One attempted step of all flows: where it starts and ends, and for which flows it is good enough."""

    start: Clock
    length: Clock
    before: State
    after: State
    first: Evaluation
    last: Evaluation
    accepted: NDArray[np.bool_]


class Flows:
    """Independent flows under one field, each advanced by its own steps; :meth:`keep` drops finished ones."""

    def __init__(self, field: Field, state: State, method: Method, tolerance: Tolerance) -> None:
        self._field, self._method, self._tolerance = field, method, tolerance
        count = len(state[0])
        self.state = state
        self.now = field(state)
        self.time = np.zeros(count)
        self.step = _first_step(state, self.now)
        self.evaluations = np.ones(count, dtype=int)
        self.steps = np.zeros(count, dtype=int)
        self.rejected = np.zeros(count, dtype=int)
        self._error = np.ones(count)  # of the last accepted step, for the control
        self._shrunk = np.zeros(count, dtype=bool)

    def __len__(self) -> int:
        return len(self.time)

    @property
    def at_rest(self) -> NDArray[np.bool_]:
        """Which flows have no velocity at all."""
        return np.asarray(self.now.loss_rate == 0)

    @property
    def stuck(self) -> NDArray[np.bool_]:
        """Which flows cannot step any more: the step vanishes beside the clock, or is not a number."""
        return ~(self.step > 1e-14 * np.maximum(self.time, 1e-200))

    def attempt(self, longest: Clock | None = None) -> Interval:
        """Try one step of every flow, not longer than ``longest``; only good ones are taken."""
        length = self.step if longest is None else np.minimum(self.step, longest)
        new, last, error = self._stages(self.state, self.now, length)
        accepted = (error <= 1) & np.isfinite(last.loss)
        interval = Interval(self.time.copy(), length, self.state, new, self.now, last, accepted)
        self.evaluations += self._method.evaluations
        self.steps += accepted
        self.rejected += ~accepted
        self.time = np.where(accepted, self.time + length, self.time)
        self._advance(new, last, accepted)
        self._control(length, error, accepted)
        return interval

    def keep(self, which: NDArray[np.bool_]) -> None:
        """Drop all other flows."""
        index = np.flatnonzero(which)
        self.state, self.now = picked(self.state, index), self.now[index]
        for name in ("time", "step", "evaluations", "steps", "rejected", "_error", "_shrunk"):
            setattr(self, name, getattr(self, name)[index])

    def land(self, interval: Interval, which: NDArray[np.intp], fractions: Clock) -> tuple[State, Evaluation]:
        """Repeat a step for some flows with a fraction of its length: the state there, as accurate as at its end."""
        self.evaluations[which] += self._method.evaluations
        start = picked(interval.before, which), interval.first[which]
        state, now, _ = self._stages(*start, fractions * interval.length[which])
        return state, now

    def _stages(self, state: State, now: Evaluation, length: Clock) -> tuple[State, Evaluation, Clock]:
        slopes, new, last = [now.rates], state, now
        for row in self._method.stages:
            new = tuple(
                base + per_flow(length, base) * _combined(row, layer)
                for base, layer in zip(state, zip(*slopes))
            )
            last = self._field(new)
            slopes.append(last.rates)
        worst = np.zeros(len(length))
        for old, moved, layer in zip(state, new, zip(*slopes)):
            size = np.maximum(_norms(old), _norms(moved))
            error = length * _norms(_combined(self._method.error, layer))
            worst = np.fmax(
                worst, error / (self._tolerance.relative * size + self._tolerance.absolute + 1e-300)
            )
            worst[~np.isfinite(error)] = np.inf
        return new, last, worst

    def _advance(self, new: State, last: Evaluation, accepted: NDArray[np.bool_]) -> None:
        if accepted.all():
            self.state, self.now = new, last
            return
        self.state = _where(accepted, new, self.state)
        self.now = Evaluation(
            _where(accepted, last.rates, self.now.rates),
            np.where(accepted, last.loss, self.now.loss),
            np.where(accepted, last.loss_rate, self.now.loss_rate),
        )

    def _control(self, length: Clock, error: Clock, accepted: NDArray[np.bool_]) -> None:
        """Proportional-integral control (Gustafsson 1991), which is smooth where stability limits the step."""
        power = 1 / self._method.order
        with np.errstate(divide="ignore"):
            good = np.maximum(error, 1e-10) ** (-0.7 * power) * self._error ** (0.4 * power)
            bad = error**-power
        factor = np.clip(_SAFETY * np.where(accepted, good, bad), _SHRINKAGE, _GROWTH)
        factor = np.where(self._shrunk | ~accepted, np.minimum(factor, 1.0), factor)
        cut = accepted & (length < self.step)  # a step that was cut short says little about the next one
        self.step = np.where(cut, np.maximum(self.step, length * factor), length * factor)
        self._error = np.where(accepted, np.maximum(error, 1e-4), self._error)
        self._shrunk = ~accepted


def picked(state: State, which: NDArray[np.intp]) -> State:
    """Some of the flows."""
    index = torch.from_numpy(np.asarray(which, dtype=np.int64))
    return tuple(values[index.to(values.device)] for values in state)


def _first_step(state: State, now: Evaluation) -> Clock:
    """A hundredth of the shortest time in which a tensor would change by its own size."""
    shortest = np.full(len(now.loss), np.inf)
    for values, rates in zip(state, now.rates):
        size, speed = _norms(values), _norms(rates)
        with np.errstate(divide="ignore", invalid="ignore"):
            shortest = np.fmin(shortest, np.where((size > 0) & (speed > 0), size / speed, np.inf))
    return np.where(np.isfinite(shortest), 0.01 * shortest, 1e-3)


def _combined(coefficients: tuple[float, ...], slopes: tuple[Tensor, ...]) -> Tensor:
    pairs = [(c, slope) for c, slope in zip(coefficients, slopes) if c != 0]
    total = pairs[0][0] * pairs[0][1]
    for coefficient, slope in pairs[1:]:
        total.add_(slope, alpha=coefficient)
    return total


def per_flow(values: Clock, like: Tensor) -> Tensor:
    """One number for each flow, shaped to multiply a stacked tensor."""
    shape = (len(values), *(1,) * (like.ndim - 1))
    return torch.from_numpy(values).to(dtype=like.dtype, device=like.device).reshape(shape)


def _norms(values: Tensor) -> Clock:
    return np.asarray(torch.linalg.vector_norm(values.flatten(1), dim=1).double().cpu().numpy())


def _where(mask: NDArray[np.bool_], new: State, old: State) -> State:
    flags = torch.from_numpy(mask)
    return tuple(
        torch.where(flags.to(a.device).reshape(-1, *(1,) * (a.ndim - 1)), a, b) for a, b in zip(new, old)
    )
