"""The learning curve that the linearised network predicts, how far it can be trusted, and the real one beside it.

The linearised network f_0 + J (theta - theta_0) is trained by the very same optimizer, so that any loss, momentum,
rates by parameter and optimizers other than descent are all taken as they are; for descent its outputs follow
f_{t+1} = f_t - Theta dL/df with Theta = sum over parameters of rate J J^T.

Its trust region is measured. The weights that it has reached are put into the real network: there the outputs are off
by |f(theta_t) - f_lin(t)| / |f_lin(t) - f_0| of their movement, and their speed Theta dL/df is another, because the
kernel has changed: what this adds up to, over the length of the path so far, is the second error. It is often the
larger one: a kernel that grows makes networks faster than predicted.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from foretrain.compare.task import Task
from foretrain.doctor.setup import Case, Recipe, suited_threads
from foretrain.doctor.stability import Tangent
from foretrain.doctor.trials import descend
from foretrain.support.answers import BLUE, ORANGE, Answer, Axis, Figure, Result, log, scale_for
from foretrain.support.answers.formulas import number_text
from foretrain.support.arguments import whole_number
from foretrain.support.progress import track

if TYPE_CHECKING:
    import xarray

Array = NDArray[np.float64]

TRUSTED = 0.25  # of the movement of the outputs may be wrong, by either error
_LOOKS = 12  # at the real network with the linearised weights, evenly in log steps
_ENTRIES = 2048  # samples x outputs at most


@dataclass(frozen=True, eq=False, repr=False)
class LearningCurve(Result):
    """Loss over the steps on the same samples, all of them in every step: predicted and measured.

    At the steps ``looked_at``: ``relative_error``, the share of the outputs' movement that the linearisation gets
    wrong, and ``speed_error``, what wrong speeds have added up to, over the path; ``trusted_until`` is the last of
    these steps before one of them passes a quarter. Losses are inf where they are no number.
    """

    steps: NDArray[np.int64]
    predicted: Array
    measured: Array
    looked_at: NDArray[np.int64]
    relative_error: Array
    speed_error: Array
    trusted_until: int
    samples: int

    def to_dataset(self) -> xarray.Dataset:
        """By step, and by the steps that were looked at."""
        import xarray

        return xarray.Dataset(
            {
                "predicted": ("step", self.predicted),
                "measured": ("step", self.measured),
                "relative_error": ("looked_at", self.relative_error, {"units": "share of the movement"}),
                "speed_error": ("looked_at", self.speed_error, {"units": "share of the path"}),
                "trusted_until": ((), self.trusted_until, {"units": "steps"}),
            },
            {"step": self.steps, "looked_at": self.looked_at},
            {"samples": self.samples, "trusted_error": TRUSTED},
        )

    def answer(self) -> Answer:
        """What is predicted and what happens, and how far the prediction can be trusted."""
        last, end = int(self.steps[-1]), self.trusted_until
        until = f"can be trusted {f'for {end:,} steps' if end < last else 'to the end'}"
        if end <= self.steps[0]:
            until = "cannot be trusted: it goes wrong from the first steps on"
        return Answer(
            f"Over {last:,} steps on {self.samples} samples the tangent kernel predicts that the loss goes from "
            f"{self.predicted[0]:.4g} to {self.predicted[-1]:.4g}; really it reaches {self.measured[-1]:.4g}. The "
            f"prediction takes the network as linear in its weights, and {until}.",
            [self.figure],
            self.to_dataset,
            title="Learning curve, predicted and real",
        )

    def figure(self) -> Figure:
        """Both curves, shaded where the prediction is trusted, and the errors of the prediction."""
        figure = Figure(columns=2, size=(11.0, 4.1))
        losses = np.concatenate([self.predicted, self.measured])
        panel = figure.panel(
            "Predicted and real",
            x="step",
            y=Axis("loss", scale_for(losses, 3.0)),
            caption=f"After {number_text(self.steps[-1])} steps {number_text(self.predicted[-1])} is predicted, and "
            f"{number_text(self.measured[-1])} is real.",
        )
        if self.trusted_until > self.steps[0]:
            region = (float(self.steps[0]), float(self.trusted_until))
            panel.region(region, label="prediction is trusted", color=BLUE, alpha=0.13)
        panel.curve(self.steps, self.measured, "-", "real", ORANGE)
        panel.curve(self.steps, self.predicted, "--", "predicted", BLUE)
        kinds = {"of the outputs": self.relative_error, "of their speed": self.speed_error}
        last = [f"{name} {number_text(100 * values[-1])} %" for name, values in kinds.items()]
        panel = figure.panel(
            "Error of the prediction",
            x=log("step"),
            y=log("relative error"),
            caption=f"At step {number_text(self.looked_at[-1])} the linearisation gets wrong: {', '.join(last)}. "
            f"Up to {100 * TRUSTED:.0f} % it is trusted.",
        )
        for (name, values), style, color in zip(kinds.items(), ("o-", "s--"), (BLUE, ORANGE), strict=True):
            panel.curve(self.looked_at, values, style, name, color)
        panel.level(TRUSTED, label="limit of trust", dash=":")
        return figure


def learning_curve(case: Case, steps: int = 200) -> LearningCurve:
    """Train the linearised and the real network, at rest (as ``case.model``), for so many steps."""
    steps = whole_number("steps", steps)
    task = case.kernel_sample(_ENTRIES)
    looks = np.unique(np.round(np.logspace(0, np.log10(steps), _LOOKS)).astype(np.int64))
    predicted, errors = np.full(steps + 1, np.inf), list[tuple[float, float, float]]()
    with (
        suited_threads(case.setup),
        Tangent(copy.deepcopy(case.model), task.x, case.recipe.rates) as tangent,
    ):
        real = _losses(copy.deepcopy(case.model), case.recipe, task, steps)
        measured = np.array(list(track(real, "training", steps + 1)))
        linear, wanted = _Linearised(case.model, tangent), set(looks.tolist())
        course = _losses(linear, case.recipe, task, steps)
        for step, loss in enumerate(track(course, "linearised training", steps + 1)):
            predicted[step] = loss
            if step in wanted:
                errors.append(linear.errors(task, case.recipe))
    output_error, wrong, speed = np.array(errors).T
    speed_error = _summed(looks, wrong) / np.maximum(_summed(looks, speed), np.finfo(float).tiny)
    # The last step that was looked at before an error passes the bound; all of them if it does not.
    wrong_at = np.flatnonzero(~(np.maximum(output_error, speed_error) <= TRUSTED))
    trusted = steps
    if len(wrong_at):
        trusted = int(looks[wrong_at[0] - 1]) if wrong_at[0] else 0
    return LearningCurve(
        np.arange(steps + 1), predicted, measured, looks, output_error, speed_error, trusted, len(task.x)
    )


def _summed(steps: NDArray[np.int64], values: Array) -> Array:
    """The integral from step 0 on, by trapezia; before the first look the values are taken as constant."""
    between = np.diff(steps) * (values[1:] + values[:-1]) / 2
    return np.asarray(np.concatenate([[0.0], np.cumsum(between)]) + steps[0] * values[0])


def _losses(model: nn.Module, recipe: Recipe, task: Task, steps: int) -> Iterator[float]:
    """The loss before every step and after the last; inf where it is no number."""
    # Of the linearised network only all samples at once are known; micro-batches add up to the same step.
    optimizer = replace(recipe, accumulate=1).build(model)
    for _ in range(steps + 1):
        value = task.value(model)
        yield value if np.isfinite(value) else float("inf")
        if np.isfinite(value):
            descend(optimizer, model, task)


class _Linearised(nn.Module):
    """f_0 + J (theta - theta_0) on fixed inputs, with parameters of the same names as the model's."""

    def __init__(self, model: nn.Module, tangent: Tangent) -> None:
        super().__init__()
        self._held = (tangent, copy.deepcopy(model))  # in a tuple: their parameters are not this module's
        self._start = tangent.outputs.detach()

    def get_parameter(self, target: str) -> nn.Parameter:
        """Of the copy that is trained."""
        return self._held[1].get_parameter(target)

    def forward(self, _: Tensor) -> Tensor:
        """Of the fixed inputs."""
        tangent, trained = self._held
        changes = [trained.get_parameter(name) - value.detach() for name, value in tangent.weights.items()]
        found: Tensor = _Push.apply(tangent, *changes)  # type: ignore[no-untyped-call]
        return self._start + found

    def errors(self, task: Task, recipe: Recipe) -> tuple[float, float, float]:
        """At the present weights: the relative error of the outputs' movement, that of their speed, and the speed."""
        tangent, trained = self._held
        linear = self(task.x).detach()
        if not torch.isfinite(linear).all():
            return float("inf"), float("inf"), float("inf")
        with Tangent(trained, task.x, recipe.rates) as real:
            there = _speed(real, task, real.outputs, recipe)
            here = _speed(tangent, task, linear, recipe)
        moved, wrong = float((linear - self._start).norm()), float((real.outputs.detach() - linear).norm())
        return wrong / moved if moved > 0 else 0.0, float((there - here).norm()), float(here.norm())


def _speed(tangent: Tangent, task: Task, outputs: Tensor, recipe: Recipe) -> Tensor:
    """Theta dL/df with the rates inside."""
    with torch.enable_grad():
        points = outputs.detach().requires_grad_()
        (slope,) = torch.autograd.grad(task.loss(points, task.y), points)
    pulled = zip(tangent.weights, tangent.pull(slope))
    return tangent.push([recipe.rates[name] * gradient for name, gradient in pulled])


class _Push(torch.autograd.Function):
    """J t with the derivative J^T v."""

    @staticmethod
    def forward(context: Any, tangent: Tangent, *changes: Tensor) -> Tensor:
        """J t."""
        context.tangent = tangent
        return tangent.push(changes)

    @staticmethod
    def backward(context: Any, *gradients: Any) -> Any:
        """J^T v."""
        return None, *context.tangent.pull(gradients[0])
