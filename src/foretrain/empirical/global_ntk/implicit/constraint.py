"""A constraint F(h, x, theta) = 0 of equilibrium models, and its derivatives at one state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from foretrain.empirical.global_ntk.graph.passes import Carrier
from foretrain.empirical.kernel_operator.passes import differentiable_kernels
from foretrain.empirical.models.arguments import chosen, trainable
from foretrain.empirical.models.model import explained, refuse_ill_defined, unchanged
from foretrain.support.errors import InputError, NotSupportedError

_DECOUPLED = {torch.float64: 1e-9, torch.float32: 1e-4}
_DECOUPLED_HALF = 0.05


class Constraint:
    """F as a module called with (h, x), or as a function f(parameters, h, x)."""

    def __init__(self, function: Any, parameters: Any) -> None:
        function = getattr(function, "_orig_mod", function)
        if not callable(function):
            raise InputError(
                "the constraint must be an nn.Module called with (h, x) or a function f(parameters, h, x), not "
                f"{type(function).__name__}."
            )
        self._function: Callable[..., Any] = function
        self._first: tuple[Any, ...] = ()
        refuse_ill_defined(function)
        if isinstance(function, nn.Module):
            self.parameters: Mapping[str, Tensor] = chosen(trainable(function, None), parameters)
        elif parameters is None:
            raise InputError(
                "a constraint f(parameters, h, x) needs `parameters=`: tensors that require grad, in dicts or lists."
            )
        else:
            self.parameters, self._first = trainable(function, parameters), (parameters,)

    def __call__(self, state: Tensor, x: Any) -> Tensor:
        """F at a state, of its shape."""
        with ExitStack() as stack:
            stack.enter_context(unchanged(self._function))
            stack.enter_context(differentiable_kernels())
            found = self._function(*self._first, state, x)
        if not isinstance(found, Tensor) or found.shape != state.shape:
            shape = tuple(found.shape) if isinstance(found, Tensor) else f"a {type(found).__name__}"
            raise InputError(
                f"the constraint returns {shape} for a state {tuple(state.shape)}: it needs one equation for every "
                "number of the state."
            )
        return found


def as_state(state: Any) -> Tensor:
    """The user's state, checked, without a graph."""
    if not isinstance(state, Tensor) or not state.is_floating_point() or state.ndim < 2 or not state.numel():
        raise InputError(
            "the state must be a tensor of real numbers (samples, ...), with one row for each sample."
        )
    if not bool(torch.isfinite(state).all()):
        raise InputError("the state has entries that are nan or infinite: find it with solve first.")
    return state.detach().clone()


class LinearisedConstraint:
    """F near a state: D_h F and D_theta F and their adjoints, for blocks of vectors (k, size).

    ``shift``: for every sample a number that is added to the diagonal of D_h F, for steps on the way to a solution.
    """

    def __init__(self, constraint: Constraint, state: Tensor, x: Any) -> None:
        self.shape, self.shift = tuple(state.shape), state.new_zeros(len(state))
        at = state.detach().clone().requires_grad_()
        with torch.enable_grad():
            with explained((state, x), constraint.parameters.values(), "the state or x"):
                residual = constraint(at, x)
            if not residual.requires_grad:
                raise NotSupportedError(
                    "the constraint does not depend differentiably on the state: return it before detach or no_grad."
                )
            self.end = residual.clone()
        if not bool(torch.isfinite(self.end).all()):
            raise NotSupportedError(
                "the constraint is not finite at the state: mend its weights or its inputs."
            )
        values = list(constraint.parameters.values())
        self.carrier = Carrier(
            [self.end],
            {"state": [at], "parameters": values},
            {"state": [state.shape], "parameters": [value.shape for value in values]},
        )

    @property
    def residual(self) -> Tensor:
        """F at the state, flat."""
        return self.end.detach().flatten()

    def jacobian(self, changes: Tensor) -> Tensor:
        """D_h F q."""
        return self._carried(self.carrier.forth, changes)

    def jacobian_adjoint(self, vectors: Tensor) -> Tensor:
        """D_h F* v."""
        return self._carried(self.carrier.back, vectors)

    def _carried(self, way: Callable[[str, list[Tensor]], list[Tensor]], block: Tensor) -> Tensor:
        (found,) = way("state", [block.reshape(len(block), *self.shape)])
        shifted = block.view(len(block), len(self.shift), -1) * self.shift[:, None]
        return found.flatten(1) + shifted.flatten(1)

    def couples_samples(self) -> bool:
        """Whether D_h F has entries between samples: v weighted by sample then gives more than weighted gradients."""
        generator = torch.Generator().manual_seed(0)
        like = self.end.detach()
        vector = torch.randn(like.shape, generator=generator, dtype=torch.float64).to(like)
        weights = 1 + torch.rand(len(like), generator=generator, dtype=torch.float64).to(like)
        spread = weights.view(-1, *(1,) * (like.ndim - 1))
        both = torch.stack([vector, vector * spread]).flatten(1)
        plain, weighted = self.jacobian_adjoint(both).reshape(2, *like.shape)
        difference = float((plain * spread - weighted).abs().max())
        return difference > _DECOUPLED.get(like.dtype, _DECOUPLED_HALF) * float(plain.abs().max())
