"""The stabilised method RKC of second order (Sommeijer, Shampine & Verwer, J. Comput. Appl. Math. 88 (1998) 315).

A step with s stages is stable over 0.65 s² / λ, where λ is the largest eigenvalue of the Hessian: for flows that
creep along a valley with steep walls, its gradients go about s times as far as those of other explicit methods.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from foretrain.training.gradient_flow.methods import Trial
from foretrain.training.gradient_flow.states import Clock, Evaluation, Field, State, per_flow, total_norms

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
    size = total_norms(state)
    shift = np.sqrt(torch.finfo(state[0].dtype).eps) * np.maximum(size, 1e-6)
    radius, cost = np.zeros(len(size)), 0
    while cost < iterations:
        cost += 1
        unit = _scaled(direction, 1 / np.maximum(total_norms(direction), 1e-300))
        moved = tuple(w + per_flow(shift, w) * v for w, v in zip(state, unit))
        change = tuple(r - r_0 for r, r_0 in zip(field(moved).rates, now.rates))
        found = total_norms(change) / shift
        settled = np.abs(found - radius) <= 0.02 * found
        radius, direction = found, tuple(map(_finite, change))
        if settled.all():
            break
    return _SAFETY * radius, direction, cost


def _scaled(state: State, factors: Clock) -> State:
    return tuple(per_flow(factors, values) * values for values in state)


def _finite(values: Tensor) -> Tensor:
    return torch.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0)
