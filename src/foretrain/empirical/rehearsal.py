"""A training rehearsed on a private copy: the same optimizer in fewer, longer steps, as far as the copy stays stable.

While steps are short beside the landscape, training follows a flow, and steps of k times the length with momenta
beta^k follow the same one (Adam: all its betas). Slow modes of a target, which decide what is learned, move along
it long after the steepest directions have settled, and those alone bound the length of a step.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
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

_STABLE = 0.5  # of the largest stable rate
_LONGEST_ADAM = 0.02  # rate of a longer step: every parameter moves by about so much
_CLIMB = 1.02  # of the loss since the last mark: a longer step that climbs so far is halved
_MARK = 10  # steps from one mark to the next
_TURN = 2 / 3  # of what was seen: the rates before and after are compared
_MOST_GROWTH = 3.0  # of a rate in half of what was seen
_LARGEST_EXPONENT = 50.0


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
        return torch.optim.SGD(parameters, lr=self._long_rate(pace), momentum=self.momentum**pace)

    def pace(self, wanted: int, largest_rate: float) -> int:
        """The longest step up to ``wanted`` that is stable where plain descent is stable up to ``largest_rate``."""
        if self.name == "adam":
            return max(1, min(wanted, round(_LONGEST_ADAM / self.lr)))
        for pace in range(wanted, 1, -1):
            if self._long_rate(pace) <= _STABLE * largest_rate * (1 + self.momentum**pace):
                return pace
        return 1

    def _long_rate(self, pace: int) -> float:
        return pace * self.flow_rate * (1 - self.momentum**pace)


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
        """Shares at any steps, (modes, budgets): beyond the reach, with rates that go on growing as they grew.

        A mode shrinks at the rate r = -d log|share| / dt. Two means of it, over the first two thirds of what was seen
        and over the rest, give the factor by which it changes in half the reach; it is taken for constant, within
        bounds. A mode that has not shrunk of late stays.
        """
        last = self.steps[-1]
        inside = np.stack([np.interp(budgets, self.steps, one) for one in self.shares.T])
        beyond = np.asarray(budgets) > last
        if self.diverged:
            return np.where(beyond, np.inf, inside)
        if not last > 0 or not beyond.any():
            return np.where(beyond, np.nan, inside)
        turn = _TURN * last
        sizes = np.stack([np.interp([0.0, turn, last], self.steps, np.abs(one)) for one in self.shares.T])
        logs = np.log(np.maximum(sizes, 1e-12))
        first, late = (logs[:, 0] - logs[:, 1]) / turn, (logs[:, 1] - logs[:, 2]) / (last - turn)
        with np.errstate(divide="ignore", invalid="ignore"):
            change = np.where(first > 0, late / first, _MOST_GROWTH)
            pace = np.log(np.clip(change, 1 / _MOST_GROWTH, _MOST_GROWTH)) / (last / 2)
        ahead = np.maximum(np.asarray(budgets) - last, 0.0)
        now = late * np.exp(pace * (last - turn) / 2)  # the late mean is that of the middle of its span
        grown = np.minimum(pace[:, None] * ahead, _LARGEST_EXPONENT)
        flat = np.abs(grown) < 1e-9
        factor = np.where(flat, 1.0, np.expm1(grown) / np.where(flat, 1.0, grown))
        shrunk = np.where(late[:, None] > 0, now[:, None] * ahead * factor, 0.0)
        return np.where(beyond, inside * np.exp(-np.minimum(shrunk, _LARGEST_EXPONENT)), inside)


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
            loss.backward()
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
