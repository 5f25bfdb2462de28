"""The field of a problem's population gradient flow, and how it is integrated."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from foretrain.support.errors import InputError
from foretrain.support.memory import require_memory
from foretrain.training.gradient_flow.flows import Flows, method_named
from foretrain.training.gradient_flow.methods import Evaluation, Field, State, Tolerance
from foretrain.training.gradient_flow.networks import Networks, bytes_per_network, loss_and_gradients
from foretrain.training.gradient_flow.problem import Metric, Problem
from foretrain.training.gradient_flow.samples import Sample, gaussian_sample

_COPIES = 20  # of all weights, at most, while a step is made
_CACHED = 24 * 2**20  # bytes: stacking more networks than stay near the processor does not pay


@dataclass(frozen=True)
class Integration:
    """How a flow is integrated.

    ``rtol`` and ``atol`` bound the error of one step in the norm of every weight matrix; float32 halves the time and
    keeps four digits of escape times. ``method``: ``"dormand_prince"``, ``"bogacki_shampine"`` (fewer gradients at
    loose tolerances) or ``"chebyshev"`` (many fewer where steep directions limit the step long after the escape).
    """

    rtol: float = 1e-4
    atol: float = 1e-12
    method: str = "dormand_prince"
    dtype: torch.dtype = torch.float64
    max_time: float = math.inf
    max_evaluations: int = 20_000

    def __post_init__(self) -> None:
        method_named(self.method)
        Tolerance(self.rtol, self.atol)
        if self.dtype not in (torch.float32, torch.float64):
            raise InputError(f"`dtype` is {self.dtype}: give torch.float32 or torch.float64.")
        if self.rtol < 10 * torch.finfo(self.dtype).eps:
            raise InputError(f"rtol is {self.rtol:g}, too fine for {self.dtype}: give more, or take float64.")
        if not self.max_time > 0 or self.max_evaluations < 1:
            raise InputError("max_time and max_evaluations must be positive.")

    def flows(self, field: Field, state: State) -> Flows:
        """Flows that start at a state."""
        cast = tuple(values.to(self.dtype) for values in state)
        return Flows(field, cast, method_named(self.method), Tolerance(self.rtol, self.atol))


def population_field(problem: Problem, sample: Sample, metric: Metric = "uniform") -> Field:
    """Ẇ_l = -ρ_l ∂/∂W_l ½ E (f - y)² over the sample."""
    layer_rates = problem.rates(metric)

    def field(weights: State) -> Evaluation:
        loss, gradients = loss_and_gradients(problem, weights, sample)
        squares = sum(
            rate * gradient.square().sum(dim=(1, 2)).double()
            for rate, gradient in zip(layer_rates, gradients)
        )
        rates = tuple(gradient.mul_(-rate) for rate, gradient in zip(layer_rates, gradients))
        return Evaluation(rates, loss.double().numpy(), -np.asarray(squares))

    return field


def prepared_sample(problem: Problem, sample: Sample | None, integration: Integration) -> Sample:
    """The sample in the precision of the integration; the usual one if none is given."""
    chosen = gaussian_sample(problem) if sample is None else sample
    if chosen.points.shape[-2] != problem.inputs:
        raise InputError(f"the sample has {chosen.points.shape[-2]} inputs, the problem {problem.inputs}.")
    return chosen.to(integration.dtype)


def groups(problem: Problem, networks: Networks, sample: Sample, integration: Integration) -> Iterator[slice]:
    """Which networks to flow together, so that their activations stay small; refused if one does not fit."""
    own = bytes_per_network(problem, sample.size, integration.dtype)
    together = int(max(1, min(len(networks), _CACHED // own)))
    numbers = sum(math.prod(shape) for shape in problem.shapes)
    require_memory(
        together * (own + _COPIES * numbers * torch.finfo(integration.dtype).bits // 8),
        f"the gradient flow of {problem!r} on {sample.size} points",
        "take fewer points, float32 or a smaller width",
    )
    return (slice(start, start + together) for start in range(0, len(networks), together))
