"""Gradient flow of any torch model on its own data, with adaptive steps."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from foretrain.support.answers import Answer, Axis, Figure, Result, dataset_table, scale_for, shades
from foretrain.support.errors import InputError, NotSupportedError
from foretrain.support.progress import Progress
from foretrain.training.gradient_flow.integration import Flows, Interval, method_named
from foretrain.training.gradient_flow.methods import Evaluation, State, Tolerance

if TYPE_CHECKING:
    import xarray as xr

Loss = Callable[[Any, Any], Tensor]
Event = Callable[[nn.Module, float], float]  # of the model and its loss; the flow ends where it is zero


@dataclass(frozen=True, eq=False, repr=False)
class ModelFlow(Result):
    """What the flow went through: ``data`` by step, the model at its end, and why it ended."""

    data: xr.Dataset
    model: nn.Module
    status: str
    evaluations: int

    @property
    def time(self) -> float:
        """When the flow ended."""
        return float(self.data["time"][-1])

    def answer(self) -> Answer:
        """Where the loss went, single numbers by step, and the curves."""
        losses = self.data["loss"].values
        statement = (
            f"The loss goes from {losses[0]:.6g} to {losses[-1]:.6g} at time {self.time:.6g} ({self.status}): "
            f"{self.data.sizes['step'] - 1} steps, {self.evaluations} gradients."
        )
        return Answer(statement, [dataset_table(self.data, "step").thinned(12), self.figure], self.data)

    def figure(self) -> Figure:
        """The loss and the norms of all parameters over time."""
        figure, time = Figure("Gradient flow", columns=2), self.data["time"].values
        losses = self.data["loss"].values
        figure.panel("loss", x="time", y=Axis("loss", scale_for(losses))).curve(time, losses, ".-")
        norms = figure.panel("parameters", x="time", y="norm", legend="right")
        names = self.data["parameter"].values.tolist()
        for name, color, own in zip(names, shades(len(names)), self.data["norm"].values.T, strict=True):
            norms.curve(time, own, "-", str(name), color)
        return figure


def gradient_flow(
    model: nn.Module,
    x: Any,
    y: Any,
    loss: Loss,
    *,
    max_time: float = math.inf,
    stop: float | Event | None = None,
    rates: Mapping[str, float] | None = None,
    observe: Mapping[str, Callable[[nn.Module], Any]] | None = None,
    rtol: float = 1e-4,
    atol: float = 1e-10,
    method: str = "chebyshev",
    max_evaluations: int = 100_000,
) -> ModelFlow:
    """Follow θ̇ = -ρ ∇ loss(model(x), y) of a copy of the model on all its data.

    ``stop`` is a loss at which to end, or a function of (model, loss) that ends the flow where it falls through zero;
    time is then found to the accuracy of the steps. ``rates`` gives ρ by parameter name, one for all others. Every
    accepted step is recorded: time, loss and its rate, speed and norm of every parameter, and what ``observe`` asks
    of the model (numbers or arrays). Parameters without ``requires_grad`` stay. Give ``max_time``, ``stop`` or both.
    ``method``: ``"chebyshev"`` goes far where the loss is steep in some directions and slow along others, as it is in
    most trained networks; ``"dormand_prince"`` is better for many digits.

    >>> model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
    >>> x = torch.randn(20, 3)
    >>> gradient_flow(model, x, x[:, :1], nn.functional.mse_loss, max_time=1.0).status
    'time limit'
    """
    if stop is None and not math.isfinite(max_time):
        raise InputError("the flow would never end: give `max_time=` or `stop=`.")
    run = _Run(copy.deepcopy(model), x, y, loss, rates or {}, stop, observe or {})
    flows = Flows(run.field, run.start(), method_named(method), Tolerance(rtol, atol))
    if not np.isfinite([flows.now.loss, flows.now.loss_rate]).all():
        raise InputError(
            "the loss or its gradient is not finite at the start: check the data and the weights."
        )
    run.record(0.0, flows.state, flows.now)
    status = "reached" if run.event(flows.state, flows.now) <= 0 else ""
    with Progress("gradient flow", total=max_time if math.isfinite(max_time) else None) as bar:
        while not status:
            interval = flows.attempt(np.asarray([max_time]) - flows.time)
            bar.advance(float(interval.length[0] * interval.accepted[0]))
            if interval.accepted[0]:
                status = run.accept(flows, interval)
            status = status or _ended(flows, max_time, max_evaluations)
    return run.result(status, int(flows.evaluations[0]))


class _Run:
    """The flow of one model: its field, its event and its record."""

    def __init__(
        self,
        model: nn.Module,
        x: Any,
        y: Any,
        loss: Loss,
        rates: Mapping[str, float],
        stop: float | Event | None,
        observe: Mapping[str, Callable[[nn.Module], Any]],
    ) -> None:
        self.model, self._x, self._y, self._loss = model, x, y, loss
        self._parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        if not self._parameters:
            raise NotSupportedError(
                "the model has no parameter with requires_grad: there is nothing to flow."
            )
        unknown = set(rates) - set(self._parameters)
        if unknown:
            raise InputError(f"rates name {sorted(unknown)}, which are not trained parameters of the model.")
        self._rates = [float(rates.get(name, 1.0)) for name in self._parameters]
        self._stop, self._observe = stop, observe
        self._rows: list[dict[str, Any]] = []

    def start(self) -> State:
        """The parameters of the model, stacked as a single flow."""
        return tuple(p.detach().clone()[None] for p in self._parameters.values())

    def field(self, state: State) -> Evaluation:
        """-ρ ∇ loss at a state."""
        leaves = [values[0].detach().requires_grad_() for values in state]
        with torch.enable_grad():
            outputs = torch.func.functional_call(self.model, dict(zip(self._parameters, leaves)), (self._x,))
            loss = self._loss(outputs, self._y)
            if not isinstance(loss, Tensor) or loss.numel() != 1:
                raise InputError(
                    "loss(model(x), y) must be one number with its graph: average over the data."
                )
            gradients = torch.autograd.grad(
                loss.reshape(()), leaves, allow_unused=True, materialize_grads=True
            )
        fall = sum(rate * float(g.double().square().sum()) for rate, g in zip(self._rates, gradients))
        rates = tuple(-rate * gradient[None] for rate, gradient in zip(self._rates, gradients))
        return Evaluation(rates, np.asarray([float(loss.detach())]), np.asarray([-float(fall)]))

    def event(self, state: State, now: Evaluation) -> float:
        """What ends the flow when it falls through zero."""
        if self._stop is None:
            return math.inf
        if callable(self._stop):
            return float(self._stop(self._moved(state), float(now.loss[0])))
        return float(now.loss[0]) - self._stop

    def accept(self, flows: Flows, interval: Interval) -> str:
        """Record a step; if the event is in it, record the state there instead."""
        fraction, state, now = 1.0, interval.after, interval.last
        low, high, at_high = 0.0, 1.0, self.event(state, now)
        if at_high > 0:
            self.record(float(flows.time[0]), state, now)
            return ""
        # Where the event is zero, by the Illinois form of regula falsi on real states.
        at_low = self.event(interval.before, interval.first)
        for _ in range(40):
            if at_high == 0 or high - low < 1e-9:
                break
            fraction = high - at_high * (high - low) / (at_high - at_low)
            state, now = flows.land(interval, np.zeros(1, dtype=np.intp), np.asarray([fraction]))
            value = self.event(state, now)
            if abs(value) <= 1e-10 * max(abs(at_low), abs(at_high)):
                break
            if value > 0:
                low, at_low, at_high = fraction, value, at_high / 2
            else:
                high, at_high, at_low = fraction, value, at_low / 2
        self.record(float(interval.start[0] + fraction * interval.length[0]), state, now)
        return "reached"

    def record(self, time: float, state: State, now: Evaluation) -> None:
        """One row, and the model moved to it."""
        model = self._moved(state)
        seen = {name: ask(model) for name, ask in self._observe.items()}
        self._rows.append(
            {
                "time": time,
                "loss": float(now.loss[0]),
                "loss_rate": float(now.loss_rate[0]),
                "speed": [float(values.norm()) for values in now.rates],
                "norm": [float(values.norm()) for values in state],
                **{
                    name: np.array(value.detach().cpu().numpy() if isinstance(value, Tensor) else value)
                    for name, value in seen.items()
                },
            }
        )

    def result(self, status: str, evaluations: int) -> ModelFlow:
        """The rows as a labelled record."""
        import xarray as xr

        variables: dict[str, Any] = {}
        for name in self._rows[0]:
            values = np.stack([np.asarray(row[name], dtype=np.float64) for row in self._rows])
            own = (
                ("parameter",)
                if name in ("speed", "norm")
                else tuple(f"{name}_{i}" for i in range(values.ndim - 1))
            )
            variables[name] = (("step", *own), values)
        data = xr.Dataset(variables, coords={"parameter": list(self._parameters)}, attrs={"status": status})
        return ModelFlow(data.set_coords("time"), self.model, status, evaluations)

    def _moved(self, state: State) -> nn.Module:
        with torch.no_grad():
            for parameter, values in zip(self._parameters.values(), state):
                parameter.copy_(values[0])
        return self.model


def _ended(flows: Flows, max_time: float, max_evaluations: int) -> str:
    if flows.at_rest[0]:
        return "at rest"
    if flows.time[0] >= max_time * (1 - 1e-13):
        return "time limit"
    if flows.evaluations[0] >= max_evaluations:
        return "evaluation limit"
    return "step underflow" if flows.stuck[0] else ""
