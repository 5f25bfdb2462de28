"""Data and loss as a torch model takes them: tensors in its precision, targets in the shape of its outputs."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from foretrain.compare.bundle import Bundle, bundle, change_tensors, takes_bundles
from foretrain.support.errors import InputError, NotSupportedError, error_text, unknown_name

Loss = Callable[[Any, Any], Tensor]


def squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Half the SUM of squares, over samples and outputs: the loss of ``foretrain.predict``."""
    return (outputs - targets).square().sum() / 2


LOSSES: dict[str, Loss] = {
    "squared_error": squared_error,
    "mse": nn.functional.mse_loss,
    "cross_entropy": nn.functional.cross_entropy,
}
_NAMES: dict[Loss, str] = {
    squared_error: "half the sum of squared errors",
    nn.functional.mse_loss: "mean squared error",
    nn.functional.cross_entropy: "cross-entropy",
}
_TRIED = 16  # samples: all of them would take as long as some steps of a training, and more memory
_BY_ELEMENT: tuple[Loss, ...] = (
    squared_error,
    nn.functional.mse_loss,
    nn.functional.l1_loss,
    nn.functional.smooth_l1_loss,
    nn.functional.huber_loss,
    nn.functional.binary_cross_entropy,
    nn.functional.binary_cross_entropy_with_logits,
)
_BY_ELEMENT_MODULES = (
    nn.MSELoss,
    nn.L1Loss,
    nn.SmoothL1Loss,
    nn.HuberLoss,
    nn.BCELoss,
    nn.BCEWithLogitsLoss,
)


@dataclass(frozen=True)
class Task:
    """Inputs, targets and loss as the model takes them.

    ``broadcast``: one sentence where the loss that the user gave compares every output with every target.
    """

    x: Any = field(repr=False)  # a tensor, or a Bundle of several
    y: Any = field(repr=False)  # a tensor; None where only the step of a batch knows the targets
    loss: Loss = field(repr=False)
    loss_name: str
    broadcast: str = field(default="", repr=False)

    def taken(self, places: Tensor) -> Task:
        """Some of the samples, by their numbers."""
        return replace(self, x=self.x[places.to(self.x.device)], y=self.y[places.to(self.y.device)])

    def loss_of(self, model: nn.Module) -> Tensor:
        """The loss over all data, with its graph: what a step of training lowers."""
        return self.loss(model(self.x), self.y)

    def value(self, model: nn.Module) -> float:
        """The same as a number."""
        with torch.no_grad():
            return float(self.loss_of(model))


def named_loss(loss: Loss | str | None) -> Loss | None:
    """A loss by its name (capitals and hyphens do not matter), or the function that was given.

    Names are those of ``LOSSES`` and of the losses in torch.nn.functional, as "l1_loss" or "l1".
    """
    if isinstance(loss, str):
        name = loss.strip().lower().replace("-", "_")
        of_torch = {
            key: function
            for key, function in vars(nn.functional).items()
            if key.endswith("_loss") or key.startswith("binary_cross_entropy")
        }
        known: dict[str, Loss] = LOSSES | of_torch
        if name not in known and f"{name}_loss" not in known:
            raise unknown_name("`loss`", loss, {**LOSSES, "l1_loss": None})
        return known.get(name) or known[f"{name}_loss"]
    if loss is not None and not callable(loss):
        raise InputError(
            f"loss is a {type(loss).__name__}: give its name or a function of outputs and targets."
        )
    return loss


def prepare(model: nn.Module, x: Any, y: Any, loss: Loss | str | None, outputs: Tensor | None = None) -> Task:
    """Tensors in the model's precision; without a loss, cross-entropy for whole-number labels, else mean squares.

    Targets get the shape of the outputs where the loss is named or chosen here. A function that the user gave is
    called with what the user gave, as in a training of one's own, also where it broadcasts; only what it would refuse
    gets the shape of the outputs too. ``outputs`` are those for the first two samples, if known.
    """
    ours, loss = loss is None or isinstance(loss, str), named_loss(loss)
    like = next(model.parameters()).detach()
    inputs, targets = paired_samples(x, y)
    inputs, targets = inputs.to(like.device), targets.to(like.device)
    if isinstance(inputs, Bundle) and not takes_bundles(model):
        raise NotSupportedError(
            f"`x` is a {type(x).__name__}: give one tensor, and wrap the model so that it takes it apart."
        )
    inputs = change_tensors(
        inputs, lambda value: value.to(like.dtype) if value.is_floating_point() else value
    )
    if outputs is None:
        with torch.no_grad():
            outputs = model(inputs[:2])
    if not isinstance(outputs, Tensor):
        raise InputError(
            f"the model returns a {type(outputs).__name__}: wrap it so that it returns a tensor."
        )
    whole, broadcast = not targets.is_floating_point(), ""
    if loss is None:
        classes = (
            whole and outputs.ndim > 1 and outputs.shape[1] > 1 and _labels(targets, outputs) is not None
        )
        loss = nn.functional.cross_entropy if classes else nn.functional.mse_loss
    name = _NAMES.get(loss, getattr(loss, "__name__", type(loss).__name__))
    by_element = loss in _BY_ELEMENT or isinstance(loss, _BY_ELEMENT_MODULES)
    if by_element and (ours or not _runs(loss, outputs, targets[:2].to(like.dtype))):
        # One number for each output: axes of length one are added or left out, nothing is broadcast or reordered.
        shape = (len(targets), *outputs.shape[1:])
        given, wanted = ([size for size in sizes[1:] if size != 1] for sizes in (targets.shape, shape))
        if given != wanted:
            raise InputError(
                f"a target has shape {tuple(targets.shape[1:])} but an output {tuple(outputs.shape[1:])}: "
                "give targets in the shape of the outputs, or whole-number labels with cross-entropy."
            )
        targets = targets.to(like.dtype).reshape(shape)
    elif whole and (loss is nn.functional.cross_entropy or isinstance(loss, nn.CrossEntropyLoss)):
        targets = _checked_labels(targets, outputs, getattr(loss, "ignore_index", -100))
    elif by_element or not whole:
        targets = targets.to(like.dtype)
        if _broadcasts(loss, outputs, targets, by_element):
            loss, shape = _Quiet(loss), (len(targets), *outputs.shape[1:])
            broadcast = (
                f"y has shape {tuple(targets.shape)}, which the loss broadcasts against outputs of shape {shape}: "
                "give y in the shape of the outputs."
            )
    task = Task(inputs, targets, loss, name, broadcast)
    return replace(task, loss=Careful(loss)) if _check_value(task, model) else task


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


def paired_samples(x: Any, y: Any) -> tuple[Tensor | Bundle, Tensor]:
    """Inputs and targets, at least one and as many of one as of the other."""
    inputs, targets = input_samples(x), sample_tensor(y, "y")
    if len(inputs) != len(targets):
        raise InputError(
            f"`y` has {len(targets)} samples and x {len(inputs)}: give one target for each input."
        )
    if isinstance(inputs, Tensor) and not inputs.numel():
        raise InputError(f"`x` is empty, of shape {tuple(inputs.shape)}: give at least one sample.")
    for name, values in (("x", inputs), ("y", targets)):
        if isinstance(values, Tensor) and not torch.isfinite(values).all():
            raise InputError(f"`{name}` has values that are infinite or not a number: remove them.")
    return inputs, targets


def input_samples(x: Any) -> Tensor | Bundle:
    """One tensor, or a bundle of what a dict or a tuple holds."""
    if isinstance(x, Bundle):
        return x
    several = isinstance(x, tuple) and any(isinstance(value, Tensor | np.ndarray | Mapping) for value in x)
    return bundle(x) if several or isinstance(x, Mapping) else sample_tensor(x, "x")


def sample_tensor(values: Any, name: str) -> Tensor:
    """Real numbers with one entry for each sample along the first axis, without their history."""
    try:
        tensor = torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError):
        tensor = torch.tensor(0.0)
    if tensor.layout is not torch.strided:
        raise InputError(f"`{name}` is a sparse tensor: give {name}.to_dense().")
    if not tensor.ndim or tensor.is_complex():
        raise InputError(
            f"`{name}` is a {type(values).__name__}: give an array of real numbers with one entry for each sample."
        )
    return tensor.detach()


@dataclass(frozen=True)
class Careful:
    """A loss that writes into what it is given: it gets copies."""

    loss: Loss

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """As the loss itself."""
        return self.loss(outputs.clone(), targets.clone())


@dataclass(frozen=True)
class _Quiet:
    """A loss that broadcasts, without torch's warning at every step: it is told once, by the task."""

    loss: Loss

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Using a target size")
            return self.loss(outputs, targets)


def _broadcasts(loss: Loss, outputs: Tensor, targets: Tensor, by_element: bool) -> bool:
    """Whether a loss of one's own compares every output with every target, as where (n,) meets (n, 1).

    Then the loss of two samples is neither mean nor sum of their losses, but it is with targets like the outputs.
    """
    if targets.shape[1:] == outputs.shape[1:] or len(targets) < 2:
        return False
    if by_element:
        return True
    unlike = (targets - targets[:1]).abs().reshape(len(targets), -1).sum(1).argmax()
    targets = targets[[0, int(unlike)]]  # of equal ones all comparisons are the same
    same = targets.numel() == outputs.numel()
    return (
        same
        and not _adds_up(loss, outputs, targets)
        and _adds_up(loss, outputs, targets.reshape(outputs.shape))
    )


def _runs(loss: Loss, outputs: Tensor, targets: Tensor) -> bool:
    try:
        _Quiet(loss)(outputs, targets)
    except (RuntimeError, ValueError):
        return False
    return True


def _adds_up(loss: Loss, outputs: Tensor, targets: Tensor) -> bool:
    """Whether the loss of two samples is the mean or the sum of their losses."""
    try:
        whole, first, second = (
            float(loss(outputs[part], targets[part])) for part in (slice(0, 2), slice(0, 1), slice(1, 2))
        )
    except (RuntimeError, ValueError, IndexError, TypeError):
        return False  # what the loss cannot take is told with all data
    return any(math.isclose(whole, share * (first + second), rel_tol=1e-5) for share in (0.5, 1.0))


def _check_value(task: Task, model: nn.Module) -> bool:
    """Refuse a loss that cannot be trained with; whether it writes into what it is given."""
    task = task.taken(torch.arange(min(_TRIED, len(task.x))))
    with torch.no_grad():
        outputs = model(task.x)
        if not torch.isfinite(outputs).all():
            raise InputError("outputs of the model are infinite or not a number: look at its weights.")
        before = outputs._version, task.y._version
        try:
            value = task.loss(outputs, task.y)
        except Exception as error:  # whatever the user's loss stumbles over
            raise InputError(
                f"the loss does not take outputs of shape {tuple(outputs.shape)} and y of shape "
                f"{tuple(task.y.shape)} ({error_text(error)}): give y as the loss wants it."
            ) from error
    check_loss(value, "the loss")
    return before != (outputs._version, task.y._version)


def check_loss(value: Any, name: str) -> None:
    """Refuse what a loss or a step has returned if it is not one finite real number in a tensor."""
    if not isinstance(value, Tensor):
        raise InputError(
            f"{name} returns a {type(value).__name__}: let it return a tensor, from which gradients can be had."
        )
    if value.numel() != 1:
        raise InputError(
            f"{name} returns shape {tuple(value.shape)}: average it over the data, to one number."
        )
    if value.is_complex():
        raise InputError(f"{name} returns a complex number: let it return a real one.")
    if not torch.isfinite(value).all():
        raise InputError(
            f"{name} returns {float(value.detach()):g}: look at the weights of the model and the data."
        )
