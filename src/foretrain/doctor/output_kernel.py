"""The exact tangent kernel of a case over some samples and all outputs, descent with it, and the target's modes.

With rates by parameter in the kernel, Theta = sum over parameters of rate J J^T / (1 - momentum), the outputs follow
df/dt = -Theta dL/df, t in steps: the flow of which descent below its edge takes steps, momentum included. For a loss
that is quadratic in the outputs this is solved exactly, L'(t) = exp(-H Theta t) L'(0). Others are followed by
linearly implicit steps that grow with t, so that fast and slow directions are seen alike.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg import lu_factor, lu_solve
from torch import nn

from foretrain.compare.bundle import Bundle
from foretrain.compare.task import Task
from foretrain.doctor.setup import Case, descent, once
from foretrain.doctor.stability import edge, loss_curvature
from foretrain.empirical.kernel_operator.passes import differentiable_kernels
from foretrain.empirical.tangent_kernel import ntk
from foretrain.empirical.target_modes import TargetModes, target_modes
from foretrain.support.errors import InputError, NotSupportedError
from foretrain.support.memory import require_memory
from foretrain.support.progress import stop_if_late

Array = NDArray[np.float64]

_ENTRIES = 640  # samples x outputs: a matrix of this size is decomposed in a fraction of a second
_MOST_ENTRIES = 3000  # where two samples alone have many outputs
_GAMMA = 1 - 0.5**0.5  # for which the two stages damp fast directions completely
_HALVINGS = 40  # of steps that climb, in one forecast
_ROUNDING = 1e-9  # of the loss at the start
_FIRST, _LAST, _PER_DECADE = -1.0, 6.0, 4  # times, as powers of ten in units of the fastest direction
_MOST_MODES = 10
_LARGEST_PICTURE = 4096  # entries


@dataclass(frozen=True, eq=False)
class Forecast:
    """Slopes dL/df of the loss (times, samples x outputs) at times in steps at the given rates, from 0 on."""

    steps: Array
    slopes: Array
    losses: Array

    @property
    def left(self) -> Array:
        """The share of the initial |dL/df|^2 that is left: for mean squares, of the error's energy."""
        sizes = np.sum(self.slopes**2, axis=1)
        return np.asarray(sizes / sizes[0]) if sizes[0] > 0 else np.zeros_like(sizes)

    def steps_until(self, left: float) -> float:
        """When so small a share is left; inf if never in sight."""
        return crossing(self.steps, self.left, left)


def crossing(steps: Array, values: Array, level: float) -> float:
    """Where a curve first falls to a level, between the points of a logarithmic grid; inf if it does not."""
    below = np.flatnonzero(values <= level)
    if not len(below):
        return float("inf")
    place = int(below[0])
    if place == 0:
        return 0.0
    high, low = values[place - 1], values[place]
    part = (high - level) / (high - low)
    return float(steps[place - 1] + part * (steps[place] - steps[place - 1]))


@dataclass(frozen=True, eq=False)
class OutputKernel:
    """``matrix`` (samples x outputs, both sides) with rates by parameter and momentum inside: per step."""

    task: Task
    matrix: Array
    outputs: Array  # (samples, ...), as the model gives them
    slope: Array  # dL/df, flat

    @cached_property
    def decomposed(self) -> tuple[Array, Array]:
        """Eigenvalues from the largest on, none below zero, and their vectors as columns."""
        values, vectors = np.linalg.eigh(self.matrix)
        return np.maximum(values[::-1], 0.0), vectors[:, ::-1]

    @cached_property
    def positive(self) -> Array:
        """The matrix without what rounding puts below zero, along which an error would grow."""
        values, vectors = self.decomposed
        return np.asarray((vectors * values) @ vectors.T)

    @cached_property
    def energies(self) -> Array:
        """The share of |dL/df|^2 in every eigenmode."""
        inside = (self.decomposed[1].T @ self.slope) ** 2
        total = float(inside.sum())
        return np.asarray(inside / total) if total > 0 else inside

    @cached_property
    def asks_for_targets(self) -> bool:
        """Whether the loss is least where the outputs equal the targets: of squares, not of logits and labels."""
        y = self.task.y
        if not y.is_floating_point() or y.numel() != self.outputs.size:
            return False
        slope = self._loss(y.detach().double().cpu().numpy().reshape(self.outputs.shape))[1]
        return bool(np.abs(slope).max() <= 1e-3 * np.abs(self.slope).max())

    @cached_property
    def forecast(self) -> Forecast:
        """Descent as it would go if the kernel stayed as it is."""
        curvature = loss_matrix(self.task, self.outputs)
        root, _ = _roots(curvature)
        fastest = float(np.linalg.eigvalsh(root @ self.matrix @ root)[-1])  # eigenvalue of Theta H
        if not fastest > 0:
            raise NotSupportedError(
                "the loss has no curvature here: linearised descent has no times of its own."
            )
        count = int(_PER_DECADE * (_LAST - _FIRST)) + 1
        steps = np.concatenate([[0.0], np.logspace(_FIRST, _LAST, count) / fastest])
        moved = self.outputs + np.random.default_rng(0).normal(size=self.outputs.shape)
        if np.allclose(
            loss_matrix(self.task, moved), curvature, rtol=1e-3, atol=1e-6 * np.abs(curvature).max()
        ):
            return self._exact(steps, curvature)
        return self._stepwise(steps)

    def _exact(self, steps: Array, curvature: Array) -> Forecast:
        """exp(-Theta H t) for a loss that is quadratic: by the eigenvectors of H^1/2 Theta H^1/2."""
        root, inverse = _roots(curvature)
        rates, vectors = np.linalg.eigh(root @ self.matrix @ root)
        start = vectors.T @ (inverse @ self.slope)
        course = start * np.exp(-np.maximum(rates, 0.0) * steps[:, None])
        outside = self.slope - root @ (inverse @ self.slope)
        slopes = course @ vectors.T @ root + outside
        left = np.sum(course**2, axis=1) / 2
        losses = self._loss(self.outputs)[0] - left[0] + left
        return Forecast(steps, slopes, losses)

    def _stepwise(self, steps: Array) -> Forecast:
        """Rosenbrock steps of second order, damped at infinity (Verwer et al. 1999, ROS2).

        Descent never climbs: a step that does is too long for a curvature that changes on the way, and is halved.
        """
        outputs, slopes, losses = self.outputs, [self.slope], [self._loss(self.outputs)[0]]
        halvings = _HALVINGS
        for before, after in pairwise(steps):
            ahead = [after - before]
            while ahead:
                step = ahead.pop()
                moved = self._moved(outputs, step)
                climbs = not self._loss(moved)[0] <= losses[-1] + _ROUNDING * abs(losses[0])
                if climbs and halvings > 0:
                    halvings -= 1
                    ahead += [step / 2, step / 2]
                elif not climbs:
                    outputs = moved
            loss, slope = self._loss(outputs)
            slopes.append(slope)
            losses.append(loss)
        return Forecast(steps, np.stack(slopes), np.array(losses))

    def _moved(self, outputs: Array, step: float) -> Array:
        """One such step."""
        stop_if_late()
        kernel, slope = self.positive, self._loss(outputs)[1]
        inside = np.eye(len(kernel)) + _GAMMA * step * (kernel @ loss_matrix(self.task, outputs))
        factors = lu_factor(inside, check_finite=False)
        first = lu_solve(factors, -kernel @ slope, check_finite=False)
        there = self._loss(outputs + step * first.reshape(outputs.shape))[1]
        second = lu_solve(factors, -kernel @ there - 2 * first, check_finite=False)
        return np.asarray(outputs + step * (1.5 * first + 0.5 * second).reshape(outputs.shape))

    def _loss(self, outputs: Array) -> tuple[float, Array]:
        points = _like(self.task, outputs).requires_grad_()
        with torch.enable_grad():
            loss = self.task.loss(points, self.task.y)
        (slope,) = torch.autograd.grad(loss, points)
        return float(loss.detach()), slope.detach().double().cpu().numpy().ravel()


def kernel_task(case: Case) -> Task:
    """The samples of the kernel; refused where single ones have too many outputs."""
    task = case.kernel_sample(_ENTRIES)
    if len(task.x) * case.outputs_per_sample > _MOST_ENTRIES:
        raise NotSupportedError(
            f"{case.outputs_per_sample:,} outputs for each sample are too many for an exact kernel of the outputs."
        )
    return task


@once
def reference(case: Case) -> Case:
    """The case itself if it descends, else the same with plain descent at the recommended rate."""
    kernel_task(case)  # what has no kernel is refused before a rate is looked for
    if case.recipe.is_descent:
        return case
    trial = Case(case.setup.with_recipe(descent(case.setup.model, 1.0)))
    return Case(case.setup.with_recipe(descent(case.setup.model, edge(trial).recommended)))


@once
def output_kernel(case: Case) -> OutputKernel:
    """Of a case that descends (see ``reference``)."""
    task, rates = kernel_task(case), case.recipe.rates
    entries = len(task.x) * case.outputs_per_sample
    require_memory(
        10 * 8.0 * entries**2, f"the kernel of {entries} outputs", "give a model with fewer outputs"
    )
    faster = 1 / (1 - case.recipe.momentum)
    kernel = ntk(
        case.model,
        task.x,
        parameters=lambda name, _: name in rates,
        rates=lambda name, _: rates[name] * faster,
    )
    values = kernel.values.detach().double().cpu().permute(0, 2, 1, 3).reshape(entries, entries).numpy()
    with torch.no_grad(), differentiable_kernels():
        outputs = case.model(task.x).double().cpu().numpy()
    found = OutputKernel(task, (values + values.T) / 2, outputs, np.zeros(entries))
    return OutputKernel(task, found.matrix, outputs, found._loss(outputs)[1])


def loss_matrix(task: Task, outputs: Array) -> Array:
    """The second derivative of the loss by all outputs: block by block where samples do not mix, else by columns."""
    points = _like(task, outputs)
    product = loss_curvature(task, points)
    count, each = len(outputs), outputs[0].size
    blocks = np.stack([_applied(product, points, np.tile(row, count)) for row in np.eye(each)])
    blocks = blocks.reshape(each, count, each)
    whole = np.zeros((count, each, count, each))
    whole[np.arange(count), :, np.arange(count), :] = blocks.transpose(1, 2, 0)
    matrix = whole.reshape(outputs.size, outputs.size)
    probe = np.random.default_rng(0).normal(size=outputs.size)
    true = _applied(product, points, probe)
    if not np.allclose(matrix @ probe, true, rtol=1e-3, atol=1e-5 * max(1e-30, float(np.abs(true).max()))):
        matrix = np.stack([_applied(product, points, row) for row in np.eye(outputs.size)])
    return np.asarray((matrix + matrix.T) / 2)


def _applied(product: Callable[[torch.Tensor], torch.Tensor], like: torch.Tensor, vector: Array) -> Array:
    found = product(torch.as_tensor(vector).to(like).reshape(like.shape))
    return found.detach().double().numpy(force=True).ravel()  # a ZeroTensor has no memory of its own


def _like(task: Task, outputs: Array) -> torch.Tensor:
    """In double precision where the loss takes it: targets and weights of classes must agree with outputs."""
    held = [task.y, *(task.loss.buffers() if isinstance(task.loss, torch.nn.Module) else ())]
    kinds = [one.dtype for one in held if one is not None and one.is_floating_point()]
    kind = kinds[0] if kinds else torch.float64
    return torch.as_tensor(outputs).to(task.x.device, kind)


def _roots(matrix: Array) -> tuple[Array, Array]:
    """H^1/2 and its pseudo-inverse, of the part that is not negative."""
    diagonal = np.diag(matrix)
    if np.array_equal(matrix, np.diag(diagonal)):
        values, vectors = np.maximum(diagonal, 0.0), np.eye(len(matrix))
    else:
        values, vectors = np.linalg.eigh(matrix)
    kept = values > 1e-10 * max(float(values.max()), 0.0)
    roots = np.sqrt(np.where(kept, values, 0.0))
    inverse = np.divide(1.0, roots, out=np.zeros_like(roots), where=kept)
    return (vectors * roots) @ vectors.T, (vectors * inverse) @ vectors.T


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
    y, outputs = kernel.task.y, kernel.outputs
    classes = not y.is_floating_point() and outputs.ndim > 1
    classes = classes and tuple(y.shape) == (outputs.shape[0], *outputs.shape[2:])
    # The target, and the residual y - f or y - p, which has the direction of -dL/df; of other targets that itself.
    trials = y.is_floating_point() and tuple(y.shape) == outputs.shape and len(y) > 1
    if y.is_floating_point() and tuple(y.shape) == outputs.shape:
        places = y.detach().double().cpu().numpy()
        places = places if places.ndim > 1 else places[:, None]
        residual = places.reshape(outputs.shape) - outputs
    elif classes:
        counted = nn.functional.one_hot(y.clamp(min=0), outputs.shape[1]) * (y >= 0)[..., None]
        places = counted.double().cpu().numpy().reshape(-1, outputs.shape[1])
        residual = places - _places(torch.softmax(torch.as_tensor(outputs), 1).numpy(), kernel, True)
    else:
        places = residual = _places(-kernel.slope, kernel, False)
    try:
        # What all samples share and what tells them apart are learned at different times: each has its own modes.
        target = target_modes(places, _MOST_MODES, "trials" if trials else "target")
    except InputError as error:
        raise NotSupportedError(str(error)) from error
    course = kernel.forecast
    pulls = np.stack([_places(-slope, kernel, classes) for slope in course.slopes])
    unit = np.linalg.norm(residual) / max(float(np.linalg.norm(pulls[0])), 1e-300)
    left = np.stack([target.shares(pull * unit) for pull in pulls])
    return ModeForecast(target, course.steps, left, classes)


def _rows(values: Array) -> Array:
    return values.reshape(-1, values.shape[-1] if values.ndim > 1 else 1)


def _places(values: Array, kernel: OutputKernel, classes: bool) -> Array:
    """Values of all outputs as (places, outputs); classes lie along the second axis."""
    shaped = values.reshape(kernel.outputs.shape)
    return _rows(np.moveaxis(shaped, 1, -1) if classes else shaped)


def pictures(found: ModeForecast, task: Task, shape: tuple[int, ...]) -> tuple[tuple[str, ...], Array] | None:
    """Modes to look at, with the names of their axes: time courses of outputs, or the inputs that a mode weighs.

    Of outputs (samples, time, numbers): the leading course over time of every mode, times its weights of outputs.
    Else the sum of inputs, each times the mode's weight of its sample. None for inputs of one number, of whole
    numbers, or in several tensors.
    """
    left, right = found.target.left, found.target.right
    if len(shape) == 3 and not found.classes and left.shape[1] == shape[0] * shape[1]:
        courses = np.stack([_course(one.reshape(shape[:2])) for one in left])
        return ("mode", "time", "output"), courses[:, :, None] * right[:, None, :]
    x = task.x
    if isinstance(x, Bundle):
        return None
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
