"""The state of an equilibrium model: implicit steps in time that turn into Newton's method near a solution.

A step solves (D_h F + d I) dh = -F, an implicit step of length 1/d of dh/dt = -F; d falls with the residual of each
sample (pseudo-transient continuation, Kelley & Keyes 1998). It often arrives where Newton's method alone does not.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

from foretrain.empirical.autograd_graph.tape import fixed_normal
from foretrain.empirical.global_ntk.implicit.constraint import Constraint, LinearisedConstraint, as_state
from foretrain.empirical.global_ntk.implicit.linear import Solver, inverse
from foretrain.support.errors import AccuracyWarning, InputError
from foretrain.support.progress import track

_TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-6}
_TOLERANCE_HALF = 1e-2
_ROUNDING = 1e3  # times the tolerance: steps below are rounding if they do not help


def solve(
    constraint: Any,
    start: Tensor,
    x: Any,
    tolerance: float | None = None,
    *,
    parameters: Any = None,
    iterations: int = 200,
    solver: Solver = "auto",
) -> Tensor:
    """A state h near ``start`` with F(h, x, theta) = 0; it ends when a step is below ``tolerance`` of its length.

    It may find any solution, stable under the model's own iteration or not: start near the one that is meant, for
    example from a few such iterations.
    """
    equations, state = Constraint(constraint, parameters), as_state(start)
    wanted = _TOLERANCE.get(state.dtype, _TOLERANCE_HALF) if tolerance is None else tolerance
    linear = LinearisedConstraint(equations, state, x)
    first, slowest, before = _residuals(linear), _size(linear), float("inf")
    for _ in track(range(iterations), "steps to the equilibrium"):
        left = float(torch.linalg.vector_norm(linear.residual))
        if left == 0:
            return state
        linear.shift = slowest * _residuals(linear) / first.clamp_min(torch.finfo(first.dtype).tiny)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", AccuracyWarning)
            step = -inverse(linear, solver).solve(linear.residual[None])[0].reshape(state.shape)
        state = state + step
        distance = float(torch.linalg.vector_norm(step) / torch.linalg.vector_norm(state))
        if distance <= wanted or (distance <= _ROUNDING * wanted and left >= before):
            return state
        linear, before = LinearisedConstraint(equations, state, x), left
    far = int((_residuals(linear) > 1e-3 * first).sum())
    raise InputError(
        f"no solution was reached in {iterations} steps (residual {before:.2g}, {far} of {len(state)} samples far "
        "from one): start nearer to it, for example with the model's own iteration, or allow more `iterations=`."
    )


def _residuals(linear: LinearisedConstraint) -> Tensor:
    found: Tensor = torch.linalg.vector_norm(linear.residual.view(linear.shape[0], -1), dim=1)
    return found


def _size(linear: LinearisedConstraint) -> Tensor:
    """The size of D_h F of every sample, with the sign of its trace: steps go down, whichever sign F was given."""
    vector = fixed_normal(linear.residual)
    carried = linear.jacobian_adjoint(vector[None]).view(linear.shape[0], -1)
    given = vector.view_as(carried)
    ahead = (carried * given).sum(1)
    lengths = torch.linalg.vector_norm(carried, dim=1) / torch.linalg.vector_norm(given, dim=1)
    return torch.where(ahead < 0, -lengths, lengths)
