"""A training rehearsed on a private copy: the same optimizer in fewer, longer steps, as far as the copy stays stable.

While steps are short beside the landscape, training follows a flow, and steps of k times the length with momenta
beta^k follow the same one (Adam: all its betas). Slow modes of a target, which decide what is learned, move along
it long after the steepest directions have settled, and those alone bound the length of a step.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from foretrain.empirical.kernel_operator import ntk_operator
from foretrain.support.errors import InputError, unknown_name
from foretrain.support.progress import Progress

Array = NDArray[np.float64]
OptimizerName: TypeAlias = Literal["sgd", "adam"]

_STABLE = 0.8  # of the largest stable rate
_LONGEST_ADAM = 0.02  # rate of a longer step: every parameter moves by about so much
_CLIMB = 1.02  # of the loss since the last mark: a longer step that climbs so far is halved
_MARK = 10  # steps from one mark to the next
_TURN = 0.8  # of what was seen: the rates before and after are compared
_MOST_CHANGE = 3.0  # of a rate in half of what was seen
_BOUNDS = (1 / 8, 8.0)  # of a rate beside the last one seen
_SMALLEST = 1e-9  # share
_POINTS = 200  # of an integral


@dataclass(frozen=True)
class Descent:
    """How a training steps: plain descent with a momentum, or Adam."""

    lr: float
    name: OptimizerName = "sgd"
    momentum: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)

    def __post_init__(self) -> None:
        if self.name not in ("sgd", "adam"):
            raise unknown_name("`optimizer`", str(self.name), ["sgd", "adam"])
        if not (np.isfinite(self.lr) and self.lr > 0):
            raise InputError(f"`lr` is {self.lr}, but it must be positive and finite.")
        if not all(0 <= one < 1 for one in (self.momentum, *self.betas)):
            raise InputError("`momentum` and `betas` must be from 0 to below 1.")
        if self.momentum and self.name == "adam":
            raise InputError("`momentum` belongs to optimizer='sgd': for Adam give `betas=`.")

    @property
    def flow_rate(self) -> float:
        """Rate of the flow that plain descent follows, per step."""
        return self.lr / (1 - self.momentum)

    def optimizer(self, parameters: list[Tensor], pace: int = 1) -> torch.optim.Optimizer:
        """One whose steps go as far as ``pace`` of the training's."""
        if self.name == "adam":
            first, second = (beta**pace for beta in self.betas)
            return torch.optim.Adam(parameters, lr=self.lr * pace, betas=(first, second))
        long = self.longer(pace)
        return torch.optim.SGD(parameters, lr=long.lr, momentum=long.momentum)

    def longer(self, pace: int) -> Descent:
        """Plain descent whose steps go as far as ``pace`` of these."""
        momentum = self.momentum**pace
        return replace(self, lr=pace * self.flow_rate * (1 - momentum), momentum=momentum)

    def pace(self, wanted: int, largest_rate: float) -> int:
        """The longest step up to ``wanted`` that is stable where plain descent is stable up to ``largest_rate``."""
        if self.name == "adam":
            return max(1, min(wanted, round(_LONGEST_ADAM / self.lr)))
        for pace in range(wanted, 1, -1):
            long = self.longer(pace)
            if long.lr <= _STABLE * largest_rate * (1 + long.momentum):
                return pace
        return 1


@dataclass(frozen=True, eq=False)
class Rehearsal:
    """Shares (looks, modes) of the modes at some steps of the training, and how many gradients that took.

    ``diverged``: the loss has left all bounds after the last of them.
    """

    steps: Array
    shares: Array
    gradients: int
    diverged: bool

    @property
    def reach(self) -> float:
        """The last step that was seen; after a divergence nothing is left to see."""
        return math.inf if self.diverged else float(self.steps[-1])

    def at(self, budgets: Array) -> Array:
        """Shares at any steps, (modes, budgets): beyond the reach, with rates that go on changing as they did.

        A mode shrinks at the rate r = -d log|share| / dt. Its mean over the last fifth of what was seen beside that
        over the rest gives the factor by which it changes in half the reach, and this goes on, within bounds; but a
        mode that shrinks slows down: it mixes directions, of which the fast ones go first, and small errors move the
        kernel less. With I the integral of the rate, share / (1 + 2 I)^(1/2) is left. A mode that has not shrunk
        of late stays.
        """
        budgets, last = np.asarray(budgets, dtype=np.float64), self.steps[-1]
        inside = np.stack([np.interp(budgets, self.steps, one) for one in self.shares.T])
        if self.diverged:
            return np.where(budgets > last, np.inf, inside)
        if not last > 0:
            return np.where(budgets > last, np.nan, inside)
        sizes = np.stack(
            [np.interp([0.0, _TURN * last, last], self.steps, np.abs(one)) for one in self.shares.T]
        )
        falls = -np.diff(np.log(np.maximum(sizes, _SMALLEST)), axis=1)
        first, late = falls.T / (last * np.array([[_TURN], [1 - _TURN]]))
        change = np.divide(late, first, out=np.full(len(late), _MOST_CHANGE), where=first > 0)
        speed = np.log(np.clip(change, 1 / _MOST_CHANGE, _MOST_CHANGE)) / (last / 2)
        # The integral of the rate from the reach to every budget, from the middle of the last span on.
        times = last + np.linspace(0, 1, _POINTS)[:, None] * np.maximum(budgets - last, 0.0)
        grown = np.exp(np.clip(speed[:, None, None] * (times - (1 + _TURN) / 2 * last), *np.log(_BOUNDS)))
        integral = np.trapezoid(grown, times[None], axis=1) * np.maximum(late, 0.0)[:, None]
        return np.asarray(inside / np.sqrt(1 + 2 * integral))


def rehearse(
    model: nn.Module,
    x: Any,
    target: Array,
    weights: Array,
    shares: Callable[[Array], Array],
    descent: Descent,
    steps: int,
    gradients: int,
    largest_rate: float,
) -> Rehearsal:
    """Train a copy on the sum of weighted squares of its distance to ``target``, for so many gradients at most.

    ``target`` and ``weights`` are (samples, outputs), ``shares`` are those of a misfit, ``largest_rate`` is that of
    plain descent at the start.
    """
    private = copy.deepcopy(model)
    kernel = ntk_operator(private, x)
    trained = list(kernel.linear.parameters.values())
    goal = torch.as_tensor(target).to(trained[0])
    weighing = torch.as_tensor(weights).to(goal)
    pace = descent.pace(max(1, math.ceil(steps / max(gradients - 1, 1))), largest_rate)
    optimizer = descent.optimizer(trained, pace)
    step, used, seen, looks = 0, 0, list[Array](), list[int]()
    mark: tuple[float, list[Tensor], dict[str, Any], int, int] | None = None
    diverged = False
    with Progress("rehearsal", total=gradients) as bar:
        while True:
            outputs = kernel.linear.rows(kernel.first)
            loss = (weighing * (outputs - goal).square()).sum()
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            used, value = used + 1, float(loss.detach())
            bar.advance()
            if pace > 1 and mark is not None and not value <= _CLIMB * mark[0]:
                # Too long for what the landscape has become: back to the mark, and on with half the length.
                pace //= 2
                _put_back(trained, mark[1])
                optimizer = descent.optimizer(trained, pace)
                groups = optimizer.state_dict()["param_groups"]
                optimizer.load_state_dict({"state": mark[2]["state"], "param_groups": groups})
                step, kept = mark[3], mark[4]
                del seen[kept:], looks[kept:]
                mark = None
                continue
            if not math.isfinite(value):
                diverged = True
                break
            misfit = (goal - outputs.detach()).double().cpu().numpy()
            looks.append(step)
            seen.append(shares(misfit))
            if mark is None or len(looks) > mark[4] + _MARK:
                weights_now = [one.detach().clone() for one in trained]
                mark = value, weights_now, copy.deepcopy(optimizer.state_dict()), step, len(looks) - 1
            if step >= steps or used >= gradients:
                break
            optimizer.step()
            step += pace
    return Rehearsal(np.array(looks, dtype=np.float64), np.array(seen), used, diverged)


def _put_back(trained: list[Tensor], values: list[Tensor]) -> None:
    with torch.no_grad():
        for parameter, value in zip(trained, values):
            parameter.copy_(value)
