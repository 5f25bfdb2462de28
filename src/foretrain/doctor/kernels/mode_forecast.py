"""Modes of the target and what descent leaves of each, from the present kernel and for any loss.

The target as a matrix (places, outputs) has singular modes; classes are written as one column each. The residual is
what the loss pulls at: r = y - f for mean squares, y - p for cross-entropy, and -dL/df where targets are of another
kind (then its own modes are taken). ``left[i](t)`` = <m_i, r(t)> / sigma_i.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from foretrain.compare.task import Task
from foretrain.doctor.kernels.output_kernel import OutputKernel, crossing
from foretrain.empirical.target_modes import TargetModes, target_modes
from foretrain.support.errors import InputError, NotSupportedError

Array = NDArray[np.float64]

_MOST_MODES = 10
_LARGEST_PICTURE = 4096  # entries


@dataclass(frozen=True, eq=False)
class ModeForecast:
    """Of every mode: its share of the target, what is left of it over the steps, and when half of that is gone."""

    target: TargetModes
    steps: Array
    left: Array  # (times, modes)
    classes: bool  # whether outputs are classes

    @property
    def shares(self) -> Array:
        """sigma^2 over the sum of all."""
        return np.asarray(self.target.values**2 / np.sum(self.target.matrix**2))

    @property
    def half_times(self) -> Array:
        """In steps; inf where it is not in sight."""
        sizes = np.abs(self.left)
        return np.array([crossing(self.steps, size, size[0] / 2) for size in sizes.T])

    def left_after(self, steps: float) -> Array:
        """By mode."""
        return np.array([np.interp(steps, self.steps, one) for one in self.left.T])


def forecast_modes(kernel: OutputKernel) -> ModeForecast:
    """From the forecast of a kernel; refused where the target is zero."""
    places, classes = _target(kernel)
    try:
        target = target_modes(places, _MOST_MODES)
    except InputError as error:
        raise NotSupportedError(str(error)) from error
    course = kernel.forecast
    pulls = np.stack([_places(-slope, kernel, classes) for slope in course.slopes])
    unit = np.linalg.norm(_residual(kernel, places, classes)) / max(float(np.linalg.norm(pulls[0])), 1e-300)
    left = np.einsum("mp,tpo,mo->tm", target.left, pulls * unit, target.right) / target.values
    return ModeForecast(target, course.steps, left, classes)


def _target(kernel: OutputKernel) -> tuple[Array, bool]:
    y, outputs = kernel.task.y, kernel.outputs
    if y.is_floating_point() and tuple(y.shape) == outputs.shape:
        return _rows(y.detach().double().cpu().numpy()), False
    whole = not y.is_floating_point() and outputs.ndim > 1
    if whole and tuple(y.shape) == (outputs.shape[0], *outputs.shape[2:]):
        counted = nn.functional.one_hot(y.clamp(min=0), outputs.shape[1]) * (y >= 0)[..., None]
        return counted.double().cpu().numpy().reshape(-1, outputs.shape[1]), True
    return _places(-kernel.slope, kernel, False), False


def _residual(kernel: OutputKernel, places: Array, classes: bool) -> Array:
    """y - f or y - p, which has the direction of -dL/df; of other targets that itself."""
    y = kernel.task.y
    if classes:
        return places - _places(torch.softmax(torch.as_tensor(kernel.outputs), 1).numpy(), kernel, True)
    if y.is_floating_point() and tuple(y.shape) == kernel.outputs.shape:
        return places - _rows(kernel.outputs)
    return places


def _rows(values: Array) -> Array:
    return values.reshape(-1, values.shape[-1] if values.ndim > 1 else 1)


def _places(values: Array, kernel: OutputKernel, classes: bool) -> Array:
    """Values of all outputs as (places, outputs); classes lie along the second axis."""
    shaped = values.reshape(kernel.outputs.shape)
    return _rows(np.moveaxis(shaped, 1, -1) if classes else shaped)


def pictures(found: ModeForecast, task: Task, shape: tuple[int, ...]) -> tuple[tuple[str, ...], Array] | None:
    """Modes to look at, with the names of their axes: time courses of outputs, or the inputs that a mode weighs.

    Of outputs (samples, time, numbers): the leading course over time of every mode, times its weights of outputs.
    Else the sum of inputs, each times the mode's weight of its sample. None for inputs of one number, or of whole
    numbers.
    """
    left, right = found.target.left, found.target.right
    if len(shape) == 3 and not found.classes and left.shape[1] == shape[0] * shape[1]:
        courses = np.stack([_course(one.reshape(shape[:2])) for one in left])
        return ("mode", "time", "output"), courses[:, :, None] * right[:, None, :]
    x = task.x
    size = x[0].numel()
    if not x.is_floating_point() or left.shape[1] != len(x) or not 1 < size <= _LARGEST_PICTURE:
        return None
    inputs = x.detach().double().cpu().numpy()
    names = {1: ("feature",), 2: ("row", "column"), 3: ("channel", "row", "column")}.get(inputs.ndim - 1)
    if names is None:
        return None
    return ("mode", *names), np.tensordot(left, inputs, axes=(1, 0))


def _course(samples_by_time: Array) -> Array:
    """The leading right singular vector, times its singular value; its largest entry is positive."""
    _, values, courses = np.linalg.svd(samples_by_time, full_matrices=False)
    course = values[0] * courses[0]
    return np.asarray(course * np.sign(course[np.argmax(np.abs(course))]))
