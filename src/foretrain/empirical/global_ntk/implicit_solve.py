"""The state of an equilibrium model by Newton's method."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from foretrain.empirical.global_ntk.implicit_constraint import Constraint, Linearised, as_state
from foretrain.empirical.global_ntk.implicit_linear import Solver, inverse
from foretrain.support.errors import InputError
from foretrain.support.progress import track

_TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-6}
_TOLERANCE_HALF = 1e-2
_ROUNDING = 1e3  # times the tolerance: steps below are rounding if they do not help
_SHORTEST = 2.0**-20  # of a Newton step that is cut until the residual falls


def solve(
    constraint: Any,
    start: Tensor,
    x: Any,
    tolerance: float | None = None,
    *,
    parameters: Any = None,
    iterations: int = 50,
    solver: Solver = "auto",
) -> Tensor:
    """A state h near ``start`` with F(h, x, theta) = 0: Newton steps, shortened until the residual falls.

    It ends when a step is below ``tolerance`` of the state's length. Newton's method finds any solution, stable under
    the model's own iteration or not: start near the one that is meant, for example from a few such iterations.
    """
    equations, state = Constraint(constraint, parameters), as_state(start)
    wanted = _TOLERANCE.get(state.dtype, _TOLERANCE_HALF) if tolerance is None else tolerance
    residual = float("inf")
    for _ in track(range(iterations), "Newton steps"):
        linear = Linearised(equations, state, x)
        residual = float(torch.linalg.vector_norm(linear.residual))
        if residual == 0:
            return state
        step = -inverse(linear, solver).solve(linear.residual[None])[0].reshape(state.shape)
        distance = float(torch.linalg.vector_norm(step) / torch.linalg.vector_norm(state + step))
        if distance <= wanted:
            return state + step
        length = _length(equations, state, step, x, residual)
        if length is None and distance <= _ROUNDING * wanted:
            return state
        if length is None:
            raise InputError(
                f"no part of a Newton step makes the residual {residual:.2g} smaller: start elsewhere, or check that "
                "the constraint is smooth there."
            )
        state = state + length * step
    raise InputError(
        f"Newton's method did not reach a solution in {iterations} steps (residual {residual:.2g}): start nearer to "
        "it, for example with the model's own iteration, or allow more iterations=."
    )


def _length(equations: Constraint, state: Tensor, step: Tensor, x: Any, residual: float) -> float | None:
    """How much of a step makes the residual smaller; None if nothing does."""
    length = 1.0
    with torch.no_grad():
        while length > _SHORTEST:
            if float(torch.linalg.vector_norm(equations(state + length * step, x))) < residual:
                return length
            length /= 2
    return None
