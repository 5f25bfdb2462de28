"""Equilibrium models: a state h that solves F(h, x, theta) = 0, whatever found it.

dh = -(D_h F)^-1 D_theta F dtheta, so that P = (D_h F)^-1 and D_theta f stands for -D_theta F (Prop. 1).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from foretrain.empirical.autograd_graph.tape import Tape, fixed_normal, read
from foretrain.empirical.global_ntk.dynamics import Dynamics, Site, Values
from foretrain.empirical.global_ntk.graph.sites import find_sites
from foretrain.empirical.global_ntk.graph.states import axes_of_sample
from foretrain.empirical.global_ntk.implicit.constraint import Constraint, LinearisedConstraint, as_state
from foretrain.empirical.global_ntk.implicit.linear import Solver, inverse
from foretrain.empirical.models.model import refuse_random
from foretrain.operators import Space
from foretrain.support.errors import InputError

_NEAR = {torch.float64: 1e-6, torch.float32: 1e-3}  # a Newton step, relative to the state
_NEAR_HALF = 0.05


class ImplicitDynamics(Dynamics):
    """The solution of a constraint at the present parameters.

    ``constraint``: a module called with (h, x), with ``parameters`` as for any module, or a function
    f(parameters, h, x) with ``parameters`` leaf tensors in dicts or lists. ``state``: the solution (samples, ...),
    found by ``foretrain.empirical.global_ntk.solve`` or by the model's own iteration. ``tolerance``: how far it may
    be from the exact one, relative to its length. ``solver``: "direct" factors D_h F, "krylov" solves with it step
    by step.

    >>> import torch
    >>> class Rest(torch.nn.Linear):
    ...     def forward(self, h, x):
    ...         return h - torch.tanh(super().forward(h) + x)
    >>> from foretrain.empirical.global_ntk.implicit.equilibrium import solve
    >>> rest, x = Rest(4, 4).double(), torch.randn(3, 4).double()
    >>> ImplicitDynamics(rest, solve(rest, torch.zeros(3, 4).double(), x), x).space.describe()
    '(batch 3, unit 4)'
    """

    space: Space

    def __init__(
        self,
        constraint: Any,
        state: Tensor,
        x: Any,
        parameters: Any = None,
        tolerance: float | None = None,
        solver: Solver = "auto",
    ) -> None:
        at, equations = as_state(state), Constraint(constraint, parameters)
        self.parameters, self.values = equations.parameters, at.flatten()
        self._linear = LinearisedConstraint(equations, at, x)
        with torch.no_grad():
            refuse_random(self._linear.residual + self.values, equations(at, x).flatten() + self.values)
        self.space = Space(("batch", len(at)), *zip(axes_of_sample(at.ndim - 1), at.shape[1:]))
        self._inverse = inverse(self._linear, solver)
        # A Newton step from a solution is nothing beside the solution; a second vector shows that P exists.
        step = self.propagate(torch.stack([self._linear.residual, fixed_normal(self.values)]))[0]
        length = torch.linalg.vector_norm(self.values).clamp_min(torch.finfo(self.dtype).tiny)
        distance = float(torch.linalg.vector_norm(step) / length)
        if not distance <= (_NEAR.get(at.dtype, _NEAR_HALF) if tolerance is None else tolerance):
            residual = float(self._linear.residual.abs().max())
            raise InputError(
                f"the state does not solve the constraint (largest residual {residual:.2g}, a Newton step would move "
                f"it by {distance:.2g} of its length): find it with foretrain.empirical.global_ntk.solve, run its "
                "own iteration longer, or pass a larger `tolerance=`."
            )
        self.ends: Sequence[Tensor] = [self._linear.end]
        self.samples: int | None = len(at)
        self.times = frozenset(size for name, size in self.space.axes if name == "time")
        self.tape = read(self._linear.end.reshape(1, -1), self.parameters)
        if not self.tape.leaves:
            raise InputError("the constraint does not depend on any parameter that counts: choose others.")

    def propagate(self, changes: Tensor) -> Tensor:
        """P q by solving with D_h F."""
        return self._inverse.solve(changes)

    def propagate_adjoint(self, vectors: Tensor) -> Tensor:
        """P* v by solving with its adjoint."""
        return self._inverse.solve(vectors, adjoint=True)

    def constrain(self, changes: Tensor) -> Tensor:
        """D_h F q."""
        return self._linear.jacobian(changes)

    def constrain_adjoint(self, vectors: Tensor) -> Tensor:
        """D_h F* v."""
        return self._linear.jacobian_adjoint(vectors)

    def local_push(self, tangents: Values) -> Tensor:
        """-D_theta F t."""
        (found,) = self._linear.carrier.forth("parameters", [tangents[name] for name in self.parameters])
        return -found.flatten(1)

    def local_pull(self, vectors: Tensor) -> Values:
        """-D_theta F* v."""
        found = self._linear.carrier.back("parameters", [-vectors.reshape(len(vectors), *self._linear.shape)])
        return dict(zip(self.parameters, found))

    @cached_property
    def sites(self) -> Sequence[Site]:
        """Of the weights and biases in the constraint."""
        return find_sites(self)

    @property
    def tape_by_sample(self) -> Tape:
        """The same with (samples, entries) as its root."""
        return read(self._linear.end.flatten(1), self.parameters)

    def to_ends(self, block: Tensor) -> list[Tensor]:
        """Vectors of states as cotangents of the constraint: -P* v."""
        return [-self.propagate_adjoint(block).reshape(len(block), *self._linear.shape)]

    def from_ends(self, tensors: Sequence[Tensor]) -> Tensor:
        """What changes of the constraint do to the states: -P q."""
        return -self.propagate(tensors[0].flatten(1))

    @property
    def structure(self) -> str:
        """The state is one; how equations with D_h F are solved."""
        return (
            f"The state solves F(h, x) = 0, all of it at once: P = (D_h F)^-1 by {self._inverse.describe()}."
        )
