"""Full-batch training of many networks at once: gradient descent or gradient flow, to the end or for a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from foretrain.compare.trained.networks import Networks, Trace
from foretrain.support.arguments import not_negative, positive
from foretrain.support.errors import InputError, unknown_name
from foretrain.theory.architecture import FloatArray
from foretrain.theory.arguments import whole
from foretrain.theory.prediction.predict import LossName

Algorithm = Literal["gradient_descent", "flow"]

TOLERANCE = 1e-8  # of the largest error factor, relative to its start: training has then ended
MOST_STEPS = 200_000
_RUNAWAY = 1e3  # times the error at the start
# Weight of a slope, and how far it leads.
_RUNGE_KUTTA = ((1 / 6, 0.5), (1 / 3, 0.5), (1 / 3, 1.0), (1 / 6, None))


@dataclass(frozen=True, eq=False)
class Training:
    """What is learned and how: half the SUM of squared errors, or the cross-entropy to target probabilities.

    The rates are η λ_b for biases and η λ_W / fan-in for weights. ``time`` counts steps, or is the time of gradient
    flow with speed ``eta``; None is the end, where no error factor exceeds ``tolerance`` times the largest at the
    start. The flow is integrated by the classical Runge-Kutta rule of fourth order, in steps of ``stride``. ``noise``
    is the variance of a private offset of every training output, drawn at random and trained with this variance as
    its rate: the network itself then ends at a sample of the posterior for noisy targets.
    """

    targets: FloatArray = field(repr=False)  # (training inputs, outputs)
    eta: float
    algorithm: Algorithm = "gradient_descent"
    time: float | None = None
    loss: LossName = "squared_error"
    stride: float | None = None
    noise: float = 0.0
    tolerance: float = TOLERANCE
    most_steps: int = MOST_STEPS

    def __post_init__(self) -> None:
        if self.algorithm not in get_args(Algorithm):
            raise unknown_name("`algorithm`", str(self.algorithm), get_args(Algorithm))
        if self.loss not in get_args(LossName):
            raise unknown_name("`loss`", str(self.loss), get_args(LossName))
        positive("eta", self.eta)
        if not_negative("noise", self.noise) and self.loss != "squared_error":
            raise InputError("noise on targets goes with `loss='squared_error'`: leave one of them out.")
        if self.algorithm == "flow":
            if self.stride is None:
                raise InputError("gradient flow is integrated in steps: give stride, their time.")
            positive("stride", self.stride)
            if self.time is not None:
                not_negative("time", self.time)
        elif self.time is not None:
            whole(self.time)

    @property
    def steps(self) -> int | None:
        """How many; None: as many as it takes."""
        if self.time is None:
            return None
        if self.algorithm == "gradient_descent":
            return whole(self.time)
        return int(np.ceil(self.time / (self.stride or self.time) - 1e-9))

    @property
    def rate(self) -> float:
        """By how much a step moves along the slope."""
        if self.algorithm == "gradient_descent":
            return self.eta
        steps = self.steps
        stride = self.stride if steps is None else float(self.time or 0) / max(steps, 1)
        return self.eta * float(stride or 0)


@dataclass(frozen=True, eq=False)
class Course:
    """How training went, for each network."""

    steps: FloatArray
    diverged: NDArray[np.bool_]
    ended: NDArray[np.bool_]  # whether it was done within the steps that were allowed


def train(
    networks: Networks,
    X: FloatArray,
    training: Training,
    offsets: Tensor | None = None,
    rates: FloatArray | None = None,
) -> Course:
    """Train networks in place on inputs X (training inputs, n_in); each stops when it has ended or runs away.

    ``offsets`` (networks, outputs, training inputs) are added to training outputs and trained at rate ``noise``:
    without noise they stay, and give every network targets of its own. ``rates`` (networks,) are multiples of eta.
    """
    count = len(networks)
    steps, diverged = np.zeros(count), np.zeros(count, dtype=bool)
    places = torch.arange(count)
    descent = _Descent(networks, X, training, offsets, None if rates is None else torch.from_numpy(rates))
    first: Tensor | None = None
    wanted = training.steps
    for number in range(1 + (training.most_steps if wanted is None else wanted)):
        trace, error = descent.errors()
        sizes = error.abs().amax(dim=(1, 2))
        first = sizes if first is None else first
        gone = ~(sizes <= _RUNAWAY * first)
        diverged[places[gone].numpy()] = True
        descent.alive &= ~gone
        if wanted is None:
            descent.alive &= sizes > training.tolerance * first
        alive = descent.alive.nonzero()[:, 0]
        if not len(alive) or number == wanted:
            networks.write(places, descent.networks)
            return Course(steps, diverged, ~diverged)
        descent.step(trace, error)
        steps[places[alive].numpy()] = number + 1
        if 2 * len(alive) <= len(places):  # those that have ended need not be carried along
            networks.write(places, descent.networks)
            places, first, descent = places[alive], first[alive], descent.chosen(alive)
    networks.write(places, descent.networks)
    ended = ~diverged
    ended[places[descent.alive].numpy()] = False
    return Course(steps, diverged, ended)


class _Descent:
    """Networks on their way, and those of them that still learn."""

    def __init__(
        self,
        networks: Networks,
        X: FloatArray,
        training: Training,
        offsets: Tensor | None,
        rates: Tensor | None,
    ) -> None:
        self.networks, self.alive = networks, torch.ones(len(networks), dtype=torch.bool)
        self._X, self._training = X, training
        self._offsets, self._rates = offsets, rates
        self._targets = torch.from_numpy(np.ascontiguousarray(training.targets.T))
        self._entry = networks.entry(X)
        self._lowest = len(self._entry.signals)  # layer that learns

    def chosen(self, places: Tensor) -> _Descent:
        """Copies of some of them."""
        own = (None if each is None else each[places] for each in (self._offsets, self._rates))
        return _Descent(self.networks.chosen(places), self._X, self._training, *own)

    def errors(self) -> tuple[Trace, Tensor]:
        """The forward pass on training inputs, and the error factors ε = dL/dz (10.5), (10.6)."""
        trace = self.networks.forward(self._entry)
        z = trace.output if self._offsets is None else trace.output + self._offsets
        if self._training.loss == "cross_entropy":
            z = torch.softmax(z, dim=1)
        return trace, z - self._targets

    def step(self, trace: Trace, error: Tensor) -> None:
        """One step of descent, or of the integrator of the flow, for networks that still learn."""
        rate = self._training.rate
        if self._training.algorithm == "gradient_descent":  # θ − η λ dL/dθ, in place
            error = self._learning(error)
            for place, weight_rate, bias_rate, delta in self._deltas(trace, error):
                if weight_rate:
                    signal = trace.signals[place].mT
                    self.networks.weights[place].baddbmm_(delta, signal, alpha=-rate * weight_rate)
                if bias_rate:
                    self.networks.biases[place].sub_(delta.sum(dim=2, keepdim=True), alpha=rate * bias_rate)
            if self._offsets is not None:
                self._offsets.sub_(error, alpha=rate * self._training.noise)
            return
        # What the flow moves: weights and biases of the layers that learn, and the offsets.
        learned = slice(self._lowest - 1, None)
        parameters = [*self.networks.weights[learned], *self.networks.biases[learned]]
        if self._offsets is not None:
            parameters.append(self._offsets)
        start = [values.clone() for values in parameters]
        total = [values.clone() for values in parameters]
        for weight, ahead in _RUNGE_KUTTA:
            for place, velocity in enumerate(self._velocities(trace, error)):
                total[place].add_(velocity, alpha=weight * rate)
                if ahead is not None:
                    torch.add(start[place], velocity, alpha=ahead * rate, out=parameters[place])
            if ahead is not None:
                trace, error = self.errors()
        for values, found in zip(parameters, total):
            values.copy_(found)

    def _learning(self, error: Tensor) -> Tensor:
        """The error factors by which networks still learn, times the rates of their own."""
        error = torch.where(self.alive[:, None, None], error, 0.0)
        return error if self._rates is None else error * self._rates[:, None, None]

    def _velocities(self, trace: Trace, error: Tensor) -> list[Tensor]:
        """− λ dL/dθ of what the flow moves."""
        error = self._learning(error)
        weights, biases = [], []
        for place, weight_rate, bias_rate, delta in reversed(list(self._deltas(trace, error))):
            weights.append(-weight_rate * torch.bmm(delta, trace.signals[place].mT))
            biases.append(-bias_rate * delta.sum(dim=2, keepdim=True))
        found = [*weights, *biases]
        return found if self._offsets is None else [*found, -self._training.noise * error]

    def _deltas(self, trace: Trace, error: Tensor) -> Iterator[tuple[int, float, float, Tensor]]:
        """From the output down: place of the layer, λ_W / fan-in, λ_b and dL/dz."""
        deltas = self.networks.sensitivities(trace, error, down_to=self._lowest - 1)
        for layer, delta in zip(reversed(self.networks.mlp.layers), deltas):
            place = layer.number - 1
            yield place, layer.lambda_W / trace.signals[place].shape[1], layer.lambda_b, delta
