"""Gaussian sequences for an attention block (Hazelden et al., figures 6, 9, 10 and section A.5).

Inputs are independent standard normals (batch, time, n_in). The source measures at initialization and leaves the
target open; here it is one number per sequence, asked for at every step: the mean over the steps of a random smooth
function of the input, a sum of waves. The block has no notion of order, and neither has this target.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from foretrain.support.errors import InputError
from foretrain.support.seeds import Seed, torch_generator


@dataclass(frozen=True)
class GaussianSequences:
    """The task: size of a step, number of steps, and the teacher's waves with their typical frequency."""

    n_in: int
    steps: int = 50
    waves: int = 8
    frequency: float = 0.5
    teacher: int = 0  # the seed of the waves

    def __post_init__(self) -> None:
        for name in ("n_in", "steps", "waves"):
            if getattr(self, name) < 1:
                raise InputError(f"`{name}` is {getattr(self, name)}, but it must be a number from 1 on.")
        if not 0 < self.frequency < math.inf:
            raise InputError(f"frequency is {self.frequency}, but it must be positive and finite.")

    def inputs(self, count: int, seed: Seed, dtype: torch.dtype = torch.float32) -> Tensor:
        """(batch, time, n_in); the same seed gives the same numbers in every precision."""
        if count < 1:
            raise InputError(f"count is {count}, but a batch needs at least one sequence.")
        drawn = torch.randn(
            count, self.steps, self.n_in, dtype=torch.float64, generator=torch_generator(seed)
        )
        return drawn.to(dtype)

    def targets(self, x: Tensor) -> Tensor:
        """(batch, time, 1): sqrt(2 / waves) sum_j (sum_t cos(2 pi f_j x_t + phi_j)) / sqrt(time), less its mean."""
        source = torch_generator(self.teacher)
        f = torch.randn(self.n_in, self.waves, dtype=torch.float64, generator=source) * self.frequency
        phases = 2 * math.pi * torch.rand(self.waves, dtype=torch.float64, generator=source)
        waves = torch.cos(2 * math.pi * x.double() @ f + phases)
        expected = torch.exp(-2 * (math.pi * f).square().sum(0)) * torch.cos(phases)  # over normal inputs
        answer = (waves - expected).sum(1, keepdim=True).sum(2, keepdim=True)
        answer = answer * math.sqrt(2 / self.waves / x.shape[1])
        return answer.expand(-1, x.shape[1], 1).to(x.dtype)

    def batch(self, count: int, seed: Seed, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
        """Inputs and targets."""
        x = self.inputs(count, seed, torch.float64)
        return x.to(dtype), self.targets(x).to(dtype)
