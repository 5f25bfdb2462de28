"""Half the sum of squares, told from any number of samples as it is over those of a training step."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from foretrain.compare.task import Task, squared_error


@dataclass(frozen=True)
class StepSum:
    """The checks look at some of the samples: what a step sums over is as many times larger."""

    samples: int  # in a step

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Of any samples, as if there were as many as in a step."""
        return squared_error(outputs, targets) * (self.samples / len(outputs))


def summed_over_steps(task: Task, samples: int) -> Task:
    """With a loss that has the size of a step's on any part of the data; means have it already."""
    if task.loss is not squared_error:
        return task
    return replace(task, loss=StepSum(samples), loss_name=f"{task.loss_name} in a step")
