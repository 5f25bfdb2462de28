"""Data and loss as a torch model takes them: tensors in its precision, targets in the shape of its outputs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from foretrain.support.errors import InputError

Loss = Callable[[Any, Any], Tensor]

_NAMES: dict[Loss, str] = {
    nn.functional.mse_loss: "mean squared error",
    nn.functional.cross_entropy: "cross-entropy",
}
_BY_ELEMENT: tuple[Loss, ...] = (
    nn.functional.mse_loss,
    nn.functional.l1_loss,
    nn.functional.smooth_l1_loss,
    nn.functional.huber_loss,
    nn.functional.binary_cross_entropy_with_logits,
)
_BY_ELEMENT_MODULES = (nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss, nn.BCEWithLogitsLoss)


@dataclass(frozen=True)
class Task:
    """Inputs, targets and loss as the model takes them."""

    x: Tensor = field(repr=False)
    y: Tensor = field(repr=False)
    loss: Loss = field(repr=False)
    loss_name: str

    def taken(self, places: Tensor) -> Task:
        """Some of the samples, by their numbers."""
        return replace(self, x=self.x[places.to(self.x.device)], y=self.y[places.to(self.y.device)])

    def value(self, model: nn.Module) -> float:
        """The loss over all data."""
        with torch.no_grad():
            return float(self.loss(model(self.x), self.y))


def prepare(model: nn.Module, x: Any, y: Any, loss: Loss | None) -> Task:
    """Tensors in the model's precision; without a loss, cross-entropy for whole-number labels, else mean squares."""
    like = next(model.parameters()).detach()
    inputs = _tensor(x, "x").to(like.device)
    inputs = inputs.to(like.dtype) if inputs.is_floating_point() else inputs
    targets = _tensor(y, "y").to(like.device)
    if len(inputs) != len(targets) or not len(inputs):
        raise InputError(f"x has {len(inputs)} samples and y {len(targets)}: give one target for each input.")
    with torch.no_grad():
        outputs = model(inputs[:2])
    if not isinstance(outputs, Tensor):
        raise InputError(
            f"the model returns a {type(outputs).__name__}: wrap it so that it returns a tensor."
        )
    whole = not targets.is_floating_point()
    if loss is None:
        classes = (
            whole and outputs.ndim > 1 and outputs.shape[1] > 1 and _labels(targets, outputs) is not None
        )
        loss = nn.functional.cross_entropy if classes else nn.functional.mse_loss
    if loss in _BY_ELEMENT or isinstance(loss, _BY_ELEMENT_MODULES):
        targets = _shaped_like(targets.to(like.dtype), outputs)
    elif whole and (loss is nn.functional.cross_entropy or isinstance(loss, nn.CrossEntropyLoss)):
        targets = _checked_labels(targets, outputs, getattr(loss, "ignore_index", -100))
    elif not whole:
        targets = targets.to(like.dtype)
        _refuse_broadcasting(loss, model, inputs, targets)
    name = _NAMES.get(loss, getattr(loss, "__name__", type(loss).__name__))
    task = Task(inputs, targets, loss, name)
    _check_value(task, model)
    return task


def _shaped_like(targets: Tensor, outputs: Tensor) -> Tensor:
    """One number for each output; axes of length one are added or left out, nothing is broadcast or reordered."""
    shape = (len(targets), *outputs.shape[1:])
    given, wanted = ([size for size in sizes[1:] if size != 1] for sizes in (targets.shape, shape))
    if given != wanted:
        raise InputError(
            f"a target has shape {tuple(targets.shape[1:])} but an output {tuple(outputs.shape[1:])}: "
            "give targets in the shape of the outputs, or whole-number labels with cross-entropy."
        )
    return targets.reshape(shape)


def _labels(targets: Tensor, outputs: Tensor) -> Tensor | None:
    """Whole-number targets without the axis of length one that stands where the outputs have their classes."""
    if targets.ndim == outputs.ndim and targets.ndim > 1 and targets.shape[1] == 1:
        targets = targets.squeeze(1)
    return targets.long() if targets.shape[1:] == outputs.shape[2:] else None


def _checked_labels(targets: Tensor, outputs: Tensor, ignored: int) -> Tensor:
    labels = _labels(targets, outputs) if outputs.ndim > 1 else None
    if labels is None:
        raise InputError(
            f"labels have shape {tuple(targets.shape[1:])} and outputs {tuple(outputs.shape[1:])} for each sample: "
            "give one label where the outputs have one number for each class."
        )
    classes, counted = outputs.shape[1], labels[labels != ignored]
    if counted.numel() and (int(counted.min()) < 0 or int(counted.max()) >= classes):
        raise InputError(
            f"labels run from {int(counted.min())} to {int(counted.max())}, but the model has {classes} outputs: "
            f"give labels from 0 to {classes - 1}."
        )
    return labels


def _tensor(values: Any, name: str) -> Tensor:
    try:
        found = torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError):
        found = torch.tensor(0.0)
    if not found.ndim:
        raise InputError(
            f"{name} is a {type(values).__name__}: give an array with one entry for each sample."
        )
    return found


def _refuse_broadcasting(loss: Loss, model: nn.Module, inputs: Tensor, targets: Tensor) -> None:
    """A loss of one's own that compares every output with every target, where (n,) meets (n, 1).

    Then the loss of two samples is neither mean nor sum of their losses, but it is with targets like the outputs.
    """
    with torch.no_grad():
        outputs = model(inputs[:2])
    if targets[:2].shape == outputs.shape or targets[:2].numel() != outputs.numel() or len(inputs) < 2:
        return
    if _adds_up(loss, outputs, targets[:2]) or not _adds_up(
        loss, outputs, targets[:2].reshape(outputs.shape)
    ):
        return
    raise InputError(
        f"y has shape {tuple(targets.shape)}, which the loss broadcasts against outputs of shape "
        f"{(len(inputs), *outputs.shape[1:])}: give y in the shape of the outputs."
    )


def _adds_up(loss: Loss, outputs: Tensor, targets: Tensor) -> bool:
    """Whether the loss of two samples is the mean or the sum of their losses."""
    try:
        whole, first, second = (
            float(loss(outputs[part], targets[part])) for part in (slice(0, 2), slice(0, 1), slice(1, 2))
        )
    except (
        RuntimeError,
        ValueError,
        IndexError,
        TypeError,
    ):  # what the loss cannot take is told with all data
        return False
    return any(math.isclose(whole, share * (first + second), rel_tol=1e-5) for share in (0.5, 1.0))


def _check_value(task: Task, model: nn.Module) -> None:
    for name, values in (("x", task.x), ("y", task.y)):
        if not torch.isfinite(values).all():
            raise InputError(f"{name} has values that are infinite or not a number: remove them.")
    with torch.no_grad():
        outputs = model(task.x)
        if not torch.isfinite(outputs).all():
            raise InputError("outputs of the model are infinite or not a number: look at its weights.")
        try:
            value = task.loss(outputs, task.y)
        except (RuntimeError, ValueError, IndexError, TypeError) as error:
            raise InputError(
                f"the loss does not take outputs of shape {tuple(outputs.shape)} and y of shape "
                f"{tuple(task.y.shape)} ({str(error).splitlines()[0]}): give y as the loss wants it."
            ) from error
    if not isinstance(value, Tensor) or value.numel() != 1 or not torch.isfinite(value).all():
        raise InputError("loss(model(x), y) must be one finite number: average it over the data.")
