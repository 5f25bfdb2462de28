"""Escape times: when a flow's loss falls, or its amplitude rises, through thresholds.

Observables whose passing of a threshold is called an escape come with their rate of change. Plain stochastic gradient
descent on fresh Gaussian batches is the check of the flow, at its full price.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from foretrain.support.errors import InputError, unknown_name
from foretrain.support.memory import require_memory
from foretrain.support.progress import Progress, track
from foretrain.support.seeds import Seed, spawn, torch_generator
from foretrain.support.threads import on_free_cores
from foretrain.training.gradient_flow.integration import (
    Flows,
    Integration,
    Interval,
    groups,
    population_field,
    prepared_sample,
)
from foretrain.training.gradient_flow.methods import Clock, Evaluation, Field, State, picked
from foretrain.training.gradient_flow.networks import (
    Networks,
    bytes_per_network,
    forward,
    loss_and_gradients,
    mean_losses,
)
from foretrain.training.gradient_flow.problem import Metric, Problem, Sample

if TYPE_CHECKING:
    import xarray as xr

Array = NDArray[Any]
Measure = Callable[[Problem, State, Evaluation], tuple[Clock, Clock]]


@dataclass(frozen=True)
class EscapeObservable:
    """A number of each network with its rate; an escape makes it fall, or rise, through the threshold."""

    name: str
    falls: bool
    measure: Measure

    def passed(self, values: Clock, level: float) -> NDArray[np.bool_]:
        """Whether values are beyond the threshold."""
        return np.asarray(values <= level if self.falls else values >= level)

    def fractions(
        self, ends: tuple[Clock, Clock], rates: tuple[Clock, Clock], length: Clock, level: float
    ) -> Clock:
        """When the threshold is passed inside a step: a fraction of its length, nan where it is not."""
        there = ~self.passed(ends[0], level) & self.passed(ends[1], level)
        return np.where(there, crossing(ends, rates, length, level), np.nan)


def loss_observable() -> EscapeObservable:
    """The loss ½ E (f - y)², which falls."""
    return EscapeObservable("loss", True, lambda problem, state, now: (now.loss, now.loss_rate))


def amplitude_observable(mode: int = 0) -> EscapeObservable:
    """X_1 of a mode, which rises: the mean of W_1 v_k over the neurons of its block."""

    def measure(problem: Problem, state: State, now: Evaluation) -> tuple[Clock, Clock]:
        block = problem.block_width
        rows = slice(_mode(problem, mode) * block, (mode + 1) * block)
        value, rate = (_numbers(w[0][:, rows, mode].mean(dim=1)) for w in (state, now.rates))
        return value, rate

    return EscapeObservable("amplitude", False, measure)


def alignment_observable(mode: int = 0) -> EscapeObservable:
    """‖W_1 v_k‖ / √N of a mode, which rises: its size in the first layer, wherever the neurons are."""

    def measure(problem: Problem, state: State, now: Evaluation) -> tuple[Clock, Clock]:
        rows, moving = (w[0][:, :, _mode(problem, mode)].double() for w in (state, now.rates))
        norms = rows.norm(dim=1).clamp_min(1e-300)
        scale = problem.width**-0.5
        return _numbers(scale * norms), _numbers(scale * (rows * moving).sum(dim=1) / norms)

    return EscapeObservable("alignment", False, measure)


_NAMED: dict[str, Callable[[], EscapeObservable]] = {
    "alignment": alignment_observable,
    "amplitude": amplitude_observable,
    "loss": loss_observable,
}


def observable_named(observable: str | EscapeObservable) -> EscapeObservable:
    """An observable by name, of the first mode; or the one that is given."""
    if isinstance(observable, EscapeObservable):
        return observable
    if observable not in _NAMED:
        raise unknown_name("`observable`", observable, _NAMED)
    return _NAMED[observable]()


def _mode(problem: Problem, mode: int) -> int:
    if not 0 <= mode < problem.modes:
        raise InputError(f"mode is {mode}: the teacher has modes 0 to {problem.modes - 1}.")
    return mode


def _numbers(values: object) -> Clock:
    return np.asarray(values, dtype=np.float64)


def hermite(ends: tuple[Clock, Clock], rates: tuple[Clock, Clock], length: Clock, at: Clock) -> Clock:
    """The cubic with the given values and rates at both ends of a step of this length, at a fraction of it."""
    return (
        (1 + 2 * at) * (1 - at) ** 2 * ends[0]
        + at * (1 - at) ** 2 * length * rates[0]
        + at**2 * (3 - 2 * at) * ends[1]
        + at**2 * (at - 1) * length * rates[1]
    )


def crossing(ends: tuple[Clock, Clock], rates: tuple[Clock, Clock], length: Clock, level: float) -> Clock:
    """The fraction of the step at which a quantity passes a level that lies between its ends, by bisection."""
    low, high = np.zeros(len(length)), np.ones(len(length))
    rising = ends[1] > ends[0]
    for _ in range(50):
        middle = 0.5 * (low + high)
        before = (hermite(ends, rates, length, middle) < level) == rising
        low, high = np.where(before, middle, low), np.where(before, high, middle)
    return 0.5 * (low + high)


@on_free_cores()
def escape(
    problem: Problem,
    networks: Networks,
    *,
    thresholds: Sequence[float] = (0.02,),
    observable: str | EscapeObservable = "loss",
    metric: Metric = "uniform",
    sample: Sample | None = None,
    integration: Integration | None = None,
) -> xr.Dataset:
    """When the population gradient flow of each network passes each threshold.

    ``time`` (network, threshold) is the flow's own: Ẇ_1 = -∇_1, so time = learning rate × steps of the first layer
    (matrix time s; the reduced flow (4) runs in t = s / N). It is infinite for a network without any gradient, and
    nan where a limit of the integration came first; ``status`` says which. ``signal`` is γ(0) = E[f g] at the start:
    seeds where it is negative are outside the proof of Thm 11.

    ``observable``: ``"loss"``, ``"amplitude"`` (X_1 on the ansatz), ``"alignment"`` (‖W_1 v_1‖/√N), or one of your
    own. ``metric``: ``"uniform"``, ``"normalized"`` or a rate for every layer. ``sample``: the points that stand for
    the Gaussian law, 1024 quasi-random ones unless given.

    >>> from foretrain.training.gradient_flow import Problem, escape, scaled_he
    >>> problem = Problem("tanh", depth=3, width=16, inputs=4)
    >>> found = escape(problem, scaled_he(problem, 3, [0.1, 0.2], seeds=2))
    >>> found["time"].dims
    ('network', 'threshold')
    """
    import xarray as xr

    levels = np.atleast_1d(np.asarray(thresholds, dtype=np.float64))
    if levels.ndim != 1 or not levels.size or not np.isfinite(levels).all():
        raise InputError(f"thresholds are {thresholds!r}: give finite numbers.")
    watched, rules = observable_named(observable), integration or Integration()
    if watched.name == "loss" and not (levels > 0).all():
        raise InputError(
            f"thresholds are {thresholds!r}: a loss takes forever to vanish; give positive numbers."
        )
    points = prepared_sample(problem, sample, rules)
    run = _Run(problem, watched, levels, rules, population_field(problem, points, metric))
    found = []
    with Progress("networks escaping", total=len(networks)) as bar:
        for which in groups(problem, networks, points, rules):
            found.append(run(networks[which], points, bar))
    variables = {
        name: (("network", "threshold")[: part.ndim], np.concatenate([one[name] for one in found]))
        for name, part in found[0].items()
    }
    labels = {name: ("network", values) for name, values in networks.labels.items()}
    return xr.Dataset(
        variables,
        coords={"network": np.arange(len(networks)), "threshold": levels, **labels},
        attrs={
            "problem": repr(problem),
            "observable": watched.name,
            "rates": list(problem.rates(metric)),
            "time_unit": "learning rate times steps of the first layer",
            "sample": repr(points),
            "rtol": rules.rtol,
            "method": rules.method,
        },
    )


@dataclass(frozen=True, eq=False)
class _Run:
    """One set of rules, applied to group after group."""

    problem: Problem
    observable: EscapeObservable
    levels: NDArray[np.float64]
    rules: Integration
    field: Field

    def __call__(self, networks: Networks, sample: Sample, bar: Progress) -> dict[str, Array]:
        """By name, what is known of a group of networks, in their order."""
        flows = self.rules.flows(self.field, networks.weights)
        made = forward(self.problem, flows.state, sample.points)
        signal = (made.outputs[:, 0] * sample.points[0] * sample.weights).sum(dim=-1).double().numpy()
        count = len(flows)
        counters = ("evaluations", "steps", "rejected")
        time, final_loss = np.full((count, len(self.levels)), np.nan), np.full(count, np.nan)
        status = np.full(count, "reached", dtype=object)
        numbers = {name: np.zeros(count, dtype=int) for name in counters}
        place = np.arange(count)
        value, _ = self.observable.measure(self.problem, flows.state, flows.now)
        for number, level in enumerate(self.levels):
            time[self.observable.passed(value, level), number] = 0.0
        while True:
            ended = self._ended(flows, time, status, place)
            if ended.any():
                where = place[ended]
                final_loss[where] = flows.now.loss[ended]
                for name in counters:
                    numbers[name][where] = getattr(flows, name)[ended]
                resting = where[status[where] == "at rest"]
                time[resting] = np.where(np.isnan(time[resting]), np.inf, time[resting])
                bar.advance(int(ended.sum()))
                flows.keep(~ended)
                place = place[~ended]
            if not len(flows):
                known = {"time": time, "final_loss": final_loss, **numbers}
                return {**known, "status": status.astype(str), "signal": signal}
            interval = flows.attempt(self.rules.max_time - flows.time)
            self._cross(flows, interval, time, place)

    def _cross(self, flows: Flows, interval: Interval, time: Array, place: Array) -> None:
        """Note the thresholds passed inside a step: where Hermite's cubic says, land there, then one Newton step."""
        start = self.observable.measure(self.problem, interval.before, interval.first)
        end = self.observable.measure(self.problem, interval.after, interval.last)
        ends, rates = (start[0], end[0]), (start[1], end[1])
        for number, level in enumerate(self.levels):
            fractions = self.observable.fractions(ends, rates, interval.length, float(level))
            new = np.flatnonzero(interval.accepted & np.isfinite(fractions) & np.isnan(time[place, number]))
            if len(new):
                value, rate = self.observable.measure(
                    self.problem, *flows.land(interval, new, fractions[new])
                )
                there = interval.start[new] + fractions[new] * interval.length[new]
                time[place[new], number] = there + (level - value) / rate

    def _ended(self, flows: Flows, time: Array, status: Array, place: Array) -> NDArray[np.bool_]:
        """Which flows are done, with the reason in their status."""
        ended = np.asarray(np.isfinite(time[place]).all(axis=1))
        reasons = {
            "at rest": flows.at_rest,
            "time limit": flows.time >= self.rules.max_time,
            "evaluation limit": flows.evaluations >= self.rules.max_evaluations,
            "step underflow": flows.stuck,
        }
        for reason, holds in reasons.items():
            new = holds & ~ended
            status[place[new]] = reason
            ended |= new
        return ended


def stochastic_escape(
    problem: Problem,
    networks: Networks,
    *,
    lr: float = 0.01,
    batch_size: int = 512,
    steps: int = 100_000,
    thresholds: Sequence[float] = (0.02,),
    metric: Metric = "uniform",
    sample: Sample | None = None,
    every: int = 10,
    dtype: torch.dtype = torch.float64,
    seed: Seed = 0,
) -> xr.Dataset:
    """First times (lr × steps) at which the loss over ``sample`` is below each threshold.

    Every network learns from batches of its own. The loss is looked at every ``every`` steps and is taken as linear
    in between; ``time`` is nan where the steps did not suffice. Times compare with those of :func:`escape`, up to
    terms of first order in the learning rate and the noise of the batches.
    """
    import xarray as xr

    if not lr > 0 or min(batch_size, steps, every) < 1:
        raise InputError("lr, batch_size, steps and every must be positive.")
    points = prepared_sample(problem, sample, Integration(dtype=dtype))
    require_memory(
        len(networks) * bytes_per_network(problem, max(batch_size, points.size), dtype),
        f"descent of {len(networks)} networks on batches of {batch_size}",
        "take fewer networks at a time, smaller batches or float32",
    )

    def losses(weights: State) -> NDArray[np.float64]:
        return np.asarray(mean_losses(problem, weights, points).double().numpy())

    levels = np.atleast_1d(np.asarray(thresholds, dtype=np.float64))
    rates = [lr * rate for rate in problem.rates(metric)]
    sources = [torch_generator(own) for own in spawn(seed, len(networks))]
    weights: State = tuple(values.to(dtype) for values in networks.weights)
    shape, share = (problem.inputs, batch_size), torch.full((batch_size,), 1 / batch_size, dtype=dtype)
    place = np.arange(len(networks))
    time = np.full((len(networks), len(levels)), np.nan)
    before = losses(weights)
    time[before[:, None] <= levels] = 0.0
    for step in track(range(1, steps + 1), "steps of descent"):
        # One step of every network on its own fresh batch.
        drawn = [torch.randn(shape, generator=sources[index], dtype=dtype) for index in place]
        batch = torch.stack(drawn)
        learned = Sample(batch, share, problem.teacher(batch), "batch")
        _, gradients = loss_and_gradients(problem, weights, learned)
        weights = tuple(values - rate * slope for values, rate, slope in zip(weights, rates, gradients))
        if step % every:
            continue
        after = losses(weights)
        for number, level in enumerate(levels):
            new = (after <= level) & np.isnan(time[place, number])
            fraction = (before[new] - level) / (before[new] - after[new])
            time[place[new], number] = (step - every) * lr + every * lr * np.clip(fraction, 0, 1)
        live = np.isnan(time[place]).any(axis=1)
        weights, before, place = picked(weights, np.flatnonzero(live)), after[live], place[live]
        if not len(place):
            break
    labels = {name: ("network", values) for name, values in networks.labels.items()}
    return xr.Dataset(
        {"time": (("network", "threshold"), time)},
        coords={"network": np.arange(len(networks)), "threshold": levels, **labels},
        attrs={"problem": repr(problem), "lr": lr, "batch_size": batch_size, "rates": rates},
    )
