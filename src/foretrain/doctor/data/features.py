"""Features of inputs: which axis they lie along, their offsets and sizes, and inputs on one scale.

How much an uneven scale costs at least is told by the simplest learner, a linear readout of the inputs: with second
moments that have eigenvalues between a and b, its slowest direction takes b/a steps where the fastest takes one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

Array = NDArray[np.float64]

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
SOURCE = (
    "LeCun et al. (1998), section 4.3: the condition of the inputs' second moments sets the speed of descent"
)
UNEVEN = 5.0  # ratio of deviations, or offset against variation, that is named as the cause
CONSTANT = 1e-6  # a feature that varies by less than this part of its mean is constant
_SAMPLES = 512  # for the eigenvalues of the second moments
_LEARNED = 0.9  # of what a linear readout can learn
_REACHED = 1e-10  # of the largest eigenvalue: smaller ones are rounding


@dataclass(frozen=True, eq=False)
class Features:
    """Mean and standard deviation of every feature, over samples and all other axes."""

    axis: int
    mean: Array
    deviation: Array
    steps: float  # in which a linear readout learns nine tenths of what it can
    standard_steps: float  # the same for standardised features

    @property
    def constant(self) -> NDArray[np.bool_]:
        """Which features do not vary."""
        return self.deviation <= CONSTANT * np.abs(self.mean)

    @property
    def spread(self) -> float:
        """Largest over smallest standard deviation, of features that vary; 1 if none does."""
        varying = self.deviation[~self.constant]
        return float(varying.max() / varying.min()) if len(varying) else 1.0

    @property
    def offset(self) -> float:
        """Size of the mean input against the size of its variation; inf if nothing varies."""
        total = float(np.sum(self.deviation**2))
        return float(np.sqrt(np.sum(self.mean**2) / total)) if total > 0 else float("inf")

    @property
    def size(self) -> float:
        """Root mean square of an entry."""
        return float(np.sqrt(np.mean(self.mean**2 + self.deviation**2)))


def feature_axis(model: nn.Module, x: Tensor) -> int:
    """Channels for convolutions, else the last axis: a feature is the same quantity along all other axes."""
    convolves = any(isinstance(module, _CONVOLUTIONS) for module in model.modules())
    return 1 if x.ndim == 2 or (convolves and x.ndim > 2) else x.ndim - 1


def measure(x: Tensor, targets: Tensor, axis: int) -> Features:
    """Means over all samples; the steps of a linear readout from some. ``targets``: (samples, any)."""
    rows = x.detach().double().movedim(axis, -1).reshape(-1, x.shape[axis] if x.ndim > 1 else 1)
    mean, deviation = rows.mean(0).cpu().numpy(), rows.std(0, correction=0).cpu().numpy()
    some = x.detach().double()[:_SAMPLES]
    wanted = targets.double()[:_SAMPLES]
    steps, standard = (linear_steps(values, wanted) for values in (some, standardised(some, axis)))
    return Features(axis, mean, deviation, steps, standard)


def linear_steps(x: Tensor, targets: Tensor) -> float:
    """Steps at half the largest stable rate in which a linear readout with a bias learns nine tenths.

    Of the part of the centred targets that it can learn at all: by the eigenvalues of X X^T, the kernel of readouts.
    """
    rows = x.reshape(len(x), -1)
    values, vectors = torch.linalg.eigh(rows @ rows.T + 1)
    energy = (vectors.T @ (targets - targets.mean(0))).square().sum(1)
    reached = values > _REACHED * values[-1]
    speeds, energy = (values / values[-1])[reached].cpu().numpy(), energy[reached].cpu().numpy()
    if not energy.sum() > 0:
        return 1.0
    times = np.logspace(-1, 11, 600)
    left = np.exp(-2 * np.outer(times, speeds)) @ (energy / energy.sum())
    return float(times[np.argmax(left <= 1 - _LEARNED)])


def other_axes(x: Tensor, axis: int) -> tuple[int, ...]:
    """All axes but that of the features."""
    return tuple(number for number in range(x.ndim) if number != axis or x.ndim == 1)


def standardised(x: Tensor, axis: int) -> Tensor:
    """Every feature with mean 0 and standard deviation 1; what is constant becomes 0."""
    axes = other_axes(x, axis)
    mean, deviation = x.mean(axes, keepdim=True), x.std(axes, keepdim=True, correction=0)
    return (x - mean) / torch.where(deviation > CONSTANT * mean.abs(), deviation, torch.ones_like(deviation))


def standardising_code(x: Tensor, axis: int, name: str = "x") -> str:
    """The same as :func:`standardised`, in torch."""
    axes = other_axes(x, axis)
    return (
        f"mean = {name}.mean({axes}, keepdim=True)  # keep both for data that come later\n"
        f"deviation = {name}.std({axes}, keepdim=True, correction=0)\n"
        f"deviation = torch.where(deviation > {CONSTANT:g} * mean.abs(), deviation, torch.ones_like(deviation))\n"
        f"{name} = ({name} - mean) / deviation"
    )
