"""Stacked states of independent flows, the field that moves them, and the methods that make a step.

Embedded Runge-Kutta pairs, and the stabilised method RKC of second order (Sommeijer, Shampine & Verwer, J. Comput.
Appl. Math. 88 (1998) 315): a step with s stages is stable over 0.65 s² / λ, where λ is the largest eigenvalue of the
Hessian: in a valley with steep walls its gradients go about s times as far as those of other explicit methods.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from foretrain.support.errors import InputError

State: TypeAlias = tuple[Tensor, ...]  # every tensor has the flows along its first axis
Clock: TypeAlias = NDArray[np.float64]  # one number for each flow


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The field at a state: Ẇ of every tensor, and for each flow the loss and its rate of change."""

    rates: State
    loss: Clock
    loss_rate: Clock

    def __getitem__(self, which: NDArray[np.intp]) -> Evaluation:
        return Evaluation(picked(self.rates, which), self.loss[which], self.loss_rate[which])


Field: TypeAlias = Callable[[State], Evaluation]


def picked(state: State, which: NDArray[np.intp]) -> State:
    """Some of the flows."""
    index = torch.from_numpy(np.asarray(which, dtype=np.int64))
    return tuple(values[index.to(values.device)] for values in state)


def chosen(mask: NDArray[np.bool_], new: State, old: State) -> State:
    """The new state of marked flows, the old one of all others."""
    flags = torch.from_numpy(mask)
    return tuple(
        torch.where(flags.to(a.device).reshape(-1, *(1,) * (a.ndim - 1)), a, b) for a, b in zip(new, old)
    )


def per_flow(values: Clock, like: Tensor) -> Tensor:
    """One number for each flow, shaped to multiply a stacked tensor."""
    shape = (len(values), *(1,) * (like.ndim - 1))
    return torch.from_numpy(values).to(dtype=like.dtype, device=like.device).reshape(shape)


def norms(values: Tensor) -> Clock:
    """The norm of a tensor, for each flow."""
    return np.asarray(torch.linalg.vector_norm(values.reshape(len(values), -1), dim=1).double().cpu().numpy())


def total_norms(state: State) -> Clock:
    """The norm of all tensors together, for each flow."""
    return np.asarray(np.sqrt(sum(norms(values) ** 2 for values in state)))


@dataclass(frozen=True, eq=False)
class Trial:
    """One step: the new state with its field, the estimated local error, and the gradients it took."""

    state: State
    last: Evaluation
    error: State
    evaluations: int


class Method(Protocol):
    """What makes a step; ``order`` is that of the local error estimate, the exponent of the step control."""

    @property
    def order(self) -> int:
        """Power of the step in the local error."""
        ...

    @property
    def needs_radius(self) -> bool:
        """Whether the spectral radius of the Jacobian must be known."""
        ...

    def longest(self, radius: Clock) -> Clock:
        """The longest step that is allowed."""
        ...

    def step(self, field: Field, state: State, now: Evaluation, length: Clock, radius: Clock) -> Trial:
        """Move every flow by its own length."""
        ...


@dataclass(frozen=True)
class EmbeddedPair:
    """An explicit pair: rows of stages, of which the last is the new state, and weights of the error."""

    stages: tuple[tuple[float, ...], ...]
    error: tuple[float, ...]
    order: int
    needs_radius: bool = False

    def longest(self, radius: Clock) -> Clock:
        """No limit: where stability ends, the error estimate grows."""
        return np.full(len(radius), np.inf)

    def step(self, field: Field, state: State, now: Evaluation, length: Clock, radius: Clock) -> Trial:
        """All stages; the first one is the last one of the step before."""
        slopes, new, last = [now.rates], state, now
        for row in self.stages:
            new = tuple(
                base + per_flow(length, base) * _combined(row, layer)
                for base, layer in zip(state, zip(*slopes))
            )
            last = field(new)
            slopes.append(last.rates)
        error = tuple(per_flow(length, layer[0]) * _combined(self.error, layer) for layer in zip(*slopes))
        return Trial(new, last, error, len(self.stages))


# Bogacki & Shampine, Appl. Math. Lett. 2 (1989) 321: third order, error of second order.
BOGACKI_SHAMPINE = EmbeddedPair(
    ((1 / 2,), (0.0, 3 / 4), (2 / 9, 1 / 3, 4 / 9)), (-5 / 72, 1 / 12, 1 / 9, -1 / 8), order=3
)
# Dormand & Prince, J. Comput. Appl. Math. 6 (1980) 19: fifth order, error of fourth order.
DORMAND_PRINCE = EmbeddedPair(
    (
        (1 / 5,),
        (3 / 40, 9 / 40),
        (44 / 45, -56 / 15, 32 / 9),
        (19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729),
        (9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656),
        (35 / 384, 0.0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84),
    ),
    (71 / 57600, 0.0, -71 / 16695, 71 / 1920, -17253 / 339200, 22 / 525, -1 / 40),
    order=5,
)


@dataclass(frozen=True)
class Tolerance:
    """Local error allowed in each tensor: relative to its norm, plus absolute."""

    relative: float
    absolute: float

    def __post_init__(self) -> None:
        if not 0 < self.relative < 1 or not self.absolute >= 0:
            raise InputError(
                f"tolerances are {self.relative} and {self.absolute}: give a relative one between 0 and 1, and an "
                "absolute one that is not negative."
            )


def _combined(coefficients: tuple[float, ...], slopes: tuple[Tensor, ...]) -> Tensor:
    pairs = [(c, slope) for c, slope in zip(coefficients, slopes) if c != 0]
    total = pairs[0][0] * pairs[0][1]
    for coefficient, slope in pairs[1:]:
        total.add_(slope, alpha=coefficient)
    return total


_MOST_STAGES = 100
_DAMPING = 2 / 13
_SAFETY = 1.2  # the power iteration approaches the radius from below


@dataclass(frozen=True)
class Chebyshev:
    """RKC; every step takes as many stages as the stiffest flow of the stack needs."""

    order: int = 3
    needs_radius: bool = True

    def longest(self, radius: Clock) -> Clock:
        """What the largest number of stages can do."""
        with np.errstate(divide="ignore"):
            return np.asarray(0.65 * (_MOST_STAGES**2 - 1) / radius)

    def step(self, field: Field, state: State, now: Evaluation, length: Clock, radius: Clock) -> Trial:
        """The three-term recursion of the stages; the error is the defect of a cubic through both ends."""
        count = int(np.clip(1 + np.ceil(np.sqrt(1 + 1.54 * np.max(length * radius))), 2, _MOST_STAGES))
        first, rows = _coefficients(count)
        before = state
        current = tuple(w + first * per_flow(length, w) * rate for w, rate in zip(state, now.rates))
        for base, mu, nu, mu_rate, gamma_rate in rows:
            rates = field(current).rates
            following = tuple(
                base * w + mu * c + nu * b + per_flow(length, w) * (mu_rate * r + gamma_rate * r_0)
                for w, c, b, r, r_0 in zip(state, current, before, rates, now.rates)
            )
            before, current = current, following
        last = field(current)
        error = tuple(
            0.8 * (w - new) + 0.4 * per_flow(length, w) * (r_0 + r)
            for w, new, r_0, r in zip(state, current, now.rates, last.rates)
        )
        return Trial(current, last, error, count)


@lru_cache(maxsize=_MOST_STAGES)
def _coefficients(count: int) -> tuple[float, tuple[tuple[float, ...], ...]]:
    """The factor of the first stage, and of all others: of W_0, W_{j-1}, W_{j-2}, and of the rates there and at 0."""
    w_0 = 1 + _DAMPING / count**2
    polynomials = [np.polynomial.Chebyshev.basis(j) for j in range(count + 1)]
    values, slopes, curvatures = (
        np.array([(p.deriv(order) if order else p)(w_0) for p in polynomials]) for order in range(3)
    )
    w_1 = slopes[count] / curvatures[count]
    b = np.empty(count + 1)
    b[2:] = curvatures[2:] / slopes[2:] ** 2
    b[0], b[1] = b[2], 1 / w_0
    rows = []
    for j in range(2, count + 1):
        mu, nu = 2 * b[j] * w_0 / b[j - 1], -b[j] / b[j - 2]
        mu_rate = 2 * b[j] * w_1 / b[j - 1]
        gamma_rate = -(1 - b[j - 1] * values[j - 1]) * mu_rate
        rows.append(tuple(map(float, (1 - mu - nu, mu, nu, mu_rate, gamma_rate))))
    return float(b[1] * w_1), tuple(rows)


def spectral_radius(
    field: Field, state: State, now: Evaluation, direction: State, iterations: int = 12
) -> tuple[Clock, State, int]:
    """Radius of the field's Jacobian for each flow by power iteration on differences, its vector, and the cost."""
    shift = np.sqrt(torch.finfo(state[0].dtype).eps) * np.maximum(total_norms(state), 1e-6)
    radius, cost = np.zeros(len(shift)), 0
    while cost < iterations:
        cost += 1
        inverse = 1 / np.maximum(total_norms(direction), 1e-300)
        moved = tuple(w + per_flow(shift, w) * (per_flow(inverse, v) * v) for w, v in zip(state, direction))
        change = tuple(r - r_0 for r, r_0 in zip(field(moved).rates, now.rates))
        found = total_norms(change) / shift
        settled = np.abs(found - radius) <= 0.02 * found
        radius = found
        direction = tuple(torch.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0) for values in change)
        if settled.all():
            break
    return _SAFETY * radius, direction, cost
