"""The population gradient flow of a problem, by adaptive steps of stacks of independent flows.

Each flow of a stack has its own clock and its own step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from foretrain.support.errors import InputError, unknown_name
from foretrain.support.memory import require_memory
from foretrain.training.gradient_flow.methods import (
    BOGACKI_SHAMPINE,
    DORMAND_PRINCE,
    Chebyshev,
    Clock,
    Evaluation,
    Field,
    Method,
    State,
    Tolerance,
    chosen,
    norms,
    picked,
    spectral_radius,
)
from foretrain.training.gradient_flow.networks import Networks, bytes_per_network, loss_and_gradients
from foretrain.training.gradient_flow.problem import Metric, Problem, Sample, gaussian_sample

_SAFETY, _GROWTH, _SHRINKAGE = 0.9, 5.0, 0.2
_RADIUS_AGE = 15  # accepted steps after which the spectral radius is measured again

_METHODS: dict[str, Callable[[], Method]] = {
    "bogacki_shampine": lambda: BOGACKI_SHAMPINE,
    "chebyshev": Chebyshev,
    "dormand_prince": lambda: DORMAND_PRINCE,
}
_COPIES = 20  # of all weights, at most, while a step is made
_CACHED = 24 * 2**20  # bytes: stacking more networks than stay near the processor does not pay


def method_named(name: str) -> Method:
    """``dormand_prince``: accurate; ``bogacki_shampine``: loose tolerances; ``chebyshev``: long and stiff flows."""
    if name not in _METHODS:
        raise unknown_name("`method`", name, _METHODS)
    return _METHODS[name]()


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
        # A hundredth of the shortest time in which a tensor would change by its own size.
        shortest = np.full(count, np.inf)
        for values, rates in zip(state, self.now.rates):
            size, speed = norms(values), norms(rates)
            with np.errstate(divide="ignore", invalid="ignore"):
                shortest = np.fmin(shortest, np.where((size > 0) & (speed > 0), size / speed, np.inf))
        self.step = np.where(np.isfinite(shortest), 0.01 * shortest, 1e-3)
        self.evaluations = np.ones(count, dtype=int)
        self.steps = np.zeros(count, dtype=int)
        self.rejected = np.zeros(count, dtype=int)
        self._error = np.ones(count)  # of the last accepted step, for the control
        self._shrunk = np.zeros(count, dtype=bool)
        self._radius, self._direction = np.zeros(count), self.now.rates
        self._age = _RADIUS_AGE

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

    def attempt(self, longest: Clock) -> Interval:
        """Try one step of every flow, not longer than ``longest``; only good ones are taken."""
        if self._method.needs_radius and self._age >= _RADIUS_AGE:
            found = spectral_radius(self._field, self.state, self.now, self._direction)
            self._radius, self._direction, cost = found
            self.evaluations += cost
            self._age = 0
        length = np.minimum(np.minimum(self.step, longest), self._method.longest(self._radius))
        trial = self._method.step(self._field, self.state, self.now, length, self._radius)
        error = np.zeros(len(self))  # beside what is allowed, in the worst tensor of each flow
        for old, moved, local in zip(self.state, trial.state, trial.error):
            made, size = norms(local), np.maximum(norms(old), norms(moved))
            allowed = self._tolerance.relative * size + self._tolerance.absolute + 1e-300
            with np.errstate(invalid="ignore"):  # of what has become infinite
                error = np.fmax(error, made / allowed)
            error[~np.isfinite(made)] = np.inf
        accepted = (error <= 1) & np.isfinite(trial.last.loss)
        now, last = self.now, trial.last
        interval = Interval(self.time.copy(), length, self.state, trial.state, now, last, accepted)
        self.evaluations += trial.evaluations
        self.steps += accepted
        self.rejected += ~accepted
        self.time = np.where(accepted, self.time + length, self.time)
        self._age = self._age + 1 if accepted.all() else _RADIUS_AGE
        if accepted.all():
            self.state, self.now = trial.state, last
        else:
            self.state = chosen(accepted, trial.state, self.state)
            self.now = Evaluation(
                chosen(accepted, last.rates, now.rates),
                np.where(accepted, last.loss, now.loss),
                np.where(accepted, last.loss_rate, now.loss_rate),
            )
        self._control(length, error, accepted)
        return interval

    def keep(self, which: NDArray[np.bool_]) -> None:
        """Drop all other flows."""
        index = np.flatnonzero(which)
        self.state, self.now = picked(self.state, index), self.now[index]
        self._direction = picked(self._direction, index)
        for name in ("time", "step", "evaluations", "steps", "rejected", "_error", "_shrunk", "_radius"):
            setattr(self, name, getattr(self, name)[index])

    def land(self, interval: Interval, which: NDArray[np.intp], fractions: Clock) -> tuple[State, Evaluation]:
        """Repeat a step for some flows with a fraction of its length: the state there, as accurate as at its end."""
        start = picked(interval.before, which), interval.first[which]
        length = fractions * interval.length[which]
        trial = self._method.step(self._field, *start, length, self._radius[which])
        self.evaluations[which] += trial.evaluations
        return trial.state, trial.last

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


@dataclass(frozen=True)
class Integration:
    """How a flow is integrated.

    ``rtol`` and ``atol`` bound the error of one step in the norm of every weight matrix; float32 halves the time and
    keeps four digits of escape times. ``method``: ``"dormand_prince"``, ``"bogacki_shampine"`` (fewer gradients at
    loose tolerances) or ``"chebyshev"`` (many fewer where steep directions limit the step long after the escape).
    """

    rtol: float = 1e-4
    atol: float = 1e-12
    method: str = "dormand_prince"
    dtype: torch.dtype = torch.float64
    max_time: float = math.inf
    max_evaluations: int = 20_000

    def __post_init__(self) -> None:
        method_named(self.method)
        Tolerance(self.rtol, self.atol)
        if self.dtype not in (torch.float32, torch.float64):
            raise InputError(f"`dtype` is {self.dtype}: give torch.float32 or torch.float64.")
        if self.rtol < 10 * torch.finfo(self.dtype).eps:
            raise InputError(f"rtol is {self.rtol:g}, too fine for {self.dtype}: give more, or take float64.")
        if not self.max_time > 0 or self.max_evaluations < 1:
            raise InputError("max_time and max_evaluations must be positive.")

    def flows(self, field: Field, state: State) -> Flows:
        """Flows that start at a state."""
        cast = tuple(values.to(self.dtype) for values in state)
        return Flows(field, cast, method_named(self.method), Tolerance(self.rtol, self.atol))


def population_field(problem: Problem, sample: Sample, metric: Metric = "uniform") -> Field:
    """Ẇ_l = -ρ_l ∂/∂W_l ½ E (f - y)² over the sample."""
    layer_rates = problem.rates(metric)

    def field(weights: State) -> Evaluation:
        loss, gradients = loss_and_gradients(problem, weights, sample)
        squares = sum(
            rate * gradient.square().sum(dim=(1, 2)).double()
            for rate, gradient in zip(layer_rates, gradients)
        )
        rates = tuple(gradient.mul_(-rate) for rate, gradient in zip(layer_rates, gradients))
        return Evaluation(rates, loss.double().numpy(), -np.asarray(squares))

    return field


def prepared_sample(problem: Problem, sample: Sample | None, integration: Integration) -> Sample:
    """The sample in the precision of the integration; the usual one if none is given."""
    chosen = gaussian_sample(problem) if sample is None else sample
    if chosen.points.shape[-2] != problem.inputs:
        raise InputError(f"the sample has {chosen.points.shape[-2]} inputs, the problem {problem.inputs}.")
    return chosen.to(integration.dtype)


def groups(problem: Problem, networks: Networks, sample: Sample, integration: Integration) -> Iterator[slice]:
    """Which networks to flow together, so that their activations stay small; refused if one does not fit."""
    own = bytes_per_network(problem, sample.size, integration.dtype)
    together = int(max(1, min(len(networks), _CACHED // own)))
    numbers = sum(math.prod(shape) for shape in problem.shapes)
    require_memory(
        together * (own + _COPIES * numbers * torch.finfo(integration.dtype).bits // 8),
        f"the gradient flow of {problem!r} on {sample.size} points",
        "take fewer points, float32 or a smaller width",
    )
    return (slice(start, start + together) for start in range(0, len(networks), together))
