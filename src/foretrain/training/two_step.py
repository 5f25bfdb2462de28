"""A giant leap and a small step: training in two updates, for networks that are wide (∞.68)-(∞.79).

Both move parameters along gradients of outputs, with coefficients that the tangent kernel gives: the leap would end
training if the kernel stayed what it is, and leaves an error of order 1/n, the step one of about 1/n^2.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from foretrain.empirical.kernel_operator.passes import Linearised, pull_one
from foretrain.empirical.models.arguments import Batch, Chosen, Rates, chosen, rate_of_each, trainable
from foretrain.empirical.models.model import Output
from foretrain.empirical.tangent_kernel import ntk
from foretrain.empirical.tangent_kernel.kernel import KernelOptions, prepare
from foretrain.support.answers import Answer, Result, Table, labelled
from foretrain.support.errors import InputError, NotSupportedError
from foretrain.support.memory import require_memory
from foretrain.support.user_warnings import warn_user

_TIMES = ("before", "after the leap", "after the small step")
_DOUBLE, _SINGLE = 1e-12, 1e-7  # of the largest eigenvalue: smaller ones are rounding


@dataclass(frozen=True, eq=False, repr=False)
class TwoStep(Result):
    """The trained ``model``, and ``residuals`` z - y (N, C): before, after the leap, and after the small step."""

    model: nn.Module
    residuals: tuple[Tensor, Tensor, Tensor]
    condition_number: float  # of the tangent kernel of the training samples

    @property
    def largest(self) -> tuple[float, ...]:
        """The largest residual at each of the three times."""
        return tuple(float(residual.abs().max()) for residual in self.residuals)

    @property
    def losses(self) -> tuple[float, ...]:
        """Half the sum of squares at each of them."""
        return tuple(0.5 * float(residual.double().square().sum()) for residual in self.residuals)

    def answer(self) -> Answer:
        """Residuals and losses at the three times."""
        before, leap, step = self.largest
        columns = {
            "time": _TIMES,
            "largest residual": self.largest,
            "loss, half the sum of squares": self.losses,
        }
        return Answer(
            f"Largest residual {before:.3g}, after the leap {leap:.3g}, after the small step {step:.3g}; "
            f"the condition number of the tangent kernel is {self.condition_number:.3g}.",
            [Table.of(columns)],
            lambda: labelled(
                {"residual": ("time sample output", torch.stack(self.residuals))},
                {"condition_number": self.condition_number},
                time=list(_TIMES),
            ),
        )


def two_step(
    model: nn.Module,
    x: Any,
    y: Any,
    *,
    rates: Rates = None,
    kernel: Any = None,
    parameters: Chosen = None,
    output: Output = None,
) -> TwoStep:
    """Train a copy of the model on half the sum of squares in two updates.

    Parameters
    ----------
    y
        Targets of the shape of the outputs, (N, C); of one output also (N,).
    rates
        Learning rates λ by which parameters share the change, as for ``ntk``: a number, {pattern: rate}, an
        optimizer's ``param_groups``, or a function ``(name, tensor) -> rate``.
    kernel
        For the small step: the mean tangent kernel (N, N) of the ensemble (∞.77). By default the network's own one
        from before the leap, which is the same to this order and leaves a smaller error.
    parameters, output
        As for ``ntk``.

    A warning says so where the small step has not reduced what the leap left, because the network is too narrow.

    Examples
    --------
    >>> import torch
    >>> from foretrain.training.two_step import two_step
    >>> _ = torch.manual_seed(0)
    >>> net = torch.nn.Sequential(torch.nn.Linear(2, 500), torch.nn.Tanh(), torch.nn.Linear(500, 1))
    >>> found = two_step(net, torch.eye(2), torch.tensor([[0.5], [-0.5]]))
    >>> found.largest[2] < found.largest[1] < found.largest[0]
    True
    """
    if not isinstance(model, nn.Module):
        raise InputError(f"model is a {type(model).__name__}: give an nn.Module, whose copy is trained.")
    known = rate_of_each(chosen(trainable(model, None), parameters), rates)
    updates = _Updates(copy.deepcopy(model), x, known, output)
    before = updates.residual(y)
    own = updates.kernel()
    coefficients, condition = _solved(own, before)
    updates.move(coefficients)
    after = updates.residual(y)
    if kernel is not None:
        own = torch.as_tensor(kernel).detach().double()
        if tuple(own.shape) != (len(after), len(after)):
            raise InputError(
                f"kernel has shape {tuple(own.shape)}: give the mean tangent kernel of the {len(after)} samples, "
                f"{(len(after), len(after))}."
            )
    updates.move(_solved(own, after)[0])
    found = TwoStep(updates.model, (before, after, updates.residual(y)), condition)
    start, leap, step = found.largest
    if step > leap and step > _SINGLE * start:
        warn_user(
            f"the small step has raised the largest residual from {leap:.2g} to {step:.2g}, because the leap has "
            "changed the tangent kernel too much: take a wider network, smaller rates of hidden layers or smaller "
            "targets."
        )
    return found


class _Updates:
    """A model that moves along gradients of its outputs on the training samples."""

    def __init__(self, model: nn.Module, x: Any, rates: Mapping[str, float], output: Output) -> None:
        self.model, self._x, self._rates = model, x, rates
        self._options: dict[str, Any] = {
            "output": output,
            "parameters": lambda name, _: name in rates,
            "rates": lambda name, _: rates[name],
        }

    def residual(self, y: Any) -> Tensor:
        """z - y: (N, C)."""
        linear, batch = self._linear()
        outputs = linear.rows(batch, differentiable=False).detach()
        targets = torch.as_tensor(y).detach().to(outputs)
        if targets.shape[:1] != outputs.shape[:1] or targets.numel() != outputs.numel():
            raise InputError(
                f"y has shape {tuple(targets.shape)}, but the outputs are {tuple(outputs.shape)}: give one target "
                "for each of them, samples first."
            )
        residual = outputs - targets.reshape(outputs.shape)
        if not torch.isfinite(residual).all():
            raise InputError("outputs or targets are not finite: check the data and the weights.")
        return residual

    def kernel(self) -> Tensor:
        """The tangent kernel of pairs (sample, output): (N C, N C)."""
        values: Tensor = ntk(self.model, self._x, **self._options).values.detach()
        samples, _, outputs, _ = values.shape
        return values.permute(0, 2, 1, 3).reshape(samples * outputs, samples * outputs)

    def move(self, coefficients: Tensor) -> None:
        """θ − λ Σ c ∇z."""
        linear, batch = self._linear()
        vector = coefficients.to(next(iter(linear.parameters.values())))
        with torch.enable_grad():
            gradients = pull_one(linear, batch, vector[None])
        with torch.no_grad():
            for name, value in linear.parameters.items():
                value -= self._rates[name] * gradients[name][0]

    def _linear(self) -> tuple[Linearised, Batch]:
        engine, batch, _ = prepare(self.model, self._x, options=KernelOptions(**self._options))
        return Linearised(engine.model, engine.parameters, engine.outputs), batch


def _solved(kernel: Tensor, residual: Tensor) -> tuple[Tensor, float]:
    """kernel⁻¹ residual, and the condition number; a kernel (N, N) is that of every output."""
    legs = len(kernel)
    require_memory(32.0 * legs**2, f"the inverse of a kernel of {legs:,} rows", "give fewer samples")
    right = residual.double().reshape(legs, -1)
    values, vectors = torch.linalg.eigh(kernel.to(right))
    double = kernel.dtype == torch.float64
    if not values[0] > (_DOUBLE if double else _SINGLE) * values[-1]:
        way_out = "or take a wider network" if double else "take a wider network, or use double precision"
        raise NotSupportedError(
            f"the tangent kernel has eigenvalues from {values[0]:.3g} to {values[-1]:.3g}, so that no leap fits all "
            f"targets: leave out repeated samples, give positive rates, {way_out}."
        )
    found = vectors @ ((vectors.mT @ right) / values[:, None])
    return found.reshape(residual.shape), float(values[-1] / values[0])
