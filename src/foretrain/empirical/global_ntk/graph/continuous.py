"""Models in continuous time, dh/dt = f(h, x): a right-hand side and a step.

The constraint is F = D_t h - phi with D_t h = (h_t - h_(t-1)) / step (section 3.1), where step * phi is what the
method adds to h_(t-1): phi is f for Euler's, a mean of four values of f for that of Runge and Kutta. P = (D_h F)^-1
then is step times the propagator of the loop, K that of the loop over step^2, and NTK_S = P K P* the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import torch
from torch import Tensor, nn

from foretrain.empirical.global_ntk.dynamics import Values
from foretrain.empirical.global_ntk.graph.dynamics import GraphDynamics
from foretrain.support.errors import InputError, unknown_name

Method = Literal["euler", "rk4"]


class Flow(nn.Module):
    """The loop of a method over inputs (samples, steps, ...), each of which holds for a whole step."""

    def __init__(self, right_hand_side: nn.Module, start: Any, step: float, method: Method) -> None:
        super().__init__()
        if method not in ("euler", "rk4"):
            raise unknown_name("`method`", str(method), ["euler", "rk4"])
        if not (isinstance(step, int | float) and 0 < step < float("inf")):
            raise InputError(f"`step=` is {step!r}: it must be a positive number, the time between states.")
        if not isinstance(start, Tensor) or start.ndim not in (1, 2):
            raise InputError(
                "a right-hand side needs `start=`, the state (samples, units) or (units,) before the first step; a "
                "Parameter is learned."
            )
        self.right_hand_side, self.step, self.method = right_hand_side, step, method
        self.start = start

    def named_parameters(self, *args: Any, **options: Any) -> Iterator[tuple[str, nn.Parameter]]:
        """By the names that the right-hand side gives them."""
        for name, value in super().named_parameters(*args, **options):
            yield name.removeprefix("right_hand_side."), value

    def forward(self, x: Tensor) -> Tensor:
        """The states after every step."""
        f, dt = self.right_hand_side, self.step
        h = self.start.expand(len(x), self.start.shape[-1])
        states = []
        for given in x.unbind(1):
            first = f(h, given)
            if self.method == "euler":
                h = h + dt * first
            else:
                second = f(h + dt / 2 * first, given)
                third = f(h + dt / 2 * second, given)
                h = h + dt / 6 * (first + 2 * second + 2 * third + f(h + dt * third, given))
            states.append(h)
        return torch.stack(states, 1)


class ContinuousDynamics(GraphDynamics):
    """The states of a ``Flow``, with P and K in units of time."""

    def __init__(self, flow: Flow, x: Any, parameters: Any, noise: Any = None) -> None:
        self._step = flow.step
        super().__init__(flow, x, "", parameters, noise=noise)

    @property
    def structure(self) -> str:
        """As for the loop, and the constraint."""
        return f"{super().structure} The constraint is D_t h = f: P holds one factor {self._step:g} of time."

    def propagate(self, changes: Tensor) -> Tensor:
        """P."""
        return self._step * super().propagate(changes)

    def propagate_adjoint(self, vectors: Tensor) -> Tensor:
        """P*."""
        return self._step * super().propagate_adjoint(vectors)

    def constrain(self, changes: Tensor) -> Tensor:
        """D_h F = D_t - D_h phi."""
        return super().constrain(changes) / self._step

    def constrain_adjoint(self, vectors: Tensor) -> Tensor:
        """Its adjoint."""
        return super().constrain_adjoint(vectors) / self._step

    def local_push(self, tangents: Values) -> Tensor:
        """D_theta phi."""
        return super().local_push(tangents) / self._step

    def local_pull(self, vectors: Tensor) -> Values:
        """Its adjoint."""
        return {name: value / self._step for name, value in super().local_pull(vectors).items()}
